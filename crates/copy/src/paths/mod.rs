//! The ways in which bytes cross between user and kernel, or stay on one side. Each is a [`Mover`]; adding one is a file and a
//! line in [`Path`] and in `Path::maker`.
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

use clap::ValueEnum;
use daqmeter_harness::{Availability, DeviceTime, Fault};
use daqmeter_record::Counter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

    /// Whether each operation needs [`Mover::before_copy`] before it.
    fn is_consumed(&self) -> bool {
        false
    }

    /// Makes the next operation in that direction possible, outside the clock.
    fn before_copy(&mut self, _direction: Direction) -> Result<(), Fault> {
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

/// One way to copy. Its comment is what `daqmeter list copies` says of it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// pread and pwrite on kernel memory (memfd), base pages
    Pread,
    /// the same on huge pages (tmpfs huge=always, mounted nowhere; root)
    TmpfsHuge,
    /// pread on the huge page pool; to the user only: hugetlbfs has no write
    Hugetlb,
    /// write to and read from a pipe
    Pipe,
    /// write to and read from a unix stream socket
    Unix,
    /// process_vm_readv and _writev within this process
    ProcessVm,
    /// io_uring on kernel memory (memfd), --depth blocks with each call
    IoUring,
    /// the same with a registered buffer
    IoUringFixed,
    /// user memory only: the C library's memcpy
    Memcpy,
    /// user memory only: the string instruction
    RepMovsb,
    /// user memory only: 256-bit vectors
    Avx2,
    /// user memory only: 256-bit vectors, stores around the caches
    Avx2Nt,
    /// user memory only: 512-bit vectors
    Avx512,
    /// user memory only: 512-bit vectors, stores around the caches
    Avx512Nt,
    /// copy_from_user and copy_to_user of daqmeter's kernel module, or its DMA channels
    Module,
    /// Intel DSA user work queues (MOVDIR64B, ENQCMD); never exercised on hardware
    Dsa,
    /// CUDA copy engines, pinned host memory; never exercised on hardware
    CudaPinned,
    /// the same with ordinary host memory
    CudaPageable,
    /// an emulated engine: a thread that copies for its channels (emulated)
    EngineThread,
}

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
            Path::Dsa => (device::dsa, device::probe_dsa),
            Path::CudaPinned => (device::cuda, device::probe_cuda),
            Path::CudaPageable => (device::cuda, device::probe_cuda),
            Path::EngineThread => (engine_thread::lanes, ready),
        }
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
        let request = Request {
            context: Context::Shared,
            ..Request::new(Path::Module, Direction::To, 64)
        };
        match Path::Module.open(&request) {
            Ok(_) => Path::Module,
            Err(_) => Path::EngineThread,
        }
    }

    /// Whether it has channels, so that contexts other than `cpu` can be asked for.
    pub(crate) fn has_channels(self) -> bool {
        matches!(
            self,
            Path::Module | Path::Dsa | Path::CudaPinned | Path::CudaPageable | Path::EngineThread
        )
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
        "this CPU has no instruction with which a program empties its caches: leave from_nc, to_nc and both_nc out of --operations",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_records_have_the_same_names() {
        for path in Path::value_variants() {
            assert_eq!(serde_json::to_value(path).unwrap(), path.to_string());
        }
    }
}
