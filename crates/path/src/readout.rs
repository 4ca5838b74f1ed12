//! Engine `readout`: a card that is read out, as a path with its own defaults. A lane is a reader of one DMA channel.

use daqmeter_harness::{Availability, Fault, LimitSpec, Session, StageSpec, Tally, TypedEngine};
use daqmeter_readout::card::channel_ids;
use daqmeter_readout::chain::{Chain, filling_of};
use daqmeter_readout::{Chosen, ReadoutRequest, Scenario};
use daqmeter_record::{Ledger, Workload};
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;
use toml::{Table, Value};

use crate::definition::Path;
use crate::known::Known;
use crate::lanes::{self, ReadOut, Says};
use crate::live::Came;
use crate::shared::How;

/// Emulated card, readers, receivers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadoutEngine;

impl TypedEngine for ReadoutEngine {
    type Request = ReadoutRequest;

    fn description(&self) -> &'static str {
        "emulated card, reader of its rings, pages over the network, checking receivers"
    }

    fn probe_for(&self, request: &ReadoutRequest) -> Availability {
        match request.migration_cost_ns {
            Some(_) => match MigrationCost::check(&Files::default()) {
                Ok(()) => Availability::Ready,
                Err(error) => Availability::Waived(error.to_string()),
            },
            None => Availability::Ready,
        }
    }

    fn names_processes(&self) -> bool {
        true
    }

    fn target(&self, request: &ReadoutRequest) -> String {
        request.chosen.outline().map_or_else(
            |_| "unknown".to_owned(),
            |scenario| format!("{} over {}", scenario.name, scenario.publish.transport),
        )
    }

    fn is_emulated(&self, _request: &ReadoutRequest) -> bool {
        true
    }

    fn memory_bytes(&self, request: &ReadoutRequest) -> Option<u64> {
        let scenario = request.chosen.outline().ok()?;
        let file = request.chosen.replayed_bytes();
        Some(file.saturating_add(scenario.memory_bytes(Chain::parts(&scenario))))
    }

    fn example(&self) -> ReadoutRequest {
        ReadoutRequest {
            chosen: Chosen { scenario: "gbt".to_owned(), rate_hz: Some(10e3), ..Chosen::default() },
            seconds: 0.05,
            probe: true,
            ..ReadoutRequest::default()
        }
    }

    fn open(&self, request: &ReadoutRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
        let scenario = request.chosen.outline()?;
        let says = Says { device, stage: stage(request, &scenario), tally };
        lanes::open(path(request, &scenario)?, &how(request), says)
    }
}

/// The path of a request: what the verb's options say is in its file's fields.
fn path(request: &ReadoutRequest, scenario: &Scenario) -> Result<Path, Fault> {
    let text = text(request, scenario).map_err(|error| Fault::new(error.to_string()))?;
    Path::parse(&text, "readout").map_err(|error| Fault::new(error.to_string()))
}

fn text(request: &ReadoutRequest, scenario: &Scenario) -> Result<String, toml::ser::Error> {
    let of_kind = |kind: &str| Table::from_iter([("kind".to_owned(), Value::from(kind))]);
    // The path's own are its rate and the stage behind `to-host`.
    let chosen = Chosen { rate_hz: None, transport: None, ..request.chosen.clone() };
    let mut source = of_kind("card");
    source.extend(Table::try_from(&chosen)?);
    let mut sink = of_kind("receiver");
    let cpus: Vec<Value> = request.receivers.cpus().into_iter().map(Value::from).collect();
    sink.insert("cpus".to_owned(), cpus.into());
    if let Some(receivers) = request.receivers.receivers {
        let receivers = i64::try_from(receivers).unwrap_or(i64::MAX);
        sink.insert("threads".to_owned(), receivers.into());
    }
    let stages = [of_kind("to-host"), of_kind(&scenario.publish.transport)];
    let file = Table::from_iter([
        ("title".to_owned(), "a card that is read out".into()),
        ("block".to_owned(), scenario.card.block.0.to_string().into()),
        ("source".to_owned(), source.into()),
        ("stage".to_owned(), stages.map(Value::from).to_vec().into()),
        ("sink".to_owned(), sink.into()),
    ]);
    toml::to_string(&file)
}

fn how(request: &ReadoutRequest) -> How {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most a day in nanoseconds"
    )]
    let time_ns = (request.seconds * 1e9) as u64;
    How {
        time_ns,
        most_blocks: u64::MAX,
        rate_hz: request.chosen.rate_hz,
        lossless: true,
        slowed: Vec::new(),
        is_watched: false,
        left_out: None,
        cpus: Vec::new(),
        last_level_bytes: 0,
        migration_cost_ns: request.migration_cost_ns,
        known: Known::default(),
    }
}

/// The device and the channel of a reader.
fn device(read_out: &ReadOut, at: usize) -> String {
    let scenario = &read_out.live.scenario;
    let id = channel_ids(scenario)[at];
    format!("{}:{}.{}", scenario.name, id.device, id.channel)
}

