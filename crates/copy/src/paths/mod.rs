//! The ways in which bytes cross between user and kernel, or stay on one side. Each is a [`Mover`]; adding one is a file and a
//! line in [`Path`] and in `Path::maker`.
//!
//! Left out on purpose: `/proc/self/mem`, which copies twice; `vmsplice`, which moves pages.

mod dsa;
mod engine_thread;
mod file;
mod local;
mod module;
mod mover;
mod stream;
mod uring;
mod zero;

use daqmeter_harness::{Availability, Fault};
use daqmeter_kernels::copy::CopyKernel;

use crate::request::{Context, Path, Request};

pub(crate) use module::{provider, waiver as module_waiver};
pub(crate) use mover::Mover;

/// Makes the lanes of a request.
type Make = fn(&Request) -> Result<Vec<Box<dyn Mover>>, Fault>;
type Probe = fn() -> Availability;

fn ready() -> Availability {
    Availability::Ready
}

impl Path {
    fn maker(self) -> (Make, Probe) {
        match self {
            Path::Pread => (file::memfd, ready),
            Path::TmpfsHuge => (file::tmpfs_huge, file::probe_tmpfs),
            Path::Hugetlb => (file::hugetlb, file::probe_hugetlb),
            Path::DevZero => (zero::lanes, zero::probe),
            Path::Pipe => (stream::pipe, ready),
            Path::Unix => (stream::unix, ready),
            Path::ProcessVm => (local::process_vm, local::probe_process_vm),
            Path::IoUring => (uring::plain, uring::probe),
            Path::IoUringFixed => (uring::fixed, uring::probe),
            Path::Memcpy => (local::kernel, ready),
            Path::RepMovsb => (local::kernel, local::probe_string),
            Path::Avx2 => (local::kernel, local::probe_avx2),
            Path::Avx2Nt => (local::kernel, local::probe_avx2),
            Path::Avx512 => (local::kernel, local::probe_avx512),
            Path::Avx512Nt => (local::kernel, local::probe_avx512),
            Path::Module => (module::lanes, module::probe),
            Path::Dsa => (dsa::lanes, dsa::probe),
            Path::EngineThread => (engine_thread::lanes, ready),
        }
    }

    /// The instruction that copies between two blocks of this process; none for ways that have a side of their own, or that this
    /// CPU does not have.
    pub fn kernel(self) -> Option<CopyKernel> {
        CopyKernel::from_name(&self.to_string())
    }

    /// The module's copies by the CPU, or system calls where it is not loaded.
    pub fn of_cpu() -> Path {
        match module::waiver() {
            None => Path::Module,
            Some(_) => Path::Pread,
        }
    }

    /// The module's channels where it has any, or the emulated engine.
    pub fn of_engine() -> Path {
        match module::has_channels() {
            true => Path::Module,
            false => Path::EngineThread,
        }
    }

    /// Whether it can be used here.
    pub fn probe(self) -> Availability {
        match self.maker().1() {
            Availability::Waived(why) => Availability::Waived(format!("{self}: {why}")),
            Availability::Ready => Availability::Ready,
        }
    }

    /// Opens the lanes of a request.
    pub(crate) fn open(self, request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
        if request.context != Context::Cpu && !self.has_channels() {
            return Err(Fault::new(format!(
                "{self} has no channels: context {} needs --path module or engine-thread",
                request.context
            )));
        }
        self.maker().0(request)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn options_and_records_have_the_same_names() {
        for path in Path::value_variants() {
            assert_eq!(serde_json::to_value(path).unwrap(), path.to_string());
        }
    }
}
