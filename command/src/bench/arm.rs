//! Arms of the benchmark, which differ in the environment.

use crate::{library, live_files, options, run, say};
use adma_shared::knobs::TUNED_GLIBC;
use std::ffi::OsString;
use std::path::Path;

pub struct Arm {
    pub name: String,
    /// Set if adma is preloaded.
    pub has_adma: bool,
    /// Variables and their values.
    pub environment: Vec<(String, OsString)>,
}

/// What people could have instead of adma: variables of the environment, to which something is added.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    name: String,
    variable: &'static str,
    value: OsString,
}

/// Returns the arms: without adma, with it, with it and each of these settings, and with each rival.
pub fn all(with: &[String], against: &[Rival]) -> Vec<Arm> {
    let library = library::preloadable(library::find());
    let preload = |value| vec![("LD_PRELOAD".to_owned(), value)];
    let ours = || {
        let mut environment = preload(run::preload_with(&library));
        for (knob, value) in [("ADMA_STATS", "off"), ("ADMA_LIVE", "off")] {
            environment.push((knob.to_owned(), value.into()));
        }
        environment
    };
    let mut arms = vec![
        Arm {
            name: "without adma".to_owned(),
            has_adma: false,
            environment: preload(run::preload_without(&library)),
        },
        Arm { name: "with adma".to_owned(), has_adma: true, environment: ours() },
    ];
    for settings in with {
        let mut environment = ours();
        let pairs = settings.split_whitespace().filter_map(|setting| setting.split_once('='));
        environment.extend(pairs.map(|(knob, value)| (knob.to_owned(), value.into())));
        arms.push(Arm { name: format!("with {settings}"), has_adma: true, environment });
    }
    for Rival { name, variable, value } in against {
        let mut environment = preload(run::preload_without(&library));
        let mut values = match *variable {
            "LD_PRELOAD" => environment[0].1.clone(),
            other => std::env::var_os(other).unwrap_or_default(),
        };
        if !values.is_empty() {
            values.push(":");
        }
        values.push(value);
        environment.push(((*variable).to_owned(), values)); // the last of two counts
        arms.push(Arm { name: format!("with {name}"), has_adma: false, environment });
    }
    arms
}

/// Parses the name of a tuned glibc, or the path of another library to be preloaded.
pub fn rival(text: &str) -> Result<Rival, String> {
    let tuned = TUNED_GLIBC.into_iter().find(|(name, _)| *name == text);
    if let Some((name, tunables)) = tuned {
        let (name, value) = (format!("glibc's {name}"), tunables.into());
        return Ok(Rival { name, variable: "GLIBC_TUNABLES", value });
    }
    let path = std::fs::canonicalize(text).map_err(|error| {
        let names = TUNED_GLIBC.map(|(name, _)| name).join(", ");
        format!("{}; want a library, or {names}", say::reason(&error))
    })?;
    if library::unpreloadable(&path) {
        return Err("LD_PRELOAD cannot hold blanks, : and $".to_owned());
    }
    // The loader would only complain, to a standard error that is not shown, and libc be measured.
    if !library::is_shared(&path) {
        return Err("no shared library for x86-64".to_owned());
    }
    let value = path.into_os_string();
    Ok(Rival { name: say::printable(text), variable: "LD_PRELOAD", value })
}

/// Parses `KNOB=VALUE`, several of them separated by blanks.
pub fn settings(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    for word in &words {
        let (knob, value) = word.split_once('=').ok_or("want KNOB=VALUE")?;
        options::accepted(knob, value)?;
    }
    if words.is_empty() { Err("want KNOB=VALUE".to_owned()) } else { Ok(words.join(" ")) }
}

/// Sums large copies of all processes with a live file here: number, bytes, bytes by the engine.
pub fn copies(tree: &Path) -> (u64, u64, u64) {
    live_files::in_folder(tree, false).iter().fold((0, 0, 0), |(calls, bytes, carried), process| {
        let (recorder, total) = (&process.live.recorder, process.live.recorder.total());
        (
            calls.saturating_add(total.0),
            bytes.saturating_add(total.1),
            carried.saturating_add(recorder.engine_bytes()),
        )
    })
}
