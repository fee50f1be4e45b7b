//! Messages between two processes: ours against the alternatives.
//!
//! Every way plays ping-pong with one process and its buffers, in turns of random order; figures
//! are half a round trip. For Open MPI see `mpi`.

use crate::channels::{self, Channel, Game, Peer};
use crate::machine;
use crate::measure::{median, shuffled};
use crate::options::{KIB, MIB, Options};
use crate::out::{self, Table, figure, progress, size as name_of, spread, time};
use crate::spawn;
use crate::turns::{Budget, ratios};

const LARGE: [usize; 6] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
const SMALL: [usize; 4] = [64, 256, KIB, 4 * KIB];
/// Sizes in KiB at which one way ends and another begins.
const MIDDLE: [usize; 8] = [4, 8, 16, 32, 64, 128, 1024, 16 << 10];
const ONE_WAY: [usize; 8] = [64, KIB, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];

/// Two of ours, then the others.
const CHANNELS: [Channel; 6] = [
    Channel::Adma,
    Channel::Blocks,
    Channel::Pipe,
    Channel::Socket,
    Channel::SharedMemory,
    Channel::ProcessVm,
];

pub fn run(options: &Options) {
    let Some(lib) = options.library() else { return println!("skipped: no library\n") };
    let mut peer = Peer::start(lib, None);
    println!("adma: {}\n", peer.about);
    let sizes = options.sizes_or(&LARGE);
    round_trips(options, &mut peer, Game::PingPong, &sizes, ["best", "blocks"]);
    println!("adma: any memory; adma_alloc: buffers of that, which both processes map\n");
    if options.sizes.is_none() {
        small(options, &mut peer);
        let sizes = MIDDLE.map(|kib| kib * KIB);
        round_trips(options, &mut peer, Game::Used, &sizes, ["used", "used_blocks"]);
        println!("half a round trip in which messages are written before and read after\n");
    }
    one_way(options, &mut peer);
    binding(options);
}

/// Returns nanoseconds of half a round trip, channel by channel and round by round.
fn play(
    options: &Options,
    peer: &mut Peer,
    game: Game,
    channels: &[Channel],
    size: usize,
) -> Vec<Vec<f64>> {
    progress(&format!("ipc: {}", name_of(size)));
    let rounds = (32 * MIB / size).clamp(2, if size <= 4096 { 500 } else { 32 });
    let mut times = vec![Vec::new(); channels.len()];
    let budget = Budget::new(options.seconds);
    let mut turns = 0;
    while turns < 4 || (budget.used() < 1.0 && turns < 400) {
        for index in shuffled(channels.len()) {
            let taken = peer.play(game, channels[index], size, rounds);
            // The first turn of each way touches pages and warms up.
            if turns > 0 {
                times[index].push(taken);
            }
        }
        turns += 1;
    }
    times
}

/// Returns the fastest of the others, by its index in `CHANNELS`.
fn best(times: &[Vec<f64>]) -> usize {
    let by_median = |a: &usize, b: &usize| median(&times[*a]).total_cmp(&median(&times[*b]));
    (2..times.len()).min_by(by_median).unwrap_or(0)
}

/// Records how many times faster one channel was than another, and returns it as text.
fn gain(key: &str, other: &[f64], ours: &[f64]) -> String {
    let gain = ratios(other, ours);
    spread(key, &gain);
    out::median(&gain)
}

fn head(channels: &[Channel], more: &[&str]) -> Table {
    let names = channels.iter().map(|channel| channel.name());
    Table::new(["size"].into_iter().chain(names).chain(more.iter().copied()))
}

/// Measures all channels; `keys` are those of the gains of adma and of adma_alloc.
fn round_trips(options: &Options, peer: &mut Peer, game: Game, sizes: &[usize], keys: [&str; 2]) {
    let mut table = head(&CHANNELS, &[]);
    let mut gains = Table::of("size|best other|adma x best|adma_alloc x best");
    for &size in sizes {
        let name = name_of(size);
        let times = play(options, peer, game, &CHANNELS, size);
        let best = best(&times);
        let mut row = vec![name.clone(), CHANNELS[best].name().into()];
        for (key, ours) in keys.iter().zip(&times) {
            row.push(gain(&format!("ipc.{name}.{key}"), &times[best], ours));
        }
        gains.row(row);
        if game == Game::PingPong {
            for (channel, times) in CHANNELS.iter().zip(&times) {
                figure(&format!("ipc.us.{name}.{}", channel.key()), median(times) / 1e3);
            }
        }
        table.row([name].into_iter().chain(times.iter().map(|times| time(median(times)))));
    }
    table.print();
    gains.print();
}

fn small(options: &Options, peer: &mut Peer) {
    let channels = [Channel::Adma, Channel::Futex, Channel::Socket];
    let mut table = head(&channels, &["adma / futex"]);
    for size in SMALL {
        let name = name_of(size);
        let times = play(options, peer, Game::PingPong, &channels, size);
        figure(&format!("ipc.us.{name}.adma"), median(&times[0]) / 1e3);
        let ratio = gain(&format!("ipc.{name}.small"), &times[0], &times[1]);
        let cells = times.iter().map(|times| time(median(times)));
        table.row([name].into_iter().chain(cells).chain([ratio]));
    }
    table.print();
    println!(
        "half a round trip; futex: a flag and a buffer in shared memory, spinning for {} us\n\
         before sleeping, as adma does\n",
        channels::SPIN_NS / 1000
    );
}

fn one_way(options: &Options, peer: &mut Peer) {
    let channels = &CHANNELS[..5];
    let mut table = head(channels, &["adma x best"]);
    for size in options.sizes_or(&ONE_WAY) {
        let name = name_of(size);
        let times = play(options, peer, Game::Stream, channels, size);
        let mut row = vec![name.clone()];
        for (channel, times) in channels.iter().zip(&times) {
            let speed = size as f64 * 1e3 / median(times);
            figure(&format!("ipc.oneway.{name}.{}", channel.key()), speed);
            row.push(format!("{speed:.0}"));
        }
        row.push(gain(&format!("ipc.{name}.oneway"), &times[best(&times)], &times[0]));
        table.row(row);
    }
    table.print();
    println!("MB/s, one way\n");
}

/// Measures processes on CPUs that share a core, a cache, a package, or nothing.
fn binding(options: &Options) {
    println!("1M by processes bound to two CPUs, by what these share; x: adma over the best other");
    let levels = machine::pairs_by_level();
    if levels.is_empty() {
        println!("  one CPU: nothing to bind to");
    }
    for (level, [one, other]) in levels {
        let mut child = spawn::again("ipc-bound", None, options);
        child.args(["--", &level, &one.to_string(), &other.to_string()]);
        if !child.status().is_ok_and(|status| status.success()) {
            println!("  {level}: failed");
        }
    }
    println!();
}

/// Runs in the process of one binding.
pub fn bound(options: &Options) {
    let [level, one, other] = options.rest.as_slice() else { std::process::exit(2) };
    let (Ok(one), Ok(other)) = (one.parse(), other.parse()) else { std::process::exit(2) };
    let Some(lib) = options.library() else { std::process::exit(2) };
    let mut peer = Peer::start(lib, Some([one, other]));
    let times = play(options, &mut peer, Game::PingPong, &CHANNELS, MIB);
    let best = best(&times);
    println!(
        "  {level:<12} CPUs {one} and {other}: adma {}, {} {}, x {}",
        time(median(&times[0])),
        CHANNELS[best].name(),
        time(median(&times[best])),
        gain(&format!("ipc.binding.{level}"), &times[best], &times[0])
    );
}
