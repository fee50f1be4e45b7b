//! Amount of work of a test, and its time limits.

use std::time::{Duration, Instant};

/// Within this every request must be over, whatever the device does, and every page given
/// back. The guest is slow: less than that is no failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// `stock` rounds on an ordinary kernel, a tenth on one with checkers; the factor
/// GUEST_ROUNDS (as 0.5 or 10) has the last word.
pub fn rounds(stock: usize) -> usize {
    let factor = given_factor().unwrap_or(if crate::kernel::has_checkers() { 0.1 } else { 1.0 });
    ((stock as f64 * factor) as usize).max(1)
}

fn given_factor() -> Option<f64> {
    std::env::var("GUEST_ROUNDS").ok().and_then(|text| text.parse().ok())
}

/// Returns the time limit of a test; a hang is a failure, and a slow host is none.
pub fn limit() -> Duration {
    let stock = Duration::from_secs(if crate::kernel::has_checkers() { 900 } else { 300 });
    stock.mul_f64(given_factor().unwrap_or(1.0).max(1.0))
}

/// Polls a condition, for `limit` at most.
pub fn eventually(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
