//! The emulated card: the part of a FELIX between the trigger and the host's memory.
//!
//! ```text
//! Source -> [BUSY?] -> emulators (deficit) -> block formers -> FIFO (truncation) -> DMA (TLPs, gap) -> ring
//!              ^------------- thresholds of FIFO and ring, hysteresis ----------------------'
//! ```
//!
//! It has no clock and no thread: [`Card::advance`] carries it to a given time, event by event, so
//! that simulations and tests need not wait. Between two calls the host has moved its pointers
//! once, at the earlier one. Begin with `Card::advance`.

mod channel;
mod generator;
mod lap;
mod player;
pub(crate) mod words;

use daqmeter_harness::CardFamily;
use daqmeter_sys::memory::Pages;
use daqmeter_sys::ring::{self, Consumer, Shape};
use daqmeter_sys::wait::IrqLine;
pub use player::Played;
pub use words::{CardState, CardView};

use crate::accounts::{CardAccount, CardElink};
use crate::busy::{BusyLine, CAUSES, Cause, Hysteresis};
use crate::pattern::Pattern;
use crate::scenario::{PartCounts, Scenario, ScenarioError};
use crate::source::{NEVER, TriggerSource};
use channel::{Channel, Dma, Filler, Replay};
use generator::{Room, emulators};
use lap::Lap;
use player::Player;

pub const FAMILY: CardFamily = CardFamily {
    kind: "readout",
    maker: "CERN",
    vendor: "0x10dc",
    is_node: |name| name.starts_with("flx"),
};

#[derive(Debug)]
pub struct Card {
    scenario: Scenario,
    source: TriggerSource,
    channels: Vec<Channel>,
    line: BusyLine,
    pattern: Pattern,
    marks: [Hysteresis; 2],
    state: CardState,
    start_ns: u64,
    now_ns: u64,
    accepted: u64,
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
    pub fn new(scenario: &Scenario) -> Result<(Card, Vec<Consumer>), ScenarioError> {
        Card::of_channels(scenario, &channel_ids(scenario))
    }

    /// Makes a card with only some of its channels.
    pub(crate) fn of_channels(
        scenario: &Scenario,
        ids: &[ChannelId],
    ) -> Result<(Card, Vec<Consumer>), ScenarioError> {
        scenario.check()?;
        scenario.check_memory(PartCounts { channels: ids.len(), ..PartCounts::default() })?;
        let source = TriggerSource::new(&scenario.trigger)?;
        let pattern = scenario.external_busy()?;
        let mut scenario = scenario.clone();
        // Channel 0 of a device has the trigger system's E-link; without it there is none.
        scenario.card.ttc &= ids.iter().any(|id| id.channel == 0);
        let mut channels = Vec::new();
        let mut consumers = Vec::new();
        let wanted_ring = scenario.card.ring;
        for &id in ids {
            scenario.card.ring = wanted_ring;
            let (channel, consumer) = Card::channel(&mut scenario, id)?;
            channels.push(channel);
            consumers.push(consumer);
        }
        let ring_bytes = scenario.card.ring.0;
        let (assert, release) = scenario.dma_thresholds();
        let (low, high) = scenario.fifo_thresholds();
        let marks = [
            Hysteresis {
                high: ring_bytes.saturating_sub(assert),
                low: ring_bytes.saturating_sub(release),
            },
            Hysteresis { high, low },
        ];
        let line = BusyLine::new([scenario.busy.dma, scenario.busy.fifo], scenario.busy.inhibit);
        let mut card = Card {
            scenario,
            source,
            channels,
            line,
            pattern,
            marks,
            state: CardState::Idle,
            start_ns: 0,
            now_ns: 0,
            accepted: 0,
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
            && (!scenario.replays() || Lap::fits(scenario, ring_bytes / 2))
    }

    fn channel(
        scenario: &mut Scenario,
        id: ChannelId,
    ) -> Result<(Channel, Consumer), ScenarioError> {
        let card = scenario.card.clone();
        let lap = if scenario.replays() {
            Some(Lap::make(scenario, id.device, id.channel)?)
        } else {
            None
        };
        let ring_bytes = match &lap {
            Some(lap) => lap.bytes.len(),
            None => card.ring.0 / card.block.0 * card.block.0,
        };
        // The values that depend on the ring follow from the ring that was allocated.
        scenario.card.ring.0 = ring_bytes;
        let shape = Shape {
            ring_bytes,
            unit_bytes: card.block.0,
            gap_bytes: scenario.pointer_gap(),
            pages: scenario.ring_pages(),
            numa_node: None,
        };
        let (mut producer, consumer) = ring::ring(&shape).map_err(|error| {
            ScenarioError(format!(
                "card.ring: {error}; the scenario has {} of them",
                channel_ids(scenario).len()
            ))
        })?;
        let filler = match (lap, &scenario.recorded) {
            (_, Some(playback)) => Filler::Recorded(Player::new(playback)),
            (Some(mut lap), None) => {
                producer.write(0, &lap.bytes);
                lap.bytes = Vec::new();
                Filler::Replay(Replay::new(lap))
            }
            (None, None) => Filler::Live(emulators(scenario, id.device, id.channel)),
        };
        let rate = card.dma_rate.map(|rate| rate.0);
        let dma = Dma::new(producer, card.block.0, rate, card.fifo.0);
        let channel = Channel { id, dma, filler, busy: [false; 2], peak_bytes: 0 };
        Ok((channel, consumer))
    }

    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub fn source(&mut self) -> &mut TriggerSource {
        &mut self.source
    }

    /// Memory of a channel's ring, for another process. Fails while the consumer that came with the
    /// card lives.
    pub fn share(
        &self,
        channel: usize,
    ) -> Result<std::os::fd::BorrowedFd<'_>, daqmeter_sys::SysError> {
        self.channels[channel].dma.producer.share()
    }

