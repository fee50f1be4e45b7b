//! What people could have instead as an arm: a process of its own that has another library preloaded,
//! or glibc's tunables, makes its turns on request (`turns::serve`) and sleeps in a read meanwhile.

use crate::heat::Heat;
use crate::options::{Alternative, Options};
use crate::spawn::{self, Server};
use std::cell::RefCell;

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
