//! Fragments for triggers: the emulators of the links, and the faults that a scenario asks for.

use daqmeter_wire::felix::block::{ChunkFlags, SubchunkKind, Trailer};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::payload::{EmulatorHeader, Ttc};
use daqmeter_wire::felix::{BlockFormat, Encoder, Subchunk, subchunks};

use crate::accounts::CardElink;
use crate::scenario::{ElinkSpec, FaultKind, FaultSpec, Mode, Scenario, TriggerKind};

/// LHC: bunch crossings in an orbit, and their distance.
const BUNCHES_PER_ORBIT: u64 = 3564;
const BUNCH_NS: f64 = 24.95;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Made<'a> {
    pub(crate) block: &'a [u8],
    pub(crate) birth_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Emulator {
    spec: ElinkSpec,
    format: BlockFormat,
    encoder: Encoder<Box<[u8]>>,
    payload: Vec<u8>,
    fragments: u64,
    /// True if the event counter counts triggers instead of fragments.
    counts_triggers: bool,
    deficit: f64,
    opened_ns: Option<u64>,
    faults: Option<Box<Faults>>,
    pub(crate) account: CardElink,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) blocks: usize,
}

impl Emulator {
    fn new(spec: ElinkSpec, format: BlockFormat, scenario: &Scenario) -> Emulator {
        let block = vec![0; format.block_bytes].into_boxed_slice();
        let encoder =
            Encoder::new(format, spec.elink, block).expect("the memory is a block of the format");
        let mut payload = vec![0; spec.payload_bytes];
        let width = if scenario.card.mode == Mode::Full { 16 } else { 8 };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the header has 16 bits; longer chunks say their length modulo 2^16"
        )]
        let length = spec.payload_bytes as u16;
        EmulatorHeader { length, event: 0, elink_index: spec.elink.index(), width }
            .fill(&mut payload);
        let own: Vec<FaultSpec> = scenario
            .fault
            .iter()
            .filter(|fault| fault.elink.is_none_or(|elink| elink == spec.elink.number()))
            .copied()
            .collect();
        let faults = (!own.is_empty()).then(|| Box::new(Faults::new(format, own)));
        let account =
            CardElink { tag: spec.tag, elink: spec.elink.number(), ..CardElink::default() };
        Emulator {
            spec,
            format,
            encoder,
            payload,
            fragments: 0,
            counts_triggers: scenario.trigger.source == TriggerKind::Times,
            deficit: 0.0,
            opened_ns: None,
            faults,
            account,
        }
    }

    pub(crate) fn trigger(
        &mut self,
        now_ns: u64,
        l0id: u64,
        room: Room,
        out: &mut impl FnMut(Made<'_>),
    ) {
        self.deficit += self.spec.deficit;
        if self.deficit >= 1.0 {
            self.deficit -= 1.0;
            self.account.deficit += 1;
            return;
        }
        let event = if self.counts_triggers { l0id } else { self.fragments };
        self.fragments += 1;
        if self.spec.is_ttc {
            self.payload.copy_from_slice(&ttc(now_ns, l0id).emit());
        } else if let Some(place) = self.payload.get_mut(3) {
            *place = event.to_le_bytes()[0];
        }
        let flags = self
            .faults
            .as_mut()
            .map_or(ChunkFlags::default(), |faults| faults.chunk(&mut self.encoder, out));
        let Some(length) = self.fits(room) else {
            self.account.fifo_lost += 1;
            return;
        };
        let truncated = length < self.payload.len();
        self.account.truncated += u64::from(truncated);
        self.account.chunks += 1;
        let is_marked = flags.truncated || flags.error || flags.crc;
        self.account.fault_flagged += u64::from(is_marked && !truncated);
        let flags = ChunkFlags { truncated: truncated || flags.truncated, ..flags };
        let mut birth_ns = *self.opened_ns.get_or_insert(now_ns);
        let (faults, account) = (&mut self.faults, &mut self.account);
        let mut made = 0;
        self.encoder.chunk(&self.payload[..length], flags, &mut |block| {
            pass(faults, account, Made { block, birth_ns }, out);
            birth_ns = now_ns;
            made += 1;
        });
        if self.encoder.is_empty() {
            self.opened_ns = None;
        } else if made > 0 {
            self.opened_ns = Some(now_ns);
        }
    }

    /// Bytes of the payload for which there is room; `None` without room.
    fn fits(&self, room: Room) -> Option<usize> {
        let (trailer, body) = (self.format.trailer.bytes(), self.format.body_bytes());
        let length = self.payload.len();
        // The usual case needs no division.
        if self.format.padded(length) + trailer < self.encoder.room()
            || room.blocks > length / (body - trailer) + 1
        {
            return Some(length);
        }
        // Each block that the chunk begins in or goes through costs a trailer; it must not fill the
        // last one.
        let most =
            (self.encoder.room() + room.blocks * body).checked_sub((room.blocks + 2) * trailer)?;
        let kept = length.min(most / trailer * trailer);
        (kept >= 8.min(length)).then_some(kept)
    }

    /// Closes a block that is older than the timeout.
    pub(crate) fn timeout(&mut self, opened_before_ns: u64, out: &mut impl FnMut(Made<'_>)) {
        if self.opened_ns.is_some_and(|opened_ns| opened_ns <= opened_before_ns) {
            self.close(out);
        }
    }

    pub(crate) fn close(&mut self, out: &mut impl FnMut(Made<'_>)) {
        let birth_ns = self.opened_ns.take().unwrap_or(0);
        let (faults, account) = (&mut self.faults, &mut self.account);
        self.encoder.timeout(&mut |block| pass(faults, account, Made { block, birth_ns }, out));
        if let Some(faults) = faults {
            faults.finish(out);
        }
    }

    pub(crate) fn has_open_block(&self) -> bool {
        !self.encoder.is_empty()
    }
}

fn ttc(now_ns: u64, l0id: u64) -> Ttc {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of bunch crossings since the start"
    )]
    let crossing = (now_ns as f64 / BUNCH_NS) as u64;
    let low = |value: u64| u32::try_from(value & 0xFFFF_FFFF).expect("32 bits");
    Ttc {
        format: 2,
        bcid: u16::try_from(crossing % BUNCHES_PER_ORBIT).expect("below 3564"),
        l1id: low(l0id) & 0xFF_FFFF,
        ecr: 0,
        orbit: low(crossing / BUNCHES_PER_ORBIT),
        trigger_type: 0x80,
        l0id: low(l0id),
        accepts: l0id + 1,
    }
}

