//! Published studies: what a document states, what follows from it, what a model gives, what was measured here, and the verdict.
//!
//! The types keep these kinds of numbers apart. A [`Published`] figure and a [`Statement`] are read from a study's data file
//! and made in no other way; each says where in its document it stands. The number of a figure does not come out again: it is
//! shown, it is compared, and other figures are derived from it. A [`Derived`] figure is shown, and no verdict uses it. A
//! [`Measured`] value needs the records that it was computed from. A verdict ([`Comparison::verdict`], [`Statement::judged`])
//! sets something measured or modelled beside something published, so that no document can be confirmed by its own numbers.

mod figure;
mod statement;
mod verdict;

pub use figure::{Comparison, Derived, Measured, Modelled, Published, Scope};
pub use statement::{About, Finding, Holds, Question, Statement};
pub use verdict::{Basis, Grade, Verdict};

#[cfg(test)]
mod tests;
