//! Peers that say nothing, too much or too little: each costs a bounded amount of memory and time,
//! and the others go on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daqmeter_readout::accounts::{CardElink, FinalAccount, ReaderElink, SubscriptionAccount};
use daqmeter_readout::chain::Chain;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::transport::{PublisherHello, Subscription, TransportError};
use daqmeter_readout::{Scenario, ToHost};
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_wire::felix::page::{
    FRAME_BYTES, FelixFrame, FrameKind, PageChunk, PageWriter, Status,
};
use serde_json::Value;

use crate::by_hand;

/// Limit of all waits: only a hang takes this long.
const DEADLINE: Duration = Duration::from_secs(20);

/// Turns a reader, which serves its subscribers, until `holds` is true.
fn turn_until(reader: &mut ToHost, mut holds: impl FnMut(&mut ToHost) -> bool) {
    let begin = Instant::now();
    while !holds(reader) {
        reader.turn();
        assert!(begin.elapsed() < DEADLINE, "waited in vain");
    }
}

/// Reader of a card that gives this number of triggers, or goes on, and its address.
pub(crate) fn publisher(text: &str, triggers: Option<u64>) -> (ToHost, Publish) {
    let scenario = Scenario::parse(text, "test").unwrap();
    let chain = Chain::open(&scenario, 1, Duration::MAX, triggers, None).unwrap();
    let mut readers = chain.readers;
    let reader = readers.remove(0);
    let publish = Publish { address: reader.address(), ..scenario.publish };
    (reader, publish)
}

fn control(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut bytes = FelixFrame::control(kind, body.len().try_into().unwrap()).emit().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn subscribe_raw(publish: &Publish, receiver: u64) -> TcpStream {
    let mut stream = TcpStream::connect(&publish.address).unwrap();
    let subscription = Subscription { receiver, ..Subscription::default() };
    stream
        .write_all(&control(FrameKind::Subscribe, &serde_json::to_vec(&subscription).unwrap()))
        .unwrap();
    stream
}

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
    let (mut reader, publish) =
        publisher(&format!("{SMALL}[publish]\nmax_subscribers = 3\n"), None);
    let kept: Vec<TcpStream> = (0..3).map(|at| subscribe_raw(&publish, at)).collect();
    turn_until(&mut reader, |reader| reader.stats.subscribers == 3);
    let further = subscribe_raw(&publish, 4);
    let told = std::thread::spawn(move || until_closed(further));
    turn_until(&mut reader, |_| told.is_finished());
    let told = String::from_utf8_lossy(&told.join().unwrap()).into_owned();
    assert!(
        told.contains("already 3 subscribers, the maximum (publish.max_subscribers)"),
        "{told}"
    );
    assert_eq!(reader.stats.subscribers, 3);
    drop(kept);
    turn_until(&mut reader, |reader| reader.stats.subscribers == 0);
}

/// Issue 14: each connection that said nothing was kept.
#[test]
fn connections_that_say_nothing_are_bounded_and_do_not_keep_others_out() {
    let (mut reader, publish) = publisher(SMALL, None);
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(&publish.address).unwrap()).collect();
    let mut silent = silent.into_iter();
    let first = silent.next().unwrap();
    let closed = std::thread::spawn(move || until_closed(first));
    turn_until(&mut reader, |_| closed.is_finished());
    let subscriber = subscribe_raw(&publish, 1);
    turn_until(&mut reader, |reader| reader.without_subscriber().is_empty());
    drop((silent, subscriber));
}

#[test]
fn a_subscriber_that_says_too_much_is_dropped() {
    let (mut reader, publish) = publisher(SMALL, None);
    for bytes in [
        FelixFrame::control(FrameKind::Subscribe, 1 << 20).emit().to_vec(),
        control(FrameKind::Acknowledge, &[0; 1000]),
        control(
            FrameKind::Subscribe,
            &serde_json::to_vec(&Subscription { tags: vec![1; 1000], ..Default::default() })
                .unwrap(),
        ),
    ] {
        let mut stream = TcpStream::connect(&publish.address).unwrap();
        stream.write_all(&bytes).unwrap();
        let closed = std::thread::spawn(move || until_closed(stream));
        turn_until(&mut reader, |_| closed.is_finished());
        closed.join().unwrap();
        assert_eq!(reader.stats.subscribers, 0);
    }
}

