//! The tools that serve: snoop and tunnel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use clap::Args;
use daqmeter_etherbone::bus::{Access, Description};
use daqmeter_etherbone::server::ServerEvent;
use daqmeter_etherbone::tunnel::{self, TunnelServer};
use daqmeter_etherbone::{Address, EbError, EbServer, ServerOptions, Slave, slave};
use daqmeter_wire::etherbone::{Endian, Widths};

use super::{Order, number, widths};
use crate::interrupt;
use crate::metrics::Metrics;
use crate::output::{Ended, Failure, emit, tell};

/// Serve memory, or a bus described in TOML, on UDP and TCP, IPv4 and IPv6, in both dialects.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/eb-snoop.txt"))]
pub(crate) struct SnoopArguments {
    /// Port, for UDP and TCP; 0 takes a free one
    port: u16,
    /// Memory to serve (first-last address), and a stream to serve it on: tcp/host/port or dev/name
    #[arg(value_name = "FIRST-LAST [PASSIVE]", num_args = 0..=2)]
    what: Vec<String>,
    /// Serve a bus instead of memory: timing-receiver, or a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    bus: Option<String>,
    /// Address widths to answer to
    #[arg(short = 'a', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    address: Widths,
    /// Data widths to answer to
    #[arg(short = 'd', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    data: Widths,
    /// Access widths of the memory
    #[arg(short = 'w', value_name = "WIDTHS", value_parser = widths, default_value = "8/16/32/64", help_heading = "Conversation")]
    device: Widths,
    #[command(flatten)]
    order: Order,
    /// Address to listen on [default: all IPv6 and IPv4 addresses]
    #[arg(long, value_name = "IP")]
    bind: Vec<IpAddr>,
    /// Answer datagrams to this port, as LiteEth does
    #[arg(long, value_name = "PORT")]
    reply_port: Option<u16>,
    /// Also serve on a pseudo-terminal
    #[arg(long)]
    pty: bool,
    /// Print each access
    #[arg(short = 'v', help_heading = "Output")]
    verbose: bool,
    /// Print nothing
    #[arg(short = 'q', help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    metrics: Metrics,
}

/// Lines that wait for the reader of stderr; further ones are dropped.
const MAX_LINES: usize = 100;

/// Returns a function that prints a line on stderr without waiting for its reader: a server goes
/// on, and keeps no thread for each line.
fn teller() -> io::Result<impl Fn(String) + Clone> {
    let (lines, printed) = sync_channel::<String>(MAX_LINES);
    std::thread::Builder::new().spawn(move || printed.iter().for_each(|line| tell(&line)))?;
    Ok(move |line| drop(lines.try_send(line)))
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("`{text}` is not first-last, e.g. 0x0-0xffff");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) = (number(first)?, number(last)?);
    if first > last { Err(format!("`{text}` ends before it begins")) } else { Ok((first, last)) }
}

pub(crate) fn snoop(arguments: &SnoopArguments) -> Ended {
    let (quiet, lines) = (arguments.quiet, teller()?);
    let mut server = bind(arguments)?;
    arguments.metrics.served(|page| {
        let kinds = ["probes", "cycles", "operations", "LiteX cycles"];
        page.server("eb snoop", &kinds, &["refused"], &slave::COUNTS);
    })?;
    let stopper = server.stopper();
    // The server ends when stdout is closed.
    server.set_log(move |event| match event {
        ServerEvent::Access(access) if emit(&access_text(&access)).is_err() => stopper.stop(),
        ServerEvent::Ended(peer, why) if !quiet => {
            lines(format!("daqmeter: {peer}: ended: {why}"));
        }
        _ => {}
    });
    let stopper = server.stopper();
    interrupt::on_signal(move || stopper.stop());
    if !quiet {
        let pty = server.pty_path().map(|path| path.trim_start_matches("/dev/"));
        let pty = pty.map_or(String::new(), |name| format!(" and on dev/{name}"));
        tell(&format!("daqmeter: serving on port {}{pty}; Ctrl-C ends it", server.port()));
    }
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

fn bind(arguments: &SnoopArguments) -> Result<EbServer, Failure> {
    let mut what = arguments.what.iter();
    let description = match &arguments.bus {
        Some(bus) => Description::named(bus)?,
        None => {
            let nothing = "nothing to serve: give FIRST-LAST, e.g. 0x0-0xffff, or --bus";
            let (first, last) = range(what.next().ok_or(nothing)?)?;
            let endian = arguments.order.endian().unwrap_or(Endian::Big);
            Description::memory(first, last, arguments.device, endian)
        }
    };
    let passive = what.next().map(|text| Address::parse(text)).transpose()?;
    if what.next().is_some() {
        return Err("--bus is served instead of memory: leave FIRST-LAST out".into());
    }
    let slave = Slave {
        address: arguments.address,
        data: arguments.data,
        log: arguments.verbose,
        ..Slave::new(description.build()?)
    };
    let mut options = ServerOptions {
        port: arguments.port,
        reply_port: arguments.reply_port,
        pty: arguments.pty,
        passive,
        ..ServerOptions::default()
    };
    if !arguments.bind.is_empty() {
        options.bind.clone_from(&arguments.bind);
    }
    Ok(EbServer::bind(slave, options)?)
}

fn access_text(access: &Access) -> String {
    let how = if access.write { "Write" } else { "Read " };
    let ok = if access.ok { "ok" } else { "error" };
    let width = 2 * access.bytes;
    format!("{how} {:#010x}/{}: {:0width$x} {ok}\n", access.address, access.bytes, access.value)
}

/// Proxy for tunnel/ addresses: TCP on one side, UDP on the other.
#[derive(Debug, Args)]
pub(crate) struct TunnelArguments {
    /// TCP port to listen on
    port: u16,
    /// Print nothing
    #[arg(short = 'q')]
    quiet: bool,
    #[command(flatten)]
    metrics: Metrics,
}

pub(crate) fn tunnel(arguments: &TunnelArguments) -> Ended {
    let server = TunnelServer::bind(arguments.port)?;
    let quiet = arguments.quiet;
    if !quiet {
        let port = server.port()?;
        tell(&format!("daqmeter: tunnel on TCP port {port}; Ctrl-C ends it"));
    }
    arguments.metrics.served(|page| {
        page.server("eb tunnel", &["requests", "answers"], &["refused"], &tunnel::COUNTS);
    })?;
    let stop = server.stop();
    interrupt::on_signal(move || stop.store(true, Ordering::Relaxed));
    let lines = teller()?;
    server.run(move |peer: SocketAddr, result: Result<(), EbError>| {
        if let (Err(error), false) = (result, quiet) {
            lines(format!("daqmeter: {peer}: {error}"));
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
