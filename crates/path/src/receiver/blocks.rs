//! Accounts of received blocks, from a stream of bytes or from datagrams. Nothing here knows a
//! socket.

use super::protocol::{BlockHead, MAX_BLOCK_BYTES, ReceiverReport};
use crate::udp::Head;

/// Bytes of memory taken at a time beyond those that came.
const STEP_BYTES: usize = 4 << 20;

/// Takes all bytes that a sender sends over TCP, until its end mark. `read` fills its buffer. Fails
/// as `read` does, and for an invalid head.
pub fn of_stream(
    mut read: impl FnMut(&mut [u8]) -> Result<(), String>,
) -> Result<ReceiverReport, String> {
    let (mut came, mut block) = (ReceiverReport::default(), Vec::new());
    loop {
        let mut head = [0; BlockHead::BYTES];
        read(&mut head)?;
        let head = BlockHead::parse(&head)?;
        if head.bytes == 0 {
            return Ok(came);
        }
        let bytes = usize::try_from(head.bytes).map_err(|error| error.to_string())?;
        let mut have = 0;
        while have < bytes {
            let end = bytes.min(have + STEP_BYTES);
            if block.len() < end {
                block.resize(end, 0);
            }
            read(&mut block[have..end])?;
            have = end;
        }
        came.receive(&head, &block[..bytes]);
    }
}

/// Blocks that are put together of datagrams, if all of them come in order.
#[derive(Default)]
pub struct ReceivedDatagrams {
    came: ReceiverReport,
    /// Number of the block that is put together, and its bytes so far.
    now: Option<(u64, usize)>,
    /// Number of the block after the last whole one.
    behind_whole: u64,
    block: Vec<u8>,
}

impl ReceivedDatagrams {
    pub fn came(&self) -> &ReceiverReport {
        &self.came
    }

    pub(crate) fn has_last_of(&self, sent: u64) -> bool {
        self.behind_whole >= sent
    }

    /// Takes a datagram as it came; one without a head is left out. Fails for a block that is too
    /// long, or differs from its head.
    pub fn receive(&mut self, datagram: &[u8]) -> Result<(), String> {
        Head::parse(datagram).map_or(Ok(()), |(head, bytes)| self.take(head, bytes))
    }

    pub(crate) fn take(&mut self, head: Head, bytes: &[u8]) -> Result<(), String> {
        let Head { number, at, of } = head;
        let (at, of) = (at as usize, of as usize);
        if of > MAX_BLOCK_BYTES + BlockHead::BYTES {
            return Err(format!("a block of {of} bytes; {MAX_BLOCK_BYTES} is the most"));
        }
        // This is the first datagram of a block: missing ones before it are of lost blocks.
        if at == 0 && self.now.is_none_or(|(now, _)| number > now) {
            self.now = Some((number, 0));
            self.block.resize(of, 0);
        }
        let end = at.saturating_add(bytes.len());
        let is_next = self.now == Some((number, at)) && of == self.block.len() && end <= of;
        if !is_next || bytes.is_empty() {
            self.came.strays += 1;
            return Ok(());
        }
        self.block[at..end].copy_from_slice(bytes);
        self.now = Some((number, end));
        if end < of {
            return Ok(());
        }
        self.behind_whole = number.saturating_add(1);
        let head = BlockHead::parse(&self.block)?;
        let block = &self.block[BlockHead::BYTES..];
        if block.len() as u64 != head.bytes {
            return Err("a block of another length than its head says".to_owned());
        }
        self.came.receive(&head, block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sum::sum;

    fn sent(stream: u64, block: &[u8]) -> Vec<u8> {
        let head =
            BlockHead { bytes: block.len() as u64, stream, events: 1, sum: Some(sum(block)) };
        [&head.emit(), block].concat()
    }

    fn read(bytes: &[u8]) -> Result<ReceiverReport, String> {
        let mut rest = bytes;
        of_stream(|into| {
            let (taken, left) = rest.split_at_checked(into.len()).ok_or("it ended")?;
            into.copy_from_slice(taken);
            rest = left;
            Ok(())
        })
    }

    proptest! {
        #[test]
        fn each_block_of_a_stream_is_booked_and_a_changed_byte_is_found(
            blocks in proptest::collection::vec((0..64_u64, 1..300_usize), 0..12), changed: Option<u8>,
        ) {
            let mut bytes = Vec::new();
            for (stream, length) in &blocks {
                bytes.extend(sent(*stream, &vec![7; *length]));
            }
            let of_last = blocks.last().map_or(0, |(_, length)| *length);
            let mut wrong = 0;
            if let (Some(bits @ 1..), 1..) = (changed, of_last) {
                let at = bytes.len() - 1;
                bytes[at] ^= bits;
                wrong = 1;
            }
            bytes.extend(BlockHead::default().emit());
            let came = read(&bytes).unwrap();
            let all = blocks.len() as u64;
            prop_assert_eq!((came.blocks(), came.verified, came.wrong), (all, all - wrong, wrong));
            prop_assert!(read(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn a_head_that_promises_more_than_comes_takes_no_memory_for_it() {
        let head = BlockHead { bytes: MAX_BLOCK_BYTES as u64, ..BlockHead::default() };
        let mut asked = Vec::new();
        let refused = of_stream(|into| {
            asked.push(into.len());
            match asked.len() {
                1 => into.copy_from_slice(&head.emit()),
                _ => return Err("it ended".to_owned()),
            }
            Ok(())
        });
        assert_eq!((refused.is_err(), &asked[1..]), (true, &[STEP_BYTES][..]));
    }

    #[derive(Clone, Debug)]
    enum Trouble {
        Drop(usize),
        Twice(usize),
        Swap(usize, usize),
    }

    fn troubles() -> impl Strategy<Value = Vec<Trouble>> {
        let trouble = prop_oneof![
            (0..30_usize).prop_map(Trouble::Drop),
            (0..30_usize).prop_map(Trouble::Twice),
            (0..30_usize, 0..30_usize).prop_map(|(a, b)| Trouble::Swap(a, b)),
        ];
        proptest::collection::vec(trouble, 0..6)
    }

    proptest! {
        /// After any trouble a block that is booked has the bytes that were sent, and one whose
        /// datagrams all came in order is booked.
        #[test]
        fn no_block_is_put_together_wrongly(troubles in troubles()) {
            let mut datagrams: Vec<(Head, Vec<u8>)> = Vec::new();
            for number in 0..3 {
                let block = sent(number, &[u8::try_from(number).unwrap(); 161]);
                for (at, piece) in (0..).zip(block.chunks(21)) {
                    datagrams.push((Head { number, at: at * 21, of: 201 }, piece.to_vec()));
                }
            }
            let is_clean = troubles.is_empty();
            for trouble in troubles {
                let all = datagrams.len();
                match trouble {
                    Trouble::Drop(at) => drop(datagrams.remove(at % all)),
                    Trouble::Twice(at) => datagrams.insert(at % all, datagrams[at % all].clone()),
                    Trouble::Swap(a, b) => datagrams.swap(a % all, b % all),
                }
            }
            let mut received = ReceivedDatagrams::default();
            for (head, bytes) in datagrams {
                received.take(head, &bytes).unwrap();
            }
            let came = received.came();
            prop_assert_eq!((came.wrong, came.verified), (0, came.blocks()));
            prop_assert!(!is_clean || came.blocks() == 3);
        }
    }
}
