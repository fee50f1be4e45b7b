//! Looks up, while a program runs, which lines of Python scripts make its large calls.
//!
//! Now and then the calls that are under way are read from the live files of its processes. A line is
//! counted if its call is still under way after its frames were read; then they cannot have changed.

use crate::live_files;
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
/// Most different lines that are kept.
const MOST: usize = 4096;

/// Lines by live file and return address, each with the number of times that it was seen.
pub type Seen = HashMap<(PathBuf, u64), HashMap<String, u64>>;

pub struct Watch<'a> {
    folder: &'a Path,
    /// Files that were looked at; `None`: of no interpreter that is known.
    scripts: HashMap<PathBuf, Option<(File, Interpreter)>>,
    looks: u32,
    pub seen: Seen,
}

impl<'a> Watch<'a> {
    pub fn new(folder: &'a Path) -> Self {
        Self { folder, scripts: HashMap::new(), looks: 0, seen: Seen::new() }
    }

    /// Looks at all processes. Returns when to look again.
    pub fn look(&mut self) -> Duration {
        let has_scripts = self.scripts.values().any(Option::is_some);
        self.looks = self.looks.wrapping_add(1);
        if !has_scripts || self.looks.is_multiple_of(10) {
            self.find();
        }
        for (path, script) in &self.scripts {
            let Some((file, interpreter)) = script else { continue };
            for entry in under_way(file) {
                let Some(line) = interpreter.line(entry.thread) else { continue };
                let is_same = under_way(file).contains(&entry);
                if is_same && self.seen.len() < MOST {
                    let lines = self.seen.entry((path.clone(), entry.site)).or_default();
                    *lines.entry(line).or_default() += 1;
                }
            }
        }
        if self.scripts.values().any(Option::is_some) { OFTEN } else { SELDOM }
    }

    fn find(&mut self) {
        let entries = std::fs::read_dir(self.folder).into_iter().flatten().flatten();
        for entry in entries.take(MOST) {
            let path = entry.path();
            if self.scripts.contains_key(&path) {
                continue;
            }
            let Some(pid) = live_files::pid_of(&entry.file_name()) else { continue };
            let script = live_files::open(&path, live_files::user()).ok().zip(Interpreter::of(pid));
            self.scripts.insert(path, script);
        }
        self.scripts.retain(|path, _| path.exists());
    }
}

fn under_way(file: &File) -> Vec<Entry> {
    let mut calls = UnderWay::ZERO;
    match file.read_exact_at(calls.bytes_mut(), offset_of!(Live, under_way) as u64) {
        Ok(()) => calls.entries().collect(),
        Err(_) => Vec::new(),
    }
}
