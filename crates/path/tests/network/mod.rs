//! Paths over sockets: receivers on other hosts, UDP and its losses, ways to hand TCP its bytes.
//! All on loopback.

use daqmeter_harness::frames::FrameStream;
use daqmeter_path::PathRequest;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

use super::{BLOCKS, MEMORY, fault, ran, record, text};

fn listener(transport: &str) -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    (listener, format!("kind = \"{transport}\"\nto = \"{to}\""))
}

fn receives(
    listener: std::net::TcpListener,
    senders: usize,
) -> std::thread::JoinHandle<Vec<daqmeter_path::receiver::ReceiverReport>> {
    std::thread::spawn(move || {
        let (stop, mut all) = (daqmeter_harness::StopFlag::default(), Vec::new());
        let one = |_, came: Result<_, String>| {
            all.push(came.unwrap());
            if all.len() == senders {
                stop.set();
            }
        };
        daqmeter_path::receiver::serve(&listener, &stop, one).unwrap();
        all
    })
}

#[test]
fn a_receiver_compares_every_known_byte_and_the_ledger_closes_over_both_sides() {
    for transport in ["tcp", "udp"] {
        let (listener, sink) = listener(transport);
        let received = receives(listener, 2);
        let source = "kind = \"digitizer\"\ndevices = [\"emu:l0..1\"]\nunpaced = true";
        let stages = ["kind = \"convert\"\nfunction = 5"];
        let record = ran(&text(source, &stages, &sink));
        let run = record.sections.path.unwrap();
        assert_eq!((run.blocks, run.verified_blocks), (2 * BLOCKS, 2 * BLOCKS), "{transport}");
        assert_eq!(run.payload_bytes, 2 * BLOCKS * 4096);
        let delivered: Vec<u64> = record.ledgers.iter().map(|one| one.delivered).collect();
        assert_eq!(delivered, [BLOCKS, BLOCKS]);
        let changed = "kind = \"program\"\ncommand = [\"tr\", \"a-z\", \"A-Z\"]\nchanges = true";
        let unknown = ran(&text(MEMORY, &[changed], &sink)).sections.path.unwrap();
        assert_eq!((unknown.blocks, unknown.verified_blocks), (BLOCKS, 0));
        let all = received.join().unwrap();
        assert_eq!((all[0].blocks(), all[0].verified), (2 * BLOCKS, 2 * BLOCKS));
        assert_eq!(all[1].blocks(), BLOCKS);
    }
}

/// Accepts a sender, greets it by this text, and returns after this many blocks.
fn greeted(listener: &std::net::TcpListener, hello: &str, blocks: u64) -> Option<FrameStream> {
    let within = std::time::Duration::from_secs(10);
    let mut frames = FrameStream::new(listener.accept().unwrap().0, 1 << 20).unwrap();
    frames.receive(within, &|| false).unwrap();
    say(&mut frames, FrameKind::Hello, hello);
    for _ in 0..blocks {
        frames.receive(within, &|| false).ok()?;
    }
    Some(frames)
}

fn say(frames: &mut FrameStream, kind: FrameKind, text: &str) {
    let frame = FelixFrame::control(kind, u32::try_from(text.len()).unwrap());
    frames.send(&frame, [text.as_bytes(), &[]], std::time::Duration::from_secs(10)).unwrap();
}

const OVER_TCP: &str = r#"{"udp":null}"#;

#[test]
fn a_receiver_that_dies_ends_the_path_in_a_line_and_what_it_did_not_confirm_is_not_delivered() {
    let (listener, sink) = listener("tcp");
    let dies = std::thread::spawn(move || drop(greeted(&listener, OVER_TCP, 20)));
    let folder = tempfile::tempdir().unwrap();
    let endless = |request: &mut PathRequest| request.blocks = None;
    let record = record(folder.path(), &text(MEMORY, &[], &sink), endless);
    dies.join().unwrap();
    let fault = fault(&record);
    assert!(fault.contains("receiver 127.0.0.1:") && !fault.contains('\n'), "{fault}");
    let ledger = &record.ledgers[0];
    assert!(ledger.closes() && ledger.delivered == 0, "{ledger}");
    let unconfirmed = ledger.losses["sent, but the receiver did not say that they came"];
    assert!(unconfirmed >= 20, "{ledger}");
    let run = record.sections.path.unwrap();
    assert_eq!(run.blocks, unconfirmed);
    assert_eq!(run.payload_bytes, 4096 * unconfirmed);
}

