//! Wakes futures: one thread, made for the first that has to wait, polls descriptors for all.
//!
//! Looking (`adma_arm`, draining) takes the news from a descriptor for every future that waits for
//! it. So all that wait for one descriptor are woken together, and each looks for itself: when it
//! becomes readable, when a future has found what it waited for, and shortly after `adma_arm` has said 1
//! to a future that found nothing.

use std::io;
use std::sync::{Mutex, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Delay before futures look although nothing became readable.
pub const AGAIN: Duration = Duration::from_millis(1);

struct Entry {
    fd: i32,
    waker: Waker,
    until: Option<Instant>,
}

struct Reactor {
    entries: Mutex<Vec<Entry>>,
    /// An eventfd that interrupts the thread's poll.
    bell: i32,
    pid: u32,
}

static REACTOR: OnceLock<Option<Reactor>> = OnceLock::new();

impl Reactor {
    fn start() -> Option<Self> {
        // SAFETY: takes numbers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let thread = std::thread::Builder::new().name("adma-wakes".into());
        (bell >= 0 && thread.spawn(run).is_ok()).then(|| Self {
            entries: Mutex::new(Vec::new()),
            bell,
            pid: std::process::id(),
        })
    }

    /// Takes out the entries of descriptors that `is_due` names, and wakes them.
    fn wake(&self, is_due: impl Fn(&Entry) -> bool) {
        let mut due = Vec::new();
        let mut entries = self.entries.lock().unwrap();
        let mut at = 0;
        while at < entries.len() {
            match is_due(&entries[at]) {
                true => due.push(entries.swap_remove(at)),
                false => at += 1,
            }
        }
        drop(entries);
        due.into_iter().for_each(|entry| entry.waker.wake());
    }

    fn ring(&self) {
        // SAFETY: eight bytes.
        unsafe { libc::write(self.bell, (&1u64 as *const u64).cast(), 8) };
    }
}

/// Wakes `waker` when the descriptor becomes readable; `again`: after a millisecond at the latest, with
/// all others that wait for this descriptor. No descriptor is -1.
pub fn register(fd: i32, waker: &Waker, again: bool) {
    let reactor = REACTOR.get_or_init(Reactor::start).as_ref();
    // A child of fork has no such thread: its futures are polled over and over.
    let Some(reactor) = reactor.filter(|reactor| reactor.pid == std::process::id()) else {
        return waker.wake_by_ref();
    };
    let until = again.then(|| Instant::now() + AGAIN);
    let mut entries = reactor.entries.lock().unwrap();
    match entries.iter_mut().find(|entry| entry.fd == fd && entry.waker.will_wake(waker)) {
        Some(entry) => entry.until = until,
        None => entries.push(Entry { fd, waker: waker.clone(), until }),
    }
    drop(entries);
    reactor.ring();
}

/// Wakes all that wait for a descriptor.
pub fn wake_all(fd: i32) {
    if let Some(Some(reactor)) = REACTOR.get() {
        reactor.wake(|entry| entry.fd == fd);
    }
}

fn run() {
    // `start` runs inside of `get_or_init`, which makes others wait until it is over.
    let Some(reactor) = REACTOR.get_or_init(|| None) else { return };
    let copies = crate::sys::library().map_or(-1, |library| {
        // SAFETY: takes nothing.
        unsafe { (library.adma_poll_fd)() }
    });
    loop {
        let mut polled = vec![pollfd(reactor.bell)];
        let mut until = None;
        for entry in reactor.entries.lock().unwrap().iter() {
            if polled.iter().all(|other| other.fd != entry.fd) {
                polled.push(pollfd(entry.fd));
            }
            until = [until, entry.until].into_iter().flatten().min();
        }
        let wait = until.map_or(-1, |until: Instant| {
            until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000) as i32
        });
        // SAFETY: the array and its length.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, wait) };
        if count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            std::thread::sleep(AGAIN);
        }
        let mut due: Vec<i32> = Vec::new();
        for other in polled.iter().filter(|other| count > 0 && other.revents != 0) {
            if other.fd == reactor.bell || other.fd == copies {
                let mut told = 0u64;
                // SAFETY: eight bytes; neither blocks.
                unsafe { libc::read(other.fd, (&mut told as *mut u64).cast(), 8) };
            }
            due.push(other.fd);
        }
        let now = Instant::now();
        let late = |entry: &&Entry| entry.until.is_some_and(|until| until <= now);
        due.extend(reactor.entries.lock().unwrap().iter().filter(late).map(|entry| entry.fd));
        reactor.wake(|entry| due.contains(&entry.fd));
    }
}

fn pollfd(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
