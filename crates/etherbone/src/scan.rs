//! Reading the self-describing bus: every table, through every bridge.

use daqmeter_wire::etherbone::config;
use daqmeter_wire::etherbone::cycle::{Check, Op, Space};
use daqmeter_wire::etherbone::sdb::{self, Record};

use crate::{Client, EbError};

/// Deepest nesting of bridges that is followed.
const DEEPEST: usize = 16;
/// Most records of all tables together.
const MAX_FOUND: usize = 65_536;

/// One record of the bus, with absolute addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Where in the tree: 1-based places, as eb-ls prints them.
    pub path: Vec<usize>,
    /// The record as it is in its table.
    pub record: Record,
    /// First address on the whole bus, for records that are somewhere.
    pub first: Option<u64>,
    /// Last address on the whole bus.
    pub last: Option<u64>,
    /// True for the head of a table, which describes the bus; its path is that of the bridge which leads there.
    pub is_head: bool,
}

impl Found {
    /// `2.1`: the path as text.
    pub fn path_text(&self) -> String {
        self.path
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(".")
    }

    /// True when the record names this vendor and device.
    pub fn is(&self, (vendor, device): (u64, u32)) -> bool {
        matches!(self.record, Record::Device(_) | Record::Bridge { .. })
            && self
                .record
                .product()
                .is_some_and(|product| product.vendor == vendor && product.device == device)
    }
}

/// Reads all tables, or only the first one. Records come in the order of their tables, those behind a bridge after it; heads are
/// left out.
///
/// # Errors
/// When the tables cannot be read, loop, or are not tables.
pub fn scan(client: &mut Client, recurse: bool) -> Result<Vec<Found>, EbError> {
    let mut found = tables(client, recurse)?;
    found.retain(|found| !found.is_head);
    Ok(found)
}

/// The same with the head of each table before its records.
///
/// # Errors
/// As of [`scan`].
pub fn tables(client: &mut Client, recurse: bool) -> Result<Vec<Found>, EbError> {
    let root = root_address(client)?;
    tables_at(client, root, recurse)
}

fn tables_at(client: &mut Client, root: u64, recurse: bool) -> Result<Vec<Found>, EbError> {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    let place = Place {
        table: root,
        base: 0,
        last: u64::MAX,
    };
    table(client, place, &[], recurse, &mut seen, &mut found)?;
    Ok(found)
}

/// Reads the tables from a given one on.
///
/// # Errors
/// As of [`scan`].
pub fn scan_at(client: &mut Client, root: u64) -> Result<Vec<Found>, EbError> {
    let mut found = tables_at(client, root, true)?;
    found.retain(|found| !found.is_head);
    Ok(found)
}

/// The device that covers an address, as eb-read looks for it: the scan follows only the bridge that leads there.
///
/// # Errors
/// As of [`scan`].
pub fn device_at(client: &mut Client, address: u64) -> Result<Option<(sdb::Device, u64)>, EbError> {
    let mut place = Place {
        table: root_address(client)?,
        base: 0,
        last: u64::MAX,
    };
    for _ in 0..DEEPEST {
        let mut next = None;
        for record in records(client, place.table)? {
            let covers = |first: u64, last: u64| {
                let absolute = place.base.wrapping_add(first)..=place.base.wrapping_add(last);
                absolute.contains(&address)
            };
            match record {
                Record::Device(device) if covers(device.component.first, device.component.last) => {
                    return Ok(Some((
                        device,
                        place.base.wrapping_add(device.component.first),
                    )));
                }
                Record::Bridge { child, component } if covers(component.first, component.last) => {
                    next = Some(Place {
                        table: place.base.wrapping_add(child),
                        base: place.base.wrapping_add(component.first),
                        last: place.base.wrapping_add(component.last),
                    });
                }
                _ => {}
            }
        }
        let Some(inner) = next else { return Ok(None) };
        place = inner;
    }
    Err(too_deep())
}

/// The devices with an id.
///
/// # Errors
/// As of [`scan`].
pub fn find(client: &mut Client, id: (u64, u32)) -> Result<Vec<Found>, EbError> {
    Ok(scan(client, true)?
        .into_iter()
        .filter(|found| found.is(id))
        .collect())
}

#[derive(Clone, Copy)]
struct Place {
    table: u64,
    base: u64,
    last: u64,
}

