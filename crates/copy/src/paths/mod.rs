//! The ways in which bytes cross between user and kernel, or stay on one side. Each is a [`Mover`]; adding one is a file and a
//! line in [`PATHS`].
//!
//! Left out on purpose: `/dev/zero`, which clears and copies nothing; `/proc/self/mem`, which copies twice; `vmsplice`, which
//! moves pages.

mod device;
mod engine_thread;
mod file;
mod local;
mod module;
mod stream;
mod uring;

use daqmeter_harness::{Availability, DeviceTime, Fault};
use daqmeter_record::{Counter, Workload};

use crate::request::{Context, Direction, Request};

pub use device::{EngineFound, engines_found};
pub(crate) use module::{provider, waiver as module_waiver};

/// One lane's way to copy.
pub(crate) trait Mover: Send {
    /// What the lane works on, for the record.
    fn device(&self) -> String;

    /// Allocates and touches both sides, in the thread that copies.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// One operation in one of the single directions.
    fn copy(&mut self, direction: Direction) -> Result<(), Fault>;

    /// Fills the user's side.
    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault>;
    /// Reads the user's side.
    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault>;
    /// Fills the other side, by other means than those under test where there are any.
    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault>;
    /// Reads the other side.
    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault>;

    /// Blocks that one operation moves.
    fn blocks(&self) -> usize {
        1
    }

    /// Whether each operation needs [`Mover::freshen`] before it.
    fn is_consumed(&self) -> bool {
        false
    }

    /// Makes the next operation in that direction possible, outside the clock.
    fn freshen(&mut self, _direction: Direction) -> Result<(), Fault> {
        Ok(())
    }

    /// Empties the caches of both sides, as far as a program can; none when it cannot.
    fn flush(&mut self) -> Result<(), Fault>;

    /// Whether the other side says when it copied, and how long the last copy was.
    fn device_time(&self) -> Option<DeviceTime> {
        None
    }

    /// Whether an operation is a system call, so that the cost of an empty one says what the copy itself takes.
    fn is_system_call(&self) -> bool {
        false
    }

    /// Called when the timed region begins.
    fn begin(&mut self) {}

    /// What else was counted since then.
    fn counters(&mut self) -> Vec<Counter> {
        Vec::new()
    }

    /// What the reader must know.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// NUMA node of the buffers.
    fn numa_node(&self) -> Option<u32> {
        None
    }
}

/// One way to copy, for lists.
#[derive(Clone, Copy)]
pub struct Path {
    /// Name in options and records.
    pub name: &'static str,
    /// What it is, for `daqmeter list copies`.
    pub what: &'static str,
    /// Whether it is the work of a CPU or of an engine with channels.
    pub by_engine: bool,
    make: Make,
    probe: fn() -> Availability,
}

/// Makes the lanes of a request.
type Make = fn(&Request) -> Result<Vec<Box<dyn Mover>>, Fault>;

fn ready() -> Availability {
    Availability::Ready
}

