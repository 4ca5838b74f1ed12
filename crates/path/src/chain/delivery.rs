//! Account of the blocks that a sink took.

use std::sync::atomic::Ordering;

use daqmeter_harness::Fault;
use daqmeter_record::path::PathRun;
use daqmeter_stats::LogHistogram;
use daqmeter_sys::clock::monotonic_ns;

use crate::chain::shared::{Share, Shared};
use crate::element::{Block, Confirmed, Label, Sink};

/// In cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct IntoSink {
    pub(crate) sink: Box<dyn Sink>,
    /// All blocks that came, also without a confirmation.
    pub(crate) run: PathRun,
    pub(crate) latency_ns: LogHistogram,
    /// Time at which the last block came; 0 before the first.
    pub(crate) last_ns: u64,
    pub(crate) streams: Vec<StreamAtSink>,
    /// Reason for which blocks that it took are not delivered.
    pub(crate) missing: Option<&'static str>,
}

/// Account of a stream at a sink, in cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct StreamAtSink {
    share: Share,
    pub(crate) delivered: u64,
    /// Blocks that it took and that are not delivered.
    pub(crate) lost: u64,
    /// Blocks that each element lost before.
    pub(crate) lost_in: Vec<u64>,
    /// Number of the next block of the source with this stream's number; workers leave out some.
    next: u64,
}

impl IntoSink {
    pub(crate) fn new(sink: Box<dyn Sink>, shared: &Shared) -> IntoSink {
        let lost_in = vec![0; shared.elements.len()];
        let stream = |&share| StreamAtSink {
            share,
            delivered: 0,
            lost: 0,
            lost_in: lost_in.clone(),
            next: 0,
        };
        IntoSink {
            missing: sink.missing(true),
            sink,
            run: PathRun::default(),
            latency_ns: LogHistogram::default(),
            last_ns: 0,
            streams: shared.streams.iter().map(stream).collect(),
        }
    }

    pub(crate) fn take(&mut self, block: &mut Block, shared: &Shared) -> Result<(), Fault> {
        let Label { stream, sequence, key, lost_in, .. } = block.label;
        if let Some(element) = lost_in {
            self.streams[stream].lost_in[element] += 1;
            return Ok(());
        }
        let Share { source, .. } = self.streams[stream].share;
        let expected = key.and_then(|key| shared.expected.get(source)?.get(key).copied());
        let sum = self.sink.take(block, expected)?;
        let number = self.streams[stream].share.number(sequence);
        if number < std::mem::replace(&mut self.streams[source].next, number + 1) {
            return Err(Fault::new(format!(
                "stream {source}: block {number} came behind a later one"
            )));
        }
        if let Some((found, expected)) = sum.zip(expected) {
            if found != expected {
                return Err(Fault::new(format!(
                    "stream {stream}: block {sequence} has wrong bytes: their sum is {found:#x}, not {expected:#x}"
                )));
            }
            self.run.verified_blocks += 1;
        }
        self.streams[stream].delivered += 1;
        self.run.blocks += 1;
        self.run.events += block.label.events;
        let now_ns = monotonic_ns();
        self.latency_ns.add(now_ns.saturating_sub(block.label.due_ns));
        let gap_ns = if self.last_ns > 0 { now_ns - self.last_ns } else { 0 };
        self.run.longest_gap_ns = self.run.longest_gap_ns.max(gap_ns);
        self.last_ns = now_ns;
        Ok(())
    }

    pub(crate) fn end(&mut self, ran: Result<(), Fault>, shared: &Shared) -> Result<(), Fault> {
        shared.is_confirming.store(true, Ordering::Relaxed);
        match (ran.and_then(|()| self.sink.confirm()), self.sink.missing(false)) {
            (Ok(confirmed), _) => self.close(&confirmed, shared),
            (Err(fault), unconfirmed) => {
                if unconfirmed.is_some() {
                    // They were sent: their bytes and times stay.
                    self.missing = unconfirmed;
                    for stream in &mut self.streams {
                        std::mem::swap(&mut stream.lost, &mut stream.delivered);
                    }
                }
                let mut unkept = self.sink.unkept();
                let lost: Vec<(u64, u64)> = self
                    .streams
                    .iter()
                    .map(|stream| {
                        let left = unkept.get_mut(stream.share.source);
                        left.map_or((0, 0), |left| {
                            let lost = (left.0.min(stream.delivered), left.1);
                            *left = (left.0 - lost.0, 0);
                            lost
                        })
                    })
                    .collect();
                self.subtract(&lost);
                Err(fault)
            }
        }
    }

    /// Subtracts the blocks lost behind the sink from those that arrived.
    fn close(&mut self, confirmed: &Confirmed, shared: &Shared) -> Result<(), Fault> {
        self.run.verified_blocks += confirmed.verified;
        self.subtract(&confirmed.lost);
        let all: u64 = self.streams.iter().map(|stream| stream.lost).sum();
        match all > 0 && shared.how.lossless {
            true => Err(Fault::new(format!(
                "blocks were {}, {all} so far: give the path a lower rate, or write lossless = false where losses are to be counted",
                self.missing.unwrap_or("lost")
            ))),
            false => Ok(()),
        }
    }

    fn subtract(&mut self, lost: &[(u64, u64)]) {
        for (stream, &(blocks, events)) in self.streams.iter_mut().zip(lost) {
            stream.lost += blocks;
            stream.delivered -= blocks;
            self.run.blocks -= blocks;
            self.run.events -= events;
        }
    }
}
