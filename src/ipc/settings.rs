//! Configuration of connections, and sizes that decide the way of a message.

use crate::backend::engine::CopyOptions;
use crate::backend::ioat;
use crate::ipc::memory::region::EAGER_ROOM;
use crate::os::once::Once;

/// The engine of the kernel helper, and how it is to copy.
#[derive(Clone, Copy)]
pub struct HelperEngine {
    pub engine: &'static ioat::Engine,
    pub how: CopyOptions,
}

/// The worker threads of this process.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// CPUs for both processes of a message; more than one.
    pub cpus: usize,
    /// Copies (to, from, length) within our address space, with their help.
    pub copy: unsafe fn(usize, usize, usize),
    /// Returns how many workers there can be now.
    pub count: fn() -> usize,
    /// Notes that there was no CPU for them.
    pub note_overload: fn(),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    Auto,
    Helper,
    SharedMemory,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub engines: Engines,
    /// Largest message that this process writes eagerly, at most half of the room for them: then the
    /// first always finds room.
    pub most_eager: usize,
    /// Limit for the peer's greetings, and for its last pieces when a connection is closed; in
    /// nanoseconds.
    pub patience: u64,
    /// Brings the helper up, where there is one; not called where none is wanted.
    pub helper: fn() -> Option<HelperEngine>,
    /// Returns the workers for large messages; `None`: there is one CPU. Starts nothing.
    pub workers: fn() -> Option<Workers>,
    /// Allows a peer to trace us where Yama forbids it.
    pub ptracer: bool,
    /// Logs which engine a connection uses, and why.
    pub tell: bool,
}

impl Settings {
    pub const DEFAULT: Self = Self {
        engines: Engines::Auto,
        most_eager: EAGER_ROOM / 8,
        patience: 10_000_000_000,
        helper: || None,
        workers: || None,
        ptracer: false,
        tell: false,
    };
}

#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static SETTINGS: Once<Settings> = Once::new();

pub fn configure(settings: Settings) {
    SETTINGS.set(settings);
}

pub fn settings() -> Settings {
    SETTINGS.get().copied().unwrap_or(Settings::DEFAULT)
}
