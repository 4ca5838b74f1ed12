//! Sinks `tcp` and `udp`: sent to a receiver on another host, over TCP or in datagrams.

use std::ops::RangeInclusive;

use daqmeter_harness::{Fault, Problem};
use daqmeter_record::written::ByteSize;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{BEHIND_CARD, Flow, Place, by, bytes, known_congestion, unless};
use crate::definition::kind::{Facts, SinkElement};
use crate::element::Sink;
use crate::remote::{Remote, Transport};
use crate::udp::SOCKET_BUFFER_BYTES;

/// Bytes of a datagram, head included: some payload at least, and at most what IPv4 takes (RFC 768,
/// RFC 791).
const DATAGRAM_BYTES: RangeInclusive<usize> = 64..=65_507;

/// Bytes of a datagram in an Ethernet frame.
const IN_A_FRAME: usize = 1472;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpReceiver {
    to: String,
    congestion: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UdpReceiver {
    to: String,
    #[serde(default = "bytes::<IN_A_FRAME>")]
    datagram: ByteSize,
    #[serde(default = "bytes::<{ 4 << 20 }>")]
    socket_buffer: ByteSize,
}

/// Refuses what is no address of a receiver.
fn is_address(to: &str) -> Result<(), Fault> {
    let is_address = to.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    unless(is_address, "to", "a host and a port are wanted, such as \"daq7:5010\"")
}

impl SinkElement for TcpReceiver {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        unless(flow.live.is_none(), "kind", BEHIND_CARD)?;
        known_congestion(self.congestion.as_ref())?;
        is_address(&self.to)?;
        let text = format!("tcp to {}{}", self.to, by(self.congestion.as_ref()));
        Ok(Facts { to: Some(self.to.clone()), is_outside: true, ..Facts::of(text) })
    }

    fn sink(&self, _block_bytes: usize, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        let transport = Transport::Tcp { congestion: self.congestion.clone() };
        Ok(Box::new(Remote::new(self.to.clone(), transport, cuts.clone())))
    }
}

impl SinkElement for UdpReceiver {
    fn check(&mut self, _place: &Place, _flow: &mut Flow) -> Result<Facts, Fault> {
        is_address(&self.to)?;
        Problem::unless_within("datagram", self.datagram.0, DATAGRAM_BYTES)?;
        Problem::unless_within("socket_buffer", self.socket_buffer.0, SOCKET_BUFFER_BYTES)?;
        let text = format!("udp to {}, datagrams of {} B", self.to, self.datagram.0);
        Ok(Facts { to: Some(self.to.clone()), is_outside: true, may_lose: true, ..Facts::of(text) })
    }

    fn sink(&self, _block_bytes: usize, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        let transport = Transport::Udp {
            datagram_bytes: self.datagram.0,
            socket_buffer_bytes: self.socket_buffer.0 as u64,
        };
        Ok(Box::new(Remote::new(self.to.clone(), transport, cuts.clone())))
    }
}
