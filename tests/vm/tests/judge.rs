//! The judge of the kernel's log, on logs that we know.

use std::io::Write;
use std::process::{Command, Stdio};

fn judged(lines: &[&str]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/judge-log.awk");
    let mut awk = Command::new("awk")
        .args(["-f", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("awk is there");
    let log: String = lines.iter().map(|line| format!("{line}\n")).collect();
    awk.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = awk.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

const BEGINS: &str = "<7>[    5.000000] adma-vm: test one begins";
const ENDS: &str = "<7>[    9.000000] adma-vm: test one ends";

#[test]
fn complaints_are_named_with_their_test() {
    let unknown = "<6>[    0.2] BUG: KASAN: use-after-free";
    for (what, log, complaints) in [
        (
            "warnings in a test are complaints, and information is not",
            &[BEGINS, "<6>[ 5.1] all is well", "<4>[ 5.2] hm", "<3>[ 5.3][  T12] oh", ENDS][..],
            &["one: hm", "one: oh"][..],
        ),
        (
            "before the tests only reports of checkers count",
            &["<4>[    0.1] mtrr: odd", unknown, BEGINS, ENDS],
            &["before the tests: BUG: KASAN: use-after-free"],
        ),
        (
            "known messages pass",
            &[BEGINS, "<4>[ 5.1] adma: loading out-of-tree module taints kernel.", ENDS],
            &[],
        ),
        (
            "announced messages pass until two seconds after the test",
            &[
                BEGINS,
                "<3>[    5.1] ioatdma 0000:00:04.0: too early",
                "<7>[    5.2] adma-vm: expect ^ioatdma .*",
                "<3>[    5.3] ioatdma 0000:00:04.0: Errors:",
                "<3>[    5.4] not ioatdma",
                ENDS,
                "<7>[    9.1] adma-vm: test two begins",
                "<3>[   10.9] ioatdma 0000:00:04.0: late",
                "<3>[   11.1] ioatdma 0000:00:04.0: too late",
            ],
            &[
                "one: ioatdma 0000:00:04.0: too early",
                "one: not ioatdma",
                "two: ioatdma 0000:00:04.0: too late",
            ],
        ),
        (
            "a trace that breaks off is a complaint",
            &[BEGINS, "<4>[ 5.1] ------------[ cut here ]------------", "<4>[ 5.1] WARNING:"],
            &["one: ------------[ cut here ]------------", "\tWARNING:"],
        ),
    ] {
        assert_eq!(judged(log), [complaints, &["expected=0"]].concat(), "{what}");
    }
}

#[test]
fn a_warning_with_its_trace_is_one_message() {
    let trace = [
        "<4>[    5.1] ------------[ cut here ]------------",
        "<4>[    5.1] failed to start channel chanerr: 0x4",
        "<4>[    5.1] WARNING: CPU: 0 PID: 1 at drivers/dma",
        "<4>[    5.1] Call Trace:",
        "<4>[    5.1] ---[ end trace 0000000000000000 ]---",
    ];
    let log = [&[BEGINS], &trace[..], &[ENDS]].concat();
    let found = judged(&log);
    assert_eq!(found[0], "one: ------------[ cut here ]------------");
    assert!(found[1..5].iter().all(|line| line.starts_with('\t')), "{found:?}");
    assert_eq!(found[5], "expected=0");

    let announced = "<7>[    5.05] adma-vm: expect failed to start channel";
    let log = [&[BEGINS, announced], &trace[..], &[ENDS]].concat();
    assert_eq!(judged(&log), ["expected=1"]);
}
