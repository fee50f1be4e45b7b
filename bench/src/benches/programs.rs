//! Real programs, whole runs of them: plain, with an empty library preloaded (the noise), with the
//! shim, and with the shim and other knobs. In each round every arm has one turn, in random order;
//! ratios are formed round by round.

use crate::measure::{Samples, shuffled};
use crate::options::Options;
use crate::out::{Table, figure, median, progress, range, ratio, spread};
use crate::programs::jobs::{self, Job};
use crate::programs::memory::Peak;
use crate::programs::needs::Place;
use crate::programs::run::{Failure, Measured, OWN_THREADS, Run, Surroundings, once};

/// Least gain of a winning job; jobs below must not cost CPU time.
const WIN: f64 = 1.03;

/// A row of the table, which is printed while it grows.
const WIDEST: &str = "postgres-string_agg|10.00|100 %|1.00|1.00-1.00|1.00|1.00-1.00|1.00|1.00-1.00\
                      |10.00|1.00|100 % (10-100)";

pub fn run(options: &Options) {
    let place = match Place::new() {
        Ok(place) => place,
        Err(error) => return println!("skipped: no folder for files beside this program: {error}"),
    };
    let jobs = jobs::chosen(options.jobs.as_deref());
    let pairs = options.pairs.unwrap_or(if options.quick { 3 } else { 7 });
    println!("{}", place.versions(&jobs));
    for job in &jobs {
        println!("  {:<20} {}", job.name, job.what(options.quick));
    }
    println!(
        "\nAll ratios are to plain runs in the same rounds ({pairs} of them); above 1 the program\n\
         is faster. copies: part of a plain run that is spent in large copies, of all processes\n\
         together. null: an empty library preloaded, the noise. whole: with the shim, the whole\n\
         run; work: its working part, after imports and set-up. CPU: CPU time of the whole run\n\
         over plain, less is better. engine: bytes of large copies that the engine carried,\n\
         lowest and highest run. own: plain, by threads that the program has for copies.\n"
    );

    let arms = Arms::new(options, &place);
    let also = |_| Table::of("job|whole|q1-q3|work|q1-q3|CPU|engine|default|work");
    let mut tables: Vec<Table> = arms.also.iter().map(also).collect();
    let mut table = Table::of("job|run s|copies|null|q1-q3|whole|q1-q3|work|q1-q3|own|CPU|engine")
        .with_widths_of(WIDEST);
    let mut memory = Table::of("job|largest MiB|x|q1-q3|all MiB|with|x|huge pages MiB|with");
    table.print_new();
    for (number, job) in jobs.iter().enumerate() {
        let about = format!("{} ({} of {})", job.name, number + 1, jobs.len());
        let result = match place.interpreter(job) {
            Err(reason) => Err(Failure::Skipped(reason)),
            Ok(interpreter) => {
                let run = Run { job, place: &place, interpreter, quick: options.quick };
                measure(&run, &arms, pairs, &about)
            }
        };
        match result {
            Ok(times) => {
                table.row(main_row(job, &times));
                memory.row(memory_row(job, &times));
                for (also, table) in tables.iter_mut().enumerate() {
                    table.row(also_row(job, &times, ALSO + also));
                }
                best_of_all(job, &times, options.also.len());
                let others = arms.all.len() - options.against.len();
                for (arm, what) in (others..).zip(&options.against) {
                    let key = format!("programs.{}.{}", job.name, what.name);
                    spread(&key, &times.ratio(PLAIN, arm, WHOLE));
                }
            }
            Err(Failure::Skipped(why)) => table.row([job.name, &format!("skipped: {why}")]),
            Err(Failure::Failed(why)) => table.row([job.name, &format!("FAILED: {why}")]),
        }
        table.print_new();
    }
    println!(
        "\nMemory at its peak. largest: resident memory of the process that has the most, plain, and\n\
         with the shim over that, of all rounds. all: of all processes together, a page that several\n\
         have counted once (PSS); huge pages: what of that is anonymous memory in huge pages; both from\n\
         one run of each kind, looked at every 5 ms, plain and with the shim. Less is better.\n"
    );
    memory.print();
    for (knobs, table) in arms.also.iter().zip(&tables) {
        println!("{knobs}; default: how default knobs compare with it (whole, work)");
        table.print();
    }
}

