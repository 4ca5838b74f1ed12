//! `daqmeter readout monitor`: every instance in one view, from their metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_record::sanitise;
use daqmeter_record::units::{show_bytes, significant};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use super::verdict::Judgement;
use crate::arguments::duration;
use crate::metrics::scrape;
use crate::output::{Failure, emit};
use crate::runner::on_ctrl_c;

/// Watch every instance: rates, ring, CPU, BUSY, errors. q ends it.
#[derive(Debug, Args)]
#[command(
    after_help = "Instances serve what is shown by --metrics HOST:PORT (OpenMetrics, for Prometheus, too)."
)]
pub(crate) struct Arguments {
    /// Where instances serve their metrics: host:port
    #[arg(required = true)]
    instances: Vec<String>,
    /// Between two looks
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    interval: Duration,
    /// End after so many looks; 0 goes on
    #[arg(long, value_name = "N", default_value = "0")]
    looks: u64,
    /// Lines of JSON instead of a view
    #[arg(long)]
    json: bool,
}

type Values = BTreeMap<String, BTreeMap<String, f64>>;

/// Two looks at everything, and what lies between them.
#[derive(Default)]
struct Watch {
    now: Values,
    before: Values,
    seconds: f64,
    /// Addresses that did not answer, and why.
    silent: Vec<(String, String)>,
    /// The instances that each address had.
    known: BTreeMap<String, BTreeSet<String>>,
    at: Option<Instant>,
}

/// One instance, as shown.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
struct Shown {
    instance: String,
    /// Why nothing is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
    trigger_khz: Option<f64>,
    mchunks_per_s: Option<f64>,
    gbit_per_s: Option<f64>,
    ring_share: Option<f64>,
    ring_bytes: Option<f64>,
    cpu_share: Option<f64>,
    busy: &'static str,
    dead_share: Option<f64>,
    errors: f64,
    latency_p99_us: Option<f64>,
}

/// One instance's page is asked for in a thread of its own: resolving names and connecting take as long as they take.
struct Scraper {
    address: String,
    ask: Sender<()>,
    is_asked: bool,
}

/// What an instance answered: which, and its values.
type Answer = (usize, std::io::Result<Vec<(String, String, f64)>>);

/// All instances.
struct Scrapers {
    each: Vec<Scraper>,
    answers: Receiver<Answer>,
}

/// A look at all instances takes so long at the most.
const LOOK_WITHIN: Duration = Duration::from_secs(4);
/// Whether to stop is looked at so often.
const SLICE: Duration = Duration::from_millis(50);
/// Instances that are watched at a time: each has a thread.
const MAX_INSTANCES: usize = 256;

impl Scrapers {
    fn new(instances: &[String]) -> Scrapers {
        let (answer, answers) = std::sync::mpsc::channel();
        let each = instances.iter().enumerate().map(|(at, address)| {
            let (ask, asked) = std::sync::mpsc::channel();
            let (answer, own) = (answer.clone(), address.clone());
            // It ends with the program.
            std::thread::spawn(move || {
                while asked.recv().is_ok() && answer.send((at, scrape(&own))).is_ok() {}
            });
            Scraper { address: address.clone(), ask, is_asked: false }
        });
        Scrapers { each: each.collect(), answers }
    }

    /// Asks all that are not busy with an earlier look, and waits for the answers.
    fn look(
        &mut self,
        stop: &AtomicBool,
        mut take: impl FnMut(&str, std::io::Result<Vec<(String, String, f64)>>),
    ) {
        for scraper in self.each.iter_mut().filter(|scraper| !scraper.is_asked) {
            scraper.is_asked = scraper.ask.send(()).is_ok();
        }
        let begun = Instant::now();
        let mut heard = vec![false; self.each.len()];
        while !stop.load(Ordering::Relaxed)
            && begun.elapsed() < LOOK_WITHIN
            && heard.contains(&false)
        {
            let Ok((at, answer)) = self.answers.recv_timeout(SLICE) else {
                continue;
            };
            (self.each[at].is_asked, heard[at]) = (false, true);
            take(&self.each[at].address, answer);
        }
        for (scraper, _) in self.each.iter().zip(heard).filter(|(_, heard)| !heard) {
            take(&scraper.address, Err(std::io::ErrorKind::TimedOut.into()));
        }
    }
}

impl Watch {
    fn silent_text(&self) -> String {
        let each = self.silent.iter();
        let each: Vec<String> = each.map(|(address, why)| format!("{address}: {why}")).collect();
        each.join("; ")
    }

    fn look(&mut self, scrapers: &mut Scrapers, stop: &AtomicBool) {
        let mut values = Values::new();
        let mut silent = Vec::new();
        scrapers.look(stop, |address, answer| match answer {
            Ok(found) => {
                for (name, instance, value) in found {
                    let known = self.known.entry(address.to_owned()).or_default();
                    known.insert(instance.clone());
                    values.entry(instance).or_default().insert(name, value);
                }
            }
            Err(error) => silent.push((address.to_owned(), error.to_string())),
        });
        silent.sort();
        self.silent = silent;
        let now = Instant::now();
        self.seconds = self.at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.before = std::mem::replace(&mut self.now, values);
    }

