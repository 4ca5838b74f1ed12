//! Times of a timing receiver one after the other, for paths; the cycles are those of the engine.

use daqmeter_harness::{Fault, Request};
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck};

use super::plan::Plan;
use super::request::{EtherboneRequest, Method};
use crate::Client;
use crate::server::Running;
use crate::timestamps::Unroller;

/// Bytes of a time: nanoseconds, little-endian.
pub const TIME_BYTES: usize = 8;

pub struct Times {
    client: Client,
    ops: Vec<Op>,
    unroller: Unroller,
    last_ns: u64,
    _server: Option<Running>,
}

impl Times {
    pub fn request(address: &str, count: u64) -> EtherboneRequest {
        EtherboneRequest {
            address: address.to_owned(),
            method: Method::Blocking,
            count,
            cycles: 1,
            ..EtherboneRequest::example()
        }
    }

    pub fn open(request: &EtherboneRequest) -> Result<Times, Fault> {
        request.check().map_err(|problem| request.workload().error(problem.name, problem.text))?;
        let plan = Plan::of(request)?;
        let (mut client, server) = plan.open()?;
        let (base, _) = plan.device_base(&mut client)?;
        Ok(Times {
            client,
            ops: plan.ops(base),
            unroller: Unroller::default(),
            last_ns: 0,
            _server: server,
        })
    }

    pub fn read(&mut self, into: &mut [u8]) -> Result<u64, Fault> {
        let cycle_bytes = self.ops.len() / 2 * TIME_BYTES;
        let mut times = 0;
        for part in into.chunks_exact_mut(cycle_bytes) {
            let outcome = self.client.cycle(&self.ops, StatusCheck::Status)?;
            if let Some(&index) = outcome.failed.first() {
                let address = self.ops[index].address;
                return Err(Fault::new(format!(
                    "the bus reports an error at {address:#x}: no device answers there"
                )));
            }
            let pairs = outcome.values.as_chunks::<2>().0;
            for (place, [high, low]) in part.as_chunks_mut::<TIME_BYTES>().0.iter_mut().zip(pairs) {
                let time_ns = self.unroller.time_ns(*high, *low);
                if time_ns < self.last_ns {
                    let last_ns = self.last_ns;
                    return Err(Fault::new(format!(
                        "the time goes back from {last_ns} to {time_ns} ns"
                    )));
                }
                self.last_ns = time_ns;
                *place = time_ns.to_le_bytes();
                times += 1;
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_receiver_in_this_process_go_forward() {
        for address in ["loop/udp", "loop/tcp"] {
            let mut times = Times::open(&Times::request(address, 4)).unwrap();
            let mut block = [0; 128];
            assert_eq!(times.read(&mut block).unwrap(), 16, "{address}");
            let read: Vec<u64> = block
                .as_chunks::<TIME_BYTES>()
                .0
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .collect();
            assert!(read[0] > 0 && read.is_sorted(), "{address}: {read:?}");
        }
    }
}
