//! Engines that programs drive themselves: DSA's user work queues, CUDA's copy engines. From is towards the engine's side.

use daqmeter_harness::{Availability, Fault};
use daqmeter_sys::cuda::{Api, Pair};
use daqmeter_sys::dsa::{DevicePortal, Mover as Dsa, WorkQueue, work_queues};
use daqmeter_sys::host::Files;
use daqmeter_sys::memory::DeviceMemory;

use super::mover::{Mover, each};
use crate::request::{Context, Direction, Path, Request};

/// An engine that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFound {
    /// Whether a path can use it.
    pub usable: bool,
    /// What was found, or what keeps it from use.
    pub found: String,
}

/// Looks for engines that programs drive themselves.
pub fn engines_found(files: &Files) -> Vec<EngineFound> {
    let queues = work_queues(files);
    let mut found: Vec<EngineFound> = queues
        .into_iter()
        .map(|queue| match queue.refusal {
            None => EngineFound {
                usable: true,
                found: format!("DSA {} (never exercised on hardware by us)", queue.name),
            },
            Some(refusal) => EngineFound { usable: false, found: format!("DSA {refusal}") },
        })
        .collect();
    if found.is_empty() {
        found.push(EngineFound { usable: false, found: "no DSA work queue".to_owned() });
    }
    found.push(match Api::load().and_then(|api| api.devices()) {
        Ok(names) if !names.is_empty() => EngineFound {
            usable: true,
            found: format!("CUDA {} (never exercised on hardware by us)", names.join(", ")),
        },
        Ok(_) => EngineFound { usable: false, found: "CUDA without a device".to_owned() },
        Err(_) => EngineFound { usable: false, found: "no CUDA driver".to_owned() },
    });
    found
}

struct DsaMover {
    queue: WorkQueue,
    bytes: usize,
    open: Option<(Dsa<DevicePortal>, DeviceMemory, DeviceMemory)>,
}

fn usable_queues() -> Result<Vec<WorkQueue>, String> {
    let all = work_queues(&Files::default());
    let usable: Vec<WorkQueue> =
        all.iter().filter(|queue| queue.refusal.is_none()).cloned().collect();
    if !usable.is_empty() {
        return Ok(usable);
    }
    let refusals: Vec<String> = all.into_iter().filter_map(|queue| queue.refusal).collect();
    Err(if refusals.is_empty() {
        "no DSA work queue below /sys/bus/dsa: modprobe idxd, then accel-config".to_owned()
    } else {
        refusals.join("; ")
    })
}

pub(super) fn probe_dsa() -> Availability {
    usable_queues().map_or_else(Availability::Waived, |_| Availability::Ready)
}

/// Exclusive: a queue for each lane, in turn. Shared: all lanes on the first shared queue.
pub(super) fn dsa(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let queues = usable_queues().map_err(Fault::new)?;
    let shared: Vec<&WorkQueue> = queues.iter().filter(|queue| !queue.dedicated).collect();
    each(request, |lane| {
        let queue = match request.context {
            Context::Exclusive => &queues[lane % queues.len()],
            Context::Shared => shared.first().copied().ok_or_else(|| {
                Fault::new("dsa: no shared work queue; configure one, or use exclusive")
            })?,
            Context::Cpu | Context::Priority => {
                return Err(Fault::new(
                    "dsa: choose context exclusive or shared; priorities are set with accel-config config-wq --priority",
                ));
            }
        };
        Ok(DsaMover { queue: queue.clone(), bytes: request.block_bytes, open: None })
    })
}

impl DsaMover {
    fn sides(&mut self) -> (&mut DeviceMemory, &mut DeviceMemory) {
        let (_, user, kernel) = self.open.as_mut().expect("prepared before the first copy");
        (user, kernel)
    }
}

