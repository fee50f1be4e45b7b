//! Faults that are ordered from the emulated device, and its own counters.
//!
//! The device has an area in its configuration space for this (see tests/vm/README.md).
//! A channel of the module need not be the channel of that number of the function: `place`
//! finds out by a small copy.

use crate::device::{Device, Piece};
use crate::memory::{PAGE, Region};
use crate::orders;
pub use crate::orders::Kind;
use crate::verdict::{Context, Outcome};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const AREA: u64 = orders::AREA as u64;
/// The first word of the area: a vendor's capability, the last one, of 64 bytes.
const MARK: u32 = 0x0140_0009;
const ORDER: u64 = AREA + orders::ORDER as u64;
const AFTER: u64 = AREA + orders::AFTER as u64;
const TIMES: u64 = AREA + orders::TIMES as u64;
const VALUE: u64 = AREA + orders::VALUE as u64;
const SELECT: u64 = AREA + orders::SELECT as u64;
const COUNTERS: u64 = AREA + orders::COUNTERS as u64;

const ALL_CHANNELS: u32 = 0xff00;
const MSIX: u8 = 0x11;

/// A fault that begins after `after` good descriptors, for `times` of them (0: for ever).
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub after: u32,
    pub times: u32,
    pub value: u32,
}

impl Fault {
    pub fn once(kind: Kind) -> Fault {
        Fault { kind, after: 0, times: 1, value: 0 }
    }

    pub fn always(kind: Kind) -> Fault {
        Fault { times: 0, ..Fault::once(kind) }
    }

    pub fn value(self, value: u32) -> Fault {
        Fault { value, ..self }
    }

    pub fn after(self, after: u32) -> Fault {
        Fault { after, ..self }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    pub descriptors: u32,
    pub bytes: u64,
    pub interrupts: u32,
    pub resets: u32,
    pub faults: u32,
}

/// A PCI function of the engine.
pub struct Function {
    name: String,
    config: File,
    channels: u32,
}

impl Function {
    /// Returns a name like 0000:00:04.0.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn is_dsa(&self) -> io::Result<bool> {
        Ok(self.read(0)? >> 16 == 0x0b25)
    }

    /// Returns its NUMA node; -1: none, as on every kernel without NUMA.
    fn node(&self) -> Outcome<i32> {
        let path = format!("/sys/bus/pci/devices/{}/numa_node", self.name);
        if !fs::exists(&path).context(&path)? {
            return Ok(-1);
        }
        let text = fs::read_to_string(&path).context(&path)?;
        text.trim().parse().map_err(|_| format!("{path}: {text:?}").into())
    }

    fn read(&self, at: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.config.read_exact_at(&mut bytes, at)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&self, at: u64, word: u32) -> io::Result<()> {
        self.config.write_all_at(&word.to_le_bytes(), at)
    }

    fn open(name: String) -> io::Result<Option<Function>> {
        let path = format!("/sys/bus/pci/devices/{name}/config");
        let config = File::options().read(true).write(true).open(path)?;
        let mut function = Function { name, config, channels: 0 };
        if function.read(0)? & 0xffff != 0x8086 || function.read(AREA).ok() != Some(MARK) {
            return Ok(None);
        }
        // One interrupt for each channel, and one more for a DSA: the size of the table tells.
        let mut at = u64::from(function.read(0x34)? as u8);
        while at != 0 {
            let word = function.read(at)?;
            if word as u8 == MSIX {
                function.channels = (word >> 16 & 0x7ff) + u32::from(!function.is_dsa()?);
            }
            at = u64::from((word >> 8) as u8);
        }
        Ok(Some(function))
    }
}

/// Returns whether the channels are queues of a DSA, which keep no order.
pub fn is_dsa() -> bool {
    std::env::var("GUEST_PROVIDER").as_deref() == Ok("dsa")
}

/// Returns the functions of the engine; skipped where there is no such device.
pub fn functions() -> Outcome<Vec<Function>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        found.extend(Function::open(name.clone()).context(name)?);
    }
    if found.is_empty() {
        skip!("no device here takes orders for faults");
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Number of a function and of a channel in it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    function: usize,
    channel: u32,
}

/// The device under fault injection; repaired at the end.
pub struct Bench {
    functions: Vec<Function>,
}

/// Checks that all channels have copied about as much while `run` ran, to a tenth, as the device
/// counts it. With several nodes, the channels of one may have copied everything.
pub fn expect_even_bytes(run: impl FnOnce() -> Outcome) -> Outcome {
    let bench = Bench::new()?;
    let device = Device::open()?;
    let places = bench.find_channels(&device)?;
    let bytes = || -> Outcome<Vec<u64>> {
        places.iter().map(|&place| Ok(bench.counters(place)?.bytes)).collect()
    };
    let before = bytes()?;
    run()?;
    let moved: Vec<u64> =
        bytes()?.iter().zip(&before).map(|(after, before)| after - before).collect();
    println!("bytes by channel: {moved:?}");
    let nodes = bench.bytes_by_node()?.len();
    let moved: Vec<u64> = moved.into_iter().filter(|&bytes| bytes > 0).collect();
    ensure!([1, nodes].map(|n| places.len() / n).contains(&moved.len()), "at work: {moved:?}");
    let (least, most) = (*moved.iter().min().unwrap_or(&0), *moved.iter().max().unwrap_or(&0));
    ensure!(most - least < most / 10, "bytes by channel: {moved:?}");
    Ok(())
}

