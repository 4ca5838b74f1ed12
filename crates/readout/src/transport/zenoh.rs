//! Pages over Zenoh: for many hosts, with its discovery and its routers. Each E-link is a key
//! expression.
//!
//! - `felix/<tag>`: pages, one publisher per E-link, reliable, `CongestionControl::Block`: a slow
//!   subscriber holds the reader back;
//! - `felix-hello/<stream>`: answers what is offered;
//! - `felix-ack/<stream>`: acknowledgements, as pairs of tag and page number.
//!
//! Unlike over TCP, pages are per E-link, an offer may wait, and a receiver that comes back does
//! not name its last page. Unacknowledged pages are booked to the network when the last subscriber
//! of an E-link goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind};
use zenoh::bytes::ZBytes;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Config, Session, Wait};

use super::{
    OutletEvent, PageInlet, PageOutlet, Published, PublisherHello, Sent, Subscribed, Subscription,
    TransportError,
};
use crate::peer::from_peer;
use crate::scenario::Publish;

const RECEIVE_PAGES: usize = 64;

fn other(what: &str, error: impl std::fmt::Display) -> TransportError {
    // Errors of Zenoh have their source lines behind them.
    let text = error.to_string();
    let first = text.split(" at ").next().unwrap_or("").trim();
    TransportError::Other(format!("zenoh: {what}: {first}"))
}

/// Opens a session at an address: `host:port`, or a Zenoh endpoint (`tcp/host:port`).
fn session(address: &str, listens: bool) -> Result<Session, TransportError> {
    let endpoint =
        if address.contains('/') { address.to_owned() } else { format!("tcp/{address}") };
    let own = if listens { &endpoint } else { "tcp/127.0.0.1:0" };
    let mut settings = vec![
        ("scouting/multicast/enabled", "false".to_owned()),
        ("listen/endpoints", format!("[\"{own}\"]")),
    ];
    if !listens {
        settings.push(("connect/endpoints", format!("[\"{endpoint}\"]")));
    }
    let mut config = Config::default();
    for (key, value) in settings {
        config
            .insert_json5(key, &value)
            .map_err(|error| other(&format!("cannot set {key}"), error))?;
    }
    zenoh::open(config)
        .wait()
        .map_err(|error| other(&format!("cannot open a session at {address}"), error))
}

fn locator(session: &Session, address: &str) -> String {
    let locators = session.info().locators().wait();
    let mut locators = locators.iter().map(ToString::to_string);
    let over_tcp = locators.find(|at| at.starts_with("tcp/"));
    over_tcp.unwrap_or_else(|| address.to_owned())
}

type Acknowledged = Arc<Mutex<BTreeMap<u64, u64>>>;

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn publish(settings: &Publish, hello: &PublisherHello) -> Published {
    let session = session(&settings.address, true)?;
    let address = locator(&session, &settings.address);
    let mut lanes = Vec::new();
    for tag in &hello.tags {
        let publisher = session
            .declare_publisher(format!("felix/{tag:016x}"))
            .congestion_control(CongestionControl::Block)
            .wait()
            .map_err(|error| other("cannot declare a publisher", error))?;
        lanes.push(Lane { tag: *tag, publisher, matched: false, acknowledged: 0 });
    }
    let body = serde_json::to_vec(hello).expect("plain data");
    let key = format!("felix-hello/{:016x}", hello.stream);
    let reply_key = key.clone();
    let queryable = session
        .declare_queryable(key)
        .callback(move |query| {
            // A querier that went away needs no answer.
            let _ = query.reply(reply_key.clone(), body.clone()).wait();
        })
        .wait()
        .map_err(|error| other("cannot declare a queryable", error))?;
    let acknowledged = Acknowledged::default();
    let heard = acknowledged.clone();
    let acknowledgements = session
        .declare_subscriber(format!("felix-ack/{:016x}", hello.stream))
        .callback(move |sample| {
            let mut heard = locked(&heard);
            for pair in sample.payload().to_bytes().chunks_exact(16) {
                let word = |at: usize| {
                    u64::from_le_bytes(pair[at..at + 8].try_into().expect("eight bytes"))
                };
                let sequence = heard.entry(word(0)).or_default();
                *sequence = (*sequence).max(word(8));
            }
        })
        .wait()
        .map_err(|error| other("cannot subscribe to acknowledgements", error))?;
    let keep: Box<dyn Send> = Box::new((queryable, acknowledgements));
    Ok(Box::new(ZenohOutlet { session, address, lanes, acknowledged, _keep: keep }))
}

