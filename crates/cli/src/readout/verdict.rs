//! `--fail-on`: what may be lost before a verb ends with exit code 1, and the verdict in one line.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::units::{self, significant};

use crate::output::{CANNOT_TELL, FAILED, INTERRUPTED};

/// What can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// Events that were issued or accepted and are missing or cut off.
    Loss,
    /// Events and blocks that came twice, or after later ones.
    Order,
    /// Time with BUSY.
    Dead,
    /// Other events with an error or CRC flag.
    Flags,
    /// Connections lost.
    Connections,
    /// Resets of event counters.
    Resets,
}

impl Measure {
    const ALL: [Measure; 6] = [
        Measure::Loss,
        Measure::Order,
        Measure::Dead,
        Measure::Flags,
        Measure::Connections,
        Measure::Resets,
    ];

    fn name(self) -> &'static str {
        match self {
            Measure::Loss => "loss",
            Measure::Order => "order",
            Measure::Dead => "dead",
            Measure::Flags => "flags",
            Measure::Connections => "connections",
            Measure::Resets => "resets",
        }
    }

    /// A limit that this can have.
    fn limit(self, text: &str) -> Result<Limit, String> {
        let name = self.name();
        let limit = Limit::parse(text).ok_or_else(|| {
            format!("`{name}={text}`: write a number or a share from 0% to 100%, such as {name}=0 or {name}=1%")
        })?;
        match (self, limit) {
            (Measure::Dead, Limit::Count(count)) if count > 0 => {
                Err(format!("`dead={text}`: dead time is a share of the time, such as dead=1%"))
            }
            (Measure::Connections | Measure::Resets, Limit::Share(_)) => {
                Err(format!("`{name}={text}`: this is a number, such as {name}=0"))
            }
            _ => Ok(limit),
        }
    }
}

/// How much of it is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Count(u64),
    /// Of all, 0 to 1.
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

/// The limits of a verb.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FailOn(BTreeMap<Measure, Limit>);

/// Means no limit at all.
const NONE: &str = "none";

impl FailOn {
    /// Reads `loss=0,dead=1%`; of these measures.
    fn parse(text: &str, known: &[Measure]) -> Result<FailOn, String> {
        let mut limits = BTreeMap::new();
        if text.trim() == NONE {
            return Ok(FailOn(limits));
        }
        for item in text.split(',') {
            let (name, limit) = item.trim().split_once('=').unwrap_or((item.trim(), "0"));
            let measure = known
                .iter()
                .find(|measure| measure.name() == name)
                .ok_or_else(|| unknown(name, known))?;
            if limits.insert(*measure, measure.limit(limit.trim())?).is_some() {
                return Err(format!("`{name}` is there twice"));
            }
        }
        Ok(FailOn(limits))
    }
}

fn unknown(name: &str, known: &[Measure]) -> String {
    let names: Vec<&str> = known.iter().map(|measure| measure.name()).collect();
    let elsewhere = Measure::ALL.iter().any(|measure| measure.name() == name);
    let why = if elsewhere { "is not measured here" } else { "is not known" };
    format!("`{name}` {why}; write {}, or {NONE}", names.join(", "))
}

/// Limits of a chain. A chain 5 % above its maximum rate is dead for 4.5 % of the time in the
/// published study at Nikhef, and for none of it below.
const OF_RUN: &str = "loss=0,dead=1%,flags=0";

/// For `readout run`.
#[derive(Clone, Debug, Args)]
pub(super) struct OfRun {
    /// Exit with 1 if there was more: loss=N|P%, dead=P%, flags=N|P%; or none
    ///
    /// loss: events that were missing or cut off, apart from those that BUSY stopped, the
    /// emulator's deficit and injected faults. dead: time with BUSY. flags: other events with an
    /// error or CRC flag, apart from injected ones. A name alone means 0.
    #[arg(long, value_name = "LIMIT,..", default_value = OF_RUN, value_parser = of_run)]
    pub(super) fail_on: FailOn,
}

/// For `readout tohost`.
#[derive(Clone, Debug, Args)]
pub(super) struct OfTohost {
    /// Exit with 1 if there was more: loss=N|P%, dead=P%, flags=N|P%; or none
    ///
    /// loss: events that were missing or cut off, for each subscriber, apart from those that BUSY
    /// stopped, the emulator's deficit, injected faults and, with --no-wait, those that had no
    /// subscriber. dead: time with BUSY. flags: other events with an error or CRC flag, apart from
    /// injected ones. A name alone means 0.
    #[arg(long, value_name = "LIMIT,..", default_value = OF_RUN, value_parser = of_run)]
    pub(super) fail_on: FailOn,
}

/// For `readout receive`.
#[derive(Clone, Debug, Args)]
pub(super) struct OfReceive {
    /// Exit with 1 if there was more: loss=N|P%, order=N|P%, connections=N, flags=N|P%, resets=N; or none
    ///
    /// loss: events missing or cut off, by the publisher's account, or by their counters without
    /// one. order: events that came twice or after later ones. connections: those that were lost.
    /// flags: other events with an error or CRC flag. resets: of event counters. A name alone means
    /// 0. Exit with 3 if a counter fell to 0, and neither an account nor the other E-links show a
    /// reset or a loss.
    #[arg(long, value_name = "LIMIT,..", default_value = "loss=0,order=0,flags=0,connections=0", value_parser = of_receive)]
    pub(super) fail_on: FailOn,
}

