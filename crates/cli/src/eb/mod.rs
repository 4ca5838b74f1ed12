//! `daqmeter eb`: the tools of the C library with their letters, output and exit codes, and the
//! performance study.
//!
//! Called by a name such as `eb-read` (a link to this program), it is that tool.

mod listing;
mod perf;
mod serve;
mod tools;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use daqmeter_etherbone::Address;
use daqmeter_etherbone::address::{parse_number as number, parse_widths as widths};
use daqmeter_wire::etherbone::{Endian, Width};

use crate::output::{Failure, tool_name};

/// Access Wishbone registers over Etherbone, serve them, and measure both.
#[derive(Debug, Args)]
#[command(version, propagate_version = true, after_help = "Addresses: udp/host[/port] tcp/host[/port] dev/name tunnel/host/port/host[/port] emu/bridge", after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    tool: Tool,
}

const EXAMPLE: &str = "\
Addresses: udp/host[/port], udp4/, udp6/, tcp/, tcp4/, tcp6/, dev/<name under /dev>,
tunnel/<proxy>/<port>/<host>[/port], and emu/<bridge> for an emulated timing receiver behind an
emulated bridge (daqmeter list bridges). Without a port: 60368. Numbers: 0x1f, 017, 15.

Example:

  $ daqmeter eb snoop --bus timing-receiver 60368 &
  $ daqmeter eb ls udp/localhost
  $ daqmeter eb read udp/localhost 0x101018/4
  $ daqmeter eb perf udp/localhost

Linked as eb-ls, eb-read, eb-write, eb-find, eb-get, eb-put, eb-discover, eb-snoop or eb-tunnel, the
program is that tool. Options and output are those of the C tools. Exit codes: 0 done, 1 the bus
refused or nothing was found, 2 could not run; called by the name of a C tool, 1 for any error.";

#[derive(Debug, Subcommand)]
enum Tool {
    /// List what the self-describing bus describes
    Ls(tools::LsArguments),
    /// Find devices by vendor and device id
    Find(tools::FindArguments),
    /// Read a register
    Read(tools::ReadArguments),
    /// Write a register
    Write(tools::WriteArguments),
    /// Read a range of bytes into a file
    Get(tools::GetArguments),
    /// Write a file to a range of bytes
    Put(tools::PutArguments),
    /// Find slaves by broadcast
    Discover(tools::DiscoverArguments),
    /// Serve memory, or a bus described in TOML
    Snoop(serve::SnoopArguments),
    /// Proxy for tunnel/ addresses
    Tunnel(serve::TunnelArguments),
    /// Measure reads: convenience, blocking, pipelined
    Perf(Box<perf::Arguments>),
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

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.tool {
        Tool::Ls(arguments) => tools::ls(arguments),
        Tool::Find(arguments) => tools::find(arguments),
        Tool::Read(arguments) => tools::read(arguments),
        Tool::Write(arguments) => tools::write(arguments),
        Tool::Get(arguments) => tools::get(arguments),
        Tool::Put(arguments) => tools::put(arguments),
        Tool::Discover(arguments) => tools::discover(arguments),
        Tool::Snoop(arguments) => serve::snoop(arguments),
        Tool::Tunnel(arguments) => serve::tunnel(arguments),
        Tool::Perf(arguments) => perf::run(arguments),
    }
}

/// Failure of a command that could not run. The exit code is 2, or 1 under the name of a C tool.
fn refused(line: impl Display) -> Failure {
    match tool_name() {
        Some(_) => Failure::tool(line),
        None => Failure::refused(line),
    }
}

fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| error.to_string())
}

/// Reads `address/size`, the size 1, 2, 4 or 8 bytes.
fn place(text: &str) -> Result<(u64, Width), String> {
    let (at, bytes) = span(text)?;
    let size = Width::of_bytes(bytes);
    Ok((at, size.ok_or_else(|| format!("`{text}`: a size is 1, 2, 4 or 8 bytes"))?))
}

fn span(text: &str) -> Result<(u64, u64), String> {
    let (at, bytes) = text
        .split_once('/')
        .ok_or_else(|| format!("`{text}` is not address/bytes, e.g. 0x1000/4"))?;
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
    fn places_and_spans() {
        assert_eq!(place("0x10/4"), Ok((16, Width::W32)));
        assert!(place("0x10").unwrap_err().contains("address/bytes"));
        assert!(place("0x10/3").unwrap_err().contains("1, 2, 4 or 8"));
        assert_eq!(span("010/0x20"), Ok((8, 32)));
    }
}