fn too_deep() -> EbError {
    EbError::Unsupported(format!(
        "bridges are nested deeper than {DEEPEST}: the tables of this bus loop"
    ))
}

fn root_address(client: &mut Client) -> Result<u64, EbError> {
    let port = client.layout().data;
    let step = port.bytes() as u64;
    let reads: Vec<Op> = (config::SDB_ROOT..config::SDB_ROOT + 8)
        .step_by(port.bytes())
        .map(|address| Op {
            space: Space::Config,
            ..Op::read(address, port)
        })
        .collect();
    let outcome = client.cycle(&reads, Check::Status)?;
    let shift = if step == 8 { 0 } else { port.bits() };
    Ok(outcome.values.iter().fold(0, |root, value| {
        if shift == 0 {
            *value
        } else {
            root << shift | value
        }
    }))
}

/// Reads bytes of the bus, big-endian, in one cycle.
fn read_bytes(client: &mut Client, address: u64, bytes: usize) -> Result<Vec<u8>, EbError> {
    let port = client.layout().data;
    let step = port.bytes();
    let reads: Vec<Op> = (0..bytes)
        .step_by(step)
        .map(|offset| Op::read(address.wrapping_add(offset as u64), port))
        .collect();
    let outcome = client.cycle(&reads, Check::Status)?;
    if let Some(&first) = outcome.failed.first() {
        return Err(EbError::Bus {
            failed: outcome.failed.len(),
            of: reads.len(),
            first: reads[first].address,
        });
    }
    Ok(outcome
        .values
        .iter()
        .flat_map(|value| value.to_be_bytes()[8 - step..].to_vec())
        .collect())
}

/// All records of a table, its head first.
fn records(client: &mut Client, table: u64) -> Result<Vec<Record>, EbError> {
    let head = read_bytes(client, table, 32)?;
    let count = sdb::record_count(&head)
        .map_err(|error| EbError::Unsupported(format!("no SDB table at {table:#x}: {error}")))?;
    if count == 0 || count > sdb::MAX_RECORDS {
        let most = sdb::MAX_RECORDS;
        return Err(EbError::Unsupported(format!(
            "the SDB table at {table:#x} claims {count} records; 1 to {most} are believed"
        )));
    }
    (0..u64::from(count))
        .map(|index| {
            let bytes = read_bytes(
                client,
                table.wrapping_add(index * sdb::RECORD_BYTES as u64),
                sdb::RECORD_BYTES,
            )?;
            let record: [u8; sdb::RECORD_BYTES] =
                bytes.try_into().expect("as many bytes as were asked for");
            // A second head inside a table, or one without its magic, is shown as what it is not.
            Ok(Record::parse(&record).unwrap_or(Record::Unknown(record[sdb::RECORD_BYTES - 1])))
        })
        .collect()
}

fn table(
    client: &mut Client,
    place: Place,
    path: &[usize],
    recurse: bool,
    seen: &mut Vec<u64>,
    found: &mut Vec<Found>,
) -> Result<(), EbError> {
    if path.len() > DEEPEST || found.len() > MAX_FOUND {
        return Err(too_deep());
    }
    if seen.contains(&place.table) {
        return Err(EbError::Unsupported(format!(
            "the SDB table at {:#x} contains itself",
            place.table
        )));
    }
    seen.push(place.table);
    for (index, record) in records(client, place.table)?.into_iter().enumerate() {
        // The head describes the bus, not something on it; eb-ls counts from the record after it.
        let is_head = index == 0;
        let mut path = path.to_vec();
        path.extend((!is_head).then_some(index));
        let moves = !matches!(record, Record::MsiMaster { .. });
        let absolute = |address: u64| {
            if moves {
                place.base.wrapping_add(address)
            } else {
                address
            }
        };
        let (first, last) = match record.component() {
            Some(component) => (
                Some(absolute(component.first)),
                Some(absolute(component.last)),
            ),
            None => (None, None),
        };
        found.push(Found {
            path: path.clone(),
            record,
            first,
            last,
            is_head,
        });
        if let (Record::Bridge { child, component }, true) = (record, recurse) {
            let inner = Place {
                table: place.base.wrapping_add(child),
                base: place.base.wrapping_add(component.first),
                last: place.base.wrapping_add(component.last).min(place.last),
            };
            table(client, inner, &path, recurse, seen, found)?;
        }
    }
    seen.pop();
    Ok(())
}
