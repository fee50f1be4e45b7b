//! Arms that take turns: the timing of every copy.
//!
//! In each round all arms have one turn, in random order. A turn is a burst of
//! copies, each timed on its own: the first comes after a pause, when the
//! shim's workers have gone to sleep; the others follow in a row.

use crate::arms::{Arm, interposed_memcpy, real_memcpy};
use crate::heat::Heat;
use crate::machine;
use crate::measure::{PAUSE_US, Samples, clock_cost, now, settle, shuffled};
use crate::memory::{CopyFn, Pair, Spot, Walk};
use crate::options::{MIB, Options};
use crate::rival::{self, Rival};
use crate::team::Team;
use std::hint::black_box;

/// Size below which several copies are timed together: the clock is coarse.
pub const TIMED_BYTES: usize = 16 << 10;

/// Memory and threads that the cells of a table share.
pub struct Place {
    pub pair: Pair,
    pub team: Team,
    walk: Walk,
    clock: u64,
}

impl Place {
    pub fn new(options: &Options, threads: usize) -> Self {
        let pair = Pair::new(buffer_size(options));
        let walk = Walk::new(0, pair.len());
        Place { pair, team: Team::new(threads), walk, clock: clock_cost() }
    }
}

/// Returns 1 GiB, or twice the cache if larger, and at most a quarter of what is available.
pub fn buffer_size(options: &Options) -> usize {
    let wanted = (2 * machine::last_level_cache()).max(1024 * MIB);
    let wanted = wanted.min(machine::available_memory() / 4);
    options.buffers.unwrap_or(wanted).max(64 * MIB).next_multiple_of(MIB)
}

/// Returns the copies of `size` in one turn. The papers walk through a whole buffer without a
/// pause, so the first copy, which comes after a pause, must not weigh much.
pub fn burst(size: usize) -> usize {
    (8 * MIB / size).clamp(4, 64)
}

/// Times of one arm, in nanoseconds per copy, round by round.
#[derive(Clone, Default)]
pub struct Times {
    /// Time of the copy after the pause.
    pub first: Vec<f64>,
    /// Mean of those that followed back to back.
    pub next: Vec<f64>,
    /// Mean of all.
    pub all: Vec<f64>,
}

/// Runs rounds of all `arms` until `enough` returns true for the times so far.
pub fn rounds(
    place: &mut Place,
    arms: &[Arm],
    size: usize,
    heat: Heat,
    burst: usize,
    mut enough: impl FnMut(&[Times]) -> bool,
) -> Vec<Times> {
    let mut times = vec![Times::default(); arms.len()];
    loop {
        for arm in shuffled(arms.len()) {
            turn(place, &arms[arm], size, heat, burst, &mut times[arm]);
        }
        if enough(&times) {
            return times;
        }
    }
}

/// Makes a burst of copies by one arm.
pub fn turn(
    place: &mut Place,
    arm: &Arm,
    size: usize,
    heat: Heat,
    burst: usize,
    times: &mut Times,
) {
    if let Some(rival) = &arm.rival {
        let order = format!("{size} {} {burst}", heat.name());
        let answer = rival.ask(&order).and_then(|numbers| numbers.try_into().ok());
        let [first, next, all] = answer.unwrap_or([f64::NAN; 3]);
        times.first.push(first);
        times.next.push(next);
        times.all.push(all);
        return settle(PAUSE_US);
    }
    let batch = (TIMED_BYTES / size).max(1);
    let mut spots: Vec<Spot> = Vec::with_capacity(batch);
    let mut taken = Vec::with_capacity(burst);
    place.team.gather(arm.threads);
    for _ in 0..burst {
        spots.clear();
        spots.extend((0..batch).map(|_| match heat {
            Heat::Cold | Heat::Read => place.walk.step(size, &place.pair),
            Heat::Hot | Heat::Used => place.pair.spot(0),
        }));
        let start = now();
        for spot in &spots {
            if heat == Heat::Used {
                write(*spot, size);
            }
            // SAFETY: both ways to a spot keep `size` inside the pair, and the team was gathered.
            unsafe { arm.run(&place.team, *spot, size) };
            if matches!(heat, Heat::Read | Heat::Used) {
                read(spot.dst, size);
            }
        }
        let time = (now() - start).saturating_sub(place.clock);
        taken.push(time.max(1) as f64 / batch as f64);
    }
    place.team.dismiss(arm.threads);
    settle(PAUSE_US);
    times.first.push(taken[0]);
    times.next.push(mean(&taken[1..]));
    times.all.push(mean(&taken));
}

