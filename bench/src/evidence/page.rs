//! The page: one self-contained file. Losses first, then the table of claims, plots with their
//! tables, and the output of each benchmark.

use super::claims::{self, CLAIMS, LOSSES};
use super::plot::{Plot, escape, number};
use crate::driver::Results;
use crate::out::{self, Figures};
use crate::targets::matches;
use adma_shared::knobs;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// A plot: file name, title, x axis, y axis, whether y is logarithmic, and its lines: name and
/// pattern of keys, whose first `*` is x.
type Drawing = (Text, Text, Text, Text, bool, &'static [(Text, Text)]);
type Text = &'static str;

#[rustfmt::skip]
const DRAWINGS: &[Drawing] = &[
    ("copy", "One copy at a time, x libc", "size", "x libc", false, &[("cold, in a row", "copy.cold.*.row_libc"), ("cold, after a pause", "copy.cold.*.pause_libc"), ("hot", "copy.hot.*.row_libc"), ("hot, then read", "copy.used.*.row_libc"), ("ceiling: threads", "copy.cold.*.ceiling_libc"), ("--against, cold", "copy.cold.*.against_libc")]),
    ("scaling-16", "Sizes, 16 CPUs, with the ceilings", "size", "GB/s", true, &[("adma", "scaling.cpus.16.*.shim"), ("libc", "scaling.cpus.16.*.libc"), ("bare threads", "scaling.cpus.16.*.threads"), ("streaming, all CPUs", "scaling.cpus.16.*.stream")]),
    ("scaling-2", "Sizes, 2 CPUs, with the ceilings", "size", "GB/s", true, &[("adma", "scaling.cpus.2.*.shim"), ("libc", "scaling.cpus.2.*.libc"), ("bare threads", "scaling.cpus.2.*.threads"), ("streaming, all CPUs", "scaling.cpus.2.*.stream")]),
    ("scaling", "CPUs, 16 MiB cold, with the ceilings", "CPUs", "GB/s", false, &[("adma", "scaling.cpus.*.16M.shim"), ("libc", "scaling.cpus.*.16M.libc"), ("bare threads", "scaling.cpus.*.16M.threads"), ("streaming, all CPUs", "scaling.cpus.*.16M.stream")]),
    ("threads", "Threads that copy at once, cold", "threads", "GB/s", true, &[("adma, 1 MiB", "scaling.threads.*.1M.shim"), ("libc, 1 MiB", "scaling.threads.*.1M.libc"), ("adma, 16 MiB", "scaling.threads.*.16M.shim"), ("libc, 16 MiB", "scaling.threads.*.16M.libc")]),
    ("window", "128 copies outstanding, cold (ADCE 5)", "size", "GB/s", false, &[("adma_icopy", "async.window.*.gbs"), ("libc", "async.window.*.libc_gbs")]),
    ("overlap", "Part of a copy hidden behind computation (ADCE 6)", "size", "overlap", false, &[("hot", "async.overlap_hot.*.part"), ("cold", "async.overlap.*.part")]),
    ("split", "Parts of a split-phase copy (ADCE 7)", "size", "%", false, &[("start", "phases.split.*.start"), ("work, can be hidden", "phases.split.*.work"), ("wait", "phases.split.*.wait")]),
    ("cache", "Columns of a small buffer after a copy of 64 MiB (ADCE 8)", "small buffer", "x undisturbed", false, &[("libc", "cache.*.libc"), ("threads", "cache.*.threads"), ("streaming alone", "cache.*.streaming"), ("graphics card", "gpu.cache.*.threads"), ("undisturbed again", "cache.*.again")]),
    ("messages", "Messages between processes, half a round trip (ADCE 9a)", "size", "us", true, &[("adma", "ipc.us.*.adma"), ("adma_alloc", "ipc.us.*.adma_alloc"), ("pipe", "ipc.us.*.pipe"), ("socket", "ipc.us.*.socket"), ("shared memory", "ipc.us.*.shared_memory"), ("process_vm_readv", "ipc.us.*.process_vm"), ("Open MPI", "mpi.us.2.cma.pingpong.*")]),
    ("one-way", "Messages one way (ADCE 9b)", "size", "MB/s", true, &[("adma", "ipc.oneway.*.adma"), ("adma_alloc", "ipc.oneway.*.adma_alloc"), ("pipe", "ipc.oneway.*.pipe"), ("socket", "ipc.oneway.*.socket"), ("shared memory", "ipc.oneway.*.shared_memory")]),
    ("receive", "Receive overhead, cold: CPU held by the copy (DAMNICK 1)", "size", "us", true, &[("libc", "phases.receive.cold.*.libc.copy_us"), ("threads", "phases.receive.cold.*.threads.copy_us"), ("split", "phases.receive.cold.*.split.copy_us"), ("start of split", "phases.receive.cold.*.split.start_us"), ("look, libc", "phases.receive.cold.*.libc.look_us"), ("look, split", "phases.receive.cold.*.split.look_us")]),
    ("small", "Small copies in cache, x libc", "size", "x libc", false, &[("adma", "small.*.libc"), ("--against", "small.*.against")]),
    ("alltoall", "Open MPI alltoall of 4 MiB, with / without (Open-MX 12)", "ranks", "x", false, &[("cma", "mpi.*.cma.alltoall.4M.ratio"), ("copy in, copy out", "mpi.*.none.alltoall.4M.ratio"), ("MPICH", "mpi.*.mpich.alltoall.4M.ratio"), ("integer sort, cma", "mpi.*.cma.sort.16M.ratio")]),
];

/// Drawings that are also separate files, of the machine with the most CPUs.
const FILES: [&str; 3] = ["copy", "scaling", "messages"];

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1300px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;margin:.6em 0}td,th{border:1px solid #bbb;padding:2px 8px;\
text-align:right;font-variant-numeric:tabular-nums}td.t,th.t{text-align:left}th{background:#eee}\
.wide{overflow-x:auto}.t:nth-child(3){min-width:13em}\
.row{display:flex;flex-wrap:wrap;gap:1.5em}figure{margin:0;max-width:100%}pre{overflow:auto;background:#f5f5f5;\
padding:.6em;font-size:12px}svg{max-width:100%;height:auto}caption{text-align:left;font-weight:bold}";

/// Writes index.html, claims.csv and the separate plots.
pub fn write(folder: &Path, all: &[Results]) -> io::Result<()> {
    fs::write(folder.join("index.html"), html(all))?;
    fs::write(folder.join("claims.csv"), claims_csv(all))?;
    for drawing in DRAWINGS.iter().filter(|drawing| FILES.contains(&drawing.0)) {
        let drawn = all.iter().rev().map(|results| plot(drawing, &results.figures));
        if let Some(plot) = drawn.into_iter().find(|plot| !plot.lines.is_empty()) {
            fs::write(folder.join(format!("{}.svg", drawing.0)), plot.svg() + "\n")?;
        }
    }
    Ok(())
}

/// For instance "16 CPUs, 2026-11-15".
fn label(results: &Results) -> String {
    let day = results.date.split(' ').next().unwrap_or_default();
    let cpus = results.about("cpus");
    format!("{cpus} CPU{}, {day}", if cpus == "1" { "" } else { "s" })
}

fn html(all: &[Results]) -> String {
    let mut page = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>adma: evidence</title><style>\
         {STYLE}</style></head><body><h1>adma: evidence</h1>\n<p>Figures are ratios to libc, \
         or to runs without the library, measured in turn in one run; above 1 adma is faster. \
         <code>bench/run evidence</code> measures again; <code>bench/run --compare A B</code> tells \
         what changed. Figures with their intervals: <code>figures.csv</code> in the folder of each \
         run.</p>\n"
    );
    page += &losses(all);
    page += &claims_table(all);
    page += "<h2>Plots</h2>\n";
    for drawing in DRAWINGS {
        page += &drawing_of(drawing, all);
    }
    page += &programs(all);
    page += "<h2>Machines</h2>\n";
    for results in all {
        let rows = results
            .machine
            .iter()
            .map(|(name, value)| vec![escape(name), escape(value.as_str().unwrap_or_default())]);
        let _ = write!(
            page,
            "<h3>{}</h3><p>{}, <code>{}</code></p>{}",
            label(results),
            escape(&results.date),
            escape(&results.command),
            table(&["", ""], rows, 2)
        );
    }
    page += "<h2>What each benchmark printed</h2>\n";
    for results in all {
        for (name, text) in &results.texts {
            let text = escape(text.as_str().unwrap_or_default());
            let title = format!("{name}, {}", label(results));
            let _ =
                writeln!(page, "<details><summary>{title}</summary><pre>{text}</pre></details>");
        }
    }
    page + "</body></html>\n"
}

