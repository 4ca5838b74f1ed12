//! What `eb ls` prints, as the C tool does: rows, and with -v every field of every record.

use std::fmt::Write;

use daqmeter_etherbone::scan::ScannedRecord;
use daqmeter_wire::etherbone::sdb::{Component, Product, SdbRecord, Synthesis};
use daqmeter_wire::etherbone::{Endian, Width};
use serde_json::{Value, json};

/// Names fill their field, as in the table on the device.
const NAME_CHARS: usize = 19;

/// Every field of every record, by tables; what contradicts itself is marked with `!!!`.
pub(super) fn details(tables: &[ScannedRecord], address: Width) -> String {
    let mut out = String::new();
    // The address ranges of the buses that lead to the record at hand, the root first.
    let mut buses = vec![(0, address.mask())];
    for found in tables {
        let depth = found.path.len();
        if found.is_head {
            buses.truncate(depth + 1);
            let bus = *buses.last().expect("the root stays");
            put_bus(&mut out, found, bus);
            let inside = (found.first.unwrap_or(0), found.last.unwrap_or(u64::MAX));
            let range = (bus.0.max(inside.0), bus.1.min(inside.1));
            *buses.last_mut().expect("the root stays") = range;
        } else {
            buses.truncate(depth);
            put_record(&mut out, found, *buses.last().expect("the root stays"));
            buses.push((found.first.unwrap_or(0), found.last.unwrap_or(0)));
        }
    }
    out
}

fn put_line(out: &mut String, name: &str, value: &str) {
    let name = format!("{name}:");
    let _ = writeln!(out, "  {name:<25} {value}");
}

fn put_bus(out: &mut String, head: &ScannedRecord, bus: (u64, u64)) {
    let SdbRecord::Interconnect { records, version, component, .. } = &head.record else {
        return;
    };
    let path = match head.path.is_empty() {
        true => "root".to_owned(),
        false => head.path_text(),
    };
    let _ = writeln!(out, "SDB Bus {path}");
    put_line(out, "sdb_magic", &format!("{:08x}", daqmeter_wire::etherbone::sdb::MAGIC));
    put_line(out, "sdb_records", &records.to_string());
    put_line(out, "sdb_version", &version.to_string());
    put_component(out, head, component, bus);
}

fn put_record(out: &mut String, found: &ScannedRecord, bus: (u64, u64)) {
    let path = found.path_text();
    let (first, last) = (found.first.unwrap_or(0), found.last.unwrap_or(0));
    match &found.record {
        SdbRecord::Device(device) => {
            let _ = writeln!(out, "Device {path}");
            put_line(out, "abi_class", &format!("{:04x}", device.abi_class));
            put_line(out, "abi_ver_major", &device.abi_major.to_string());
            put_line(out, "abi_ver_minor", &device.abi_minor.to_string());
            put_bus_specific(out, device.bus_specific);
            put_component(out, found, &device.component, bus);
        }
        SdbRecord::MsiMaster { flags, bus_specific, component } => {
            let _ = writeln!(out, "Device {path}");
            put_line(out, "msi_flags", &format!("{flags:08x}"));
            put_bus_specific(out, *bus_specific);
            put_component(out, found, component, bus);
        }
        SdbRecord::Bridge { child, component } => {
            let _ = writeln!(out, "Device {path}");
            let child = child.wrapping_add(first.wrapping_sub(component.first));
            let mark = match child < first || child > last.saturating_sub(64) {
                true => " !!! not contained in wbd_{addr_first,addr_last}",
                false => "",
            };
            put_line(out, "sdb_child", &format!("{child:016x}{mark}"));
            put_component(out, found, component, bus);
        }
        other => {
            let _ = writeln!(out, "Device {path} not present ({:x})", other.record_type());
        }
    }
}

/// Byte order and widths of an interface.
fn put_bus_specific(out: &mut String, bus_specific: u32) {
    let endian = match bus_specific & 0x80 {
        0 => "big",
        _ => "little",
    };
    put_line(out, "wbd_endian", endian);
    put_line(out, "wbd_width", &format!("{:x}", bus_specific & 0xf));
}

fn put_component(out: &mut String, found: &ScannedRecord, component: &Component, bus: (u64, u64)) {
    let (first, last) = (found.first.unwrap_or(0), found.last.unwrap_or(0));
    let is_outside = |address: u64| address < bus.0 || address > bus.1;
    let mark = |wrong: bool, why: &str| match wrong {
        true => format!(" !!! {why}"),
        false => String::new(),
    };
    let first_mark = mark(is_outside(first), "out of range");
    let last_mark = match is_outside(last) {
        true => mark(true, "out of range"),
        false => mark(last < first, "precedes addr_first"),
    };
    put_line(out, "sdb_component.addr_first", &format!("{first:016x}{first_mark}"));
    put_line(out, "sdb_component.addr_last", &format!("{last:016x}{last_mark}"));
    put_product(out, &component.product);
}

