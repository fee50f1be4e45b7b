//! Did it help, and what should be changed: in sentences that name the knob.

use super::Report;
use super::figures::{Figures, TimeSaved};
use super::units::{bytes, percent};
use crate::stats::live::Fallback;

/// Reasons for less than this part of the bytes need no advice.
const LEAST: u64 = 10; // percent

/// Whether it helped, in a few words.
pub fn verdict(total: &Figures) -> String {
    let Some(TimeSaved { interval, of_seconds }) = &total.saved else {
        return match total.bytes() {
            0 => "No large copies: nothing to help with".to_owned(),
            _ => "Every copy stayed with libc: no difference".to_owned(),
        };
    };
    match interval {
        Err(_) => "Whether it helped is not known".to_owned(),
        Ok(saved) if saved.low > 0.0 => {
            let without = of_seconds + saved.seconds;
            let share = 100.0 * saved.seconds / without.max(1e-9);
            format!("It helped: about {share:.0} % less time than without")
        }
        Ok(saved) if saved.high < 0.0 => "It cost time".to_owned(),
        Ok(_) => "No difference can be seen".to_owned(),
    }
}

/// What to do about it, the most important first.
pub fn advice(report: &Report) -> Vec<String> {
    let total = &report.total;
    let mut advice = Vec::new();
    if let Some(TimeSaved { interval, .. }) = &total.saved {
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
    let mut reasons: Vec<_> = total.fallbacks.iter().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.2));
    for (name, _, sum) in reasons {
        if sum.saturating_mul(100 / LEAST) < total.bytes() || *sum == 0 {
            break;
        }
        if let Some(remedy) = Fallback::named(name).and_then(remedy) {
            let part = percent(*sum, total.bytes());
            advice.push(format!("{} ({part}) {remedy}", bytes(*sum)));
        }
    }
    if let Some(profile) = &total.profile {
        let small = |bucket: &&(u64, u64, u64)| (64 << 10..256 << 10).contains(&bucket.0);
        let sum = |all: &mut dyn Iterator<Item = &(u64, u64, u64)>| {
            all.fold(0u64, |sum, bucket| sum.saturating_add(bucket.0.saturating_mul(bucket.2)))
        };
        let (all, small) = (
            sum(&mut profile.sizes.buckets.iter()),
            sum(&mut profile.sizes.buckets.iter().filter(small)),
        );
        if all > 0 && small > all / 2 {
            advice.push(format!(
                "{} of the bytes are in copies of 64 to 256 KiB, which are left to libc unless \
                 ADMA_MIN_BYTES=64K is set: try it with adma bench --with ADMA_MIN_BYTES=64K.",
                percent(small, all)
            ));
        }
    }
    advice
}

/// The size from which on the engine was faster than libc, by a tenth at least.
fn pays_from(total: &Figures) -> Option<String> {
    let speed = |all: &[(u32, u64, u64)], class: u32| {
        let found = all.iter().find(|speed| speed.0 == class && speed.2 > 0)?;
        Some(found.1 as f64 / found.2 as f64)
    };
    let pays = |class: u32| -> Option<bool> {
        let [engine, libc] = [&total.engine, &total.libc].map(|flow| speed(&flow.speeds, class));
        Some(engine? > 1.1 * libc?)
    };
    let class = (18..40).find(|&class| pays(class) == Some(true))?;
    (class..40).all(|class| pays(class) != Some(false)).then(|| (1u64 << class).to_string())
}

/// What can be set against a reason.
fn remedy(why: Fallback) -> Option<&'static str> {
    Some(match why {
        Fallback::Off => "were libc's because sharing was off: ADMA_BACKEND=auto.",
        Fallback::Busy => {
            "found the CPUs taken by other copies: fewer threads or processes that copy at once, \
             or ADMA_CHANNELS=1."
        }
        Fallback::Refused => "were refused help by the system: adma check tells by what.",
        Fallback::OneCpu => "had one CPU only: let the process have more (taskset, cgroup).",
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
    use crate::report::figures::Traffic;
    use crate::stats::worth::Interval;

    fn report(saved: Option<Result<Interval, String>>, reason: &str) -> Report {
        let traffic = |speed| Traffic {
            calls: 1,
            bytes: 1000,
            speeds: vec![(20, 1000, 1000), (24, 1000, speed)],
            ..Traffic::default()
        };
        let total = Figures {
            saved: saved.map(|interval| TimeSaved { interval, of_seconds: 1.0 }),
            engine: traffic(100),
            libc: traffic(1000),
            fallbacks: vec![(reason.to_owned(), 1, 1000)],
            ..Figures::default()
        };
        Report { processes: Vec::new(), total, run: None }
    }

    #[test]
    fn verdict_follows_the_bounds_and_advice_names_the_knob() {
        let known =
            |seconds: f64| Some(Ok(Interval { seconds, low: seconds - 0.1, high: seconds + 0.1 }));
        let cases = [
            (known(1.0), "busy", "It helped: about 50 % less time", "ADMA_CHANNELS=1"),
            (known(0.05), "off", "No difference", "ADMA_BACKEND=auto"),
            (known(-0.5), "one_cpu", "It cost time", "ADMA_MIN_BYTES=16777216"),
            (Some(Err("the machine was busy".into())), "early", "not known", "adma bench"),
            (None, "unsupported", "stayed with libc", "ADMA_BACKEND=threads"),
        ];
        for (saved, reason, expected, knob) in cases {
            let report = report(saved, reason);
            assert!(verdict(&report.total).contains(expected), "{}", verdict(&report.total));
            let advice = advice(&report).join(" ");
            assert!(advice.contains(knob), "{reason}: {advice}");
        }
        assert!(verdict(&Figures::default()).contains("No large copies"));
    }
}
