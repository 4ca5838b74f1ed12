//! A card that is read out live, by the functions of the read-out: its DMA rings lie between card
//! and readers, its transport between readers and receivers. A path gives them its threads
//! (`card.rs`), and closes their ledgers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag, Tally};
use daqmeter_readout::chain::{
    Chain, ReaderDone, check_bytes, check_ledgers, counters, counters_of_reader, filling, joined,
    latency, losses_by_elink,
};
use daqmeter_readout::receive::Report;
use daqmeter_readout::watch::{Added, ChainPart, Experiment};
use daqmeter_readout::{Card, Chosen, Scenario};
use daqmeter_record::path::{PathRun, PathThread, PathWithin};
use daqmeter_record::{Counter, Ledger};

use crate::added_work::Spin;
use crate::card::{FromCard, IntoReceiver, waits_for_input};
use crate::definition::{Path, SENT};
use crate::kinds::SourceKind;
use crate::outcome::buckets;
use crate::shared::How;
use crate::worker::{Done, Feed};

/// Triggers of a card that is read out as fast as it goes: more than any reader carries; BUSY stops
/// the rest.
pub(crate) const TOO_MANY_HZ: f64 = *daqmeter_digitizer::daq::TRIGGER_RATES_HZ.end();

pub(crate) struct Live {
    pub(crate) scenario: Scenario,
    card: Arc<Mutex<Card>>,
    layout: String,
}

pub(crate) type ByElink = Vec<(u64, Ledger)>;

pub(crate) type Opened = (Live, Vec<Feed>, Vec<Feed>);

#[derive(Default)]
pub(crate) struct Came {
    threads: Vec<PathThread>,
    /// Each reader; `None` for one that did not come to its end.
    pub(crate) readers: Vec<Option<ReaderDone>>,
    pub(crate) received: Vec<Report>,
    pub(crate) fault: Option<Fault>,
}

/// Request of the card: the path's transport and rate are its own.
fn chosen(path: &Path, rate_hz: Option<f64>) -> Result<Chosen, Fault> {
    let SourceKind::Card { chosen } = &path.source.kind else {
        return Err(Fault::new("no card: a bug in daqmeter"));
    };
    let published = path.stages.iter().find(|stage| stage.unit == SENT);
    let published = published.map(|stage| stage.name.clone());
    Ok(Chosen { rate_hz, transport: published, ..Chosen::clone(chosen) })
}

pub(crate) fn open(path: &Path, how: &How) -> Result<Opened, Fault> {
    let scenario = chosen(path, how.rate_hz)?.load()?;
    let time = Duration::from_nanos(how.time_ns);
    let experiment = how.is_watched.then(|| experiment(how));
    let chain =
        Chain::open(&scenario, path.receivers(), time, how.most_blocks, experiment.as_ref())?;
    let live = Live { scenario: chain.scenario, card: chain.card, layout: how.layout.clone() };
    let (card, stop) = (&live.card, StopFlag::default());
    let mut receivers = chain.receivers;
    let fused = if how.is_fused() { std::mem::take(&mut receivers) } else { Vec::new() };
    let mut fused = fused.into_iter();
    let readers = chain.readers.into_iter().map(|reader| {
        let (card, stop) = (card.clone(), stop.clone());
        Feed::Card(Box::new(FromCard { reader, fused: fused.next(), card, stop, done: None }))
    });
    let readers = readers.collect();
    let receivers = receivers.into_iter();
    let receivers =
        receivers.map(|receiving| Feed::Receiver(Box::new(IntoReceiver { receiving, done: None })));
    Ok((live, readers, receivers.collect()))
}

/// Work added to a part of the card's read-out, by the number of its element.
fn experiment(how: &How) -> Experiment {
    use ChainPart::{Card, Publisher, Receiver, ToHost};
    const PARTS: [ChainPart; 4] = [Card, ToHost, Publisher, Receiver];
    let added = |(element, part): (usize, ChainPart)| {
        let ns = how.added_ns(element);
        let spin = Spin::of_ns(ns);
        let added: Added = Arc::new(move |blocks| spin.work_times(blocks));
        (ns > 0.0).then_some((part, added))
    };
    Experiment(PARTS.into_iter().enumerate().filter_map(added).collect())
}

