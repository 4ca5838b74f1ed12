//! Peers that say nothing, too much or too little: each costs a bounded amount of memory and time, and the others go on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use daqmeter_readout::chain::{Chain, Reader};
use daqmeter_readout::receive::Receiver;
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::transport::{self, Hello, Subscription, TransportError};
use daqmeter_readout::{Scenario, ToHost};
use daqmeter_wire::felix::page::{FRAME_BYTES, Frame, FrameKind, PageWriter, Status};

use crate::by_hand;

/// Nothing here takes so long unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Turns a reader, which serves its subscribers, until something holds.
fn turn_until(reader: &mut Reader, mut holds: impl FnMut(&mut ToHost) -> bool) {
    let begin = Instant::now();
    while !holds(&mut reader.tohost) {
        reader.turn();
        assert!(begin.elapsed() < DEADLINE, "waited in vain");
    }
}

/// A reader that publishes and whose card is not started.
fn publisher(text: &str) -> (Reader, Publish) {
    let scenario = Scenario::parse(text, "test").unwrap();
    let chain = Chain::open(&scenario, 1, Duration::MAX, None).unwrap();
    let mut readers = chain.readers;
    let reader = readers.remove(0);
    let publish = Publish {
        address: reader.tohost.address(),
        ..scenario.publish
    };
    (reader, publish)
}

fn control(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut bytes = Frame::control(kind, body.len().try_into().unwrap())
        .emit()
        .to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn subscribe_raw(publish: &Publish, receiver: u64) -> TcpStream {
    let mut stream = TcpStream::connect(&publish.address).unwrap();
    let subscription = Subscription {
        receiver,
        ..Subscription::default()
    };
    stream
        .write_all(&control(
            FrameKind::Subscribe,
            &serde_json::to_vec(&subscription).unwrap(),
        ))
        .unwrap();
    stream
}

/// All that the other side sends before it closes.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

const SMALL: &str = "[card]\nlinks = 1\nring = \"1MiB\"\n";

#[test]
fn one_subscriber_too_many_is_refused_and_told_why() {
    let (mut reader, publish) = publisher(&format!("{SMALL}[publish]\nmax_subscribers = 3\n"));
    let kept: Vec<TcpStream> = (0..3).map(|at| subscribe_raw(&publish, at)).collect();
    turn_until(&mut reader, |reader| reader.stats().subscribers == 3);
    let further = subscribe_raw(&publish, 4);
    let told = std::thread::spawn(move || until_closed(further));
    turn_until(&mut reader, |_| told.is_finished());
    let told = String::from_utf8_lossy(&told.join().unwrap()).into_owned();
    assert!(
        told.contains("there are 3 subscribers already (publish.max_subscribers)"),
        "{told}"
    );
    assert_eq!(reader.tohost.stats().subscribers, 3);
    drop(kept);
    turn_until(&mut reader, |reader| reader.stats().subscribers == 0);
}

/// Issue 14: each connection that said nothing was kept.
#[test]
fn connections_that_say_nothing_are_bounded_and_do_not_keep_others_out() {
    let (mut reader, publish) = publisher(SMALL);
    let silent: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(&publish.address).unwrap())
        .collect();
    let mut silent = silent.into_iter();
    let first = silent.next().unwrap();
    let closed = std::thread::spawn(move || until_closed(first));
    turn_until(&mut reader, |_| closed.is_finished());
    let subscriber = subscribe_raw(&publish, 1);
    turn_until(&mut reader, |reader| reader.is_subscribed());
    drop((silent, subscriber));
}

#[test]
fn a_subscriber_that_says_too_much_is_dropped() {
    let (mut reader, publish) = publisher(SMALL);
    for bytes in [
        Frame::control(FrameKind::Subscribe, 1 << 20)
            .emit()
            .to_vec(),
        Frame::control(FrameKind::Acknowledge, 1000).emit().to_vec(),
        control(
            FrameKind::Subscribe,
            &serde_json::to_vec(&Subscription {
                tags: vec![1; 1000],
                ..Default::default()
            })
            .unwrap(),
        ),
    ] {
        let mut stream = TcpStream::connect(&publish.address).unwrap();
        stream.write_all(&bytes).unwrap();
        let closed = std::thread::spawn(move || until_closed(stream));
        turn_until(&mut reader, |_| closed.is_finished());
        closed.join().unwrap();
        assert_eq!(reader.tohost.stats().subscribers, 0);
    }
}

