//! What is said of a published figure or statement.

use std::fmt;

/// Within this of the published value a figure is reproduced.
const REPRODUCED: f64 = 0.05;
/// Within this it is near.
const NEAR: f64 = 0.20;

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Measured here, on what this host has.
    Measured,
    /// Measured here, on an emulated device, which moves as its profile says.
    Emulated,
    /// A model alone.
    Model,
}

impl Basis {
    /// The one that says less.
    pub(super) fn weaker(self, other: Basis) -> Basis {
        if self == Basis::Measured { other } else { self }
    }
}

/// How a figure or a statement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// A figure: within 5 %.
    Reproduced,
    /// A figure: within 20 %.
    Near,
    /// A figure: further off.
    Differs,
    /// A statement: holds.
    Confirmed,
    /// A statement: holds in part.
    InPart,
    /// A statement: does not hold.
    Refuted,
}

impl Grade {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Reproduced => "reproduced",
            Grade::Near => "near",
            Grade::Differs => "differs",
            Grade::Confirmed => "confirmed",
            Grade::InPart => "in part",
            Grade::Refuted => "refuted",
        }
    }

    /// True for what contradicts the document.
    pub fn contradicts(self) -> bool {
        matches!(self, Grade::Differs | Grade::Refuted)
    }
}

/// What is said of a row or a finding. Made by comparing, and in no other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Judged(Grade, Basis),
    ThisHost(Basis),
    Fitted(Basis),
    NotMeasured,
    CannotTell,
    Unpublished,
}

impl Verdict {
    pub(super) fn of_figure(difference: f64, basis: Basis) -> Verdict {
        let grade = match difference.abs() {
            off if off <= REPRODUCED => Grade::Reproduced,
            off if off <= NEAR => Grade::Near,
            _ => Grade::Differs,
        };
        Verdict(Kind::Judged(grade, basis))
    }

    pub(super) fn of_statement(grade: Grade, basis: Basis) -> Verdict {
        Verdict(Kind::Judged(grade, basis))
    }

    pub(super) fn this_host(basis: Basis) -> Verdict {
        Verdict(Kind::ThisHost(basis))
    }

    /// Verdict on a figure that model and emulated device were fitted to: a match says nothing, a
    /// miss does.
    pub(super) fn of_a_fit(self) -> Verdict {
        match self.0 {
            Kind::Judged(Grade::Reproduced | Grade::Near, basis) if basis != Basis::Measured => {
                Verdict(Kind::Fitted(basis))
            }
            _ => self,
        }
    }

    pub(super) fn not_measured() -> Verdict {
        Verdict(Kind::NotMeasured)
    }

    pub(super) fn cannot_tell() -> Verdict {
        Verdict(Kind::CannotTell)
    }

    pub(super) fn unpublished() -> Verdict {
        Verdict(Kind::Unpublished)
    }

    /// How it compares, if it was compared.
    pub fn grade(self) -> Option<Grade> {
        match self.0 {
            Kind::Judged(grade, _) => Some(grade),
            _ => None,
        }
    }

    /// What the comparison rests on.
    pub fn basis(self) -> Option<Basis> {
        match self.0 {
            Kind::Judged(_, basis) | Kind::ThisHost(basis) | Kind::Fitted(basis) => Some(basis),
            _ => None,
        }
    }
}

/// `reproduced`, `near (emulated)`, `differs (model)`, `fitted (model)`, `this host`, `not
/// measured`, `cannot tell`, `nothing published`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Judged(grade, _) => grade.name(),
            Kind::ThisHost(_) => "this host",
            Kind::Fitted(_) => "fitted",
            Kind::NotMeasured => "not measured",
            Kind::CannotTell => "cannot tell",
            Kind::Unpublished => "nothing published",
        })?;
        match self.basis() {
            Some(Basis::Emulated) => f.write_str(" (emulated)"),
            Some(Basis::Model) => f.write_str(" (model)"),
            _ => Ok(()),
        }
    }
}
