//! Models: fitted profiles of devices, arithmetic of formats, rings in counted time, counts through
//! groups and the planner.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use daqmeter_digitizer::devices::sis8300::emulated::{Profile, uplink};
use daqmeter_etherbone::link::LinkProfile;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_harness::Resolved;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_pmu::{CountedHost, MetricGroup, perf_format};
use daqmeter_readout::simulate::{Occupancy, Ring, Rings};
use daqmeter_wire::etherbone::EbLayout;
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::TTC_BYTES;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Formula {
    /// Speed in MB/s of one of these boards by the profile of the crate, the fastest first, or the
    /// mean.
    Uplink { boards: Vec<String>, samples: u64, reads: u64, rank: Option<usize> },
    /// CPU use of boards of model L at 14 Hz by that profile; percent of a core.
    BoardCpu { samples: u64, boards: u32, function: u64, polling: bool },
    /// Time of a cycle over an emulated bridge, alone or in a long series; us.
    Cycle { bridge: Resolved<Bridge>, reads: u64, writes: u64, pipelined: bool },
    /// Time of a read on the bus behind a bridge; ns.
    BusReadNs(Resolved<Bridge>),
    /// Blocks of the read-out's format that hold these chunks.
    Blocks { payload: usize, chunks: u64 },
    /// Bytes of blocks for each chunk of a long series.
    BlockBytes { payload: usize },
    /// Rings of the published server in counted time.
    Rings { khz: f64, figure: RingFigure },
    /// Bytes of an interval of a published output by a shipped group's metric; each second, by its
    /// time stamps.
    Perf { output: String, group: String, metric: String, interval: usize, each_second: bool },
    /// Smallest share of the time that the planner gives to these events of the N1 SDP's mesh;
    /// percent.
    SharePercent(Vec<String>),
    /// Number of these events, from the first on, that count all the time when they are requested
    /// together.
    AtOnce(Vec<String>),
}

/// Figure of the rings of one run, in bytes unless its name has another unit.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RingFigure {
    Mean,
    Fullest,
    MeanOfDevice(usize),
    EndMean,
    EndFullest,
    EndEmptiest,
    EndOfChannel(usize),
    BusyPercent,
    BusyAfterS,
    BusyPercentOnceReached,
}

/// Rings of the published server: settings of its operator, and two fits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RingInputs {
    channels: usize,
    channels_per_device: usize,
    links_per_channel: f64,
    payload_bytes: usize,
    busy_used_bytes: f64,
    busy_release_bytes: f64,
    poll_us: f64,
    limit_khz: f64,
    seconds: f64,
    late_polls: f64,
    reserve: f64,
}

/// Data of a study's file that formulas use, and runs of its rings, at and beyond the limit.
pub(super) struct FormulaInputs<'a> {
    pub(super) rings: Option<&'a RingInputs>,
    pub(super) perf: &'a BTreeMap<String, String>,
    pub(super) runs: [OnceCell<Occupancy>; 2],
}

fn format() -> BlockFormat {
    BlockFormat::phase2(1).expect("1 KiB is a size of blocks")
}

fn block_bytes(payload: usize) -> f64 {
    const MANY: u64 = 1 << 24;
    let format = format();
    blocks_of(format, payload, MANY) as f64 * format.block_bytes as f64 / MANY as f64
}

fn mean<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}

