//! Results of the records in plain words: the first thing on the page and the last thing in the
//! terminal.

use daqmeter_record::units::joined;
use daqmeter_record::{Outcome, RunRecord};

use crate::aligned::wrapped;
use crate::families::FAMILIES;
use crate::families::path::chains;
use crate::families::pmu::verified;
use crate::family::PlainAnswer;
use crate::rate;

/// Returns the answers of each host to each question that its records support. Records that failed
/// or exceed their limit support none.
pub(crate) fn answers(records: &[RunRecord]) -> Vec<(&'static str, Vec<PlainAnswer>)> {
    rate::side_by_side(records, |host, own| {
        let named = |own: PlainAnswer| {
            (own.question, PlainAnswer { answer: rate::on_host(host, &own.answer), ..own })
        };
        answers_of(own).into_iter().map(named).collect()
    })
}

fn answers_of(all: &[RunRecord]) -> Vec<PlainAnswer> {
    let usable = &*rate::usable(all);
    let questions = FAMILIES.iter().flat_map(|family| family.questions);
    let of_families = questions.map(|&(question, figure, answer)| {
        Some(PlainAnswer { question, answer: answer(usable)?, figure })
    });
    of_families.chain([verified(all), left_out(all)]).flatten().collect()
}

pub fn answers_text(records: &[RunRecord]) -> String {
    let answer = |own: &PlainAnswer| wrapped(&format!("  {}", own.answer), 2) + "\n";
    let shown = |(question, own): (&str, Vec<PlainAnswer>)| {
        wrapped(question, 0) + "\n" + &own.iter().map(answer).collect::<String>()
    };
    let paths = chains(records).into_iter().map(|chain| chain.text());
    paths.chain(answers(records).into_iter().map(shown)).collect::<Vec<_>>().join("\n")
}

fn left_out(records: &[RunRecord]) -> Option<PlainAnswer> {
    let count = |is: fn(&RunRecord) -> bool| records.iter().filter(|record| is(record)).count();
    let failed = count(|record| matches!(record.outcome, Outcome::Failed(_)));
    let above = count(|record| rate::is_done(record) && rate::is_doubtful(record));
    let above_limit = "above the limit by more than the intervals allow";
    let parts = [(failed, "failed"), (above, above_limit)].into_iter();
    let parts = parts.filter(|(points, _)| *points > 0);
    let question = "Which measurements are not used in the answers?";
    let answer = joined(parts.map(|(points, what)| format!("{what}: {points}")), "; ")?;
    Some(PlainAnswer { question, answer, figure: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example};

    #[test]
    fn what_failed_or_is_above_its_limit_supports_no_answer_and_is_counted() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        let records = [failed, above_its_limit()];
        let found = answers(&records);
        let questions: Vec<&str> = found.iter().map(|(question, _)| *question).collect();
        assert_eq!(questions, ["Which measurements are not used in the answers?"]);
        let words = "failed: 1; above the limit by more than the intervals allow: 1";
        assert_eq!(found[0].1[0].answer, words);
    }

    #[test]
    fn answers_rest_on_the_records_that_are_there() {
        assert!(answers(&[]).is_empty());
        let found = answers(&[example()]);
        assert_eq!(found.len(), 2);
        let cost = "costs 0.54 ns per operation and 24 ns per sample";
        assert!(found[1].1[0].answer.contains(cost), "{found:?}");
        assert_eq!(
            found[0].1[0].answer,
            "2 emulated boards together: 1.2 GB/s, 0.47 of the rates of each alone"
        );
    }
}
