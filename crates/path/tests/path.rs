//! Paths as a user has them: a file in, a record out. No hardware, no sleeping.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod cards;
mod layouts;
mod network;

use std::path::Path as FilePath;

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::{Path, PathRequest, SHIPPED_PATHS};
use daqmeter_record::RunRecord;
use proptest::prelude::*;

use cards::{RECEIVER, TO_HOST, card, live};

/// Blocks of each stream: a number and not a time, so that the result is independent of the host's
/// load.
const BLOCKS: u64 = 30;

fn record(folder: &FilePath, text: &str, change: impl FnOnce(&mut PathRequest)) -> RunRecord {
    let file = folder.join("path.toml");
    std::fs::write(&file, text).unwrap();
    let path = Path::load(file.to_str().unwrap()).unwrap();
    let mut request = PathRequest::new(&path, 60.0);
    request.blocks = Some(BLOCKS);
    change(&mut request);
    let settings = Settings::new(StepPlan::ByStage(1), "test");
    let context = Context::default();
    measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap()
}

fn ran(text: &str) -> RunRecord {
    let folder = tempfile::tempdir().unwrap();
    let record = record(folder.path(), text, |_| {});
    assert!(record.outcome.is_ok(), "{:?}: {text}", record.outcome);
    assert!(record.ledgers.iter().all(|ledger| ledger.closes()));
    record
}

fn fault(record: &RunRecord) -> String {
    let of_lanes = record.lanes.iter().filter_map(|lane| lane.outcome.reason());
    of_lanes.collect::<Vec<_>>().join("; ")
}

const HEAD: &str = "title = \"a test\"\nblock = \"4KiB\"\nbuffers = 2\nlayout = \"pipeline\"\n";

fn text(source: &str, stages: &[&str], sink: &str) -> String {
    let stages: String = stages.iter().map(|stage| format!("[[stage]]\n{stage}\n")).collect();
    format!("{HEAD}[source]\n{source}\n{stages}[sink]\n{sink}\n")
}

fn in_layout(text: &str, layout: &str) -> String {
    text.replace("layout = \"pipeline\"", &format!("layout = \"{layout}\""))
}

const MEMORY: &str = "kind = \"memory\"\nspan = \"64KiB\"";
const READ: &str = "kind = \"read\"";

#[test]
fn every_stage_carries_every_block_and_its_bytes_are_compared() {
    let stages = [
        "kind = \"copy\"",
        "kind = \"copy\"\nby = \"memcpy\"",
        "kind = \"checksum\"",
        "kind = \"convert\"\nfunction = 5",
        "kind = \"convert\"\nfunction = 2\ndec_factor = 3\ndec_offset = 1",
        "kind = \"tcp\"",
        "kind = \"unix\"",
        "kind = \"program\"\ncommand = [\"cat\"]",
        "kind = \"work\"\ntime = \"2us\"",
        "kind = \"wait\"\ntime = \"2us\"",
    ];
    for stage in stages {
        let record = ran(&text(MEMORY, &[stage], READ));
        let run = record.sections.path.unwrap();
        assert_eq!(run.blocks, BLOCKS, "{stage}");
        // The span has 16 blocks, all of which are known.
        assert_eq!(run.verified_blocks, run.blocks, "{stage}");
        assert_eq!(run.payload_bytes, run.blocks * 4096, "{stage}");
        assert_eq!(record.ledgers[0].delivered, run.blocks, "{stage}");
    }
}

#[test]
fn a_thread_that_waits_for_its_device_or_for_a_block_s_time_does_not_work() {
    // 30 blocks of which each waits 2 ms, and as many that are due every 3 ms.
    let stage = "kind = \"wait\"\ntime = \"2ms\"";
    let slow = ran(&text(MEMORY, &[stage], READ)).sections.path.unwrap();
    let wait = &slow.threads[1];
    assert!(wait.elsewhere_ns >= BLOCKS * 2_000_000, "{wait:?}");
    let folder = tempfile::tempdir().unwrap();
    let paced = text(MEMORY, &[], READ);
    let paced = record(folder.path(), &paced, |request| {
        request.rate_hz = Some(1000.0 / 3.0);
    });
    let source = &paced.sections.path.unwrap().threads[0];
    // The first is due at once.
    assert!(source.due_ns >= (BLOCKS - 2) * 2_000_000, "{source:?}");
    assert!(source.elsewhere_ns < source.due_ns, "{source:?}");
}

