//! The ways in which bytes cross between user and kernel, or stay on one side. Each is a [`Mover`];
//! adding one is a file and a line in [`CopyPath`] and in `CopyPath::maker`.
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

use daqmeter_harness::{Availability, Fault};
use daqmeter_kernels::copy::CopyKernel;

use crate::request::{CopyContext, CopyPath, CopyRequest};

pub(crate) use module::{provider, waiver as module_waiver};
pub(crate) use mover::{Mover, Side};

/// Makes the lanes of a request.
type Make = fn(&CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault>;
type Probe = fn(CopyPath) -> Availability;

impl CopyPath {
    fn maker(self) -> (Make, Probe) {
        let ready: Probe = |_| Availability::Ready;
        match self {
            CopyPath::Pread => (file::lanes, ready),
            CopyPath::TmpfsHuge => (file::lanes, |_| file::probe_tmpfs()),
            CopyPath::Hugetlb => (file::lanes, |_| file::probe_hugetlb()),
            CopyPath::DevZero => (file::lanes, |_| file::probe_zeros()),
            CopyPath::Pipe => (stream::pipe, ready),
            CopyPath::Unix => (stream::unix, ready),
            CopyPath::ProcessVm => (local::process_vm, |_| local::probe_process_vm()),
            CopyPath::IoUring | CopyPath::IoUringFixed => (uring::lanes, |_| uring::probe()),
            CopyPath::Memcpy
            | CopyPath::RepMovsb
            | CopyPath::Avx2
            | CopyPath::Avx2Nt
            | CopyPath::Avx512
            | CopyPath::Avx512Nt => (local::kernel, local::probe_kernel),
            CopyPath::Module => (module::lanes, |_| module::probe()),
            CopyPath::Dsa => (dsa::lanes, |_| dsa::probe()),
            CopyPath::EngineThread => (engine_thread::lanes, ready),
        }
    }

    /// The instruction that copies between two blocks of this process; none for ways that have a
    /// side of their own, or that this CPU does not have.
    pub fn kernel(self) -> Option<CopyKernel> {
        CopyKernel::from_name(&self.to_string())
    }

    /// The module's copies by the CPU, or system calls where it is not loaded.
    pub fn of_cpu() -> CopyPath {
        match module::waiver() {
            None => CopyPath::Module,
            Some(_) => CopyPath::Pread,
        }
    }

    /// The module's channels where it has any, or the emulated engine.
    pub fn of_engine() -> CopyPath {
        if module::has_channels() { CopyPath::Module } else { CopyPath::EngineThread }
    }

    /// Whether it can be used here.
    pub fn probe(self) -> Availability {
        match self.maker().1(self) {
            Availability::Waived(why) => Availability::Waived(format!("{self}: {why}")),
            Availability::Ready => Availability::Ready,
        }
    }

    /// Opens the lanes of a request.
    pub(crate) fn open(self, request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
        if request.context != CopyContext::Cpu && !self.has_channels() {
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
        for path in CopyPath::value_variants() {
            assert_eq!(serde_json::to_value(path).unwrap(), path.to_string());
        }
    }
}
