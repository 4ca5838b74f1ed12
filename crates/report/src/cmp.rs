//! Two sets of records, point by point: what became slower or faster, what changed of the hosts, and where it cannot be seen.

use std::collections::HashSet;
use std::fmt::Write;

use daqmeter_record::units::{show_ns, significant};
use daqmeter_record::{Outcome, RunRecord, Stage};
use daqmeter_stats::{Effect, Side, Verdict, compare};
use serde::Serialize;
use serde_json::Value;

use crate::aligned::numbers_from;
use crate::families::{level, level_name};
use crate::points::{Point, points_of, runs_by_point};
use crate::rate::is_done;
use crate::samples::compared_ns;

/// A point that both sides have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// Study, engine, parameters, stage.
    pub point: String,
    /// What of a run's samples is compared: `mean`, all the time that data takes on its way, or `median`, what an operation takes.
    pub level: &'static str,
    /// Time of one operation in A: the median of its runs.
    pub a_ns: f64,
    /// Time of one operation in B.
    pub b_ns: f64,
    /// B over A: above 1 is slower.
    pub ratio: f64,
    /// Interval of the ratio; all of a comparison hold together with 95 %.
    pub interval: (f64, f64),
    /// `slower`, `faster`, `same`, `unclear`.
    pub verdict: &'static str,
    /// Runs of A and B.
    pub runs: (usize, usize),
}

/// A fact of the host, or of the tool, that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FactChange {
    /// Name of the fact, as in the record.
    pub name: String,
    /// Of A.
    pub a: String,
    /// Of B.
    pub b: String,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Points that both sides have, in the order of A.
    pub points: Vec<ComparedPoint>,
    /// Points of A that B lacks.
    pub only_a: Vec<String>,
    /// Points of B that A lacks.
    pub only_b: Vec<String>,
    /// Points that were done and verified in A and failed in B, with the reason.
    pub broken: Vec<String>,
    /// Records of A and of B that failed or were waived: they are not compared.
    pub left_out: (usize, usize),
    /// What differs of the hosts and the tools.
    pub facts: Vec<FactChange>,
    /// Median ratio of all points and its interval at 99 %.
    pub overall: Option<(f64, f64, f64)>,
    /// True when that interval lies beyond what is ignored.
    pub shifted: bool,
    /// Fraction by which single runs differ here although nothing changed; 0 where runs were repeated.
    pub between_runs: f64,
    /// Fraction up to which differences are ignored.
    pub ignore: f64,
    /// Speed of a fixed piece of arithmetic, B over A in time: how much the hosts themselves differed.
    pub reference: Option<f64>,
}

/// Compares records A with records B; differences up to `ignore` (0.02 is 2 %) are not of interest.
pub fn cmp(a: &[RunRecord], b: &[RunRecord], ignore: f64) -> Compared {
    let (of_a, of_b) = (runs_by_point(a), runs_by_point(b));
    let places: std::collections::HashMap<_, _> =
        of_b.iter().map(|(point, runs)| (point, runs)).collect();
    let (known, known_b) = (all_points(a), all_points(b));
    let both: Vec<_> = of_a
        .iter()
        .filter_map(|(point, runs)| Some((point, runs, *places.get(point)?)))
        .collect();
    let sides: Vec<(Side, Side)> = both.iter().map(|(_, a, b)| (side(a), side(b))).collect();
    let found = compare(&sides, ignore);
    let compared = both
        .iter()
        .zip(&sides)
        .zip(&found.effects)
        .filter(|(_, effect)| effect.verdict != Verdict::Missing);
    let points = compared.map(|(((point, a, b), (side, _)), effect)| {
        described(
            point.to_string(),
            level_name(side.level),
            effect,
            (a.len(), b.len()),
        )
    });
    let points = points.collect();
    let left_out = |records: &[RunRecord]| records.iter().filter(|record| !is_done(record)).count();
    let names = |points: Vec<&Point>| points.into_iter().map(ToString::to_string).collect();
    Compared {
        points,
        only_a: names(
            of_a.iter()
                .map(|(point, _)| point)
                .filter(|point| !known_b.contains(point))
                .collect(),
        ),
        only_b: names(
            of_b.iter()
                .map(|(point, _)| point)
                .filter(|point| !known.contains(point))
                .collect(),
        ),
        broken: broken(a, b),
        left_out: (left_out(a), left_out(b)),
        facts: fact_changes(a, b),
        overall: found.overall,
        shifted: found.shifted,
        between_runs: found.between_runs,
        ignore,
        reference: reference(a).zip(reference(b)).map(|(a, b)| b / a),
    }
}

/// The points of all records, those that failed included: a point that failed is not missing.
fn all_points(records: &[RunRecord]) -> HashSet<Point> {
    records
        .iter()
        .flat_map(|record| points_of(record).map(|(point, _)| point))
        .collect()
}

