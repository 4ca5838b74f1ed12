//! The sink that is a receiver on another host: see `receiver.rs` for the protocol.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_harness::frames::{FrameStream, MAX_CONTROL_BYTES};
use daqmeter_record::Counter;
use daqmeter_record::border::from_peer;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

use crate::cancel::Cuts;
use crate::element::{Block, Confirmed, Sink};
use crate::external::set_congestion;
use crate::receiver::protocol::{
    BlockHead, MAX_STREAMS, PATIENCE, PathHello, ReceiverReport, UdpEnd,
};
use crate::udp::{self, Datagrams};

/// Counter of receivers that gave no account.
pub const WITHOUT_ACCOUNT: &str = "receivers-without-account";

const UNCONFIRMED: &str = "sent, but the receiver did not say that they came";

/// Way of the blocks to the receiver.
pub(crate) enum Transport {
    Tcp { congestion: Option<String> },
    Udp { datagram_bytes: usize, socket_buffer_bytes: u64 },
}

pub(crate) struct Remote {
    to: String,
    transport: Transport,
    cuts: Cuts,
    connection: Option<Connection>,
    sent: ReceiverReport,
    /// True if it was asked for its account and gave none.
    has_no_account: bool,
}

struct Connection {
    frames: FrameStream,
    udp: Option<ByUdp>,
}

struct ByUdp {
    socket: UdpSocket,
    datagrams: Datagrams,
    /// Size of the receiver's socket buffer, as it was asked for and as it is.
    asked_bytes: u64,
    granted_bytes: u64,
    strays: u64,
}

impl Remote {
    pub(crate) fn new(to: String, transport: Transport, cuts: Cuts) -> Remote {
        let sent = ReceiverReport::default();
        Remote { to, transport, cuts, connection: None, sent, has_no_account: false }
    }

    fn udp(&self) -> Option<&ByUdp> {
        self.connection.as_ref()?.udp.as_ref()
    }

    fn is_udp(&self) -> bool {
        matches!(self.transport, Transport::Udp { .. })
    }

    fn says(&self, what: impl std::fmt::Display) -> Fault {
        Fault::new(format!("receiver {}: {what}", self.to))
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        let why = match error.kind() {
            // The time is that of the kernel or of the call.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
            _ => error.to_string(),
        };
        self.says(format!("{what}: {why}"))
    }

    /// Greets the receiver; returns its greeting.
    fn greet(&self, frames: &mut FrameStream, udp: Option<UdpEnd>) -> Result<PathHello, Fault> {
        // A receiver that is busy says so and closes the connection.
        let _ = frames.say(FrameKind::Hello, &PathHello { udp }, PATIENCE);
        match frames.receive(PATIENCE, &|| false) {
            Ok(Some((FelixFrame { kind: FrameKind::Refused, .. }, body))) => {
                Err(self.says(refusal(body)))
            }
            Ok(Some((FelixFrame { kind: FrameKind::Hello, .. }, body))) => from_peer(body, &[])
                .map_err(|problem| self.says(format!("its greeting: {problem}"))),
            Ok(None) => Err(self.says(format!(
                "it said nothing for {} s: it is no `daqmeter path serve`",
                PATIENCE.as_secs()
            ))),
            Ok(Some(_)) | Err(_) => {
                Err(self.says("what answers there is no `daqmeter path serve` of this version"))
            }
        }
    }

    fn open(&self) -> Result<Connection, Fault> {
        let failed = |error: std::io::Error| {
            let fault = self.failed("connect", &error);
            Fault::new(format!("{fault}; start `daqmeter path serve ADDRESS:PORT` there"))
        };
        let mut frames = FrameStream::connect(&self.to, MAX_CONTROL_BYTES).map_err(failed)?;
        self.cuts.add(frames.cut().map_err(failed)?);
        let udp = match &self.transport {
            Transport::Tcp { congestion } => {
                set_congestion(frames.stream(), congestion.as_deref())?;
                self.greet(&mut frames, None)?;
                None
            }
            &Transport::Udp { datagram_bytes, socket_buffer_bytes } => {
                Some(self.open_udp(&mut frames, datagram_bytes, socket_buffer_bytes)?)
            }
        };
        Ok(Connection { frames, udp })
    }

    fn open_udp(
        &self,
        frames: &mut FrameStream,
        datagram_bytes: usize,
        asked_bytes: u64,
    ) -> Result<ByUdp, Fault> {
        let failed = |error: std::io::Error| self.failed("udp", &error);
        let here = frames.stream().local_addr().map_err(failed)?.ip();
        let there = frames.stream().peer_addr().map_err(failed)?.ip();
        let socket = UdpSocket::bind((here, 0)).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        let end = UdpEnd { port, socket_buffer_bytes: asked_bytes };
        let hello = self.greet(frames, Some(end))?;
        let end = hello.udp.ok_or_else(|| self.says("it has no port for datagrams"))?;
        udp::connect(&socket, SocketAddr::new(there, end.port), datagram_bytes)?;
        let (datagrams, granted_bytes) = (Datagrams::new(datagram_bytes), end.socket_buffer_bytes);
        Ok(ByUdp { socket, datagrams, asked_bytes, granted_bytes, strays: 0 })
    }

