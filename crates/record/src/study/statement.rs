//! What a document says in words, what it asks, and what the records answer.

use serde::Deserialize;

use super::figure::Measured;
use super::verdict::{Basis, Grade, Verdict};

/// What people read of a study besides its figures.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Title, author, year.
    pub title: String,
    /// What was done here, and on what.
    pub about: String,
    /// What a reader must know, such as inconsistencies of the document.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A sentence of a document, and where it stands. Only a study's data file makes one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Statement(Written);

/// What a document measures without saying the result in words or numbers, such as a picture of a curve.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Question(Written);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    text: String,
    place: String,
}

impl Written {
    fn checked(self) -> Result<Written, String> {
        let is_whole = !self.text.trim().is_empty() && !self.place.trim().is_empty();
        is_whole.then_some(self).ok_or_else(|| {
            "a statement needs its `text` and the `place` in its document".to_owned()
        })
    }

    fn finding(&self, verdict: Verdict, evidence: String) -> Finding {
        Finding { text: self.text.clone(), place: self.place.clone(), verdict, evidence }
    }
}

impl TryFrom<Written> for Statement {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.checked().map(Statement)
    }
}

impl TryFrom<Written> for Question {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.checked().map(Question)
    }
}

/// Whether measured values bear a statement out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// They do.
    Yes,
    /// Some do.
    InPart,
    /// They do not.
    No,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Holds {
        if holds { Holds::Yes } else { Holds::No }
    }
}

/// A statement or a question with what the records say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The statement or question.
    pub text: String,
    /// Where it stands.
    pub place: String,
    /// What the records say.
    pub verdict: Verdict,
    /// By which numbers.
    pub evidence: String,
}

/// The values, and the weakest of what they rest on. None unless all are there.
fn all(measured: &[Option<Measured>]) -> Option<(Vec<f64>, Basis)> {
    let known: Vec<Measured> = measured.iter().copied().collect::<Option<_>>()?;
    let basis = known.iter().map(|one| one.basis()).reduce(Basis::weaker)?;
    Some((known.iter().map(|one| one.value()).collect(), basis))
}

impl Statement {
    /// Judged by what was measured here. Unless everything was measured that it needs, nothing is said.
    pub fn judged<const N: usize>(
        &self,
        measured: [Option<Measured>; N],
        judge: impl FnOnce([f64; N]) -> (Holds, String),
    ) -> Finding {
        let Some((values, basis)) = all(&measured) else {
            return self.cannot_tell("not measured here");
        };
        let values = <[f64; N]>::try_from(values).expect("as many values as were given");
        let (holds, evidence) = judge(values);
        if measured.iter().flatten().any(|one| one.is_disturbed()) {
            return self.cannot_tell(&format!(
                "measured while the host was disturbed, repeat on a quiet host: {evidence}"
            ));
        }
        let grade = match holds {
            Holds::Yes => Grade::Confirmed,
            Holds::InPart => Grade::InPart,
            Holds::No => Grade::Refuted,
        };
        self.0.finding(Verdict::of_statement(grade, basis), evidence)
    }

    /// What is needed to judge it is not there.
    pub fn cannot_tell(&self, why: &str) -> Finding {
        self.0.finding(Verdict::cannot_tell(), why.to_owned())
    }
}

impl Question {
    /// This host's answer, which nothing published can be compared with.
    pub fn answered<const N: usize>(
        &self,
        measured: [Option<Measured>; N],
        answer: impl FnOnce([f64; N]) -> String,
    ) -> Finding {
        let Some((values, basis)) = all(&measured) else {
            return self.cannot_tell("not measured here");
        };
        let values = <[f64; N]>::try_from(values).expect("as many values as were given");
        self.0.finding(Verdict::this_host(basis), answer(values))
    }

    /// What is needed to answer it is not there.
    pub fn cannot_tell(&self, why: &str) -> Finding {
        self.0.finding(Verdict::cannot_tell(), why.to_owned())
    }
}
