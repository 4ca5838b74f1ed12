//! The server: one loop, many clients, UDP and TCP, IPv4 and IPv6, both framings and both dialects
//! on one port.
//! Nothing in the loop waits for one client. Sockets do not block, and half cycles wait in their
//! connection. Untaken answers fill the client's own buffer until it is no longer read from. The
//! loop waits only for the bus, which all clients share.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::net::{self, Epoll, Readiness};
use daqmeter_sys::{affinity, tty};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::EbError;
use crate::address::Address;
use crate::bus::Access;
use crate::client::as_ns;
use crate::slave::{Slave, SlaveCounts, Stream};
use crate::transport::{ByteStream, batch, wait_until};

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
    /// The end of a stream that the client did not close, with the reason.
    Ended(String, String),
}

const STOP: u64 = 0;
const FIRST_UDP: u64 = 1;
const FIRST_TCP: u64 = 100;
const FIRST_CONNECTION: u64 = 1000;

/// Bytes read at once from a stream or as a batch of datagrams.
const BUFFER_BYTES: usize = 256 * 1024;
const MAX_CONNECTIONS: usize = 10_000;
/// Unsent answers that stop the reading from a client.
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Cycles that have not ended: of one client, and of all clients if one has more than that.
const LONG_CYCLE_BYTES: usize = 64 << 10;
const MAX_WAITING_BYTES: usize = 256 << 20;
/// Batches taken from one UDP socket in a row; then the others have their turn.
const TURNS: usize = 16;
/// A datagram of this length is likely to be followed by another.
const LONG_DATAGRAM_BYTES: usize = 1024;
const SWEEP_NS: u64 = 50_000_000;
const READ: Readiness = Readiness { read: true, write: false };

pub struct EbServer {
    slave: Slave,
    options: ServerOptions,
    epoll: Epoll,
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    next_sweep_ns: u64,
    buffer: Vec<u8>,
    answer: Vec<u8>,
    stopper: Stopper,
    is_stopped: bool,
    /// Can be read once the server is stopped.
    _stopped: UnixStream,
    log: Box<dyn FnMut(ServerEvent) + Send>,
    pty: Option<tty::Pty>,
}

struct Connection {
    io: ByteStream,
    peer: String,
    stream: Stream,
    watched: Readiness,
    banner_at_ns: Option<u64>,
    owes_since_ns: Option<u64>,
}

impl Connection {
    fn wanted(&self) -> Readiness {
        let backlog = self.io.backlog.len();
        Readiness { read: backlog < MAX_BACKLOG_BYTES, write: backlog > 0 }
    }

    /// Forgets the half cycle of a device's client.
    fn reset(&mut self) {
        self.stream = Stream::default();
        self.owes_since_ns = None;
    }
}

impl EbServer {
    pub fn bind(slave: Slave, options: ServerOptions) -> Result<EbServer, EbError> {
        let epoll = Epoll::new().map_err(EbError::io("cannot make an epoll set"))?;
        let (stop, stopped) =
            UnixStream::pair().map_err(EbError::io("cannot make a socket pair"))?;
        epoll.add(&stopped, STOP, READ).map_err(EbError::io("epoll"))?;
        let mut server = EbServer {
            slave,
            epoll,
            udp: Vec::new(),
            tcp: Vec::new(),
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            next_sweep_ns: 0,
            buffer: vec![0; BUFFER_BYTES],
            answer: Vec::new(),
            stopper: Stopper(Arc::new(stop)),
            is_stopped: false,
            _stopped: stopped,
            log: Box::new(drop),
            pty: None,
            options,
        };
        server.listen()?;
        server.serve_devices()?;
        Ok(server)
    }

