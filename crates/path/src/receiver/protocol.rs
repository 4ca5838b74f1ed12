//! Messages between sender and receiver of blocks, without the sockets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use daqmeter_record::border::{MAX_WHOLE, from_peer};
use daqmeter_record::units::show_bytes;
use serde::{Deserialize, Serialize};

use daqmeter_hostio::sum::sum;

pub(crate) const MAX_BLOCK_BYTES: usize = 256 << 20;
/// Maximum number of senders served at once.
pub(crate) const MAX_SENDERS: usize = 16;
/// Time in which a peer answers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Most threads of a source, each of which is a stream.
pub(crate) const MAX_STREAMS: usize = 64;

/// First message of a sender, and the answer of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathHello {
    /// End of the sender or the receiver, if blocks go over UDP.
    pub(crate) udp: Option<UdpEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UdpEnd {
    pub(crate) port: u16,
    /// Size of the receiver's socket buffer: asked for by the sender, granted by the receiver.
    pub(crate) socket_buffer_bytes: u64,
}

/// Head of a block: little-endian numbers of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHead {
    pub stream: u64,
    pub events: u64,
    pub sum: Option<u64>,
}

impl BlockHead {
    pub const BYTES: usize = 32;

    pub fn emit(self) -> [u8; BlockHead::BYTES] {
        let fields =
            [self.stream, self.events, self.sum.is_some().into(), self.sum.unwrap_or_default()];
        let mut out = [0; BlockHead::BYTES];
        out.as_chunks_mut().0.copy_from_slice(&fields.map(u64::to_le_bytes));
        out
    }

