//! The files of the original study's daemons, read: the inverse of [`super::classic`], whose head says what the fields are.
//!
//! One record for each point, made from a template that says what the files do not: who copied, by which way, who reads. Files of
//! synthesis hold no single times, from which everything else would be computed again; they are known by name and not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::{Counter, Lane, RunRecord, Stage, TimeSeries};

use super::classic::{CPUS, NOT_KNOWN};
use super::pollution::{Counted, MISSES, REFERENCES};

/// Points of one file: sizes, groups of channels, programs. The study has 26 sizes.
const MAX_POINTS: usize = 10_000;
/// Channels of one point: as many as lanes of ours.
const MAX_CHANNELS: usize = 1024;
/// Longest name of a program.
const MAX_NAME: usize = 64;
/// MB of the study's rates.
const MIB: f64 = 1_048_576.0;

/// What was copied, by a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// `from`, `to`, `both`, as records have it.
    pub direction: &'static str,
    /// Caches were emptied before each copy.
    pub cold: bool,
}

/// A file of the benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `micro-benchmark_{from,from_nc,to,to_nc}_<x>.dat`.
    Latency(Operation),
    /// `measures_{from,to,from_to}.dat`.
    Bandwidth(Operation),
    /// `measure_X.dat`.
    Pollution,
    /// `micro-benchmark_..._synth.dat`, `synthesis_<x>.dat`.
    Synthesis,
}

impl File {
    /// By the name of a file; none of other files.
    pub fn of(path: &Path) -> Option<File> {
        let name = path.file_name()?.to_str()?.strip_suffix(".dat")?;
        if let Some(rest) = name.strip_prefix("micro-benchmark_") {
            if rest.ends_with("_synth") {
                return Some(File::Synthesis);
            }
            return operation(rest.rsplit_once('_')?.0).map(File::Latency);
        }
        if let Some(rest) = name.strip_prefix("measures_") {
            return operation(rest).map(File::Bandwidth);
        }
        if name.starts_with("synthesis_") {
            return Some(File::Synthesis);
        }
        name.strip_prefix("measure_").map(|_| File::Pollution)
    }

    /// The verb that reads it; none of a synthesis.
    pub fn verb(self) -> Option<&'static str> {
        match self {
            File::Latency(_) => Some("latency"),
            File::Bandwidth(_) => Some("bandwidth"),
            File::Pollution => Some("pollution"),
            File::Synthesis => None,
        }
    }

    /// Its points, each as the template with what the file says. What is not in the file stays as it is there.
    ///
    /// # Errors
    /// The first line that is not one of such a file; a file without any.
    pub fn records(self, text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, Problem> {
        let records = match self {
            File::Latency(operation) => latency(operation, text, template)?,
            File::Bandwidth(operation) => bandwidth(operation, text, template)?,
            File::Pollution => pollution(text, template)?,
            File::Synthesis => return Err(Problem::of_file("a synthesis holds no single times")),
        };
        match records.is_empty() {
            true => Err(Problem::of_file("holds no measurement")),
            false => Ok(records),
        }
    }
}

/// As the names of files spell it.
fn operation(text: &str) -> Option<Operation> {
    let (name, cold) = text.strip_suffix("_nc").map_or((text, false), |name| (name, true));
    let direction = match name {
        "from" => "from",
        "to" => "to",
        "from_to" => "both",
        _ => return None,
    };
    Some(Operation { direction, cold })
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line and column, from 1; none where the whole file is meant.
    pub place: Option<(usize, usize)>,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    fn of_file(what: &str) -> Problem {
        Problem { place: None, what: what.to_owned() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// A line with its fields and where they begin, in bytes.
struct Line<'a> {
    number: usize,
    text: &'a str,
    fields: Vec<(usize, &'a str)>,
}

/// Lines that hold something. One field more than any file has is enough to see that there are too many.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    const MOST: usize = 10;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().enumerate().filter_map(|(at, text)| {
        let mut from = 0;
        let mut place = |field: &str| {
            // Only blanks are between: the first place where it is found is its own.
            let at = from + text[from..].find(field).unwrap_or(0);
            from = at + field.len();
            at
        };
        let fields: Vec<(usize, &str)> =
            text.split_whitespace().take(MOST).map(|field| (place(field), field)).collect();
        (!fields.is_empty()).then_some(Line { number: at + 1, text, fields })
    })
}

