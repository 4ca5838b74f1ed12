use daqmeter_sys::ring;

use super::*;
use crate::chain;
use crate::port::Port;
use crate::receive::Receiver;
use crate::scenario::Publish;

#[test]
fn a_channel_has_one_reader_which_has_every_block() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("card");
    let text =
        "[trigger]\nrate = \"50kHz\"\n[card]\nlinks = 1\nring = \"2MiB\"\n[busy]\ndma = false\n";
    let scenario = Scenario::parse(text, "test").unwrap();
    let (mut card, _) = Card::new(&scenario).unwrap();
    card.source.max_triggers = 2000;
    let mut server = CardServer::bind(card, &path).unwrap();
    let (other, _) = Card::new(&scenario).unwrap();
    let taken = CardServer::bind(other, &path).err().unwrap().to_string();
    assert!(taken.contains("another card is served there"), "{taken}");
    let thread = std::thread::spawn(move || server.run(&AtomicBool::new(false), |_| {}));
    let mut port = connect(&path, &scenario, 0).unwrap();
    let error = |result: Result<Port, RemoteError>| result.err().unwrap().to_string();
    assert!(error(connect(&path, &scenario, 0)).contains("already has a reader"));
    let wrong = Scenario::parse("[card]\nlinks = 2\n", "").unwrap();
    assert!(error(connect(&path, &wrong, 0)).contains("different E-links"));
    assert!(error(connect(&path, &scenario, 1)).contains("no channel 1"));
    port.go();
    let mut bytes = 0;
    loop {
        let finished = port.state() == CardState::Finished;
        let got = take_all(&mut port);
        bytes += got;
        if finished && got == 0 {
            break;
        }
        port.wait(Duration::from_millis(100));
    }
    let format = scenario.format().unwrap();
    assert_eq!(bytes as u64, 8 * 1024 * daqmeter_wire::felix::encoder::blocks_of(format, 24, 2000));
    drop(port);
    thread.join().unwrap();
    assert!(!path.exists());
    assert!(error(connect(&path, &scenario, 0)).contains("is a card emulated there?"));
}

fn small() -> (Card, Scenario) {
    let scenario = Scenario::parse("[card]\nlinks = 1\nring = \"2MiB\"\n", "test").unwrap();
    (Card::new(&scenario).unwrap().0, scenario)
}

