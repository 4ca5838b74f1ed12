//! One DMA channel: output FIFO, endless DMA, ring.

use std::collections::VecDeque;

use daqmeter_sys::ring::Producer;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};

use super::generator::Emulator;
use super::lap::Lap;
use super::player::Player;

#[derive(Debug)]
pub(crate) enum Filler {
    Live(Vec<Emulator>),
    /// A lap of blocks that are in the ring already.
    Replay(Replay),
    Recorded(Player),
}

#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) lap: Lap,
    pub(crate) accepted: u64,
    /// Next block of the lap to be completed, and the number of laps done.
    next: usize,
    laps: u64,
    pub(crate) fifo_lost: u64,
    /// True once the open blocks at the end were handed over.
    pub(crate) closed: bool,
}

impl Replay {
    pub(crate) fn new(lap: Lap) -> Replay {
        Replay { lap, accepted: 0, next: 0, laps: 0, fifo_lost: 0, closed: false }
    }

    /// The accepted trigger, counted from 1, that completes the next block.
    pub(crate) fn next_completion(&self) -> u64 {
        self.laps * self.lap.triggers + self.lap.blocks[self.next].complete_at
    }

    /// Next block as it looks in this lap, and the number of triggers that it spans.
    fn take(&mut self) -> (FelixHeader, u64) {
        let block = &self.lap.blocks[self.next];
        let turned = self.laps * (self.lap.blocks_of[usize::from(block.emulator)] & 0x1F);
        let sequence =
            u8::try_from((u64::from(block.header.sequence) + turned) & 0x1F).expect("five bits");
        let header = FelixHeader { sequence, ..block.header };
        let spans = block.complete_at - block.first_trigger;
        self.next += 1;
        if self.next == self.lap.blocks.len() {
            self.next = 0;
            self.laps += 1;
        }
        (header, spans)
    }

    pub(crate) fn position(&self) -> (u64, u64) {
        (self.accepted / self.lap.triggers, self.accepted % self.lap.triggers)
    }
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
    InRing(FelixHeader, bool),
}

/// The DMA writes multiples of this, the usual payload of a PCIe packet.
const TLP_BYTES: usize = 512;

#[derive(Debug)]
pub(crate) struct Dma {
    pub(crate) producer: Producer,
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
    pub(crate) fn new(
        producer: Producer,
        block_bytes: usize,
        rate: Option<usize>,
        fifo: usize,
    ) -> Dma {
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

    pub(crate) fn fifo_bytes(&self) -> usize {
        self.waiting.len() * self.block_bytes - self.moved
    }

    pub(crate) fn fifo_room(&self) -> usize {
        self.most_blocks.saturating_sub(self.waiting.len())
    }

    /// Takes a block from a block former, which has made sure that there is room.
    pub(crate) fn push(&mut self, now_ns: u64, birth_ns: u64, block: &[u8]) {
        self.put(now_ns, birth_ns, None, block);
    }

    pub(super) fn push_as(&mut self, now_ns: u64, head: [u8; HEADER_BYTES], block: &[u8]) {
        self.put(now_ns, now_ns, Some(head), block);
    }

    #[inline]
    fn put(&mut self, now_ns: u64, birth_ns: u64, head: Option<[u8; HEADER_BYTES]>, block: &[u8]) {
        if self.waiting.is_empty()
            && self.ns_per_byte.is_none()
            && self.producer.free() >= self.block_bytes
        {
            self.producer.set_timestamp(0, birth_ns);
            self.producer.write(0, block);
            if let Some(head) = head {
                self.producer.write(0, &head);
            }
            self.producer.advance(self.block_bytes);
            return;
        }
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
        self.waiting.push_back(Waiting { ready_ns: now_ns, birth_ns, what: What::Stored(place) });
    }

    pub(crate) fn push_replayed(&mut self, now_ns: u64, replay: &mut Replay, period_ns: f64) {
        let in_first_lap = replay.laps == 0;
        let (header, spans) = replay.take();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time span within a run"
        )]
        let birth_ns = now_ns.saturating_sub((spans as f64 * period_ns) as u64);
        self.waiting.push_back(Waiting {
            ready_ns: now_ns,
            birth_ns,
            what: What::InRing(header, !in_first_lap),
        });
    }

    /// Moves bytes up to now, in units of TLPs, as far as the host's releases and the bus allow.
    pub(crate) fn drain(&mut self, now_ns: u64) {
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
                What::InRing(header, true) if self.moved == 0 => {
                    debug_assert!(bytes >= HEADER_BYTES);
                    self.producer.write(0, &header.emit());
                }
                What::InRing(..) => {}
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

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: super::ChannelId,
    pub(crate) dma: Dma,
    pub(crate) filler: Filler,
    pub(crate) busy: [bool; 2],
    pub(crate) peak_bytes: usize,
}
