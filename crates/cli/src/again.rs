//! Points that differ are measured again before it is said: both programs in turns, as `daqmeter ab` measures them.

use std::path::PathBuf;
use std::time::Duration;

use daqmeter_campaign::ab::{Answer, Found, PATIENCE, Question, Request, Side, Verdict, ask};
use daqmeter_harness::StopFlag;
use daqmeter_record::{Host, RunRecord, Workload};
use daqmeter_report::cmp::{Again, Confirmation, How};
use daqmeter_stats::FALSE_ALARM;
use daqmeter_sys::affinity;

use crate::ab::SIDE;
use crate::interrupt;
use crate::output::{Failure, tell};
use crate::runner::{context, progress_bar};

/// A point that differs.
#[derive(Clone, Debug)]
pub(crate) struct Flagged {
    /// Its place in what was found.
    pub(crate) at: usize,
    pub(crate) stage: String,
    /// A record that has it.
    pub(crate) record: RunRecord,
}

impl Flagged {
    /// CPUs that its lanes were pinned to; none where one was left free.
    pub(crate) fn cpus(&self) -> Vec<u32> {
        pins(&self.record)
    }

    /// Whether one measurement serves both.
    fn shares(&self, other: &Flagged) -> bool {
        let (this, other) = (&self.record, &other.record);
        this.study == other.study && this.workload == other.workload && pins(this) == pins(other)
    }
}

/// CPUs that the lanes of a record were pinned to; none where one was left free.
pub(crate) fn pins(record: &RunRecord) -> Vec<u32> {
    let cpus = record.lanes.iter().map(|lane| lane.requested_cpu);
    cpus.collect::<Option<Vec<u32>>>().unwrap_or_default()
}

/// A flag that the first signal sets.
pub(crate) fn stop_on_signal() -> StopFlag {
    let stop = StopFlag::default();
    let asked = stop.clone();
    interrupt::on_signal(move || asked.set());
    stop
}

/// Times of another host say nothing of the program.
///
/// # Errors
/// When one of the records is of another host.
pub(crate) fn refuse_other_hosts<'a>(
    mut records: impl Iterator<Item = &'a RunRecord>,
) -> Result<(), Failure> {
    let here = context().host;
    let is_here =
        |host: &Host| host.cpu_model == here.cpu_model && host.logical_cpus == here.logical_cpus;
    match records.find(|record| !is_here(&record.host)) {
        None => Ok(()),
        Some(record) => Err(Failure::refused(format!(
            "--confirm measures on this host ({}, {} CPUs), and the records have one of {}, {} CPUs: confirm on the host that recorded them",
            here.cpu_model, here.logical_cpus, record.host.cpu_model, record.host.logical_cpus
        ))),
    }
}

/// Points that one measurement serves, together.
pub(crate) fn grouped(flagged: &[Flagged]) -> Vec<Vec<&Flagged>> {
    let mut groups: Vec<Vec<&Flagged>> = Vec::new();
    for point in flagged {
        match groups.iter_mut().find(|group| group[0].shares(point)) {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups
}

/// Both programs, as `daqmeter ab` measures them.
pub(crate) fn in_turns(
    binaries: &[PathBuf; 2],
    flagged: &[Flagged],
    ignore: f64,
    budget: Duration,
    stop: &StopFlag,
) -> Vec<(usize, Confirmation)> {
    let groups = grouped(flagged);
    tell(&format!(
        "daqmeter: measuring {} points again in turns, at most {} s each",
        groups.len(),
        budget.as_secs_f64()
    ));
    let progress = progress_bar(groups.len(), true);
    let mut confirmations = Vec::new();
    for group in &groups {
        let question = Question {
            ignore,
            // Any of them may be wrong: each gets its share.
            alpha: FALSE_ALARM / groups.len() as f64,
            budget,
            patience: PATIENCE.max(budget),
            seed: 1,
            switch: None,
            sides: sides(binaries, group[0]),
        };
        let found = match stop.is_set() {
            true => Err("interrupted".to_owned()),
            false => ask(&question, stop, |_| ()),
        };
        let of_point = |point: &&Flagged| (point.at, of_stage(&found, &point.stage));
        confirmations.extend(group.iter().map(of_point));
        progress.inc(1);
    }
    progress.finish_and_clear();
    confirmations
}

/// On the CPU of the records; where that was left free, both on the last one.
fn sides(binaries: &[PathBuf; 2], point: &Flagged) -> [Side; 2] {
    let last = || affinity::allowed_cpus().ok()?.last().copied();
    let cpu = point.cpus().first().copied().or_else(last);
    binaries.clone().map(|program| Side::Point {
        program,
        arguments: vec![SIDE.to_owned()],
        request: Request::new(Workload::clone(&point.record.workload), cpu),
    })
}

fn of_stage(found: &Result<Found, String>, stage: &str) -> Confirmation {
    let found = match found {
        Ok(found) => found,
        Err(why) => return Confirmation::not_measured(How::InTurns, why),
    };
    let answer = found.answers.iter().find(|answer| answer.stage == stage);
    let Some(answer) = answer else {
        let why = format!("neither side has a stage `{stage}`");
        return Confirmation::not_measured(How::InTurns, why);
    };
    Confirmation {
        how: How::InTurns,
        verdict: match answer.verdict {
            Verdict::Slower => Again::Slower,
            Verdict::Faster => Again::Faster,
            Verdict::Same => Again::Same,
            Verdict::Undecided => Again::Undecided,
        },
        ratio: answer.ratio,
        interval: answer.interval,
        reason: undecided(answer).or_else(|| found.notes.first().cloned()),
    }
}

/// How much longer would decide.
fn undecided(answer: &Answer) -> Option<String> {
    let seconds = answer.missing_s?;
    Some(format!("about {:.0} s more would decide (--budget)", seconds.ceil().max(1.0)))
}
