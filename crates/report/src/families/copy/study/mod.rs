//! The study of copies of 2013 (reference 1.9): its files, its figures, what it states and asks.

pub mod classic;
pub(crate) mod figures;
pub mod findings;
pub mod imported;
