//! The server: one loop, many clients, UDP and TCP, IPv4 and IPv6, both framings and both dialects
//! on one port.
//! Nothing in the loop waits for one client. Sockets do not block, and half cycles wait in their
//! connection. Untaken answers fill the client's own buffer until it is no longer read from.
//! Delayed answers wait in a queue.

mod connection;
mod datagrams;
mod listen;
mod running;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::net::{Epoll, Readiness};
use daqmeter_sys::{affinity, tty};
use socket2::SockAddr;

pub use self::running::{Running, Stopper};
use crate::EbError;
use crate::address::Address;
use crate::bus::Access;
use crate::slave::{Slave, SlaveCounts};
use crate::transport::{connect_tcp, open_device};
use connection::{Connection, Ended};
use listen::listen_on;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Addresses to listen on; a family that the host lacks is left out, unless it is the only one.
    pub bind: Vec<IpAddr>,
    pub port: u16,
    /// Port of the asker for answers in datagrams, as in LiteEth; the default is its source port.
    pub reply_port: Option<u16>,
    /// Silence after which TCP clients get a banner: LiteX clients wait for one.
    pub banner_after: Option<Duration>,
    pub cycle_timeout: Duration,
    pub pty: bool,
    pub passive: Option<Address>,
    pub max_connections: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            bind: vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
            port: daqmeter_wire::etherbone::PORT,
            reply_port: None,
            banner_after: Some(Duration::from_millis(100)),
            cycle_timeout: Duration::from_secs(5),
            pty: false,
            passive: None,
            max_connections: 10_000,
        }
    }
}

