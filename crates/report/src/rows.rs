//! One row per lane and stage: the summary that all outputs share. Derived from the samples each time, never stored.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::workload::NOT_IN_KEY;
use daqmeter_record::{Lane, Outcome, Param, RunRecord, Stage};
use daqmeter_stats::Summary;
use serde::Serialize;

use crate::rate::{self, Doubt, undone};

/// A stage of a lane, summarised.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Study of the record.
    pub study: String,
    /// Engine.
    pub engine: String,
    /// Device of the lane.
    pub device: String,
    /// Stage, by the name that the original's table has for it.
    pub stage: String,
    /// Stage for people, with the decimation factor where it matters.
    pub label: String,
    /// What tells its workload from the others of its study and engine: the parameters that differ. Empty where none does.
    pub point: String,
    /// True when a device of the record is emulated.
    pub emulated: bool,
    /// Number of samples.
    pub n: usize,
    /// Operations in each sample: above 1 a sample is the mean of so many, and says nothing of single ones.
    pub ops_per_sample: u64,
    /// Bytes of one operation, as counted.
    pub bytes_per_op: u64,
    /// Median time of one operation.
    pub median_ns: f64,
    /// Robust standard deviation over the median.
    pub spread: f64,
    /// 95 % confidence interval of the median.
    pub ci_ns: (f64, f64),
    /// 99th percentile of one operation; none where a sample is the mean of several, or samples are too few for it.
    pub p99_ns: Option<f64>,
    /// Samples marked as outliers.
    pub outliers: usize,
    /// Sustained rate: all bytes over all time.
    pub rate_bytes_per_s: f64,
    /// 95 % confidence interval of the rate, where there are enough samples.
    pub rate_interval_bytes_per_s: Option<(f64, f64)>,
    /// Limit of the same run, a rate by the same definition.
    pub limit_bytes_per_s: Option<f64>,
    /// Interval of the limit, where it was measured.
    pub limit_interval_bytes_per_s: Option<(f64, f64)>,
    /// Rate over limit; none where the work was not done.
    pub fraction: Option<f64>,
    /// Why the numbers are shown and not used.
    pub doubt: Option<Doubt>,
    /// CPU time of the thread over the time of the stage.
    pub cpu_fraction: f64,
    /// How the lane ended, or the record where the lane is well.
    pub outcome: Outcome,
}

impl Row {
    /// How it ended and why, where the work was not done: `("failed", "bytes differ")`.
    pub fn undone(&self) -> Option<(&'static str, &str)> {
        undone(&self.outcome)
    }

    /// A row without numbers, of what was not measured.
    fn empty(record: &RunRecord, device: &str, outcome: Outcome) -> Row {
        Row {
            study: record.study.clone(),
            engine: record.engine.name.clone(),
            device: device.to_owned(),
            emulated: record.engine.emulated,
            outcome,
            ..Row::default()
        }
    }
}

/// Rows of all records, by study, engine and parameters: points are measured in random order, and looked up in that of their
/// values. Records without lanes (waived ones) give none: see [`without_lanes`].
pub fn rows(records: &[RunRecord]) -> Vec<Row> {
    let differing = differing(records);
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by(|&a, &b| {
        let names = |at: usize| (records[at].study.as_str(), records[at].engine.name.as_str());
        names(a)
            .cmp(&names(b))
            .then_with(|| by_values(&differing[a], &differing[b]))
    });
    let of = |at: usize| -> Vec<Row> {
        let point = point(&differing[at]);
        rows_of(&records[at])
            .into_iter()
            .map(|row| Row {
                point: point.clone(),
                ..row
            })
            .collect()
    };
    on_all_cpus(&order, of).into_iter().flatten().collect()
}

/// The results in the order of the places: the records of a survey hold hundreds of thousands of samples to summarise.
fn on_all_cpus<T: Send>(places: &[usize], of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    /// Fewer are done before a thread has begun.
    const FEW: usize = 16;
    let threads = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(8));
    if places.len() <= FEW || threads == 1 {
        return places.iter().map(|at| of(*at)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| {
            let nth = next.fetch_add(1, Relaxed);
            places.get(nth).map(|at| (nth, of(*at)))
        });
        mine.collect::<Vec<_>>()
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        others
            .into_iter()
            .for_each(|thread| all.extend(thread.join().expect("summaries do not panic")));
        all
    });
    all.sort_by_key(|(nth, _)| *nth);
    all.into_iter().map(|(_, result)| result).collect()
}

