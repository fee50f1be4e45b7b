//! Common part of the channels of both engines: a thread, a lock, faults and counters each.
//!
//! Descriptors are run by one thread per channel, so that a doorbell never waits for a copy that
//! stalls. A channel's lock is held for one descriptor at a time.

use crate::faults::{Counters, Fault, Faults};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Delivers the interrupt of a vector; must not call back into the engine.
pub type Raise = Box<dyn Fn(usize) + Send + Sync>;

/// An engine as its PCI function sees it. Register accesses have 1, 2, 4 or 8 bytes and do not
/// cross a multiple of 8.
pub trait Engine: Send + Sync {
    fn read(&self, offset: u32, size: u32) -> u64;
    fn write(&self, offset: u32, size: u32, value: u64);
    /// A write of 8 bytes to the portals, BAR 2.
    fn submit(&self, _offset: u32, _value: u64) {}
    /// Restores the power-on state, except for faults and counters.
    fn reset(&self);
    /// Orders a fault, or cancels all, on the channels of a mask.
    fn arm(&self, channels: u32, fault: Option<Fault>);
    fn counters(&self, index: usize) -> Option<Counters>;
}

/// Next action of a channel's thread.
#[derive(Debug, PartialEq)]
pub enum Next {
    Step,
    Sleep,
    SleepUntil(Instant),
}

#[derive(Default)]
pub struct Channel<S> {
    pub state: S,
    pub faults: Faults,
}

impl<S> Deref for Channel<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Channel<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

pub struct Channels<S>(Vec<(Mutex<Channel<S>>, Condvar)>);

impl<S: Default + Send + 'static> Channels<S> {
    pub fn new(count: usize) -> Channels<S> {
        Channels((0..count).map(|_| Default::default()).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn lock(&self, index: usize) -> MutexGuard<'_, Channel<S>> {
        self.0[index].0.lock()
    }

    pub fn wake(&self, index: usize) {
        self.0[index].1.notify_all();
    }

    /// Waits until a channel changes; `wake` ends that, too.
    pub fn wait(&self, index: usize, channel: &mut MutexGuard<'_, Channel<S>>) {
        self.0[index].1.wait(channel);
    }

    /// Starts the threads; `step` runs at most one descriptor of a channel.
    pub fn start<E: Send + Sync + 'static>(
        engine: &Arc<E>,
        of: fn(&E) -> &Channels<S>,
        step: fn(&E, usize, &mut Channel<S>, Instant) -> Next,
    ) {
        for index in 0..of(engine).len() {
            let engine = Arc::clone(engine);
            let run = move || {
                let all = of(&engine);
                let mut channel = all.lock(index);
                loop {
                    match step(&engine, index, &mut channel, Instant::now()) {
                        // Lets a waiting register access in.
                        Next::Step => MutexGuard::bump(&mut channel),
                        Next::Sleep => all.wait(index, &mut channel),
                        Next::SleepUntil(when) => {
                            all.0[index].1.wait_until(&mut channel, when);
                        }
                    }
                }
            };
            let builder = thread::Builder::new().name(format!("channel {index}"));
            builder.spawn(run).expect("a thread starts");
        }
    }

    pub fn reset(&self) {
        for index in 0..self.len() {
            self.lock(index).state = S::default();
            self.wake(index);
        }
    }

    pub fn arm(&self, channels: u32, fault: Option<Fault>) {
        for index in (0..self.len()).filter(|index| channels & 1 << index != 0) {
            self.lock(index).faults.arm(fault);
        }
    }

    pub fn counters(&self, index: usize) -> Option<Counters> {
        (index < self.len()).then(|| self.lock(index).faults.counters)
    }
}
