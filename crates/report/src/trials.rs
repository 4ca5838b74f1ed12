//! Changes to a path that were tried, or the reason for no trial: a line for each, the best first.

use daqmeter_record::path::{Decided, InTurns, PathRun, Trial, Tried};
use daqmeter_record::sanitise;
use daqmeter_record::units::{plural, significant};

/// Writes a gain in percent: 1.12 is `12`, 0.95 is `-5`.
fn percent(times: f64) -> String {
    significant((times - 1.0) * 100.0, 2)
}

pub(crate) fn line(trial: &Trial) -> String {
    let found = match &trial.found {
        Tried::InTurns(found) => in_turns(found),
        Tried::Not(why) => format!("not tried: {why}"),
    };
    let predicted = trial.predicted.map_or_else(String::new, |times| {
        format!("; {} times as fast was predicted", significant(times, 3))
    });
    format!("{}: {found}{predicted}", trial.change)
}

fn in_turns(found: &InTurns) -> String {
    let pairs = format!("{} of runs", plural(found.pairs, "pair"));
    let interval = |from: fn((f64, f64)) -> (f64, f64)| {
        found.interval.map_or_else(String::new, |ends| {
            let (low, high) = from(ends);
            format!(" (95 %: {} to {})", percent(low), percent(high))
        })
    };
    let rate = interval(|ends| ends);
    match found.decided {
        Decided::Faster => format!("{} % faster{rate}, tried in {pairs}", percent(found.times)),
        Decided::Slower => {
            let less = interval(|(low, high)| (2.0 - high, 2.0 - low));
            format!("{} % slower{less}, tried in {pairs}", percent(2.0 - found.times))
        }
        Decided::Same => {
            let ignored = significant(found.ignored * 100.0, 2);
            format!("no difference above {ignored} %, tried in {pairs}")
        }
        Decided::Undecided => {
            format!("not decided by {pairs}: rate {:+.1} %{rate}", (found.times - 1.0) * 100.0)
        }
    }
}

/// Writes all but the best in few words, by their results; `None` without others.
pub(crate) fn others(run: &PathRun) -> Option<String> {
    let named = |what: &str, decided: Option<Decided>| {
        let meant = run.trials.iter().filter(|trial| trial.found.decided() == decided);
        let names: Vec<&str> = meant
            .skip_while(|trial| Some(*trial) == best(run))
            .map(|trial| &*trial.change)
            .collect();
        (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
    };
    let all = [
        named("also faster", Some(Decided::Faster)),
        named("no difference", Some(Decided::Same)),
        named("slower", Some(Decided::Slower)),
        named("not decided", Some(Decided::Undecided)),
        named("not tried", None),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

pub(crate) fn best(run: &PathRun) -> Option<&Trial> {
    let mut all = run.trials.iter();
    all.find(|trial| trial.found.decided() == Some(Decided::Faster))
}

pub(crate) fn text(run: &PathRun) -> String {
    if run.trials.is_empty() {
        return String::new();
    }
    let lines: Vec<String> =
        run.trials.iter().map(|trial| format!("  {}\n", sanitise::text(&line(trial)))).collect();
    format!(
        "changes, each beside the path as it is (95 % for all of them together):\n{}",
        lines.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(decided: Decided, times: f64, interval: Option<(f64, f64)>) -> Trial {
        Trial {
            change: "--set block=128KiB".to_owned(),
            predicted: None,
            threads_of: None,
            found: Tried::InTurns(InTurns { decided, times, interval, pairs: 14, ignored: 0.02 }),
        }
    }

    #[test]
    fn each_trial_says_what_was_changed_and_what_came_of_it() {
        let not = Trial {
            change: "--set pages=huge".to_owned(),
            predicted: Some(1.5),
            threads_of: None,
            found: Tried::Not("needs root: no pool".to_owned()),
        };
        let run = PathRun {
            trials: vec![
                trial(Decided::Faster, 1.12, Some((1.09, 1.15))),
                trial(Decided::Same, 1.001, Some((0.99, 1.01))),
                trial(Decided::Undecided, 1.03, None),
                trial(Decided::Slower, 0.9, Some((0.88, 0.93))),
                not,
            ],
            ..PathRun::default()
        };
        insta::assert_snapshot!(text(&run));
        assert_eq!(best(&run), run.trials.first());
        insta::assert_snapshot!(others(&run).unwrap_or_default());
        assert_eq!(others(&PathRun::default()), None);
        assert_eq!(text(&PathRun::default()), "");
    }
}
