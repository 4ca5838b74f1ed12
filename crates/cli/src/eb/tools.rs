//! The tools that ask: ls, find, read, write, get, put, discover.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_etherbone::access::{self, AccessMethod, MAX_BYTES, Reach, Transfer};
use daqmeter_etherbone::address::Address;
use daqmeter_etherbone::scan;
use daqmeter_etherbone::{Client, discover as finding};
use daqmeter_record::file::replace;
use daqmeter_wire::etherbone::cycle::{Space, StatusCheck};
use daqmeter_wire::etherbone::{Endian, Width, Widths};
use serde_json::{Value, json};

use super::{Order, Wire, address, endian_name, listing, number, place, refused, span};
use crate::arguments::duration;
use crate::named::Replaced;
use crate::output::{Failure, emit};

/// Read a register.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb read emu/gige 0x101018/4\n  18abf3c0")]
pub(crate) struct ReadArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Address and size in bytes: 0x101018/4
    #[arg(value_name = "ADDRESS/SIZE", value_parser = place)]
    place: (u64, Width),
    #[command(flatten)]
    access: AccessOptions,
    #[command(flatten)]
    wire: Wire,
}

/// Write a register.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb write udp/localhost 0x10000/4 0x11223344")]
pub(crate) struct WriteArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Address and size in bytes
    #[arg(value_name = "ADDRESS/SIZE", value_parser = place)]
    place: (u64, Width),
    /// Value
    #[arg(value_parser = number)]
    value: u64,
    #[command(flatten)]
    access: AccessOptions,
    #[command(flatten)]
    wire: Wire,
}

#[derive(Debug, Args)]
struct AccessOptions {
    #[command(flatten)]
    order: Order,
    /// Do not ask the slave for errors
    #[arg(short = 's')]
    silent: bool,
    /// Config registers instead of the bus
    #[arg(short = 'c')]
    config: bool,
    /// Neither split nor widen the access
    #[arg(short = 'f')]
    exact: bool,
    /// Do not ask SDB for the device
    #[arg(short = 'p')]
    plain: bool,
}

impl AccessOptions {
    fn check(&self) -> StatusCheck {
        if self.silent { StatusCheck::Silent } else { StatusCheck::Status }
    }

    fn space(&self) -> Space {
        if self.config { Space::Config } else { Space::Bus }
    }

    fn reach(&self, client: &mut Client, wire: &Wire, at: u64) -> Result<Reach, Failure> {
        if self.plain || self.config || wire.litex {
            let endian = self.order.endian().or(self.config.then_some(Endian::Big));
            return Ok(Reach { widths: Widths::ALL, endian });
        }
        let reach = Reach::of(client, at).map_err(refused)?;
        Ok(self.order.over(reach, wire))
    }

    fn check_way(
        &self,
        client: &Client,
        reach: Reach,
        size: Width,
        wire: &Wire,
    ) -> Result<(), Failure> {
        if self.config {
            return Ok(());
        }
        let what = match access::way(client, reach, size).map_err(refused)? {
            AccessMethod::Direct => return Ok(()),
            AccessMethod::Fragmented(part) => {
                format!("split into accesses of {} bits", part.bits())
            }
            AccessMethod::Widened(whole) => format!("done through words of {} bits", whole.bits()),
        };
        if self.exact {
            return Err(refused(format!(
                "an access of {} bits would have to be {what} (-f forbids it)",
                size.bits()
            )));
        }
        wire.warn(&format!("the access is {what}"));
        Ok(())
    }
}

pub(crate) fn read(arguments: &ReadArguments) -> Result<ExitCode, Failure> {
    let (at, size) = arguments.place;
    let options = &arguments.access;
    let mut client = arguments.wire.open(&arguments.slave)?;
    let reach = options.reach(&mut client, &arguments.wire, at)?;
    options.check_way(&client, reach, size, &arguments.wire)?;
    let (value, failed) =
        access::read(&mut client, reach, at, size, options.space(), options.check())
            .map_err(refused)?;
    if failed {
        return Err(Failure::tool(format!(
            "wishbone segfault reading {at:#x}/{}: the bus reports an error",
            size.bytes()
        )));
    }
    if arguments.wire.json {
        return emit_json(&json!({ "address": at, "bytes": size.bytes(), "value": value }));
    }
    emit(&format!("{value:0width$x}\n", width = 2 * size.bytes()))
}

pub(crate) fn write(arguments: &WriteArguments) -> Result<ExitCode, Failure> {
    let (at, size) = arguments.place;
    let (options, value) = (&arguments.access, arguments.value);
    if value & !size.mask() != 0 {
        return Err(refused(format!("value {value:#x} does not fit {} bytes", size.bytes())));
    }
    let mut client = arguments.wire.open(&arguments.slave)?;
    let reach = options.reach(&mut client, &arguments.wire, at)?;
    options.check_way(&client, reach, size, &arguments.wire)?;
    let failed =
        access::write(&mut client, reach, at, size, options.space(), options.check(), value);
    if failed.map_err(refused)? {
        return Err(Failure::tool(format!(
            "wishbone segfault writing {at:#x}/{}: the bus reports an error",
            size.bytes()
        )));
    }
    if arguments.wire.json {
        return emit_json(&json!({ "address": at, "bytes": size.bytes(), "value": value }));
    }
    Ok(ExitCode::SUCCESS)
}

