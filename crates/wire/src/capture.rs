//! Files of captured packets (pcap and pcapng), and the UDP datagrams in their packets.
//! Sources: draft-ietf-opsawg-pcap-05, draft-ietf-opsawg-pcapng-03, the registry of link types at
//! tcpdump.org; RFC 791, 8200, 768. Fragments and IPv6 extension headers are not put together.

use core::net::{IpAddr, SocketAddr};

/// Bytes of the head of a packet or a block. Its body follows, with what is left of longer heads.
pub const HEAD_BYTES: usize = 12;
/// Bytes of the head of a pcap file.
const FILE_HEAD_BYTES: usize = 24;
/// Longest packet or block that is believed, as in Wireshark (MAX_BLOCK_SIZE of wiretap/pcapng.c).
const MAX_BYTES: u32 = 16 << 20;
const MAX_INTERFACES: usize = 32;
/// Type of the block that begins a section of pcapng; the same in both byte orders.
const SECTION: u32 = 0x0A0D_0D0A;
/// Number of UDP in IP headers.
const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("no pcap or pcapng file, since it begins with {0:#010x}")]
    Magic(u32),
    #[error("a packet or block of {0} bytes: the file is damaged")]
    Length(u32),
    #[error(
        "a block of type {0}: the file is damaged, or has more than {MAX_INTERFACES} interfaces"
    )]
    Block(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Interface {
    link: u32,
    ticks_per_s: u64,
}

impl Interface {
    fn packet<'a>(&self, ticks: u64, bytes: &'a [u8]) -> Packet<'a> {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_s.max(1));
        Packet { time_ns: u64::try_from(ns).unwrap_or(u64::MAX), link: self.link, bytes }
    }
}

/// State of the reading of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capture {
    is_pcapng: bool,
    is_big: bool,
    /// Interfaces of a section; a pcap file has one after its head.
    interfaces: [Interface; MAX_INTERFACES],
    count: usize,
}

impl Capture {
    /// Returns the number of bytes after a head.
    ///
    /// # Errors
    /// The file is of another kind, or damaged.
    pub fn body_bytes(&mut self, head: &[u8; HEAD_BYTES]) -> Result<usize, CaptureError> {
        let number = |at: usize, is_big| word(head, at, is_big).unwrap_or(0);
        let first = number(0, true);
        match (self.is_pcapng, self.count, first) {
            (false, 0, 0xA1B2_C3D4 | 0xA1B2_3C4D | 0xD4C3_B2A1 | 0x4D3C_B2A1) => {
                self.is_big = head[0] == 0xA1;
                return Ok(FILE_HEAD_BYTES - HEAD_BYTES);
            }
            (true, ..) | (false, 0, SECTION) => {}
            (false, 0, _) => return Err(CaptureError::Magic(first)),
            (false, ..) => {
                let bytes = number(8, self.is_big);
                let is_sound = bytes <= MAX_BYTES;
                return is_sound.then(|| 4 + bytes as usize).ok_or(CaptureError::Length(bytes));
            }
        }
        if first == SECTION {
            let is_big = number(8, true) == 0x1A2B_3C4D;
            (self.is_pcapng, self.is_big, self.count) = (true, is_big, 0);
        }
        let bytes = number(4, self.is_big);
        let rest = bytes.checked_sub(12).filter(|_| bytes % 4 == 0 && bytes <= MAX_BYTES);
        rest.map(|rest| rest as usize).ok_or(CaptureError::Length(bytes))
    }

