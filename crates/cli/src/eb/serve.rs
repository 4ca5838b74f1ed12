//! The tools that serve: snoop and tunnel.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Args;
use daqmeter_etherbone::address::Address;
use daqmeter_etherbone::bus::{Access, Description};
use daqmeter_etherbone::server::ServerEvent;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_etherbone::tunnel::TunnelServer;
use daqmeter_etherbone::{EbServer, ServerOptions, Slave};
use daqmeter_harness::text_input;
use daqmeter_wire::etherbone::{Endian, Widths};

use super::{Order, address, number, refused, widths};
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, emit, program_name, tell};

/// Serve memory, or a bus described in TOML, on UDP and TCP, IPv4 and IPv6, in both dialects.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter eb snoop 60368 0x10000-0x1ffff\n  $ daqmeter eb snoop 60368 --bus timing-receiver --pty\n\nCtrl-C ends it. A description in TOML has [timing], [[device]] (kind: memory, eca, tlu, registers,\nabsent) and [[bridge]] with the same inside; the one that ships is\ncrates/etherbone/profiles/timing-receiver.toml."
)]
pub(crate) struct SnoopArguments {
    /// Port, for UDP and TCP; 0 takes a free one
    port: u16,
    /// Memory to serve (first-last address); then perhaps a stream to serve too: tcp/host/port,
    /// dev/name
    #[arg(value_name = "FIRST-LAST [PASSIVE]", num_args = 0..=2)]
    what: Vec<String>,
    /// Serve a bus instead of memory: timing-receiver, or a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    bus: Option<String>,
    /// Take the access times of this bridge's bus
    #[arg(long, value_name = "NAME")]
    bridge: Option<String>,
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
    /// Listen here only [default: every IPv6 and IPv4 address]
    #[arg(long, value_name = "IP")]
    bind: Vec<IpAddr>,
    /// Answer datagrams to this port, as LiteEth does
    #[arg(long, value_name = "PORT")]
    reply_port: Option<u16>,
    /// No banner for silent TCP clients (LiteX waits for one)
    #[arg(long)]
    no_banner: bool,
    /// Serve a pseudo-terminal too
    #[arg(long)]
    pty: bool,
    /// Log every access, on stdout
    #[arg(short = 'v', help_heading = "Output")]
    verbose: bool,
    /// Say nothing
    #[arg(short = 'q', help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    metrics: Metrics,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text
        .split_once('-')
        .ok_or_else(|| format!("`{text}` is not first-last, e.g. 0x0-0xffff"))?;
    let (first, last) = (number(first)?, number(last)?);
    if first > last { Err(format!("`{text}` ends before it begins")) } else { Ok((first, last)) }
}

/// Refuses partial words, since memory is accessed by words of any of its widths.
fn check_whole_words(text: &str, (first, last): (u64, u64), widths: Widths) -> Result<(), String> {
    let word_bytes = widths.widest().map_or(1, |widest| widest.bytes() as u64);
    if first.is_multiple_of(word_bytes) && last % word_bytes == word_bytes - 1 {
        return Ok(());
    }
    Err(format!(
        "`{text}` is not a number of whole words of {word_bytes} bytes; begin and end at their borders, or give smaller widths by -w"
    ))
}

fn what(arguments: &SnoopArguments) -> Result<(Description, Option<Address>), Failure> {
    let (memory, stream) = match (&arguments.bus, &arguments.what[..]) {
        (Some(_), []) => (None, None),
        (Some(_), [stream]) => (None, Some(stream)),
        (Some(_), _) => {
            return Err(refused("--bus is served instead of memory: leave FIRST-LAST out"));
        }
        (None, []) => {
            return Err(refused("nothing to serve: give FIRST-LAST, e.g. 0x0-0xffff, or --bus"));
        }
        (None, [memory]) => (Some(memory), None),
        (None, [memory, stream, ..]) => (Some(memory), Some(stream)),
    };
    let stream = stream.map(|text| address(text)).transpose().map_err(refused)?;
    let description = match memory {
        Some(memory) => {
            let (first, last) = range(memory).map_err(refused)?;
            check_whole_words(memory, (first, last), arguments.device).map_err(refused)?;
            let endian = if arguments.order.little { Endian::Little } else { Endian::Big };
            Description::memory(first, last, arguments.device, endian)
        }
        None => described(arguments.bus.as_deref().unwrap_or_default())?,
    };
    Ok((description, stream))
}

fn described(bus: &str) -> Result<Description, Failure> {
    match bus {
        "timing-receiver" => Ok(Description::timing_receiver()),
        file => {
            let text = text_input(file.as_ref()).map_err(|error| {
                refused(format!("cannot read {file}: {error} (or: --bus timing-receiver)"))
            })?;
            Description::parse(&text).map_err(|error| refused(format!("{file}: {error}")))
        }
    }
}

