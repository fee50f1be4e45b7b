//! Medians, spread, outliers, and the ratio of two arms with its confidence interval.
//!
//! Runs of one round belong together: what slows the machine down slows both. The ratio is the
//! Hodges-Lehmann estimate over rounds, and its interval that of Wilcoxon's signed ranks, which
//! supposes no normal distribution and which a few disturbed runs do not move far.

use super::Measured;
use super::measure::Run;
use crate::job::End;

/// Spread of the wall times of one arm.
pub struct Spread {
    pub median: f64,
    pub quartiles: (f64, f64),
    pub least: f64,
    pub most: f64,
}

/// Speed-up, and its 95 % confidence interval; `None`: too few rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub estimate: f64,
    pub interval: Option<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Faster,
    Slower,
    Same,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Same,
    /// Varies also without adma.
    Varies,
    Differs,
    /// Only of runs that have something else instead of adma.
    RivalDiffers,
    NotCompared,
}

/// Least difference that is worth mentioning.
const WORTH_SAYING: f64 = 0.01;
/// Largest interval around 1 that is still an answer.
const TOO_WIDE: f64 = 1.2;

impl Measured {
    fn of(&self, arm: usize, what: fn(&Run) -> f64) -> Vec<f64> {
        self.rounds.iter().map(|runs| what(&runs[arm])).collect()
    }

    pub fn wall(&self, arm: usize) -> Vec<f64> {
        self.of(arm, |run| run.wall)
    }

    pub fn spread(&self, arm: usize) -> Spread {
        let mut times = self.wall(arm);
        times.sort_by(f64::total_cmp);
        Spread {
            median: quantile(&times, 0.5),
            quartiles: (quantile(&times, 0.25), quantile(&times, 0.75)),
            least: quantile(&times, 0.0),
            most: quantile(&times, 1.0),
        }
    }

    /// Returns the medians of user and system time.
    pub fn cpu(&self, arm: usize) -> (f64, f64) {
        (median(self.of(arm, |run| run.user)), median(self.of(arm, |run| run.system)))
    }

    pub fn peak(&self, arm: usize) -> u64 {
        median(self.of(arm, |run| run.peak as f64)) as u64
    }

    /// Returns the first arm's wall time over this one's.
    pub fn ratio(&self, arm: usize) -> Ratio {
        let logs: Vec<f64> = self.rounds.iter().map(|r| (r[0].wall / r[arm].wall).ln()).collect();
        ratio(&logs)
    }

    pub fn verdict(&self, arm: usize) -> Verdict {
        let Ratio { estimate, interval } = self.ratio(arm);
        match interval {
            None => Verdict::Unknown,
            Some((low, _)) if low > 1.0 && estimate > 1.0 + WORTH_SAYING => Verdict::Faster,
            Some((_, high)) if high < 1.0 && estimate < 1.0 - WORTH_SAYING => Verdict::Slower,
            Some((low, high)) if high / low > TOO_WIDE => Verdict::Unknown,
            Some(_) => Verdict::Same,
        }
    }

    /// Returns outliers: rounds that are more than three times the interquartile range, and a tenth
    /// of the median, outside the quartiles.
    pub fn outliers(&self, arm: usize) -> Vec<(usize, f64)> {
        let Spread { median, quartiles: (low, high), .. } = self.spread(arm);
        let fence = 3.0 * (high - low);
        let is_far = |time: f64| {
            (time > high + fence || time < low - fence) && (time - median).abs() > median / 10.0
        };
        self.wall(arm).into_iter().enumerate().filter(|(_, time)| is_far(*time)).collect()
    }