/// A publisher of several tags by hand, which sends this account last, or breaks.
fn fake_publisher(
    tags: Vec<u64>,
    pages: Vec<u8>,
    account: Option<Vec<u8>>,
) -> (Publish, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish =
        Publish { address: listener.local_addr().unwrap().to_string(), ..Publish::default() };
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = PublisherHello { stream: 7, tags };
        stream.write_all(&control(FrameKind::Hello, &serde_json::to_vec(&hello).unwrap())).unwrap();
        stream.read_exact(&mut [0; FRAME_BYTES]).unwrap();
        stream.write_all(&pages).unwrap();
        match account {
            Some(account) => stream.write_all(&control(FrameKind::Account, &account)).unwrap(),
            None => stream.shutdown(std::net::Shutdown::Write).unwrap(),
        }
        until_closed(stream);
    });
    (publish, thread)
}

/// Issue 14: a receiver kept whatever tags a publisher made up.
#[test]
fn tags_that_were_not_offered_are_not_kept() {
    let tags: Vec<u64> = (0..1000).collect();
    let account = serde_json::to_vec(&FinalAccount::default()).unwrap();
    let (report, _) = received(&[5], &[], page_of(&tags), Some(account));
    let tags: Vec<u64> = report.streams.iter().map(|stream| stream.tag).collect();
    assert_eq!((tags, report.chunks(), report.bad_pages), (vec![5], 1, 1));
}

fn page_of(tags: &[u64]) -> Vec<u8> {
    page(1, tags.iter().map(|tag| (*tag, [0; 24])))
}

/// A page of chunks behind its head.
pub(crate) fn page(sequence: u64, chunks: impl Iterator<Item = (u64, [u8; 24])>) -> Vec<u8> {
    let mut page = vec![0; 64 << 10];
    let mut writer = PageWriter::default();
    for (tag, chunk) in chunks {
        assert!(writer.push(&mut page, tag, &PageChunk::whole(&chunk, Status::default())));
    }
    page.truncate(writer.used());
    let control = FelixFrame::control(FrameKind::Messages, page.len().try_into().unwrap());
    let frame = FelixFrame { count: writer.count(), sequence, ..control };
    [&frame.emit()[..], &page].concat()
}

fn received_with(tags: &[u64], account: Vec<u8>) -> (Report, String) {
    received(tags, &[], page_of(&tags[..1]), Some(account))
}

/// Receives the wanted tags, or all, from a publisher by hand; returns the notes, too.
pub(crate) fn received(
    tags: &[u64],
    wanted: &[u64],
    pages: Vec<u8>,
    account: Option<Vec<u8>>,
) -> (Report, String) {
    let (publish, thread) = fake_publisher(tags.to_vec(), pages, account);
    let mut receiver = Receiver::connect(&[(publish, wanted.to_vec())], &|| false).unwrap();
    let mut notes = Vec::new();
    let report = receiver.run(&AtomicBool::new(false), |receiver| {
        notes.append(&mut receiver.notes);
    });
    drop(receiver);
    thread.join().unwrap();
    (report, notes.join("\n"))
}

fn account_of(tags: &[u64]) -> FinalAccount {
    let mut account = FinalAccount::default();
    for tag in tags {
        account.card.elinks.push(CardElink { tag: *tag, ..CardElink::default() });
        account.readers.push(ReaderElink::default());
        account
            .subscriptions
            .push(SubscriptionAccount { tag: *tag, ..SubscriptionAccount::default() });
    }
    account
}

/// Paths of all numbers below a value, as `Value::pointer` takes them.
fn numbers_below(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, field)| numbers_below(field, &format!("{path}/{name}"), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, item)| numbers_below(item, &format!("{path}/{at}"), found)),
        _ => {}
    }
}

