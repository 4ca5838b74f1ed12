//! One DMA channel: what fills it, output FIFO, endless DMA, ring.

use std::collections::VecDeque;
use std::sync::Arc;

use daqmeter_sys::memory::Pages;
use daqmeter_sys::ring::{self, Consumer, Producer, Shape};
use daqmeter_wire::felix::block::HEADER_BYTES;

use super::ChannelId;
use super::generator::{Emulator, emulators};
use super::tape::{Player, Tape};
use crate::accounts::CardElink;
use crate::scenario::{Scenario, ScenarioError};

#[derive(Debug)]
pub(super) enum Filler {
    Live(Vec<Emulator>),
    Tape(Player),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ready_ns: u64,
    birth_ns: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Stored(usize),
    InRing(Option<[u8; HEADER_BYTES]>),
}

/// The DMA writes multiples of this, the usual payload of a PCIe packet.
const TLP_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Dma {
    pub(super) producer: Producer,
    block_bytes: usize,
    ns_per_byte: Option<f64>,
    busy_until_ns: f64,
    waiting: VecDeque<Waiting>,
    /// Bytes of the first waiting block that are in the ring.
    moved: usize,
    store: Vec<u8>,
    store_next: usize,
    most_blocks: usize,
}

impl Dma {
    fn new(producer: Producer, block_bytes: usize, rate: Option<usize>, fifo: usize) -> Dma {
        let most_blocks = fifo / block_bytes;
        Dma {
            producer,
            block_bytes,
            ns_per_byte: rate.map(|rate| 1e9 / rate as f64),
            busy_until_ns: 0.0,
            waiting: VecDeque::with_capacity(most_blocks + 1),
            moved: 0,
            store: Vec::new(),
            store_next: 0,
            most_blocks,
        }
    }

    pub(super) fn fifo_bytes(&self) -> usize {
        self.waiting.len() * self.block_bytes - self.moved
    }

    pub(super) fn fifo_room(&self) -> usize {
        self.most_blocks.saturating_sub(self.waiting.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a block, with another header if there is one; without bytes the ring has it already.
    /// The caller has made sure that there is room.
    #[inline]
    fn push(
        &mut self,
        now_ns: u64,
        birth_ns: u64,
        head: Option<[u8; HEADER_BYTES]>,
        block: Option<&[u8]>,
    ) {
        if self.waiting.is_empty()
            && self.ns_per_byte.is_none()
            && self.producer.free() >= self.block_bytes
        {
            self.producer.set_timestamp(0, birth_ns);
            if let Some(block) = block {
                self.producer.write(0, block);
            }
            if let Some(head) = head {
                self.producer.write(0, &head);
            }
            self.producer.advance(self.block_bytes);
            return;
        }
        let what = match block {
            Some(block) => What::Stored(self.store(head, block)),
            None => What::InRing(head),
        };
        self.waiting.push_back(Waiting { ready_ns: now_ns, birth_ns, what });
    }

    fn store(&mut self, head: Option<[u8; HEADER_BYTES]>, block: &[u8]) -> usize {
        if self.store.is_empty() {
            // More than may wait: closing blocks at the end of a run may push past a full FIFO by a
            // few.
            self.store = vec![0; (self.most_blocks + 64) * self.block_bytes];
        }
        let place = self.store_next;
        self.store[place..place + self.block_bytes].copy_from_slice(block);
        if let Some(head) = head {
            self.store[place..place + HEADER_BYTES].copy_from_slice(&head);
        }
        self.store_next = (place + self.block_bytes) % self.store.len();
        place
    }

    /// Moves bytes up to now, in units of TLPs, as far as the host's releases and the bus allow.
    pub(super) fn drain(&mut self, now_ns: u64) {
        while let Some(front) = self.waiting.front() {
            let left = self.block_bytes - self.moved;
            let mut bytes = left.min(self.producer.free());
            let begin_ns = self.busy_until_ns.max(front.ready_ns as f64);
            if let Some(ns_per_byte) = self.ns_per_byte {
                let budget = (now_ns as f64 - begin_ns).max(0.0) / ns_per_byte;
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "clamped to a block"
                )]
                let budget = budget.min(left as f64) as usize;
                bytes = bytes.min(budget);
            }
            if bytes < left {
                bytes = bytes / TLP_BYTES * TLP_BYTES;
            }
            if bytes == 0 {
                return;
            }
            if self.moved == 0 {
                self.producer.set_timestamp(0, front.birth_ns);
            }
            match front.what {
                What::Stored(place) => {
                    let from = place + self.moved;
                    self.producer.write(0, &self.store[from..from + bytes]);
                }
                What::InRing(Some(head)) if self.moved == 0 => self.producer.write(0, &head),
                What::InRing(_) => {}
            }
            self.producer.advance(bytes);
            self.moved += bytes;
            self.busy_until_ns = begin_ns + bytes as f64 * self.ns_per_byte.unwrap_or(0.0);
            if self.moved < self.block_bytes {
                return;
            }
            self.moved = 0;
            self.waiting.pop_front();
        }
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    id: ChannelId,
    pub(super) dma: Dma,
    filler: Filler,
    pub(super) busy: [bool; 2],
    pub(super) peak_bytes: usize,
}

impl Channel {
    /// Makes a channel. The ring of a made turn is a little smaller than wanted: the scenario gets
    /// its size, from which other values follow.
    pub(super) fn new(
        scenario: &mut Scenario,
        id: ChannelId,
    ) -> Result<(Channel, Consumer), ScenarioError> {
        let block_bytes = scenario.card.block.0;
        let mut made = match scenario.replays() {
            true => Some(Tape::made(scenario, id)?),
            false => None,
        };
        let whole = scenario.card.ring.0 / block_bytes * block_bytes;
        scenario.card.ring.0 = made.as_ref().map_or(whole, |tape| tape.bytes.len());
        let card = &scenario.card;
        let shape = Shape {
            ring_bytes: card.ring.0,
            unit_bytes: block_bytes,
            gap_bytes: scenario.pointer_gap(),
            pages: if card.huge_pages { Pages::HugeTlb } else { Pages::Base },
            numa_node: None,
        };
        let (mut producer, consumer) =
            ring::ring(&shape).map_err(|error| ScenarioError(format!("card.ring: {error}")))?;
        if let Some(tape) = &mut made {
            producer.write(0, &tape.bytes);
            tape.bytes = Vec::new();
        }
        let filler = match (made, &scenario.recorded) {
            (Some(tape), _) => Filler::Tape(Player::new(Arc::new(tape), true, true)),
            (None, Some(one)) => Filler::Tape(Player::new(one.tape.clone(), false, one.loops)),
            (None, None) => Filler::Live(emulators(scenario, id)),
        };
        let dma = Dma::new(producer, block_bytes, card.dma_rate.map(|rate| rate.0), card.fifo.0);
        Ok((Channel { id, dma, filler, busy: [false; 2], peak_bytes: 0 }, consumer))
    }

