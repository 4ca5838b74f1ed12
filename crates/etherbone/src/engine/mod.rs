//! The engine: reads over Etherbone by the methods of the study of 2018, with one lane and one
//! client.

mod kept;
mod plan;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod times;

use daqmeter_harness::{Fault, Job, Request, Session};

pub use self::request::{EtherboneRequest, Method, Payload};
pub use self::times::{TIME_BYTES, Times};
use plan::Plan;
use session::EtherboneSession;

/// Opens a conversation with a slave outside this process, to see that it answers.
pub fn reach(request: &EtherboneRequest) -> Result<(), Fault> {
    request.check().map_err(|problem| request.workload().error(problem.name, problem.text))?;
    let plan = Plan::of(request)?;
    if !plan.is_ours() {
        let (client, _) = plan.open()?;
        plan.close(client);
    }
    Ok(())
}

fn job(request: &EtherboneRequest) -> Job {
    Job {
        is_emulated: request.is_emulated(),
        owns_device: !request.is_emulated(),
        ..Job::new(request, request.address.as_str(), open)
    }
}

fn open(request: &EtherboneRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let plan = Plan::of(request)?;
    Ok(vec![Box::new(EtherboneSession::new(plan))])
}
