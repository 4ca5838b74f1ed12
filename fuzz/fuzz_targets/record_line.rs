//! Reads any bytes as a file of records: no panic, and parsed records survive being written.
#![no_main]

use daqmeter_record::jsonl;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let contents = jsonl::read(bytes).expect("a slice can always be read");
    for record in contents.records {
        let line = jsonl::to_line(&record);
        let again = jsonl::parse_line(&line, 1).expect("what was written is a record");
        assert_eq!(jsonl::to_line(&again), line);
    }
});
