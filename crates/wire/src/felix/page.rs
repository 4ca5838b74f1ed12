//! Pages: many messages coalesced into one unit of the network, and the frames around them.
//! A message is a chunk in the layout of netio3, all little-endian. A 32-bit header has bit 31 for
//! a tag, bit 30 for a status byte, and the bytes of payload in bits 29 to 0. The status byte
//! follows if it is not zero, the 64-bit tag if it differs from the message before, then the
//! payload. The tag is the stream's [`super::payload::Fid`].
//! A frame is a 32-byte header and a body; a stream between two hosts consists of frames only.

use super::subchunks::ChunkRun;
use super::{le32, le64};

pub const FRAME_BYTES: usize = 32;
pub(crate) const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"DQMP");
pub(crate) const FRAME_VERSION: u8 = 1;

const HAS_TAG: u32 = 1 << 31;
const HAS_STATUS: u32 = 1 << 30;
const LENGTH: u32 = HAS_STATUS - 1;

/// Most bytes of a message besides its payload.
pub const MAX_MESSAGE_OVERHEAD: usize = 4 + 1 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of the publisher: its offer (JSON).
    Hello = 1,
    /// Request of the subscriber (JSON).
    Subscribe = 2,
    Messages = 3,
    /// A block of a path, behind its head.
    Blocks = 4,
    Acknowledge = 5,
    /// Last frame of the publisher: the accounts at the source (JSON).
    Account = 6,
    Refused = 7,
}

impl FrameKind {
    fn of_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        let known = [Hello, Subscribe, Messages, Blocks, Acknowledge, Account, Refused];
        known.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FelixFrame {
    pub kind: FrameKind,
    pub body_bytes: u32,
    pub count: u32,
    /// Number of the page in its stream, from 1; in an acknowledgement, the last page done.
    pub sequence: u64,
    /// Monotonic time of the page's oldest trigger, in ns; 0 if unknown.
    pub birth_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    #[error("{0:#010x} does not begin a frame of this version of daqmeter")]
    Foreign(u32),
    #[error("a frame of kind {0}, which this version does not know")]
    Kind(u8),
    #[error("the message at {at:#x} claims {length} bytes, more than the page has left")]
    Message { at: usize, length: u32 },
    #[error("the page's first message has no tag")]
    Untagged,
}

impl FelixFrame {
    /// Makes a frame without a page's fields.
    pub const fn control(kind: FrameKind, body_bytes: u32) -> FelixFrame {
        FelixFrame { kind, body_bytes, count: 0, sequence: 0, birth_ns: 0 }
    }

    pub fn emit(self) -> [u8; FRAME_BYTES] {
        let mut out = [0; FRAME_BYTES];
        out[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[8] = self.kind as u8;
        out[9] = FRAME_VERSION;
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..].copy_from_slice(&self.birth_ns.to_le_bytes());
        out
    }

