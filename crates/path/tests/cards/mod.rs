//! Cards that are read out live, as paths and by the engine of `readout`.

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::Path;

use super::{BLOCKS, fault, ran, record, text};

pub(super) fn live(stages: &[&str], sink: &str) -> String {
    text("kind = \"card\"\nscenario = \"gbt\"", stages, sink)
        .replace("4KiB", "1KiB")
        .replace("buffers = 2\n", "")
}

pub(super) const TO_HOST: &str = "kind = \"to-host\"";
pub(super) const RECEIVER: &str = "kind = \"receiver\"";

#[test]
fn a_card_is_read_out_live_and_each_e_link_s_ledger_closes_from_trigger_to_receiver() {
    let record = ran(&live(&[TO_HOST, "kind = \"tcp\""], RECEIVER));
    assert!(record.engine.emulated);
    // 24 E-links, each of which has a chunk for each trigger.
    assert_eq!(record.ledgers.len(), 24);
    for ledger in &record.ledgers {
        assert!(ledger.unit.starts_with("triggers of E-link 0x"), "{ledger}");
        assert_eq!((ledger.issued, ledger.delivered), (BLOCKS, BLOCKS));
    }
    let run = record.sections.path.as_deref().unwrap();
    assert_eq!(run.events, 24 * BLOCKS);
    assert!(run.blocks > 0 && run.verified_blocks == run.blocks);
    assert_eq!(run.payload_bytes, run.blocks * 1024);
    assert!(run.latency_max_ns > 0 && run.is_paced && run.asked_bytes_per_s.is_some());
    assert_eq!(record.counter("triggers"), Some(BLOCKS as f64));
    assert_eq!(record.counter("dead-time"), Some(0.0));
    let threads: Vec<_> = run.threads.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(threads, ["to-host", "receiver"]);
    // A thread that sleeps between two looks waits for input, and works on nothing.
    assert!(run.threads.iter().all(|thread| thread.elsewhere_ns == 0));
    assert_eq!(run.layout, "pipeline");
}

fn fused(text: &str) -> String {
    text.replace("\"pipeline\"", "\"fused\"")
}

#[test]
fn a_fused_card_has_one_thread_for_each_channel_and_the_same_accounts() {
    let record = ran(&fused(&card("channels = 2\npayload_bytes = 16\npoll_us = 50")));
    assert_eq!(record.ledgers.len(), 48);
    for ledger in &record.ledgers {
        assert_eq!((ledger.issued, ledger.delivered), (BLOCKS, BLOCKS));
    }
    let run = record.sections.path.as_deref().unwrap();
    assert_eq!((run.events, run.layout.as_str()), (48 * BLOCKS, "fused x 2"));
    assert!(run.blocks > 0 && run.verified_blocks == run.blocks && run.latency_max_ns > 0);
    let threads: Vec<_> = run.threads.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(threads, ["to-host to receiver.0", "to-host to receiver.1"]);
    for thread in &run.threads {
        let [receiver] = &thread.within[..] else { panic!("{thread:?}") };
        assert_eq!((receiver.element, receiver.name.as_str()), (3, "receiver"));
        assert!((1..=thread.wall_ns).contains(&receiver.ns), "{thread:?}");
    }
    assert!(record.counter("receiver-cpu").is_some_and(|share| share > 0.0));
}

#[test]
fn a_fused_card_whose_pages_exceed_its_socket_loses_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("large.toml");
    for on_slow in ["block", "drop"] {
        let large = format!(
            "name = \"large\"\n[reader]\npage = \"2MiB\"\npages = 2\non_slow = \"{on_slow}\"\n"
        );
        std::fs::write(&scenario, large).unwrap();
        let text = fused(&card("")).replace("\"gbt\"", &format!("\"{}\"", scenario.display()));
        let record = record(folder.path(), &text, |request| {
            request.unpaced = true;
            request.blocks = Some(100_000);
        });
        assert!(record.outcome.is_ok(), "{:?}", fault(&record));
        let vetoed = record.counter("stopped-triggers").unwrap();
        for ledger in &record.ledgers {
            assert!(ledger.closes() && ledger.lost() as f64 == vetoed, "{ledger}");
        }
        assert!(record.sections.path.unwrap().payload_bytes > 16 << 20);
    }
}

