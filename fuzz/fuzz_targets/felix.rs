//! Decodes any bytes as blocks of every format: no panic, and all chunks lie inside the block.
#![no_main]

use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::payload::{EmulatorHeader, Ttc};
use daqmeter_wire::felix::{BlockFormat, Reassembler, Subchunk, subchunks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (which, bytes) = input;
    let format = match which & 3 {
        0 => BlockFormat::PHASE1,
        1 => BlockFormat::phase1_wide(1).unwrap(),
        2 => BlockFormat::phase2(1).unwrap(),
        _ => BlockFormat::phase2(2).unwrap(),
    };
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    let mut reassembler = Reassembler::new();
    let mut block = vec![0; format.block_bytes];
    block[2..4].copy_from_slice(&format.magic.to_le_bytes());
    for part in bytes.chunks(format.block_bytes) {
        // The end of a block is read first: short parts are put there.
        let at = format.block_bytes - part.len();
        block[at.max(4)..].copy_from_slice(&part[part.len() - (format.block_bytes - at.max(4))..]);
        match subchunks(format, &block, &mut room) {
            Ok((header, found)) => {
                reassembler.begin(header);
                let found = found.iter().enumerate();
                for part in found.filter_map(|(at, one)| reassembler.part(one, at == 0)) {
                    let payload = &block[part.begin..part.begin + part.length];
                    EmulatorHeader::is_in(payload);
                    if let Some(ttc) = Ttc::parse(payload) {
                        assert_eq!(
                            Ttc::parse(&ttc.emit()[..payload.len()]).map(|again| again.l1id),
                            Some(ttc.l1id)
                        );
                    }
                }
            }
            Err(_) => reassembler.bad_block(),
        }
    }
});