    /// Parses the head of a frame. The length of its body is any: who receives it has a limit.
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Result<FelixFrame, FrameError> {
        if le32(bytes, 0) != FRAME_MAGIC || bytes[9] != FRAME_VERSION {
            return Err(FrameError::Foreign(le32(bytes, 0)));
        }
        let kind = FrameKind::of_byte(bytes[8]).ok_or(FrameError::Kind(bytes[8]))?;
        Ok(FelixFrame {
            kind,
            body_bytes: le32(bytes, 4),
            count: le32(bytes, 12),
            sequence: le64(bytes, 16),
            birth_ns: le64(bytes, 24),
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    pub const CARD_TRUNCATED: u8 = 1;
    const CARD_MALFORMED: u8 = 1 << 2;
    pub const CRC: u8 = 1 << 4;

    /// Converts a trailer's flags; the busy flag does not concern the chunk.
    pub fn of_flags(flags: super::ChunkFlags) -> Status {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        Status(
            bit(flags.truncated, Status::CARD_TRUNCATED)
                | bit(flags.error, Status::CARD_MALFORMED)
                | bit(flags.crc, Status::CRC),
        )
    }

    pub const fn is_clean(self) -> bool {
        self.0 == 0
    }
}

/// Chunk at a place in bytes that may go on behind it.
#[derive(Clone, Copy, Debug)]
pub struct PageChunk<'a> {
    pub source: &'a [u8],
    pub begin: usize,
    pub length: usize,
    pub status: Status,
}

impl PageChunk<'_> {
    pub const fn whole(source: &[u8], status: Status) -> PageChunk<'_> {
        PageChunk { source, begin: 0, length: source.len(), status }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWriter {
    used: usize,
    tag: Option<u64>,
    count: u32,
}

impl PageWriter {
    pub fn used(&self) -> usize {
        self.used
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Appends a message. False, and nothing written, when it does not fit.
    ///
    /// # Panics
    #[inline]
    pub fn push(&mut self, page: &mut [u8], tag: u64, chunk: &PageChunk<'_>) -> bool {
        /// Length of one move for short payloads, where there is room for it: a call of memcpy
        /// costs more than the copy.
        const MOVE: usize = 32;
        let PageChunk { source, begin, length, status } = *chunk;
        let plain = self.tag == Some(tag) && status.is_clean();
        if plain && length <= MOVE {
            let at = self.used;
            // Sums that wrap are ranges that no slice has; the others lie within the page, or count
            // its messages.
            let (room, payload) = (at..at.wrapping_add(4 + MOVE), begin..begin.wrapping_add(MOVE));
            if let (Some(room), Some(payload)) = (page.get_mut(room), source.get(payload)) {
                #[allow(clippy::cast_possible_truncation, reason = "at most 32")]
                let header = (length as u32).to_le_bytes();
                room[..4].copy_from_slice(&header);
                room[4..].copy_from_slice(payload);
                self.used = at.wrapping_add(4 + length);
                self.count = self.count.wrapping_add(1);
                return true;
            }
        }
        self.push_any(page, tag, status, &source[begin..begin + length])
    }

    /// # Panics
    #[inline]
    pub fn push_run(&mut self, page: &mut [u8], tag: u64, source: &[u8], run: &ChunkRun) -> usize {
        const WORD: usize = 4;
        let (begin, stride) = (run.begin(), run.length() + WORD);
        if self.tag != Some(tag) || run.stride != stride {
            return 0;
        }
        let room = &mut page[self.used..];
        let count = run.count.min(room.len() / stride);
        if count == 0 {
            return 0;
        }
        let room = &mut room[..count * stride];
        room[WORD..].copy_from_slice(&source[begin..][..count * stride - WORD]);
        let header = u32::try_from(run.length()).expect("16 bits").to_le_bytes();
        for message in room.chunks_exact_mut(stride) {
            message[..WORD].copy_from_slice(&header);
        }
        self.used += count * stride;
        self.count += u32::try_from(count).expect("a block has fewer chunks");
        count
    }

    fn push_any(&mut self, page: &mut [u8], tag: u64, status: Status, payload: &[u8]) -> bool {
        let tagged = self.tag != Some(tag);
        let overhead = 4 + usize::from(!status.is_clean()) + if tagged { 8 } else { 0 };
        let Some(room) = page.get_mut(self.used..self.used + overhead + payload.len()) else {
            return false;
        };
        let Ok(length) = u32::try_from(payload.len()) else {
            return false;
        };
        let flags =
            if tagged { HAS_TAG } else { 0 } | if status.is_clean() { 0 } else { HAS_STATUS };
        let (head, body) = room.split_at_mut(overhead);
        head[..4].copy_from_slice(&(flags | length & LENGTH).to_le_bytes());
        if !status.is_clean() {
            head[4] = status.0;
        }
        if tagged {
            head[overhead - 8..].copy_from_slice(&tag.to_le_bytes());
        }
        body.copy_from_slice(payload);
        self.used += room.len();
        self.tag = Some(tag);
        self.count += 1;
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FelixMessage<'a> {
    pub tag: u64,
    pub status: Status,
    pub payload: &'a [u8],
}

/// Iterator over the messages of a page, in their order. It ends after an error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    page: &'a [u8],
    at: usize,
    tag: Option<u64>,
    last_length: usize,
}

impl<'a> Messages<'a> {
    pub fn new(page: &'a [u8]) -> Messages<'a> {
        Messages { page, at: 0, tag: None, last_length: 0 }
    }

    /// Takes at most `most` messages after the last one that have its length and tag and no fault.
    /// Returns their number, and the bytes from the last one's payload on. Their payloads begin in
    /// it every `length + 4` bytes.
    #[inline]
    pub fn take_alike(&mut self, most: usize) -> (usize, &'a [u8]) {
        let length = self.last_length;
        let stride = length + 4;
        let is_alike = |message: &&[u8]| {
            let header = message.first_chunk().map(|head| u32::from_le_bytes(*head));
            message.len() == stride && header == u32::try_from(length).ok()
        };
        let most = if self.tag.is_some() { most } else { 0 };
        let messages = self.page[self.at..].chunks(stride).take(most);
        let count = messages.take_while(is_alike).count();
        let begin = self.at - length;
        self.at += count * stride;
        (count, &self.page[begin..self.at])
    }

    #[inline]
    fn message(&mut self) -> Result<FelixMessage<'a>, FrameError> {
        let at = self.at;
        let lacks = |length| FrameError::Message { at, length };
        let (head, mut rest) = self.page[at..].split_first_chunk().ok_or(lacks(4))?;
        let header = u32::from_le_bytes(*head);
        let length = header & LENGTH;
        let mut status = Status::default();
        if header & HAS_STATUS != 0 {
            let (byte, after) = rest.split_first().ok_or(lacks(length))?;
            (status, rest) = (Status(*byte), after);
        }
        if header & HAS_TAG != 0 {
            let (tag, after) = rest.split_first_chunk().ok_or(lacks(length))?;
            (self.tag, rest) = (Some(u64::from_le_bytes(*tag)), after);
        }
        let tag = self.tag.ok_or(FrameError::Untagged)?;
        let (payload, rest) = rest.split_at_checked(length as usize).ok_or(lacks(length))?;
        (self.at, self.last_length) = (self.page.len() - rest.len(), payload.len());
        Ok(FelixMessage { tag, status, payload })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<FelixMessage<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.page.len() {
            return None;
        }
        let message = self.message();
        if message.is_err() {
            (self.at, self.last_length) = (self.page.len(), 0);
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::subchunks::{Subchunk, most_subchunks, parts};
    use super::*;
    use crate::felix::fixtures::{encode, numbered};
    use crate::felix::{BlockFormat, ChunkFlags};

    type Owned = (u64, u8, Vec<u8>);

    fn write(messages: &[Owned], room: usize) -> (Vec<u8>, usize) {
        let mut page = vec![0; room];
        let mut writer = PageWriter::default();
        let fitted = messages
            .iter()
            .take_while(|(tag, status, payload)| {
                writer.push(&mut page, *tag, &PageChunk::whole(payload, Status(*status)))
            })
            .count();
        page.truncate(writer.used());
        assert_eq!(writer.count() as usize, fitted);
        (page, fitted)
    }

    fn read(page: &[u8]) -> Vec<Owned> {
        Messages::new(page)
            .map(|message| message.unwrap())
            .map(|message| (message.tag, message.status.0, message.payload.to_vec()))
            .collect()
    }

    #[test]
    fn a_tag_is_written_once_and_a_status_only_when_something_went_wrong() {
        let messages = [(7, 0, vec![1, 2]), (7, 0, vec![3]), (7, 1, vec![4]), (9, 0, vec![])];
        let (page, _) = write(&messages, 100);
        let bytes = [
            &[2, 0, 0, 0x80, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2][..],
            &[1, 0, 0, 0, 3],
            &[1, 0, 0, 0x40, 1, 4],
            &[0, 0, 0, 0x80, 9, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(page, bytes.concat());
        assert_eq!(read(&page), messages);
    }

    #[test]
    fn lengths_beyond_the_page_and_missing_tags_are_errors_and_end_it() {
        for (page, error) in [
            (&[1, 0, 0, 0, 5][..], FrameError::Untagged),
            (&[1, 0][..], FrameError::Message { at: 0, length: 4 }),
            (&[1, 0, 0, 0x80, 5][..], FrameError::Message { at: 0, length: 1 }),
            (&[0, 0, 0, 0x40][..], FrameError::Message { at: 0, length: 0 }),
            (
                &[9, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1][..],
                FrameError::Message { at: 0, length: 9 },
            ),
        ] {
            let found: Vec<_> = Messages::new(page).collect();
            assert_eq!(found, [Err(error)]);
        }
    }

    #[test]
    fn frames_are_read_back_and_foreign_ones_refused() {
        let (kind, sequence) = (FrameKind::Messages, 1 << 40);
        let frame = FelixFrame { kind, body_bytes: 65536, count: 9, sequence, birth_ns: 3 };
        assert_eq!(FelixFrame::parse(&frame.emit()), Ok(frame));
        let mut bytes = frame.emit();
        bytes[8] = 99;
        assert_eq!(FelixFrame::parse(&bytes), Err(FrameError::Kind(99)));
        assert!(matches!(FelixFrame::parse(&[0x48; 32]), Err(FrameError::Foreign(0x4848_4848))));
    }

    #[test]
    fn a_status_names_what_the_trailer_flagged() {
        let flags = ChunkFlags { truncated: true, error: false, crc: true, busy: true };
        assert_eq!(Status::of_flags(flags).0, Status::CARD_TRUNCATED | Status::CRC);
        assert!(Status::of_flags(ChunkFlags { busy: true, ..ChunkFlags::default() }).is_clean());
    }

    /// Writes a block of chunks of these lengths, a run among them, into pages of any size: by the
    /// run or one by one.
    fn pages_by(lengths: &[usize], room: usize, by_run: bool) -> Vec<(u32, Vec<u8>)> {
        let format = BlockFormat::phase2(1).unwrap();
        let block = &encode(format, &numbered(lengths))[0];
        let mut found_room = vec![Subchunk::default(); most_subchunks(format)];
        let (_, found) = parts(format, block, &mut found_room).unwrap();
        let single = |first: &Subchunk| ChunkRun { first: *first, count: 1, stride: 0 };
        let before = found.before.iter().map(single).chain(found.run);
        let (mut pages, mut page) = (Vec::new(), vec![0; room]);
        let mut writer = PageWriter::default();
        for mut left in before.chain(found.behind.iter().map(single)) {
            while left.count > 0 {
                let mut pushed =
                    if by_run { writer.push_run(&mut page, 9, block, &left) } else { 0 };
                let (range, status) = (left.first().range(), Status::default());
                let (begin, length) = (range.start, range.len());
                let chunk = PageChunk { source: block, begin, length, status };
                if pushed == 0 && writer.push(&mut page, 9, &chunk) {
                    pushed = 1;
                }
                if pushed == 0 {
                    pages.push((writer.count(), page[..writer.used()].to_vec()));
                    writer = PageWriter::default();
                }
                left = left.skip(pushed);
            }
        }
        pages.push((writer.count(), page[..writer.used()].to_vec()));
        pages
    }

    proptest! {
        #[test]
        fn a_run_makes_the_pages_of_its_chunks_one_by_one(
            lengths in prop::collection::vec(prop_oneof![Just(24_usize), Just(26), 0..100_usize], 1..40), room in 1100..3000_usize,
        ) {
            prop_assert_eq!(pages_by(&lengths, room, true), pages_by(&lengths, room, false));
        }

        #[test]
        fn messages_that_are_taken_as_alike_are_those_one_by_one(
            messages in prop::collection::vec((0..2_u64, 0..2_u8, prop_oneof![Just(24_usize), 0..30_usize]), 1..60), most in 1..40_usize,
        ) {
            let owned: Vec<Owned> = messages.iter().map(|(tag, status, length)| (*tag, *status, vec![7; *length])).collect();
            let (page, _) = write(&owned, 4096);
            let wanted = read(&page);
            let (mut found, mut left) = (Vec::new(), Messages::new(&page));
            while let Some(message) = left.next() {
                let message = message.unwrap();
                found.push((message.tag, message.status.0, message.payload.to_vec()));
                let length = message.payload.len();
                let (count, bytes) = left.take_alike(most);
                prop_assert!(count <= most && bytes.starts_with(message.payload));
                for at in 1..=count {
                    found.push((message.tag, 0, bytes[at * (length + 4)..][..length].to_vec()));
                }
            }
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn what_fits_is_read_back(
            messages in proptest::collection::vec((0..3_u64, 0..3_u8, proptest::collection::vec(any::<u8>(), 0..60)), 0..60),
            room in 0..1500_usize,
        ) {
            let (page, fitted) = write(&messages, room);
            prop_assert_eq!(read(&page), &messages[..fitted]);
        }
    }
}