/// Numbers of a false receiver were added up until they overflowed.
#[test]
fn a_receiver_that_is_false_or_not_there_or_got_other_bytes_is_named() {
    const LIES: [(&str, &str, &str); 4] = [
        (
            r#"{"udp":{"port":5,"socket_buffer_bytes":18446744073709551615}}"#,
            "",
            "its greeting: udp.socket_buffer_bytes is 184467",
        ),
        (r#"{"tags":[]}"#, "", "its greeting: unknown field `tags`"),
        (
            OVER_TCP,
            r#"{"bytes":0,"verified":0,"wrong":0,"strays":0,"streams":[{"blocks":18446744073709551615,"events":0}]}"#,
            "streams[0].blocks is 18446744073709551615",
        ),
        (
            OVER_TCP,
            r#"{"bytes":0,"verified":0,"wrong":3,"strays":0,"streams":[{"blocks":30,"events":0}]}"#,
            "3 blocks came with other bytes than were sent",
        ),
    ];
    let (listener, sink) = listener("tcp");
    let lies = std::thread::spawn(move || {
        for (hello, report, _) in LIES {
            let blocks = if report.is_empty() { 0 } else { BLOCKS + 1 };
            let mut frames = greeted(&listener, hello, blocks).unwrap();
            if !report.is_empty() {
                say(&mut frames, FrameKind::Account, report);
            }
        }
        use std::io::{Read, Write};
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(b"HTTP/1.1 400 what?\r\n\r\n01234567").unwrap();
        let _ = other.read(&mut [0; 44]);
    });
    let folder = tempfile::tempdir().unwrap();
    let refused = "is no `daqmeter path serve` of this version";
    for wanted in LIES.map(|(.., wanted)| wanted).into_iter().chain([refused]) {
        let record = record(folder.path(), &text(MEMORY, &[], &sink), |_| {});
        assert!(fault(&record).contains(wanted), "{}", fault(&record));
    }
    lies.join().unwrap();
    let nobody = record(folder.path(), &text(MEMORY, &[], &sink), |_| {});
    assert!(fault(&nobody).contains("start `daqmeter path serve"), "{}", fault(&nobody));
}

#[test]
fn what_udp_loses_is_a_loss_of_its_stream_or_fails_a_path_that_must_lose_nothing() {
    // Blocks of 1 MiB in a socket that holds much less than one.
    for lossless in [false, true] {
        let (listener, sink) = listener("udp");
        let received = receives(listener, 1);
        let text = text(MEMORY, &[], &format!("{sink}\nsocket_buffer = \"4KiB\""))
            .replace("4KiB\"\nbuffers", "1MiB\"\nbuffers")
            .replace("[source]", &format!("lossless = {lossless}\n[source]"));
        let folder = tempfile::tempdir().unwrap();
        let record = record(folder.path(), &text, |_| {});
        received.join().unwrap();
        let ledger = &record.ledgers[0];
        let lost = ledger.losses["lost on the way over UDP"];
        assert!(ledger.closes() && lost > 0, "{ledger}");
        assert_eq!((ledger.issued, ledger.delivered + lost), (BLOCKS, BLOCKS));
        let run = record.sections.path.as_ref().unwrap();
        assert_eq!(run.blocks, ledger.delivered);
        assert_eq!(record.counter("udp-buffer-asked"), Some(4096.0));
        let fault = fault(&record);
        let is_named = fault.contains("lost on the way over UDP, ")
            && fault.contains(" so far: give the path a lower rate");
        assert_eq!((record.outcome.is_ok(), is_named), (!lossless, lossless), "{fault}");
    }
}
