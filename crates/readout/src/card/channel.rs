//! One DMA channel: what fills it, output FIFO, endless DMA, ring.

use std::collections::VecDeque;

use daqmeter_record::units::whole;
use daqmeter_sys::memory::Pages;
use daqmeter_sys::ring::{self, Consumer, Producer, Shape};

use super::ChannelId;
use super::generator::{Emulator, emulators};
use super::tape::Tape;
use crate::accounts::CardElink;
use crate::busy::{Cause, DeadTime};
use crate::scenario::Scenario;

#[derive(Debug)]
enum Filler {
    Live(Vec<Emulator>),
    Tape(Tape),
}

/// A block in the FIFO. The ring has its other bytes already.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    ready_ns: u64,
    birth_ns: u64,
    /// Bytes of its beginning in the store.
    place: usize,
    bytes: usize,
}

/// Last accepted trigger: its number from 1, its time, and the mean distance of those before it.
#[derive(Clone, Copy)]
pub(super) struct Accepted {
    pub(super) number: u64,
    pub(super) at_ns: u64,
    pub(super) period_ns: f64,
}

impl Accepted {
    /// Time of the trigger with this number.
    fn birth_ns(self, number: u64) -> u64 {
        let before = self.number.saturating_sub(number) as f64;
        self.at_ns.saturating_sub(whole(before * self.period_ns))
    }
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

    /// Takes a block, of which `bytes` are the beginning; the ring has the rest already. The caller
    /// has made sure that there is room.
    #[inline]
    fn push(&mut self, now_ns: u64, birth_ns: u64, bytes: &[u8]) {
        if self.waiting.is_empty()
            && self.ns_per_byte.is_none()
            && self.producer.free() >= self.block_bytes
        {
            self.producer.set_timestamp(0, birth_ns);
            self.producer.write(0, bytes);
            self.producer.advance(self.block_bytes);
            return;
        }
        let place = self.store(bytes);
        let bytes = bytes.len();
        self.waiting.push_back(Waiting { ready_ns: now_ns, birth_ns, place, bytes });
    }

    fn store(&mut self, bytes: &[u8]) -> usize {
        if self.store.is_empty() {
            // More than may wait: closing blocks at the end of a run may push past a full FIFO by a
            // few.
            self.store = vec![0; (self.most_blocks + 64) * self.block_bytes];
        }
        let place = self.store_next;
        self.store[place..place + bytes.len()].copy_from_slice(bytes);
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
                bytes = bytes.min(usize::try_from(whole(budget)).unwrap_or(usize::MAX));
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
            let end = (self.moved + bytes).min(front.bytes);
            let stored = &self.store[front.place..front.place + end];
            self.producer.write(0, stored.get(self.moved..).unwrap_or_default());
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
    /// Time for which it stopped triggers.
    pub(super) dead: DeadTime,
    pub(super) peak_bytes: usize,
}

impl Channel {
    /// Makes a channel. The ring of a made turn is a little smaller than wanted: the scenario gets
    /// its size, from which other values follow.
    pub(super) fn new(
        scenario: &mut Scenario,
        id: ChannelId,
    ) -> Result<(Channel, Consumer), String> {
        let block_bytes = scenario.card.block.0;
        let made = if scenario.replays() { Some(Tape::made(scenario, id)?) } else { None };
        let whole = scenario.card.ring.0 / block_bytes * block_bytes;
        scenario.card.ring.0 = made.as_ref().map_or(whole, |(_, bytes)| bytes.len());
        let card = &scenario.card;
        let shape = Shape {
            ring_bytes: card.ring.0,
            unit_bytes: block_bytes,
            gap_bytes: scenario.pointer_gap(),
            pages: if card.huge_pages { Pages::HugeTlb } else { Pages::Base },
            numa_node: None,
        };
        let (mut producer, consumer) =
            ring::ring(&shape).map_err(|error| format!("card.ring: {error}"))?;
        let filler = match made {
            Some((tape, bytes)) => {
                producer.write(0, &bytes);
                Filler::Tape(tape)
            }
            None => Filler::Live(emulators(scenario, id)),
        };
        let dma = Dma::new(producer, block_bytes, card.dma_rate.map(|rate| rate.0), card.fifo.0);
        Ok((
            Channel { id, dma, filler, busy: [false; 2], dead: DeadTime::default(), peak_bytes: 0 },
            consumer,
        ))
    }

    /// Accepted trigger that completes the next block of a tape.
    pub(super) fn next_completion(&self) -> Option<u64> {
        match &self.filler {
            Filler::Tape(tape) => Some(tape.next_completion()),
            Filler::Live(_) => None,
        }
    }

    /// Shows the blocks that the accepted triggers completed, as far as the FIFO takes them.
    pub(super) fn play(&mut self, now_ns: u64, last: Accepted) {
        let Channel { dma, filler: Filler::Tape(tape), .. } = self else {
            return;
        };
        while dma.fifo_room() > 0
            && let Some(shown) = tape.take(last.number)
        {
            let head = shown.head.as_ref().map_or(&[][..], |head| &head[..]);
            dma.push(now_ns, last.birth_ns(shown.first), head);
        }
    }

    /// Makes the fragments of a trigger. Links that obey XOFF send none while it is on.
    pub(super) fn make(&mut self, now_ns: u64, number: u64, obeys: bool) {
        let Channel { dma, filler: Filler::Live(emulators), busy, .. } = self else {
            return;
        };
        let is_off = obeys && busy[Cause::Fifo as usize];
        for emulator in emulators {
            if is_off && emulator.is_of_link() {
                emulator.account.xoff += 1;
                continue;
            }
            emulator.trigger(now_ns, number, dma.fifo_room(), &mut |block, birth_ns| {
                dma.push(now_ns, birth_ns, block);
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
                emulator.close(&mut |block, birth_ns| dma.push(now_ns, birth_ns, block));
            }
        }
    }

    /// Gives all that is left when no further trigger comes, as far as the FIFO takes it; true if
    /// nothing is.
    pub(super) fn finish(&mut self, scenario: &Scenario, now_ns: u64, last: Accepted) -> bool {
        self.close(now_ns, u64::MAX);
        self.play(now_ns, last);
        let Channel { id, dma, filler, .. } = self;
        let mut is_done = true;
        if let Filler::Tape(tape) = filler {
            is_done = tape.next_completion() > last.number;
            if is_done && dma.fifo_room() >= tape.open_blocks() {
                tape.close(scenario, *id, last.number, |block, first| {
                    dma.push(now_ns, last.birth_ns(first), block);
                });
            }
        }
        dma.drain(now_ns);
        is_done && dma.waiting.is_empty()
    }

    pub(super) fn accounts(
        &self,
        scenario: &Scenario,
        accepted: u64,
        fifo_lost: u64,
    ) -> Vec<CardElink> {
        let ChannelId { device, channel } = self.id;
        match &self.filler {
            Filler::Live(emulators) => emulators.iter().map(|emulator| emulator.account).collect(),
            Filler::Tape(_) => {
                let own = CardElink { fifo_lost, chunks: accepted, ..CardElink::default() };
                let elinks = scenario.elinks(device, channel).into_iter();
                elinks.map(|spec| CardElink { tag: spec.tag, ..own }).collect()
            }
        }
    }
}