/// All ways.
pub const PATHS: &[Path] = &[
    Path {
        name: "pread",
        what: "pread and pwrite on kernel memory (memfd), base pages",
        by_engine: false,
        make: file::memfd,
        probe: ready,
    },
    Path {
        name: "tmpfs-huge",
        what: "the same on huge pages (tmpfs huge=always, mounted nowhere; root)",
        by_engine: false,
        make: file::tmpfs_huge,
        probe: file::probe_tmpfs,
    },
    Path {
        name: "hugetlb",
        what: "pread on the huge page pool; to the user only: hugetlbfs has no write",
        by_engine: false,
        make: file::hugetlb,
        probe: file::probe_hugetlb,
    },
    Path {
        name: "pipe",
        what: "write to and read from a pipe",
        by_engine: false,
        make: stream::pipe,
        probe: ready,
    },
    Path {
        name: "unix",
        what: "write to and read from a unix stream socket",
        by_engine: false,
        make: stream::unix,
        probe: ready,
    },
    Path {
        name: "process-vm",
        what: "process_vm_readv and _writev within this process",
        by_engine: false,
        make: local::process_vm,
        probe: local::probe_process_vm,
    },
    Path {
        name: "io-uring",
        what: "io_uring on kernel memory (memfd), --depth blocks with each call",
        by_engine: false,
        make: uring::plain,
        probe: uring::probe,
    },
    Path {
        name: "io-uring-fixed",
        what: "the same with a registered buffer",
        by_engine: false,
        make: uring::fixed,
        probe: uring::probe,
    },
    Path {
        name: "memcpy",
        what: "user memory only: the C library's memcpy",
        by_engine: false,
        make: local::kernel,
        probe: ready,
    },
    Path {
        name: "rep-movsb",
        what: "user memory only: the string instruction",
        by_engine: false,
        make: local::kernel,
        probe: local::probe_string,
    },
    Path {
        name: "avx2",
        what: "user memory only: 256-bit vectors",
        by_engine: false,
        make: local::kernel,
        probe: local::probe_avx2,
    },
    Path {
        name: "avx2-nt",
        what: "user memory only: 256-bit vectors, stores around the caches",
        by_engine: false,
        make: local::kernel,
        probe: local::probe_avx2,
    },
    Path {
        name: "avx512",
        what: "user memory only: 512-bit vectors",
        by_engine: false,
        make: local::kernel,
        probe: local::probe_avx512,
    },
    Path {
        name: "avx512-nt",
        what: "user memory only: 512-bit vectors, stores around the caches",
        by_engine: false,
        make: local::kernel,
        probe: local::probe_avx512,
    },
    Path {
        name: "module",
        what: "copy_from_user and copy_to_user of daqmeter's kernel module, or its DMA channels",
        by_engine: true,
        make: module::lanes,
        probe: module::probe,
    },
    Path {
        name: "dsa",
        what: "Intel DSA user work queues (MOVDIR64B, ENQCMD); never exercised on hardware",
        by_engine: true,
        make: device::dsa,
        probe: device::probe_dsa,
    },
    Path {
        name: "cuda-pinned",
        what: "CUDA copy engines, pinned host memory; never exercised on hardware",
        by_engine: true,
        make: device::cuda,
        probe: device::probe_cuda,
    },
    Path {
        name: "cuda-pageable",
        what: "the same with ordinary host memory",
        by_engine: true,
        make: device::cuda,
        probe: device::probe_cuda,
    },
    Path {
        name: "engine-thread",
        what: "an emulated engine: a thread that copies for its channels (emulated)",
        by_engine: true,
        make: engine_thread::lanes,
        probe: ready,
    },
];

/// The way of that name.
pub fn path(name: &str) -> Option<&'static Path> {
    PATHS.iter().find(|path| path.name == name)
}

/// Whether the way that a workload names can be used here. One that there is not is left to be refused.
pub(crate) fn probe_for(workload: &Workload) -> Availability {
    let named = workload.text("path").ok().and_then(path);
    match named.map_or(Availability::Ready, Path::probe) {
        Availability::Waived(why) => Availability::Waived(format!(
            "{}: {why}",
            workload.text("path").unwrap_or("path")
        )),
        ready => ready,
    }
}

impl Path {
    /// Whether it can be used here.
    pub fn probe(&self) -> Availability {
        (self.probe)()
    }

    /// Opens the lanes of a request.
    pub(crate) fn open(&self, request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
        if request.context != Context::Cpu && !self.by_engine {
            return Err(Fault::new(format!(
                "{} has no channels: context {} needs --path module or engine-thread",
                self.name,
                request.context.name()
            )));
        }
        (self.make)(request)
    }
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// As many lanes as were asked for.
fn each<M: Mover + 'static>(
    request: &Request,
    make: impl Fn(usize) -> Result<M, Fault>,
) -> Result<Vec<Box<dyn Mover>>, Fault> {
    (0..request.lanes)
        .map(|lane| Ok(Box::new(make(lane)?) as Box<dyn Mover>))
        .collect()
}

fn not_flushed() -> Fault {
    Fault::new(
        "this CPU has no instruction with which a program empties its caches: leave --no-cache out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_words() {
        for path in PATHS {
            assert_eq!(
                PATHS.iter().filter(|other| other.name == path.name).count(),
                1,
                "{path:?}"
            );
            assert!(!path.name.contains(' ') && path.what.len() > 10);
        }
    }
}
