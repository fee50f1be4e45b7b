//! A kernel helper for tests: it checks each call as adma_ioctl.h demands, copies the pieces
//! itself, at once or later on a thread of its own, and injects the faults of its `Trouble`.

use super::abi;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Faults of one submission.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    /// Errno of the first piece that is refused, and its index.
    pub refuse: Option<(i32, usize)>,
    /// Pieces that fail; their channels write no word.
    pub failed: u64,
    /// Channels whose words get lost.
    pub lost: u32,
    /// Channels that never write words.
    pub silent: u32,
    /// Delay until the request ends; zero: it ends before the call returns.
    pub late: Duration,
    /// Answers of status calls before the true one.
    pub status: Option<(i32, u32)>,
}

pub struct Kernel {
    info: abi::Info,
    pages: Vec<Page>,
    /// Faults of each submission in turn; none left: no fault.
    trouble: Mutex<VecDeque<Trouble>>,
    state: Mutex<State>,
    ended: Condvar,
    /// Every piece ever taken.
    pub seen: Mutex<Vec<abi::Piece>>,
    pub submits: AtomicU64,
    pub waits: AtomicU64,
    /// Called when a request ends, before its words are written.
    at_end: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Called once, when a status call has found a request over, and before it returns.
    at_answer: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[repr(align(4096))]
struct Page([AtomicU64; 512]);

#[derive(Default)]
struct State {
    last: u64,
    /// Request ids by slot.
    slots: HashMap<u32, u64>,
    requests: HashMap<u64, Request>,
}

struct Request {
    over: bool,
    failed: u64,
    status: Option<(i32, u32)>,
}

impl Kernel {
    pub fn new(channels: u32) -> &'static Self {
        Self::with(abi::Info {
            size: size_of::<abi::Info>() as u32,
            abi: abi::ABI_VERSION,
            features: abi::FEATURE_WORDS,
            channels,
            usable: channels,
            src_align: 1,
            max_bytes: 64 << 20,
            max_pages: 64 << 10,
            ..Default::default()
        })
    }

