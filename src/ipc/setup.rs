//! Finding each other: listening under a name, and connecting to it. Accepting is in `accept`.

pub mod accept;
pub mod handshake;
mod talk;

use crate::ipc::os::{self, Fd, Result};
use crate::ipc::settings::Settings;
use crate::os::sys;
use handshake::{Established, Handshake, side};

/// Longest wait for the lock on a folder, in nanoseconds.
const LOCK_NS: u64 = 1_000_000_000;

/// Listens at a path or abstract name. A lock on the folder covers the moment in which the file
/// exists and refuses connections: another listener must not take it for a stale one, and
/// [`connect`] waits for it.
pub fn listen(path: &[u8]) -> Result<Fd> {
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
    // Inherited by clients' sockets: closing a received descriptor can block.
    os::take_descriptors(socket.raw(), false);
    os::listen(&socket)?;
    Ok(socket)
}

/// Returns whether this is a socket file without a listener. Connecting to any other file is
/// refused too, but that one is not ours to remove.
fn is_left_over(address: &os::UnixAddress) -> bool {
    let at_once = sys::nanoseconds();
    os::is_socket_file(address) && matches!(os::connect(address, at_once), Err(libc::ECONNREFUSED))
}

/// Connects and greets until `end`, a time of `sys::nanoseconds`.
pub fn connect(path: &[u8], settings: Settings, end: u64) -> Result<Established> {
    let address = os::unix_address(path)?;
    let socket = match os::connect(&address, end) {
        Err(libc::ECONNREFUSED) if path[0] != b'@' => {
            drop(os::lock_folder(path, end.min(sys::nanoseconds() + LOCK_NS)));
            os::connect(&address, end)?
        }
        answer => answer?,
    };
    handshake::check_user(socket.raw())?;
    Handshake::new(socket.raw(), settings, end, side::GUEST).finish()
}

/// Greets over any connected unix socket, which stays the program's.
pub fn attach(socket: i32, settings: Settings) -> Result<Established> {
    if os::socket_option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(libc::EAFNOSUPPORT);
    }
    // A pair may come from root, which drops its rights; HELLO checks its other end.
    let maker = os::peer_credentials(socket)?;
    if maker.uid != 0 {
        handshake::check_user(socket)?;
    }
    let end = sys::nanoseconds() + settings.patience;
    Handshake::new(socket, settings, end, side::EITHER).finish()
}
