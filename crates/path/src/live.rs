//! A card that is read out live, by the functions of the read-out: its DMA rings lie between card and readers, its transport between
//! readers and receivers. A path gives them its threads (`card.rs`), and closes their ledgers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_readout::card::Played;
use daqmeter_readout::chain::{
    Chain, Load, ReaderDone, check_bytes, check_ledgers, counters, filling, latency, notes_of_file,
    turns,
};
use daqmeter_readout::receive::Report;
use daqmeter_readout::{Card, Chosen, Scenario};
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::{Counter, TimeSeries};

use crate::card::{FromCard, IntoReceiver};
use crate::definition::{Path, SourceKind, StageKind};
use crate::ended::{Done, buckets};
use crate::shared::How;

/// What is left of a card when its threads run.
pub(crate) struct Live {
    pub(crate) scenario: Scenario,
    card: Arc<Mutex<Card>>,
    failed: Arc<AtomicBool>,
}

/// A card with its readers and receivers, before any of them runs.
pub(crate) type Opened = (Live, Vec<FromCard>, Vec<IntoReceiver>);

/// What the threads brought back.
#[derive(Default)]
pub(crate) struct Came {
    threads: Vec<PathThread>,
    /// Each reader; none for one that did not come to its end.
    pub(crate) readers: Vec<Option<ReaderDone>>,
    pub(crate) received: Vec<(Report, Load)>,
    pub(crate) fault: Option<Fault>,
}

/// What is asked of the card: the path's transport and rate are its own.
fn chosen(path: &Path, rate_hz: Option<f64>) -> Result<Chosen, Fault> {
    let SourceKind::Card { chosen, .. } = &path.source.kind else {
        return Err(Fault::new("no card: a bug in daqmeter"));
    };
    let published = path.stages.iter().find_map(|stage| match &stage.kind {
        StageKind::Publish(transport) => Some(transport.clone()),
        _ => None,
    });
    Ok(Chosen {
        rate_hz,
        transport: published,
        ..Chosen::clone(chosen)
    })
}

/// Opens the card of a path.
pub(crate) fn open(path: &Path, how: &How) -> Result<Opened, Fault> {
    let scenario = chosen(path, how.rate_hz)?.load()?;
    let triggers = Some(how.most_blocks).filter(|&most| most < u64::MAX);
    let time = Duration::from_nanos(how.time_ns);
    let chain = Chain::open(&scenario, path.sink.threads, time, triggers)?;
    daqmeter_readout::live::register(&chain.scenario.name, &chain.card);
    let live = Live {
        scenario: chain.scenario,
        card: chain.card,
        failed: Arc::default(),
    };
    let readers = chain.readers.into_iter().map(|reader| FromCard {
        reader,
        card: live.card.clone(),
        failed: live.failed.clone(),
        stop: StopFlag::default(),
        done: None,
    });
    let receivers = chain.receivers.into_iter().map(|receiving| IntoReceiver {
        receiving,
        failed: live.failed.clone(),
        done: None,
    });
    let (readers, receivers) = (readers.collect(), receivers.collect());
    Ok((live, readers, receivers))
}

impl Came {
    /// Of so many readers, whose threads are the first ones.
    pub(crate) fn of(all: Vec<Done>, readers: usize, fault: Option<Fault>) -> Came {
        let mut came = Came {
            readers: (0..readers).map(|_| None).collect(),
            fault,
            ..Came::default()
        };
        for done in all {
            came.threads.push(done.thread);
            if let Some(read) = done.left.read {
                came.readers[done.at] = Some(*read);
            }
            came.received
                .extend(done.left.received.map(|received| *received));
        }
        came
    }

    /// Readers that came to their end.
    pub(crate) fn whole(&self) -> Vec<&ReaderDone> {
        self.readers.iter().flatten().collect()
    }
}

impl Live {
    /// Everything ends: some of it failed.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn played(&self) -> Option<Played> {
        self.card().played()
    }

    /// What makes a run without a fault a failed one, as far as that reader knows.
    pub(crate) fn check(&self, came: &Came, reader: &ReaderDone) -> Result<(), Fault> {
        check_ledgers(std::slice::from_ref(reader), &came.received).map_err(Fault::new)?;
        if !self.scenario.fault.is_empty() {
            return Ok(());
        }
        // A recorded file may hold what no emulator makes.
        let foreign = self.played().map_or(0, |played| played.wrong);
        check_bytes(&came.received, foreign).map_err(Fault::new)
    }

    /// Those of the whole card.
    pub(crate) fn counters(&self, came: &Came) -> Vec<Counter> {
        let peak_bytes = self.card().peak_bytes();
        let mut all = counters(&self.scenario, &came.whole(), &came.received, &peak_bytes);
        all.extend(self.played().map(turns));
        all
    }

    /// Of the fullest ring.
    pub(crate) fn filling(&self, came: &Came) -> Option<TimeSeries> {
        filling(&came.whole())
    }

    /// What is to be said of a recorded file.
    pub(crate) fn notes_of_file(&self) -> Vec<String> {
        notes_of_file(&self.scenario, self.played())
    }

    pub(crate) fn run(&self, came: &Came) -> PathRun {
        let readers = || came.readers.iter().flatten();
        let blocks = readers().map(|reader| reader.stats.blocks).sum();
        let latency_ns = latency(&came.received);
        // Receivers compare every chunk with what the emulator makes. A recorded file may hold anything.
        let is_known = self.played().is_none();
        let threads = came.threads.clone();
        PathRun {
            wall_ns: threads
                .iter()
                .map(|thread| thread.wall_ns)
                .max()
                .unwrap_or(0),
            payload_bytes: readers().map(|reader| reader.stats.bytes).sum(),
            blocks,
            events: came.received.iter().map(|(one, _)| one.chunks()).sum(),
            verified_blocks: if is_known { blocks } else { 0 },
            latency: buckets(&latency_ns),
            latency_max_ns: latency_ns.max(),
            is_paced: !self.scenario.is_flat_out(),
            cpus: daqmeter_sys::available::cpus(),
            threads,
            ..PathRun::default()
        }
    }
}
