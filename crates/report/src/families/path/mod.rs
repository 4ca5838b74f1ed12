//! Paths: the sustained rate, the time of each thread, the filling of the queues, the latency of
//! blocks.

mod facts;
mod kept;
pub(crate) mod overview;
mod tables;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::path::PathRun;

pub(crate) use overview::chains;

use super::pmu::tables::counted;
use super::watched;

use crate::family::{Family, Work, of_engine};
use crate::faults::faults_and_ledgers;
use crate::frame::Frame;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Threads)],
    footnote: |record| {
        let run = record.sections.path.as_deref()?;
        Some(format!("layout {}; latency: {}", run.layout, facts::latency(record, run)))
    },
    headline,
    ..Family::EMPTY
};

const ENGINE: &str = "path";

/// Returns the arguments of `daqmeter path` that identify a path. A path with other values for its
/// fields is another one.
pub(crate) fn name(record: &RunRecord) -> Option<String> {
    let path = record.workload.text("path").ok()?;
    Some(match record.workload.text("with") {
        Ok(with) => {
            let with: Vec<&str> = with.split(';').collect();
            format!("{path} --set {}", with.join(" --set "))
        }
        Err(_) => path.to_owned(),
    })
}

type Run<'a> = (&'a RunRecord, &'a PathRun);

/// Returns the runs of every path, from valid records of a host.
fn paths(records: &[RunRecord]) -> BTreeMap<String, Vec<Run<'_>>> {
    let mut paths: BTreeMap<String, Vec<Run<'_>>> = BTreeMap::new();
    for record in of_engine(records, ENGINE).filter(|record| record.role.is_point()) {
        if let (Some(run), Some(name)) = (record.sections.path.as_deref(), name(record)) {
            paths.entry(name).or_default().push((record, run));
        }
    }
    paths
}

/// Returns the longest of a path's runs. A run at full speed is preferred, because a run at a rate
/// shows the request, not the capacity. Of equals the newest is taken.
fn longest<'a>(runs: &[Run<'a>]) -> Option<Run<'a>> {
    runs.iter().max_by_key(|(_, run)| (!run.is_paced, run.wall_ns)).copied()
}

/// Shows each run in sentences, with its threads, its queues and its faults.
pub fn runs(records: &[RunRecord]) -> Frame {
    shown(records, |said, run| {
        let tables = tables::threads(run) + &tables::queues(run);
        facts::lines(&facts::behind(said)) + "\n" + &tables
    })
}

/// Shows the answer of a search in sentences.
pub fn explained(records: &[RunRecord]) -> Frame {
    shown(records, |said, _| facts::lines(&facts::explained(said)))
}

fn shown(records: &[RunRecord], text: fn(Vec<facts::Said>, &PathRun) -> String) -> Frame {
    let (mut tables, mut notes) = (String::new(), Vec::new());
    for record in records.iter().filter(|record| record.role.is_point()) {
        if let Some(run) = &record.sections.path {
            let said = facts::said(&name(record).unwrap_or_default(), run, record, 1);
            tables.push_str(&text(said, run));
        }
        notes.extend(watched::notes(record));
        notes.extend(faults_and_ledgers(record));
        notes.extend(counted(record));
    }
    Frame::of(tables, notes)
}

fn headline(records: &[RunRecord]) -> Option<String> {
    let record = records.iter().rfind(|record| record.role.is_point())?;
    let run = record.sections.path.as_deref()?;
    Some(facts::headline(&name(record)?, run, record))
}