    /// Splits the head from its block. Fails for too few bytes, or for a block, stream or number
    /// beyond a path's limits.
    pub fn parse(bytes: &[u8]) -> Result<(BlockHead, &[u8]), String> {
        let (head, block) =
            bytes.split_first_chunk::<{ BlockHead::BYTES }>().ok_or("a block without its head")?;
        let fields = head.as_chunks::<8>().0;
        let [stream, events, is_known, sum] =
            std::array::from_fn(|at| u64::from_le_bytes(fields[at]));
        if block.len() > MAX_BLOCK_BYTES {
            let bytes = block.len();
            return Err(format!("a block of {bytes} bytes; {MAX_BLOCK_BYTES} is the most"));
        }
        if stream >= MAX_STREAMS as u64 {
            return Err(format!("stream {stream}; there are {MAX_STREAMS} at most"));
        }
        if events > MAX_WHOLE {
            return Err(format!("{events} events of a block; {MAX_WHOLE} is the most"));
        }
        Ok((BlockHead { stream, events, sum: (is_known == 1).then_some(sum) }, block))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfStream {
    pub(crate) blocks: u64,
    pub(crate) events: u64,
}

/// Blocks that came, or that were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverReport {
    pub bytes: u64,
    /// Blocks whose bytes were known beforehand and correct.
    pub verified: u64,
    /// Blocks whose bytes were known beforehand and wrong.
    pub wrong: u64,
    /// Datagrams that belonged to no block: duplicates, or out of order.
    pub strays: u64,
    streams: Vec<OfStream>,
}

/// Counts of this process's receivers for other threads: blocks, bytes, blocks with wrong bytes,
/// stray datagrams, blocks of which datagrams were lost.
pub static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

pub(crate) fn count(at: usize, more: u64) {
    COUNTS[at].fetch_add(more, Ordering::Relaxed);
}

impl ReceiverReport {
    pub fn blocks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.blocks).sum()
    }

    pub(crate) fn stream(&self, at: usize) -> OfStream {
        self.streams.get(at).copied().unwrap_or_default()
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

    pub(crate) fn book(&mut self, head: &BlockHead, bytes: usize, found: Option<u64>) {
        let stream = usize::try_from(head.stream).expect("at most 64 streams");
        if self.streams.len() <= stream {
            self.streams.resize(stream + 1, OfStream::default());
        }
        let stream = &mut self.streams[stream];
        stream.blocks += 1;
        stream.events = stream.events.saturating_add(head.events);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if let Some((wanted, found)) = head.sum.zip(found) {
            self.verified += u64::from(wanted == found);
            self.wrong += u64::from(wanted != found);
        }
    }

    /// Books a block that came behind its head. Fails if the head is invalid.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (head, block) = BlockHead::parse(bytes)?;
        let wrong = self.wrong;
        self.book(&head, block.len(), head.sum.map(|_| sum(block)));
        let more = [1, block.len() as u64, self.wrong - wrong];
        more.into_iter().enumerate().for_each(|(at, more)| count(at, more));
        Ok(())
    }

    /// Reads the report of a peer. Fails for numbers that no run reaches, or that do not agree.
    pub fn parse(bytes: &[u8]) -> Result<ReceiverReport, String> {
        let came: ReceiverReport = from_peer(bytes, &[])?;
        let streams = came.streams.len();
        if streams > MAX_STREAMS {
            return Err(format!("{streams} streams; there are {MAX_STREAMS} at most"));
        }
        let (compared, blocks) = (came.verified + came.wrong, came.blocks());
        match compared <= blocks {
            true => Ok(came),
            false => Err(format!("{compared} blocks compared, of {blocks} that came")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(stream: u64, sum: Option<u64>, bytes: &[u8]) -> Vec<u8> {
        [&BlockHead { stream, events: 5, sum }.emit(), bytes].concat()
    }

    #[test]
    fn each_block_is_compared_if_its_sum_is_known_and_the_report_is_read_back() {
        let mut came = ReceiverReport::default();
        let right = sum(b"bytes");
        for sum in [Some(right), Some(right ^ 1), None] {
            came.receive(&block(3, sum, b"bytes")).unwrap();
        }
        assert_eq!((came.blocks(), came.verified, came.wrong, came.bytes), (3, 1, 1, 15));
        assert_eq!(came.stream(3), OfStream { blocks: 3, events: 15 });
        assert_eq!(came.stream(2), OfStream::default());
        assert_eq!(ReceiverReport::parse(&serde_json::to_vec(&came).unwrap()), Ok(came));
    }

    #[test]
    fn what_no_run_reaches_is_refused_with_its_name() {
        let report = |rest: &str| {
            let text = format!(r#"{{"bytes":0,"wrong":0,"strays":0,{rest}}}"#);
            ReceiverReport::parse(text.as_bytes()).unwrap_err()
        };
        let of_stream = format!(r#""verified":0,"streams":[{{"blocks":0,"events":{}}}]"#, u64::MAX);
        assert!(report(&of_stream).starts_with("streams[0].events is 18446744073709551615;"));
        let many = vec![r#"{"blocks":0,"events":0}"#; 65].join(",");
        let many = format!(r#""verified":0,"streams":[{many}]"#);
        assert_eq!(report(&many), "65 streams; there are 64 at most");
        assert_eq!(report(r#""verified":2,"streams":[]"#), "2 blocks compared, of 0 that came");
        let refused = |bytes: &[u8]| ReceiverReport::default().receive(bytes).unwrap_err();
        assert_eq!(refused(&block(64, None, b"")), "stream 64; there are 64 at most");
        assert_eq!(refused(&[0; 31]), "a block without its head");
        let events = BlockHead { events: u64::MAX, ..BlockHead::default() }.emit();
        assert!(refused(&events).starts_with("18446744073709551615 events of a block;"));
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
                let Ok((head, rest)) = BlockHead::parse(&bytes) else { continue };
                prop_assert!(head.stream < MAX_STREAMS as u64 && rest.len() + 32 == bytes.len());
                let again = head.emit();
                prop_assert_eq!(BlockHead::parse(&again), Ok((head, &[][..])));
            }
        }
    }
}
