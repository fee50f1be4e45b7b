//! Looks up, while a program runs, which lines of Python scripts make its large calls.
//!
//! Now and then the calls that are under way are read from the live files of its processes. A line is
//! counted if its call is still under way after its frames were read; then they cannot have changed.

use crate::live_files::{self, LiveProcess, State};
use crate::python::Interpreter;
use adma_shared::Counters;
use adma_shared::live::Live;
use adma_shared::under_way::{Entry, UnderWay};
use std::collections::HashMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks: at calls of scripts, and for new processes.
const OFTEN: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(100);
/// Most processes and places that are looked at.
const MOST: usize = 4096;

/// Lines of one process by return address, each with the number of times that it was seen.
pub type Lines = HashMap<u64, HashMap<String, u64>>;

#[derive(Default)]
pub struct Watch {
    /// Files that were looked at; `None`: of no interpreter that is known.
    scripts: HashMap<PathBuf, Option<(File, Interpreter)>>,
    looks: u32,
    /// Lines by live file.
    pub seen: HashMap<PathBuf, Lines>,
}

impl Watch {
    /// Looks at all processes of a tree. Returns when to look again.
    pub fn look_in(&mut self, folder: &Path) -> Duration {
        self.looks = self.looks.wrapping_add(1);
        if !self.has_scripts() || self.looks.is_multiple_of(10) {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.take(MOST).for_each(|entry| self.consider(entry.path(), live_files::user()));
            self.scripts.retain(|path, _| path.exists());
        }
        self.look()
    }

    /// Considers the processes of a sample, and forgets all others.
    pub fn keep(&mut self, processes: &[LiveProcess]) {
        let running = processes.iter().filter(|process| process.state == State::Running);
        let running: HashMap<_, _> = running.map(|one| (one.path.as_path(), one.owner)).collect();
        self.scripts.retain(|path, _| running.contains_key(path.as_path()));
        self.seen.retain(|path, _| running.contains_key(path.as_path()));
        running.into_iter().for_each(|(path, owner)| self.consider(path.to_owned(), owner));
    }

    fn has_scripts(&self) -> bool {
        self.scripts.values().any(Option::is_some)
    }

    fn consider(&mut self, path: PathBuf, owner: u32) {
        let Some(pid) = path.file_name().and_then(live_files::pid_of) else { return };
        self.scripts.entry(path).or_insert_with_key(|path| {
            live_files::open(path, owner).ok().zip(Interpreter::of(pid))
        });
    }

    /// Looks at the calls that are under way. Returns when to look again.
    pub fn look(&mut self) -> Duration {
        for (path, script) in &self.scripts {
            let Some((file, interpreter)) = script else { continue };
            for entry in under_way(file) {
                let Some(line) = interpreter.line(entry.thread) else { continue };
                let is_same = under_way(file).contains(&entry);
                if !is_same {
                    continue;
                }
                let sites = self.seen.entry(path.clone()).or_default();
                if sites.len() < MOST {
                    let lines = sites.entry(entry.site).or_default();
                    *lines.entry(line).or_default() += 1;
                }
            }
        }
        if self.has_scripts() { OFTEN } else { SELDOM }
    }
}

fn under_way(file: &File) -> Vec<Entry> {
    let mut calls = UnderWay::ZERO;
    match file.read_exact_at(calls.bytes_mut(), offset_of!(Live, under_way) as u64) {
        Ok(()) => calls.entries().collect(),
        Err(_) => Vec::new(),
    }
}
