//! Paths: the sustained rate, the time of each thread, the filling of the queues, the latency of
//! blocks.

use daqmeter_record::border::sum;
use std::collections::BTreeMap;
use std::fmt::Write;

use daqmeter_record::path::{PathQueue, PathRun, PathThread, PathWithin};
use daqmeter_record::resources::{Resource, resources};
use daqmeter_record::units::{plural, show_bytes, show_mb_per_s, show_ns, significant};
use daqmeter_record::{RunRecord, Stage, sanitise};

use crate::aligned::{TextColumn, table};
use crate::family::{Family, Work, of_engine};
use crate::faults::faults_and_ledgers;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Path)],
    label: |record, _: &Stage| format!("path {}", name(record).unwrap_or_default()),
    in_label: &["path", "with"],
    footnote,
    ..Family::EMPTY
};

const ENGINE: &str = "path";

/// Returns the sustained rate: all bytes over all the time from release to end.
pub(crate) fn rate_bytes_per_s(run: &PathRun) -> f64 {
    run.payload_bytes as f64 / run.wall_ns.max(1) as f64 * 1e9
}

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

pub(crate) struct Longest<'a> {
    pub(crate) record: &'a RunRecord,
    pub(crate) run: &'a PathRun,
    /// Number of runs of the path, of which this is the longest.
    pub(crate) of: usize,
}

/// Returns the longest run of every path, from valid records. A run at full speed is preferred,
/// because a run at a rate shows the request, not the capacity. Of equals the newest is taken.
pub(crate) fn longest(records: &[RunRecord]) -> BTreeMap<String, Longest<'_>> {
    let runs = of_engine(records, ENGINE).filter(|record| record.role.is_point());
    let mut longest: BTreeMap<String, Longest<'_>> = BTreeMap::new();
    let rank = |run: &PathRun| (!run.is_paced, run.wall_ns);
    for record in runs {
        let (Some(run), Some(name)) = (record.path.as_deref(), name(record)) else {
            continue;
        };
        let found = longest.entry(name).or_insert(Longest { record, run, of: 0 });
        found.of += 1;
        if rank(run) >= rank(found.run) {
            (found.record, found.run) = (record, run);
        }
    }
    longest
}

/// Returns the requested rate, and if it was kept. `None` for a run at full speed, for one that
/// failed, and for older records.
pub(crate) fn asked(record: &RunRecord, run: &PathRun) -> Option<String> {
    let asked = run.asked_bytes_per_s.filter(|asked| *asked > 0.0)?;
    if !record.outcome.is_ok() {
        return None;
    }
    let (what, of) = if is_live(record) { ("trigger", " of triggers") } else { ("block", "") };
    let ledgers = record.ledgers.iter();
    let (lost, not_given) = ledgers.fold((0, 0), |(lost, not_given), ledger| {
        let own = ledger.not_given();
        (lost + ledger.lost() - own, not_given + own)
    });
    let due_ns = run.payload_bytes as f64 / asked * 1e9;
    // A card's triggers have other bytes than its blocks.
    let behind_ns = if is_live(record) { 0.0 } else { run.behind_ns(due_ns) };
    let kept = match (lost, behind_ns > 0.0, not_given) {
        (1.., ..) => format!("not kept, {} lost", plural(lost, what)),
        (0, true, _) => format!("not kept, it took {} longer", show_ns(behind_ns)),
        (0, false, 1..) => {
            format!("not tried, its source did not give {}", plural(not_given, what))
        }
        (0, false, 0) => "kept".to_owned(),
    };
    Some(format!("asked {} MB/s{of}: {kept}", show_mb_per_s(asked)))
}

pub(crate) fn block_ns(run: &PathRun) -> f64 {
    run.wall_ns as f64 / run.blocks.max(1) as f64
}

fn footnote(record: &RunRecord) -> Option<String> {
    record.path.as_deref().map(|run| latency(record, run))
}

