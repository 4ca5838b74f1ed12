//! Netlink: network devices, queueing disciplines and sockets with their counters.
//!
//! The crates `netlink-packet-*` describe all of rtnetlink in 30,000 lines, and build for longer
//! than this whole crate; five messages are read here. Layouts from `include/uapi/linux/netlink.h`,
//! `rtnetlink.h`, `if_link.h`, `pkt_sched.h`, `inet_diag.h`, `packet_diag.h`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::{SysError, failed};

const DONE: u16 = 3;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const MULTI: u16 = 2;
/// Largest message that the kernel makes for a dump (`NLMSG_GOODSIZE` and `max_recvmsg_len`).
const BUFFER_BYTES: usize = 32 << 10;
/// The kernel answers at once; a lost answer must not stop a measurement.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A socket of one netlink family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Route,
    SocketDiagnosis,
}

impl Netlink {
    /// # Errors
    /// The kernel lacks the family, or the process has no descriptor left.
    pub fn open(family: Family) -> Result<Netlink, SysError> {
        let (number, call) = match family {
            Family::Route => (libc::NETLINK_ROUTE, "netlink route"),
            Family::SocketDiagnosis => (libc::NETLINK_SOCK_DIAG, "netlink sock_diag"),
        };
        let domain = Domain::from(libc::AF_NETLINK);
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(number)))
            .and_then(|socket| socket.set_read_timeout(Some(ANSWER_WITHIN)).map(|()| socket))
            .map_err(failed(call))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends a request and passes each message of the answer on, without its header.
    fn request(
        &mut self,
        (kind, flags): (u16, u16),
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(16 + body.len()).expect("a request is short");
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((flags | REQUEST).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(body);
        self.socket.write_all(&message)?;
        loop {
            let bytes = self.socket.read(&mut self.buffer)?;
            for message in Messages(&self.buffer[..bytes]) {
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => {
                        let code = i32::from_ne_bytes(field(message.body, 0).unwrap_or_default());
                        let error = io::Error::from_raw_os_error(code.wrapping_neg());
                        return if code == 0 { Ok(()) } else { Err(error) };
                    }
                    _ => each(message.body),
                }
                if message.flags & MULTI == 0 {
                    return Ok(());
                }
            }
        }
    }

    /// Devices of the namespace.
    ///
    /// # Errors
    /// Those of netlink; an answer that does not come.
    pub fn links(&mut self) -> Result<Vec<Link>, SysError> {
        const GET_LINK: u16 = 18;
        let mut links = Vec::new();
        self.request((GET_LINK, DUMP), &[0; 16], |body| links.extend(link(body)))
            .map_err(failed("list network devices"))?;
        Ok(links)
    }

    /// Queueing disciplines at the root and at the entry of devices: those below a root are
    /// counted in it.
    ///
    /// # Errors
    /// As [`Netlink::links`].
    pub fn disciplines(&mut self) -> Result<Vec<Discipline>, SysError> {
        const GET_DISCIPLINE: u16 = 38;
        let mut found = Vec::new();
        self.request((GET_DISCIPLINE, DUMP), &[0; 20], |body| found.extend(discipline(body)))
            .map_err(failed("list queueing disciplines"))?;
        Ok(found)
    }

    /// Sockets of a protocol, with their memory; TCP's also with `tcp_info`.
    ///
    /// # Errors
    /// As [`Netlink::links`]; ENOENT where the kernel has no diagnosis of this protocol.
    pub fn sockets(&mut self, kind: SocketKind) -> Result<Vec<SocketState>, SysError> {
        const BY_FAMILY: u16 = 20;
        let body = kind.request();
        let mut found = Vec::new();
        self.request((BY_FAMILY, DUMP), &body, |body| found.extend(kind.socket(body)))
            .map_err(failed(format!("list sockets of {kind:?}")))?;
        Ok(found)
    }

    /// One socket of the internet protocols as it is now; a few microseconds.
    ///
    /// # Errors
    /// ENOENT after the socket was closed.
    pub fn socket(&mut self, of: &SocketState) -> Result<Option<SocketState>, SysError> {
        const BY_FAMILY: u16 = 20;
        let mut body = of.kind.request();
        if body.len() < 56 {
            return Ok(self.sockets(of.kind)?.into_iter().find(|one| one.cookie == of.cookie));
        }
        // The local address stands where the kernel looks it up for its answer to one socket: as
        // the destination for UDP (udp_dump_one), as the source for TCP.
        let (source, destination) = match of.kind.protocol() {
            libc::IPPROTO_UDP => (of.remote, of.local),
            _ => (of.local, of.remote),
        };
        body[8..10].copy_from_slice(&source.port().to_be_bytes());
        body[10..12].copy_from_slice(&destination.port().to_be_bytes());
        for (at, address) in [(12, source.ip()), (28, destination.ip())] {
            match address {
                IpAddr::V4(address) => body[at..at + 4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => body[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        body[44..48].copy_from_slice(&of.device.to_ne_bytes());
        body[48..56].copy_from_slice(&of.cookie.to_ne_bytes());
        let mut found = None;
        self.request((BY_FAMILY, 0), &body, |body| found = of.kind.socket(body))
            .map_err(failed("look at a socket"))?;
        Ok(found)
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// Messages of one datagram; ends at the first whose length cannot be.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = usize::try_from(u32::from_ne_bytes(field(self.0, 0)?)).ok()?;
        let message = self.0.get(..length)?;
        let body = message.get(16..)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes(field(message, 4)?),
            flags: u16::from_ne_bytes(field(message, 6)?),
            sequence: u32::from_ne_bytes(field(message, 8)?),
            body,
        })
    }
}

/// Attributes from an offset on, type without the bits for nesting and byte order.
fn attributes(bytes: &[u8], from: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes.get(from..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(field(rest, 0)?));
        let kind = u16::from_ne_bytes(field(rest, 2)?) & 0x3FFF;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_ne_bytes)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// Index of the bridge or bond that takes its packets.
    pub master: Option<u32>,
    /// Index of the device whose packets it takes over, in the same namespace: of a VLAN or a
    /// macvlan.
    pub below: Option<u32>,
    /// Kind of a virtual device, as `veth`.
    pub kind: Option<String>,
    pub received: Received,
}

