//! Fragments for triggers: the emulators of the links, and the faults that a scenario asks for.

use daqmeter_record::units::whole;
use daqmeter_wire::felix::block::{ChunkFlags, SubchunkKind, Trailer};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::payload::{BUNCHES_PER_ORBIT, EmulatorHeader, Ttc};
use daqmeter_wire::felix::{BlockFormat, Elink, Encoder, Subchunk, subchunks};

use super::ChannelId;
use crate::accounts::CardElink;
use crate::scenario::{ElinkSpec, FaultKind, FaultSpec, Mode, Scenario};

/// LHC: distance of bunch crossings.
const BUNCH_NS: f64 = 24.95;

/// Function that takes each block, and the time of its first chunk.
pub(crate) type BlockSink<'a> = &'a mut dyn FnMut(&[u8], u64);

#[derive(Debug)]
pub(crate) struct Emulator {
    spec: ElinkSpec,
    format: BlockFormat,
    encoder: Encoder<Box<[u8]>>,
    payload: Vec<u8>,
    fragments: u64,
    deficit: f64,
    /// Time of the first chunk of the open block.
    opened_ns: Option<u64>,
    faults: Option<Box<Faults>>,
    pub(crate) account: CardElink,
}

pub(crate) fn emulators(scenario: &Scenario, id: ChannelId) -> Vec<Emulator> {
    let elinks = scenario.elinks(id.device, id.channel).into_iter();
    elinks.map(|spec| Emulator::new(spec, scenario)).collect()
}

impl Emulator {
    fn new(spec: ElinkSpec, scenario: &Scenario) -> Emulator {
        let format = scenario.format().expect("the scenario was checked");
        let block = vec![0; format.block_bytes].into_boxed_slice();
        let encoder =
            Encoder::new(format, spec.elink, block).expect("the memory is a block of the format");
        let mut payload = vec![0; spec.payload_bytes];
        let width = if scenario.card.mode == Mode::Full { 16 } else { 8 };
        // The header has 16 bits; longer chunks state their length modulo 2^16.
        let length = u16::try_from(spec.payload_bytes & 0xFFFF).expect("16 bits");
        EmulatorHeader { length, event: 0, elink_index: spec.elink.index(), width }
            .fill(&mut payload);
        let number = spec.elink.number();
        let is_own = |fault: &&FaultSpec| fault.elink.is_none_or(|elink| elink == number);
        let own: Vec<FaultSpec> = scenario.fault.iter().filter(is_own).copied().collect();
        Emulator {
            spec,
            format,
            encoder,
            payload,
            fragments: 0,
            deficit: 0.0,
            opened_ns: None,
            faults: (!own.is_empty()).then(|| Box::new(Faults::new(format, own))),
            account: CardElink { tag: spec.tag, ..CardElink::default() },
        }
    }

    /// Makes the fragment of a trigger. `room` is that of the FIFO in blocks; `out` gets each block
    /// that is full, and the time of its first chunk.
    pub(crate) fn trigger(&mut self, now_ns: u64, l0id: u64, room: usize, out: BlockSink<'_>) {
        self.deficit += self.spec.deficit;
        if self.deficit >= 1.0 {
            self.deficit -= 1.0;
            self.account.deficit += 1;
            return;
        }
        let event = self.fragments;
        self.fragments += 1;
        if !self.is_of_link() {
            self.payload.copy_from_slice(&ttc(now_ns, l0id).emit());
        } else if let Some(place) = self.payload.get_mut(3) {
            *place = event.to_le_bytes()[0];
        }
        let faults = self.faults.as_mut();
        let flags = faults.map(|faults| faults.chunk(&mut self.encoder, out)).unwrap_or_default();
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
        self.encoder.chunk(&self.payload[..length], flags, &mut |block| {
            pass(faults, account, block, birth_ns, out);
            birth_ns = now_ns;
        });
        self.opened_ns = (!self.encoder.is_empty()).then_some(birth_ns);
    }

    /// False for the E-link of the trigger system, which has no XOFF.
    pub(crate) fn is_of_link(&self) -> bool {
        self.spec.elink != Elink::TTC
    }

    /// Bytes of the payload for which there is room; `None` without room.
    fn fits(&self, room: usize) -> Option<usize> {
        let (trailer, body) = (self.format.trailer.bytes(), self.format.body_bytes());
        let length = self.payload.len();
        // The usual case needs no division.
        if self.format.padded(length) + trailer < self.encoder.room()
            || room > length / (body - trailer) + 1
        {
            return Some(length);
        }
        // Each block that the chunk begins in or goes through costs a trailer; it must not fill the
        // last one.
        let most = (self.encoder.room() + room * body).checked_sub((room + 2) * trailer)?;
        let kept = length.min(most / trailer * trailer);
        (kept >= 8.min(length)).then_some(kept)
    }

    /// True if a block is open, or waits for another, whose first chunk came up to this time.
    pub(crate) fn is_open_since(&self, before_ns: u64) -> bool {
        let held = self.faults.as_ref().and_then(|faults| faults.held.as_ref());
        let held_ns = held.map(|(_, birth_ns, _)| *birth_ns);
        let open_ns = (!self.encoder.is_empty()).then_some(self.opened_ns.unwrap_or(0));
        held_ns.or(open_ns).is_some_and(|ns| ns <= before_ns)
    }