impl Mover for DsaMover {
    fn device(&self) -> String {
        format!("dsa {}", self.queue.name)
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let touched = || -> Result<DeviceMemory, Fault> {
            let mut memory = DeviceMemory::sparse(self.bytes)?;
            memory.write(0, &vec![0; self.bytes]);
            Ok(memory)
        };
        self.open = Some((Dsa::new(DevicePortal::open(&self.queue)?), touched()?, touched()?));
        Ok(())
    }

    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let (engine, user, kernel) = self.open.as_mut().expect("prepared before the first copy");
        let (from, to) = if direction == Direction::To { (kernel, user) } else { (user, kernel) };
        Ok(engine.copy(from, to, self.bytes)?)
    }

    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.sides().0.write(0, bytes);
        Ok(())
    }

    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        self.sides().0.read(0, into);
        Ok(())
    }

    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.sides().1.write(0, bytes);
        Ok(())
    }

    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        self.sides().1.read(0, into);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let (user, kernel) = self.sides();
        user.with_bytes(daqmeter_kernels::copy::flush);
        kernel.with_bytes(daqmeter_kernels::copy::flush);
        Ok(())
    }
}

struct CudaMover {
    bytes: usize,
    pinned: bool,
    api: Api,
    pair: Option<Pair>,
}

pub(super) fn probe_cuda() -> Availability {
    match Api::load().and_then(|api| api.devices()) {
        Ok(names) if !names.is_empty() => Availability::Ready,
        Ok(_) => Availability::Waived("the CUDA driver finds no device".to_owned()),
        Err(error) => Availability::Waived(error.to_string()),
    }
}

/// A stream for each lane; the driver gives them to the copy engines.
pub(super) fn cuda(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, Api::load()?)
}

fn lanes(request: &Request, api: Api) -> Result<Vec<Box<dyn Mover>>, Fault> {
    if matches!(request.context, Context::Cpu | Context::Priority) {
        return Err(Fault::new(
            "cuda: streams go to whichever copy engine is free: choose context shared or exclusive",
        ));
    }
    let pinned = request.path != Path::CudaPageable;
    each(request, |_| Ok(CudaMover { bytes: request.block_bytes, pinned, api, pair: None }))
}

impl CudaMover {
    fn pair(&mut self) -> &mut Pair {
        self.pair.as_mut().expect("prepared before the first copy")
    }
}

impl Mover for CudaMover {
    fn device(&self) -> String {
        format!("cuda, {} host memory", if self.pinned { "pinned" } else { "pageable" })
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.pair = Some(Pair::new(self.api, self.bytes, self.pinned)?);
        Ok(())
    }

    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        Ok(self.pair().copy(direction == Direction::To)?)
    }

    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.pair().host().copy_from_slice(bytes);
        Ok(())
    }

    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.pair().host());
        Ok(())
    }

    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let kept = self.pair().host().to_vec();
        self.put_user(bytes)?;
        self.pair().copy(false)?;
        self.put_user(&kept)
    }

    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        self.pair().copy(true)?;
        self.get_user(into)
    }

    fn flush(&mut self) -> Result<(), Fault> {
        daqmeter_kernels::copy::flush(self.pair().host());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_lane_moves_bytes_both_ways_on_a_driver_in_software() {
        for path in [Path::CudaPinned, Path::CudaPageable] {
            let mut request = Request::new(path, Direction::Both, 4097);
            request.context = Context::Shared;
            let mut lane =
                lanes(&request, daqmeter_sys::cuda::software::driver()).unwrap().remove(0);
            lane.prepare().unwrap();
            let (bytes, mut back) = (vec![5; 4097], vec![0; 4097]);
            lane.put_kernel(&bytes).unwrap();
            lane.put_user(&back.clone()).unwrap();
            lane.copy(Direction::To).unwrap();
            lane.get_user(&mut back).unwrap();
            assert_eq!(back, bytes);
            lane.put_user(&[9; 4097]).unwrap();
            lane.copy(Direction::From).unwrap();
            lane.get_kernel(&mut back).unwrap();
            assert_eq!(back, [9; 4097]);
        }
    }

    #[test]
    fn engines_that_are_not_there_say_so() {
        let found = engines_found(&Files::below("/nowhere"));
        assert!(found[0].found.contains("no DSA work queue"));
    }
}
