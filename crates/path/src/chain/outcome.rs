//! Results of a run: ledgers from source to sink, and the use of time.

use std::sync::Arc;

use daqmeter_harness::Fault;
use daqmeter_record::path::{Bucket, PathRun, PathThread};
use daqmeter_record::units::whole;
use daqmeter_record::{Counter, Ledger};
use daqmeter_stats::LogHistogram;

use crate::chain::carry::Role;
use crate::chain::delivery::IntoSink;
use crate::chain::shared::Shared;
use crate::chain::thread::{Done, Feed};
use crate::element::Sink;

pub(crate) struct Ended {
    pub(crate) fault: Option<Fault>,
    pub(crate) run: PathRun,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) notes: Vec<String>,
    pub(crate) sinks: Vec<Box<dyn Sink>>,
    pub(crate) shared: Arc<Shared>,
}

impl Ended {
    /// Compares the blocks that the sink keeps, once, and outside the time of the run.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        for mut sink in self.sinks.drain(..) {
            let checked = sink.check();
            self.run.kept = sink.kept().or(self.run.kept.take());
            self.run.verified_blocks += checked?;
        }
        Ok(())
    }
}

pub(crate) fn ended(shared: Arc<Shared>, all: Vec<Done>, fault: Option<Fault>) -> Ended {
    let (mut threads, mut queues): (Vec<PathThread>, _) = (Vec::new(), Vec::new());
    let (mut sources, mut sinks, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for done in all {
        notes.extend(done.note);
        queues.extend(done.queues);
        threads.push(done.thread);
        if let Feed::Sources(own) = done.feed {
            sources.extend(own.all);
        }
        let last = done.steps.into_iter().next_back().map(|step| step.role);
        if let Some(Role::Sink(into)) = last {
            sinks.push(into);
        }
    }
    let mut run = PathRun::default();
    let mut latency_ns = LogHistogram::default();
    for IntoSink { run: own, latency_ns: own_ns, .. } in sinks.iter().map(Box::as_ref) {
        run.blocks += own.blocks;
        run.events += own.events;
        run.verified_blocks += own.verified_blocks;
        run.longest_gap_ns = run.longest_gap_ns.max(own.longest_gap_ns);
        latency_ns.merge(own_ns);
    }
    // All blocks of a path have the same payload.
    let block_bytes = sources.first().map_or(0, |from| from.block_bytes as u64);
    run.payload_bytes = run.blocks.saturating_mul(block_bytes);
    let (mut ledgers, mut counters) = (Vec::new(), Vec::new());
    for (number, name) in shared.sources.iter().enumerate() {
        let mut ledger = Ledger::new(format!("blocks of {name}"));
        for from in sources.iter_mut().filter(|from| from.share.source == number) {
            ledger.issued += from.issued;
            ledger.lose("due when there was no room", from.lost);
            for into in &sinks {
                let stream = &into.streams[from.stream];
                ledger.delivered += stream.delivered;
                let lost = shared.elements.iter().zip(&stream.lost_in);
                for (name, lost) in lost.filter(|(_, lost)| **lost > 0) {
                    ledger.lose(&format!("lost by {name}"), *lost);
                }
                if let Some(why) = into.missing {
                    ledger.lose(why, stream.lost);
                }
            }
        }
        if fault.is_some() {
            let left = u64::try_from(ledger.gap()).unwrap_or(0);
            ledger.lose("in the path when it failed", left);
        }
        let due_ns = shared.how.rate_hz.map(|hz| whole(ledger.issued as f64 / hz * 1e9));
        run.next_due_ns = run.next_due_ns.max(due_ns);
        ledgers.push(ledger);
        for from in sources.iter_mut().filter(|from| from.share.source == number) {
            ledgers.extend(from.source.ledger());
            counters.extend(from.source.counters());
        }
    }
    counters.extend(sinks.iter().flat_map(|into| into.sink.counters()));
    let kept = sinks.iter().find_map(|into| into.sink.kept());
    Ended {
        run: PathRun {
            latency: buckets(&latency_ns),
            latency_max_ns: latency_ns.max(),
            is_paced: shared.how.rate_hz.is_some(),
            wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
            cpus: daqmeter_sys::available::cpus(),
            threads,
            queues,
            layout: shared.how.layout.clone(),
            kept,
            ..run
        },
        ledgers,
        counters,
        notes,
        fault,
        sinks: sinks.into_iter().map(|into| into.sink).collect(),
        shared,
    }
}

pub(crate) fn buckets(histogram: &LogHistogram) -> Vec<Bucket> {
    let bucket = |(from_ns, count)| Bucket { from_ns, count };
    histogram.buckets().map(bucket).collect()
}