    fn shown(&self) -> Vec<Shown> {
        let alive = self.now.iter().map(|(instance, values)| self.one(instance, values));
        alive.chain(self.dead()).collect()
    }

    /// Instances whose address does not answer; the address, where none was ever seen there.
    fn dead(&self) -> impl Iterator<Item = Shown> {
        self.silent.iter().flat_map(|(address, why)| {
            let names = self.known.get(address).cloned();
            let names = names.unwrap_or_else(|| BTreeSet::from([address.clone()]));
            names.into_iter().map(move |instance| Shown {
                instance,
                silent: Some(format!("{address}: {why}")),
                busy: "-",
                ..Shown::default()
            })
        })
    }

    fn one(&self, instance: &str, values: &BTreeMap<String, f64>) -> Shown {
        let value = |name: &str| values.get(&format!("daqmeter_{name}")).copied();
        let before = self.before.get(instance);
        let rate = |name: &str| {
            let was = before?.get(&format!("daqmeter_{name}"))?;
            (self.seconds > 0.0).then_some((value(name)? - was).max(0.0) / self.seconds)
        };
        let ring = value("ring_bytes");
        Shown {
            instance: instance.to_owned(),
            silent: None,
            trigger_khz: rate("triggers_total").map(|rate| rate / 1e3),
            mchunks_per_s: rate("chunks_total").map(|rate| rate / 1e6),
            gbit_per_s: rate("bytes_total").map(|rate| rate * 8e-9),
            ring_share: ring
                .zip(value("ring_size_bytes"))
                .map(|(bytes, size)| bytes / size.max(1.0)),
            ring_bytes: ring,
            cpu_share: rate("cpu_seconds_total"),
            busy: ["-", "DMA", "FIFO", "both"][match value("busy") {
                Some(busy) if busy >= 3.0 => 3,
                Some(busy) if busy >= 2.0 => 2,
                Some(busy) if busy >= 1.0 => 1,
                _ => 0,
            }],
            dead_share: rate("dead_seconds_total"),
            errors: value("errors_total").unwrap_or(0.0)
                + value("lost_connections_total").unwrap_or(0.0),
            latency_p99_us: value("latency_p99_seconds").map(|seconds| seconds * 1e6),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.instances.len() > MAX_INSTANCES {
        return Err(Failure::refused(format!(
            "{} instances; at most {MAX_INSTANCES}",
            arguments.instances.len()
        )));
    }
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let mut scrapers = Scrapers::new(&arguments.instances);
    let mut watch = Watch::default();
    watch.look(&mut scrapers, &stop);
    if watch.silent.len() == arguments.instances.len() && !stop.load(Ordering::Relaxed) {
        return Err(Failure::refused(format!(
            "{}; does an instance serve --metrics there?",
            watch.silent_text()
        )));
    }
    if arguments.json || !std::io::stdout().is_terminal() {
        return lines(arguments, watch, &mut scrapers, &stop);
    }
    let mut terminal = ratatui::init();
    let done = view(arguments, &mut watch, &mut scrapers, &stop, &mut terminal);
    ratatui::restore();
    let interrupted = done.map_err(|error| Failure::refused(format!("terminal: {error}")))?;
    Ok(Judgement::Passed.exit(interrupted))
}

fn lines(
    arguments: &Arguments,
    mut watch: Watch,
    scrapers: &mut Scrapers,
    stop: &AtomicBool,
) -> Result<ExitCode, Failure> {
    let mut looks = 0;
    loop {
        let until = Instant::now() + arguments.interval.max(SLICE);
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(SLICE));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Judgement::Passed.exit(true));
        }
        watch.look(scrapers, stop);
        for shown in watch.shown() {
            emit(&format!("{}\n", serde_json::to_string(&shown).expect("plain data")))?;
        }
        looks += 1;
        if looks == arguments.looks || watch.silent.len() == arguments.instances.len() {
            return Ok(Judgement::Passed.exit(stop.load(Ordering::Relaxed)));
        }
    }
}

/// Draws until a key or a signal ends it; true when it was a signal, or Ctrl-C, which is a key here.
fn view(
    arguments: &Arguments,
    watch: &mut Watch,
    scrapers: &mut Scrapers,
    stop: &AtomicBool,
    terminal: &mut DefaultTerminal,
) -> std::io::Result<bool> {
    let mut looks = 0;
    loop {
        terminal.draw(|frame| draw(frame, watch))?;
        let until = Instant::now() + arguments.interval.max(SLICE);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if event::poll(left.min(SLICE))?
                && let Event::Key(key) = event::read()?
                && matches!(key.code, KeyCode::Char('q' | 'c') | KeyCode::Esc)
            {
                return Ok(key.modifiers.contains(KeyModifiers::CONTROL));
            }
        }
        watch.look(scrapers, stop);
        looks += 1;
        if looks == arguments.looks {
            return Ok(stop.load(Ordering::Relaxed));
        }
    }
}

