//! Messages between two processes: ours against what else a program could use.
//!
//! Every way plays ping-pong with the same process and the same buffers, in turns of random
//! order; what is shown is half a round trip. Open MPI has two processes of its own, which
//! sleep while the others have their turn.

use crate::channels::{self, Channel, Game, Peer, Rights};
use crate::measure::{Rng, Samples};
use crate::mpi::Mpi;
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress, size as name_of, time};
use crate::turns::{Budget, ratios};

const LARGE: [usize; 6] = [64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
const SMALL: [usize; 4] = [64, 256, 1 << 10, 4 << 10];
/// Where one way ends and another begins.
const MIDDLE: [usize; 12] = [2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Processes that may not reach each other's memory: messages are streamed.
const STRANGERS: [(&str, Rights); 1] = [("untraced", Rights::Untraced)];

pub fn run(options: &Options) {
    let lib = options.lib.as_deref().filter(|lib| *lib != "none");
    let Some(lib) = lib else {
        println!("skipped: no library\n");
        return;
    };
    let mpi = Mpi::start();
    if let Err(why) = &mpi {
        println!("no figures for Open MPI: {why}\n");
    }
    let mut mpi = mpi.ok();
    let Some(mut peer) = Peer::start(lib, Rights::Usual) else { return };
    let strangers = STRANGERS.map(|(_, way)| Peer::start(lib, way));
    println!("adma: {}\n", peer.about());
    large(options, &mut peer, &mut mpi);
    rights(options, &mut peer, strangers);
    compare(options, &mut peer);
    if options.sizes.is_some() {
        return;
    }
    small(options, &mut peer, &mut mpi);
    middle(options, &mut peer, Game::Used, "used");
    middle(options, &mut peer, Game::PingPong, "untouched");
    stream(options, &mut peer);
}

/// Nanoseconds of half a round trip, channel by channel and round by round.
fn play(
    options: &Options,
    peer: &mut Peer,
    mpi: &mut Option<Mpi>,
    game: Game,
    channels: &[Channel],
    size: usize,
) -> Vec<Vec<f64>> {
    let rounds = (32 * MIB / size).clamp(2, if size <= 4096 { 500 } else { 32 });
    let mut times = vec![Vec::new(); channels.len() + 1];
    let (mut rng, mut order) = (Rng::new(), (0..times.len()).collect::<Vec<_>>());
    let budget = Budget::new(options.seconds);
    let mut turns = 0;
    while turns < 4 || (budget.used() < 1.0 && turns < 400) {
        rng.shuffle(&mut order);
        for &index in &order {
            let taken = match channels.get(index) {
                Some(channel) => Some(peer.play(game, *channel, size, rounds)),
                None => mpi.as_mut().and_then(|mpi| mpi.play(size, rounds)),
            };
            // The first turn of everybody touches pages and warms.
            if let Some(taken) = taken.filter(|_| turns > 0) {
                times[index].push(taken);
            }
        }
        turns += 1;
    }
    times
}

fn large(options: &Options, peer: &mut Peer, mpi: &mut Option<Mpi>) {
    let channels = [
        Channel::Adma,
        Channel::Blocks,
        Channel::Pipe,
        Channel::Socket,
        Channel::SharedMemory,
        Channel::ProcessVm,
        Channel::Halves,
    ];
    // The ceiling is not a rival.
    let (rivals, halves) = (2..6, 6);
    let mut head = vec!["size".to_string()];
    head.extend(channels.iter().map(|channel| channel.name().into()));
    head.push("Open MPI".into());
    let mut table = Table::new(head);
    let mut gains = Table::new([
        "size",
        "best other",
        "adma x best",
        "x Open MPI",
        "of halves",
        "adma_alloc x best",
        "x Open MPI",
    ]);
    for size in options.sizes.clone().unwrap_or(LARGE.into()) {
        let name = name_of(size);
        progress(&format!("ipc: {name}"));
        let times = play(options, peer, mpi, Game::PingPong, &channels, size);
        let median = |times: &Vec<f64>| times.iter().copied().collect::<Samples>().median();
        let medians: Vec<f64> = times.iter().map(median).collect();
        let best = rivals.clone().min_by(|a, b| medians[*a].total_cmp(&medians[*b]));
        let best = best.unwrap_or(rivals.start);
        let gain = |of: usize, to: usize| ratios(&times[of], &times[to]).median();
        let [any, any_to_mpi] = [best, channels.len()].map(|other| gain(other, 0));
        let [blocks, blocks_to_mpi] = [best, channels.len()].map(|other| gain(other, 1));
        figure(&format!("ipc.{name}.best"), any);
        figure(&format!("ipc.{name}.mpi"), any_to_mpi);
        figure(&format!("ipc.{name}.blocks"), blocks);
        figure(&format!("ipc.{name}.blocks_mpi"), blocks_to_mpi);
        let mut row = vec![name.clone()];
        row.extend(medians.iter().map(|&median| time_or_none(median)));
        table.row(row);
        let mut row = vec![name, channels[best].name().into()];
        let all = [any, any_to_mpi, gain(halves, 0), blocks, blocks_to_mpi];
        row.extend(all.map(ratio_or_none));
        gains.row(row);
    }
    table.print();
    gains.print();
    println!(
        "adma: any memory; adma_alloc: buffers of that, which both processes map.\n\
         two halves: each process copies one by process_vm, spinning, with nothing around it:\n\
         the ceiling for any memory. of halves: adma over that\n"
    );
}

/// Buffers of `adma_alloc` where neither process may reach the other's memory.
fn rights(options: &Options, peer: &mut Peer, mut strangers: [Option<Peer>; 1]) {
    let mut peers = vec![(None, peer)];
    for ((name, _), stranger) in STRANGERS.into_iter().zip(&mut strangers) {
        match stranger {
            Some(stranger) => {
                println!("{name}: {}", stranger.about());
                peers.push((Some(name), stranger));
            }
            None => println!("{name}: not to be had here"),
        }
    }
    for (game, what) in [(Game::PingPong, ""), (Game::Used, ".used")] {
        rights_in(options, &mut peers, game, what);
    }
}

fn rights_in(options: &Options, peers: &mut [(Option<&str>, &mut Peer)], game: Game, what: &str) {
    let mut head = vec!["size".to_string(), "adma_alloc".into()];
    head.extend(
        peers
            .iter()
            .filter_map(|(name, _)| *name)
            .flat_map(|name| [name.to_string(), "x adma_alloc".into()]),
    );
    let mut table = Table::new(head);
    let sizes = options.sizes.clone().unwrap_or(vec![64 << 10, MIB, 16 * MIB]);
    for size in sizes {
        progress(&format!("ipc, rights{what}: {}", name_of(size)));
        let rounds = (32 * MIB / size).clamp(2, 32);
        let mut times = vec![Vec::new(); peers.len()];
        let (mut rng, mut order) = (Rng::new(), (0..peers.len()).collect::<Vec<_>>());
        let budget = Budget::new(options.seconds);
        for turn in 0..400 {
            if turn >= 4 && budget.used() >= 1.0 {
                break;
            }
            rng.shuffle(&mut order);
            for &index in &order {
                let taken = peers[index].1.play(game, Channel::Blocks, size, rounds);
                if turn > 0 {
                    times[index].push(taken);
                }
            }
        }
        let mut row = vec![name_of(size)];
        for (index, (name, _)) in peers.iter().enumerate() {
            row.push(time_or_none(times[index].iter().copied().collect::<Samples>().median()));
            if let Some(name) = name {
                let ratio = ratios(&times[0], &times[index]).median();
                figure(&format!("ipc.{}.{name}{what}", name_of(size)), ratio);
                row.push(ratio_or_none(ratio));
            }
        }
        table.row(row);
    }
    table.print();
    println!(
        "buffers of adma_alloc, {}, where process_vm is not allowed. untraced:\n\
         neither process lets itself be traced, as under Yama 1, and messages are streamed\n",
        match game {
            Game::Used => "written before and read after",
            _ => "neither written nor read",
        }
    );
}

fn small(options: &Options, peer: &mut Peer, mpi: &mut Option<Mpi>) {
    let channels = [Channel::Adma, Channel::Futex, Channel::FutexOnly, Channel::Socket];
    let mut table = Table::new([
        "size",
        "adma",
        "futex",
        "futex, no spinning",
        "socket",
        "Open MPI",
        "adma / futex",
    ]);
    for size in SMALL {
        let name = name_of(size);
        progress(&format!("ipc: {name}"));
        let times = play(options, peer, mpi, Game::PingPong, &channels, size);
        let ratio = ratios(&times[0], &times[1]).median();
        figure(&format!("ipc.{name}.small"), ratio);
        let mut row = vec![name];
        row.extend(
            times
                .iter()
                .map(|times| time_or_none(times.iter().copied().collect::<Samples>().median())),
        );
        row.push(ratio_or_none(ratio));
        table.row(row);
    }
    table.print();
    println!(
        "half a round trip; futex: a flag and a buffer in shared memory, spinning for {} us\n\
         before sleeping, as adma does\n",
        channels::SPIN_NS / 1000
    );
}

/// Around the borders: with bytes that somebody has made and somebody wants, and without.
fn middle(options: &Options, peer: &mut Peer, game: Game, what: &str) {
    let channels = [
        Channel::Adma,
        Channel::Blocks,
        Channel::Pipe,
        Channel::Socket,
        Channel::SharedMemory,
        Channel::ProcessVm,
    ];
    let mut head = vec!["size".to_string()];
    head.extend(channels.iter().map(|channel| channel.name().into()));
    head.extend(["adma x best".into(), "adma_alloc x best".into()]);
    let mut table = Table::new(head);
    let large = if game == Game::Used { &[1024, 16 << 10][..] } else { &[] };
    for size in MIDDLE.iter().chain(large).map(|kib| kib << 10) {
        let name = name_of(size);
        progress(&format!("ipc, {what}: {name}"));
        let times = play(options, peer, &mut None, game, &channels, size);
        let median = |times: &Vec<f64>| times.iter().copied().collect::<Samples>().median();
        let medians: Vec<f64> = times[..channels.len()].iter().map(median).collect();
        let best = (2..channels.len()).min_by(|a, b| medians[*a].total_cmp(&medians[*b]));
        let gains = [0, 1].map(|ours| ratios(&times[best.unwrap_or(2)], &times[ours]).median());
        figure(&format!("ipc.{name}.{what}"), gains[0]);
        figure(&format!("ipc.{name}.{what}_blocks"), gains[1]);
        let mut row = vec![name];
        row.extend(medians.iter().map(|&median| time_or_none(median)));
        row.extend(gains.map(ratio_or_none));
        table.row(row);
    }
    table.print();
    println!(
        "half a round trip in which messages are {}\n",
        match game {
            Game::Used => "written before and read after",
            _ => "neither written nor read",
        }
    );
}

/// Against another library, in the same run: BENCH_BEFORE=path.
fn compare(options: &Options, peer: &mut Peer) {
    if !peer.has_before() {
        return;
    }
    let channels = [Channel::Adma, Channel::Before, Channel::Blocks, Channel::BeforeBlocks];
    let mut table = Table::new([
        "size",
        "used: adma",
        "gain",
        "adma_alloc",
        "gain",
        "untouched: adma",
        "gain",
        "adma_alloc",
        "gain",
        "one way: adma",
        "gain",
        "adma_alloc",
        "gain",
    ]);
    let sizes = [64, 1 << 10].into_iter().chain(MIDDLE.map(|kib| kib << 10));
    let sizes = sizes.chain(LARGE[1..].iter().copied()).collect();
    for size in options.sizes.clone().unwrap_or(sizes) {
        progress(&format!("ipc, before and after: {}", name_of(size)));
        let mut row = vec![name_of(size)];
        for game in [Game::Used, Game::PingPong, Game::Stream] {
            let times = play(options, peer, &mut None, game, &channels, size);
            for now in [0, 2] {
                row.push(time_or_none(times[now].iter().copied().collect::<Samples>().median()));
                row.push(ratio_or_none(ratios(&times[now + 1], &times[now]).median()));
            }
        }
        table.row(row);
    }
    table.print();
    println!("gain: the time of the library BENCH_BEFORE over ours, in the same turns\n");
}

fn stream(options: &Options, peer: &mut Peer) {
    let channels = [Channel::Adma, Channel::Pipe, Channel::Socket, Channel::SharedMemory];
    let mut head = vec!["size".to_string()];
    head.extend(channels.iter().map(|channel| channel.name().into()));
    let mut table = Table::new(head);
    for size in [64, 1 << 10, 4 << 10, 32 << 10, 256 << 10] {
        let name = name_of(size);
        progress(&format!("ipc, one way: {name}"));
        let times = play(options, peer, &mut None, Game::Stream, &channels, size);
        let mut row = vec![name.clone()];
        for (index, times) in times[..channels.len()].iter().enumerate() {
            let rate = 1e9 / times.iter().copied().collect::<Samples>().median();
            if index == 0 {
                figure(&format!("ipc.{name}.messages_per_second"), rate);
            }
            row.push(format!("{:.0}", rate));
        }
        table.row(row);
    }
    table.print();
    println!("messages per second, one way\n");
}

fn time_or_none(ns: f64) -> String {
    if ns.is_finite() { time(ns) } else { "-".into() }
}

fn ratio_or_none(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { "-".into() }
}
