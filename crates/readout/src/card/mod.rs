//! The emulated card: the part of a FELIX between the trigger and the host's memory.
//!
//! ```text
//! Source -> [BUSY?] -> emulators (deficit) -> block formers -> FIFO (truncation) -> DMA (TLPs,
//! gap) -> ring
//!              ^------------- thresholds of FIFO and ring, hysteresis ----------------------'
//! ```
//!
//! It has no clock and no thread: [`Card::advance`] carries it to a given time, event by event, so
//! that simulations and tests need not wait. Between two calls the host has moved its pointers
//! once, at the earlier one. Begin with `Card::advance`.

mod channel;
mod generator;
mod tape;
pub(crate) mod words;

use std::os::fd::BorrowedFd;

use daqmeter_harness::CardFamily;
use daqmeter_sys::SysError;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::IrqLine;
use words::Wish;
pub use words::{CardState, CardView};

use crate::accounts::CardAccount;
use crate::busy::{BusyLine, CAUSES, Cause, Hysteresis};
use crate::scenario::Scenario;
use crate::source::{NEVER, TriggerSource};
use channel::{Accepted, Channel};

pub const FAMILY: CardFamily = CardFamily {
    kind: "readout",
    maker: "CERN",
    vendor: "0x10dc",
    is_node: |name| name.starts_with("flx"),
};

#[derive(Debug)]
pub struct Card {
    scenario: Scenario,
    pub source: TriggerSource,
    channels: Vec<Channel>,
    pub line: BusyLine,
    marks: [Hysteresis; 2],
    /// Number of the next change of BUSY from outside.
    next_change: u64,
    state: CardState,
    start_ns: u64,
    now_ns: u64,
    accepted: u64,
    /// Triggers whose events found no room in the FIFOs of made blocks.
    fifo_lost: u64,
    next_publish_ns: u64,
}

/// Interval at which accounts are published.
const PUBLISH_NS: u64 = 10_000_000;

/// A channel of a card by its place: all of device 0 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelId {
    pub device: u16,
    pub channel: u16,
}

pub fn channel_ids(scenario: &Scenario) -> Vec<ChannelId> {
    let each =
        |device| (0..scenario.card.channels).map(move |channel| ChannelId { device, channel });
    (0..scenario.card.devices).flat_map(each).collect()
}

impl Card {
    pub fn new(scenario: &Scenario) -> Result<(Card, Vec<Consumer>), String> {
        Card::of_channels(scenario, &channel_ids(scenario))
    }

    /// Makes a card with only some of its channels.
    pub(crate) fn of_channels(
        scenario: &Scenario,
        ids: &[ChannelId],
    ) -> Result<(Card, Vec<Consumer>), String> {
        scenario.check()?;
        scenario.check_memory(ids.len(), false)?;
        let mut scenario = scenario.clone();
        // Channel 0 of a device has the trigger system's E-link; without it there is none.
        scenario.card.ttc &= ids.iter().any(|id| id.channel == 0);
        let (mut channels, mut consumers) = (Vec::new(), Vec::new());
        let wanted_ring = scenario.card.ring;
        for &id in ids {
            scenario.card.ring = wanted_ring;
            let (channel, consumer) = Channel::new(&mut scenario, id)?;
            channels.push(channel);
            consumers.push(consumer);
        }
        let ring_bytes = scenario.card.ring.0;
        let (assert, release) = scenario.dma_thresholds();
        let (low, high) = scenario.fifo_thresholds();
        let of_ring = Hysteresis {
            high: ring_bytes.saturating_sub(assert),
            low: ring_bytes.saturating_sub(release),
        };
        let mut card = Card {
            source: TriggerSource::new(&scenario.trigger),
            channels,
            line: BusyLine::new([scenario.busy.dma, scenario.busy.fifo]),
            marks: [of_ring, Hysteresis { high, low }],
            next_change: 0,
            scenario,
            state: CardState::Idle,
            start_ns: 0,
            now_ns: 0,
            accepted: 0,
            fifo_lost: 0,
            next_publish_ns: 0,
        };
        card.publish();
        Ok((card, consumers))
    }

