//! `--fail-on`: limits of losses for exit code 1, and the verdict in one line.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::units::{self, significant};

use crate::output::{CANNOT_TELL, FAILED, INTERRUPTED};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    Loss,
    Order,
    Dead,
    Flags,
    Connections,
    Resets,
}

use Measure::{Connections, Dead, Flags, Loss, Order, Resets};

const NAMES: [(Measure, &str); 6] = [
    (Loss, "loss"),
    (Order, "order"),
    (Dead, "dead"),
    (Flags, "flags"),
    (Connections, "connections"),
    (Resets, "resets"),
];

impl Measure {
    fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    fn limit(self, text: &str) -> Result<Limit, String> {
        let name = self.name();
        let limit = Limit::parse(text).ok_or_else(|| {
            format!("`{name}={text}`: write a number or a share from 0% to 100%, such as {name}=0 or {name}=1%")
        })?;
        match (self, limit) {
            (Dead, Limit::Count(1..)) => {
                Err(format!("`dead={text}`: dead time is a share of the time, such as dead=1%"))
            }
            (Connections | Resets, Limit::Share(_)) => {
                Err(format!("`{name}={text}`: this is a number, such as {name}=0"))
            }
            _ => Ok(limit),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Count(u64),
    Share(f64),
}

impl Limit {
    fn parse(text: &str) -> Option<Limit> {
        let Some(percent) = text.strip_suffix('%') else {
            return units::parse_count(text).ok().map(Limit::Count);
        };
        let percent: f64 = percent.trim().parse().ok()?;
        (0.0..=100.0).contains(&percent).then_some(Limit::Share(percent / 100.0))
    }

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

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FailOn(BTreeMap<Measure, Limit>);

const NONE: &str = "none";

impl FailOn {
    fn parse(text: &str, known: &[Measure]) -> Result<FailOn, String> {
        let mut limits = BTreeMap::new();
        if text.trim() == NONE {
            return Ok(FailOn(limits));
        }
        for item in text.split(',') {
            let (name, limit) = item.trim().split_once('=').unwrap_or((item.trim(), "0"));
            let measure =
                NAMES.iter().find(|(_, known)| *known == name).map(|(measure, _)| *measure);
            let Some(measure) = measure.filter(|measure| known.contains(measure)) else {
                let why = if measure.is_some() { "is not measured here" } else { "is not known" };
                let names: Vec<&str> = known.iter().map(|measure| measure.name()).collect();
                return Err(format!("`{name}` {why}; write {}, or {NONE}", names.join(", ")));
            };
            if limits.insert(measure, measure.limit(limit.trim())?).is_some() {
                return Err(format!("`{name}` is there twice"));
            }
        }
        Ok(FailOn(limits))
    }
}

/// Limits of `readout run` and `tohost`. A chain 5 % above its maximum rate is dead for 4.5 % of
/// the time in the published study at Nikhef, and for none of it below.
#[derive(Clone, Debug, Args)]
pub(super) struct ChainLimits {
    /// Exit with 1 if there was more: loss=N|P%, dead=P%, flags=N|P%; or none
    ///
    /// loss: events that were missing or cut off, for each subscriber, apart from those that BUSY
    /// stopped, the emulator's deficit, injected faults and, with --no-wait, those that had no
    /// subscriber. dead: time with BUSY. flags: other events with an error or CRC flag, apart from
    /// injected ones. A name alone means 0.
    #[arg(long, value_name = "LIMIT,..", default_value = "loss=0,dead=1%,flags=0", value_parser = |text: &str| FailOn::parse(text, &[Loss, Dead, Flags]))]
    pub(super) fail_on: FailOn,
}

/// Limits of `readout receive`.
#[derive(Clone, Debug, Args)]
pub(super) struct ReceiveLimits {
    /// Exit with 1 if there was more: loss=N|P%, order=N|P%, connections=N, flags=N|P%, resets=N;
    /// or none
    ///
    /// loss: events missing or cut off, by the publisher's account, or by their counters without
    /// one. order: events that came twice or after later ones. connections: those that were lost.
    /// flags: other events with an error or CRC flag. resets: of event counters. A name alone means
    /// 0. Exit with 3 if a counter fell to 0, and no account shows a reset or a loss.
    #[arg(long, value_name = "LIMIT,..", default_value = "loss=0,order=0,flags=0,connections=0", value_parser = |text: &str| FailOn::parse(text, &[Loss, Order, Connections, Flags, Resets]))]
    pub(super) fail_on: FailOn,
}

/// Limits of `readout check`.
#[derive(Clone, Debug, Args)]
pub(super) struct CheckLimits {
    /// Exit with 1 if there was more: loss=N|P%, order=N|P%, flags=N|P%, resets=N; or none
    ///
    /// loss: events missing or cut off; below level 3, blocks missing and events cut off. order:
    /// blocks or events that came twice or after later ones. flags: other events with an error or
    /// CRC flag. resets: of event counters. A name alone means 0. Bytes that are wrong fail always.
    /// Exit with 3 if a counter fell to 0: a reset, or a loss.
    #[arg(long, value_name = "LIMIT,..", default_value = "loss=0,order=0,flags=0", value_parser = |text: &str| FailOn::parse(text, &[Loss, Order, Flags, Resets]))]
    pub(super) fail_on: FailOn,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    faults: Vec<String>,
    values: BTreeMap<Measure, (u64, u64)>,
    doubts: BTreeMap<Measure, (u64, String)>,
}

impl Findings {
    pub(super) fn fault(&mut self, count: u64, what: impl fmt::Display) {
        if count > 0 {
            self.faults.push(format!("{what}: {count}"));
        }
    }

    pub(super) fn fails(&mut self, why: impl fmt::Display) {
        self.faults.push(why.to_string());
    }

    pub(super) fn values(&mut self, values: &[(Measure, u64, u64)]) {
        self.values.extend(values.iter().map(|(measure, count, of)| (*measure, (*count, *of))));
    }

    pub(super) fn fell_to_0(&mut self, falls: u64, missing: u64) {
        let times = if falls == 1 { "time" } else { "times" };
        let why =
            format!("event counters fell to 0 {falls} {times}: resets, or a loss of {missing}");
        self.doubts.extend([(Loss, (missing, why.clone())), (Resets, (falls, why))]);
    }

    pub(super) fn verdict(&self, limits: &FailOn) -> Verdict {
        let mut verdict = Verdict { exceeded: self.faults.clone(), ..Verdict::default() };
        for (measure, limit) in &limits.0 {
            let (count, of) = self.values.get(measure).copied().unwrap_or_default();
            let percent = significant(count as f64 / of.max(1) as f64 * 100.0, 3);
            let shown = match measure {
                Dead => format!("dead {percent} %"),
                _ if count > 0 && of > 0 => {
                    format!("{} {count} of {of} ({percent} %)", measure.name())
                }
                _ => format!("{} {count}", measure.name()),
            };
            let doubt = self.doubts.get(measure);
            if limit.is_exceeded(count, of) {
                verdict.exceeded.push(format!("{shown} is more than {limit}"));
            } else if let Some((_, why)) =
                doubt.filter(|(more, _)| limit.is_exceeded(count + more, of + more))
            {
                verdict.undecided.push(format!("{shown}, limit {limit}: {why}"));
            } else {
                verdict.kept.push(format!("{shown}, limit {limit}"));
            }
        }
        verdict
    }
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(super) struct Verdict {
    exceeded: Vec<String>,
    undecided: Vec<String>,
    kept: Vec<String>,
}

impl Verdict {
    pub(super) fn judgement(&self) -> Judgement {
        match (self.exceeded.is_empty(), self.undecided.is_empty()) {
            (false, _) => Judgement::Failed,
            (true, false) => Judgement::CannotTell,
            (true, true) => Judgement::Passed,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Judgement {
    Passed,
    CannotTell,
    Failed,
}

impl Judgement {
    /// Exit code of a verb that did its work, or the part of it before a signal.
    pub(super) fn exit(self, is_interrupted: bool) -> ExitCode {
        ExitCode::from(match self {
            _ if is_interrupted => INTERRUPTED,
            Judgement::Passed => 0,
            Judgement::CannotTell => CANNOT_TELL,
            Judgement::Failed => FAILED,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, all) = match self.judgement() {
            Judgement::Failed => ("failed", &self.exceeded),
            Judgement::CannotTell => ("cannot tell", &self.undecided),
            Judgement::Passed => ("passed", &self.kept),
        };
        let text = if all.is_empty() { "no limits".to_owned() } else { all.join("; ") };
        write!(f, "verdict: {name}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Result<FailOn, String> {
        FailOn::parse(text, &[Measure::Loss, Measure::Dead, Measure::Flags, Measure::Connections])
    }

    #[test]
    fn limits_are_numbers_or_shares() {
        let expected = [
            (Measure::Loss, Limit::Count(1000)),
            (Measure::Dead, Limit::Share(0.015)),
            (Measure::Flags, Limit::Count(0)),
        ];
        assert_eq!(limits(" loss=1k, dead=1.5% ,flags"), Ok(FailOn(expected.into())));
        assert_eq!(limits("none"), Ok(FailOn(BTreeMap::new())));
        assert_eq!(limits("dead=0").unwrap().0[&Measure::Dead], Limit::Count(0));
    }

    #[test]
    fn what_is_no_limit_is_said_with_what_is() {
        for (text, part) in [
            ("", "`` is not known; write loss, dead, flags, connections, or none"),
            ("los=1", "`los` is not known"),
            ("order=1", "`order` is not measured here; write loss"),
            ("loss=", "`loss=`: write a number or a share"),
            ("loss=-1", "`loss=-1`: write a number"),
            ("loss=101%", "from 0% to 100%"),
            ("loss=nan%", "`loss=nan%`"),
            ("dead=5", "dead time is a share of the time, such as dead=1%"),
            ("connections=1%", "this is a number, such as connections=0"),
            ("loss=1,loss=2", "`loss` is there twice"),
            ("loss=1,", "`` is not known"),
        ] {
            let error = limits(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_verdict_names_what_was_exceeded_with_its_value() {
        let mut found = Findings::default();
        found.values(&[(Loss, 12, 1000), (Dead, 45, 1000)]);
        let verdict = |text: &str| found.verdict(&limits(text).unwrap()).to_string();
        assert_eq!(
            verdict("loss=12,dead=4.5%"),
            "verdict: passed: loss 12 of 1000 (1.2 %), limit 12; dead 4.5 %, limit 4.5%"
        );
        assert_eq!(
            verdict("loss=0,dead=50%"),
            "verdict: failed: loss 12 of 1000 (1.2 %) is more than 0"
        );
        assert_eq!(
            verdict("loss=1%,dead=1%"),
            "verdict: failed: loss 12 of 1000 (1.2 %) is more than 1%; dead 4.5 % is more than 1%"
        );
        assert_eq!(verdict("flags"), "verdict: passed: flags 0, limit 0");
        assert_eq!(verdict("none"), "verdict: passed: no limits");
        found.fault(0, "wrong payloads");
        found.fault(3, "wrong payloads");
        assert_eq!(
            found.verdict(&limits("none").unwrap()).to_string(),
            "verdict: failed: wrong payloads: 3"
        );
    }

    #[test]
    fn what_may_exceed_a_limit_is_not_passed() {
        let mut found = Findings::default();
        found.values(&[(Loss, 12, 1000)]);
        found.fell_to_0(1, 5);
        for (limit, judgement, text) in [
            ("loss=11", Judgement::Failed, "failed: loss 12 of 1000 (1.2 %) is more than 11"),
            (
                "loss=16",
                Judgement::CannotTell,
                "cannot tell: loss 12 of 1000 (1.2 %), limit 16: event counters fell to 0 1 time: resets, or a loss of 5",
            ),
            ("loss=17", Judgement::Passed, "passed: loss 12 of 1000 (1.2 %), limit 17"),
            ("none", Judgement::Passed, "passed: no limits"),
        ] {
            let verdict = found.verdict(&limits(limit).unwrap());
            assert_eq!(verdict.judgement(), judgement, "{limit}");
            assert_eq!(verdict.to_string(), format!("verdict: {text}"));
        }
    }
}
