//! A card that is read out live, by the functions of the read-out: its DMA rings lie between card and readers, its transport between
//! readers and receivers. A path gives them its threads (`card.rs`), and closes their ledgers.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_readout::Card;
use daqmeter_readout::chain::{
    Chain, Load, Placement, ReaderDone, check_bytes, check_ledgers, counters, counters_of_reader,
    filling, joined, latency, losses_by_elink,
};
use daqmeter_readout::receive::{Report, elink_of};
use daqmeter_readout::scenario::{Hertz, Scenario};
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::{Counter, Ledger};

use crate::card::{FromCard, IntoReceiver};
use crate::definition::{Path, StageKind};
use crate::ended::{Done, Ended, buckets};
use crate::shared::How;

/// What is left of a card when its threads run.
pub(crate) struct Live {
    card: Arc<Mutex<Card>>,
    scenario: Scenario,
}

/// A card with its readers and receivers, before any of them runs.
pub(crate) type Opened = (Live, Vec<FromCard>, Vec<IntoReceiver>);

/// Opens the card of a path.
pub(crate) fn open(path: &Path, scenario: &Scenario, how: &How) -> Result<Opened, Fault> {
    let mut scenario = scenario.clone();
    if let Some(hz) = how.rate_hz {
        scenario.trigger.rate = Hertz(hz);
    }
    for stage in &path.stages {
        if let StageKind::Publish(transport) = &stage.kind {
            scenario.publish.transport.clone_from(transport);
        }
    }
    scenario.check()?;
    let triggers = Some(how.most_blocks).filter(|&most| most < u64::MAX);
    let time = Duration::from_nanos(how.time_ns);
    // CPUs are the path's to give.
    let chain = Chain::open(&scenario, &Placement::default(), time, triggers)?;
    let failed = Arc::new(AtomicBool::new(false));
    let readers = chain.readers.into_iter().map(|reader| FromCard {
        reader,
        failed: failed.clone(),
        done: None,
    });
    let receivers = chain.receivers.into_iter().map(|receiving| IntoReceiver {
        receiving,
        failed: failed.clone(),
        done: None,
    });
    let live = Live {
        card: chain.card,
        scenario: chain.scenario,
    };
    Ok((live, readers.collect(), receivers.collect()))
}

impl Live {
    /// Puts together what the threads left: a ledger for each E-link, from trigger to receiver.
    pub(crate) fn ended(&self, all: Vec<Done>, fault: Option<Fault>) -> Ended {
        let (mut threads, mut readers, mut received) = (Vec::new(), Vec::new(), Vec::new());
        for done in all {
            threads.push(done.thread);
            readers.extend(done.left.read.map(|read| *read));
            received.extend(done.left.received.map(|received| *received));
        }
        let fault = fault.or_else(|| self.wrong(&readers, &received));
        let each = joined(&readers, &received);
        let by_reference: Vec<&ReaderDone> = readers.iter().collect();
        let mut counters = self.counters(&by_reference, &received);
        counters.extend(losses_by_elink(&each));
        Ended {
            run: self.run(threads, &readers, &received),
            ledgers: ledgers(each, fault.is_some()),
            counters,
            series: filling(&by_reference).into_iter().collect(),
            notes: readers
                .iter()
                .flat_map(|reader| reader.notes.clone())
                .collect(),
            fault,
        }
    }

    /// What makes a run without a fault a failed one.
    fn wrong(&self, readers: &[ReaderDone], received: &[(Report, Load)]) -> Option<Fault> {
        let foreign = self.card().played().map_or(0, |played| played.wrong);
        let is_clean = self.scenario.fault.is_empty();
        let checked = check_ledgers(readers, received).and_then(|()| match is_clean {
            true => check_bytes(received, foreign),
            false => Ok(()),
        });
        checked.err().map(Fault::new)
    }

    fn card(&self) -> std::sync::MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the chain, and of all readers together. Blocks are counted in every path.
    fn counters(&self, readers: &[&ReaderDone], received: &[(Report, Load)]) -> Vec<Counter> {
        let mut all = counters(&self.scenario, readers, received, &self.card().peak_bytes());
        let of_readers = readers.iter().flat_map(|reader| counters_of_reader(reader));
        for counter in of_readers.filter(|counter| counter.name != "blocks") {
            match all.iter_mut().find(|known| known.name == counter.name) {
                Some(known) => known.value += counter.value,
                None => all.push(counter),
            }
        }
        all
    }

    fn run(
        &self,
        threads: Vec<PathThread>,
        readers: &[ReaderDone],
        received: &[(Report, Load)],
    ) -> PathRun {
        let blocks = readers.iter().map(|reader| reader.stats.blocks).sum();
        let latency_ns = latency(received);
        // Receivers compare every chunk with what the emulator makes. A recorded file may hold anything.
        let is_known = self.card().played().is_none();
        PathRun {
            wall_ns: threads
                .iter()
                .map(|thread| thread.wall_ns)
                .max()
                .unwrap_or(0),
            payload_bytes: readers.iter().map(|reader| reader.stats.bytes).sum(),
            blocks,
            events: received.iter().map(|(report, _)| report.chunks()).sum(),
            verified_blocks: if is_known { blocks } else { 0 },
            latency: buckets(&latency_ns),
            latency_max_ns: latency_ns.max(),
            is_paced: true,
            cpus: daqmeter_sys::available::cpus(),
            threads,
            ..PathRun::default()
        }
    }
}

/// A ledger for each E-link. What a run that failed left on its way is booked as that.
fn ledgers(each: Vec<(u64, Ledger)>, is_failed: bool) -> Vec<Ledger> {
    let named = |(tag, mut ledger): (u64, Ledger)| {
        let elink = elink_of(tag).map_or(format!("{tag:#x}"), |elink| {
            format!("{:#05x}", elink.number())
        });
        ledger.unit = format!("triggers of E-link {elink}");
        let left = u64::try_from(ledger.gap()).unwrap_or(0);
        if is_failed && left > 0 {
            ledger.lose("in the path when it failed", left);
        }
        ledger
    };
    each.into_iter().map(named).collect()
}