#[test]
fn a_run_says_what_its_resources_are() {
    let stages = ["kind = \"copy\"", "kind = \"unix\"", "kind = \"checksum\""];
    let text = text(MEMORY, &stages, READ);
    let record = ran(&in_layout(&text, "[memory] [copy] x 2 [unix] [checksum] [read]"));
    let resources = daqmeter_record::resources::resources(&record);
    let all: Vec<(String, f64)> =
        resources.iter().map(|resource| (resource.what.text(), resource.capacity)).collect();
    let of = |name: &str, capacity| (name.to_owned(), capacity);
    assert_eq!(
        all,
        [
            of("memory", 1.0),
            of("copy", 2.0),
            of("unix out", 1.0),
            of("unix in", 1.0),
            of("checksum", 1.0),
            of("read", 1.0),
            of("unix, between its ends", 1.0),
            of("all CPUs together", all[7].1)
        ]
    );
    // Less what a hypervisor took meanwhile.
    assert!(all[7].1 > 0.0 && all[7].1 <= record.sections.path.unwrap().cpus, "{all:?}");
}

#[test]
fn a_program_that_changes_the_bytes_is_counted_but_not_compared() {
    let stage = "kind = \"program\"\ncommand = [\"tr\", \"a-z\", \"A-Z\"]\nchanges = true";
    let record = ran(&text(MEMORY, &[stage], READ));
    assert_eq!(record.sections.path.unwrap().verified_blocks, 0);
    assert!(record.warnings.iter().any(|warning| warning.contains("no block's bytes")));
}

#[test]
fn a_file_is_replayed_converted_and_every_known_block_compared() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let bytes: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    std::fs::write(&data, bytes).unwrap();
    let source = format!("kind = \"file\"\npath = \"{}\"\ncached = true", data.display());
    let stages = ["kind = \"convert\"\nfunction = 4"];
    let record = record(folder.path(), &text(&source, &stages, READ), |_| {});
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    let run = record.sections.path.unwrap();
    assert!(run.blocks == BLOCKS && run.verified_blocks == BLOCKS);
}

#[test]
fn boards_are_streams_of_their_own_and_their_samples_compared() {
    let source = "kind = \"digitizer\"\ndevices = [\"emu:l0..1\"]\nunpaced = true";
    let stages = ["kind = \"convert\"\nfunction = 3"];
    let record = ran(&text(source, &stages, READ));
    assert!(record.engine.emulated);
    let units: Vec<&str> = record.ledgers.iter().map(|ledger| ledger.unit.as_str()).collect();
    assert_eq!(units, ["blocks of emu:l0", "blocks of emu:l1"]);
    let run = record.sections.path.unwrap();
    assert_eq!(run.threads.len(), 4);
    assert!(run.blocks == 2 * BLOCKS && run.verified_blocks == run.blocks);
}

#[test]
fn triggers_of_a_board_are_in_a_ledger_too() {
    let source = "kind = \"digitizer\"\ndevices = [\"emu:l0\"]\nunpaced = true\ntrigger = \"2kHz\"";
    let record = ran(&text(source, &[], READ).replace("4KiB", "6400B"));
    let triggers = record.ledgers.iter().find(|ledger| ledger.unit == "triggers");
    assert!(triggers.is_some_and(|ledger| ledger.closes() && ledger.delivered > 0));
    let run = record.sections.path.unwrap();
    assert_eq!(run.events, run.blocks);
    // Each acquisition has samples of its own.
    assert_eq!(run.verified_blocks, 0);
}

#[test]
fn blocks_of_a_card_are_decoded_and_their_subchunks_counted() {
    let source = "kind = \"felix\"\nscenario = \"gbt\"\nspan = \"64KiB\"";
    let record = ran(&text(source, &["kind = \"decode\""], READ));
    let run = record.sections.path.unwrap();
    assert!(run.events > run.blocks && run.verified_blocks == run.blocks);
}

#[test]
fn a_file_that_was_written_is_read_back_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = |direct: bool| {
        let sink = format!(
            "kind = \"file\"\npath = \"{}\"\nmax = \"32KiB\"\ndirect = {direct}",
            out.display()
        );
        record(folder.path(), &text(MEMORY, &[], &sink), |_| {})
    };
    for direct in [false, true] {
        let written = run(direct);
        let why = fault(&written);
        // Not every file system can write past the page cache.
        assert!(why.is_empty() || direct && why.contains("leave out `direct`"), "{why}");
        assert!(!why.is_empty() || written.sections.path.unwrap().verified_blocks > 0);
        assert!(!out.exists());
    }
    std::fs::write(&out, "mine").unwrap();
    let refused = fault(&run(false));
    assert!(refused.contains("exists"), "{refused}");
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
}

