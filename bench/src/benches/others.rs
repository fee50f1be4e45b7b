//! memset and memcmp: one call at a time by libc and by the shim, which take turns. Cold and hot
//! as copies are; memset also into memory never touched, memcmp also of ranges that differ.

use crate::arms;
use crate::measure::{PAUSE_US, Samples, now, settle, shuffled};
use crate::memory::{Area, Pair, Walk};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, median, progress, range, ratio, size as short, spread};
use crate::turns::{self, Budget, buffer_size};
use libc::{c_int, c_void};
use std::hint::black_box;

type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type Compare = unsafe extern "C" fn(*const c_void, *const c_void, usize) -> c_int;

#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Cold,
    Hot,
    Fresh,
    /// Cold, and the ranges differ after this many bytes.
    Differs(usize),
}

impl Memory {
    fn name(self) -> String {
        match self {
            Memory::Cold => "cold".into(),
            Memory::Hot => "hot".into(),
            Memory::Fresh => "fresh".into(),
            Memory::Differs(at) => format!("differs{}", short(at)),
        }
    }
}

pub fn memset(options: &Options) {
    // SAFETY: memset has this type.
    let arms: [Fill; 2] = unsafe { [arms::real(c"memset"), black_box(libc::memset)] };
    // SAFETY: the table hands over ranges of that length.
    let call = |which: usize, dst: *mut u8, _: *const u8, size| unsafe {
        black_box(arms[which](dst.cast(), 7, size));
    };
    table(options, "memset", &[Memory::Cold, Memory::Hot, Memory::Fresh], call);
}

pub fn memcmp(options: &Options) {
    // SAFETY: memcmp has this type.
    let arms: [Compare; 2] = unsafe { [arms::real(c"memcmp"), black_box(libc::memcmp)] };
    // SAFETY: the table hands over ranges of that length.
    let call = |which: usize, a: *mut u8, b: *const u8, size| unsafe {
        black_box(arms[which](a.cast(), b.cast(), size));
    };
    let differs = [100, 20 * KIB, 600 * KIB].map(Memory::Differs);
    let kinds = [[Memory::Cold, Memory::Hot].as_slice(), &differs].concat();
    table(options, "memcmp", &kinds, call);
}

fn table(
    options: &Options,
    name: &str,
    kinds: &[Memory],
    call: impl Fn(usize, *mut u8, *const u8, usize),
) {
    let pair = &Pair::new(buffer_size(options));
    println!("{}; buffers 2 x {}", arms::describe_shim(), short(pair.len()));
    println!("row: shim x libc, calls in a row. pause: the first after a pause.\n");
    let mut table = Table::of("memory|size|libc GB/s|row|p10-p90|pause|p10-p90")
        .with_widths_of("differs600K|64M|||0.00-0.00");
    for &kind in kinds {
        for size in options.sizes(MIB, 64 * MIB).into_iter().filter(|size| *size <= pair.len()) {
            progress(&format!("{name} {} {}", kind.name(), short(size)));
            let (speed, row, pause) = cell(options, kind, pair, size, &call);
            let key = |what: &str| format!("{name}.{}.{}.{what}", kind.name(), short(size));
            figure(&key("libc_gbs"), speed);
            spread(&key("row_libc"), &row);
            spread(&key("pause_libc"), &pause);
            let mut cells = vec![kind.name(), short(size), ratio(speed)];
            cells.extend([row, pause].map(|gain| [median(&gain), range(&gain, 0.1)]).concat());
            table.row(cells);
            table.print_new();
        }
    }
}

/// Returns libc's speed, and the shim's gain back to back and after a pause.
fn cell(
    options: &Options,
    kind: Memory,
    pair: &Pair,
    size: usize,
    call: &impl Fn(usize, *mut u8, *const u8, usize),
) -> (f64, Samples, Samples) {
    let [mut libc, mut row, mut pause] = [(); 3].map(|()| Samples::default());
    let mut walk = Walk::new(0, pair.len());
    let burst = turns::burst(size);
    let budget = Budget::new(options.seconds);
    while row.len() < 5 || budget.used() < 1.0 {
        let (mut firsts, mut rests) = ([0.0; 2], [0.0; 2]);
        for arm in shuffled(2) {
            settle(PAUSE_US);
            for number in 0..burst {
                let fresh = (kind == Memory::Fresh).then(|| Area::untouched(size));
                let spot = match kind {
                    Memory::Hot => pair.spot(0),
                    _ => walk.step(size, pair),
                };
                let dst = fresh.as_ref().map_or(spot.dst, |area| area.at(0));
                let flipped = match kind {
                    // SAFETY: inside the spot; the pair is used here only.
                    Memory::Differs(at) if at < size => Some(unsafe { spot.dst.add(at) }),
                    _ => None,
                };
                // SAFETY: bytes inside the spot, which nothing else uses meanwhile.
                let flip = || flipped.into_iter().for_each(|byte| unsafe { *byte ^= 1 });
                flip();
                let start = now();
                call(arm, dst, spot.src, size);
                let time = (now() - start).max(1) as f64;
                flip();
                if number == 0 { firsts[arm] = time } else { rests[arm] += time }
            }
        }
        if budget.used() > 0.2 {
            let times = rests.map(|time| time / (burst - 1) as f64);
            libc.push(size as f64 / times[0]);
            row.push(times[0] / times[1]);
            pause.push(firsts[0] / firsts[1]);
        }
    }
    (libc.median(), row, pause)
}
