//! Places of fields in the kernel's structures, from its own description of its types (BTF,
//! `Documentation/bpf/btf.rst`): they differ between kernels.

use std::fs;

use crate::host::Files;

const MAGIC: u32 = 0xEB9F;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// Kinds that stand for another type: typedef, volatile, const, restrict, type tag.
const STANDS_FOR: [u32; 5] = [8, 9, 10, 11, 18];

#[derive(Debug)]
pub(crate) struct Btf {
    bytes: Vec<u8>,
    strings_from: usize,
    /// Position of each type by its number, which begins with 1.
    types: Vec<usize>,
}

impl Btf {
    /// Reads the running kernel's types; `None` where it has none (CONFIG_DEBUG_INFO_BTF).
    pub(crate) fn of_kernel(files: &Files) -> Option<Btf> {
        Btf::parse(fs::read(files.root().join("sys/kernel/btf/vmlinux")).ok()?)
    }

    fn parse(bytes: Vec<u8>) -> Option<Btf> {
        let header = |at| word(&bytes, at);
        let begin = usize::try_from(header(4)?).ok()?;
        let place = |at| begin.checked_add(usize::try_from(header(at)?).ok()?);
        if header(0)? & 0xFFFF != MAGIC {
            return None;
        }
        let (mut at, strings_from) = (place(8)?, place(16)?);
        let end = at.checked_add(usize::try_from(header(12)?).ok()?)?;
        let mut types = vec![0];
        while at < end {
            let info = word(&bytes, at + 4)?;
            types.push(at);
            let members = (info & 0xFFFF) as usize;
            at += 12
                + match info >> 24 & 0x1F {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * members,
                    6 | 13 => 8 * members,
                    _ => 0,
                };
        }
        Some(Btf { bytes, strings_from, types })
    }

    /// Bytes from the begin of a structure to a field, which may lie in structures within.
    pub(crate) fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let is_it = |&at: &usize| {
            let kind = word(&self.bytes, at + 4).map(|info| info >> 24 & 0x1F);
            kind == Some(STRUCT) && self.name(at) == Some(structure.as_bytes())
        };
        let mut at = *self.types.iter().skip(1).find(|at| is_it(at))?;
        let mut bits = 0;
        for name in path {
            let (kind, from) = self.member(at, name, 0)?;
            bits += from;
            at = self.resolved(kind)?;
        }
        Some(bits / 8)
    }

    /// Type and place in bits of a member, also of one in a structure without a name.
    fn member(&self, at: usize, wanted: &str, depth: u32) -> Option<(u32, u32)> {
        const DEEPEST: u32 = 8;
        let info = word(&self.bytes, at + 4)?;
        if !matches!(info >> 24 & 0x1F, STRUCT | UNION) || depth > DEEPEST {
            return None;
        }
        (0..(info & 0xFFFF) as usize).find_map(|member| {
            let member = at + 12 + 12 * member;
            let (kind, from) = (word(&self.bytes, member + 4)?, word(&self.bytes, member + 8)?);
            // With bit 31 of the type, the upper byte is the size of a bit field.
            let from = if info >> 31 == 1 { from & 0xFF_FFFF } else { from };
            match self.name(member)? {
                b"" => {
                    let (kind, within) = self.member(self.resolved(kind)?, wanted, depth + 1)?;
                    Some((kind, from + within))
                }
                name => (name == wanted.as_bytes()).then_some((kind, from)),
            }
        })
    }

    fn resolved(&self, mut kind: u32) -> Option<usize> {
        for _ in 0..self.types.len() {
            let at = *self.types.get(usize::try_from(kind).ok()?)?;
            if !STANDS_FOR.contains(&(word(&self.bytes, at + 4)? >> 24 & 0x1F)) {
                return Some(at);
            }
            kind = word(&self.bytes, at + 8)?;
        }
        None
    }

    fn name(&self, at: usize) -> Option<&[u8]> {
        let from = self.strings_from.checked_add(usize::try_from(word(&self.bytes, at)?).ok()?)?;
        self.bytes.get(from..)?.split(|&byte| byte == 0).next()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct net_device { int index; union { struct { long a; net_t net; }; }; }`, with `net_t`
    /// a `struct { long b; void *net; }`.
    fn example() -> Vec<u8> {
        let strings = b"\0net_device\0index\0net\0a\0b\0";
        let name = |wanted: &str| {
            let at = strings.windows(wanted.len() + 2);
            let is_it = |part: &[u8]| {
                part[0] == 0
                    && part[wanted.len() + 1] == 0
                    && &part[1..=wanted.len()] == wanted.as_bytes()
            };
            u32::try_from(at.clone().position(is_it).unwrap() + 1).unwrap()
        };
        let kind = |kind: u32, members: u32| kind << 24 | members;
        let types = [
            vec![0, kind(1, 0), 8, 0],                                         // 1: int
            vec![0, kind(2, 0), 0],                                            // 2: void *
            vec![0, kind(STRUCT, 2), 16, name("b"), 1, 0, name("net"), 2, 64], // 3
            vec![name("net"), kind(8, 0), 3],                                  // 4: typedef
            vec![0, kind(STRUCT, 2), 24, name("a"), 1, 0, name("net"), 4, 64], // 5
            vec![0, kind(UNION, 1), 24, 0, 5, 0],                              // 6
            vec![name("net_device"), kind(STRUCT, 2), 32, name("index"), 1, 0, 0, 6, 64], // 7
        ]
        .concat();
        let length = |count: usize| u32::try_from(count).unwrap();
        let header = [
            MAGIC | 1 << 16,
            24,
            0,
            length(types.len() * 4),
            length(types.len() * 4),
            length(strings.len()),
        ];
        let words = header.into_iter().chain(types).flat_map(u32::to_ne_bytes);
        words.chain(strings.iter().copied()).collect()
    }

    #[test]
    fn a_field_is_found_in_structures_without_a_name() {
        let btf = Btf::parse(example()).unwrap();
        assert_eq!(btf.offset("net_device", &["index"]), Some(0));
        assert_eq!(btf.offset("net_device", &["net"]), Some(16));
        assert_eq!(btf.offset("net_device", &["net", "net"]), Some(24));
        assert_eq!(btf.offset("net_device", &["none"]), None);
        assert_eq!(btf.offset("none", &["net"]), None);
    }

    #[test]
    fn this_kernel_has_its_packets_described() {
        if let Some(btf) = Btf::of_kernel(&Files::default()) {
            assert!(btf.offset("sk_buff", &["dev"]).is_some());
            assert!(btf.offset("net", &["ns", "inum"]).is_some());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_damage_breaks_the_reader(at in 0_usize..300, byte in 0_u8.., cut in 0_usize..300) {
            let mut bytes = example();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some(btf) = Btf::parse(bytes) {
                let _ = btf.offset("net_device", &["net", "net"]);
            }
        }
    }
}
