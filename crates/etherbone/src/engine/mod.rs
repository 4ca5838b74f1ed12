//! The engine: reads over Etherbone by the methods of the study of 2018, with one lane and one
//! client.

mod plan;
mod request;
mod session;
mod times;

use daqmeter_harness::{Fault, Request};

pub use self::request::{EtherboneRequest, Method, Payload};
pub use self::times::{TIME_BYTES, Times};
use plan::Plan;

/// Opens a conversation with a slave outside this process, to see that it answers.
pub fn reach(request: &EtherboneRequest) -> Result<(), Fault> {
    request.check().map_err(|problem| request.workload().error(problem.name, problem.text))?;
    let plan = Plan::of(request)?;
    if !plan.target.is_ours() {
        let (client, _) = plan.open()?;
        plan.close(client);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
