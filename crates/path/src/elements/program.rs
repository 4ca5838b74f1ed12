//! Stage `program`: blocks are written to a program and read from it.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{BYTES, Flow, Place, unless};
use crate::definition::kind::{Facts, StageElement};
use crate::element::Ends;
use crate::external;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    command: Vec<String>,
    #[serde(default)]
    changes: bool,
}

impl StageElement for Program {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let problem = "a program and its arguments are wanted, such as [\"cat\"]";
        unless(self.command.first().is_some_and(|name| !name.is_empty()), "command", problem)?;
        if self.changes {
            flow.unit = BYTES;
        }
        Ok(Facts {
            has_two_ends: true,
            is_outside: true,
            is_program: true,
            is_unknown: self.changes,
            ..Facts::of(format!("program {}", self.command.join(" ")))
        })
    }

    fn ends(&self, cuts: &Cuts) -> Result<Ends, Fault> {
        external::program(&self.command, cuts)
    }
}