impl Bench {
    pub fn new() -> Outcome<Bench> {
        let bench = Bench { functions: functions()? };
        bench.clear()?;
        Ok(bench)
    }

    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let all = self.functions.iter().enumerate();
        all.flat_map(|(function, found)| {
            (0..found.channels).map(move |channel| Place { function, channel })
        })
    }

    pub fn counters(&self, place: Place) -> Outcome<Counters> {
        let function = &self.functions[place.function];
        function.write(SELECT, place.channel)?;
        let mut words = [0; 7];
        for (at, word) in (COUNTERS..).step_by(4).zip(&mut words) {
            *word = function.read(at)?;
        }
        let [descriptors, low, high, _null, interrupts, resets, faults] = words;
        let bytes = u64::from(high) << 32 | u64::from(low);
        Ok(Counters { descriptors, bytes, interrupts, resets, faults })
    }

    /// Returns the number of all channels, whether the module holds them or not.
    pub fn count(&self) -> usize {
        self.places().count()
    }

    /// Returns the bytes copied by the channels of each NUMA node.
    pub fn bytes_by_node(&self) -> Outcome<BTreeMap<i32, u64>> {
        let mut bytes = BTreeMap::new();
        for place in self.places() {
            let node = self.functions[place.function].node()?;
            *bytes.entry(node).or_default() += self.counters(place)?.bytes;
        }
        Ok(bytes)
    }

    /// Returns the number of faults that took effect, on all channels.
    pub fn struck(&self) -> Outcome<u32> {
        self.places().map(|place| Ok(self.counters(place)?.faults)).sum()
    }

    /// Returns the interrupts of all channels.
    pub fn interrupts(&self) -> Outcome<u64> {
        self.places().map(|place| Ok(u64::from(self.counters(place)?.interrupts))).sum()
    }

    fn order(&self, function: &Function, channels: u32, fault: Fault) -> Outcome {
        function.write(AFTER, fault.after)?;
        function.write(TIMES, fault.times)?;
        function.write(VALUE, fault.value)?;
        function.write(ORDER, fault.kind as u32 | channels).context("ordering a fault")
    }

    pub fn arm(&self, place: Place, fault: Fault) -> Outcome {
        self.order(&self.functions[place.function], 0x100 << place.channel, fault)
    }

    pub fn arm_all(&self, fault: Fault) -> Outcome {
        self.functions.iter().try_for_each(|function| self.order(function, ALL_CHANNELS, fault))
    }

    /// Slows every channel down, so that a request is in flight for a while, but no more than the
    /// driver's timer allows. With few channels each has more to do, and less time for it.
    pub fn slow_down(&self) -> Outcome {
        let channels = self.places().count() as u32;
        self.arm_all(Fault::always(Kind::Slow).value(7500 * channels.min(4)))
    }

    /// Like `slow_down`, for work that is all on one channel.
    pub fn slow_down_one(&self) -> Outcome {
        self.arm_all(Fault::always(Kind::Slow).value(30_000))
    }

    pub fn clear(&self) -> Outcome {
        for function in &self.functions {
            function.write(ORDER, ALL_CHANNELS).context("clearing faults")?;
        }
        Ok(())
    }

    /// Returns the places of the module's channels, in order. The device must be healthy and no
    /// other copy in flight.
    pub fn find_channels(&self, device: &Device) -> Outcome<Vec<Place>> {
        let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
        let bytes = || -> Outcome<Vec<(Place, u64)>> {
            self.places().map(|place| Ok((place, self.counters(place)?.bytes))).collect()
        };
        let mut found = Vec::new();
        for channel in 0..device.info()?.channels {
            let before = bytes()?;
            let mut piece = [Piece::new(&dst, 0, &src, 0, PAGE).on(channel)];
            device.carry(&mut piece)?;
            ensure_eq!(piece[0].channel, channel, "channel that took a piece");
            let after = bytes()?;
            let moved = before.iter().zip(&after).filter(|(b, a)| a.1 - b.1 >= PAGE as u64);
            let moved: Vec<Place> = moved.map(|(_, after)| after.0).collect();
            match moved[..] {
                [place] => found.push(place),
                _ => fail!("channel {channel} of the module: {} channels moved", moved.len()),
            }
        }
        Ok(found)
    }
}

/// For scripts: orders a fault once, on all channels, unless the words say otherwise.
pub fn order(kind: &str, words: &[&str]) -> Outcome {
    let Some((kind, _)) = Kind::ALL.into_iter().find(|(_, name)| *name == kind) else {
        ensure!(kind == "clear", "{kind}: no such fault");
        return Bench::new().map(drop);
    };
    let (mut fault, mut channels) = (Fault::once(kind), ALL_CHANNELS);
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let value: u32 = value.parse().map_err(|_| format!("{word}: want a number"))?;
        match name {
            "channels" => channels = value << 8,
            "after" => fault.after = value,
            "times" => fault.times = value,
            "value" => fault.value = value,
            _ => fail!("{word}: not known"),
        }
    }
    let bench = Bench { functions: functions()? };
    bench.functions.iter().try_for_each(|function| bench.order(function, channels, fault))?;
    std::mem::forget(bench); // it stays when this process ends
    Ok(())
}

/// Prints a line for each channel, for scripts.
pub fn print_counters() -> Outcome {
    let bench = Bench { functions: functions()? };
    for place in bench.places() {
        let Counters { descriptors, bytes, interrupts, resets, faults } = bench.counters(place)?;
        let Place { function, channel } = place;
        println!(
            "function={function} channel={channel} data={descriptors} bytes={bytes} \
             interrupts={interrupts} resets={resets} faults={faults}"
        );
    }
    std::mem::forget(bench); // it clears no faults
    Ok(())
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Nothing can be done about a device that refuses.
        let _ = self.clear();
    }
}
