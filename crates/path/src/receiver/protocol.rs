//! Messages between sender and receiver of blocks, without the sockets.

use std::time::Duration;

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::units::show_bytes;

use crate::sum::sum;

/// Maximum number of senders served at once; the next one waits. Each may hold a block of 256 MiB.
pub(crate) const MAX_SENDERS: usize = 16;
/// Time in which a peer answers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const MAGIC: &[u8; 8] = b"daqpath1";
pub const MAX_BLOCK_BYTES: usize = 256 << 20;
/// Most threads of a source, each of which is a stream.
pub const MAX_STREAMS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTransport {
    /// A head and its block, one behind the other.
    Tcp,
    /// Both together, in datagrams.
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderHello {
    pub transport: BlockTransport,
    pub udp_port: u16,
    /// Size of the receiver's socket buffer for datagrams; zero for TCP.
    pub socket_buffer_bytes: u64,
}

impl SenderHello {
    pub const BYTES: usize = 32;

    pub fn emit(self) -> Vec<u8> {
        let transport = match self.transport {
            BlockTransport::Tcp => 0,
            BlockTransport::Udp => 1,
        };
        let fields =
            [u64::from_le_bytes(*MAGIC), transport, self.udp_port.into(), self.socket_buffer_bytes];
        words(&fields)
    }

    pub fn parse(bytes: &[u8; SenderHello::BYTES]) -> Option<SenderHello> {
        let [magic, transport, port, socket_buffer_bytes] = numbers(bytes)?;
        let transport = match transport {
            0 => BlockTransport::Tcp,
            1 => BlockTransport::Udp,
            _ => return None,
        };
        let is_ours = magic == u64::from_le_bytes(*MAGIC);
        is_ours.then_some(SenderHello {
            transport,
            udp_port: u16::try_from(port).ok()?,
            socket_buffer_bytes,
        })
    }
}

pub(crate) const WELCOME_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHead {
    /// Bytes of the block; zero at the end.
    pub bytes: u64,
    pub stream: u64,
    pub events: u64,
    pub sum: Option<u64>,
}

impl BlockHead {
    pub const BYTES: usize = 40;

    pub fn emit(self) -> [u8; BlockHead::BYTES] {
        let mut out = [0; BlockHead::BYTES];
        let sum = self.sum;
        let fields =
            [self.bytes, self.stream, self.events, u64::from(sum.is_some()), sum.unwrap_or(0)];
        for (place, field) in out.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *place = field.to_le_bytes();
        }
        out
    }

    /// Parses the head at the beginning of the bytes. Fails for too few bytes, or for a block,
    /// stream or number beyond a path's limits.
    pub fn parse(bytes: &[u8]) -> Result<BlockHead, String> {
        let fields = numbers(bytes).ok_or("a block without its head")?;
        let [bytes, stream, events, is_known, sum] = fields;
        if bytes > MAX_BLOCK_BYTES as u64 {
            return Err(format!("a block of {bytes} bytes; {MAX_BLOCK_BYTES} is the most"));
        }
        if stream >= MAX_STREAMS as u64 {
            return Err(format!("stream {stream}; there are {MAX_STREAMS} at most"));
        }
        Ok(BlockHead {
            bytes,
            stream,
            events: whole("events of a block", events)?,
            sum: (is_known == 1).then_some(sum),
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfStream {
    pub(crate) blocks: u64,
    pub(crate) events: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverReport {
    pub bytes: u64,
    /// Blocks whose bytes were known beforehand and correct.
    pub verified: u64,
    /// Blocks whose bytes were known beforehand and wrong.
    pub wrong: u64,
    /// Datagrams that belonged to no block: duplicates, or out of order.
    pub strays: u64,
    pub(crate) streams: [OfStream; MAX_STREAMS],
}

impl Default for ReceiverReport {
    fn default() -> ReceiverReport {
        ReceiverReport {
            bytes: 0,
            verified: 0,
            wrong: 0,
            strays: 0,
            streams: [OfStream::default(); MAX_STREAMS],
        }
    }
}

impl ReceiverReport {
    pub const BYTES: usize = 8 * (4 + 2 * MAX_STREAMS);

    pub fn blocks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.blocks).sum()
    }

    pub fn text(&self) -> String {
        let wrong = match self.wrong {
            0 => String::new(),
            wrong => format!(", {wrong} with other bytes than were sent"),
        };
        format!(
            "{} blocks, {}, the bytes of {} compared{wrong}",
            self.blocks(),
            show_bytes(self.bytes),
            self.verified + self.wrong
        )
    }

    pub(crate) fn book(&mut self, head: &BlockHead, found: Option<u64>) {
        let stream = usize::try_from(head.stream).unwrap_or(usize::MAX);
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.blocks += 1;
            stream.events = stream.events.saturating_add(head.events);
        }
        self.bytes = self.bytes.saturating_add(head.bytes);
        if let Some((wanted, found)) = head.sum.zip(found) {
            self.verified += u64::from(wanted == found);
            self.wrong += u64::from(wanted != found);
        }
    }

    pub(crate) fn receive(&mut self, head: &BlockHead, block: &[u8]) {
        self.book(head, head.sum.map(|_| sum(block)));
    }

    pub fn emit(&self) -> Vec<u8> {
        let mut fields = vec![self.bytes, self.verified, self.wrong, self.strays];
        fields.extend(self.streams.iter().flat_map(|one| [one.blocks, one.events]));
        words(&fields)
    }

    pub fn parse(bytes: &[u8; ReceiverReport::BYTES]) -> Result<ReceiverReport, String> {
        let fields = bytes.as_chunks::<8>().0;
        let mut fields = fields.iter().map(|field| u64::from_le_bytes(*field));
        let mut next = |name: &str| whole(name, fields.next().unwrap_or(0));
        let mut came = ReceiverReport {
            bytes: next("bytes")?,
            verified: next("verified")?,
            wrong: next("wrong")?,
            strays: next("strays")?,
            ..ReceiverReport::default()
        };
        for (at, stream) in came.streams.iter_mut().enumerate() {
            stream.blocks = next(&format!("blocks of stream {at}"))?;
            stream.events = next(&format!("events of stream {at}"))?;
        }
        let (compared, blocks) = (came.verified + came.wrong, came.blocks());
        match compared <= blocks {
            true => Ok(came),
            false => Err(format!("{compared} blocks compared, of {blocks} that came")),
        }
    }
}

/// Refuses a number of a peer that no run reaches, by its name.
pub(crate) fn whole(name: &str, number: u64) -> Result<u64, String> {
    match number <= MAX_WHOLE {
        true => Ok(number),
        false => Err(format!("{name} is {number}; the largest number taken is {MAX_WHOLE}")),
    }
}

pub(crate) fn words(fields: &[u64]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_le_bytes()).collect()
}

pub(crate) fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let fields = bytes.as_chunks::<8>().0.first_chunk::<N>()?;
    Some(fields.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_came_is_the_same_at_both_ends() {
        let mut came = ReceiverReport::default();
        let head = BlockHead { bytes: 4096, stream: 3, events: 5, sum: Some(7) };
        came.book(&head, Some(7));
        came.book(&head, Some(8));
        let unknown = BlockHead { sum: None, ..head };
        came.book(&unknown, None);
        let bytes = came.emit();
        let back = ReceiverReport::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(bytes.len(), ReceiverReport::BYTES);
        assert_eq!(back, came);
        assert_eq!((came.blocks(), came.verified, came.wrong), (3, 1, 1));
        assert_eq!((came.streams[3].events, came.bytes), (15, 3 * 4096));
        for head in [head, unknown] {
            assert_eq!(BlockHead::parse(&head.emit()), Ok(head));
        }
        let hello = SenderHello {
            transport: BlockTransport::Udp,
            udp_port: 5010,
            socket_buffer_bytes: 1 << 20,
        };
        let bytes = hello.emit();
        assert_eq!(SenderHello::parse(bytes.first_chunk().unwrap()), Some(hello));
    }

    #[test]
    fn what_no_run_reaches_is_refused_by_the_name_of_its_field() {
        let refused = |field: usize, number: u64| {
            let mut bytes = ReceiverReport::default().emit();
            bytes[field * 8..][..8].copy_from_slice(&number.to_le_bytes());
            ReceiverReport::parse(bytes.first_chunk().unwrap()).unwrap_err()
        };
        for (field, name) in [
            (0, "bytes"),
            (3, "strays"),
            (4, "blocks of stream 0"),
            (ReceiverReport::BYTES / 8 - 1, "events of stream 63"),
        ] {
            for number in [u64::MAX, MAX_WHOLE + 1] {
                let line = refused(field, number);
                let wanted = format!("{name} is {number}; the largest number taken is");
                assert!(line.starts_with(&wanted), "{line}");
            }
        }
        assert_eq!(refused(1, 2), "2 blocks compared, of 0 that came");
    }

    proptest! {
        #[test]
        fn a_head_that_is_taken_is_within_bounds_and_sent_again_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..48), small: [u8; 3],
        ) {
            let mut near = bytes.clone();
            for (field, low) in near.chunks_mut(8).zip(small) {
                field.fill(0);
                field[0] = low;
            }
            for bytes in [bytes, near] {
                let Ok(head) = BlockHead::parse(&bytes) else { continue };
                prop_assert!(head.bytes <= MAX_BLOCK_BYTES as u64 && head.stream < MAX_STREAMS as u64);
                prop_assert_eq!(BlockHead::parse(&head.emit()), Ok(head));
            }
        }
    }
}