    pub fn output(&self) -> Output {
        let mut without = self.rounds.iter().map(|runs| runs[0].output);
        let Some(Some(first)) = without.next() else { return Output::NotCompared };
        if without.any(|output| output != Some(first)) {
            return Output::Varies;
        }
        let differs = |has_adma: bool| {
            let of_kind =
                self.arms.iter().enumerate().skip(1).filter(|(_, arm)| arm.has_adma == has_adma);
            let mut runs =
                of_kind.flat_map(|(arm, _)| self.rounds.iter().map(move |runs| &runs[arm]));
            runs.any(|run| run.output != Some(first))
        };
        match () {
            () if differs(true) => Output::Differs,
            () if differs(false) => Output::RivalDiffers,
            () => Output::Same,
        }
    }

    /// Returns how the runs of an arm have ended, each way once.
    pub fn ends(&self, arm: usize) -> Vec<End> {
        let mut ends = Vec::new();
        for run in self.rounds.iter().map(|runs| &runs[arm]) {
            if !ends.contains(&run.end) {
                ends.push(run.end);
            }
        }
        ends
    }

    /// Returns whether adma has changed nothing but times.
    pub fn is_alike(&self) -> bool {
        let mut ours = (1..self.arms.len()).filter(|arm| self.arms[*arm].has_adma);
        ours.all(|arm| self.ends(arm) == self.ends(0)) && self.output() != Output::Differs
    }

    pub fn fails(&self) -> bool {
        (0..self.arms.len()).any(|arm| self.ends(arm).iter().any(|end| *end != End::Exit(0)))
    }
}

fn ratio(logs: &[f64]) -> Ratio {
    let mut averages = Vec::new();
    for (at, a) in logs.iter().enumerate() {
        averages.extend(logs[at..].iter().map(|b| (a + b) / 2.0));
    }
    averages.sort_by(f64::total_cmp);
    let interval =
        left_out(logs.len()).map(|k| (averages[k].exp(), averages[averages.len() - 1 - k].exp()));
    Ratio { estimate: quantile(&averages, 0.5).exp(), interval }
}

/// Returns how many averages lie outside the interval on each side; `None`: there are too few
/// rounds for one of 95 %.
fn left_out(rounds: usize) -> Option<usize> {
    let sums = rounds * (rounds + 1) / 2;
    if rounds > 50 {
        let n = rounds as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        return Some((sums as f64 / 2.0 - 1.96 * deviation) as usize);
    }
    // Probabilities of each sum of ranks, where both signs are equally likely.
    let mut chances = vec![0.0; sums + 1];
    chances[0] = 1.0;
    for rank in 1..=rounds {
        for sum in (0..=sums).rev() {
            let more = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = (chances[sum] + more) / 2.0;
        }
    }
    let mut below = 0.0;
    let fits = |chance: &&f64| {
        below += **chance;
        below <= 0.025
    };
    chances.iter().take_while(fits).count().checked_sub(1)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// Returns a quantile of sorted values, interpolated.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_leaves_out_as_many_averages_as_the_tables_of_wilcoxon() {
        let tables = [(6, 0), (7, 2), (8, 3), (10, 8), (15, 25), (20, 52), (30, 137)];
        for (rounds, left) in tables {
            assert_eq!(left_out(rounds), Some(left), "{rounds} rounds");
        }
        assert!((1..6).all(|rounds| left_out(rounds).is_none()));
        let approximate = left_out(51).unwrap();
        assert!((left_out(50).unwrap()..left_out(50).unwrap() + 40).contains(&approximate));
    }

    #[test]
    fn ratio_of_rounds_is_not_moved_by_one_that_was_disturbed() {
        let twice = [2f64.ln(), 2.02f64.ln(), 1.98f64.ln(), 2.01f64.ln(), 1.99f64.ln()].repeat(2);
        let Ratio { estimate, interval } = ratio(&twice);
        let (low, high) = interval.unwrap();
        assert!((1.99..2.01).contains(&estimate) && low > 1.97 && high < 2.03, "{low} {high}");
        let mut disturbed = twice.clone();
        disturbed[3] = 0.1f64.ln();
        let moved = ratio(&disturbed);
        assert!((1.97..2.02).contains(&moved.estimate), "{moved:?}");
    }

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 4.0, 8.0], 0.5), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