type Parameters<'a> = Vec<(&'a str, &'a Param)>;

/// Of each record what [`Row::point`] of its rows is.
pub(crate) fn points(records: &[RunRecord]) -> Vec<String> {
    differing(records).iter().map(point).collect()
}

fn point(differing: &Parameters<'_>) -> String {
    /// What the stage's label tells already.
    const IN_STAGE: [&str; 2] = ["function", "dec_factor"];
    let told = differing
        .iter()
        .filter(|(name, _)| !IN_STAGE.contains(name));
    told.map(|(name, value)| shown(name, value))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Of each record the parameters that are not the same in all records of its study and engine.
fn differing(records: &[RunRecord]) -> Vec<Parameters<'_>> {
    fn group(record: &RunRecord) -> (&str, &str) {
        (&record.study, &record.engine.name)
    }
    let mut groups: HashMap<(&str, &str), (&RunRecord, BTreeSet<&str>)> = HashMap::new();
    for record in records {
        let (first, names) = groups
            .entry(group(record))
            .or_insert((record, BTreeSet::new()));
        let (known, own) = (&first.workload.params, &record.workload.params);
        let all = known.keys().chain(own.keys());
        names.extend(
            all.filter(|name| known.get(*name) != own.get(*name))
                .map(String::as_str),
        );
    }
    let mut all = Vec::with_capacity(records.len());
    for record in records {
        let names = groups.get(&group(record)).map(|(_, names)| names);
        let differs = |name: &str| {
            !NOT_IN_KEY.contains(&name) && names.is_some_and(|names| names.contains(name))
        };
        let own = record
            .workload
            .params
            .iter()
            .filter(|(name, _)| differs(name));
        all.push(own.map(|(name, value)| (name.as_str(), value)).collect());
    }
    all
}

