//! Text of a comparison: facts that changed, points that differ, visible differences, and the
//! verdict.

use std::fmt::Write;

use daqmeter_record::units::{show_ns, significant};

use super::{Compared, ComparedPoint, Conclusion, FactChange};
use crate::aligned::numbers_from;

const HEADINGS: [&str; 9] =
    ["verdict", "point", "time", "A", "B", "B/A", "95 %", "counts from", "runs"];

impl Compared {
    pub fn text(&self, all: bool) -> String {
        let mut out = String::new();
        for FactChange { name, a, b } in &self.facts {
            let _ = writeln!(out, "changed  {name}: {a} -> {b}");
        }
        if !self.facts.is_empty() {
            out.push('\n');
        }
        let shown = self.points.iter().filter(|point| all || point.differs());
        let rows: Vec<Vec<String>> = shown.map(row).collect();
        if !rows.is_empty() {
            out.push_str(&numbers_from(3, &HEADINGS, rows));
            out.push('\n');
        }
        let counters = self.counters.iter().map(|found| {
            let ratio =
                if found.a == 0.0 { "-".to_owned() } else { significant(found.b / found.a, 4) };
            vec![
                found.point.clone(),
                found.counter.clone(),
                found.unit.clone(),
                significant(found.a, 4),
                significant(found.b, 4),
                ratio,
            ]
        });
        if !self.counters.is_empty() {
            let headings = ["point", "counter", "unit", "A", "B", "B/A"];
            out.push_str("Counters, means of the runs, without a verdict:\n");
            out.push_str(&numbers_from(3, &headings, counters));
            out.push('\n');
        }
        for broken in &self.broken {
            let _ = writeln!(out, "broken   {broken}");
        }
        out.push_str(&self.counts());
        let notes = self.reference_note().into_iter().chain(self.power_notes());
        for note in notes
            .chain(self.explained_note())
            .chain(self.corrected_note())
            .chain(self.left_out_notes())
        {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\nverdict: {}", self.conclusion());
        out
    }

    fn counts(&self) -> String {
        let mut out = format!(
            "{} points: {} slower, {} faster, {} the same within {} %, {} where that cannot be told\n",
            self.points.len(),
            self.count("slower"),
            self.count("faster"),
            self.count("same"),
            per_cent(self.ignore),
            self.count("unclear")
        );
        if let Some(ComparedPoint { ratio, interval, .. }) = &self.overall {
            let (low, high) = interval;
            let _ = writeln!(out, "all points together: B/A {ratio:.3} ({low:.3} - {high:.3})");
        }
        out
    }

    fn reference_note(&self) -> Option<String> {
        let reference = self.reference.filter(|reference| (reference - 1.0).abs() > 0.01)?;
        Some(format!(
            "plain arithmetic took {reference:.3} times as long on B's host: part of any difference is the host's"
        ))
    }

    fn power_notes(&self) -> Vec<String> {
        let unclear = self.points.iter().filter(|point| point.verdict == "unclear");
        let visible: Vec<f64> = unclear.map(|point| point.visible).collect();
        if visible.is_empty() {
            return Vec::new();
        }
        let typical = shown_visible(daqmeter_stats::median(&visible));
        let mut notes =
            vec![format!("where it cannot be told, a slowdown counts from about {typical} on")];
        if self.points.iter().any(|point| !point.in_turn) {
            notes.push(
                "the sides were not recorded in turn, so an hour of the host may be the difference: record A, B, A, B, \
                 ten times each, or give other runs of this host by --history"
                    .to_owned(),
            );
        }
        notes
    }

    fn explained_note(&self) -> Option<String> {
        let explained = self.points.iter().filter(|point| point.explained).count();
        (explained > 0).then(|| {
            format!(
                "at {explained} points a difference does not count because the limit measured beside them changed as well"
            )
        })
    }

    fn corrected_note(&self) -> Option<String> {
        let size = |point: &ComparedPoint| point.corrected.ln().abs();
        let corrected = self.points.iter().map(size).filter(|by| *by > 1e-3);
        let corrected: Vec<f64> = corrected.collect();
        let most = corrected.iter().copied().reduce(f64::max)?;
        Some(format!(
            "at {} points the limit beside them moves with the point: B/A is without what it explains, {} % at most",
            corrected.len(),
            per_cent(most.exp_m1())
        ))
    }

    fn left_out_notes(&self) -> Vec<String> {
        let first = |what: &str, points: &[String]| {
            let (count, first) = (points.len(), points.first()?);
            Some(format!("{count} points {what}, the first: {first}"))
        };
        let points = [
            first("are only in A", &self.only_a),
            first("are only in B", &self.only_b),
            first("ran on other CPUs in A than in B and are not compared", &self.apart),
        ];
        let left_out = [("A", self.left_out.0), ("B", self.left_out.1)];
        let left_out = left_out.into_iter().filter(|(_, count)| *count > 0);
        let left_out = left_out.map(|(side, count)| {
            format!("records of {side} that failed or were waived are not compared: {count}")
        });
        let misplaced = (self.misplaced > 0).then(|| {
            format!(
                "runs that are left out because the other side has none on their CPUs: {}",
                self.misplaced
            )
        });
        points.into_iter().flatten().chain(left_out).chain(misplaced).collect()
    }

    fn conclusion(&self) -> String {
        let overall = self.overall.as_ref().filter(|all| all.differs());
        match self.conclusion {
            _ if !self.broken.is_empty() => "B is broken where A was not".to_owned(),
            _ if self.points.is_empty() => "cannot tell: no point is in both".to_owned(),
            Conclusion::Same => format!("same, within {} % everywhere", per_cent(self.ignore)),
            Conclusion::CannotTell => format!(
                "cannot tell: nothing differs by enough to count, and {} of {} points could hide more than {} %",
                self.count("unclear"),
                self.points.len(),
                per_cent(self.ignore)
            ),
            Conclusion::Different => match overall {
                Some(all) => format!("different: B is {} overall", all.verdict),
                None => format!(
                    "different: B is slower at {} points and faster at {}",
                    self.count("slower"),
                    self.count("faster")
                ),
            },
        }
    }
}

fn row(point: &ComparedPoint) -> Vec<String> {
    let (low, high) = point.interval;
    vec![
        point.verdict.to_owned(),
        point.point.clone(),
        point.level.to_owned(),
        show_ns(point.a_ns),
        show_ns(point.b_ns),
        format!("{:.3}", point.ratio),
        format!("{} - {}", ratio(low), ratio(high)),
        shown_visible(point.visible),
        format!("{}, {}", point.occasions.0, point.occasions.1),
    ]
}

/// Writes a ratio that may be the end of a wide interval.
fn ratio(ratio: f64) -> String {
    if (0.01..100.0).contains(&ratio) { format!("{ratio:.3}") } else { significant(ratio, 2) }
}

/// Writes the smallest slowdown that counts; beyond a factor of a hundred none does.
fn shown_visible(visible: f64) -> String {
    if visible < 100.0 { format!("{} %", per_cent(visible)) } else { "nothing".to_owned() }
}

fn per_cent(fraction: f64) -> String {
    significant(fraction * 100.0, 2)
}
