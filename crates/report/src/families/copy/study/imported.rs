//! Reader of the study's files, the inverse of [`super::classic`]. It makes one record for each
//! point, from a template with the copier, the path and the host. A synthesis is none of them: it
//! holds no single times, from which all else is computed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::border::{MAX_STAMP_NS, MAX_WHOLE};
use daqmeter_record::copies::{MISSES, REFERENCES};
use daqmeter_record::{Counter, Lane, RunRecord, Stage, TimeSeries};

use super::super::rows::function;
use super::classic::NOT_KNOWN;
use crate::copy::MIB;

/// Most points of one file: sizes, groups of channels, programs. The study has 26 sizes.
const MAX_POINTS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyFile {
    /// File name: `micro-benchmark_{from,from_nc,to,to_nc}_<x>.dat`.
    Latency(StudyCopy),
    /// File name: `measures_{from,to,from_to}.dat`.
    Bandwidth(StudyCopy),
    /// File name: `measure_X.dat`.
    Pollution,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyCopy {
    /// One of `from`, `to`, `both`, as in records.
    pub direction: &'static str,
    pub cold: bool,
}

impl StudyFile {
    pub fn of(path: &Path) -> Option<StudyFile> {
        let name = path.file_name()?.to_str()?.strip_suffix(".dat")?;
        match (name.strip_prefix("micro-benchmark_"), name.strip_prefix("measures_")) {
            (Some(rest), _) => StudyCopy::of(rest.rsplit_once('_')?.0).map(StudyFile::Latency),
            (_, Some(rest)) => StudyCopy::of(rest).map(StudyFile::Bandwidth),
            _ => name.starts_with("measure_").then_some(StudyFile::Pollution),
        }
    }

    /// Returns the points of a file, each the template with the values of the file.
    ///
    /// # Errors
    /// Names the field of the first wrong line; refuses a file without any line.
    pub fn records(self, text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let records = match self {
            StudyFile::Latency(copy) => latency(copy, text, template)?,
            StudyFile::Bandwidth(copy) => bandwidth(copy, text, template)?,
            StudyFile::Pollution => pollution(text, template)?,
        };
        match records.len() {
            0 => Err("holds no measurement".to_owned()),
            1..=MAX_POINTS => Ok(records),
            _ => Err(format!("holds more than {MAX_POINTS} points")),
        }
    }
}

impl StudyCopy {
    fn of(text: &str) -> Option<StudyCopy> {
        let (name, cold) = text.strip_suffix("_nc").map_or((text, false), |name| (name, true));
        let directions = [("from", "from"), ("to", "to"), ("from_to", "both")];
        let (_, direction) = directions.into_iter().find(|(spelt, _)| *spelt == name)?;
        Some(StudyCopy { direction, cold })
    }

    /// Returns the blocks that one operation of a record moves.
    fn passes(self) -> u64 {
        if self.direction == "both" { 2 } else { 1 }
    }

    fn record(self, template: &RunRecord, bytes: u64, spans: &[Span]) -> RunRecord {
        let mut record = record_of(template, spans);
        record.set_param("direction", self.direction);
        record.set_param("block_bytes", bytes);
        if self.cold {
            record.set_param("cold", true);
        }
        record
    }

    fn stage(self, spans: &[Span], origin_ns: u64, bytes_per_op: u64) -> Stage {
        let name = match self.direction {
            "both" => "copy_from_and_to_user",
            direction => &function(direction),
        };
        let traffic_bytes_per_op = 2 * bytes_per_op;
        Stage { bytes_per_op, traffic_bytes_per_op, ..stage_of(name, spans, origin_ns) }
    }
}

/// Line of a file: its number, the names of its fields with commas, the fields.
struct Line<'a> {
    number: usize,
    names: &'static str,
    fields: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn new(at: usize, names: &'static str, text: &'a str) -> Result<Line<'a>, String> {
        // One field beyond the maximum of all files shows an excess.
        let fields = text.split_whitespace().take(10).collect();
        let line = Line { number: at + 1, names, fields };
        let (found, wanted) = (line.fields.len(), names.split(", ").count());
        match found == wanted {
            true => Ok(line),
            false => Err(line.wrong(format!("{found} fields; {wanted} are wanted: {names}"))),
        }
    }

    fn wrong(&self, why: impl std::fmt::Display) -> String {
        format!("line {}: {why}", self.number)
    }

    fn value<T: FromStr>(&self, at: usize, fits: impl Fn(&T) -> bool) -> Result<T, String> {
        let name = self.names.split(", ").nth(at).unwrap_or_default();
        let value = self.fields[at].parse().ok().filter(fits);
        let wrong = || self.wrong(format!("`{:.40}` is no value of `{name}`", self.fields[at]));
        value.ok_or_else(wrong)
    }

    fn known<T: FromStr>(&self, at: usize, fits: impl Fn(&T) -> bool) -> Result<Option<T>, String> {
        if self.fields[at] == NOT_KNOWN { Ok(None) } else { self.value(at, fits).map(Some) }
    }

    fn count(&self, at: usize) -> Result<u64, String> {
        self.value(at, |count| (1..=MAX_WHOLE).contains(count))
    }

    fn span(&self, at: usize) -> Result<Span, String> {
        let before = self.value(at, |before| *before <= MAX_STAMP_NS)?;
        let latest = before + MAX_WHOLE;
        let after = self.value(at + 1, |after| (before..=latest).contains(after))?;
        Ok(Span { before, after, ns: self.value(at + 2, |ns| *ns <= after - before)? })
    }
}