impl Line<'_> {
    /// A problem at a field, or behind the last one.
    fn wrong(&self, field: usize, what: impl Into<String>) -> Problem {
        let at = self.fields.get(field).map_or(self.text.len(), |(at, _)| *at);
        let column = self.text[..at].chars().count() + 1;
        Problem { place: Some((self.number, column)), what: what.into() }
    }

    /// Refuses another number of fields than one of these.
    fn has(&self, wanted: &[&str]) -> Result<(), Problem> {
        let (found, count) = (self.fields.len(), wanted.len());
        if found == count {
            return Ok(());
        }
        let few = if found < count { "ends after" } else { "has more than" };
        Err(self.wrong(
            count.min(found),
            format!("{few} {} fields; {count} are wanted: {}", count.min(found), wanted.join(", ")),
        ))
    }

    fn field(&self, at: usize) -> &str {
        self.fields.get(at).map_or("", |(_, field)| field)
    }

    fn number<T: FromStr>(&self, at: usize, what: &str) -> Result<T, Problem> {
        let field = self.field(at);
        field.parse().map_err(|_| self.wrong(at, format!("`{}` is not {what}", shortened(field))))
    }

    /// Above zero.
    fn count(&self, at: usize, what: &str) -> Result<u64, Problem> {
        match self.number(at, what)? {
            0 => Err(self.wrong(at, format!("0 is not {what}"))),
            count => Ok(count),
        }
    }

    fn value(&self, at: usize, what: &str) -> Result<f64, Problem> {
        let value: f64 = self.number(at, what)?;
        if value.is_finite() && value >= 0.0 {
            Ok(value)
        } else {
            Err(self.wrong(at, format!("`{}` is not {what}", shortened(self.field(at)))))
        }
    }

    /// Clock before, clock after and time between, at a field and the two behind it.
    fn span(&self, at: usize) -> Result<Span, Problem> {
        let before = self.number(at, "a clock in ns")?;
        let after = self.number(at + 1, "a clock in ns")?;
        let ns: u64 = self.number(at + 2, "a time in ns")?;
        match u64::checked_sub(after, before) {
            None => Err(self.wrong(at + 1, "the clock after is before the clock before")),
            Some(between) if ns > between => Err(self.wrong(
                at + 2,
                format!("{ns} ns is more than the {between} ns between the clocks"),
            )),
            Some(_) => Ok(Span { before, after, ns }),
        }
    }
}

/// What is quoted in a message.
fn shortened(field: &str) -> String {
    field.chars().take(40).collect()
}

/// One time with its clocks.
#[derive(Clone, Copy)]
struct Span {
    before: u64,
    after: u64,
    ns: u64,
}

/// First and last clock.
fn bounds<'a>(spans: impl Iterator<Item = &'a Span> + Clone) -> (u64, u64) {
    let first = spans.clone().map(|span| span.before).min();
    let last = spans.map(|span| span.after).max();
    (first.unwrap_or(0), last.unwrap_or(0))
}

/// A point that begins and ends with these clocks. A clock that counts from 1970 says when it was measured; others do not.
fn record_of(template: &RunRecord, (first, last): (u64, u64)) -> RunRecord {
    /// 2000-01-01: a clock that counts from the start of a machine is far below.
    const CENTURY_NS: u64 = 946_684_800_000_000_000;
    let mut record = template.clone();
    record.origin_ns = first;
    record.wall_ns = last - first;
    if first >= CENTURY_NS {
        let time = UNIX_EPOCH + Duration::from_nanos(first);
        record.time_utc = humantime::format_rfc3339_millis(time).to_string();
    }
    record
}

/// A stage with one sample for each time.
fn stage_of(name: &str, spans: &[Span], origin_ns: u64) -> Stage {
    let (first, last) = bounds(spans.iter());
    Stage {
        name: name.into(),
        ops_per_sample: 1,
        start_ns: first - origin_ns,
        end_ns: last - origin_ns,
        sample_ns: spans.iter().map(|span| span.ns).collect(),
        sample_start_ns: spans.iter().map(|span| span.before - origin_ns).collect(),
        ..Stage::default()
    }
}

