//! Network namespaces of other processes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::host::Files;
use crate::{SysError, failed};

/// Returns the inode of a process' network namespace, which is the same for two processes in one;
/// `None` for a process that ended or is not ours to see.
pub fn network_of(files: &Files, pid: u32) -> Option<u64> {
    let link = std::fs::read_link(files.root().join(format!("proc/{pid}/ns/net"))).ok()?;
    let name = link.to_str()?;
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Runs a function on a thread that has entered the network namespace of a process. Sockets that it
/// opens stay in that namespace. Without a process it runs on this thread.
///
/// # Errors
/// The process ended, or this one may not enter its namespace (CAP_SYS_ADMIN).
pub fn within<T: Send>(pid: Option<u32>, run: impl FnOnce() -> T + Send) -> Result<T, SysError> {
    let own = std::process::id();
    let files = Files::default();
    let Some(pid) = pid.filter(|&pid| network_of(&files, pid) != network_of(&files, own)) else {
        return Ok(run());
    };
    let call = format!("enter the network namespace of process {pid}");
    let namespace = File::open(format!("/proc/{pid}/ns/net")).map_err(failed(&*call))?;
    std::thread::scope(|scope| {
        let entered = scope.spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map(|()| run())
        });
        let panicked = |_| io::Error::other("the thread panicked");
        entered.join().map_err(panicked).and_then(|entered| Ok(entered?)).map_err(failed(call))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_read_from_the_link() {
        let (root, files) = crate::host::root_with(&[("proc/7/ns/here", "")]);
        std::os::unix::fs::symlink("net:[4026531840]", root.path().join("proc/7/ns/net")).unwrap();
        assert_eq!(network_of(&files, 7), Some(4_026_531_840));
        assert_eq!(network_of(&files, 8), None);
    }

    #[test]
    fn our_own_namespace_needs_no_right() {
        assert_eq!(within(None, || 7).unwrap(), 7);
        assert_eq!(within(Some(std::process::id()), || 8).unwrap(), 8);
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let error = within(Some(u32::MAX / 2), || ()).unwrap_err().to_string();
        assert!(error.contains("process 2147483647"), "{error}");
    }
}
