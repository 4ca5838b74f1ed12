//! What measuring flagged points again said, and what becomes of a comparison by it.

use std::fmt::Write;

use daqmeter_record::RunRecord;
use daqmeter_stats::Asked;
use serde::Serialize;

use super::{Compared, ComparedPoint, cmp};

/// How a point was measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Both programs in one run, by `daqmeter ab`.
    InTurns,
    /// The new side alone, in invocations of its own, against the records of A.
    FreshRuns,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// B takes longer.
    Slower,
    /// B takes less time.
    Faster,
    /// B takes as long, within what is ignored.
    Same,
    /// Neither can be said.
    Undecided,
    /// The point could not be measured: what the records say is all there is.
    NotMeasured,
}

/// What measuring one point again said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Confirmation {
    /// How it was measured.
    pub how: How,
    /// What was found.
    pub verdict: Again,
    /// Time of B over time of A, where it was measured.
    pub ratio: Option<f64>,
    /// The interval that the verdict is taken from.
    pub interval: Option<(f64, f64)>,
    /// Why it was not measured, or what the reader must know.
    pub reason: Option<String>,
}

impl Confirmation {
    /// Of a point that could not be measured.
    pub fn not_measured(how: How, why: impl Into<String>) -> Confirmation {
        Confirmation {
            how,
            verdict: Again::NotMeasured,
            ratio: None,
            interval: None,
            reason: Some(why.into()),
        }
    }

    /// A line for people.
    pub(crate) fn line(&self, point: &str) -> String {
        let how = match self.how {
            How::InTurns => "in turns",
            How::FreshRuns => "in fresh runs",
        };
        let mut out = format!("again    {point}: {} {how}", self.verdict.word());
        if let Some(ratio) = self.ratio {
            let _ = write!(out, ", B/A {ratio:.4}");
        }
        if let Some((low, high)) = self.interval {
            let _ = write!(out, " ({low:.4} - {high:.4})");
        }
        let reason = self.reason.iter().map(|why| format!(": {why}"));
        out + &reason.collect::<String>() + "\n"
    }
}

impl Again {
    fn word(self) -> &'static str {
        match self {
            Again::Slower => "slower",
            Again::Faster => "faster",
            Again::Same => "same",
            Again::Undecided => "undecided",
            Again::NotMeasured => "not measured",
        }
    }
}

impl ComparedPoint {
    /// The verdict once the point was measured again: a point that could not be keeps its own.
    fn verdict_after(&self, again: Again) -> &'static str {
        match again {
            Again::Slower | Again::Faster | Again::Same => again.word(),
            Again::Undecided => "unclear",
            Again::NotMeasured => self.verdict,
        }
    }

    /// B over A as far as is known by now.
    pub(super) fn last_ratio(&self) -> f64 {
        let again = self.confirmation.as_ref().and_then(|again| again.ratio);
        again.unwrap_or(self.ratio)
    }

    /// The largest ratio that is possible by all that is known by now.
    pub(super) fn largest(&self) -> f64 {
        let again = self.confirmation.as_ref().and_then(|again| again.interval);
        again.unwrap_or(self.joint).1
    }
}

impl Compared {
    /// Places of the points that are to be measured again: those that differ, and all where all together do.
    pub fn flagged(&self) -> Vec<usize> {
        let all = self.overall.as_ref().is_some_and(ComparedPoint::differs);
        let places = 0..self.points.len();
        places.filter(|at| all || self.points[*at].differs()).collect()
    }

    /// Takes what was found of points, by their places. Each then has the verdict of its second measurement; one that could not be
    /// measured again keeps what the records say. All points together stay different where a point does so in the same direction, or
    /// could not be measured.
    pub fn confirm(&mut self, found: Vec<(usize, Confirmation)>) {
        for (at, confirmation) in found {
            let Some(point) = self.points.get_mut(at) else {
                continue;
            };
            point.verdict = point.verdict_after(confirmation.verdict);
            point.confirmation = Some(confirmation);
        }
        let verdict = |points: &[ComparedPoint], overall: &ComparedPoint| {
            let again = points.iter().filter_map(|point| point.confirmation.as_ref());
            let again: Vec<Again> = again.map(|again| again.verdict).collect();
            let stays =
                |again: &Again| *again == Again::NotMeasured || again.word() == overall.verdict;
            match () {
                () if again.is_empty() || again.iter().any(stays) => overall.verdict,
                () if again.iter().all(|again| *again == Again::Same) => "same",
                () => "unclear",
            }
        };
        if let Some(overall) = self.overall.as_mut().filter(|overall| overall.differs()) {
            overall.verdict = verdict(&self.points, overall);
        }
        self.conclusion = self.concluded();
    }

    /// A line for each point that was measured again.
    pub(super) fn again(&self) -> String {
        let line = |point: &ComparedPoint| {
            let again = point.confirmation.as_ref()?;
            Some(again.line(&point.point))
        };
        self.points.iter().filter_map(line).collect()
    }
}

/// What is compared, with fresh records of B's side.
#[derive(Clone, Copy, Debug)]
pub struct Afresh<'a> {
    /// What was compared with.
    pub a: &'a [RunRecord],
    /// What was judged.
    pub b: &'a [RunRecord],
    /// Measured since, on B's side.
    pub fresh: &'a [RunRecord],
    /// As in the first comparison.
    pub history: &'a [RunRecord],
}

