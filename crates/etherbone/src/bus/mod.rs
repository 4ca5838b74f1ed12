//! The emulated Wishbone bus: devices at addresses, and the time of each access.
//! Time is the bus's own: each operation advances it by the access time of the [`BusTiming`]. A
//! cycle cannot begin before the cycle before it has ended.

mod description;
pub(crate) mod devices;
pub(crate) mod tlu;

use daqmeter_wire::etherbone::cycle::Space;
use daqmeter_wire::etherbone::{EbLayout, Endian, ErrorRegister, Lanes, Widths, config};
use serde::Deserialize;

pub use description::Description;
use devices::Occupant;

use crate::access::from_bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BusError {
    Refused,
    Timeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BusTiming {
    pub tick_ns: u64,
    pub read_ns: u64,
    pub write_ns: u64,
    /// Added to each cycle before its first operation.
    pub cycle_ns: u64,
    /// Time of an access without an answer.
    pub timeout_ns: u64,
}

/// No access time, the 8 ns ticks of the study of 2018, and the bus timeout of the HDL slave
/// (6,250,000 clocks, 100 ms).
impl Default for BusTiming {
    fn default() -> Self {
        BusTiming { tick_ns: 8, read_ns: 0, write_ns: 0, cycle_ns: 0, timeout_ns: 100_000_000 }
    }
}

/// Leap seconds since 2017.
const TAI_MINUS_UTC_NS: u64 = 37_000_000_000;

fn low32(value: u64) -> u64 {
    value & 0xFFFF_FFFF
}

struct Region {
    first: u64,
    last: u64,
    endian: Endian,
    widths: Widths,
    occupant: Occupant,
}

pub struct Bus {
    regions: Vec<Region>,
    sdb_root: u64,
    pub timing: BusTiming,
    /// Monotonic time until which the bus is busy.
    time_ns: u64,
    tai_minus_monotonic_ns: u64,
    /// Region of the last access: accesses come in runs.
    last_found: usize,
}

/// State of one conversation: each has its own error register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusSession {
    pub(crate) errors: ErrorRegister,
    /// True when an access had no answer.
    pub(crate) is_silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address with the low bits that the device saw.
    pub address: u64,
    pub value: u64,
    pub bytes: usize,
    pub write: bool,
    pub ok: bool,
}

impl Bus {
    fn new(timing: BusTiming, sdb_root: u64) -> Bus {
        let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let utc_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let tai_ns = utc_ns.saturating_add(TAI_MINUS_UTC_NS);
        let tai_minus_monotonic_ns = tai_ns.wrapping_sub(daqmeter_sys::clock::monotonic_ns());
        Bus {
            regions: Vec::new(),
            sdb_root,
            timing,
            time_ns: 0,
            tai_minus_monotonic_ns,
            last_found: 0,
        }
    }

    fn insert(&mut self, region: Region) -> Result<(), String> {
        let Region { first, last, .. } = region;
        // No region overlaps another: only the one before this end can.
        let at = self.regions.partition_point(|known| known.first <= last);
        if self.regions[..at].last().is_some_and(|known| first <= known.last) {
            return Err(format!(
                "addresses {first:#x} to {last:#x} are taken already; move the device or the SDB table (sdb = ...)"
            ));
        }
        self.regions.insert(at, region);
        Ok(())
    }

    pub(crate) fn begin_cycle(&mut self, now_ns: u64) {
        self.time_ns = self.time_ns.max(now_ns).saturating_add(self.timing.cycle_ns);
    }

    /// Returns the time at which the bus has done all cycles, and given up the silent one.
    pub(crate) fn ready_ns(&self, now_ns: u64, session: &BusSession) -> u64 {
        let timeout_ns = if session.is_silent { self.timing.timeout_ns } else { 0 };
        self.time_ns.max(now_ns).saturating_add(timeout_ns)
    }

    #[inline]
    fn find(&mut self, address: u64) -> Option<usize> {
        let holds = |region: &Region| region.first <= address && address <= region.last;
        if self.regions.get(self.last_found).is_some_and(holds) {
            return Some(self.last_found);
        }
        let after = self.regions.partition_point(|region| region.first <= address);
        let at = after.checked_sub(1).filter(|&at| holds(&self.regions[at]))?;
        self.last_found = at;
        Some(at)
    }

    fn tai_ns(&self) -> u64 {
        let time_ns = if self.timing.read_ns == 0 {
            daqmeter_sys::clock::monotonic_ns()
        } else {
            self.time_ns
        };
        let tai_ns = time_ns.wrapping_add(self.tai_minus_monotonic_ns);
        tai_ns - tai_ns % self.timing.tick_ns.max(1)
    }

