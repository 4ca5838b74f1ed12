//! Results of a run: ledgers from source to sink, and the use of time.

use std::sync::Arc;

use daqmeter_harness::Fault;
use daqmeter_record::path::{Bucket, PathRun, PathThread};
use daqmeter_record::{Counter, Ledger};
use daqmeter_stats::LogHistogram;

use crate::element::Sink;
use crate::shared::Shared;
use crate::worker::{Done, Role};

pub(crate) struct Ended {
    pub(crate) fault: Option<Fault>,
    pub(crate) run: PathRun,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) notes: Vec<String>,
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) shared: Arc<Shared>,
}

impl Ended {
    /// Compares the blocks that the sink keeps, once, and outside the time of the run.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        if let Some(mut sink) = self.sink.take() {
            self.run.verified_blocks += sink.check(&self.shared.expected.all)?;
        }
        Ok(())
    }
}

pub(crate) fn ended(shared: Arc<Shared>, all: Vec<Done>, fault: Option<Fault>) -> Ended {
    let (mut run, mut sources, mut sink) = (PathRun::default(), Vec::new(), None);
    let (mut threads, mut queues): (Vec<PathThread>, _) = (Vec::new(), Vec::new());
    for done in all {
        queues.extend(done.queues);
        match done.role {
            Role::Source(source) => sources.push((done.thread.name.clone(), source)),
            Role::Sink(into) => {
                run = PathRun {
                    latency: buckets(&into.latency_ns),
                    latency_max_ns: into.latency_ns.max(),
                    ..into.run.clone()
                };
                sink = Some(into);
            }
            _ => {}
        }
        threads.push(done.thread);
    }
    let (mut ledgers, mut counters) = (Vec::new(), Vec::new());
    for (name, mut from) in sources {
        let delivered = sink.as_ref().map_or(0, |sink| sink.delivered[from.stream]);
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
        run: PathRun {
            is_paced: shared.how.rate_hz.is_some(),
            wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
            cpus: daqmeter_sys::available::cpus(),
            threads,
            queues,
            ..run
        },
        ledgers,
        counters,
        notes: sink.iter().filter_map(|sink| sink.sink.note()).collect(),
        fault,
        sink: sink.map(|sink| sink.sink),
        shared,
    }
}

pub(crate) fn buckets(histogram: &LogHistogram) -> Vec<Bucket> {
    let bucket = |(from_ns, count)| Bucket { from_ns, count };
    histogram.buckets().map(bucket).collect()
}