#[test]
fn times_of_a_timing_receiver_are_the_events_of_their_path() {
    let record = ran(&text("kind = \"etherbone\"\naddress = \"loop/udp\"", &[], READ));
    assert!(record.engine.emulated);
    let run = record.sections.path.unwrap();
    // 4 KiB hold 512 times, which are unknown beforehand.
    assert_eq!((run.blocks, run.events), (BLOCKS, 512 * BLOCKS));
    assert_eq!(run.verified_blocks, 0);
}

#[test]
fn a_device_that_vanishes_ends_the_path_in_a_line_and_what_came_is_kept() {
    use daqmeter_etherbone::bus::Description;
    use daqmeter_etherbone::{EbServer, ServerOptions, Slave};

    let bus = Description::timing_receiver().build().unwrap();
    let server = EbServer::bind(Slave::new(bus), ServerOptions::loopback()).unwrap();
    let port = server.port();
    let running = server.spawn(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let source = format!("kind = \"etherbone\"\naddress = \"tcp/127.0.0.1/{port}\"");
    let stage = format!("kind = \"program\"\ncommand = [\"tee\", \"{}\"]", out.display());
    // It goes in the middle of the run.
    let written = out.clone();
    let vanishes = std::thread::spawn(move || {
        let enough = 20 * 4096;
        while std::fs::metadata(&written).map_or(0, |file| file.len()) < enough {
            std::thread::yield_now();
        }
        drop(running);
    });
    let endless = |request: &mut PathRequest| request.blocks = None;
    let record = record(folder.path(), &text(&source, &[&stage], READ), endless);
    vanishes.join().unwrap();
    let fault = fault(&record);
    assert!(!fault.is_empty() && !fault.contains('\n'), "{fault}");
    let ledger = &record.ledgers[0];
    assert!(ledger.closes() && ledger.delivered > 0, "{ledger}");
    assert_eq!(record.sections.path.unwrap().blocks, ledger.delivered);
}

#[test]
fn more_threads_than_cpus_run_and_are_said() {
    let text = text(MEMORY, &["kind = \"copy\""], READ);
    let record = ran(&in_layout(&text, "[memory] [copy] x 64 [read]"));
    let threads = record.sections.path.unwrap().threads.len();
    let cpus = daqmeter_sys::available::cpus();
    let is_said = record.warnings.iter().any(|warning| warning.starts_with("66 threads share"));
    assert_eq!((threads, is_said), (66, cpus < 66.0));
}

#[test]
fn blocks_that_do_not_fit_into_memory_are_refused_before_anything_is_allocated() {
    let text = text(MEMORY, &["kind = \"copy\""], READ);
    let text = in_layout(&text, "[memory] [copy] x 64 [read]");
    let text = text.replace("\"4KiB\"", "\"256MiB\"").replace("buffers = 2", "buffers = 256");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("path.toml");
    std::fs::write(&file, text).unwrap();
    let path = Path::load(file.to_str().unwrap()).unwrap();
    let job = PathRequest::new(&path, 1.0).job().unwrap();
    // Two rows of 64 times 256 blocks of 256 MiB: 8 TiB.
    let needs = job.memory_bytes.unwrap();
    assert!(needs > 8 << 40, "{needs}");
    let error = daqmeter_harness::check_fits(Some(needs)).unwrap_err().0;
    assert!(error.contains("bytes of memory") && !error.contains('\n'), "{error}");
}

#[test]
fn a_stage_that_dies_in_the_middle_closes_the_ledger_and_says_so_in_a_line() {
    // `head` ends by itself in the middle of the run.
    let stage = "kind = \"program\"\ncommand = [\"head\", \"-c\", \"200000\"]";
    let endless = |request: &mut PathRequest| request.blocks = None;
    let folder = tempfile::tempdir().unwrap();
    let record = record(folder.path(), &text(MEMORY, &[stage], READ), endless);
    let fault = fault(&record);
    assert!(fault.contains("program") && fault.contains("head"), "{fault}");
    assert!(!fault.contains('\n'));
    let ledger = &record.ledgers[0];
    assert!(ledger.closes(), "{ledger}");
    // 200,000 bytes are 48 whole blocks.
    assert_eq!(ledger.delivered, 48, "{ledger}");
    assert!(ledger.losses["in the path when it failed"] > 0);
    assert_eq!(record.sections.path.unwrap().blocks, 48);
}

/// A process that a program had started held its pipe. The path hung, and the process was left
/// behind.
#[test]
fn what_a_program_leaves_behind_neither_holds_up_the_path_nor_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let line = format!("sleep 1000 & echo $! > {}; head -c 200000", pid.display());
    let stage = format!("kind = \"program\"\ncommand = [\"sh\", \"-c\", \"{line}\"]");
    let endless = |request: &mut PathRequest| request.blocks = None;
    let record = record(folder.path(), &text(MEMORY, &[&stage], READ), endless);
    let fault = fault(&record);
    assert!(fault.contains("it ended with exit status: 0"), "{fault}");
    assert_eq!(record.ledgers[0].delivered, 48, "{}", record.ledgers[0]);
    let pid = std::fs::read_to_string(pid).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    let is_there = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    let begin = std::time::Instant::now();
    while is_there() {
        assert!(begin.elapsed().as_secs() < 20, "it was left behind");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_that_a_stage_spoils_fail_the_run() {
    // Declared to return what it is given, but it does not.
    let stage = "kind = \"program\"\ncommand = [\"tr\", \"\\\\000-\\\\377\", \"x\"]";
    let folder = tempfile::tempdir().unwrap();
    let record = record(folder.path(), &text(MEMORY, &[stage], READ), |_| {});
    assert!(fault(&record).contains("wrong bytes"), "{}", fault(&record));
}

#[test]
fn a_slow_sink_holds_the_source_back_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let slow = |request: &mut PathRequest| {
        request.slower = vec![(1, 1e6)];
    };
    let record = record(folder.path(), &text(MEMORY, &[], READ), slow);
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    let run = record.sections.path.unwrap();
    assert_eq!(run.blocks, BLOCKS);
    // The sink has a millisecond of work for each block; the ring holds two.
    let source = &run.threads[0];
    assert!(source.output_ns > 20_000_000, "{source:?}");
    assert_eq!(record.ledgers[0].lost(), 0);
}

#[test]
fn at_a_rate_a_lossy_path_books_what_was_due_without_room() {
    let folder = tempfile::tempdir().unwrap();
    let flooded = |request: &mut PathRequest| {
        request.slower = vec![(1, 1e6)];
        request.rate_hz = Some(20e3);
        (request.seconds, request.blocks) = (0.03, None);
        request.lossy = true;
    };
    let record = record(folder.path(), &text(MEMORY, &[], READ), flooded);
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    let ledger = &record.ledgers[0];
    assert!(ledger.closes(), "{ledger}");
    assert!(ledger.losses["due when there was no room"] > 100, "{ledger}");
    // 20 kHz for 30 ms.
    assert_eq!(ledger.issued, 600);
}

#[test]
fn at_a_rate_latency_counts_from_the_time_at_which_a_block_was_due() {
    let folder = tempfile::tempdir().unwrap();
    let behind = |request: &mut PathRequest| {
        request.slower = vec![(1, 1e6)];
        request.rate_hz = Some(2e3);
        (request.seconds, request.blocks) = (0.03, None);
    };
    let record = record(folder.path(), &text(MEMORY, &[], READ), behind);
    let run = record.sections.path.unwrap();
    // 60 blocks in 30 ms, taken in 60 ms or more: the last is late by about as much as the path is
    // behind.
    assert_eq!(run.blocks, 60);
    assert!(run.is_paced && run.latency_max_ns > 20_000_000, "{}", run.latency_max_ns);
}

#[test]
fn each_thread_s_time_adds_up() {
    let run = ran(&text(MEMORY, &["kind = \"copy\""], READ)).sections.path.unwrap();
    for thread in &run.threads {
        let sum = thread.busy_ns + thread.input_ns + thread.output_ns + thread.elsewhere_ns;
        let sum = sum + thread.preempted_ns.unwrap_or(0);
        // Waits and CPU time are read one after the other.
        let difference = sum.abs_diff(thread.wall_ns) as f64 / thread.wall_ns as f64;
        assert!(difference < 0.05, "{thread:?}");
    }
    let taken: u64 = run.queues[0].seen.iter().sum();
    assert_eq!(taken, run.blocks);
}

#[test]
fn what_a_path_serves_is_in_its_record() {
    use daqmeter_record::path::Brings;
    let serves = |each: &str| {
        let serves = format!("[serves]\nwhat = \"boards\"\neach = \"{each}\"\n");
        let served =
            ran(&(text(MEMORY, &[], READ) + &serves)).sections.path.unwrap().served.unwrap();
        (served.name, served.each)
    };
    let boards = |each| ("boards".to_owned(), each);
    assert_eq!(serves("84MB/s"), boards(Brings::BytesPerS(84e6)));
    assert_eq!(serves("100kHz"), boards(Brings::EventsPerS(100e3)));
}

#[test]
fn shipped_paths_are_understood_and_run() {
    for name in SHIPPED_PATHS.names() {
        let path = Path::load(name).unwrap();
        let request = PathRequest::new(&path, 0.01);
        assert!(request.job().unwrap().open().is_ok(), "{name}");
    }
}

#[test]
fn a_path_is_drawn_before_anything_runs() {
    let pictures: Vec<String> =
        SHIPPED_PATHS.names().iter().map(|name| Path::load(name).unwrap().picture()).collect();
    insta::assert_snapshot!(pictures.join("\n---\n"));
}

/// A path's text, and what its refusal must hold.
#[test]
fn what_is_wrong_is_named_with_file_line_and_field() {
    let source = |source: &str| text(source, &[], READ);
    let stage = |stage: &str| text(MEMORY, &[stage], READ);
    let sink = |sink: &str| text(MEMORY, &[], sink);
    let read_out = |stages: &[&str]| live(stages, RECEIVER);
    let plain = sink(READ);
    let cases = [
        (
            source("kind = \"memroy\""),
            "a.toml: source: kind: unknown variant `memroy`, expected one of `memory`, `file`, `digitizer`, `etherbone`, `felix`, `card`; did you mean `memory`?",
        ),
        (source("span = \"1MiB\""), "a.toml: source: needs a `kind`"),
        (stage(TO_HOST), "a.toml: stage 1: kind: needs the source `card`"),
        (sink(RECEIVER), "a.toml: sink: kind: needs the source `card`"),
        (
            read_out(&["kind = \"checksum\""]),
            "stage 1: kind: a card is read out by `to-host`, then `tcp`",
        ),
        (
            read_out(&[TO_HOST, "kind = \"copy\""]),
            "stage 2: kind: a card is read out by `to-host`, then `tcp`",
        ),
        (
            read_out(&[TO_HOST]),
            "sink: kind: a card is read out by `to-host`, then `tcp`, then the sink `receiver`",
        ),
        (
            read_out(&[TO_HOST, "kind = \"tcp\"\ncpus = [0]"]),
            "stage 2: cpus: this part works in the threads of `to-host`: say it there",
        ),
        (
            read_out(&[TO_HOST, "kind = \"tcp\""]).replace("[source]", "buffers = 3\n[source]"),
            "buffers: a card that is read out has its scenario's ring and BUSY instead",
        ),
        (
            card("rate_hz = 10"),
            "a.toml: source: rate_hz: is the path's own field `rate`: say it there",
        ),
        (card("speed = 3"), "source: unknown field `speed`"),
        (format!("{}threads = 2\n", card("")), "sink: threads: is 2; 1 to 1 is wanted"),
        (
            source("kind = \"memory\"\nspam = 1"),
            "a.toml: source: spam: unknown field `spam`, expected `span`; did you mean `span`?",
        ),
        (source("kind = \"memory\"\nspan = \"1 stone\""), "a.toml: source: span:"),
        (
            stage("kind = \"copy\"\nby = \"memcopy\""),
            "a.toml: stage 1: by: unknown variant `memcopy`, expected one of `pread`",
        ),
        (stage("kind = \"copy\"\nby = \"pread\""), "`pread` does not copy between two blocks"),
        (
            stage("kind = \"convert\"\nfunction = 9"),
            "a.toml: stage 1: function: is 9; 1 to 8 is wanted",
        ),
        (
            text(
                MEMORY,
                &["kind = \"convert\"\nfunction = 5", "kind = \"convert\"\nfunction = 5"],
                READ,
            ),
            "stage 2: kind: takes samples, but converted samples come",
        ),
        (stage("kind = \"decode\""), "stage 1: scenario: needs the scenario"),
        // A path is a line: no part names its predecessor, so that there is no circle.
        (
            stage("kind = \"copy\"\nfrom = \"stage 2\""),
            "a.toml: stage 1: from: unknown field `from`, expected `by`",
        ),
        (
            text(
                "kind = \"etherbone\"\naddress = \"loop/udp\"",
                &["kind = \"decode\"\nscenario = \"gbt\""],
                READ,
            ),
            "stage 1: kind: takes FELIX blocks, but times come",
        ),
        (
            source("kind = \"etherbone\"\naddress = \"nowhere\""),
            "a.toml: source: address: `nowhere` has no protocol",
        ),
        (
            source("kind = \"etherbone\"\naddress = \"loop/udp\"\ncount = 7"),
            "a.toml: source: count: cycles of 7 times bring 56 bytes",
        ),
        (
            sink("kind = \"file\"\npath = \"x\"\ndirect = true").replace("\"4KiB\"", "\"64B\""),
            "a.toml: sink: direct: blocks of 64 bytes come; multiples of 4096 are wanted",
        ),
        (
            format!("{}[serves]\nwhat = \"boards\"\neach = \"many\"\n", plain),
            "a.toml: serves: each:",
        ),
        (
            stage("kind = \"work\"\ntime = \"2s\""),
            "a.toml: stage 1: time: is out of range; 1 ns to 1 s for each block is wanted",
        ),
        (stage("kind = \"wait\""), "a.toml: stage 1: missing field `time`"),
        (stage("kind = \"tcp\"\nthreads = 2"), "a.toml: stage 1: threads: unknown field `threads`"),
        (
            sink("kind = \"udp\"\nto = \"daq7:5010\"\ndatagram = \"64KiB\""),
            "a.toml: sink: datagram: is 65536; 64 to 65507 is wanted",
        ),
        (
            sink("kind = \"udp\"\nto = \"daq7:5010\"\nsocket_buffer = \"1GiB\""),
            "a.toml: sink: socket_buffer: is 1073741824; 4096 to 268435456",
        ),
        (sink("kind = \"tcp\"\nto = \"daq7\""), "a.toml: sink: to: a host and a port are wanted"),
        (sink("kind = \"udp\"\nto = \"daq7:0\""), "a.toml: sink: to: a host and a port are wanted"),
        (sink("kind = \"tcp\""), "a.toml: sink: missing field `to`"),
        (
            stage("kind = \"program\"\ncommand = []"),
            "command: a program and its arguments are wanted",
        ),
        (stage("kind = \"copy\"\ncpus = [99999]"), "cpus: is 99999: there is no such CPU"),
        (source("kind = \"felix\"\nscenario = \"gtb\""), "source: scenario:"),
        (
            source("kind = \"digitizer\"\ndevices = [\"emu:l0\", \"emu:l0\"]"),
            "devices: has `emu:l0` named twice",
        ),
        (text("kind = \"file\"\npath = \"x\"", &[], "kind = \"reed\""), "did you mean `read`?"),
        (format!("titel = \"x\"\n{}", plain), "a.toml: titel: unknown field `titel`"),
        (plain.replace("4KiB", "100B"), "block: is 100; whole cache lines"),
        (
            plain.replace("buffers = 2", "buffers = 0"),
            "a.toml: buffers: is 0; 1 to 65536 is wanted",
        ),
        (plain.replace("buffers = 2", "rate = \"fast\""), "a.toml: rate:"),
        ("title = ".to_owned(), "a.toml:1:"),
    ];
    for (text, wanted) in cases {
        let error = Path::parse(&text, "a.toml").unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}\n  wanted: {wanted}");
        assert!(!error.contains('\n'), "{error}");
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(kind in "[a-z]{0,8}", field in "[a-z_]{1,8}", value in "[ -~]{0,12}", at in 0..3_usize) {
        let part = format!("kind = \"{kind}\"\n{field} = {value}");
        let parts = [(part.as_str(), MEMORY, READ), (MEMORY, &part, READ), (MEMORY, "kind = \"copy\"", part.as_str())];
        let (source, stage, sink) = parts[at];
        // It is understood or refused in one line.
        if let Err(error) = Path::parse(&text(source, &[stage], sink), "a.toml") {
            let line = error.to_string();
            prop_assert!(line.starts_with("a.toml:") && !line.contains('\n'), "{}", line);
        }
    }
}
