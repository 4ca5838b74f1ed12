//! The files of the original study's daemons, read: the inverse of [`super::classic`], whose head says what the fields are.
//!
//! One record for each point, made from a template that says what the files do not: who copied, by which way, who reads. Files of
//! synthesis hold no single times, from which everything else would be computed again; they are known by name and not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::{Counter, Lane, RunRecord, Stage};

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
    /// `measure_<x>.dat`.
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
    let (name, cold) = text
        .strip_suffix("_nc")
        .map_or((text, false), |name| (name, true));
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
        Problem {
            place: None,
            what: what.to_owned(),
        }
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
        let fields: Vec<(usize, &str)> = text
            .split_whitespace()
            .take(MOST)
            .map(|field| (place(field), field))
            .collect();
        (!fields.is_empty()).then_some(Line {
            number: at + 1,
            text,
            fields,
        })
    })
}

impl Line<'_> {
    /// A problem at a field, or behind the last one.
    fn wrong(&self, field: usize, what: impl Into<String>) -> Problem {
        let at = self
            .fields
            .get(field)
            .map_or(self.text.len(), |(at, _)| *at);
        let column = self.text[..at].chars().count() + 1;
        Problem {
            place: Some((self.number, column)),
            what: what.into(),
        }
    }

    /// Refuses another number of fields than one of these.
    fn has(&self, wanted: &[&str]) -> Result<(), Problem> {
        let (found, count) = (self.fields.len(), wanted.len());
        if found == count {
            return Ok(());
        }
        let few = if found < count {
            "ends after"
        } else {
            "has more than"
        };
        Err(self.wrong(
            count.min(found),
            format!(
                "{few} {} fields; {count} are wanted: {}",
                count.min(found),
                wanted.join(", ")
            ),
        ))
    }

    fn field(&self, at: usize) -> &str {
        self.fields.get(at).map_or("", |(_, field)| field)
    }

    fn number<T: FromStr>(&self, at: usize, what: &str) -> Result<T, Problem> {
        let field = self.field(at);
        field
            .parse()
            .map_err(|_| self.wrong(at, format!("`{}` is not {what}", shortened(field))))
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
        name: name.to_owned(),
        ops_per_sample: 1,
        start_ns: first - origin_ns,
        end_ns: last - origin_ns,
        sample_ns: spans.iter().map(|span| span.ns).collect(),
        sample_start_ns: spans.iter().map(|span| span.before - origin_ns).collect(),
        ..Stage::default()
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
        let asked = record.workload.clone();
        let asked = asked
            .with("direction", self.direction)
            .with("block_bytes", block_bytes);
        record.workload = match self.cold {
            true => asked.with("cold", true),
            false => asked,
        };
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
    cpus: BTreeSet<u32>,
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
        let cpu = line.number(0, "the number of a CPU")?;
        let bytes = line.count(1, "a number of bytes")?;
        let span = line.span(2)?;
        let copies = entry(&mut sizes, bytes, &line)?;
        copies.cpus.insert(cpu);
        copies.spans.push(span);
    }
    let record = |(bytes, copies): (u64, Copies)| {
        let mut record = record_of(template, bounds(copies.spans.iter()));
        operation.asked(&mut record, bytes);
        let mut stage = stage_of(operation.stage(), &copies.spans, record.origin_ns);
        stage.bytes_per_op = bytes.saturating_mul(operation.passes());
        stage.traffic_bytes_per_op = stage.bytes_per_op.saturating_mul(2);
        record.lanes = vec![Lane {
            device: format!("{} B", bytes),
            seen_cpus: copies.cpus.into_iter().collect(),
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
        let total = line
            .fields
            .iter()
            .position(|(_, field)| *field == "total_band=");
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
    const FIELDS: [&str; 7] = [
        "channel",
        "bytes",
        "operations",
        "ns before",
        "ns after",
        "ns",
        "MB/s",
    ];
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
    if traffic
        .and_then(|bytes| bytes.checked_mul(channel.operations))
        .is_none()
    {
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
        let place = if line.fields.len() < at + 2 {
            usize::MAX
        } else {
            at + 2
        };
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
    let mut record = record_of(
        template,
        bounds(channels.iter().map(|channel| &channel.span)),
    );
    operation.asked(&mut record, channels[0].bytes);
    record.workload = record.workload.with("lanes", channels.len() as u64);
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
            device: format!("channel {}", channel.number),
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
    references: u64,
    misses: u64,
    uncounted: bool,
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
        match counted {
            None => runs.uncounted = true,
            Some((references, misses)) => {
                runs.references = runs.references.saturating_add(references);
                runs.misses = runs.misses.saturating_add(misses);
            }
        }
    }
    Ok(tests
        .into_iter()
        .map(|(test, runs)| program_of(test, &runs, template))
        .collect())
}

/// References and misses of a run; none where the host counted none.
fn counted(line: &Line<'_>) -> Result<Option<(u64, u64)>, Problem> {
    const NOT_COUNTED: &str = "n/a";
    if line.field(4) == NOT_COUNTED && line.field(5) == NOT_COUNTED {
        if line.field(6) == NOT_COUNTED {
            return Ok(None);
        }
        return Err(line.wrong(6, "a share of misses that were not counted"));
    }
    let references = line.number(4, "a number of cache references, or n/a")?;
    let misses = line.number(5, "a number of cache misses, or n/a")?;
    // No references have no share.
    if line.field(6) != NOT_COUNTED {
        line.value(6, "a share in percent, or n/a")?;
    }
    Ok(Some((references, misses)))
}

fn program_of(test: String, runs: &Runs, template: &RunRecord) -> RunRecord {
    let mut record = record_of(template, bounds(runs.spans.iter()));
    let stage = stage_of(&test, &runs.spans, record.origin_ns);
    record.counters = vec![Counter::count("victim-runs", runs.spans.len() as u64)];
    if !runs.uncounted {
        record.counters.extend([
            Counter::count("victim-cache-references", runs.references),
            Counter::count("victim-cache-misses", runs.misses),
        ]);
    }
    record.lanes = vec![Lane {
        device: test.clone(),
        stages: vec![stage],
        ..Lane::default()
    }];
    record.workload = record.workload.with("test", test);
    record
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Workload};
    use proptest::prelude::*;

    use super::super::classic;
    use super::super::pollution::pollution_rows;
    use super::super::rows::copy_rows;
    use super::super::rows::tests::example;
    use super::*;

    fn template(engine: &str) -> RunRecord {
        let info = EngineInfo {
            name: engine.to_owned(),
            ..EngineInfo::default()
        };
        let workload = Workload::new(engine)
            .with("path", "unknown")
            .with("context", "cpu")
            .with("neighbour", "cpu")
            .with("direction", "from")
            .with("block_bytes", 224_u64);
        RunRecord::new(info, workload)
    }

    fn read(name: &str, text: &str) -> Result<Vec<RunRecord>, Problem> {
        let file = File::of(Path::new(name)).unwrap();
        let engine = match file {
            File::Pollution => "pollution",
            _ => "copy",
        };
        file.records(text, &template(engine))
    }

    #[test]
    fn the_documents_sample_of_a_latency_is_a_record() {
        let text = "3\t64\t2740081346085\t2740081346193\t108\n";
        let records = read("x/micro-benchmark_from_nc_5.dat", text).unwrap();
        let row = &copy_rows(&records)[0];
        assert_eq!((row.median_ns, row.block_bytes, row.n), (108.0, 64, 1));
        assert_eq!(row.operation(), "from_nc");
        assert_eq!(records[0].lanes[0].seen_cpus, [3]);
        assert_eq!(records[0].lanes[0].stages[0].name, "copy_from_user");
        assert_eq!(
            (records[0].origin_ns, records[0].wall_ns),
            (2_740_081_346_085, 108)
        );
        assert!(records[0].time_utc.is_empty(), "a clock since the start");
    }

    /// Section 3.4.1: the total stands on a line of its own there, and behind the last channel in our files.
    const CHANNELS: &str = "\
0\t1024\t300\t1384270020290328601\t1384270020290437344\t108743\t2694.138933
1\t1024\t300\t1384270020290343080\t1384270020290437040\t93960\t3118.015645
2\t1024\t300\t1384270020290320607\t1384270020290426168\t105561\t2775.350271
3\t1024\t300\t1384270020290336009\t1384270020290431531\t95522\t3067.029061
total_band= 11654.533911
";

    #[test]
    fn the_documents_sample_of_a_bandwidth_has_its_rates_and_its_time() {
        let joined = CHANNELS.replace("\ntotal", "\ttotal");
        for text in [
            CHANNELS,
            &joined,
            &format!("\u{feff}{CHANNELS}").replace('\n', "\r\n"),
        ] {
            let records = read("measures_from.dat", text).unwrap();
            assert_eq!(records.len(), 1);
            assert_eq!(records[0].time_utc, "2013-11-12T15:27:00.290Z");
            let row = &copy_rows(&records)[0];
            assert_eq!(row.lanes_bytes_per_s.len(), 4);
            assert!((row.total_bytes_per_s() / MIB - 11_654.533_911).abs() < 1e-5);
            assert_eq!(classic::bandwidth(&records)["measures_from.dat"], joined);
        }
    }

    #[test]
    fn operations_that_went_both_ways_are_told_by_their_rate() {
        let line = |rate: &str| {
            format!("0\t1048576\t300\t0\t300000000\t300000000\t{rate}\ttotal_band= {rate}\n")
        };
        for (rate, operations) in [("1000.000000", 150), ("2000.000000", 300)] {
            let records = read("measures_from_to.dat", &line(rate)).unwrap();
            let stage = &records[0].lanes[0].stages[0];
            assert_eq!(
                (stage.ops_per_sample, stage.bytes_per_op),
                (operations, 2 << 20),
                "{rate}"
            );
            let bytes_per_s = rate.parse::<f64>().unwrap() * MIB;
            assert!((stage.rate_bytes_per_s() / bytes_per_s - 1.0).abs() < 1e-9);
        }
        assert!(
            read("measures_to.dat", &line("2000.000000")).is_err(),
            "one way only"
        );
    }

    #[test]
    fn the_documents_sample_of_a_program_has_its_misses() {
        let text = "qsort_small\t55698518635\t55702757592\t4238957\t157283\t982\t0.624352\n";
        let records = read("measure_run7.dat", text).unwrap();
        let row = &pollution_rows(&records)[0];
        assert_eq!(
            (row.mean_ns, row.references),
            (4_238_957.0, Some(157_283.0))
        );
        assert!((row.miss_percent().unwrap() - 0.624_352).abs() < 1e-6);
        assert_eq!((&*row.test, &*row.copies), ("qsort_small", "from 224"));
        assert_eq!(row.copied_bytes_per_s, None, "the file does not say");
        let written = classic::pollution(&records, "run7");
        assert_eq!(written["cpu_from_224/measure_run7.dat"], text);
        let none = "qsort_small\t5\t9\t4\tn/a\tn/a\tn/a\n";
        let records = read("measure_x.dat", none).unwrap();
        assert_eq!(pollution_rows(&records)[0].references, None);
    }

    #[test]
    fn files_are_known_by_their_names() {
        let of = |name: &str| File::of(Path::new(name));
        let operation = |direction, cold| Operation { direction, cold };
        for (name, file) in [
            (
                "a/micro-benchmark_to_1.dat",
                File::Latency(operation("to", false)),
            ),
            (
                "micro-benchmark_to_nc_10.dat",
                File::Latency(operation("to", true)),
            ),
            (
                "micro-benchmark_from_to_2.dat",
                File::Latency(operation("both", false)),
            ),
            ("micro-benchmark_to_1_synth.dat", File::Synthesis),
            (
                "measures_from_to.dat",
                File::Bandwidth(operation("both", false)),
            ),
            ("measures_to_nc.dat", File::Bandwidth(operation("to", true))),
            ("measure_to.dat", File::Pollution),
            ("synthesis_x.dat", File::Synthesis),
        ] {
            assert_eq!(of(name), Some(file), "{name}");
        }
        for name in [
            "micro-benchmark_to.dat",
            "micro-benchmark_up_1.dat",
            "measures_sideways.dat",
            "measure_x.txt",
            "mem_trace_to.dat",
            "",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_column() {
        let latency = "micro-benchmark_to_1.dat";
        let bandwidth = "measures_to.dat";
        let pollution = "measure_x.dat";
        let channel = "0 1048576 1 0 1000000 1000000 1000.000000";
        let total = |total: &str| format!("{channel} total_band= {total}");
        let mut twice = format!("{channel}\n{channel}\n");
        twice.push_str("total_band= 2000.0");
        for (file, text, wanted) in [
            (latency, "", "holds no measurement"),
            (
                latency,
                "1 2 3",
                "line 1, column 6: ends after 3 fields; 5 are wanted: CPU, bytes",
            ),
            (
                latency,
                "1 2 3 4 1 6",
                "line 1, column 11: has more than 5 fields",
            ),
            (
                latency,
                "0 64 5 9 4\n\n 0  0 5 9 4",
                "line 3, column 5: 0 is not a number of bytes",
            ),
            (
                latency,
                "0 64 \u{e9} 9 4",
                "line 1, column 6: `\u{e9}` is not a clock",
            ),
            (
                latency,
                "-1 64 5 9 4",
                "line 1, column 1: `-1` is not the number of a CPU",
            ),
            (
                latency,
                "0 64 9 5 4",
                "line 1, column 8: the clock after is before",
            ),
            (
                latency,
                "0 64 5 9 5",
                "line 1, column 10: 5 ns is more than the 4 ns",
            ),
            (
                bandwidth,
                channel,
                "line 1, column 42: the file ends without the total_band=",
            ),
            (
                bandwidth,
                &total("1001"),
                "line 1, column 55: 1001 MB/s is not the sum",
            ),
            (bandwidth, &total(""), "one rate is wanted"),
            (bandwidth, &total("1000 7"), "one rate is wanted"),
            (bandwidth, &total("nan"), "`nan` is not a rate"),
            (
                bandwidth,
                "total_band= 1",
                "line 1, column 1: total_band= of no channel",
            ),
            (bandwidth, &twice, "line 2, column 1: channel 0 again"),
            (
                bandwidth,
                "0 64 1 5 9 0 1",
                "line 1, column 12: 0 ns is no time",
            ),
            (
                bandwidth,
                "0 1024 1 5 9 4 1",
                "column 16: 1 MB/s is not bytes x operations / time",
            ),
            (
                bandwidth,
                "0 18446744073709551615 2 5 9 4 1",
                "more than can be counted",
            ),
            (
                pollution,
                "a 5 9 4 x 1 1",
                "line 1, column 9: `x` is not a number of cache references",
            ),
            (
                pollution,
                "a 5 9 4 n/a n/a 1",
                "line 1, column 17: a share of misses",
            ),
        ] {
            let problem = read(file, text).unwrap_err().to_string();
            assert!(
                problem.starts_with(wanted)
                    || !wanted.starts_with("line") && problem.contains(wanted),
                "{text}: {problem}"
            );
        }
    }

    #[test]
    fn points_without_end_are_refused() {
        let line = |bytes: usize| format!("0 {bytes} 5 9 4\n");
        let text: String = (1..=MAX_POINTS + 1).map(line).collect();
        let problem = read("micro-benchmark_to_1.dat", &text).unwrap_err();
        assert_eq!(problem.place, Some((MAX_POINTS + 1, 1)), "{problem}");
        let all = text.lines().take(MAX_POINTS).collect::<Vec<_>>().join("\n");
        assert_eq!(
            read("micro-benchmark_to_1.dat", &all).unwrap().len(),
            MAX_POINTS
        );
    }

    /// A point with its samples.
    fn point() -> impl Strategy<Value = RunRecord> {
        let direction = prop::sample::select(vec!["from", "to", "both"]);
        let samples = prop::collection::vec(1..1_000_000_000_u64, 1..20);
        let point = (direction, 1..1_u64 << 40, any::<bool>(), samples, 0..50_u64);
        point.prop_map(|(direction, bytes, cold, samples, pause)| {
            let mut record = example("cpu", direction, bytes, &samples);
            if cold {
                record.workload = record.workload.with("cold", true);
            }
            let stage = &mut record.lanes[0].stages[0];
            if direction == "both" {
                stage.bytes_per_op *= 2;
            }
            // Caches are emptied between samples.
            let mut at = stage.start_ns;
            for ns in &stage.sample_ns {
                stage.sample_start_ns.push(at);
                stage.end_ns = at + ns;
                at += ns + pause;
            }
            record
        })
    }

    fn reread(files: &classic::Files) -> Vec<RunRecord> {
        let raw = files.iter().filter(|(name, _)| !name.contains("_synth"));
        raw.flat_map(|(name, text)| read(name, text).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn what_classic_writes_of_latencies_is_read_back(points in prop::collection::vec(point(), 1..6)) {
            let files = classic::latency(&points);
            // Points of one size share a line's key: they become one point.
            let again = classic::latency(&reread(&files));
            let raw = |files: &classic::Files| -> Vec<(String, String)> {
                let raw = files.iter().filter(|(name, _)| !name.contains("_synth"));
                raw.map(|(name, text)| (name.clone(), text.clone())).collect()
            };
            prop_assert_eq!(raw(&again), raw(&files));
        }

        #[test]
        fn what_classic_writes_of_bandwidths_is_read_back(
            point in point(),
            lanes in 1..6_usize,
            operations in 1..10_000_u64,
        ) {
            let mut point = point;
            let mut lane = point.lanes[0].clone();
            lane.stages[0].ops_per_sample = operations;
            point.lanes = vec![lane; lanes];
            // One time for all samples is all that such a file has. Rates of any size have no equal last digits.
            let parts = |files: classic::Files| {
                let text: String = files.into_values().collect();
                let fields = text.split_whitespace().map(str::to_owned);
                let (rates, counts): (Vec<String>, Vec<String>) = fields.partition(|field| field.contains('.'));
                let rates: Vec<f64> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
                (counts, rates)
            };
            let files = classic::bandwidth(std::slice::from_ref(&point));
            let again = classic::bandwidth(&reread(&files));
            prop_assert_eq!(files.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
            let ((counts, rates), (counts_again, rates_again)) = (parts(files), parts(again));
            prop_assert_eq!(counts, counts_again);
            prop_assert_eq!(rates.len(), rates_again.len());
            for (rate, again) in rates.into_iter().zip(rates_again) {
                prop_assert!((rate - again).abs() <= 1e-6 + 1e-9 * rate, "{} {}", rate, again);
            }
        }

        #[test]
        fn any_text_is_read_or_refused_at_a_place_within_it(
            text in "[ \\t\\n0-9a-z./=\u{e9}_-]{0,200}",
            name in prop::sample::select(vec!["micro-benchmark_to_1.dat", "measures_from_to.dat", "measure_x.dat"]),
        ) {
            match read(name, &text) {
                Ok(records) => prop_assert!(!records.is_empty() && records.iter().all(|record| record.lanes.iter().all(|lane| !lane.stages.is_empty()))),
                Err(Problem { place: None, .. }) => prop_assert!(text.trim().is_empty()),
                Err(Problem { place: Some((line, column)), .. }) => {
                    let found = text.lines().nth(line - 1).unwrap();
                    prop_assert!(column >= 1 && column <= found.chars().count() + 1);
                }
            }
        }
    }
}
