//! Threads of the C library, for work that may take locks and allocate; not for copies.

use super::lookup::rare;
use super::signal_mask::SignalsHeld;
use super::signal_set::{OF_THE_C_LIBRARY, change_signal_mask};
use alloc::boxed::Box;
use core::ffi::c_void;

type ThreadBody = Box<dyn FnOnce() + Send>;
type ThreadAttributes = *mut libc::pthread_attr_t;

rare! {
    fn pthread_attr_init(ThreadAttributes) -> i32;
    fn pthread_attr_setdetachstate(ThreadAttributes, i32) -> i32;
    fn pthread_attr_setstacksize(ThreadAttributes, usize) -> i32;
    fn pthread_attr_destroy(ThreadAttributes) -> i32;
    fn pthread_create(
        *mut libc::pthread_t,
        ThreadAttributes,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void
    ) -> i32;
}

/// Starts a thread for the job, with a stack of at least `stack` bytes and all signals of the
/// program blocked. Returns an errno on failure.
pub fn spawn(stack: usize, job: impl FnOnce() + Send + 'static) -> Result<(), i32> {
    let _held = SignalsHeld::all();
    let job: ThreadBody = Box::new(job);
    let job = Box::into_raw(Box::new(job));
    // SAFETY: `job` is a boxed `ThreadBody` from `Box::into_raw`.
    let create = |stack| unsafe { create(stack, job.cast()) }.unwrap_or(libc::ENOSYS);
    let errno = match create(Some(stack)) {
        // The program's thread-local storage lies on the stack too, and may be larger than `stack`.
        libc::EINVAL => create(None),
        errno => errno,
    };
    if errno == 0 {
        return Ok(());
    }
    // SAFETY: `job` comes from `Box::into_raw`, and no thread was made that could own it.
    drop(unsafe { Box::from_raw(job) });
    Err(errno)
}

/// # Safety
/// `job` is a boxed `ThreadBody` from `Box::into_raw`; if a thread is made, `run` owns it.
unsafe fn create(stack: Option<usize>, job: *mut c_void) -> Option<i32> {
    // SAFETY: the attributes are initialised before their use and destroyed after it; `run`, which is never
    // unloaded, gets the `job` that it expects.
    unsafe {
        let (mut attributes, mut thread) = (core::mem::zeroed(), 0);
        pthread_attr_init()?(&mut attributes);
        pthread_attr_setdetachstate()?(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        if let Some(stack) = stack {
            pthread_attr_setstacksize()?(&mut attributes, stack);
        }
        let errno = pthread_create()?(&mut thread, &mut attributes, run, job);
        pthread_attr_destroy()?(&mut attributes);
        Some(errno)
    }
}

extern "C" fn run(job: *mut c_void) -> *mut c_void {
    // glibc's own signals are unblocked: a thread can be cancelled, and setuid waits for every thread.
    change_signal_mask(libc::SIG_UNBLOCK, OF_THE_C_LIBRARY);
    // SAFETY: made by `spawn`, for this call.
    unsafe { Box::from_raw(job.cast::<ThreadBody>())() };
    core::ptr::null_mut()
}
