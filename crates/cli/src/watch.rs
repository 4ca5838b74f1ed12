//! `daqmeter watch`: where a receiver that is already running loses its data.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::Tally;
use daqmeter_record::watched::Watched;
use daqmeter_record::{Counter, EngineInfo, Sections, Workload};
use daqmeter_report::watched;
use daqmeter_sys::bpf::Sequence;
use daqmeter_sys::host::Files;
use daqmeter_watch::{Port, Target, Watch, sequence};

use crate::arguments::duration;
use crate::context::context;
use crate::interrupt;
use crate::output::{CANNOT_TELL, Ended, FAILED, Failure};
use crate::progress::Forecast;
use crate::recorder::{Recorder, Recording};

/// Find where a program that is already running loses its packets.
///
/// It counts the packets from the network card to the sockets, and changes nothing. Exit code: 0
/// if nothing was lost, 1 if something was.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/watch.txt"))]
pub(crate) struct Arguments {
    /// Watch this process and those that it started [default: all that this host receives]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Watch the sockets of this port, as udp/5000
    #[arg(long, value_name = "PORT")]
    port: Option<Port>,
    /// Place of a number in the datagrams, which the sender counts up: finds losses before this host
    ///
    /// As offset=8,bytes=4,big: bytes of the payload before it, its width, and its order (big or
    /// little). It needs root and --port, and takes about 0.1 us for each datagram.
    #[arg(long, value_name = "PLACE", value_parser = sequence, requires = "port")]
    sequence: Option<(u16, u8, bool)>,
    /// Time of the watch
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    time: Duration,
    #[command(flatten)]
    recording: Recording,
}

impl Arguments {
    fn sequence(&self) -> Result<Option<Sequence>, Failure> {
        let Some(((offset, bytes, is_big_endian), port)) = self.sequence.zip(self.port) else {
            return Ok(None);
        };
        if port.is_tcp {
            return Err(Failure::refused("--sequence needs a port of UDP, as --port udp/5000"));
        }
        Ok(Some(Sequence { port: port.number, offset, bytes, is_big_endian }))
    }
}

/// Time between two looks at all counters.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let stop = interrupt::flag();
    let mut recorder = Recorder::new(&arguments.recording)?;
    recorder.expect(Forecast::budget(arguments.time));
    let target = Target { pid: arguments.pid, port: arguments.port };
    let mut watch = Watch::open(&Files::default(), target, arguments.sequence()?)
        .map_err(Failure::refused)?;
    let info = EngineInfo { name: "watch".into(), target: watch.name().into(), emulated: false };
    let workload = Workload::new("watch").with("what", watch.name());
    let context = context(arguments.recording.label.as_deref());
    let open = context.open_record("watch", info, workload);
    let began = Instant::now();
    while began.elapsed() < arguments.time && !stop.is_set() {
        let left = arguments.time.saturating_sub(began.elapsed());
        watch.step(INTERVAL.min(left)).map_err(Failure::tool)?;
    }
    watch.end();
    let watched = watch.so_far();
    let code = code(&watched, target);
    let counters = vec![Counter::count("lost", watched.lost())];
    let sections = Sections { watched: Some(Box::new(watched)), ..Sections::default() };
    let found = Tally { counters, sections, ..Tally::default() };
    recorder.take(open.so_far(found, Vec::new()))?;
    let frame = recorder.records.last().map(watched::frame).unwrap_or_default();
    recorder.end(|_| frame.text(None))?;
    Ok(code)
}

fn code(watched: &Watched, target: Target) -> ExitCode {
    match watched.lost() {
        0 if !target.is_host() && watched.sockets.is_empty() => ExitCode::from(CANNOT_TELL),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(FAILED),
    }
}
