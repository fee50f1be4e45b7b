//! The command line. The driver hands it on to every process it starts.

use crate::BENCHES;
use crate::programs::jobs;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

pub enum Role {
    Help,
    Driver,
    /// A process started by this program itself, and what it is to do.
    Inner(String),
}

pub struct Options {
    pub role: Role,
    pub names: Vec<String>,
    /// The arguments as given, to be handed on and written beside the results.
    pub given: Vec<String>,
    /// The library under test; none: the shim arm is libc itself.
    pub lib: Option<String>,
    pub json: Option<String>,
    pub save: Option<String>,
    pub quick: bool,
    /// Time for one cell of a table.
    pub seconds: f64,
    /// Size of each of the two buffers that cold copies walk through.
    pub buffers: Option<usize>,
    pub sizes: Option<Vec<usize>>,
    pub burst: Option<usize>,
    /// Keep a SIGSEGV handler installed.
    pub handler: bool,
    /// Programs: only these jobs.
    pub jobs: Option<Vec<String>>,
    /// Programs: rounds in which every arm has one turn.
    pub pairs: Option<usize>,
    /// Programs: one more arm for each of these, "NAME=VALUE NAME=VALUE".
    pub also: Vec<String>,
    /// Programs: fetch nothing that is missing.
    pub no_install: bool,
    /// What is left for an inner process that takes arguments of its own.
    pub rest: Vec<String>,
}

pub fn help() {
    println!(
        "usage: adma-bench [options] [names]\n\n\
         Every figure is a ratio to libc, measured in the same interleaved run.\n"
    );
    for bench in BENCHES {
        println!("  {:<9} {}", bench.name, bench.about);
    }
    println!(
        "\noptions:
  --lib PATH      libadma.so to measure; 'none' measures libc against itself,
                  which shows the noise (default: libadma.so beside this file)
  --quick         a sixth of the time and fewer sizes: a first look
  --seconds S     time for each cell of a table (default 3)
  --sizes A,B     only these sizes, in bytes or with K, M, G; ipc: and only the tables
                  of large messages, of rights, and against BENCH_BEFORE
  --buffers SIZE  each of the two buffers cold copies walk through (default
                  1G, or twice the last level cache, when memory permits)
  --burst N       copies in a row whenever an arm has its turn (default: 8 MiB of
                  them, 4 to 64)
  --handler       copy as a program that handles SIGSEGV: its faults must come
                  to it, and the shim has to take another way
  --jobs A,B      programs: only these; \"redis\" is all jobs of redis
  --pairs N       programs: rounds (default 7, with --quick 3)
  --also KNOBS    programs: one more arm with ADMA_NAME=VALUE; may be repeated
  --no-install    programs: do not fetch packages and modules that are missing
  --json FILE     all figures as JSON
  --save FILE     tables, commands, date and machine as Markdown; sections of
                  benchmarks that are not run this time are kept
ADMA_* variables reach the library. Progress goes to stderr."
    );
}

impl Options {
    /// Copies of `size` in a row. The papers walk through all of a buffer without a pause; so
    /// few that the first, after the pause, weighs much would be another test.
    pub fn burst(&self, size: usize) -> usize {
        self.burst.unwrap_or((8 * MIB / size).clamp(4, 64))
    }