/// List what the self-describing bus describes.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter eb ls emu/gige")]
pub(crate) struct LsArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Do not follow bridges
    #[arg(short = 'n')]
    flat: bool,
    #[command(flatten)]
    wire: Wire,
}

pub(crate) fn ls(arguments: &LsArguments) -> Result<ExitCode, Failure> {
    let mut client = arguments.wire.open(&arguments.slave)?;
    let scan = scan::scan(&mut client, !arguments.flat).map_err(refused)?;
    let found = scan.found.iter().filter(|found| !found.is_head);
    let out = match (arguments.wire.json, arguments.wire.verbose) {
        (true, _) => format!("{}\n", found.map(listing::as_json).collect::<Value>()),
        (false, true) => listing::details(&scan.found, client.layout().address),
        (false, false) => {
            let head = "BusPath        VendorID         Product   BaseAddress(Hex)  Description\n";
            head.to_owned() + &found.map(listing::row).collect::<String>()
        }
    };
    let done = emit(&out)?;
    if scan.unread.is_empty() { Ok(done) } else { Err(Failure::tool(scan.unread.join("; "))) }
}

/// Find devices by vendor and device id.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter eb find emu/gige 0x651 0xb2afc251\n  0x101000"
)]
pub(crate) struct FindArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Vendor id
    #[arg(value_parser = number)]
    vendor: u64,
    /// Device id
    #[arg(value_parser = number)]
    device: u64,
    /// Only the one with this index, from 0
    #[arg(short = 'n', value_name = "INDEX")]
    index: Option<usize>,
    #[command(flatten)]
    wire: Wire,
}

pub(crate) fn find(arguments: &FindArguments) -> Result<ExitCode, Failure> {
    let device = u32::try_from(arguments.device)
        .map_err(|_| refused(format!("device id {:#x} has more than 32 bits", arguments.device)))?;
    let mut client = arguments.wire.open(&arguments.slave)?;
    let scan = scan::scan(&mut client, true).map_err(refused)?;
    let found = scan.devices((arguments.vendor, device));
    let addresses: Vec<u64> = found.iter().filter_map(|found| found.first).collect();
    for line in &scan.unread {
        arguments.wire.warn(line);
    }
    let chosen: Vec<u64> = match arguments.index {
        None => addresses.clone(),
        Some(index) => addresses.get(index).copied().into_iter().collect(),
    };
    if chosen.is_empty() {
        return Err(Failure::tool(match arguments.index {
            Some(index) if !addresses.is_empty() => {
                format!("there are {}, none with index {index}", addresses.len())
            }
            _ => format!("no device {:#x}:{device:#x} on this bus", arguments.vendor),
        }));
    }
    if arguments.wire.json {
        return emit_json(&json!(chosen));
    }
    emit(&chosen.iter().map(|first| format!("{first:#x}\n")).collect::<String>())
}

/// Read a range of bytes into a file.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Address and length in bytes
    #[arg(value_name = "ADDRESS/LENGTH", value_parser = span)]
    span: (u64, u64),
    /// File; - is stdout
    #[arg(value_parser = Replaced::or_stdout)]
    file: Replaced,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    wire: Wire,
}

/// Write a file to a range of bytes.
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// Slave
    #[arg(value_parser = address)]
    slave: Address,
    /// Address
    #[arg(value_name = "ADDRESS", value_parser = number)]
    at: u64,
    /// File; - is stdin
    file: PathBuf,
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    wire: Wire,
}

#[derive(Debug, Args)]
struct TransferOptions {
    #[command(flatten)]
    order: Order,
    /// Do not ask SDB for the device
    #[arg(short = 'p')]
    plain: bool,
    /// Go on after bus errors
    #[arg(short = 'f')]
    ignore_errors: bool,
    /// Cycles on their way at once [default: what the transport holds]
    #[arg(short = 'c', value_name = "N")]
    cycles: Option<usize>,
}

impl TransferOptions {
    fn open(
        &self,
        wire: &Wire,
        slave: &Address,
        span: (u64, u64),
    ) -> Result<(Client, Reach), Failure> {
        let mut options = wire.options();
        if let Some(cycles) = self.cycles {
            options.window_cycles = cycles;
        }
        let mut client = wire.open_with(slave, &options)?;
        let by_hand = Reach { widths: Widths::ALL, endian: self.order.endian() };
        if self.plain || wire.litex {
            return Ok((client, by_hand));
        }
        let (reach, last) = Reach::with_last(&mut client, span.0).map_err(refused)?;
        let end = span.0.saturating_add(span.1.saturating_sub(1));
        if end > last {
            wire.warn(&format!(
                "the last byte at {end:#x} is past the end of the device at {last:#x}"
            ));
        }
        Ok((client, self.order.over(reach, wire)))
    }

