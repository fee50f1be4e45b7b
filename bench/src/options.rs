//! The command line. The driver hands it on to every process it starts.

use crate::benches::used;
use crate::programs::jobs;
use adma_shared::knobs::TUNED_GLIBC;
use clap::ArgAction::Set;
use clap::builder::PossibleValuesParser;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::path::PathBuf;
use std::str::FromStr;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// Every figure is a ratio to libc, measured in the same interleaved run.
#[derive(Clone, Parser)]
#[command(name = "adma-bench", args_override_self = true)]
pub struct Options {
    /// What to measure; everything but programs unless named
    #[arg(hide_possible_values = true)]
    pub names: Vec<String>,
    /// libadma.so to measure; 'none' measures libc against itself, which shows the noise
    /// (default: libadma.so beside this file)
    #[arg(long)]
    pub lib: Option<String>,
    /// One more arm of copy, used, fresh, small, start and programs: another library to be preloaded;
    /// but for small and start also glibc tuned by hand: threshold (streams from 1 MiB up), hugetlb
    /// (huge pages for malloc) or tuned (both). May be repeated
    #[arg(long, value_name = "LIB.so|NAME", value_parser = alternative)]
    pub against: Vec<Alternative>,
    /// Keep the results in this folder: about.json and figures.csv (evidence: where its page and
    /// all results lie)
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Compare two folders of results
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub compare: Option<Vec<PathBuf>>,
    /// A sixth of the time and fewer sizes: a first look
    #[arg(long)]
    pub quick: bool,
    /// Time for each cell of a table (default 3)
    #[arg(long = "seconds", value_name = "S", value_parser = positive::<f64>)]
    cell_seconds: Option<f64>,
    #[arg(skip)]
    pub seconds: f64,
    /// Only these sizes, in bytes or with K, M, G
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = size, action = Set)]
    pub sizes: Option<Vec<usize>>,
    /// Each of the two buffers cold copies walk through (default 1G, or twice the last level
    /// cache, when memory permits)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub buffers: Option<usize>,
    /// Copy as a program that handles SIGSEGV: the shim has to take another way
    #[arg(long)]
    pub handler: bool,
    /// programs, reads, used: only these; "redis" is all jobs of redis; of used as after_cold.copy_read
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = job_name, action = Set)]
    pub jobs: Option<Vec<String>>,
    /// programs, mpi, knobs: rounds in which every arm has one turn
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    pub pairs: Option<usize>,
    /// programs: one more arm with ADMA_NAME=VALUE, or several with spaces; may be repeated
    #[arg(long, value_name = "KNOBS", value_parser = knobs)]
    pub also: Vec<String>,
    /// A process started by this program itself, and what it is to do
    #[arg(long, hide = true)]
    pub inner: Option<String>,
    /// What is left for an inner process that takes arguments of its own
    #[arg(last = true, hide = true)]
    pub rest: Vec<String>,
    /// The arguments as given, to be handed on and written beside the results
    #[arg(skip)]
    pub given: Vec<String>,
}

/// Names of what can be measured, each with a line of help.
pub type Names<'a> = &'a [(&'static str, &'static str)];

impl Options {
    pub fn from_command_line(names: Names<'_>) -> Self {
        Self::try_from_args(names, std::env::args().skip(1)).unwrap_or_else(|error| error.exit())
    }

    fn try_from_args(
        names: Names<'_>,
        args: impl Iterator<Item = String>,
    ) -> Result<Self, clap::Error> {
        let given: Vec<String> = args.collect();
        let lines = names.iter().map(|(name, about)| format!("  {name:<9} {about}\n"));
        let known = PossibleValuesParser::new(names.iter().map(|(name, _)| *name));
        let mut command = Self::command()
            .after_help(format!(
                "Names:\n{}\nADMA_* variables reach the library. Progress goes to stderr.",
                lines.collect::<String>()
            ))
            .mut_args(|arg| match arg.get_id() == "names" {
                true => arg.value_parser(known.clone()),
                false => arg,
            });
        let words = ["adma-bench".to_string()].into_iter().chain(given.clone());
        let mut options = Self::from_arg_matches(&command.try_get_matches_from_mut(words)?)?;
        let usual = if options.quick { 0.5 } else { 3.0 };
        options.seconds = options.cell_seconds.unwrap_or(usual);
        options.given = given;
        Ok(options)
    }

    /// The library under test; none: the shim arm is libc itself.
    pub fn library(&self) -> Option<&str> {
        self.lib.as_deref().filter(|lib| *lib != "none")
    }

    /// The other library to be preloaded.
    pub fn other_library(&self) -> Option<&str> {
        self.against.iter().find_map(|one| one.preload.as_deref())
    }

