//! Layouts of paths: whichever thread does what, every block comes once and with its bytes.

use daqmeter_path::{Path, PathRequest};

use super::{BLOCKS, HEAD, MEMORY, READ, fault, in_layout, ran, record, text};

#[test]
fn every_layout_carries_every_block_of_every_stage_and_its_bytes_are_compared() {
    let stages = [
        ("copy", ""),
        ("convert", "function = 2\ndec_factor = 3\ndec_offset = 1"),
        ("checksum", ""),
        ("tcp", ""),
        ("unix", ""),
        ("work", "time = \"2us\""),
    ];
    for (name, fields) in stages {
        let text =
            text(MEMORY, &[&format!("kind = \"{name}\"\n{fields}"), "kind = \"copy\""], READ);
        let second = if name == "copy" { "copy 2" } else { "copy" };
        for (layout, threads) in [
            ("fused".to_owned(), 1),
            ("fused x 3".to_owned(), 3),
            ("fused x 8".to_owned(), 8),
            (format!("[memory] [{name}, {second}, read] x 2"), 3),
            (format!("[memory, {name}] x 2 [{second}, read]"), 3),
            (format!("[memory] [{name}, {second}] x 3 [read]"), 5),
            (format!("[memory, {name}, {second}] [read]"), 2),
        ] {
            let record = ran(&in_layout(&text, &layout));
            let run = record.sections.path.unwrap();
            assert_eq!((run.blocks, run.verified_blocks), (BLOCKS, BLOCKS), "{name} {layout}");
            assert_eq!(run.payload_bytes, BLOCKS * 4096, "{name} {layout}");
            assert_eq!((run.layout, run.threads.len()), (layout, threads));
            let latency: u64 = run.latency.iter().map(|bucket| bucket.count).sum();
            assert_eq!(latency, BLOCKS, "each block once, from its source to its sink");
            assert_eq!(record.ledgers.len(), 1, "one for the source, however many take from it");
        }
    }
}

#[test]
fn each_source_is_shared_by_its_workers_and_boards_are_dealt_out() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let bytes: Vec<u8> = (0..44_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    std::fs::write(&data, bytes).unwrap();
    let file = format!("kind = \"file\"\npath = \"{}\"\ncached = true", data.display());
    let boards = "kind = \"digitizer\"\ndevices = [\"emu:l0..2\"]\nunpaced = true";
    for (source, workers, sources) in [
        (&file[..], 3, 1),
        ("kind = \"felix\"\nscenario = \"gbt\"\nspan = \"64KiB\"", 2, 1),
        ("kind = \"etherbone\"\naddress = \"loop/udp\"", 2, 1),
        (boards, 1, 3),
        (boards, 2, 3),
        (boards, 3, 3),
    ] {
        let layout = format!("fused x {workers}");
        let record = ran(&in_layout(&text(source, &[], READ), &layout));
        let run = record.sections.path.unwrap();
        assert_eq!(run.blocks, BLOCKS * sources, "{source}");
        let is_known = !source.contains("etherbone");
        assert_eq!(run.verified_blocks, if is_known { run.blocks } else { 0 }, "{source}");
        assert_eq!((run.threads.len(), record.ledgers.len() as u64), (workers, sources));
    }
}

#[test]
fn workers_keep_the_rate_of_the_source_together_and_lose_what_they_are_too_slow_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = in_layout(&text(MEMORY, &[], READ), "fused x 2");
    let paced = record(folder.path(), &file, |request| request.rate_hz = Some(1000.0));
    let run = paced.sections.path.unwrap();
    // Threads begin after their release; each for itself at this rate takes half of the time.
    assert!(run.wall_ns >= BLOCKS * 2 / 3 * 1_000_000, "{}", run.wall_ns);
    assert_eq!(run.blocks, BLOCKS);
    // Each block takes 2 ms, and one is due every 100 us; two wait in the buffers of the device.
    let file = in_layout(&text(MEMORY, &["kind = \"wait\"\ntime = \"2ms\""], READ), "fused");
    let lossy = record(folder.path(), &file, |request| {
        (request.rate_hz, request.lossy) = (Some(10_000.0), true);
    });
    let ledger = &lossy.ledgers[0];
    assert!(ledger.closes() && ledger.issued == BLOCKS, "{ledger}");
    assert!(ledger.losses["due when there was no room"] > 10, "{ledger}");
}

#[test]
fn a_thread_of_several_parts_tells_their_times() {
    let stage = "kind = \"work\"\ntime = \"500us\"";
    let record = ran(&in_layout(&text(MEMORY, &[stage], READ), "fused"));
    let run = record.sections.path.as_deref().unwrap();
    let thread = &run.threads[0];
    assert_eq!((thread.name.as_str(), thread.blocks), ("memory to read", BLOCKS));
    let within: Vec<_> = thread.within.iter().map(|one| (one.name.as_str(), one.element)).collect();
    assert_eq!(within, [("work", 1), ("read", 2)]);
    assert!(thread.within[0].ns > BLOCKS * 300_000, "{thread:?}");
    let resources = daqmeter_record::resources::resources(&record);
    let elements: Vec<usize> = resources[0].uses.keys().copied().collect();
    assert_eq!(elements, [0, 1, 2]);
}