/// Writes the buffers and losses of sockets, if the record counts them.
fn network(record: &RunRecord) -> String {
    let mut out = String::new();
    let count = |name: &str| record.counter(name);
    if let Some((asked, granted)) = count("udp-buffer-asked").zip(count("udp-buffer-granted")) {
        let strays = count("udp-datagrams-without-a-block").unwrap_or(0.0);
        let _ = writeln!(
            out,
            "UDP: {} of socket buffer asked for, {} granted; {strays} datagrams belonged to no block",
            show_bytes(asked as u64),
            show_bytes(granted as u64)
        );
    }
    out
}

pub fn text(records: &[RunRecord]) -> String {
    let mut out = String::new();
    for record in records.iter().filter(|record| record.role.is_point()) {
        if let Some(run) = &record.path {
            write_run(&mut out, record, run);
        }
        for line in faults_and_ledgers(record) {
            let _ = writeln!(out, " {}", sanitise::text(&line));
        }
    }
    out
}

pub fn threads_text(records: &[RunRecord]) -> String {
    let runs = records.iter().filter_map(|record| record.path.as_deref());
    runs.map(threads).collect()
}

fn write_run(out: &mut String, record: &RunRecord, run: &PathRun) {
    let emulated = if record.engine.emulated { " (a part is emulated)" } else { "" };
    let per_s = significant(run.events as f64 / run.wall_ns.max(1) as f64 * 1e9, 4);
    let events = match run.events {
        0 => String::new(),
        events => format!("; {events} events, {per_s} per s"),
    };
    let _ = writeln!(out, "{}", sanitise::text(&run.line));
    let _ = writeln!(
        out,
        "{} MB/s sustained{emulated}: {} in {} blocks over {} s{events}",
        show_mb_per_s(rate_bytes_per_s(run)),
        show_bytes(run.payload_bytes),
        run.blocks,
        significant(run.wall_ns as f64 * 1e-9, 4)
    );
    if let Some(asked) = asked(record, run) {
        let _ = writeln!(out, "{asked}");
    }
    let _ = writeln!(out, "{}", latency(record, run));
    let how = match is_live(record) {
        true => "compared chunk by chunk with what the card makes",
        false => "compared byte by byte through their sums",
    };
    let _ = writeln!(out, "{} of {} blocks {how}", run.verified_blocks, run.blocks);
    if let Some(busy) = busy(record) {
        let per_s = significant(record.counter("trigger-rate").unwrap_or(0.0), 4);
        let _ = writeln!(out, "{per_s} triggers per s; BUSY: {busy}");
    }
    out.push_str(&network(record));
    let ledgers = record.ledgers.iter();
    let whole = ledgers.clone().filter(|ledger| ledger.closes()).count();
    let _ = writeln!(out, "{whole} of {} ledgers close\n", ledgers.count());
    out.push_str(&threads(run));
    out.push('\n');
    if !run.queues.is_empty() {
        out.push_str(&queues(run));
        out.push('\n');
    }
    out.push_str(&used(record, run));
}

fn used(record: &RunRecord, run: &PathRun) -> String {
    let columns: [TextColumn<(&PathRun, Resource)>; 4] = [
        ("resource", |(_, resource)| resource.what.text()),
        ("used [%]", |(run, resource)| significant(resource.least_ns() / block_ns(run) * 100.0, 3)),
        ("per block", |(_, resource)| show_ns(resource.least_ns())),
        ("allows MB/s", |(run, resource)| match resource.least_ns() {
            ns if ns > 0.0 => {
                show_mb_per_s(run.payload_bytes as f64 / run.blocks.max(1) as f64 / ns * 1e9)
            }
            _ => "-".to_owned(),
        }),
    ];
    let all: Vec<_> = resources(record).into_iter().map(|resource| (run, resource)).collect();
    table(1, &columns, &all)
}

/// Tests if its source was a card that was read out live: only such a one counts triggers.
fn is_live(record: &RunRecord) -> bool {
    record.counter("trigger-rate").is_some()
}

/// Writes the BUSY time and the ring's filling of a card that was read out live; `None` for other
/// paths.
pub(crate) fn busy(record: &RunRecord) -> Option<String> {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let percent = |name: &str| significant(value(name) * 100.0, 3);
    is_live(record).then(|| {
        format!(
            "{} % of the time ({} % by DMA, {} % by FIFO), which stopped {} of {} triggers; its ring held {} of {} at most",
            percent("dead-time"),
            percent("dead-time BUSY-by-DMA"),
            percent("dead-time BUSY-by-FIFO"),
            value("stopped-triggers"),
            value("triggers"),
            show_bytes(value("ring peak") as u64),
            show_bytes(value("ring") as u64)
        )
    })
}