    /// The sizes of a table: powers of two, or what the user asked for.
    pub fn sizes(&self, from: usize, to: usize) -> Vec<usize> {
        let step = if self.quick { 2 } else { 1 };
        let powers = || (from.ilog2()..=to.ilog2()).step_by(step).map(|bits| 1 << bits).collect();
        self.sizes.clone().unwrap_or_else(powers)
    }

    pub fn sizes_or(&self, usual: &[usize]) -> Vec<usize> {
        self.sizes.clone().unwrap_or(usual.into())
    }
}

/// What people can have instead of the library under test.
#[derive(Clone)]
pub struct Alternative {
    /// Its name in keys of figures; of every library "against".
    pub name: &'static str,
    pub preload: Option<String>,
    /// What glibc reads from GLIBC_TUNABLES.
    tunables: Option<&'static str>,
}

impl Alternative {
    /// Returns the environment that it wants.
    pub fn knobs(&self) -> Vec<(&'static str, &'static str)> {
        self.tunables.map(|tunables| ("GLIBC_TUNABLES", tunables)).into_iter().collect()
    }
}

fn alternative(text: &str) -> Result<Alternative, String> {
    if let Some((name, tunables)) = TUNED_GLIBC.into_iter().find(|(name, _)| *name == text) {
        return Ok(Alternative { name, preload: None, tunables: Some(tunables) });
    }
    let path = std::fs::canonicalize(text).map_err(|error| {
        let names = TUNED_GLIBC.map(|(name, _)| name).join(", ");
        format!("{error}; want a library or one of {names}")
    })?;
    let preload = Some(path.to_string_lossy().into_owned());
    Ok(Alternative { name: "against", preload, tunables: None })
}

fn positive<T: FromStr + Default + PartialOrd>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number > T::default());
    number.ok_or("want a number above 0".into())
}

fn job_name(name: &str) -> Result<String, String> {
    let all = jobs::JOBS.iter().map(|job| job.name).chain(jobs::READS.iter().copied());
    let unknown = || format!("no such job; there are {}", all.collect::<Vec<_>>().join(", "));
    let known = jobs::known(name) || jobs::READS.contains(&name) || used::is_a_loop(name);
    known.then(|| name.into()).ok_or_else(unknown)
}

fn knobs(text: &str) -> Result<String, String> {
    let knob = |word: &str| word.split_once('=').is_some_and(|(name, _)| name.starts_with("ADMA_"));
    let good = text.split(' ').all(knob);
    good.then(|| text.into()).ok_or("want ADMA_NAME=VALUE, or several with spaces".into())
}

fn size(text: &str) -> Result<usize, String> {
    adma_shared::knobs::size(text).ok_or("want bytes, or a K, M or G suffix".into())
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn of(words: &[&str]) -> Result<Options, clap::Error> {
        let names = [("copy", ""), ("programs", ""), ("reads", "")];
        Options::try_from_args(&names, words.iter().map(|word| word.to_string()))
    }

    fn parse(words: &[&str]) -> Options {
        of(words).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn options_are_taken_as_given_and_the_last_of_several_counts() {
        let several = "ADMA_MIN_BYTES=64K ADMA_STORES=stream";
        let options = parse(&["programs", "--also", "ADMA_MIN_BYTES=1M", "--also", several]);
        assert_eq!(options.also, ["ADMA_MIN_BYTES=1M", several]);
        let options = parse(&["--jobs", "redis,numpy-copy", "--pairs", "9"]);
        assert_eq!(options.jobs.as_deref(), Some(&["redis".into(), "numpy-copy".into()][..]));
        assert_eq!(parse(&["reads", "--jobs", "np_load"]).jobs, Some(vec!["np_load".into()]));
        assert_eq!((options.pairs, parse(&["--quick"]).seconds), (Some(9), 0.5));
        let options = parse(&[
            "--lib", "a", "--sizes", "64M", "--sizes", "4K,1M", "--lib", "none", "--", "--x", "2",
        ]);
        assert_eq!((options.library(), options.rest.len()), (None, 2));
        assert_eq!(options.sizes, Some(vec![4096, 1 << 20]));
        assert_eq!(parse(&["--compare", "a", "b"]).compare.map_or(0, |folders| folders.len()), 2);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (option, wrong) in [
            ("--also", &["MIN_BYTES=1M", "ADMA_MIN_BYTES", "ADMA_STORES=stream and more", ""][..]),
            ("--jobs", &["redis,nothing", ""]),
            ("--pairs", &["0", "many"]),
            ("--sizes", &["4KB"]),
            ("--seconds", &["0"]),
            ("--against", &["/nowhere.so", "hugepages"]),
            ("--compare", &["one"]),
            ("copy", &["nothing"]),
        ] {
            for value in wrong {
                assert!(of(&[option, value]).is_err(), "{option} {value}");
            }
        }
    }
}
