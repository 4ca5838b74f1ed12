//! The proxy behind `tunnel/` addresses: TCP on one side, UDP on the other.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use daqmeter_sys::net::{accept, keepalive};
use daqmeter_wire::etherbone::DATAGRAM_BYTES;

use crate::EbError;
use crate::address::{HostPort, IpFamily};
use crate::transport::frame_bytes;

/// Longest "host[/port]" that a client may ask for.
const MAX_NAME_BYTES: usize = 512;

/// Requests and answers that the tunnels of this process carried, and requests that the network
/// did not take.
pub static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

pub struct TunnelServer {
    listener: TcpListener,
    stop: Arc<AtomicBool>,
}

impl TunnelServer {
    pub fn bind(port: u16) -> Result<TunnelServer, EbError> {
        let both = TcpListener::bind(("::", port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
        let listener = both.map_err(EbError::io(format!("cannot listen on TCP port {port}")))?;
        // An accept must not wait for a client that gave up after the poll.
        listener.set_nonblocking(true).map_err(EbError::io("cannot set O_NONBLOCK"))?;
        Ok(TunnelServer { listener, stop: Arc::default() })
    }

    pub fn port(&self) -> Result<u16, EbError> {
        Ok(self.listener.local_addr().map_err(EbError::io("cannot read the port"))?.port())
    }

    /// Returns a flag that ends [`TunnelServer::run`] within a tenth of a second.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Serves each client in threads of its own, and tells how it ended.
    pub fn run(
        &self,
        tell: impl Fn(SocketAddr, Result<(), EbError>) + Clone + Send + 'static,
    ) -> Result<(), EbError> {
        const LOOK: Duration = Duration::from_millis(100);
        while !self.stop.load(Ordering::Relaxed) {
            let accepted = accept(&self.listener, LOOK).map_err(EbError::io("cannot accept"))?;
            let Some((stream, peer)) = accepted else { continue };
            let told = tell.clone();
            let client = move || told(peer, serve(stream));
            // A failed thread drops the stream, which the client sees.
            if let Err(error) = std::thread::Builder::new().name("tunnel".to_owned()).spawn(client)
            {
                tell(peer, Err(EbError::io("cannot start a thread")(error)));
            }
        }
        Ok(())
    }
}

fn serve(client: TcpStream) -> Result<(), EbError> {
    let set = client.set_nodelay(true).and_then(|()| keepalive(&client));
    set.map_err(EbError::io("cannot set the options of a connection"))?;
    let to = HostPort::parse(IpFamily::Any, &target(&client)?)?.resolve()?[0];
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        // The timeout lets the other thread notice that the client has left.
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(socket)
    });
    let socket = socket.map_err(EbError::io(format!("cannot send to {to}")))?;
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| answers(&socket, &client, &left));
        let requests = requests(&client, &socket);
        left.store(true, Ordering::Relaxed);
        requests
    })
}

/// Reads "host[/port]", which a zero ends.
fn target(mut client: &TcpStream) -> Result<String, EbError> {
    let stream = client;
    let timeout = |wait| stream.set_read_timeout(wait).map_err(EbError::io("cannot set a timeout"));
    timeout(Some(Duration::from_secs(5)))?;
    let (mut name, mut byte) = (Vec::new(), [0]);
    loop {
        client.read_exact(&mut byte).map_err(EbError::io("no target came"))?;
        match byte[0] {
            0 => break,
            _ if name.len() >= MAX_NAME_BYTES => {
                return Err(EbError::other("the target is too long"));
            }
            byte => name.push(byte),
        }
    }
    timeout(None)?;
    String::from_utf8(name).map_err(|_| EbError::other("the target is not text"))
}

fn requests(mut client: &TcpStream, socket: &UdpSocket) -> Result<(), EbError> {
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
        while let Some(length) = frame_bytes(&pending) {
            if length > DATAGRAM_BYTES {
                return Err(EbError::Other(format!(
                    "a frame of {length} bytes; datagrams have at most {DATAGRAM_BYTES}"
                )));
            }
            // A lost datagram is found by the client's deadline.
            let is_sent = socket.send(&pending[2..2 + length]).is_ok();
            COUNTS[if is_sent { 0 } else { 2 }].fetch_add(1, Ordering::Relaxed);
            pending.drain(..2 + length);
        }
    }
}

fn answers(socket: &UdpSocket, mut client: &TcpStream, left: &AtomicBool) {
    let mut frame = [0; 2 + 4104];
    while !left.load(Ordering::Relaxed) {
        let Ok(bytes) = socket.recv(&mut frame[2..]) else {
            continue;
        };
        frame[..2].copy_from_slice(&u16::try_from(bytes).expect("at most 4104").to_be_bytes());
        if client.write_all(&frame[..2 + bytes]).is_err() {
            return;
        }
        COUNTS[1].fetch_add(1, Ordering::Relaxed);
    }
}
