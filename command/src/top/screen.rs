//! The table on a terminal, with keys.

use super::columns::{self, Layout as Columns};
use super::set::{self, Setting};
use super::{INTERVAL, Row, Sampler, Wish};
use crate::live_files::{backend, channel_bytes};
use crate::report::process::FLOOR;
use crate::say::{FAILED, fail};
use adma_report::units::cut;
use adma_shared::live::{Control, MOST_CHANNELS, channel_name};
use adma_shared::units::Bytes;
use adma_shared::{tables, worth};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The most important first: a narrow terminal shows those for which it has room.
const KEYS: [&str; 7] =
    ["q leave", "h help", "/ filter", "s sort", "space off/on", "+/- threshold", "r undo"];
/// Lines of at most `HELP_COLUMNS` each: keys, then names of columns.
const HELP: [&str; 13] = [
    "up down k j  choose a process",
    "PgUp PgDn Home End  further",
    "s  sort by another column",
    "/  filter by command line",
    "space  switch it off and on",
    "+ -  change its threshold",
    "< >  change its channels",
    "r  as configured again",
    "h ?  this help",
    "q Esc  leave",
    "BECAUSE  why libc copies",
    "FROM  least size it carries",
    "CALLER  does this part itself",
];
const HELP_COLUMNS: usize = 30;

type Key = fn(&Row) -> f64;

/// Columns to sort by, each with a key of which the greatest comes first.
const ORDERS: [(&str, Key); 4] = [
    (columns::BYTES, |row| row.bytes_per_second),
    (columns::COPIES, |row| row.copies_per_second),
    (columns::SAVED, |row| row.seconds_saved().unwrap_or(f64::MIN)),
    (columns::PID, |row| -f64::from(row.process.pid)),
];

#[derive(Default)]
struct Screen {
    rows: Vec<Row>,
    /// Processes that the filter hides; kept so that another filter shows them at once.
    hidden: Vec<Row>,
    /// Text that a command line must contain.
    filter: String,
    /// Set while keys go into the filter.
    is_typing: bool,
    shows_help: bool,
    shows_users: bool,
    /// Rows that fit on the screen.
    page: usize,
    /// Index into `ORDERS`.
    order: usize,
    /// Process that was chosen; it stays chosen when rows move.
    chosen: Option<i32>,
    /// Error of the last key.
    message: String,
}

pub fn run(wish: &Wish) -> i32 {
    let terminal = ratatui::try_init().unwrap_or_else(|error| {
        fail(FAILED, format_args!("top: the terminal cannot be used: {error}"))
    });
    let result = show(terminal, wish);
    ratatui::restore();
    result.map_or_else(|error| fail(FAILED, format_args!("top: {error}")), |()| 0)
}

fn show(mut terminal: DefaultTerminal, wish: &Wish) -> std::io::Result<()> {
    let (mut sampler, mut next) = (Sampler::new(), Instant::now());
    let mut screen = Screen { shows_users: wish.all, chosen: wish.pid, ..Screen::default() };
    loop {
        if next <= Instant::now() {
            screen.take(sampler.sample(wish));
            next = Instant::now() + INTERVAL;
        }
        terminal.draw(|frame| screen.draw(frame))?;
        // Keys are answered at once, the numbers change each second.
        let mut wait = next.saturating_duration_since(Instant::now());
        // Meanwhile lines of scripts are looked for.
        while !wait.is_zero() && !event::poll(sampler.watch.look().min(wait))? {
            wait = next.saturating_duration_since(Instant::now());
        }
        if event::poll(Duration::ZERO)? && screen.leaves_on(&event::read()?) {
            return Ok(());
        }
    }
}

impl Screen {
    fn take(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        self.hidden.clear();
        self.select();
    }

    /// Sorts all processes into those that the filter shows and those that it hides.
    fn select(&mut self) {
        let all = self.rows.drain(..).chain(self.hidden.drain(..));
        (self.rows, self.hidden) = all.partition(|row| row.command.contains(&self.filter));
        self.sort();
    }