/// Writes every cache line of the source.
pub fn write(spot: Spot, size: usize) {
    for at in (0..size & !63).step_by(64) {
        // SAFETY: inside the copy that will be made from there.
        unsafe { spot.src.add(at).cast_mut().cast::<u64>().write_volatile(at as u64) };
    }
}

/// Reads every cache line of what was copied to `dst`.
pub fn read(dst: *const u8, size: usize) {
    let mut sum = 0u64;
    for at in (0..size & !63).step_by(64) {
        // SAFETY: inside the copy that was just made there.
        sum = sum.wrapping_add(unsafe { dst.add(at).cast::<u64>().read() });
    }
    black_box(sum);
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns how many times faster `arm` was than `base`, round by round.
pub fn ratios(base: &[f64], arm: &[f64]) -> Samples {
    base.iter().zip(arm).map(|(base, arm)| base / arm).collect()
}

/// A time budget, with the warm-up at its beginning.
pub struct Budget {
    start: u64,
    seconds: f64,
}

impl Budget {
    pub fn new(seconds: f64) -> Self {
        Budget { start: now(), seconds }
    }

    /// Returns the part of the budget that is used up.
    pub fn used(&self) -> f64 {
        (now() - self.start) as f64 / 1e9 / self.seconds
    }
}

/// Returns the times of the first of several arms, and how many times faster each other one was, round by
/// round. In each round all have one turn, in random order; `turn` returns its time. The first
/// fifth of the time is not counted.
pub fn in_turn(
    seconds: f64,
    arms: usize,
    mut turn: impl FnMut(usize) -> f64,
) -> (Samples, Vec<Samples>) {
    let (mut base, mut gains) = (Samples::default(), vec![Samples::default(); arms - 1]);
    let budget = Budget::new(seconds);
    while base.len() < 5 || budget.used() < 1.0 {
        let mut times = vec![0.0; arms];
        for arm in shuffled(arms) {
            times[arm] = turn(arm);
        }
        if budget.used() > 0.2 {
            base.push(times[0]);
            gains.iter_mut().zip(&times[1..]).for_each(|(gain, time)| gain.push(times[0] / time));
        }
    }
    (base, gains)
}

/// Like `in_turn`: libc and the shim by `turn`, and rivals, who get an order for each of theirs.
pub fn in_turn_with(
    rivals: &[Rival],
    order: &str,
    seconds: f64,
    mut turn: impl FnMut(CopyFn) -> f64,
) -> (Samples, Vec<Samples>) {
    let copies = [real_memcpy(), interposed_memcpy()];
    in_turn(seconds, copies.len() + rivals.len(), |arm| match copies.get(arm) {
        Some(copy) => turn(*copy),
        None => rivals[arm - copies.len()].time(order),
    })
}

/// Makes turns on request, in the process of a `Rival`.
pub fn serve(options: &Options) {
    let (arm, mut place) = (Arm::shim(), Place::new(options, 1));
    rival::serve(|words| {
        let [size, heat, burst] = words else { return None };
        let (heat, mut times) = (Heat::named(heat)?, Times::default());
        turn(&mut place, &arm, size.parse().ok()?, heat, burst.parse().ok()?, &mut times);
        Some(vec![times.first[0], times.next[0], times.all[0]])
    });
}