/// One value for each sample of a stage.
fn series_of(name: &str, stage: &Stage, values: Vec<Option<f64>>) -> TimeSeries {
    TimeSeries {
        name: name.to_owned(),
        times_ns: stage.sample_start_ns.clone(),
        values,
        ..TimeSeries::default()
    }
}

impl Operation {
    /// The engine's name of its stage.
    fn stage(self) -> &'static str {
        match self.direction {
            "from" => "copy_from_user",
            "to" => "copy_to_user",
            _ => "copy_from_and_to_user",
        }
    }

    /// Blocks that one operation of ours moves.
    fn passes(self) -> u64 {
        if self.direction == "both" { 2 } else { 1 }
    }

    /// The record's request.
    fn asked(self, record: &mut RunRecord, block_bytes: u64) {
        record.set_param("direction", self.direction);
        record.set_param("block_bytes", block_bytes);
        if self.cold {
            record.set_param("cold", true);
        }
    }
}

/// The entry of a point, unless there are too many.
fn entry<'a, K: Ord, V: Default>(
    points: &'a mut BTreeMap<K, V>,
    key: K,
    line: &Line<'_>,
) -> Result<&'a mut V, Problem> {
    if points.len() >= MAX_POINTS && !points.contains_key(&key) {
        let what = format!("more than {MAX_POINTS} points in one file");
        return Err(line.wrong(0, what));
    }
    Ok(points.entry(key).or_default())
}

/// Copies of one size.
#[derive(Default)]
struct Copies {
    /// CPU of each copy, where the file has it.
    cpus: Vec<Option<u32>>,
    spans: Vec<Span>,
}

fn latency(
    operation: Operation,
    text: &str,
    template: &RunRecord,
) -> Result<Vec<RunRecord>, Problem> {
    let mut sizes: BTreeMap<u64, Copies> = BTreeMap::new();
    for line in lines(text) {
        line.has(&["CPU", "bytes", "ns before", "ns after", "ns"])?;
        let cpu = match line.field(0) {
            NOT_KNOWN => None,
            _ => Some(line.number(0, "the number of a CPU")?),
        };
        let bytes = line.count(1, "a number of bytes")?;
        let span = line.span(2)?;
        let copies = entry(&mut sizes, bytes, &line)?;
        copies.cpus.push(cpu);
        copies.spans.push(span);
    }
    let record = |(bytes, copies): (u64, Copies)| {
        let mut record = record_of(template, bounds(copies.spans.iter()));
        operation.asked(&mut record, bytes);
        let mut stage = stage_of(operation.stage(), &copies.spans, record.origin_ns);
        stage.bytes_per_op = bytes.saturating_mul(operation.passes());
        stage.traffic_bytes_per_op = stage.bytes_per_op.saturating_mul(2);
        let seen: BTreeSet<u32> = copies.cpus.iter().copied().flatten().collect();
        if seen.len() > 1 || copies.cpus.contains(&None) {
            let cpu = |cpu: &Option<u32>| cpu.map(f64::from);
            let values = copies.cpus.iter().map(cpu).collect();
            record.series = vec![series_of(CPUS, &stage, values)];
        }
        record.lanes = vec![Lane {
            device: format!("{} B", bytes).into(),
            seen_cpus: seen.into_iter().collect(),
            stages: vec![stage],
            ..Lane::default()
        }];
        record
    };
    Ok(sizes.into_iter().map(record).collect())
}

/// What one channel did.
struct Channel {
    number: u32,
    bytes: u64,
    operations: u64,
    span: Span,
    mib_per_s: f64,
    /// Each operation went both ways: its rate says so.
    is_both_ways: bool,
}