/// What fresh records say of the points at these places. A difference is confirmed when it counts with them as further invocations of
/// B, and when they alone lie beyond what is ignored in the same direction. They can take a difference away; that both are the same needs
/// both programs.
pub fn confirm_afresh(
    found: &Compared,
    places: &[usize],
    records: Afresh<'_>,
    asked: Asked,
) -> Vec<(usize, Confirmation)> {
    let Afresh { a, b, fresh, history } = records;
    let together = cmp(a, &[b, fresh].concat(), history, asked);
    let alone = cmp(a, fresh, history, asked);
    let of = |compared: &Compared, name: &str| {
        let mut points = compared.points.iter();
        points.find(|point| point.point == name).cloned()
    };
    let confirmation = |name: &str| match (of(&together, name), of(&alone, name)) {
        (Some(together), Some(alone)) => Confirmation {
            how: How::FreshRuns,
            verdict: match together.verdict {
                "slower" if alone.ratio >= 1.0 + asked.ignore => Again::Slower,
                "faster" if alone.ratio * (1.0 + asked.ignore) <= 1.0 => Again::Faster,
                _ => Again::Undecided,
            },
            ratio: Some(alone.ratio),
            interval: Some(alone.joint),
            reason: None,
        },
        _ => Confirmation::not_measured(How::FreshRuns, "no fresh run of it was done"),
    };
    let places = places.iter();
    places.map(|at| (*at, confirmation(&found.points[*at].point))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, runs};
    use super::super::{Conclusion, Gate};
    use super::*;

    fn again(verdict: Again, ratio: f64) -> Confirmation {
        Confirmation {
            how: How::InTurns,
            verdict,
            ratio: Some(ratio),
            interval: Some((ratio * 0.999, ratio * 1.001)),
            reason: None,
        }
    }

    /// A comparison whose four points are all 5 % slower, measured again with these outcomes.
    fn confirmed(outcomes: [Confirmation; 4]) -> Compared {
        let mut found = plain(&runs(1.0, 0), &runs(1.05, 1));
        assert_eq!(found.flagged(), [0, 1, 2, 3]);
        found.confirm(outcomes.into_iter().enumerate().collect());
        found
    }

    #[test]
    fn a_difference_that_does_not_come_back_is_none() {
        let same = || again(Again::Same, 1.001);
        let found = confirmed([same(), same(), same(), same()]);
        assert_eq!((found.conclusion, found.gate(0.03)), (Conclusion::Same, Gate::Passed));
        let undecided = again(Again::Undecided, 1.01);
        let found = confirmed([same(), same(), same(), undecided]);
        assert_eq!((found.conclusion, found.count("unclear")), (Conclusion::CannotTell, 1));
    }

    #[test]
    fn a_difference_that_comes_back_or_cannot_be_measured_again_stays() {
        let same = || again(Again::Same, 1.0);
        let slower = confirmed([again(Again::Slower, 1.051), same(), same(), same()]);
        assert_eq!((slower.conclusion, slower.count("slower")), (Conclusion::Different, 1));
        assert_eq!((slower.gate(0.04), slower.gate(0.08)), (Gate::Failed, Gate::Passed));
        let why = Confirmation::not_measured(How::InTurns, "it has 2 lanes");
        let kept = confirmed([why, same(), same(), same()]);
        assert_eq!((kept.conclusion, kept.points[0].verdict), (Conclusion::Different, "slower"));
        let text = kept.text(false);
        assert!(text.contains("func_readout: not measured in turns: it has 2 lanes\n"), "{text}");
        assert!(text.contains("same in turns, B/A 1.0000"), "{text}");
        assert!(serde_json::to_string(&kept).unwrap().contains("\"how\":\"in-turns\""));
    }

    #[test]
    fn all_points_together_stay_different_only_with_a_point_of_the_same_direction() {
        let mut found = plain(&runs(1.0, 0), &runs(1.001, 1));
        let overall = ComparedPoint { verdict: "slower", ..found.points[0].clone() };
        found.overall = Some(overall);
        found.conclusion = found.concluded();
        assert_eq!(found.conclusion, Conclusion::Different);
        assert_eq!(found.flagged(), [0, 1, 2, 3]);
        let after = |verdict: Again| {
            let mut found = found.clone();
            found.confirm((0..4).map(|at| (at, again(verdict, 1.0))).collect());
            found.overall.unwrap().verdict
        };
        assert_eq!(after(Again::Same), "same");
        assert_eq!(after(Again::Undecided), "unclear");
        assert_eq!(after(Again::Faster), "unclear");
        assert_eq!(after(Again::Slower), "slower");
        assert_eq!(after(Again::NotMeasured), "slower");
    }

    #[test]
    fn fresh_runs_confirm_a_difference_that_they_have_and_take_away_one_that_they_have_not() {
        let (a, b) = (runs(1.0, 0), runs(1.2, 1));
        let found = plain(&a, &b);
        let later = |factor: f64| {
            let mut fresh = runs(factor, 21)[..5].to_vec();
            let named = fresh.iter_mut().enumerate();
            named.for_each(|(at, record)| record.time_utc = format!("2026-11-21T04:{at:02}"));
            fresh
        };
        let again = |fresh: &[RunRecord]| {
            let history = &[];
            let (a, b) = (&a[..], &b[..]);
            let records = Afresh { a, b, fresh, history };
            confirm_afresh(&found, &[1], records, Asked::ignoring(0.02))
        };
        let verdict = |fresh: &[RunRecord]| {
            let found = again(fresh);
            assert_eq!((found.len(), found[0].0), (1, 1));
            found[0].1.verdict
        };
        assert_eq!(verdict(&later(1.2)), Again::Slower);
        assert_eq!(verdict(&later(1.0)), Again::Undecided);
        assert_eq!(verdict(&[]), Again::NotMeasured);
    }
}
