//! Pages that a mapping really got, from /proc/self/smaps. `madvise(MADV_HUGEPAGE)` returns 0 also
//! when huge pages are off, forbidden or unavailable in fragmented memory.
//!
//! The kernel walks all page tables of the process for that file. It is read once for all earlier
//! mappings: a thousand boards have two thousand buffers.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::host::parse_kib;

/// Resident bytes of a mapping, and its bytes on transparent huge pages. The kernel merges
/// neighbouring mappings, so the counts cover all merged ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) bytes: u64,
    pub(crate) huge_bytes: u64,
}

impl Resident {
    pub(crate) fn is_mostly_huge(self) -> bool {
        self.huge_bytes > 0 && self.huge_bytes * 2 > self.bytes
    }
}

/// Order of touched mappings: a file read later contains the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(u64);

static TOUCHED: AtomicU64 = AtomicU64::new(0);

static SEEN: Mutex<Seen> = Mutex::new(Seen { touched: 0, mappings: Vec::new() });

pub(crate) fn number() -> Number {
    // Release: pairs with the acquire in `resident_of`.
    Number(TOUCHED.fetch_add(1, Ordering::Release) + 1)
}

/// Returns the pages of the mapping around an address; `None` if the kernel does not report them.
/// The first call after a new mapping walks all mappings: call it outside measurements.
pub(crate) fn resident_of(address: usize, number: Number) -> Option<Resident> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.at(address as u64, number, || {
        // Counted before the file is read: mappings touched meanwhile get a higher number.
        let touched = TOUCHED.load(Ordering::Acquire);
        let smaps = std::fs::File::open("/proc/self/smaps").ok();
        let mappings = smaps.map(|smaps| parse(std::io::BufReader::new(smaps)));
        (touched, mappings.unwrap_or_default())
    })
}

#[derive(Debug, Default)]
struct Seen {
    touched: u64,
    mappings: Vec<MappedRange>,
}

impl Seen {
    fn at(
        &mut self,
        address: u64,
        number: Number,
        read: impl FnOnce() -> (u64, Vec<MappedRange>),
    ) -> Option<Resident> {
        if number.0 > self.touched {
            (self.touched, self.mappings) = read();
        }
        // The kernel lists mappings by address without overlaps.
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = self.mappings[..after].last()?;
        (address < mapping.end).then_some(mapping.resident)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedRange {
    start: u64,
    end: u64,
    resident: Resident,
}

/// Parses a file like /proc/self/smaps (Documentation/filesystems/proc.rst, 1.1).
fn parse(smaps: impl BufRead) -> Vec<MappedRange> {
    let mut mappings: Vec<MappedRange> = Vec::new();
    for line in smaps.lines().map_while(Result::ok) {
        if let Some((start, end)) = range(&line) {
            let resident = Resident::default();
            mappings.push(MappedRange { start, end, resident });
        } else if let Some(MappedRange { resident, .. }) = mappings.last_mut() {
            if let Some(bytes) = field(&line, "Rss:") {
                resident.bytes = bytes;
            } else if let Some(bytes) = field(&line, "AnonHugePages:") {
                resident.huge_bytes = bytes;
            }
        }
    }
    mappings
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// `Rss:    2048 kB` in bytes.
fn field(line: &str, name: &str) -> Option<u64> {
    parse_kib(line.strip_prefix(name)?)
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

    fn seen() -> Seen {
        Seen { touched: 5, mappings: parse(SMAPS.as_bytes()) }
    }

    fn at(address: u64) -> Option<Resident> {
        let read = || panic!("everything asked for here was touched before");
        seen().at(address, Number(5), read)
    }

    #[test]
    fn a_mapping_has_the_pages_that_the_kernel_lists_for_it() {
        assert_eq!(at(0x7f00_0000_1000), Some(Resident { bytes: 4 << 20, huge_bytes: 4 << 20 }));
        assert!(at(0x7f00_003f_ffff).unwrap().is_mostly_huge());
        assert!(!at(0x7f00_0060_0000).unwrap().is_mostly_huge(), "advised, and none was given");
        assert_eq!(at(0x55d0_c000_0000).unwrap().bytes, 12 << 10);
        assert_eq!(at(0x7f00_0040_0000), None, "just behind a mapping");
        assert_eq!(at(0x7f00_0050_0000), None, "between two mappings");
        assert_eq!(at(0), None);
        assert_eq!(at(u64::MAX), None);
    }

    /// The file was read for each buffer, and 1,000 boards took over a minute.
    #[test]
    fn the_file_is_read_once_for_all_mappings_that_were_there() {
        let mut seen = Seen::default();
        let mut reads = 0;
        for number in 1..=2000 {
            let found = seen.at(0x7f00_0000_1000, Number(number), || {
                reads += 1;
                (2000, parse(SMAPS.as_bytes()))
            });
            assert!(found.unwrap().is_mostly_huge());
        }
        assert_eq!(reads, 1);
        let younger = seen.at(0x7f00_0000_1000, Number(2001), || (2001, Vec::new()));
        assert_eq!(younger, None, "the file was read again");
    }

    #[test]
    fn a_mapping_of_this_process_is_found() {
        for _ in 0..2 {
            let here = vec![1_u8; 1 << 20];
            let found = resident_of(here.as_ptr().addr(), number());
            assert!(found.unwrap().bytes > 0);
        }
    }
}
