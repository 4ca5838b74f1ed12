//! The tools that ask: ls, read, write, discover.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_etherbone::access::{ByteSpan, MAX_BYTES, Reach, Words};
use daqmeter_etherbone::scan::ScannedRecord;
use daqmeter_etherbone::{Address, Client, ClientOptions, EbDialect, discover as finding, scan};
use daqmeter_wire::etherbone::cycle::StatusCheck;
use daqmeter_wire::etherbone::{Endian, Width, Widths};

use super::poll::Polling;
use super::{Order, accessed, device, listing, number, span, widths};
use crate::arguments::duration;
use crate::named::Replaced;
use crate::output::{Ended, Failure, emit, emit_bytes, json_rows, tell, write_with};

/// The slave, and the options that all C tools share.
#[derive(Debug, Clone, Args)]
struct Slave {
    /// Slave
    #[arg(value_parser = Address::parse)]
    slave: Address,
    /// Acceptable address widths: 8/16/32/64
    #[arg(short = 'a', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    address: Widths,
    /// Acceptable data widths: 8/16/32/64
    #[arg(short = 'd', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    data: Widths,
    /// Number of probes before it gives up; 0 sends none
    #[arg(short = 'r', value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100), default_value = "3", help_heading = "Conversation")]
    probes: u32,
    /// Deadline of a cycle
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s", help_heading = "Conversation")]
    timeout: Duration,
    /// Times that a range is asked for again within the deadline; a register is never
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000), default_value = "10", help_heading = "Conversation")]
    retries: u32,
    /// Speak the dialect of LiteX
    #[arg(long, help_heading = "Conversation")]
    litex: bool,
    /// Print details on stderr
    #[arg(short = 'v', help_heading = "Output")]
    verbose: bool,
    /// Print no warnings
    #[arg(short = 'q', help_heading = "Output")]
    quiet: bool,
}

impl Slave {
    fn open(&self) -> Result<Client, Failure> {
        let options = ClientOptions {
            address: self.address,
            data: self.data,
            probes: self.probes,
            timeout: self.timeout,
            retries: self.retries,
            dialect: if self.litex { EbDialect::Litex } else { EbDialect::Gsi },
            ..ClientOptions::default()
        };
        let client = Client::open(&self.slave, &options)?;
        if self.verbose {
            let (address, data) = (client.layout().address.bits(), client.layout().data.bits());
            let slave = &self.slave;
            tell(&format!("Connected to {slave} with {address}/{data}-bit address/port widths."));
        }
        Ok(client)
    }

    fn warn(&self, line: &str) {
        if !self.quiet {
            tell(&format!("daqmeter: warning: {line}"));
        }
    }
}

/// Options of reads and writes.
#[derive(Debug, Args)]
struct Access {
    #[command(flatten)]
    slave: Slave,
    #[command(flatten)]
    order: Order,
    /// Do not ask SDB for the device
    #[arg(short = 'p')]
    plain: bool,
    /// Do not ask the slave for errors
    #[arg(short = 's')]
    silent: bool,
    /// Access config registers instead of the bus
    #[arg(short = 'c')]
    config: bool,
    /// Neither split nor widen the access
    #[arg(short = 'f')]
    exact: bool,
}

/// Read a register, or with --output a range of bytes.
#[derive(Debug, Args)]
#[command(
    after_long_help = include_str!("../../help/eb-read.txt")
)]
pub(crate) struct ReadArguments {
    #[command(flatten)]
    access: Access,
    /// Address and size in bytes: 0x101018/4
    #[arg(value_name = "ADDRESS/SIZE", value_parser = span)]
    span: (u64, u64),
    /// File for the bytes of the range, - for standard output
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Option<Replaced>,
    #[command(flatten)]
    polling: Polling,
    /// Print a JSON line with address, bytes, value; with --every also time, missed
    #[arg(long, conflicts_with = "output", help_heading = "Output")]
    json: bool,
}

/// Write a register, or with --from a range of bytes.
#[derive(Debug, Args)]
#[command(
    after_long_help = include_str!("../../help/eb-write.txt")
)]
pub(crate) struct WriteArguments {
    #[command(flatten)]
    access: Access,
    /// Address and size in bytes: 0x101018/4; with --from only the address
    #[arg(value_name = "ADDRESS[/SIZE]")]
    place: String,
    /// Value of the register
    #[arg(value_parser = number, required_unless_present = "from")]
    value: Option<u64>,
    /// File of the bytes to write
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    from: Option<PathBuf>,
    /// Read the bytes back and compare them [default for --from with --litex, which has no answers]
    #[arg(long)]
    verify: bool,
}

