//! Output of `eb ls`, as the C tool has it: rows, and with -v every field of every record.

use std::fmt::Write;

use daqmeter_etherbone::scan::ScannedRecord;
use daqmeter_wire::etherbone::sdb::{Component, Product, SdbRecord, Synthesis};
use daqmeter_wire::etherbone::{Endian, Width};
use serde_json::{Value, json};

/// Characters of a name's field, as in the table on the device.
const NAME_CHARS: usize = 19;

/// Shows every field of every record, by tables; `!!!` marks contradictions.
pub(super) fn details(tables: &[ScannedRecord], address: Width) -> String {
    let mut out = String::new();
    // Address ranges of the buses that lead to the current record, the root first.
    let mut buses = vec![(0, address.mask())];
    for found in tables {
        let depth = found.path.len();
        if found.is_head {
            buses.truncate(depth + 1);
            let bus = *buses.last().expect("the root stays");
            put(&mut out, found, bus);
            let inside = (found.first.unwrap_or(0), found.last.unwrap_or(u64::MAX));
            let range = (bus.0.max(inside.0), bus.1.min(inside.1));
            *buses.last_mut().expect("the root stays") = range;
        } else {
            buses.truncate(depth);
            put(&mut out, found, *buses.last().expect("the root stays"));
            buses.push((found.first.unwrap_or(0), found.last.unwrap_or(0)));
        }
    }
    out
}

type Field = (&'static str, String);

/// Writes a record as `eb-ls -v` does; `bus` is the range of its bus.
fn put(out: &mut String, found: &ScannedRecord, bus: (u64, u64)) {
    let is_bus = matches!(found.record, SdbRecord::Interconnect { .. });
    if found.is_head && !is_bus {
        return;
    }
    let (title, mut fields) = of_record(found);
    let component = found.record.component().filter(|_| found.is_head == is_bus);
    if let Some(component) = component {
        fields.extend(of_component(found, component, bus));
    }
    let _ = writeln!(out, "{title}");
    for (name, value) in fields {
        let _ = writeln!(out, "  {:<25} {value}", format!("{name}:"));
    }
    if component.is_some() {
        out.push('\n');
    }
}

fn of_record(found: &ScannedRecord) -> (String, Vec<Field>) {
    let device = format!("Device {}", found.path_text());
    match &found.record {
        SdbRecord::Interconnect { records, version, .. } if found.is_head => {
            let path = if found.path.is_empty() { "root".to_owned() } else { found.path_text() };
            let fields = vec![
                ("sdb_magic", format!("{:08x}", daqmeter_wire::etherbone::sdb::MAGIC)),
                ("sdb_records", records.to_string()),
                ("sdb_version", version.to_string()),
            ];
            (format!("SDB Bus {path}"), fields)
        }
        SdbRecord::Device(of) => {
            let mut fields = vec![
                ("abi_class", format!("{:04x}", of.abi_class)),
                ("abi_ver_major", of.abi_major.to_string()),
                ("abi_ver_minor", of.abi_minor.to_string()),
            ];
            fields.extend(of_bus_specific(of.bus_specific));
            (device, fields)
        }
        SdbRecord::MsiMaster { flags, bus_specific, .. } => {
            let mut fields = vec![("msi_flags", format!("{flags:08x}"))];
            fields.extend(of_bus_specific(*bus_specific));
            (device, fields)
        }
        SdbRecord::Bridge { child, component } => {
            let (first, last) = (found.first.unwrap_or(0), found.last.unwrap_or(0));
            let child = child.wrapping_add(first.wrapping_sub(component.first));
            let is_outside = child < first || child > last.saturating_sub(64);
            let mark =
                if is_outside { " !!! not contained in wbd_{addr_first,addr_last}" } else { "" };
            (device, vec![("sdb_child", format!("{child:016x}{mark}"))])
        }
        other => (format!("{device} not present ({:x})", other.record_type()), Vec::new()),
    }
}

fn of_bus_specific(bus_specific: u32) -> [Field; 2] {
    let endian = if bus_specific & 0x80 == 0 { "big" } else { "little" };
    [("wbd_endian", endian.to_owned()), ("wbd_width", format!("{:x}", bus_specific & 0xf))]
}

fn of_component(found: &ScannedRecord, component: &Component, bus: (u64, u64)) -> [Field; 7] {
    let (first, last) = (found.first.unwrap_or(0), found.last.unwrap_or(0));
    let is_outside = |address: u64| address < bus.0 || address > bus.1;
    let first_mark = if is_outside(first) { " !!! out of range" } else { "" };
    let last_mark = match last {
        last if is_outside(last) => " !!! out of range",
        last if last < first => " !!! precedes addr_first",
        _ => "",
    };
    let Product { vendor, device, version, date, name } = component.product;
    [
        ("sdb_component.addr_first", format!("{first:016x}{first_mark}")),
        ("sdb_component.addr_last", format!("{last:016x}{last_mark}")),
        ("product.vendor_id", format!("{vendor:016x}")),
        ("product.device_id", format!("{device:08x}")),
        ("product.version", format!("{version:08x}")),
        ("product.date", format!("{date:08x}")),
        ("product.name", format!("{:<NAME_CHARS$}", name.to_string())),
    ]
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
