//! One program thread copies: libc, the shim, and the ceiling of n threads that each copy a part
//! with libc's memcpy.

use crate::arms::{self, Arm};
use crate::heat::Heat;
use crate::machine::cpu_count;
use crate::measure::{self, Samples, copies_until_steady};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, median, progress, range, size as short, spread};
use crate::rival::Rival;
use crate::turns::{Budget, Place, Times, burst, ratios, rounds};

const LIBC: usize = 0;
const SHIM: usize = 1;

pub fn run(options: &Options) {
    let cpus = cpu_count();
    let mut arms = vec![Arm::libc(), Arm::shim()];
    arms.extend(thread_counts(cpus).into_iter().map(Arm::ceiling));
    arms.extend(Rival::all("rival", options).into_iter().map(Arm::rival));
    let mut place = Place::new(options, cpus);
    println!("{}; buffers 2 x {}", arms::describe_shim(), short(place.pair.len()));
    println!(
        "GB/s: libc. row: shim x libc, copies in a row. pause: for a copy\n\
         after a pause, when the workers sleep. ceiling: x libc, n threads without\n\
         the shim, awake. of it: shim over ceiling, in a row and after a pause.\n\
         read: shim x libc, copies in a row whose destination is read at once;\n\
         hot: the source is written before, too, and all of it timed.\n\
         last columns, with --against: x libc.\n\
         learnt: copies the shim made before it was as fast as at the end.\n"
    );
    for heat in Heat::BOTH {
        println!(
            "{}",
            match heat {
                Heat::Cold | Heat::Read =>
                    "cold: every copy on memory not seen for the length of the buffers",
                Heat::Hot | Heat::Used => "hot: two buffers again and again; all copies in a row",
            }
        );
        let titles = "size|GB/s|row|p10-p90|pause|ceiling|of it|p10-p90|pause|then read|learnt";
        let rivals = arms.iter().filter(|arm| arm.rival.is_some()).map(|arm| arm.name.as_str());
        let mut table = Table::new(titles.split('|').chain(rivals));
        for size in options.sizes(16 * KIB, 64 * MIB) {
            if size > place.pair.len() {
                continue;
            }
            progress(&format!("copy {} {}", heat.name(), short(size)));
            table.row(cell(&mut place, &arms, size, heat, options));
        }
        table.print();
    }
}

/// Returns 2, 4, 8, ... and all CPUs.
pub fn thread_counts(cpus: usize) -> Vec<usize> {
    let powers = (1..).map(|bits| 1 << bits).take_while(|threads| *threads < cpus);
    powers.chain((cpus > 1).then_some(cpus)).collect()
}

fn cell(
    place: &mut Place,
    arms: &[Arm],
    size: usize,
    heat: Heat,
    options: &Options,
) -> Vec<String> {
    let view = measure(place, arms, size, heat, options);

    let key = |name: &str| format!("copy.{}.{}.{name}", heat.name(), short(size));
    let speed = size as f64 / view.median(LIBC);
    let row = view.row(LIBC, SHIM);
    let learnt = copies_until_steady(&view.times[SHIM].next) * burst(size);
    figure(&key("libc_gbs"), speed);
    spread(&key("row_libc"), &row);
    figure(&key("learnt"), learnt as f64);
    figure(&key("rounds"), row.len() as f64);
    let pause = |name: &str, base: usize| {
        // Hot copies after a pause find the caches as another arm left them.
        if heat == Heat::Hot {
            return "-".into();
        }
        let ratio = view.pause(base, SHIM);
        spread(&key(name), &ratio);
        median(&ratio)
    };
    let mut line = vec![short(size), format!("{speed:.1}"), median(&row), range(&row, 0.1)];
    line.push(pause("pause_libc", LIBC));

    let ceilings = SHIM + 1..arms.iter().filter(|arm| arm.rival.is_none()).count();
    let rivals = ceilings.end..arms.len();
    for arm in ceilings.clone() {
        let threads = arms[arm].threads;
        figure(&key(&format!("threads{threads}_libc")), view.row(LIBC, arm).median());
        figure(&key(&format!("row_threads{threads}")), view.row(arm, SHIM).median());
    }
    match ceilings.min_by(|a, b| view.median(*a).total_cmp(&view.median(*b))) {
        Some(best) => {
            let gain = view.row(LIBC, best).median();
            let part = view.row(best, SHIM);
            figure(&key("ceiling_libc"), gain);
            spread(&key("row_ceiling"), &part);
            line.push(format!("{gain:.2} by {}", arms[best].threads));
            line.extend([median(&part), range(&part, 0.1), pause("pause_ceiling", best)]);
        }
        None => line.extend(["-"; 4].map(String::from)),
    }
    line.push(then_read(place, &arms[..=SHIM], size, heat, options));
    line.push(learnt.to_string());
    for rival in rivals {
        let row = view.row(LIBC, rival);
        spread(&key(&format!("{}_libc", arms[rival].name)), &row);
        line.push(median(&row));
    }
    line
}

/// Measures what is left of the gain if the program uses what was copied.
fn then_read(
    place: &mut Place,
    arms: &[Arm],
    size: usize,
    heat: Heat,
    options: &Options,
) -> String {
    let heat = if heat == Heat::Hot { Heat::Used } else { Heat::Read };
    let row = measure(place, arms, size, heat, options).row(LIBC, SHIM);
    spread(&format!("copy.{}.{}.row_libc", heat.name(), short(size)), &row);
    median(&row)
}

/// Runs rounds of all arms for the time of one cell.
fn measure(place: &mut Place, arms: &[Arm], size: usize, heat: Heat, options: &Options) -> View {
    let budget = Budget::new(options.seconds);
    let mut warm = 0;
    let times = rounds(place, arms, size, heat, burst(size), |times| {
        let (rounds, used) = (times[LIBC].next.len(), budget.used());
        if warm == 0 && rounds >= 10 && used >= 0.2 {
            warm = rounds;
        }
        let measured = rounds - warm;
        let steady = || ratios(&times[LIBC].next[warm..], &times[SHIM].next[warm..]).steady(0.005);
        let early = measured % 16 == 0 && used >= 0.5 && steady();
        warm > 0 && measured >= 9 && (used >= 1.0 || early)
    });
    View { times, warm }
}

/// Times, and the number of warm-up rounds.
struct View {
    times: Vec<Times>,
    warm: usize,
}

impl View {
    /// Returns how many times faster `arm` was than `base`: copies in a row.
    fn row(&self, base: usize, arm: usize) -> Samples {
        ratios(&self.times[base].next[self.warm..], &self.times[arm].next[self.warm..])
    }

    /// Returns how many times faster `arm` was than `base`: the copy after a pause.
    fn pause(&self, base: usize, arm: usize) -> Samples {
        ratios(&self.times[base].first[self.warm..], &self.times[arm].first[self.warm..])
    }

    fn median(&self, arm: usize) -> f64 {
        measure::median(&self.times[arm].next[self.warm..])
    }
}
