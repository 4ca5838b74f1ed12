//! A scan of the self-describing bus: every table, through every bridge.

use daqmeter_wire::etherbone::sdb::{self, SdbRecord};
use daqmeter_wire::etherbone::{Endian, config};

use crate::access::{ByteSpan, Reach, Words};
use crate::{Client, EbError};

const MAX_DEPTH: usize = 16;
const MAX_FOUND: usize = 65_536;

/// One record of the bus, with absolute addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct ScannedRecord {
    pub path: Vec<usize>,
    pub record: SdbRecord,
    /// First address on the whole bus; `None` for records without an address.
    pub first: Option<u64>,
    pub last: Option<u64>,
    /// True for the head of a table, which describes the bus; its path is the path of its bridge.
    pub is_head: bool,
}

impl ScannedRecord {
    pub fn path_text(&self) -> String {
        self.path.iter().map(usize::to_string).collect::<Vec<_>>().join(".")
    }

    pub fn is(&self, (vendor, device): (u64, u32)) -> bool {
        matches!(self.record, SdbRecord::Device(_) | SdbRecord::Bridge { .. })
            && self.record.component().is_some_and(|component| {
                component.product.vendor == vendor && component.product.device == device
            })
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    pub found: Vec<ScannedRecord>,
    /// A line for each table that could not be read whole, with its bridge and the reason.
    pub unread: Vec<String>,
}

impl Scan {
    pub fn devices(&self, id: (u64, u32)) -> Vec<&ScannedRecord> {
        self.found.iter().filter(|found| found.is(id)).collect()
    }
}

/// Reads all tables, or only the first one. A bridge whose table cannot be read does not end the
/// scan of the others.
pub fn scan(client: &mut Client, recurse: bool) -> Result<Scan, EbError> {
    let root = ByteSpan::range(config::SDB_ROOT, 8);
    let root = Words::of(client, Reach::config(client), root)?.value(client)?;
    scan_at(client, root, recurse)
}

pub fn scan_at(client: &mut Client, root: u64, recurse: bool) -> Result<Scan, EbError> {
    let mut walk =
        Walk { client, recurse, seen: Vec::new(), stopped: false, scan: Scan::default() };
    let place = TablePlace { table: root, base: 0 };
    match walk.table(place, &[]) {
        Err(error) if walk.scan.found.is_empty() => return Err(error),
        Err(error) => walk.note("the first table", error),
        Ok(()) => {}
    }
    Ok(walk.scan)
}

/// Finds how the device at an address is accessed.
pub fn reach_of(client: &mut Client, address: u64) -> Result<Reach, EbError> {
    let scan = scan(client, true)?;
    let covering = scan.found.iter().find_map(|found| match found.record {
        SdbRecord::Device(device) if found.first? <= address && address <= found.last? => {
            Some(device)
        }
        _ => None,
    });
    match covering {
        Some(device) => {
            Ok(Reach { widths: device.widths(), ..Reach::unknown(Some(device.endian())) })
        }
        None if scan.unread.is_empty() => {
            Err(EbError::other("failed to find SDB record: invalid address"))
        }
        None => Err(EbError::Other(scan.unread.join("; "))),
    }
}

#[derive(Clone, Copy)]
struct TablePlace {
    table: u64,
    base: u64,
}

fn read_bytes(client: &mut Client, address: u64, bytes: u64) -> Result<Vec<u8>, EbError> {
    let reach = Reach::unknown(Some(Endian::Big));
    Words::of(client, reach, ByteSpan::range(address, bytes))?.read(client)
}

fn record_count(client: &mut Client, table: u64) -> Result<u64, EbError> {
    let head = read_bytes(client, table, 32)?;
    let count =
        sdb::record_count(&head).map_err(|error| format!("no SDB table at {table:#x}: {error}"))?;
    if count == 0 || count > sdb::MAX_RECORDS {
        let most = sdb::MAX_RECORDS;
        return Err(EbError::Other(format!(
            "the SDB table at {table:#x} claims {count} records; 1 to {most} are believed"
        )));
    }
    Ok(count.into())
}

fn read_record(client: &mut Client, table: u64, index: u64) -> Result<SdbRecord, EbError> {
    let at = table.wrapping_add(index * sdb::RECORD_BYTES as u64);
    let bytes = read_bytes(client, at, sdb::RECORD_BYTES as u64)?;
    let record: [u8; sdb::RECORD_BYTES] =
        bytes.try_into().expect("as many bytes as were asked for");
    // A second head inside a table, or one without its magic, is shown as an unknown record.
    Ok(SdbRecord::parse(&record).unwrap_or(SdbRecord::Other(record[sdb::RECORD_BYTES - 1])))
}

struct Walk<'a> {
    client: &'a mut Client,
    recurse: bool,
    seen: Vec<u64>,
    stopped: bool,
    scan: Scan,
}

impl Walk<'_> {
    fn table(&mut self, place: TablePlace, path: &[usize]) -> Result<(), EbError> {
        if path.len() > MAX_DEPTH {
            return Err(EbError::Other(format!("bridges are nested deeper than {MAX_DEPTH}")));
        }
        if self.seen.contains(&place.table) {
            return Err(EbError::Other(format!(
                "the SDB table at {:#x} contains itself",
                place.table
            )));
        }
        let count = record_count(self.client, place.table)?;
        self.seen.push(place.table);
        let read = (0..count).try_for_each(|index| self.record(place, path, index));
        self.seen.pop();
        read
    }

    fn record(&mut self, place: TablePlace, path: &[usize], index: u64) -> Result<(), EbError> {
        if self.stopped {
            return Ok(());
        }
        if self.scan.found.len() >= MAX_FOUND {
            self.stopped = true;
            return Err(EbError::Other(format!(
                "the tables of this bus have more than {MAX_FOUND} records"
            )));
        }
        let record = read_record(self.client, place.table, index)?;
        // The head describes the bus, not a device; eb-ls counts from the record after it.
        let is_head = index == 0;
        let mut path = path.to_vec();
        path.extend((!is_head).then_some(usize::try_from(index).expect("at most MAX_RECORDS")));
        let moves = !matches!(record, SdbRecord::MsiMaster { .. });
        let base = if moves { place.base } else { 0 };
        let component = record.component();
        let at = self.scan.found.len();
        self.scan.found.push(ScannedRecord {
            path: path.clone(),
            record,
            first: component.map(|component| base.wrapping_add(component.first)),
            last: component.map(|component| base.wrapping_add(component.last)),
            is_head,
        });
        if let (SdbRecord::Bridge { child, component }, true) = (record, self.recurse) {
            let inner = TablePlace {
                table: place.base.wrapping_add(child),
                base: place.base.wrapping_add(component.first),
            };
            if let Err(error) = self.table(inner, &path) {
                let path = self.scan.found[at].path_text();
                self.note(&format!("the table behind bridge {path}"), error);
            }
        }
        Ok(())
    }

    /// Keeps the reason why a table was not read whole. The scan goes on after an error in one
    /// table, and ends when the slave is silent or gone.
    fn note(&mut self, what: &str, error: EbError) {
        self.stopped |= matches!(error, EbError::Timeout(_) | EbError::Closed);
        let line = format!("{what} was not read whole: {error}");
        self.scan.unread.push(line);
    }
}
