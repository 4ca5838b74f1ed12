//! Recorded files through the chain: all blocks arrive, and their own gaps are no loss of the
//! chain.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use daqmeter_readout::card::CardState;
use daqmeter_readout::check::{CheckOptions, Checker, check};
use daqmeter_readout::scenario::ReaderMode;
use daqmeter_readout::{Card, Chosen, Scenario, recording};

use crate::by_hand::{self, Done, Placement};

fn made(text: &str, triggers: u64) -> Vec<u8> {
    let text = format!("[card]\nlinks = 1\nring = \"8MiB\"\n{text}");
    let scenario = Scenario::parse(&text, "").unwrap();
    let mut bytes = Vec::new();
    recording::record(&scenario, triggers, |_, part| {
        bytes.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    bytes
}

fn chosen(file: &tempfile::NamedTempFile, bytes: &[u8]) -> Chosen {
    std::fs::write(file.path(), bytes).unwrap();
    Chosen {
        scenario: "gbt".to_owned(),
        replay: Some(file.path().to_str().unwrap().to_owned()),
        ..Chosen::default()
    }
}

fn run(chosen: &Chosen, triggers: Option<u64>) -> Done {
    let minute = Duration::from_secs(60);
    let (scenario, stop) = (chosen.load().unwrap(), AtomicBool::new(false));
    let done = by_hand::run(&scenario, &Placement::default(), minute, triggers, &stop).unwrap();
    for (tag, ledger) in &done.ledgers {
        assert!(ledger.closes(), "{tag:#x}: {ledger}");
    }
    assert!(done.closes());
    assert_eq!(done.ledger().lost_on_the_way(), 0, "{}", done.ledger());
    done
}

#[test]
fn a_good_file_arrives_whole_once_and_as_often_as_it_is_repeated() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for text in ["", "mode = \"full\"\npayload = \"3000B\"\n", "ttc = true\n"] {
        let bytes = made(text, 1000);
        let elinks = check(&bytes[..], &CheckOptions::default()).unwrap().rows.len() as u64;
        for mode in [ReaderMode::Buffered, ReaderMode::ZeroCopy] {
            for rate_hz in [Some(40e3), None] {
                let once = Chosen { mode: Some(mode), rate_hz, ..chosen(&file, &bytes) };
                let done = run(&once, None);
                assert_eq!((done.issued(), done.ledger().lost()), (1000, 0));
                assert_eq!(done.ledger().delivered, 1000 * elinks);
                let over = Chosen { replay_loop: true, ..once };
                let done = run(&over, Some(3000));
                assert_eq!(done.ledger().delivered, 3000 * elinks, "{text} {mode:?}");
                let (report, _) = &done.receivers[0];
                let bad = (report.faults().payload, report.bad_pages);
                assert_eq!(bad, (0, 0), "{text} {mode:?}");
                assert_eq!(done.readers[0].stats.missing_blocks, 0);
            }
        }
    }
}

#[test]
fn what_a_file_lacks_is_no_loss_of_the_chain() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (kind, reason) in [
        ("lost-block", "not in the recorded file"),
        ("corrupted-trailer", "not in the recorded file"),
        ("corrupted-magic", "not in the recorded file"),
        ("swapped-blocks", "not in the recorded file"),
        ("truncated", "truncated in the recorded file"),
        ("duplicated-block", ""),
    ] {
        let fault = format!("[[fault]]\nkind = \"{kind}\"\nelink = 8\nevery = 7\n");
        let chosen =
            Chosen { rate_hz: Some(100e3), replay_loop: true, ..chosen(&file, &made(&fault, 700)) };
        let done = run(&chosen, Some(2345));
        let (whole, turns) = (done.ledger(), 3);
        assert_eq!(done.lost(), 0, "{kind}: {whole}");
        if !reason.is_empty() {
            let lacking = whole.losses[reason];
            assert!(lacking >= turns * 4 && lacking < 2345, "{kind}: {whole}");
        }
        assert!(whole.losses["not complete at the end"] < 8 * 80, "{whole}");
    }
}