/// A publisher of one tag by hand, which sends these pages after the subscription.
fn fake_publisher(tag: u64, pages: Vec<Vec<u8>>) -> (Publish, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish = Publish {
        address: listener.local_addr().unwrap().to_string(),
        ..Publish::default()
    };
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = Hello {
            stream: 7,
            tags: vec![tag],
            magic: 0xC0CE,
            block_bytes: 1024,
            ..Hello::default()
        };
        stream
            .write_all(&control(
                FrameKind::Hello,
                &serde_json::to_vec(&hello).unwrap(),
            ))
            .unwrap();
        stream.read_exact(&mut [0; FRAME_BYTES]).unwrap();
        for page in pages {
            stream.write_all(&page).unwrap();
        }
        let account = daqmeter_readout::accounts::FinalAccount::default();
        stream
            .write_all(&control(
                FrameKind::Account,
                &serde_json::to_vec(&account).unwrap(),
            ))
            .unwrap();
        until_closed(stream);
    });
    (publish, thread)
}

/// Issue 14: a receiver kept whatever tags a publisher made up.
#[test]
fn tags_that_were_not_offered_are_not_kept() {
    let mut page = vec![0; 64 << 10];
    let mut writer = PageWriter::default();
    let payload = [0; 64];
    for tag in 0..1000 {
        assert!(writer.push(&mut page, tag, Status::default(), &payload, 0, 24));
    }
    page.truncate(writer.used());
    let frame = Frame {
        count: writer.count(),
        sequence: 1,
        ..Frame::control(FrameKind::Messages, page.len().try_into().unwrap())
    };
    let (publish, thread) = fake_publisher(5, vec![[&frame.emit()[..], &page].concat()]);
    let mut receiver =
        Receiver::connect(transport::named("tcp").unwrap(), &[(publish, vec![])]).unwrap();
    let report = receiver.run(&AtomicBool::new(false), DEADLINE, |_| {});
    let tags: Vec<u64> = report.streams.iter().map(|stream| stream.tag).collect();
    assert_eq!((tags, report.chunks(), report.bad_pages), (vec![5], 1, 1));
    thread.join().unwrap();
}

/// Issue 14: whoever gave a byte now and then held a receiver up for ever.
#[test]
fn a_greeting_byte_by_byte_does_not_hold_a_receiver_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish = Publish {
        address: listener.local_addr().unwrap().to_string(),
        ..Publish::default()
    };
    let drips = Arc::new(AtomicBool::new(false));
    let seen = drips.clone();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let begin = Instant::now();
        for byte in control(FrameKind::Hello, &[b' '; 60_000]) {
            if stream.write_all(&[byte]).is_err() || begin.elapsed() > 2 * DEADLINE {
                break;
            }
            seen.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let begin = Instant::now();
    let quit = || drips.load(Ordering::Relaxed);
    let tried = Receiver::connect_unless(
        transport::named("tcp").unwrap(),
        &[(publish, vec![])],
        &quit,
    );
    assert!(matches!(tried, Err(TransportError::Other(_))) && begin.elapsed() < DEADLINE);
    thread.join().unwrap();
}

/// Issue 14: a receiver asked for its publisher at the old port for ever.
#[test]
fn a_publisher_that_comes_back_at_another_port_is_found() {
    let (mut reader, publish) = publisher(SMALL);
    let place = Arc::new(Mutex::new(publish.address.clone()));
    let connecting = {
        let publish = publish.clone();
        std::thread::spawn(move || {
            Receiver::connect(transport::named("tcp").unwrap(), &[(publish, vec![])]).unwrap()
        })
    };
    turn_until(&mut reader, |reader| reader.is_subscribed());
    let mut receiver = connecting.join().unwrap();
    drop(reader);
    let asked = place.clone();
    receiver.look_up = Some(Arc::new(move |_| Some(asked.lock().unwrap().clone())));
    let (mut again, elsewhere) = publisher(SMALL);
    assert_ne!(publish.address, elsewhere.address);
    place.lock().unwrap().clone_from(&elsewhere.address);
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let running = std::thread::spawn(move || receiver.run(&asked, DEADLINE, |_| {}));
    turn_until(&mut again, |reader| reader.is_subscribed());
    stop.store(true, Ordering::Relaxed);
    assert_eq!(running.join().unwrap().lost, 1);
}

/// The longest chunks with the fewest and smallest pages: a block must always find room, or the reader would wait for ever.
#[test]
fn chunks_longer_than_all_pages_do_not_stop_the_reader() {
    let text = "[trigger]\nrate = \"1kHz\"\n[card]\nmode = \"full\"\nlinks = 1\nring = \"32MiB\"\npayload = \"64KiB\"\n\
                [reader]\npage = \"4KiB\"\npages = 2\n";
    let scenario = Scenario::parse(text, "test").unwrap();
    let stop = AtomicBool::new(false);
    let placement = by_hand::Placement::default();
    let done = by_hand::run(&scenario, &placement, DEADLINE, Some(100), &stop).unwrap();
    assert!(
        done.closes() && done.issued() == 100 && done.lost() == 0,
        "{}",
        done.ledger()
    );
}
