//! Losses of programs that were watched, between two sets of records and over time.

use daqmeter_record::RunRecord;
use daqmeter_record::units::percent;
use daqmeter_record::watched::{LossEffect, Watched, WatchedInterval};
use daqmeter_stats::{mean_interval, share_interval};
use serde::Serialize;

use crate::aligned::{TextColumn, table, wrapped};
use crate::groups::in_groups;
use crate::points::StagePoint;

/// Share of packets that did not reach the program, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossShare {
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

impl LossShare {
    /// Of intervals in the order of time: losses come in bursts, so packets are not independent.
    fn of(intervals: &[WatchedInterval]) -> LossShare {
        let lost: u64 = intervals.iter().map(|one| one.lost).sum();
        let came_in = intervals.iter().map(|one| one.came_in).sum::<u64>().max(lost).max(1);
        let of_one = came_in as f64 / intervals.len().max(1) as f64;
        let shares: Vec<f64> = intervals.iter().map(|one| one.lost as f64 / of_one).collect();
        let interval = mean_interval(&shares).unwrap_or_else(|| share_interval(lost, came_in));
        LossShare {
            share: lost as f64 / came_in as f64,
            low: interval.0,
            high: interval.1.min(1.0),
        }
    }

    fn text(self) -> String {
        let [share, low, high] = [self.share, self.low, self.high].map(|one| percent(one, 2));
        format!("{share} % ({low} to {high})")
    }
}

/// Losses of one target in A and in B.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedLoss {
    pub target: String,
    pub a: LossShare,
    pub b: LossShare,
}

impl ComparedLoss {
    /// Share of packets that B loses more at least; negative where it may be less.
    pub(crate) fn more_at_least(&self) -> f64 {
        self.b.low - self.a.high
    }

    pub(crate) fn more_at_most(&self) -> f64 {
        self.b.high - self.a.low
    }

    pub(crate) fn differs(&self) -> bool {
        self.more_at_least() > 0.0 || self.more_at_most() < 0.0
    }

    pub(crate) fn text(&self) -> String {
        let verdict = match self.differs() {
            true if self.more_at_least() > 0.0 => "loses more in B".to_owned(),
            true => "loses less in B".to_owned(),
            false => format!(
                "loses at most {} % more of its packets in B",
                percent(self.more_at_most().max(0.0), 2)
            ),
        };
        let line =
            format!(" {}: {verdict}: {}, {} in A", self.target, self.b.text(), self.a.text());
        wrapped(&line, 3) + "\n"
    }
}

fn watches(records: &[RunRecord]) -> Vec<(StagePoint, Vec<(&RunRecord, &Watched)>)> {
    in_groups(records.iter().filter_map(|record| {
        // Other records have no target.
        record.workload.text("what").ok().filter(|_| record.outcome.is_ok())?;
        let watched = record.sections.watched.as_deref()?;
        Some((StagePoint::of(record, 0, ""), (record, watched)))
    }))
}

/// Compares the losses of targets that both sides watched.
pub(crate) fn compared(a: &[RunRecord], b: &[RunRecord]) -> Vec<ComparedLoss> {
    let share = |watches: &[(&RunRecord, &Watched)]| {
        let intervals = watches.iter().flat_map(|(_, watched)| watched.intervals.iter().copied());
        LossShare::of(&intervals.collect::<Vec<_>>())
    };
    let of_b = watches(b);
    let both = watches(a).into_iter().filter_map(|(point, a)| {
        let is_same = |other: &StagePoint| other.workload == point.workload;
        let (_, b) = of_b.iter().find(|(other, _)| is_same(other))?;
        Some(ComparedLoss { target: name(&a), a: share(&a), b: share(b) })
    });
    both.collect()
}

fn name(watches: &[(&RunRecord, &Watched)]) -> String {
    let what = watches.first().and_then(|(record, _)| record.workload.text("what").ok());
    what.unwrap_or_default().to_owned()
}

/// Losses of a target in each of its watches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossTrend {
    pub host: String,
    pub target: String,
    pub runs: Vec<LossRun>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossRun {
    pub time_utc: String,
    pub came_in: u64,
    pub lost: LossShare,
    /// Where most were lost, and why.
    pub most: String,
}

