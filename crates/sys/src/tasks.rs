//! Threads of any process from `/proc`: where they run, what they wait for.

use crate::host::Files;

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub pid: u32,
    pub tid: u32,
}

/// Activity of a thread at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// It runs or waits for a CPU.
    Ready,
    /// It reads the descriptor.
    Read(u64),
    Write(u64),
    Synchronise(u64),
    Lock,
    Sleep,
    /// It waits for one of several descriptors.
    Poll,
    Other,
    /// The kernel does not tell this user.
    Hidden,
}

impl Task {
    /// Threads of a process.
    pub fn all(files: &Files, pid: u32) -> Vec<Task> {
        let names = files.names(&format!("proc/{pid}/task"));
        names.iter().filter_map(|name| Some(Task { pid, tid: name.parse().ok()? })).collect()
    }

    fn file(self, files: &Files, name: &str) -> Option<String> {
        files.text(&format!("proc/{}/task/{}/{name}", self.pid, self.tid))
    }

    pub fn name(self, files: &Files) -> String {
        self.file(files, "comm").unwrap_or_default()
    }

    /// Time with a CPU and time that it waited for one, in ns. The first stands still between two
    /// ticks of the kernel, the second until it gets a CPU.
    pub fn accounts(self, files: &Files) -> Option<(u64, u64)> {
        let text = self.file(files, "schedstat")?;
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    }

    /// State, as `ps` prints it, and CPU.
    pub fn stat(self, files: &Files) -> Option<(char, u32)> {
        let text = self.file(files, "stat")?;
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some((state, fields.nth(35)?.parse().ok()?))
    }

    /// System call that it is in. The kernel tells it to root and, where yama allows it, to the
    /// same user.
    pub fn doing(self, files: &Files) -> Doing {
        self.file(files, "syscall").map_or(Doing::Hidden, |text| doing(&text))
    }
}

/// Reads `running`, or the number of a system call and its arguments.
fn doing(text: &str) -> Doing {
    let mut words = text.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()) else {
        return if text == "running" { Doing::Ready } else { Doing::Other };
    };
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let first = first.and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(u64::MAX);
    match number {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg => Doing::Read(first),
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev => {
            Doing::Write(first)
        }
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => {
            Doing::Synchronise(first)
        }
        libc::SYS_futex => Doing::Lock,
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Doing::Sleep,
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait => Doing::Poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => Doing::Poll,
        _ => Doing::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_is_named_with_its_descriptor() {
        let call = |number: libc::c_long| doing(&format!("{number} 0x3 0x7ffd 0x10 0x0 0x0 0x0"));
        assert_eq!(call(libc::SYS_recvfrom), Doing::Read(3));
        assert_eq!(call(libc::SYS_pwrite64), Doing::Write(3));
        assert_eq!(call(libc::SYS_futex), Doing::Lock);
        assert_eq!(doing("running"), Doing::Ready);
        assert_eq!(doing("-1 0x7ffd 0x10"), Doing::Other);
    }

    #[test]
    fn this_thread_is_seen() {
        let (files, own) = (Files::default(), std::process::id());
        assert!(Task::all(&files, own).contains(&Task { pid: own, tid: own }));
        // The CPU is field 39, the exit signal 38 (proc_pid_stat(5)).
        let stat = format!("8 (rx) 2) R {}17 3 0 0\n", "0 ".repeat(34));
        let (root, files) = crate::host::root_with(&[
            ("proc/7/task/8/stat", &stat),
            ("proc/7/task/8/schedstat", "500 70 3\n"),
        ]);
        let task = Task { pid: 7, tid: 8 };
        assert_eq!(task.stat(&files), Some(('R', 3)));
        assert_eq!(task.accounts(&files), Some((500, 70)));
        drop(root);
        assert_eq!((task.stat(&files), task.doing(&files)), (None, Doing::Hidden));
    }
}