/// Indexes of the arms in a round; after them come those of `--also`.
const PLAIN: usize = 0;
const NULL: usize = 1;
const SHIM: usize = 2;
/// Plain, by the program's own threads; only of jobs that have some.
const OWN: usize = 3;
const ALSO: usize = 4;
struct Arms<'a> {
    all: Vec<Surroundings<'a>>,
    also: Vec<&'a str>,
    lib: Option<&'a str>,
}

impl<'a> Arms<'a> {
    fn new(options: &'a Options, place: &'a Place) -> Self {
        let lib = options.library();
        let with = |preload, knobs| Surroundings { preload, knobs, ..Surroundings::default() };
        let mut all = vec![
            with(None, Vec::new()),
            with(place.empty.as_ref().map(|lib| lib.0.as_str()), Vec::new()),
            with(lib, Vec::new()),
            with(None, vec![(OWN_THREADS, "1")]),
        ];
        // Options::parse has seen that these are NAME=VALUE.
        let knobs = |text: &'a String| text.split(' ').filter_map(|k| k.split_once('=')).collect();
        all.extend(options.also.iter().map(|text| with(lib, knobs(text))));
        let mut also: Vec<&str> = options.also.iter().map(String::as_str).collect();
        for what in &options.against {
            all.push(with(what.preload.as_deref(), what.knobs()));
            also.push(if what.preload.is_some() { "the library of --against" } else { what.name });
        }
        Arms { all, also, lib }
    }
}

/// Results of all rounds of one job.
struct Times {
    /// Results by arm, round by round.
    arms: Vec<Vec<Measured>>,
    /// Part of a run that large copies take; NaN without a library to time them.
    share: f64,
    /// Memory of all processes together, plain and with the library.
    peaks: [Peak; 2],
}

impl Times {
    /// Returns how many times less `arm` took than `base`.
    fn ratio(&self, base: usize, arm: usize, of: fn(&Measured) -> f64) -> Samples {
        let rounds = self.arms[base].iter().zip(&self.arms[arm]);
        rounds.map(|(base, arm)| of(base) / of(arm)).collect()
    }

    fn engine(&self, arm: usize) -> Samples {
        self.arms[arm].iter().filter_map(|run| run.copies.engine_part()).collect()
    }
}

const WHOLE: fn(&Measured) -> f64 = |run| run.whole;
const WORK: fn(&Measured) -> f64 = |run| run.work;
const CPU: fn(&Measured) -> f64 = |run| run.cpu;
const RSS: fn(&Measured) -> f64 = |run| run.rss;

fn measure(run: &Run<'_>, arms: &Arms<'_>, pairs: usize, about: &str) -> Result<Times, Failure> {
    progress(&format!("{about}: checking its result"));
    once(run, &Surroundings { check: true, ..arms.all[SHIM].clone() })?;
    progress(&format!("{about}: timing its copies"));
    let knobs = vec![("ADMA_BACKEND", "libc"), ("ADMA_MIN_BYTES", "auto")];
    let by_libc = Surroundings { preload: arms.lib, knobs, ..Surroundings::default() };
    let by_libc = once(run, &by_libc)?;
    let share = match arms.lib {
        Some(_) => by_libc.copies.libc_ns / 1e9 / by_libc.whole,
        None => f64::NAN,
    };

    progress(&format!("{about}: watching its memory"));
    let watched = |arm: usize| {
        let around = Surroundings { watch: true, ..arms.all[arm].clone() };
        once(run, &around).map(|run| run.peak)
    };
    let peaks = [watched(PLAIN)?, watched(SHIM)?];
    let mut times = Times { arms: arms.all.iter().map(|_| Vec::new()).collect(), share, peaks };
    for pair in 0..pairs {
        progress(&format!("{about}: round {} of {pairs}", pair + 1));
        let is_run = |arm: &usize| *arm != OWN || run.job.has_threads;
        for arm in shuffled(arms.all.len()).into_iter().filter(is_run) {
            times.arms[arm].push(once(run, &arms.all[arm])?);
        }
    }
    Ok(times)
}

