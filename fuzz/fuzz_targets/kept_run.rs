//! Checks folders of a kept run whose summary, index and blocks are any bytes: it ends, and never
//! calls one complete whose recorder did not end.
//! The first bytes are the length of the summary, the number of entries, and if those have right
//! sums.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use daqmeter_hostio::kept::{KeptBlock, KeptCheck, KeptRun};
use daqmeter_hostio::sum::sum;
use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("kept-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
});

const RUN: &str = r#"{"format":"daqmeter-run.v1","begun_utc":"","write":"cached","block_bytes":64,
    "streams":[{"name":"a","file":"a"},{"name":"b","file":"b","dtype":"<u2","shape":[32]}]"#;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[long, entries, is_sound], rest)) = bytes.split_first_chunk() else { return };
    let (summary, rest) = rest.split_at(rest.len().min(long.into()));
    let (index, blocks) = rest.split_at(rest.len().min(usize::from(entries) * KeptBlock::BYTES));
    let text = match summary.first() {
        Some(b'{') => summary.to_vec(),
        // A summary with other bytes at its end.
        _ => [RUN.as_bytes(), summary, b"}"].concat(),
    };
    let mut index = index.to_vec();
    for entry in index.chunks_exact_mut(KeptBlock::BYTES).filter(|_| is_sound & 1 == 1) {
        let (content, check) = entry.split_at_mut(48);
        check.copy_from_slice(&sum(content).to_le_bytes());
    }
    for (name, bytes) in
        [("run.json", &text[..]), ("index", &index), ("a.0000.dat", blocks), ("b.0000.npy", blocks)]
    {
        fs::write(FOLDER.join(name), bytes).unwrap();
    }
    let Ok(run) = KeptRun::read(&FOLDER) else { return };
    let Ok(check) = KeptCheck::open(&FOLDER) else { return };
    if let Ok(found) = check.all(&|| false) {
        assert!(!found.is_complete() || run.end.is_some());
    }
});