/// Returns a table, which scrolls where it is too wide; the first columns hold text. Cells are HTML.
fn table<S: AsRef<str>>(
    head: &[S],
    rows: impl IntoIterator<Item = Vec<String>>,
    text: usize,
) -> String {
    let class = |column: usize| if column < text { " class=\"t\"" } else { "" };
    let mut html = "<div class=\"wide\"><table><tr>".to_string();
    for (column, cell) in head.iter().enumerate() {
        let _ = write!(html, "<th{}>{}</th>", class(column), cell.as_ref());
    }
    html += "</tr>\n";
    for row in rows {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td{}>{cell}</td>", class(column));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

fn losses(all: &[Results]) -> String {
    let mut head = vec!["what adma does not help, or costs".to_string()];
    head.extend(all.iter().map(label));
    let rows = LOSSES.iter().map(|(text, pattern, more_is_worse)| {
        let mut row = vec![escape(text)];
        for results in all {
            row.push(match claims::worst(pattern, *more_is_worse, &results.figures) {
                Some((key, value)) if pattern.contains(['*', '|']) => {
                    format!("{} <small>{}</small>", number(value), escape(key))
                }
                Some((_, value)) => number(value),
                None => "not measured".into(),
            });
        }
        row
    });
    let mut html = format!("<h2>Losses first</h2>\n{}", table(&head, rows, 1));
    for results in all {
        let low = claims::below(0.97, &results.figures);
        let rows = low.iter().map(|(key, value)| vec![escape(key), number(*value)]);
        let _ = writeln!(
            html,
            "<details><summary>{}: figures below 0.97 of libc or plain: {}</summary>{}</details>",
            label(results),
            low.len(),
            table(&["figure", "x"], rows, 1)
        );
    }
    html
}

fn claims_table(all: &[Results]) -> String {
    let mut head: Vec<String> =
        ["paper", "figure", "what it says", "its number", "ours is"].map(String::from).into();
    for results in all {
        head.extend([label(results), "ours / its".into()]);
    }
    head.push("command".into());
    let rows = CLAIMS.iter().map(|claim| {
        let mut row: Vec<String> = [claim.paper, claim.figure, claim.says].map(escape).into();
        row.extend([claim.number.map_or("-".into(), number), escape(claim.what)]);
        for results in all {
            let ours = claim.ours(&results.figures);
            let of_all = claim.compared(&results.figures).map(|all| format!(", lowest of {all}"));
            row.push(ours.map_or("not measured".into(), number) + &of_all.unwrap_or_default());
            let ratio = ours.zip(claim.number).map(|(ours, its)| number(ours / its));
            let counts = claim.what.starts_with(claims::COUNTS);
            row.push(if counts { "counts only".into() } else { ratio.unwrap_or("-".into()) });
        }
        row.push(format!("<code>{}</code>", escape(claim.command)));
        row
    });
    format!(
        "<h2>The papers' claims</h2>\n<p>ADCE: Vaidyanathan and others, 2007. Open-MX: Goglin. miNI: \
         Azimi, Bilas. DAMNICK: Ciaccio. Rows \"counts only\" would need I/OAT hardware to be a \
         time.</p>\n{}",
        table(&head, rows, 3)
    )
}

fn claims_csv(all: &[Results]) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut csv = "paper,figure,says,number,ours is".to_string();
    all.iter().for_each(|results| csv += &format!(",{}", quote(&label(results))));
    csv += ",command\n";
    for claim in CLAIMS {
        let text = [claim.paper, claim.figure, claim.says].map(quote).join(",");
        let its = claim.number.map_or(String::new(), number);
        csv += &format!("{text},{its},{}", quote(claim.what));
        for results in all {
            csv += &format!(",{}", claim.ours(&results.figures).map_or(String::new(), number));
        }
        csv += &format!(",{}\n", quote(claim.command));
    }
    csv
}

fn plot<'a>(drawing: &'a Drawing, figures: &Figures) -> Plot<'a> {
    let (_, title, x, y, log_y, lines) = *drawing;
    let line = |(name, pattern): &(&str, &str)| {
        let column = pattern.split('.').position(|field| field == "*")?;
        let points = figures.iter().filter(|(key, _)| matches(pattern, key));
        let point = |(key, figure): (&String, &out::Figure)| {
            Some((knobs::size(key.split('.').nth(column)?)? as f64, figure.value))
        };
        let mut points: Vec<(f64, f64)> = points.filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then(|| (name.to_string(), points))
    };
    Plot { title, x, y, log_y, lines: lines.iter().filter_map(line).collect() }
}

