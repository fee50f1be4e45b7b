//! The first ten copies of a fresh process, and its speed when it has copied for a while. Every
//! sample is a process of its own.

use crate::arms::{interposed_memcpy, real_memcpy};
use crate::benches::short;
use crate::copies::{Copies, Target};
use crate::measure::{Samples, now};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, ratio, size as short, spread};
use crate::spawn;

const TEN: usize = 10;

pub fn run(options: &Options) {
    let lib = options.library();
    let runs = (options.seconds * 5.0).max(5.0) as usize;
    println!(
        "{runs} processes for each line. x libc: the first copy, the first ten, and ten after\n\
         many others (steady). of steady: gain of the first ten over that at the end.\n\
         old: between old buffers; fresh: into memory never touched.\n"
    );
    let mut table = Table::of("into|size|libc ms|first|ten|q1-q3|steady|q1-q3|of steady|q1-q3");
    for target in Target::BOTH {
        for size in options.sizes_or(&[4, 16, 64].map(|mib| mib * MIB)) {
            progress(&format!("first: {} {}", target.name(), short(size)));
            let samples: Vec<Times> =
                (0..runs).filter_map(|_| child(lib, options, target, size)).collect();
            table.row(line(target, size, &samples));
        }
    }
    table.print();
    short::run(options, lib);
}

/// Nanoseconds of a copy, as a child prints them.
struct Times {
    first: f64,
    ten: f64,
    libc: f64,
    steady: f64,
    steady_libc: f64,
}

fn line(target: Target, size: usize, samples: &[Times]) -> Vec<String> {
    let all = |of: fn(&Times) -> f64| samples.iter().map(of).collect::<Samples>();
    let key = |name: &str| format!("first.{}.{}.{name}", target.name(), short(size));
    let ten = all(|times| times.libc / times.ten);
    let steady = all(|times| times.steady_libc / times.steady);
    let part = all(|t| t.libc / t.ten / (t.steady_libc / t.steady));
    spread(&key("ten"), &ten);
    spread(&key("steady"), &steady);
    spread(&key("of_steady"), &part);
    let mut line = vec![target.name().to_string(), short(size)];
    line.push(ratio(all(|times| times.libc).median() / 1e6));
    line.push(median(&all(|times| times.libc / times.first)));
    for samples in [ten, steady, part] {
        line.extend([median(&samples), range(&samples, 0.25)]);
    }
    line
}

fn child(lib: Option<&str>, options: &Options, target: Target, size: usize) -> Option<Times> {
    let mut command = spawn::itself("first-ten", lib);
    command.args(options.handler.then_some("--handler"));
    let output = command.args(["--", target.name(), &size.to_string()]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    let &[first, ten, libc, steady, steady_libc] = numbers.as_slice() else { return None };
    Some(Times { first, ten, libc, steady, steady_libc })
}

/// Runs in the child, which has copied nothing before.
pub fn first_ten(options: &Options) {
    let [target, size] = options.rest.as_slice() else { std::process::exit(2) };
    let target = if target == "old" { Target::Old } else { Target::Fresh };
    let size: usize = size.parse().unwrap_or(MIB);
    let (libc, shim) = (real_memcpy(), interposed_memcpy());
    let mut copies = Copies::new(target, size, (TEN * size).max(512 * MIB));

    let first = copies.next(shim);
    let ten = (first + copies.row(shim, TEN - 1)) / TEN as f64;
    let by_libc = copies.row(libc, TEN) / TEN as f64;

    let start = now();
    let mut done = 0;
    while done < 40 || now() - start < 300_000_000 {
        copies.next(shim);
        done += 1;
    }
    let (mut steady, mut steady_libc) = (Samples::default(), Samples::default());
    for _ in 0..3 {
        steady.push(copies.row(shim, TEN) / TEN as f64);
        steady_libc.push(copies.row(libc, TEN) / TEN as f64);
    }
    println!("{first} {ten} {by_libc} {} {}", steady.median(), steady_libc.median());
}
