//! CPU masks of threads, and the CPU and NUMA node in use.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::{SysError, failed};

/// CPUs that the calling thread may run on, ascending.
///
/// # Errors
/// `EINVAL` when the kernel has more CPUs than the mask holds (1024).
pub fn allowed_cpus() -> Result<Vec<u32>, SysError> {
    let set = sched_getaffinity(None).map_err(failed("sched_getaffinity"))?;
    Ok((0..).take(CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu as usize)).collect())
}

/// CPUs that this process was given (by cpuset, taskset): the mask of the thread that asks first,
/// before it pins itself.
pub fn process_cpus() -> &'static [u32] {
    static GIVEN: OnceLock<Vec<u32>> = OnceLock::new();
    // A mask that cannot be read pins no thread.
    GIVEN.get_or_init(|| allowed_cpus().unwrap_or_default())
}

pub(crate) fn set_of(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    set
}

/// Pins the calling thread to one CPU and returns the mask that the kernel now allows.
pub fn pin_to(cpu: u32) -> Result<Vec<u32>, SysError> {
    process_cpus();
    let is_there = (cpu as usize) < CpuSet::MAX_CPU;
    let set = if is_there { Ok(set_of(&[cpu])) } else { Err(Errno::INVAL) };
    let pinned = set.and_then(|set| sched_setaffinity(None, &set));
    pinned.map_err(failed(format!("pin to CPU {cpu}")))?;
    allowed_cpus()
}

/// Lets the calling thread run on every CPU of [`process_cpus`]: threads inherit the mask of the
/// one that made them.
pub fn unpin() {
    if !process_cpus().is_empty() {
        // The kernel leaves out CPUs that the cgroup forbids.
        let _ = sched_setaffinity(None, &set_of(process_cpus()));
    }
}

/// Keeps the calling thread off some CPUs, where [`process_cpus`] leaves it others.
pub fn keep_off(cpus: &BTreeSet<u32>) {
    let others: Vec<u32> =
        process_cpus().iter().copied().filter(|cpu| !cpus.contains(cpu)).collect();
    if !others.is_empty() {
        // The kernel leaves out CPUs that the cgroup forbids.
        let _ = sched_setaffinity(None, &set_of(&others));
    }
}

/// Gives the calling thread its CPU before all threads without a real-time priority.
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE and without a limit for it (`ulimit -r`).
pub fn run_first() -> Result<(), SysError> {
    // SAFETY: all-zero parameters are valid; C libraries differ in their other fields.
    let mut lowest: libc::sched_param = unsafe { std::mem::zeroed() };
    lowest.sched_priority = 1;
    // SAFETY: the parameters are valid for the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    if done < 0 { Err(SysError::last("real-time priority")) } else { Ok(()) }
}

pub fn current_cpu() -> Option<u32> {
    u32::try_from(sched_getcpu()).ok()
}

/// The NUMA node of the page at `address`, when the kernel tells (`move_pages(2)` in query mode;
/// the page must be touched).
pub(crate) fn node_of(address: *const u8) -> Option<u32> {
    let page = address.cast_mut().cast::<libc::c_void>();
    let mut status: libc::c_int = -1;
    // SAFETY: one page address and one status are passed, as the count says; query mode (null
    // nodes) moves nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1_usize,
            &raw const page,
            std::ptr::null::<i32>(),
            &raw mut status,
            0,
        )
    };
    if done == 0 { u32::try_from(status).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_is_verified_by_reading_it_back() {
        std::thread::spawn(|| {
            let cpu = allowed_cpus().unwrap()[0];
            let before = process_cpus().to_vec();
            assert_eq!(pin_to(cpu).unwrap(), [cpu]);
            assert_eq!(current_cpu(), Some(cpu));
            assert_eq!(process_cpus(), before);
            unpin();
            assert_eq!(allowed_cpus().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        assert!(pin_to(1023).is_err());
        assert!(pin_to(u32::MAX).is_err());
    }
}
