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

use daqmeter_wire::etherbone::sdb::{self, Component, Product, SdbRecord, Synthesis, Text, ids};
use daqmeter_wire::etherbone::{Endian, Width, Widths};
use serde::Deserialize;

use super::devices::{Eca, Register, Registers};
use super::tlu::Tlu;
use super::{Bus, BusTiming, Occupant, Region};

const MAX_MEMORY_BYTES: u64 = 1 << 30;
const DEEPEST: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    #[error("{0}")]
    Syntax(String),
    #[error(
        "addresses {first:#x} to {last:#x} are taken already; move the device or the SDB table (sdb = ...)"
    )]
    Overlap {
        /// First address.
        first: u64,
        last: u64,
    },
    /// A range that ends before it begins, or that leaves its bridge.
    #[error("{what}: {first:#x} to {last:#x} is not a range inside {inside:#x} bytes")]
    Range {
        what: String,
        /// First address.
        first: u64,
        last: u64,
        inside: u64,
    },
    #[error("{0} bytes of memory; at most {MAX_MEMORY_BYTES} are emulated")]
    Memory(u64),
    #[error("more than {} records in a table, or bridges deeper than {DEEPEST}", sdb::MAX_RECORDS)]
    TooMany,
    #[error("no gap of {0} bytes for an SDB table; give one by sdb = ...")]
    NoGap(u64),
}

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

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceDescription {
    kind: Kind,
    first: u64,
    last: u64,
    vendor: Option<u64>,
    device_id: Option<u32>,
    version: Option<u32>,
    date: Option<u32>,
    name: Option<String>,
    #[serde(default)]
    abi_class: u16,
    #[serde(default)]
    little_endian: bool,
    widths: Option<Vec<u64>>,
    #[serde(default)]
    register: Vec<Register>,
    /// True for a message-signalled interrupt master instead of a device.
    #[serde(default)]
    msi: bool,
}

/// Builds the product as described, else by the default id and name.
macro_rules! product {
    ($described:expr, $default:expr) => {{
        let ((vendor, device), name) = $default;
        Product {
            vendor: $described.vendor.unwrap_or(vendor),
            device: $described.device_id.unwrap_or(device),
            version: $described.version.unwrap_or(1),
            date: $described.date.unwrap_or(DATE),
            name: Text::new($described.name.as_deref().unwrap_or(name)),
        }
    }};
}

/// Date of records without one: the date of the table in the study of 2018.
const DATE: u32 = 0x2018_0201;

#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SynthesisDescription {
    name: String,
    #[serde(default)]
    commit: String,
    #[serde(default)]
    tool: String,
    #[serde(default)]
    date: u32,
    #[serde(default)]
    user: String,
}

#[derive(Clone, Debug, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct CrossbarDescription {
    first: Option<u64>,
    last: Option<u64>,
    /// Access times; given for the whole bus only.
    timing: Option<BusTiming>,
    vendor: Option<u64>,
    device_id: Option<u32>,
    version: Option<u32>,
    date: Option<u32>,
    name: Option<String>,
    /// Address of the SDB table, relative to the crossbar; the default is the first gap.
    sdb: Option<u64>,
    device: Vec<DeviceDescription>,
    bridge: Vec<CrossbarDescription>,
    empty: u16,
    repo_url: Option<String>,
    integration: Option<String>,
    synthesis: Option<SynthesisDescription>,
}

