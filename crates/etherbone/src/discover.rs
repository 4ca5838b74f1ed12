//! Discovery of slaves: a probe to a broadcast address and its answers.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use daqmeter_wire::etherbone::{EbProbe, Widths};

use crate::EbError;
use crate::address::{HostPort, IpFamily};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    pub peer: SocketAddr,
    pub address: Widths,
    pub data: Widths,
}

/// Sends a probe for every width, and collects answers until none has come for the given time.
/// Every slave is reported once.
pub fn discover(
    host: &HostPort,
    family: IpFamily,
    quiet: Duration,
) -> Result<Vec<Discovered>, EbError> {
    let to = host.resolve(family)?[0];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Description;
    use crate::{EbServer, ServerOptions, Slave};

    #[test]
    fn a_slave_that_is_there_is_found_once() {
        let slave = Slave::new(Description::timing_receiver().build().unwrap());
        let server = EbServer::bind(slave, ServerOptions::loopback()).unwrap().spawn(None).unwrap();
        let host = HostPort { name: "127.0.0.1".to_owned(), port: server.port };
        let found = discover(&host, IpFamily::Any, Duration::from_millis(50)).unwrap();
        let peer = SocketAddr::from(([127, 0, 0, 1], server.port));
        assert_eq!(found, [Discovered { peer, address: Widths::ALL, data: Widths::ALL }]);
    }
}