    fn connection(&mut self) -> Result<&mut Connection, Fault> {
        let to = &self.to;
        let missing = || Fault::new(format!("receiver {to}: it was not connected"));
        self.connection.as_mut().ok_or_else(missing)
    }

    fn ask(&mut self) -> Result<ReceiverReport, Fault> {
        let Connection { frames, udp } = self.connection()?;
        let sequence = udp.as_ref().map_or(0, |udp| udp.datagrams.number);
        let ask = FelixFrame { sequence, ..FelixFrame::control(FrameKind::Account, 0) };
        let asked = frames.send(&ask, [&[], &[]], PATIENCE);
        let report = asked.and_then(|()| match frames.receive(PATIENCE, &|| false)? {
            Some((_, body)) => Ok(ReceiverReport::parse(body)),
            None => Err(ErrorKind::TimedOut.into()),
        });
        self.has_no_account = report.is_err();
        let report = report.map_err(|error| self.failed("cannot tell what came", &error))?;
        report.map_err(|problem| self.says(problem))
    }
}

/// Reads the reason of a refusal, a line.
fn refusal(body: &[u8]) -> String {
    from_peer(body, &[]).unwrap_or_else(|_| "it does not serve this sender".to_owned())
}

impl Connection {
    fn send(&mut self, head: &BlockHead, block: &[u8]) -> std::io::Result<()> {
        let head = head.emit();
        if let Some(udp) = &mut self.udp {
            return udp.datagrams.send(&udp.socket, [&head, block]);
        }
        let bytes = u32::try_from(head.len() + block.len()).expect("at most 256 MiB");
        let frame = FelixFrame::control(FrameKind::Blocks, bytes);
        self.frames.send(&frame, [&head, block], PATIENCE)
    }
}

impl Sink for Remote {
    fn prepare(&mut self) -> Result<(), Fault> {
        self.connection = Some(self.open()?);
        Ok(())
    }

    fn take(&mut self, block: &mut Block, expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let head = BlockHead {
            stream: block.label.stream as u64,
            events: block.label.events,
            sum: expected,
        };
        let connection = self.connection()?;
        if let Err(error) = connection.send(&head, block.bytes()) {
            return Err(match connection.frames.receive(Duration::ZERO, &|| true) {
                Ok(Some((FelixFrame { kind: FrameKind::Refused, .. }, body))) => {
                    let why = refusal(body);
                    self.says(why)
                }
                _ => self.failed("send", &error),
            });
        }
        self.sent.book(&head, block.label.bytes, expected);
        Ok(None)
    }

    fn confirm(&mut self) -> Result<Confirmed, Fault> {
        let came = self.ask()?;
        if let Some(udp) = self.connection.as_mut().and_then(|all| all.udp.as_mut()) {
            udp.strays = came.strays;
        }
        if came.wrong > 0 {
            return Err(
                self.says(format!("{} blocks came with other bytes than were sent", came.wrong))
            );
        }
        let lost = |at| {
            let (sent, came) = (self.sent.stream(at), came.stream(at));
            let blocks = sent.blocks.checked_sub(came.blocks)?;
            Some((blocks, sent.events.checked_sub(came.events)?))
        };
        let lost: Option<Vec<(u64, u64)>> = (0..MAX_STREAMS).map(lost).collect();
        let lost = lost.filter(|lost| {
            let is_all = lost.iter().all(|(blocks, _)| *blocks == 0);
            match self.is_udp() {
                true => came.verified <= self.sent.verified,
                false => is_all && came.verified == self.sent.verified,
            }
        });
        let Some(lost) = lost else {
            return Err(self.says(format!(
                "{} blocks came, {} of them compared; {} and {} were sent",
                came.blocks(),
                came.verified,
                self.sent.blocks(),
                self.sent.verified
            )));
        };
        Ok(Confirmed { verified: came.verified, lost })
    }

    fn missing(&self, is_confirmed: bool) -> Option<&'static str> {
        if is_confirmed { self.is_udp().then_some(udp::LOST) } else { Some(UNCONFIRMED) }
    }

    fn counters(&self) -> Vec<Counter> {
        let bytes = |name: &str, value| Counter { unit: "B".into(), ..Counter::count(name, value) };
        let of_udp = |udp: &ByUdp| {
            [
                bytes("udp-buffer-asked", udp.asked_bytes),
                bytes("udp-buffer-granted", udp.granted_bytes),
                Counter::count("udp-datagrams-without-a-block", udp.strays),
            ]
        };
        let missing = self.has_no_account.then(|| Counter::count(WITHOUT_ACCOUNT, 1));
        self.udp().into_iter().flat_map(of_udp).chain(missing).collect()
    }
}
