//! Tests of all outputs, and the records that the tests of this crate share.

mod damaged;
pub(crate) mod examples;
