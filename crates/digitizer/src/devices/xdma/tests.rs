//! Tests of a streaming device through the whole engine: in memory, as a plain file, and behind
//! FUSE.

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_record::{Outcome, RunRecord, Workload};

use super::*;
use crate::DigitizerRequest;
use crate::devices::board::pattern_sample;

fn run(device: &str, workload: Workload) -> RunRecord {
    let workload = workload.with("devices", device).with("samples", 100_003_u64);
    let settings = Settings::new(StepPlan::ByStage(2), "test");
    let context = Context::default();
    let job = DigitizerRequest::of(&workload).unwrap().job().unwrap();
    measure(&job, &settings, &context, &[], &mut []).unwrap()
}

fn digitizer() -> Workload {
    Workload::new("digitizer")
}

fn refusal(workload: Workload) -> String {
    let request = DigitizerRequest::of(&workload.with("devices", "emu:xdma0"));
    request.and_then(|request| request.job()?.open()).err().map(|fault| fault.0).unwrap_or_default()
}

#[test]
fn names_of_channels_belong_to_this_family() {
    for name in ["/dev/xdma0_c2h_0", "/tmp/x/xdma12_c2h_3", "stream:/dev/anything", "emu:xdma0"] {
        assert!(claims(name), "{name}");
    }
    for name in ["/dev/xdma0_h2c_0", "/dev/xdma0_user", "/dev/sis8300-4", "emu:l0", "emu:x"] {
        assert!(!claims(name), "{name}");
    }
}

#[test]
fn an_emulated_channel_verifies_every_function_and_fused_blocks() {
    let record = run("emu:xdma0", digitizer().with("function", 99_u64));
    assert_eq!(record.outcome, Outcome::Ok);
    assert!(record.engine.emulated);
    assert_eq!(record.lanes[0].stages.len(), 9);
    let fused = digitizer().with("function", 2_u64).with("dec_offset", 13_u64);
    let fused = fused.with("dec_factor", 3_u64).with("block_bytes", 4096_u64);
    assert_eq!(run("emu:xdma0", fused).outcome, Outcome::Ok);
}

#[test]
fn what_a_stream_cannot_do_is_refused_before_it_is_opened_for_work() {
    for (name, value, says) in
        [("access", 1_u64, "cannot be mapped: use -B 0"), ("function", 100, "cannot be written")]
    {
        let refused = refusal(digitizer().with(name, value));
        assert!(refused.contains(says), "{refused}");
    }
    let refused = refusal(digitizer().with("completion", "poll"));
    assert!(refused.contains("cannot be triggered"), "{refused}");
}

/// The data come from another file, so only the conversion can be compared.
#[test]
fn a_real_stream_says_in_its_record_what_could_not_be_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("xdma0_c2h_0");
    let samples = (0..100_016).flat_map(|index| pattern_sample(index + 7).to_le_bytes());
    std::fs::write(&path, samples.collect::<Vec<u8>>()).unwrap();
    for workload in [
        digitizer().with("function", 1_u64),
        digitizer().with("function", 1_u64).with("block_bytes", 4096_u64),
    ] {
        let record = run(path.to_str().unwrap(), workload);
        assert_eq!(record.outcome, Outcome::Ok, "{:?}", record.lanes[0].outcome);
        let said = record.warnings.join("\n");
        assert!(said.contains("only the device knows them"), "{said}");
    }
    std::fs::write(&path, vec![0xff; 200_032]).unwrap();
    let said = run(path.to_str().unwrap(), digitizer()).warnings.join(" ");
    assert!(said.contains("0xffff: is the card off the bus"), "{said}");
    std::fs::write(&path, [1; 1000]).unwrap();
    let record = run(path.to_str().unwrap(), digitizer());
    assert!(!record.outcome.is_ok(), "a short read is a loss");
}

/// Two names of one device were two boards: each took a part of the other's data.
#[test]
fn a_device_with_two_names_or_two_users_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [path, link] = ["xdma0_c2h_0", "xdma0_c2h_1"].map(|name| dir.path().join(name));
    std::fs::write(&path, [1; 1000]).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let [path, link] = [path, link].map(|path| path.to_str().unwrap().to_owned());
    let open = |name: &String| Channel::open(name, name);
    let first = open(&path).unwrap();
    for name in [&path, &link] {
        assert!(open(name).unwrap_err().0.contains("another program has this board"), "{name}");
    }
    drop(first);
    open(&link).unwrap();
}

/// A device without offsets, as a stream is: each read continues the previous one.
#[test]
fn a_device_without_offsets_is_read_on() {
    let record = run("stream:/dev/zero", digitizer().with("function", 4_u64));
    assert_eq!(record.outcome, Outcome::Ok, "{:?}", record.lanes[0].outcome);
}