/// A small card whose process serves it until it is stopped; returns the triggers that it issued.
struct Served {
    directory: tempfile::TempDir,
    scenario: Scenario,
    stop: std::sync::Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Served {
    fn new(before: impl FnOnce(&mut CardServer)) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let (card, scenario) = small();
        let mut server = CardServer::bind(card, &directory.path().join("card")).unwrap();
        before(&mut server);
        let stop = std::sync::Arc::<AtomicBool>::default();
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            server.run(&asked, |_| {});
            server.card.source.issued
        });
        Served { directory, scenario, stop, thread }
    }

    fn connect(&self) -> Port {
        connect(&self.directory.path().join("card"), &self.scenario, 0).unwrap()
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn started(port: &Port) {
    port.go();
    while port.state() != CardState::Running {
        std::thread::yield_now();
    }
}

/// Issue 14: `emulate --at` removed whatever lay there.
#[test]
fn only_a_socket_that_nobody_serves_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    for taken in [&path, &link, &directory.path().to_owned()] {
        let error = CardServer::bind(small().0, taken).err().unwrap().to_string();
        assert!(error.contains("is not a socket"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    assert!(std::fs::symlink_metadata(&link).is_ok());
    let stale = directory.path().join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let server = CardServer::bind(small().0, &stale).unwrap();
    // The server must not remove the socket that replaced its own.
    std::fs::remove_file(&stale).unwrap();
    std::fs::write(&stale, "another's").unwrap();
    drop(server);
    assert_eq!(std::fs::read_to_string(&stale).unwrap(), "another's");
}

/// Issue 14: silent clients stood in the way for half a second each, and a line without end was
/// kept.
#[test]
fn silent_and_endless_clients_neither_delay_others_nor_cost_memory() {
    let mut clients = Vec::new();
    let served = Served::new(|server| {
        let path = server.path.clone();
        clients.extend((0..2 * MAX_ASKING).map(|_| reach(&path).unwrap()));
        for _ in 0..4 {
            server.accept(monotonic_ns());
            assert_eq!(server.asking.len(), MAX_ASKING);
        }
    });
    let mut endless = reach(&served.directory.path().join("card")).unwrap();
    endless.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let piece = [b'x'; 4096];
    let mut sent = 0;
    while endless.write_all(&piece).is_ok() {
        sent += piece.len();
        assert!(sent < 16 << 20, "an endless request is taken");
    }
    started(&served.connect());
    served.stop();
}

fn take_all(port: &mut Port) -> usize {
    port.take(usize::MAX);
    let got = port.consumer().spans(0).map(<[u8]>::len).iter().sum();
    port.release(got);
    got
}

#[test]
fn a_card_that_is_told_to_stop_finishes_and_its_reader_has_everything() {
    let served = Served::new(|_| {});
    let mut port = served.connect();
    port.go();
    while port.view().account.issued < 1000 {
        take_all(&mut port);
    }
    served.stop.store(true, Ordering::Relaxed);
    while port.state() != CardState::Finished || port.consumer().filled() > 0 {
        take_all(&mut port);
    }
    let issued = port.view().account.issued;
    assert!(!port.is_lost());
    drop(port);
    assert_eq!(served.stop(), issued);
}

/// Issue 48: the card went on while its reader was stopped, and 16 of 16 accounts did not close.
#[test]
fn the_account_of_a_reader_that_is_stopped_closes_with_and_without_a_receiver() {
    for (receivers, nth) in [0, 1].into_iter().flat_map(|count| (0..4).map(move |nth| (count, nth)))
    {
        let served = Served::new(|_| {});
        let hello = chain::hello(&served.scenario, 0);
        let mut reader = chain::reader_of(&served.scenario, served.connect(), 0, &hello).unwrap();
        let publish = Publish { address: reader.address(), ..Publish::default() };
        let receive = |_| {
            let publish = publish.clone();
            std::thread::spawn(move || {
                let mut receiver = Receiver::connect(&[(publish, Vec::new())], &|| false).unwrap();
                receiver.run(&AtomicBool::new(false), |_| {})
            })
        };
        let threads: Vec<_> = (0..receivers).map(receive).collect();
        let stop = AtomicBool::new(false);
        let account = reader.run(&stop, receivers > 0, |reader| {
            stop.store(reader.stats.chunks > 1000 * (nth + 1), Ordering::Relaxed);
        });
        let of = format!("{receivers} receivers, {nth}");
        assert!(account.closes() && !account.card_is_lost, "{of}: {:?}", account.ledgers());
        for report in threads.into_iter().map(|thread| thread.join().unwrap()) {
            assert!(report.closes() && report.ledgers.len() == 8, "{of}: {:?}", report.ledgers);
            let accepted = account.card.issued - account.card.vetoed[0];
            assert_eq!((report.chunks(), report.lost), (accepted * 8, 0), "{of}");
        }
        drop(reader);
        assert_eq!(served.stop(), account.card.issued, "{of}");
    }
}

#[test]
fn a_card_that_dies_while_triggers_come_is_known_to_be_lost() {
    let (_producer, consumer) = ring::ring(&ring::Shape {
        ring_bytes: 64 << 10,
        unit_bytes: 1024,
        gap_bytes: 8 << 10,
        pages: daqmeter_sys::memory::Pages::Base,
        numa_node: None,
    })
    .unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut port = Port::elsewhere(consumer, IrqLine::event().unwrap(), ours).unwrap();
    port.look();
    assert!(!port.is_lost());
    drop(theirs);
    while port.state() != CardState::Finished {
        port.look();
    }
    assert!(port.is_lost());
}