impl Formula {
    pub(super) fn value(&self, inputs: &FormulaInputs<'_>) -> Option<f64> {
        match self {
            Formula::Uplink { boards, samples, reads, rank } => {
                let speeds = speeds_mb_per_s(boards, samples * 2 * reads);
                match rank {
                    Some(rank) => speeds.get(*rank).copied(),
                    None => Some(mean(speeds.iter())),
                }
            }
            Formula::BoardCpu { samples, boards, function, polling } => {
                Some(cpu_percent(samples * 2, *boards, *function, *polling))
            }
            Formula::Cycle { bridge, reads, writes, pipelined } => {
                Some(cycle_us(bridge, *reads, *writes, *pipelined))
            }
            Formula::BusReadNs(bridge) => Some(bridge.timing.read_ns as f64),
            Formula::Blocks { payload, chunks } => {
                Some(blocks_of(format(), *payload, *chunks) as f64)
            }
            Formula::BlockBytes { payload } => Some(block_bytes(*payload)),
            Formula::Rings { khz, figure } => {
                let rings = inputs.rings?;
                let run = &inputs.runs[usize::from(*khz > rings.limit_khz)];
                figure.of(run.get_or_init(|| rings.run(*khz)), rings)
            }
            Formula::Perf { output, group, metric, interval, each_second } => {
                let parsed = perf_format::parse(inputs.perf.get(output)?, None).ok()?;
                let mut observed = parsed.runs.into_iter().next()?;
                MetricGroup::find(group).ok()?.measure(&mut observed).ok()?;
                let metric = observed.metrics.iter().find(|found| found.name == *metric)?;
                let rate = (*metric.values.get(*interval)?)?;
                let seconds = observed.seconds_of(observed.events.first()?, *interval)?;
                Some(if *each_second { rate } else { rate * seconds })
            }
            Formula::SharePercent(events) => share_percent(events),
            Formula::AtOnce(events) => {
                let all_the_time = |count: &usize| {
                    share_percent(&events[..*count]).is_some_and(|percent| percent >= 100.0)
                };
                (1..=events.len()).take_while(all_the_time).last().map(|count| count as f64)
            }
        }
    }
}

fn own_bytes_per_s(profile: &Profile, model: &str) -> f64 {
    let board = profile.board.iter().find(|board| board.model == model);
    board.map_or(f64::INFINITY, |board| board.own_bytes_per_s)
}

/// Returns the speeds of boards that read `bytes` each at the same time, the fastest first.
fn speeds_mb_per_s(boards: &[String], bytes: u64) -> Vec<f64> {
    let profile = Profile::default();
    let own: Vec<f64> = boards.iter().map(|model| own_bytes_per_s(&profile, model)).collect();
    let seconds = uplink::predict(&profile.uplink, &own, bytes as f64).into_iter();
    let mut speeds: Vec<f64> = seconds.map(|seconds| bytes as f64 / seconds / 1e6).collect();
    speeds.sort_by(|one, other| other.total_cmp(one));
    speeds
}

/// Adds the cost of conversion to double to the profile's CPU use, which is of read-out only.
fn cpu_percent(bytes: u64, boards: u32, function: u64, polling: bool) -> f64 {
    const TRIGGER_HZ: f64 = 14.0;
    let profile = Profile::default();
    let own = vec![own_bytes_per_s(&profile, "l"); boards as usize];
    let read_s = uplink::predict(&profile.uplink, &own, bytes as f64)[0];
    let ns = if function == 5 { profile.cpu.unsigned_f64_ns } else { 0.0 };
    let converted = TRIGGER_HZ * f64::from(boards) * bytes as f64 * ns * 1e-9;
    profile.cpu_percent(boards, bytes, read_s, TRIGGER_HZ, polling) + converted * 100.0
}

/// Returns the bytes of request and answer of one checked cycle, as our client encodes it.
fn cycle_bytes(bridge: &Bridge, reads: u64, writes: u64) -> (f64, f64) {
    let write = |_| Op::write(0, 0, EbLayout::L32.data);
    let read = |_| Op::read(0, EbLayout::L32.data);
    let ops: Vec<Op> = (0..reads).map(read).chain((0..writes).map(write)).collect();
    let mut buffer = vec![0; 64 + 32 * ops.len()];
    let encoded =
        encode(&ops, EbLayout::L32, 0x8000, StatusCheck::Status, &mut buffer).unwrap_or_default();
    let header = if bridge.stream { 0 } else { EbLayout::L32.header_bytes() };
    // A record with reads has a header, the return address, and the values.
    let records = if reads > 0 { 2 } else { 1 };
    let answer = header + records * 8 + 4 * (encoded.values + encoded.statuses);
    ((encoded.bytes + header) as f64, answer as f64)
}

