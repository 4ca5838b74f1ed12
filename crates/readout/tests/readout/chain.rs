//! Card, reader and receiver over loopback: every trigger is found again, despite any fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_harness::search::{Observation, Stability};
use daqmeter_readout::Scenario;
use daqmeter_readout::receive::Receiver;
use daqmeter_readout::scenario::Publish;

use crate::by_hand::{self, Done, Placement};
use crate::hostile;

fn placed(text: &str, placement: &Placement, triggers: u64) -> Result<Done, Fault> {
    let scenario = Scenario::parse(text, "test").unwrap();
    let (minute, never) = (Duration::from_secs(60), AtomicBool::new(false));
    by_hand::run(&scenario, placement, minute, Some(triggers), &never)
}

fn run(text: &str, triggers: u64) -> Done {
    let done = placed(text, &Placement::default(), triggers).unwrap();
    assert_eq!(done.issued(), triggers);
    for (tag, ledger) in &done.ledgers {
        assert!(ledger.closes(), "{text}: {tag:#x}: {ledger}");
    }
    done
}

fn losses(done: &Done, reason: &str) -> u64 {
    done.ledger().losses[reason]
}

/// Slow and with room: a machine that stops for a while must not cause BUSY.
const SMALL: &str = "[trigger]\nrate = \"40kHz\"\n[card]\nring = \"64MiB\"\n";

#[test]
fn nothing_is_lost() {
    for card in ["", "ttc = true\n", "mode = \"full\"\npayload = \"3000B\"\nlinks = 2\n"] {
        let done = run(&format!("{SMALL}{card}"), 4000);
        let report = &done.receivers[0];
        let found = (done.lost(), report.faults(), report.bad_pages);
        assert_eq!(found, (0, Default::default(), 0), "{card}: {}", done.ledger());
        assert!(report.latency_ns.count() > 0 && report.latency_ns.max() < 5_000_000_000);
    }
}

#[test]
fn an_interrupt_wakes_the_reader() {
    let done = run(&format!("{SMALL}[reader]\ncompletion = \"interrupt\"\n"), 2000);
    assert_eq!(done.lost(), 0);
}

#[test]
fn several_channels_go_to_one_receiver() {
    let text = "[trigger]\nrate = \"40kHz\"\n[card]\ndevices = 2\nchannels = 2\nlinks = 1\nring = \"32MiB\"\n";
    let placement = Placement { receivers: 1, ..Placement::default() };
    let done = placed(text, &placement, 2000).unwrap();
    assert_eq!((done.readers.len(), done.receivers.len(), done.ledgers.len()), (4, 1, 32));
    assert!(done.closes() && done.lost() == 0);
}

#[test]
fn each_injected_fault_is_booked_where_it_belongs() {
    for (kind, every, reason) in [
        ("lost-block", 7, "injected faults"),
        ("corrupted-trailer", 9, "injected faults"),
        ("corrupted-magic", 9, "injected faults"),
        ("swapped-blocks", 11, "injected faults"),
        ("truncated", 100, "injected faults"),
        ("error", 100, "flagged at the source"),
        ("crc", 100, "flagged at the source"),
    ] {
        for card in ["links = 1\n", "mode = \"full\"\npayload = \"700B\"\nlinks = 1\n"] {
            let fault = format!("[[fault]]\nkind = \"{kind}\"\nevery = {every}\n");
            let done = run(&format!("{SMALL}{card}{fault}"), 2000);
            assert!(losses(&done, reason) > 0, "{kind}: {}", done.ledger());
            assert_eq!(done.lost(), losses(&done, reason), "{kind}: {}", done.ledger());
            assert_eq!(done.ledger().lost_on_the_way(), 0, "{kind}");
        }
    }
}

#[test]
fn repeated_blocks_are_known_markers_and_busy_flags_cost_nothing() {
    for kind in ["duplicated-block", "busy", "out-of-band"] {
        let done =
            run(&format!("{SMALL}links = 1\n[[fault]]\nkind = \"{kind}\"\nevery = 5\n"), 2000);
        assert_eq!(done.lost(), 0, "{kind}");
        assert_eq!(done.readers[0].stats.duplicates > 0, kind == "duplicated-block");
    }
}

