//! The raw path: equal bytes over an equal socket, echoed unchanged. It bounds Etherbone's speed on
//! this host.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use daqmeter_harness::{
    Control, Fault, Job, LimitSpec, Problem, Request, Session, StageSpec, Tally,
};
use daqmeter_record::Ledger;
use daqmeter_sys::{affinity, net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Messages that are sent over loopback, and sent back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingPongRequest {
    /// udp or tcp
    pub transport: Protocol,
    /// Bytes of a message, 1 to 1472
    pub message_bytes: u64,
    /// Messages sent before the first is waited for; 1 is a ping-pong
    pub batch: u64,
    /// Bytes that a message is counted as in rates
    pub counted_bytes: u64,
    /// CPU of the other end; without it, it runs where the asking thread may
    #[serde(default, alias = "server_cpu", skip_serializing_if = "Option::is_none")]
    pub peer_cpu: Option<u32>,
}

/// Protocol of a loopback socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Datagrams
    Udp,
    /// A stream
    Tcp,
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
        })
    }
}

impl Request for PingPongRequest {
    const KIND: &'static str = "pingpong";
    const DESCRIPTION: &'static str = "echoes raw messages over loopback sockets: the limit that Etherbone's round trips are held against";

    fn example() -> PingPongRequest {
        PingPongRequest {
            transport: Protocol::Udp,
            message_bytes: 28,
            batch: 1,
            counted_bytes: 28,
            peer_cpu: None,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        Ok(Job::new(self, format!("{} on loopback", self.transport), open))
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("message_bytes", self.message_bytes, 1..=1472)?;
        Problem::unless_within("batch", self.batch, 1..=1 << 20)?;
        Problem::unless_within("counted_bytes", self.counted_bytes, 0..=1 << 30)?;
        Problem::unless_cpus_exist("peer_cpu", self.peer_cpu.as_slice())
    }
}

pub(crate) fn limit(request: &PingPongRequest) -> LimitSpec {
    let PingPongRequest { transport, message_bytes, batch, .. } = request;
    let (what, how) = match batch {
        1 => (
            format!("ping-pong of {message_bytes} B"),
            "one message at a time, select and receive at both ends",
        ),
        _ => (
            format!("echo of {message_bytes} B x {batch}"),
            "as many messages on their way as in the pipeline, in batches where the kernel takes them",
        ),
    };
    LimitSpec::Measured {
        name: format!("raw {transport} {what}"),
        how: format!("same bytes, same placement, no Etherbone: {how}"),
        workload: request.workload(),
        scale: 1.0,
    }
}

const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes on their way at once, as in the client.
const WINDOW_BYTES: usize = 48 * 1024;

fn open(request: &PingPongRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let (request, ledger) = (request.clone(), Ledger::new("messages"));
    Ok(vec![Box::new(PingPong { request, ends: None, ledger })])
}

struct PingPong {
    request: PingPongRequest,
    ends: Option<Ends>,
    ledger: Ledger,
}

struct Ends {
    socket: Socket,
    stop: Arc<AtomicBool>,
    echo: Option<JoinHandle<()>>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the echo; when it is gone already there is nothing to wake.
        match &self.socket {
            Socket::Udp(socket) => drop(socket.send(&[0])),
            Socket::Tcp(stream) => drop(stream.shutdown(std::net::Shutdown::Both)),
        }
        if let Some(echo) = self.echo.take() {
            // A panic of the echo has already shown as a lost message.
            let _ = echo.join();
        }
    }
}

fn fault(what: &str) -> impl FnOnce(io::Error) -> Fault + '_ {
    move |error| Fault::new(format!("{what}: {error}"))
}

impl PingPong {
    fn open_ends(&self) -> Result<Ends, Fault> {
        let stop = Arc::new(AtomicBool::new(false));
        let (socket, echo): (Socket, Box<dyn FnOnce() + Send>) = match self.request.transport {
            Protocol::Udp => {
                let (ours, theirs) = udp_pair().map_err(fault("cannot open UDP sockets"))?;
                let stop = stop.clone();
                (Socket::Udp(ours), Box::new(move || echo_udp(&theirs, &stop)))
            }
            Protocol::Tcp => {
                let (ours, theirs) = tcp_pair().map_err(fault("cannot open TCP sockets"))?;
                (Socket::Tcp(ours), Box::new(move || echo_tcp(theirs)))
            }
        };
        let cpu = self.request.peer_cpu;
        let body = move || {
            // If the CPU is not allowed, the echo runs unpinned; the harness refuses CPUs that
            // do not exist.
            if let Some(cpu) = cpu {
                let _ = affinity::pin_to(cpu);
            }
            echo();
        };
        let echo = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(body)
            .map_err(fault("cannot start a thread"))?;
        let burst = self.burst() * self.message_bytes();
        let request = (0..=250_u8).cycle().take(burst).collect();
        Ok(Ends { socket, stop, echo: Some(echo), request, answer: vec![0; burst.max(1 << 16)] })
    }

    fn message_bytes(&self) -> usize {
        usize::try_from(self.request.message_bytes).expect("the request was checked")
    }

    fn burst(&self) -> usize {
        let batch = usize::try_from(self.request.batch).expect("the request was checked");
        batch.min((WINDOW_BYTES / self.message_bytes()).max(1))
    }
}

fn udp_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let (ours, theirs) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    ours.connect(theirs.local_addr()?)?;
    for socket in [&ours, &theirs] {
        net::enable_gro(socket.as_fd());
    }
    Ok((ours, theirs))
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true)?;
    }
    Ok((ours, theirs))
}