    fn announce(
        &self,
        wire: &Wire,
        client: &Client,
        reach: Reach,
        verb: &str,
        (at, bytes): (u64, u64),
    ) {
        let widest = match access::way(client, reach, Width::W64) {
            Ok(AccessMethod::Fragmented(width) | AccessMethod::Widened(width)) => width,
            Ok(AccessMethod::Direct) => Width::W64,
            Err(_) => return,
        };
        let words = match reach.endian {
            Some(endian) => format!("{} words", endian_name(endian)),
            None => "words".to_owned(),
        };
        let last = at.saturating_add(bytes.saturating_sub(1));
        wire.say(&format!(
            "{verb} {at:#x}-{last:#x}, {bytes} bytes, by {words} of up to {} bits.",
            widest.bits()
        ));
    }

    fn judge(&self, transfer: &Transfer, what: &str) -> Result<(), Failure> {
        match transfer.first_failed {
            Some(first) if !self.ignore_errors => {
                let failed = transfer.failed;
                Err(Failure::tool(format!(
                    "{failed} accesses failed on the bus while {what}, the first at {first:#x} (-f goes on)"
                )))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn get(arguments: &GetArguments) -> Result<ExitCode, Failure> {
    let (at, length) = arguments.span;
    let (mut client, reach) =
        arguments.transfer.open(&arguments.wire, &arguments.slave, arguments.span)?;
    arguments.transfer.announce(&arguments.wire, &client, reach, "Reading", arguments.span);
    let (data, transfer) = access::get(&mut client, reach, at, length).map_err(refused)?;
    arguments.transfer.judge(&transfer, "reading")?;
    if arguments.file.as_os_str() == "-" {
        use std::io::Write as _;
        std::io::stdout()
            .write_all(&data)
            .map_err(|error| refused(format!("cannot write to stdout: {error}")))?;
        arguments.wire.say(&done_text(data.len(), &transfer));
        return Ok(ExitCode::SUCCESS);
    }
    let shown = arguments.file.display();
    replace(&arguments.file, &data)
        .map_err(|error| refused(format!("cannot write {shown}: {error}")))?;
    conclude(&arguments.wire, at, data.len(), &transfer)
}

pub(crate) fn put(arguments: &PutArguments) -> Result<ExitCode, Failure> {
    let shown = arguments.file.display();
    let data = match arguments.file.as_os_str() == "-" {
        true => bounded(io::stdin(), MAX_BYTES),
        false => File::open(&arguments.file).and_then(|file| bounded(file, MAX_BYTES)),
    };
    let data = data.map_err(|error| refused(format!("cannot read {shown}: {error}")))?;
    let span = (arguments.at, data.len() as u64);
    let (mut client, reach) = arguments.transfer.open(&arguments.wire, &arguments.slave, span)?;
    arguments.transfer.announce(&arguments.wire, &client, reach, "Writing", span);
    let transfer = access::put(&mut client, reach, arguments.at, &data).map_err(refused)?;
    arguments.transfer.judge(&transfer, "writing")?;
    conclude(&arguments.wire, arguments.at, data.len(), &transfer)
}

/// Reads an input of at most `max_bytes`, since one without an end must not fill the memory.
fn bounded(input: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    input.take(max_bytes + 1).read_to_end(&mut data)?;
    if data.len() as u64 > max_bytes {
        let longer = format!("longer than {max_bytes} bytes: divide it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, longer));
    }
    Ok(data)
}

fn emit_json(value: &Value) -> Result<ExitCode, Failure> {
    emit(&format!("{value}\n"))
}

fn done_text(bytes: usize, transfer: &Transfer) -> String {
    format!("Done: {bytes} bytes, {} accesses failed.", transfer.failed)
}

fn conclude(wire: &Wire, at: u64, bytes: usize, transfer: &Transfer) -> Result<ExitCode, Failure> {
    wire.say(&done_text(bytes, transfer));
    if wire.json {
        return emit_json(&json!({ "address": at, "bytes": bytes, "failed": transfer.failed }));
    }
    Ok(ExitCode::SUCCESS)
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
    /// One line of JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn discover(arguments: &DiscoverArguments) -> Result<ExitCode, Failure> {
    let Address::Udp(family, host) = &arguments.broadcast else {
        return Err(refused(format!(
            "{} is not a UDP address; probes go by udp/<broadcast>",
            arguments.broadcast
        )));
    };
    let found = finding::discover(host, *family, arguments.quiet).map_err(refused)?;
    if arguments.json {
        let list: Vec<Value> = found
            .iter()
            .map(|found| json!({ "peer": found.peer.to_string(), "address": found.address.to_string(), "data": found.data.to_string() }))
            .collect();
        return emit_json(&Value::Array(list));
    }
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
