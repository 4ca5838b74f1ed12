//! Pages over TCP: frames one after the other, nothing else.
//!
//! The publisher listens and never blocks; a page that the socket does not take is offered again
//! where it stopped. The receiver reads large pieces and lends frames out of its buffer.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use daqmeter_harness::frames::{FrameStream, MAX_CONTROL_BYTES, message_frame};
use daqmeter_sys::net::set_congestion;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};
use socket2::SockRef;

use super::{
    OutletEvent, PageInlet, PageOutlet, Published, PublisherHello, Sent, Subscribed, Subscription,
    TransportError,
};
use crate::peer::from_peer;
use crate::scenario::Publish;

/// Longest page or account; it bounds the memory that a publisher can ask for.
pub const MAX_BODY_BYTES: usize = 4 << 20;
/// Time after which a connection without a subscription is dropped; limit of the wait for a
/// greeting.
const SUBSCRIBE_WITHIN: Duration = Duration::from_secs(5);
/// A publisher takes an acknowledgement within this time; it looks every 20 ms.
const WRITE_WITHIN: Duration = Duration::from_secs(1);
/// Connections that have not subscribed; for a further one the oldest is dropped.
const MAX_WAITING: usize = 32;
/// Frames from one connection before the next has its turn.
const MAX_FRAMES: usize = 256;