impl ServerOptions {
    pub fn loopback() -> ServerOptions {
        ServerOptions {
            bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: 0,
            ..ServerOptions::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    Access(Access),
    Connected(String),
    /// The end of a stream, with the reason if the client did not close it.
    Ended(String, Option<String>),
}

#[derive(Debug, Default)]
pub struct LiveCounts(Mutex<(SlaveCounts, usize)>);

impl LiveCounts {
    pub fn get(&self) -> (SlaveCounts, usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Destination {
    Datagram { socket: usize, to: SockAddr },
    Connection(u64),
}

const WAKE: u64 = 0;
const FIRST_UDP: u64 = 1;
const FIRST_TCP: u64 = 100;
const FIRST_CONNECTION: u64 = 1000;

const MAX_WAITING_BYTES: usize = 256 << 20;

const SWEEP: Duration = Duration::from_millis(50);

pub struct EbServer {
    slave: Slave,
    options: ServerOptions,
    epoll: Epoll,
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
    connections: BTreeMap<u64, Connection>,
    waiting_bytes: usize,
    next_connection: u64,
    delayed: BTreeMap<(u64, u64), (Destination, Vec<u8>)>,
    delayed_count: u64,
    next_sweep_ns: u64,
    buffer: Vec<u8>,
    answer: Vec<u8>,
    lengths: Vec<usize>,
    waker: Arc<UnixStream>,
    woken: UnixStream,
    stop: Arc<AtomicBool>,
    log: Option<Box<dyn FnMut(ServerEvent) + Send>>,
    live: Arc<LiveCounts>,
    pty: Option<tty::Pty>,
}

/// Bytes read at once from a stream or as a batch of datagrams.
const BUFFER_BYTES: usize = 256 * 1024;

impl EbServer {
    pub fn bind(slave: Slave, options: ServerOptions) -> Result<EbServer, EbError> {
        let epoll = Epoll::new().map_err(EbError::io("cannot make an epoll set"))?;
        let (waker, woken) =
            UnixStream::pair().map_err(EbError::io("cannot make a socket pair"))?;
        epoll.add(&woken, WAKE, READ).map_err(EbError::io("epoll"))?;
        let mut server = EbServer {
            slave,
            epoll,
            udp: Vec::new(),
            tcp: Vec::new(),
            connections: BTreeMap::new(),
            waiting_bytes: 0,
            next_connection: FIRST_CONNECTION,
            delayed: BTreeMap::new(),
            delayed_count: 0,
            next_sweep_ns: 0,
            buffer: vec![0; BUFFER_BYTES],
            answer: Vec::new(),
            lengths: Vec::new(),
            waker: Arc::new(waker),
            woken,
            stop: Arc::default(),
            log: None,
            live: Arc::default(),
            pty: None,
            options,
        };
        server.listen()?;
        server.serve_devices()?;
        Ok(server)
    }

    fn listen(&mut self) -> Result<(), EbError> {
        let mut port = self.options.port;
        let mut refused = None;
        for ip in self.options.bind.clone() {
            match listen_on(ip, port) {
                Ok((udp, tcp)) => {
                    port = udp.local_addr().map_err(EbError::io("cannot read a port"))?.port();
                    let (udp_key, tcp_key) =
                        (FIRST_UDP + self.udp.len() as u64, FIRST_TCP + self.tcp.len() as u64);
                    let watched = self.epoll.add(&udp, udp_key, READ);
                    watched
                        .and_then(|()| self.epoll.add(&tcp, tcp_key, READ))
                        .map_err(EbError::io("epoll"))?;
                    self.udp.push(udp);
                    self.tcp.push(tcp);
                }
                Err(error) => {
                    let is_absent = matches!(error.raw_os_error(), Some(97 | 99));
                    let what = format!("cannot listen on {}", SocketAddr::new(ip, port));
                    let fault = EbError::io(what)(error);
                    if !is_absent {
                        return Err(fault);
                    }
                    refused = Some(fault);
                }
            }
        }
        match refused {
            Some(fault) if self.udp.is_empty() => Err(fault),
            _ => Ok(()),
        }
    }

    fn serve_devices(&mut self) -> Result<(), EbError> {
        if self.options.pty {
            let pty = tty::open_pty()?;
            let master = pty.master.try_clone().map_err(EbError::io("cannot use the terminal"))?;
            self.add(Connection::new(master, pty.path.clone(), true))?;
            self.pty = Some(pty);
        }
        match self.options.passive.clone() {
            None => Ok(()),
            Some(Address::Tcp(family, host)) => {
                let stream = connect_tcp(&host, family, Duration::from_secs(5))?;
                stream.set_nonblocking(true).map_err(EbError::io("cannot set O_NONBLOCK"))?;
                let name = format!("{}/{}", host.name, host.port);
                self.add(Connection::new(OwnedFd::from(stream).into(), name, false))
            }
            Some(Address::Dev(name)) => {
                let file = open_device(&name)?;
                self.add(Connection::new(file, format!("/dev/{name}"), true))
            }
            Some(other) => Err(EbError::Unsupported(format!(
                "{other} is not a stream that can be served (tcp/..., dev/...)"
            ))),
        }
    }

    pub fn set_log(&mut self, log: impl FnMut(ServerEvent) + Send + 'static) {
        self.log = Some(Box::new(log));
    }

    pub fn port(&self) -> u16 {
        let address = self.udp.first().and_then(|socket| socket.local_addr().ok());
        address.map_or(0, |address| address.port())
    }

    /// Returns the path of the pseudo-terminal, if one is served.
    pub fn pty_path(&self) -> Option<&str> {
        self.pty.as_ref().map(|pty| pty.path.as_str())
    }

    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), waker: self.waker.clone() }
    }

    pub fn counts(&self) -> SlaveCounts {
        self.slave.counts
    }

    pub fn live(&self) -> Arc<LiveCounts> {
        self.live.clone()
    }

    /// Serves in a thread of its own, pinned to the CPU or with the affinity of the caller.
    pub fn spawn(mut self, cpu: Option<u32>) -> Result<Running, EbError> {
        let (port, stopper) = (self.port(), self.stopper());
        let (ready, pinned) = std::sync::mpsc::channel();
        let body = move || {
            let placed = cpu.map_or(Ok(()), |cpu| affinity::pin_to(cpu).map(drop));
            let serve = placed.is_ok();
            let _ = ready.send(placed);
            if serve { self.run().map(|()| self.counts()) } else { Ok(self.counts()) }
        };
        let thread = std::thread::Builder::new().name("eb-server".to_owned()).spawn(body);
        let thread = thread.map_err(EbError::io("cannot start a thread"))?;
        let running = Running { port, stopper, thread: Some(thread) };
        match pinned.recv() {
            Ok(Ok(())) => Ok(running),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(EbError::Unsupported("the server's thread ended at once".to_owned())),
        }
    }

    pub fn run(&mut self) -> Result<(), EbError> {
        let mut ready = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            self.epoll.wait(timeout, &mut ready).map_err(EbError::io("cannot wait"))?;
            let now_ns = monotonic_ns();
            for &(key, readiness) in &ready {
                self.serve(now_ns, key, readiness);
            }
            if !self.delayed.is_empty() {
                self.send_due();
            }
            if now_ns >= self.next_sweep_ns && !self.connections.is_empty() {
                self.sweep(now_ns);
            }
            if let Ok(mut live) = self.live.0.try_lock() {
                *live = (self.slave.counts, self.connections.len());
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        let sweep_ns = if self.connections.is_empty() { None } else { Some(self.next_sweep_ns) };
        let due_ns = self.delayed.first_key_value().map(|((due_ns, _), _)| *due_ns);
        let next_ns = [sweep_ns, due_ns].into_iter().flatten().min()?;
        let left_ns = next_ns.saturating_sub(monotonic_ns());
        // Wake-ups are tens of microseconds late: the loop spins for earlier events.
        Some(Duration::from_nanos(if due_ns == Some(next_ns) {
            left_ns.saturating_sub(60_000)
        } else {
            left_ns
        }))
    }

    fn serve(&mut self, now_ns: u64, key: u64, readiness: Readiness) {
        match key {
            // The byte only wakes the loop, which checks its condition.
            WAKE => drop(io::Read::read(&mut &self.woken, &mut [0; 16])),
            FIRST_UDP..FIRST_TCP => {
                self.serve_datagrams(now_ns, usize::try_from(key - FIRST_UDP).expect("few sockets"))
            }
            FIRST_TCP..FIRST_CONNECTION => {
                self.accept(now_ns, usize::try_from(key - FIRST_TCP).expect("few sockets"))
            }
            key => self.serve_connection(now_ns, key, readiness),
        }
    }

    fn tell(&mut self, event: ServerEvent) {
        if let Some(log) = &mut self.log {
            log(event);
        }
    }

    fn tell_accesses(&mut self) {
        if let (true, Some(log)) = (self.slave.log, &mut self.log) {
            for access in self.slave.accesses.drain(..) {
                log(ServerEvent::Access(access));
            }
        }
    }

    fn accept(&mut self, now_ns: u64, listener: usize) {
        // One connection is accepted per turn; the loop comes back while there are more.
        let Ok((stream, peer)) = self.tcp[listener].accept() else {
            return;
        };
        let full = self.connections.len() >= self.options.max_connections;
        if full || stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            let why = full.then(|| {
                format!("{} connections are the most that are served", self.options.max_connections)
            });
            self.tell(ServerEvent::Ended(peer.to_string(), why));
            return;
        }
        let banner_at_ns = self.options.banner_after.map(|after| now_ns + nanoseconds(after));
        let mut connection = Connection::new(OwnedFd::from(stream).into(), peer.to_string(), false);
        connection.banner_at_ns = banner_at_ns;
        if self.add(connection).is_ok() {
            self.tell(ServerEvent::Connected(peer.to_string()));
        }
    }

    fn add(&mut self, connection: Connection) -> Result<(), EbError> {
        let key = self.next_connection;
        self.next_connection += 1;
        self.epoll.add(&connection.io, key, READ).map_err(EbError::io("epoll"))?;
        self.connections.insert(key, connection);
        Ok(())
    }

    fn serve_connection(&mut self, now_ns: u64, key: u64, readiness: Readiness) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let mut ended = None;
        if readiness.write {
            ended = connection.flush().err();
        }
        if readiness.read && ended.is_none() && connection.wants_to_read() {
            self.answer.clear();
            match connection.read(&mut self.slave, now_ns, &mut self.buffer, &mut self.answer) {
                // Answers to one client stay in order, so they wait behind a delayed one.
                Ok(ready_ns) if ready_ns > now_ns || connection.delayed > 0 => {
                    if !self.answer.is_empty() {
                        connection.delayed += 1;
                        let due_ns = ready_ns.max(connection.last_due_ns);
                        connection.last_due_ns = due_ns;
                        self.delay(due_ns, Destination::Connection(key));
                    }
                }
                Ok(_) => {
                    ended = self
                        .connections
                        .get_mut(&key)
                        .and_then(|connection| connection.send(&self.answer).err())
                }
                Err(why) => {
                    let _ = connection.send(&self.answer);
                    ended = Some(why);
                }
            }
            self.tell_accesses();
        }
        let ended = ended.or_else(|| self.check_waiting(key));
        self.conclude(key, ended);
    }