pub(crate) fn emulators(scenario: &Scenario, device: u16, channel: u16) -> Vec<Emulator> {
    let format = scenario.format().expect("the scenario was checked");
    let of = |spec| Emulator::new(spec, format, scenario);
    scenario.elinks(device, channel).into_iter().map(of).collect()
}

/// Passes a block to the ring, through the faults if there are any.
fn pass(
    faults: &mut Option<Box<Faults>>,
    account: &mut CardElink,
    made: Made<'_>,
    out: &mut impl FnMut(Made<'_>),
) {
    match faults {
        None => out(made),
        Some(faults) => faults.block(account, made, out),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    first: u64,
    end: u64,
    begins_inside: bool,
    ends_inside: bool,
}

#[derive(Debug)]
struct Faults {
    format: BlockFormat,
    specs: Vec<FaultSpec>,
    chunks: u64,
    blocks: u64,
    room: Vec<Subchunk>,
    last: Span,
    /// Chunks below this number that are counted as lost already.
    lost_below: u64,
    /// A block that waits to change places with the next.
    held: Option<(Vec<u8>, u64, Span)>,
}

impl Faults {
    fn new(format: BlockFormat, specs: Vec<FaultSpec>) -> Faults {
        Faults {
            format,
            specs,
            chunks: 0,
            blocks: 0,
            room: vec![Subchunk::default(); most_subchunks(format)],
            last: Span::default(),
            lost_below: 0,
            held: None,
        }
    }

    fn due(&self, count: u64, of_block: bool) -> impl Iterator<Item = FaultKind> {
        let due = move |spec: &&FaultSpec| {
            spec.kind.is_of_block() == of_block && count.is_multiple_of(spec.every)
        };
        self.specs.iter().filter(due).map(|spec| spec.kind)
    }

    /// Flags of the next chunk; markers go before it.
    fn chunk(
        &mut self,
        encoder: &mut Encoder<Box<[u8]>>,
        out: &mut impl FnMut(Made<'_>),
    ) -> ChunkFlags {
        self.chunks += 1;
        let mut flags = ChunkFlags::default();
        let mut markers = 0;
        for kind in self.due(self.chunks, false) {
            match kind {
                FaultKind::Truncated => flags.truncated = true,
                FaultKind::Error => flags.error = true,
                FaultKind::Crc => flags.crc = true,
                FaultKind::Busy => flags.busy = true,
                _ => markers += 1,
            }
        }
        for _ in 0..markers {
            // A marker that would fill the block would have to pass the faults of blocks: it is
            // left out.
            if encoder.room() > 2 * self.format.trailer.bytes() {
                encoder.out_of_band(&mut |block| out(Made { block, birth_ns: 0 }));
            }
        }
        flags
    }

    fn span(&mut self, block: &[u8]) -> Span {
        let (_, found) =
            subchunks(self.format, block, &mut self.room).expect("the encoder's own block");
        let kinds = found.iter().map(|subchunk| subchunk.trailer());
        let ended = kinds
            .clone()
            .filter(|trailer| matches!(trailer.kind, SubchunkKind::Both | SubchunkKind::Last))
            .count() as u64;
        let mut data = kinds.filter(Trailer::carries_data);
        let ends_inside = data.next_back().map_or(self.last.ends_inside, |last| {
            matches!(last.kind, SubchunkKind::First | SubchunkKind::Middle)
        });
        let begins_inside = self.last.ends_inside;
        let first = if begins_inside { self.last.end - 1 } else { self.last.end };
        self.last =
            Span { first, end: first + ended + u64::from(ends_inside), begins_inside, ends_inside };
        self.last
    }

    fn lose(&mut self, account: &mut CardElink, from: u64, end: u64) {
        let from = from.max(self.lost_below);
        if from < end {
            account.fault_lost += end - from;
            account.chunks -= end - from;
            self.lost_below = end;
        }
    }

    fn block(&mut self, account: &mut CardElink, made: Made<'_>, out: &mut impl FnMut(Made<'_>)) {
        let span = self.span(made.block);
        self.blocks += 1;
        let kind = self.due(self.blocks, true).next();
        if let Some((held, birth_ns, before)) = self.held.take() {
            // The two change places, and every chunk that is in more than one of the blocks around
            // them is torn.
            if before.begins_inside {
                self.lose(account, before.first, before.first + 1);
            }
            if before.ends_inside {
                self.lose(account, before.end - 1, before.end);
            }
            if span.ends_inside {
                self.lose(account, span.end - 1, span.end);
            }
            out(made);
            out(Made { block: &held, birth_ns });
            return;
        }
        match kind {
            Some(FaultKind::LostBlock) => self.lose(account, span.first, span.end),
            Some(FaultKind::DuplicatedBlock) => {
                out(made);
                out(made);
            }
            Some(FaultKind::SwappedBlocks) => {
                self.held = Some((made.block.to_vec(), made.birth_ns, span))
            }
            Some(kind @ (FaultKind::CorruptedMagic | FaultKind::CorruptedTrailer)) => {
                self.lose(account, span.first, span.end);
                let mut block = made.block.to_vec();
                if kind == FaultKind::CorruptedMagic {
                    block[2] ^= 0x55;
                } else {
                    let last = block.len() - 1;
                    block[last] = block[last] & 0x1F | (SubchunkKind::Undefined as u8) << 5;
                }
                out(Made { block: &block, ..made });
            }
            _ => out(made),
        }
    }

    /// Passes on a block that waited for another that never came.
    fn finish(&mut self, out: &mut impl FnMut(Made<'_>)) {
        if let Some((block, birth_ns, _)) = self.held.take() {
            out(Made { block: &block, birth_ns });
        }
    }
}