    /// Returns the packet in a head with its body; `None` if they hold none.
    ///
    /// # Errors
    /// The body is shorter than it says.
    pub fn packet<'a>(&mut self, whole: &'a [u8]) -> Result<Option<Packet<'a>>, CaptureError> {
        let packet = if self.is_pcapng { self.block(whole) } else { self.classic(whole) };
        packet.ok_or(CaptureError::Block(word(whole, 0, self.is_big).unwrap_or(0)))
    }

    /// Reads the head of a pcap file, or a packet. An outer `None` is a damaged one.
    fn classic<'a>(&mut self, whole: &'a [u8]) -> Option<Option<Packet<'a>>> {
        let number = |at| word(whole, at, self.is_big);
        let [own, ..] = self.interfaces;
        if self.count > 0 {
            let ticks = u64::from(number(0)?) * own.ticks_per_s + u64::from(number(4)?);
            return Some(Some(own.packet(ticks, whole.get(16..)?)));
        }
        let ticks_per_s = if number(0)? == 0xA1B2_C3D4 { 1_000_000 } else { 1_000_000_000 };
        // The upper bits say how long a checksum follows.
        let link = number(20)? & 0xFFFF;
        (self.interfaces[0], self.count) = (Interface { link, ticks_per_s }, 1);
        Some(None)
    }

    /// Reads a block of pcapng. An outer `None` is a damaged one.
    fn block<'a>(&mut self, whole: &'a [u8]) -> Option<Option<Packet<'a>>> {
        const INTERFACE: u32 = 1;
        const SIMPLE: u32 = 3;
        const ENHANCED: u32 = 6;
        let is_big = self.is_big;
        let number = |at| word(whole, at, is_big);
        // The length stands at the end, too.
        let block = whole.get(..whole.len().checked_sub(4)?)?;
        let own = &self.interfaces[..self.count];
        Some(Some(match number(0)? {
            INTERFACE => {
                let link = u32::from(short(block, 8, is_big)?);
                let ticks_per_s = resolution(block.get(16..)?, is_big)?;
                *self.interfaces.get_mut(self.count)? = Interface { link, ticks_per_s };
                self.count += 1;
                return Some(None);
            }
            // It has no time, and is of the first interface.
            SIMPLE => {
                let bytes = block.get(12..)?;
                own.first()?.packet(0, &bytes[..bytes.len().min(number(8)? as usize)])
            }
            ENHANCED => {
                let ticks = u64::from(number(12)?) << 32 | u64::from(number(16)?);
                let bytes = block.get(28..)?.get(..number(20)? as usize)?;
                own.get(number(8)? as usize)?.packet(ticks, bytes)
            }
            _ => return Some(None),
        }))
    }
}

/// Ticks of an interface's times in a second, from its options. `None` is an option that is cut.
fn resolution(mut options: &[u8], is_big: bool) -> Option<u64> {
    const RESOLUTION: u16 = 9;
    while !options.is_empty() {
        let (code, bytes) = (short(options, 0, is_big)?, usize::from(short(options, 2, is_big)?));
        match (code, options.get(4..)?.get(..bytes)?) {
            (0, _) => break,
            (RESOLUTION, [power @ 0..0x80]) => return 10_u64.checked_pow((*power).into()),
            (RESOLUTION, [power]) => return 1_u64.checked_shl((power & 0x7F).into()),
            _ => options = options.get(4 + bytes.next_multiple_of(4)..)?,
        }
    }
    Some(1_000_000)
}

/// A packet as it was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Time since 1970.
    pub time_ns: u64,
    link: u32,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Returns the whole UDP datagram in the packet, if it holds one.
    pub fn datagram(&self) -> Option<Datagram<'a>> {
        let packet = self.bytes;
        let short = |bytes: &[u8], at: usize| short(bytes, at, true);
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