    /// Reads a word, or writes it. TAI is computed only for regions that may ask for it.
    #[inline(always)]
    fn access(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        address: u64,
        lanes: Lanes,
        word: Option<u64>,
    ) -> Access {
        let BusTiming { read_ns, write_ns, .. } = self.timing;
        self.time_ns = self.time_ns.saturating_add(if word.is_some() { write_ns } else { read_ns });
        let (size, write) = (lanes.size(), word.is_some());
        let written = word.map(|word| lanes.take(word));
        let value = written.unwrap_or(0);
        let mut access = Access { address, value, bytes: size.bytes(), write, ok: false };
        let (mut result, mut is_sdb) = (Err(BusError::Refused), false);
        if let Some(at) = self.find(address) {
            let tai_ns = if self.regions[at].occupant.is_device() { self.tai_ns() } else { 0 };
            let region = &mut self.regions[at];
            is_sdb = matches!(region.occupant, Occupant::Sdb(_));
            access.address =
                address & !(layout.data.bytes() as u64 - 1) | lanes.low_bits(region.endian);
            let offset = access.address.checked_sub(region.first);
            if let Some(offset) = offset.filter(|_| region.widths.has(size)) {
                result = region.occupant.access(offset, (size, region.endian), written, tai_ns);
            }
        }
        access.ok = result.is_ok();
        session.errors.shift_in(!access.ok && (write || !is_sdb));
        session.is_silent |= result == Err(BusError::Timeout);
        if let (None, Ok(value)) = (word, result) {
            access.value = lanes.place(value);
        }
        access
    }

    /// Returns the part of a config register that a port of this width reads.
    pub(crate) fn read_config(&self, session: &BusSession, layout: EbLayout, address: u64) -> u64 {
        let word: u64 = match address & !7 {
            config::ERRORS => session.errors.0,
            config::SDB_ROOT => self.sdb_root,
            // Message-signalled interrupts are not supported.
            config::MSI_STATUS => 2,
            _ => 0,
        };
        let port = layout.data.bytes();
        let low = usize::try_from(address & 7).expect("below 8") & !(port - 1);
        from_bytes(&word.to_be_bytes()[low..low + port], Endian::Big)
    }

    #[inline]
    pub(crate) fn execute(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        space: Space,
        address: u64,
        lanes: Lanes,
        word: Option<u64>,
    ) -> Access {
        if space == Space::Bus {
            return self.access(session, layout, address, lanes, word);
        }
        let read = || lanes.place(lanes.take(self.read_config(session, layout, address)));
        let (value, bytes) = (word.unwrap_or_else(read), layout.data.bytes());
        Access { address, value, bytes, write: word.is_some(), ok: true }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::Width;

    use super::*;

    fn bus(widths: Widths) -> Bus {
        Description::memory(0x10000, 0x10fff, widths, Endian::Big).build().unwrap()
    }

    #[test]
    fn accesses_of_a_width_that_the_device_lacks_are_refused() {
        let wide = EbLayout { address: Width::W32, data: Width::W64 };
        let is_ok = |widths| {
            let (mut session, whole) = (BusSession::default(), Lanes::full(Width::W64));
            bus(widths).execute(&mut session, wide, Space::Bus, 0x10000, whole, None).ok
        };
        assert_eq!([Widths::only(Width::W32), Widths::ALL].map(is_ok), [false, true]);
    }

    #[test]
    fn time_advances_with_each_access_and_never_goes_back() {
        let mut bus = bus(Widths::ALL);
        bus.timing = BusTiming { read_ns: 32, write_ns: 8, cycle_ns: 100, ..BusTiming::default() };
        let (mut session, whole) = (BusSession::default(), Lanes::full(Width::W32));
        bus.begin_cycle(1000);
        for word in [None, Some(1)] {
            bus.execute(&mut session, EbLayout::L32, Space::Bus, 0x10000, whole, word);
        }
        assert_eq!(bus.ready_ns(0, &BusSession::default()), 1000 + 100 + 32 + 8);
        bus.begin_cycle(500);
        assert_eq!(bus.ready_ns(0, &BusSession::default()), 1240);
    }

    #[test]
    fn config_registers_are_read_in_port_sized_parts() {
        let mut bus = bus(Widths::ALL);
        bus.sdb_root = 0x0000_0001_2345_6700;
        let session =
            BusSession { errors: ErrorRegister(0x0102_0304_0506_0708), ..BusSession::default() };
        let read = |data, address| {
            bus.read_config(&session, EbLayout { address: Width::W32, data }, address)
        };
        assert_eq!(read(Width::W32, 4), 0x0506_0708);
        assert_eq!(read(Width::W8, 7), 0x08);
        assert_eq!(read(Width::W16, 6), 0x0708);
        assert_eq!(read(Width::W64, 0), 0x0102_0304_0506_0708);
        assert_eq!(read(Width::W32, 0xC), 0x2345_6700);
        assert_eq!(read(Width::W32, 0x40), 0);
    }
}
