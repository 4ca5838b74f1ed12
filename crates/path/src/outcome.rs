//! Results of a run: ledgers from source to sink, and the use of time.

use std::sync::Arc;

use daqmeter_harness::Fault;
use daqmeter_record::path::{Bucket, PathQueue, PathRun, PathThread};
use daqmeter_record::{Counter, Ledger};
use daqmeter_stats::LogHistogram;

use crate::element::Sink;
use crate::shared::Sums;
use crate::worker::{Arrived, Done, Role};

/// Facts of the run that the threads do not know.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) streams: Vec<String>,
    /// Both ends of the queues of each thread that takes.
    pub(crate) queues: Vec<Vec<(String, String)>>,
    pub(crate) is_paced: bool,
}

pub(crate) struct Ended {
    pub(crate) fault: Option<Fault>,
    pub(crate) run: PathRun,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) notes: Vec<String>,
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) expected: Arc<Sums>,
}

impl Ended {
    /// Compares the blocks that the sink keeps, once, and outside the time of the run.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        if let Some(mut sink) = self.sink.take() {
            self.run.verified_blocks += sink.check(&self.expected.all)?;
        }
        Ok(())
    }
}

pub(crate) fn ended(names: &Names, all: Vec<Done>, fault: Option<Fault>) -> Ended {
    let queues = queues(names, &all);
    let (mut threads, mut sources, mut sink) = (Vec::new(), Vec::new(), None);
    for done in all {
        threads.push(done.thread);
        match done.role {
            Role::Source(source) => sources.push(source),
            Role::Sink(into) => sink = Some(into),
            _ => {}
        }
    }
    let (mut ledgers, mut counters) = (Vec::new(), Vec::new());
    for mut from in sources {
        let name = &names.streams[from.stream];
        let delivered = sink.as_ref().map_or(0, |sink| sink.arrived.delivered[from.stream]);
        let mut ledger =
            Ledger { issued: from.issued, delivered, ..Ledger::new(format!("blocks of {name}")) };
        ledger.lose("due when there was no room", from.lost);
        if let Some(sink) = &sink
            && let Some(why) = sink.missing
        {
            ledger.lose(why, sink.lost[from.stream]);
        }
        if fault.is_some() {
            let left = u64::try_from(ledger.gap()).unwrap_or(0);
            ledger.lose("in the path when it failed", left);
        }
        ledgers.push(ledger);
        ledgers.extend(from.source.ledger());
        counters.extend(from.source.counters());
    }
    counters.extend(sink.iter().flat_map(|sink| sink.sink.counters()));
    Ended {
        run: run(names, threads, queues, sink.as_ref().map(|sink| &sink.arrived)),
        ledgers,
        counters,
        notes: sink.iter().filter_map(|sink| sink.sink.note()).collect(),
        fault,
        sink: sink.map(|sink| sink.sink),
        expected: Arc::default(),
    }
}

pub(crate) fn buckets(histogram: &LogHistogram) -> Vec<Bucket> {
    let bucket = |(from_ns, count)| Bucket { from_ns, count };
    histogram.buckets().map(bucket).collect()
}

fn run(
    names: &Names,
    threads: Vec<PathThread>,
    queues: Vec<PathQueue>,
    sink: Option<&Arrived>,
) -> PathRun {
    PathRun {
        wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
        payload_bytes: sink.map_or(0, |sink| sink.payload_bytes),
        blocks: sink.map_or(0, |sink| sink.blocks),
        events: sink.map_or(0, |sink| sink.events),
        verified_blocks: sink.map_or(0, |sink| sink.verified),
        latency: sink.map_or_else(Vec::new, |sink| buckets(&sink.latency_ns)),
        latency_max_ns: sink.map_or(0, |sink| sink.latency_ns.max()),
        is_paced: names.is_paced,
        cpus: daqmeter_sys::available::cpus(),
        threads,
        queues,
        ..PathRun::default()
    }
}

fn queues(names: &Names, all: &[Done]) -> Vec<PathQueue> {
    let inlets = all.iter().filter(|done| !done.seen.is_empty());
    let queue = |((from, to), seen): (&(String, String), &Vec<u64>)| PathQueue {
        from: from.clone(),
        to: to.clone(),
        seen: seen.clone(),
    };
    let of_inlet = inlets.zip(&names.queues);
    of_inlet.flat_map(|(done, names)| names.iter().zip(&done.seen).map(queue)).collect()
}
