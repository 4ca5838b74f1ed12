//! The sink that is a receiver on another host: see `receiver.rs` for the protocol.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};

use daqmeter_harness::Fault;
use daqmeter_record::Counter;

use crate::cancel::Cuts;
use crate::element::{Block, Confirmed, Sink};
use crate::external::set_congestion;
use crate::receiver::protocol::{
    BlockHead, BlockTransport, MAGIC, MAX_SENDERS, PATIENCE, ReceiverReport, SenderHello,
    WELCOME_BYTES, numbers, whole,
};
use crate::udp::{self, Datagrams, SocketBuffer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp { congestion: Option<String> },
    Udp { datagram_bytes: usize, socket_buffer_bytes: u64 },
}

const UNCONFIRMED: &str = "sent, but the receiver did not say that they came";

pub(crate) struct Remote {
    to: String,
    over: Over,
    cuts: Cuts,
    connection: Option<Connection>,
    sent: ReceiverReport,
}

struct Connection {
    stream: TcpStream,
    udp: Option<ByUdp>,
}

struct ByUdp {
    socket: UdpSocket,
    datagrams: Datagrams,
    buffer: SocketBuffer,
    strays: u64,
}

impl Remote {
    pub(crate) fn new(to: String, over: Over, cuts: Cuts) -> Remote {
        Remote { to, over, cuts, connection: None, sent: ReceiverReport::default() }
    }

    fn says(&self, what: impl std::fmt::Display) -> Fault {
        Fault::new(format!("receiver {}: {what}", self.to))
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        let why = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("it did nothing for {} s", PATIENCE.as_secs())
            }
            _ => error.to_string(),
        };
        self.says(format!("{what}: {why}"))
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut last = std::io::Error::new(ErrorKind::NotFound, "it has no address");
        for address in self.to.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends the greeting; returns the receiver's UDP port and its socket's buffer.
    fn greet(&self, mut stream: &TcpStream, hello: SenderHello) -> Result<(u16, u64), Fault> {
        let mut welcome = [0; WELCOME_BYTES];
        let answered = stream.write_all(&hello.emit());
        let answered = answered.and_then(|()| stream.read_exact(&mut welcome));
        let fields = answered.map(|()| numbers::<3>(&welcome));
        match fields {
            Ok(Some([magic, port, granted])) if magic == u64::from_le_bytes(*MAGIC) => {
                let too_large = |_| self.says(format!("its UDP port is {port}"));
                let port = u16::try_from(port).map_err(too_large)?;
                let granted = whole("its socket buffer", granted);
                Ok((port, granted.map_err(|problem| self.says(problem))?))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.says(format!(
                    "it said nothing for {} s: it is no `daqmeter path serve`, or it is busy with {MAX_SENDERS} other senders",
                    PATIENCE.as_secs()
                )))
            }
            Ok(_) | Err(_) => Err(self.says(
                "what answers there is no `daqmeter path serve` of this version",
            )),
        }
    }

    fn open(&self) -> Result<Connection, Fault> {
        let stream = self.connect().map_err(|error| {
            let fault = self.failed("connect", &error);
            Fault::new(format!("{fault}; start `daqmeter path serve ADDRESS:PORT` there"))
        })?;
        let cut = stream.try_clone();
        let cut = cut.map_err(|error| self.failed("connect", &error))?;
        // A peer that is gone already need not be cut off.
        self.cuts.add(move || drop(cut.shutdown(Shutdown::Both)));
        let udp = match &self.over {
            Over::Tcp { congestion } => {
                set_congestion(&stream, congestion.as_deref())?;
                let hello = SenderHello {
                    transport: BlockTransport::Tcp,
                    udp_port: 0,
                    socket_buffer_bytes: 0,
                };
                self.greet(&stream, hello)?;
                None
            }
            Over::Udp { datagram_bytes, socket_buffer_bytes } => {
                Some(self.open_udp(&stream, *datagram_bytes, *socket_buffer_bytes)?)
            }
        };
        Ok(Connection { stream, udp })
    }

    fn open_udp(
        &self,
        stream: &TcpStream,
        datagram_bytes: usize,
        socket_buffer_bytes: u64,
    ) -> Result<ByUdp, Fault> {
        let failed = |error: std::io::Error| self.failed("udp", &error);
        let here = stream.local_addr().map_err(failed)?.ip();
        let there = stream.peer_addr().map_err(failed)?.ip();
        let socket = UdpSocket::bind((here, 0)).map_err(failed)?;
        let hello = SenderHello {
            transport: BlockTransport::Udp,
            udp_port: socket.local_addr().map_err(failed)?.port(),
            socket_buffer_bytes,
        };
        let (port, granted_bytes) = self.greet(stream, hello)?;
        udp::connect(&socket, SocketAddr::new(there, port), datagram_bytes)?;
        Ok(ByUdp {
            socket,
            datagrams: Datagrams::new(datagram_bytes),
            buffer: SocketBuffer { asked_bytes: socket_buffer_bytes, granted_bytes },
            strays: 0,
        })
    }

    fn connection(&mut self) -> Result<&mut Connection, Fault> {
        let to = &self.to;
        let missing = || Fault::new(format!("receiver {to}: it was not connected"));
        self.connection.as_mut().ok_or_else(missing)
    }

    fn ask(&mut self) -> Result<ReceiverReport, Fault> {
        let mut report = [0; ReceiverReport::BYTES];
        let connection = self.connection()?;
        let mut stream = &connection.stream;
        let asked = match &connection.udp {
            Some(udp) => stream.write_all(&udp.datagrams.blocks().to_le_bytes()),
            None => stream.write_all(&BlockHead::default().emit()),
        };
        let asked = asked.and_then(|()| stream.read_exact(&mut report));
        asked.map_err(|error| self.failed("ask what came", &error))?;
        ReceiverReport::parse(&report).map_err(|problem| self.says(problem))
    }
}

