//! Listeners, and connections between two processes of one user.

use crate::sys::{library, told, RawPeer};
use crate::{reactor, Block, Message};
use std::ffi::{c_int, CString};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A connection's or listener's number, closed when the last that uses it is dropped.
pub(crate) struct Link {
    pub(crate) number: c_int,
    /// The descriptor to poll was made, and may be waited for.
    armed: AtomicBool,
}

impl Link {
    fn new(result: c_int) -> io::Result<Self> {
        told(result).map(|number| Self { number: number as c_int, armed: AtomicBool::new(false) })
    }

    fn event_fd(&self) -> io::Result<c_int> {
        // SAFETY: takes a number.
        told(unsafe { (library()?.adma_event_fd)(self.number) }).map(|fd| fd as c_int)
    }

    fn borrowed_event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: open until `adma_close`, which the drop of this link calls.
        self.event_fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn arm(&self) -> io::Result<bool> {
        self.armed.store(true, Ordering::Relaxed);
        // SAFETY: takes a number.
        told(unsafe { (library()?.adma_arm)(self.number) }).map(|ready| ready == 1)
    }

    /// Looks, and has the task woken with the next change if there is nothing.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Poll<io::Result<T>> {
        let mut look = || look().inspect(|_| self.wake_others());
        if let Some(found) = look() {
            return Poll::Ready(Ok(found));
        }
        // Registered before it is armed: a task that takes our news from the descriptor wakes all that
        // are.
        let fd = self.event_fd()?;
        reactor::register(fd, cx.waker(), false);
        // A look may take a step after which there is another to take. There is none after a 0: it
        // might make something that the descriptor does not report.
        for turn in 0..50 {
            if !self.arm().unwrap_or(true) {
                break;
            }
            if let Some(found) = look() {
                return Poll::Ready(Ok(found));
            }
            if turn == 0 {
                reactor::register(fd, cx.waker(), true); // of what other tasks wait for
            }
        }
        Poll::Pending
    }

    /// Looks until there is something.
    fn block_on<T>(&self, mut look: impl FnMut() -> Option<T>) -> io::Result<T> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll(&mut Context::from_waker(&waker), &mut look) {
                Poll::Ready(found) => return found,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// One that has armed does not look any more.
    pub(crate) fn wake_others(&self) {
        let armed = self.armed.load(Ordering::Relaxed);
        if let Some(fd) = armed.then(|| self.event_fd().ok()).flatten() {
            reactor::wake_all(fd);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wake_others();
        if let Ok(library) = library() {
            // SAFETY: takes a number. Messages have the link, so none is under way.
            unsafe { (library.adma_close)(self.number) };
        }
    }
}

fn name(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn milliseconds(limit: Duration) -> c_int {
    limit.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX)
}

/// The other process, as the system describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Large messages need one copy only.
    pub proven: bool,
}

/// A connection: each write of one side meets one read of the other. Clones are the same connection.
#[derive(Clone)]
pub struct Connection(Arc<Link>);

impl Connection {
    fn new(result: c_int) -> io::Result<Self> {
        Link::new(result).map(|link| Self(Arc::new(link)))
    }