impl Access {
    /// Opens the access to a register or a range, and warns if a register takes more than one
    /// access of its size.
    fn open(&self, span: ByteSpan) -> Result<(Client, Words), Failure> {
        let mut client = self.slave.open()?;
        let reach = match self.config {
            true => Reach::config(&client),
            false => self.reach(&mut client, span.first)?,
        };
        let check = if self.silent { StatusCheck::Silent } else { StatusCheck::Status };
        let words = Words::of(&client, Reach { check, ..reach }, span)?;
        let detour = words.detour().filter(|_| !self.config);
        if let Some((size, detour)) = span.register.zip(detour) {
            if self.exact {
                let bits = size.bits();
                let why =
                    format!("an access of {bits} bits would have to be {detour} (-f forbids it)");
                return Err(why.into());
            }
            self.slave.warn(&format!("the access is {detour}"));
        }
        Ok((client, words))
    }

    /// Asks SDB for the device, unless it is plain; a forced byte order counts.
    fn reach(&self, client: &mut Client, at: u64) -> Result<Reach, Failure> {
        let forced = self.order.endian();
        if self.plain || self.slave.litex {
            return Ok(Reach::unknown(forced));
        }
        let found = scan::reach_of(client, at)?;
        if let (Some(found), Some(forced)) = (found.endian, forced)
            && found != forced
        {
            let (is, accessed) = (endian_name(found), endian_name(forced));
            self.slave.warn(&format!("the device is {is}, it is accessed as {accessed}"));
        }
        Ok(Reach { endian: forced.or(found.endian), ..found })
    }
}

fn endian_name(endian: Endian) -> &'static str {
    match endian {
        Endian::Big => "big-endian",
        Endian::Little => "little-endian",
    }
}

pub(crate) fn read(arguments: &ReadArguments) -> Ended {
    let ReadArguments { access, span: (at, bytes), output, polling, json } = arguments;
    let Some(file) = output else {
        let span = ByteSpan::register(*at, *bytes)?;
        let (mut client, words) = access.open(span)?;
        let digits = 2 * span.register.map_or(0, Width::bytes);
        return polling.run(
            || words.value(&mut client),
            |value, when| {
                let place = [format!("{at:#x}"), bytes.to_string()];
                let shown = |text: fn(u64, usize) -> String| {
                    value.map_or("-".to_owned(), |value| text(value, digits))
                };
                let when = when.into_iter().flatten();
                if *json {
                    let row = place.into_iter().chain([shown(|value, _| format!("{value:#x}"))]);
                    let names = ["address", "bytes", "value", "time", "missed"];
                    return emit(&json_rows(&names, &mut [row.chain(when).collect()].into_iter()));
                }
                let value = shown(|value, digits| format!("{value:0digits$x}"));
                let row = std::iter::once(value).chain(when);
                emit(&(row.collect::<Vec<_>>().join("  ") + "\n"))
            },
        );
    };
    let (mut client, words) = access.open(ByteSpan::range(*at, *bytes))?;
    let data = accessed(words.read(&mut client))?;
    if file.as_os_str() == "-" {
        return emit_bytes(&data);
    }
    write_with(file, |sink| sink.write_all(&data))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what is written: a register's value, or the bytes of a file.
fn written(arguments: &WriteArguments) -> Result<(ByteSpan, Option<Vec<u8>>), Failure> {
    let WriteArguments { place, value, from, .. } = arguments;
    if let Some(file) = from {
        let data = File::open(file)
            .and_then(|file| bounded(file, MAX_BYTES))
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        return Ok((ByteSpan::range(number(place)?, data.len() as u64), Some(data)));
    }
    let (at, bytes) = span(place)?;
    let (span, value) = (ByteSpan::register(at, bytes)?, value.unwrap_or_default());
    if span.register.is_some_and(|size| value & !size.mask() != 0) {
        return Err(format!("value {value:#x} does not fit {bytes} bytes").into());
    }
    Ok((span, None))
}

pub(crate) fn write(arguments: &WriteArguments) -> Ended {
    let WriteArguments { access, value, from, verify, .. } = arguments;
    let (span, data) = written(arguments)?;
    let (mut client, mut words) = access.open(span)?;
    words.is_memory = *verify && from.is_some();
    let data = data.unwrap_or_else(|| words.bytes_of(value.unwrap_or_default()));
    accessed(words.write(&mut client, &data))?;
    if *verify || access.slave.litex && from.is_some() {
        return compare(span.first, &data, &accessed(words.read(&mut client))?);
    }
    if access.silent || access.slave.litex {
        access.slave.warn("nothing answers this write: --verify reads it back");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if the bytes that were read back are not those that were written.
fn compare(at: u64, written: &[u8], found: &[u8]) -> Ended {
    let differ = written.iter().zip(found).enumerate().filter(|(_, (one, other))| one != other);
    let mut places = differ.map(|(place, _)| at + place as u64);
    let Some(first) = places.next() else { return Ok(ExitCode::SUCCESS) };
    Err(Failure::tool(format!(
        "{} of {} bytes are not as written, the first at {first:#x}: the write was lost, or this is no memory",
        1 + places.count(),
        written.len()
    )))
}

/// List the devices of the self-describing bus, or find one.
#[derive(Debug, Args)]
#[command(
    after_long_help = include_str!("../../help/eb-ls.txt")
)]
pub(crate) struct LsArguments {
    #[command(flatten)]
    slave: Slave,
    /// Do not follow bridges
    #[arg(short = 'n')]
    flat: bool,
    /// Print only the base addresses of this device
    #[arg(long, value_name = "VENDOR:DEVICE", value_parser = device)]
    find: Option<(u64, u32)>,
    /// Print only the one with this index, from 0
    #[arg(long, requires = "find")]
    index: Option<usize>,
    /// Print JSON lines with path, vendor, device, first, last, name
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn ls(arguments: &LsArguments) -> Ended {
    let LsArguments { slave, flat, find, index, json } = arguments;
    let mut client = slave.open()?;
    let scan = scan::scan(&mut client, !flat)?;
    if let Some((vendor, device)) = find {
        scan.unread.iter().for_each(|line| slave.warn(line));
        let first = |found: &ScannedRecord| Some(format!("{:#x}\n", found.first?));
        let found: Vec<&ScannedRecord> = scan.devices((*vendor, *device));
        let none = || Failure::tool(format!("no device {vendor:#x}:{device:#x} on this bus"));
        let last = found.len().checked_sub(1).ok_or_else(none)?;
        let beyond =
            || Failure::tool(format!("the last index of device {vendor:#x}:{device:#x} is {last}"));
        let chosen = index.map_or(0..=last, |at| at..=at);
        let chosen = found.get(chosen).ok_or_else(beyond)?.iter().copied();
        return emit(&match json {
            true => listing::json(chosen),
            false => chosen.filter_map(first).collect(),
        });
    }
    let records = scan.found.iter().filter(|found| !found.is_head);
    let done = emit(&if *json {
        listing::json(records)
    } else if slave.verbose {
        scan.found.iter().map(listing::details).collect::<String>()
    } else {
        let rows = records.map(listing::row);
        let head = "BusPath        VendorID         Product   BaseAddress(Hex)  Description\n";
        std::iter::once(head.to_owned()).chain(rows).collect()
    })?;
    if scan.unread.is_empty() { Ok(done) } else { Err(Failure::tool(scan.unread.join("; "))) }
}

/// Reads an input of at most `max_bytes`, since one without an end must not fill the memory.
fn bounded(input: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    input.take(max_bytes + 1).read_to_end(&mut data)?;
    if data.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("longer than {max_bytes} bytes: split it")));
    }
    Ok(data)
}

