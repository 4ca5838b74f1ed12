//! The raw path: equal bytes over an equal socket, echoed unchanged. It bounds Etherbone's speed on
//! this host.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use daqmeter_harness::{Fault, Job, LimitSpec, Problem, Request, Session, StageSpec, Tally};
use daqmeter_record::Ledger;
use daqmeter_sys::{affinity, net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::transport::{self, EbTransport, RECEIVE_BYTES};
use crate::{Address, EbDialect, EbError};

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

daqmeter_harness::displayed!(Protocol);

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
        1 => (format!("ping-pong of {message_bytes} B"), "one message at a time"),
        _ => (
            format!("echo of {message_bytes} B x {batch}"),
            "as many messages on their way as in the pipeline, in batches where the kernel takes them",
        ),
    };
    LimitSpec::Measured {
        name: format!("raw {transport} {what}"),
        how: format!("same bytes, same sockets, same placement, no Etherbone: {how}"),
        workload: request.workload(),
        scale: 1.0,
    }
}

const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes on their way at once, as in the client.
const WINDOW_BYTES: usize = 48 * 1024;

struct PingPong {
    message_bytes: usize,
    burst: usize,
    ends: Option<Ends>,
    ledger: Ledger,
    request: PingPongRequest,
}

/// Our end of the socket, and the thread that echoes.
struct Ends {
    way: Box<dyn EbTransport>,
    stop: Arc<AtomicBool>,
    echo: Option<JoinHandle<()>>,
    sent: Vec<u8>,
    back: Vec<u8>,
}

impl Drop for Ends {
    /// Wakes the echo by a message and waits for it.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.way.send(&[0], &[1]);
        if let Some(echo) = self.echo.take() {
            // A panic of the echo has already shown as a lost message.
            let _ = echo.join();
        }
    }
}

fn open(request: &PingPongRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let whole = |number: u64| usize::try_from(number).expect("the request was checked");
    let message_bytes = whole(request.message_bytes);
    let burst = whole(request.batch).min((WINDOW_BYTES / message_bytes).max(1));
    let (request, ledger) = (request.clone(), Ledger::new("messages"));
    Ok(vec![Box::new(PingPong { message_bytes, burst, ends: None, ledger, request })])
}

/// Echoes what comes until it is told to stop.
fn echo(
    protocol: Protocol,
    stop: Arc<AtomicBool>,
) -> std::io::Result<(u16, Box<dyn FnOnce() + Send>)> {
    let running = move || !stop.load(Ordering::Acquire);
    let mut buffer = vec![0; 1 << 18];
    match protocol {
        Protocol::Udp => {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            net::enable_gro(socket.as_fd());
            let port = socket.local_addr()?.port();
            let body = move || {
                while running() {
                    let fd = socket.as_fd();
                    if let Ok((received, from)) = net::receive_from(fd, &mut buffer, true) {
                        let batch = &buffer[..received.bytes];
                        let _ = net::send(fd, batch, received.segment_bytes, Some(&from));
                    }
                }
            };
            Ok((port, Box::new(body)))
        }
        Protocol::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let port = listener.local_addr()?.port();
            let body = move || {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let _ = stream.set_nodelay(true);
                while running()
                    && let Ok(bytes @ 1..) = stream.read(&mut buffer)
                    && stream.write_all(&buffer[..bytes]).is_ok()
                {}
            };
            Ok((port, Box::new(body)))
        }
    }
}

impl Ends {
    fn open(request: &PingPongRequest, burst_bytes: usize) -> Result<Ends, EbError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (port, echo) =
            echo(request.transport, stop.clone()).map_err(EbError::io("cannot open a socket"))?;
        let address = Address::parse(&format!("{}/127.0.0.1/{port}", request.transport))?;
        let way = transport::open(&address, EbDialect::Gsi, PATIENCE)?;
        let cpu = request.peer_cpu;
        let body = move || {
            // If the CPU is not allowed, the echo runs unpinned; the harness refuses CPUs that
            // do not exist.
            if let Some(cpu) = cpu {
                let _ = affinity::pin_to(cpu);
            }
            echo();
        };
        let thread = std::thread::Builder::new().name("echo".to_owned()).spawn(body);
        let echo = Some(thread.map_err(EbError::io("cannot start a thread"))?);
        let sent = (0..=250_u8).cycle().take(burst_bytes).collect();
        Ok(Ends { way, stop, echo, sent, back: vec![0; burst_bytes + RECEIVE_BYTES] })
    }

    /// Sends the first bytes of the request, and waits until as many have come back.
    fn round(&mut self, messages: usize, message_bytes: usize) -> Result<(), Fault> {
        const LENGTHS: usize = 64;
        let bytes = messages * message_bytes;
        let lengths = [message_bytes; LENGTHS];
        for part in self.sent[..bytes].chunks(LENGTHS * message_bytes) {
            self.way.send(part, &lengths[..part.len() / message_bytes])?;
        }
        let mut back = 0;
        while back < bytes {
            let Some(arrived) = self.way.receive(&mut self.back[back..], PATIENCE)? else {
                return Err(Fault::new(format!(
                    "a message of {message_bytes} bytes did not come back within {PATIENCE:?}"
                )));
            };
            back += arrived.bytes;
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
            ..StageSpec::new(name, self.request.counted_bytes, moved)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.ends = Some(Ends::open(&self.request, self.burst * self.message_bytes)?);
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let ends = self.ends.as_mut().expect("prepared before the first step");
        let mut left = operations;
        while left > 0 {
            let now = left.min(self.burst as u64);
            self.ledger.issued += now;
            ends.round(usize::try_from(now).expect("a burst"), self.message_bytes)?;
            self.ledger.delivered += now;
            left -= now;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let ends = self.ends.as_mut().expect("prepared before verification");
        ends.back.fill(0);
        ends.round(self.burst, self.message_bytes)?;
        match ends.sent.iter().zip(&ends.back).position(|(sent, back)| sent != back) {
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

    /// Issue 15: the echo ran unpinned when its CPU did not exist.
    #[test]
    fn wrong_parameters_are_named() {
        for (name, value, wanted) in [
            ("message_bytes", 2000_u64.into(), "1 to 1472"),
            ("batch", 0_u64.into(), "`batch` is 0"),
            ("transport", "sctp".into(), "expected `udp` or `tcp`"),
            ("peer_cpu", 1_000_000_u64.into(), "`peer_cpu` is 1000000: there is no such CPU"),
        ] {
            let value: Param = value;
            let workload = PingPongRequest::example().workload().with(name, value);
            let error = PingPongRequest::of(&workload).unwrap_err().0;
            assert!(error.contains(wanted), "{name}: {error}");
        }
    }
}