    pub(crate) fn close(&mut self, out: BlockSink<'_>) {
        let birth_ns = self.opened_ns.take().unwrap_or(0);
        let (faults, account) = (&mut self.faults, &mut self.account);
        self.encoder.timeout(&mut |block| pass(faults, account, block, birth_ns, out));
        // A block that waits for another that never comes.
        if let Some((block, birth_ns, _)) = faults.as_mut().and_then(|faults| faults.held.take()) {
            out(&block, birth_ns);
        }
    }
}

fn ttc(now_ns: u64, l0id: u64) -> Ttc {
    let crossing = whole(now_ns as f64 / BUNCH_NS);
    let bunches = u64::from(BUNCHES_PER_ORBIT);
    let low = |value: u64| u32::try_from(value & 0xFFFF_FFFF).expect("32 bits");
    Ttc {
        format: 2,
        bcid: u16::try_from(crossing % bunches).expect("below 3564"),
        l1id: low(l0id) & 0xFF_FFFF,
        ecr: 0,
        orbit: low(crossing / bunches),
        trigger_type: 0x80,
        l0id: low(l0id),
        accepts: l0id + 1,
    }
}

/// Passes a block to the ring, through the faults if there are any.
fn pass(
    faults: &mut Option<Box<Faults>>,
    account: &mut CardElink,
    block: &[u8],
    birth_ns: u64,
    out: BlockSink<'_>,
) {
    match faults {
        None => out(block, birth_ns),
        Some(faults) => faults.block(account, block, birth_ns, out),
    }
}

/// Chunks of a block, by their numbers on the E-link.
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
        let (room, last) = (vec![Subchunk::default(); most_subchunks(format)], Span::default());
        Faults { format, specs, chunks: 0, blocks: 0, room, last, lost_below: 0, held: None }
    }

    /// Flags of the next chunk; markers go before it.
    fn chunk(&mut self, encoder: &mut Encoder<Box<[u8]>>, out: BlockSink<'_>) -> ChunkFlags {
        self.chunks += 1;
        let mut flags = ChunkFlags::default();
        for spec in self.specs.iter().filter(|spec| self.chunks.is_multiple_of(spec.every)) {
            match spec.kind {
                FaultKind::Truncated => flags.truncated = true,
                FaultKind::Error => flags.error = true,
                FaultKind::Crc => flags.crc = true,
                FaultKind::Busy => flags.busy = true,
                // A marker that would fill the block would have to pass the faults of blocks: it is
                // left out.
                FaultKind::OutOfBand if encoder.room() > 2 * self.format.trailer.bytes() => {
                    encoder.out_of_band(&mut |block| out(block, 0));
                }
                _ => {}
            }
        }
        flags
    }

    fn span(&mut self, block: &[u8]) -> Span {
        let (_, found) =
            subchunks(self.format, block, &mut self.room).expect("the encoder's own block");
        let mut kinds = found.iter().map(|subchunk| subchunk.trailer());
        let is_end =
            |trailer: &Trailer| matches!(trailer.kind, SubchunkKind::Both | SubchunkKind::Last);
        let ended = kinds.clone().filter(is_end).count() as u64;
        let ends_inside =
            kinds.rfind(Trailer::carries_data).map_or(self.last.ends_inside, |last| {
                matches!(last.kind, SubchunkKind::First | SubchunkKind::Middle)
            });
        let begins_inside = self.last.ends_inside;
        let first = self.last.end - u64::from(begins_inside);
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

    fn block(&mut self, account: &mut CardElink, block: &[u8], birth_ns: u64, out: BlockSink<'_>) {
        use FaultKind::{
            CorruptedMagic, CorruptedTrailer, DuplicatedBlock, LostBlock, SwappedBlocks,
        };
        let span = self.span(block);
        self.blocks += 1;
        if let Some((held, held_ns, before)) = self.held.take() {
            // The two change places, and every chunk that is in more than one of the blocks around
            // them is torn.
            let torn = [
                (before.begins_inside, before.first),
                (before.ends_inside, before.end.wrapping_sub(1)),
                (span.ends_inside, span.end.wrapping_sub(1)),
            ];
            for (_, chunk) in torn.into_iter().filter(|(is_torn, _)| *is_torn) {
                self.lose(account, chunk, chunk + 1);
            }
            out(block, birth_ns);
            out(&held, held_ns);
            return;
        }
        let due = self.specs.iter().filter(|spec| self.blocks.is_multiple_of(spec.every));
        let of_blocks =
            [LostBlock, DuplicatedBlock, SwappedBlocks, CorruptedTrailer, CorruptedMagic];
        let Some(kind) = due.map(|spec| spec.kind).find(|kind| of_blocks.contains(kind)) else {
            return out(block, birth_ns);
        };
        if matches!(kind, LostBlock | CorruptedMagic | CorruptedTrailer) {
            self.lose(account, span.first, span.end);
        }
        let mut other = block.to_vec();
        match kind {
            LostBlock => return,
            SwappedBlocks => {
                self.held = Some((other, birth_ns, span));
                return;
            }
            DuplicatedBlock => out(block, birth_ns),
            CorruptedMagic => other[2] ^= 0x55,
            _ => {
                let last = other.len() - 1;
                other[last] = other[last] & 0x1F | (SubchunkKind::Undefined as u8) << 5;
            }
        }
        out(&other, birth_ns);
    }
}
