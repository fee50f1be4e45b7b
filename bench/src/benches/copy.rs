//! One program thread copies: libc, the shim, and the ceiling of n threads
//! that each copy a part with libc's memcpy.

use crate::arms::{self, Arm};
use crate::measure::{Samples, copies_until_steady};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as short};
use crate::team::cpu_count;
use crate::turns::{Budget, Heat, Place, Times, ratios, rounds};

const LIBC: usize = 0;
const SHIM: usize = 1;

pub fn run(options: &Options) {
    let cpus = cpu_count();
    let mut arms = vec![Arm::libc(), Arm::shim()];
    arms.extend(thread_counts(cpus).into_iter().map(Arm::ceiling));
    let mut place = Place::new(options, cpus);
    println!("{}; buffers 2 x {}", arms::describe_shim(), short(place.pair.len()));
    println!(
        "GB/s: libc. shim: x libc, a copy after a pause. row: x libc, copies in a row.\n\
         ceiling: x libc, n threads without the shim. of it: shim over ceiling.\n\
         learnt: copies the shim made before it was as fast as at the end.\n"
    );
    for heat in Heat::BOTH {
        println!(
            "{}",
            match heat {
                Heat::Cold | Heat::Read =>
                    "cold: every copy on memory not seen for the length of the buffers",
                Heat::Hot => "hot: the same two buffers again; all copies in a row",
            }
        );
        let mut table = Table::new([
            "size", "GB/s", "shim", "p10-p90", "row", "ceiling", "of it", "p10-p90", "learnt",
        ]);
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

/// 2, 4, 8, ... and all CPUs.
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
    let budget = Budget::new(options.seconds);
    let mut warm = 0;
    let times = rounds(place, arms, size, heat, options.burst, |times| {
        let (rounds, used) = (times[LIBC].first.len(), budget.used());
        if warm == 0 && rounds >= 10 && used >= 0.2 {
            warm = rounds;
        }
        let measured = rounds - warm;
        let shim =
            ratios(&counted(&times[LIBC], heat)[warm..], &counted(&times[SHIM], heat)[warm..]);
        let steady = measured % 16 == 0 && used >= 0.5 && shim.steady(0.005);
        warm > 0 && measured >= 9 && (used >= 1.0 || steady)
    });

    let warmed = |arm: usize| &counted(&times[arm], heat)[warm..];
    let median = |arm: usize| warmed(arm).iter().copied().collect::<Samples>().median();
    let shim = ratios(warmed(LIBC), warmed(SHIM));
    let row = ratios(&times[LIBC].next[warm..], &times[SHIM].next[warm..]);
    let speed = size as f64 / median(LIBC);
    let learnt = copies_until_steady(&times[SHIM].next) * options.burst;

    let key = |name: &str| format!("copy.{}.{}.{name}", heat.name(), short(size));
    figure(&key("libc_gbs"), speed);
    spread(&key("shim_libc"), &shim);
    spread(&key("row_libc"), &row);
    figure(&key("learnt"), learnt as f64);
    figure(&key("rounds"), shim.len() as f64);

    let mut line =
        vec![short(size), format!("{speed:.2}"), ratio(&shim), range(&shim), ratio(&row)];
    let ceilings = SHIM + 1..arms.len();
    for arm in ceilings.clone() {
        let gain = ratios(warmed(LIBC), warmed(arm)).median();
        figure(&key(&format!("threads{}_libc", arms[arm].threads)), gain);
        let part = ratios(warmed(arm), warmed(SHIM)).median();
        figure(&key(&format!("shim_threads{}", arms[arm].threads)), part);
    }
    match ceilings.min_by(|a, b| median(*a).total_cmp(&median(*b))) {
        Some(best) => {
            let gain = ratios(warmed(LIBC), warmed(best)).median();
            let part = ratios(warmed(best), warmed(SHIM));
            figure(&key("ceiling_libc"), gain);
            spread(&key("shim_ceiling"), &part);
            line.push(format!("{gain:.2} by {}", arms[best].threads));
            line.extend([ratio(&part), range(&part)]);
        }
        None => line.extend(["-".into(), "-".into(), "-".into()]),
    }
    line.push(learnt.to_string());
    line
}

/// The copies that count: cold ones one by one, hot ones without the first,
/// which finds the caches as another arm left them.
fn counted(times: &Times, heat: Heat) -> &[f64] {
    match heat {
        Heat::Cold | Heat::Read => &times.first,
        Heat::Hot => &times.next,
    }
}

fn spread(key: &str, samples: &Samples) {
    figure(key, samples.median());
    figure(&format!("{key}.p10"), samples.quantile(0.1));
    figure(&format!("{key}.p90"), samples.quantile(0.9));
}

fn ratio(samples: &Samples) -> String {
    format!("{:.2}", samples.median())
}

fn range(samples: &Samples) -> String {
    format!("{:.2}-{:.2}", samples.quantile(0.1), samples.quantile(0.9))
}