    /// Connects to a listener, at a path or at the abstract name "@name".
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        // SAFETY: a string.
        Self::new(unsafe { (library()?.adma_connect)(name(path.as_ref())?.as_ptr()) })
    }

    pub fn connect_for(path: impl AsRef<Path>, limit: Duration) -> io::Result<Self> {
        let name = name(path.as_ref())?;
        // SAFETY: a string.
        Self::new(unsafe { (library()?.adma_connect_for)(name.as_ptr(), milliseconds(limit)) })
    }

    /// Makes a connection over a socket; the other side must do so as well.
    pub fn attach(socket: &UnixStream) -> io::Result<Self> {
        // SAFETY: takes a number.
        Self::new(unsafe { (library()?.adma_attach)(socket.as_raw_fd()) })
    }

    /// Reads one message into a block: `wait` for it, or `await` it.
    pub fn read(&self, block: Block) -> Message {
        Message::new(&self.0, true, block)
    }

    /// Writes a block as one message, which is over when the other side has read it.
    pub fn write(&self, block: Block) -> Message {
        Message::new(&self.0, false, block)
    }

    /// Reads one message and returns its length.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: ours until it returns.
        let read = unsafe { (library()?.adma_read)(self.0.number, into.as_mut_ptr(), into.len()) };
        told(read).map(|bytes| bytes as usize)
    }

    /// Like `recv`, with a time limit.
    pub fn recv_for(&self, into: &mut [u8], limit: Duration) -> io::Result<usize> {
        let (start, len) = (into.as_mut_ptr(), into.len());
        // SAFETY: ours until it returns.
        let read =
            unsafe { (library()?.adma_read_for)(self.0.number, start, len, milliseconds(limit)) };
        told(read).map(|bytes| bytes as usize)
    }

    /// Writes one message; up to 32 KiB it need not be read for that.
    pub fn send(&self, message: &[u8]) -> io::Result<usize> {
        // SAFETY: ours until it returns.
        let sent =
            unsafe { (library()?.adma_write)(self.0.number, message.as_ptr(), message.len()) };
        told(sent).map(|bytes| bytes as usize)
    }

    /// Like `send`, with a time limit.
    pub fn send_for(&self, message: &[u8], limit: Duration) -> io::Result<usize> {
        let (start, len) = (message.as_ptr(), message.len());
        // SAFETY: ours until it returns.
        let sent =
            unsafe { (library()?.adma_write_for)(self.0.number, start, len, milliseconds(limit)) };
        told(sent).map(|bytes| bytes as usize)
    }

    /// Returns the length of the next message; `None`: there is none yet.
    pub fn try_next(&self) -> io::Result<Option<usize>> {
        // SAFETY: takes a number.
        match unsafe { (library()?.adma_next)(self.0.number) } {
            none if none == -libc::EAGAIN as isize => Ok(None),
            result => told(result).map(|bytes| Some(bytes as usize)),
        }
    }

    /// Waits for the next message, and returns its length.
    pub fn wait_next(&self) -> io::Result<usize> {
        self.0.block_on(|| self.try_next().transpose())?
    }

    /// Like `wait_next`, in a task.
    pub async fn next(&self) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll(cx, || self.try_next().transpose())).await?
    }

    /// Returns the descriptor of `adma_event_fd`, for event loops of the program's own: readable when
    /// there is something to look at. It is closed with the connection.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.borrowed_event_fd()
    }

    /// Has the descriptor become readable with the next change; call it after every look (`try_next`,
    /// `Message::try_end`). True: look again now.
    pub fn arm(&self) -> io::Result<bool> {
        self.0.arm()
    }

    pub fn peer(&self) -> io::Result<Peer> {
        let mut peer = RawPeer::default();
        // SAFETY: one of them.
        told(unsafe { (library()?.adma_peer)(self.0.number, &mut peer) })?;
        let RawPeer { pid, uid, gid, proven } = peer;
        Ok(Peer { pid, uid, gid, proven: proven == 1 })
    }
}

/// A place where clients connect.
pub struct Listener(Link);

impl Listener {
    /// Listens at a path, or at the abstract name "@name", for processes of this user.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        // SAFETY: a string.
        Link::new(unsafe { (library()?.adma_listen)(name(path.as_ref())?.as_ptr()) }).map(Self)
    }

    /// Waits for a client.
    pub fn accept(&self) -> io::Result<Connection> {
        loop {
            // SAFETY: takes a number.
            match unsafe { (library()?.adma_accept)(self.0.number) } {
                interrupted if interrupted == -libc::EINTR => {}
                result => return Connection::new(result),
            }
        }
    }

    /// Waits for a client, with a time limit.
    pub fn accept_for(&self, limit: Duration) -> io::Result<Connection> {
        // SAFETY: takes numbers.
        Connection::new(unsafe { (library()?.adma_accept_for)(self.0.number, milliseconds(limit)) })
    }

    /// Returns a client that has greeted; `None`: there is none yet.
    pub fn try_accept(&self) -> io::Result<Option<Connection>> {
        match self.accept_for(Duration::ZERO) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EINTR)) => {
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Like `accept`, in a task.
    pub async fn next_client(&self) -> io::Result<Connection> {
        poll_fn(|cx| self.0.poll(cx, || self.try_accept().transpose())).await?
    }

    /// As for a connection: readable when `try_accept` may find a client. Clients greet only when the
    /// listener is armed or accepts.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.borrowed_event_fd()
    }

    /// As for a connection, after every `try_accept`.
    pub fn arm(&self) -> io::Result<bool> {
        self.0.arm()
    }
}