#[test]
fn a_file_that_begins_and_ends_inside_chunks_is_repeated_without_joining_them() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = made("mode = \"full\"\npayload = \"2500B\"\n", 300);
    for (from, to) in [(0, bytes.len()), (1, 1), (2 << 10, 5 << 10), (1000, 4321)] {
        let part = &bytes[from..bytes.len() - to % bytes.len()];
        let chosen = Chosen { rate_hz: Some(50e3), replay_loop: true, ..chosen(&file, part) };
        let done = run(&chosen, Some(1500));
        let (report, _) = &done.receivers[0];
        assert_eq!((report.faults().payload, report.bad_pages), (0, 0), "{from}");
        assert!(done.ledger().delivered > 1400, "{}", done.ledger());
    }
}

#[test]
fn the_ring_gets_the_bytes_of_the_file_and_numbers_go_on_over_its_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // A multiple of 256: the counters of events go on, too.
    let bytes = made("", 512);
    let chosen = Chosen { rate_hz: Some(1e6), replay_loop: true, ..chosen(&file, &bytes) };
    let (mut card, mut rings) = Card::new(&chosen.load().unwrap()).unwrap();
    card.source().end_after(5 * 512 + 77);
    card.start(0);
    let (mut now_ns, mut given) = (0, Vec::new());
    while card.state() == CardState::Running {
        now_ns += 50_000;
        card.advance(now_ns);
        let before = given.len();
        rings[0].spans(0).iter().for_each(|span| given.extend_from_slice(span));
        rings[0].release(given.len() - before);
    }
    assert!(given.len() > 5 * bytes.len());
    assert_eq!(&given[..bytes.len()], &bytes[..]);
    let mut checker = Checker::new(CheckOptions::default());
    checker.take(&given).unwrap();
    let checked = checker.finish().unwrap();
    assert!(checked.is_good(), "{:?} {:?}", checked.faults, checked.messages);
    let played = card.played().unwrap();
    assert_eq!((played.of, played.is_emulated), (bytes.len() as u64 / 1024, true));
}

#[test]
fn busy_stops_the_file_where_nobody_reads_and_flat_out_it_waits() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = made("", 20_000);
    for (rate_hz, is_stopped) in [(Some(1e6), true), (None, false)] {
        let chosen = Chosen { rate_hz, replay_loop: true, ..chosen(&file, &bytes) };
        let (mut card, rings) = Card::new(&chosen.load().unwrap()).unwrap();
        card.start(0);
        (1..=2000).for_each(|ms| card.advance(ms * 1_000_000));
        let dead = card.line().all(card.now_ns());
        assert_eq!(dead.vetoed > 0, is_stopped, "{rate_hz:?}");
        let (filled, ring) = (rings[0].filled(), rings[0].ring_bytes());
        assert!(filled >= ring / 2 && filled < ring, "{rate_hz:?}: {filled}");
    }
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let good = made("", 300);
    let refused = |chosen: Chosen| chosen.load().unwrap_err().to_string();
    for (bytes, wanted) in [
        (&b""[..], "0 bytes: shorter than one block"),
        (&b"hello"[..], "no file of FELIX blocks"),
        (&[7; 2 << 20][..], "no file of FELIX blocks"),
        (&made("mode = \"full\"\npayload = \"9000B\"\n", 1)[..2048], "no whole chunk"),
    ] {
        let error = refused(chosen(&file, bytes));
        assert!(error.starts_with("replay: /") && error.contains(wanted), "{error}");
    }
    let of = |path: &str| Chosen { replay: Some(path.to_owned()), ..chosen(&file, &good) };
    assert!(refused(of("/dev/zero")).contains("not a regular file"));
    assert!(refused(of("/none")).contains("No such file"));
    let sized = Chosen { payload_bytes: Some(20), ..chosen(&file, &good) };
    assert!(refused(sized).contains("`payload_bytes` does not go with `replay`"));
    let alone = Chosen { replay: None, replay_loop: true, ..chosen(&file, &good) };
    assert!(refused(alone).contains("`replay_loop` does nothing"));
}
