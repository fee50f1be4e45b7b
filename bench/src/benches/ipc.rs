//! Messages between two processes: ours against what else a program could use.
//!
//! Every way plays ping-pong with the same process and the same buffers, in turns of random
//! order; what is shown is half a round trip. For Open MPI see `mpi`.

use crate::channels::{self, Channel, Game, Peer};
use crate::machine;
use crate::measure::{Rng, Samples};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as name_of, spread, time};
use crate::spawn;
use crate::turns::{Budget, ratios};

const LARGE: [usize; 6] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
const SMALL: [usize; 4] = [64, 256, KIB, 4 * KIB];
/// Where one way ends and another begins.
const MIDDLE: [usize; 8] = [4, 8, 16, 32, 64, 128, 1024, 16 << 10];
const ONE_WAY: [usize; 8] = [64, KIB, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];

const RIVALS: [Channel; 4] =
    [Channel::Pipe, Channel::Socket, Channel::SharedMemory, Channel::ProcessVm];

pub fn run(options: &Options) {
    let Some(lib) = options.library() else { return println!("skipped: no library\n") };
    let mut peer = Peer::start(lib, None);
    println!("adma: {}\n", peer.about());
    large(options, &mut peer);
    if options.sizes.is_none() {
        small(options, &mut peer);
        used(options, &mut peer);
    }
    one_way(options, &mut peer);
    binding(options);
}

/// Nanoseconds of half a round trip, channel by channel and round by round.
fn play(
    options: &Options,
    peer: &mut Peer,
    game: Game,
    channels: &[Channel],
    size: usize,
) -> Vec<Vec<f64>> {
    let rounds = (32 * MIB / size).clamp(2, if size <= 4096 { 500 } else { 32 });
    let mut times = vec![Vec::new(); channels.len()];
    let (mut rng, mut order) = (Rng::new(), (0..times.len()).collect::<Vec<_>>());
    let budget = Budget::new(options.seconds);
    let mut turns = 0;
    while turns < 4 || (budget.used() < 1.0 && turns < 400) {
        rng.shuffle(&mut order);
        for &index in &order {
            let taken = peer.play(game, channels[index], size, rounds);
            // The first turn of each way touches pages and warms.
            if turns > 0 {
                times[index].push(taken);
            }
        }
        turns += 1;
    }
    times
}

fn median(times: &[f64]) -> f64 {
    times.iter().copied().collect::<Samples>().median()
}

/// The fastest of the rivals, by its place among the channels.
fn best(channels: &[Channel], times: &[Vec<f64>]) -> usize {
    let rivals = (0..channels.len()).filter(|&index| RIVALS.contains(&channels[index]));
    rivals.min_by(|a, b| median(&times[*a]).total_cmp(&median(&times[*b]))).unwrap_or(0)
}

fn head(channels: &[Channel], more: &[&str]) -> Table {
    let names = channels.iter().map(|channel| channel.name());
    Table::new(["size"].into_iter().chain(names).chain(more.iter().copied()))
}

fn large(options: &Options, peer: &mut Peer) {
    let ours = [Channel::Adma, Channel::Blocks];
    let channels = [&ours[..], &RIVALS].concat();
    let mut table = head(&channels, &[]);
    let mut gains = Table::of("size|best other|adma x best|adma_alloc x best");
    for size in options.sizes_or(&LARGE) {
        let name = name_of(size);
        progress(&format!("ipc: {name}"));
        let times = play(options, peer, Game::PingPong, &channels, size);
        let best = best(&channels, &times);
        let gain = |other: usize, ours: usize, key: &str| {
            let gain = ratios(&times[other], &times[ours]);
            spread(&format!("ipc.{name}.{key}"), &gain);
            ratio_or_none(gain.median())
        };
        for (channel, times) in channels.iter().zip(&times) {
            figure(&format!("ipc.us.{name}.{}", channel.key()), median(times) / 1e3);
        }
        table.row([name.clone()].into_iter().chain(times.iter().map(|t| time_or_none(median(t)))));
        gains.row([
            name.clone(),
            channels[best].name().into(),
            gain(best, 0, "best"),
            gain(best, 1, "blocks"),
        ]);
    }
    table.print();
    gains.print();
    println!("adma: any memory; adma_alloc: buffers of that, which both processes map\n");
}

