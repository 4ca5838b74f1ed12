//! User work queues of Intel's Data Streaming Accelerator (idxd), as accel-config sets them up.
//!
//! Sources: Intel DSA Architecture Specification (341204), 8.1 (descriptor), 8.2 (completion
//! record), 8.3.4 (memory move); the kernel's `Documentation/ABI/stable/sysfs-driver-dma-idxd` and
//! `include/uapi/linux/idxd.h`. Written against these and tested on a portal that executes
//! descriptors in software; never run on hardware.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::host::Files;
use crate::memory::{DeviceMemory, Mapping};
use crate::{SysError, failed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// `wq0.1`: device and queue.
    pub name: String,
    /// True for one program (MOVDIR64B), false for several (ENQCMD).
    pub dedicated: bool,
    /// Most bytes of a descriptor (`max_transfer_size`).
    pub max_bytes: usize,
    /// True if the queue takes descriptors that ask to wait for page faults.
    pub blocks_on_fault: bool,
    /// Gives the reason when the queue is not enabled, of type `user` and of a DSA device, or when
    /// this CPU lacks its instruction.
    pub refusal: Option<String>,
}

impl WorkQueue {
    pub fn path(&self) -> String {
        format!("/dev/dsa/{}", self.name)
    }
}

pub fn work_queues(files: &Files) -> Vec<WorkQueue> {
    queues(files, has_instruction)
}

/// Default of the driver (`WQ_DEFAULT_MAX_XFER`, drivers/dma/idxd/idxd.h).
const USUAL_BYTES: usize = 2 << 20;

fn queues(files: &Files, has_instruction: fn(bool) -> bool) -> Vec<WorkQueue> {
    const DEVICES: &str = "sys/bus/dsa/devices";
    let names = files.names(DEVICES);
    let queue = |name: String| {
        let text = |file: &str| {
            files.text(&format!("{DEVICES}/{name}/{file}")).unwrap_or_default().trim().to_owned()
        };
        let (state, kind, dedicated) = (text("state"), text("type"), text("mode") == "dedicated");
        // Queues of Intel's compressor (IAA) are on the bus of DSA: wq1.0 is of iax1 or of dsa1.
        let number = name.trim_start_matches("wq").split('.').next().unwrap_or_default();
        let is_iaa = names.contains(&format!("iax{number}"));
        let instruction = if dedicated { "MOVDIR64B" } else { "ENQCMD" };
        let refusal = match (state.as_str(), kind.as_str()) {
            _ if is_iaa => Some(format!("{name} is of iax{number}, which does not copy")),
            ("enabled", "user") if has_instruction(dedicated) => None,
            ("enabled", "user") => Some(format!("{name}: this CPU has no {instruction}")),
            ("enabled", _) => {
                Some(format!("{name} is of type {kind}: accel-config config-wq --type=user"))
            }
            _ => Some(format!("{name} is {state}: accel-config enable-wq")),
        };
        let max_bytes = text("max_transfer_size").parse().unwrap_or(USUAL_BYTES);
        let blocks_on_fault = text("block_on_fault") == "1";
        let max_bytes = max_bytes.clamp(1, MAX_BYTES);
        WorkQueue { name, dedicated, max_bytes, blocks_on_fault, refusal }
    };
    let wanted = names.iter().filter(|name| name.starts_with("wq"));
    wanted.cloned().map(queue).collect()
}

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Address space; the CPU fills it in for ENQCMD, and the queue's own is used for MOVDIR64B.
    pub pasid: u32,
    /// Flags in 24 bits, operation in the upper 8.
    pub operation: u32,
    pub completion: u64,
    pub source: u64,
    pub destination: u64,
    pub bytes: u32,
    pub interrupt: u16,
    reserved: [u8; 26],
}

#[repr(C, align(32))]
#[derive(Debug, Default)]
pub(crate) struct DsaCompletion {
    /// 0 while under way, 1 done, 3 page fault.
    status: AtomicU8,
    result: u8,
    reserved: u16,
    bytes_completed: u32,
    fault: u64,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Descriptor>() == 64 && size_of::<DsaCompletion>() == 32);
const _: () = assert!(
    std::mem::offset_of!(Descriptor, completion) == 8
        && std::mem::offset_of!(Descriptor, bytes) == 32
);

const OPCODE_MEMORY_MOVE: u32 = 3;
/// Record address valid (bit 2), request a record (bit 3).
const FLAGS: u32 = 1 << 2 | 1 << 3;
const BLOCK_ON_FAULT: u32 = 1 << 1;
const DONE: u8 = 1;
/// Most bytes of a descriptor here; its field has 32 bits.
const MAX_BYTES: usize = 1 << 30;
/// Longest wait for a place in the queue or for a completion. At 1 GB/s the largest descriptor
/// takes a tenth of it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Polls between two looks at the clock and the stop flag.
const LOOKS: u32 = 4096;

pub trait Portal: Send {
    /// Submits a descriptor; false if a shared queue is full.
    fn submit(&self, descriptor: &Descriptor) -> bool;
}

