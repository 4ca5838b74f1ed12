//! Runs the checker on any file with any cuts: every byte belongs to a block or is reported as
//! skipped.
#![no_main]

use daqmeter_readout::check::{CheckOptions, Checker};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, Vec<u8>)| {
    let (level, cut, bytes) = input;
    let mut whole = vec![8, 0, 0xCE, 0xC0];
    whole.extend_from_slice(&bytes);
    let options = CheckOptions { level: level & 3, ..CheckOptions::default() };
    let mut checker = Checker::new(options);
    for part in whole.chunks(usize::from(cut).max(1)) {
        checker.take(part).unwrap();
    }
    let checked = checker.finish().unwrap();
    assert_eq!(
        checked.blocks * checked.block_bytes as u64 + checked.skipped_bytes,
        whole.len() as u64
    );
    let _ = (checked.fcheck_table(), checked.fdaqm_table("0-0"));
});
