//! Settings of other programs that are changed for a trial, and put back after every kind of end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::io::{Errno, read, write};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, WaitOptions, pidfd_getfd, pidfd_open, setsid, waitpid,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::host::Files;
use crate::tasks::Task;
use crate::{SysError, affinity, failed};

/// A setting of another program that can be changed without its help.
#[derive(Debug)]
pub enum TrialSetting {
    /// Receive buffer of a socket, by a copy of its descriptor.
    Buffer { socket: OwnedFd, before: usize, bytes: usize },
    /// CPUs on which a thread may run. An open file of the thread tells it from one that has its
    /// number later.
    Cpus { task: Task, thread: File, before: Box<CpuSet>, cpus: Box<CpuSet> },
}

impl TrialSetting {
    /// Receive buffer of a descriptor of a process, in bytes as `SO_RCVBUF` takes them: half of
    /// what the kernel then has.
    ///
    /// # Errors
    /// The right to trace the process is missing, or Linux is older than 5.6.
    pub fn buffer(pid: u32, fd: u64, bytes: usize) -> Result<TrialSetting, SysError> {
        let call = format!("copy the socket of process {pid}");
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
        let socket = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).and_then(|pid| {
            let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
            pidfd_getfd(pid, fd, PidfdGetfdFlags::empty())
        });
        let socket = socket.map_err(failed(call.clone()))?;
        let before = socket_recv_buffer_size(&socket).map_err(failed(call))?;
        Ok(TrialSetting::Buffer { socket, before, bytes })
    }

    /// CPUs of a thread.
    ///
    /// # Errors
    /// The thread ended.
    pub fn cpus(files: &Files, task: Task, cpus: &[u32]) -> Result<TrialSetting, SysError> {
        let path = files.root().join(format!("proc/{}/task/{}/stat", task.pid, task.tid));
        let thread = File::open(&path).map_err(failed(path.display().to_string()))?;
        let before = sched_getaffinity(tid(task)).map_err(failed("sched_getaffinity"))?;
        let [before, cpus] = [before, affinity::set_of(cpus)].map(Box::new);
        Ok(TrialSetting::Cpus { task, thread, before, cpus })
    }

    /// Makes the change.
    ///
    /// # Errors
    /// The right is missing: CAP_NET_ADMIN for a buffer above `net.core.rmem_max`, CAP_SYS_NICE for
    /// threads of other users.
    pub fn change(&self) -> Result<(), SysError> {
        match self {
            TrialSetting::Buffer { socket, bytes, .. } => {
                let call = "set a receive buffer (SO_RCVBUFFORCE)";
                set_buffer(socket, *bytes).map_err(failed(call))?;
                let found = socket_recv_buffer_size(socket).map_err(failed(call))?;
                let limited = io::Error::other("net.core.rmem_max limits it; as root");
                if found < *bytes { Err(failed(call)(limited)) } else { Ok(()) }
            }
            TrialSetting::Cpus { task, cpus, .. } => sched_setaffinity(tid(*task), cpus)
                .map_err(failed(format!("set the CPUs of thread {}", task.tid))),
        }
    }

    /// Puts the state from before back. It makes system calls only, so that a forked process may
    /// use it. A socket or a thread that is gone has nothing to put back.
    pub fn put_back(&self) {
        match self {
            TrialSetting::Buffer { socket, before, .. } => {
                let _ = set_buffer(socket, before / 2);
            }
            TrialSetting::Cpus { task, thread, before, .. } => {
                if thread.read_at(&mut [0], 0).is_ok() {
                    let _ = sched_setaffinity(tid(*task), before);
                }
            }
        }
    }
}

fn tid(task: Task) -> Option<Pid> {
    i32::try_from(task.tid).ok().and_then(Pid::from_raw)
}

fn set_buffer(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| set_socket_recv_buffer_size(socket, bytes))
}

/// A process that puts a setting back when this one ends, also by SIGKILL.
#[derive(Debug)]
pub struct Keeper {
    alive: Option<OwnedFd>,
    process: Pid,
}

impl Keeper {
    /// Starts it. If this process is killed, it writes `message` to standard error.
    ///
    /// # Errors
    /// No process or descriptor is left.
    pub fn of(setting: &TrialSetting, message: &str) -> Result<Keeper, SysError> {
        let call = "start a process that puts settings back";
        let (end, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(failed(call))?;
        // SAFETY: the new process makes system calls only, on memory of its own, and never returns.
        let process = unsafe { libc::fork() };
        if process < 0 {
            return Err(SysError::last(call));
        }
        if let Some(process) = Pid::from_raw(process) {
            return Ok(Keeper { alive: Some(alive), process });
        }
        drop(alive);
        // Keys of the terminal are not for it.
        let _ = setsid();
        let mut word = [0];
        let heard = loop {
            match read(&end, &mut word) {
                Err(Errno::INTR) => {}
                heard => break heard,
            }
        };
        setting.put_back();
        if heard != Ok(1) {
            let _ = write(rustix::stdio::stderr(), message.as_bytes());
        }
        // SAFETY: the call takes no pointer and does not return.
        unsafe { libc::_exit(0) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(alive) = self.alive.take() {
            let _ = write(&alive, &[1]);
        }
        while waitpid(Some(self.process), WaitOptions::empty()).is_err_and(|why| why == Errno::INTR)
        {
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_buffer_is_changed_by_a_copy_and_put_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = socket_recv_buffer_size(&socket).unwrap();
        let own = std::process::id();
        let fd = u64::try_from(socket.as_raw_fd()).unwrap();
        let setting = match TrialSetting::buffer(own, fd, 50_000) {
            Ok(setting) => setting,
            Err(error) => return eprintln!("no copies of sockets here: {error}"),
        };
        {
            let _keeper = Keeper::of(&setting, "").unwrap();
            setting.change().unwrap();
            assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 100_000);
        }
        assert_eq!(socket_recv_buffer_size(&socket).unwrap(), before);
        assert!(TrialSetting::buffer(own, u64::MAX, 1).is_err());
    }

    #[test]
    fn a_thread_gets_its_cpus_back() {
        let cpus = crate::affinity::allowed_cpus().unwrap();
        std::thread::spawn(move || {
            // SAFETY: the call takes no argument.
            let tid = u32::try_from(unsafe { libc::gettid() }).unwrap();
            let task = Task { pid: std::process::id(), tid };
            let setting = TrialSetting::cpus(&Files::default(), task, &cpus[..1]).unwrap();
            setting.change().unwrap();
            assert_eq!(crate::affinity::allowed_cpus().unwrap(), cpus[..1]);
            setting.put_back();
            assert_eq!(crate::affinity::allowed_cpus().unwrap(), cpus);
        })
        .join()
        .unwrap();
    }
}
