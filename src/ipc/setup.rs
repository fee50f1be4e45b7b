//! Finding each other: listening under a name, and connecting to it. Accepting is in `accept`.

pub mod accept;
pub mod handshake;

use crate::ipc::os::{self, Fd, Result};
use crate::ipc::settings::Settings;
use crate::os::sys;
use handshake::{Established, GreetingSide, Handshake};

/// Listens at a path or abstract name. A lock on the folder keeps a second listener from taking the
/// socket file of the first for a left-over one while that is being made.
pub fn listen(path: &[u8]) -> Result<Fd> {
    const LOCK_NS: u64 = 1_000_000_000;
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    let named = path[0] != b'@';
    let _lock = named.then(|| os::lock_folder(path, sys::nanoseconds() + LOCK_NS));
    os::make_private(&socket)?;
    match os::bind(&socket, &address) {
        Err(libc::EADDRINUSE) if named && is_left_over(&address) => {
            os::remove_file(&address);
            os::bind(&socket, &address)?;
        }
        answer => answer?,
    }
    // Inherited by clients' sockets: closing a descriptor can block, unless it is never taken.
    os::take_descriptors(socket.raw(), false);
    os::listen(&socket)?;
    Ok(socket)
}

/// Returns whether this is a socket file without a listener. Connecting to any other file is
/// refused, too, and that one is not ours to remove.
fn is_left_over(address: &os::UnixAddress) -> bool {
    let at_once = sys::nanoseconds();
    os::is_socket_file(address) && matches!(os::connect(address, at_once), Err(libc::ECONNREFUSED))
}

/// Connects and greets until `end`, a time of `sys::nanoseconds`.
pub fn connect(path: &[u8], settings: Settings, end: u64) -> Result<Established> {
    let socket = os::connect(&os::unix_address(path)?, end)?;
    handshake::check_user(socket.raw())?;
    Handshake::new(socket.raw(), settings, end, GreetingSide::Guest).finish()
}

/// Greets over any connected unix socket, which stays the program's.
pub fn attach(socket: i32, settings: Settings) -> Result<Established> {
    if os::socket_option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(libc::EAFNOSUPPORT);
    }
    // A pair may come from root, which drops its rights; its other end is looked at by HELLO.
    let maker = os::peer_credentials(socket)?;
    if maker.uid != 0 {
        handshake::check_user(socket)?;
    }
    let end = sys::nanoseconds() + settings.patience;
    Handshake::new(socket, settings, end, GreetingSide::Either).finish()
}