    /// Frees the channel for another reader: the one in another process is gone.
    pub fn forget_reader(&mut self, channel: usize) {
        self.channels[channel].dma.producer.forget_reader();
        // The next reader begins its account with the counts of the card until now.
        self.publish();
    }

    pub fn pages(&self) -> Pages {
        self.channels[0].dma.producer.pages()
    }

    pub(crate) fn may_go(&self) -> bool {
        self.channels.iter().all(|channel| words::may_go(&channel.dma.producer))
    }

    /// Starts the triggers; `start_ns` is the clock at this moment.
    pub fn start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.state = CardState::Running;
        self.publish();
    }

    pub fn state(&self) -> CardState {
        self.state
    }

    pub fn issued(&self) -> u64 {
        self.source.issued()
    }

    /// Time to which the card was carried.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Clock at the start.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Carries the card to a time since its start. The host's pointers count as moved just after
    /// the time before.
    pub fn advance(&mut self, now_ns: u64) {
        if self.state != CardState::Running || now_ns < self.now_ns {
            return;
        }
        while let Some((edge_ns, on)) = self.pattern.next_edge(now_ns) {
            self.carry(edge_ns);
            self.line.set_external(edge_ns, on);
        }
        self.carry(now_ns);
        if self.source.is_over(now_ns) || self.is_played() {
            self.finish();
        } else if now_ns >= self.next_publish_ns {
            self.next_publish_ns = now_ns + PUBLISH_NS;
            self.publish();
        }
    }

    /// Carries the card to a time before which nothing changes from outside.
    fn carry(&mut self, now_ns: u64) {
        self.settle(self.now_ns);
        match &self.scenario.recorded {
            Some(playback) if !playback.is_paced => self.advance_flat_out(now_ns),
            None if !self.scenario.replays() => self.advance_live(now_ns),
            _ => self.advance_replay(now_ns),
        }
        self.settle(now_ns);
        self.now_ns = now_ns;
    }

    /// Time at which the next data may be there: that of the next trigger, or of the next whole
    /// block of a replay.
    pub(crate) fn next_event_ns(&mut self) -> u64 {
        if self.scenario.is_flat_out() {
            return self.now_ns;
        }
        // At its end a file's card finishes as soon as it is looked at.
        let next = self.next_completion().unwrap_or(self.accepted + 1);
        match self.source.ahead(next.saturating_sub(self.accepted).max(1)) {
            // Open blocks are closed when the source ends.
            NEVER => self.source.end_ns(),
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
        let mut on = [false; 2];
        for channel in &mut self.channels {
            let filled = channel.dma.producer.filled();
            channel.peak_bytes = channel.peak_bytes.max(filled);
            for (cause, level) in CAUSES.into_iter().zip([filled, channel.dma.fifo_bytes()]) {
                let state = self.marks[cause as usize].state(channel.busy[cause as usize], level);
                channel.busy[cause as usize] = state;
                on[cause as usize] |= state;
            }
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

    /// Advances blocks that are there already, of a lap or a recorded file, at the trigger rate.
    fn advance_replay(&mut self, now_ns: u64) {
        let period_ns = self.source.period_ns();
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
                self.accept(due);
                return;
            }
            self.source.issue(wanted);
            let is_full = |channel: &Channel| {
                channel.next_completion() == Some(next) && channel.dma.fifo_room() == 0
            };
            if self.channels.iter().any(is_full) {
                // A full FIFO and no BUSY: the event finds no room anywhere.
                self.accept(wanted - 1);
                self.channels.iter_mut().for_each(Channel::lose_event);
                self.settle(at_ns);
                continue;
            }
            self.accept(wanted);
            for channel in &mut self.channels {
                channel.complete(at_ns, next, period_ns);
                channel.dma.drain(at_ns);
            }
            self.update_busy(at_ns);
        }
    }

    fn next_completion(&self) -> Option<u64> {
        self.channels.iter().filter_map(Channel::next_completion).min()
    }

    fn accept(&mut self, triggers: u64) {
        self.accepted += triggers;
        for channel in &mut self.channels {
            match &mut channel.filler {
                Filler::Replay(replay) => replay.accepted += triggers,
                Filler::Recorded(player) => player.accepted += triggers,
                Filler::Live(_) => {}
            }
        }
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
            let number = self.source.number().unwrap_or(self.accepted);
            self.accepted += 1;
            let card = &self.scenario.card;
            let before_ns = card.timeout.map(|timeout| at_ns.checked_sub(timeout.0));
            for channel in &mut self.channels {
                if let Some(Some(before_ns)) = before_ns {
                    channel.time_out(at_ns, before_ns);
                }
                channel.make(at_ns, number);
            }
        }
        if let Some(before_ns) =
            self.scenario.card.timeout.and_then(|timeout| now_ns.checked_sub(timeout.0))
        {
            for channel in &mut self.channels {
                channel.time_out(now_ns, before_ns);
            }
        }
    }

    /// Closes open blocks once the source has ended. The state changes when the ring has all of
    /// them.
    fn finish(&mut self) {
        let now_ns = self.now_ns;
        for channel in &mut self.channels {
            channel.close(&self.scenario, now_ns);
            channel.dma.drain(now_ns);
        }
        let is_done = |channel: &Channel| channel.dma.is_empty() && !channel.owes_blocks();
        if self.channels.iter().all(is_done) {
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

    pub fn peak_bytes(&self) -> Vec<usize> {
        self.channels.iter().map(|channel| channel.peak_bytes).collect()
    }

    pub fn filled_bytes(&self) -> Vec<usize> {
        self.channels.iter().map(|channel| channel.dma.producer.filled()).collect()
    }

    pub fn line(&self) -> &BusyLine {
        &self.line
    }

    fn publish(&mut self) {
        let dead = [
            self.line.dead(Cause::Dma, self.now_ns).into(),
            self.line.dead(Cause::Fifo, self.now_ns).into(),
            self.line.all(self.now_ns).into(),
            self.line.dead(Cause::External, self.now_ns).into(),
        ];
        let bit = |on: bool, at: u32| u64::from(on) << at;
        let line = &self.line;
        let flags = bit(line.is_live(Cause::Dma), 0)
            | bit(line.is_live(Cause::Fifo), 1)
            | bit(line.is_latched(Cause::Dma), 2)
            | bit(line.is_latched(Cause::Fifo), 3)
            | bit(self.scenario.recorded.is_some(), words::RECORDED_BIT)
            | bit(line.is_live(Cause::External), 6);
        for channel in &self.channels {
            let view = CardView {
                state: self.state,
                account: CardAccount {
                    issued: self.source.issued(),
                    vetoed_dma: line.dead(Cause::Dma, 0).vetoed,
                    vetoed_fifo: line.dead(Cause::Fifo, 0).vetoed,
                    vetoed_external: line.dead(Cause::External, 0).vetoed,
                    recorded: self.scenario.recorded.is_some(),
                    elinks: channel.accounts(&self.scenario),
                },
                dead,
                flags,
                fifo_bytes: channel.dma.fifo_bytes() as u64,
                now_ns: self.now_ns,
                start_ns: self.start_ns,
            };
            words::publish(&channel.dma.producer, &view);
        }
    }
}

impl Channel {
    fn next_completion(&self) -> Option<u64> {
        match &self.filler {
            Filler::Replay(replay) => Some(replay.next_completion()),
            Filler::Recorded(player) => player.next_completion(),
            Filler::Live(_) => None,
        }
    }

    fn complete(&mut self, now_ns: u64, accepted: u64, period_ns: f64) {
        match &mut self.filler {
            Filler::Replay(replay) => {
                while replay.next_completion() == accepted {
                    self.dma.push_replayed(now_ns, replay, period_ns);
                }
            }
            Filler::Recorded(_) => self.play(now_ns, usize::MAX),
            Filler::Live(_) => {}
        }
    }

    fn lose_event(&mut self) {
        match &mut self.filler {
            Filler::Replay(replay) => replay.fifo_lost += 1,
            Filler::Recorded(player) => player.fifo_lost += 1,
            Filler::Live(_) => {}
        }
    }

    fn make(&mut self, now_ns: u64, number: u64) {
        let Filler::Live(emulators) = &mut self.filler else {
            return;
        };
        for emulator in emulators {
            let room = Room { blocks: self.dma.fifo_room() };
            emulator.trigger(now_ns, number, room, &mut |made| {
                self.dma.push(now_ns, made.birth_ns, made.block)
            });
        }
    }

    fn time_out(&mut self, now_ns: u64, before_ns: u64) {
        let Filler::Live(emulators) = &mut self.filler else {
            return;
        };
        for emulator in emulators {
            if self.dma.fifo_room() > 0 {
                emulator.timeout(before_ns, &mut |made| {
                    self.dma.push(now_ns, made.birth_ns, made.block)
                });
            }
        }
    }

    /// Closes open blocks, as far as the FIFO takes them.
    fn close(&mut self, scenario: &Scenario, now_ns: u64) {
        let id = self.id;
        match &mut self.filler {
            Filler::Live(emulators) => {
                for emulator in emulators.iter_mut().filter(|emulator| emulator.has_open_block()) {
                    self.dma.drain(now_ns);
                    if self.dma.fifo_room() > 0 {
                        emulator
                            .close(&mut |made| self.dma.push(now_ns, made.birth_ns, made.block));
                    }
                }
            }
            Filler::Recorded(_) => self.play(now_ns, usize::MAX),
            Filler::Replay(replay) => {
                let (laps, triggers) = replay.position();
                if replay.closed || self.dma.fifo_room() < replay.lap.blocks_of.len() {
                    return;
                }
                replay.closed = true;
                let (blocks_of, dma) = (&replay.lap.blocks_of, &mut self.dma);
                Lap::open_blocks(scenario, id.device, id.channel, triggers, |at, header, block| {
                    let sequence =
                        u8::try_from((laps * blocks_of[at] + u64::from(header.sequence)) & 0x1F);
                    let header = daqmeter_wire::felix::FelixHeader {
                        sequence: sequence.expect("five bits"),
                        ..header
                    };
                    let mut block = block.to_vec();
                    block[..4].copy_from_slice(&header.emit());
                    dma.push(now_ns, now_ns, &block);
                });
            }
        }
    }

    fn accounts(&self, scenario: &Scenario) -> Vec<CardElink> {
        let id = self.id;
        match &self.filler {
            Filler::Live(emulators) => emulators.iter().map(|emulator| emulator.account).collect(),
            Filler::Recorded(player) => player.accounts(&scenario.elinks(id.device, id.channel)),
            Filler::Replay(replay) => scenario
                .elinks(id.device, id.channel)
                .iter()
                .map(|spec| CardElink {
                    tag: spec.tag,
                    elink: spec.elink.number(),
                    fifo_lost: replay.fifo_lost,
                    chunks: replay.accepted,
                    ..CardElink::default()
                })
                .collect(),
        }
    }
}
