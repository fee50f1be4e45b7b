//! The table on a terminal, with keys.

use super::lines::{HEAD, WIDTHS, columns};
use super::set::{self, Setting};
use super::{INTERVAL, Row, Sampler, Wish};
use crate::say::{FAILED, fail};
use crate::stats::live::{Control, MOST_CHANNELS};
use crate::stats::{tables, worth};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, TableState};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const KEYS: &str = "q leave  up/down choose  s sort  space off/on  +/- size  </> channels  r undo";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Bytes,
    Copies,
    Saved,
    Pid,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Order::Bytes => Order::Copies,
            Order::Copies => Order::Saved,
            Order::Saved => Order::Pid,
            Order::Pid => Order::Bytes,
        }
    }

    fn column(self) -> usize {
        match self {
            Order::Pid => 0,
            Order::Copies => 2,
            Order::Bytes => 3,
            Order::Saved => 7,
        }
    }

    fn sort(self, rows: &mut [Row]) {
        let descending = |a: f64, b: f64| b.total_cmp(&a);
        rows.sort_by(|a, b| match self {
            Order::Pid => a.process.pid.cmp(&b.process.pid),
            Order::Bytes => descending(a.bytes_per_second, b.bytes_per_second),
            Order::Copies => descending(a.copies_per_second, b.copies_per_second),
            Order::Saved => descending(a.saved.unwrap_or(f64::MIN), b.saved.unwrap_or(f64::MIN)),
        });
    }
}

struct Screen {
    rows: Vec<Row>,
    order: Order,
    /// The process that was chosen; it keeps the choice when rows move.
    chosen: Option<i32>,
    /// What went wrong with the last key.
    message: String,
}

pub fn run(wish: &Wish) -> i32 {
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(error) => fail(FAILED, format_args!("top: the terminal cannot be used: {error}")),
    };
    let mut sampler = Sampler::new();
    let mut screen =
        Screen { rows: Vec::new(), order: Order::Bytes, chosen: wish.pid, message: String::new() };
    let result = loop {
        screen.rows = sampler.sample(wish.pid);
        screen.order.sort(&mut screen.rows);
        let next = Instant::now() + INTERVAL;
        // Keys are answered at once, the numbers change each second.
        let left = loop {
            if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
                break Err(error);
            }
            match event::poll(next.saturating_duration_since(Instant::now())) {
                Ok(false) => break Ok(false),
                Ok(true) => match event::read() {
                    Ok(event) if screen.leaves_on(&event) => break Ok(true),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                },
                Err(error) => break Err(error),
            }
        };
        match left {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    match result {
        Ok(()) => 0,
        Err(error) => fail(FAILED, format_args!("top: {error}")),
    }
}

impl Screen {
    fn leaves_on(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        self.message.clear();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.order.sort(&mut self.rows);
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

    fn draw(&self, frame: &mut Frame<'_>) {
        let [title, table, detail, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(12),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let total: f64 = self.rows.iter().map(|row| row.bytes_per_second).sum();
        let total = crate::stats::units::Bytes(total as u64);
        let plural = if self.rows.len() == 1 { "" } else { "es" };
        let heading = format!("adma top: {} process{plural}, {total}/s", self.rows.len());
        frame.render_widget(Line::from(heading).bold(), title);

        let header = HEAD.split_whitespace().enumerate().map(|(at, title)| {
            let title = Line::from(match WIDTHS[at] {
                width @ 0.. => format!("{title:>0$}", width as usize),
                width => format!("{title:<0$}", -width as usize),
            });
            if at == self.order.column() { title.reversed() } else { title }
        });
        let widths = WIDTHS.map(|width| Constraint::Length(width.unsigned_abs() as u16));
        let rows = self.rows.iter().map(|row| Cells::new(columns(row)));
        let list = Table::new(rows, widths)
            .header(Cells::new(header).style(Style::new().bold().underlined()))
            .row_highlight_style(Style::new().reversed());
        let mut state = TableState::default().with_selected(self.position());
        frame.render_stateful_widget(list, table, &mut state);
        frame.render_widget(Paragraph::new(self.detail()), detail);
        let line = if self.message.is_empty() { KEYS } else { &self.message };
        frame.render_widget(Line::from(line).dim(), keys);
    }

    /// All that is known of the chosen process.
    fn detail(&self) -> String {
        let Some(row) = self.position().map(|at| &self.rows[at]) else {
            return "no process has live statistics: start one with adma".to_owned();
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
        let caller = facts.caller_bytes.load(Relaxed);
        let name = process.channel_name();
        let _ = tables::channels(caller, &name, &process.channel_bytes(), &mut text);
        let _ = worth::saved(recorder, process.scale(), process.seconds()).write(&mut text);
        let _ = worth::not_helped(recorder, facts.floor.load(Relaxed), &mut text);
        if let Some(told) = process.messages() {
            let _ = tables::messages(&told, &mut text);
        }
        text
    }
}

fn threshold(row: &Row) -> u64 {
    let (control, facts) = (&row.process.live.control, &row.process.live.facts);
    let known = [&control.min_bytes, &facts.min_bytes, &facts.threshold, &facts.floor];
    known.into_iter().map(|bytes| bytes.load(Relaxed)).find(|&bytes| bytes > 0).unwrap_or(256 << 10)
}

fn channels(row: &Row) -> u32 {
    match row.process.live.control.channels.load(Relaxed) {
        0 => row.process.live.facts.channels.load(Relaxed),
        channels => channels,
    }
}