/// The runs of a point on one side.
fn side(runs: &[(&RunRecord, &Stage)]) -> Side {
    Side {
        runs: runs.iter().map(|(_, stage)| compared_ns(stage)).collect(),
        level: runs
            .first()
            .map(|(record, stage)| level(record, stage))
            .unwrap_or_default(),
    }
}

fn described(
    point: String,
    level: &'static str,
    effect: &Effect,
    runs: (usize, usize),
) -> ComparedPoint {
    let verdict = match effect.verdict {
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Same => "same",
        Verdict::Unclear | Verdict::Missing => "unclear",
    };
    let Effect {
        a,
        b,
        ratio,
        interval,
        ..
    } = *effect;
    ComparedPoint {
        point,
        level,
        a_ns: a,
        b_ns: b,
        ratio,
        interval,
        verdict,
        runs,
    }
}

/// Points that A did and verified, and that went wrong in B.
fn broken(a: &[RunRecord], b: &[RunRecord]) -> Vec<String> {
    let name = |record: &RunRecord| format!("{} {}", record.study, record.workload);
    let done: std::collections::HashSet<String> = a
        .iter()
        .filter(|record| record.outcome.is_ok())
        .map(name)
        .collect();
    let failed = b.iter().filter_map(|record| match &record.outcome {
        Outcome::Failed(why) if done.contains(&name(record)) => {
            Some(format!("{}: {why}", name(record)))
        }
        _ => None,
    });
    let mut failed: Vec<String> = failed.collect();
    failed.dedup();
    failed
}

/// Median of the reference times of the runs; none for older records.
fn reference(records: &[RunRecord]) -> Option<f64> {
    let times: Vec<f64> = records
        .iter()
        .map(|record| record.noise.reference_ns)
        .filter(|&ns| ns > 0.0)
        .collect();
    (!times.is_empty()).then(|| daqmeter_stats::quantile(&daqmeter_stats::sorted(&times), 0.5))
}

/// Facts that differ; all values of a side that was measured on several hosts.
fn fact_changes(a: &[RunRecord], b: &[RunRecord]) -> Vec<FactChange> {
    let (a, b) = (facts(a), facts(b));
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let shown = |side: &Facts, name: &String| {
        side.get(name)
            .map_or("-".to_owned(), |values| values.join(" | "))
    };
    let all = names.into_iter().map(|name| FactChange {
        name: name.clone(),
        a: shown(&a, name),
        b: shown(&b, name),
    });
    all.filter(|change| change.a != change.b).collect()
}

type Facts = std::collections::BTreeMap<String, Vec<String>>;

fn facts(records: &[RunRecord]) -> Facts {
    let mut facts = Facts::new();
    let mut last: Option<&std::sync::Arc<daqmeter_record::Host>> = None;
    for record in records {
        let tool = &record.tool;
        let version = format!("{} ({}, {})", tool.version, tool.git_revision, tool.profile);
        add(&mut facts, "tool", version);
        if last.is_some_and(|last| std::sync::Arc::ptr_eq(last, &record.host)) {
            continue;
        }
        last = Some(&record.host);
        if let Ok(value) = serde_json::to_value(&*record.host) {
            flatten(&mut facts, "", &value);
        }
    }
    facts
}

/// Free pages come and go; they are no fact of the host.
const FLEETING: [&str; 1] = ["huge_pages"];

fn flatten(facts: &mut Facts, name: &str, value: &Value) {
    if FLEETING.contains(&name) {
        return;
    }
    match value {
        Value::Object(fields) if name.is_empty() => fields
            .iter()
            .for_each(|(name, value)| flatten(facts, name, value)),
        Value::String(text) => add(facts, name, text.clone()),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            add(
                facts,
                name,
                list.iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(", "),
            );
        }
        other => add(facts, name, other.to_string()),
    }
}

fn add(facts: &mut Facts, name: &str, value: String) {
    let values = facts.entry(name.to_owned()).or_default();
    if !values.contains(&value) {
        values.push(value);
    }
}

impl Compared {
    /// Number of points with that verdict.
    pub fn count(&self, verdict: &str) -> usize {
        self.points
            .iter()
            .filter(|point| point.verdict == verdict)
            .count()
    }

    /// True when B is slower than A by at least that fraction somewhere or overall, or broken: what a gate fails on.
    pub fn regressed(&self, by: f64) -> bool {
        let worst = self
            .points
            .iter()
            .any(|point| point.verdict == "slower" && point.ratio >= 1.0 + by);
        let overall = self.shifted && self.overall.is_some_and(|(ratio, ..)| ratio >= 1.0 + by);
        worst || overall || !self.broken.is_empty()
    }

