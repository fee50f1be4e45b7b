//! Engines that copy by themselves: one trait, the list of the engines, and what they share.
//!
//! An engine is a folder beside this one, and a name in the list of `backend`. Everything else here and
//! above knows the trait only. Its law: an engine reports the end of a copy only once it knows of each
//! of its transfers that it is over or dead. A timeout proves nothing: a transfer that arrives late
//! overwrites what the program has written since.

pub mod request;
pub mod stretch;
pub mod tuning;

use crate::backend::Refused;
use crate::os::sys::NoNewFilter;
use crate::plan::Piece;
use core::fmt::{Arguments, Debug, Formatter, Result as Written, Write};
use core::ops::Deref;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use request::Request;
use stretch::Stretch;

/// Options of copies, of which an engine uses those that it understands.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Channels one copy may use; `None`: all. With one, copies use the channels in turn.
    pub channels: Option<usize>,
    /// Part of each copy the caller does itself; `None`: as much as it has time for.
    pub share: Option<f32>,
    /// Set if the caller stays awake while it waits.
    pub spins: bool,
    /// Set if the caller sleeps rather than copies.
    pub spare_cpus: bool,
}

/// Settings of the process, for all engines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub choice: Choice,
    pub spare_cpus: bool,
    /// Smallest copy that is carried; `None`: learned, or the engine's own.
    pub min_bytes: Option<usize>,
    /// Bytes that may stay pinned or registered; `None`: as the engine thinks best.
    pub keep: Option<usize>,
}

/// Engine that the user wants, by ADMA_BACKEND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The engines decide.
    #[default]
    Any,
    /// The one of this name.
    Named(&'static str),
    None,
}

/// Counters that every engine has.
pub struct Counts<'a> {
    /// Number of channels; 0: the engine was never up in this process.
    pub channels: usize,
    pub channel_bytes: &'a [AtomicU64],
    /// Bytes that callers have copied beside the engine.
    pub caller_bytes: u64,
    /// Copies in which a bad page was left to the caller.
    pub faults: u64,
}

/// Formats of an engine's own part of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Members of the JSON object, each after a comma.
    Json,
    Text,
}

/// Result of `CopyEngine::check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usable {
    Yes,
    No,
}

/// Requests that their callers do not wait for.
pub trait Requests: Sync {
    /// Returns how much of an asynchronous copy one request takes.
    fn part_of(&self, len: usize) -> usize {
        len
    }

    /// Starts a request. Returns the part of the copy that is under way; the rest is done. `None`, and
    /// after a refusal: nothing is under way, and all is to be copied.
    ///
    /// # Safety
    /// As memcpy, until the request is over and `left_over` was called.
    unsafe fn begin(
        &self,
        request: &Request,
        copy: Stretch,
        how: &CopyOptions,
    ) -> Result<Option<Piece>, Refused>;

    /// Returns whether a request is over; waits up to `nanos` for it. Called by workers too, so it
    /// keeps to their law.
    fn is_over(&self, request: &Request, nanos: u64) -> bool;

    /// Returns whether a thread of this process is already asking the kernel about a request, so that
    /// another need not.
    fn is_asked_for(&self, _request: &Request) -> bool {
        false
    }

    /// Ends a request that is over, and calls `copy` with each range that the engine has not copied;
    /// `len` is that of the part that was under way. For the thread that has claimed it.
    fn left_over(&self, request: &Request, len: usize, copy: &mut dyn FnMut(usize, usize));
}

pub trait CopyEngine: Requests {
    /// Returns the name that reports use for the engine and its channels.
    fn name(&self) -> &'static str;