fn bandwidth(
    operation: Operation,
    text: &str,
    template: &RunRecord,
) -> Result<Vec<RunRecord>, Problem> {
    let (mut records, mut channels) = (Vec::new(), Vec::<Channel>::new());
    let mut last = None;
    for line in lines(text) {
        // The total stands behind the last channel, or on a line of its own.
        let total = line.fields.iter().position(|(_, field)| *field == "total_band=");
        if total != Some(0) {
            channel_of(operation, &line, total, &channels).map(|channel| channels.push(channel))?;
        }
        if let Some(at) = total {
            check_total(&line, at, &channels)?;
            if records.len() >= MAX_POINTS {
                return Err(line.wrong(0, format!("more than {MAX_POINTS} points in one file")));
            }
            records.push(point_of(operation, &channels, template));
            channels.clear();
        }
        last = Some(line);
    }
    match last {
        Some(line) if !channels.is_empty() => Err(line.wrong(
            usize::MAX,
            "the file ends without the total_band= of the last channels: it is cut off",
        )),
        _ => Ok(records),
    }
}

/// The seven fields of a channel, which stand before the total.
fn channel_of(
    operation: Operation,
    line: &Line<'_>,
    total: Option<usize>,
    before: &[Channel],
) -> Result<Channel, Problem> {
    const FIELDS: [&str; 7] =
        ["channel", "bytes", "operations", "ns before", "ns after", "ns", "MB/s"];
    let alone = Line {
        number: line.number,
        text: line.text,
        fields: line.fields[..total.unwrap_or(line.fields.len())].to_vec(),
    };
    alone.has(&FIELDS)?;
    let number = line.number(0, "the number of a channel")?;
    if before.iter().any(|channel| channel.number == number) {
        return Err(line.wrong(0, format!("channel {number} again before a total_band=")));
    }
    if before.len() >= MAX_CHANNELS {
        return Err(line.wrong(0, format!("more than {MAX_CHANNELS} channels of one point")));
    }
    let bytes = line.count(1, "a number of bytes")?;
    if before.first().is_some_and(|first| first.bytes != bytes) {
        return Err(line.wrong(1, "the channels of one point copy blocks of one size"));
    }
    let mut channel = Channel {
        number,
        bytes,
        operations: line.count(2, "a number of operations")?,
        span: line.span(3)?,
        mib_per_s: line.value(6, "a rate in MB/s")?,
        is_both_ways: false,
    };
    // Both ways, and read as well as written.
    let traffic = bytes.checked_mul(4);
    if traffic.and_then(|bytes| bytes.checked_mul(channel.operations)).is_none() {
        return Err(line.wrong(2, "bytes x operations are more than can be counted"));
    }
    if channel.span.ns == 0 {
        return Err(line.wrong(5, "0 ns is no time for a copy"));
    }
    let computed = bytes as f64 * channel.operations as f64 / channel.span.ns as f64 * 1e9 / MIB;
    let is_one_way = is_near(channel.mib_per_s, computed);
    channel.is_both_ways =
        !is_one_way && operation.direction == "both" && is_near(channel.mib_per_s, 2.0 * computed);
    if !is_one_way && !channel.is_both_ways {
        let what = format!(
            "{} MB/s is not bytes x operations / time, {computed:.6} MB/s of 2^20 bytes",
            line.field(6)
        );
        return Err(line.wrong(6, what));
    }
    Ok(channel)
}

/// Equal but for the digits of the file.
fn is_near(written: f64, computed: f64) -> bool {
    (written - computed).abs() <= 2e-6 + 1e-6 * computed
}

/// `total_band= RATE`: the sum of the channels' rates.
fn check_total(line: &Line<'_>, at: usize, channels: &[Channel]) -> Result<(), Problem> {
    if channels.is_empty() {
        return Err(line.wrong(at, "total_band= of no channel"));
    }
    if line.fields.len() != at + 2 {
        let place = if line.fields.len() < at + 2 { usize::MAX } else { at + 2 };
        return Err(line.wrong(place, "one rate is wanted behind total_band="));
    }
    let written = line.value(at + 1, "a rate in MB/s")?;
    let sum: f64 = channels.iter().map(|channel| channel.mib_per_s).sum();
    // Each of the channels was rounded.
    if (written - sum).abs() <= 2e-6 * channels.len() as f64 + 1e-6 * sum {
        return Ok(());
    }
    let what = format!("{written} MB/s is not the sum of the channels' rates, {sum:.6}");
    Err(line.wrong(at + 1, what))
}