/// Receiving counters of `struct rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub packets: u64,
    pub dropped: u64,
    pub length_errors: u64,
    pub over_errors: u64,
    pub crc_errors: u64,
    pub frame_errors: u64,
    pub fifo_errors: u64,
    pub missed_errors: u64,
}

fn link(body: &[u8]) -> Option<Link> {
    const NAME: u16 = 3;
    const BELOW: u16 = 5;
    const MASTER: u16 = 10;
    const INFO: u16 = 18;
    const INFO_KIND: u16 = 1;
    const STATISTICS: u16 = 23;
    const NAMESPACE_BELOW: u16 = 37;
    let mut link = Link { index: word(body, 4)?, ..Link::default() };
    let mut is_below_elsewhere = false;
    for (kind, value) in attributes(body, 16) {
        match kind {
            NAME => link.name = text(value),
            BELOW => link.below = word(value, 0).filter(|&below| below != link.index && below != 0),
            MASTER => link.master = word(value, 0),
            INFO => {
                let kind = attributes(value, 0).find(|(kind, _)| *kind == INFO_KIND);
                link.kind = kind.map(|(_, value)| text(value));
            }
            STATISTICS => link.received = received(value),
            NAMESPACE_BELOW => is_below_elsewhere = true,
            _ => {}
        }
    }
    // A veth names its peer, whose packets are other ones.
    if is_below_elsewhere || link.kind.as_deref() == Some("veth") {
        link.below = None;
    }
    Some(link)
}