/// Parts that work in the thread of a reader beside it.
fn within(path: &Path, reader: &ReaderDone) -> Vec<PathWithin> {
    let watched = reader.within.map(|(card_ns, publisher_ns)| [(0, card_ns), (2, publisher_ns)]);
    let received = reader.received.as_ref().map(|(_, ns)| (path.stages.len() + 1, *ns));
    let names = path.names();
    let one =
        |(element, ns): (usize, u64)| PathWithin { name: names[element].to_owned(), element, ns };
    watched.into_iter().flatten().chain(received).map(one).collect()
}

impl Came {
    /// Results of all threads, of which the first `readers` are readers.
    pub(crate) fn of(all: Vec<Done>, readers: usize, fault: Option<Fault>) -> Came {
        let mut came =
            Came { readers: (0..readers).map(|_| None).collect(), fault, ..Came::default() };
        for done in all {
            came.threads.push(waits_for_input(done.thread));
            match done.feed {
                Feed::Card(from) => {
                    let fused = from.done.as_ref().and_then(|done| done.received.as_ref());
                    came.received.extend(fused.map(|(report, _)| report.clone()));
                    came.readers[done.at] = from.done;
                }
                Feed::Receiver(into) => came.received.extend(into.done),
                _ => {}
            }
        }
        came
    }

    fn whole(&self) -> Vec<&ReaderDone> {
        self.readers.iter().flatten().collect()
    }
}

impl Live {
    fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks for reasons, known to that reader, why a run without a fault failed.
    pub(crate) fn check(&self, came: &Came, reader: &ReaderDone) -> Result<(), Fault> {
        check_ledgers(std::slice::from_ref(reader), &came.received).map_err(Fault::new)?;
        if self.scenario.fault.is_empty() {
            check_bytes(&came.received).map_err(Fault::new)?;
        }
        Ok(())
    }

    fn counters(&self, came: &Came) -> Vec<Counter> {
        let peak_bytes = self.card().peak_bytes();
        counters(&self.scenario, &came.whole(), &came.received, &peak_bytes)
    }

    /// Account of a reader's lane, with the ledger of each of its E-links; the first one also has
    /// the common accounts.
    pub(crate) fn tally(&self, path: &Path, came: &Came, at: usize) -> (Tally, ByElink) {
        let mut tally = Tally::default();
        let mut each = Vec::new();
        if let Some(own) = &came.readers[at] {
            each = joined(std::slice::from_ref(own), &came.received);
            tally.carried_bytes = Some(own.stats.bytes);
            tally.warnings.clone_from(&own.notes);
            tally.counters = counters_of_reader(own);
            tally.counters.extend(losses_by_elink(&each));
        }
        if at == 0 {
            tally.series.extend(filling(&came.whole()));
            tally.counters.extend(self.counters(came));
            tally.path = Some(self.run(path, came));
        }
        (tally, each)
    }

    fn run(&self, path: &Path, came: &Came) -> PathRun {
        let readers = || came.readers.iter().flatten();
        let blocks = readers().map(|reader| reader.stats.blocks).sum();
        let latency_ns = latency(&came.received);
        let mut threads = came.threads.clone();
        for (thread, reader) in threads.iter_mut().zip(&came.readers) {
            thread.within = reader.as_ref().map_or_else(Vec::new, |one| within(path, one));
        }
        PathRun {
            line: path.line(),
            wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
            payload_bytes: readers().map(|reader| reader.stats.bytes).sum(),
            blocks,
            events: came.received.iter().map(Report::chunks).sum(),
            // Receivers compare every chunk with the emulator's.
            verified_blocks: blocks,
            latency: buckets(&latency_ns),
            latency_max_ns: latency_ns.max(),
            is_paced: self.scenario.trigger.rate.0 < TOO_MANY_HZ,
            cpus: daqmeter_sys::available::cpus(),
            threads,
            layout: self.layout.clone(),
            ..PathRun::default()
        }
    }
}