/// Returns the plot of each machine, side by side, with its table.
fn drawing_of(drawing: &Drawing, all: &[Results]) -> String {
    let mut html = format!("<h3>{}</h3><div class=\"row\">\n", escape(drawing.1));
    for results in all {
        let plot = plot(drawing, &results.figures);
        let _ = write!(html, "<figure><figcaption>{}</figcaption>", label(results));
        if plot.lines.is_empty() {
            html += "<p>not measured</p></figure>\n";
            continue;
        }
        let xs = plot.xs();
        let mut head = vec![String::new()];
        head.extend(xs.iter().map(|x| out::size(*x as usize)));
        let rows = plot.lines.iter().map(|(name, points)| {
            let cell = |x: &f64| {
                points.iter().find(|point| point.0 == *x).map_or("-".into(), |p| number(p.1))
            };
            [escape(name)].into_iter().chain(xs.iter().map(cell)).collect()
        });
        let table = table(&head, rows, 1);
        let _ = writeln!(html, "{}{table}</figure>", plot.svg());
    }
    html + "</div>\n"
}

fn programs(all: &[Results]) -> String {
    let mut names: Vec<&str> = all
        .iter()
        .flat_map(|results| results.figures.keys())
        .filter(|key| matches("programs.*.whole", key))
        .filter_map(|key| key.split('.').nth(1))
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut head = vec!["whole runs".to_string()];
    for results in all {
        head.extend([label(results), "CPU time".into(), "noise".into(), "--against".into()]);
    }
    let rows = names.iter().map(|name| {
        let mut row = vec![escape(name)];
        for results in all {
            row.extend(["whole", "cpu", "null", "against"].map(|what| {
                let figure = results.figures.get(&format!("programs.{name}.{what}"));
                figure.map_or("-".into(), |figure| number(figure.value))
            }));
        }
        row
    });
    format!("<h2>Programs, x plain (CPU time: less is better)</h2>\n{}", table(&head, rows, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::Figure;

    fn results(list: &[(&str, f64)]) -> Results {
        let figure = |&(key, value): &(&str, f64)| (key.into(), Figure { value, interval: None });
        Results { figures: list.iter().map(figure).collect(), ..Results::default() }
    }

    #[test]
    fn page_has_every_claim_whatever_was_measured() {
        for all in [vec![], vec![results(&[("ipc.4M.best", 2.0)]), results(&[])]] {
            let page = html(&all);
            for claim in CLAIMS {
                assert!(page.contains(&escape(claim.says)), "{}", claim.says);
            }
            assert_eq!(claims_csv(&all).lines().count(), CLAIMS.len() + 1);
            let (losses, claims) = (page.find("Losses first"), page.find("The papers' claims"));
            assert!(losses < claims && losses.is_some());
        }
    }

    #[test]
    fn plots_have_their_points_in_order_and_a_table() {
        let one = results(&[
            ("copy.cold.16M.row_libc", 3.0),
            ("copy.cold.64K.row_libc", 1.0),
            ("copy.hot.64K.row_libc", 0.9),
        ]);
        let plot = plot(&DRAWINGS[0], &one.figures);
        assert_eq!(plot.lines[0].1, [(65536.0, 1.0), (16777216.0, 3.0)]);
        assert_eq!(plot.xs().len(), 2);
        assert_eq!(plot.svg().matches("<polyline").count(), 2);
        let html = drawing_of(&DRAWINGS[0], &[one]);
        for part in ["<svg", "<th>16M</th>", "<td>0.90</td>"] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn losses_name_the_worst_figure() {
        let small = [("small.1K.more_ns", 0.7), ("small.64.more_ns", 0.9)];
        let one = results(&[small[0], small[1], ("copy.hot.1M.row_libc", 0.8)]);
        assert_eq!(claims::worst("small.*.more_ns", true, &one.figures), Some(small[1]));
        assert_eq!(claims::below(0.97, &one.figures), [("copy.hot.1M.row_libc", 0.8)]);
        assert!(losses(&[one]).contains("0.90 <small>small.64.more_ns</small>"));
    }
}
