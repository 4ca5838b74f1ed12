//! Sources of a thread and their pace: each block is made when it is due. A late one is lost,
//! unless the source waits for room.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::units::whole;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;

use crate::chain::account::{Account, Side};
use crate::chain::carry::{Carried, Line, Room};
use crate::chain::ring::Outlet;
use crate::chain::shared::{PathSettings, Share, Shared};
use crate::element::{Block, Label, Source};

/// Streams of a thread, a block of each after the other.
pub(crate) struct Sources {
    pub(crate) all: Vec<FromSource>,
    pub(crate) room: Room,
}

/// In cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct FromSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) stream: usize,
    pub(crate) share: Share,
    pub(crate) block_bytes: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    pub(crate) is_over: bool,
}

impl Sources {
    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        self.room.prepare()?;
        self.all.iter_mut().try_for_each(|from| {
            from.source.set_stop_flag(stop);
            from.source.prepare()
        })
    }

    /// Fills a block of each stream after the other, until all are over.
    pub(crate) fn run(
        &mut self,
        line: &mut Line,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<(), Fault> {
        let begin_ns = shared.begin_ns.get().copied().flatten().unwrap_or(0);
        while !self.all.iter().all(|from| from.is_over) {
            for from in self.all.iter_mut().filter(|from| !from.is_over) {
                let now_ns = line.free_ns().unwrap_or_else(monotonic_ns);
                let Some(due_ns) = from.due(begin_ns, now_ns, shared, account) else { continue };
                let (block, is_of_ring) = match (&self.room.wanted, &mut line.outlet) {
                    (None, Some(outlet)) => (from.empty(outlet, begin_ns, shared, account), true),
                    _ if from.is_late(due_ns, shared) => (None, false),
                    _ => (self.room.block.take(), false),
                };
                let Some(mut block) = block else { continue };
                from.fill(&mut block, due_ns)?;
                account.done_block();
                match line.carry(block, is_of_ring, shared, account)? {
                    Carried::Back(block) => self.room.block = Some(block),
                    Carried::Sent => {}
                    Carried::Over => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

impl FromSource {
    /// Waits until its next block is due, and returns the time at which it was; `None` at the end.
    fn due(
        &mut self,
        begin_ns: u64,
        now_ns: u64,
        shared: &Shared,
        account: &mut Account,
    ) -> Option<u64> {
        let PathSettings { most_blocks, rate_hz, time_ns, is_unpaced, .. } = &shared.how;
        let number = self.share.number(self.issued);
        self.is_over = most_blocks.is_some_and(|most| number >= most)
            || shared.is_over.load(Ordering::Relaxed)
            || self.source.is_over();
        let own_ns = self.source.due_after_ns().filter(|_| !is_unpaced);
        let own_ns = own_ns.map(|after_ns| begin_ns.saturating_add(after_ns));
        let due_ns = due(begin_ns, number, *rate_hz).or(own_ns);
        // A late thread makes one block at least.
        let is_late = due_ns.unwrap_or(now_ns) >= begin_ns.saturating_add(*time_ns);
        self.is_over |= self.issued > 0 && is_late;
        if self.is_over {
            return None;
        }
        if let Some(due_ns) = due_ns.filter(|&due_ns| now_ns < due_ns) {
            account.wait(Side::Due, || wait_until(due_ns, &shared.is_over));
        }
        // The block was due: a wait from now on is in its latency, or it is lost.
        Some(due_ns.unwrap_or(now_ns))
    }

    /// Tests if a block was due before the device had room for it, which has as many blocks as a
    /// ring. It is lost then.
    fn is_late(&mut self, due_ns: u64, shared: &Shared) -> bool {
        let PathSettings { lossless: false, rate_hz: Some(hz), .. } = shared.how else {
            return false;
        };
        let room_ns = whole(shared.buffers as f64 * self.share.of as f64 / hz * 1e9);
        let is_late = monotonic_ns() > due_ns.saturating_add(room_ns);
        if is_late {
            (self.issued, self.lost) = (self.issued + 1, self.lost + 1);
        }
        is_late
    }

    /// Waits for an empty block of the ring behind, unless the block is lost for want of one.
    fn empty(
        &mut self,
        outlet: &mut Outlet,
        begin_ns: u64,
        shared: &Shared,
        account: &mut Account,
    ) -> Option<Box<Block>> {
        let PathSettings { lossless, rate_hz, time_ns, .. } = shared.how;
        match outlet.try_empty() {
            Ok(block) => return Some(block),
            Err(TryRecvError::Empty) if !lossless && rate_hz.is_some() => {
                (self.issued, self.lost) = (self.issued + 1, self.lost + 1);
                return None;
            }
            Err(TryRecvError::Disconnected) => self.is_over = true,
            Err(TryRecvError::Empty) => {}
        }
        let block = outlet.empty(account);
        // A stream without a rate that waited too long for room has no block due any more.
        let is_late = self.issued > 0
            && rate_hz.is_none()
            && monotonic_ns() >= begin_ns.saturating_add(time_ns);
        self.is_over |= is_late || block.is_none();
        block.filter(|_| !self.is_over)
    }

    fn fill(&mut self, block: &mut Block, due_ns: u64) -> Result<(), Fault> {
        let bytes = self.block_bytes;
        let filled = self.source.fill(block.buffer.slice_mut(bytes))?;
        block.label = Label {
            bytes,
            events: filled.events,
            key: filled.key,
            due_ns: filled.ready_ns.unwrap_or(due_ns),
            stream: self.stream,
            source: self.share.source,
            sequence: self.issued - self.lost,
            number: filled.number.unwrap_or_else(|| self.share.number(self.issued)),
            lost_in: None,
        };
        self.issued += 1;
        Ok(())
    }
}

/// Due time of the next block, if there is a rate.
fn due(begin_ns: u64, at: u64, rate_hz: Option<f64>) -> Option<u64> {
    rate_hz.map(|hz| begin_ns.saturating_add(whole(at as f64 / hz * 1e9)))
}

/// Longest sleep, so that a signal is seen.
const LONGEST_SLEEP_NS: u64 = 50_000_000;

fn wait_until(due_ns: u64, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let now_ns = monotonic_ns();
        if now_ns >= due_ns {
            return;
        }
        sleep_until(due_ns.min(now_ns + LONGEST_SLEEP_NS));
    }
}