pub(crate) fn publish(settings: &Publish, hello: &PublisherHello) -> Published {
    let listen = || {
        let listener = TcpListener::bind(&settings.address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = listen().map_err(|error: io::Error| {
        TransportError::Other(format!("cannot listen on {}: {error}", settings.address))
    })?;
    // Accepted sockets inherit the congestion control. A host without it keeps its own, and
    // the record says which.
    let _ = set_congestion(&listener, &settings.congestion);
    let hello = message_frame(FrameKind::Hello, hello);
    Ok(Box::new(TcpOutlet { listener, hello, connections: Vec::new() }))
}

pub(crate) fn subscribe(
    settings: &Publish,
    subscription: &Subscription,
    quit: &dyn Fn() -> bool,
) -> Result<Subscribed, TransportError> {
    let address = settings.address.clone();
    let mut frames = FrameStream::connect(&address, MAX_BODY_BYTES)
        .map_err(|error| TransportError::Other(format!("cannot connect to {address}: {error}")))?;
    let _ = set_congestion(frames.stream(), &settings.congestion);
    let lost = |error| lost(&address, &error);
    let wrong = |why: String| TransportError::Other(format!("{address}{why}"));
    let hello: PublisherHello = match frames.receive(SUBSCRIBE_WITHIN, quit).map_err(lost)? {
        Some((FelixFrame { kind: FrameKind::Hello, .. }, body)) => {
            from_peer(body).map_err(|why| wrong(format!(": its greeting is refused: {why}")))?
        }
        Some((frame, _)) => return Err(wrong(format!(": begins with {:?}", frame.kind))),
        None => return Err(wrong(" says nothing: is it a daqmeter readout publisher?".to_owned())),
    };
    frames.say(FrameKind::Subscribe, subscription, WRITE_WITHIN).map_err(lost)?;
    Ok((Box::new(TcpInlet { frames, address }), hello))
}

struct TcpOutlet {
    listener: TcpListener,
    hello: (FelixFrame, Vec<u8>),
    /// Connections by their numbers.
    connections: Vec<Option<Connection>>,
}

struct Connection {
    frames: FrameStream,
    peer: String,
    since: Instant,
    greeted: bool,
    subscribed: bool,
    broken: Option<String>,
}

impl PageOutlet for TcpOutlet {
    fn address(&self) -> String {
        let address = self.listener.local_addr();
        address.map_or_else(|_| "closed".to_owned(), |address| address.to_string())
    }

    fn facts(&self) -> String {
        let name = SockRef::from(&self.listener).tcp_congestion().unwrap_or_default();
        let name = String::from_utf8_lossy(&name);
        format!("congestion control {}", name.trim_end_matches('\0'))
    }

    fn poll(&mut self, events: &mut Vec<OutletEvent>) {
        for _ in 0..MAX_WAITING {
            let Ok((stream, peer)) = self.listener.accept() else {
                break;
            };
            self.admit(stream, peer.to_string());
        }
        for (dest, place) in self.connections.iter_mut().enumerate() {
            let Some(connection) = place else { continue };
            connection.serve(dest, &self.hello, events);
            if let Some(why) = connection.broken.take() {
                if connection.subscribed {
                    let why = format!("{}: {why}", connection.peer);
                    events.push(OutletEvent::Gone { dest, why });
                }
                *place = None;
            }
        }
    }

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[u8]) -> Sent {
        match self.connections.get_mut(dest) {
            Some(Some(connection)) => connection.send(frame, body),
            _ => Sent::Gone,
        }
    }

    fn close(&mut self, dest: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(dest) {
            connection.broken.get_or_insert_with(|| "given up".to_owned());
        }
    }
}

impl TcpOutlet {
    /// Admits a new connection. With too many unsubscribed ones, the one that has waited longest
    /// goes.
    fn admit(&mut self, stream: TcpStream, peer: String) {
        let Ok(frames) = FrameStream::new(stream, MAX_CONTROL_BYTES) else { return };
        let connection = Connection {
            frames,
            peer,
            since: Instant::now(),
            greeted: false,
            subscribed: false,
            broken: None,
        };
        let since = |place: &Option<Connection>| {
            place.as_ref().filter(|one| !one.subscribed).map(|one| one.since)
        };
        let all = self.connections.iter().enumerate();
        let waiting = all.filter_map(|(at, place)| Some((since(place)?, at)));
        let at = if waiting.clone().count() >= MAX_WAITING {
            waiting.min().map(|(_, at)| at)
        } else {
            self.connections.iter().position(Option::is_none)
        };
        match at {
            Some(at) => self.connections[at] = Some(connection),
            None => self.connections.push(Some(connection)),
        }
    }
}

impl Connection {
    fn send(&mut self, frame: &FelixFrame, body: &[u8]) -> Sent {
        if self.broken.is_some() {
            return Sent::Gone;
        }
        // Nothing goes between the parts of a greeting.
        match self.greeted.then(|| self.frames.offer(frame, [body, &[]])) {
            Some(Ok(true)) => Sent::Done,
            Some(Ok(false)) | None => Sent::Blocked,
            Some(Err(error)) => {
                self.broken = Some(error.to_string());
                Sent::Gone
            }
        }
    }

    fn serve(&mut self, dest: usize, hello: &(FelixFrame, Vec<u8>), events: &mut Vec<OutletEvent>) {
        let failed = self.listen(dest, hello, events).err();
        let is_late = !self.subscribed && self.since.elapsed() > SUBSCRIBE_WITHIN;
        let late = is_late.then(|| "said nothing".to_owned());
        self.broken = self.broken.take().or(failed).or(late);
    }

    /// Greets, and takes the frames that came. Fails if the receiver is gone or breaks the
    /// protocol.
    fn listen(
        &mut self,
        dest: usize,
        (frame, hello): &(FelixFrame, Vec<u8>),
        events: &mut Vec<OutletEvent>,
    ) -> Result<(), String> {
        let closed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "closed by the receiver".to_owned(),
            _ => error.to_string(),
        };
        self.greeted = self.greeted || self.frames.offer(frame, [hello, &[]]).map_err(closed)?;
        for _ in 0..MAX_FRAMES {
            let next = self.frames.receive(Duration::ZERO, &|| false);
            let Some((frame, body)) = next.map_err(closed)? else { break };
            match frame.kind {
                FrameKind::Subscribe if !self.subscribed => {
                    let subscription = from_peer(body)
                        .map_err(|why| format!("its subscription is refused: {why}"))?;
                    self.subscribed = true;
                    events.push(OutletEvent::Subscribed { dest, subscription });
                }
                FrameKind::Acknowledge if self.subscribed => {
                    events.push(OutletEvent::Acknowledged { dest, sequence: frame.sequence });
                }
                kind => return Err(format!("sent a frame of kind {kind:?}")),
            }
        }
        Ok(())
    }
}

struct TcpInlet {
    frames: FrameStream,
    address: String,
}

fn lost(address: &str, error: &io::Error) -> TransportError {
    TransportError::Other(format!("lost {address}: {error}"))
}

impl PageInlet for TcpInlet {
    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        match self.frames.receive(wait, &|| false) {
            Ok(Some((FelixFrame { kind: FrameKind::Refused, .. }, body))) => {
                let why = String::from_utf8_lossy(body);
                Err(TransportError::Refused(format!("{} refuses: {why}", self.address)))
            }
            received => received.map_err(|error| lost(&self.address, &error)),
        }
    }

    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError> {
        let frame = FelixFrame { sequence, ..FelixFrame::control(FrameKind::Acknowledge, 0) };
        let sent = self.frames.send(&frame, [&[], &[]], WRITE_WITHIN);
        sent.map_err(|error| lost(&self.address, &error))
    }
}