    pub(super) fn player(&self) -> Option<&Player> {
        match &self.filler {
            Filler::Tape(player) => Some(player),
            Filler::Live(_) => None,
        }
    }

    pub(super) fn player_mut(&mut self) -> Option<&mut Player> {
        match &mut self.filler {
            Filler::Tape(player) => Some(player),
            Filler::Live(_) => None,
        }
    }

    pub(super) fn next_completion(&self) -> Option<u64> {
        self.player()?.next_completion()
    }

    /// Gives the blocks that the accepted triggers completed, as far as the FIFO takes them, until
    /// the ring holds `most_bytes`.
    pub(super) fn play(&mut self, now_ns: u64, period_ns: f64, most_bytes: usize) {
        let Channel { dma, filler: Filler::Tape(player), .. } = self else {
            return;
        };
        while dma.fifo_room() > 0 && dma.producer.filled() < most_bytes && player.is_due() {
            let given = player.take();
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a time span within a run"
            )]
            let birth_ns = now_ns.saturating_sub((given.spans as f64 * period_ns) as u64);
            dma.push(now_ns, birth_ns, given.head, given.block);
        }
    }

    pub(super) fn make(&mut self, now_ns: u64, number: u64) {
        let Channel { dma, filler: Filler::Live(emulators), .. } = self else {
            return;
        };
        for emulator in emulators {
            emulator.trigger(now_ns, number, dma.fifo_room(), &mut |block, birth_ns| {
                dma.push(now_ns, birth_ns, None, Some(block));
            });
        }
    }

    /// Closes open blocks whose first chunk came up to `before_ns`, as far as the FIFO takes them.
    pub(super) fn close(&mut self, now_ns: u64, before_ns: u64) {
        let Channel { dma, filler: Filler::Live(emulators), .. } = self else {
            return;
        };
        for emulator in emulators.iter_mut().filter(|emulator| emulator.is_open_since(before_ns)) {
            dma.drain(now_ns);
            if dma.fifo_room() > 0 {
                emulator
                    .close(&mut |block, birth_ns| dma.push(now_ns, birth_ns, None, Some(block)));
            }
        }
    }

    /// Gives all that is left when no further trigger comes, as far as the FIFO takes it; true if
    /// nothing is.
    pub(super) fn finish(&mut self, scenario: &Scenario, now_ns: u64) -> bool {
        self.close(now_ns, u64::MAX);
        self.play(now_ns, 0.0, usize::MAX);
        let Channel { id, dma, filler, .. } = self;
        if let Filler::Tape(player) = filler
            && !player.is_due()
            && dma.fifo_room() >= player.tape.elinks.len()
        {
            player.close(scenario, *id, |block| dma.push(now_ns, now_ns, None, Some(block)));
        }
        dma.drain(now_ns);
        self.dma.is_empty() && !self.player().is_some_and(Player::is_due)
    }

    pub(super) fn accounts(&self, scenario: &Scenario) -> Vec<CardElink> {
        match &self.filler {
            Filler::Live(emulators) => emulators.iter().map(|emulator| emulator.account).collect(),
            Filler::Tape(player) => {
                player.accounts(&scenario.elinks(self.id.device, self.id.channel))
            }
        }
    }
}