/// Splits text into lines of these fields, without empty ones.
fn lines<'a>(
    text: &'a str,
    names: &'static str,
) -> impl Iterator<Item = Result<Line<'a>, String>> + use<'a> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(move |(at, line)| Line::new(at, names, line))
}

#[derive(Clone, Copy)]
struct Span {
    before: u64,
    after: u64,
    ns: u64,
}

/// Returns a point that begins and ends with these spans. A clock that counts from 1970 dates it.
fn record_of(template: &RunRecord, spans: &[Span]) -> RunRecord {
    /// Time of 2000-01-01: a clock since the start of a machine is far below.
    const CENTURY_NS: u64 = 946_684_800_000_000_000;
    let mut record = template.clone();
    record.origin_ns = spans.iter().map(|span| span.before).min().unwrap_or(0);
    record.wall_ns = end_ns(spans, record.origin_ns);
    if record.origin_ns >= CENTURY_NS {
        let time = UNIX_EPOCH + Duration::from_nanos(record.origin_ns);
        record.time_utc = humantime::format_rfc3339_millis(time).to_string();
    }
    record
}

fn end_ns(spans: &[Span], origin_ns: u64) -> u64 {
    spans.iter().map(|span| span.after - origin_ns).max().unwrap_or(0)
}

fn stage_of(name: &str, spans: &[Span], origin_ns: u64) -> Stage {
    let starts = spans.iter().map(|span| span.before - origin_ns);
    Stage {
        name: name.into(),
        ops_per_sample: 1,
        start_ns: starts.clone().min().unwrap_or(0),
        end_ns: end_ns(spans, origin_ns),
        sample_ns: spans.iter().map(|span| span.ns).collect(),
        sample_start_ns: starts.collect(),
        ..Stage::default()
    }
}

fn lane_of(device: String, stage: Stage) -> Lane {
    Lane { device, stages: vec![stage], ..Lane::default() }
}

