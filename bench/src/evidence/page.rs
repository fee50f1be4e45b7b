//! The page, as Markdown with a file for each plot: losses first, then plots with their tables, programs,
//! the papers' claims, and the output of each benchmark.

use super::claims::{self, CLAIMS, Claim, LOSSES};
use super::plot::{Plot, number};
use crate::driver::Results;
use crate::out::{self, Figures};
use crate::targets::matches;
use adma_report::html::Html;
use adma_report::markdown::Markdown;
use adma_report::{Document, Format, Part, Parts, Picture, Row, Section, Table, Words};
use adma_shared::knobs;
use std::path::Path;
use std::{fs, io};

/// A plot: file name, title, x axis, y axis, whether y is logarithmic, and its lines: name and
/// pattern of keys, whose first `*` is x. The first field of its patterns is the benchmark.
type Drawing = (Text, Text, Text, Text, bool, &'static [(Text, Text)]);
type Text = &'static str;

#[rustfmt::skip]
const DRAWINGS: &[Drawing] = &[
    ("used", "Loops that use what they copy, x libc", "size", "x libc", false, &[("write, copy, read", "used.steady.write_copy_read.*"), ("the same, after cold", "used.after_cold.write_copy_read.*"), ("the same, after hot", "used.after_hot.write_copy_read.*"), ("the same, by turns", "used.by_turns.write_copy_read.*"), ("cold copy, read", "used.steady.cold_copy_read.*"), ("hot copy, after cold", "used.after_cold.copy.*")]),
    ("copy", "One copy at a time, x libc", "size", "x libc", false, &[("cold, in a row", "copy.cold.*.row_libc"), ("cold, after a pause", "copy.cold.*.pause_libc"), ("hot", "copy.hot.*.row_libc"), ("hot, then read", "copy.used.*.row_libc"), ("ceiling: threads", "copy.cold.*.ceiling_libc"), ("glibc streams from 1 MiB, cold", "copy.cold.*.threshold_libc"), ("--against, cold", "copy.cold.*.against_libc")]),
    ("scaling-16", "Sizes, 16 CPUs, with the ceilings", "size", "GB/s", true, &[("adma", "scaling.cpus.16.*.shim"), ("libc", "scaling.cpus.16.*.libc"), ("bare threads", "scaling.cpus.16.*.threads"), ("streaming, all CPUs", "scaling.cpus.16.*.stream")]),
    ("scaling-2", "Sizes, 2 CPUs, with the ceilings", "size", "GB/s", true, &[("adma", "scaling.cpus.2.*.shim"), ("libc", "scaling.cpus.2.*.libc"), ("bare threads", "scaling.cpus.2.*.threads"), ("streaming, all CPUs", "scaling.cpus.2.*.stream")]),
    ("scaling", "CPUs, 16 MiB cold, with the ceilings", "CPUs", "GB/s", false, &[("adma", "scaling.cpus.*.16M.shim"), ("libc", "scaling.cpus.*.16M.libc"), ("bare threads", "scaling.cpus.*.16M.threads"), ("streaming, all CPUs", "scaling.cpus.*.16M.stream")]),
    ("threads", "Threads that copy at once, cold", "threads", "GB/s", true, &[("adma, 1 MiB", "scaling.threads.*.1M.shim"), ("libc, 1 MiB", "scaling.threads.*.1M.libc"), ("adma, 16 MiB", "scaling.threads.*.16M.shim"), ("libc, 16 MiB", "scaling.threads.*.16M.libc")]),
    ("window", "128 copies outstanding, cold (ADCE 5)", "size", "GB/s", false, &[("adma_icopy", "async.window.*.gbs"), ("libc", "async.window.*.libc_gbs")]),
    ("overlap", "Part of a copy hidden behind computation (ADCE 6)", "size", "overlap", false, &[("hot", "async.overlap_hot.*.part"), ("cold", "async.overlap.*.part")]),
    ("split", "Parts of a split-phase copy (ADCE 7)", "size", "%", false, &[("start", "phases.split.*.start"), ("work, can be hidden", "phases.split.*.work"), ("wait", "phases.split.*.wait")]),
    ("cpu", "CPU time of a cold copy, all threads, their spinning included", "size", "ns for a KiB", false, &[("adma", "phases.cpu.*.shim_ns_kib"), ("libc", "phases.cpu.*.libc_ns_kib")]),
    ("cache", "Columns of a small buffer after a copy of 64 MiB (ADCE 8)", "small buffer", "x undisturbed", false, &[("libc", "cache.*.libc"), ("threads", "cache.*.threads"), ("streaming alone", "cache.*.streaming"), ("graphics card", "gpu.cache.*.threads"), ("undisturbed again", "cache.*.again")]),
    ("messages", "Messages between processes, half a round trip (ADCE 9a)", "size", "us", true, &[("adma", "ipc.us.*.adma"), ("adma_alloc", "ipc.us.*.adma_alloc"), ("pipe", "ipc.us.*.pipe"), ("socket", "ipc.us.*.socket"), ("shared memory", "ipc.us.*.shared_memory"), ("process_vm_readv", "ipc.us.*.process_vm"), ("Open MPI", "mpi.us.2.cma.pingpong.*"), ("Open MPI over UCX", "mpi.us.2.ucx.pingpong.*")]),
    ("one-way", "Messages one way (ADCE 9b)", "size", "MB/s", true, &[("adma", "ipc.oneway.*.adma"), ("adma_alloc", "ipc.oneway.*.adma_alloc"), ("pipe", "ipc.oneway.*.pipe"), ("socket", "ipc.oneway.*.socket"), ("shared memory", "ipc.oneway.*.shared_memory")]),
    ("receive", "Receive overhead, cold: CPU held by the copy (DAMNICK 1)", "size", "us", true, &[("libc", "phases.receive.cold.*.libc.copy_us"), ("threads", "phases.receive.cold.*.threads.copy_us"), ("split", "phases.receive.cold.*.split.copy_us"), ("start of split", "phases.receive.cold.*.split.start_us"), ("look, libc", "phases.receive.cold.*.libc.look_us"), ("look, split", "phases.receive.cold.*.split.look_us")]),
    ("pins", "Translation cache: misses of real copies, 4 ways (miNI 5)", "pages in a line", "misses per 1000 pages", true, &[("numpy, 8K entries", "pins.numpy-slices.8K.*.4"), ("numpy, 16K", "pins.numpy-slices.16K.*.4"), ("numpy, 32K", "pins.numpy-slices.32K.*.4"), ("Redis, 16K", "pins.redis-1M.16K.*.4"), ("MPI, 8K", "pins.mpi-collectives.8K.*.4"), ("MPI, 16K", "pins.mpi-collectives.16K.*.4"), ("MPI, 32K", "pins.mpi-collectives.32K.*.4")]),
    ("small", "Small copies in cache, x libc", "size", "x libc", false, &[("adma", "small.*.libc"), ("--against", "small.*.against")]),
    ("alltoall", "Open MPI alltoall of 4 MiB, with / without (Open-MX 12)", "ranks", "x", false, &[("cma", "mpi.*.cma.alltoall.4M.ratio"), ("cma, ranks bound", "mpi.*.cma_bound.alltoall.4M.ratio"), ("UCX, cma", "mpi.*.ucx.alltoall.4M.ratio"), ("copy in, copy out", "mpi.*.none.alltoall.4M.ratio"), ("MPICH", "mpi.*.mpich.alltoall.4M.ratio"), ("integer sort, cma", "mpi.*.cma.sort.16M.ratio")]),
];

/// Columns of the table of programs: last field of their keys, and title; that of the machine is its own.
const PROGRAMS: [(Text, Text); 8] = [
    ("whole", ""),
    ("cpu", "CPU time"),
    ("null", "noise"),
    ("own", "own threads"),
    ("threshold", "streams early"),
    ("hugetlb", "huge pages"),
    ("tuned", "both"),
    ("against", "--against"),
];

/// Columns of the table of memory: last field of their keys, and title.
const MEMORY: [(Text, Text); 6] = [
    ("plain_rss_mib", "largest process, MiB"),
    ("rss", "with adma, x"),
    ("plain_pss_mib", "all, MiB"),
    ("pss", "with adma, x"),
    ("plain_huge_mib", "in huge pages, MiB"),
    ("huge_mib", "with adma, MiB"),
];

/// Name of the page: the one that code hosts show for a folder.
pub const FILE: &str = "README.md";

/// Writes the page, its plots and claims.csv, and index.html: the same in one file that stands alone.
pub fn write(folder: &Path, all: &[Results]) -> io::Result<()> {
    let page = document(all);
    fs::write(folder.join(FILE), Markdown.write(&page))?;
    fs::write(folder.join("index.html"), Html.write(&page))?;
    fs::write(folder.join("claims.csv"), claims_csv(all))?;
    let mut pictures = page.sections.iter().flat_map(|section| &section.pictures);
    pictures.try_for_each(|one| fs::write(folder.join(&one.file), format!("{}\n", one.svg)))
}

/// For instance "16 CPUs, 2026-11-15".
fn label(results: &Results) -> String {
    let day = results.date.split(' ').next().unwrap_or_default();
    let cpus = results.about("cpus");
    format!("{cpus} CPU{}, {day}", if cpus == "1" { "" } else { "s" })
}

fn document(all: &[Results]) -> Document {
    let about = "Figures are ratios to libc, or to runs without the library, measured in turn in one run; \
                 above 1 adma is faster. bench/run evidence measures again; bench/run --compare A B tells \
                 what changed. Figures with their intervals: figures.csv in the folder of each run. Plots \
                 are of the machine with the most CPUs. This page is made by bench/run page.";
    let mut sections = vec![losses(all)];
    sections.extend(DRAWINGS.iter().map(|drawing| drawing_of(drawing, all)));
    sections.extend([programs(all), memory(all), claims_section(all)]);
    sections.push(Section {
        title: "Machines".into(),
        tables: all.iter().map(machine).collect(),
        ..Section::default()
    });
    let parts = all.iter().map(low_figures).chain(all.iter().flat_map(printed)).collect();
    Document {
        name: "adma: evidence".to_owned(),
        about: vec![about.to_owned()],
        sections,
        parts: Parts { title: "In detail", all: parts, others: None },
        ..Document::default()
    }
}

fn machine(results: &Results) -> Table {
    let fact = |(name, value): (&String, &serde_json::Value)| {
        Row::new([name.as_str(), value.as_str().unwrap_or_default()])
    };
    let command = Row::new(["measured", &format!("{}, {}", results.date, results.command)]);
    let rows = results.machine.iter().map(fact).chain([command]).collect();
    left(Table::new(label(results), ["machine", "is"], rows))
}

/// Aligns all columns left.
fn left(mut table: Table) -> Table {
    table.columns.iter_mut().for_each(|column| column.is_left = true);
    table
}

/// Returns every figure that is a loss.
fn low_figures(results: &Results) -> Part {
    let low = claims::below(0.97, &results.figures);
    let rows = low.iter().map(|(name, value)| Row::new([name.as_str(), &number(*value)])).collect();
    let table = Table::new("", ["figure", "x"], rows);
    Part {
        summary: format!("{}: figures below 0.97 of libc or plain: {}", label(results), low.len()),
        path: String::new(),
        about: Vec::new(),
        sections: vec![Section { tables: vec![table], ..Section::default() }],
    }
}

/// Returns what each benchmark printed.
fn printed(results: &Results) -> Vec<Part> {
    let part = |(name, text): (&String, &serde_json::Value)| Part {
        summary: format!("{name}, {}", label(results)),
        path: String::new(),
        about: Vec::new(),
        sections: vec![Section {
            verbatim: text.as_str().unwrap_or_default().to_owned(),
            ..Section::default()
        }],
    };
    results.texts.iter().map(part).collect()
}

fn losses(all: &[Results]) -> Section {
    let titles = ["what adma does not help, or costs".to_owned()].into_iter();
    let rows = LOSSES.iter().map(|(text, pattern, more_is_worse)| {
        let cell = |results: &Results| {
            let Some((key, value)) = claims::worst(pattern, *more_is_worse, &results.figures)
            else {
                return "not measured".into();
            };
            let where_found = claims::varying(pattern, key);
            match (claims::is_loss(pattern, *more_is_worse, value), where_found.as_str()) {
                (true, "") => number(value),
                (true, found) => format!("{} ({found})", number(value)),
                (false, "") => format!("no loss: {}", number(value)),
                (false, found) => format!("no loss: {} ({found})", number(value)),
            }
        };
        Row::new([text.to_string()].into_iter().chain(all.iter().map(cell)))
    });
    let table = Table::new("", titles.chain(all.iter().map(label)), rows.collect());
    Section { title: "Losses first".into(), tables: vec![table], ..Section::default() }
}

fn claims_section(all: &[Results]) -> Section {
    let mut titles: Vec<Words> =
        ["paper", "figure", "what it says", "its number", "ours is", "simulation"]
            .map(Words::from)
            .into();
    for results in all {
        titles.extend([label(results).into(), "ours / its".into()]);
    }
    titles.push("command".into());
    let rows = CLAIMS.iter().map(|claim| {
        let mut row: Vec<String> = [claim.paper, claim.figure, claim.says].map(String::from).into();
        row.extend([claim.number.map_or("-".into(), number), claim.what.to_owned()]);
        row.push(match simulated(claim, all) {
            Some(value) => number(value),
            None if claim.is_simulated() => "not counted".into(),
            None => "-".into(),
        });
        for results in all {
            if !claim.is_measured() {
                row.extend(["-", "-"].map(String::from));
                continue;
            }
            let ours = claim.ours(&results.figures);
            let of_all = claim.compared(&results.figures).map(|all| format!(", lowest of {all}"));
            row.push(ours.map_or("not measured".into(), number) + &of_all.unwrap_or_default());
            let ratio = ours.zip(claim.number).map(|(ours, its)| number(ours / its));
            row.push(ratio.unwrap_or("-".into()));
        }
        row.push(claim.command.to_owned());
        Row::new(row)
    });
    Section {
        title: "The papers' claims".into(),
        about:
            "ADCE: Vaidyanathan and others, 2007. Open-MX: Goglin. miNI: Azimi, Bilas. DAMNICK: \
                Ciaccio. Simulation: counts that no machine influences, of a model of the papers' cache or of \
                the kernel helper in a guest; they would need I/OAT hardware to be a time."
                .into(),
        tables: vec![left(Table::new("", titles, rows.collect()))],
        ..Section::default()
    }
}

/// Returns the count of a simulation, from the newest results that have it.
fn simulated(claim: &Claim, all: &[Results]) -> Option<f64> {
    let counted = all.iter().filter(|_| claim.is_simulated());
    let with_number = counted.filter_map(|one| Some((&one.date, claim.ours(&one.figures)?)));
    with_number.max_by_key(|(date, _)| *date).map(|(_, value)| value)
}

fn claims_csv(all: &[Results]) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut csv = "paper,figure,says,number,ours is,simulation".to_string();
    all.iter().for_each(|results| csv += &format!(",{}", quote(&label(results))));
    csv += ",command\n";
    for claim in CLAIMS {
        let text = [claim.paper, claim.figure, claim.says].map(quote).join(",");
        let its = claim.number.map_or(String::new(), number);
        let count = simulated(claim, all).map_or(String::new(), number);
        csv += &format!("{text},{its},{},{count}", quote(claim.what));
        for results in all {
            let ours = claim.ours(&results.figures).filter(|_| claim.is_measured());
            csv += &format!(",{}", ours.map_or(String::new(), number));
        }
        csv += &format!(",{}\n", quote(claim.command));
    }
    csv
}