fn main_row(job: &Job, times: &Times) -> Vec<String> {
    let key = |name: &str| format!("programs.{}.{name}", job.name);
    let seconds: Samples = times.arms[PLAIN].iter().map(WHOLE).collect();
    let null = times.ratio(PLAIN, NULL, WHOLE);
    let shim = times.ratio(PLAIN, SHIM, WHOLE);
    let working = times.ratio(PLAIN, SHIM, WORK);
    let cost = times.ratio(SHIM, PLAIN, CPU).median();
    let engine = times.engine(SHIM);
    figure(&key("plain_s"), seconds.median());
    figure(&key("share"), times.share);
    for (name, samples) in [("null", &null), ("whole", &shim), ("work", &working)] {
        spread(&key(name), samples);
    }
    figure(&key("cpu"), cost);
    if shim.median() < WIN {
        figure(&key("cpu_without_gain"), cost);
    }
    figure(&key("engine"), engine.median());
    figure(&key("engine_spread"), engine.quantile(1.0) - engine.quantile(0.0));
    let mut row = vec![job.name.to_string(), format!("{:.2}", seconds.median())];
    row.push(percent(&[times.share].into_iter().filter(|share| !share.is_nan()).collect()));
    for samples in [&null, &shim, &working] {
        row.extend([median(samples), range(samples, 0.25)]);
    }
    let own = times.ratio(PLAIN, OWN, WORK);
    spread(&key("own"), &times.ratio(PLAIN, OWN, WHOLE));
    spread(&key("own_work"), &own);
    row.extend([median(&own), format!("{cost:.2}"), percent(&engine)]);
    row
}

fn memory_row(job: &Job, times: &Times) -> Vec<String> {
    let key = |name: &str| format!("programs.{}.{name}", job.name);
    let plain: Samples = times.arms[PLAIN].iter().map(RSS).collect();
    let rss = times.ratio(SHIM, PLAIN, RSS);
    let [before, with] = times.peaks;
    figure(&key("plain_rss_mib"), plain.median());
    spread(&key("rss"), &rss);
    figure(&key("plain_pss_mib"), before.pss);
    figure(&key("pss"), with.pss / before.pss);
    figure(&key("plain_huge_mib"), before.huge);
    figure(&key("huge_mib"), with.huge);
    let mut row = vec![job.name.to_string(), format!("{:.0}", plain.median())];
    row.extend([median(&rss), range(&rss, 0.25)]);
    row.extend([before.pss, with.pss].map(|mib| format!("{mib:.0}")));
    row.push(ratio(with.pss / before.pss));
    row.extend([before.huge, with.huge].map(|mib| format!("{mib:.0}")));
    row
}

fn also_row(job: &Job, times: &Times, arm: usize) -> Vec<String> {
    let mut row = vec![job.name.to_string()];
    for samples in [WHOLE, WORK].map(|of| times.ratio(PLAIN, arm, of)) {
        row.extend([median(&samples), range(&samples, 0.25)]);
    }
    row.push(median(&times.ratio(arm, PLAIN, CPU)));
    row.push(percent(&times.engine(arm)));
    row.extend([WHOLE, WORK].map(|of| median(&times.ratio(arm, SHIM, of))));
    row
}

/// Compares default knobs with the best of the others.
fn best_of_all(job: &Job, times: &Times, others: usize) {
    let of = |arm| times.ratio(arm, SHIM, WHOLE).median();
    if let Some(worst) = (ALSO..ALSO + others).map(of).min_by(f64::total_cmp) {
        figure(&format!("programs.{}.of_best", job.name), worst);
    }
}

/// Returns "97 %", with the lowest and the highest where they differ.
fn percent(samples: &Samples) -> String {
    if samples.len() == 0 {
        return "-".into();
    }
    let [low, middle, high] = [0.0, 0.5, 1.0].map(|q| (samples.quantile(q) * 100.0).round());
    if low == high { format!("{middle} %") } else { format!("{middle} % ({low}-{high})") }
}