#[test]
fn a_faster_card_than_reader_makes_dead_time_and_no_other_loss() {
    // One page per millisecond at the most: far below what the card makes.
    let text = "[trigger]\nrate = \"2MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\n[reader]\npage = \"4KiB\"\npages = 2\npoll = \"20ms\"\n";
    let done = run(text, 100_000);
    assert!(done.dead_share() > 0.1, "{}", done.dead_share());
    assert_eq!(done.lost(), losses(&done, "stopped by BUSY-by-DMA"));
}

/// Issue 48: a search took 74 kHz for good where 59 kHz pass the DMA: the FIFO had the rest.
#[test]
fn what_a_fifo_holds_is_backlog_and_what_it_does_not_is_the_knee() {
    let text = "[trigger]\nrate = \"60kHz\"\n[card]\nlinks = 1\nring = \"16MiB\"\nfifo = \"64MiB\"\n\
                dma_rate = \"10MB\"\n";
    let (scenario, never) = (Scenario::parse(text, "test").unwrap(), AtomicBool::new(false));
    let time = Duration::from_millis(400);
    let done = by_hand::run(&scenario, &Placement::default(), time, None, &never).unwrap();
    assert!(done.closes());
    let reader = &done.readers[0];
    let at = |(ns, bytes): &(u64, [u64; 2])| (*ns as f64 * 1e-9, bytes[1] as f64);
    let observation = Observation {
        backlog: reader.filling.iter().map(at).collect(),
        busy_at_bytes: 1e12,
        input_bytes_per_s: 60e3 * scenario.event_bytes(),
        ..Observation::default()
    };
    assert_eq!(observation.verdict(), Stability::Growing);
    let knee_hz = observation.carried() * 60e3;
    let expected_hz = 10e6 / scenario.event_bytes();
    assert!((knee_hz / expected_hz - 1.0).abs() < 0.03, "{knee_hz}, not {expected_hz}");
    assert_eq!(reader.triggers_ns, 400_000_000);
}

/// Publisher with a card that goes on until it is told, for receivers that come and go.
struct Publisher {
    publish: Publish,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(daqmeter_readout::accounts::FinalAccount, Vec<String>)>,
}

fn publisher(text: &str, triggers: u64) -> Publisher {
    let (mut reader, publish) = hostile::publisher(text, Some(triggers));
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut notes = Vec::new();
        let account = reader.run(&asked, true, |reader| notes.append(&mut reader.notes));
        (account, notes)
    });
    Publisher { publish, stop, thread }
}

fn receiver(publish: &Publish, tags: &[u64]) -> Receiver {
    Receiver::connect(&[(publish.clone(), tags.to_vec())], &|| false).unwrap()
}

#[test]
fn a_killed_receiver_s_pages_are_booked_to_the_network_and_the_next_one_goes_on() {
    let publisher =
        publisher("[trigger]\nrate = \"50kHz\"\n[card]\nlinks = 1\nring = \"8MiB\"\n", 20_000);
    let mut first = receiver(&publisher.publish, &[]);
    let enough = AtomicBool::new(false);
    first.run(&enough, |receiver| {
        enough.store(receiver.report().chunks() > 1000, Ordering::Relaxed);
    });
    drop(first);
    let mut second = receiver(&publisher.publish, &[]);
    let report = second.run(&AtomicBool::new(false), |_| {});
    assert!(report.chunks() > 0);
    let (account, notes) = publisher.thread.join().unwrap();
    for (tag, ledger) in account.ledgers() {
        assert!(ledger.closes(), "{tag:#x}: {ledger}");
        assert!(ledger.delivered > 0);
    }
    assert!(notes.iter().any(|note| note.contains("subscriber lost")), "{notes:?}");
}

