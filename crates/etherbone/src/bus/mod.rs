//! The emulated Wishbone bus: what answers at which address, and how long that takes.
//!
//! Time here is the bus's own: each operation advances it by the access time of the [`BusTiming`], and a cycle cannot begin before
//! the one before it ended. Whoever drives the bus decides whether to hold answers until that time has come.

pub mod description;
pub mod devices;
pub(crate) mod tlu;

use daqmeter_wire::etherbone::cycle::Space;
use daqmeter_wire::etherbone::{EbLayout, Endian, ErrorRegister, Lanes, Widths, config};
use serde::Deserialize;

pub use description::{Description, DescriptionError};
use devices::BusDevice;

/// How an access ended that did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusError {
    /// The device raised the error line.
    Refused,
    /// Nothing answered until the bus timeout.
    Timeout,
}

/// How long things take on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BusTiming {
    /// Period of the bus clock; timestamps are multiples of it.
    pub tick_ns: u64,
    /// One read of one word.
    pub read_ns: u64,
    /// One write of one word.
    pub write_ns: u64,
    /// Each cycle, before its first operation.
    pub cycle_ns: u64,
    /// An access that nothing answers.
    pub timeout_ns: u64,
    /// What is added to the host's UTC for TAI, in seconds.
    pub tai_offset_s: u64,
}

/// No access time; the 8 ns ticks of the study of 2018, and the bus timeout of the HDL slave (6,250,000 clocks, 100 ms).
impl Default for BusTiming {
    fn default() -> Self {
        BusTiming {
            tick_ns: 8,
            read_ns: 0,
            write_ns: 0,
            cycle_ns: 0,
            timeout_ns: 100_000_000,
            tai_offset_s: 37,
        }
    }
}

/// What lies in a range of addresses.
enum Occupant {
    /// Memory, answered without a call through a table.
    Memory(Vec<u8>),
    /// An SDB table: readable, without a trace in the error register.
    Sdb(Vec<u8>),
    /// Anything else.
    Device(Box<dyn BusDevice>),
}

/// A range of addresses and what lies there.
struct Region {
    first: u64,
    last: u64,
    endian: Endian,
    widths: Widths,
    occupant: Occupant,
}

impl Region {
    /// The address that the device sees, whose low bits come from the lanes in its own byte order, and the offset in the
    /// device, if the access is one that it can do.
    #[inline]
    fn place(&self, layout: EbLayout, address: u64, lanes: Lanes) -> (u64, Option<u64>) {
        let address = address & !(layout.data.bytes() as u64 - 1) | lanes.low_bits(self.endian);
        // Where the region does not begin at a word, the low bits may lead out of it.
        let offset = address.checked_sub(self.first).filter(|_| self.widths.has(lanes.size()));
        (address, offset)
    }
}

/// The bus.
pub struct Bus {
    /// Sorted by address, without overlaps.
    regions: Vec<Region>,
    sdb_root: u64,
    timing: BusTiming,
    /// Monotonic time until which the bus is busy.
    time_ns: u64,
    /// From monotonic time to TAI.
    tai_minus_monotonic_ns: u64,
    /// The region found last: accesses come in runs.
    last_found: usize,
}

/// The account of one conversation: each has its own error register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusSession {
    /// Config register 0.
    pub errors: ErrorRegister,
    /// Accesses that ran into the bus timeout.
    pub timeouts: u64,
}

/// One access, for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address, with the low bits that the device saw.
    pub address: u64,
    /// The value that went over the bus.
    pub value: u64,
    /// Bytes.
    pub bytes: usize,
    /// True for a write.
    pub write: bool,
    /// False when it failed.
    pub ok: bool,
}

