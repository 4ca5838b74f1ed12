//! Reads any bytes as trace records, kernel symbols and requests: no panic, and every record is
//! counted once.
#![no_main]

use daqmeter_copy::trace::Trace;
use daqmeter_copy::{CopyContext, CopyPath, CopyRequest, Direction};
use daqmeter_harness::Request as _;
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::uapi::TraceRecord;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let records: Vec<TraceRecord> = bytes.chunks_exact(72).map(TraceRecord::parse).collect();
    let mut trace = Trace::new(true);
    trace.add(&records);
    assert_eq!(trace.calls(), records.len() as u64);
    assert_eq!(
        trace.classic().values().map(|file| file.lines().count()).sum::<usize>(),
        records.len()
    );
    let text = String::from_utf8_lossy(bytes);
    let names = KernelSymbols::parse(&text);
    for record in &records {
        assert!(!names.name(record.caller).is_empty());
    }
    assert!(trace.ranked(&names, 5).iter().all(|(_, rows)| rows.len() <= 5));
    if let [direction, context, rest @ ..] = bytes {
        let directions = [Direction::From, Direction::To, Direction::Both];
        let contexts =
            [CopyContext::Cpu, CopyContext::Exclusive, CopyContext::Shared, CopyContext::Priority];
        let direction = directions[usize::from(*direction) % directions.len()];
        let mut request = CopyRequest::new(CopyPath::Pread, direction, rest.len());
        request.context = contexts[usize::from(*context) % contexts.len()];
        request.quantum_ns = rest.iter().map(|byte| u64::from(*byte)).sum();
        if let Ok(again) = CopyRequest::of(&request.workload()) {
            assert_eq!(again.block_bytes, rest.len());
        }
    }
});
