//! A bus described in TOML: devices, nested crossbars behind bridges, their SDB tables, and the
//! time that accesses take.
//!
//! ```toml
//! [timing]
//! read_ns = 32
//! [[device]]
//! kind = "eca"
//! first = 0x1000
//! last = 0x107f
//! [[bridge]]
//! first = 0x100000
//! last = 0x1fffff
//! [[bridge.device]]        # addresses below a bridge are relative to it
//! kind = "memory"
//! first = 0x0
//! last = 0xffff
//! ```

use daqmeter_harness::{Shipped, TomlText};
use daqmeter_wire::etherbone::sdb::{self, Component, Product, SdbDevice, SdbRecord, Text, ids};
use daqmeter_wire::etherbone::{Endian, Width, Widths};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::devices::{Occupant, Register};
use super::{Bus, BusTiming, Region};

const MAX_MEMORY_BYTES: u64 = 1 << 30;
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    Memory,
    Eca,
    Tlu,
    Registers,
    Absent,
}

impl Kind {
    /// Returns widths, identity and name of a device that does not give its own.
    fn defaults(self) -> (Widths, (u64, u32), &'static str) {
        let word = Widths::only(Width::W32);
        match self {
            Kind::Memory => (Widths::ALL, ids::SOFTWARE_MEMORY, "Software-Memory"),
            Kind::Eca => (word, ids::ECA, "ECA_UNIT:CONTROL"),
            Kind::Tlu => (word, ids::TLU, "GSI_TM_LATCH_V2"),
            Kind::Registers | Kind::Absent => (word, (ids::GSI, 0xdead_0000), "Registers"),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceDescription {
    kind: Kind,
    first: u64,
    last: u64,
    vendor: Option<u64>,
    device_id: Option<u32>,
    name: Option<String>,
    #[serde(default)]
    little_endian: bool,
    #[serde(default, deserialize_with = "widths")]
    widths: Option<Widths>,
    #[serde(default)]
    register: Vec<Register>,
    /// True for a message-signalled interrupt master instead of a device.
    #[serde(default)]
    msi: bool,
}

/// Reads widths as a list of bits.
fn widths<'de, D: Deserializer<'de>>(bits: D) -> Result<Option<Widths>, D::Error> {
    let all = Vec::<u64>::deserialize(bits)?.into_iter().try_fold(Widths::NONE, |all, bits| {
        let width = Width::ALL.into_iter().find(|width| u64::from(width.bits()) == bits);
        let wrong = || D::Error::custom(format!("widths: {bits} is not 8, 16, 32 or 64"));
        Ok(all.or(Widths::only(width.ok_or_else(wrong)?)))
    });
    all.map(Some)
}

impl DeviceDescription {
    fn widths(&self) -> Widths {
        self.widths.unwrap_or(self.kind.defaults().0)
    }

    fn record(&self) -> SdbRecord {
        let (_, (vendor, id), name) = self.kind.defaults();
        let id = (self.vendor.unwrap_or(vendor), self.device_id.unwrap_or(id));
        let product = product(id, self.name.as_deref().unwrap_or(name));
        let component = Component { first: self.first, last: self.last, product };
        let little_endian = if self.little_endian { 0x80 } else { 0 };
        let bus_specific = u32::from(self.widths().nibble()) | little_endian;
        if self.msi {
            return SdbRecord::MsiMaster { flags: 0, bus_specific, component };
        }
        let (abi_class, abi_major) = (u16::from(self.kind == Kind::Memory), 1);
        let device = SdbDevice { abi_class, abi_major, abi_minor: 0, bus_specific, component };
        SdbRecord::Device(device)
    }
}

fn product((vendor, device): (u64, u32), name: &str) -> Product {
    // The date is that of the table in the study of 2018.
    Product { vendor, device, version: 1, date: 0x2018_0201, name: Text::new(name) }
}

/// A crossbar: the whole bus, or what is behind a bridge.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// Addresses of a bridge.
    first: Option<u64>,
    last: Option<u64>,
    /// Access times of the whole bus.
    timing: Option<BusTiming>,
    name: Option<String>,
    /// Address of the SDB table, relative to the crossbar; the default is the first gap.
    sdb: Option<u64>,
    device: Vec<DeviceDescription>,
    bridge: Vec<Description>,
    /// Number of empty records.
    empty: u16,
}

const BUSES: Shipped = Shipped {
    kind: "bus",
    files: &[("timing-receiver", include_str!("../../profiles/timing-receiver.toml"))],
};

impl Description {
    pub fn parse(file: &TomlText) -> Result<Description, String> {
        let top: Description = file.parse()?;
        if top.first.is_some() || top.last.is_some() {
            return Err(
                "first and last are of devices and bridges, not of the whole bus".to_owned()
            );
        }
        Ok(top)
    }

    /// Reads a bus that ships with the program, or a TOML file.
    pub fn named(name: &str) -> Result<Description, String> {
        Description::parse(&BUSES.get(name)?)
    }

    pub fn timing_receiver() -> Description {
        Description::named("timing-receiver").expect("ships with the binary and is tested")
    }

    pub fn memory(first: u64, last: u64, widths: Widths, endian: Endian) -> Description {
        let device = DeviceDescription {
            first,
            last,
            little_endian: endian == Endian::Little,
            widths: Some(widths),
            ..DeviceDescription::default()
        };
        Description { device: vec![device], ..Description::default() }
    }

    pub fn build(&self) -> Result<Bus, String> {
        let timing = self.timing.unwrap_or_default();
        let mut builder = Builder { bus: Bus::new(timing, 0), memory_bytes: 0 };
        builder.bus.sdb_root = builder.crossbar(self, Place { base: 0, last: u64::MAX }, 0)?;
        Ok(builder.bus)
    }

    fn range(&self) -> Result<(u64, u64), String> {
        match (self.first, self.last, &self.timing) {
            (Some(first), Some(last), None) => Ok((first, last)),
            _ => Err("a [[bridge]] needs first and last, and has no [timing]".to_owned()),
        }
    }

    /// Finds the first address inside the crossbar from which on nothing else takes these bytes.
    fn gap(&self, bytes: u64, place: Place) -> Result<u64, String> {
        let devices = self.device.iter().map(|device| (device.first, device.last));
        let bridges = self.bridge.iter().filter_map(|bridge| bridge.range().ok());
        let taken: Vec<(u64, u64)> = devices.chain(bridges).collect();
        let is_free = |first: &u64| {
            let last = first.checked_add(bytes - 1).filter(|last| *last <= place.last - place.base);
            last.is_some_and(|last| taken.iter().all(|range| last < range.0 || range.1 < *first))
        };
        let ends = taken.iter().filter_map(|(_, last)| last.checked_add(1));
        let places = ends.filter_map(|end| end.checked_next_multiple_of(sdb::RECORD_BYTES as u64));
        places.chain([0]).filter(is_free).min().ok_or_else(|| {
            format!("no gap of {bytes} bytes for an SDB table; give one by sdb = ...")
        })
    }
}

#[derive(Clone, Copy)]
struct Place {
    base: u64,
    last: u64,
}

impl Place {
    fn region(self, endian: Endian, widths: Widths, occupant: Occupant) -> Region {
        Region { first: self.base, last: self.last, endian, widths, occupant }
    }
}

struct Builder {
    bus: Bus,
    memory_bytes: u64,
}

impl Builder {
    fn crossbar(
        &mut self,
        crossbar: &Description,
        place: Place,
        depth: usize,
    ) -> Result<u64, String> {
        if depth > MAX_DEPTH {
            return Err(format!("bridges are nested deeper than {MAX_DEPTH}"));
        }
        let mut records = Vec::new();
        for device in &crossbar.device {
            records.push(device.record());
            if !device.msi {
                self.device(device, place)?;
            }
        }
        for bridge in &crossbar.bridge {
            let (first, last) = bridge.range()?;
            let inner = within("a bridge", first, last, place)?;
            let table = self.crossbar(bridge, inner, depth + 1)?;
            let name = bridge.name.as_deref().unwrap_or("WB4-Bridge-Emulated");
            let component = Component { first, last, product: product(ids::CROSSBAR, name) };
            records.push(SdbRecord::Bridge { child: table - place.base, component });
        }
        records.extend((0..crossbar.empty).map(|_| SdbRecord::Other(0xFF)));
        self.table(crossbar, records, place)
    }

    fn table(
        &mut self,
        crossbar: &Description,
        records: Vec<SdbRecord>,
        place: Place,
    ) -> Result<u64, String> {
        let count = u16::try_from(records.len() + 1).ok();
        let count = count
            .filter(|count| *count <= sdb::MAX_RECORDS)
            .ok_or_else(|| format!("more than {} records in a table", sdb::MAX_RECORDS))?;
        let bytes = u64::from(count) * sdb::RECORD_BYTES as u64;
        let first = crossbar.sdb.map_or_else(|| crossbar.gap(bytes, place), Ok)?;
        let table = within("an SDB table", first, first.saturating_add(bytes - 1), place)?;
        let name = crossbar.name.as_deref().unwrap_or("Software-EB-Bus");
        let product = product(ids::SOFTWARE_BUS, name);
        let component = Component { first: 0, last: place.last - place.base, product };
        let head = SdbRecord::Interconnect { records: count, version: 1, bus_type: 0, component };
        let records = std::iter::once(head).chain(records);
        let occupant = Occupant::Sdb(records.flat_map(|record| record.emit()).collect());
        self.bus.insert(table.region(Endian::Big, Widths::ALL, occupant))?;
        Ok(table.base)
    }

    fn device(&mut self, device: &DeviceDescription, place: Place) -> Result<(), String> {
        let range = within("a device", device.first, device.last, place)?;
        let occupant = match device.kind {
            Kind::Absent => return Ok(()),
            Kind::Memory => Occupant::Memory(self.memory(range)?),
            Kind::Eca => Occupant::Eca,
            Kind::Tlu => Occupant::Tlu(Box::default()),
            Kind::Registers => Occupant::Registers(device.register.clone()),
        };
        let endian = if device.little_endian { Endian::Little } else { Endian::Big };
        self.bus.insert(range.region(endian, device.widths(), occupant))
    }

    fn memory(&mut self, range: Place) -> Result<Vec<u8>, String> {
        let bytes = (range.last - range.base).saturating_add(1);
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        if self.memory_bytes <= MAX_MEMORY_BYTES {
            return Ok(vec![0; usize::try_from(bytes).expect("at most 1 GiB")]);
        }
        let all = self.memory_bytes;
        Err(format!("{all} bytes of memory; at most {MAX_MEMORY_BYTES} are emulated"))
    }
}

fn within(what: &str, first: u64, last: u64, place: Place) -> Result<Place, String> {
    let size = place.last - place.base;
    if first > last || last > size {
        return Err(format!(
            "{what}: {first:#x} to {last:#x} is not a range inside {:#x} bytes",
            size.saturating_add(1)
        ));
    }
    Ok(Place { base: place.base + first, last: place.base + last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_descriptions_say_what_is_wrong() {
        let memory = |first: u64, last: u64| {
            format!("[[device]]\nkind = \"memory\"\nfirst = {first}\nlast = {last}\n")
        };
        let (bridge, inside) = ("[[bridge]]\nfirst = 0\n", "[[bridge.device]]");
        let in_bridge = |last: u64, memory: String| {
            format!("{bridge}last = {last}\n{}", memory.replace("[[device]]", inside))
        };
        for (text, why) in [
            ("nonsense".to_owned(), "bus:1: "),
            (memory(0, 1).replace("memory", "toaster"), "toaster"),
            (memory(0, 0xff) + &memory(0x80, 0x17f), "0x80 to 0x17f are taken"),
            (memory(8, 4), "not a range"),
            (memory(0, 1 << 31), "bytes of memory"),
            (memory(0, 1).replace("device", "devices"), "unknown field `devices`"),
            (memory(0, 1) + "nmae = \"x\"", "unknown field `nmae`"),
            (memory(0, 255) + "widths = [12]", "12 is not"),
            (bridge.to_owned(), "needs first and last"),
            ("first = 0".to_owned(), "not of the whole bus"),
            (in_bridge(0xfff, memory(0, 0x1000)), "inside 0x1000"),
            (in_bridge(0xff, memory(0, 0xff)), "no gap"),
        ] {
            let built = Description::parse(&TomlText::new("bus", &text))
                .and_then(|description| description.build());
            let error = built.err().unwrap().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_table_finds_its_own_place_between_the_devices() {
        let memory = |first: u64| {
            format!("[[device]]\nkind = \"memory\"\nfirst = {first}\nlast = {}\n", first + 0xffff)
        };
        let root = |text: &str| {
            let file = TomlText::new("bus", text);
            Description::parse(&file).unwrap().build().unwrap().sdb_root
        };
        assert_eq!(root(&(memory(0) + &memory(0x20000))), 0x10000);
        assert_eq!(root(&memory(0x10000)), 0);
        assert!(Description::timing_receiver().build().unwrap().regions.len() > 6);
    }
}
