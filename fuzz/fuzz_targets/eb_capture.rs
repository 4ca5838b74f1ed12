//! Reads any bytes as a capture and as datagrams between two ends: no panic, and a cycle with a
//! round trip has all its answers.
#![no_main]

use std::net::SocketAddr;

use daqmeter_etherbone::decode::Decoder;
use daqmeter_wire::capture::{Capture, Datagram};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::default();
    let (mut capture, mut rest) = (Capture::default(), bytes);
    while let Some((head, after)) = rest.split_first_chunk()
        && let Ok(bytes) = capture.body_bytes(head)
        && let Some((_, later)) = after.split_at_checked(bytes)
        && let Ok(packet) = capture.packet(&rest[..rest.len() - later.len()])
    {
        if let Some(packet) = packet
            && let Some(datagram) = packet.datagram()
        {
            let _ = decoder.datagram(packet.time_ns, &datagram);
        }
        rest = later;
    }
    // Datagrams of the two ends, each after its direction and its length.
    let ends: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
    let mut rest = bytes;
    while let [way, length, after @ ..] = rest {
        let (payload, later) = after.split_at(after.len().min(usize::from(*length)));
        let way = usize::from(way & 1);
        let _ = decoder.datagram(1, &Datagram { from: ends[way], to: ends[1 - way], payload });
        rest = later;
    }
    decoder.finish();
    for cycle in &decoder.ended {
        assert!(cycle.round_trip_ns.is_none() || cycle.ops.iter().all(|op| op.is_done));
        decoder.name(cycle.ends[1], cycle.ops.first().map_or(0, |op| op.op.address));
    }
});
