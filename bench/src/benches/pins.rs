//! How large a translation cache should be, and its lines, which are the kernel helper's pinned
//! ranges: recorded copies of real programs, and
//! a made-up working set beyond this machine, through caches of every shape of the paper.

use crate::options::Options;
use crate::out::{Table, figure, progress};
use crate::spawn;
use crate::translate::{Cache, Shape};
use std::fs;
use std::path::Path;
use std::process::Stdio;

const ENTRIES: [u32; 3] = [8 << 10, 16 << 10, 32 << 10];
const LINES: [u32; 4] = [8, 16, 64, 128];
const WAYS: [u32; 3] = [2, 4, 8];
const PAGE: u64 = 4096;

/// Made of recorder.c by build.rs.
const RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recorder.so"));

/// One copy: destination, source, bytes.
type Copy = (u64, u64, u64);

/// What copies by several processes that share the cache, in turns.
struct Work {
    name: String,
    processes: Vec<Vec<Copy>>,
}

pub fn run(options: &Options) {
    println!(
        "misses per 1000 pages looked up, and those of them that are not cold; C entries, L per\n\
         line, A ways (the module pins in ranges of L 64 and finds them in a tree per file)\n"
    );
    let folder = std::env::temp_dir().join(format!("adma-pins-{}", std::process::id()));
    let recorder = folder.join("recorder.so");
    let mut works = Vec::new();
    if fs::create_dir_all(&folder).is_ok() && fs::write(&recorder, RECORDER).is_ok() {
        works = programs(&recorder.to_string_lossy(), &folder);
    }
    works.extend(made_up(if options.quick { 2_000 } else { 20_000 }));
    let _ = fs::remove_dir_all(&folder);
    for work in &works {
        progress(&format!("pins: {}", work.name));
        table(work);
    }
}

fn table(work: &Work) {
    let copies: usize = work.processes.iter().map(Vec::len).sum();
    println!("{} ({copies} copies, {} processes)", work.name, work.processes.len());
    if copies == 0 {
        println!("  nothing recorded\n");
        return;
    }
    let mut head = vec!["L".to_string()];
    for entries in ENTRIES {
        head.extend(WAYS.map(|ways| format!("{}K A{ways}", entries >> 10)));
    }
    let mut table = Table::new(head);
    for line in LINES {
        let mut row = vec![line.to_string()];
        for entries in ENTRIES {
            for ways in WAYS {
                let cache = replay(work, Shape { entries, line, ways });
                let per_mille = |count: u64| 1000.0 * count as f64 / cache.lookups.max(1) as f64;
                let (all, other) = (per_mille(cache.cold + cache.other), per_mille(cache.other));
                let key = format!("pins.{}.{}K.{line}.{ways}", work.name, entries >> 10);
                figure(&key.replace(' ', "_"), all);
                row.push(format!("{all:.1}/{other:.1}"));
            }
        }
        table.row(row);
    }
    table.print();
}

/// The processes take turns, a copy each. A copy looks up its pages from the front, the
/// source's and the destination's.
fn replay(work: &Work, shape: Shape) -> Cache {
    let mut cache = Cache::new(shape);
    let longest = work.processes.iter().map(Vec::len).max().unwrap_or(0);
    for turn in 0..longest {
        for (space, copies) in (1..).zip(&work.processes) {
            let Some(&(dst, src, len)) = copies.get(turn) else { continue };
            let pages = |at: u64| at / PAGE..=(at + len.max(1) - 1) / PAGE;
            let (mut from, mut to) = (pages(src), pages(dst));
            loop {
                let (from, to) = (from.next(), to.next());
                from.into_iter().chain(to).for_each(|page| cache.page(space, page));
                if from.is_none() && to.is_none() {
                    break;
                }
            }
        }
    }
    cache
}

// ---- recorded ---------------------------------------------------------------------------

const ARRAYS: &str = "
import array
a = [array.array('B', bytes(600_000 + 70_000 * i)) for i in range(40)]
for round in range(30):
    for i in range(len(a)):
        a[i] = a[i][:] if (i + round) % 3 else a[i] + a[i][:70_000]