    /// Counts the bytes of a connection's unfinished cycle. Ends it when all connections keep too
    /// much.
    fn check_waiting(&mut self, key: u64) -> Option<Ended> {
        let connection = self.connections.get_mut(&key)?;
        let before_bytes = connection.counted_bytes;
        connection.counted_bytes = connection.waiting_bytes();
        let now_bytes = connection.counted_bytes;
        self.waiting_bytes = self.waiting_bytes - before_bytes + now_bytes;
        (now_bytes > before_bytes && self.waiting_bytes > MAX_WAITING_BYTES).then(|| {
            Ended(Some(format!(
                "cycles that have not ended take more than {} MiB, of all clients together",
                MAX_WAITING_BYTES >> 20
            )))
        })
    }

    fn conclude(&mut self, key: u64, ended: Option<Ended>) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if let Some(Ended(why)) = ended {
            let peer = connection.peer.clone();
            self.waiting_bytes -= connection.counted_bytes;
            self.connections.remove(&key);
            self.tell(ServerEvent::Ended(peer, why));
            return;
        }
        let wanted = connection.wanted();
        if wanted != connection.watched && self.epoll.change(&connection.io, key, wanted).is_ok() {
            connection.watched = wanted;
        }
    }

    fn delay(&mut self, due_ns: u64, destination: Destination) {
        self.delayed_count += 1;
        self.delayed
            .insert((due_ns, self.delayed_count), (destination, std::mem::take(&mut self.answer)));
    }

    /// Sends the answers whose time has come, spinning for those that are very near.
    fn send_due(&mut self) {
        const SPIN_NS: u64 = 60_000;
        while let Some(entry) = self.delayed.first_entry() {
            let due_ns = entry.key().0;
            if due_ns > monotonic_ns() + SPIN_NS {
                return;
            }
            while monotonic_ns() < due_ns {
                std::hint::spin_loop();
            }
            let (destination, answer) = entry.remove();
            match destination {
                Destination::Datagram { socket, to } => {
                    self.send_datagrams(socket, &answer, &[answer.len()], &to)
                }
                Destination::Connection(key) => {
                    let Some(connection) = self.connections.get_mut(&key) else {
                        continue;
                    };
                    connection.delayed -= 1;
                    let ended = connection.send(&answer).err();
                    self.conclude(key, ended);
                }
            }
        }
    }

    /// Ends the connections that owe the rest of a cycle, and sends the banner to those that wait
    /// for one.
    fn sweep(&mut self, now_ns: u64) {
        self.next_sweep_ns = now_ns + nanoseconds(SWEEP);
        let timeout_ns = nanoseconds(self.options.cycle_timeout);
        let banner = format!("daqmeter:{}\n", self.port());
        let mut ended = Vec::new();
        for (&key, connection) in &mut self.connections {
            if connection.owes_since_ns.is_some_and(|since_ns| now_ns - since_ns > timeout_ns) {
                let why = format!(
                    "the rest of a cycle did not come within {:?}",
                    self.options.cycle_timeout
                );
                if connection.is_device {
                    connection.reset();
                } else {
                    ended.push((key, Ended(Some(why))));
                }
            } else if connection.banner_at_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                connection.banner_at_ns = None;
                if let Err(why) = connection.send(banner.as_bytes()) {
                    ended.push((key, why));
                }
            }
        }
        for (key, why) in ended {
            self.slave.counts.refused += 1;
            self.conclude(key, Some(why));
        }
    }
}

const READ: Readiness = Readiness { read: true, write: false };

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}
