//! Pages over TCP: frames one after the other, nothing else.
//!
//! The publisher listens and never blocks; a page that the socket does not take is offered again
//! where it stopped. The receiver reads large pieces and lends frames out of its buffer.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use daqmeter_sys::net::{Readiness, wait_ready};
use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind};
use socket2::{SockRef, TcpKeepalive};
use std::os::fd::AsFd;

use super::{
    OutletEvent, PageInlet, PageOutlet, PageTransport, PublisherHello, Sent, Subscription,
    TransportError,
};
use crate::peer::from_peer;
use crate::scenario::Publish;

#[derive(Clone, Copy, Debug)]
pub struct TcpTransport;

/// Largest greeting or subscription: every E-link of a channel with 20 digits is below 20 KB.
const MAX_CONTROL_BYTES: usize = 64 << 10;
/// Time after which a connection without a subscription is dropped; limit of the wait for a
/// greeting.
const SUBSCRIBE_WITHIN: Duration = Duration::from_secs(5);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A publisher takes an acknowledgement within this time; it looks every 20 ms.
const WRITE_WITHIN: Duration = Duration::from_secs(1);
/// Connections that have not subscribed; for a further one the oldest is dropped.
const MAX_WAITING: usize = 32;
/// Reads from one connection before the next has its turn.
const MAX_READS: usize = 16;

impl PageTransport for TcpTransport {
    fn publish(
        &self,
        settings: &Publish,
        hello: &PublisherHello,
    ) -> Result<Box<dyn PageOutlet>, TransportError> {
        let listen = || {
            let listener = TcpListener::bind(resolve(&settings.address)?)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|error: io::Error| {
            TransportError::Other(format!("cannot listen on {}: {error}", settings.address))
        })?;
        // Accepted sockets inherit the congestion control.
        let congestion = set_congestion(&SockRef::from(&listener), &settings.congestion);
        let body = serde_json::to_vec(hello).expect("plain data");
        let mut greeting =
            FelixFrame::control(FrameKind::Hello, body.len().try_into().unwrap_or(u32::MAX))
                .emit()
                .to_vec();
        greeting.extend_from_slice(&body);
        Ok(Box::new(TcpOutlet {
            listener,
            greeting,
            congestion,
            connections: BTreeMap::new(),
            next: 0,
        }))
    }

