//! Output of `eb ls`, as the C tool has it: rows, and with -v every field of every record.

use std::fmt::Write;

use daqmeter_etherbone::scan::ScannedRecord;
use daqmeter_wire::etherbone::sdb::{MAGIC, Product, SdbRecord};

use crate::output::json_rows;

/// Characters of a name's field, as in the table on the device.
const NAME_CHARS: usize = 19;

/// Writes records with an address as JSON lines; `eb read` takes the numbers.
pub(super) fn json<'a>(all: impl Iterator<Item = &'a ScannedRecord>) -> String {
    let row = |found: &ScannedRecord| {
        let Product { vendor, device, name, .. } = found.record.component()?.product;
        let numbers = [vendor, device.into(), found.first?, found.last?];
        let [vendor, device, first, last] = numbers.map(|number| format!("{number:#x}"));
        Some(vec![found.path_text(), vendor, device, first, last, name.to_string()])
    };
    let headings = ["path", "vendor", "device", "first", "last", "name"];
    json_rows(&headings, &mut all.filter_map(row))
}

/// Writes a row as eb-ls does: the base is that on the whole bus.
pub(super) fn row(found: &ScannedRecord) -> String {
    let path = found.path_text();
    let flag = match found.record {
        // Our own port is a large one, as in the C tool.
        SdbRecord::MsiMaster { flags, .. } if flags >> 31 == 1 => 'M',
        SdbRecord::MsiMaster { .. } => 'm',
        _ => ' ',
    };
    match (found.record.component(), found.first) {
        (Some(component), Some(first)) => {
            let Product { vendor, device, name, .. } = component.product;
            let name = name.to_string();
            format!("{path:<15}{vendor:016x}:{device:08x}  {first:16x}{flag} {name:<NAME_CHARS$}\n")
        }
        _ => format!("{path:<15}---\n"),
    }
}

/// Writes all fields of a record as `eb-ls -v` does.
pub(super) fn details(found: &ScannedRecord) -> String {
    let path = found.path_text();
    let device = format!("Device {path}");
    let bus = |bus_specific: u32| {
        let endian = if bus_specific & 0x80 == 0 { "big" } else { "little" };
        [("wbd_endian", endian.to_owned()), ("wbd_width", format!("{:x}", bus_specific & 0xf))]
    };
    let (title, mut fields) = match &found.record {
        SdbRecord::Interconnect { records, version, .. } => {
            let fields = vec![
                ("sdb_magic", format!("{MAGIC:08x}")),
                ("sdb_records", records.to_string()),
                ("sdb_version", version.to_string()),
            ];
            (format!("SDB Bus {}", if path.is_empty() { "root" } else { &path }), fields)
        }
        SdbRecord::Device(of) => {
            let version = [
                ("abi_class", format!("{:04x}", of.abi_class)),
                ("abi_ver_major", of.abi_major.to_string()),
                ("abi_ver_minor", of.abi_minor.to_string()),
            ];
            (device, [&version[..], &bus(of.bus_specific)].concat())
        }
        SdbRecord::MsiMaster { flags, bus_specific, .. } => {
            let flags = [("msi_flags", format!("{flags:08x}"))];
            (device, [&flags[..], &bus(*bus_specific)].concat())
        }
        SdbRecord::Bridge { child, component } => {
            let base = found.first.unwrap_or(0).wrapping_sub(component.first);
            (device, vec![("sdb_child", format!("{:016x}", child.wrapping_add(base)))])
        }
        SdbRecord::Other(kind) => (format!("{device} not present ({kind:x})"), Vec::new()),
    };
    if let Some(component) = found.record.component() {
        let Product { vendor, device, version, date, name } = component.product;
        fields.extend([
            ("sdb_component.addr_first", format!("{:016x}", found.first.unwrap_or(0))),
            ("sdb_component.addr_last", format!("{:016x}", found.last.unwrap_or(0))),
            ("product.vendor_id", format!("{vendor:016x}")),
            ("product.device_id", format!("{device:08x}")),
            ("product.version", format!("{version:08x}")),
            ("product.date", format!("{date:08x}")),
            ("product.name", format!("{:<NAME_CHARS$}\n", name.to_string())),
        ]);
    }
    fields.iter().fold(format!("{title}\n"), |mut out, (name, value)| {
        // A string takes everything.
        let _ = writeln!(out, "  {:<25} {value}", format!("{name}:"));
        out
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::sdb::{Component, Text};

    use super::*;

    /// Issue 16: every one had a large M.
    #[test]
    fn the_port_that_we_came_in_by_has_a_large_m_and_other_msi_masters_a_small_one() {
        let name = Text::new("msi");
        let product = Product { vendor: 0x651, device: 1, version: 1, date: 0, name };
        let component = Component { first: 0, last: 0xff, product };
        for (flags, letter) in [(1 << 31, 'M'), (0, 'm')] {
            let row = row(&ScannedRecord {
                path: vec![2],
                record: SdbRecord::MsiMaster { flags, bus_specific: 0, component },
                first: Some(0x100),
                last: Some(0x1ff),
                is_head: false,
            });
            assert!(row.contains(&format!(" 100{letter} msi")), "{row}");
        }
    }
}