/// Find slaves by broadcast.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/eb-discover.txt"))]
pub(crate) struct DiscoverArguments {
    /// Broadcast address: udp/192.168.1.255
    #[arg(value_parser = Address::parse)]
    broadcast: Address,
    /// End the search after this time without an answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    quiet: Duration,
    /// Print JSON lines with slave, data, address
    #[arg(long)]
    json: bool,
}

pub(crate) fn discover(arguments: &DiscoverArguments) -> Ended {
    let DiscoverArguments { broadcast, quiet, json } = arguments;
    let Address::Udp(host) = broadcast else {
        let why = format!("{broadcast} is not a UDP address; probes go by udp/<broadcast>");
        return Err(why.into());
    };
    let found = finding::discover(host, *quiet)?;
    if found.is_empty() {
        return Err(Failure::tool(format!("{broadcast}: no slave answered")));
    }
    let row = |found: &finding::Discovered| {
        let proto = if found.peer.is_ipv4() { "udp4" } else { "udp6" };
        let name = format!("{proto}/{}/{}", found.peer.ip(), found.peer.port());
        vec![name, found.data.to_string(), found.address.to_string()]
    };
    let text =
        |row: Vec<String>| format!("{:<33} V.1; data={}-bit addr={}-bit\n", row[0], row[1], row[2]);
    let mut rows = found.iter().map(row);
    emit(&match json {
        true => json_rows(&["slave", "data", "address"], &mut rows),
        false => rows.map(text).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_an_end_is_refused() {
        assert_eq!(bounded(io::repeat(7).take(3), 3).unwrap(), [7; 3]);
        let refused = bounded(io::repeat(7), 3).unwrap_err().to_string();
        assert_eq!(refused, "longer than 3 bytes: split it");
    }
}