    fn subscribe(
        &self,
        settings: &Publish,
        subscription: &Subscription,
        quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PageInlet>, TransportError> {
        let address = settings.address.clone();
        let connect = || {
            let stream = TcpStream::connect_timeout(&resolve(&address)?, CONNECT_WITHIN)?;
            set_congestion(&SockRef::from(&stream), &settings.congestion);
            prepare(&stream)?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: io::Error| {
            TransportError::Other(format!("cannot connect to {address}: {error}"))
        })?;
        let mut inlet = TcpInlet {
            stream,
            address,
            buffer: vec![0; RECEIVE_BYTES],
            begin: 0,
            end: 0,
            hello: PublisherHello::default(),
        };
        inlet.hello = inlet.greeted(quit)?;
        let body = serde_json::to_vec(subscription).expect("plain data");
        let frame = FelixFrame::control(
            FrameKind::Subscribe,
            u32::try_from(body.len()).unwrap_or(u32::MAX),
        );
        inlet.write(&[&frame.emit()[..], &body].concat())?;
        Ok(Box::new(inlet))
    }
}

fn resolve(address: &str) -> io::Result<std::net::SocketAddr> {
    let none = || io::Error::new(ErrorKind::NotFound, "not an address; write host:port");
    address.to_socket_addrs().map_err(|_| none())?.next().ok_or_else(none)
}

/// Sets the congestion control, and returns the one in force.
fn set_congestion(socket: &SockRef<'_>, wanted: &str) -> String {
    if wanted != "default" {
        // A host without it keeps its own, and the record says which.
        let _ = socket.set_tcp_congestion(wanted.as_bytes());
    }
    let name = socket.tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

struct TcpOutlet {
    listener: TcpListener,
    greeting: Vec<u8>,
    congestion: String,
    connections: BTreeMap<usize, Connection>,
    next: usize,
}

struct Connection {
    stream: TcpStream,
    peer: String,
    since: Instant,
    greeted: usize,
    heard: Vec<u8>,
    subscribed: bool,
    offset: usize,
    broken: Option<String>,
}

impl PageOutlet for TcpOutlet {
    fn address(&self) -> String {
        self.listener
            .local_addr()
            .map_or_else(|_| "closed".to_owned(), |address| address.to_string())
    }

    fn facts(&self) -> String {
        format!("congestion control {}", self.congestion)
    }

    fn poll(&mut self, events: &mut Vec<OutletEvent>) {
        for _ in 0..MAX_WAITING {
            let Ok((stream, peer)) = self.listener.accept() else {
                break;
            };
            if prepare(&stream).is_ok() {
                self.admit(stream, peer.to_string());
            }
        }
        for (&dest, connection) in &mut self.connections {
            connection.greet(&self.greeting);
            connection.listen(dest, events);
            if !connection.subscribed && connection.since.elapsed() > SUBSCRIBE_WITHIN {
                connection.broken.get_or_insert_with(|| "said nothing".to_owned());
            }
        }
        self.connections.retain(|&dest, connection| {
            let Some(why) = connection.broken.take() else {
                return true;
            };
            if connection.subscribed {
                events.push(OutletEvent::Gone { dest, why: format!("{}: {why}", connection.peer) });
            }
            false
        });
    }

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[IoSlice<'_>]) -> Sent {
        let Some(connection) = self.connections.get_mut(&dest) else {
            return Sent::Gone;
        };
        connection.send(frame, body)
    }

    fn close(&mut self, dest: usize) {
        if let Some(connection) = self.connections.get_mut(&dest) {
            connection.broken.get_or_insert_with(|| "given up".to_owned());
        }
    }
}

impl TcpOutlet {
    /// Admits a new connection. With too many unsubscribed ones, the one that has waited longest
    /// goes.
    fn admit(&mut self, stream: TcpStream, peer: String) {
        let waiting = |(_, connection): &(&usize, &Connection)| !connection.subscribed;
        if self.connections.iter().filter(waiting).count() >= MAX_WAITING
            && let Some(oldest) = self.connections.iter().find(waiting).map(|(dest, _)| *dest)
        {
            self.connections.remove(&oldest);
        }
        let connection = Connection {
            stream,
            peer,
            since: Instant::now(),
            greeted: 0,
            heard: Vec::new(),
            subscribed: false,
            offset: 0,
            broken: None,
        };
        self.connections.insert(self.next, connection);
        self.next += 1;
    }
}

const MAX_PARTS: usize = 64;

impl Connection {
    fn send(&mut self, frame: &FelixFrame, body: &[IoSlice<'_>]) -> Sent {
        if self.broken.is_some() {
            return Sent::Gone;
        }
        let head = frame.emit();
        let total = FRAME_BYTES + frame.body_bytes as usize;
        while self.offset < total {
            let mut parts = [IoSlice::new(&[]); MAX_PARTS];
            let used = rest(&head, body, self.offset, &mut parts);
            match self.stream.write_vectored(&parts[..used]) {
                Ok(0) => return self.fail("closed"),
                Ok(written) => self.offset += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Sent::Blocked,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.fail(&error.to_string()),
            }
        }
        self.offset = 0;
        Sent::Done
    }

    fn greet(&mut self, greeting: &[u8]) {
        while self.greeted < greeting.len() && self.broken.is_none() {
            match self.stream.write(&greeting[self.greeted..]) {
                Ok(written) => self.greeted += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.broken = Some(error.to_string()),
            }
        }
    }

    fn fail(&mut self, why: &str) -> Sent {
        self.broken = Some(why.to_owned());
        Sent::Gone
    }

    fn listen(&mut self, dest: usize, events: &mut Vec<OutletEvent>) {
        let mut room = [0; 4096];
        let mut acknowledged = None;
        for _ in 0..MAX_READS {
            match self.stream.read(&mut room) {
                Ok(0) => self.broken = Some("closed by the receiver".to_owned()),
                Ok(got) => self.heard.extend_from_slice(&room[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.broken = Some(error.to_string()),
            }
            if let Err(why) = self.frames(dest, events, &mut acknowledged) {
                self.broken = Some(why);
            }
            if self.broken.is_some() {
                break;
            }
        }
        if let Some(sequence) = acknowledged {
            events.push(OutletEvent::Acknowledged { dest, sequence });
        }
    }

    /// Takes whole frames out of the received bytes. Only the last acknowledgement counts. Fails if
    /// the receiver breaks the protocol.
    fn frames(
        &mut self,
        dest: usize,
        events: &mut Vec<OutletEvent>,
        acknowledged: &mut Option<u64>,
    ) -> Result<(), String> {
        let mut at = 0;
        while let Some(head) = self.heard[at..].first_chunk::<FRAME_BYTES>() {
            let frame = FelixFrame::parse(head).map_err(|error| error.to_string())?;
            let most = if frame.kind == FrameKind::Subscribe { MAX_CONTROL_BYTES } else { 0 };
            if frame.body_bytes as usize > most {
                return Err(format!(
                    "a frame of kind {:?} with {} bytes",
                    frame.kind, frame.body_bytes
                ));
            }
            let end = at + FRAME_BYTES + frame.body_bytes as usize;
            let Some(body) = self.heard.get(at + FRAME_BYTES..end) else {
                break;
            };
            match frame.kind {
                FrameKind::Subscribe if !self.subscribed => {
                    let subscription = from_peer(body)
                        .map_err(|why| format!("its subscription is refused: {why}"))?;
                    self.subscribed = true;
                    events.push(OutletEvent::Subscribed { dest, subscription });
                }
                FrameKind::Acknowledge if self.subscribed => *acknowledged = Some(frame.sequence),
                kind => return Err(format!("sent a frame of kind {kind:?}")),
            }
            at = end;
        }
        self.heard.drain(..at);
        Ok(())
    }
}

fn rest<'a>(
    head: &'a [u8],
    body: &'a [IoSlice<'a>],
    offset: usize,
    parts: &mut [IoSlice<'a>; MAX_PARTS],
) -> usize {
    let mut skip = offset;
    let mut used = 0;
    for piece in std::iter::once(head).chain(body.iter().map(|slice| &**slice)) {
        if skip >= piece.len() {
            skip -= piece.len();
        } else if used < MAX_PARTS {
            parts[used] = IoSlice::new(&piece[skip..]);
            skip = 0;
            used += 1;
        }
    }
    used
}

fn hello(body: &[u8]) -> Result<PublisherHello, String> {
    if body.len() > MAX_CONTROL_BYTES {
        return Err(format!(
            ": its greeting has {} bytes; at most {MAX_CONTROL_BYTES} are taken",
            body.len()
        ));
    }
    from_peer(body).map_err(|why| format!(": its greeting is refused: {why}"))
}

const RECEIVE_BYTES: usize = 1 << 20;

struct TcpInlet {
    stream: TcpStream,
    address: String,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    hello: PublisherHello,
}

impl TcpInlet {
    fn lost(&self, error: io::Error) -> TransportError {
        TransportError::Other(format!("lost {}: {error}", self.address))
    }

    fn greeted(&mut self, quit: &dyn Fn() -> bool) -> Result<PublisherHello, TransportError> {
        let address = self.address.clone();
        let other = |line: String| TransportError::Other(format!("{address}{line}"));
        let since = Instant::now();
        while since.elapsed() < SUBSCRIBE_WITHIN && !quit() {
            match self.receive(Duration::from_millis(100))? {
                Some((FelixFrame { kind: FrameKind::Hello, .. }, body)) => {
                    return hello(body).map_err(other);
                }
                Some((frame, _)) => {
                    return Err(other(format!(": begins with {:?}", frame.kind)));
                }
                None => {}
            }
        }
        Err(other(" says nothing: is it a daqmeter readout publisher?".to_owned()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let mut done = 0;
        let since = Instant::now();
        while done < bytes.len() {
            match self.stream.write(&bytes[done..]) {
                Ok(written) => done += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let Some(left) = WRITE_WITHIN.checked_sub(since.elapsed()) else {
                        return Err(self.lost(ErrorKind::TimedOut.into()));
                    };
                    let wanted = Readiness { read: false, write: true };
                    wait_ready(self.stream.as_fd(), wanted, Some(left))
                        .map_err(|error| self.lost(error))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(())
    }

    /// Head of the next frame, if it is there, and the bytes to which the frame is wanted.
    fn next(&self) -> Result<(Option<FelixFrame>, usize), TransportError> {
        let Some(head) = self.buffer[self.begin..self.end].first_chunk::<FRAME_BYTES>() else {
            return Ok((None, FRAME_BYTES));
        };
        let frame = FelixFrame::parse(head)
            .map_err(|error| TransportError::Other(format!("{}: {error}", self.address)))?;
        Ok((Some(frame), FRAME_BYTES + frame.body_bytes as usize))
    }

    fn make_room(&mut self, wanted: usize) {
        if self.begin + wanted > self.buffer.len() || self.begin == self.end {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted, 0);
        }
    }
}

impl PageInlet for TcpInlet {
    fn hello(&self) -> &PublisherHello {
        &self.hello
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        // Data that comes byte by byte must not hold up the wait for a frame.
        let mut end = None;
        let frame = loop {
            let (frame, wanted) = self.next()?;
            if let Some(frame) = frame.filter(|_| self.end - self.begin >= wanted) {
                break frame;
            }
            self.make_room(wanted);
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
                Ok(got) => self.end += got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if wait.is_zero() {
                        return Ok(None);
                    }
                    let now = Instant::now();
                    let left = end.get_or_insert(now + wait).saturating_duration_since(now);
                    if left.is_zero() {
                        return Ok(None);
                    }
                    let wanted = Readiness { read: true, write: false };
                    wait_ready(self.stream.as_fd(), wanted, Some(left))
                        .map_err(|error| self.lost(error))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        };
        let body = self.begin + FRAME_BYTES;
        self.begin = body + frame.body_bytes as usize;
        let body = &self.buffer[body..self.begin];
        if frame.kind == FrameKind::Refused {
            let why = String::from_utf8_lossy(body).into_owned();
            return Err(TransportError::Refused { address: self.address.clone(), why });
        }
        Ok(Some((frame, body)))
    }

    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError> {
        let frame = FelixFrame { sequence, ..FelixFrame::control(FrameKind::Acknowledge, 0) };
        self.write(&frame.emit())
    }
}
