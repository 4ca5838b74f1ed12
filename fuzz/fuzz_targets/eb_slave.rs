//! Runs the slave by datagrams and by a stream cut anywhere: no panic, answers are well-formed, the
//! next client is served.
#![no_main]

use daqmeter_etherbone::Slave;
use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::slave::Stream;
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbRecord, Widths};
use libfuzzer_sys::fuzz_target;

const PROBE: [u8; 8] = [0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1];

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (cut, bytes) = input;
    thread_local! {
        static SLAVE: std::cell::RefCell<Slave> =
            std::cell::RefCell::new(Slave::new(Description::timing_receiver().build().unwrap()));
    }
    SLAVE.with_borrow_mut(|slave| {
        let mut answer = Vec::new();
        slave.datagram(0, &bytes, &mut answer);
        check_answer(&bytes, &answer);
        let mut stream = Stream::default();
        answer.clear();
        let parts = bytes.chunks(usize::from(cut) + 1);
        let first = if cut & 1 == 1 { &PROBE[..] } else { &[] };
        let _ = std::iter::once(first)
            .chain(parts)
            .try_for_each(|part| stream.feed(slave, 0, part, &mut answer).map(drop));
        answer.clear();
        slave.datagram(0, &PROBE, &mut answer);
        assert_eq!(answer[..4], [0x4e, 0x6f, 0x16, 0xff]);
    });
});

fn check_answer(request: &[u8], answer: &[u8]) {
    if answer.is_empty() {
        return;
    }
    let header = EbHeader::parse(answer).expect("an answer begins with a header");
    assert!(!header.probe_request, "an answer asks nothing");
    if header.probe_response {
        return;
    }
    assert!(
        answer.len() <= request.len() + 4,
        "an answer is not longer than its request, but for a lone header"
    );
    if answer[2] == 0x14 {
        // The header of a request that offers several widths comes back unchanged.
        let widest = |widths: Widths| widths.widest().expect("a width");
        let layout = EbLayout { address: widest(header.address), data: widest(header.data) };
        let mut rest = answer.get(layout.header_bytes()..).expect("a whole header");
        while !rest.is_empty() {
            let (record, after) = EbRecord::split(layout, rest).expect("whole records");
            assert_eq!(record.header.reads, 0);
            rest = after;
        }
    }
}
