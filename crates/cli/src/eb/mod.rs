//! `daqmeter eb`: the tools of the C library with their letters and output, and the performance
//! study.

mod decode;
mod listing;
mod perf;
mod poll;
mod serve;
mod tools;

use clap::Args;
use daqmeter_etherbone::EbError;
use daqmeter_etherbone::address::{parse_number as number, parse_widths as widths};
use daqmeter_wire::etherbone::Endian;

use crate::deferred::{Deferred, verbs};
use crate::output::Failure;

verbs! {
    #[command(
        after_help = "Addresses: udp/host[/port] tcp/host[/port] dev/name tunnel/host/port/host[/port] emu/bridge",
        after_long_help = include_str!("../../help/eb.txt")
    )]
    pub(crate) enum Verb {
        /// List the devices of the self-describing bus, or find one
        Ls(arguments: Deferred<tools::LsArguments>) => tools::ls(arguments),
        /// Read a register or a range of bytes
        Read(arguments: Deferred<tools::ReadArguments>) => tools::read(arguments),
        /// Write a register or a file
        Write(arguments: Deferred<tools::WriteArguments>) => tools::write(arguments),
        /// Find slaves by broadcast
        Discover(arguments: Deferred<tools::DiscoverArguments>) => tools::discover(arguments),
        /// Serve memory, or a bus described in TOML
        Snoop(arguments: Deferred<serve::SnoopArguments>) => serve::snoop(arguments),
        /// Run a proxy for tunnel/ addresses
        Tunnel(arguments: Deferred<serve::TunnelArguments>) => serve::tunnel(arguments),
        /// Show the cycles in a capture of tcpdump or Wireshark
        Decode(arguments: Deferred<decode::Arguments>) => decode::run(arguments),
        /// Measure reads: convenience, blocking, pipelined
        Perf(arguments: Deferred<perf::Arguments>) => perf::run(arguments),
    }
}

/// Byte order, where it is forced.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Order {
    /// Big-endian access, whatever SDB says
    #[arg(short = 'b', overrides_with = "little")]
    big: bool,
    /// Little-endian access, whatever SDB says
    #[arg(short = 'l', overrides_with = "big")]
    little: bool,
}

impl Order {
    fn endian(self) -> Option<Endian> {
        match (self.big, self.little) {
            (true, _) => Some(Endian::Big),
            (_, true) => Some(Endian::Little),
            _ => None,
        }
    }
}

/// Gives a refusal of the bus an exit code of its own.
fn accessed<T>(result: Result<T, EbError>) -> Result<T, Failure> {
    result.map_err(|error| match error {
        EbError::Refused { .. } => Failure::tool(error),
        error => error.into(),
    })
}

/// Reads `vendor:device`.
fn device(text: &str) -> Result<(u64, u32), String> {
    let wrong = || format!("`{text}` is not VENDOR:DEVICE, such as 0x651:0xb2afc251");
    let (vendor, device) = text.split_once(':').ok_or_else(wrong)?;
    Ok((number(vendor)?, u32::try_from(number(device)?).map_err(|_| wrong())?))
}

fn span(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("`{text}` is not address/bytes, e.g. 0x1000/4");
    let (at, bytes) = text.split_once('/').ok_or_else(wrong)?;
    Ok((number(at)?, number(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 16: both together were refused; C takes the last.
    #[test]
    fn of_two_byte_orders_the_last_counts() {
        #[derive(clap::Parser)]
        struct Tool {
            #[command(flatten)]
            order: Order,
        }
        let endian = |letters: &str| {
            let tool: Tool = clap::Parser::try_parse_from(["tool", letters]).unwrap();
            tool.order.endian()
        };
        assert_eq!(endian("-bl"), Some(Endian::Little));
        assert_eq!(endian("-lb"), Some(Endian::Big));
    }

    #[test]
    fn spans_and_devices() {
        assert_eq!(span("010/0x20"), Ok((8, 32)));
        assert!(span("0x10").unwrap_err().contains("address/bytes"));
        assert_eq!(device("0x651:0xb2afc251"), Ok((0x651, 0xb2af_c251)));
        assert!(device("0x651:0x1b2afc251").unwrap_err().contains("VENDOR:DEVICE"));
    }
}