impl Connection {
    fn send(&mut self, head: &BlockHead, block: &[u8]) -> std::io::Result<()> {
        match &mut self.udp {
            Some(udp) => udp.datagrams.send(&udp.socket, [&head.emit(), block]),
            None => write_both(&self.stream, &head.emit(), block),
        }
    }
}

impl Sink for Remote {
    fn prepare(&mut self) -> Result<(), Fault> {
        self.connection = Some(self.open()?);
        Ok(())
    }

    fn take(&mut self, block: &Block, expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let head = BlockHead {
            bytes: block.label.bytes as u64,
            stream: block.label.stream as u64,
            events: block.label.events,
            sum: expected,
        };
        let sent = self.connection()?.send(&head, block.bytes());
        sent.map_err(|error| self.failed("send", &error))?;
        self.sent.book(&head, expected);
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
        let streams = self.sent.streams.iter().zip(&came.streams);
        let lost: Option<Vec<(u64, u64)>> = streams
            .map(|(sent, came)| {
                let blocks = sent.blocks.checked_sub(came.blocks)?;
                Some((blocks, sent.events.checked_sub(came.events)?))
            })
            .collect();
        let lost = lost.filter(|lost| {
            let is_all = lost.iter().all(|(blocks, _)| *blocks == 0);
            match self.over {
                Over::Tcp { .. } => is_all && came.verified == self.sent.verified,
                Over::Udp { .. } => came.verified <= self.sent.verified,
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

    fn unconfirmed(&self) -> Option<&'static str> {
        Some(UNCONFIRMED)
    }

    fn loses(&self) -> Option<&'static str> {
        matches!(self.over, Over::Udp { .. }).then_some(udp::LOST)
    }

    fn counters(&self) -> Vec<Counter> {
        let udp = self.connection.as_ref().and_then(|connection| connection.udp.as_ref());
        let strays = |udp: &ByUdp| Counter::count("udp-datagrams-without-a-block", udp.strays);
        udp.map_or_else(Vec::new, |udp| [udp.buffer.counters(), vec![strays(udp)]].concat())
    }

    fn note(&self) -> Option<String> {
        self.connection.as_ref()?.udp.as_ref()?.buffer.note()
    }
}

/// Writes both in one call, as far as the kernel takes them.
fn write_both(mut stream: &TcpStream, head: &[u8], block: &[u8]) -> std::io::Result<()> {
    let sent = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(block)])?;
    if sent < head.len() {
        stream.write_all(&head[sent..])?;
    }
    stream.write_all(&block[sent.saturating_sub(head.len())..])
}
