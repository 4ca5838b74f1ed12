//! Copies by daqmeter's kernel module: the kernel's own `copy_from_user` and `copy_to_user`, or DMA
//! channels. The module's clock covers the copy alone; pinning and mapping have their own counters.

use std::path::Path;
use std::sync::{Arc, Mutex};

use daqmeter_harness::{DeviceTime, Fault, locked};
use daqmeter_record::Counter;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{
    ANY_CHANNEL, CHANNEL_SOFTWARE, COLD, COPY_DEVICE, Copy, CopyDevice, Info, Policy, text,
};

use super::mover::{Gate, Mover, Side, each, ns};
use crate::request::{CopyCompletion, CopyContext, CopyRequest, Direction};

/// Device with a policy in force, which belongs to this open file.
struct Service {
    device: Arc<CopyDevice>,
    policy: Policy,
    /// Number of the policy; 0 without channels.
    number: u64,
}

/// Service with the channels, held to the end of the process: another program would take them
/// between two points, and end a campaign.
static HELD: Mutex<Option<Arc<Service>>> = Mutex::new(None);

impl Service {
    /// Returns the service of a request: the one that is held, or its device under another policy.
    fn start(request: &CopyRequest) -> Result<Arc<Service>, Fault> {
        let policy = policy_of(request);
        let open = || CopyDevice::open(Path::new(COPY_DEVICE)).map_err(|error| explained(&error));
        if request.context == CopyContext::Cpu {
            return Ok(Arc::new(Service { device: open()?.into(), policy, number: 0 }));
        }
        let mut held = locked(&HELD);
        if let Some(service) = held.as_ref().filter(|service| service.policy == policy) {
            return Ok(service.clone());
        }
        let device = match held.as_ref() {
            Some(service) => service.device.clone(),
            None => open()?.into(),
        };
        let number = device.set_policy(policy).map_err(|error| explained(&error))?;
        let service = Arc::new(Service { device, policy, number });
        *held = Some(service.clone());
        Ok(service)
    }

    fn info(&self) -> Result<Info, Fault> {
        Ok(self.device.info()?)
    }

    fn gate(&self) -> Option<Gate> {
        let info = self.info().ok()?;
        Some(Gate {
            high_ns: info.gate_high_ns,
            low_ns: info.gate_low_ns,
            windows: info.gate_windows,
        })
    }
}

fn policy_of(request: &CopyRequest) -> Policy {
    let policy = Policy { policy: request.context as u32, ..Policy::default() };
    if request.context != CopyContext::Priority {
        return policy;
    }
    Policy {
        high_channels: request.high_channels,
        quantum_ns: request.quantum_ns,
        window_ns: request.window_ns,
        ..policy
    }
}

fn explained(error: &daqmeter_sys::SysError) -> Fault {
    let remedy = match error.errno() {
        Some(2) => "; load the module (see kmod/README.md), or choose another --path",
        Some(13 | 1) => "; only root may open the device: run as root",
        Some(16) => "; another program holds the DMA channels: wait until it is done",
        Some(19) => {
            "; no driver has a free DMA_MEMCPY channel: load ioatdma, idxd or kmod/softdma.ko"
        }
        Some(22) => {
            "; the window must hold the quantum and 5 us more, at most 1 s, and high channels must exist"
        }
        Some(33) => "; this engine copies only data that are aligned to more than one byte",
        Some(34) => "; the region is smaller: load the module with a larger region_mb",
        Some(44) => "; there is no such channel",
        Some(95) => {
            "; caches can be flushed on x86 only: leave from_nc, to_nc and both_nc out of --operations"
        }
        Some(110) => "; the engine did not finish in time",
        _ => "",
    };
    Fault::new(format!("{error}{remedy}"))
}

pub fn waiver() -> Option<String> {
    CopyDevice::open(Path::new(COPY_DEVICE)).err().map(|error| explained(&error).0)
}

pub(crate) fn provider(request: &CopyRequest) -> Option<(String, u32, bool)> {
    let service = Service::start(request).ok()?;
    let info = service.info().ok()?;
    let first = service.device.channel(0).ok()?;
    Some((text(&first.driver), info.channels, first.flags & CHANNEL_SOFTWARE != 0))
}

pub(super) fn has_channels() -> bool {
    let shared = Policy { policy: CopyContext::Shared as u32, ..Policy::default() };
    let set = CopyDevice::open(Path::new(COPY_DEVICE)).and_then(|device| device.set_policy(shared));
    set.map_or_else(|error| error.errno() == Some(16), |_| true)
}

struct ModuleMover {
    lane: usize,
    service: Arc<Service>,
    copy: Copy,
    user: Option<Buffer>,
    bytes: usize,
    last: DeviceTime,
    /// Nanoseconds of the parts of [`BESIDE`], and segments.
    spent_ns: [u64; 4],
    segments: u64,
    gate: Option<Gate>,
}

/// Parts of an engine's copy outside of its time.
const BESIDE: [&str; 4] = ["pin", "map", "unmap", "unpin"];

pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let service = Service::start(request)?;
    let info = service.info()?;
    let stride = request.block_bytes.next_multiple_of(4096) as u64;
    if stride * request.lanes as u64 > info.region_bytes {
        return Err(Fault::new(format!(
            "{} lanes of {} bytes do not fit the module's region of {} bytes: load it with a larger region_mb",
            request.lanes, request.block_bytes, info.region_bytes
        )));
    }
    each(request, |lane| {
        let channel = match request.context {
            CopyContext::Exclusive | CopyContext::Priority => {
                u32::try_from(lane).unwrap_or(0) % info.channels.max(1)
            }
            CopyContext::Cpu | CopyContext::Shared => ANY_CHANNEL,
        };
        let copy = Copy {
            by: u32::from(request.context != CopyContext::Cpu),
            completion: u32::from(request.completion == CopyCompletion::Interrupt),
            flags: if request.cold { COLD } else { 0 },
            bytes: request.block_bytes as u64,
            region_offset: stride * lane as u64,
            channel,
            ..Copy::default()
        };
        Ok(ModuleMover {
            lane,
            service: service.clone(),
            copy,
            user: None,
            bytes: request.block_bytes,
            last: DeviceTime::default(),
            spent_ns: [0; 4],
            segments: 0,
            gate: None,
        })
    })
}

impl ModuleMover {
    /// Copies by the CPU with another buffer, to put and get the region's bytes for verification.
    fn by_cpu(&self, bytes: &mut Buffer, direction: Direction) -> Result<(), Fault> {
        let mut copy = Copy { by: 0, flags: 0, direction: direction as u32, ..self.copy };
        self.service.device.copy(&mut copy, bytes, 0).map_err(|error| explained(&error))
    }

    fn user(&mut self) -> &mut [u8] {
        self.user.as_mut().expect("prepared before the first copy").slice_mut::<u8>(self.bytes)
    }
}

impl Mover for ModuleMover {
    fn device(&self) -> String {
        if self.copy.by == 0 {
            return "module, CPU".to_owned();
        }
        let channels = match self.copy.channel {
            ANY_CHANNEL => "shared channels".to_owned(),
            channel => format!("channel {channel}"),
        };
        let first = self.service.device.channel(0);
        let driver = first.map_or_else(|_| "?".to_owned(), |first| text(&first.driver));
        format!("module, {driver} {channels}")
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.user = Some(Buffer::new(self.bytes, Pages::Transparent)?);
        Ok(())
    }

    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        self.copy.direction = direction as u32;
        let user = self.user.as_mut().expect("prepared before the first copy");
        self.service.device.copy(&mut self.copy, user, 0).map_err(|error| explained(&error))?;
        let copy = &self.copy;
        same_policy(self.service.number, copy)?;
        self.last = DeviceTime { before_ns: copy.before_ns, after_ns: copy.after_ns };
        let beside_ns = [copy.pin_ns, copy.map_ns, copy.unmap_ns, copy.unpin_ns];
        self.spent_ns.iter_mut().zip(beside_ns).for_each(|(sum, ns)| *sum += ns);
        self.segments += u64::from(copy.segments);
        Ok(())
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        if side == Side::User {
            self.user().copy_from_slice(bytes);
            return Ok(());
        }
        let mut buffer = Buffer::new(bytes.len(), Pages::Base)?;
        buffer.slice_mut::<u8>(bytes.len()).copy_from_slice(bytes);
        self.by_cpu(&mut buffer, Direction::From)
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        if side == Side::User {
            into.copy_from_slice(self.user());
            return Ok(());
        }
        let mut buffer = Buffer::new(into.len(), Pages::Base)?;
        self.by_cpu(&mut buffer, Direction::To)?;
        into.copy_from_slice(buffer.slice::<u8>(into.len()));
        Ok(())
    }

    /// The module flushes, between pinning and its clock.
    fn flush(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn device_time(&self) -> Option<DeviceTime> {
        Some(self.last)
    }

    fn begin(&mut self) {
        (self.spent_ns, self.segments) = ([0; 4], 0);
        self.gate = self.service.gate();
    }

    fn counters(&mut self) -> Vec<Counter> {
        let mut counters = vec![Counter::count("segments", self.segments)];
        if self.copy.by == 1 {
            counters.extend(BESIDE.iter().zip(self.spent_ns).map(|(name, spent)| ns(name, spent)));
        }
        let is_gated = self.service.policy.policy == CopyContext::Priority as u32;
        if is_gated
            && self.lane == 0
            && let (Some(before), Some(now)) = (self.gate, self.service.gate())
        {
            counters.extend(now.counters_since(before).into_iter().flatten());
        }
        counters
    }

    fn numa_node(&self) -> Option<u32> {
        self.user.as_ref().and_then(Buffer::numa_node)
    }
}

fn same_policy(number: u64, copy: &Copy) -> Result<(), Fault> {
    if copy.by == 0 || copy.policy_number == number {
        return Ok(());
    }
    Err(Fault::new(format!(
        "the channel policy changed during the run: copy under policy {}, measured is policy {number}; measure again",
        copy.policy_number
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_under_another_policy_is_refused() {
        let copy = |by, policy_number| Copy { by, policy_number, ..Copy::default() };
        assert!(same_policy(7, &copy(1, 7)).is_ok());
        assert!(same_policy(7, &copy(0, 0)).is_ok(), "the CPU has no channels");
        let fault = same_policy(7, &copy(1, 9)).unwrap_err().0;
        assert!(fault.contains("policy 9, measured is policy 7"), "{fault}");
    }

    #[test]
    fn a_policy_has_a_window_only_where_it_means_something() {
        let mut request = CopyRequest::new(crate::CopyPath::Module, Direction::To, 64);
        request.context = CopyContext::Shared;
        let shared = policy_of(&request);
        request.quantum_ns = 5000;
        assert_eq!(policy_of(&request), shared);
        request.context = CopyContext::Priority;
        assert_eq!(policy_of(&request).quantum_ns, 5000);
    }
}