pub(super) fn subscribe(
    settings: &Publish,
    subscription: &Subscription,
    quit: &dyn Fn() -> bool,
) -> Result<Subscribed, TransportError> {
    let session = session(&settings.address, false)?;
    let hello = hellos(&session, quit)?;
    let wanted =
        if subscription.tags.is_empty() { hello.tags.clone() } else { subscription.tags.clone() };
    if let Some(unknown) = wanted.iter().find(|tag| !hello.tags.contains(tag)) {
        let why = format!("no E-link {unknown:#x} is published here");
        return Err(TransportError::Refused { address: settings.address.clone(), why });
    }
    let (sender, pages) = std::sync::mpsc::sync_channel::<Sample>(RECEIVE_PAGES);
    let mut subscribers = Vec::new();
    for tag in &wanted {
        let sender = sender.clone();
        let subscriber = session
            .declare_subscriber(format!("felix/{tag:016x}"))
            // A receiver that went away takes no more.
            .callback(move |sample| drop(sender.send(sample)))
            .wait()
            .map_err(|error| other("cannot subscribe", error))?;
        subscribers.push(subscriber);
    }
    let acknowledge = session
        .declare_publisher(format!("felix-ack/{:016x}", hello.stream))
        .congestion_control(CongestionControl::Block)
        .wait()
        .map_err(|error| other("cannot declare a publisher", error))?;
    let inlet = ZenohInlet {
        pages,
        acknowledge,
        had: BTreeMap::new(),
        sample: None,
        body: Vec::new(),
        _subscribers: subscribers,
        session,
    };
    Ok((Box::new(inlet), hello))
}
/// Asks for the publisher of an address.
fn hellos(session: &Session, quit: &dyn Fn() -> bool) -> Result<PublisherHello, TransportError> {
    for _ in 0..20 {
        if quit() {
            break;
        }
        let replies = session
            .get("felix-hello/*")
            .wait()
            .map_err(|error| other("cannot ask for publishers", error))?;
        while let Ok(reply) = replies.recv() {
            let Ok(sample) = reply.result() else { continue };
            if let Ok(hello) = from_peer::<PublisherHello>(&sample.payload().to_bytes()) {
                return Ok(hello);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(TransportError::Other("zenoh: there is no publisher".to_owned()))
}

struct Lane {
    tag: u64,
    publisher: Publisher<'static>,
    matched: bool,
    acknowledged: u64,
}

struct ZenohOutlet {
    session: Session,
    address: String,
    lanes: Vec<Lane>,
    acknowledged: Acknowledged,
    _keep: Box<dyn Send>,
}

impl Drop for ZenohOutlet {
    fn drop(&mut self) {
        // Data on its way arrives before the session ends.
        let _ = self.session.close().wait();
    }
}

impl PageOutlet for ZenohOutlet {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn facts(&self) -> String {
        format!("zenoh id {}", self.session.zid())
    }

    fn poll(&mut self, events: &mut Vec<OutletEvent>) {
        let heard = locked(&self.acknowledged).clone();
        for (dest, lane) in self.lanes.iter_mut().enumerate() {
            let matches =
                lane.publisher.matching_status().wait().is_ok_and(|status| status.matching());
            if matches != lane.matched {
                lane.matched = matches;
                events.push(if matches {
                    let subscription = Subscription {
                        receiver: lane.tag,
                        last_page: lane.acknowledged,
                        tags: vec![lane.tag],
                    };
                    OutletEvent::Subscribed { dest, subscription }
                } else {
                    OutletEvent::Gone { dest, why: "closed by the receiver".to_owned() }
                });
            }
            if let Some(&sequence) = heard.get(&lane.tag)
                && sequence > lane.acknowledged
            {
                lane.acknowledged = sequence;
                events.push(OutletEvent::Acknowledged { dest, sequence });
            }
        }
        // Acknowledgements of a subscriber come before its departure.
        events.sort_by_key(|event| matches!(event, OutletEvent::Gone { .. }));
    }

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[u8]) -> Sent {
        let Some(lane) = self.lanes.get(dest) else {
            return Sent::Gone;
        };
        let mut bytes = Vec::with_capacity(FRAME_BYTES + frame.body_bytes as usize);
        bytes.extend_from_slice(&frame.emit());
        bytes.extend_from_slice(body);
        match lane.publisher.put(ZBytes::from(bytes)).wait() {
            Ok(()) => Sent::Done,
            Err(_) => Sent::Gone,
        }
    }

    fn close(&mut self, dest: usize) {
        if let Some(lane) = self.lanes.get_mut(dest) {
            lane.matched = false;
        }
    }

    fn is_per_elink(&self) -> bool {
        true
    }
}

struct ZenohInlet {
    /// Pages of all subscribed E-links, in the order of arrival. When it is full, Zenoh waits, and
    /// so does the publisher.
    pages: std::sync::mpsc::Receiver<Sample>,
    acknowledge: Publisher<'static>,
    /// Last page of each tag that is not acknowledged.
    had: BTreeMap<u64, u64>,
    sample: Option<Sample>,
    body: Vec<u8>,
    _subscribers: Vec<Subscriber<()>>,
    session: Session,
}

impl Drop for ZenohInlet {
    fn drop(&mut self) {
        // The publisher sees at once that the subscriber is gone.
        let _ = self.session.close().wait();
    }
}

impl PageInlet for ZenohInlet {
    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        // Memory that the publisher maps, too, is free again.
        self.sample = None;
        let next = if wait.is_zero() {
            self.pages.try_recv().ok()
        } else {
            self.pages.recv_timeout(wait).ok()
        };
        let Some(sample) = next else { return Ok(None) };
        let sample = self.sample.insert(sample);
        let bytes = contiguous(sample.payload(), &mut self.body);
        let head = bytes.first_chunk::<FRAME_BYTES>();
        let head =
            head.ok_or_else(|| TransportError::Other("zenoh: a page without a header".to_owned()))?;
        let frame = FelixFrame::parse(head)
            .map_err(|error| TransportError::Other(format!("{}: {error}", sample.key_expr())))?;
        if frame.kind == FrameKind::Messages
            && let Some(tag) = sample.key_expr().as_str().rsplit('/').next()
            && let Ok(tag) = u64::from_str_radix(tag, 16)
        {
            self.had.insert(tag, frame.sequence);
        }
        Ok(Some((frame, &bytes[FRAME_BYTES..])))
    }

    fn acknowledge(&mut self, _sequence: u64) -> Result<(), TransportError> {
        let mut bytes = Vec::with_capacity(16 * self.had.len());
        for (tag, sequence) in std::mem::take(&mut self.had) {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
        }
        self.acknowledge
            .put(ZBytes::from(bytes))
            .wait()
            .map_err(|error| other("cannot acknowledge", error))
    }
}

/// Bytes of a payload, copied together only if they are in several pieces.
fn contiguous<'a>(payload: &'a ZBytes, body: &'a mut Vec<u8>) -> &'a [u8] {
    let mut pieces = payload.slices();
    match (pieces.next(), pieces.next()) {
        (Some(only), None) => only,
        _ => {
            body.clear();
            payload.slices().for_each(|piece| body.extend_from_slice(piece));
            body
        }
    }
}
