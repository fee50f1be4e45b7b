//! Threads of the C library's, for what is not a copy: their work may take locks and allocate.

use super::lookup::rare;
use super::sys::SignalsHeld;
use alloc::boxed::Box;
use core::ffi::c_void;

type ThreadMain = Box<dyn FnOnce() + Send>;
type Attributes = *mut libc::pthread_attr_t;

rare! {
    fn pthread_attr_init(Attributes) -> i32;
    fn pthread_attr_setdetachstate(Attributes, i32) -> i32;
    fn pthread_attr_setstacksize(Attributes, usize) -> i32;
    fn pthread_attr_destroy(Attributes) -> i32;
    fn pthread_create(
        *mut libc::pthread_t,
        Attributes,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void
    ) -> i32;
}

/// Has a thread do the job, on a stack of so many bytes, with all signals blocked: handlers of the
/// program are not for it. An errno: there is none to be had.
pub fn spawn(stack: usize, job: impl FnOnce() + Send + 'static) -> Result<(), i32> {
    let _held = SignalsHeld::all();
    let job: ThreadMain = Box::new(job);
    let job = Box::into_raw(Box::new(job));
    // SAFETY: `run` is never unloaded, and gets what it expects.
    let errno = unsafe { create(stack, job.cast()) }.unwrap_or(libc::ENOSYS);
    if errno == 0 {
        return Ok(());
    }
    // SAFETY: no thread has got it.
    drop(unsafe { Box::from_raw(job) });
    Err(errno)
}

/// # Safety
/// `job` is `run`'s.
unsafe fn create(stack: usize, job: *mut c_void) -> Option<i32> {
    // SAFETY: the attributes are made, used and ended here.
    unsafe {
        let (mut attributes, mut thread) = (core::mem::zeroed(), 0);
        pthread_attr_init()?(&mut attributes);
        pthread_attr_setdetachstate()?(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize()?(&mut attributes, stack);
        let errno = pthread_create()?(&mut thread, &mut attributes, run, job);
        pthread_attr_destroy()?(&mut attributes);
        Some(errno)
    }
}

extern "C" fn run(job: *mut c_void) -> *mut c_void {
    // SAFETY: made by `spawn`, for this call.
    unsafe { Box::from_raw(job.cast::<ThreadMain>())() };
    core::ptr::null_mut()
}