#[derive(Debug)]
pub struct DevicePortal {
    page: Mapping,
    dedicated: bool,
}

const PORTAL_BYTES: usize = 4096;

impl DevicePortal {
    /// # Errors
    /// ENOSYS on CPUs without the instruction; EPERM where the kernel keeps the portal for
    /// CAP_SYS_RAWIO (kernels since 2024, on devices with an erratum).
    pub fn open(queue: &WorkQueue) -> Result<DevicePortal, SysError> {
        let path = queue.path();
        if !has_instruction(queue.dedicated) {
            return Err(failed("this CPU has no MOVDIR64B or no ENQCMD")(Errno::NOSYS));
        }
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(failed(format!("open {path}")))?;
        let (flags, call) =
            (MapFlags::SHARED | MapFlags::POPULATE, format!("map the portal of {path}"));
        let page = Mapping::file(file.as_fd(), PORTAL_BYTES, ProtFlags::WRITE, flags, call)?;
        Ok(DevicePortal { page, dedicated: queue.dedicated })
    }
}

/// CPUID leaf 7: ECX bit 28 MOVDIR64B, for a dedicated queue, bit 29 ENQCMD, for a shared one.
fn has_instruction(dedicated: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::x86_64::__cpuid_count(7, 0).ecx & (1 << if dedicated { 28 } else { 29 }) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = dedicated;
        false
    }
}

impl Portal for DevicePortal {
    fn submit(&self, descriptor: &Descriptor) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let (source, portal) = (std::ptr::from_ref(descriptor), self.page.start.as_ptr());
            let mut full: u8 = 0;
            // SAFETY: the portal is mapped for writing, the descriptor is 64 aligned bytes; the
            // fence makes what it names visible before. The instructions are given by their bytes:
            // movdir64b rax,[rcx] and enqcmd rax,[rcx].
            unsafe {
                if self.dedicated {
                    std::arch::asm!("sfence", ".byte 0x66, 0x0f, 0x38, 0xf8, 0x01", in("rax") portal, in("rcx") source, options(nostack));
                } else {
                    std::arch::asm!("sfence", ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x01", "setz {full}", in("rax") portal, in("rcx") source,
                        full = inout(reg_byte) full, options(nostack));
                }
            }
            // The zero flag reports that a shared queue is full.
            full == 0
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (descriptor, &self.page, self.dedicated);
            false
        }
    }
}

/// Mover of one queue. The portal is dropped first: closing it waits for its descriptors, which
/// write to the completion.
pub struct Mover<P: Portal> {
    portal: P,
    completion: Box<DsaCompletion>,
    max_bytes: usize,
    flags: u32,
    timeout: Duration,
}

impl<P: Portal> Mover<P> {
    pub fn new(portal: P, queue: &WorkQueue) -> Mover<P> {
        let flags = if queue.blocks_on_fault { FLAGS | BLOCK_ON_FAULT } else { FLAGS };
        let max_bytes = queue.max_bytes;
        Mover { portal, completion: Box::default(), max_bytes, flags, timeout: TIMEOUT }
    }

    /// Polls until there is a value.
    ///
    /// # Errors
    /// ETIMEDOUT after the longest wait, EINTR after a stop.
    fn poll<T>(
        &self,
        what: &str,
        is_stopped: &dyn Fn() -> bool,
        mut value: impl FnMut() -> Option<T>,
    ) -> Result<T, SysError> {
        let (mut began, mut looks) = (None, 0_u32);
        loop {
            if let Some(value) = value() {
                return Ok(value);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                let error = match (
                    is_stopped(),
                    began.get_or_insert_with(Instant::now).elapsed() > self.timeout,
                ) {
                    (true, _) => Errno::INTR,
                    (_, true) => Errno::TIMEDOUT,
                    _ => continue,
                };
                return Err(failed(format!("wait for {what} of DSA"))(error));
            }
            std::hint::spin_loop();
        }
    }