    pub fn fits(scenario: &Scenario, ring_bytes: usize) -> bool {
        let card = &scenario.card;
        let of = |spec: &crate::scenario::ElinkSpec| 4 * (spec.payload_bytes + card.block.0);
        let enough: usize = scenario.elinks(0, 0).iter().map(of).sum();
        ring_bytes > enough + 2 * card.fifo.0.min(1 << 16)
            && (!scenario.replays() || tape::fits(scenario, ring_bytes / 2))
    }

    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Memory of a channel's ring, for another process. Fails while the consumer that came with the
    /// card lives.
    pub fn share(&self, channel: usize) -> Result<BorrowedFd<'_>, SysError> {
        self.channels[channel].dma.producer.share()
    }

    /// Frees the channel for another reader: the one in another process is gone.
    pub fn forget_reader(&mut self, channel: usize) {
        self.channels[channel].dma.producer.forget_reader();
        // The next reader begins its account with the counts of the card until now.
        self.publish();
    }

    /// Starts the triggers; `start_ns` is the clock at this moment.
    pub fn start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.state = CardState::Running;
        self.publish();
    }

    /// Carries the card to the present time of the monotonic clock. The triggers start once every
    /// reader is ready, and end once one of them wants that: all counts are then of one instant.
    pub(crate) fn carry(&mut self, clock_ns: u64) {
        let wishes = |wish| move |channel: &Channel| words::wishes(&channel.dma.producer, wish);
        if self.state == CardState::Idle && self.channels.iter().all(wishes(Wish::Go)) {
            self.start(clock_ns);
        }
        if self.channels.iter().any(wishes(Wish::End)) {
            self.source.end_ns = self.source.end_ns.min(self.now_ns);
        }
        self.advance(clock_ns.saturating_sub(self.start_ns));
    }

    pub fn state(&self) -> CardState {
        self.state
    }

    /// Time to which the card was carried.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Clock at the start.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    pub fn peak_bytes(&self) -> Vec<usize> {
        self.channels.iter().map(|channel| channel.peak_bytes).collect()
    }

    /// Carries the card to a time since its start. The host's pointers count as moved just after
    /// the time before.
    pub fn advance(&mut self, now_ns: u64) {
        if self.state != CardState::Running || now_ns < self.now_ns {
            return;
        }
        self.settle(self.now_ns);
        if self.next_completion().is_some() {
            self.advance_tape(now_ns);
        } else {
            self.advance_live(now_ns);
        }
        self.settle(now_ns);
        self.now_ns = now_ns;
        if self.source.is_over(now_ns) {
            self.finish();
        } else if now_ns >= self.next_publish_ns {
            self.next_publish_ns = now_ns + PUBLISH_NS;
            self.publish();
        }
    }

    /// Time at which the next data may be there: that of the next trigger, or of the next whole
    /// block of a tape.
    pub(crate) fn next_event_ns(&mut self) -> u64 {
        let next = self.next_completion().unwrap_or(self.accepted + 1);
        match self.source.ahead(next.saturating_sub(self.accepted).max(1)) {
            // Open blocks are closed when the source ends.
            NEVER => self.source.end_ns,
            at => at,
        }
    }

    fn settle(&mut self, now_ns: u64) {
        for channel in &mut self.channels {
            channel.dma.drain(now_ns);
        }
        self.update_busy(now_ns);
    }

    fn update_busy(&mut self, now_ns: u64) {
        let outside = self.scenario.busy.outside.as_ref();
        let change = |number| outside?.at(number).filter(|at_ns| *at_ns <= now_ns);
        while let Some(at_ns) = change(self.next_change) {
            self.line.set(at_ns, Cause::Outside, self.next_change.is_multiple_of(2));
            self.next_change += 1;
        }
        let mut on = [false; 2];
        for channel in &mut self.channels {
            let filled = channel.dma.producer.filled();
            let fifo = channel.dma.fifo_bytes();
            channel.peak_bytes = channel.peak_bytes.max(filled);
            words::set_fifo_bytes(&channel.dma.producer, fifo);
            for (cause, level) in CAUSES.into_iter().zip([filled, fifo]) {
                let state = self.marks[cause as usize].state(channel.busy[cause as usize], level);
                channel.busy[cause as usize] = state;
                on[cause as usize] |= state;
            }
            channel.dead.set(now_ns, self.line.stops(channel.busy));
        }
        for cause in CAUSES {
            self.line.set(now_ns, cause, on[cause as usize]);
        }
    }

    /// Books the triggers that BUSY stops. `None` without BUSY; else true if it may be released
    /// before that time.
    fn stopped_by_busy(&mut self, now_ns: u64) -> Option<bool> {
        let cause = self.line.asserted()?;
        if self.scenario.card.dma_rate.is_none() {
            // Only the host releases BUSY then, and it has not until now.
            let due = self.source.due(now_ns);
            self.source.issue(due);
            self.line.veto(cause, due);
            return Some(false);
        }
        // Trigger by trigger: the FIFO may drain and release BUSY in between.
        let at_ns = self.source.ahead(1);
        if at_ns > now_ns {
            return Some(false);
        }
        self.source.issue(1);
        self.line.veto(cause, 1);
        self.settle(at_ns);
        Some(true)
    }

    /// Advances blocks that are there already, at the trigger rate.
    fn advance_tape(&mut self, now_ns: u64) {
        while let Some(next) = self.next_completion() {
            match self.stopped_by_busy(now_ns) {
                Some(true) => continue,
                Some(false) => return,
                None => {}
            }
            let wanted = next.saturating_sub(self.accepted).max(1);
            let at_ns = self.source.ahead(wanted);
            if at_ns > now_ns {
                let due = self.source.due(now_ns).min(wanted - 1);
                self.source.issue(due);
                self.accepted += due;
                return;
            }
            self.source.issue(wanted);
            let is_full = |channel: &Channel| {
                channel.next_completion() == Some(next) && channel.dma.fifo_room() == 0
            };
            if self.channels.iter().any(is_full) {
                // A full FIFO and no BUSY: the event finds no room anywhere.
                self.accepted += wanted - 1;
                self.fifo_lost += 1;
                self.settle(at_ns);
                continue;
            }
            self.accepted += wanted;
            let last = self.last();
            for channel in &mut self.channels {
                channel.play(at_ns, last);
                channel.dma.drain(at_ns);
            }
            self.update_busy(at_ns);
        }
    }

    fn last(&self) -> Accepted {
        let TriggerSource { issued_ns: at_ns, period_ns, .. } = self.source;
        Accepted { number: self.accepted, at_ns, period_ns }
    }

    fn next_completion(&self) -> Option<u64> {
        self.channels.iter().filter_map(Channel::next_completion).min()
    }

    fn advance_live(&mut self, now_ns: u64) {
        loop {
            let at_ns = self.source.ahead(1);
            if at_ns > now_ns {
                break;
            }
            self.settle(at_ns);
            self.source.issue(1);
            if let Some(cause) = self.line.asserted() {
                self.line.veto(cause, 1);
                continue;
            }
            let number = self.accepted;
            self.accepted += 1;
            self.time_out(at_ns);
            let obeys = self.scenario.card.xoff;
            for channel in &mut self.channels {
                channel.make(at_ns, number, obeys);
            }
        }
        self.time_out(now_ns);
    }

    fn time_out(&mut self, now_ns: u64) {
        let timeout = self.scenario.card.timeout;
        if let Some(before_ns) = timeout.and_then(|timeout| now_ns.checked_sub(timeout.0)) {
            for channel in &mut self.channels {
                channel.close(now_ns, before_ns);
            }
        }
    }

    /// Closes open blocks once the source has ended. The state changes when the ring has all of
    /// them.
    fn finish(&mut self) {
        let (now_ns, last, scenario) = (self.now_ns, self.last(), &self.scenario);
        let mut is_done = true;
        for channel in &mut self.channels {
            is_done &= channel.finish(scenario, now_ns, last);
        }
        if is_done {
            self.update_busy(now_ns);
            self.state = CardState::Finished;
            self.publish();
        }
    }

    /// Fires the lines of readers that wait and have data, or whose card has finished.
    pub fn signal(&self, lines: &[IrqLine]) {
        for (channel, line) in self.channels.iter().zip(lines) {
            let producer = &channel.dma.producer;
            let data = producer.filled() >= self.scenario.card.block.0
                || self.state == CardState::Finished;
            if data && words::is_armed(producer) {
                line.signal();
            }
        }
    }

    /// Counts of the whole card.
    pub fn view(&self) -> CardView {
        self.view_of(&self.channels)
    }

    fn view_of(&self, channels: &[Channel]) -> CardView {
        let (line, now_ns) = (&self.line, self.now_ns);
        let [dma, fifo] = CAUSES.map(|cause| line.dead(cause, now_ns));
        let outside = line.dead(Cause::Outside, now_ns);
        let elinks =
            |channel: &Channel| channel.accounts(&self.scenario, self.accepted, self.fifo_lost);
        let busy = |(at, channel): (usize, &Channel)| channel.dead.of_channel(at, now_ns);
        CardView {
            state: self.state,
            account: CardAccount {
                issued: self.source.issued,
                vetoed: [dma, fifo, outside].map(|dead| dead.vetoed),
                elinks: channels.iter().flat_map(elinks).collect(),
            },
            dead: [dma, fifo, line.all(now_ns), outside],
            asserted: self.channels.iter().enumerate().filter_map(busy).collect(),
            now_ns,
            start_ns: self.start_ns,
        }
    }

    fn publish(&mut self) {
        for channel in &self.channels {
            let mut view = self.view_of(std::slice::from_ref(channel));
            words::publish(&channel.dma.producer, &mut view);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that reads every millisecond. Without XOFF the FIFO cuts chunks off, and loses them.
    #[test]
    fn links_in_full_mode_obey_xoff_and_each_counts_what_it_did_not_send() {
        let lost = |xoff: bool| {
            let text = format!(
                "[trigger]\nrate = \"1MHz\"\n[busy]\ndma = false\n[card]\nmode = \"full\"\n\
                 links = 2\npayload = \"256B\"\nring = \"128KiB\"\npointer_gap = \"1KiB\"\n\
                 fifo = \"64KiB\"\nblocks = \"live\"\nttc = true\nxoff = {xoff}\n"
            );
            let (mut card, mut rings) = Card::new(&Scenario::parse(&text, "t").unwrap()).unwrap();
            card.source.max_triggers = 20_000;
            card.start(0);
            for now_ms in 1.. {
                card.advance(now_ms * 1_000_000);
                let filled = rings[0].filled();
                rings[0].release(filled);
                if card.state() == CardState::Finished {
                    break;
                }
            }
            let [first, second, ttc] = words::view(&rings[0]).account.elinks[..] else {
                panic!("two links and the trigger system")
            };
            for link in [first, second, ttc] {
                assert_eq!(link.chunks + link.xoff + link.fifo_lost, 20_000, "{link:?}");
            }
            assert_eq!((first.xoff, ttc.xoff), (second.xoff, 0));
            (first.xoff, first.fifo_lost + first.truncated)
        };
        let ((none, cut), (held, whole)) = (lost(false), lost(true));
        assert!(none == 0 && cut > 1000 && held > 1000 && whole == 0, "{cut} {held} {whole}");
    }

    #[test]
    fn a_rate_of_0_gives_no_trigger_and_ends_at_its_time() {
        let scenario = Scenario::parse("[trigger]\nrate = 0\n[card]\nlinks = 1\n", "t").unwrap();
        let (mut card, rings) = Card::new(&scenario).unwrap();
        card.source.limit(Some(std::time::Duration::from_secs(1)), None);
        card.start(0);
        assert_eq!(card.next_event_ns(), 1_000_000_000);
        card.advance(999_999_999);
        assert_eq!((card.state(), card.source.issued), (CardState::Running, 0));
        card.advance(1_000_000_000);
        let view = words::view(&rings[0]);
        assert_eq!((view.state, view.account.issued), (CardState::Finished, 0));
    }
}