/// Returns the time of a cycle: the sum of its parts alone, the slowest part in a series.
fn cycle_us(bridge: &Bridge, reads: u64, writes: u64, pipelined: bool) -> f64 {
    let (out, back) = cycle_bytes(bridge, reads, writes);
    let line_us = |bytes: f64, link: &LinkProfile| match link.bytes_per_s {
        rate if rate > 0.0 => (bytes + link.overhead_bytes as f64) / rate * 1e6,
        _ => 0.0,
    };
    let (line_out, line_back) = (line_us(out, &bridge.request), line_us(back, &bridge.reply));
    let timing = bridge.timing;
    let bus = (timing.cycle_ns + reads * timing.read_ns + writes * timing.write_ns) as f64 / 1e3;
    if pipelined {
        return bus.max(line_out).max(line_back);
    }
    let flights = (bridge.request.latency_ns + bridge.reply.latency_ns) as f64 / 1e3;
    flights + line_out + line_back + bus
}

impl RingInputs {
    /// Runs the rings. The network limits the taken data per trigger. The reserve is for late
    /// polls; a load beyond the limit finds none.
    fn run(&self, khz: f64) -> Occupancy {
        let event = self.links_per_channel * block_bytes(self.payload_bytes);
        let reserve = if khz > self.limit_khz { 0.0 } else { self.reserve };
        let ring = |at: usize| {
            // The first channel of each device has the trigger system's E-link.
            let is_first = at.is_multiple_of(self.channels_per_device);
            let bytes = event + if is_first { block_bytes(TTC_BYTES) } else { 0.0 };
            let marks = (self.busy_used_bytes, self.busy_release_bytes);
            let drain = bytes * self.limit_khz * (1.0 + reserve) * 1e3;
            Ring { marks, input: bytes * khz * 1e3, drain, filled: 0.0 }
        };
        let rings = (0..self.channels).map(ring).collect();
        let (poll_s, jitter) = (self.poll_us * 1e-6, self.late_polls);
        Rings { rings, poll_s, jitter, hiccups: (0.0, 0.0), seed: 1 }.run(self.seconds, 30)
    }
}

impl RingFigure {
    fn of(&self, run: &Occupancy, inputs: &RingInputs) -> Option<f64> {
        let end: Vec<f64> = run.samples.iter().filter_map(|ring| ring.last().copied()).collect();
        let first_busy_s = run.first_busy_s.unwrap_or(f64::INFINITY);
        Some(match self {
            RingFigure::Mean => mean(run.samples.iter().flatten()),
            RingFigure::Fullest => run.samples.iter().flatten().copied().fold(0.0, f64::max),
            RingFigure::MeanOfDevice(device) => {
                let rings = run.samples.chunks(inputs.channels_per_device).nth(*device)?;
                mean(rings.iter().flatten())
            }
            RingFigure::EndMean => mean(end.iter()),
            RingFigure::EndFullest => end.into_iter().fold(0.0, f64::max),
            RingFigure::EndEmptiest => end.into_iter().fold(f64::INFINITY, f64::min),
            RingFigure::EndOfChannel(channel) => *end.get(*channel)?,
            RingFigure::BusyPercent => run.dead_share * 100.0,
            RingFigure::BusyAfterS => first_busy_s,
            RingFigure::BusyPercentOnceReached => {
                run.dead_share * inputs.seconds / (inputs.seconds - first_busy_s) * 100.0
            }
        })
    }
}

fn share_percent(events: &[String]) -> Option<f64> {
    let host = CountedHost::emulated("n1sdp")?;
    let set = host.resolver().resolve(events).ok()?;
    let shares = plan(&host.meshes[0], Driver::N1sdp, &set.groups).ok()?.shares;
    Some(shares.into_iter().fold(1.0, f64::min) * 100.0)
}