    /// True when nothing differs.
    pub fn is_same(&self) -> bool {
        !self.shifted && self.broken.is_empty() && self.count("slower") + self.count("faster") == 0
    }

    /// For people: facts that changed, points that differ (or all), and the verdict.
    pub fn text(&self, all: bool) -> String {
        let mut out = String::new();
        for FactChange { name, a, b } in &self.facts {
            let _ = writeln!(out, "changed  {name}: {a} -> {b}");
        }
        if !self.facts.is_empty() {
            out.push('\n');
        }
        let shown: Vec<&ComparedPoint> = self
            .points
            .iter()
            .filter(|point| all || matches!(point.verdict, "slower" | "faster"))
            .collect();
        if !shown.is_empty() {
            let rows = shown.iter().map(|point| {
                vec![
                    point.verdict.to_owned(),
                    point.point.clone(),
                    point.level.to_owned(),
                    show_ns(point.a_ns),
                    show_ns(point.b_ns),
                    format!("{:.3}", point.ratio),
                    format!("{:.3} - {:.3}", point.interval.0, point.interval.1),
                    format!("{}, {}", point.runs.0, point.runs.1),
                ]
            });
            out.push_str(&numbers_from(
                3,
                &[
                    "verdict",
                    "point",
                    "time",
                    "A",
                    "B",
                    "B/A",
                    "95 % of all",
                    "runs",
                ],
                rows,
            ));
            out.push('\n');
        }
        for broken in &self.broken {
            let _ = writeln!(out, "broken   {broken}");
        }
        out.push_str(&self.verdict());
        out
    }

