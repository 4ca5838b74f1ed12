//! The tools that ask: ls, find, read, write, get, put, discover.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_etherbone::access::{MAX_BYTES, Reach, Transfer, Words};
use daqmeter_etherbone::{Address, Client, ClientOptions, EbDialect, discover as finding, scan};
use daqmeter_record::file::replace;
use daqmeter_wire::etherbone::cycle::StatusCheck;
use daqmeter_wire::etherbone::{Endian, Width, Widths};

use super::{Order, address, listing, number, place, refused, span, widths};
use crate::arguments::duration;
use crate::named::Replaced;
use crate::output::{Failure, emit, program_name, tell};

/// The slave, and the options that all C tools share.
#[derive(Debug, Clone, Args)]
struct Slave {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Acceptable address widths: 8/16/32/64
    #[arg(short = 'a', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    address: Widths,
    /// Acceptable data widths
    #[arg(short = 'd', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    data: Widths,
    /// Probes before giving up; 0 asks none
    #[arg(short = 'r', value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100), default_value = "3", help_heading = "Conversation")]
    probes: u32,
    /// Deadline of a cycle
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s", help_heading = "Conversation")]
    timeout: Duration,
    /// Speak the dialect of LiteX
    #[arg(long, help_heading = "Conversation")]
    litex: bool,
    /// Tell what is done, on stderr
    #[arg(short = 'v', help_heading = "Output")]
    verbose: bool,
    /// No warnings
    #[arg(short = 'q', help_heading = "Output")]
    quiet: bool,
}

impl Slave {
    fn open(&self, window_cycles: Option<usize>) -> Result<Client, Failure> {
        let default = ClientOptions::default();
        let options = ClientOptions {
            address: self.address,
            data: self.data,
            probes: self.probes,
            timeout: self.timeout,
            dialect: if self.litex { EbDialect::Litex } else { EbDialect::Gsi },
            window_cycles: window_cycles.unwrap_or(default.window_cycles),
            ..default
        };
        let client = Client::open(&self.slave, &options).map_err(refused)?;
        if self.verbose {
            let (address, data) = (client.layout().address.bits(), client.layout().data.bits());
            let slave = &self.slave;
            tell(&format!("Connected to {slave} with {address}/{data}-bit address/port widths."));
        }
        Ok(client)
    }

    fn warn(&self, line: &str) {
        if !self.quiet {
            tell(&format!("{}: warning: {line}", program_name()));
        }
    }

