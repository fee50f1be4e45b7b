//! The report for people: what it shows, in 80 columns.

use super::*;

fn narrow(report: &str) {
    for line in report.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn text_shows_paths_reasons_bars_and_percentiles() {
    let mut command = fixed("stats_copies", "memcpy 100000 64 memcpy 1000000 16 overlap 200000 4");
    let (_, err) = succeed(command.env("ADMA_STATS", "text"));
    narrow(&err);
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    for part in ["by the engine", "by libc", "overlap 4", "channel shares", "p50", "p99.9"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    // The most frequent class has the longest bar.
    let bar = |class: &str| {
        let line = err.lines().find(|line| line.trim_start().starts_with(class)).unwrap();
        line.matches(['#', '-']).count() - 1 // the dash of the range
    };
    assert!(bar("64 KiB - 128") > bar("512 KiB - 1"), "{err}");
    assert!(bar("512 KiB - 1") > bar("128 KiB - 256"), "{err}");
    assert!(bar("128 KiB - 256") > 0 && bar("256 KiB - 512") == 0, "{err}");
}

#[test]
fn text_with_long_names_large_counts_and_many_channels_fits_80_columns() {
    let folder = Folder::new();
    let program = folder.join("a_program_with_quite_a_long_name_of_its_own");
    copy_program(victim("stats_copies"), &program);
    // The backend libc carries nothing, so ten million copies take little time.
    let table = [
        ("threads", "64K", "memcpy 1000000 20", "by the engine"),
        ("libc", "64", "overlap 128 10000000 memcpy 128 10000000", "overlap 10000000"),
    ];
    for (backend, min, work, part) in table {
        let mut command = preloaded(&program);
        command.args(work.split(' ')).env("ADMA_CHANNELS", "64").env("ADMA_STATS", "text");
        command.env("ADMA_BACKEND", backend).env("ADMA_MIN_BYTES", min);
        let (_, err) = succeed(&mut command);
        assert!(err.contains(part), "{err}");
        narrow(&err);
    }
}