#[test]
fn blocks_of_several_workers_come_to_one_sink_in_the_order_of_the_source() {
    // A sink fails for a block that comes behind a later one.
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let sink = format!("kind = \"file\"\npath = \"{}\"\nmax = \"1MiB\"", out.display());
    let text = text(MEMORY, &["kind = \"copy\""], &sink);
    for layout in ["[memory, copy] x 3 [file]", "[memory] [copy] x 3 [file]"] {
        let record = record(folder.path(), &in_layout(&text, layout), |_| {});
        assert!(record.outcome.is_ok(), "{}", fault(&record));
        assert_eq!(record.sections.path.unwrap().verified_blocks, BLOCKS);
    }
}

#[test]
fn a_worker_that_dies_ends_an_ordered_path_in_a_line_and_the_ledger_closes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, vec![7_u8; 64 << 10]).unwrap();
    let out = folder.path().join("out");
    let source = format!("kind = \"file\"\npath = \"{}\"\ncached = true", data.display());
    let stage = format!("kind = \"program\"\ncommand = [\"tee\", \"{}\"]", out.display());
    let text = text(&source, &[&stage], &format!("{READ}\nordered = true"));
    let text = in_layout(&text, "[file] x 2 [program] [read]");
    // The file becomes shorter in the middle of the run.
    let shortens = std::thread::spawn(move || {
        while std::fs::metadata(&out).map_or(0, |file| file.len()) < 20 * 4096 {
            std::thread::yield_now();
        }
        let file = std::fs::OpenOptions::new().write(true).open(data).unwrap();
        file.set_len(3 * 4096).unwrap();
    });
    let endless = |request: &mut PathRequest| request.blocks = None;
    let record = record(folder.path(), &text, endless);
    shortens.join().unwrap();
    let fault = fault(&record);
    assert!(!fault.is_empty() && !fault.contains('\n'), "{fault}");
    assert!(record.ledgers[0].closes(), "{}", record.ledgers[0]);
}

#[test]
fn auto_takes_the_fastest_of_what_it_tried_and_tries_nothing_that_others_see() {
    let record = ran(&in_layout(&text(MEMORY, &["kind = \"copy\""], READ), "auto"));
    let run = record.sections.path.unwrap();
    assert_eq!(run.layout, run.tried[0].layout);
    assert!(run.tried.is_sorted_by(|a, b| a.bytes_per_s >= b.bytes_per_s));
    assert!(run.tried.iter().any(|tried| tried.layout == "pipeline"), "{:?}", run.tried);
    let program = "kind = \"program\"\ncommand = [\"cat\"]";
    let record = ran(&in_layout(&text(MEMORY, &[program], READ), "auto"));
    let run = record.sections.path.unwrap();
    assert_eq!((run.layout.as_str(), run.tried.len()), ("pipeline", 0));
}

#[test]
fn a_layout_that_the_path_cannot_have_is_refused_with_the_reason() {
    let stages = ["kind = \"program\"\ncommand = [\"cat\"]", "kind = \"copy\""];
    let text = text(MEMORY, &stages, READ);
    for (layout, wanted) in [
        ("fussed", "is `fussed`; auto, pipeline, fused"),
        ("fused x", "auto, pipeline, fused"),
        ("fused x many", "auto, pipeline, fused"),
        ("[memory] x 2 copy", "auto, pipeline, fused"),
        ("fused x 0", "has 0 threads; 1 to 64"),
        ("fused x 65", "has 65 threads; 1 to 64"),
        ("fused", "a program needs a group of its own, such as [program]"),
        ("[memory] [program] x 2 [copy] [read]", "a program needs a group of its own"),
        ("[memory] [program] [copy]", "names memory, program, copy; each part once is wanted"),
        ("[memory] [copy, read]", "in this order: memory, program, copy, read"),
        ("[memory] [program] [copy] [copy, read]", "names memory, program, copy, copy, read;"),
        ("[memory] [program] [copie, read]", "names memory, program, copie, read;"),
        ("[memory] [program] [copy] x 2 [read] x 3", "has 3 threads behind 2"),
    ] {
        let error = Path::parse(&in_layout(&text, layout), "x.toml").unwrap_err().to_string();
        assert!(error.contains(wanted) && error.starts_with("x.toml: layout: "), "{error}");
    }
    let boards = "kind = \"digitizer\"\ndevices = [\"emu:l0..1\"]\nunpaced = true";
    let file = "kind = \"file\"\npath = \"out\"";
    let ordered = format!("{READ}\nordered = true");
    for (source, sink, wanted) in [
        (boards, READ, "has 3 threads for 2 boards"),
        (MEMORY, file, "give it a group of its own, [file]"),
        (MEMORY, &ordered, "read, which is ordered: give it a group of its own, [read]"),
    ] {
        let text = format!("{HEAD}[source]\n{source}\n[sink]\n{sink}\n");
        let error = Path::parse(&in_layout(&text, "fused x 3"), "x.toml").unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