impl Bus {
    /// A bus without anything on it, with its root SDB table at the given address.
    fn new(timing: BusTiming, sdb_root: u64) -> Bus {
        let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let utc_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let tai_ns = utc_ns.saturating_add(timing.tai_offset_s * 1_000_000_000);
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

    /// Sets the TAI time that the given monotonic time corresponds to, e.g. to meet a rollover in a test.
    pub fn set_tai_ns(&mut self, tai_ns: u64, monotonic_ns: u64) {
        self.tai_minus_monotonic_ns = tai_ns.wrapping_sub(monotonic_ns);
    }

    /// Time that the bus takes.
    pub fn timing(&self) -> BusTiming {
        self.timing
    }

    /// Other access times than those of the description.
    pub fn set_timing(&mut self, timing: BusTiming) {
        self.timing = timing;
    }

    fn insert(&mut self, region: Region) -> Result<(), DescriptionError> {
        let at = self.regions.partition_point(|known| known.first < region.first);
        let clash = |known: Option<&Region>| {
            known.is_some_and(|known| known.first <= region.last && region.first <= known.last)
        };
        if clash(self.regions.get(at)) || at > 0 && clash(self.regions.get(at - 1)) {
            return Err(DescriptionError::Overlap { first: region.first, last: region.last });
        }
        self.regions.insert(at, region);
        Ok(())
    }

    /// A cycle begins: not before the last one ended.
    pub(crate) fn begin_cycle(&mut self, now_ns: u64) {
        self.time_ns = self.time_ns.max(now_ns) + self.timing.cycle_ns;
    }

    /// Until when the bus is busy.
    pub fn busy_until_ns(&self) -> u64 {
        self.time_ns
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

    /// TAI at this access. Where accesses take no time of the bus, they take that of the host, so its clock is read.
    fn tai_ns(&self) -> u64 {
        let time_ns = if self.timing.read_ns == 0 {
            daqmeter_sys::clock::monotonic_ns()
        } else {
            self.time_ns
        };
        let tai_ns = time_ns.wrapping_add(self.tai_minus_monotonic_ns);
        tai_ns - tai_ns % self.timing.tick_ns.max(1)
    }

    /// TAI, if what lies there may ask for it.
    #[inline]
    fn time_for(&self, at: usize) -> u64 {
        if matches!(self.regions[at].occupant, Occupant::Device(_)) { self.tai_ns() } else { 0 }
    }

    /// Reads a word: the value in its lanes, 0 when the access fails.
    #[inline]
    pub(crate) fn read(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        address: u64,
        lanes: Lanes,
    ) -> Access {
        self.time_ns += self.timing.read_ns;
        let found = self.find(address);
        let (address, result) = match found {
            Some(at) => self.read_region(at, layout, address, lanes),
            None => (address, Err(BusError::Refused)),
        };
        let is_sdb = found.is_some_and(|at| matches!(self.regions[at].occupant, Occupant::Sdb(_)));
        let access =
            |value, ok| Access { address, value, bytes: lanes.size().bytes(), write: false, ok };
        match result {
            Ok(value) => {
                session.errors.shift_in(false);
                access(lanes.place(value), true)
            }
            Err(error) => {
                self.book(session, error);
                session.errors.shift_in(!is_sdb);
                access(0, false)
            }
        }
    }

    #[inline]
    fn read_region(
        &mut self,
        at: usize,
        layout: EbLayout,
        address: u64,
        lanes: Lanes,
    ) -> (u64, Result<u64, BusError>) {
        let tai_ns = self.time_for(at);
        let region = &mut self.regions[at];
        let (address, offset) = region.place(layout, address, lanes);
        let Some(offset) = offset else {
            return (address, Err(BusError::Refused));
        };
        let size = lanes.size();
        let result = match &mut region.occupant {
            Occupant::Memory(bytes) | Occupant::Sdb(bytes) => {
                let endian = region.endian;
                devices::load(bytes, offset, size, endian).ok_or(BusError::Refused)
            }
            Occupant::Device(device) => device.read(offset, size, tai_ns),
        };
        (address, result)
    }

    /// Writes a word's lanes.
    pub(crate) fn write(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        address: u64,
        lanes: Lanes,
        word: u64,
    ) -> Access {
        self.time_ns += self.timing.write_ns;
        let value = lanes.take(word);
        let (address, result) = match self.find(address) {
            Some(at) => self.write_region(at, layout, address, lanes, value),
            None => (address, Err(BusError::Refused)),
        };
        session.errors.shift_in(result.is_err());
        if let Err(error) = result {
            self.book(session, error);
        }
        Access { address, value, bytes: lanes.size().bytes(), write: true, ok: result.is_ok() }
    }

    fn write_region(
        &mut self,
        at: usize,
        layout: EbLayout,
        address: u64,
        lanes: Lanes,
        value: u64,
    ) -> (u64, Result<(), BusError>) {
        let tai_ns = self.time_for(at);
        let region = &mut self.regions[at];
        let (address, offset) = region.place(layout, address, lanes);
        let Some(offset) = offset else {
            return (address, Err(BusError::Refused));
        };
        let size = lanes.size();
        let result = match &mut region.occupant {
            Occupant::Memory(bytes) => {
                devices::store(bytes, offset, size, region.endian, value).ok_or(BusError::Refused)
            }
            Occupant::Sdb(_) => Err(BusError::Refused),
            Occupant::Device(device) => device.write(offset, size, value, tai_ns),
        };
        (address, result)
    }

    fn book(&self, session: &mut BusSession, error: BusError) {
        if error == BusError::Timeout {
            session.timeouts += 1;
        }
    }

    /// Reads a word of the config registers, aligned to the port; unknown ones are 0.
    pub(crate) fn read_config(&self, session: &BusSession, layout: EbLayout, address: u64) -> u64 {
        let word = |register: u64| match register {
            config::ERRORS => session.errors.0,
            config::SDB_ROOT => self.sdb_root,
            // Message-signalled interrupts are not supported: result code 2.
            config::MSI_STATUS => 2,
            _ => 0,
        };
        let bytes = word(address & !7).to_be_bytes();
        let port = layout.data.bytes();
        let low = usize::try_from(address & 7).expect("below 8") & !(port - 1);
        bytes[low..low + port].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Runs one operation of a cycle. Config writes reach nothing, as in the C slave.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        op: (Space, bool),
        address: u64,
        lanes: Lanes,
        word: u64,
    ) -> Access {
        match op {
            (Space::Bus, false) => self.read(session, layout, address, lanes),
            (Space::Bus, true) => self.write(session, layout, address, lanes, word),
            (Space::Config, write) => {
                let value = if write {
                    word
                } else {
                    // Lanes that are not enabled are 0.
                    lanes.place(lanes.take(self.read_config(session, layout, address)))
                };
                Access { address, value, bytes: layout.data.bytes(), write, ok: true }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::Width;
    use daqmeter_wire::etherbone::status::failed;

    use super::*;

    fn bus(text: &str) -> Bus {
        Description::parse(text).unwrap().build().unwrap()
    }

    const MEMORY: &str = r#"
        [[device]]
        kind = "memory"
        first = 0x10000
        last = 0x10fff
        [[device]]
        kind = "memory"
        first = 0x20000
        last = 0x20fff
        little_endian = true
        widths = [8, 16, 32]
    "#;

    fn lanes(address: u64, size: Width, endian: Endian) -> Lanes {
        Lanes::at(address, size, Width::W32, endian).unwrap()
    }

    #[test]
    fn bytes_of_a_word_lie_as_the_device_orders_them() {
        let mut bus = bus(MEMORY);
        let mut session = BusSession::default();
        let whole = Lanes::full(Width::W32);
        for (base, endian, first_byte) in
            [(0x10000, Endian::Big, 0x11), (0x20000, Endian::Little, 0x44)]
        {
            assert!(bus.write(&mut session, EbLayout::L32, base, whole, 0x1122_3344).ok);
            let first = lanes(base, Width::W8, endian);
            let word = bus.read(&mut session, EbLayout::L32, base, first).value;
            assert_eq!(first.take(word), first_byte);
            let second = lanes(base + 2, Width::W16, endian);
            bus.write(&mut session, EbLayout::L32, base + 2, second, second.place(0xBEEF));
            let word = bus.read(&mut session, EbLayout::L32, base, whole).value;
            assert_eq!(word, if endian == Endian::Big { 0x1122_BEEF } else { 0xBEEF_3344 });
        }
        assert_eq!(session.errors.0, 0);
    }

    #[test]
    fn errors_are_found_at_the_right_operation() {
        let mut bus = bus(MEMORY);
        let mut session = BusSession::default();
        let whole = Lanes::full(Width::W32);
        for address in [0x10000, 0x30000, 0x10ffc, 0x11000, 0x8000] {
            bus.read(&mut session, EbLayout::L32, address, whole);
        }
        let found: Vec<bool> = (0..5).map(|index| failed(session.errors.0, index, 5)).collect();
        assert_eq!(found, [false, true, false, true, true]);
    }

    #[test]
    fn accesses_of_a_width_that_the_device_lacks_are_refused() {
        let mut bus = bus(MEMORY);
        let wide = EbLayout { address: Width::W32, data: Width::W64 };
        let access = bus.read(&mut BusSession::default(), wide, 0x20000, Lanes::full(Width::W64));
        assert!(!access.ok);
        assert!(bus.read(&mut BusSession::default(), wide, 0x10000, Lanes::full(Width::W64)).ok);
    }

    #[test]
    fn time_advances_with_each_access_and_never_goes_back() {
        let mut bus = bus(MEMORY);
        bus.set_timing(BusTiming {
            read_ns: 32,
            write_ns: 8,
            cycle_ns: 100,
            ..BusTiming::default()
        });
        let mut session = BusSession::default();
        bus.begin_cycle(1000);
        bus.read(&mut session, EbLayout::L32, 0x10000, Lanes::full(Width::W32));
        bus.write(&mut session, EbLayout::L32, 0x10000, Lanes::full(Width::W32), 1);
        assert_eq!(bus.busy_until_ns(), 1000 + 100 + 32 + 8);
        bus.begin_cycle(500);
        assert_eq!(bus.busy_until_ns(), 1240);
    }

    #[test]
    fn config_registers_are_read_in_port_sized_parts() {
        let mut bus = bus(MEMORY);
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