    /// Copies the first bytes of one memory to the start of another and polls for the end. Pages
    /// must have been touched.
    ///
    /// # Errors
    /// A status of the engine other than "done"; a wait of more than 10 s; a stop. After the last
    /// two the engine may still write to both memories: drop the mover before them.
    ///
    /// # Panics
    /// Either memory is smaller.
    pub fn copy(
        &mut self,
        from: &DeviceMemory,
        to: &mut DeviceMemory,
        bytes: usize,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), SysError> {
        assert!(
            bytes <= from.bytes() && bytes <= to.bytes(),
            "{bytes} bytes between {} and {}",
            from.bytes(),
            to.bytes()
        );
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(self.max_bytes);
            self.completion.status.store(0, Ordering::Relaxed);
            let descriptor = Descriptor {
                operation: OPCODE_MEMORY_MOVE << 24 | self.flags,
                completion: std::ptr::from_ref(self.completion.as_ref()).addr() as u64,
                source: from.address() + done as u64,
                destination: to.address() + done as u64,
                bytes: u32::try_from(part).expect("at most 1 GiB"),
                ..Descriptor::default()
            };
            self.poll("a place in the queue", is_stopped, || {
                self.portal.submit(&descriptor).then_some(())
            })?;
            let status = self.poll("a completion", is_stopped, || {
                Some(self.completion.status.load(Ordering::Acquire)).filter(|status| *status != 0)
            })?;
            if status != DONE {
                let call = format!("DSA memory move of {part} bytes: status {status:#04x}");
                return Err(failed(call)(Errno::IO));
            }
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes descriptors of a queue of 4 KiB; with status 0 none completes.
    struct Software {
        status: u8,
        is_full: bool,
        operation: u32,
    }

    impl Portal for Software {
        fn submit(&self, descriptor: &Descriptor) -> bool {
            assert_eq!(descriptor.operation, self.operation);
            assert_eq!(descriptor.completion % 32, 0);
            assert!(descriptor.bytes <= 4096);
            if self.is_full {
                return false;
            }
            // SAFETY: the test's own addresses, live during the call.
            unsafe {
                let (source, destination) =
                    (descriptor.source as *const u8, descriptor.destination as *mut u8);
                std::ptr::copy_nonoverlapping(source, destination, descriptor.bytes as usize);
                (*(descriptor.completion as *const DsaCompletion))
                    .status
                    .store(self.status, Ordering::Release);
            }
            true
        }
    }

    const DONE_AT_ONCE: Software =
        Software { status: DONE, is_full: false, operation: 0x0300_000C };

    fn queue() -> WorkQueue {
        WorkQueue {
            name: "wq0.0".to_owned(),
            dedicated: true,
            max_bytes: 4096,
            blocks_on_fault: false,
            refusal: None,
        }
    }

    #[test]
    fn a_move_is_the_descriptors_that_the_specification_and_the_queue_ask_for() {
        let (mut from, mut to) =
            (DeviceMemory::sparse(8192).unwrap(), DeviceMemory::sparse(8192).unwrap());
        from.write(0, &[7; 5000]);
        let waits = Software { operation: 0x0300_000E, ..DONE_AT_ONCE };
        for (portal, blocks_on_fault) in [(DONE_AT_ONCE, false), (waits, true)] {
            let mut mover = Mover::new(portal, &WorkQueue { blocks_on_fault, ..queue() });
            mover.copy(&from, &mut to, 5000, &|| false).unwrap();
            let mut back = [0; 5001];
            to.read(0, &mut back);
            assert!(back[..5000].iter().all(|byte| *byte == 7) && back[5000] == 0);
        }
    }

    /// Regression: a completion that never comes was awaited for ever.
    #[test]
    fn a_copy_ends_with_a_status_a_stop_or_a_timeout() {
        let (from, mut to) =
            (DeviceMemory::sparse(8192).unwrap(), DeviceMemory::sparse(8192).unwrap());
        for (status, is_full, stopped, wanted) in [
            (3, false, false, "status 0x03"),
            (0, false, true, "a completion of DSA: Interrupted"),
            (0, false, false, "a completion of DSA: Connection timed out"),
            (DONE, true, true, "a place in the queue of DSA: Interrupted"),
        ] {
            let mut mover = Mover::new(Software { status, is_full, ..DONE_AT_ONCE }, &queue());
            mover.timeout = Duration::from_millis(1);
            let error = mover.copy(&from, &mut to, 64, &|| stopped).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn queues_are_found_with_what_keeps_them_from_use() {
        let (_root, files) = crate::host::root_with(&[
            ("sys/bus/dsa/devices/wq0.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq0.0/type", "user\n"),
            ("sys/bus/dsa/devices/wq0.0/mode", "dedicated\n"),
            ("sys/bus/dsa/devices/wq0.0/max_transfer_size", "65536\n"),
            ("sys/bus/dsa/devices/wq0.0/block_on_fault", "1\n"),
            ("sys/bus/dsa/devices/wq0.1/state", "disabled\n"),
            ("sys/bus/dsa/devices/wq1.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq1.0/type", "kernel\n"),
            ("sys/bus/dsa/devices/iax3/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq3.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq3.0/type", "user\n"),
        ]);
        let found = queues(&files, |_| true);
        assert_eq!(found.len(), 4);
        let first = WorkQueue { max_bytes: 65_536, blocks_on_fault: true, ..queue() };
        assert_eq!(found[0], first);
        assert_eq!((found[1].max_bytes, found[1].blocks_on_fault), (2 << 20, false));
        let refusal = |queue: &WorkQueue| queue.refusal.clone().unwrap();
        assert!(refusal(&found[1]).contains("enable-wq"));
        assert!(refusal(&found[2]).contains("--type=user"));
        assert!(refusal(&found[3]).contains("is of iax3, which does not copy"));
        let lacking = &queues(&files, |_| false)[0];
        assert!(refusal(lacking).contains("this CPU has no MOVDIR64B"));
        assert!(work_queues(&Files::below("/nowhere")).is_empty());
    }
}