pub fn threads_text(records: &[RunRecord]) -> String {
    let runs = records.iter().filter_map(|record| record.sections.path.as_deref());
    runs.map(tables::threads).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::Host;
    use daqmeter_record::path::{Bucket, LimitFound, PathLimit, PathQueue, PathThread};
    use daqmeter_record::resources::What;

    use super::*;

    /// Limit of a path without a rate of its own, by a search of 33 runs.
    pub(crate) fn limit(found: LimitFound) -> PathLimit {
        PathLimit {
            found,
            runs: 33,
            used: None,
            gain: None,
            costs: Vec::new(),
            tried: Vec::new(),
            change: None,
            others: 0.0,
            other: None,
            longest_gap_ns: 0,
            carries_bytes_per_s: 65e6,
            rate_bytes_per_s: None,
        }
    }

    pub(crate) fn record() -> RunRecord {
        let thread = |element, name: &str, busy_ns, input_ns, output_ns| PathThread {
            name: name.to_owned(),
            part: name.to_owned(),
            element,
            blocks: 1000,
            wall_ns: 1_000_000_000,
            busy_ns,
            input_ns,
            output_ns,
            preempted_ns: Some(10_000_000),
            elsewhere_ns: 990_000_000 - busy_ns - input_ns - output_ns,
            cpu_ns: busy_ns,
            ..PathThread::default()
        };
        let mut record = crate::examples::example();
        record.engine.name = ENGINE.into();
        record.engine.emulated = false;
        record.workload = daqmeter_record::Workload::new(ENGINE).with("path", "pattern").into();
        record.ledgers.clear();
        record.sections.path = Some(Box::new(PathRun {
            line: "64 KiB -> memory -> copy memcpy -> read".to_owned(),
            wall_ns: 1_000_000_000,
            payload_bytes: 65_536_000,
            blocks: 1000,
            events: 4000,
            verified_blocks: 1000,
            threads: vec![
                thread(0, "memory", 400_000_000, 0, 500_000_000),
                thread(1, "copy", 900_000_000, 50_000_000, 0),
                thread(2, "read", 300_000_000, 600_000_000, 0),
            ],
            queues: vec![PathQueue {
                from: "memory".to_owned(),
                to: "copy".to_owned(),
                seen: vec![0, 10, 990],
            }],
            latency: vec![Bucket { from_ns: 30_000, count: 1000 }],
            latency_max_ns: 77_000,
            layout: "pipeline".to_owned(),
            cpus: 2.0,
            ..PathRun::default()
        }));
        record
    }

    #[test]
    fn a_path_is_shown_with_its_threads_and_queues() {
        let text = headline(&[record()]).unwrap() + &runs(&[record()]).text(None);
        for wanted in [
            "65.54 MB/s sustained",
            "over 1 s, layout pipeline: 62.5 MiB in 1000 blocks, 4000 events/s",
            "1000 of 1000 blocks verified",
            "memory -> copy",
            "copy 94 %, all CPUs together 80 %",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let copy = text.lines().find(|line| line.starts_with(" copy "));
        let cells: Vec<&str> = copy.unwrap().split_whitespace().collect();
        // Columns: blocks, busy, no input, no room, not due, preempted, elsewhere.
        assert_eq!(&cells[2..9], ["1000", "90", "5", "0", "0", "1", "4"], "{text}");
    }

    /// Regression: one row had the rate of one host and the limit of the other.
    #[test]
    fn a_path_on_two_hosts_is_two_rows_with_their_names() {
        let on = |host: &str, payload_bytes, found| {
            let mut record = record();
            let own = Host { name: host.to_owned(), ..Host::clone(&record.host) };
            record.host = own.into();
            let run = record.sections.path.as_mut().unwrap();
            (run.payload_bytes, run.events) = (payload_bytes, 0);
            run.limit = Some(limit(found));
            record
        };
        let what = What::Threads { element: 1, name: "copy".to_owned() };
        let a = on("daq-a", 2_000_000_000, LimitFound::Limit(what));
        let b = on("daq-b", 1_000_000_000, LimitFound::NoSingleOne);
        let text = crate::answers_text(&[a.clone(), b]);
        let [of_a, of_b] =
            ["daq-a: pattern\n", "daq-b: pattern\n"].map(|name| text.split(name).nth(1).unwrap());
        assert!(
            of_a.contains("carries    2000 MB/s") && of_a.contains("limit      copy: "),
            "{text}"
        );
        assert!(
            of_b.contains("carries    1000 MB/s") && of_b.contains("limit      no single"),
            "{text}"
        );
        let one = crate::answers_text(&[a]);
        assert!(one.starts_with("pattern\n"), "{one}");
    }

    /// Regression: the faster of two runs represented a path, one of 33 ms instead of 299.
    #[test]
    fn the_longest_run_stands_for_a_path_and_one_at_a_rate_only_where_there_is_no_other() {
        let run = |wall_ns, payload_bytes, is_paced| {
            let mut record = record();
            let run = record.sections.path.as_mut().unwrap();
            (run.wall_ns, run.payload_bytes, run.is_paced) = (wall_ns, payload_bytes, is_paced);
            record
        };
        let found = |records: &[RunRecord]| {
            let runs = &paths(records)["pattern"];
            (longest(runs).unwrap().1.wall_ns, runs.len())
        };
        let (short, long) = (run(33, 4393, false), run(299, 3683, false));
        assert_eq!(found(&[short.clone(), long.clone()]), (299, 2));
        assert_eq!(found(&[long, short.clone()]), (299, 2));
        let at_rate = run(1000, 10, true);
        assert_eq!(found(&[at_rate.clone(), short]), (33, 2));
        assert_eq!(found(&[at_rate]), (1000, 1));
    }
}
