//! Where threads may run and where they do.

use std::sync::OnceLock;

use crate::SysError;

/// CPUs that the calling thread may run on, ascending.
///
/// # Errors
/// When the kernel has more CPUs than the mask of glibc holds (1024).
pub fn allowed_cpus() -> Result<Vec<u32>, SysError> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes of its own size; 0 means the calling thread.
    let done = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if done != 0 {
        return Err(SysError::last("sched_getaffinity"));
    }
    // SAFETY: CPU_ISSET reads within the set for indices below CPU_SETSIZE.
    let is_set = |cpu: usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    let most = usize::try_from(libc::CPU_SETSIZE).expect("a positive constant");
    Ok((0..most)
        .filter(|&cpu| is_set(cpu))
        .map(|cpu| u32::try_from(cpu).expect("below CPU_SETSIZE"))
        .collect())
}

/// CPUs that this process was given (by cpuset, taskset): the mask of the thread that asks first, before it pins itself.
pub fn process_cpus() -> &'static [u32] {
    static GIVEN: OnceLock<Vec<u32>> = OnceLock::new();
    // A mask that cannot be read pins nobody.
    GIVEN.get_or_init(|| allowed_cpus().unwrap_or_default())
}

/// Pins the calling thread to one CPU and reads the mask back: returns what the kernel now allows.
///
/// # Errors
/// When the CPU does not exist or the cgroup forbids it.
pub fn pin_to(cpu: u32) -> Result<Vec<u32>, SysError> {
    process_cpus();
    let index = cpu as usize;
    // SAFETY: as in `allowed_cpus`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if index >= usize::try_from(libc::CPU_SETSIZE).expect("a positive constant") {
        return Err(SysError {
            call: format!("pin to CPU {cpu}"),
            source: std::io::Error::from_raw_os_error(libc::EINVAL),
        });
    }
    // SAFETY: the index was checked against CPU_SETSIZE.
    unsafe { libc::CPU_SET(index, &mut set) };
    // SAFETY: `set` is valid for reads of its own size; 0 means the calling thread.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if done != 0 {
        return Err(SysError::last(format!("pin to CPU {cpu}")));
    }
    allowed_cpus()
}

/// Lets the calling thread run on every CPU of [`process_cpus`]: threads inherit the mask of the one that made them.
pub fn unpin() {
    if process_cpus().is_empty() {
        return;
    }
    // SAFETY: as in `allowed_cpus`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in process_cpus() {
        // SAFETY: the kernel named it in a mask of this size.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // CPUs that the cgroup forbids since are left out by the kernel.
    // SAFETY: `set` is valid for reads of its own size; 0 means the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

/// The CPU that the calling thread runs on at this moment.
pub fn current_cpu() -> Option<u32> {
    // SAFETY: takes no arguments and cannot fault.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The NUMA node of the page at `address`, when the kernel tells (`move_pages(2)` in query mode; the page must be touched).
pub(crate) fn node_of(address: *const u8) -> Option<u32> {
    let page = address.cast_mut().cast::<libc::c_void>();
    let mut status: libc::c_int = -1;
    // SAFETY: one page address and one status are passed, as the count says; query mode (null nodes) moves nothing.
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