/// Numbers by their size, names by their letters.
fn by_values(a: &Parameters<'_>, b: &Parameters<'_>) -> Ordering {
    let number = |param: &Param| match param {
        Param::Flag(flag) => Some(f64::from(u8::from(*flag))),
        Param::Int(count) => Some(*count as f64),
        Param::Float(value) => Some(*value),
        Param::Text(_) => None,
    };
    let pairs = a.iter().zip(b).map(|((name_a, a), (name_b, b))| {
        name_a
            .cmp(name_b)
            .then_with(|| match (number(a), number(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (None, None) => a.to_string().cmp(&b.to_string()),
                (a, b) => a.is_none().cmp(&b.is_none()),
            })
    });
    pairs
        .fold(Ordering::Equal, Ordering::then)
        .then(a.len().cmp(&b.len()))
}

/// A parameter for people, with its unit where its name ends with one.
fn shown(name: &str, value: &Param) -> String {
    match (value, name.strip_suffix("_bytes")) {
        (Param::Int(bytes), Some(name)) => format!("{name} {}", show_bytes(*bytes)),
        _ => match (value, name.strip_suffix("_hz")) {
            (Param::Float(hz), Some(name)) => format!("{name} {} Hz", significant(*hz, 6)),
            _ => format!("{name} {value}"),
        },
    }
}

/// Rows of a record; a lane that failed before its first stage is a row without numbers.
pub(crate) fn rows_of(record: &RunRecord) -> Vec<Row> {
    record
        .lanes
        .iter()
        .flat_map(|lane| rows_of_lane(record, lane))
        .collect()
}

fn rows_of_lane(record: &RunRecord, lane: &Lane) -> Vec<Row> {
    let outcome = if lane.outcome.is_ok() {
        &record.outcome
    } else {
        &lane.outcome
    };
    if lane.stages.is_empty() && !outcome.is_ok() {
        return vec![Row::empty(record, &lane.device, outcome.clone())];
    }
    let row = |stage| Row {
        outcome: outcome.clone(),
        device: lane.device.clone(),
        ..row_of(record, stage, outcome)
    };
    lane.stages.iter().map(row).collect()
}

/// The numbers of a stage.
fn row_of(record: &RunRecord, stage: &Stage, outcome: &Outcome) -> Row {
    let summary = summary(stage).unwrap_or_default();
    let rate = rate::of(stage).unwrap_or_default();
    let limit = rate::limit_of(record, stage).map(rate::limit_rate);
    let share = rate::held(record, stage)
        .map(|held| held.share)
        .filter(|_| outcome.is_ok());
    Row {
        stage: stage.name.clone(),
        label: label(record, stage),
        n: summary.n,
        ops_per_sample: stage.ops_per_sample,
        bytes_per_op: stage.bytes_per_op,
        median_ns: summary.median,
        spread: summary.relative_spread(),
        ci_ns: summary.median_ci,
        p99_ns: summary.p99.filter(|_| stage.ops_per_sample <= 1),
        outliers: summary.outliers,
        rate_bytes_per_s: rate.per_s,
        rate_interval_bytes_per_s: rate.interval,
        limit_bytes_per_s: limit.map(|limit| limit.per_s),
        limit_interval_bytes_per_s: limit.and_then(|limit| limit.interval),
        fraction: share.map(|share| share.fraction),
        doubt: share.and_then(Doubt::of),
        cpu_fraction: cpu_fraction(stage),
        ..Row::empty(record, "", Outcome::Ok)
    }
}

/// A row without numbers for each record that never got as far as a lane: for tables that have a line for everything.
pub(crate) fn absent_rows(records: &[RunRecord]) -> Vec<Row> {
    without_lanes(records)
        .map(|(record, ..)| Row::empty(record, "", record.outcome.clone()))
        .collect()
}

fn label(record: &RunRecord, stage: &Stage) -> String {
    let factor = record.workload.int("dec_factor").unwrap_or(1);
    let name = short(&stage.name);
    if factor > 1 && name.contains("decimate") {
        format!("{name} 1:{factor}")
    } else {
        name
    }
}

/// The original's names in the words of its help.
pub(crate) fn short(name: &str) -> String {
    if let Some(fused) = name.strip_prefix("readout+") {
        return format!("read-out + {}", short(fused));
    }
    match name {
        "func_no_decsca" => "cast",
        "func_sca" => "scale",
        "func_dec" => "decimate",
        "func_decsca" => "decimate+scale",
        "func_umn2double" => "unsigned f64",
        "func_smn2double" => "signed f64",
        "func_umn2float" => "unsigned f32",
        "func_smn2float" => "signed f32",
        "func_readout" => "read-out",
        "func_pattern" => "write pattern",
        "wait_trigger" => "wait for trigger",
        other => other,
    }
    .to_owned()
}

/// Summary of a stage in nanoseconds per operation; none without samples.
pub fn summary(stage: &Stage) -> Option<Summary> {
    Summary::of(&times_ns(stage))
}

/// Median alone, without sorting the samples.
pub(crate) fn median_ns(stage: &Stage) -> Option<f64> {
    Some(daqmeter_stats::median(&times_ns(stage))).filter(|median| median.is_finite())
}

/// Time of one operation in each sample.
pub(crate) fn times_ns(stage: &Stage) -> Vec<f64> {
    let per_op = stage.ops_per_sample.max(1) as f64;
    stage
        .sample_ns
        .iter()
        .map(|&ns| ns as f64 / per_op)
        .collect()
}

/// CPU time of the thread over the time that its samples took.
fn cpu_fraction(stage: &Stage) -> f64 {
    let seconds = stage.seconds();
    if seconds > 0.0 {
        stage.cpu.total_ns() as f64 * 1e-9 / seconds
    } else {
        0.0
    }
}

/// Records that were waived or failed before any lane ran: study, engine, reason.
pub fn without_lanes(
    records: &[RunRecord],
) -> impl Iterator<Item = (&RunRecord, &'static str, &str)> {
    let absent = records.iter().filter(|record| record.lanes.is_empty());
    absent.filter_map(|record| undone(&record.outcome).map(|(how, why)| (record, how, why)))
}

/// The tool's own cost per operation in nanoseconds: of the null engine's record if there is one, else as every record holds
/// it. None for records of tools that did not measure it.
pub fn tool_cost_ns(records: &[RunRecord]) -> Option<f64> {
    let null = records.iter().filter(|record| record.engine.name == "null");
    let null = null.flat_map(rows_of).map(|row| row.median_ns).next();
    null.or_else(|| {
        records
            .iter()
            .map(|record| record.clock.tool_ns_per_op)
            .find(|&ns| ns > 0.0)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use daqmeter_record::{CpuTime, EngineInfo, Ledger, Limit, LimitBasis, Workload};

    /// A record like those of `daqmeter digitizer`, with fixed numbers, for the snapshots of all outputs.
    pub(crate) fn example() -> RunRecord {
        let engine = EngineInfo {
            name: "digitizer".into(),
            target: "emu:ku0 emu:l0".into(),
            emulated: true,
        };
        let workload = Workload::new("digitizer")
            .with("devices", "emu:ku0 emu:l0")
            .with("samples", 3_000_000_u64)
            .with("function", 4_u64)
            .with("dec_factor", 1_u64);
        let mut record = RunRecord::new(engine, workload);
        record.study = "digitizer".into();
        record.time_utc = "2026-11-21T03:00:00.000Z".into();
        record.command = "daqmeter digitizer emu:ku0 emu:l0 -S 3000000 -N 3 -A 4".into();
        let cpu_model = "Test CPU <script>alert(1)</script>".into();
        record.host = daqmeter_record::Host {
            cpu_model,
            ..Default::default()
        }
        .into();
        record.tool.name = "daqmeter".into();
        record.limits = vec![
            Limit::given("link", 1.278e9, "profile"),
            Limit {
                basis: LimitBasis::Sustained,
                low_bytes_per_s: Some(9.8e9),
                high_bytes_per_s: Some(10.2e9),
                ..Limit::given("memory 1:2", 10e9, "measured")
            },
        ];
        for (device, factor) in [("emu:ku0", 1), ("emu:l0", 2)] {
            let stage = |name: &str, limit: &str, start_ns: u64, ns: u64| Stage {
                name: name.into(),
                ops_per_sample: 1,
                bytes_per_op: 6_000_000,
                traffic_bytes_per_op: 12_000_000,
                limit: Some(limit.into()),
                start_ns,
                end_ns: start_ns + ns * 3,
                sample_start_ns: vec![],
                sample_ns: vec![ns - 1000, ns, ns + 1000],
                cpu: CpuTime {
                    user_ns: ns * 3 / 2,
                    system_ns: 0,
                },
            };
            record.lanes.push(Lane {
                device: device.into(),
                stages: vec![
                    stage("func_readout", "link", 100_000, 5_000_000 * factor),
                    stage("func_no_decsca", "memory 1:2", 16_000_000 * factor, 700_000),
                ],
                ..Lane::default()
            });
        }
        let mut ledger = Ledger {
            issued: 36_000_000,
            delivered: 36_000_000,
            ..Ledger::new("bytes")
        };
        ledger.lose("short read", 0);
        record.ledgers = vec![ledger];
        record.wall_ns = 33_000_000;
        (
            record.host_cpu.user_ns,
            record.host_cpu.steal_ns,
            record.host_cpu.idle_ns,
        ) = (30_000_000, 10_000_000, 60_000_000);
        record.memory.peak_rss_bytes = 64 << 20;
        (record.clock.tool_ns_per_op, record.clock.overhead_ns) = (0.54, 24.0);
        record
    }

    #[test]
    fn a_row_holds_rate_limit_and_fraction() {
        let rows = rows(&[example()]);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0].rate_bytes_per_s, 1.2e9);
        assert!((rows[0].fraction.unwrap() - 1.2 / 1.278).abs() < 1e-9);
        assert!((rows[0].cpu_fraction - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_rate_is_sustained_and_has_its_interval() {
        let mut record = example();
        // 60 reads of 6 MB in 0.1 ms, 40 in 10 ms: by the median 60 GB/s, over all time 1.5.
        record.lanes[0].stages[0].sample_ns = (0..100)
            .map(|at| if at % 5 < 3 { 100_000 } else { 10_000_000 })
            .collect();
        let row = &rows(&[record])[0];
        assert!((row.rate_bytes_per_s / (600e6 / 0.406) - 1.0).abs() < 1e-9);
        let (low, high) = row.rate_interval_bytes_per_s.unwrap();
        assert!(
            (
                row.median_ns,
                low <= row.rate_bytes_per_s,
                row.rate_bytes_per_s <= high
            ) == (1e5, true, true)
        );
    }

    #[test]
    fn a_failure_of_the_record_or_the_lane_is_in_its_rows_and_nothing_is_held_against_a_limit() {
        let failed = |why: &str| Outcome::Failed(why.into());
        let mut by_ledger = example();
        by_ledger.outcome = failed("ledger: does not close");
        let mut by_lane = example();
        (by_lane.outcome, by_lane.lanes[1].outcome) =
            (failed("emu:l0: board gone"), failed("board gone"));
        by_lane.lanes[1].stages.clear();
        let found = rows_of(&by_ledger);
        assert!(
            found
                .iter()
                .all(|row| row.undone() == Some(("failed", "ledger: does not close")))
        );
        assert!(found.iter().all(|row| row.fraction.is_none() && row.n == 3));
        let found = rows_of(&by_lane);
        assert_eq!(found.len(), 3, "a lane that never began is a row, too");
        assert_eq!(
            (found[2].n, found[2].undone()),
            (0, Some(("failed", "board gone")))
        );
        let mut waived = example();
        waived.lanes.clear();
        waived.outcome = Outcome::Waived("no card".into());
        let absent = absent_rows(&[example(), waived]);
        assert_eq!(
            (absent.len(), absent[0].undone()),
            (1, Some(("waived", "no card")))
        );
    }

    #[test]
    fn a_rate_above_its_limit_is_doubted() {
        let found = rows_of(&crate::rate::tests::above_its_limit());
        assert_eq!(
            (found[0].doubt, found[1].doubt),
            (Some(Doubt::AboveLimit), None)
        );
        assert!((found[0].fraction.unwrap() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_percentile_is_of_single_operations_and_of_enough_of_them() {
        let p99 = |samples: usize, ops_per_sample: u64| {
            let mut record = example();
            let stage = &mut record.lanes[0].stages[0];
            (stage.sample_ns, stage.ops_per_sample) = (vec![1000; samples], ops_per_sample);
            rows_of(&record)[0].p99_ns
        };
        assert_eq!(
            (p99(30, 1), p99(298, 1), p99(299, 1), p99(5000, 10)),
            (None, None, Some(1000.0), None)
        );
    }

    #[test]
    fn rows_stand_in_the_order_of_what_differs_and_say_it() {
        let with = |samples: u64, function: u64| {
            let mut record = example();
            record.lanes.truncate(1);
            record.lanes[0].stages.truncate(1);
            record.workload = record
                .workload
                .with("samples", samples)
                .with("function", function);
            record
        };
        let mut other = with(5, 4).clone();
        other.study = "another".into();
        let records = [with(100, 4), with(9, 4), other, with(100, 3)];
        let points: Vec<(String, String)> = rows(&records)
            .into_iter()
            .map(|row| (row.study, row.point))
            .collect();
        let of = |study: &str, point: &str| (study.to_owned(), point.to_owned());
        let digitizer = |point: &str| of("digitizer", point);
        assert_eq!(
            points,
            [
                of("another", ""),
                digitizer("samples 100"),
                digitizer("samples 9"),
                digitizer("samples 100")
            ]
        );
        assert_eq!(shown("read_bytes", &Param::Int(4096)), "read 4 KiB");
        assert_eq!(shown("rate_hz", &Param::Float(1e6)), "rate 1000000 Hz");
    }

    #[test]
    fn results_of_all_threads_stand_in_order() {
        let places: Vec<usize> = (0..500).rev().collect();
        assert_eq!(
            on_all_cpus(&places, |at| at * 2),
            places.iter().map(|at| at * 2).collect::<Vec<_>>()
        );
        assert_eq!(on_all_cpus(&places[..3], |at| at), [499, 498, 497]);
    }

    #[test]
    fn a_stage_without_samples_gives_a_row_of_zeros_and_not_a_panic() {
        let mut record = example();
        record.lanes[0].stages[0].sample_ns.clear();
        let rows = rows(&[record]);
        assert_eq!(
            (rows[0].n, rows[0].rate_bytes_per_s, rows[0].fraction),
            (0, 0.0, None)
        );
    }
}
