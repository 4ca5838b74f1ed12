//! Starts on many hosts: labels, folders of records, and a time that hosts share.

use daqmeter_record::RunRecord;

use crate::common::Folder;
use crate::outputs::PLAN;

#[test]
fn each_host_has_a_file_in_the_folder_and_its_records_say_how_it_started() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    for label in ["rack3-n7", "rack3-n8", "rack3-n7"] {
        folder.done(&format!("run p.toml -q --records farm/ --label {label} --at +20ms"));
    }
    let records = |label: &str| -> Vec<RunRecord> {
        let text = folder.read(&format!("farm/{label}.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (first, second) = (records("rack3-n7"), records("rack3-n8"));
    assert_eq!(first.len(), 2 * second.len());
    for (records, label) in [(first, "rack3-n7"), (second, "rack3-n8")] {
        for record in records {
            let start = record.start.unwrap();
            assert!(start.asked_utc <= record.time_utc && start.late_ns < 60_000_000_000);
            assert_eq!(record.host.name, label);
        }
    }
}

#[test]
fn a_run_goes_on_with_the_file_of_its_host() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    let line = "run p.toml --records farm/ --label n1";
    folder.done(line);
    let before = folder.read("farm/n1.jsonl");
    folder.done(&format!("{line} --resume"));
    assert_eq!(folder.read("farm/n1.jsonl"), before);
}
