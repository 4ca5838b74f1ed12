//! Results as a table and as JSON lines.

use std::fmt::Write;

use daqmeter_campaign::ab::{AbVerdict, Answer, Block};
use daqmeter_harness::Context;
use daqmeter_record::units::show_ns;
use daqmeter_report::table;
use serde::Serialize;

use super::arguments::Arguments;
use super::pairs::Pair;
use crate::output::{Failure, json_lines};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Same,
    Different,
    Undecided,
    LeftOut,
    NotMeasured,
}

#[derive(Debug, Serialize)]
pub(super) struct Compared {
    pub(super) point: String,
    pub(super) a: String,
    pub(super) b: String,
    pub(super) outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) answers: Vec<Answer>,
}

impl Compared {
    pub(super) fn of(pair: &Pair, answers: Vec<Answer>) -> Compared {
        let any = |verdict| answers.iter().any(|answer| answer.verdict == verdict);
        let outcome = if any(AbVerdict::Slower) || any(AbVerdict::Faster) {
            Outcome::Different
        } else if any(AbVerdict::Undecided) || answers.is_empty() {
            Outcome::Undecided
        } else {
            Outcome::Same
        };
        let [a, b] = pair.names.clone();
        Compared { point: pair.point.clone(), a, b, outcome, reason: None, answers }
    }

    pub(super) fn without(pair: &Pair, outcome: Outcome, why: &str) -> Compared {
        let compared = Compared::of(pair, Vec::new());
        Compared { outcome, reason: Some(why.to_owned()), ..compared }
    }

    pub(super) fn line(&self, arguments: &Arguments, context: &Context) -> Result<String, Failure> {
        json_lines(&[Line { conditions: conditions(arguments, context), compared: self }])
    }
}

/// A line of the file: the conditions, and the answers of one point.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    conditions: serde_json::Value,
    #[serde(flatten)]
    compared: &'a Compared,
}

const HEADERS: [&str; 8] = ["verdict", "stage", "A", "B", "B/A", "interval", "blocks", "point"];

fn conditions(arguments: &Arguments, context: &Context) -> serde_json::Value {
    serde_json::json!({
        "ab": 1,
        "time_utc": daqmeter_harness::facts::utc_now(),
        "run_id": context.run_id,
        "command": context.command,
        "tool": context.tool,
        "host": *context.host,
        "ignore": arguments.ignore,
        "error": arguments.error,
        "budget_s": arguments.budget.as_secs_f64(),
    })
}

pub(super) fn text(compared: &[Compared], ignore: f64, error: f64) -> String {
    let row = |one: &Compared| one.answers.iter().map(|answer| row(answer, &one.point)).collect();
    let rows: Vec<Vec<String>> = compared.iter().flat_map::<Vec<_>, _>(row).collect();
    let mut out = if rows.is_empty() { String::new() } else { table::plain(&HEADERS, rows) };
    compared.iter().for_each(|one| notes(&mut out, one));
    let (ignore, error) = (percent(ignore), percent(error));
    let _ = writeln!(
        out,
        "B against A. Differences up to {ignore} are ignored; the chance that any of these answers is wrong is at most {error}."
    );
    out
}

fn row(answer: &Answer, point: &str) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let [a, b] = [answer.a_ns, answer.b_ns].map(|ns| or_dash(ns.map(show_ns)));
    let ratio = or_dash(answer.ratio.map(|ratio| format!("{ratio:.4}")));
    let interval = or_dash(answer.interval.map(|(low, high)| format!("{low:.4} - {high:.4}")));
    let blocks = answer.blocks.len().to_string();
    let head = [format!("{:?}", answer.verdict).to_lowercase(), answer.stage.clone()];
    [&head[..], &[a, b, ratio, interval, blocks, point.to_owned()]].concat()
}

fn notes(out: &mut String, one: &Compared) {
    let point = &one.point;
    if let Some(why) = &one.reason {
        let what = if one.outcome == Outcome::LeftOut { "left out" } else { "not measured" };
        let _ = writeln!(out, "{what}: {point}: {why}");
    }
    for answer in one.answers.iter().filter(|one| one.verdict == AbVerdict::Undecided) {
        let _ = writeln!(out, "undecided: {} of {point}: {}", answer.stage, undecided(answer));
    }
}

fn undecided(answer: &Answer) -> String {
    match answer.visible {
        _ if answer.wandered => "the difference itself changed while it was measured".to_owned(),
        None => "too few blocks to see any difference".to_owned(),
        Some(visible) => format!("a difference above {} would have been seen", percent(visible)),
    }
}

fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(verdict: AbVerdict) -> Answer {
        let block = Block { log_ratio: Some(0.0), slices: 12, ..Block::default() };
        Answer {
            stage: "copy".to_owned(),
            verdict,
            ratio: Some(1.0123),
            interval: Some((1.0101, 1.0145)),
            a_ns: Some(1200.0),
            b_ns: Some(1215.0),
            visible: Some(0.0123),
            wandered: false,
            blocks: vec![block; 20],
        }
    }

    fn compared(point: &str, outcome: Outcome, answers: Vec<Answer>) -> Compared {
        let (point, a, b) = (point.to_owned(), "old".to_owned(), "new".to_owned());
        Compared { point, a, b, outcome, reason: None, answers }
    }

    #[test]
    fn every_point_is_in_the_text_with_what_became_of_it() {
        let wandered = Answer { wandered: true, interval: None, ..answer(AbVerdict::Undecided) };
        let early = Answer { visible: None, interval: None, ..answer(AbVerdict::Undecided) };
        let reason = Some("it has 2 lanes".to_owned());
        let all = [
            compared(
                "convert",
                Outcome::Different,
                vec![answer(AbVerdict::Slower), answer(AbVerdict::Faster)],
            ),
            compared("memory", Outcome::Same, vec![answer(AbVerdict::Same)]),
            compared(
                "pread",
                Outcome::Undecided,
                vec![answer(AbVerdict::Undecided), wandered, early],
            ),
            Compared { reason, ..compared("stream", Outcome::LeftOut, Vec::new()) },
            Compared {
                reason: Some("side B: ended".to_owned()),
                ..compared("null", Outcome::NotMeasured, Vec::new())
            },
        ];
        insta::assert_snapshot!(text(&all, 0.01, 0.005));
    }
}
