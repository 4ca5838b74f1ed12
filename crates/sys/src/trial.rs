//! Settings of other programs that are changed for a trial, and put back after every kind of end.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::{Errno, read, write};
use rustix::mount::MountAttrFlags;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::fds::copied;
use crate::host::{Files, own_mount};
use crate::tasks::Task;
use crate::{SysError, affinity, failed, namespace};

/// A setting of another program that can be changed without its help.
#[derive(Debug)]
pub enum TrialSetting {
    /// Receive buffer of a socket, by a copy of its descriptor.
    Buffer { socket: OwnedFd, before: usize, bytes: usize },
    /// CPUs on which a thread may run. An open file of the thread tells it from one that has its
    /// number later.
    Cpus { task: Task, thread: File, before: Box<CpuSet>, cpus: Box<CpuSet> },
    /// Files of /proc or /sys: each with its text before and with the change.
    Texts(Vec<(File, [String; 2])>),
}

impl TrialSetting {
    /// Receive buffer of a descriptor of a process, in bytes as `SO_RCVBUF` takes them: half of
    /// what the kernel then has.
    ///
    /// # Errors
    /// The right to trace the process is missing, or Linux is older than 5.6.
    pub fn buffer(pid: u32, fd: u64, bytes: usize) -> Result<TrialSetting, SysError> {
        let call = format!("copy the socket of process {pid}");
        let socket = copied(pid, fd).map_err(failed(call.clone()))?;
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

    /// A number of /proc/sys that becomes larger by a factor.
    ///
    /// # Errors
    /// It cannot be read, or not be written (root).
    pub fn larger(files: &Files, name: &str, factor: u64) -> Result<TrialSetting, SysError> {
        let path = files.root().join("proc/sys").join(name);
        let text = text_of(&path, |before| {
            Some(before.parse::<u64>().ok()?.checked_mul(factor)?.to_string())
        })?;
        Ok(TrialSetting::Texts(vec![text]))
    }

    /// CPUs that take the packets of devices in the network namespace of a process: interrupts of a
    /// card that come to `cpu` go to the others, and packets of a device without interrupts, too
    /// (`rps_cpus`; Documentation/networking/scaling.rst).
    ///
    /// # Errors
    /// The files cannot be written (root), or no device has one for that CPU.
    pub fn interrupts(
        pid: u32,
        devices: &[String],
        cpu: u32,
        others: &[u32],
    ) -> Result<TrialSetting, SysError> {
        let call = "change the CPUs of interrupts";
        let mount = || own_mount("sysfs", MountAttrFlags::empty());
        let mount = namespace::within(Some(pid), mount)?.map_err(failed(call))?;
        let root = format!("/proc/self/fd/{}/class/net", mount.as_raw_fd());
        let files = Files::below(root);
        let list = others.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut texts = Vec::new();
        for device in devices {
            let interrupts = files.names(&format!("{device}/device/msi_irqs"));
            for interrupt in &interrupts {
                let folder = Path::new("/proc/irq").join(interrupt);
                let now = std::fs::read_to_string(folder.join("effective_affinity_list"));
                if now.is_ok_and(|now| now.trim() == cpu.to_string()) {
                    let path = folder.join("smp_affinity_list");
                    texts.push(text_of(&path, |_| Some(list.clone()))?);
                }
            }
            let queues = files.names(&format!("{device}/queues"));
            let queues =
                queues.iter().filter(|name| interrupts.is_empty() && name.starts_with("rx-"));
            for queue in queues {
                let path = files.root().join(format!("{device}/queues/{queue}/rps_cpus"));
                texts.push(text_of(&path, |_| Some(mask_of(others)))?);
            }
        }
        let none = std::io::Error::other(format!("no device has interrupts of CPU {cpu}"));
        if texts.is_empty() { Err(failed(call)(none)) } else { Ok(TrialSetting::Texts(texts)) }
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
            TrialSetting::Texts(texts) => {
                let mut done =
                    texts.iter().map(|(file, [_, text])| file.write_all_at(text.as_bytes(), 0));
                done.try_for_each(|done| done.map_err(failed("write a setting of the kernel")))
            }
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
            TrialSetting::Texts(texts) => {
                for (file, [before, _]) in texts {
                    let _ = file.write_all_at(before.as_bytes(), 0);
                }
            }
        }
    }
}

/// Opens a file of a setting; returns it with its text before and the one that a change writes.
fn text_of(
    path: &Path,
    change: impl FnOnce(&str) -> Option<String>,
) -> Result<(File, [String; 2]), SysError> {
    let call = || path.display().to_string();
    let before = std::fs::read_to_string(path).map_err(failed(call()))?.trim().to_owned();
    let file = File::options().write(true).open(path).map_err(failed(call()))?;
    let not_a_number = || failed(call())(io::Error::other(format!("`{before}` is not a number")));
    let after = change(&before).ok_or_else(not_a_number)?;
    Ok((file, [before, after]))
}

/// CPUs as the kernel reads a mask: words of 32 bits in hexadecimal, the highest first.
fn mask_of(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |most| most / 32 + 1);
    let word = |at: u32| {
        let own = cpus.iter().filter(|&&cpu| cpu / 32 == at);
        own.fold(0_u32, |mask, cpu| mask | 1 << (cpu % 32))
    };
    let words: Vec<String> = (0..words).rev().map(|at| format!("{:08x}", word(at))).collect();
    words.join(",")
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
    fn a_number_becomes_larger_and_is_put_back() {
        let name = "net/core/netdev_max_backlog";
        let path = format!("proc/sys/{name}");
        let (_root, files) = crate::host::root_with(&[(&path, "1000\n")]);
        let setting = TrialSetting::larger(&files, name, 10).unwrap();
        setting.change().unwrap();
        assert_eq!(files.text(&path).unwrap(), "10000");
        setting.put_back();
        // A file of the kernel ends where it is written.
        assert!(files.text(&path).unwrap().starts_with("1000"));
        let (_root, files) = crate::host::root_with(&[(&path, "many\n")]);
        let error = TrialSetting::larger(&files, name, 10).unwrap_err().to_string();
        assert!(error.contains("`many` is not a number"), "{error}");
    }

    #[test]
    fn a_mask_has_its_highest_word_first() {
        assert_eq!(mask_of(&[0, 3]), "00000009");
        assert_eq!(mask_of(&[1, 33]), "00000002,00000002");
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
