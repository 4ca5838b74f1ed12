//! The mesh in the terminal, coloured by the activity of its nodes.

use std::time::Duration;

use daqmeter_record::Observations;
use daqmeter_report::pmu::heat::short;
use daqmeter_report::pmu::tables::{RateUnit, metric_text};
use daqmeter_report::pmu::{Heat, frames, map};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use crate::output::Failure;

pub(super) struct Live {
    terminal: DefaultTerminal,
    what: String,
    most: f64,
}

impl Live {
    pub(super) fn open(what: String) -> Result<Live, Failure> {
        let terminal = ratatui::try_init()
            .map_err(|error| Failure::refused(format!("cannot take over the terminal: {error}")))?;
        Ok(Live { terminal, what, most: 0.0 })
    }

    pub(super) fn wait(&mut self, time: Duration) -> Result<bool, Failure> {
        if !event::poll(time).map_err(Failure::refused)? {
            return Ok(false);
        }
        let Event::Key(key) = event::read().map_err(Failure::refused)? else {
            return Ok(false);
        };
        let is_control_c =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        Ok(is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
    }

    pub(super) fn show(&mut self, observed: &Observations, at: usize) -> Result<(), Failure> {
        // A long run has many frames, of which only the current one is needed.
        let last = observed.only(at);
        let heats = frames(&last);
        let most = heats.iter().map(Heat::most).fold(self.most, f64::max);
        self.most = most;
        let passed_ns = observed.end_ns[at].saturating_sub(observed.begin_ns);
        let what = format!("{}   {:.1} s", self.what, passed_ns as f64 * 1e-9);
        let drawn = self.terminal.draw(|frame| draw(frame, &heats, &last, most, &what));
        drawn.map(|_| ()).map_err(|error| Failure::refused(format!("cannot draw: {error}")))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Colour from cold to hot; the number beside it says the same without colour.
fn colour(share: f64) -> Style {
    let steps: [(u8, u8, u8); 6] = [
        (38, 50, 72),
        (32, 78, 112),
        (30, 110, 110),
        (120, 120, 40),
        (190, 100, 30),
        (200, 50, 40),
    ];
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index from 0 to 5"
    )]
    let at = (share.clamp(0.0, 1.0) * 5.0).round() as usize;
    let (red, green, blue) = steps[at];
    Style::new().bg(Color::Rgb(red, green, blue)).fg(Color::White)
}

fn draw(frame: &mut Frame<'_>, heats: &[Heat], observed: &Observations, most: f64, what: &str) {
    let foot_lines = 2 + u16::try_from(observed.metrics.len()).unwrap_or(0);
    let [main, foot] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(foot_lines)]).areas(frame.area());
    let shares = vec![Constraint::Fill(1); heats.len().max(1)];
    for (heat, area) in heats.iter().zip(Layout::vertical(shares).split(main).iter()) {
        mesh(frame, heat, *area, most);
    }
    let scaled = observed
        .events
        .iter()
        .filter(|event| event.share(0).is_some_and(|share| share < 0.9999))
        .count();
    let turns = if scaled > 0 {
        format!("; {scaled} of {} events take turns", observed.events.len())
    } else {
        String::new()
    };
    let unsure = observed.events.iter().filter(|event| event.scaled(0).is_none()).count();
    let unsure = if unsure > 0 { format!("; {unsure} not counted") } else { String::new() };
    let mut lines =
        vec![Line::from(format!("{what}   full colour {}/s{turns}{unsure}", short(most)))];
    for metric in &observed.metrics {
        let value = metric.values.first().copied().flatten();
        lines.push(Line::from(format!(
            "{}: {}",
            metric.name,
            metric_text(value, &metric.unit, RateUnit::Mb)
        )));
    }
    lines.push(Line::from("q ends").style(Style::new().add_modifier(Modifier::DIM)));
    frame.render_widget(Paragraph::new(lines), foot);
}

fn mesh(frame: &mut Frame<'_>, heat: &Heat, area: Rect, most: f64) {
    let block = Block::bordered().title(format!(" {} ", map::title(&heat.mesh)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = Layout::vertical(vec![Constraint::Fill(1); heat.mesh.height as usize]).split(inner);
    for (number, xp) in heat.mesh.crosspoints.iter().enumerate() {
        let row = rows[(heat.mesh.height - 1 - xp.y) as usize];
        let columns =
            Layout::horizontal(vec![Constraint::Fill(1); heat.mesh.width as usize]).split(row);
        let place = columns[xp.x as usize];
        let lines: Vec<Line<'_>> = map::cell(&heat.mesh, number, Some((heat, 0)))
            .into_iter()
            .enumerate()
            .map(|(at, entry)| {
                let style = match (entry.rate, at) {
                    (Some(rate), _) => colour(if most > 0.0 { rate / most } else { 0.0 }),
                    (None, 0) => Style::new().add_modifier(Modifier::BOLD),
                    (None, _) => Style::new().add_modifier(Modifier::DIM),
                };
                let text = match entry.rate {
                    Some(rate) => format!("{} {}/s", entry.text, short(rate)),
                    None => entry.text,
                };
                Line::from(Span::styled(text, style))
            })
            .collect();
        frame.render_widget(Paragraph::new(lines), place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_pmu::Count;
    use daqmeter_pmu::emulated::{Synthetic, catalogue};
    use daqmeter_pmu::event::EventResolver;
    use daqmeter_pmu::mesh::topology::shipped;
    use daqmeter_sys::host::Files;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_view_has_every_crosspoint_and_the_rate_of_every_counted_node() {
        let mut mesh = shipped("n1sdp").unwrap();
        mesh.name = "arm_cmn_0".into();
        let pmus = [catalogue(&mesh)];
        let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
        let texts: Vec<String> = [0x24, 0x28, 0x44, 0x48]
            .map(|id| format!("arm_cmn_0/hnf_mc_reqs,bynodeid=1,nodeid={id:#x}/"))
            .into();
        let set = host.resolve(&texts).unwrap();
        let now = Arc::new(AtomicU64::new(0));
        let mut source = Synthetic::at(&mesh, &set.groups, now.clone()).unwrap();
        let mut count =
            Count::open(&set, "heat of hnf_mc_reqs", &mut source).unwrap().with(vec![], vec![mesh]);
        count.begin(0);
        now.store(1_000_000_000, Ordering::Relaxed);
        count.interval();
        let mut observed = count.finish();
        (observed.begin_ns, observed.end_ns) = (0, vec![1_000_000_000]);
        let last = observed.only(0);
        let heats = frames(&last);
        let mut terminal =
            ratatui::Terminal::new(ratatui::backend::TestBackend::new(100, 13)).unwrap();
        terminal
            .draw(|frame| {
                draw(frame, &heats, &last, heats[0].most(), "heat of hnf_mc_reqs   1.0 s")
            })
            .unwrap();
        insta::assert_snapshot!(terminal.backend());
    }
}
