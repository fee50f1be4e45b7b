//! Verdict and advice, in sentences that name the knob.

use super::Report;
use super::figures::{Figures, TimeSaved};
use adma_report::units::{bytes, percent};
use adma_shared::live::Fallback;

/// Least part of the bytes for which a reason gets advice.
const LEAST: u64 = 10; // percent

/// Returns the verdict, in a few words.
pub fn verdict(report: &Report) -> String {
    let Some(TimeSaved { interval, of_seconds }) = &report.saved else {
        return match report.total.live.recorder.total().1 {
            0 if report.not_kept().is_some() => "Not known: statistics are missing".to_owned(),
            0 => "No large copies were recorded".to_owned(),
            _ => "Every copy stayed with libc: no difference".to_owned(),
        };
    };
    match interval {
        Err(_) => "Whether it helped is not known".to_owned(),
        Ok(saved) if saved.is_slight(*of_seconds) => "No difference to speak of".to_owned(),
        Ok(saved) if saved.low > 0.0 => {
            let without = of_seconds + saved.seconds;
            let share = 100.0 * saved.seconds / without.max(1e-9);
            format!("It helped: about {share:.0} % less time than without")
        }
        Ok(saved) if saved.high < 0.0 => "It cost time".to_owned(),
        Ok(_) => "No difference can be seen".to_owned(),
    }
}

/// Returns what to do about it, the most important first.
pub fn advice(report: &Report) -> Vec<String> {
    let total = &report.total;
    let mut advice = Vec::new();
    if let Some(why) = report.not_kept() {
        advice.push(format!("This is not everything: {why}."));
    }
    if let Some(TimeSaved { interval, .. }) = &report.saved {
        match interval {
            Err(why) => advice.push(format!(
                "Not known, because {why}. adma bench runs the program with and without in turn, \
                 and tells."
            )),
            Ok(saved) if saved.high < 0.0 => advice.push(match pays_from(total) {
                Some(size) => format!(
                    "Only larger copies gained: ADMA_MIN_BYTES={size} leaves the others to libc."
                ),
                None => "Leave it off for this program: ADMA_BACKEND=libc.".to_owned(),
            }),
            Ok(_) => {}
        }
    }
    let recorder = &total.live.recorder;
    let all = recorder.total().1;
    for (why, _, sum) in recorder.reasons() {
        if sum.saturating_mul(100 / LEAST) < all || sum == 0 {
            break;
        }
        if let Some(remedy) = remedy(why) {
            let part = percent(sum, all);
            advice.push(format!("{} ({part}) {remedy}", bytes(sum)));
        }
    }
    let sum = |sizes: std::ops::Range<u64>| {
        let buckets = recorder.every_size.buckets();
        let buckets = buckets.filter(|bucket| sizes.contains(&bucket.0));
        buckets.fold(0u64, |sum, bucket| sum.saturating_add(bucket.0.saturating_mul(bucket.2)))
    };
    let (all, small) = (sum(0..u64::MAX), sum(64 << 10..256 << 10));
    if small > all / 2 {
        advice.push(format!(
            "{} of the bytes are in copies of 64 to 256 KiB, which are left to libc unless \
             ADMA_MIN_BYTES=64K is set: try it with adma bench --with ADMA_MIN_BYTES=64K.",
            percent(small, all)
        ));
    }
    advice
}

/// Returns the size from which the engine was faster than libc, by a tenth at least.
fn pays_from(total: &Figures) -> Option<String> {
    let recorder = &total.live.recorder;
    let pays = |class: u32| -> Option<bool> {
        Some(recorder.engine.speed(class)? > 1.1 * recorder.libc.speed(class)?)
    };
    let class = (18..40).find(|&class| pays(class) == Some(true))?;
    (class..40).all(|class| pays(class) != Some(false)).then(|| (1u64 << class).to_string())
}

/// Returns the remedy for a reason.
fn remedy(why: Fallback) -> Option<&'static str> {
    Some(match why {
        Fallback::Off => "were libc's because sharing was off: ADMA_BACKEND=auto.",
        Fallback::Busy => {
            "found the CPUs taken by other copies: fewer threads or processes that copy at once, \
             or ADMA_CHANNELS=1."
        }
        Fallback::Refused => "were refused help by the system: adma check tells by what.",
        Fallback::OneCpu => "had one CPU only: let the process have more (taskset, cgroup).",
        Fallback::Ranks => {
            "had no CPU left by the other ranks of the job: fewer ranks than CPUs, or \
             ADMA_CHANNELS=1."
        }
        Fallback::BelowMin => {
            "were below the threshold: ADMA_MIN_BYTES=auto lets sizes be learned."
        }
        Fallback::NotCached => "were reads of files that were not in memory: nothing to set.",
        Fallback::Overlap => "overlap, which only libc may copy: nothing to set.",
        Fallback::Learned => "were measured to be as fast by libc: nothing to set.",
        Fallback::NoChannels => "found no channel that works: see the kernel's log.",
        Fallback::Unaligned | Fallback::Unsupported => {
            "cannot be done by the DMA engine: ADMA_BACKEND=threads can."
        }
        Fallback::RealTime => {
            "were of real-time threads, which wait for no worker: nothing to set."
        }
        Fallback::Compared | Fallback::Starting | Fallback::Early => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use adma_shared::live::Path;
    use adma_shared::worth::Interval;

    fn report(saved: Option<Result<Interval, String>>, reason: Fallback) -> Report {
        let mut report = Report::new(None);
        report.saved = saved.map(|interval| TimeSaved { interval, of_seconds: 1.0 });
        let recorder = &report.total.live.recorder;
        recorder.record(Path::Engine, 1000, 1);
        recorder.record(Path::Libc(reason), 1000, 1);
        for (flow, ticks) in [(&recorder.engine, 100), (&recorder.libc, 1000)] {
            flow.note_speed(20, 1000, 1000);
            flow.note_speed(24, 1000, ticks);
        }
        report
    }

    #[test]
    fn verdict_follows_the_bounds_and_advice_names_the_knob() {
        let known = |seconds: f64| {
            Some(Ok(Interval { seconds, low: seconds - 0.1, high: seconds + 0.1, calls: 1.0 }))
        };
        let cases = [
            (known(1.0), Fallback::Busy, "It helped: about 50 % less time", "ADMA_CHANNELS=1"),
            (known(0.05), Fallback::Off, "No difference", "ADMA_BACKEND=auto"),
            (known(-0.5), Fallback::OneCpu, "It cost time", "ADMA_MIN_BYTES=16777216"),
            (Some(Err("the machine was busy".into())), Fallback::Early, "not known", "adma bench"),
            (None, Fallback::Unsupported, "stayed with libc", "ADMA_BACKEND=threads"),
        ];
        for (saved, reason, expected, knob) in cases {
            let report = report(saved, reason);
            assert!(verdict(&report).contains(expected), "{}", verdict(&report));
            let advice = advice(&report).join(" ");
            assert!(advice.contains(knob), "{reason:?}: {advice}");
        }
        assert!(verdict(&Report::new(None)).contains("No large copies"));
    }
}