/// Returns the command that measures a drawing again.
fn command(drawing: &Drawing) -> String {
    let patterns = drawing.5.iter().map(|(_, pattern)| pattern.trim_start_matches("gpu."));
    let mut names: Vec<&str> = patterns.filter_map(|pattern| pattern.split('.').next()).collect();
    names.dedup();
    format!("bench/run {}", names.join(" "))
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

/// Returns the plot of the machine with the most CPUs that was measured, and the table of each.
fn drawing_of(drawing: &Drawing, all: &[Results]) -> Section {
    let plots: Vec<_> =
        all.iter().map(|results| (plot(drawing, &results.figures), results)).collect();
    let drawn = || plots.iter().filter(|(plot, _)| !plot.lines.is_empty());
    let picture = |(plot, results): &(Plot<'_>, &Results)| Picture {
        svg: plot.svg(),
        file: format!("{}.svg", drawing.0),
        title: format!("{}, {}", drawing.1, label(results)).into(),
    };
    let table = |(plot, results): &(Plot<'_>, &Results)| {
        let xs = plot.xs();
        let titles =
            ["way".to_owned()].into_iter().chain(xs.iter().map(|x| out::size(*x as usize)));
        let rows = plot.lines.iter().map(|(name, points)| {
            let cell = |x: &f64| {
                points.iter().find(|point| point.0 == *x).map_or("-".into(), |p| number(p.1))
            };
            Row::new([name.clone()].into_iter().chain(xs.iter().map(cell)))
        });
        Table::new(label(results), titles, rows.collect())
    };
    Section {
        title: drawing.1.into(),
        about: if drawn().next().is_none() {
            "Not measured.".into()
        } else {
            format!("Measured by {}.", command(drawing)).into()
        },
        pictures: drawn().next_back().map(picture).into_iter().collect(),
        tables: drawn().map(table).collect(),
        ..Section::default()
    }
}

fn programs(all: &[Results]) -> Section {
    let mut names: Vec<&str> = all.iter().flat_map(names_of_programs).collect();
    names.sort_unstable();
    names.dedup();
    let was_measured = |what: &str| {
        let is_one = |key: &String| matches(&format!("programs.*.{what}"), key);
        all.iter().any(|results| results.figures.keys().any(is_one))
    };
    let columns: Vec<_> = PROGRAMS.iter().filter(|(what, _)| was_measured(what)).collect();
    let mut titles: Vec<Words> = vec!["whole runs".into()];
    for results in all {
        titles.extend(columns.iter().map(|(_, title)| match *title {
            "" => label(results).into(),
            title => title.into(),
        }));
    }
    let rows = names.iter().map(|name| {
        let mut row = vec![name.to_string()];
        for results in all {
            row.extend(columns.iter().map(|(what, _)| {
                let figure = results.figures.get(&format!("programs.{name}.{what}"));
                figure.map_or("-".into(), |figure| number(figure.value))
            }));
        }
        Row::new(row)
    });
    Section {
        title: "Programs, x plain (CPU time: less is better)".into(),
        about: "Measured by bench/run programs. Noise: an empty library preloaded. Own threads: plain, by threads \
                that the program has for copies. Streams early, huge pages, both: plain glibc tuned by hand, by \
                GLIBC_TUNABLES."
            .into(),
        tables: vec![Table::new("", titles, rows.collect())],
        ..Section::default()
    }
}

fn names_of_programs(results: &Results) -> impl Iterator<Item = &str> {
    let keys = results.figures.keys().filter(|key| matches("programs.*.whole", key));
    keys.filter_map(|key| key.split('.').nth(1))
}

fn memory(all: &[Results]) -> Section {
    let table = |results: &Results| {
        let figure = |name: &str, what: &str| {
            let figure = results.figures.get(&format!("programs.{name}.{what}"))?;
            Some(number(figure.value))
        };
        let row = |name: &str| {
            figure(name, MEMORY[0].0)?;
            let cells = MEMORY.iter().map(|(what, _)| figure(name, what).unwrap_or("-".into()));
            Some(Row::new([name.to_owned()].into_iter().chain(cells)))
        };
        let rows: Vec<Row> = names_of_programs(results).filter_map(row).collect();
        let titles = ["program"].into_iter().chain(MEMORY.iter().map(|(_, title)| *title));
        (!rows.is_empty()).then(|| Table::new(label(results), titles, rows))
    };
    let tables: Vec<Table> = all.iter().filter_map(table).collect();
    Section {
        title: "Memory of programs at its peak, over plain (less is better)".into(),
        about: if tables.is_empty() {
            "Not measured.".into()
        } else {
            "Measured by bench/run programs. Largest process: resident memory of the process that has the most, in \
             each round. All: of all processes together, pages that several have counted once (PSS), and what of it \
             is in huge pages, in one run of each kind."
                .into()
        },
        tables,
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::Figure;

    fn drawing(name: &str) -> &'static Drawing {
        DRAWINGS.iter().find(|drawing| drawing.0 == name).expect("a drawing")
    }

    fn results(list: &[(&str, f64)]) -> Results {
        let figure = |&(key, value): &(&str, f64)| (key.into(), Figure { value, interval: None });
        Results { figures: list.iter().map(figure).collect(), ..Results::default() }
    }

    #[test]
    fn page_has_every_claim_whatever_was_measured() {
        for all in [vec![], vec![results(&[("ipc.4M.best", 2.0)]), results(&[])]] {
            let claims = claims_section(&all).tables.remove(0).rows;
            for (claim, row) in CLAIMS.iter().zip(claims) {
                assert_eq!(row.cells[2].text(), claim.says);
            }
            let page = Markdown.write(&document(&all));
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
        let plot = plot(drawing("copy"), &one.figures);
        assert_eq!(plot.lines[0].1, [(65536.0, 1.0), (16777216.0, 3.0)]);
        assert_eq!(plot.xs().len(), 2);
        assert_eq!(plot.svg().matches("<polyline").count(), 2);
        let drawn = drawing_of(drawing("copy"), &[one, results(&[])]);
        assert_eq!((drawn.pictures.len(), drawn.tables.len()), (1, 1), "one was measured");
        let text = adma_report::text::table(&drawn.tables[0]);
        assert!(text.contains("16M") && text.contains(" 0.90"), "{text}");
    }

    #[test]
    fn losses_name_the_worst_figure() {
        let small = [("small.1K.more_ns", 0.7), ("small.64.more_ns", 0.9)];
        let one = results(&[small[0], small[1], ("copy.hot.1M.row_libc", 0.8)]);
        assert_eq!(claims::worst("small.*.more_ns", true, &one.figures), Some(small[1]));
        let low = [("one copy: hot, 1M, row libc".to_owned(), 0.8)];
        assert_eq!(claims::below(0.97, &one.figures), low);
        let text = adma_report::text::table(&losses(&[one]).tables[0]);
        assert!(text.contains("0.90 (64)"), "{text}");
    }

    #[test]
    fn gain_is_no_loss() {
        let one = results(&[("programs.rust-clone.whole", 8.22), ("copy.hot.64K.row_libc", 0.96)]);
        let text = adma_report::text::table(&losses(&[one]).tables[0]);
        assert!(text.contains("no loss: 8.22 (rust-clone)") && text.contains(" 0.96"), "{text}");
    }

    #[test]
    fn memory_has_a_table_for_each_machine_that_measured_it() {
        let old = results(&[("programs.rust-clone.whole", 2.0)]);
        assert!(memory(std::slice::from_ref(&old)).tables.is_empty());
        let new = results(&[
            ("programs.rust-clone.whole", 2.0),
            ("programs.rust-clone.plain_rss_mib", 131.0),
            ("programs.rust-clone.rss", 1.02),
        ]);
        let section = memory(&[old, new]);
        assert_eq!(section.tables.len(), 1);
        let text = adma_report::text::table(&section.tables[0]);
        assert!(
            text.contains("rust-clone") && text.contains("131") && text.contains("1.02"),
            "{text}"
        );
    }

    #[test]
    fn counts_of_simulations_are_no_machines() {
        let mut all = [2.0, 1.0].map(|value| results(&[("pins.overlapped.16M", value)]));
        all[0].date = "2026-01-02 00:00 UTC".into();
        all[1].date = "2026-01-01 00:00 UTC".into();
        let rows = claims_section(&all).tables.remove(0).rows;
        let row = rows.iter().find(|row| row.cells[1].text() == "10").expect("a row");
        let cells: Vec<String> = row.cells[5..].iter().map(|cell| cell.text()).collect();
        assert_eq!(cells[..5], ["2", "-", "-", "-", "-"], "the newest");
    }

    #[test]
    fn crossover_is_where_all_larger_copies_gain() {
        let one = results(&[
            ("scaling.cpus.2.16K.shim", 8.0),
            ("scaling.cpus.2.16K.libc", 6.0),
            ("scaling.cpus.2.64K.shim", 6.0),
            ("scaling.cpus.2.64K.libc", 6.0),
            ("scaling.cpus.2.256K.shim", 9.0),
            ("scaling.cpus.2.256K.libc", 6.0),
            ("scaling.cpus.2.1M.shim", 9.0),
            ("scaling.cpus.2.1M.libc", 6.0),
        ]);
        let claim = CLAIMS.iter().find(|claim| claim.figure == "4b").expect("a row");
        assert_eq!(claim.ours(&one.figures), Some(256.0));
    }
}
