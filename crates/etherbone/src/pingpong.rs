//! The raw path: the same bytes over the same kind of socket, echoed without a thought. What Etherbone could reach on this host.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_record::{Ledger, Workload};
use daqmeter_sys::{affinity, net};

/// Echoes messages on the loopback interface. Workload `pingpong`: `transport` (`udp`, `tcp`), `message_bytes`, `batch`
/// (messages sent before the first is waited for; 1 is a ping-pong), `counted_bytes` (what a message counts as in rates) and
/// `server_cpu` (without it the echo runs where the asking thread may).
#[derive(Clone, Copy, Debug, Default)]
pub struct PingPongEngine;

/// The limit of a conversation whose requests are of this size.
pub(crate) fn limit(
    transport: &str,
    message_bytes: u64,
    batch: u64,
    counted_bytes: u64,
    server_cpu: Option<u64>,
) -> LimitSpec {
    let mut workload = Workload::new("pingpong")
        .with("transport", transport)
        .with("message_bytes", message_bytes)
        .with("batch", batch)
        .with("counted_bytes", counted_bytes);
    if let Some(cpu) = server_cpu {
        workload = workload.with("server_cpu", cpu);
    }
    let (name, how) = match batch {
        1 => (
            "ping-pong",
            "one message at a time, select and receive at both ends",
        ),
        _ => (
            "echo",
            "as many messages on their way as in the pipeline, in batches where the kernel takes them",
        ),
    };
    LimitSpec::Measured {
        name: format!(
            "raw {transport} {name} of {message_bytes} B{}",
            if batch > 1 {
                format!(" x {batch}")
            } else {
                String::new()
            }
        ),
        how: format!("same bytes, same placement, no Etherbone: {how}"),
        workload,
        scale: 1.0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Udp,
    Tcp,
}

/// How long an echo is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes on their way at once, as in the client.
const WINDOW_BYTES: usize = 48 * 1024;

impl Engine for PingPongEngine {
    fn name(&self) -> &'static str {
        "pingpong"
    }

    fn description(&self) -> &'static str {
        "echoes raw messages over loopback sockets: the limit that Etherbone's round trips are held against"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, workload: &Workload) -> String {
        format!(
            "{} on loopback",
            workload.text("transport").unwrap_or("udp")
        )
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "transport": "udp or tcp",
            "message_bytes": "bytes of a message, 1 to 1472",
            "batch": "messages on their way at once",
            "counted_bytes": "bytes that one operation is counted as",
            "server_cpu": "CPU of the other end",
        ]
    }

    fn example(&self) -> Workload {
        Workload::new("pingpong")
            .with("transport", "udp")
            .with("message_bytes", 28_u64)
            .with("batch", 1_u64)
            .with("counted_bytes", 28_u64)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let kind = match workload.text("transport")? {
            "udp" => Kind::Udp,
            "tcp" => Kind::Tcp,
            other => {
                return Err(workload
                    .error("transport", format!("is `{other}`; udp or tcp is wanted"))
                    .into());
            }
        };
        let within = |name: &str, max: u32| -> Result<usize, Fault> {
            let value = workload.int_within(name, 1..=u64::from(max))?;
            usize::try_from(value)
                .map_err(|_| workload.error(name, "is beyond this machine").into())
        };
        Ok(vec![Box::new(PingPong {
            kind,
            message_bytes: within("message_bytes", 1472)?,
            batch: within("batch", 1 << 20)?,
            counted_bytes: workload.int_within("counted_bytes", 0..=1 << 30)?,
            server_cpu: server_cpu(workload)?,
            ends: None,
            ledger: Ledger::new("messages"),
        })])
    }
}

/// The CPU that the other end is pinned to, if one is named.
pub(crate) fn server_cpu(workload: &Workload) -> Result<Option<u32>, Fault> {
    if !workload.params.contains_key("server_cpu") {
        return Ok(None);
    }
    let cpu = workload.int("server_cpu")?;
    u32::try_from(cpu).map(Some).map_err(|_| {
        workload
            .error("server_cpu", format!("is {cpu}, not a CPU"))
            .into()
    })
}

struct PingPong {
    kind: Kind,
    message_bytes: usize,
    batch: usize,
    counted_bytes: u64,
    server_cpu: Option<u32>,
    ends: Option<Ends>,
    ledger: Ledger,
}

