//! `adma top --metrics`: one sample in the text format of Prometheus.

use super::Row;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// Escapes the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns a name that stays when the process is started again: the program and its first argument
/// that is no option, such as its script, without folders.
fn name_of(command: &str) -> String {
    let mut words = command.split(' ').map(|word| word.rsplit('/').next().unwrap_or(word));
    let program = words.next().unwrap_or_default().to_owned();
    match words.find(|word| !word.is_empty() && !word.starts_with('-')) {
        Some(word) => program + " " + word,
        None => program,
    }
}

pub fn of(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut family =
        |name: &str, kind: &str, help: &str, of: &dyn Fn(&Row) -> Vec<(String, f64)>| {
            // A `String` takes everything.
            let _ = writeln!(out, "# HELP adma_{name} {help}\n# TYPE adma_{name} {kind}");
            for row in rows {
                let labels = [
                    ("pid", row.process.pid.to_string()),
                    ("program", label(&row.program)),
                    ("name", label(&name_of(&row.command))),
                    ("command", label(&row.command)),
                ];
                let labels = labels.map(|(name, value)| format!("{name}=\"{value}\"")).join(",");
                for (more, value) in of(row) {
                    let _ = writeln!(out, "adma_{name}{{{labels}{more}}} {value}");
                }
            }
        };
    let by = |name: &str, value: &str| format!(",{name}=\"{}\"", label(value));
    family("copies_total", "counter", "Large copies.", &|row| {
        let counts = row.recorder().counts();
        counts.map(|(path, calls, _)| (by("path", path), calls as f64)).to_vec()
    });
    family("bytes_total", "counter", "Bytes of large copies.", &|row| {
        let counts = row.recorder().counts();
        counts.map(|(path, _, bytes)| (by("path", path), bytes as f64)).to_vec()
    });
    family("reads_total", "counter", "Large reads of files, which are among the copies.", &|row| {
        let counts = row.recorder().read_counts();
        counts.map(|(path, calls, _)| (by("path", path), calls as f64)).to_vec()
    });
    family("read_bytes_total", "counter", "Bytes of large reads of files.", &|row| {
        let counts = row.recorder().read_counts();
        counts.map(|(path, _, bytes)| (by("path", path), bytes as f64)).to_vec()
    });
    family("fallbacks_total", "counter", "Large copies that libc made, by reason.", &|row| {
        let reasons = row.recorder().fallbacks().filter(|(_, count)| *count > 0);
        reasons.map(|(why, count)| (by("reason", why), count as f64)).collect()
    });
    family("messages_total", "counter", "Messages between processes.", &|row| {
        let told = row.process.messages().map(|told| told.directions.to_vec());
        let rows = told.unwrap_or_default().into_iter();
        rows.map(|(name, count, _)| (by("direction", name), count as f64)).collect()
    });
    family("threshold_bytes", "gauge", "Copies from this size up are carried.", &|row| {
        row.threshold().map(|bytes| (String::new(), bytes as f64)).into_iter().collect()
    });
    family("channels", "gauge", "Channels beside the caller.", &|row| {
        let channels = row.process.live.facts.channels.load(Relaxed);
        vec![(by("backend", &crate::live_files::backend(&row.process.live)), f64::from(channels))]
    });
    family("off", "gauge", "Whether it was switched off by adma top.", &|row| {
        vec![(String::new(), f64::from(u8::from(row.is_off())))]
    });
    out
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn name_of_a_process_has_its_script_and_no_options() {
        let table = [
            ("python3 -u /srv/train.py --lr 0.1", "python3 train.py"),
            ("sleep", "sleep"),
            ("", ""),
        ];
        for (command, name) in table {
            assert_eq!(name_of(command), name);
        }
    }
}
