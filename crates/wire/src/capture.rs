//! Files of captured packets (pcap), and the UDP datagrams in their packets.
//! Sources: draft-ietf-opsawg-pcap-05, the registry of link types at tcpdump.org; RFC 791, 8200,
//! 768. Fragments and IPv6 extension headers are not put together.

use core::net::{IpAddr, SocketAddr};

pub const HEAD_BYTES: usize = 24;
/// Bytes before each packet.
pub const PACKET_HEAD_BYTES: usize = 16;
/// Longest packet that is believed: tcpdump's own limit is 256 KiB.
const MAX_PACKET_BYTES: usize = 1 << 18;
/// Number of UDP in IP headers.
const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error(
        "no pcap file, since it begins with {0:#010x}; tcpdump -r FILE -w FILE.pcap makes one of a pcapng"
    )]
    Magic(u32),
    #[error("a packet of {0} bytes: the file is damaged")]
    Length(usize),
}

/// Format of the packets of a file, from its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    is_big: bool,
    tick_ns: u64,
    link: u32,
}

impl Capture {
    pub fn parse(head: &[u8; HEAD_BYTES]) -> Result<Capture, CaptureError> {
        let is_big = head[0] == 0xA1;
        let tick_ns = match word(head, 0, is_big) {
            0xA1B2_C3D4 => 1000,
            0xA1B2_3C4D => 1,
            _ => return Err(CaptureError::Magic(word(head, 0, true))),
        };
        // The upper bits say how long a checksum follows.
        Ok(Capture { is_big, tick_ns, link: word(head, 20, is_big) & 0xFFFF })
    }

    /// Returns the time of a packet since 1970 in nanoseconds, and the bytes that follow its head.
    pub fn packet(&self, head: &[u8; PACKET_HEAD_BYTES]) -> Result<(u64, usize), CaptureError> {
        let [seconds, ticks, bytes] = [0, 4, 8].map(|at| word(head, at, self.is_big));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * self.tick_ns;
        if bytes <= MAX_PACKET_BYTES {
            Ok((time_ns, bytes))
        } else {
            Err(CaptureError::Length(bytes))
        }
    }

    /// Returns the whole UDP datagram in a packet, if it holds one.
    pub fn datagram<'a>(&self, packet: &'a [u8]) -> Option<Datagram<'a>> {
        let short =
            |bytes: &[u8], at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let ip_at = match self.link {
            // Ethernet, with the tags of virtual LANs.
            1 => (14..)
                .step_by(4)
                .find(|end| !matches!(short(packet, end - 2), Some(0x8100 | 0x88A8)))?,
            12 | 101 | 228 | 229 => 0,
            // Linux "cooked", both versions.
            113 => 16,
            276 => 20,
            _ => return None,
        };
        let ip = packet.get(ip_at..)?;
        let (protocol, is_part, ends, udp_at): (_, _, [IpAddr; 2], _) = match ip.first()? >> 4 {
            4 => {
                let end = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
                let is_part = short(ip, 6)? & 0x3FFF != 0;
                (ip.get(9)?, is_part, [end(12)?, end(16)?], usize::from(ip[0] & 0xF) * 4)
            }
            6 => {
                let end = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
                (ip.get(6)?, false, [end(8)?, end(24)?], 40)
            }
            _ => return None,
        };
        let udp = ip.get(udp_at..).filter(|_| *protocol == UDP && !is_part && udp_at >= 20)?;
        let payload = udp.get(8..usize::from(short(udp, 4)?))?;
        let [from, to] =
            [(ends[0], short(udp, 0)?), (ends[1], short(udp, 2)?)].map(SocketAddr::from);
        Some(Datagram { from, to, payload })
    }
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub payload: &'a [u8],
}

