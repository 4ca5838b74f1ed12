//! Reads any bytes as files of the study's benchmarks, without a panic. Parsed files can be written
//! and read again with an equal result.
#![no_main]

use std::path::Path;

use daqmeter_record::{EngineInfo, RunRecord, Workload};
use daqmeter_report::copy_imported::StudyFile;
use daqmeter_report::{copy, copy_classic};
use libfuzzer_sys::fuzz_target;

fn template(engine: &str) -> RunRecord {
    let info = EngineInfo { name: engine.into(), ..EngineInfo::default() };
    let workload = Workload::new(engine).with("context", "cpu");
    RunRecord::new(info, workload)
}

fn read(name: &str, engine: &str, text: &str) -> Option<Vec<RunRecord>> {
    let file = StudyFile::of(Path::new(name)).expect("a name of the study");
    match file.records(text, &template(engine)) {
        Ok(records) => {
            assert!(!records.is_empty());
            Some(records)
        }
        Err(problem) => {
            assert!(!problem.is_empty());
            None
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Some(records) = read("micro-benchmark_to_nc_1.dat", "copy", &text) {
        let _ = copy::latency(&records).text(None);
        for (name, text) in copy_classic::latency(&records) {
            if name.ends_with(".dat") && !name.contains("_synth") {
                let again = read(&name, "copy", &text).expect("what was written");
                assert_eq!(again.len(), records.len());
            }
        }
    }
    if let Some(records) = read("measures_from_to.dat", "copy", &text) {
        let _ = copy::bandwidth(&records).text(None);
        for (name, text) in copy_classic::bandwidth(&records) {
            if name.ends_with(".dat") {
                let again = read(&name, "copy", &text).expect("what was written");
                assert_eq!(again.len(), records.len());
            }
        }
    }
    if let Some(records) = read("measure_x.dat", "pollution", &text) {
        let _ = copy::pollution(&records).text(None);
        let _ = copy_classic::pollution(&records, "x");
    }
});