fn latency(record: &RunRecord, run: &PathRun) -> String {
    let ns = |share| run.latency_ns(share).map_or("-".to_owned(), |ns| show_ns(ns as f64));
    let from = match run.is_paced {
        _ if is_live(record) => "from the oldest trigger of a page to its receipt",
        true => "from the time at which a block was due",
        false => "from the time at which the source began a block",
    };
    // Percentiles need a minimum of values.
    let n = sum(run.latency.iter().map(|bucket| bucket.count));
    let p99 = match daqmeter_stats::supports(usize::try_from(n).unwrap_or(usize::MAX), 0.99) {
        true => format!(", p99 {}", ns(0.99)),
        false => String::new(),
    };
    format!(
        "latency {from}: median {}{p99}, longest {}",
        ns(0.5),
        show_ns(run.latency_max_ns as f64)
    )
}

type ThreadOf<'a> = (&'a PathRun, &'a PathThread);

/// Writes the share of the thread's time in per cent.
fn percent((_, thread): &ThreadOf<'_>, ns: u64) -> String {
    significant(ns as f64 / thread.wall_ns.max(1) as f64 * 100.0, 3)
}

fn cpu_per((_, thread): &ThreadOf<'_>, count: u64, shown: fn(f64) -> String) -> String {
    if count == 0 { "-".to_owned() } else { shown(thread.cpu_ns as f64 / count as f64) }
}

fn threads(run: &PathRun) -> String {
    let columns: [TextColumn<ThreadOf<'_>>; 11] = [
        ("thread", |(_, thread)| thread.name.clone()),
        ("CPU", |(_, thread)| thread.cpu.map_or("any".to_owned(), |cpu| cpu.to_string())),
        ("blocks", |(_, thread)| thread.blocks.to_string()),
        ("busy [%]", |of| percent(of, of.1.busy_ns)),
        ("no input [%]", |of| percent(of, of.1.input_ns)),
        ("no room [%]", |of| percent(of, of.1.output_ns)),
        ("not due [%]", |of| percent(of, of.1.due_ns)),
        ("preempted [%]", |of| of.1.preempted_ns.map_or("-".to_owned(), |ns| percent(of, ns))),
        ("elsewhere [%]", |of| percent(of, of.1.elsewhere_ns)),
        ("CPU ns/B", |of| cpu_per(of, of.0.payload_bytes, |ns| significant(ns, 3))),
        ("CPU/event", |of| cpu_per(of, of.0.events, show_ns)),
    ];
    let all: Vec<ThreadOf<'_>> = run.threads.iter().map(|thread| (run, thread)).collect();
    let shared = run.threads.iter().filter_map(within);
    shared.fold(table(1, &columns, &all), |table, line| table + &line + "\n")
}

fn within(thread: &PathThread) -> Option<String> {
    let share = |other: &PathWithin| {
        let percent = 100.0 * other.ns as f64 / thread.busy_ns.max(other.ns).max(1) as f64;
        format!("{} {} %", other.name, significant(percent, 2))
    };
    let others: Vec<String> = thread.within.iter().map(share).collect();
    (!others.is_empty())
        .then(|| format!(" of the time at work of {}: {}", thread.name, others.join(", ")))
}

