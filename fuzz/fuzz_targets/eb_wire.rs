//! Reads any bytes by every view of the Etherbone format: no panic, and parsed bytes are emitted
//! again.
#![no_main]

use daqmeter_wire::etherbone::cycle::tag_of;
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbProbe, EbRecord, Lanes, Width, litex, sdb};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = EbHeader::parse(bytes) {
        assert_eq!(EbHeader::parse(&header.emit()), Ok(header));
        if let Ok(layout) = header.layout() {
            walk(layout, bytes.get(layout.header_bytes()..).unwrap_or_default());
        }
    }
    if let Ok(probe) = EbProbe::parse(bytes) {
        assert_eq!(EbProbe::parse(&probe.emit()).map(|again| again.id), Ok(probe.id));
    }
    for layout in EbLayout::all() {
        walk(layout, bytes);
    }
    litex::recognise(bytes);
    litex::answer_probe(bytes);
    if let Ok((record, rest)) = litex::split(bytes) {
        assert!(rest.len() < bytes.len());
        assert_eq!(
            record.read_block().map_or(0, |(_, values)| values.count()),
            usize::from(record.header.reads)
        );
    }
    for record in bytes.as_chunks::<{ sdb::RECORD_BYTES }>().0 {
        if let Ok(parsed) = sdb::SdbRecord::parse(record) {
            assert_eq!(sdb::SdbRecord::parse(&parsed.emit()), Ok(parsed));
        }
    }
});

fn walk(layout: EbLayout, bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok((record, after)) = EbRecord::split(layout, rest) {
        assert!(after.len() < rest.len());
        rest = after;
        if let Some((base, values)) = record.write_block() {
            tag_of(base);
            assert_eq!(values.count(), usize::from(record.header.writes));
        }
        for port in Width::ALL {
            if let Ok(lanes) = Lanes::of_select(record.header.select, port) {
                assert_eq!(lanes.select(), record.header.select);
            }
        }
    }
}
