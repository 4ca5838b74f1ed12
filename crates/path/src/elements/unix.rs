//! Stage `unix`: sent over a pair of Unix sockets.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place};
use crate::definition::kind::{StageElement, element_type};
use crate::external::{self, Connected};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unix {}

element_type!(Unix, "unix", StageElement);

impl StageElement for Unix {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<(), Fault> {
        flow.without_card()
    }

    fn text(&self) -> String {
        "unix socket".to_owned()
    }

    fn has_two_ends(&self) -> bool {
        true
    }

    fn connection(&self, cuts: &Cuts) -> Result<Connected, Fault> {
        external::unix(cuts)
    }
}