/// Reads as many of the counters as this kernel has.
fn received(value: &[u8]) -> Received {
    let count = |at: usize| field(value, at * 8).map_or(0, u64::from_ne_bytes);
    Received {
        packets: count(0),
        dropped: count(6),
        length_errors: count(10),
        over_errors: count(11),
        crc_errors: count(12),
        frame_errors: count(13),
        fifo_errors: count(14),
        missed_errors: count(15),
    }
}

/// A queueing discipline of a device. The counters have 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discipline {
    pub device: u32,
    pub kind: String,
    /// At the entry of the device (`ingress`, `clsact`), where filters and policers drop.
    pub is_entry: bool,
    pub drops: u32,
}

fn discipline(body: &[u8]) -> Option<Discipline> {
    const ROOT: u32 = 0xFFFF_FFFF;
    const ENTRY: u32 = 0xFFFF_FFF1;
    const KIND: u16 = 1;
    const STATISTICS: u16 = 7;
    const QUEUE: u16 = 3;
    let parent = word(body, 12)?;
    if parent != ROOT && parent != ENTRY {
        return None;
    }
    let (mut kind, mut drops) = (String::new(), 0);
    for (attribute, value) in attributes(body, 20) {
        match attribute {
            KIND => kind = text(value),
            STATISTICS => {
                let queue = attributes(value, 0).find(|(kind, _)| *kind == QUEUE);
                drops = queue.and_then(|(_, value)| word(value, 8)).unwrap_or(0);
            }
            _ => {}
        }
    }
    Some(Discipline { device: word(body, 4)?, kind, is_entry: parent == ENTRY, drops })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketKind {
    Udp4,
    Udp6,
    Tcp4,
    Tcp6,
    Packet,
}

impl SocketKind {
    fn protocol(self) -> i32 {
        match self {
            SocketKind::Udp4 | SocketKind::Udp6 => libc::IPPROTO_UDP,
            SocketKind::Tcp4 | SocketKind::Tcp6 => libc::IPPROTO_TCP,
            SocketKind::Packet => 0,
        }
    }

    fn is_v6(self) -> bool {
        matches!(self, SocketKind::Udp6 | SocketKind::Tcp6)
    }

    /// `struct inet_diag_req_v2` of 56 bytes, or `struct packet_diag_req` of 20.
    fn request(self) -> Vec<u8> {
        const MEMORY: u8 = 1 << (7 - 1);
        const INFO: u8 = 1 << (2 - 1);
        const PACKET_INFO_RING_AND_MEMORY: u32 = 0x01 | 0x04 | 0x10;
        let byte = |value: i32| u8::try_from(value).expect("families and protocols fit a byte");
        if self == SocketKind::Packet {
            let mut body = vec![0; 20];
            body[0] = byte(libc::AF_PACKET);
            body[8..12].copy_from_slice(&PACKET_INFO_RING_AND_MEMORY.to_ne_bytes());
            return body;
        }
        let mut body = vec![0; 56];
        body[0] = byte(if self.is_v6() { libc::AF_INET6 } else { libc::AF_INET });
        body[1] = byte(self.protocol());
        body[2] = if self.protocol() == libc::IPPROTO_TCP { MEMORY | INFO } else { MEMORY };
        body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        body
    }

    fn socket(self, body: &[u8]) -> Option<SocketState> {
        const MEMORY: u16 = 7;
        const INFO: u16 = 2;
        const PACKET_MEMORY: u16 = 6;
        const PACKET_RING: u16 = 2;
        const PACKET_INFO: u16 = 0;
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut socket = if self == SocketKind::Packet {
            let cookie = field(body, 8).map(u64::from_ne_bytes)?;
            SocketState::new(self, cookie, word(body, 4)?, (nowhere, nowhere))
        } else {
            let address = |port: usize, at: usize| {
                let port = u16::from_be_bytes(field(body, port)?);
                let ip = if self.is_v6() {
                    IpAddr::from(Ipv6Addr::from(field::<16>(body, at)?))
                } else {
                    IpAddr::from(Ipv4Addr::from(field::<4>(body, at)?))
                };
                Some(SocketAddr::new(ip, port))
            };
            let ends = (address(4, 8)?, address(6, 24)?);
            let cookie = field(body, 44).map(u64::from_ne_bytes)?;
            SocketState::new(self, cookie, word(body, 68)?, ends)
        };
        let (from, memory) = match self {
            SocketKind::Packet => (16, PACKET_MEMORY),
            _ => {
                socket.device = word(body, 40)?;
                socket.state = *body.get(1)?;
                (72, MEMORY)
            }
        };
        for (kind, value) in attributes(body, from) {
            if kind == memory {
                socket.filled_bytes = word(value, 0)?;
                socket.buffer_bytes = word(value, 4)?;
                socket.drops = word(value, 32)?;
            } else if kind == PACKET_INFO && self == SocketKind::Packet {
                socket.device = word(value, 0)?;
            } else if kind == PACKET_RING && self == SocketKind::Packet {
                socket.has_ring = true;
            } else if kind == INFO && self != SocketKind::Packet {
                socket.tcp = TcpState::read(value);
            }
        }
        Some(socket)
    }
}

/// A socket, and what waits in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketState {
    pub kind: SocketKind,
    /// Number that no other socket has until the next boot.
    pub cookie: u64,
    /// The number in `/proc/PID/fd`; 0 without an owner.
    pub inode: u32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Index of the device that it is bound to, or 0.
    pub device: u32,
    /// State of `include/net/tcp_states.h`.
    pub state: u8,
    /// Memory of what waits for the program, with the kernel's own share, in bytes.
    pub filled_bytes: u32,
    /// Limit of `filled_bytes`: twice what `SO_RCVBUF` was set to.
    pub buffer_bytes: u32,
    /// Packets that the socket did not take; wraps at 32 bits.
    pub drops: u32,
    /// Packets go into memory that it shares with its program, whose drops no list shows.
    pub has_ring: bool,
    pub tcp: Option<TcpState>,
}

