//! The engine: reads over Etherbone in the ways of the study of 2018, one lane, one client.

mod kept;
mod plan;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod times;

use daqmeter_harness::{Fault, Request, Session, TypedEngine};

pub use self::request::{EtherboneRequest, Method, Payload};
pub use self::times::{TIME_BYTES, Times};
use plan::Plan;
use session::EtherboneSession;

/// Opens a conversation with a slave that is not of this process, to see that it answers.
pub fn reach(request: &EtherboneRequest) -> Result<(), Fault> {
    request.check().map_err(|problem| request.workload().error(problem.name, problem.text))?;
    let plan = Plan::of(request)?;
    if !plan.is_ours() {
        let (client, _) = plan.open()?;
        plan.close(client);
    }
    Ok(())
}

/// Cycles over Etherbone.
#[derive(Clone, Copy, Debug, Default)]
pub struct EtherboneEngine;

impl TypedEngine for EtherboneEngine {
    type Request = EtherboneRequest;

    fn description(&self) -> &'static str {
        "reads Wishbone registers over Etherbone: convenience, blocking and pipelined"
    }

    fn target(&self, request: &EtherboneRequest) -> String {
        request.address.clone()
    }

    fn is_emulated(&self, request: &EtherboneRequest) -> bool {
        request.is_emulated()
    }

    fn owns_device(&self, request: &EtherboneRequest) -> bool {
        !request.is_emulated()
    }

    fn example(&self) -> EtherboneRequest {
        EtherboneRequest {
            address: "loop/udp".to_owned(),
            method: Method::Pipelined,
            payload: Payload::Timestamps,
            count: 2,
            cycles: 3,
            base: None,
            pop_channel: None,
            link: None,
            timeout_ms: None,
            address_widths: None,
            data_widths: None,
            peer_cpu: None,
        }
    }

    fn open(&self, request: &EtherboneRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
        let plan = Plan::of(request)?;
        Ok(vec![Box::new(EtherboneSession::new(plan))])
    }
}