fn small(options: &Options, peer: &mut Peer) {
    let channels = [Channel::Adma, Channel::Futex, Channel::Socket];
    let mut table = head(&channels, &["adma / futex"]);
    for size in SMALL {
        let name = name_of(size);
        progress(&format!("ipc: {name}"));
        let times = play(options, peer, Game::PingPong, &channels, size);
        let ratio = ratios(&times[0], &times[1]);
        spread(&format!("ipc.{name}.small"), &ratio);
        figure(&format!("ipc.us.{name}.adma"), median(&times[0]) / 1e3);
        let mut row = vec![name];
        row.extend(times.iter().map(|times| time_or_none(median(times))));
        row.push(ratio_or_none(ratio.median()));
        table.row(row);
    }
    table.print();
    println!(
        "half a round trip; futex: a flag and a buffer in shared memory, spinning for {} us\n\
         before sleeping, as adma does\n",
        channels::SPIN_NS / 1000
    );
}

/// Bytes that the sender has just written and the receiver reads.
fn used(options: &Options, peer: &mut Peer) {
    let channels = [&[Channel::Adma, Channel::Blocks][..], &RIVALS].concat();
    let mut table = head(&channels, &["adma x best", "adma_alloc x best"]);
    for size in MIDDLE.map(|kib| kib * KIB) {
        let name = name_of(size);
        progress(&format!("ipc, used: {name}"));
        let times = play(options, peer, Game::Used, &channels, size);
        let best = best(&channels, &times);
        let gains = [0, 1].map(|ours| ratios(&times[best], &times[ours]));
        spread(&format!("ipc.{name}.used"), &gains[0]);
        spread(&format!("ipc.{name}.used_blocks"), &gains[1]);
        let mut row = vec![name];
        row.extend(times[..channels.len()].iter().map(|times| time_or_none(median(times))));
        row.extend(gains.map(|gain| ratio_or_none(gain.median())));
        table.row(row);
    }
    table.print();
    println!("half a round trip in which messages are written before and read after\n");
}

fn one_way(options: &Options, peer: &mut Peer) {
    let channels =
        [Channel::Adma, Channel::Blocks, Channel::Pipe, Channel::Socket, Channel::SharedMemory];
    let mut table = head(&channels, &["adma x best"]);
    for size in options.sizes_or(&ONE_WAY) {
        let name = name_of(size);
        progress(&format!("ipc, one way: {name}"));
        let times = play(options, peer, Game::Stream, &channels, size);
        let mut row = vec![name.clone()];
        for (channel, times) in channels.iter().zip(&times) {
            let speed = size as f64 * 1e3 / median(times);
            figure(&format!("ipc.oneway.{name}.{}", channel.key()), speed);
            row.push(format!("{speed:.0}"));
        }
        let gain = ratios(&times[best(&channels, &times)], &times[0]);
        spread(&format!("ipc.{name}.oneway"), &gain);
        row.push(ratio_or_none(gain.median()));
        table.row(row);
    }
    table.print();
    println!("MB/s, one way\n");
}

/// Both processes on CPUs that share a core, a cache, a package, or nothing.
fn binding(options: &Options) {
    println!("1M by processes bound to two CPUs, by what these share; x: adma over the best other");
    let levels = machine::pairs_by_level();
    if levels.is_empty() {
        println!("  one CPU: nothing to bind to");
    }
    for (level, [one, other]) in levels {
        progress(&format!("ipc, binding: {level}"));
        let mut child = spawn::itself("ipc-bound", None);
        let (one, other) = (one.to_string(), other.to_string());
        child.args(["--lib", options.library().unwrap_or("none"), "--seconds"]);
        child.arg(options.seconds.to_string()).args(["--", &level, &one, &other]);
        if !child.status().is_ok_and(|status| status.success()) {
            println!("  {level}: failed");
        }
    }
    println!();
}

/// The process of one binding.
pub fn bound(options: &Options) {
    let [level, one, other] = options.rest.as_slice() else { std::process::exit(2) };
    let (Ok(one), Ok(other)) = (one.parse(), other.parse()) else { std::process::exit(2) };
    let Some(lib) = options.library() else { std::process::exit(2) };
    let mut peer = Peer::start(lib, Some([one, other]));
    let channels = [&[Channel::Adma, Channel::Blocks][..], &RIVALS].concat();
    let times = play(options, &mut peer, Game::PingPong, &channels, MIB);
    let best = best(&channels, &times);
    let gain = ratios(&times[best], &times[0]);
    spread(&format!("ipc.binding.{level}"), &gain);
    println!(
        "  {level:<12} CPUs {one} and {other}: adma {}, {} {}, x {:.2}",
        time(median(&times[0])),
        channels[best].name(),
        time(median(&times[best])),
        gain.median()
    );
}

fn time_or_none(ns: f64) -> String {
    if ns.is_finite() { time(ns) } else { "-".into() }
}

fn ratio_or_none(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { "-".into() }
}
