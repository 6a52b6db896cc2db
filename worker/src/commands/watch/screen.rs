//! The full-screen view as data and how it is drawn; it knows no terminal.

use std::collections::BTreeMap;
use std::time::Instant;

use cipherhop_proto::v1::{AttemptPhase, Chain, HopState, HopStatus, RunningAttempt};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::lines::{hop_line, state_name, with_reason};
use crate::units;

/// Rows of the strip at most; a chain that needs more is cut.
const STRIP_ROWS: usize = 6;
/// Cells of a progress bar.
const BAR: usize = 16;
/// Silence that is worth a word, seconds.
const SILENT: f64 = 90.0;

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Lines up (negative) or down.
    By(isize),
    /// To the first line.
    Top,
    /// To the last line.
    Bottom,
}

/// What is known of the chain, and how far a person has scrolled.
#[derive(Debug)]
pub(super) struct Screen {
    chain: Chain,
    /// With the time at which it was told.
    hops: BTreeMap<u32, (HopStatus, Instant)>,
    note: String,
    offset: usize,
    /// Lines of the list and rows for it, when last drawn.
    drawn: (usize, usize),
}

impl Screen {
    pub(super) fn new(chain: Chain) -> Screen {
        Screen {
            chain,
            hops: BTreeMap::new(),
            note: String::new(),
            offset: 0,
            drawn: (0, 0),
        }
    }

    /// The chain has changed.
    pub(super) fn chain(&mut self, chain: Chain) {
        self.chain = chain;
        self.note.clear();
    }

    /// A hop has changed now.
    pub(super) fn hop(&mut self, hop: HopStatus) {
        self.hops.insert(hop.hop, (hop, Instant::now()));
        self.note.clear();
    }

    /// Something about the connection; shown until there is news.
    pub(super) fn note(&mut self, text: &str) {
        text.clone_into(&mut self.note);
    }

    /// Scrolls the list.
    pub(super) fn scroll(&mut self, to: Move) {
        let (lines, rows) = self.drawn;
        let last = lines.saturating_sub(rows);
        self.offset = match to {
            Move::By(count) => self.offset.saturating_add_signed(count).min(last),
            Move::Top => 0,
            Move::Bottom => last,
        };
    }

    /// Draws everything. What was told before `now` is aged.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, now: Instant) {
        let strip = self.strip(frame.area().width);
        let [head, hops, key, list, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::try_from(strip.len()).unwrap_or(u16::MAX)),
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        frame.render_widget(Paragraph::new(strip), hops);
        frame.render_widget(Paragraph::new(legend()), key);
        self.draw_list(frame, list, now);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn head(&self) -> Line<'static> {
        let chain = &self.chain;
        let state = state_name(chain.state().as_str_name(), "CHAIN_STATE_");
        let mut spans = vec![
            Span::styled(
                chain.name.clone(),
                Style::new().add_modifier(Modifier::BOLD),
            ),
            Span::raw(format!(
                "  {state}{}  {} of {} hops verified  {}",
                with_reason(&chain.state_reason),
                chain.head,
                chain.hops,
                chain.parameter_set
            )),
        ];
        if chain.insecure {
            spans.push(Span::styled(
                "  protects nothing",
                Style::new().fg(Color::Red),
            ));
        }
        Line::from(spans)
    }

    /// One cell for each hop, in groups of ten, each row with the number of its first hop.
    fn strip(&self, width: u16) -> Vec<Line<'static>> {
        let count = self.chain.hops as usize;
        let label = count.saturating_sub(1).to_string().len();
        let groups = (usize::from(width).saturating_sub(label + 1) / 11).max(1);
        let first_hops = (0..count).step_by(groups * 10).take(STRIP_ROWS);
        let row = |first: usize| {
            let mut spans = vec![Span::raw(format!("{first:>label$}"))];
            for hop in first..count.min(first + groups * 10) {
                if hop % 10 == 0 {
                    spans.push(Span::raw(" "));
                }
                let state = u32::try_from(hop)
                    .ok()
                    .and_then(|hop| self.hops.get(&hop))
                    .map_or(HopState::Blocked, |(hop, _)| hop.state());
                let (sign, style) = sign(state);
                spans.push(Span::styled(sign, style));
            }
            Line::from(spans)
        };
        let mut rows: Vec<Line<'static>> = first_hops.map(row).collect();
        if count > STRIP_ROWS * groups * 10
            && let Some(last) = rows.last_mut()
        {
            last.push_span("…");
        }
        rows
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect, now: Instant) {
        let lines = self.list(now);
        let rows = usize::from(area.height);
        self.drawn = (lines.len(), rows);
        self.offset = self.offset.min(lines.len().saturating_sub(rows));
        let shown: Vec<Line<'_>> = lines.into_iter().skip(self.offset).take(rows).collect();
        frame.render_widget(Paragraph::new(shown), area);
    }

    /// What needs a person first, then what runs, then what waits, then what is done, the newest first.
    fn list(&self, now: Instant) -> Vec<Line<'static>> {
        let of = |state: HopState| {
            self.hops
                .values()
                .filter(move |(hop, _)| hop.state() == state)
        };
        let text = |hop: &HopStatus| {
            let (_, style) = sign(hop.state());
            Line::from(Span::styled(hop_line(hop), style))
        };
        let mut lines: Vec<Line<'static>> = of(HopState::Stuck).map(|(hop, _)| text(hop)).collect();
        for (hop, told) in of(HopState::Running).chain(of(HopState::Verifying)) {
            let age = now.saturating_duration_since(*told).as_secs_f64();
            lines.extend(
                hop.running
                    .iter()
                    .map(|running| running_line(hop.hop, running, age)),
            );
            if hop.state() == HopState::Verifying && hop.running.is_empty() {
                lines.push(text(hop));
            }
        }
        lines.extend(of(HopState::Ready).map(|(hop, _)| text(hop)));
        lines.extend(of(HopState::Verified).rev().map(|(hop, _)| text(hop)));
        lines
    }

    fn foot(&self) -> Line<'static> {
        let (lines, rows) = self.drawn;
        let more = if lines > rows {
            let last = (self.offset + rows).min(lines);
            format!("  lines {} to {last} of {lines}", self.offset + 1)
        } else {
            String::new()
        };
        let mut spans = vec![Span::styled(
            format!("q leaves, arrows scroll{more}"),
            Style::new().add_modifier(Modifier::REVERSED),
        )];
        if !self.note.is_empty() {
            spans.push(Span::styled(
                format!("  {}", self.note),
                Style::new().fg(Color::Red),
            ));
        }
        Line::from(spans)
    }
}

