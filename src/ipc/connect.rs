//! Finding each other: who listens under a name, and who connects to it. The other half, who
//! accepts, is `accept`.

use super::handshake::{Established, Handshake};
use super::os::{self, Fd, Result};
use super::settings::Settings;
use crate::os::sys;

/// Who comes second must not take a socket for left over that the first one is just making. They
/// take turns for that; whoever holds the folder for other reasons is not waited for long.
pub fn listen(path: &[u8]) -> Result<Fd> {
    const TURN: u64 = 1_000_000_000;
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    let named = path[0] != b'@';
    let _turn = named.then(|| os::lock_folder(path, sys::nanoseconds() + TURN));
    match os::bind(&socket, &address) {
        Err(libc::EADDRINUSE) if named && is_left_over(&address) => {
            os::remove_file(&address);
            os::bind(&socket, &address)?;
        }
        answer => answer?,
    }
    os::listen(&socket)?;
    Ok(socket)
}

/// Whether this is a socket file that has nobody behind it. Connecting to any other file is
/// refused, too, and that one is not ours to remove.
fn is_left_over(address: &os::UnixAddress) -> bool {
    if !os::is_socket_file(address) {
        return false;
    }
    // Who has no time for us is there.
    let at_once = sys::nanoseconds();
    matches!(os::connect(address, at_once), Err(libc::ECONNREFUSED))
}

/// Who was accepted and hears nothing for so long, in nanoseconds, comes again; then for twice as
/// long, and so on. Much longer than greetings take, on a busy machine too.
const FORGOTTEN: u64 = 250_000_000;

/// Connects, and greets, within one limit.
pub fn connect(path: &[u8], settings: Settings) -> Result<Established> {
    let end = sys::nanoseconds() + settings.patience;
    let address = os::unix_address(path)?;
    let (mut socket, mut patience) = (os::connect(&address, end)?, FORGOTTEN);
    let mut greeting = Handshake::new(socket.raw(), settings, end, false);
    loop {
        let done = greeting.finish(patience);
        // Of several processes that accept the one may have ended that has taken us in.
        let ended =
            matches!(done, Some(Err(libc::ECONNRESET | libc::EPIPE))) && greeting.moved() != 0;
        if let Some(done) = done
            && (!ended || patience > 8 * FORGOTTEN)
        {
            return done;
        }
        patience *= 2;
        let again = match os::connect(&address, sys::nanoseconds()) {
            Ok(again) => again,
            Err(_) if ended => return Err(libc::ECONNRESET),
            // The queue is full, so there is somebody to accept.
            Err(_) => continue,
        };
        // The server cannot say its last word from now on; it may have done so. And it sees that we
        // are gone before it misses our page.
        os::shut_down(&socket, libc::SHUT_RDWR);
        if !ended && let Some(Ok(done)) = greeting.go_on() {
            return Ok(done);
        }
        greeting = Handshake::new(again.raw(), settings, end, false);
        socket = again;
    }
}
