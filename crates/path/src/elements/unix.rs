//! Stage `unix`: sent over a pair of Unix sockets.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place};
use crate::definition::kind::{Facts, StageElement};
use crate::external::{self, Connected};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unix {}

impl StageElement for Unix {
    fn check(&mut self, _place: &Place, _flow: &mut Flow) -> Result<Facts, Fault> {
        Ok(Facts { has_two_ends: true, ..Facts::of("unix socket") })
    }

    fn connection(&self, cuts: &Cuts) -> Result<Connected, Fault> {
        external::unix(cuts)
    }
}
