//! Messages and bytes, for reports. Nothing is counted unless somebody wants one.
//!
//! Counted is in the live file of this process, where it has one: then nothing is lost when it is
//! killed. The first message asks for that file, as the first large copy does.

pub use super::counts::{Direction, Means, Messages, Regime};

use super::counts::MessageCounts;
use crate::os::process;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use once_cell::race::OnceRef;

/// Makes a live file, if one is to be had, and has it used by `count_in`.
type MakeFile = fn();

/// Set: everything is counted.
static MAKE_FILE: OnceRef<'static, MakeFile> = OnceRef::new();
static ASKED: AtomicBool = AtomicBool::new(false);
/// Null until there is a file.
static FILE: AtomicPtr<MessageCounts> = AtomicPtr::new(null_mut());
static PRIVATE: MessageCounts = MessageCounts::new();

/// From now on everything is counted.
pub fn begin(make_file: &'static MakeFile) {
    let _ = MAKE_FILE.set(make_file); // an error only means: has begun
}

pub fn is_on() -> bool {
    MAKE_FILE.get().is_some()
}

/// From now on here. What was counted before is taken over.
pub fn count_in(file: &'static MessageCounts) {
    let file = core::ptr::from_ref(file).cast_mut();
    if FILE.swap(file, Ordering::AcqRel) != file {
        gather();
    }
}

/// A message is over, with so many bytes.
#[inline]
pub fn note_message(direction: Direction, regime: Regime, bytes: usize) {
    let Some(make_file) = MAKE_FILE.get() else { return };
    if FILE.load(Ordering::Relaxed).is_null()
        && !ASKED.load(Ordering::Relaxed)
        && !ASKED.swap(true, Ordering::Relaxed)
    {
        make_file();
    }
    counts().note_message(direction, regime, bytes);
}

/// This process has copied so many bytes.
#[inline]
pub fn note_copied(means: Means, bytes: usize) {
    if is_on() {
        counts().note_copied(means, bytes);
    }
}

/// What has become of all messages; `None`: there were none.
pub fn messages() -> Option<Messages> {
    gather();
    counts().told()
}

/// For the child of a fork: its report tells its own messages only.
pub fn clear() {
    FILE.store(null_mut(), Ordering::Relaxed);
    ASKED.store(false, Ordering::Relaxed);
    PRIVATE.clear();
}

fn counts() -> &'static MessageCounts {
    file().unwrap_or(&PRIVATE)
}

/// A child that ran no handler of ours would count in its parent's.
fn file() -> Option<&'static MessageCounts> {
    // SAFETY: null, or part of a mapping that is never taken away, of atomic numbers only.
    let file = unsafe { FILE.load(Ordering::Acquire).as_ref() }?;
    process::shares_our_memory().then_some(file)
}

/// Puts into the file what was counted elsewhere, for instance while it was being made.
fn gather() {
    if let Some(file) = file() {
        file.absorb(&PRIVATE);
    }
}