/// For `readout check`.
#[derive(Clone, Debug, Args)]
pub(super) struct OfCheck {
    /// Exit with 1 if there was more: loss=N|P%, order=N|P%, flags=N|P%, resets=N; or none
    ///
    /// loss: events missing or cut off; below level 3, blocks missing and events cut off. order:
    /// blocks or events that came twice or after later ones. flags: other events with an error or
    /// CRC flag. resets: of event counters. A name alone means 0. Bytes that are wrong fail always.
    /// Exit with 3 if a counter fell to 0, and the other E-links do not show a reset or a loss.
    #[arg(long, value_name = "LIMIT,..", default_value = "loss=0,order=0,flags=0", value_parser = of_check)]
    pub(super) fail_on: FailOn,
}

fn of_run(text: &str) -> Result<FailOn, String> {
    FailOn::parse(text, &[Measure::Loss, Measure::Dead, Measure::Flags])
}

fn of_receive(text: &str) -> Result<FailOn, String> {
    FailOn::parse(
        text,
        &[Measure::Loss, Measure::Order, Measure::Connections, Measure::Flags, Measure::Resets],
    )
}

fn of_check(text: &str) -> Result<FailOn, String> {
    FailOn::parse(text, &[Measure::Loss, Measure::Order, Measure::Flags, Measure::Resets])
}

/// What was found: faults that no limit allows, and what is held against the limits.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    faults: Vec<String>,
    values: BTreeMap<Measure, (u64, u64)>,
    /// Amounts by which values may be larger, with the reasons.
    doubts: BTreeMap<Measure, (u64, String)>,
}

impl Found {
    /// A fault that no limit allows, if it is there.
    pub(super) fn fault(&mut self, count: u64, what: impl fmt::Display) {
        if count > 0 {
            self.faults.push(format!("{what}: {count}"));
        }
    }

    /// A fault without a number.
    pub(super) fn fails(&mut self, why: impl fmt::Display) {
        self.faults.push(why.to_string());
    }

    /// So many of so many.
    pub(super) fn value(&mut self, measure: Measure, count: u64, of: u64) {
        self.values.insert(measure, (count, of));
    }

    /// Notes that a value may be larger by `more`.
    pub(super) fn doubt(&mut self, measure: Measure, more: u64, why: impl fmt::Display) {
        self.doubts.insert(measure, (more, why.to_string()));
    }

    /// A share of all, 0 to 1.
    pub(super) fn share(&mut self, measure: Measure, share: f64) {
        const ALL: u64 = 1_000_000_000;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a billion"
        )]
        let count = (share.clamp(0.0, 1.0) * ALL as f64).round() as u64;
        self.value(measure, count, ALL);
    }

    /// What the limits say of it.
    pub(super) fn verdict(&self, limits: &FailOn) -> Verdict {
        let (mut exceeded, mut kept) = (self.faults.clone(), Vec::new());
        let mut undecided = Vec::new();
        for (measure, limit) in &limits.0 {
            let (count, of) = self.values.get(measure).copied().unwrap_or_default();
            let value = said(*measure, count, of);
            if limit.is_exceeded(count, of) {
                exceeded.push(format!("{} {value} is more than {limit}", measure.name()));
            } else if let Some((_, why)) = self
                .doubts
                .get(measure)
                .filter(|(more, _)| limit.is_exceeded(count + more, of + more))
            {
                undecided.push(format!("{} {value}, limit {limit}: {why}", measure.name()));
            } else {
                kept.push(format!("{} {value}, limit {limit}", measure.name()));
            }
        }
        Verdict { exceeded, undecided, kept }
    }
}

/// Counters that fell to 0, with the events that are missing if these are losses.
pub(super) fn fell_to_0(found: &mut Found, falls: u64, missing: u64) {
    let times = if falls == 1 { "time" } else { "times" };
    let why = format!("event counters fell to 0 {falls} {times}: resets, or a loss of {missing}");
    found.doubt(Measure::Loss, missing, &why);
    found.doubt(Measure::Resets, falls, &why);
}

fn said(measure: Measure, count: u64, of: u64) -> String {
    let percent = || significant(count as f64 / of.max(1) as f64 * 100.0, 3);
    match measure {
        Measure::Dead => format!("{} %", percent()),
        _ if count > 0 && of > 0 => format!("{count} of {of} ({} %)", percent()),
        _ => count.to_string(),
    }
}

/// Passed, or what was exceeded.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(super) struct Verdict {
    /// Faults and limits exceeded, with the values.
    exceeded: Vec<String>,
    /// Limits that may be exceeded.
    undecided: Vec<String>,
    /// Limits kept.
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

/// Outcome of one or several verdicts; of several, the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Judgement {
    Passed,
    CannotTell,
    Failed,
}

impl Judgement {
    /// Exit code of a verb that did its work, or the part of it before a signal.
    pub(super) fn exit(self, is_interrupted: bool) -> ExitCode {
        match self {
            _ if is_interrupted => ExitCode::from(INTERRUPTED),
            Judgement::Passed => ExitCode::SUCCESS,
            Judgement::CannotTell => ExitCode::from(CANNOT_TELL),
            Judgement::Failed => ExitCode::from(FAILED),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.judgement() {
            Judgement::Failed => write!(f, "verdict: failed: {}", self.exceeded.join("; ")),
            Judgement::CannotTell => {
                write!(f, "verdict: cannot tell: {}", self.undecided.join("; "))
            }
            Judgement::Passed if self.kept.is_empty() => write!(f, "verdict: passed: no limits"),
            Judgement::Passed => write!(f, "verdict: passed: {}", self.kept.join("; ")),
        }
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
        let mut found = Found::default();
        found.value(Measure::Loss, 12, 1000);
        found.value(Measure::Dead, 45, 1000);
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
        let mut found = Found::default();
        found.value(Measure::Loss, 12, 1000);
        fell_to_0(&mut found, 1, 5);
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