    /// Returns the values of ADMA_BACKEND that mean this engine.
    fn words(&self) -> &'static [&'static str];

    /// Returns whether it serves beside another engine, for copies that it `takes`. Others are tried
    /// in the order of the list, and the first that starts serves.
    fn is_beside(&self) -> bool {
        false
    }

    /// Returns whether the settings ask for it.
    fn is_wanted(&self, settings: &Settings) -> bool;

    /// Prepares at start-up what cannot be done in the hook. Called if it is wanted.
    fn prepare(&self, _settings: &Settings) {}

    /// Starts, with the first large copy. Called by one thread at a time, with signals held. False: the
    /// engine is not available.
    fn start(&self, settings: &Settings, allowed: NoNewFilter) -> bool;

    /// Returns whether it is up now.
    fn is_up(&self) -> bool {
        self.counts().channels > 0
    }

    /// Returns what the user must do to get the engine, if it was named and is not available.
    fn remedy(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether it carries a copy of these ranges, which do not overlap.
    fn takes(&self, dst: usize, src: usize, len: usize) -> bool;

    /// Carries one copy of ranges that it `takes`. After a refusal nothing is under way, and all of it
    /// is to be copied.
    ///
    /// # Safety
    /// As memcpy; a bad page ends as it would in memcpy.
    unsafe fn copy(&self, copy: Stretch, how: &CopyOptions) -> Result<(), Refused>;

    fn counts(&self) -> Counts<'_>;

    /// Writes its own part of a report.
    fn report(&self, form: Form, nanoseconds_per_tick: f64, out: &mut dyn Write) -> Written;

    /// Logs why it was not used, and details that no report has.
    fn why_not(&self, say: &dyn Fn(Arguments<'_>));

    /// Describes for `adma check` what the machine offers.
    fn check(&self, settings: &Settings, out: &mut dyn Write) -> Result<Usable, core::fmt::Error>;

    /// Releases resources that a fork must not find, such as pinned pages.
    fn before_fork(&self) {}

    /// Undoes `before_fork` in the parent.
    fn after_fork(&self) {}

    /// Resets the engine in the child of a fork: driver, files and threads are the parent's.
    fn forget(&self);

    /// Invalidates knowledge of memory that changes in a way that the kernel does not report.
    /// Called by the program's thread, before and after its own call.
    fn memory_changes(&self, _start: usize, _len: usize) {}

    /// Holds its registration of memory that the program's own call to a card uses: the driver takes
    /// such memory for pinned, and returns before it has read or written it. Where only a part is
    /// registered, which the driver refuses, the registrations are dropped. `None`: nothing of it is
    /// registered.
    fn hold(&self, _start: usize, _len: usize) -> Option<Hold<'_>> {
        None
    }

    /// Returns whether some of a range is registered.
    fn touches(&self, _start: usize, _len: usize) -> bool {
        false
    }

    /// Returns whether a card reaches a range that the program copies to it or from it. If not, notes
    /// the range, which is registered when the program copies it again.
    fn reaches(&self, _start: usize, _len: usize) -> bool {
        false
    }

    /// Stops where protection keys, which the program uses, bind threads and not the engine.
    fn end_for_keys(&self) {}
}

/// Registered memory that is not given up while this exists: it is counted among its holders.
pub struct Hold<'a>(&'a AtomicU32);

impl<'a> Hold<'a> {
    pub fn new(holders: &'a AtomicU32) -> Self {
        holders.fetch_add(1, SeqCst);
        Self(holders)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// An engine of a list, in one word.
#[derive(Clone, Copy)]
pub struct Handle(&'static &'static dyn CopyEngine);

impl Handle {
    pub fn all(engines: &'static [&'static dyn CopyEngine]) -> impl Iterator<Item = Self> {
        engines.iter().map(Handle)
    }

    /// Returns whether this is the handle of `engine`.
    pub fn is(self, engine: &dyn CopyEngine) -> bool {
        core::ptr::addr_eq(*self.0, engine)
    }

    pub fn address(self) -> usize {
        core::ptr::from_ref(self.0) as usize
    }

    /// Returns the engine of an address; `None`: the address is 0.
    ///
    /// # Safety
    /// The address is 0, or from `address`.
    pub unsafe fn from_address(address: usize) -> Option<Self> {
        // SAFETY: null, or a reference that lives for ever.
        unsafe { (address as *const &'static dyn CopyEngine).as_ref() }.map(Handle)
    }
}

impl Deref for Handle {
    type Target = dyn CopyEngine;

    fn deref(&self) -> &(dyn CopyEngine + 'static) {
        *self.0
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Handle {}

impl Debug for Handle {
    fn fmt(&self, out: &mut Formatter<'_>) -> Written {
        out.write_str(self.name())
    }
}