fn point_of(operation: Operation, channels: &[Channel], template: &RunRecord) -> RunRecord {
    let mut record = record_of(template, bounds(channels.iter().map(|channel| &channel.span)));
    operation.asked(&mut record, channels[0].bytes);
    record.set_param("lanes", channels.len() as u64);
    let lane = |channel: &Channel| {
        let mut stage = stage_of(operation.stage(), &[channel.span], record.origin_ns);
        let passes = operation.passes();
        // Our operations go both ways. Where the file counts each way, two of its are one of ours.
        (stage.bytes_per_op, stage.ops_per_sample) = if channel.is_both_ways {
            (channel.bytes * passes, channel.operations)
        } else if channel.operations.is_multiple_of(passes) {
            (channel.bytes * passes, channel.operations / passes)
        } else {
            (channel.bytes, channel.operations)
        };
        stage.traffic_bytes_per_op = stage.bytes_per_op.saturating_mul(2);
        Lane {
            device: format!("channel {}", channel.number).into(),
            stages: vec![stage],
            ..Lane::default()
        }
    };
    record.lanes = channels.iter().map(lane).collect();
    record
}

/// Runs of one program.
#[derive(Default)]
struct Runs {
    spans: Vec<Span>,
    counted: Vec<Option<Counted>>,
}

fn pollution(text: &str, template: &RunRecord) -> Result<Vec<RunRecord>, Problem> {
    let mut tests: BTreeMap<String, Runs> = BTreeMap::new();
    for line in lines(text) {
        line.has(&[
            "program",
            "ns before",
            "ns after",
            "ns",
            "cache references",
            "misses",
            "% misses",
        ])?;
        let test = line.field(0);
        if test.len() > MAX_NAME {
            return Err(line.wrong(0, format!("a name of more than {MAX_NAME} bytes")));
        }
        let span = line.span(1)?;
        let counted = counted(&line)?;
        let runs = entry(&mut tests, test.to_owned(), &line)?;
        runs.spans.push(span);
        runs.counted.push(counted);
    }
    Ok(tests.into_iter().map(|(test, runs)| program_of(test, &runs, template)).collect())
}

/// References and misses of a run; none where the host counted none.
fn counted(line: &Line<'_>) -> Result<Option<Counted>, Problem> {
    if line.field(4) == NOT_KNOWN && line.field(5) == NOT_KNOWN {
        if line.field(6) == NOT_KNOWN {
            return Ok(None);
        }
        return Err(line.wrong(6, "a share of misses that were not counted"));
    }
    let references: u64 = line.number(4, "a number of cache references, or n/a")?;
    let misses: u64 = line.number(5, "a number of cache misses, or n/a")?;
    for (at, count) in [(4, references), (5, misses)] {
        if count > MAX_WHOLE {
            let what = format!("{count}; the largest number taken is {MAX_WHOLE}");
            return Err(line.wrong(at, what));
        }
    }
    // No references have no share.
    if line.field(6) != NOT_KNOWN {
        line.value(6, "a share in percent, or n/a")?;
    }
    Ok(Some(Counted { references: references as f64, misses: misses as f64 }))
}

fn program_of(test: String, runs: &Runs, template: &RunRecord) -> RunRecord {
    let mut record = record_of(template, bounds(runs.spans.iter()));
    let stage = stage_of(&test, &runs.spans, record.origin_ns);
    record.counters = vec![Counter::count("victim-runs", runs.spans.len() as u64)];
    let values = |of: fn(Counted) -> f64| -> Vec<Option<f64>> {
        runs.counted.iter().map(|run| run.map(of)).collect()
    };
    for (name, values) in
        [(REFERENCES, values(|run| run.references)), (MISSES, values(|run| run.misses))]
    {
        // A sum over all runs only where all were counted.
        if let Some(sum) = values.iter().copied().sum::<Option<f64>>() {
            record.counters.push(Counter { value: sum, ..Counter::count(name, 0) });
        }
        if values.iter().any(Option::is_some) {
            record.series.push(series_of(name, &stage, values));
        }
    }
    record.lanes =
        vec![Lane { device: test.as_str().into(), stages: vec![stage], ..Lane::default() }];
    record.set_param("test", test);
    record
}

#[cfg(test)]
mod tests;