fn put_product(out: &mut String, product: &Product) {
    put_line(out, "product.vendor_id", &format!("{:016x}", product.vendor));
    put_line(out, "product.device_id", &format!("{:08x}", product.device));
    put_line(out, "product.version", &format!("{:08x}", product.version));
    put_line(out, "product.date", &format!("{:08x}", product.date));
    put_line(out, "product.name", &format!("{:<NAME_CHARS$}", product.name.to_string()));
    out.push('\n');
}

/// A row as eb-ls prints it: the base is that on the whole bus.
pub(super) fn row(found: &ScannedRecord) -> String {
    let path = found.path_text();
    let flag = match found.record {
        // The port that we came in by is a large one, as in the C tool.
        SdbRecord::MsiMaster { flags, .. } if flags >> 31 == 1 => 'M',
        SdbRecord::MsiMaster { .. } => 'm',
        _ => ' ',
    };
    match (found.record.component(), found.first) {
        (Some(component), Some(first)) => {
            let product = &component.product;
            format!(
                "{path:<15}{:016x}:{:08x}  {first:16x}{flag} {:<NAME_CHARS$}\n",
                product.vendor,
                product.device,
                product.name.to_string()
            )
        }
        _ => format!("{path:<15}---\n"),
    }
}

fn kind(record: &SdbRecord) -> &'static str {
    match record {
        SdbRecord::Interconnect { .. } => "interconnect",
        SdbRecord::Device(_) => "device",
        SdbRecord::Bridge { .. } => "bridge",
        SdbRecord::MsiMaster { .. } => "msi",
        SdbRecord::Integration(_) => "integration",
        SdbRecord::RepoUrl(_) => "repo-url",
        SdbRecord::Synthesis(_) => "synthesis",
        SdbRecord::Empty => "empty",
        SdbRecord::Unknown(_) => "unknown",
    }
}

/// A record as JSON.
pub(super) fn as_json(found: &ScannedRecord) -> Value {
    let record = &found.record;
    let mut fields =
        json!({ "path": found.path_text(), "kind": kind(record), "type": record.record_type() });
    let mut set = |name: &str, value: Value| {
        fields[name] = value;
    };
    if let (Some(first), Some(last)) = (found.first, found.last) {
        set("first", json!(first));
        set("last", json!(last));
    }
    if let Some(product) = record.product() {
        set("vendor", json!(product.vendor));
        set("device", json!(product.device));
        set("version", json!(product.version));
        set("date", json!(format!("{:08x}", product.date)));
        set("name", json!(product.name.to_string()));
    }
    match record {
        SdbRecord::Device(device) => {
            set("abi_class", json!(device.abi_class));
            set("abi_version", json!(format!("{}.{}", device.abi_major, device.abi_minor)));
            set("widths", json!(device.widths().to_string()));
            set("endian", json!(if device.endian() == Endian::Big { "big" } else { "little" }));
        }
        SdbRecord::Bridge { child, .. } => set("child", json!(child)),
        SdbRecord::MsiMaster { flags, .. } => set("flags", json!(flags)),
        SdbRecord::RepoUrl(url) => set("url", json!(url.to_string())),
        SdbRecord::Synthesis(Synthesis { name, commit, tool, tool_version, date, user }) => {
            let commit: String = commit.iter().map(|byte| format!("{byte:02x}")).collect();
            set("name", json!(name.to_string()));
            set("commit", json!(commit));
            set("tool", json!(tool.to_string()));
            set("tool_version", json!(tool_version));
            set("date", json!(format!("{date:08x}")));
            set("user", json!(user.to_string()));
        }
        _ => {}
    }
    fields
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::sdb::Text;

    use super::*;

    /// Issue 16: every one had a large M.
    #[test]
    fn the_port_that_we_came_in_by_has_a_large_m_and_other_msi_masters_a_small_one() {
        for (flags, letter) in [(1 << 31, 'M'), (0, 'm')] {
            let record = SdbRecord::MsiMaster {
                flags,
                bus_specific: 0,
                component: Component {
                    first: 0,
                    last: 0xff,
                    product: Product {
                        vendor: 0x651,
                        device: 1,
                        version: 1,
                        date: 0,
                        name: Text::new("msi"),
                    },
                },
            };
            let row = row(&ScannedRecord {
                path: vec![2],
                record,
                first: Some(0x100),
                last: Some(0x1ff),
                is_head: false,
            });
            assert!(row.contains(&format!(" 100{letter} msi")), "{row}");
        }
    }
}