    pub fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let given: Vec<String> = args.collect();
        let mut options = Options {
            role: Role::Driver,
            names: Vec::new(),
            given: given.clone(),
            lib: None,
            json: None,
            save: None,
            quick: false,
            seconds: 0.0,
            buffers: None,
            sizes: None,
            burst: None,
            handler: false,
            jobs: None,
            pairs: None,
            also: Vec::new(),
            no_install: false,
            rest: Vec::new(),
        };
        let mut args = given.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} wants a value"));
            match arg.as_str() {
                "--help" | "-h" => options.role = Role::Help,
                "--inner" => options.role = Role::Inner(value()?),
                "--lib" => options.lib = Some(value()?),
                "--json" => options.json = Some(value()?),
                "--save" => options.save = Some(value()?),
                "--handler" => options.handler = true,
                "--quick" => options.quick = true,
                "--seconds" => {
                    options.seconds = match value()?.parse() {
                        Ok(seconds) if seconds > 0.0 => seconds,
                        _ => return Err("--seconds wants a positive number".into()),
                    }
                }
                "--buffers" => options.buffers = Some(size(&value()?)?),
                "--burst" => options.burst = Some(size(&value()?)?.clamp(2, 1000)),
                "--sizes" => {
                    let sizes: Result<Vec<_>, _> = value()?.split(',').map(size).collect();
                    options.sizes = Some(sizes?);
                }
                "--jobs" => options.jobs = Some(job_names(&value()?)?),
                "--pairs" => {
                    options.pairs = match value()?.parse() {
                        Ok(pairs) if pairs > 0 => Some(pairs),
                        _ => return Err("--pairs wants a positive number".into()),
                    }
                }
                "--also" => options.also.push(knobs(value()?)?),
                "--no-install" => options.no_install = true,
                "--" => options.rest.extend(args.by_ref()),
                name if BENCHES.iter().any(|bench| bench.name == name) => {
                    options.names.push(name.into());
                }
                _ => return Err(format!("what is '{arg}'?")),
            }
        }
        if options.seconds == 0.0 {
            options.seconds = if options.quick { 0.5 } else { 3.0 };
        }
        Ok(options)
    }

    /// The sizes of a table: powers of two, or what the user asked for.
    pub fn sizes(&self, from: usize, to: usize) -> Vec<usize> {
        if let Some(sizes) = &self.sizes {
            return sizes.clone();
        }
        let step = if self.quick { 2 } else { 1 };
        (from.ilog2()..=to.ilog2()).step_by(step).map(|bits| 1 << bits).collect()
    }
}

fn job_names(list: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = list.split(',').map(String::from).collect();
    match names.iter().find(|name| !jobs::known(name)) {
        None => Ok(names),
        Some(name) => {
            let all: Vec<&str> = jobs::JOBS.iter().map(|job| job.name).collect();
            Err(format!("'{name}' is no job; there are {}", all.join(", ")))
        }
    }
}

fn knobs(text: String) -> Result<String, String> {
    let knob = |word: &str| word.split_once('=').is_some_and(|(name, _)| name.starts_with("ADMA_"));
    match text.split(' ').all(knob) {
        true => Ok(text),
        false => Err(format!("--also wants ADMA_NAME=VALUE, or several with spaces, not '{text}'")),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err(format!("'{text}' is no size: want bytes, or a K, M or G suffix")),
    };
    match digits.parse::<usize>() {
        Ok(number) if number > 0 && number.leading_zeros() > shift => Ok(number << shift),
        _ => Err(format!("'{text}' is no size: want bytes, or a K, M or G suffix")),
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(text: &[&str]) -> Result<Options, String> {
        Options::parse(text.iter().map(|word| word.to_string()))
    }

    #[test]
    fn arms_and_jobs_of_programs_are_taken_as_given() {
        let several = "ADMA_MIN_BYTES=64K ADMA_STORES=stream";
        let given = ["programs", "--also", "ADMA_MIN_BYTES=1M", "--also", several];
        let options = parse(&given).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(options.also, ["ADMA_MIN_BYTES=1M", several]);
        let options = parse(&["--jobs", "redis,numpy-copy", "--pairs", "9"]);
        let options = options.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(options.jobs.as_deref(), Some(&["redis".into(), "numpy-copy".into()][..]));
        assert_eq!((options.pairs, options.no_install), (Some(9), false));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            ["--also", "MIN_BYTES=1M"],
            ["--also", "ADMA_MIN_BYTES"],
            ["--also", "ADMA_STORES=stream and more"],
            ["--also", ""],
            ["--jobs", "redis,nothing"],
            ["--jobs", ""],
            ["--pairs", "0"],
            ["--pairs", "many"],
        ] {
            assert!(parse(&wrong).is_err(), "{wrong:?}");
        }
    }
}
