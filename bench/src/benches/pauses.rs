//! Copies with pauses between them, as request handlers and frame loops make
//! them: how much of the gain in a row is left.

use crate::arms;
use crate::copies::{Copies, Target, in_turn};
use crate::memory::CopyFn;
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress, size as short, spread};
use crate::turns::buffer_size;
use std::time::Duration;

/// Milliseconds, and copies in one turn of an arm.
const PAUSES: [(u64, usize); 4] = [(0, 16), (1, 16), (10, 8), (100, 4)];

pub fn run(options: &Options) {
    println!("{}; cold, between old buffers", arms::describe_shim());
    println!(
        "x libc, where a pause comes before every copy of both; 0: in a row. of row: that\n\
         gain over the one in a row.\n"
    );
    let mut table = Table::of("size|pause ms|libc ms|x libc|q1-q3|of row");
    let sizes = options.sizes.clone().unwrap_or([1, 4, 16, 64].map(|mib| mib * MIB).into());
    for size in sizes {
        let mut copies = Copies::new(Target::Old, size, buffer_size(options));
        let mut row = f64::NAN;
        for (pause, burst) in PAUSES {
            progress(&format!("pauses: {} after {pause} ms", short(size)));
            let turn = |copies: &mut Copies, copy| turn(copies, copy, pause, burst);
            let (libc, gain) = in_turn(&mut copies, options.seconds, turn);
            if pause == 0 {
                row = gain.median();
            }
            let key = |name: &str| format!("pauses.{}.{pause}ms.{name}", short(size));
            spread(&key("libc"), &gain);
            if pause > 0 {
                figure(&key("of_row"), gain.median() / row);
            }
            table.row([
                short(size),
                pause.to_string(),
                format!("{:.2}", libc.median() / 1e6),
                format!("{:.2}", gain.median()),
                format!("{:.2}-{:.2}", gain.quantile(0.25), gain.quantile(0.75)),
                format!("{:.2}", gain.median() / row),
            ]);
        }
    }
    table.print();
}

/// Mean nanoseconds of a copy. The first comes after the other arm's turn, which
/// is a pause of another kind, and is not counted.
fn turn(copies: &mut Copies, copy: CopyFn, pause: u64, burst: usize) -> f64 {
    copies.next(copy);
    let mut sum = 0.0;
    for _ in 0..burst {
        if pause > 0 {
            std::thread::sleep(Duration::from_millis(pause));
        }
        sum += copies.next(copy);
    }
    sum / burst as f64
}