    fn sort(&mut self) {
        let key = ORDERS[self.order].1;
        self.rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.process.pid.cmp(&b.process.pid)));
    }

    /// Handles a key for the filter.
    fn type_in(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.select();
    }

    fn leaves_on(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        self.message.clear();
        let interrupts =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if self.is_typing && !interrupts {
            self.type_in(key.code);
            return false;
        }
        if std::mem::take(&mut self.shows_help) && !interrupts {
            return false; // any key
        }
        let (page, all) = (self.page as isize, self.rows.len() as isize);
        match key.code {
            KeyCode::Char('h' | '?') => self.shows_help = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::PageUp => self.choose(-page),
            KeyCode::PageDown => self.choose(page),
            KeyCode::Home => self.choose(-all),
            KeyCode::End => self.choose(all),
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if interrupts => return true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Char('s') => {
                self.order = (self.order + 1) % ORDERS.len();
                self.sort();
            }
            KeyCode::Char(' ') => self.change(|setting, _| setting.off = !setting.off),
            KeyCode::Char('+') => {
                self.change(|setting, row| setting.min_bytes = threshold(row) * 2)
            }
            KeyCode::Char('-') => {
                self.change(|setting, row| setting.min_bytes = threshold(row) / 2)
            }
            KeyCode::Char('>') => self.change(|setting, row| setting.channels = channels(row) + 1),
            KeyCode::Char('<') => {
                self.change(|setting, row| setting.channels = channels(row).saturating_sub(1));
            }
            KeyCode::Char('r') => self.change(|setting, _| *setting = Setting::default()),
            _ => {}
        }
        false
    }

    /// Returns where the chosen process is now; the first one if there is none.
    fn position(&self) -> Option<usize> {
        let found = self.rows.iter().position(|row| Some(row.process.pid) == self.chosen);
        found.or((!self.rows.is_empty()).then_some(0))
    }

    fn choose(&mut self, step: isize) {
        if let Some(at) = self.position() {
            let at = at.saturating_add_signed(step).min(self.rows.len() - 1);
            self.chosen = Some(self.rows[at].process.pid);
        }
    }

    fn change(&mut self, how: impl Fn(&mut Setting, &Row)) {
        let Some(row) = self.position().map(|at| &self.rows[at]) else { return };
        // The next key applies to this process too, whatever row it is in by then.
        self.chosen = Some(row.process.pid);
        let mut setting = Setting::of(&row.process);
        how(&mut setting, row);
        if setting.min_bytes != 0 {
            let (least, most) = (*Control::BYTES.start(), *Control::BYTES.end());
            setting.min_bytes = setting.min_bytes.clamp(least, most);
        }
        if setting.channels != 0 || Setting::of(&row.process).channels != 0 {
            setting.channels = setting.channels.min(MOST_CHANNELS as u32);
        }
        self.message = match set::write(&row.process, setting) {
            Ok(()) => "set from the next large copy on".to_owned(),
            Err(error) => format!("process {}: {error}", row.process.pid),
        };
        // The next key starts from the setting that was just written.
        let control = &row.process.live.control;
        control.off.store(setting.off.into(), Relaxed);
        control.min_bytes.store(setting.min_bytes, Relaxed);
        control.channels.store(setting.channels, Relaxed);
        control.change.fetch_add(1, Relaxed);
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [title, table, detail, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(frame.area().height.saturating_sub(6).min(12)),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let total: f64 = self.rows.iter().map(|row| row.bytes_per_second).sum();
        let total = Bytes(total as u64);
        let all = self.rows.len() + self.hidden.len();
        let plural = if all == 1 { "" } else { "es" };
        self.page = usize::from(table.height.saturating_sub(1)).max(1);
        let shown = self.rows.len().min(self.page);
        let part = if shown < all { format!("{shown} of ") } else { String::new() };
        let heading = format!("adma top: {part}{all} process{plural}, {total}/s");
        frame.render_widget(Line::from(heading).bold(), title);
        let line = match (self.is_typing, self.filter.is_empty()) {
            (true, _) => format!("filter: {}_", self.filter),
            _ if !self.message.is_empty() => self.message.clone(),
            (false, false) => format!("filter: {}  {}", self.filter, KEYS.join("  ")),
            (false, true) => keys_within(frame.area().width.into()),
        };
        frame.render_widget(Line::from(line).dim(), keys);
        if self.shows_help {
            let width = usize::from(frame.area().width);
            let row = |items: &[&str]| -> String {
                items.iter().map(|item| format!("{item:<HELP_COLUMNS$}")).collect()
            };
            let rows = HELP.chunks((width / HELP_COLUMNS).max(1)).map(row).collect::<Vec<_>>();
            return frame.render_widget(Paragraph::new(rows.join("\n")), table.union(detail));
        }

        let columns = Columns::new(&self.rows, table.width.into(), self.shows_users);
        let header = columns.titles().into_iter().map(|title| {
            let is_order = title.trim() == ORDERS[self.order].0;
            let title = Line::from(title);
            if is_order { title.reversed() } else { title }
        });
        let widths = columns.columns.iter().map(|(_, width)| Constraint::Length(*width as u16));
        let rows = self.rows.iter().map(|row| Cells::new(columns.cells(row)));
        let list = Table::new(rows, widths)
            .header(Cells::new(header).style(Style::new().bold().underlined()))
            .row_highlight_style(Style::new().reversed());
        let mut state = TableState::default().with_selected(self.position());
        frame.render_stateful_widget(list, table, &mut state);
        let text = self.detail();
        let lines = text.lines().map(|line| squeezed(line, detail.width.into()));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>().join("\n")), detail);
    }

    /// Returns the details of the chosen process.
    fn detail(&self) -> String {
        let Some(row) = self.position().map(|at| &self.rows[at]) else {
            let why = match self.hidden.is_empty() {
                true => "no process has live statistics: start one with adma",
                false => "no process matches the filter",
            };
            return why.to_owned();
        };
        let (process, recorder) = (&row.process, row.recorder());
        let backend = backend(&process.live);
        let mut text = format!("{} (pid {}), {backend}", row.program, process.pid);
        let setting = Setting::of(process);
        for (set, what) in [
            (setting.off, "off".to_owned()),
            (setting.min_bytes > 0, format!("from {}", Bytes(setting.min_bytes))),
            (setting.channels > 0, format!("{} channels", setting.channels)),
        ] {
            if set {
                text += &format!(", {what} by your wish");
            }
        }
        text.push('\n');
        let facts = &process.live.facts;
        // A `String` takes everything.
        let _ = tables::paths(recorder, &mut text);
        let caller = facts.caller_bytes.load(Relaxed);
        let channels = channel_bytes(&process.live);
        let _ = tables::channels((caller, channel_name(&backend), &channels), &mut text);
        if let Some(sentence) = row.saved.sentence() {
            text += &format!("  {sentence}\n");
        }
        let _ = worth::not_helped(recorder, facts.floor.load(Relaxed), &mut text);
        let _ = crate::report::text::sites(&mut text, &row.sites());
        if let Some(sums) = process.messages() {
            let _ = tables::messages(&sums, &mut text);
        }
        text
    }
}