    /// Asks SDB for the device, unless it is plain; a forced byte order counts.
    fn reach(&self, client: &mut Client, how: How, at: u64) -> Result<Reach, Failure> {
        let forced = how.order.endian();
        if how.plain || self.litex {
            return Ok(Reach::unknown(forced));
        }
        let found = Reach::of(client, at).map_err(refused)?;
        if let (Some(found), Some(forced)) = (found.endian, forced)
            && found != forced
        {
            let (is, accessed) = (endian_name(found), endian_name(forced));
            self.warn(&format!("the device is {is}, it is accessed as {accessed}"));
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

#[derive(Debug, Clone, Copy, Args)]
struct How {
    #[command(flatten)]
    order: Order,
    /// Do not ask SDB for the device
    #[arg(short = 'p')]
    plain: bool,
}

/// Read a register.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb read emu/gige 0x101018/4\n  18abf3c0")]
pub(crate) struct ReadArguments {
    #[command(flatten)]
    slave: Slave,
    /// Address and size in bytes: 0x101018/4
    #[arg(value_name = "ADDRESS/SIZE", value_parser = place)]
    place: (u64, Width),
    #[command(flatten)]
    how: How,
    /// Do not ask the slave for errors
    #[arg(short = 's')]
    silent: bool,
    /// Config registers instead of the bus
    #[arg(short = 'c')]
    config: bool,
    /// Neither split nor widen the access
    #[arg(short = 'f')]
    exact: bool,
}

/// Write a register.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb write udp/localhost 0x10000/4 0x11223344")]
pub(crate) struct WriteArguments {
    #[command(flatten)]
    read: ReadArguments,
    /// Value
    #[arg(value_parser = number)]
    value: u64,
}

impl ReadArguments {
    fn open(&self) -> Result<(Client, Words), Failure> {
        let (at, size) = self.place;
        let mut client = self.slave.open(None)?;
        let reach = match self.config {
            true => Reach::config(&client),
            false => self.slave.reach(&mut client, self.how, at)?,
        };
        let check = if self.silent { StatusCheck::Silent } else { StatusCheck::Status };
        let reach = Reach { check, ..reach };
        let words = Words::of(&client, reach, at, size.bytes() as u64).map_err(refused)?;
        if let Some(detour) = words.detour().filter(|_| !self.config) {
            let bits = size.bits();
            if self.exact {
                return Err(refused(format!(
                    "an access of {bits} bits would have to be {detour} (-f forbids it)"
                )));
            }
            self.slave.warn(&format!("the access is {detour}"));
        }
        Ok((client, words))
    }

    fn judge(&self, transfer: &Transfer, doing: &str) -> Result<(), Failure> {
        let (at, bytes) = (self.place.0, self.place.1.bytes());
        match transfer.failed {
            0 => Ok(()),
            _ => Err(Failure::tool(format!(
                "wishbone segfault {doing} {at:#x}/{bytes}: the bus reports an error"
            ))),
        }
    }
}

pub(crate) fn read(arguments: &ReadArguments) -> Result<ExitCode, Failure> {
    let (mut client, words) = arguments.open()?;
    let (value, transfer) = words.value(&mut client).map_err(refused)?;
    arguments.judge(&transfer, "reading")?;
    emit(&format!("{value:0width$x}\n", width = 2 * arguments.place.1.bytes()))
}

pub(crate) fn write(arguments: &WriteArguments) -> Result<ExitCode, Failure> {
    let (size, value) = (arguments.read.place.1, arguments.value);
    if value & !size.mask() != 0 {
        return Err(refused(format!("value {value:#x} does not fit {} bytes", size.bytes())));
    }
    let (mut client, words) = arguments.read.open()?;
    let transfer = words.set_value(&mut client, value).map_err(refused)?;
    arguments.read.judge(&transfer, "writing")?;
    Ok(ExitCode::SUCCESS)
}

/// List what the self-describing bus describes.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb ls emu/gige")]
pub(crate) struct LsArguments {
    #[command(flatten)]
    slave: Slave,
    /// Do not follow bridges
    #[arg(short = 'n')]
    flat: bool,
}

pub(crate) fn ls(arguments: &LsArguments) -> Result<ExitCode, Failure> {
    let mut client = arguments.slave.open(None)?;
    let scan = scan::scan(&mut client, !arguments.flat).map_err(refused)?;
    let done = emit(&if arguments.slave.verbose {
        scan.found.iter().map(listing::details).collect::<String>()
    } else {
        let rows = scan.found.iter().filter(|found| !found.is_head).map(listing::row);
        let head = "BusPath        VendorID         Product   BaseAddress(Hex)  Description\n";
        std::iter::once(head.to_owned()).chain(rows).collect()
    })?;
    if scan.unread.is_empty() { Ok(done) } else { Err(Failure::tool(scan.unread.join("; "))) }
}

/// Find devices by vendor and device id.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter eb find emu/gige 0x651 0xb2afc251\n  0x101000"
)]
pub(crate) struct FindArguments {
    #[command(flatten)]
    slave: Slave,
    /// Vendor id
    #[arg(value_parser = number)]
    vendor: u64,
    /// Device id
    #[arg(value_parser = number)]
    device: u64,
    /// Only the one with this index, from 0
    #[arg(short = 'n', value_name = "INDEX")]
    index: Option<usize>,
}

pub(crate) fn find(arguments: &FindArguments) -> Result<ExitCode, Failure> {
    let FindArguments { vendor, device, index, .. } = arguments;
    let id = u32::try_from(*device)
        .map_err(|_| refused(format!("device id {device:#x} has more than 32 bits")))?;
    let mut client = arguments.slave.open(None)?;
    let scan = scan::scan(&mut client, true).map_err(refused)?;
    for line in &scan.unread {
        arguments.slave.warn(line);
    }
    let found: Vec<u64> =
        scan.devices((*vendor, id)).iter().filter_map(|found| found.first).collect();
    let chosen = |at: &usize| index.is_none_or(|index| index == *at);
    let lines: String =
        (0..found.len()).filter(chosen).map(|at| format!("{:#x}\n", found[at])).collect();
    match (lines.is_empty(), index, found.len()) {
        (false, ..) => emit(&lines),
        (true, Some(index), count @ 1..) => {
            Err(Failure::tool(format!("there are {count}, none with index {index}")))
        }
        _ => Err(Failure::tool(format!("no device {vendor:#x}:{device:#x} on this bus"))),
    }
}

/// Read a range of bytes into a file.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    slave: Slave,
    /// Address and length in bytes
    #[arg(value_name = "ADDRESS/LENGTH", value_parser = span)]
    span: (u64, u64),
    /// File; - is stdout
    #[arg(value_parser = Replaced::or_stdout)]
    file: Replaced,
    #[command(flatten)]
    transfer: TransferOptions,
}

