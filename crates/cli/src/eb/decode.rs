//! `daqmeter eb decode`: the cycles in captured packets, with their round trips.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_etherbone::decode::{DecodedCycle, DecodedOp, Decoder};
use daqmeter_record::units::significant;
use daqmeter_stats::{quantile, sorted};
use daqmeter_wire::capture::{Capture, HEAD_BYTES, Packet};
use daqmeter_wire::etherbone::cycle::Space;

use crate::output::{Ended, Failure, emit, json_rows, tell};

/// Show the Etherbone cycles in a capture, one operation a line.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/eb-decode.txt"))]
pub(crate) struct Arguments {
    /// Capture in the format pcap or pcapng, - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON lines with time, client, slave, round_trip_us, operation, address, value, device
    #[arg(long)]
    json: bool,
}

const COLUMNS: [&str; 8] =
    ["time", "client", "slave", "round trip us", "operation", "address", "value", "device"];

/// Returns the rows of a cycle, in the order of the columns.
fn rows(decoder: &Decoder, cycle: &DecodedCycle) -> Vec<Vec<String>> {
    let silence = if cycle.tag.is_some() { "no answer" } else { "unasked" };
    let us = |ns: u64| format!("{:.3}", ns as f64 / 1e3);
    let row = |DecodedOp { op, is_done, failed }: &DecodedOp| {
        let space = if op.space == Space::Config { " config" } else { "" };
        let (bytes, [client, slave]) = (op.lanes.size().bytes(), cycle.ends);
        let value = match (failed, is_done) {
            (true, _) => "refused".to_owned(),
            (_, false) => "-".to_owned(),
            _ => format!("{:01$x}", op.value, 2 * bytes),
        };
        let device = decoder.name(slave, op.address).filter(|_| space.is_empty());
        vec![
            format!("{}.{:09}", cycle.time_ns / 1_000_000_000, cycle.time_ns % 1_000_000_000),
            client.to_string(),
            slave.to_string(),
            cycle.round_trip_ns.map_or(silence.to_owned(), us),
            if op.write { "write" } else { "read" }.to_owned() + space,
            format!("{:#x}/{bytes}", op.address),
            value,
            device.map_or(String::new(), |(name, offset)| format!("{name}+{offset:#x}")),
        ]
    };
    cycle.ops.iter().map(row).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let Arguments { file, json } = arguments;
    let shown = file.display();
    let failed = |error: &dyn Display| Failure::refused(format!("cannot read {shown}: {error}"));
    let mut input: Box<dyn BufRead> = match file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(|error| failed(&error))?)),
    };
    let (mut capture, mut whole) = (Capture::default(), Vec::new());
    let mut decoder = Decoder::default();
    let (mut cycles, mut others, mut trips_us, mut is_open) = (0, 0, Vec::new(), true);
    while is_open {
        is_open = !input.fill_buf().map_err(|error| failed(&error))?.is_empty();
        match if is_open { next(&mut input, &mut capture, &mut whole) } else { Ok(None) } {
            Ok(Some(packet)) => {
                let decoded = packet.datagram().map(|it| decoder.datagram(packet.time_ns, &it));
                others += u64::from(!matches!(decoded, Some(Ok(()))));
            }
            Ok(None) if is_open => {}
            Ok(None) => decoder.finish(),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                tell(&format!("daqmeter: warning: {shown} ends inside a packet"));
            }
            Err(error) => return Err(failed(&error)),
        }
        let ended = std::mem::take(&mut decoder.ended);
        cycles += ended.len();
        trips_us.extend(ended.iter().filter_map(|cycle| Some(cycle.round_trip_ns? as f64 / 1e3)));
        let mut rows = ended.iter().flat_map(|cycle| rows(&decoder, cycle));
        emit(&match json {
            true => json_rows(&COLUMNS, &mut rows),
            false => rows.map(|row| row.join("  ").trim_end().to_owned() + "\n").collect(),
        })?;
    }
    let (answered, us, stray) = (trips_us.len(), sorted(&trips_us), decoder.stray);
    let [median, p99, max] = [0.5, 0.99, 1.0]
        .map(|share| quantile(&us, share).map_or("-".to_owned(), |us| significant(us, 3)));
    tell(&format!(
        "daqmeter: {cycles} cycles, {answered} answered; round trip us: median {median}, p99 {p99}, max {max}; {stray} answers without a request, {others} other packets"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Reads a head and its body, and returns the packet in them.
fn next<'a>(
    input: &mut impl Read,
    capture: &mut Capture,
    whole: &'a mut Vec<u8>,
) -> io::Result<Option<Packet<'a>>> {
    let mut head = [0; HEAD_BYTES];
    input.read_exact(&mut head)?;
    let bytes = capture.body_bytes(&head).map_err(io::Error::other)?;
    whole.clear();
    whole.extend(head);
    whole.resize(HEAD_BYTES + bytes, 0);
    input.read_exact(&mut whole[HEAD_BYTES..])?;
    capture.packet(whole).map_err(io::Error::other)
}