/// 14 of the numbers of an account overflowed a sum, and all that had come was lost.
#[test]
fn no_number_of_an_account_costs_what_was_received() {
    let whole = serde_json::to_value(account_of(&[5])).unwrap();
    let mut paths = Vec::new();
    numbers_below(&whole, "", &mut paths);
    assert!(paths.len() > 20, "{paths:?}");
    for path in &paths {
        let name = path.rsplit('/').next().unwrap();
        for number in [Value::from(u64::MAX), Value::from(i64::MAX), Value::from(i64::MIN)] {
            let mut account = whole.clone();
            *account.pointer_mut(path).unwrap() = number.clone();
            let (report, notes) = received_with(&[5], serde_json::to_vec(&account).unwrap());
            assert_eq!(report.chunks(), 1, "{path}: {number}");
            let is_name = name == "tag" || name == "receiver";
            let is_taken = is_name && number != i64::MIN;
            assert_eq!(
                (report.bad_pages, report.accounts.len()),
                if is_taken { (0, 1) } else { (1, 0) },
                "{path}: {number}"
            );
            assert_eq!(notes.contains("its account is refused"), !is_taken, "{notes}");
            // Serde names no field of a number that does not fit its type.
            if number == i64::MAX && !is_taken && name != "elink" {
                let is_item = name.bytes().all(|digit| digit.is_ascii_digit());
                let shown = if is_item { format!("[{name}]") } else { name.to_owned() };
                assert!(notes.contains(&format!("{shown} is {number};")), "{notes}");
            }
        }
    }
}

#[test]
fn the_numbers_of_an_account_may_be_added_up() {
    let tags: Vec<u64> = (0..2048).collect();
    let mut whole = serde_json::to_value(account_of(&tags)).unwrap();
    let mut paths = Vec::new();
    numbers_below(&whole, "", &mut paths);
    for path in paths.iter().filter(|path| {
        let name = path.rsplit('/').next().unwrap();
        !["tag", "receiver", "elink"].contains(&name)
    }) {
        *whole.pointer_mut(path).unwrap() = MAX_WHOLE.into();
    }
    let (report, notes) = received_with(&tags, serde_json::to_vec(&whole).unwrap());
    assert_eq!((report.chunks(), report.ledgers.len()), (1, 0));
    assert!(notes.contains("add up to"), "{notes}");
    // One E-link with the largest numbers is taken, and all its numbers can be added up.
    let mut one = serde_json::to_value(account_of(&[5])).unwrap();
    for path in paths.iter().filter(|path| !path.contains("/1")) {
        if let (Some(to), Some(from)) = (one.pointer_mut(path), whole.pointer(path)) {
            *to = from.clone();
        }
    }
    for path in ["/card/elinks/0/tag", "/subscriptions/0/tag"] {
        *one.pointer_mut(path).unwrap() = 5.into();
    }
    let (report, notes) = received_with(&[5], serde_json::to_vec(&one).unwrap());
    assert_eq!((report.ledgers.len(), notes.as_str()), (1, ""));
    assert!(!report.closes() && report.ledgers[0].1.lost_on_the_way() > MAX_WHOLE);
}

/// Issue 14: a peer that sent a byte now and then held a receiver up for ever.
#[test]
fn a_greeting_byte_by_byte_does_not_hold_a_receiver_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish =
        Publish { address: listener.local_addr().unwrap().to_string(), ..Publish::default() };
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
    let tried = Receiver::connect(&[(publish, vec![])], &quit);
    assert!(matches!(tried, Err(TransportError::Other(_))) && begin.elapsed() < DEADLINE);
    thread.join().unwrap();
}

/// The longest chunks with the fewest and smallest pages: a block must always find room, or the
/// reader would wait for ever.
#[test]
fn chunks_longer_than_all_pages_do_not_stop_the_reader() {
    let text = "[trigger]\nrate = \"1kHz\"\n[card]\nmode = \"full\"\nlinks = 1\nring = \"32MiB\"\npayload = \"64KiB\"\n\
                [reader]\npage = \"4KiB\"\npages = 2\n";
    let scenario = Scenario::parse(text, "test").unwrap();
    let stop = AtomicBool::new(false);
    let placement = by_hand::Placement::default();
    let done = by_hand::run(&scenario, &placement, DEADLINE, Some(100), &stop).unwrap();
    assert!(done.closes() && done.issued() == 100 && done.lost() == 0, "{}", done.ledger());
}