pub(crate) fn snoop(arguments: &SnoopArguments) -> Result<ExitCode, Failure> {
    let mut server = bind(arguments)?;
    let stopper = server.stopper();
    log(&mut server, arguments.quiet);
    interrupt::on_signal(move || stopper.stop());
    if let Some(page) = arguments.metrics.served()? {
        show_counts(&server, &page);
    }
    if !arguments.quiet {
        let pty = server
            .pty_path()
            .map(|path| format!(" and on {path} (dev/{})", path.trim_start_matches("/dev/")));
        tell(&format!(
            "{}: serving on port {}{}; Ctrl-C ends it",
            program_name(),
            server.port(),
            pty.unwrap_or_default()
        ));
    }
    server.run().map_err(refused)?;
    if !arguments.quiet {
        let counts = server.counts();
        tell(&format!(
            "{}: {} probes, {} cycles ({} of LiteX) with {} operations; {} refused",
            program_name(),
            counts.probes,
            counts.cycles,
            counts.litex,
            counts.operations,
            counts.refused
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn bind(arguments: &SnoopArguments) -> Result<EbServer, Failure> {
    let (description, passive) = what(arguments)?;
    let mut bus = description.build().map_err(refused)?;
    if let Some(bridge) = &arguments.bridge {
        bus.set_timing(Bridge::named(bridge).map_err(refused)?.timing);
    }
    let slave = Slave {
        address: arguments.address,
        data: arguments.data,
        log: arguments.verbose,
        ..Slave::new(bus)
    };
    let default = ServerOptions::default();
    let options = ServerOptions {
        bind: match arguments.bind.is_empty() {
            true => default.bind,
            false => arguments.bind.clone(),
        },
        port: arguments.port,
        reply_port: arguments.reply_port,
        banner_after: default.banner_after.filter(|_| !arguments.no_banner),
        pty: arguments.pty,
        passive,
        ..ServerOptions::default()
    };
    EbServer::bind(slave, options).map_err(refused)
}

/// Writes accesses to stdout, and ends the server when that is closed; faults of clients go to
/// stderr.
fn log(server: &mut EbServer, quiet: bool) {
    let (stopper, closed) = (server.stopper(), AtomicBool::new(false));
    server.set_log(move |event| match event {
        ServerEvent::Access(access) => {
            let is_lost = emit(&access_text(&access)).is_err();
            if is_lost && !closed.swap(true, Ordering::Relaxed) {
                stopper.stop();
            }
        }
        ServerEvent::Ended(peer, Some(why)) if !quiet => {
            tell(&format!("{}: {peer}: ended: {why}", program_name()));
        }
        _ => {}
    });
}

fn access_text(access: &Access) -> String {
    let (how, ok) =
        (if access.write { "Write" } else { "Read " }, if access.ok { "ok" } else { "error" });
    let width = 2 * access.bytes;
    format!("{how} {:#010x}/{}: {:0width$x} {ok}\n", access.address, access.bytes, access.value)
}

fn show_counts(server: &EbServer, page: &Page) {
    let (live, name) = (server.live(), format!("slave {}", server.port()));
    page.ask(move |page| {
        let (counts, connections) = live.get();
        page.set("daqmeter_probes_total", &name, counts.probes as f64);
        page.set("daqmeter_cycles_total", &name, counts.cycles as f64);
        page.set("daqmeter_operations_total", &name, counts.operations as f64);
        page.set("daqmeter_refused_total", &name, counts.refused as f64);
        page.set("daqmeter_clients", &name, connections as f64);
    });
}

/// Proxy for tunnel/ addresses: TCP on one side, UDP on the other.
#[derive(Debug, Args)]
pub(crate) struct TunnelArguments {
    /// TCP port to listen on
    port: u16,
    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,
    #[command(flatten)]
    metrics: Metrics,
}

pub(crate) fn tunnel(arguments: &TunnelArguments) -> Result<ExitCode, Failure> {
    let server = TunnelServer::bind(arguments.port).map_err(refused)?;
    if let Some(page) = arguments.metrics.served()? {
        show_traffic(&server, &page);
    }
    let quiet = arguments.quiet;
    if !quiet {
        let port = server.port().map_err(refused)?;
        tell(&format!("{}: tunnel on TCP port {port}; Ctrl-C ends it", program_name()));
    }
    let report = move |peer: std::net::SocketAddr,
                       result: Result<(), daqmeter_etherbone::EbError>| {
        if let (Err(error), false) = (result, quiet) {
            tell(&format!("{}: {peer}: {error}", program_name()));
        }
    };
    let stop = server.stop();
    interrupt::on_signal(move || stop.store(true, Ordering::Relaxed));
    server.run(report).map_err(refused)?;
    if !quiet {
        let (traffic, of) = (server.traffic(), |count: &AtomicU64| count.load(Ordering::Relaxed));
        tell(&format!(
            "{}: {} frames to slaves ({} bytes), {} answers ({} bytes)",
            program_name(),
            of(&traffic.requests),
            of(&traffic.request_bytes),
            of(&traffic.answers),
            of(&traffic.answer_bytes)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn show_traffic(server: &TunnelServer, page: &Page) {
    let traffic = server.traffic();
    page.ask(move |page| {
        let set = |metric, way, count: &AtomicU64| {
            page.set(metric, way, count.load(Ordering::Relaxed) as f64);
        };
        set("daqmeter_clients", "tunnel", &traffic.clients);
        set("daqmeter_frames_total", "to slaves", &traffic.requests);
        set("daqmeter_bytes_total", "to slaves", &traffic.request_bytes);
        set("daqmeter_frames_total", "to clients", &traffic.answers);
        set("daqmeter_bytes_total", "to clients", &traffic.answer_bytes);
    });
}