impl CrossbarDescription {
    fn range(&self) -> Result<(u64, u64), DescriptionError> {
        match (self.first, self.last, &self.timing) {
            (Some(first), Some(last), None) => Ok((first, last)),
            (_, _, Some(_)) => Err(DescriptionError::Syntax(
                "[timing] is of the whole bus, not of a bridge".to_owned(),
            )),
            _ => Err(DescriptionError::Syntax("a [[bridge]] needs first and last".to_owned())),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Description {
    pub timing: BusTiming,
    top: CrossbarDescription,
}

const TIMING_RECEIVER: &str = include_str!("../../profiles/timing-receiver.toml");

impl Description {
    pub fn parse(text: &str) -> Result<Description, DescriptionError> {
        let syntax = |error: toml::de::Error| {
            let at = error
                .span()
                .map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
            let (line, message) =
                (text.lines().nth(at).unwrap_or("").trim(), error.message().replace('\n', " "));
            DescriptionError::Syntax(format!("line {} (`{line}`): {message}", at + 1))
        };
        let top: CrossbarDescription = toml::from_str(text).map_err(syntax)?;
        if top.first.is_some() || top.last.is_some() {
            return Err(DescriptionError::Syntax(
                "first and last are of devices and bridges, not of the whole bus".to_owned(),
            ));
        }
        Ok(Description { timing: top.timing.unwrap_or_default(), top })
    }

    pub fn timing_receiver() -> Description {
        Description::parse(TIMING_RECEIVER).expect("ships with the binary and is tested")
    }

    pub fn memory(first: u64, last: u64, widths: Widths, endian: Endian) -> Description {
        let widths = Width::ALL.into_iter().filter(|width| widths.has(*width));
        let device = DeviceDescription {
            first,
            last,
            abi_class: 1,
            little_endian: endian == Endian::Little,
            widths: Some(widths.map(|width| width.bits().into()).collect()),
            ..DeviceDescription::default()
        };
        let top = CrossbarDescription { device: vec![device], ..CrossbarDescription::default() };
        Description { timing: BusTiming::default(), top }
    }

    pub fn build(&self) -> Result<Bus, DescriptionError> {
        let mut builder = Builder { bus: Bus::new(self.timing, 0), memory_bytes: 0 };
        let root = builder.crossbar(&self.top, Place { base: 0, last: u64::MAX }, 0)?;
        builder.bus.sdb_root = root;
        Ok(builder.bus)
    }
}

#[derive(Clone, Copy)]
struct Place {
    base: u64,
    last: u64,
}

struct Builder {
    bus: Bus,
    memory_bytes: u64,
}

impl Builder {
    fn crossbar(
        &mut self,
        crossbar: &CrossbarDescription,
        place: Place,
        depth: usize,
    ) -> Result<u64, DescriptionError> {
        if depth > DEEPEST {
            return Err(DescriptionError::TooMany);
        }
        let mut records = Vec::new();
        for device in &crossbar.device {
            let widths = widths_of(device)?;
            records.push(device_record(device, widths));
            if !device.msi {
                self.device(device, widths, place)?;
            }
        }
        for bridge in &crossbar.bridge {
            let (first, last) = bridge.range()?;
            let inner = within("a bridge", first, last, place)?;
            let table = self.crossbar(bridge, inner, depth + 1)?;
            let product = product!(bridge, (ids::CROSSBAR, "WB4-Bridge-Emulated"));
            let component = Component { first, last, product };
            records.push(SdbRecord::Bridge { child: table - place.base, component });
        }
        records.extend(crossbar.synthesis.as_ref().map(synthesis_record));
        records.extend(crossbar.repo_url.as_ref().map(|url| SdbRecord::RepoUrl(Text::new(url))));
        let integration = |name: &String| {
            let named = DeviceDescription { name: Some(name.clone()), ..Default::default() };
            SdbRecord::Integration(product!(named, (ids::CROSSBAR, "")))
        };
        records.extend(crossbar.integration.as_ref().map(integration));
        records.extend((0..crossbar.empty).map(|_| SdbRecord::Empty));
        self.table(crossbar, records, place)
    }

    fn table(
        &mut self,
        crossbar: &CrossbarDescription,
        records: Vec<SdbRecord>,
        place: Place,
    ) -> Result<u64, DescriptionError> {
        let count =
            u16::try_from(records.len() + 1).ok().filter(|count| *count <= sdb::MAX_RECORDS);
        let count = count.ok_or(DescriptionError::TooMany)?;
        let bytes = u64::from(count) * sdb::RECORD_BYTES as u64;
        let first = match crossbar.sdb {
            Some(offset) => {
                within("an SDB table", offset, offset.saturating_add(bytes - 1), place)?.base
            }
            None => self.gap(crossbar, bytes, place)?,
        };
        let product = product!(crossbar, (ids::SOFTWARE_BUS, "Software-EB-Bus"));
        let component = Component { first: 0, last: place.last - place.base, product };
        let head = SdbRecord::Interconnect { records: count, version: 1, bus_type: 0, component };
        let table: Vec<u8> =
            std::iter::once(head).chain(records).flat_map(|record| record.emit()).collect();
        let region = Region {
            first,
            last: first + (bytes - 1),
            endian: Endian::Big,
            widths: Widths::ALL,
            occupant: Occupant::Sdb(table),
        };
        self.bus.insert(region)?;
        Ok(first)
    }

    /// Finds the first place inside the crossbar that no device, bridge or message-signalled
    /// interrupt range takes. It is a multiple of 64 KiB, or of 64 bytes in small crossbars.
    fn gap(
        &self,
        crossbar: &CrossbarDescription,
        bytes: u64,
        place: Place,
    ) -> Result<u64, DescriptionError> {
        let ranges = crossbar.device.iter().map(|device| (device.first, device.last));
        let bridges = crossbar.bridge.iter().filter_map(|bridge| bridge.range().ok());
        let mut taken: Vec<(u64, u64)> = ranges.chain(bridges).collect();
        taken.sort_unstable();
        let inside = place.last - place.base;
        for step in [1_u64 << 16, 64] {
            let mut candidate = 0_u64;
            for &(first, last) in &taken {
                if candidate.checked_add(bytes).is_some_and(|end| end <= first) {
                    break;
                }
                let Some(after) = last.max(candidate.saturating_sub(1)).checked_add(1) else {
                    return Err(DescriptionError::NoGap(bytes));
                };
                candidate = after.checked_next_multiple_of(step).unwrap_or(u64::MAX);
            }
            if candidate.checked_add(bytes - 1).is_some_and(|last| last <= inside) {
                return Ok(place.base + candidate);
            }
        }
        Err(DescriptionError::NoGap(bytes))
    }

    fn device(
        &mut self,
        device: &DeviceDescription,
        widths: Widths,
        place: Place,
    ) -> Result<(), DescriptionError> {
        let range = within("a device", device.first, device.last, place)?;
        let occupant = match device.kind {
            Kind::Absent => return Ok(()),
            Kind::Memory => Occupant::Memory(self.memory(range)?),
            Kind::Eca => Occupant::Device(Box::new(Eca)),
            Kind::Tlu => Occupant::Device(Box::<Tlu>::default()),
            Kind::Registers => Occupant::Device(Box::new(Registers(device.register.clone()))),
        };
        let endian = if device.little_endian { Endian::Little } else { Endian::Big };
        self.bus.insert(Region { first: range.base, last: range.last, endian, widths, occupant })
    }

    fn memory(&mut self, range: Place) -> Result<Vec<u8>, DescriptionError> {
        let bytes = (range.last - range.base).saturating_add(1);
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        if self.memory_bytes > MAX_MEMORY_BYTES {
            return Err(DescriptionError::Memory(self.memory_bytes));
        }
        Ok(vec![0; usize::try_from(bytes).expect("at most 1 GiB")])
    }
}

fn within(what: &str, first: u64, last: u64, place: Place) -> Result<Place, DescriptionError> {
    let size = place.last - place.base;
    if first > last || last > size {
        return Err(DescriptionError::Range {
            what: what.to_owned(),
            first,
            last,
            inside: size.saturating_add(1),
        });
    }
    Ok(Place { base: place.base + first, last: place.base + last })
}

fn widths_of(device: &DeviceDescription) -> Result<Widths, DescriptionError> {
    let default: &[u64] = match device.kind {
        Kind::Memory => &[8, 16, 32, 64],
        _ => &[32],
    };
    let bits = device.widths.as_deref().unwrap_or(default);
    bits.iter().try_fold(Widths::NONE, |set, bits| {
        let width = bits.is_multiple_of(8).then(|| Width::of_bytes(bits / 8)).flatten();
        let width = width.ok_or_else(|| {
            DescriptionError::Syntax(format!("widths: {bits} is not 8, 16, 32 or 64"))
        })?;
        Ok(set.or(Widths::only(width)))
    })
}

fn device_record(device: &DeviceDescription, widths: Widths) -> SdbRecord {
    let default = match device.kind {
        Kind::Memory => (ids::SOFTWARE_MEMORY, "Software-Memory"),
        Kind::Eca => (ids::ECA, "ECA_UNIT:CONTROL"),
        Kind::Tlu => (ids::TLU, "GSI_TM_LATCH_V2"),
        Kind::Registers | Kind::Absent => ((ids::GSI, 0xdead_0000), "Registers"),
    };
    let component =
        Component { first: device.first, last: device.last, product: product!(device, default) };
    let bus_specific = u32::from(widths.nibble()) | if device.little_endian { 0x80 } else { 0 };
    if device.msi {
        return SdbRecord::MsiMaster { flags: 0, bus_specific, component };
    }
    SdbRecord::Device(sdb::SdbDevice {
        abi_class: device.abi_class,
        abi_major: 1,
        abi_minor: 0,
        bus_specific,
        component,
    })
}

fn synthesis_record(synthesis: &SynthesisDescription) -> SdbRecord {
    let mut commit = [0; 16];
    for (place, byte) in commit.iter_mut().zip(synthesis.commit.bytes()) {
        *place = byte;
    }
    SdbRecord::Synthesis(Synthesis {
        name: Text::new(&synthesis.name),
        commit,
        tool: Text::new(&synthesis.tool),
        tool_version: 0,
        date: synthesis.date,
        user: Text::new(&synthesis.user),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        match Description::parse(text).and_then(|description| description.build().map(drop)) {
            Ok(()) => panic!("accepted: {text}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_timing_receiver_that_ships_can_be_built() {
        let bus = Description::timing_receiver().build().unwrap();
        assert!(bus.regions.len() > 6);
    }

    #[test]
    fn wrong_descriptions_say_what_is_wrong() {
        let memory = |first: u64, last: u64| {
            format!("[[device]]\nkind = \"memory\"\nfirst = {first}\nlast = {last}\n")
        };
        assert!(error("nonsense").contains("nonsense"));
        assert!(error("[[device]]\nkind = \"toaster\"\nfirst = 0\nlast = 1").contains("toaster"));
        assert!(
            error(&format!("{}{}", memory(0, 0xff), memory(0x80, 0x17f)))
                .contains("0x80 to 0x17f are taken")
        );
        assert!(error(&memory(8, 4)).contains("not a range"));
        assert!(error(&memory(0, 1 << 31)).contains("bytes of memory"));
        assert!(error("[[devices]]\nkind = \"memory\"").contains("unknown field `devices`"));
        assert!(error(&format!("{}nmae = \"x\"", memory(0, 1))).contains("unknown field `nmae`"));
        assert!(error("[[bridge]]\nfirst = 0").contains("needs first and last"));
        assert!(error("first = 0").contains("not of the whole bus"));
        let outside = format!(
            "[[bridge]]\nfirst = 0\nlast = 0xfff\n{}",
            memory(0, 0x1000).replace("[[device]]", "[[bridge.device]]")
        );
        assert!(error(&outside).contains("inside 0x1000"));
        let width = "[[device]]\nkind = \"memory\"\nfirst = 0\nlast = 255\nwidths = [12]";
        assert!(error(width).contains("12 is not"));
    }

    #[test]
    fn a_table_finds_its_own_place_between_the_devices() {
        let text = "[[device]]\nkind = \"memory\"\nfirst = 0\nlast = 0xffff\n[[device]]\nkind = \"memory\"\nfirst = 0x20000\nlast = 0x2ffff\n";
        assert_eq!(Description::parse(text).unwrap().build().unwrap().sdb_root, 0x10000);
        let full = "[[bridge]]\nfirst = 0\nlast = 0xff\n[[bridge.device]]\nkind = \"memory\"\nfirst = 0\nlast = 0xff\n";
        assert!(error(full).contains("no gap"));
    }
}
