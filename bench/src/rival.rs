//! What people could have instead, as an arm: a process of its own that has another library preloaded,
//! or glibc's tunables, makes its turns on request and sleeps in a read meanwhile.

use crate::measure::Samples;
use crate::options::{Alternative, Options};
use crate::out::{median, spread};
use crate::spawn::{self, Server};
use std::cell::RefCell;
use std::io::stdin;

/// Order that asks whether the process answers.
const READY: &str = "ready";

pub struct Rival {
    pub name: &'static str,
    server: RefCell<Server>,
}

impl Rival {
    /// Starts a process for each `--against`, in a role that `serve`s.
    pub fn all(role: &str, options: &Options) -> Vec<Self> {
        let start = |what: &Alternative| {
            let rival = Self::start(role, what, options);
            if rival.is_none() {
                println!("--against {}: no process starts so", what.name);
            }
            rival
        };
        options.against.iter().filter_map(start).collect()
    }

    fn start(role: &str, what: &Alternative, options: &Options) -> Option<Self> {
        let mut command = spawn::again(role, what.preload.as_deref(), options);
        let server = Server::start(command.envs(what.knobs()))?;
        let rival = Rival { name: what.name, server: RefCell::new(server) };
        rival.ask(READY).map(|_| rival)
    }

    /// Returns the numbers of its answer; `None`: it has ended.
    pub fn ask(&self, order: &str) -> Option<Vec<f64>> {
        let line = self.server.borrow_mut().ask(order).ok()?;
        let numbers: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
        (!numbers.is_empty()).then_some(numbers)
    }

    /// Returns the nanoseconds that it answers; NaN if it has ended.
    pub fn time(&self, order: &str) -> f64 {
        self.ask(order).map_or(f64::NAN, |numbers| numbers[0])
    }
}

/// Keeps how many times faster than libc each rival was, under keys that begin with `key`; returns the cells
/// of a table.
pub fn cells<'a>(
    rivals: &'a [Rival],
    key: &'a str,
    gains: &'a [Samples],
) -> impl Iterator<Item = String> {
    rivals.iter().zip(gains).map(move |(rival, gain)| {
        spread(&format!("{key}.{}_libc", rival.name), gain);
        median(gain)
    })
}

/// Answers orders, in the process of a `Rival`, whose memcpy is the preloaded library's or libc's. Ends with
/// the input, or with an order that is not understood.
pub fn serve(mut turn: impl FnMut(&[&str]) -> Option<Vec<f64>>) {
    for line in stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = if words == [READY] { Some(vec![0.0]) } else { turn(&words) };
        let Some(numbers) = answer else { return };
        println!("{}", numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
    }
}
