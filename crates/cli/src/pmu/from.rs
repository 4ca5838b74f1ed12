//! `daqmeter pmu stat --from`: output of perf stat, and recorded counts.

use std::path::Path;
use std::sync::Arc;

use daqmeter_harness::Fault;
use daqmeter_pmu::MetricGroup;
use daqmeter_pmu::count::{totals, turns_warning};
use daqmeter_pmu::perf_format::{self, PerfOutput};
use daqmeter_record::observed::ObservedEvent;
use daqmeter_record::{EngineInfo, Observations, RunRecord, Workload, jsonl};

use super::chosen::text_of;
use super::stat::Arguments;
use crate::context::context;
use crate::interrupt;
use crate::output::{Ended, Failure, emit, read_records, tell};
use crate::recorder::Recorder;

pub(super) fn run(path: &Path, arguments: &Arguments) -> Ended {
    // On Ctrl-C perf prints its last rows and ends; they are read, too.
    interrupt::flag();
    let text = text_of(path)?;
    let first = text.lines().next().unwrap_or_default();
    match jsonl::parse_line(first.as_bytes(), 1) {
        Ok(_) => replay(path, read_records(text.as_bytes(), path)?, arguments),
        Err(_) => import(path, &text, arguments),
    }
}

/// Shows recorded counts, an interval after the other, with the rates of the groups.
fn replay(path: &Path, records: Vec<RunRecord>, arguments: &Arguments) -> Ended {
    if arguments.interval.is_some() {
        let why = "--interval is for counts and for perf's output: records have intervals";
        return Err(Failure::refused(why));
    }
    let mut recorder = Recorder::new(&arguments.recording)?;
    let (is_text, of) = (arguments.is_text(), records.len());
    for mut record in records {
        let Some(observed) = &mut record.sections.observed else { continue };
        measure(path, observed, arguments)?;
        if is_text {
            emit(&format!("{}: {}\n", record.time_utc, record.command))?;
        }
        (0..observed.end_ns.len()).try_for_each(|at| arguments.print(observed, at, true))?;
        if is_text {
            emit(&format!("{}\n", arguments.summary(observed)))?;
        }
        if let Some(label) = &arguments.recording.label {
            label.clone_into(&mut Arc::make_mut(&mut record.host).name);
        }
        recorder.take(record)?;
    }
    if recorder.records.is_empty() {
        return Err(Failure::refused(format!(
            "none of the {of} records has counters over time: make some with pmu stat --records, or with --observe GROUP"
        )));
    }
    recorder.end(|_| String::new())
}

/// Adds the rates of the groups, in place of those that they had.
fn measure(path: &Path, observed: &mut Observations, arguments: &Arguments) -> Result<(), Failure> {
    let groups = &arguments.wanted.groups;
    if !groups.is_empty() {
        observed.metrics.clear();
    }
    let refused = |error: Fault| Failure::refused(format!("{}: {error}", path.display()));
    groups.iter().try_for_each(|name| MetricGroup::find(name)?.measure(observed).map_err(refused))
}

/// Shows and records the output of perf stat, a record for each run in it.
fn import(path: &Path, text: &str, arguments: &Arguments) -> Ended {
    let mut recorder = Recorder::new(&arguments.recording)?;
    let shown = path.display();
    let refused = |error: Fault| Failure::refused(format!("{shown}: {error}"));
    let PerfOutput { runs, mut warnings } =
        perf_format::parse(text, arguments.interval).map_err(refused)?;
    let is_ignored = |name: &&str| {
        name.contains("nodeid=") && !name.contains("bynodeid=1") && name.starts_with("arm_cmn")
    };
    let mut names = runs.iter().flat_map(|run| &run.events).map(ObservedEvent::bare_name);
    if let Some(name) = names.by_ref().find(|name| is_ignored(name)) {
        let count = 1 + names.filter(is_ignored).count();
        warnings.push(format!(
            "{count} event(s) such as `{name}` name a node without bynodeid=1: mainline's driver ignored it and counted all nodes of the type"
        ));
    }
    for warning in &warnings {
        tell(&format!("daqmeter: warning: {shown}: {warning}"));
    }
    for mut observed in runs {
        measure(path, &mut observed, arguments)?;
        if observed.begin_ns > 0 {
            let length_s = observed.seconds(0);
            tell(&format!(
                "daqmeter: {shown} does not begin at 0: daqmeter assumes that its first interval is {length_s:.3} s long"
            ));
        }
        // One interval is its own summary.
        let is_shown = observed.end_ns.len() > 1 || arguments.separator.is_some();
        let mut shown = (0..observed.end_ns.len()).filter(|_| is_shown);
        shown.try_for_each(|at| arguments.print(&observed, at, false))?;
        let info = EngineInfo { name: "pmu".into(), target: "perf stat".into(), emulated: false };
        let workload = Workload::new("pmu").with("what", "perf stat");
        let mut record = context(arguments.recording.label.as_deref()).blank_record(info, workload);
        record.study = "pmu/perf".into();
        (record.counters, record.warnings) = (totals(&observed), warnings.clone());
        if let Some(warning) = turns_warning(&observed) {
            tell(&format!("daqmeter: warning: {warning}"));
            record.warnings.push(warning);
        }
        record.sections.observed = Some(Box::new(observed));
        recorder.take(record)?;
    }
    arguments.finish(&mut recorder)
}
