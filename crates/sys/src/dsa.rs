//! User work queues of Intel's Data Streaming Accelerator (idxd), as accel-config sets them up.
//!
//! Sources: Intel DSA Architecture Specification (341204), 8.1 (descriptor), 8.2 (completion
//! record), 8.3.4 (memory move); the kernel's `Documentation/ABI/stable/sysfs-driver-dma-idxd` and
//! `include/uapi/linux/idxd.h`. Written against these and tested on a portal that executes
//! descriptors in software; never run on hardware.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

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
    /// Gives the reason when the queue is not both enabled and of type `user`.
    pub refusal: Option<String>,
}

impl WorkQueue {
    pub fn path(&self) -> String {
        format!("/dev/dsa/{}", self.name)
    }
}

pub fn work_queues(files: &Files) -> Vec<WorkQueue> {
    const DEVICES: &str = "sys/bus/dsa/devices";
    let names = files.names(DEVICES).into_iter().filter(|name| name.starts_with("wq"));
    let queue = |name: String| {
        let text = |file: &str| {
            files.text(&format!("{DEVICES}/{name}/{file}")).unwrap_or_default().trim().to_owned()
        };
        let (state, kind) = (text("state"), text("type"));
        let refusal = match (state.as_str(), kind.as_str()) {
            ("enabled", "user") => None,
            ("enabled", _) => {
                Some(format!("{name} is of type {kind}: accel-config config-wq --type=user"))
            }
            _ => Some(format!("{name} is {state}: accel-config enable-wq")),
        };
        WorkQueue { dedicated: text("mode") == "dedicated", name, refusal }
    };
    names.map(queue).collect()
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
/// Block on fault (bit 1), record address valid (bit 2), request a record (bit 3).
const FLAGS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
const DONE: u8 = 1;
/// Most bytes of a descriptor that every device takes (`max_transfer_size` is 2 GiB).
const MAX_BYTES: usize = 1 << 30;

pub trait Portal: Send {
    fn submit(&self, descriptor: &Descriptor);
}

#[derive(Debug)]
pub struct DevicePortal {
    page: Mapping,
    dedicated: bool,
}

const PORTAL_BYTES: usize = 4096;

impl DevicePortal {
    /// # Errors
    /// ENOSYS on CPUs without the instructions.
    pub fn open(queue: &WorkQueue) -> Result<DevicePortal, SysError> {
        let path = queue.path();
        if !has_instructions() {
            return Err(failed("this CPU has no MOVDIR64B and ENQCMD")(Errno::NOSYS));
        }
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(failed(format!("open {path}")))?;
        let (flags, call) =
            (MapFlags::SHARED | MapFlags::POPULATE, format!("map the portal of {path}"));
        let page = Mapping::file(file.as_fd(), PORTAL_BYTES, ProtFlags::WRITE, flags, call)?;
        Ok(DevicePortal { page, dedicated: queue.dedicated })
    }
}

/// CPUID leaf 7: ECX bit 28 MOVDIR64B, bit 29 ENQCMD.
fn has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let features = std::arch::x86_64::__cpuid_count(7, 0).ecx;
        features & (1 << 28) != 0 && features & (1 << 29) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Portal for DevicePortal {
    fn submit(&self, descriptor: &Descriptor) {
        #[cfg(target_arch = "x86_64")]
        loop {
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
            if full == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (descriptor, &self.page, self.dedicated);
    }
}

pub struct Mover<P: Portal> {
    portal: P,
    completion: Box<DsaCompletion>,
}

impl<P: Portal> Mover<P> {
    pub fn new(portal: P) -> Mover<P> {
        Mover { portal, completion: Box::default() }
    }

    /// Copies the first bytes of one memory to the start of another and polls for the end. Pages
    /// must have been touched.
    ///
    /// # Errors
    /// A status of the engine other than "done".
    ///
    /// # Panics
    /// Either memory is smaller.
    pub fn copy(
        &mut self,
        from: &DeviceMemory,
        to: &mut DeviceMemory,
        bytes: usize,
    ) -> Result<(), SysError> {
        assert!(
            bytes <= from.bytes() && bytes <= to.bytes(),
            "{bytes} bytes between {} and {}",
            from.bytes(),
            to.bytes()
        );
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(MAX_BYTES);
            self.completion.status.store(0, Ordering::Relaxed);
            let descriptor = Descriptor {
                operation: OPCODE_MEMORY_MOVE << 24 | FLAGS,
                completion: std::ptr::from_ref(self.completion.as_ref()).addr() as u64,
                source: from.address() + done as u64,
                destination: to.address() + done as u64,
                bytes: u32::try_from(part).expect("at most 1 GiB"),
                ..Descriptor::default()
            };
            self.portal.submit(&descriptor);
            let status = loop {
                match self.completion.status.load(Ordering::Acquire) {
                    0 => std::hint::spin_loop(),
                    status => break status,
                }
            };
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

    struct Software {
        status: u8,
    }

    impl Portal for Software {
        fn submit(&self, descriptor: &Descriptor) {
            assert_eq!(descriptor.operation, 0x0300_000E);
            assert_eq!(descriptor.completion % 32, 0);
            // SAFETY: the test's own addresses, live during the call.
            unsafe {
                let (source, destination) =
                    (descriptor.source as *const u8, descriptor.destination as *mut u8);
                std::ptr::copy_nonoverlapping(source, destination, descriptor.bytes as usize);
                (*(descriptor.completion as *const DsaCompletion))
                    .status
                    .store(self.status, Ordering::Release);
            }
        }
    }

    #[test]
    fn a_move_is_the_descriptor_that_the_specification_asks_for() {
        let (mut from, mut to) =
            (DeviceMemory::sparse(8192).unwrap(), DeviceMemory::sparse(8192).unwrap());
        from.write(0, &[7; 5000]);
        Mover::new(Software { status: DONE }).copy(&from, &mut to, 5000).unwrap();
        let mut back = [0; 5001];
        to.read(0, &mut back);
        assert!(back[..5000].iter().all(|byte| *byte == 7) && back[5000] == 0);
        let error =
            Mover::new(Software { status: 3 }).copy(&from, &mut to, 64).unwrap_err().to_string();
        assert!(error.contains("status 0x03"), "{error}");
    }

    #[test]
    fn queues_are_found_with_what_keeps_them_from_use() {
        let (_root, files) = crate::host::root_with(&[
            ("sys/bus/dsa/devices/wq0.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq0.0/type", "user\n"),
            ("sys/bus/dsa/devices/wq0.0/mode", "dedicated\n"),
            ("sys/bus/dsa/devices/wq0.1/state", "disabled\n"),
            ("sys/bus/dsa/devices/wq1.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq1.0/type", "kernel\n"),
        ]);
        let queues = work_queues(&files);
        assert_eq!(queues.len(), 3);
        assert!(queues[0].dedicated && queues[0].refusal.is_none());
        assert!(queues[1].refusal.as_ref().unwrap().contains("enable-wq"));
        assert!(queues[2].refusal.as_ref().unwrap().contains("--type=user"));
        assert!(work_queues(&Files::below("/nowhere")).is_empty());
    }
}
