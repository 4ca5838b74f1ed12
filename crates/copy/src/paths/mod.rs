//! Ways in which bytes cross between user and kernel, or stay on one side. Each is a [`Mover`]; a
//! new one needs a file and a line in [`CopyPath`] and in `CopyPath::maker`.
//!
//! `/proc/self/mem` is left out, because it copies twice; `vmsplice`, because it moves pages.

mod dma_thread;
mod engine_thread;
mod file;
mod local;
mod module;
mod mover;

use daqmeter_harness::Fault;
use daqmeter_kernels::copy::CopyKernel;

use crate::request::{CopyContext, CopyPath, CopyRequest};

pub(crate) use module::provider;
pub use module::waiver as module_waiver;
pub(crate) use mover::Mover;
#[cfg(test)]
pub(crate) use mover::Side;

type Make = fn(&CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault>;
/// Returns what is missing, and how to get it.
type Waiver = fn(CopyPath) -> Option<String>;

impl CopyPath {
    fn maker(self) -> (Make, Waiver) {
        let ready: Waiver = |_| None;
        match self {
            CopyPath::Pread => (file::lanes, ready),
            CopyPath::TmpfsHuge => (file::lanes, |_| file::waiver()),
            CopyPath::ProcessVm => (local::process_vm, |_| local::waiver()),
            CopyPath::Memcpy
            | CopyPath::RepMovsb
            | CopyPath::Avx2
            | CopyPath::Avx2Nt
            | CopyPath::Avx512
            | CopyPath::Avx512Nt => (local::kernel, local::no_kernel),
            CopyPath::Module => (module::lanes, |_| module::waiver()),
            CopyPath::EngineThread => (engine_thread::lanes, ready),
        }
    }

    /// Returns the instruction that copies between two blocks of this process. `None` for paths
    /// with a kernel side, or for an instruction that this CPU lacks.
    pub fn kernel(self) -> Option<CopyKernel> {
        CopyKernel::from_name(&self.to_string())
    }

    /// Chooses the module's copies by the CPU, or system calls without the module.
    pub fn of_cpu() -> CopyPath {
        match module::waiver() {
            None => CopyPath::Module,
            Some(_) => CopyPath::Pread,
        }
    }

    /// Chooses the module's channels, or the emulated engine without any.
    pub fn of_engine() -> CopyPath {
        if module::has_channels() { CopyPath::Module } else { CopyPath::EngineThread }
    }

    /// Returns what this host lacks for it, and how to get it.
    pub fn waiver(self) -> Option<String> {
        self.maker().1(self).map(|why| format!("{self}: {why}"))
    }

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
