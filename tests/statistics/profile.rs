//! The profile: copies of every size, by function.

use super::*;

fn profile(arguments: &str) -> Value {
    let mut command = fixed("stats_copies", arguments);
    let json = only_report(command.env("ADMA_PROFILE", "1"));
    check(&json);
    let all = json["profile"]["functions"].as_object().unwrap().values();
    let calls = all.map(|function| number(&function["calls"])).sum();
    check_histogram(&json["profile"]["size"], calls);
    json
}

#[test]
fn profile_counts_small_copies_by_function() {
    let functions = ["memcpy", "memmove", "mempcpy", "bcopy", "wmemcpy", "wmemmove"];
    let run = |count: u64| {
        let what: Vec<String> =
            functions.iter().map(|name| format!("{name} 400 {count}")).collect();
        profile(&what.join(" "))
    };
    let (few, more) = (run(10), run(1010));
    for name in functions {
        let counted = |json: &Value, what: &str| number(&json["profile"]["functions"][name][what]);
        assert!(counted(&few, "calls") >= 10, "{name}: {few}");
        assert_eq!(counted(&more, "calls") - counted(&few, "calls"), 1000, "{name}");
        assert_eq!(counted(&more, "bytes") - counted(&few, "bytes"), 400_000, "{name}");
    }
    // Counted, but small: no path has seen them.
    assert_eq!(more["paths"]["engine"]["calls"], 0);
    assert_eq!(more["paths"]["libc"]["calls"], 0);
}

#[test]
fn profile_counts_the_programs_own_copies_only() {
    let json = profile("memcpy 100 25 memcpy 1000000 10");
    let memcpy = &json["profile"]["functions"]["memcpy"];
    assert_eq!((number(&memcpy["calls"]), number(&memcpy["bytes"])), (35, 10_002_500), "{json}");
}

#[test]
fn profile_without_stats_prints_distribution_and_suggestion() {
    for (what, reason) in
        [("memcpy 100 1000 memmove 5000 100", "no copy reaches"), ("memcpy 2000000 50", "")]
    {
        let mut command = fixed("stats_copies", what);
        command.env_remove("ADMA_MIN_BYTES").env("ADMA_PROFILE", "1");
        let (out, err) = succeed(&mut command);
        assert!(out.ends_with("bytes copied\n") && out.lines().count() == 1);
        let calls = err.lines().find(|line| line.trim_start().starts_with("memcpy ")).unwrap();
        let count: u64 = calls.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(count >= 50, "{err}");
        assert!(err.lines().any(|line| line.ends_with("##")), "no bars: {err}");
        let suggestion = err.lines().last().unwrap();
        assert!(suggestion.trim_start().starts_with("suggested: "), "{err}");
        assert!(suggestion.contains(reason), "{err}");
        assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    }
}

#[test]
fn profile_reports_also_where_no_copy_was_large() {
    let mut command = fixed("stats_copies", "memcpy 100 50");
    let (_, err) = succeed(command.env("ADMA_PROFILE", "1").env("ADMA_STATS", "json"));
    assert!(number(&parsed(&err)["profile"]["functions"]["memcpy"]["calls"]) >= 50);
}
