//! `--fail-on`: limits of losses for exit code 1, and the verdict in one line.

use std::fmt;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_readout::accounts::FLAGGED;
use daqmeter_record::Ledger;
use daqmeter_record::units::{self, significant};

use crate::arguments::share;
use crate::output::{CANNOT_TELL, FAILED};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    Loss,
    Order,
    Dead,
    Flags,
    Connections,
    Resets,
}

use Measure::{Dead, Flags, Loss, Resets};

daqmeter_harness::displayed!(Measure);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    Count(u64),
    Share(f64),
}

impl Limit {
    fn is_exceeded(self, count: u64, of: u64) -> bool {
        match self {
            Limit::Count(limit) => count > limit,
            Limit::Share(limit) => count as f64 > limit * of as f64,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Count(count) => write!(f, "{count}"),
            Limit::Share(share) => write!(f, "{}%", significant(share * 100.0, 6)),
        }
    }
}

fn limit(text: &str) -> Result<(Measure, Limit), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "0"));
    let Ok(measure) = Measure::from_str(name.trim(), false) else {
        let all = Measure::value_variants().iter().map(Measure::to_string).collect::<Vec<_>>();
        return Err(format!("`{name}` is not known; write {}", all.join(", ")));
    };
    let value = value.trim();
    let count = units::parse_count(value).ok().map(Limit::Count);
    let limit = count.or(share(value).ok().filter(|share| *share <= 1.0).map(Limit::Share));
    let example =
        || format!("`{text}`: write a number or a share from 0% to 100%, as in {name}=1%");
    Ok((measure, limit.ok_or_else(example)?))
}

/// Limits of a verb's verdict. A chain 5 % above its maximum rate is dead for 4.5 % of the time in
/// the published study at Nikhef, and for none of it below.
#[derive(Clone, Debug, Args)]
pub(crate) struct Limits {
    /// Exit with 1 above a limit, N or P%: loss, order, dead, flags, connections, resets
    ///
    /// loss: missing or truncated events of each subscriber; below level 3 of a check, blocks.
    /// Events that BUSY stopped, the emulator's deficit, injected faults, and with --no-wait
    /// events without a subscriber do not count. order: events that came twice or too late.
    /// dead: time with BUSY. flags: other events with an error or CRC flag. connections: lost
    /// connections. resets: resets of event counters.
    ///
    /// Wrong bytes and triggers that are not accounted for always fail. The exit code is 3 if the
    /// counters have several readings, of which one is within the limits and another is not.
    #[arg(long, value_name = "NAME=N,..", value_delimiter = ',', value_parser = limit, default_value = "loss=0,order=0,dead=1%,flags=0,connections=0")]
    pub(crate) fail_on: Vec<(Measure, Limit)>,
}

/// Findings of a verb, from which its exit code follows. The only judge of the read-out is
/// [`Findings::verdict`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Faults, which always fail.
    pub(crate) faults: Vec<String>,
    /// Data and accounts that did not come. Without them nothing passes.
    pub(crate) missing: Vec<String>,
    /// Counts of what has a limit, and of all things that were looked at.
    pub(crate) values: Vec<(Measure, u64, u64)>,
    /// Places at which more events may be missing, and these events.
    pub(crate) unclear: (u64, u64),
    /// Channels that made the dead time, as a part of a sentence.
    pub(crate) dead_by: String,
}

impl Findings {
    /// Begins with the number of things that were looked at, such as events.
    pub(crate) fn of(count: u64, what: &str) -> Findings {
        let missing = (count == 0).then(|| format!("no {what} came"));
        Findings { missing: missing.into_iter().collect(), ..Findings::default() }
    }

    /// Begins with the ledgers of E-links. `unheard` events had no subscriber and are not lost.
    pub(crate) fn of_ledgers<'a>(
        ledgers: impl Iterator<Item = &'a Ledger> + Clone,
        unheard: u64,
    ) -> Findings {
        let issued = ledgers.clone().map(|ledger| ledger.issued).sum();
        let mut findings = Findings::of(issued, "trigger");
        let open = ledgers.clone().filter(|ledger| !ledger.closes()).count();
        findings.fault(open as u64, "E-links that are not fully accounted for");
        if issued > unheard && ledgers.clone().all(|ledger| ledger.delivered == 0) {
            findings.faults.push("no event was delivered".to_owned());
        }
        let lost: u64 = ledgers.clone().map(Ledger::lost_on_the_way).sum();
        let flagged = ledgers.filter_map(|ledger| ledger.losses.get(FLAGGED)).sum();
        findings.values = vec![(Loss, lost - unheard, issued), (Flags, flagged, issued)];
        findings
    }

    pub(crate) fn fault(&mut self, count: u64, what: impl fmt::Display) {
        if count > 0 {
            self.faults.push(format!("{what}: {count}"));
        }
    }

    pub(crate) fn verdict(&self, limits: &Limits) -> Verdict {
        let Findings { faults: exceeded, missing: undecided, .. } = self.clone();
        let mut verdict = Verdict { exceeded, undecided, kept: Vec::new() };
        let (places, missing) = self.unclear;
        for (measure, limit) in &limits.fail_on {
            let value = self.values.iter().find(|(of, ..)| of == measure);
            let Some(&(_, count, of)) = value else { continue };
            let percent = significant(count as f64 / of.max(1) as f64 * 100.0, 3);
            let shown = match measure {
                Dead => format!("dead {percent} %{}", self.dead_by),
                _ if count > 0 && of > 0 => format!("{measure} {count} of {of} ({percent} %)"),
                _ => format!("{measure} {count}"),
            };
            let more = match measure {
                Loss => missing,
                Resets => places,
                _ => 0,
            };
            if limit.is_exceeded(count, of) {
                verdict.exceeded.push(format!("{shown} is more than {limit}"));
            } else if limit.is_exceeded(count + more, of + more) {
                verdict.undecided.push(format!("{shown}, limit {limit}: the counters allow a loss of {missing} more, in {places} places"));
            } else {
                verdict.kept.push(format!("{shown}, limit {limit}"));
            }
        }
        verdict
    }
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Verdict {
    exceeded: Vec<String>,
    undecided: Vec<String>,
    kept: Vec<String>,
}

