//! Which pages a mapping really got. `madvise(MADV_HUGEPAGE)` returns 0 also where the kernel then has none to give: they are
//! switched off, memory is in pieces, the process has forbidden them. What was got stands in /proc/self/smaps.

use std::io::BufRead;

/// Bytes of a mapping that lie in memory, and those of them on transparent huge pages. The kernel merges neighbouring mappings
/// into one, so these are of all that was merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) bytes: u64,
    pub(crate) huge_bytes: u64,
}

impl Resident {
    /// Whether most of it lies on huge pages.
    pub(crate) fn is_mostly_huge(self) -> bool {
        self.huge_bytes > 0 && self.huge_bytes * 2 > self.bytes
    }
}

/// What the mapping around an address of this process got; none where the kernel does not tell. Takes a walk over the mappings
/// before it: for the time before a measurement.
pub(crate) fn resident_at(address: usize) -> Option<Resident> {
    let smaps = std::fs::File::open("/proc/self/smaps").ok()?;
    find(std::io::BufReader::new(smaps), address as u64)
}

/// Looks up an address in a file like /proc/self/smaps (Documentation/filesystems/proc.rst, 1.1).
fn find(smaps: impl BufRead, address: u64) -> Option<Resident> {
    let mut lines = smaps.lines().map_while(Result::ok);
    lines.find(|line| range(line).is_some_and(|(start, end)| (start..end).contains(&address)))?;
    let mut found = Resident::default();
    for line in lines.take_while(|line| range(line).is_none()) {
        if let Some(bytes) = field(&line, "Rss:") {
            found.bytes = bytes;
        } else if let Some(bytes) = field(&line, "AnonHugePages:") {
            found.huge_bytes = bytes;
        }
    }
    Some(found)
}

/// `7f0000000000-7f0000400000 rw-p ...`: the first line of a mapping.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

/// `Rss:    2048 kB` in bytes.
fn field(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?
        .split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                  12 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac hg
7f0000600000-7f0000a00000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac hg
";

    fn at(address: u64) -> Option<Resident> {
        find(SMAPS.as_bytes(), address)
    }

    #[test]
    fn a_mapping_has_the_pages_that_the_kernel_lists_for_it() {
        assert_eq!(
            at(0x7f00_0000_1000),
            Some(Resident {
                bytes: 4 << 20,
                huge_bytes: 4 << 20
            })
        );
        assert!(at(0x7f00_003f_ffff).unwrap().is_mostly_huge());
        assert!(
            !at(0x7f00_0060_0000).unwrap().is_mostly_huge(),
            "advised, and none was given"
        );
        assert_eq!(at(0x55d0_c000_0000).unwrap().bytes, 12 << 10);
        assert_eq!(at(0x7f00_0050_0000), None, "between two mappings");
        assert_eq!(at(0), None);
    }

    #[test]
    fn a_mapping_of_this_process_is_found() {
        let here = vec![1_u8; 1 << 16];
        assert!(resident_at(here.as_ptr().addr()).unwrap().bytes > 0);
    }
}
