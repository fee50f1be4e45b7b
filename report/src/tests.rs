//! One document in every format, as it is kept in snapshots/. UPDATE_SNAPSHOTS=1 writes them anew;
//! `git diff` then shows what readers will see.

use super::*;

fn sample() -> Document {
    let metrics: &[Metric] = &[Metric {
        name: "copies_total",
        kind: Kind::Counter,
        help: "Large copies.",
        label: "path",
        field: "calls",
        skips_zero: true,
    }];
    let paths = |engine: u64| {
        let calls = |calls| Value::map([("calls", Value::Count(calls))]);
        Value::map([("engine", calls(engine)), ("libc", calls(0)), ("odd", Value::None)])
    };
    let row = |name: &str, bytes: u64, engine: u64| {
        let cells = [name.into(), Value::Bytes(bytes), Value::Share(1, 3), paths(engine)];
        Row { part: Some(0), ..Row::new(cells).bar(bytes as f64, Shade::Engine) }
    };
    let remark = Row::new(["ended", "before its first copy, \"early\""]);
    let table = Table {
        key: "processes",
        caption: "Processes".to_owned(),
        columns: vec![
            Column::new("process").key("name").label("name").cut(10),
            Column::new("bytes").key("bytes"),
            Column::new("engine").key("share"),
            Column::keyed("paths").metrics(metrics),
        ],
        rows: vec![
            row("a <b>\\ & 'c' of a long name", 3 << 20, 12_345),
            row("d", 1 << 10, 0),
            remark,
        ],
    };
    let units = [
        Value::None,
        Value::Flag(true),
        Value::Count(1_234_567),
        Value::Nanoseconds(1500),
        Value::Seconds(-1.44),
        Value::Timed(1.234),
        Value::Speed(8.0),
        Value::ByteRate(2048.0),
        Value::Rate(0.25),
        Value::Part(0.5),
        Value::Ratio(2.0),
        Value::List(vec![Value::Count(1), "two".into()]),
    ];
    let units = units.map(|value| Row::new([format!("{value:?}").into(), value])).into();
    let section =
        |id, rest| Section { id, title: "Sizes".into(), about: "Large > small.".into(), ..rest };
    Document {
        name: "x <script>".to_owned(),
        verdicts: vec!["it helped".to_owned(), "took 1 s".to_owned()],
        advice: vec!["Set <KNOB>.".to_owned()],
        about: vec!["a program whose name is longer than forty columns".into(), "2 rounds".into()],
        cards: vec![(Value::Count(12_345), "large copies".to_owned())],
        words: vec![("Engine", "what copies")],
        sections: vec![
            section("sizes", Section { tables: vec![table], ..Section::default() }),
            section(
                "",
                Section {
                    timeline: Some(Timeline {
                        seconds: 2.0,
                        steps: vec![vec![(3.0, Shade::Libc), (1.0, Shade::Caller)], vec![]],
                    }),
                    tables: vec![Table::new("Units", ["unit", "value"], units)],
                    ..Section::default()
                },
            ),
            section("empty", Section::default()),
        ],
        parts: Parts {
            title: "Each",
            all: vec![Part {
                summary: "a".to_owned(),
                path: "/bin/a".to_owned(),
                about: vec!["threads".into(), "ran 1 s".into()],
                sections: vec![Section {
                    pictures: vec![Picture {
                        svg: "<svg></svg>".to_owned(),
                        file: "a.svg".to_owned(),
                        title: "A | B".into(),
                    }],
                    verbatim: "1 < 2\n```\n".to_owned(),
                    ..Section::default()
                }],
            }],
            others: Some("One more.".to_owned()),
        },
        notes: vec!["output: the same".to_owned()],
        facts: vec![("rounds", Value::Count(2)), ("copies", Value::None)],
    }
}

#[test]
fn sample_in_every_format_is_as_it_was() {
    let formats: [(&str, &dyn Format); 5] = [
        ("sample.txt", &text::Text),
        ("sample.html", &html::Html),
        ("sample.json", &json::Json),
        ("sample.md", &markdown::Markdown),
        ("sample.prom", &metrics::Metrics),
    ];
    for (name, format) in formats {
        let path = format!("{}/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
        // The style is long, and not of interest here.
        let written = format.write(&sample()).replace(include_str!("../templates/page.css"), "");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &written).unwrap();
        }
        assert_eq!(written, std::fs::read_to_string(&path).unwrap_or_default(), "{name}");
    }
}
