//! The screen of a survey: a line for each path, what this host does, changes that pay. Everything
//! else is on the page and in the tables.

use daqmeter_record::units::{plural, significant};
use daqmeter_record::{Host, RunRecord};

use crate::aligned::{asks_all, wrapped};
use crate::families::briefs;
use crate::families::path::chains;
use crate::families::path::overview::{PathRow, rows_text};
use crate::formats::text;
use crate::frame::Frame;

/// Describes a host in one line: CPU, memory, kernel, virtual machine.
pub fn host_text(host: &Host) -> String {
    let release = host.kernel.split([' ', '-']).next().unwrap_or_default();
    let parts = [
        host.cpu_model.clone(),
        plural(u64::from(host.logical_cpus), "CPU"),
        format!("{} GiB", significant(host.memory_bytes as f64 / f64::from(1 << 30), 2)),
        format!("Linux {release}"),
        host.hypervisor.as_ref().map_or(String::new(), |_| "virtual machine".to_owned()),
    ];
    let known: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    wrapped(&known.join(", "), 2) + "\n"
}

/// Shows the records of a survey; with `--all` also all answers and tables.
pub fn survey_frame(records: &[RunRecord]) -> Frame {
    let all = if asks_all() { text(records) } else { String::new() };
    Frame::of(format!("\n{}\n{all}", screen(records)), Vec::new())
}