fn latency(copy: StudyCopy, text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, String> {
    let mut sizes: BTreeMap<u64, (BTreeSet<u32>, Vec<Span>)> = BTreeMap::new();
    for line in lines(text, "CPU, bytes, ns before, ns after, ns") {
        let line = line?;
        let (cpu, span) = (line.known(0, |_: &u32| true)?, line.span(2)?);
        let (cpus, spans) = sizes.entry(line.count(1)?).or_default();
        cpus.extend(cpu);
        spans.push(span);
    }
    let record = |(bytes, (cpus, spans)): (u64, (BTreeSet<u32>, Vec<Span>))| {
        let mut record = copy.record(template, bytes, &spans);
        let stage = copy.stage(&spans, record.origin_ns, bytes * copy.passes());
        let seen_cpus = cpus.into_iter().collect();
        record.lanes = vec![Lane { seen_cpus, ..lane_of(format!("{bytes} B"), stage) }];
        record
    };
    Ok(sizes.into_iter().map(record).collect())
}

struct ChannelLine {
    number: u32,
    bytes: u64,
    bytes_per_op: u64,
    operations: u64,
    span: Span,
}

fn bandwidth(copy: StudyCopy, text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, String> {
    let names = "channel, bytes, operations, ns before, ns after, ns, MB/s";
    let (mut records, mut channels) = (Vec::new(), Vec::<ChannelLine>::new());
    for (at, line) in text.lines().enumerate() {
        // The total is behind the last channel, or on its own line.
        let (fields, total) =
            line.split_once("total_band=").map_or((line, None), |(fields, it)| (fields, Some(it)));
        if !fields.trim().is_empty() {
            channels.push(channel_of(copy, &Line::new(at, names, fields)?)?);
        }
        if total.is_some() && channels.is_empty() {
            return Err(format!("line {}: total_band= of no channel", at + 1));
        }
        if total.is_some() {
            records.push(group_of(copy, &std::mem::take(&mut channels), template));
        }
    }
    match channels.is_empty() {
        true => Ok(records),
        false => Err("ends without the total_band= of the last channels: it is cut off".to_owned()),
    }
}

/// Reads the line of a channel. In `from_to` its rate says if an operation went both ways.
fn channel_of(copy: StudyCopy, line: &Line<'_>) -> Result<ChannelLine, String> {
    let (number, bytes, operations) = (line.value(0, |_| true)?, line.count(1)?, line.count(2)?);
    let (span, mib_per_s) = (line.span(3)?, line.value(6, |rate: &f64| *rate >= 0.0)?);
    let one_way = bytes as f64 * operations as f64 / span.ns as f64 * 1e9 / MIB;
    // Equal except for the digits of the file.
    let is_near = |ways: u64| {
        let rate = one_way * ways as f64;
        rate.is_finite() && (mib_per_s - rate).abs() <= 2e-6 + 1e-6 * rate
    };
    // A file that counts each way has as many operations again.
    let fits = |ways: &u64| operations * ways <= MAX_WHOLE && is_near(*ways);
    let ways = (1..=copy.passes()).find(fits);
    let why = "the rate is not bytes x operations / time, in MB of 2^20 bytes";
    let blocks = operations * ways.ok_or_else(|| line.wrong(why))?;
    // A record's operation goes both ways; in a file that counts each way it is two.
    let passes = if blocks.is_multiple_of(copy.passes()) { copy.passes() } else { 1 };
    let (bytes_per_op, operations) = (bytes * passes, blocks / passes);
    Ok(ChannelLine { number, bytes, bytes_per_op, operations, span })
}

fn group_of(copy: StudyCopy, channels: &[ChannelLine], template: &RunRecord) -> RunRecord {
    let spans: Vec<Span> = channels.iter().map(|channel| channel.span).collect();
    let mut record = copy.record(template, channels[0].bytes, &spans);
    record.set_param("lanes", channels.len() as u64);
    let lane = |channel: &ChannelLine| {
        let stage = copy.stage(&[channel.span], record.origin_ns, channel.bytes_per_op);
        let stage = Stage { ops_per_sample: channel.operations, ..stage };
        lane_of(format!("channel {}", channel.number), stage)
    };
    record.lanes = channels.iter().map(lane).collect();
    record
}

/// Runs of a program, with the references and the misses of each.
type ProgramRuns = (Vec<Span>, [Vec<Option<f64>>; 2]);

fn pollution(text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, String> {
    let names = "program, ns before, ns after, ns, cache references, misses, % misses";
    let mut tests: BTreeMap<&str, ProgramRuns> = BTreeMap::new();
    for line in lines(text, names) {
        let line = line?;
        let count = |at| line.known(at, |count: &u64| *count <= MAX_WHOLE);
        let counted = count(4)?.zip(count(5)?);
        let counted =
            counted.filter(|(references, misses)| misses <= references && *references > 0);
        let percent = line.known(6, |percent: &f64| *percent >= 0.0)?;
        if let (Some((references, misses)), Some(percent)) = (counted, percent) {
            // Both are rounded to whole numbers.
            let rounding = 100.0 / references as f64 + 1e-4;
            if (misses as f64 / references as f64 * 100.0 - percent).abs() > rounding {
                return Err(line.wrong("the percentage is not misses / references"));
            }
        }
        let (spans, [references, misses]) = tests.entry(line.fields[0]).or_default();
        spans.push(line.span(1)?);
        references.push(counted.map(|(references, _)| references as f64));
        misses.push(counted.map(|(_, misses)| misses as f64));
    }
    let record = |(test, (spans, counts)): (&str, ProgramRuns)| {
        let mut record = record_of(template, &spans);
        let stage = stage_of(test, &spans, record.origin_ns);
        record.counters = vec![Counter::count("victim-runs", spans.len() as u64)];
        for (name, values) in [REFERENCES, MISSES].into_iter().zip(counts) {
            // A sum over all runs needs a count of each.
            let sum = values.iter().copied().sum::<Option<f64>>();
            record.counters.extend(sum.map(|sum| Counter::measured(name, sum, "")));
            if values.iter().any(Option::is_some) {
                let (name, times_ns) = (name.to_owned(), stage.sample_start_ns.clone());
                let series = TimeSeries { name, times_ns, values, ..TimeSeries::default() };
                record.series.push(series);
            }
        }
        record.lanes = vec![lane_of(test.to_owned(), stage)];
        record.set_param("test", test.to_owned());
        record
    };
    Ok(tests.into_iter().map(record).collect())
}

#[cfg(test)]
mod tests;