/// Write a file to a range of bytes.
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    #[command(flatten)]
    slave: Slave,
    /// Address
    #[arg(value_name = "ADDRESS", value_parser = number)]
    at: u64,
    /// File; - is stdin
    file: PathBuf,
    #[command(flatten)]
    transfer: TransferOptions,
}

#[derive(Debug, Args)]
struct TransferOptions {
    #[command(flatten)]
    how: How,
    /// Go on after bus errors
    #[arg(short = 'f')]
    ignore_errors: bool,
    /// Cycles on their way at once [default: what the transport holds]
    #[arg(short = 'c', value_name = "N")]
    cycles: Option<usize>,
}

impl TransferOptions {
    fn open(&self, slave: &Slave, (at, bytes): (u64, u64)) -> Result<(Client, Words), Failure> {
        let mut client = slave.open(self.cycles)?;
        let reach = slave.reach(&mut client, self.how, at)?;
        let words = Words::of(&client, reach, at, bytes).map_err(refused)?;
        Ok((client, words))
    }

    fn judge(&self, transfer: &Transfer, doing: &str) -> Result<(), Failure> {
        match transfer.first_failed {
            Some(first) if !self.ignore_errors => Err(Failure::tool(format!(
                "{} accesses failed on the bus while {doing}, the first at {first:#x} (-f goes on)",
                transfer.failed
            ))),
            _ => Ok(()),
        }
    }
}

pub(crate) fn get(arguments: &GetArguments) -> Result<ExitCode, Failure> {
    let (mut client, words) = arguments.transfer.open(&arguments.slave, arguments.span)?;
    let (data, transfer) = words.read(&mut client).map_err(refused)?;
    arguments.transfer.judge(&transfer, "reading")?;
    let written = match arguments.file.as_os_str() == "-" {
        true => io::stdout().write_all(&data),
        false => replace(&arguments.file, &data),
    };
    let shown = arguments.file.display();
    written.map_err(|error| refused(format!("cannot write {shown}: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn put(arguments: &PutArguments) -> Result<ExitCode, Failure> {
    let shown = arguments.file.display();
    let data = match arguments.file.as_os_str() == "-" {
        true => bounded(io::stdin(), MAX_BYTES),
        false => File::open(&arguments.file).and_then(|file| bounded(file, MAX_BYTES)),
    };
    let data = data.map_err(|error| refused(format!("cannot read {shown}: {error}")))?;
    let span = (arguments.at, data.len() as u64);
    let (mut client, words) = arguments.transfer.open(&arguments.slave, span)?;
    let transfer = words.write(&mut client, &data).map_err(refused)?;
    arguments.transfer.judge(&transfer, "writing")?;
    Ok(ExitCode::SUCCESS)
}

/// Reads an input of at most `max_bytes`, since one without an end must not fill the memory.
fn bounded(input: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    input.take(max_bytes + 1).read_to_end(&mut data)?;
    if data.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("longer than {max_bytes} bytes: divide it")));
    }
    Ok(data)
}

/// Find slaves by broadcast.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb discover udp/192.168.1.255")]
pub(crate) struct DiscoverArguments {
    /// Broadcast address: udp/192.168.1.255
    #[arg(value_parser = address)]
    broadcast: Address,
    /// End after so long without an answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    quiet: Duration,
}

pub(crate) fn discover(arguments: &DiscoverArguments) -> Result<ExitCode, Failure> {
    let DiscoverArguments { broadcast, quiet } = arguments;
    let Address::Udp(host) = broadcast else {
        return Err(refused(format!(
            "{broadcast} is not a UDP address; probes go by udp/<broadcast>"
        )));
    };
    let found = finding::discover(host, *quiet).map_err(refused)?;
    let row = |found: &finding::Discovered| {
        let proto = if found.peer.is_ipv4() { "udp4" } else { "udp6" };
        let name = format!("{proto}/{}/{}", found.peer.ip(), found.peer.port());
        format!("{name:<33} V.1; data={}-bit addr={}-bit\n", found.data, found.address)
    };
    emit(&found.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_an_end_is_refused() {
        assert_eq!(bounded(io::repeat(7).take(3), 3).unwrap(), [7; 3]);
        let refused = bounded(io::repeat(7), 3).unwrap_err().to_string();
        assert_eq!(refused, "longer than 3 bytes: divide it");
    }
}