impl Verdict {
    pub(crate) fn judgement(&self) -> Judgement {
        self.judged().0
    }

    /// Returns the judgement, its name and its reasons.
    fn judged(&self) -> (Judgement, &'static str, &[String]) {
        match (&self.exceeded[..], &self.undecided[..]) {
            ([], []) => (Judgement::Passed, "passed", &self.kept),
            ([], undecided) => (Judgement::CannotTell, "cannot tell", undecided),
            (exceeded, _) => (Judgement::Failed, "failed", exceeded),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Judgement {
    Passed,
    CannotTell,
    Failed,
}

impl Judgement {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Judgement::Passed => 0,
            Judgement::CannotTell => CANNOT_TELL,
            Judgement::Failed => FAILED,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, all) = self.judged();
        let text = if all.is_empty() { "no limits".to_owned() } else { all.join("; ") };
        // Behind a name, the word is left out.
        let head = if f.alternate() { "" } else { "verdict: " };
        write!(f, "{head}{name}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_shares() {
        for (text, expected) in [
            ("loss=1k", Ok((Loss, Limit::Count(1000)))),
            ("dead=1.5%", Ok((Dead, Limit::Share(0.015)))),
            ("dead=0.015", Ok((Dead, Limit::Share(0.015)))),
            ("flags", Ok((Measure::Flags, Limit::Count(0)))),
            (
                "los=1",
                Err("`los` is not known; write loss, order, dead, flags, connections, resets"),
            ),
            ("loss=", Err("`loss=`: write a number or a share")),
            ("loss=-1", Err("write a number")),
            ("loss=101%", Err("from 0% to 100%, as in loss=1%")),
            ("loss=nan%", Err("write a number")),
        ] {
            match (limit(text), expected) {
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{text}"),
            }
        }
    }

    #[test]
    fn a_verdict_names_what_was_exceeded_or_may_be_with_its_value() {
        let values = vec![(Loss, 12, 1000), (Dead, 45, 1000)];
        let mut found = Findings { values, ..Findings::default() };
        let check = |found: &Findings, limits: &[(Measure, Limit)], code, text: &str| {
            let verdict = found.verdict(&Limits { fail_on: limits.to_vec() });
            assert_eq!(verdict.to_string(), format!("verdict: {text}"));
            assert_eq!(verdict.judgement(), code, "{text}");
        };
        let (loss, dead) = (|limit| (Loss, Limit::Count(limit)), (Dead, Limit::Share(0.045)));
        check(
            &found,
            &[loss(12), dead],
            Judgement::Passed,
            "passed: loss 12 of 1000 (1.2 %), limit 12; dead 4.5 %, limit 4.5%",
        );
        let failed = "failed: loss 12 of 1000 (1.2 %) is more than 0";
        check(&found, &[loss(0), dead], Judgement::Failed, failed);
        let absent = (Measure::Flags, Limit::Count(0));
        check(&found, &[absent], Judgement::Passed, "passed: no limits");
        found.unclear = (1, 5);
        let cannot = "cannot tell: loss 12 of 1000 (1.2 %), limit 16: the counters allow a loss of 5 more, in 1 places";
        check(&found, &[loss(16)], Judgement::CannotTell, cannot);
        let passed = "passed: loss 12 of 1000 (1.2 %), limit 17";
        check(&found, &[loss(17)], Judgement::Passed, passed);
        found.fault(0, "wrong payloads");
        found.fault(3, "wrong payloads");
        check(&found, &[], Judgement::Failed, "failed: wrong payloads: 3");
        // Missing data neither pass nor fail, whatever the limits are.
        let none = Findings::of(0, "event");
        check(&none, &[absent], Judgement::CannotTell, "cannot tell: no event came");
    }
}