/// Returns the keys that fit into a line, whole.
fn keys_within(room: usize) -> String {
    let mut line = String::new();
    for key in KEYS {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.len() + gap.len() + key.len() > room {
            break;
        }
        line = line + gap + key;
    }
    line
}

/// Returns a line of a table with single blanks between its cells, if it would not fit otherwise.
fn squeezed(line: &str, room: usize) -> String {
    if line.chars().count() <= room {
        return line.to_owned();
    }
    cut(&line.split_whitespace().collect::<Vec<_>>().join(" "), room)
}

fn threshold(row: &Row) -> u64 {
    let floor = row.process.live.facts.floor.load(Relaxed);
    row.threshold().unwrap_or(if floor > 0 { floor } else { FLOOR })
}

fn channels(row: &Row) -> u32 {
    match row.process.live.control.channels.load(Relaxed) {
        0 => row.process.live.facts.channels.load(Relaxed),
        channels => channels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live_files::{LiveProcess, State};
    use adma_shared::Counters;
    use adma_shared::live::{Fallback, Live, Path};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::collections::HashMap;

    fn row(pid: i32, bytes_per_second: f64) -> Row {
        let (path, live) = ("/no/such/file".into(), Box::new(Live::ZERO));
        live.recorder.record(Path::Libc(Fallback::Learned), 1 << 20, 1000);
        let process = LiveProcess { path, owner: 0, pid, live, state: State::Running };
        let row = Sampler::new().row(process, 1.0, &mut HashMap::new());
        Row { command: format!("worker-{pid}"), bytes_per_second, ..row }
    }

    #[test]
    fn saved_time_of_a_process_that_shared_nothing_is_not_known() {
        let row = row(1, 0.0);
        let columns = Columns::new(std::slice::from_ref(&row), 1000, false);
        let saved = columns.titles().iter().position(|title| title.trim() == columns::SAVED);
        assert_eq!((row.seconds_saved(), columns.cells(&row)[saved.unwrap()].trim()), (None, "-"));
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            assert!(!screen.leaves_on(&Event::Key(KeyCode::Char(key).into())), "{key}");
        }
    }

    /// Returns what the terminal shows, line by line.
    fn drawn(screen: &mut Screen, columns: u16, lines: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        cells.chunks(columns.into()).map(|line| line.iter().map(|c| c.symbol()).collect()).collect()
    }

    #[test]
    fn keys_go_on_changing_the_process_that_the_first_one_changed() {
        let mut screen = Screen::default();
        screen.take(vec![row(1, 9.0), row(2, 5.0)]);
        press(&mut screen, "+");
        screen.take(vec![row(1, 5.0), row(2, 9.0)]);
        press(&mut screen, "+");
        let told = |row: &Row| (row.process.pid, Setting::of(&row.process).min_bytes);
        assert_eq!(screen.rows.iter().map(told).collect::<Vec<_>>(), [(2, 0), (1, 512 << 10)]);
    }

    #[test]
    fn terminal_of_any_size_shows_counts_help_and_filter() {
        let mut screen = Screen::default();
        for (columns, lines, part) in
            [(40, 10, "3 of 30"), (60, 10, "3 of 30"), (80, 24, "9 of 30"), (132, 50, "30")]
        {
            screen.take((1..=30).map(|pid| row(pid, 0.0)).collect());
            let shown = drawn(&mut screen, columns, lines);
            assert!(shown[0].starts_with(&format!("adma top: {part} processes")), "{shown:?}");
            press(&mut screen, "h");
            let help = drawn(&mut screen, columns, lines).concat();
            // The smallest has not room for all of it.
            let fits = if columns < 60 { 8 } else { HELP.len() };
            assert!(HELP[..fits].iter().all(|item| help.contains(item)), "{help}");
            press(&mut screen, "h/worker-1");
            assert!(drawn(&mut screen, columns, lines).concat().contains("filter: worker-1_"));
            let leave = Event::Key(KeyCode::Esc.into());
            assert!(!screen.leaves_on(&leave));
            assert_eq!(drawn(&mut screen, columns, lines), shown, "rows are back at once");
        }
    }

    #[test]
    fn narrow_terminal_cuts_nothing_in_two_and_equal_names_differ() {
        let mut screen = Screen::default();
        let named = |pid: i32| Row {
            command: format!("python3 /srv/jobs/train.py --shard {pid}"),
            ..row(pid, 0.0)
        };
        screen.take((1..=3).map(named).collect());
        for columns in [40, 80] {
            let shown = drawn(&mut screen, columns, 24);
            for pid in 1..=3 {
                let end = format!("…{pid} ");
                let end = if columns < 80 { end } else { format!("{pid} ") };
                assert!(shown[pid + 1].contains(&end), "{columns}: {shown:?}");
            }
            // Each line of the pane begins with its own first word: none is the rest of another.
            let pane = shown.iter().position(|line| line.contains("(pid ")).unwrap();
            let words = ["large", "by", "reads", "not", "copied", "channel", "learned"];
            for line in shown[pane + 1..shown.len() - 1].iter().filter(|l| !l.trim().is_empty()) {
                let word = line.split_whitespace().next().unwrap();
                assert!(words.contains(&word), "{columns}: {line:?}");
            }
            let keys = shown.last().unwrap().trim_end();
            assert!(KEYS.iter().any(|key| keys.ends_with(key)), "{keys:?}");
        }
    }
}