/// Returns the losses of each target that was watched at least twice, in the order of time.
pub fn loss_trends(records: &[RunRecord]) -> Vec<LossTrend> {
    let run = |(record, watched): &(&RunRecord, &Watched)| LossRun {
        time_utc: record.time_utc.clone(),
        came_in: watched.came_in(),
        lost: LossShare::of(&watched.intervals),
        most: most(watched).unwrap_or_default(),
    };
    let twice = watches(records).into_iter().filter(|(_, watches)| watches.len() > 1);
    let trend = twice.map(|(point, watches)| {
        let mut runs: Vec<LossRun> = watches.iter().map(run).collect();
        runs.sort_by(|a, b| a.time_utc.cmp(&b.time_utc));
        LossTrend { host: point.host, target: name(&watches), runs }
    });
    trend.collect()
}

fn most(watched: &Watched) -> Option<String> {
    let loss = watched.losses.iter().find(|loss| loss.effect == LossEffect::Lost)?;
    let cause = loss.causes.first().map_or(&loss.reason, |cause| &cause.cause);
    let at = if loss.at.is_empty() { String::new() } else { format!("{}: ", loss.at) };
    Some(at + cause)
}

const COLUMNS: [TextColumn<LossRun>; 4] = [
    ("time", |run| run.time_utc.get(..19).unwrap_or(&run.time_utc).to_owned()),
    ("packets", |run| run.came_in.to_string()),
    ("lost", |run| run.lost.text()),
    ("most at", |run| run.most.clone()),
];

pub fn loss_text(trends: &[LossTrend]) -> String {
    let of = |trend: &LossTrend| {
        let heading = format!("{} on {}", trend.target, trend.host);
        wrapped(&heading, 0) + "\n" + &table(1, &COLUMNS, &trend.runs)
    };
    trends.iter().map(of).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;
    use daqmeter_record::watched::{WatchedPlace, WatchedStage};

    use super::*;

    /// A watch of 40 intervals of 1000 packets, of which these were lost in turn.
    fn watched(lost: [u64; 2]) -> RunRecord {
        let interval = |at: u64| WatchedInterval {
            end_ns: (at + 1) * 200_000_000,
            came_in: 1000,
            lost: lost[usize::from(at % 3 == 1)],
        };
        let place = WatchedPlace::Card;
        let stage = WatchedStage { place, came_in: 40_000, went_on: 40_000, lost: 0, other: 0 };
        let found = Watched {
            stages: vec![stage],
            intervals: (0..40).map(interval).collect(),
            ..Watched::default()
        };
        let mut record = RunRecord::default();
        record.workload = Workload::new("watch").with("what", "recorder").into();
        record.sections.watched = Some(Box::new(found));
        record
    }

    #[test]
    fn a_loss_differs_if_the_intervals_of_both_sides_are_apart() {
        let said = |a, b| compared(&[watched(a)], &[watched(b)]).remove(0);
        let more = said([0, 0], [10, 30]);
        assert!(more.differs() && more.more_at_least() > 0.01, "{more:?}");
        assert!(more.text().contains("recorder: loses more in B: 1.7 % ("), "{}", more.text());
        assert!(said([10, 30], [0, 0]).text().contains("loses less in B: 0 % (0 to 0.0092)"));
        let same = said([10, 30], [12, 29]);
        assert!(!same.differs() && same.more_at_most() < 0.01, "{same:?}");
        assert!(same.text().contains("loses at most 0."), "{}", same.text());
        // One burst of many intervals says little about the next watch.
        let burst = || {
            let mut record = watched([0, 0]);
            record.sections.watched.as_mut().unwrap().intervals[7].lost = 900;
            record
        };
        let burst = compared(&[burst()], &[watched([10, 30])]).remove(0);
        assert!(!burst.differs(), "{burst:?}");
    }

    #[test]
    fn watches_of_a_program_are_rows_in_the_order_of_time() {
        let mut later = watched([10, 30]);
        later.time_utc = "2026-11-02T03:00:00.000Z".to_owned();
        let found = loss_trends(&[later, watched([0, 0])]);
        assert_eq!((found.len(), found[0].runs.len()), (1, 2));
        assert!(found[0].runs[1].lost.share > found[0].runs[0].lost.share);
        let text = loss_text(&found);
        assert!(text.contains("2026-11-02T03:00:00") && text.contains("1.7 % ("), "{text}");
        assert!(loss_trends(&[watched([0, 0])]).is_empty());
    }
}
