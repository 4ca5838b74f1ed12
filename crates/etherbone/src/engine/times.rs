//! Times of a timing receiver one after the other, for paths; the cycles are those of the engine.

use daqmeter_harness::{Fault, Request};
use daqmeter_sys::clock::monotonic_ns;

use super::plan::Plan;
use super::request::{EtherboneRequest, Method, SlaveAddress};
use super::session::Conversation;
use crate::timestamps::{Unroller, unlike_the_host};

/// Bytes of a time: nanoseconds, little-endian.
pub const TIME_BYTES: usize = 8;

pub struct Times {
    way: Conversation,
    unroller: Unroller,
    /// A first time, and the host's times around its cycle.
    first_ns: Option<(u64, (u64, u64))>,
}

impl Times {
    pub fn request(address: &SlaveAddress, count: u64) -> EtherboneRequest {
        EtherboneRequest {
            address: address.clone(),
            method: Method::Blocking,
            count,
            cycles: 1,
            ..EtherboneRequest::example()
        }
    }

    pub fn open(request: &EtherboneRequest) -> Result<Times, Fault> {
        request.check().map_err(|problem| problem.of(&request.workload()))?;
        let way = Conversation::open(&Plan::of(request)?)?;
        Ok(Times { way, unroller: Unroller::default(), first_ns: None })
    }

    /// Fills a block with whole cycles, and returns the number of times.
    pub fn read(&mut self, into: &mut [u8]) -> Result<u64, Fault> {
        let cycle_bytes = self.way.ops.len() / 2 * TIME_BYTES;
        let mut times = 0;
        for part in into.chunks_exact_mut(cycle_bytes) {
            let mut places = part.as_chunks_mut::<TIME_BYTES>().0.iter_mut();
            let (before_ns, mut last_ns) = (monotonic_ns(), self.unroller.last_ns);
            let mut stands = false;
            self.way.times(&mut self.unroller, |time_ns| {
                if let Some(place) = places.next() {
                    *place = time_ns.to_le_bytes();
                }
                stands |= last_ns.replace(time_ns) == Some(time_ns);
                times += 1;
            })?;
            let (host_ns, last_ns) = ((before_ns, monotonic_ns()), last_ns.unwrap_or(0));
            let (first_ns, started_ns) = *self.first_ns.get_or_insert((last_ns, host_ns));
            let why = unlike_the_host(last_ns - first_ns, started_ns, host_ns);
            let why = if stands { Some(format!("it stands at {last_ns} ns")) } else { why };
            if let Some(why) = why {
                return Err(Fault::new(format!("the slave's clock is wrong: {why}")));
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
            let mut times = Times::open(&Times::request(&address.parse().unwrap(), 4)).unwrap();
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