/// The states differ in sign, not in colour alone.
fn sign(state: HopState) -> (&'static str, Style) {
    let style = Style::new();
    match state {
        HopState::Verified => ("█", style.fg(Color::Green)),
        HopState::Verifying => ("▒", style.fg(Color::Cyan)),
        HopState::Running => (">", style.fg(Color::Yellow).add_modifier(Modifier::BOLD)),
        HopState::Ready => ("o", style),
        HopState::Stuck => ("!", style.fg(Color::Red).add_modifier(Modifier::BOLD)),
        HopState::Cancelled => ("x", style),
        HopState::Blocked | HopState::Unspecified => ("·", style),
    }
}

fn legend() -> Line<'static> {
    let states = [
        (HopState::Verified, "verified"),
        (HopState::Verifying, "verifying"),
        (HopState::Running, "running"),
        (HopState::Ready, "ready"),
        (HopState::Blocked, "blocked"),
        (HopState::Stuck, "stuck"),
    ];
    let mut spans = Vec::new();
    for (state, name) in states {
        let (sign, style) = sign(state);
        spans.push(Span::styled(sign, style));
        spans.push(Span::raw(format!(" {name}  ")));
    }
    Line::from(spans)
}

/// Who, what, how far, and how long still; `age` is the seconds since it was told.
fn running_line(hop: u32, running: &RunningAttempt, age: f64) -> Line<'static> {
    let phase = state_name(running.phase().as_str_name(), "ATTEMPT_PHASE_");
    let mut text = format!("hop {hop:<4} {:<16} {phase:<9}", running.volunteer);
    if let Some(progress) = &running.progress
        && running.phase() == AttemptPhase::Computing
        && progress.steps_total > 0
    {
        let (done, total) = (
            progress.steps_done.min(progress.steps_total),
            progress.steps_total,
        );
        let full = BAR * done as usize / total as usize;
        text.push_str(&format!(
            " [{}{}] {done:>3}/{total} {:<20} left: {}",
            "#".repeat(full),
            "-".repeat(BAR - full),
            progress.step,
            left(progress.eta_low_seconds, progress.eta_high_seconds, age)
        ));
    }
    let silent = running.seconds_since_sync + age;
    if silent > SILENT {
        text.push_str(&format!(", silent for {}", units::seconds(silent)));
    }
    Line::from(text)
}

