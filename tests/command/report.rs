//! `adma report`: sums of many reports, and the page in a browser.

use super::*;

/// Returns reports of a real program: one process and its children.
fn reports() -> (PathBuf, Vec<serde_json::Value>) {
    let folder = scratch("reports");
    let mut all = Vec::new();
    for (number, size) in ["300000", "2000000", "9000000"].iter().enumerate() {
        let mut run = preloaded(victim("stats_copies"));
        run.args(["memcpy", size, "40"]).env("ADMA_CHANNELS", "2").env("ADMA_MIN_BYTES", "256K");
        let values = statistics(&mut run);
        let lines: String = values.iter().map(|value| format!("{value}\n")).collect();
        fs::write(folder.join(format!("{number}.json")), lines).unwrap();
        all.extend(values);
    }
    (folder, all)
}

#[test]
fn reports_of_one_file_several_and_standard_input_are_printed_and_summed() {
    let (folder, all) = reports();
    let files: Vec<_> = (0..3).map(|n| folder.join(format!("{n}.json"))).collect();
    let report = |files: &[PathBuf], all: &[serde_json::Value], heading: &str| {
        let (out, err) = succeed(adma().arg("report").args(files));
        assert!(err.is_empty() && out.starts_with(heading), "{out}{err}");
        let calls: u64 = all.iter().map(|v| v["paths"]["engine"]["calls"].as_u64().unwrap()).sum();
        let line = out.lines().find(|line| line.contains("by the engine")).unwrap();
        assert!(line.contains(&format!(" {calls} ")), "{line}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        out
    };
    report(&files[1..2], &all[1..2], "adma: stats_copies (pid ");
    let separate = report(&files, &all, "adma: 3 processes");
    let together: Vec<u8> = files.iter().flat_map(|file| fs::read(file).unwrap()).collect();
    fs::write(folder.join("all.json"), &together).unwrap();
    assert_eq!(succeed(adma().arg("report").arg(folder.join("all.json"))).0, separate);
    let mut piped = adma();
    piped.args(["report", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&together).unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), separate);
}

#[test]
fn report_of_two_runs_shows_what_has_changed() {
    let (folder, all) = reports();
    let files = ["0.json", "2.json"].map(|name| folder.join(name));
    let (out, err) = succeed(adma().args(["report", "--diff"]).args(&files));
    assert_eq!(err, "");
    let row = |name: &str| -> Vec<String> {
        let line = out.lines().find(|line| line.trim_start().starts_with(name)).expect(&out);
        line.trim_start()[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("adma:"), ["before", "after", "change"]);
    let calls = |at: usize| {
        let paths = &all[at]["paths"];
        paths["engine"]["calls"].as_u64().unwrap() + paths["libc"]["calls"].as_u64().unwrap()
    };
    assert_eq!(row("large copies")[..2], [calls(0).to_string(), calls(2).to_string()]);
    assert_eq!(row("their bytes").last().unwrap(), "30.00"); // 9000000 for 300000
    assert!(out.contains(", p50 of a copy") && !out.contains("p99"), "of forty copies: {out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    for bad in [&files[..1], &[files[0].clone(), folder.join("none.json")]] {
        let done = finish(adma().args(["report", "--diff"]).args(bad));
        assert!(done.status.code() > Some(0) && text(&done.stderr).lines().count() == 1);
    }
}

#[test]
fn report_keeps_the_profile_and_the_letters_of_the_locale() {
    let folder = scratch("profile");
    let program = folder.join("stats_µ");
    copy_program(victim("stats_copies"), &program);
    let mut run = preloaded(&program);
    run.args(["memcpy", "100", "7", "memcpy", "300000", "3"]).env("ADMA_PROFILE", "1");
    let lines: String = statistics(&mut run).iter().map(|value| format!("{value}\n")).collect();
    fs::write(folder.join("x.json"), lines).unwrap();
    let report = |locale: &str| {
        succeed(adma().arg("report").arg(folder.join("x.json")).env("LC_ALL", locale)).0
    };
    let text = report("C.UTF-8");
    let memcpy = text.lines().skip_while(|line| !line.contains("profile:")).nth(1).unwrap();
    assert!(memcpy.starts_with("  memcpy ") && memcpy.contains(" calls "), "{text}");
    assert!(text.starts_with("adma: stats_µ (pid "), "{text}");
    let plain = report("C");
    assert!(plain.is_ascii() && plain.starts_with("adma: stats_u (pid "), "{plain}");
}

#[test]
fn report_of_a_process_that_shared_nothing_has_no_time_without() {
    let folder = scratch("libc");
    let mut run = preloaded(victim("stats_copies"));
    run.args(["memcpy", "349520", "1"]).env("ADMA_BACKEND", "libc");
    let lines: String = statistics(&mut run).iter().map(|value| format!("{value}\n")).collect();
    fs::write(folder.join("x.json"), lines).unwrap();
    let page = folder.join("x.html");
    let mut report = adma();
    report.arg("report").arg(folder.join("x.json")).arg("--html").arg(&page);
    let (text, _) = succeed(&mut report);
    assert!(text.contains("by libc") && !text.contains("without adma"), "{text}");
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("Every copy stayed with libc"));
    // One copy has one size in all tables: not one edge of its bucket or another.
    let has = |size: &str| page.contains(&format!(">{size}\u{a0}KiB<"));
    assert!(has("341") && !has("339") && !has("342"), "{page}");
}

