//! The engine: reads over Etherbone by the methods of the study of 2018, with one lane and one
//! client.

mod plan;
mod request;
mod session;
mod times;

use daqmeter_harness::{Fault, Job, Problem, Request, Session, StopFlag};

pub use self::request::{EtherboneRequest, Method, Payload, SlaveAddress};
pub use self::times::{TIME_BYTES, Times};
use plan::Plan;
use request::Target;
use session::EtherboneSession;

impl Request for EtherboneRequest {
    const KIND: &'static str = "etherbone";
    const DESCRIPTION: &'static str =
        "reads Wishbone registers over Etherbone: convenience, blocking and pipelined";

    fn example() -> EtherboneRequest {
        EtherboneRequest {
            address: "loop/udp".parse().expect("an address"),
            method: Method::Pipelined,
            payload: Payload::Timestamps,
            count: 2,
            cycles: 3,
            base: None,
            pop_channel: None,
            timeout_ms: None,
            retries: 0,
            litex: false,
            peer_cpu: None,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        // A cycle that does not fit its transport is refused before anything is measured.
        Plan::of(self)?;
        let open = |request: &EtherboneRequest| {
            let session = EtherboneSession::new(Plan::of(request)?);
            Ok(vec![Box::new(session) as Box<dyn Session>])
        };
        Ok(Job {
            is_emulated: self.address.is_emulated(),
            owns_device: !self.address.is_emulated(),
            ..Job::new(self, self.address.to_string(), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        self.checked()
    }
}

/// Opens a conversation with a slave that this program did not start, to see that it answers.
pub fn reach(request: &EtherboneRequest, stop: &StopFlag) -> Result<(), Fault> {
    request.check().map_err(|problem| problem.of(&request.workload()))?;
    let mut plan = Plan::of(request)?;
    plan.stop = stop.clone();
    if !matches!(request.address.target, Target::Loop(_)) {
        let (client, _) = plan.open()?;
        plan.close(client);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
