//! What the records say in plain words: the first thing on the page and the last thing in the terminal.

use daqmeter_record::RunRecord;

use crate::advice::advice;
use crate::families::FAMILIES;
pub use crate::family::Answer;
use crate::family::Measured;
use crate::{path, rate};

/// Every answer that the records support. What failed, and what is above its limit, supports none.
pub fn answers(all: &[RunRecord]) -> Vec<Answer> {
    let usable = &*rate::usable(all);
    let measured = Measured { usable, all };
    let of_families = FAMILIES.iter().flat_map(|family| family.answers);
    [slowest_stage(usable), first_change(usable)]
        .into_iter()
        .chain(of_families.map(|answer| answer(&measured)))
        .chain([left_out(all)])
        .flatten()
        .collect()
}

/// What the answers do not rest on; nothing where they rest on all that was measured.
fn left_out(records: &[RunRecord]) -> Option<Answer> {
    let count = |is: fn(&RunRecord) -> bool| records.iter().filter(|record| is(record)).count();
    let failed =
        count(|record| rate::undone(&record.outcome).is_some_and(|(how, _)| how == "failed"));
    let above = count(|record| rate::is_done(record) && rate::is_doubtful(record));
    let parts = [
        (failed, "failed"),
        (
            above,
            "with a rate above its limit, by more than the intervals allow",
        ),
    ];
    let parts = parts.iter().filter(|(points, _)| *points > 0);
    let words: Vec<String> = parts
        .map(|(points, what)| format!("{points} {what}"))
        .collect();
    (!words.is_empty()).then(|| Answer {
        question: "Which points are used for no answer?",
        answer: words.join(", "),
        figure: None,
    })
}

/// The slowest stage in the picture of the path.
fn slowest_stage(records: &[RunRecord]) -> Option<Answer> {
    Some(Answer {
        question: "Which stage limits this host?",
        answer: path::slowest(&path::path(records))?,
        figure: Some("path"),
    })
}

fn first_change(records: &[RunRecord]) -> Option<Answer> {
    // Advice is for hosts whose path was measured, not for a table of one run.
    if path::path(records).is_empty() {
        return None;
    }
    let all = advice(records);
    let first = all.first()?;
    let evidence = first
        .evidence
        .as_deref()
        .map_or("without evidence from this run".to_owned(), |evidence| {
            format!("measured here: {evidence}")
        });
    let more = match all.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more below"),
    };
    Some(Answer {
        question: "What to change first?",
        answer: format!("{} ({evidence}){more}", first.what),
        figure: Some("advice"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example};

    #[test]
    fn what_failed_or_is_above_its_limit_supports_no_answer_and_is_counted() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        let found = answers(&[failed, above_its_limit()]);
        let questions: Vec<&str> = found.iter().map(|answer| answer.question).collect();
        assert_eq!(questions, ["Which points are used for no answer?"]);
        assert_eq!(
            found[0].answer,
            "1 failed, 1 with a rate above its limit, by more than the intervals allow"
        );
    }

    #[test]
    fn answers_rest_on_the_records_that_are_there() {
        assert!(answers(&[]).is_empty());
        let found = answers(&[example()]);
        assert_eq!(found.len(), 2);
        assert!(
            found[1]
                .answer
                .contains("costs 0.54 ns per operation and 24 ns per sample"),
            "{}",
            found[1].answer
        );
        assert_eq!(
            found[0].answer,
            "2 emulated boards move 1196 MB/s together; alone they would move 2556 in all"
        );
    }
}
