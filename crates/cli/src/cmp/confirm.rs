//! Points that differ are measured again before it is said: both programs in turns where the old one is at hand, else the new one in fresh
//! invocations.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::ab::{Answer, Found, PATIENCE, Question, Request, Side, Verdict, ask};
use daqmeter_harness::StopFlag;
use daqmeter_record::{Host, RunRecord};
use daqmeter_report::cmp::{Again, Compared, Confirmation, How};
use daqmeter_report::points::points_of;
use daqmeter_stats::{Asked, FALSE_ALARM};
use daqmeter_sys::affinity;

use super::fresh::afresh;
use crate::ab::{SIDE, binary};
use crate::arguments::budget;
use crate::interrupt;
use crate::output::{Failure, tell};
use crate::runner::{context, progress_bar};

/// Options of measuring again.
#[derive(Debug, Args)]
pub(super) struct Confirm {
    /// Measure what differs again, here and now: with --old both in turns, else B's side in five fresh runs
    #[arg(long)]
    confirm: bool,
    /// With --confirm: the binary that recorded A
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    old: Option<String>,
    /// With --confirm: the binary that recorded B [default: this one]
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    new: Option<String>,
    /// With --old: time for each point
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "10s")]
    budget: Duration,
}

/// What was compared.
#[derive(Clone, Copy)]
pub(super) struct Records<'a> {
    pub(super) a: &'a [RunRecord],
    pub(super) b: &'a [RunRecord],
    pub(super) history: &'a [RunRecord],
}

/// A point that differs.
#[derive(Clone, Debug)]
pub(super) struct Flagged {
    /// Its place in the comparison.
    pub(super) at: usize,
    pub(super) stage: String,
    /// A record of B that has it.
    pub(super) record: RunRecord,
}

impl Flagged {
    /// CPUs that its lanes were pinned to; none where one was left free.
    pub(super) fn cpus(&self) -> Vec<u32> {
        pins(&self.record)
    }

    /// Whether one measurement serves both.
    pub(super) fn shares(&self, other: &Flagged) -> bool {
        let (this, other) = (&self.record, &other.record);
        this.study == other.study && this.workload == other.workload && pins(this) == pins(other)
    }
}

fn pins(record: &RunRecord) -> Vec<u32> {
    let cpus = record.lanes.iter().map(|lane| lane.requested_cpu);
    cpus.collect::<Option<Vec<u32>>>().unwrap_or_default()
}

/// Measures what differs again, if that is asked for, and joins what was found to the comparison.
///
/// # Errors
/// When the records are of another host, or a binary is none.
pub(super) fn confirm(
    options: &Confirm,
    found: &mut Compared,
    records: Records<'_>,
    asked: Asked,
) -> Result<(), Failure> {
    let places = found.flagged();
    if !options.confirm || places.is_empty() {
        return Ok(());
    }
    refuse_other_hosts(records)?;
    let stop = StopFlag::default();
    let of_signal = stop.clone();
    interrupt::on_signal(move || of_signal.set());
    let flagged = flagged(found, &places, records);
    let new = match &options.new {
        Some(new) => binary(new)?,
        None => std::env::current_exe().map_err(Failure::refused)?,
    };
    let confirmations = match &options.old {
        Some(old) => {
            let sides = [binary(old)?, new];
            in_turns(options, &sides, &flagged, asked, &stop)
        }
        None => afresh(found, &new, &flagged, records, asked, &stop),
    };
    found.confirm(confirmations);
    Ok(())
}

/// Times of another host say nothing of the program.
fn refuse_other_hosts(records: Records<'_>) -> Result<(), Failure> {
    let here = context().host;
    let is_here =
        |host: &Host| host.cpu_model == here.cpu_model && host.logical_cpus == here.logical_cpus;
    let mut all = records.a.iter().chain(records.b);
    match all.find(|record| !is_here(&record.host)) {
        None => Ok(()),
        Some(record) => Err(Failure::refused(format!(
            "--confirm measures on this host ({}, {} CPUs), and the records have one of {}, {} CPUs: confirm on the host that recorded both sides",
            here.cpu_model, here.logical_cpus, record.host.cpu_model, record.host.logical_cpus
        ))),
    }
}

/// The points at these places with a record of B on the CPUs that a record of A has as well.
fn flagged(found: &Compared, places: &[usize], records: Records<'_>) -> Vec<Flagged> {
    let of = |record: &RunRecord, name: &str| {
        let is_done = record.outcome.is_ok();
        let mut points = points_of(record).filter(|_| is_done);
        let found = points.find(|(point, _)| point.to_string() == name);
        found.map(|(point, _)| point.stage)
    };
    let flagged = |at: &usize| {
        let name = &found.points[*at].point;
        let of_a = records.a.iter().filter(|record| of(record, name).is_some());
        let of_a: Vec<Vec<u32>> = of_a.map(pins).collect();
        let mut of_b = records.b.iter().rev();
        let is_there = |record: &&RunRecord| of_a.contains(&pins(record));
        of_b.find_map(|record| {
            let stage = of(record, name).filter(|_| is_there(&record))?;
            let record = record.clone();
            Some(Flagged {
                at: *at,
                stage,
                record,
            })
        })
    };
    places.iter().filter_map(flagged).collect()
}

/// Points that one measurement serves, together.
pub(super) fn grouped(flagged: &[Flagged]) -> Vec<Vec<&Flagged>> {
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
fn in_turns(
    options: &Confirm,
    binaries: &[PathBuf; 2],
    flagged: &[Flagged],
    asked: Asked,
    stop: &StopFlag,
) -> Vec<(usize, Confirmation)> {
    let groups = grouped(flagged);
    tell(&format!(
        "daqmeter: measuring {} points again in turns, at most {} s each",
        groups.len(),
        options.budget.as_secs_f64()
    ));
    let progress = progress_bar(groups.len(), true);
    let mut confirmations = Vec::new();
    for group in &groups {
        let question = Question {
            ignore: asked.ignore,
            // Any of them may be wrong: each gets its share.
            alpha: FALSE_ALARM / groups.len() as f64,
            budget: options.budget,
            patience: PATIENCE.max(options.budget),
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
        request: Request::new(point.record.workload.clone(), cpu),
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
    Some(format!(
        "about {:.0} s more would decide (--budget)",
        seconds.ceil().max(1.0)
    ))
}
