//! What the records say in plain words: the first thing on the page and the last thing in the terminal.

use daqmeter_record::RunRecord;
use daqmeter_record::conditions::Conditions;

use crate::advice::advice;
use crate::aligned::wrapped;
use crate::families::FAMILIES;
pub use crate::family::Answer;
use crate::families::pmu::verified;
use crate::{chains, rate, several};

/// Answers that the records of each host support. Records that failed or are above their limit
/// support none.
pub fn answers(all: &[RunRecord]) -> Vec<Answer> {
    several::each(all, |host, all| {
        let mut answers = answers_of(&rate::usable(all), all);
        if let Some(host) = host {
            let named = |answer: &mut Answer| answer.answer.insert_str(0, &format!("{host}: "));
            answers.iter_mut().for_each(named);
        }
        answers
    })
}

/// Answers of one host.
fn answers_of(usable: &[RunRecord], all: &[RunRecord]) -> Vec<Answer> {
    let of_families = FAMILIES.iter().flat_map(|family| family.answers);
    let conditions = Conditions::of(all);
    let found = std::iter::once(first_change(usable))
        .chain(of_families.map(|answer| answer(usable)))
        .chain([verified(all), left_out(all)])
        .flatten()
        .collect();
    stamped(found, &conditions)
}

/// The answers for the terminal: whole paths first, then each answer below its question.
pub fn answers_text(records: &[RunRecord]) -> String {
    let shown = |answer: Answer| {
        let text = wrapped(&format!("  {}", answer.answer), 2);
        format!("{}\n{text}\n", wrapped(answer.question, 0))
    };
    let paths = chains::texts(records).into_iter();
    let all: Vec<String> = paths.chain(answers(records).into_iter().map(shown)).collect();
    all.join("\n")
}

/// Says first what disturbed the measurements, and marks every answer where they are unsound for it.
fn stamped(mut answers: Vec<Answer>, conditions: &Conditions) -> Vec<Answer> {
    let Some(line) = conditions.line().filter(|_| !answers.is_empty()) else {
        return answers;
    };
    let verdict = if conditions.are_unsound() {
        for answer in &mut answers {
            answer.answer.insert_str(0, "UNSOUND: ");
        }
        format!("no: {line}; nothing below can be relied on")
    } else {
        format!("nearly: {line}; those points are marked")
    };
    let first = Answer { question: "Was the host quiet?", answer: verdict, figure: None };
    answers.insert(0, first);
    answers
}

/// Points that the answers do not rest on; none where they rest on all that was measured.
fn left_out(records: &[RunRecord]) -> Option<Answer> {
    let count = |is: fn(&RunRecord) -> bool| records.iter().filter(|record| is(record)).count();
    let failed =
        count(|record| rate::undone(&record.outcome).is_some_and(|(how, _)| how == "failed"));
    let above = count(|record| rate::is_done(record) && rate::is_doubtful(record));
    let parts = [
        (failed, "failed"),
        (above, "with a rate above its limit, by more than the intervals allow"),
    ];
    let parts = parts.iter().filter(|(points, _)| *points > 0);
    let words: Vec<String> = parts.map(|(points, what)| format!("{points} {what}")).collect();
    (!words.is_empty()).then(|| Answer {
        question: "Which points are used for no answer?",
        answer: words.join(", "),
        figure: None,
    })
}

fn first_change(records: &[RunRecord]) -> Option<Answer> {
    let all = advice(records);
    let first = all.first()?;
    let more = match all.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more below"),
    };
    Some(Answer {
        question: "What to change first?",
        answer: format!("{} (measured here: {}){more}", first.what, first.evidence),
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
        let mut records = [failed, above_its_limit()];
        // All that the CPUs did was this program's work.
        for record in &mut records {
            record.process_cpu.user_ns = record.host_cpu.user_ns;
        }
        let found = answers(&records);
        let questions: Vec<&str> = found.iter().map(|answer| answer.question).collect();
        assert_eq!(questions, ["Which points are used for no answer?"]);
        assert_eq!(
            found[0].answer,
            "1 failed, 1 with a rate above its limit, by more than the intervals allow"
        );
    }

    #[test]
    fn answers_of_a_host_that_was_not_quiet_are_marked_one_by_one() {
        let sound = answers(&[example()]);
        assert!(sound.iter().all(|answer| !answer.answer.contains("UNSOUND")), "{sound:?}");
        let marked = answers(&[crate::examples::disturbed()]);
        assert_eq!(marked.len(), sound.len() + 1);
        assert_eq!(marked[0].question, "Was the host quiet?");
        assert!(
            marked[0].answer.starts_with("no: other programs took 90 % of the time"),
            "{marked:?}"
        );
        assert!(
            marked[1..].iter().all(|answer| answer.answer.starts_with("UNSOUND: ")),
            "{marked:?}"
        );
    }

    #[test]
    fn answers_rest_on_the_records_that_are_there() {
        assert!(answers(&[]).is_empty());
        let found = answers(&[example()]);
        assert_eq!(found.len(), 2);
        assert!(
            found[1].answer.contains("costs 0.54 ns per operation and 24 ns per sample"),
            "{}",
            found[1].answer
        );
        assert_eq!(
            found[0].answer,
            "2 emulated boards move 1196 MB/s (1196 - 1197) together; alone they would move 2556 MB/s in all"
        );
    }
}