#[test]
fn report_of_bad_files_names_them_and_shows_the_others() {
    let (folder, _) = reports();
    let whole = fs::read(folder.join("0.json")).unwrap();
    fs::write(folder.join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let page = folder.join("page.html");
    let done = finish(
        adma()
            .arg("report")
            .args(["missing.json", "cut.json", "0.json", "--html"])
            .arg(&page)
            .current_dir(&folder),
    );
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
    assert!(
        err.contains("adma: missing.json: No such file")
            && err.contains("adma: cut.json: report 1 is cut off"),
        "{err}"
    );
    assert!(text(&done.stdout).starts_with("adma: stats_copies"));
    assert!(page.exists());
    // Without a good report there is neither page nor text.
    fs::remove_file(&page).unwrap();
    let done = finish(adma().arg("report").arg(folder.join("cut.json")).arg("--html").arg(&page));
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), String::new()));
    assert!(!page.exists());
    for arguments in [&["report"][..], &["report", "--html"], &["report", "--nonsense", "x"]] {
        let done = finish(adma().args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
    }
}

#[test]
fn report_whose_page_or_log_cannot_be_written_prints_the_text_and_fails() {
    let (folder, _) = reports();
    let file = folder.join("0.json");
    let (text_alone, _) = succeed(adma().arg("report").arg(&file));
    for option in ["--html", "--hlog"] {
        let done = finish(adma().arg("report").arg(&file).args([option, "/no/such/folder/x"]));
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), text_alone.clone()));
        let why = "adma: /no/such/folder/x: No such file or directory\n";
        assert_eq!(text(&done.stderr), why, "{option}");
    }
    // The file that can be written is.
    let page = folder.join("page.html");
    let mut both = adma();
    both.arg("report").arg(&file).args(["--hlog", "/no/such/folder/x", "--html"]).arg(&page);
    assert_eq!(finish(&mut both).status.code(), Some(1));
    assert!(page.exists());
}

/// Returns Debian's browser, of either package.
fn browser() -> Option<&'static str> {
    ["chromium", "chromium-headless-shell"].into_iter().find(|name| found(name))
}

