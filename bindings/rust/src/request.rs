//! What is under way: a cookie, and the memory that it keeps busy.
//!
//! Law of this module: a buffer is freed, or handed back, only after the library has reported the end of
//! its cookie, or `adma_cancel` has returned. Fields are dropped in their order, so the cookie of a
//! struct comes before its buffers; a struct that is leaked leaks its buffers as well.

use crate::connection::Link;
use crate::sys::{library, told, Library};
use crate::{reactor, Block};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

const UNDER_WAY: isize = -libc::EINPROGRESS as isize;

/// A cookie until its end was reported.
struct Cookie {
    number: Option<i64>,
    /// The connection of a message, which stays open as long.
    link: Option<Arc<Link>>,
}

impl Cookie {
    fn check(&mut self, library: &Library) -> Option<isize> {
        let number = self.number?;
        // SAFETY: takes a number.
        let result = unsafe { (library.adma_check)(number) };
        (result != UNDER_WAY).then(|| {
            self.number = None;
            result
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let library = library()?;
        if let Some(link) = self.link.clone() {
            return link.poll(cx, || self.check(library)).map(|result| told(result?));
        }
        if let Some(result) = self.check(library) {
            return Poll::Ready(told(result));
        }
        // SAFETY: takes nothing.
        let fd = unsafe { (library.adma_poll_fd)() };
        reactor::register(fd, cx.waker(), fd < 0);
        // The copy may have ended before it was registered.
        self.check(library).map_or(Poll::Pending, |result| Poll::Ready(told(result)))
    }

    fn wait(&mut self) -> io::Result<u64> {
        match self.number.take() {
            // SAFETY: takes a number.
            Some(number) => told(unsafe { (library()?.adma_wait)(number) }),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Drop for Cookie {
    fn drop(&mut self) {
        if let (Some(number), Ok(library)) = (self.number.take(), library()) {
            // SAFETY: takes a number. After it no process touches the buffer.
            unsafe { (library.adma_cancel)(number) };
        }
        if let Some(link) = &self.link {
            link.wake_others();
        }
    }
}

/// A cookie, or why there is none.
type Begun = Result<Cookie, Option<io::Error>>;

/// Ends a request: its result, from `ask` or from the attempt to begin it.
fn end<T>(
    begun: &mut Begun,
    ask: impl FnOnce(&mut Cookie) -> T,
    now: impl FnOnce(io::Error) -> T,
) -> T {
    match begun {
        Ok(cookie) => ask(cookie),
        Err(error) => now(error.take().unwrap_or_else(|| io::ErrorKind::InvalidInput.into())),
    }
}

fn begun(number: io::Result<i64>, link: Option<Arc<Link>>) -> Begun {
    let number = number.and_then(|number| told(number).map(|_| number)).map_err(Some)?;
    Ok(Cookie { number: Some(number), link })
}

/// A message that is read or written; dropped, it is withdrawn.
#[must_use = "it is withdrawn when it is dropped"]
pub struct Message {
    begun: Begun,
    link: Arc<Link>,
    reads: bool,
    block: Option<Block>,
}

impl Message {
    pub(crate) fn new(link: &Arc<Link>, reads: bool, block: Block) -> Self {
        let link = link.clone();
        let mut message = Self { begun: Err(None), link, reads, block: Some(block) };
        message.begin();
        message
    }

    fn begin(&mut self) {
        let Some(block) = &mut self.block else { return };
        let (link, start, len) = (self.link.number, block.as_mut_ptr(), block.len());
        // SAFETY: the law of this module.
        let number = library().map(|library| unsafe {
            match self.reads {
                true => (library.adma_iread)(link, start, len),
                false => (library.adma_iwrite)(link, start, len),
            }
        });
        self.begun = begun(number, Some(self.link.clone()));
    }

    /// Begins, unless it has begun. False: 256 messages of its direction are under way, or tasks
    /// have not looked at their ends yet.
    fn has_begun(&mut self) -> bool {
        let full = |begun: &Begun| matches!(begun, Err(Some(error)) if error.kind() == io::ErrorKind::WouldBlock);
        if full(&self.begun) {
            self.begin();
        }
        !full(&self.begun)
    }

    /// Waits for the end: the bytes of the message, and the buffer.
    pub fn wait(mut self) -> (io::Result<usize>, Block) {
        while !self.has_begun() {
            std::thread::sleep(reactor::AGAIN);
        }
        let result = end(&mut self.begun, Cookie::wait, Err);
        self.finish(result)
    }

    /// Returns what `wait` does if the message is over; `None`: it is not, or was asked for before.
    pub fn try_end(&mut self) -> Option<(io::Result<usize>, Block)> {
        if self.block.is_none() || !self.has_begun() {
            return None;
        }
        let ask = |cookie: &mut Cookie| match library() {
            Ok(library) => cookie.check(library).map(told),
            Err(error) => Some(Err(error)),
        };
        end(&mut self.begun, ask, |error| Some(Err(error))).map(|result| self.finish(result))
    }

    fn finish(&mut self, result: io::Result<u64>) -> (io::Result<usize>, Block) {
        let block = self.block.take().expect("a message that has not ended");
        (result.map(|bytes| bytes as usize), block)
    }
}

impl Future for Message {
    type Output = (io::Result<usize>, Block);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.has_begun() {
            reactor::register(-1, cx.waker(), true);
            return Poll::Pending;
        }
        let result =
            end(&mut self.begun, |cookie| cookie.poll(cx), |error| Poll::Ready(Err(error)));
        result.map(|result| self.finish(result))
    }
}

/// A copy under way; dropped, it is waited for.
#[must_use = "it is waited for when it is dropped"]
pub struct Copy {
    begun: Begun,
    blocks: Option<(Block, Block)>,
}

impl Copy {
    pub(crate) fn begin(src: Block, mut dst: Block) -> Self {
        let (from, to, len) = (src.as_ptr(), dst.as_mut_ptr(), src.len());
        let number = match len == dst.len() {
            // SAFETY: the law of this module. The descriptor reports copies that begin after it was
            // first asked for.
            true => library().map(|library| unsafe {
                (library.adma_poll_fd)();
                (library.adma_icopy)(from, to, len)
            }),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "blocks of two lengths")),
        };
        Self { begun: begun(number, None), blocks: Some((src, dst)) }
    }

    /// Waits for the end, and copies as well meanwhile: source and destination.
    pub fn wait(mut self) -> (io::Result<()>, Block, Block) {
        let result = end(&mut self.begun, Cookie::wait, Err);
        self.finish(result)
    }

    fn finish(&mut self, result: io::Result<u64>) -> (io::Result<()>, Block, Block) {
        let (src, dst) = self.blocks.take().expect("a copy that has not ended");
        (result.map(|_| ()), src, dst)
    }
}

impl Future for Copy {
    type Output = (io::Result<()>, Block, Block);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result =
            end(&mut self.begun, |cookie| cookie.poll(cx), |error| Poll::Ready(Err(error)));
        result.map(|result| self.finish(result))
    }
}