fn word(bytes: &[u8], at: usize, is_big: bool) -> u32 {
    let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAYLOAD: &[u8] = b"wishbone";

    /// Returns a packet of IPv4 to port 0xEBD0 of 10.0.0.2, with padding after it.
    fn ip4() -> Vec<u8> {
        let udp = [&[0x12, 0x67, 0xEB, 0xD0, 0, 16, 0, 0], PAYLOAD].concat();
        let head = [0x45, 0, 0, 36, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&head[..], &udp, &[0; 6]].concat()
    }

    /// Writes a head or the head of a packet in one of the byte orders.
    fn words<const BYTES: usize>(is_big: bool, words: &[u32]) -> [u8; BYTES] {
        let bytes = |word: &u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        words.iter().flat_map(bytes).collect::<Vec<_>>().try_into().unwrap()
    }

    fn capture(is_big: bool, magic: u32, link: u32) -> Result<Capture, CaptureError> {
        Capture::parse(&words(is_big, &[magic, 0x0004_0002, 0, 0, 65535, link]))
    }

    #[test]
    fn datagrams_are_found_behind_every_link_and_nothing_else_is_one() {
        let of = |link| capture(true, 0xA1B2_C3D4, link).unwrap();
        let ethernet = |kind: &[u8]| [&[2; 12], kind, &ip4()].concat();
        for (link, bytes) in [
            (1, ethernet(&[8, 0])),
            (1, ethernet(&[0x81, 0, 0, 5, 8, 0])),
            (101, ip4()),
            (113, [&[0; 16], &ip4()[..]].concat()),
            (276, [&[0; 20], &ip4()[..]].concat()),
        ] {
            let found = of(link).datagram(&bytes).unwrap();
            assert_eq!(found.payload, PAYLOAD, "{link}");
            let ends = [found.from.to_string(), found.to.to_string()];
            assert_eq!(ends, ["10.0.0.1:4711", "10.0.0.2:60368"]);
            assert_eq!(of(147).datagram(&bytes), None);
            (0..bytes.len() - 6).for_each(|cut| assert_eq!(of(link).datagram(&bytes[..cut]), None));
        }
        // TCP, the first and a later fragment, a header that is too short, version 5.
        for (at, byte) in [(9, 6), (6, 0x20), (7, 9), (0, 0x44), (0, 0x55)] {
            let mut packet = ip4();
            packet[at] = byte;
            assert_eq!(of(101).datagram(&packet), None);
        }
        let mut ip6 = vec![0x60, 0, 0, 0, 0, 16, 17, 64];
        ip6.extend([[0; 15].as_slice(), &[1], &[0; 15], &[1], &ip4()[20..]].concat());
        let found = of(101).datagram(&ip6).unwrap();
        assert_eq!((found.to.to_string(), found.payload), ("[::1]:60368".to_owned(), PAYLOAD));
    }

    #[test]
    fn heads_are_read_in_both_byte_orders_and_resolutions_and_damaged_ones_are_refused() {
        for is_big in [false, true] {
            for (magic, ns) in [(0xA1B2_C3D4, 7000), (0xA1B2_3C4D, 7)] {
                let capture = capture(is_big, magic, 0x1000_0000 | 113).unwrap();
                let packet = |bytes| capture.packet(&words(is_big, &[1_700_000_000, 7, bytes, 90]));
                assert_eq!(packet(3), Ok((1_700_000_000_000_000_000 + ns, 3)));
                assert_eq!(packet(1 << 19), Err(CaptureError::Length(1 << 19)));
                assert_eq!(capture.link, 113);
            }
        }
        assert_eq!(capture(true, 0x0A0D_0D0A, 1), Err(CaptureError::Magic(0x0A0D_0D0A)));
    }

    proptest! {
        #[test]
        fn any_packet_is_read(
            (link, ip_at) in prop::sample::select(vec![(1, 14), (101, 0), (113, 16), (276, 20)]),
            version in 0x40..0x70_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..90),
        ) {
            let packet = [&vec![0; ip_at][..], &[version], &bytes].concat();
            let found = capture(true, 0xA1B2_C3D4, link).unwrap().datagram(&packet);
            prop_assert!(found.is_none_or(|found| found.payload.len() < packet.len()));
        }
    }
}