fn echo_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Acquire) {
        if !net::select_readable(socket.as_fd(), PATIENCE).unwrap_or(false) {
            continue;
        }
        let Ok((received, from)) = net::receive_from(socket.as_fd(), &mut buffer, true) else {
            continue;
        };
        let _ = net::send(
            socket.as_fd(),
            &buffer[..received.bytes],
            received.segment_bytes,
            Some(&from),
        );
    }
}

fn echo_tcp(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 18];
    loop {
        if !net::select_readable(stream.as_fd(), PATIENCE).unwrap_or(true) {
            continue;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => {
                if stream.write_all(&buffer[..bytes]).is_err() {
                    return;
                }
            }
        }
    }
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }

    fn send(&mut self, messages: &[u8], message_bytes: usize) -> Result<(), Fault> {
        match self {
            Socket::Udp(socket) => {
                net::send(socket.as_fd(), messages, message_bytes, None).map(drop)
            }
            Socket::Tcp(stream) => stream.write_all(messages),
        }
        .map_err(fault("cannot send"))
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<usize, Fault> {
        match self {
            Socket::Udp(socket) => {
                net::receive(socket.as_fd(), room, true).map(|received| received.bytes)
            }
            Socket::Tcp(stream) => stream.read(room),
        }
        .map_err(fault("cannot receive"))
    }
}

impl Ends {
    /// Sends the first bytes of the request, and waits until as many have come back.
    fn round(&mut self, bytes: usize, message_bytes: usize) -> Result<(), Fault> {
        let batch_bytes = (net::MAX_SEGMENTS * message_bytes)
            .min(net::MAX_BATCH_BYTES / message_bytes * message_bytes);
        for part in self.request[..bytes].chunks(batch_bytes) {
            self.socket.send(part, message_bytes)?;
        }
        let mut back = 0;
        while back < bytes {
            if !net::select_readable(self.socket.fd(), PATIENCE).map_err(fault("select"))? {
                return Err(Fault::new(format!(
                    "a message of {message_bytes} bytes did not come back within {PATIENCE:?}"
                )));
            }
            back += self.socket.receive(&mut self.answer[back..])?;
        }
        Ok(())
    }
}

impl Session for PingPong {
    fn device(&self) -> String {
        "loopback".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let name = if self.request.batch == 1 { "ping-pong" } else { "echo" };
        let moved = 2 * self.request.message_bytes;
        vec![StageSpec {
            batch: self.request.batch,
            control: Some(Control::RoundTrip),
            ..StageSpec::new(name, self.request.counted_bytes, moved)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.ends = Some(self.open_ends()?);
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let (burst, message_bytes) = (self.burst() as u64, self.message_bytes());
        let ends = self.ends.as_mut().expect("prepared before the first step");
        let mut left = operations;
        while left > 0 {
            let now = left.min(burst);
            self.ledger.issued += now;
            let bytes = usize::try_from(now).expect("a burst") * message_bytes;
            ends.round(bytes, message_bytes)?;
            self.ledger.delivered += now;
            left -= now;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let message_bytes = self.message_bytes();
        let bytes = self.burst() * message_bytes;
        let ends = self.ends.as_mut().expect("prepared before verification");
        ends.answer.fill(0);
        ends.round(bytes, message_bytes)?;
        match ends.request.iter().zip(&ends.answer).position(|(sent, back)| sent != back) {
            Some(at) => Err(Fault::new(format!("byte {at} came back changed"))),
            None => Ok(()),
        }
    }

    fn begin(&mut self) {
        self.ledger = Ledger::new("messages");
        self.ledger.lose("timeout", 0);
    }

    fn tally(&mut self) -> Tally {
        let mut ledger = std::mem::take(&mut self.ledger);
        let missing = ledger.issued - ledger.delivered;
        ledger.lose("timeout", missing);
        Tally { ledgers: vec![ledger], ..Tally::default() }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Param;

    use super::*;

    #[test]
    fn the_ping_pong_conforms() {
        daqmeter_harness::conformance::run(&PingPongRequest::example().job().unwrap());
    }

    #[test]
    fn every_batch_comes_back_over_both_transports() {
        for transport in [Protocol::Udp, Protocol::Tcp] {
            for (batch, message_bytes) in [(1, 1472), (100, 84), (3000, 84), (200, 1472)] {
                let request = PingPongRequest {
                    transport,
                    batch,
                    message_bytes,
                    ..PingPongRequest::example()
                };
                let mut sessions = open(&request).unwrap();
                let session = &mut sessions[0];
                session.prepare().unwrap();
                session.verify().unwrap();
                session.begin();
                session.step(0, batch).unwrap();
                let ledger = &session.tally().ledgers[0];
                assert_eq!((ledger.issued, ledger.delivered), (batch, batch));
            }
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        let error = |name: &str, value: Param| {
            let workload = PingPongRequest::example().workload().with(name, value);
            PingPongRequest::of(&workload).unwrap_err().0
        };
        assert!(error("message_bytes", 2000_u64.into()).contains("1 to 1472"));
        assert!(error("batch", 0_u64.into()).contains("`batch` is 0"));
        assert!(error("transport", "sctp".into()).contains("expected `udp` or `tcp`"));
    }

    /// Issue 15: the echo ran unpinned when its CPU did not exist.
    #[test]
    fn a_cpu_that_does_not_exist_is_refused_under_its_old_name_too() {
        for name in ["peer_cpu", "server_cpu"] {
            let workload = PingPongRequest::example().workload();
            let error = PingPongRequest::of(&workload.with(name, 1_000_000_u64)).unwrap_err();
            assert!(error.0.contains("`peer_cpu` is 1000000: there is no such CPU"), "{error}");
        }
    }
}