    fn listen(&mut self) -> Result<(), EbError> {
        let mut refused = None;
        for ip in self.options.bind.clone() {
            let port = if self.udp.is_empty() { self.options.port } else { self.port() };
            match listen_on(ip, port) {
                Ok((udp, tcp)) => {
                    let at = self.udp.len() as u64;
                    let watched = self.epoll.add(&udp, FIRST_UDP + at, READ);
                    watched
                        .and_then(|()| self.epoll.add(&tcp, FIRST_TCP + at, READ))
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
        refused.filter(|_| self.udp.is_empty()).map_or(Ok(()), Err)
    }

    fn serve_devices(&mut self) -> Result<(), EbError> {
        if self.options.pty {
            let pty = tty::open_pty()?;
            let master = pty.master.try_clone().map_err(EbError::io("cannot use the terminal"))?;
            self.add(ByteStream::over(master, false), pty.path.clone(), None)?;
            self.pty = Some(pty);
        }
        match self.options.passive.clone() {
            None => Ok(()),
            Some(Address::Tcp(host)) => {
                let io = ByteStream::connect(&host, Duration::from_secs(5))?;
                tty::set_nonblocking(io.file.as_fd())?;
                self.add(io, format!("{}/{}", host.name, host.port), None)
            }
            Some(Address::Dev(name)) => {
                self.add(ByteStream::device(&name)?, format!("/dev/{name}"), None)
            }
            Some(other) => Err(EbError::Other(format!(
                "{other} is not a stream that can be served (tcp/..., dev/...)"
            ))),
        }
    }

    pub fn set_log(&mut self, log: impl FnMut(ServerEvent) + Send + 'static) {
        self.log = Box::new(log);
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
        self.stopper.clone()
    }

    /// Serves in a thread of its own, pinned to the CPU or with the affinity of the caller.
    pub fn spawn(mut self, cpu: Option<u32>) -> Result<Running, EbError> {
        let (port, stopper) = (self.port(), self.stopper());
        let (ready, pinned) = std::sync::mpsc::channel();
        let body = move || {
            let placed = cpu.map_or(Ok(()), |cpu| affinity::pin_to(cpu).map(drop));
            let serve = placed.is_ok();
            let _ = ready.send(placed);
            if serve { self.run() } else { Ok(()) }.map(|()| self.slave.counts)
        };
        let thread = std::thread::Builder::new().name("eb-server".to_owned()).spawn(body);
        let thread = thread.map_err(EbError::io("cannot start a thread"))?;
        let running = Running { port, stopper, thread: Some(thread) };
        pinned.recv().map_err(|_| EbError::other("the server's thread ended at once"))??;
        Ok(running)
    }

    pub fn run(&mut self) -> Result<(), EbError> {
        let mut ready = Vec::new();
        while !self.is_stopped {
            let left_ns = self.next_sweep_ns.saturating_sub(monotonic_ns());
            let timeout = (!self.connections.is_empty()).then_some(Duration::from_nanos(left_ns));
            self.epoll.wait(timeout, &mut ready).map_err(EbError::io("cannot wait"))?;
            let now_ns = monotonic_ns();
            for &(key, readiness) in &ready {
                self.serve(now_ns, key, readiness);
            }
            self.slave.counts.show();
            if now_ns >= self.next_sweep_ns && !self.connections.is_empty() {
                self.sweep(now_ns);
            }
        }
        Ok(())
    }

    fn serve(&mut self, now_ns: u64, key: u64, readiness: Readiness) {
        let index = |first: u64| usize::try_from(key - first).expect("few sockets");
        match key {
            STOP => self.is_stopped = true,
            FIRST_UDP..FIRST_TCP => self.serve_datagrams(now_ns, index(FIRST_UDP)),
            FIRST_TCP..FIRST_CONNECTION => self.accept(now_ns, index(FIRST_TCP)),
            key => {
                let ended = self.serve_connection(now_ns, key, readiness).err();
                self.conclude(key, ended);
            }
        }
    }

    fn tell_accesses(&mut self) {
        for access in self.slave.accesses.drain(..) {
            (self.log)(ServerEvent::Access(access));
        }
    }

    fn serve_datagrams(&mut self, now_ns: u64, socket: usize) {
        let mut lengths = Vec::new();
        for _ in 0..TURNS {
            let received = net::receive_from(self.udp[socket].as_fd(), &mut self.buffer, false);
            let Ok((received, from)) = received else {
                return;
            };
            self.answer.clear();
            lengths.clear();
            let mut last_ns = now_ns;
            for request in self.buffer[..received.bytes].chunks(received.segment_bytes.max(1)) {
                let before = self.answer.len();
                let ready_ns = self.slave.datagram(now_ns, request, &mut self.answer);
                if self.answer.len() > before {
                    lengths.push(self.answer.len() - before);
                    last_ns = ready_ns;
                }
            }
            if last_ns > now_ns {
                wait_until(last_ns);
            }
            self.send_datagrams(socket, &lengths, &self.target(from));
            self.tell_accesses();
            if received.bytes < LONG_DATAGRAM_BYTES {
                return;
            }
        }
    }

    fn target(&self, from: SockAddr) -> SockAddr {
        match (self.options.reply_port, from.as_socket()) {
            (Some(port), Some(mut address)) => {
                address.set_port(port);
                address.into()
            }
            _ => from,
        }
    }

    /// Sends answers. A refused datagram is lost, and the client's deadline finds it.
    fn send_datagrams(&self, socket: usize, lengths: &[usize], to: &SockAddr) {
        let fd = self.udp[socket].as_fd();
        let (mut rest, mut left) = (&self.answer[..], lengths);
        while let Some(&segment) = left.first() {
            let (count, bytes) = batch(left);
            let (now, later) = rest.split_at(bytes);
            if net::send(fd, now, segment, Some(to)).is_err() && count > 1 {
                for datagram in now.chunks(segment) {
                    let _ = net::send(fd, datagram, datagram.len(), Some(to));
                }
            }
            (rest, left) = (later, &left[count..]);
        }
    }

    fn accept(&mut self, now_ns: u64, listener: usize) {
        // One connection is accepted per turn; the loop comes back while there are more.
        let Ok((stream, peer)) = self.tcp[listener].accept() else {
            return;
        };
        if self.connections.len() >= MAX_CONNECTIONS {
            let why = format!("{MAX_CONNECTIONS} connections are the most that are served");
            return (self.log)(ServerEvent::Ended(peer.to_string(), why));
        }
        let banner_at_ns = self.options.banner_after.map(|after| now_ns + as_ns(after));
        // A connection that fails at once is gone already.
        if stream.set_nonblocking(true).is_ok()
            && let Ok(io) = ByteStream::tcp(stream)
        {
            let _ = self.add(io, peer.to_string(), banner_at_ns);
        }
    }

    fn add(
        &mut self,
        io: ByteStream,
        peer: String,
        banner_at_ns: Option<u64>,
    ) -> Result<(), EbError> {
        let key = self.next_connection;
        self.next_connection += 1;
        self.epoll.add(&io.file, key, READ).map_err(EbError::io("epoll"))?;
        let (stream, watched) = (Stream::default(), READ);
        let connection =
            Connection { io, peer, stream, watched, banner_at_ns, owes_since_ns: None };
        self.connections.insert(key, connection);
        Ok(())
    }

    fn serve_connection(
        &mut self,
        now_ns: u64,
        key: u64,
        readiness: Readiness,
    ) -> Result<(), EbError> {
        let Some(connection) = self.connections.get_mut(&key) else {
            return Ok(());
        };
        if readiness.write {
            connection.io.push(&[])?;
        }
        if !(readiness.read && connection.wanted().read) {
            return Ok(());
        }
        let Some(arrived) = connection.io.read(&mut self.buffer)? else {
            return Ok(());
        };
        connection.banner_at_ns = None;
        self.answer.clear();
        let bytes = &self.buffer[..arrived.bytes];
        let fed = connection.stream.feed(&mut self.slave, now_ns, bytes, &mut self.answer);
        let waiting_bytes = connection.stream.waiting_bytes();
        let since_ns = connection.owes_since_ns.unwrap_or(now_ns);
        connection.owes_since_ns = (waiting_bytes > 0).then_some(since_ns);
        if let Ok(ready_ns) = fed
            && ready_ns > now_ns
        {
            wait_until(ready_ns);
        }
        connection.io.push(&self.answer)?;
        match fed {
            Err(_) if !connection.io.is_socket => connection.reset(),
            fed => drop(fed?),
        }
        self.tell_accesses();
        let all = || self.connections.values().map(|one| one.stream.waiting_bytes()).sum::<usize>();
        if waiting_bytes > LONG_CYCLE_BYTES && all() > MAX_WAITING_BYTES {
            return Err(EbError::Other(format!(
                "cycles that have not ended take more than {} MiB, of all clients together",
                MAX_WAITING_BYTES >> 20
            )));
        }
        Ok(())
    }

    fn conclude(&mut self, key: u64, ended: Option<EbError>) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if let Some(why) = ended {
            let peer = std::mem::take(&mut connection.peer);
            self.connections.remove(&key);
            if !matches!(why, EbError::Closed) {
                (self.log)(ServerEvent::Ended(peer, why.to_string()));
            }
            return;
        }
        let wanted = connection.wanted();
        let io = &connection.io.file;
        if wanted != connection.watched && self.epoll.change(io, key, wanted).is_ok() {
            connection.watched = wanted;
        }
    }

    /// Ends the connections that owe the rest of a cycle, and sends the banner to those that wait
    /// for one.
    fn sweep(&mut self, now_ns: u64) {
        self.next_sweep_ns = now_ns + SWEEP_NS;
        let timeout = self.options.cycle_timeout;
        let banner = format!("daqmeter:{}\n", self.port());
        let mut ended = Vec::new();
        for (&key, connection) in &mut self.connections {
            let is_late = |since_ns: u64| now_ns.saturating_sub(since_ns) > as_ns(timeout);
            if connection.owes_since_ns.is_some_and(is_late) {
                if connection.io.is_socket {
                    let why = format!("the rest of a cycle did not come within {timeout:?}");
                    ended.push((key, EbError::Other(why)));
                } else {
                    connection.reset();
                }
            } else if connection.banner_at_ns.take_if(|at_ns| now_ns >= *at_ns).is_some()
                && let Err(why) = connection.io.push(banner.as_bytes())
            {
                ended.push((key, why));
            }
        }
        for (key, why) in ended {
            self.slave.counts.refused += 1;
            self.conclude(key, Some(why));
        }
    }
}

/// Opens a UDP socket and a TCP listener on one port. A recently used port can be opened at once.
fn listen_on(ip: IpAddr, port: u16) -> io::Result<(UdpSocket, TcpListener)> {
    let mut refused = None;
    // A free UDP port may be taken by a TCP listener.
    for _ in 0..if port == 0 { 16 } else { 1 } {
        let udp = socket(ip, Type::DGRAM)?;
        // The buffer holds a whole window of several clients. The kernel caps it for users other
        // than root.
        udp.set_recv_buffer_size(4 << 20)?;
        udp.bind(&SocketAddr::new(ip, port).into())?;
        let udp: UdpSocket = udp.into();
        net::enable_gro(udp.as_fd());
        let chosen = udp.local_addr()?;
        let tcp = socket(ip, Type::STREAM)?;
        tcp.set_reuse_address(true)?;
        match tcp.bind(&chosen.into()).and_then(|()| tcp.listen(1024)) {
            Ok(()) => return Ok((udp, tcp.into())),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrInUse)))
}

fn socket(ip: IpAddr, kind: Type) -> io::Result<Socket> {
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, kind, None)?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[derive(Clone, Debug)]
pub struct Stopper(Arc<UnixStream>);

impl Stopper {
    pub fn stop(&self) {
        // The server may have ended.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A server that runs in another thread, until it is dropped.
#[derive(Debug)]
pub struct Running {
    pub port: u16,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<SlaveCounts, EbError>>>,
}

impl Running {
    pub fn stop(mut self) -> Result<SlaveCounts, EbError> {
        let panicked = || Err(EbError::other("the server's thread panicked: a bug in daqmeter"));
        self.join().unwrap_or_else(panicked)
    }

    fn join(&mut self) -> Option<Result<SlaveCounts, EbError>> {
        self.stopper.stop();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}
