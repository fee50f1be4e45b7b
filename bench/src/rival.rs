//! What people could have instead as an arm: a process of its own that has another library preloaded,
//! or glibc's tunables, makes its turns on request and sleeps in a read meanwhile.

use crate::arms::Arm;
use crate::options::{Alternative, Options};
use crate::spawn::{self, Server};
use crate::turns::{self, Heat, Place, Times};
use std::cell::RefCell;
use std::io;

pub struct Rival(RefCell<Server>);

impl Rival {
    /// Starts the process; `None` where it cannot be started so.
    pub fn start(what: &Alternative, options: &Options) -> Option<Self> {
        let mut command = spawn::again("rival", what.preload.as_deref(), options);
        let server = Server::start(command.envs(what.knobs()))?;
        let rival = Rival(RefCell::new(server));
        rival.turn(4096, Heat::Hot, 2).map(|_| rival)
    }

    /// Nanoseconds of a copy: the first of a burst, the mean of the others, the mean of all.
    pub fn turn(&self, size: usize, heat: Heat, burst: usize) -> Option<[f64; 3]> {
        let order = format!("{size} {} {burst}", heat.name());
        let line = self.0.borrow_mut().ask(&order).ok()?;
        let mut numbers = line.split_whitespace().flat_map(str::parse);
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    }
}

/// Runs in the process, whose memcpy is the preloaded library's.
pub fn serve(options: &Options) {
    let (arm, mut place) = (Arm::shim(), Place::new(options, 1));
    for line in io::stdin().lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (size, heat, burst) = (word().parse(), Heat::named(word()), word().parse());
        let (Ok(size), Some(heat), Ok(burst)) = (size, heat, burst) else { return };
        let mut times = Times::default();
        turns::turn(&mut place, &arm, size, heat, burst, &mut times);
        println!("{} {} {}", times.first[0], times.next[0], times.all[0]);
    }
}
