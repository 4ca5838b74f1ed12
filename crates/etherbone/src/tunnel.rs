//! The proxy behind `tunnel/` addresses: TCP on one side, UDP on the other.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use daqmeter_sys::net::{Readiness, wait_ready};
use daqmeter_wire::etherbone::DATAGRAM_BYTES;

use crate::EbError;
use crate::address::{HostPort, IpFamily};
use crate::transport::read_frame;

/// Longest "host[/port]" that a client may ask for.
const MAX_NAME_BYTES: usize = 512;

pub struct TunnelServer {
    listener: TcpListener,
    traffic: Arc<TunnelTraffic>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub struct TunnelTraffic {
    pub clients: AtomicU64,
    pub requests: AtomicU64,
    pub request_bytes: AtomicU64,
    pub answers: AtomicU64,
    pub answer_bytes: AtomicU64,
}

fn count(frames: &AtomicU64, bytes_of: &AtomicU64, bytes: usize) {
    frames.fetch_add(1, Ordering::Relaxed);
    bytes_of.fetch_add(bytes as u64, Ordering::Relaxed);
}

impl TunnelServer {
    pub fn bind(port: u16) -> Result<TunnelServer, EbError> {
        let both = TcpListener::bind(("::", port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
        let listener = both.map_err(EbError::io(format!("cannot listen on TCP port {port}")))?;
        // An accept must not wait for a client that gave up after the poll.
        listener.set_nonblocking(true).map_err(EbError::io("cannot set O_NONBLOCK"))?;
        Ok(TunnelServer { listener, traffic: Arc::default(), stop: Arc::default() })
    }

    pub fn port(&self) -> Result<u16, EbError> {
        Ok(self.listener.local_addr().map_err(EbError::io("cannot read the port"))?.port())
    }

    pub fn traffic(&self) -> Arc<TunnelTraffic> {
        self.traffic.clone()
    }

    /// Returns a flag that ends [`TunnelServer::run`] within a tenth of a second.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    pub fn run(
        &self,
        tell: impl Fn(SocketAddr, Result<(), EbError>) + Clone + Send + 'static,
    ) -> Result<(), EbError> {
        const LOOK: Duration = Duration::from_millis(100);
        let readable = Readiness { read: true, write: false };
        while !self.stop.load(Ordering::Relaxed) {
            wait_ready(self.listener.as_fd(), readable, Some(LOOK))
                .map_err(EbError::io("cannot wait"))?;
            match self.listener.accept() {
                Ok((stream, peer)) => self.begin(stream, peer, tell.clone()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(EbError::io("cannot accept")(error)),
            }
        }
        Ok(())
    }

    fn begin(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        tell: impl Fn(SocketAddr, Result<(), EbError>) + Clone + Send + 'static,
    ) {
        let (in_thread, traffic) = (tell.clone(), self.traffic.clone());
        let client = move || {
            traffic.clients.fetch_add(1, Ordering::Relaxed);
            let ended = serve(stream, &traffic);
            traffic.clients.fetch_sub(1, Ordering::Relaxed);
            in_thread(peer, ended);
        };
        // A failed thread drops the stream, which the client sees.
        if let Err(error) = std::thread::Builder::new().name("tunnel".to_owned()).spawn(client) {
            tell(peer, Err(EbError::io("cannot start a thread")(error)));
        }
    }
}

fn serve(mut client: TcpStream, traffic: &TunnelTraffic) -> Result<(), EbError> {
    client.set_nodelay(true).map_err(EbError::io("cannot set TCP_NODELAY"))?;
    let host = HostPort::parse(&target(&mut client)?)?;
    let to = host.resolve(IpFamily::Any)?[0];
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket));
    let socket = socket.map_err(EbError::io(format!("cannot send to {to}")))?;
    // The timeout lets the other thread notice that the client has left.
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .map_err(EbError::io("cannot set a timeout"))?;
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| answers(&socket, &client, &left, traffic));
        let requests = requests(&client, &socket, traffic);
        left.store(true, Ordering::Relaxed);
        let answers = answers.join().unwrap_or(Ok(()));
        requests.and(answers)
    })
}

fn target(client: &mut TcpStream) -> Result<String, EbError> {
    let mut name = Vec::new();
    let mut byte = [0];
    client
        .set_read_timeout(Some(Duration::from_secs(5)))
        .map_err(EbError::io("cannot set a timeout"))?;
    loop {
        client.read_exact(&mut byte).map_err(EbError::io("no target came"))?;
        match byte[0] {
            0 => break,
            _ if name.len() >= MAX_NAME_BYTES => {
                return Err(EbError::Address("the target is too long".to_owned()));
            }
            byte => name.push(byte),
        }
    }
    client.set_read_timeout(None).map_err(EbError::io("cannot set a timeout"))?;
    String::from_utf8(name).map_err(|_| EbError::Address("the target is not text".to_owned()))
}

fn requests(
    mut client: &TcpStream,
    socket: &UdpSocket,
    traffic: &TunnelTraffic,
) -> Result<(), EbError> {
    let mut pending = Vec::new();
    let mut part = [0; 16 * 1024];
    loop {
        let bytes = match client.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(EbError::io("cannot read from the client")(error)),
        };
        pending.extend_from_slice(&part[..bytes]);
        while let Some(length) = read_frame(&pending) {
            if length > DATAGRAM_BYTES {
                return Err(EbError::Unsupported(format!(
                    "a frame of {length} bytes; datagrams have at most {DATAGRAM_BYTES}"
                )));
            }
            let _ = socket.send(&pending[2..2 + length]);
            count(&traffic.requests, &traffic.request_bytes, length);
            pending.drain(..2 + length);
        }
    }
}

fn answers(
    socket: &UdpSocket,
    mut client: &TcpStream,
    left: &AtomicBool,
    traffic: &TunnelTraffic,
) -> Result<(), EbError> {
    let mut frame = [0; 2 + 4104];
    while !left.load(Ordering::Relaxed) {
        let Ok(bytes) = socket.recv(&mut frame[2..]) else {
            continue;
        };
        frame[..2].copy_from_slice(&u16::try_from(bytes).expect("at most 4104").to_be_bytes());
        if client.write_all(&frame[..2 + bytes]).is_err() {
            return Ok(());
        }
        count(&traffic.answers, &traffic.answer_bytes, bytes);
    }
    Ok(())
}