#[test]
fn a_layout_that_a_card_cannot_have_is_refused_with_what_to_write() {
    let own_cpu = daqmeter_sys::affinity::allowed_cpus().unwrap()[0];
    let of = |layout: &str| card("channels = 2").replace("\"pipeline\"", &format!("\"{layout}\""));
    for (text, wanted) in [
        (of("fused x 3"), "fused x 3, but a card that is read out live is a pipeline, or fused"),
        (of("[card] [to-host, tcp, receiver]"), "but a card that is read out live is a pipeline"),
        (of("fused") + "threads = 1\n", "leave the number of receivers out"),
        (of("fused") + &format!("cpus = [{own_cpu}]\n"), "leave their CPUs out"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("path.toml");
        std::fs::write(&file, &text).unwrap();
        let refused = Path::load(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(refused.contains(wanted) && !refused.contains('\n'), "{refused}");
    }
}

pub(super) fn card(fields: &str) -> String {
    live(&[TO_HOST, "kind = \"tcp\""], RECEIVER)
        .replace("scenario = \"gbt\"", &format!("scenario = \"gbt\"\n{fields}"))
}

#[test]
fn several_channels_share_receivers_and_each_option_of_a_card_is_a_field() {
    let text = card("channels = 2\npayload_bytes = 16\npoll_us = 50");
    let record = ran(&format!("{text}threads = 1\n"));
    assert_eq!(record.lanes.len(), 2);
    assert_eq!(record.ledgers.len(), 48);
    let run = record.sections.path.unwrap();
    let threads: Vec<_> = run.threads.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(threads, ["to-host.0", "to-host.1", "receiver"]);
    let carried: u64 = record.lanes.iter().filter_map(|lane| lane.stages[0].carried_bytes).sum();
    assert_eq!(carried, run.payload_bytes);
    assert_eq!(run.events, 48 * BLOCKS);
}

#[test]
fn the_engine_readout_runs_a_path_and_keeps_its_own_account() {
    use daqmeter_path::ReadoutRequest;
    use daqmeter_path::readout::Receivers;
    use daqmeter_readout::Chosen;
    let request = ReadoutRequest {
        chosen: Chosen { rate_hz: Some(20e3), channels: Some(2), ..Chosen::default() },
        seconds: 0.02,
        receivers: Receivers { layout: "pipeline".parse().ok(), ..Receivers::default() },
        probe: true,
        ..ReadoutRequest::default()
    };
    let settings = Settings::new(StepPlan::ByStage(1), "test");
    let context = Context::default();
    let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap();
    assert!(record.outcome.is_ok(), "{:?}", fault(&record));
    assert_eq!(record.engine.name, "readout");
    let [ledger] = &record.ledgers[..] else {
        panic!("{:?}", record.ledgers);
    };
    assert_eq!(ledger.unit, "triggers x E-links");
    assert_eq!(ledger.issued as f64, 48.0 * record.counter("triggers").unwrap());
    for counter in ["dead-time", "reader-cpu-ppm", "receiver-cpu", "ring peak"] {
        assert!(record.counter(counter).is_some(), "{counter}");
    }
    let devices: Vec<&str> = record.lanes.iter().map(|lane| lane.device.as_str()).collect();
    assert_eq!(devices, ["gbt:0.0", "gbt:0.1"]);
    let run = record.sections.path.unwrap();
    assert_eq!(run.events, ledger.delivered);
    assert_eq!(run.threads.len(), 4);
    assert!(run.threads.iter().all(|thread| thread.busy_ns > 0));
}

#[test]
fn a_card_whose_ring_is_not_emptied_is_busy_and_its_triggers_are_booked() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("small.toml");
    // A ring that holds what comes in 2 ms, looked at every 20 ms.
    let small = "name = \"small\"\n[trigger]\nrate = \"200kHz\"\n[card]\nring = \"256KiB\"\n[reader]\npoll = \"20ms\"\n";
    std::fs::write(&scenario, small).unwrap();
    let path = card("").replace("\"gbt\"", &format!("\"{}\"", scenario.display()));
    for path in [path.clone(), fused(&path)] {
        let record = record(folder.path(), &path, |request| request.blocks = Some(50_000));
        assert!(record.outcome.is_ok(), "{:?}", fault(&record));
        assert!(record.counter("dead-time").is_some_and(|share| share > 0.0));
        let vetoed = record.counter("stopped-triggers").unwrap();
        assert!(vetoed > 0.0);
        for ledger in &record.ledgers {
            assert!(ledger.closes() && ledger.lost() as f64 == vetoed, "{ledger}");
        }
    }
}

#[test]
fn as_fast_as_it_goes_work_is_added_to_each_part_and_those_of_one_thread_are_told_apart() {
    const ADDED_NS: f64 = 1000.0;
    let folder = tempfile::tempdir().unwrap();
    let parts = [None, Some(0), Some(1), Some(2), Some(3)];
    for (slowed, is_fused) in parts.into_iter().flat_map(|part| [(part, false), (part, true)]) {
        let text = if is_fused { fused(&card("")) } else { card("") };
        let record = record(folder.path(), &text, |request| {
            request.unpaced = true;
            request.blocks = Some(20_000);
            request.slower.extend(slowed.map(|element| (element, ADDED_NS)));
        });
        assert!(record.outcome.is_ok(), "{:?}", fault(&record));
        assert!(record.ledgers.iter().all(|ledger| ledger.closes()));
        let run = record.sections.path.as_deref().unwrap();
        assert_eq!(run.verified_blocks, run.blocks);
        // A rate that no reader carries is none: a limit may be looked for.
        assert_eq!((run.is_paced, run.asked_bytes_per_s), (false, None));
        let (reader, receiver) = (&run.threads[0], run.threads.last().unwrap());
        let within: Vec<(usize, &str)> =
            reader.within.iter().map(|other| (other.element, other.name.as_str())).collect();
        assert_eq!(within[..2], [(0, "card"), (2, "tcp")]);
        assert_eq!(within.get(2), is_fused.then_some(&(3, "receiver")));
        // A part of a block is rounded down, and the CPU may be faster than when it was calibrated.
        let wanted_ns = run.blocks as f64 * ADDED_NS * 0.4;
        let took_ns = match slowed {
            None => continue,
            Some(0) => reader.within[0].ns,
            Some(2) => reader.within[1].ns,
            Some(3) if is_fused => reader.within[2].ns,
            Some(3) => receiver.cpu_ns,
            Some(_) => reader.cpu_ns,
        };
        assert!(took_ns as f64 >= wanted_ns, "{slowed:?}: {took_ns} of {wanted_ns}");
    }
}

#[test]
fn more_room_in_the_ring_is_looking_more_often() {
    let path = Path::load("felix-readout").unwrap();
    let more = path.with_more_buffers(8);
    assert_eq!(more.with, ["source.poll_us=12.5".parse().unwrap()]);
    assert_eq!(Path::load_with("felix-readout", &more.with), Ok(more));
    let names: Vec<String> = path.parts().into_iter().map(|part| part.name).collect();
    assert_eq!(names, ["card", "to-host", "tcp", "receiver"]);
}