fn screen(records: &[RunRecord]) -> String {
    let chains = chains(records);
    let rows: Vec<&PathRow> = chains.iter().map(|chain| &chain.row).collect();
    let emulated = "e: from an emulated device, says nothing about a real one";
    let emulated = rows.iter().any(|row| row.is_emulated).then(|| wrapped(emulated, 2) + "\n");
    let (host, changes) = briefs(records);
    let changes = changes
        .into_iter()
        .enumerate()
        .map(|(at, (what, gain))| wrapped(&format!("  {}  {what}: {gain}", at + 1), 5) + "\n");
    let sections = [
        ("", rows_text(&rows) + &emulated.unwrap_or_default()),
        ("this host", host.iter().map(|line| wrapped(&format!("  {line}"), 4) + "\n").collect()),
        ("worth changing (measured here)", changes.collect()),
    ];
    let shown = sections.into_iter().filter(|(_, text)| !text.is_empty());
    let shown = shown.map(|(title, text)| match title {
        "" => text,
        title => format!("{title}\n{text}"),
    });
    shown.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::{Interval, LimitFound, PathLimit, PathOther, PathUsed, PathWithin};
    use daqmeter_record::resources::What;
    use daqmeter_record::{CpuTime, Workload};

    use super::*;
    use crate::examples;
    use crate::families::path::tests::{self, record};

    type Changed = fn(&mut RunRecord);

    fn limit(found: LimitFound) -> Option<PathLimit> {
        let share = |mean| Interval { mean, low: mean, high: mean };
        let used = Some(PathUsed { works: share(0.99), waits_for_cpu: 0.0 });
        Some(PathLimit { used, ..tests::limit(found) })
    }

    fn threads(name: &str) -> LimitFound {
        LimitFound::Limit(What::Threads { element: 1, name: name.to_owned() })
    }

    /// Paths of all kinds of limits, in the order of their names.
    fn paths() -> Vec<RunRecord> {
        let path = |(name, change): (&str, Changed)| {
            let mut record = record();
            record.workload = Workload::new("path").with("path", name).into();
            change(&mut record);
            record
        };
        let all: [(&str, Changed); 8] = [
            ("a-part", |record| {
                record.sections.path.as_mut().unwrap().limit = limit(threads("copy"))
            }),
            ("all-cpus", |record| {
                let run = record.sections.path.as_mut().unwrap();
                run.layout = "fused x 2 on CPUs 1,0".to_owned();
                run.threads.truncate(2);
                for thread in &mut run.threads {
                    (thread.element, thread.part) = (0, "memory to read".to_owned());
                    (thread.busy_ns, thread.cpu_ns) = (980_000_000, 980_000_000);
                    let within =
                        PathWithin { name: "read".to_owned(), element: 2, ns: 600_000_000 };
                    thread.within = vec![within];
                }
                run.limit = limit(threads("memory to read"));
            }),
            ("buffers", |record| {
                let run = record.sections.path.as_mut().unwrap();
                run.limit = limit(LimitFound::Limit(What::Buffers));
                let gain = Interval { mean: 1.31, low: 1.2, high: 1.4 };
                run.limit.as_mut().unwrap().gain = Some(gain);
            }),
            ("hand-over", |record| {
                let run = record.sections.path.as_mut().unwrap();
                run.events = 0;
                run.limit = limit(LimitFound::Limit(What::HandOver));
                run.limit.as_mut().unwrap().other = Some(PathOther {
                    layout: "fused x 2 on CPUs 0,1".to_owned(),
                    gain: Interval { mean: 2.2, low: 2.1, high: 2.3 },
                    ns: 700.0,
                    cycles: None,
                    wake_up: 0.5,
                    waits_for_cpu: 0.0,
                    waits: String::new(),
                });
            }),
            ("no-search", |_| {}),
            ("not-clear", |record| {
                record.sections.path.as_mut().unwrap().limit = limit(LimitFound::CannotTell);
            }),
            ("not-kept", |record| {
                let run = record.sections.path.as_mut().unwrap();
                (run.is_paced, run.asked_bytes_per_s) = (true, Some(131e6));
                run.next_due_ns = Some(500_000_000);
            }),
            ("paced", |record| {
                record.engine.emulated = true;
                record.sections.path.as_mut().unwrap().is_paced = true;
            }),
        ];
        all.into_iter().map(path).collect()
    }

    /// Two ways of waiting for a trigger, and copies of one and of two threads.
    fn points() -> Vec<RunRecord> {
        let wait = |way: &str, cpu_ns| {
            let workload = Workload::new("digitizer").with("completion", way);
            let mut record =
                examples::record("digitizer", workload, "test", "func_readout", 200_000);
            (record.wall_ns, record.process_cpu) =
                (1_000_000, CpuTime { user_ns: cpu_ns, ..CpuTime::default() });
            record
        };
        let copy = |lanes: usize| {
            let workload = Workload::new("memory")
                .with("read_bytes", 64_u64 << 20)
                .with("read_lines", 1_u64)
                .with("write_lines", 1_u64)
                .with("lanes", lanes as u64);
            let mut record = examples::record("memory", workload, "test", "cached", 200_000);
            let lane = record.lanes[0].clone();
            record.lanes = vec![lane; lanes];
            record
        };
        let mut all = vec![wait("poll", 261_000), wait("interrupt", 3_120), copy(1), copy(2)];
        all.iter_mut().for_each(|point| point.host = record().host);
        all
    }

    #[test]
    fn a_survey_fits_one_screen() {
        let records: Vec<RunRecord> = paths().into_iter().chain(points()).collect();
        let shown = screen(&records);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn without_a_path_the_rest_is_shown_and_without_a_record_nothing() {
        assert!(screen(&points()).starts_with("this host\n  memory copy "));
        assert_eq!(screen(&[]), "");
    }

    #[test]
    fn a_host_is_described_in_one_line_by_what_is_known() {
        let host = Host {
            cpu_model: "AMD EPYC".to_owned(),
            logical_cpus: 2,
            memory_bytes: 24 << 30,
            kernel: "6.18.44-x #1 SMP".to_owned(),
            hypervisor: Some("kvm".to_owned()),
            ..Host::default()
        };
        let all = "AMD EPYC, 2 CPUs, 24 GiB, Linux 6.18.44, virtual machine\n";
        assert_eq!(host_text(&host), all);
    }
}