    pub fn with(info: abi::Info) -> &'static Self {
        let page = || Page([const { AtomicU64::new(0) }; 512]);
        Box::leak(Box::new(Self {
            pages: (0..info.channels).map(|_| page()).collect(),
            info,
            trouble: Mutex::default(),
            state: Mutex::default(),
            ended: Condvar::new(),
            seen: Mutex::default(),
            submits: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            at_end: Mutex::default(),
            at_answer: Mutex::default(),
        }))
    }

    pub fn info(&self) -> abi::Info {
        self.info
    }

    pub fn make(&self, trouble: impl IntoIterator<Item = Trouble>) {
        self.trouble.lock().unwrap().extend(trouble);
    }

    pub fn at_end(&self, call: impl Fn() + Send + 'static) {
        *self.at_end.lock().unwrap() = Some(Box::new(call));
    }

    pub fn at_answer(&self, call: impl FnOnce() + Send + 'static) {
        *self.at_answer.lock().unwrap() = Some(Box::new(call));
    }

    pub fn under_way(&self) -> usize {
        self.state.lock().unwrap().requests.values().filter(|request| !request.over).count()
    }

    pub fn words(&self, channel: usize) -> usize {
        &raw const self.pages[channel] as usize
    }

    pub fn ioctl(&'static self, request: usize, argument: usize) -> i32 {
        // SAFETY: the address of the structure that belongs to the call, as for the kernel.
        unsafe {
            match request {
                abi::IOC_INFO => {
                    let info = &mut *(argument as *mut abi::Info);
                    assert_eq!(info.size as usize, size_of::<abi::Info>());
                    assert!(matches!(info.flags, 0 | abi::INFO_KEEP));
                    *info = self.info;
                    0
                }
                abi::IOC_SUBMIT => self.submit(&mut *(argument as *mut abi::Submit)),
                abi::IOC_WAIT => self.wait(&mut *(argument as *mut abi::Wait)),
                _ => libc::ENOTTY,
            }
        }
    }

    fn submit(&'static self, submit: &mut abi::Submit) -> i32 {
        self.submits.fetch_add(1, Ordering::Relaxed);
        assert_eq!((submit.size as usize, submit.flags), (size_of::<abi::Submit>(), 0));
        assert_eq!((submit.port, submit.export), (0, 0));
        assert!(signals_are_held(), "a handler could jump out");
        let trouble = self.trouble.lock().unwrap().pop_front().unwrap_or_default();
        let count = submit.count as usize;
        assert!((1..=abi::MAX_PIECES).contains(&count));
        // SAFETY: the caller's list, which it leaves alone until this returns.
        let pieces =
            unsafe { core::slice::from_raw_parts(submit.pieces as *const abi::Piece, count) };
        let (errno, taken) = trouble.refuse.unwrap_or((0, count));
        let taken = taken.min(count);
        if taken == 0 {
            return errno;
        }

        let mut state = self.state.lock().unwrap();
        let Some(slot) = (0..abi::SLOTS as u32).find(|slot| !state.slots.contains_key(slot)) else {
            return libc::EAGAIN;
        };
        let mut channels = 0;
        for piece in &pieces[..taken] {
            assert!(piece.dst.is_multiple_of(abi::ALIGN as u64), "{piece:?}");
            assert!(piece.len.is_multiple_of(abi::ALIGN as u64) && piece.len > 0, "{piece:?}");
            assert!(piece.src.is_multiple_of(self.info.src_align.into()), "{piece:?}");
            assert!(piece.channel < self.info.channels && piece.flags == 0, "{piece:?}");
            channels |= 1 << piece.channel;
        }
        self.seen.lock().unwrap().extend_from_slice(&pieces[..taken]);
        state.last += 1;
        let id = state.last;
        state.slots.insert(slot, id);
        let request = Request { over: false, failed: trouble.failed, status: trouble.status };
        state.requests.insert(id, request);
        drop(state);

        submit.id = id;
        submit.slot = slot;
        submit.accepted = taken as u32;
        submit.channels = if trouble.silent & channels == 0 { channels } else { 0 };
        let pieces = pieces[..taken].to_vec();
        if trouble.late.is_zero() {
            self.carry_out(id, slot, &pieces, trouble);
        } else {
            std::thread::spawn(move || {
                std::thread::sleep(trouble.late);
                self.carry_out(id, slot, &pieces, trouble);
            });
        }
        errno
    }

    fn carry_out(&self, id: u64, slot: u32, pieces: &[abi::Piece], trouble: Trouble) {
        let mut writing = !(trouble.lost | trouble.silent);
        for (index, piece) in pieces.iter().enumerate() {
            if trouble.failed >> index & 1 == 1 {
                writing &= !(1 << piece.channel);
                continue;
            }
            // SAFETY: pieces of the copy under test, which has not returned.
            unsafe {
                let (dst, src) = (piece.dst as *mut u8, piece.src as *const u8);
                core::ptr::copy_nonoverlapping(src, dst, piece.len as usize);
            }
        }
        if let Some(call) = &*self.at_end.lock().unwrap() {
            call();
        }
        // As in the kernel, the request is over before its words are written.
        let mut state = self.state.lock().unwrap();
        state.requests.get_mut(&id).unwrap().over = true;
        if trouble.failed == 0 {
            state.slots.remove(&slot);
        }
        for piece in pieces.iter().filter(|piece| writing >> piece.channel & 1 == 1) {
            let word = slot as usize * abi::WORD_STRIDE / 8;
            self.pages[piece.channel as usize].0[word].store(id, Ordering::Release);
        }
        self.ended.notify_all();
    }

    fn wait(&self, wait: &mut abi::Wait) -> i32 {
        self.waits.fetch_add(1, Ordering::Relaxed);
        assert_eq!((wait.size as usize, wait.flags), (size_of::<abi::Wait>(), 0));
        let mut state = self.state.lock().unwrap();
        let Some(request) = state.requests.get_mut(&wait.id) else { return libc::EINVAL };
        if let Some((errno, times @ 1..)) = &mut request.status {
            *times -= 1;
            return *errno;
        }
        let limit = Duration::from_nanos(wait.timeout_ns);
        let (mut state, timeout) =
            self.ended.wait_timeout_while(state, limit, |s| !s.requests[&wait.id].over).unwrap();
        if timeout.timed_out() {
            return libc::ETIMEDOUT;
        }
        wait.failed = std::mem::take(&mut state.requests.get_mut(&wait.id).unwrap().failed);
        state.slots.retain(|_, id| *id != wait.id);
        drop(state);
        if let Some(call) = self.at_answer.lock().unwrap().take() {
            call();
        }
        0
    }
}

/// Returns whether signals that have a handler are blocked; those of bad pages need not be where our
/// own handler gets them.
fn signals_are_held() -> bool {
    use crate::os::signal_mask::handled;
    use crate::os::signal_set::{change_signal_mask, signal_set};
    let now = change_signal_mask(libc::SIG_BLOCK, 0);
    let faults = signal_set(libc::SIGSEGV) | signal_set(libc::SIGBUS);
    handled() & !faults & !now == 0
        && (faults & !now == 0 || crate::backend::signals::handlers_are_installed())
}