fn word(bytes: &[u8], at: usize, is_big: bool) -> Option<u32> {
    let word = *bytes.get(at..)?.first_chunk()?;
    Some(if is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
}

fn short(bytes: &[u8], at: usize, is_big: bool) -> Option<u16> {
    let short = *bytes.get(at..)?.first_chunk()?;
    Some(if is_big { u16::from_be_bytes(short) } else { u16::from_le_bytes(short) })
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

    /// Writes words in one of the byte orders.
    fn words(is_big: bool, words: &[u32]) -> Vec<u8> {
        let bytes = |word: &u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        words.iter().flat_map(bytes).collect()
    }

    fn read(mut file: &[u8]) -> Result<Vec<Packet<'_>>, CaptureError> {
        let (mut capture, mut packets) = (Capture::default(), Vec::new());
        while let Some((head, rest)) = file.split_first_chunk() {
            let bytes = capture.body_bytes(head)?;
            if bytes > rest.len() {
                break;
            }
            let (whole, rest) = file.split_at(HEAD_BYTES + bytes);
            packets.extend(capture.packet(whole)?);
            file = rest;
        }
        Ok(packets)
    }

    fn packet(time_ns: u64, link: u32, bytes: &[u8]) -> Packet<'_> {
        Packet { time_ns, link, bytes }
    }

    fn pcap(is_big: bool, magic: u32, link: u32) -> Vec<u8> {
        words(is_big, &[magic, 0x0004_0002, 0, 0, 65535, link])
    }

    #[test]
    fn datagrams_are_found_behind_every_link_and_nothing_else_is_one() {
        let ethernet = |kind: &[u8]| [&[2; 12], kind, &ip4()].concat();
        for (link, bytes) in [
            (1, ethernet(&[8, 0])),
            (1, ethernet(&[0x81, 0, 0, 5, 8, 0])),
            (101, ip4()),
            (113, [&[0; 16], &ip4()[..]].concat()),
            (276, [&[0; 20], &ip4()[..]].concat()),
        ] {
            let found = packet(0, link, &bytes).datagram().unwrap();
            assert_eq!(found.payload, PAYLOAD, "{link}");
            let ends = [found.from.to_string(), found.to.to_string()];
            assert_eq!(ends, ["10.0.0.1:4711", "10.0.0.2:60368"]);
            assert_eq!(packet(0, 147, &bytes).datagram(), None);
            for cut in 0..bytes.len() - 6 {
                assert_eq!(packet(0, link, &bytes[..cut]).datagram(), None);
            }
        }
        // TCP, the first and a later fragment, a header that is too short, version 5.
        for (at, byte) in [(9, 6), (6, 0x20), (7, 9), (0, 0x44), (0, 0x55)] {
            let mut bytes = ip4();
            bytes[at] = byte;
            assert_eq!(packet(0, 101, &bytes).datagram(), None);
        }
        let mut ip6 = vec![0x60, 0, 0, 0, 0, 16, 17, 64];
        ip6.extend([[0; 15].as_slice(), &[1], &[0; 15], &[1], &ip4()[20..]].concat());
        let found = packet(0, 101, &ip6).datagram().unwrap();
        assert_eq!((found.to.to_string(), found.payload), ("[::1]:60368".to_owned(), PAYLOAD));
    }

    #[test]
    fn files_are_read_in_both_byte_orders_and_resolutions_and_damaged_ones_are_refused() {
        for is_big in [false, true] {
            for (magic, ns) in [(0xA1B2_C3D4, 7000), (0xA1B2_3C4D, 7)] {
                let file = |bytes| {
                    let head = words(is_big, &[1_700_000_000, 7, bytes, 90]);
                    [pcap(is_big, magic, 0x1000_0000 | 113), head, PAYLOAD.to_vec()].concat()
                };
                let time_ns = 1_700_000_000_000_000_000 + ns;
                assert_eq!(read(&file(8)).unwrap(), [packet(time_ns, 113, PAYLOAD)]);
                assert_eq!(read(&file(9)).unwrap(), []);
                assert_eq!(read(&file(1 << 25)), Err(CaptureError::Length(1 << 25)));
            }
        }
        assert_eq!(read(&[1; 24]), Err(CaptureError::Magic(0x0101_0101)));
    }

    /// Returns a block of pcapng; the words of its body have the order of the file.
    fn block(is_big: bool, kind: u32, body: &[Vec<u8>]) -> Vec<u8> {
        let body = body.concat();
        let length = words(is_big, &[u32::try_from(body.len()).unwrap() + 12]);
        [words(is_big, &[kind]), length.clone(), body, length].concat()
    }

    /// Returns a section with an interface: link type, and options as code, length
    /// and value.
    fn section(is_big: bool, link: u16, options: &[(u16, u16, [u8; 8])]) -> Vec<u8> {
        let pair = |high: u16, low: u16| {
            let [high, low] = if is_big { [high, low] } else { [low, high] }.map(u32::from);
            words(is_big, &[high << 16 | low])
        };
        let begin = words(is_big, &[0x1A2B_3C4D, 0x0001_0000, u32::MAX, u32::MAX]);
        let mut own = vec![pair(link, 0), words(is_big, &[0])];
        for (code, bytes, value) in options {
            own.extend([pair(*code, *bytes), value[..bytes.next_multiple_of(4).into()].to_vec()]);
        }
        [block(is_big, SECTION, &[begin]), block(is_big, 1, &own)].concat()
    }

    #[test]
    fn sections_of_both_byte_orders_follow_each_other_each_with_its_interfaces() {
        let simple = |is_big| block(is_big, 3, &[words(is_big, &[8]), PAYLOAD.to_vec()]);
        let enhanced = |is_big, interface: u32, bytes: u32| {
            let head = words(is_big, &[interface, 5, 7, bytes, 90]);
            block(is_big, 6, &[head, PAYLOAD.to_vec()])
        };
        let ticks = (5_u64 << 32) + 7;
        let two = [0x80 | 10, 0, 0, 0, 0, 0, 0, 0];
        let file = [
            section(false, 113, &[(2, 5, [9; 8]), (9, 1, [9; 8]), (0, 0, [0; 8])]),
            enhanced(false, 0, 8),
            block(false, 0xBAD, &[words(false, &[1, 2, 3])]),
            simple(false),
            section(true, 1, &[(9, 1, two)]),
            enhanced(true, 0, 3),
            section(true, 101, &[]),
            enhanced(true, 0, 8),
        ];
        let wanted = [
            packet(ticks, 113, PAYLOAD),
            packet(0, 113, PAYLOAD),
            packet(20_971_520 * 1_000_000_000 + 6_835_937, 1, &PAYLOAD[..3]),
            packet(ticks * 1000, 101, PAYLOAD),
        ];
        assert_eq!(read(&file.concat()).unwrap(), wanted);
        // A second interface that is not there, more bytes than the block has, a length that is not
        // whole words, and one with nothing in it.
        for (last, error) in [
            (enhanced(true, 1, 8), CaptureError::Block(6)),
            (enhanced(true, 0, 13), CaptureError::Block(6)),
            (words(true, &[6, 33, 0]), CaptureError::Length(33)),
            (words(true, &[6, 0, 0]), CaptureError::Length(0)),
        ] {
            assert_eq!(read(&[file.concat(), last].concat()), Err(error));
        }
        let many = [section(true, 1, &[]), section(true, 1, &[])[28..].repeat(32)].concat();
        assert_eq!(read(&many), Err(CaptureError::Block(1)));
    }

    proptest! {
        #[test]
        fn any_packet_is_read(
            (link, ip_at) in prop::sample::select(vec![(1, 14), (101, 0), (113, 16), (276, 20)]),
            version in 0x40..0x70_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..90),
        ) {
            let packet = [&vec![0; ip_at][..], &[version], &bytes].concat();
            let found = Packet { time_ns: 0, link, bytes: &packet }.datagram();
            prop_assert!(found.is_none_or(|found| found.payload.len() < packet.len()));
        }

        /// Also where the begin is that of a file.
        #[test]
        fn any_file_is_read(
            begin in prop::sample::select(vec![
                Vec::new(),
                pcap(true, 0xA1B2_C3D4, 1),
                section(false, 1, &[]),
                section(true, 1, &[])[..28].to_vec(),
            ]),
            blocks in prop::collection::vec((0..7_u32, prop::collection::vec(any::<u8>(), 0..90)), 0..5),
            rest in prop::collection::vec(any::<u8>(), 0..90),
        ) {
            let blocks = blocks.iter().flat_map(|(kind, body)| block(false, *kind, std::slice::from_ref(body)));
            let file = [begin, blocks.collect(), rest].concat();
            if let Ok(packets) = read(&file) {
                prop_assert!(packets.len() <= file.len());
            }
        }
    }
}
