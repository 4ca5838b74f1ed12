//! Discovery of slaves: a probe to a broadcast address and its answers.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use daqmeter_wire::etherbone::{EbProbe, Widths};

use crate::EbError;
use crate::address::HostPort;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    pub peer: SocketAddr,
    pub address: Widths,
    pub data: Widths,
}

/// Sends a probe for every width, and collects answers until none has come for the given time.
/// Every slave is reported once.
pub fn discover(host: &HostPort, quiet: Duration) -> Result<Vec<Discovered>, EbError> {
    let to = host.resolve()?[0];
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).map_err(EbError::io("cannot open a socket"))?;
    socket.set_broadcast(true).map_err(EbError::io("cannot broadcast"))?;
    let probe = EbProbe { response: false, address: Widths::ALL, data: Widths::ALL, id: 0 };
    socket.send_to(&probe.emit(), to).map_err(EbError::io(format!("cannot send to {to}")))?;
    let mut found: Vec<Discovered> = Vec::new();
    let mut heard = Instant::now();
    let mut buffer = [0; 64];
    while let Some(left) = quiet.checked_sub(heard.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).map_err(EbError::io("cannot set a timeout"))?;
        let Ok((bytes, peer)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let Some(answer) = EbProbe::parse(&buffer[..bytes]).ok().filter(|answer| answer.response)
        else {
            continue;
        };
        heard = Instant::now();
        if !found.iter().any(|known| known.peer == peer) {
            found.push(Discovered { peer, address: answer.address, data: answer.data });
        }
    }
    Ok(found)
}