    /// Counts, notes, and the verdict in one line.
    fn verdict(&self) -> String {
        let mut out = self.counts();
        for note in self
            .reference_note()
            .into_iter()
            .chain(self.noise_note())
            .chain(self.left_out_notes())
        {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\nverdict: {}", self.conclusion());
        out
    }

    fn counts(&self) -> String {
        let mut out = format!(
            "{} points: {} slower, {} faster, {} the same within {} %, {} too noisy to tell\n",
            self.points.len(),
            self.count("slower"),
            self.count("faster"),
            self.count("same"),
            per_cent(self.ignore),
            self.count("unclear")
        );
        if let Some((ratio, low, high)) = self.overall {
            let _ = writeln!(
                out,
                "all points together: B/A {ratio:.3} ({low:.3} - {high:.3})"
            );
        }
        out
    }

    fn reference_note(&self) -> Option<String> {
        let reference = self
            .reference
            .filter(|reference| (reference - 1.0).abs() > 0.01)?;
        Some(format!(
            "plain arithmetic took {reference:.3} times as long on B's host: part of any difference is the host's"
        ))
    }

    /// How small a difference can be seen.
    fn noise_note(&self) -> Option<String> {
        let widths = self
            .points
            .iter()
            .filter(|point| point.verdict != "same")
            .map(|point| (point.interval.1 / point.interval.0).sqrt())
            .filter(|width| width.is_finite());
        let widths = daqmeter_stats::sorted(&widths.collect::<Vec<_>>());
        if self.count("unclear") == 0 || widths.is_empty() {
            return None;
        }
        let typical = daqmeter_stats::quantile(&widths, 0.5) - 1.0;
        let help = if self.between_runs > 0.0 {
            ": measure each side several times (daqmeter run with repetitions) to see less"
        } else {
            ""
        };
        Some(format!(
            "at the noisier points only differences above about {} % can be seen{help}",
            per_cent(typical + self.ignore)
        ))
    }

    /// What is not compared.
    fn left_out_notes(&self) -> Vec<String> {
        let only = [("A", &self.only_a), ("B", &self.only_b)];
        let only = only.into_iter().filter_map(|(side, points)| {
            let (count, first) = (points.len(), points.first()?);
            Some(format!(
                "{count} points are only in {side}, the first: {first}"
            ))
        });
        let left_out = [("A", self.left_out.0), ("B", self.left_out.1)];
        let left_out = left_out.into_iter().filter(|(_, count)| *count > 0);
        let left_out = left_out.map(|(side, count)| {
            format!("records of {side} that failed or were waived are not compared: {count}")
        });
        only.chain(left_out).collect()
    }

    fn conclusion(&self) -> String {
        match () {
            () if !self.broken.is_empty() => "B is broken where A was not".to_owned(),
            () if self.points.is_empty() => {
                "nothing can be compared: no point is in both".to_owned()
            }
            () if self.is_same() => "no difference".to_owned(),
            () if self.shifted => {
                let ratio = self.overall.map_or(1.0, |(ratio, ..)| ratio);
                let how = if ratio > 1.0 { "slower" } else { "faster" };
                format!("B is {how} overall")
            }
            () => format!(
                "B is slower at {} points and faster at {}",
                self.count("slower"),
                self.count("faster")
            ),
        }
    }
}

fn per_cent(fraction: f64) -> String {
    significant(fraction * 100.0, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{chain, example};

    /// Five runs of the example, whose times are multiplied by a factor and scatter by a per mille.
    fn runs(factor: f64) -> Vec<RunRecord> {
        let run = |at: u32| {
            let mut record = example();
            let factor = factor * (1.0 + f64::from(at * 3 % 5) * 1e-3);
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                stage
                    .sample_ns
                    .iter_mut()
                    .for_each(|ns| *ns = (*ns as f64 * factor) as u64);
            }
            record
        };
        (0..5).map(run).collect()
    }

    #[test]
    fn five_per_cent_are_found_and_a_gate_fails_on_them() {
        let found = cmp(&runs(1.0), &runs(1.05), 0.02);
        assert_eq!(found.count("slower"), 4);
        assert!(found.regressed(0.04) && !found.regressed(0.06));
        let back = cmp(&runs(1.05), &runs(1.0), 0.02);
        assert_eq!((back.count("faster"), back.regressed(0.0)), (4, false));
        assert!(cmp(&runs(1.0), &runs(1.0), 0.02).is_same());
    }

    /// A chain takes its time whatever it carries: it looked the same with half of its triggers stopped.
    #[test]
    fn a_chain_that_carries_less_is_slower() {
        let chains = |carried: u64| -> Vec<RunRecord> {
            (0..5).map(|run| chain(carried + run * 100)).collect()
        };
        let found = cmp(&chains(900_000), &chains(450_000), 0.02);
        assert_eq!(found.count("slower"), 1);
        assert!((found.points[0].ratio - 2.0).abs() < 0.01);
    }

    #[test]
    fn what_changed_of_the_host_is_named_and_what_broke_is_a_regression() {
        let mut b = runs(1.0);
        for record in &mut b {
            let mut host = (*record.host).clone();
            host.governor = Some("powersave".into());
            host.huge_pages.push(Default::default());
            record.host = host.into();
        }
        b[3].outcome = Outcome::Failed("bytes differ".into());
        let found = cmp(&runs(1.0), &b, 0.02);
        let powersave = FactChange {
            name: "governor".into(),
            a: "-".into(),
            b: "powersave".into(),
        };
        assert_eq!(found.facts, [powersave]);
        assert!(found.broken.len() == 1 && found.regressed(0.5) && !found.is_same());
        insta::assert_snapshot!(found.text(true));
    }

    #[test]
    fn a_run_that_failed_is_not_compared_and_its_point_is_not_missing() {
        let mut b = runs(1.0);
        for record in &mut b[..2] {
            record.outcome = Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = cmp(&runs(1.0), &b, 0.02);
        assert!(
            found
                .points
                .iter()
                .all(|point| point.runs == (5, 3) && point.verdict == "same"),
            "{found:?}"
        );
        assert_eq!((found.left_out, found.broken.len()), ((0, 2), 1));
        b.iter_mut()
            .for_each(|record| record.outcome = Outcome::Failed("bytes differ".into()));
        let found = cmp(&runs(1.0), &b, 0.02);
        assert_eq!(
            (found.points.len(), found.only_a.len(), found.left_out),
            (0, 0, (0, 5))
        );
        assert!(
            found
                .text(true)
                .contains("verdict: B is broken where A was not"),
            "{}",
            found.text(true)
        );
    }

    #[test]
    fn a_disk_whose_slow_reads_got_slower_is_slower_although_its_median_is_not() {
        let disk = |slow_ns: u64| {
            let run = |at: u64| {
                let mut record = example();
                record.lanes.truncate(1);
                record.lanes[0].stages.truncate(1);
                let slow_ns = slow_ns + at * 1000;
                record.lanes[0].stages[0].sample_ns = (0..200)
                    .map(|at| if at % 5 < 3 { 100_000 } else { slow_ns })
                    .collect();
                record
            };
            (0..5).map(run).collect::<Vec<_>>()
        };
        let found = cmp(&disk(10_000_000), &disk(20_000_000), 0.02);
        assert_eq!(
            (found.points[0].verdict, found.points[0].level),
            ("slower", "mean")
        );
    }

    #[test]
    fn nothing_in_common_is_said() {
        let mut b = runs(1.0);
        b.iter_mut()
            .for_each(|record| record.study = "another".into());
        let found = cmp(&runs(1.0), &b, 0.02);
        assert!(
            found.text(false).contains("nothing can be compared"),
            "{}",
            found.text(false)
        );
        assert_eq!((found.only_a.len(), found.only_b.len()), (4, 4));
        assert!(cmp(&[], &[], 0.02).text(true).contains("nothing"));
    }
}
