//! The table on a terminal, with keys.

use super::columns::{self, Layout as Columns};
use super::set::{self, Setting};
use super::{INTERVAL, Row, Sampler, Wish};
use crate::live::{channel_bytes, channel_name};
use crate::say::{FAILED, fail};
use adma_record::live::{Control, MOST_CHANNELS};
use adma_record::{tables, worth};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const KEYS: &str = "q leave  h help  / filter  s sort  space off/on  +/- threshold  r undo";
const HELP: &str = "\
up, down, k, j      choose a process          PgUp, PgDn, Home, End   further
s                   sort by another column    /                       filter by command line
space               switch it off and on      + -                     change its threshold
< >                 change its channels       r                       as configured again
h, ?                this help                 q, Esc                  leave

BECAUSE: why libc copies    FROM: copies from this size up are carried
CALLER: part of shared copies that the caller made itself";

type Key = fn(&Row) -> f64;

/// Columns to sort by, each with a key of which the greatest comes first.
const ORDERS: [(&str, Key); 4] = [
    (columns::BYTES, |row| row.bytes_per_second),
    (columns::COPIES, |row| row.copies_per_second),
    (columns::SAVED, |row| row.saved.unwrap_or(f64::MIN)),
    (columns::PID, |row| -f64::from(row.process.pid)),
];

#[derive(Default)]
struct Screen {
    rows: Vec<Row>,
    /// Processes, also those that the filter leaves out.
    all: usize,
    /// What a command line must hold.
    filter: String,
    /// Keys go into the filter.
    is_typing: bool,
    shows_help: bool,
    shows_users: bool,
    /// Rows that fit on the screen.
    page: usize,
    /// Index into `ORDERS`.
    order: usize,
    /// The process that was chosen; it keeps the choice when rows move.
    chosen: Option<i32>,
    /// What went wrong with the last key.
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
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait)? && screen.leaves_on(&event::read()?) {
            return Ok(());
        }
    }
}

impl Screen {
    fn take(&mut self, rows: Vec<Row>) {
        self.all = rows.len();
        self.rows = rows;
        self.rows.retain(|row| row.command.contains(&self.filter));
        self.sort();
    }

    fn sort(&mut self) {
        let key = ORDERS[self.order].1;
        self.rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
    }

    /// Takes a key into the filter.
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
        self.rows.retain(|row| row.command.contains(&self.filter));
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

    /// Where the chosen process is now; the first one if there is none.
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
            Ok(()) => "told; the next large copy obeys".to_owned(),
            Err(error) => format!("process {}: {error}", row.process.pid),
        };
        // What was told is where the next key begins.
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
        let total = adma_record::units::Bytes(total as u64);
        let plural = if self.all == 1 { "" } else { "es" };
        self.page = usize::from(table.height.saturating_sub(1)).max(1);
        let shown = self.rows.len().min(self.page);
        let part = if shown < self.all { format!("{shown} of ") } else { String::new() };
        let filter = match (self.is_typing, self.filter.is_empty()) {
            (true, _) => format!("  filter: {}_", self.filter),
            (false, false) => format!("  filter: {}", self.filter),
            (false, true) => String::new(),
        };
        let heading = format!("adma top: {part}{} process{plural}, {total}/s{filter}", self.all);
        frame.render_widget(Line::from(heading).bold(), title);

        let columns = Columns::new(&self.rows, table.width.into(), self.shows_users);
        let header = columns.titles().into_iter().map(|title| {
            let is_order = title.trim() == ORDERS[self.order].0;
            let title = Line::from(title);
            if is_order { title.reversed() } else { title }
        });
        let widths = columns.0.iter().map(|(_, width)| Constraint::Length(*width as u16));
        let rows = self.rows.iter().map(|row| Cells::new(columns.cells(row)));
        let list = Table::new(rows, widths)
            .header(Cells::new(header).style(Style::new().bold().underlined()))
            .row_highlight_style(Style::new().reversed());
        let mut state = TableState::default().with_selected(self.position());
        frame.render_stateful_widget(list, table, &mut state);
        let below = if self.shows_help { HELP.to_owned() } else { self.detail() };
        frame.render_widget(Paragraph::new(below), detail);
        let line = if self.message.is_empty() { KEYS } else { &self.message };
        frame.render_widget(Line::from(line).dim(), keys);
    }

    /// All that is known of the chosen process.
    fn detail(&self) -> String {
        let Some(row) = self.position().map(|at| &self.rows[at]) else {
            let why = match self.all {
                0 => "no process has live statistics: start one with adma",
                _ => "no process matches the filter",
            };
            return why.to_owned();
        };
        let (process, recorder) = (&row.process, row.recorder());
        let mut text = format!("{} (pid {}), {}", row.program, process.pid, process.backend());
        let setting = Setting::of(process);
        for (set, what) in [
            (setting.off, "off".to_owned()),
            (setting.min_bytes > 0, format!("from {} bytes", setting.min_bytes)),
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
        let (caller, backend) = (facts.caller_bytes.load(Relaxed), process.backend());
        let channels = channel_bytes(&process.live);
        let _ = tables::channels((caller, channel_name(&backend), &channels), &mut text);
        let saved = worth::saved(recorder, process.scale(), process.seconds());
        if let Some(sentence) = saved.sentence() {
            text += &format!("  {sentence}\n");
        }
        let _ = worth::not_helped(recorder, facts.floor.load(Relaxed), &mut text);
        let _ = crate::report::text::sites(&mut text, &crate::report::live::sites(process));
        if let Some(told) = process.messages() {
            let _ = tables::messages(&told, &mut text);
        }
        text
    }
}

fn threshold(row: &Row) -> u64 {
    let floor = row.process.live.facts.floor.load(Relaxed);
    row.threshold().unwrap_or(if floor > 0 { floor } else { 256 << 10 })
}

fn channels(row: &Row) -> u32 {
    match row.process.live.control.channels.load(Relaxed) {
        0 => row.process.live.facts.channels.load(Relaxed),
        channels => channels,
    }
}