fn browse(page: &Path, options: &[&str]) -> String {
    let mut command = plain(browser().unwrap());
    let profile = scratch("profile");
    command.args(["--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage"]);
    command.args(["--hide-scrollbars", "--force-device-scale-factor=1"]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(options);
    command.arg(format!("file://{}", page.display())).env("HOME", &profile);
    let (out, _) = succeed(&mut command);
    let _ = fs::remove_dir_all(profile);
    out
}

#[test]
fn page_stands_alone_in_a_browser() {
    if browser().is_none() {
        return skip_this("no chromium is installed");
    }
    let (folder, all) = reports();
    let files: Vec<_> = (0..3).map(|n| folder.join(format!("{n}.json"))).collect();
    // A name that would be markup if it were not escaped.
    let odd = fs::read_to_string(&files[0]).unwrap();
    let exe = all[0]["exe"].as_str().unwrap();
    fs::write(&files[0], odd.replace(exe, "/tmp/<img src=x onerror=document.title='taken'>"))
        .unwrap();
    let page = folder.canonicalize().unwrap().join("page.html");
    succeed(adma().arg("report").args(&files).arg("--html").arg(&page));

    let dom = browse(&page, &["--dump-dom"]);
    assert!(!dom.contains("<img") && !dom.contains("taken</title>"), "markup came through");
    assert!(dom.contains("&lt;img src=x"), "the name is shown");
    // DOM of the browser: rows with bars, tables with heads, elements to open.
    let count = |what: &str| dom.matches(what).count();
    let bars = count("<tr class=\"bars\" aria-hidden=\"true\">");
    assert!(bars >= 60, "{bars} rows with bars");
    assert_eq!(count("<div class=\"strip\" role=\"img\" aria-label="), 4, "of all and of each");
    assert_eq!(count("<details>"), 3);
    assert!(count("<caption>") >= 4 * 3 && count("scope=\"col\"") > 40);
    for part in ["Size of a copy", "copies", "bytes", "Time of a copy", "p50", "MiB", "µs"] {
        assert!(count(part) > 0, "{part}");
    }
    let calls: u64 = all.iter().map(|v| v["paths"]["engine"]["calls"].as_u64().unwrap()).sum();
    assert!(dom.contains(&format!(
        "<b>{}</b>",
        calls + all.iter().map(|v| v["paths"]["libc"]["calls"].as_u64().unwrap()).sum::<u64>()
    )));

    // The picture is drawn: a page of one colour compresses to next to nothing.
    for (name, scheme) in [("light", "1"), ("dark", "0")] {
        let png = folder.join(format!("{name}.png"));
        let shot = format!("--screenshot={}", png.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        browse(&page, &[&shot, &scheme, "--window-size=1200,2400"]);
        let bytes = fs::read(&png).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 40_000, "{name}: {}", bytes.len());
    }
    assert_ne!(
        fs::read(folder.join("light.png")).unwrap(),
        fs::read(folder.join("dark.png")).unwrap()
    );
}

/// Reports what is wrong with a page's layout: elements that reach beyond their parents, and bars
/// whose length is not their share.
const LAYOUT: &str = r#"<script>
addEventListener('load', () => {
  document.querySelectorAll('details').forEach(one => one.open = true);
  const wrong = [];
  const name = e => e.tagName + '.' + e.className + ' "' + e.textContent.trim().slice(0, 30) + '"';
  for (const e of document.body.querySelectorAll(':not(.skip):not(script)')) {
    const [mine, its] = [e, e.parentElement].map(one => one.getBoundingClientRect());
    if (mine.right > its.right + 1 || mine.left < its.left - 1) wrong.push('beyond its parent: ' + name(e));
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0) wrong.push('cut off: ' + name(e));
    const share = parseFloat(e.style.width);
    if (e.tagName === 'I' && share && mine.width > 4 && Math.abs(100 * mine.width / its.width - share) > 1)
      wrong.push('bar of ' + share + ' % is ' + 100 * mine.width / its.width);
  }
  const all = [innerWidth, document.querySelectorAll('.bars i').length, ...wrong];
  document.body.innerHTML = '';
  document.title = 'LAYOUT ' + all.join(' | ');
});
</script></body>"#;

#[test]
fn pages_fit_their_parents_at_every_width() {
    if browser().is_none() {
        return skip_this("no chromium is installed");
    }
    let (folder, _) = reports();
    let folder = folder.canonicalize().unwrap();
    let files: Vec<_> = (0..3).map(|n| folder.join(format!("{n}.json"))).collect();
    succeed(adma().arg("report").args(&files).arg("--html").arg(folder.join("run.html")));
    let long = "a-long-word-that-has-no-place-to-be-broken-".repeat(8);
    let mut bench = adma();
    bench.args(["bench", "-n", "2", "-w", "0", "--with", "ADMA_CHANNELS=1", "--html"]);
    succeed(bench.arg(folder.join("bench.html")).args(["sh", "-c", "exit 0", &long]));
    let mut none = adma();
    succeed(none.arg("--html").arg(folder.join("none.html")).args(["true", &long]));
    for (page, fewest_bars) in [("run", 60), ("bench", 3), ("none", 0)] {
        let made = fs::read_to_string(folder.join(page).with_extension("html")).unwrap();
        let policy = made.find("<meta http-equiv").unwrap();
        let behind = policy + made[policy..].find('\n').unwrap();
        let measured = [&made[..policy], &made[behind..]].concat().replace("</body>", LAYOUT);
        let copy = folder.join(format!("{page}-measured.html"));
        fs::write(&copy, measured).unwrap();
        for width in [390, 1280, 2200] {
            let size = format!("--window-size={width},900");
            let dom = browse(&copy, &["--dump-dom", &size]);
            let told = dom.split("LAYOUT ").nth(1).and_then(|rest| rest.split("</title>").next());
            let told: Vec<&str> = told.unwrap_or_else(|| panic!("{dom}")).split(" | ").collect();
            if told[0] != width.to_string() {
                return skip_this(&format!("this browser makes no window of {width} points"));
            }
            assert!(told[1].parse::<u32>().unwrap() >= fewest_bars, "{page}: {told:?}");
            assert_eq!(told.get(2..), Some(&[][..]), "{page} at {width}");
        }
    }
}
