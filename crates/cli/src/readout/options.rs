//! Options that several verbs share, and their waits.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_readout::card::{ChannelId, channel_ids};
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::units;
use daqmeter_wire::felix::Elink;

use crate::metrics::Metrics;
use crate::output::{Failure, tell};
use crate::verdict::Limits;

/// Completes a request for records: it states rate and polling interval, even the scenario's.
pub(super) fn completed(chosen: &Chosen) -> Result<Chosen, Failure> {
    let scenario = chosen.completed()?;
    Ok(Chosen {
        rate_hz: Some(scenario.trigger.rate.0),
        poll_us: Some(scenario.reader.poll.0 as f64 / 1e3),
        ..chosen.clone()
    })
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

    /// Begins again: something came this long ago.
    pub(super) fn heard(&mut self, ago: Duration) {
        self.is_said &= ago >= SILENT;
        self.begun = Instant::now().checked_sub(ago).unwrap_or(self.begun);
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

/// Options of publishers and receivers.
#[derive(Debug, Clone, Args)]
pub(crate) struct Network {
    #[command(flatten)]
    pub(super) limits: Limits,
    /// Directory in which publishers leave their addresses
    #[arg(long, value_name = "DIR")]
    pub(super) bus_dir: Option<PathBuf>,
    /// Print a JSON line instead of text
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) metrics: Metrics,
}

pub(super) fn elink(text: &str) -> Result<u16, String> {
    let number =
        units::parse_count(text).map_err(|_| format!("`{text}` is not an E-link such as 0x008"))?;
    let number = u16::try_from(number).ok().filter(|number| *number <= Elink::MAX);
    number.ok_or_else(|| format!("`{text}`: E-links are 0 to 0x7ff"))
}

pub(super) fn channel(text: &str) -> Result<ChannelId, String> {
    let parts = text.split_once('.').and_then(|(one, two)| one.parse().ok().zip(two.parse().ok()));
    let parsed = parts.map(|(device, channel)| ChannelId { device, channel });
    parsed.ok_or_else(|| format!("`{text}`: write device.channel, such as 0.3"))
}

/// Returns the wanted channels of a card in its order; all of them if none is named.
pub(super) fn channels(
    scenario: &Scenario,
    wanted: &[ChannelId],
) -> Result<Vec<ChannelId>, Failure> {
    let all = channel_ids(scenario);
    let text = |id: &ChannelId| format!("{}.{}", id.device, id.channel);
    if let Some(id) = wanted.iter().find(|id| !all.contains(id)) {
        let [id, first, last] = [id, &all[0], &all[all.len() - 1]].map(text);
        let name = &scenario.name;
        return Err(format!("--channels {id}: {name} has channels {first} to {last}").into());
    }
    Ok(all.into_iter().filter(|id| wanted.is_empty() || wanted.contains(id)).collect())
}