/// Ten characters of a bar.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * 10.0).round();
    (0..10).map(|at| if f64::from(at) < full { '#' } else { '.' }).collect()
}

fn draw(frame: &mut Frame<'_>, watch: &Watch) {
    let [main, foot] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(2)]).areas(frame.area());
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| significant(value, 4));
    let percent = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format!("{:.1} %", value * 100.0))
    };
    let rows = watch.shown().into_iter().map(|shown| {
        let ring = match (shown.ring_share, shown.ring_bytes) {
            (Some(share), Some(bytes)) => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "bytes in a ring"
                )]
                let bytes = show_bytes(bytes as u64);
                format!("{} {bytes}", bar(share))
            }
            _ => "-".to_owned(),
        };
        let bad = shown.errors > 0.0 || shown.busy != "-" || shown.silent.is_some();
        let ring = match shown.silent {
            Some(_) => "does not answer".to_owned(),
            None => ring,
        };
        let style = if bad {
            Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
        } else {
            Style::new()
        };
        let cells = [
            shown.instance,
            number(shown.trigger_khz),
            number(shown.mchunks_per_s),
            number(shown.gbit_per_s),
            ring,
            percent(shown.cpu_share),
            shown.busy.to_owned(),
            percent(shown.dead_share),
            shown.errors.to_string(),
            number(shown.latency_p99_us),
        ];
        Row::new(cells.map(Cell::from)).style(style)
    });
    let widths = [28, 9, 9, 8, 22, 8, 5, 8, 8, 9].map(Constraint::Length);
    let header = Row::new([
        "instance", "kHz", "Mchunk/s", "Gb/s", "ring", "CPU", "BUSY", "dead", "errors", "p99 us",
    ])
    .style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths)
        .header(header)
        .block(Block::bordered().title(" daqmeter readout "));
    frame.render_widget(table, main);
    let silent = sanitise::text(&watch.silent_text()).into_owned();
    let foot_lines = vec![Line::from("q ends"), Line::styled(silent, Style::new().fg(Color::Red))];
    frame.render_widget(Paragraph::new(foot_lines), foot);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        let values = |chunks: f64, cpu: f64| {
            let of = |pairs: &[(&str, f64)]| {
                pairs
                    .iter()
                    .map(|(name, value)| (format!("daqmeter_{name}"), *value))
                    .collect::<BTreeMap<_, _>>()
            };
            Values::from([(
                "tohost gbt:0.0".to_owned(),
                of(&[
                    ("chunks_total", chunks),
                    ("bytes_total", chunks * 28.0),
                    ("cpu_seconds_total", cpu),
                    ("ring_bytes", 16777216.0),
                    ("ring_size_bytes", 67108864.0),
                    ("triggers_total", chunks / 24.0),
                    ("busy", 1.0),
                    ("errors_total", 2.0),
                ]),
            )])
        };
        Watch { before: values(0.0, 1.0), now: values(48e6, 2.6), seconds: 2.0, ..Watch::default() }
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let shown = &watch().shown()[0];
        assert_eq!(
            (shown.mchunks_per_s, shown.trigger_khz, shown.cpu_share),
            (Some(24.0), Some(1000.0), Some(0.8))
        );
        assert_eq!(
            (shown.ring_share, shown.busy, shown.errors, shown.dead_share),
            (Some(0.25), "DMA", 2.0, None)
        );
    }

    #[test]
    fn an_instance_that_does_not_answer_stays_in_the_view() {
        let mut watch = watch();
        let known = BTreeSet::from(["receiver 1".to_owned(), "receiver 2".to_owned()]);
        watch.known.insert("host:9100".to_owned(), known);
        for address in ["host:9100", "host:9101"] {
            watch.silent.push((address.to_owned(), "connection refused".to_owned()));
        }
        let shown = watch.shown();
        let names: Vec<&str> = shown.iter().map(|shown| shown.instance.as_str()).collect();
        assert_eq!(names, ["tohost gbt:0.0", "receiver 1", "receiver 2", "host:9101"]);
        assert_eq!(shown[0].silent, None);
        assert_eq!(shown[3].silent.as_deref(), Some("host:9101: connection refused"));
    }

    #[test]
    fn the_view_has_a_row_per_instance() {
        let mut terminal =
            ratatui::Terminal::new(ratatui::backend::TestBackend::new(124, 6)).unwrap();
        terminal.draw(|frame| draw(frame, &watch())).unwrap();
        insta::assert_snapshot!(terminal.backend());
    }
}
