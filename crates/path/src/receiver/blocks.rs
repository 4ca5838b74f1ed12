//! Accounts of received blocks, from a stream of bytes or from datagrams. Nothing here knows a
//! socket.

use super::protocol::{BlockHead, MAX_BLOCK_BYTES, ReceiverReport};
use crate::udp::{Assembly, Head, Step};

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

pub struct ReceivedDatagrams {
    came: ReceiverReport,
    /// Number of the block after the one that is put together.
    next: u64,
    /// Number of the block after the last whole one.
    behind_whole: u64,
    assembly: Assembly,
    block: Vec<u8>,
}

impl Default for ReceivedDatagrams {
    fn default() -> ReceivedDatagrams {
        ReceivedDatagrams {
            came: ReceiverReport::default(),
            next: 0,
            behind_whole: 0,
            assembly: Assembly::new(0),
            block: Vec::new(),
        }
    }
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
        let of = head.of as usize;
        if of > MAX_BLOCK_BYTES + BlockHead::BYTES {
            return Err(format!("a block of {of} bytes; {MAX_BLOCK_BYTES} is the most"));
        }
        // This is the first datagram of a block: missing ones before it are of lost blocks.
        if head.at == 0 && head.number >= self.next {
            self.next = head.number.saturating_add(1);
            self.assembly = Assembly::new(head.number);
            self.block.resize(of, 0);
        }
        match self.assembly.add(head, bytes, &mut self.block) {
            Step::Part => Ok(()),
            Step::Whole => self.is_whole(),
            // It is of a block without its beginning.
            Step::Later | Step::Stray => {
                self.came.strays += 1;
                Ok(())
            }
        }
    }

    fn is_whole(&mut self) -> Result<(), String> {
        self.behind_whole = self.next;
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
}