fn stage(request: &ReadoutRequest, scenario: &Scenario) -> StageSpec {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a byte count")]
    let bytes = (scenario.event_bytes() * scenario.trigger.rate.0 * request.seconds) as u64;
    let mut stage = StageSpec::new("read-out", bytes, bytes);
    stage.once = true;
    if !request.probe {
        let ring_bytes = scenario.card.ring.0 as u64;
        stage.limit = Some(LimitSpec::Measured {
            name: format!("memory read at {ring_bytes} B"),
            how: "the ring's bytes read once, in order, with no arithmetic".to_owned(),
            workload: Workload::new("memory")
                .with("read_bytes", ring_bytes)
                .with("read_lines", 1_u64)
                .with("write_lines", 0_u64),
            scale: 1.0,
        });
    }
    stage
}

/// What the lane of a reader accounts for; the first one also for what they share.
fn tally(read_out: &ReadOut, came: &Came, at: usize) -> Tally {
    let ReadOut { path, live, lanes, .. } = read_out;
    let fault = came.fault.as_ref().map(|fault| fault.0.clone());
    let Some(own) = &came.readers[at] else {
        return Tally { warnings: fault.into_iter().collect(), ..Tally::default() };
    };
    let (mut tally, each) = live.tally(path, came, at);
    tally.warnings.splice(..0, fault);
    let mut all = Ledger::new("triggers x E-links");
    for (_, ledger) in each {
        all.add(&Ledger { unit: all.unit.clone(), ..ledger });
    }
    tally.ledgers.push(all);
    if *lanes > 1 {
        tally.series.push(filling_of(&live.scenario, at, own));
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use daqmeter_harness::{StopFlag, conformance};
    use daqmeter_readout::request::Receivers;

    use super::*;

    #[test]
    fn a_chain_conforms() {
        conformance::run(&ReadoutEngine);
    }

    #[test]
    fn a_request_is_a_path_whose_fields_are_the_options_of_the_verb() {
        let request = ReadoutRequest {
            chosen: Chosen {
                scenario: "gbt".to_owned(),
                rate_hz: Some(10e3),
                payload_bytes: Some(16),
                poll_us: Some(250.0),
                channels: Some(2),
                ..Chosen::default()
            },
            receivers: Receivers { receivers: Some(1), peer_cpu: Some("0".to_owned()) },
            ..ReadoutRequest::default()
        };
        let scenario = request.chosen.outline().unwrap();
        let path = path(&request, &scenario).unwrap();
        assert_eq!(path.line(), "1 KiB -> card gbt -> to-host -> published over tcp -> receiver");
        assert_eq!((path.streams(), path.stages[0].threads), (2, 2));
        assert_eq!((path.sink.threads, &path.sink.cpus[..]), (1, &[0][..]));
        let of_path = path.live().unwrap();
        assert_eq!(of_path.reader.poll, scenario.reader.poll);
        assert_eq!(of_path.card.payload, scenario.card.payload);
        assert_eq!(of_path.card.payload.0, 16);
        assert_eq!(how(&request).rate_hz, Some(10e3));
    }

    /// Issue 14: a signal was heeded after the whole run.
    #[test]
    fn a_run_of_an_hour_ends_when_it_is_to_stop_and_its_accounts_close() {
        let request = ReadoutRequest { seconds: 3600.0, ..ReadoutEngine.example() };
        let mut sessions = ReadoutEngine.open(&request).unwrap();
        let session = &mut sessions[0];
        let stop = StopFlag::default();
        session.heed(&stop);
        session.prepare().unwrap();
        session.begin();
        let asked = stop.clone();
        let asking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            asked.set();
        });
        assert_eq!(session.step(0, 1).unwrap_err(), Fault::interrupted());
        asking.join().unwrap();
        let tally = session.tally();
        assert!(tally.ledgers[0].closes(), "{}", tally.ledgers[0]);
        // What was read counts, not what an hour would have brought.
        let asked = session.stages()[0].bytes_per_op;
        assert!(tally.carried_bytes.is_some_and(|bytes| bytes < asked / 10));
        let filling = &tally.series[0];
        assert_eq!((filling.name.as_str(), filling.unit.as_str()), ("ring filling", "B"));
        assert_eq!(filling.times_ns.len(), filling.values.len());
    }

    #[test]
    fn the_memory_of_a_chain_is_known_beforehand() {
        let ring = Scenario::load("gbt").unwrap().card.ring.0 as u64;
        let mut request = ReadoutEngine.example();
        let bytes = ReadoutEngine.memory_bytes(&request).unwrap();
        assert!(bytes >= ring && bytes < 4 * ring + (1 << 30), "{bytes} for rings of {ring}");
        request.chosen.channels = Some(9);
        assert_eq!(ReadoutEngine.memory_bytes(&request), None);
    }
}
