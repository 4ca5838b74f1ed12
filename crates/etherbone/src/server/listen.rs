use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Opens a UDP socket and a TCP listener on one port. A recently used port can be opened at once.
pub(super) fn listen_on(ip: IpAddr, port: u16) -> io::Result<(UdpSocket, TcpListener)> {
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let mut last = None;
    for _ in 0..if port == 0 { 16 } else { 1 } {
        let udp = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if ip.is_ipv6() {
            udp.set_only_v6(true)?;
        }
        // The buffer holds a whole window of several clients. The kernel caps it for users other
        // than root.
        udp.set_recv_buffer_size(4 << 20)?;
        udp.bind(&SocketAddr::new(ip, port).into())?;
        udp.set_nonblocking(true)?;
        let udp: UdpSocket = udp.into();
        daqmeter_sys::net::enable_gro(udp.as_fd());
        let chosen = udp.local_addr()?.port();
        match listen_tcp(domain, SocketAddr::new(ip, chosen)) {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrInUse)))
}

fn listen_tcp(domain: Domain, address: SocketAddr) -> io::Result<TcpListener> {
    let tcp = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        tcp.set_only_v6(true)?;
    }
    tcp.set_reuse_address(true)?;
    tcp.bind(&address.into())?;
    tcp.listen(1024)?;
    tcp.set_nonblocking(true)?;
    Ok(tcp.into())
}