impl SocketState {
    fn new(
        kind: SocketKind,
        cookie: u64,
        inode: u32,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> SocketState {
        SocketState {
            kind,
            cookie,
            inode,
            local,
            remote,
            device: 0,
            state: 0,
            filled_bytes: 0,
            buffer_bytes: 0,
            drops: 0,
            has_ring: false,
            tcp: None,
        }
    }
}

/// Fields of `struct tcp_info` of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpState {
    pub received_bytes: u64,
    /// Window that is offered to the peer, in bytes (Linux 6.2).
    pub window_bytes: Option<u32>,
}

impl TcpState {
    fn read(value: &[u8]) -> Option<TcpState> {
        Some(TcpState {
            received_bytes: field(value, 128).map(u64::from_ne_bytes)?,
            window_bytes: word(value, 232),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_vlan_lies_on_a_device_and_a_veth_does_not() {
        let of_kind = |kind: &[u8]| {
            let mut body = vec![0; 16];
            body[4] = 7;
            let mut counters = [0_u8; 24 * 8];
            counters[0] = 9;
            counters[15 * 8] = 4;
            body.extend(attribute(3, b"eth0\0"));
            body.extend(attribute(5, &3_u32.to_ne_bytes()));
            body.extend(attribute(18, &attribute(1, kind)));
            body.extend(attribute(23, &counters));
            link(&body).unwrap()
        };
        let vlan = of_kind(b"vlan\0");
        assert_eq!((vlan.index, vlan.name.as_str()), (7, "eth0"));
        assert_eq!((vlan.below, vlan.received.packets), (Some(3), 9));
        assert_eq!(vlan.received.missed_errors, 4);
        assert_eq!(of_kind(b"veth\0").below, None);
    }

    #[test]
    fn a_discipline_below_a_root_is_left_out() {
        let with_parent = |parent: u32| {
            let mut body = vec![0; 20];
            body[4] = 2;
            body[12..16].copy_from_slice(&parent.to_ne_bytes());
            body.extend(attribute(1, b"tbf\0"));
            let queue = [0_u32, 0, 673, 0, 0].map(u32::to_ne_bytes).concat();
            body.extend(attribute(7, &attribute(3, &queue)));
            discipline(&body)
        };
        let root = with_parent(u32::MAX).unwrap();
        assert_eq!((root.device, root.kind.as_str(), root.is_entry), (2, "tbf", false));
        assert_eq!(root.drops, 673);
        assert!(with_parent(0xFFFF_FFF1).unwrap().is_entry);
        assert_eq!(with_parent(0x8001_0001), None);
    }

    /// Returns this test's socket, or `None` where the kernel has no diagnosis of sockets.
    fn diagnosed(kind: SocketKind, local: SocketAddr) -> Option<(Netlink, SocketState)> {
        let mut netlink = Netlink::open(Family::SocketDiagnosis).ok()?;
        let found = netlink.sockets(kind).ok()?;
        let own = found.into_iter().find(|one| one.local == local);
        Some((netlink, own.expect("our socket is listed")))
    }

    #[test]
    fn packets_that_a_full_socket_drops_are_counted_exactly() {
        for (address, kind) in [("127.0.0.1:0", SocketKind::Udp4), ("[::1]:0", SocketKind::Udp6)] {
            let Ok(receiver) = UdpSocket::bind(address) else {
                continue;
            };
            let local = receiver.local_addr().unwrap();
            let Some((mut netlink, before)) = diagnosed(kind, local) else {
                return eprintln!("no diagnosis of sockets here");
            };
            assert_eq!((before.drops, before.filled_bytes), (0, 0));
            for _ in 0..3000 {
                receiver.send_to(&[1; 1000], local).unwrap();
            }
            let after = netlink.socket(&before).unwrap().unwrap();
            assert_eq!((after.cookie, after.inode), (before.cookie, before.inode));
            assert!(after.drops > 0 && after.filled_bytes > after.buffer_bytes / 2, "{after:?}");
            receiver.set_nonblocking(true).unwrap();
            let mut held = 0;
            while receiver.recv(&mut [0; 1000]).is_ok() {
                held += 1;
            }
            assert_eq!(held + after.drops, 3000);
            drop(receiver);
            assert!(!matches!(netlink.socket(&before), Ok(Some(_))), "it is gone");
        }
    }

    #[test]
    fn a_connection_says_how_much_came_in() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[0; 5000]).unwrap();
        receiver.read_exact(&mut [0; 5000]).unwrap();
        let mut netlink = Netlink::open(Family::SocketDiagnosis).unwrap();
        let Ok(found) = netlink.sockets(SocketKind::Tcp4) else {
            return eprintln!("no diagnosis of sockets here");
        };
        let ends = (receiver.local_addr().unwrap(), receiver.peer_addr().unwrap());
        let own = found.iter().find(|one| (one.local, one.remote) == ends).unwrap();
        assert_eq!(own.tcp.unwrap().received_bytes, 5000);
        assert_eq!(netlink.socket(own).unwrap().unwrap().cookie, own.cookie);
    }

    #[test]
    fn this_host_has_a_loopback_device() {
        let mut netlink = Netlink::open(Family::Route).unwrap();
        let links = netlink.links().unwrap();
        assert!(links.iter().any(|link| link.name == "lo"), "{links:?}");
        netlink.disciplines().unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_answer_breaks_the_reader(bytes in proptest::collection::vec(0_u8.., 0..300)) {
            for message in Messages(&bytes) {
                let _ = (link(message.body), discipline(message.body));
            }
            let _ = (link(&bytes), discipline(&bytes));
            for kind in [SocketKind::Udp4, SocketKind::Tcp6, SocketKind::Packet] {
                let _ = kind.socket(&bytes);
            }
        }
    }
}