#[test]
fn two_receivers_share_the_e_links_and_one_of_nothing_known_is_refused() {
    let publisher =
        publisher("[trigger]\nrate = \"100kHz\"\n[card]\nlinks = 2\nring = \"8MiB\"\n", 10_000);
    let scenario = Scenario::parse("[card]\nlinks = 2\n", "").unwrap();
    let tags: Vec<u64> = scenario.elinks(0, 0).iter().map(|elink| elink.tag).collect();
    let mut stranger = receiver(&publisher.publish, &[5]);
    let refused = stranger.run(&AtomicBool::new(false), |_| {}).refused;
    assert!(refused.concat().ends_with("no E-link 0x5 is published here"), "{refused:?}");
    let mut halves: Vec<Receiver> =
        tags.chunks(8).map(|half| receiver(&publisher.publish, half)).collect();
    let mut other = halves.pop().unwrap();
    let thread = std::thread::spawn(move || other.run(&AtomicBool::new(false), |_| {}));
    let one = halves[0].run(&AtomicBool::new(false), |_| {});
    let two = thread.join().unwrap();
    for half in [one, two] {
        assert_eq!((half.streams.len(), half.ledgers.len(), half.chunks()), (8, 8, 80_000));
        assert!(half.closes());
    }
    publisher.stop.store(true, Ordering::Relaxed);
    publisher.thread.join().unwrap();
}

#[test]
fn a_slow_receiver_s_pages_are_dropped_where_the_scenario_says_so() {
    let text = "[trigger]\nrate = \"50kHz\"\n[card]\nmode = \"full\"\nlinks = 1\npayload = \"4000B\"\nring = \"64MiB\"\n\
                [reader]\non_slow = \"drop\"\npages = 2\npage = \"64KiB\"\n";
    let publisher = publisher(text, 10_000);
    let mut slow = receiver(&publisher.publish, &[]);
    slow.slowed = Some(Arc::new(|_| std::thread::sleep(Duration::from_millis(2))));
    let report = slow.run(&AtomicBool::new(false), |_| {});
    let (account, _) = publisher.thread.join().unwrap();
    let (_, ledger) = &account.ledgers()[0];
    assert!(ledger.closes(), "{ledger}");
    assert_eq!(ledger.losses["stopped by BUSY-by-DMA"], 0);
    assert_eq!(ledger.losses["dropped by reader"] + report.chunks(), 10_000);
}

#[test]
fn ports_that_are_taken_and_publishers_that_are_none_are_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = format!("[publish]\naddress = \"{address}\"\n");
    let error = placed(&text, &Placement::default(), 1).unwrap_err();
    assert!(error.to_string().contains("cannot listen on"), "{error}");
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        taken.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n").unwrap();
    });
    let publish = Publish { address, ..Publish::default() };
    let error = Receiver::connect(&[(publish, vec![])], &|| false).err().unwrap().to_string();
    assert!(error.contains("does not begin a frame"), "{error}");
    answers.join().unwrap();
    let placement = Placement { reader_cpus: vec![1000], ..Placement::default() };
    let text = "[card]\nring = \"2MiB\"\nlinks = 1\n";
    let error = placed(text, &placement, 1).unwrap_err().to_string();
    assert!(error.contains("CPU 1000"), "{error}");
}

#[test]
fn a_reader_that_is_told_to_stop_ends_its_card_and_the_accounts_close() {
    let publisher =
        publisher("[trigger]\nrate = \"100kHz\"\n[card]\nlinks = 1\nring = \"8MiB\"\n", u64::MAX);
    let stop = publisher.stop.clone();
    let mut receiver = receiver(&publisher.publish, &[]);
    let report = receiver.run(&AtomicBool::new(false), |receiver| {
        stop.store(receiver.report().chunks() > 10_000, Ordering::Relaxed);
    });
    let (account, _) = publisher.thread.join().unwrap();
    let ledgers = account.ledgers();
    assert!(ledgers.iter().all(|(_, own)| own.closes() && own.lost() == 0), "{ledgers:?}");
    assert_eq!(report.chunks(), account.card.issued * 8);
}