/// The range less what has passed since; one that has passed altogether says nothing any more.
fn left(low: f64, high: f64, age: f64) -> String {
    units::eta((low - age).max(0.0), (high - age).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cipherhop_proto::v1::{ChainState, Progress};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn chain(hops: u32) -> Chain {
        Chain {
            name: "demo".into(),
            state: ChainState::Active.into(),
            hops,
            head: 2,
            parameter_set: "n16-128".into(),
            ..Chain::default()
        }
    }

    fn hop(number: u32, state: HopState) -> HopStatus {
        HopStatus {
            hop: number,
            state: state.into(),
            ..HopStatus::default()
        }
    }

    fn computing(who: &str, done: u32, eta: (f64, f64)) -> RunningAttempt {
        RunningAttempt {
            volunteer: who.into(),
            phase: AttemptPhase::Computing.into(),
            progress: Some(Progress {
                step: "boot.evalmod".into(),
                steps_done: done,
                steps_total: 44,
                eta_low_seconds: eta.0,
                eta_high_seconds: eta.1,
                ..Progress::default()
            }),
            seconds_since_sync: 0.0,
        }
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16, now: Instant) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol().to_owned())
                .collect::<String>()
        };
        (0..height).map(|y| row(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn strip_and_list_show_every_hop_who_works_on_it_and_how_long_it_takes() {
        let mut screen = Screen::new(chain(12));
        for number in 0..2 {
            let mut verified = hop(number, HopState::Verified);
            verified.verified_by = vec!["alice".into(), "bob".into()];
            screen.hop(verified);
        }
        let mut running = hop(2, HopState::Running);
        running.running = vec![
            computing("alice", 22, (60.0, 90.0)),
            computing("bob", 0, (0.0, 0.0)),
        ];
        screen.hop(running);
        let mut stuck = hop(11, HopState::Stuck);
        stuck.reason = "MISMATCH_BUDGET".into();
        screen.hop(stuck);
        let now = Instant::now();
        let rows = drawn(&mut screen, 100, 12, now);
        assert_eq!(rows[0], "demo  active  2 of 12 hops verified  n16-128");
        assert_eq!(rows[1], " 0 ██>······· ·!");
        assert!(
            rows[2].contains("> running") && rows[2].contains("! stuck"),
            "{}",
            rows[2]
        );
        assert_eq!(rows[4], "hop 11 stuck (MISMATCH_BUDGET)");
        assert_eq!(
            rows[5],
            "hop 2    alice            computing [########--------]  22/44 boot.evalmod         left: 1 min 0 s to 1 min 30 s"
                .chars().take(100).collect::<String>().trim_end()
        );
        assert!(
            rows[6].contains("bob") && rows[6].ends_with("left: unknown"),
            "{}",
            rows[6]
        );
        assert_eq!(rows[7], "hop 1 verified by alice, bob");
        assert_eq!(rows[8], "hop 0 verified by alice, bob");
        assert_eq!(rows[11], "q leaves, arrows scroll");
        // Half a minute later without news less is left; long after the estimate nothing is claimed any more.
        let rows = drawn(&mut screen, 130, 12, now + Duration::from_secs(30));
        assert!(rows[5].ends_with("left: 30 s to 1 min 0 s"), "{}", rows[5]);
        let rows = drawn(&mut screen, 130, 12, now + Duration::from_secs(100));
        assert!(
            rows[5].ends_with("left: unknown, silent for 1 min 40 s"),
            "{}",
            rows[5]
        );
    }

    #[test]
    fn a_long_list_scrolls_to_its_ends_and_no_further() {
        let mut screen = Screen::new(chain(40));
        for number in 0..40 {
            screen.hop(hop(number, HopState::Verified));
        }
        let now = Instant::now();
        let list = |screen: &mut Screen| drawn(screen, 60, 12, now)[4..11].to_vec();
        assert_eq!(list(&mut screen)[0], "hop 39 verified");
        screen.scroll(Move::By(2));
        let rows = drawn(&mut screen, 60, 12, now);
        assert_eq!(rows[4], "hop 37 verified");
        assert_eq!(rows[11], "q leaves, arrows scroll  lines 3 to 9 of 40");
        screen.scroll(Move::By(1000));
        assert_eq!(list(&mut screen)[6], "hop 0 verified");
        screen.scroll(Move::By(-1000));
        assert_eq!(list(&mut screen)[0], "hop 39 verified");
        screen.scroll(Move::Bottom);
        assert_eq!(list(&mut screen)[6], "hop 0 verified");
        screen.scroll(Move::Top);
        assert_eq!(list(&mut screen)[0], "hop 39 verified");
    }

    #[test]
    fn a_chain_wider_than_the_screen_is_broken_into_rows_and_any_size_is_drawn() {
        let mut screen = Screen::new(chain(80));
        screen.hop(hop(45, HopState::Running));
        screen.note("not reachable");
        let rows = drawn(&mut screen, 50, 12, Instant::now());
        assert_eq!(rows[1], format!(" 0{}", " ··········".repeat(4)));
        assert_eq!(rows[2], "40 ·····>···· ·········· ·········· ··········");
        assert!(rows[11].ends_with("not reachable"), "{}", rows[11]);
        for (width, height) in [(1, 1), (3, 2), (500, 3), (20, 60)] {
            let mut screen = Screen::new(chain(10_000));
            screen.hop(hop(3, HopState::Stuck));
            drawn(&mut screen, width, height, Instant::now());
        }
        drawn(&mut Screen::new(chain(0)), 40, 8, Instant::now());
    }
}
