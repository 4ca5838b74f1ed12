//! The end of a run: all pages out, all acknowledgements in, accounts to the subscribers.

use std::sync::atomic::{AtomicBool, Ordering};

use daqmeter_harness::frames::message_frame;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::page::FrameKind;

use super::dest::Dest;
use super::reader::ToHost;
use crate::accounts::{CardElink, FinalAccount, ReaderElink};
use crate::card::words::CardState;
use crate::transport::Sent;

/// Time for which accounts are offered to subscribers, and for which their going is awaited.
const FAREWELL_NS: u64 = 1_000_000_000;
/// Length of each of up to four waits at the end, once the reader is asked to stop: below two
/// seconds together.
const STOP_WITHIN_NS: u64 = 400_000_000;

impl ToHost {
    pub(super) fn conclude(&mut self, stop: &AtomicBool) -> FinalAccount {
        self.drain(stop);
        let account = self.account();
        self.send_account(&account, stop);
        self.see_off(stop);
        let closed = |note: &String| {
            note.starts_with("subscriber lost") && note.contains("closed by the receiver")
        };
        self.notes.retain(|note| !closed(note));
        account
    }

    /// Waits for slow subscribers as long as they take data, unless the reader was asked to stop.
    fn drain(&mut self, stop: &AtomicBool) {
        let mut patience = Patience::new(self.dead_after_ns, stop);
        let mut before = (0, 0);
        loop {
            let now_ns = monotonic_ns();
            self.port.look();
            while self.read_batch(now_ns) && !patience.is_over(monotonic_ns()) {}
            self.flush(now_ns, true);
            self.serve(now_ns);
            let is_owed = self.dests.iter().flatten().any(Dest::owes);
            if !self.has_more() && !is_owed {
                break;
            }
            let heard = self.dests.iter().flatten().map(|dest| dest.heard_ns);
            let progress = (self.stats.bytes, heard.max().unwrap_or(0));
            if progress != before {
                before = progress;
                patience.end_ns = now_ns + self.dead_after_ns;
            }
            if patience.is_over(now_ns) {
                if !self.give_up() {
                    break;
                }
                // Without subscribers that take nothing, the rest of the ring can be read.
                patience = Patience::new(self.dead_after_ns, stop);
            }
            sleep_until(now_ns + 100_000);
        }
    }

    fn has_more(&self) -> bool {
        self.port.state() == CardState::Running || self.filled_bytes() >= self.format.block_bytes
    }

    /// Account so far. Chunks on their way are in no row of it.
    pub fn account(&self) -> FinalAccount {
        let subscriptions = self.subscriptions();
        let card = self.port.view().account;
        let is_running = self.port.state() == CardState::Running;
        let is_left = !is_running && self.filled_bytes() >= self.format.block_bytes;
        let account = |&CardElink { tag, chunks: made, .. }: &CardElink| {
            let own = self.elinks.iter().find(|elink| elink.spec.tag == tag);
            let (chunks, unsubscribed) = own.map_or((0, 0), |own| (own.chunks, own.unsubscribed));
            let own = subscriptions.iter().filter(|one| one.tag == tag);
            let left = if is_left { made.saturating_sub(chunks) } else { 0 };
            ReaderElink { left, ..ReaderElink::of(chunks, unsubscribed, own) }
        };
        let readers = card.elinks.iter().map(account).collect();
        let card_is_lost = self.port.is_lost() || is_running;
        FinalAccount { readers, card, subscriptions, card_is_lost }
    }

    fn send_account(&mut self, account: &FinalAccount, stop: &AtomicBool) {
        let (frame, body) = message_frame(FrameKind::Account, account);
        let mut patience = Patience::new(FAREWELL_NS, stop);
        let mut waiting = self.numbers(|_| true);
        loop {
            waiting.retain(|number| self.outlet.send(*number, &frame, &body) == Sent::Blocked);
            self.receive();
            if waiting.is_empty() || patience.is_over(monotonic_ns()) {
                break;
            }
            sleep_until(monotonic_ns() + 100_000);
        }
    }

    /// Waits for receivers to close. A connection closed here, with their acknowledgements unread,
    /// would cut the account off.
    fn see_off(&mut self, stop: &AtomicBool) {
        let mut patience = Patience::new(FAREWELL_NS, stop);
        while self.dests.iter().flatten().next().is_some() && !patience.is_over(monotonic_ns()) {
            self.receive();
            sleep_until(monotonic_ns() + 200_000);
            self.serve(monotonic_ns());
        }
    }
}

/// Wait with an end, which comes nearer when the reader is asked to stop.
struct Patience<'a> {
    end_ns: u64,
    stop: &'a AtomicBool,
    /// End after that request, once it was seen.
    stop_ns: u64,
}

impl Patience<'_> {
    fn new(ns: u64, stop: &AtomicBool) -> Patience<'_> {
        Patience { end_ns: monotonic_ns().saturating_add(ns), stop, stop_ns: u64::MAX }
    }

    fn is_over(&mut self, now_ns: u64) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            self.stop_ns = self.stop_ns.min(now_ns + STOP_WITHIN_NS);
        }
        now_ns > self.end_ns.min(self.stop_ns)
    }
}
