//! Sends any bytes to a receiver of blocks on another host: no panic, and only received data are
//! booked.
#![no_main]

use daqmeter_path::receiver::protocol::BlockHead;
use daqmeter_path::receiver::{ReceivedDatagrams, ReceiverReport};
use libfuzzer_sys::fuzz_target;

/// Place of the block's length in a datagram, and a bound that keeps runs quick: the receiver's own
/// is 256 MiB.
const OF_BYTES: std::ops::Range<usize> = 12..16;
const MAX_OF_BYTES: u32 = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let mut came = ReceiverReport::default();
    if let Ok((head, block)) = BlockHead::parse(bytes) {
        assert_eq!(BlockHead::parse(&head.emit()), Ok((head, &[][..])));
        came.receive(bytes).unwrap();
        assert_eq!((came.blocks(), came.bytes), (1, block.len() as u64));
    }
    if let Ok(came) = ReceiverReport::parse(bytes) {
        assert!(came.verified + came.wrong <= came.blocks());
    }
    datagrams(bytes);
});

fn datagrams(mut bytes: &[u8]) {
    let (mut blocks, mut received) = (ReceivedDatagrams::of_at_most(256 << 20), 0);
    while let Some((length, rest)) = bytes.split_first() {
        let (datagram, left) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = left;
        received += datagram.len() as u64;
        let mut datagram = datagram.to_vec();
        if let Some(of) = datagram.get_mut(OF_BYTES) {
            let short = u32::from_le_bytes([of[0], of[1], of[2], of[3]]) % MAX_OF_BYTES;
            of.copy_from_slice(&short.to_le_bytes());
        }
        if blocks.receive(&datagram).is_err() {
            break;
        }
    }
    let came = blocks.came;
    assert!(came.bytes <= received && came.verified + came.wrong <= came.blocks());
}
