//! Engine `readout`: a card that is read out, as a path with its own defaults. A lane is a reader
//! of one DMA channel.

pub(crate) mod card;
pub(crate) mod request;

use daqmeter_harness::{Fault, Job, Problem, Request, StageSpec, Tally};
use daqmeter_readout::accounts::of_all;
use daqmeter_readout::card::channel_ids;
use daqmeter_readout::chain::filling_of;
use daqmeter_readout::decode::read_limit;
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::units::whole;
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;

use self::card::{CardReport, CardResults, ReadOut};
pub use self::request::{ReadoutRequest, Receivers};
use crate::chain::shared::{PathSettings, SECONDS, time_ns};
use crate::definition::Path;

/// Largest migration cost: with more, no task would ever be moved.
const MAX_MIGRATION_COST_NS: u64 = 1_000_000_000;

impl Request for ReadoutRequest {
    const KIND: &'static str = "readout";
    const DESCRIPTION: &'static str =
        "emulated card, reader of its rings, pages over the network, checking receivers";

    fn example() -> ReadoutRequest {
        ReadoutRequest {
            chosen: Chosen { rate_hz: Some(10e3), ..Chosen::default() },
            seconds: 0.05,
            probe: true,
            ..ReadoutRequest::default()
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        let scenario = self.chosen.completed()?;
        let target = format!("{} over tcp", scenario.name);
        let memory_bytes = scenario.memory_bytes();
        let checked = self.migration_cost_ns.map(|_| MigrationCost::check(&Files::default()));
        Ok(Job {
            waiver: checked.and_then(Result::err).map(|error| error.to_string()),
            is_emulated: true,
            memory_bytes: Some(memory_bytes),
            names_processes: true,
            ..Job::new(self, target, move |request| {
                let report = CardReport { device, stage: stage(request, &scenario), tally };
                let path = Path::of_card(&request.chosen, &scenario, &request.receivers)?;
                let laid_out =
                    PathSettings::laid_out(&path, &path.layout, &[]).map_err(Fault::new)?;
                card::open(path, &how(request, laid_out), report)
            })
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("seconds", self.seconds, SECONDS)?;
        if let Some(ns) = self.migration_cost_ns {
            Problem::unless_within("migration_cost_ns", ns, 0..=MAX_MIGRATION_COST_NS)?;
        }
        if let Some(receivers) = self.receivers.receivers {
            // Parts that do not go together are refused when they are completed.
            let scenario = self.chosen.completed();
            let readers = scenario.map_or(usize::MAX, |one| channel_ids(&one).len());
            Problem::unless_within("receivers", receivers as u64, 1..=readers as u64)?;
        }
        Problem::unless_cpus_exist("peer_cpu", self.receivers.cpus())
    }
}

fn how(request: &ReadoutRequest, laid_out: PathSettings) -> PathSettings {
    PathSettings {
        time_ns: time_ns(request.seconds),
        rate_hz: request.chosen.rate_hz,
        lossless: true,
        migration_cost_ns: request.migration_cost_ns,
        ..laid_out
    }
}

fn device(read_out: &ReadOut, at: usize) -> String {
    let scenario = &read_out.scenario;
    let id = channel_ids(scenario)[at];
    format!("{}:{}.{}", scenario.name, id.device, id.channel)
}

fn stage(request: &ReadoutRequest, scenario: &Scenario) -> StageSpec {
    let bytes = whole(scenario.event_bytes() * scenario.trigger.rate.0 * request.seconds);
    let mut stage = StageSpec::new("read-out", bytes, bytes);
    stage.once = true;
    if !request.probe {
        stage.limit = Some(read_limit(scenario.card.ring.0 as u64, "ring's"));
    }
    stage
}

/// Account of a reader's lane; the first one also has the common accounts.
fn tally(read_out: &ReadOut, results: &CardResults, at: usize) -> Tally {
    let fault = results.fault.as_ref().map(|fault| fault.0.clone());
    let Some(own) = &results.readers[at] else {
        return Tally { warnings: fault.into_iter().collect(), ..Tally::default() };
    };
    let (mut tally, each) = read_out.tally(results, at);
    tally.warnings.splice(..0, fault);
    tally.ledgers.push(of_all(&each));
    if read_out.lanes > 1 {
        tally.series.push(filling_of(&read_out.scenario, at, own));
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use daqmeter_harness::{CpuList, StopFlag, conformance};

    use super::*;

    #[test]
    fn a_chain_conforms() {
        conformance::run(&ReadoutRequest::example().job().unwrap());
    }

    #[test]
    fn a_request_is_a_path_whose_fields_are_the_options_of_the_verb() {
        let request = ReadoutRequest {
            chosen: Chosen {
                rate_hz: Some(10e3),
                payload_bytes: Some(16),
                poll_us: Some(250.0),
                channels: Some(2),
                ..Chosen::default()
            },
            receivers: Receivers {
                receivers: Some(1),
                peer_cpu: Some(CpuList(vec![0])),
                layout: None,
            },
            ..ReadoutRequest::default()
        };
        let scenario = request.chosen.completed().unwrap();
        let path = Path::of_card(&request.chosen, &scenario, &request.receivers).unwrap();
        assert_eq!(path.line(), "1 KiB -> card gbt -> to-host -> published over tcp -> receiver");
        assert_eq!((path.threads(), &path.last().cpus[..]), (vec![0, 2, 0, 1], &[0][..]));
        let of_path = path.live().unwrap();
        assert_eq!(of_path.reader.poll, scenario.reader.poll);
        assert_eq!(of_path.card.payload, scenario.card.payload);
        assert_eq!(of_path.card.payload.0, 16);
        assert_eq!(how(&request, PathSettings::default()).rate_hz, Some(10e3));
    }

    #[test]
    fn a_card_is_fused_where_its_threads_have_no_cpu_each_and_may_be() {
        let of = |receivers, cpus| {
            let mut request = ReadoutRequest::example();
            (request.chosen.channels, request.receivers) = (Some(2), receivers);
            let scenario = request.chosen.completed().unwrap();
            let path = Path::of_card(&request.chosen, &scenario, &request.receivers).unwrap();
            path.layout_of_run(&path.layout, cpus).to_string()
        };
        let asked = |layout: &str| Receivers { layout: layout.parse().ok(), ..Default::default() };
        assert_eq!(of(Receivers::default(), 4.0), "pipeline");
        assert_eq!(of(Receivers::default(), 3.9), "fused x 2");
        assert_eq!(of(Receivers { receivers: Some(1), ..asked("auto") }, 1.0), "pipeline");
        let placed = Receivers { peer_cpu: Some(CpuList(vec![0])), ..Receivers::default() };
        assert_eq!(of(placed, 1.0), "pipeline");
        assert_eq!(of(asked("pipeline"), 1.0), "pipeline");
        assert_eq!(of(asked("fused"), 64.0), "fused x 2");
    }

    /// Issue 14: a signal was heeded after the whole run.
    #[test]
    fn a_run_of_an_hour_ends_when_it_is_to_stop_and_its_accounts_close() {
        let soon = [Duration::ZERO, Duration::from_millis(50)];
        for (layout, after) in soon.iter().flat_map(|&at| [("pipeline", at), ("fused", at)]) {
            let receivers = Receivers { layout: layout.parse().ok(), ..Receivers::default() };
            let request =
                ReadoutRequest { seconds: 3600.0, receivers, ..ReadoutRequest::example() };
            let mut sessions = request.job().unwrap().open().unwrap();
            let session = &mut sessions[0];
            let stop = StopFlag::default();
            session.set_stop_flag(&stop);
            session.prepare().unwrap();
            session.begin();
            let stops = std::thread::spawn({
                let stop = stop.clone();
                move || (std::thread::sleep(after), stop.set())
            });
            let begin = Instant::now();
            assert_eq!(session.step(0, 1).unwrap_err(), Fault::interrupted());
            assert!(begin.elapsed() < Duration::from_secs(2), "{layout} {after:?}");
            stops.join().unwrap();
            let tally = session.tally();
            assert!(tally.ledgers[0].closes(), "{layout}: {}", tally.ledgers[0]);
            // The bytes read count, not those of an hour.
            let asked = session.stages()[0].bytes_per_op;
            assert!(tally.carried_bytes.is_some_and(|bytes| bytes < asked / 10));
            let filling = &tally.series[0];
            assert_eq!((filling.name.as_str(), filling.unit.as_str()), ("ring filling", "B"));
            assert_eq!(filling.times_ns.len(), filling.values.len());
        }
    }

    #[test]
    fn the_memory_of_a_chain_is_known_beforehand() {
        let ring = Scenario::load("gbt").unwrap().card.ring.0 as u64;
        let mut request = ReadoutRequest::example();
        let bytes = request.job().unwrap().memory_bytes.unwrap();
        assert!(bytes >= ring && bytes < 4 * ring + (1 << 30), "{bytes} for rings of {ring}");
        request.chosen.channels = Some(9);
        assert!(request.job().is_err());
    }
}
