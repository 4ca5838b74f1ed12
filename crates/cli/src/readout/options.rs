//! Options that several verbs share, the instance of a verb, and its waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_readout::card::Card;
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::units;

use crate::arguments::{count, duration};
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, tell};

pub(super) fn load(chosen: &Chosen) -> Result<Scenario, Failure> {
    let scenario = chosen.load().map_err(Failure::refused)?;
    daqmeter_readout::transport::named(&scenario.publish.transport).map_err(Failure::refused)?;
    Ok(scenario)
}

/// Completes a request for records: it states rate and polling interval, even the scenario's.
/// A recorded file that is replayed at full speed has none.
pub(super) fn completed(chosen: &Chosen) -> Result<Chosen, Failure> {
    let scenario = load(chosen)?;
    Ok(Chosen {
        rate_hz: (!scenario.is_flat_out()).then_some(scenario.trigger.rate.0),
        poll_us: Some(scenario.reader.poll.0 as f64 / 1e3),
        ..chosen.clone()
    })
}

pub(super) struct Instance {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) page: Page,
}

impl Instance {
    pub(super) fn begin(metrics: &Metrics) -> Result<Instance, Failure> {
        Ok(Instance { stop: interrupt::flag(), page: metrics.served()?.unwrap_or_default() })
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

pub(super) fn publish(page: &Page, name: &str, values: &[(&'static str, f64)]) {
    values.iter().for_each(|(metric, value)| page.set(metric, name, *value));
}

/// Time after which a wait is reported.
const SILENT: Duration = Duration::from_secs(1);

/// A wait with an end.
pub(super) struct Waiting {
    begun: Instant,
    limit: Duration,
    is_said: bool,
}

impl Waiting {
    pub(super) fn new(limit: Duration) -> Waiting {
        Waiting { begun: Instant::now(), limit, is_said: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.limit
    }

    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        if !self.is_said && self.begun.elapsed() >= SILENT {
            self.is_said = true;
            let limit = self.limit_text();
            tell(&format!("daqmeter: waiting for {}, at most {limit}", what()));
        }
    }

    pub(super) fn limit_text(&self) -> String {
        units::show_ns(self.limit.as_nanos() as f64)
    }
}

/// How long triggers come.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Length {
    /// Time for which triggers come
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Or their number
    #[arg(long, value_name = "N", value_parser = count)]
    triggers: Option<u64>,
}

const DEFAULT_LENGTH: Duration = Duration::from_secs(10);

impl Length {
    pub(super) fn limits(self) -> (Duration, Option<u64>) {
        let default = if self.triggers.is_some() { Duration::MAX } else { DEFAULT_LENGTH };
        (self.time.unwrap_or(default), self.triggers)
    }

    pub(super) fn card(self, scenario: &Scenario) -> Result<Card, Failure> {
        let (mut card, _) = Card::new(scenario).map_err(Failure::refused)?;
        let (time, triggers) = self.limits();
        card.source().end_at(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1));
        if let Some(triggers) = triggers {
            card.source().end_after(triggers);
        }
        Ok(card)
    }
}

/// Where pages go and come from.
#[derive(Debug, Clone, Args)]
pub(crate) struct Network {
    /// Directory in which publishers leave their addresses
    #[arg(long, value_name = "DIR")]
    pub(super) bus_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) metrics: Metrics,
    /// A line of JSON instead of text
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn elink(text: &str) -> Result<u16, String> {
    let number =
        units::parse_count(text).map_err(|_| format!("`{text}` is not an E-link such as 0x008"))?;
    u16::try_from(number)
        .ok()
        .filter(|number| *number <= 0x7FF)
        .ok_or(format!("`{text}`: E-links are 0 to 0x7ff"))
}