fn queues(run: &PathRun) -> String {
    fn share(queue: &PathQueue, count: Option<&u64>) -> String {
        let looks = sum(&queue.seen);
        let share = count.filter(|_| looks > 0).map(|count| *count as f64 / looks as f64 * 100.0);
        share.map_or("-".to_owned(), |percent| significant(percent, 3))
    }
    let columns: [TextColumn<PathQueue>; 5] = [
        ("queue", |queue| format!("{} -> {}", queue.from, queue.to)),
        ("room", |queue| queue.seen.len().saturating_sub(1).to_string()),
        ("mean", |queue| queue.mean().map_or("-".to_owned(), |mean| significant(mean, 3))),
        ("empty [%]", |queue| share(queue, queue.seen.first())),
        ("full [%]", |queue| share(queue, queue.seen.last())),
    ];
    table(1, &columns, &run.queues)
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::Ledger;
    use daqmeter_record::path::{Bucket, PathQueue};

    use super::*;

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
        record.path = Some(Box::new(PathRun {
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
            is_paced: false,
            cpus: 2.0,
            ..PathRun::default()
        }));
        record
    }

    #[test]
    fn a_path_is_shown_with_its_threads_and_queues() {
        let text = text(&[record()]);
        for wanted in [
            "65.54 MB/s sustained",
            "1000 blocks over 1 s; 4000 events, 4000 per s",
            "1000 of 1000 blocks compared",
            "memory -> copy",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let copy = text.lines().find(|line| line.starts_with(" copy "));
        let cells: Vec<&str> = copy.unwrap().split_whitespace().collect();
        // Columns: blocks, busy, no input, no room, not due, preempted, elsewhere.
        assert_eq!(&cells[2..9], ["1000", "90", "5", "0", "0", "1", "4"], "{text}");
    }

    /// Regression: the faster of two runs represented a path, one of 33 ms instead of 299.
    #[test]
    fn the_longest_run_stands_for_a_path_and_one_at_a_rate_only_where_there_is_no_other() {
        let run = |wall_ns, payload_bytes, is_paced| {
            let mut record = record();
            let run = record.path.as_mut().unwrap();
            (run.wall_ns, run.payload_bytes, run.is_paced) = (wall_ns, payload_bytes, is_paced);
            record
        };
        let found = |records: &[RunRecord]| {
            let longest = longest(records);
            let longest = &longest["pattern"];
            (longest.run.wall_ns, longest.of)
        };
        let (short, long) = (run(33, 4393, false), run(299, 3683, false));
        assert_eq!(found(&[short.clone(), long.clone()]), (299, 2));
        assert_eq!(found(&[long, short.clone()]), (299, 2));
        let at_rate = run(1000, 10, true);
        assert_eq!(found(&[at_rate.clone(), short]), (33, 2));
        assert_eq!(found(&[at_rate]), (1000, 1));
    }

    #[test]
    fn a_rate_that_was_asked_for_is_kept_or_it_is_said_why_not() {
        let said = |change: fn(&mut RunRecord, &mut PathRun)| {
            let mut record = record();
            let mut run = *record.path.take().unwrap();
            // 65.536 MB in 1 s.
            run.asked_bytes_per_s = Some(65.536e6);
            change(&mut record, &mut run);
            asked(&record, &run)
        };
        let kept = said(|_, _| {});
        assert_eq!(kept.as_deref(), Some("asked 65.54 MB/s: kept"));
        let late = said(|_, run| run.wall_ns += 20_000_000);
        assert_eq!(late.as_deref(), Some("asked 65.54 MB/s: not kept, it took 20 ms longer"));
        let lossy = said(|record, _| {
            let mut ledger = Ledger::new("blocks of memory");
            ledger.lose("due when there was no room", 3);
            record.ledgers.push(ledger);
        });
        assert_eq!(lossy.as_deref(), Some("asked 65.54 MB/s: not kept, 3 blocks lost"));
        assert_eq!(said(|_, run| run.asked_bytes_per_s = None), None);
        assert_eq!(
            said(|record, _| record.outcome = daqmeter_record::Outcome::Failed("bytes".into())),
            None
        );
    }

    #[test]
    fn a_run_says_how_far_each_resource_is_used_and_what_it_allows() {
        let text = text(&[record()]);
        let cells = |name: &str| -> Vec<String> {
            let is_row = |line: &&str| line.starts_with(name) && line.split("  ").count() > 3;
            let row = text.lines().rfind(is_row).unwrap_or_else(|| panic!("{name}: {text}"));
            let numbers = row[name.len()..].split_whitespace();
            numbers.map(str::to_owned).collect()
        };
        // 940 us of 1 ms for each block: busy, and waiting for its device.
        assert_eq!(cells(" copy "), ["94", "940", "us", "69.72"]);
        // 1.6 ms of work for each block on two CPUs.
        assert_eq!(cells(" all CPUs together "), ["80", "800", "us", "81.92"]);
    }
}