";

/// Programs from the distribution that copy by the hundred kilobytes; what is not installed
/// is left out.
fn programs(recorder: &str, folder: &Path) -> Vec<Work> {
    let shell = [
        ("python3, arrays", format!("python3 -c \"{ARRAYS}\"")),
        ("sort, 2000000 lines", "seq 2000000 | sort -R | sort -n | tail -n 1".to_string()),
        (
            "sqlite3, 200000 rows",
            "sqlite3 :memory: \"create table t(a, b); with recursive c(x) as (select 1 union all \
             select x + 1 from c where x < 200000) insert into t select x, randomblob(300) from c; \
             select count(*) from t where b > x'80' order by b;\""
                .to_string(),
        ),
        (
            "perl, strings",
            "perl -e '$s = \"x\" x 900_000; for (1..300) { $t = $s; \
            $u = $t . $s; $s = substr($u, 5, 900_000) }'"
                .to_string(),
        ),
        (
            "zstd and xz",
            "seq 3000000 | zstd -q -3 | zstd -qd | xz -0 | xz -d | tail -n 1".to_string(),
        ),
    ];
    let mut works = Vec::new();
    for (number, (name, script)) in shell.into_iter().enumerate() {
        progress(&format!("pins: recording {name}"));
        let folder = folder.join(number.to_string());
        if fs::create_dir_all(&folder).is_err() {
            continue;
        }
        let mut command = spawn::command("sh", Some(recorder));
        command
            .args(["-c", &script])
            .env("RECORDER_FOLDER", &folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = command.status(); // a program that is not there leaves no trace
        let mut processes: Vec<Vec<Copy>> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| recorded(&entry.ok()?.path()))
            .filter(|copies| !copies.is_empty())
            .collect();
        processes.sort_by_key(|copies| std::cmp::Reverse(copies.len()));
        if !processes.is_empty() {
            works.push(Work { name: name.into(), processes });
        }
    }
    works
}

/// Three 64-bit numbers for each copy, see recorder.c.
fn recorded(path: &Path) -> Option<Vec<Copy>> {
    let bytes = fs::read(path).ok()?;
    let number = |at: &[u8]| u64::from_le_bytes(at.try_into().expect("eight bytes"));
    let copy =
        |record: &[u8]| (number(&record[..8]), number(&record[8..16]), number(&record[16..]));
    Some(bytes.chunks_exact(24).map(copy).collect())
}

// ---- made up ----------------------------------------------------------------------------

const GIB: u64 = 1 << 30;

/// Numbers that look random, below what is asked for.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 20) % limit
    }
}

/// 64 GiB in all: four processes with 16 GiB each, half of it read, half written. `place`
/// tells where the n-th copy lies within so many bytes.
fn four_processes(name: &str, copies: u64, place: fn(u64, u64, &mut Random) -> u64) -> Work {
    let random = &mut Random(1);
    let mut process = |number: u64| {
        let base = 0x7000_0000_0000 + number * 32 * GIB;
        let copy = |number| {
            let len = 64 << 10 << random.below(5);
            let at = place(number, 8 * GIB - len, random) / 64 * 64;
            (base + at, base + 16 * GIB + at, len)
        };
        (0..copies / 4).map(copy).collect()
    };
    Work { name: name.into(), processes: (0..4).map(&mut process).collect() }
}

fn made_up(copies: u64) -> [Work; 4] {
    [
        four_processes("64 GiB, anywhere", copies, |_, below, random| random.below(below)),
        four_processes("64 GiB, nine in ten in 16 MiB", copies, |_, below, random| {
            let near = random.below(10) > 0;
            random.below(if near { 16 << 20 } else { below })
        }),
        four_processes("64 GiB, from front to back", copies, |number, below, _| {
            number * (1 << 20) % below
        }),
        four_processes("64 GiB, 512 MiB again and again", copies, |number, _, _| {
            number * (1 << 20) % (512 << 20)
        }),
    ]
}