/// Our end, and the thread at the other.
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
            // A panic of the echo has shown itself as a lost message.
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
        let (socket, echo): (Socket, Box<dyn FnOnce() + Send>) = match self.kind {
            Kind::Udp => {
                let (ours, theirs) = udp_pair().map_err(fault("cannot open UDP sockets"))?;
                let stop = stop.clone();
                (
                    Socket::Udp(ours),
                    Box::new(move || echo_udp(&theirs, &stop)),
                )
            }
            Kind::Tcp => {
                let (ours, theirs) = tcp_pair().map_err(fault("cannot open TCP sockets"))?;
                (Socket::Tcp(ours), Box::new(move || echo_tcp(theirs)))
            }
        };
        let cpu = self.server_cpu;
        let body = move || {
            // Where the CPU cannot be had, the echo runs where it is; the harness refuses CPUs that do not exist.
            if let Some(cpu) = cpu {
                let _ = affinity::pin_to(cpu);
            }
            echo();
        };
        let echo = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(body)
            .map_err(fault("cannot start a thread"))?;
        let burst = self.burst() * self.message_bytes;
        let request = (0..=250_u8).cycle().take(burst).collect();
        Ok(Ends {
            socket,
            stop,
            echo: Some(echo),
            request,
            answer: vec![0; burst.max(1 << 16)],
        })
    }

    /// Messages that are sent before the first is waited for.
    fn burst(&self) -> usize {
        self.batch.min((WINDOW_BYTES / self.message_bytes).max(1))
    }
}

fn udp_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let (ours, theirs) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
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
        // What cannot be sent is missed at the other end.
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

impl Ends {
    /// Sends the first bytes of the request, and waits until as many have come back.
    fn round(&mut self, bytes: usize, message_bytes: usize) -> Result<(), Fault> {
        let lost = || {
            Fault::new(format!(
                "a message of {message_bytes} bytes did not come back within {PATIENCE:?}"
            ))
        };
        let mut sent = 0;
        let mut back = 0;
        while sent < bytes {
            let part = (bytes - sent)
                .min(net::MOST_SEGMENTS * message_bytes)
                .min(net::MOST_BATCH_BYTES / message_bytes * message_bytes);
            let part = &self.request[sent..sent + part];
            match &mut self.socket {
                Socket::Udp(socket) => {
                    net::send(socket.as_fd(), part, message_bytes, None)
                        .map_err(fault("cannot send"))?;
                }
                Socket::Tcp(stream) => stream.write_all(part).map_err(fault("cannot send"))?,
            }
            sent += part.len();
        }
        while back < bytes {
            let fd = match &self.socket {
                Socket::Udp(socket) => socket.as_fd(),
                Socket::Tcp(stream) => stream.as_fd(),
            };
            if !net::select_readable(fd, PATIENCE).map_err(fault("select"))? {
                return Err(lost());
            }
            let room = &mut self.answer[back..];
            back += match &mut self.socket {
                Socket::Udp(socket) => {
                    net::receive(socket.as_fd(), room, true)
                        .map_err(fault("cannot receive"))?
                        .bytes
                }
                Socket::Tcp(stream) => stream.read(room).map_err(fault("cannot receive"))?,
            };
        }
        Ok(())
    }
}

impl Session for PingPong {
    fn device(&self) -> String {
        "loopback".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let name = if self.batch == 1 { "ping-pong" } else { "echo" };
        let moved = 2 * self.message_bytes as u64;
        vec![StageSpec {
            batch: self.batch as u64,
            ..StageSpec::new(name, self.counted_bytes, moved)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.ends = Some(self.open_ends()?);
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let burst = self.burst() as u64;
        let ends = self.ends.as_mut().expect("prepared before the first step");
        let mut left = operations;
        while left > 0 {
            let now = left.min(burst);
            self.ledger.issued += now;
            let bytes = usize::try_from(now).expect("a burst") * self.message_bytes;
            ends.round(bytes, self.message_bytes)?;
            self.ledger.delivered += now;
            left -= now;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let bytes = self.burst() * self.message_bytes;
        let ends = self.ends.as_mut().expect("prepared before verification");
        ends.answer.fill(0);
        ends.round(bytes, self.message_bytes)?;
        match ends
            .request
            .iter()
            .zip(&ends.answer)
            .position(|(sent, back)| sent != back)
        {
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
        Tally {
            ledgers: vec![ledger],
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ping_pong_conforms() {
        daqmeter_harness::conformance::run(&PingPongEngine);
    }

    #[test]
    fn every_batch_comes_back_over_both_transports() {
        for transport in ["udp", "tcp"] {
            for (batch, message_bytes) in [(1_u64, 1472_u64), (100, 84), (3000, 84), (200, 1472)] {
                let workload = PingPongEngine
                    .example()
                    .with("transport", transport)
                    .with("batch", batch)
                    .with("message_bytes", message_bytes);
                let mut sessions = PingPongEngine.open(&workload).unwrap();
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
        let error = |name: &str, value: u64| {
            PingPongEngine
                .open(&PingPongEngine.example().with(name, value))
                .err()
                .unwrap()
                .0
        };
        assert!(error("message_bytes", 2000).contains("1 to 1472"));
        assert!(error("batch", 0).contains("`batch` is 0"));
        let sctp = PingPongEngine.example().with("transport", "sctp");
        assert!(
            PingPongEngine
                .open(&sctp)
                .err()
                .unwrap()
                .0
                .contains("udp or tcp")
        );
    }
}
