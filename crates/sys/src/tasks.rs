//! Threads of any process from `/proc`: where they run, what they wait for.

use std::fs::File;
use std::os::unix::fs::FileExt;

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
    /// A signal or a debugger stopped it.
    Stopped,
    /// It waits for a page of its memory.
    Fault,
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

    /// The thread that calls.
    pub fn own() -> Task {
        let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        Task { pid: std::process::id(), tid }
    }

    pub fn name(self, files: &Files) -> String {
        files.text(&format!("proc/{}/task/{}/comm", self.pid, self.tid)).unwrap_or_default()
    }
}

/// A thread whose files of `/proc` are open, so that a look reads them only.
#[derive(Debug)]
pub struct OpenTask {
    pub task: Task,
    schedstat: File,
    stat: File,
    /// Open to root and, where yama allows it, to the same user.
    syscall: Option<File>,
}

impl OpenTask {
    /// Opens the files of a thread; `None` when it ended.
    pub fn of(files: &Files, task: Task) -> Option<OpenTask> {
        let folder = files.root().join(format!("proc/{}/task/{}", task.pid, task.tid));
        let open = |name: &str| File::open(folder.join(name)).ok();
        let (schedstat, stat) = (open("schedstat")?, open("stat")?);
        Some(OpenTask { task, schedstat, stat, syscall: open("syscall") })
    }

    /// Time with a CPU and time that it waited for one, in ns. The first stands still between two
    /// ticks of the kernel, the second until it gets a CPU.
    pub fn accounts(&self) -> Option<(u64, u64)> {
        text_of(&self.schedstat, |text| {
            let mut words = text.split_whitespace().map(str::parse);
            Some((words.next()?.ok()?, words.next()?.ok()?))
        })
    }

    /// State, as `ps` prints it, and CPU.
    pub fn stat(&self) -> Option<(char, u32)> {
        text_of(&self.stat, |text| {
            let mut fields = text.rsplit_once(')')?.1.split_whitespace();
            let state = fields.next()?.chars().next()?;
            Some((state, fields.nth(35)?.parse().ok()?))
        })
    }

    /// System call that it is in.
    pub fn doing(&self) -> Doing {
        let doing = |text: &str| Some(doing(text.trim_end()));
        self.syscall.as_ref().and_then(|file| text_of(file, doing)).unwrap_or(Doing::Hidden)
    }

    /// Descriptors for which it waits in `poll`, `select` or `epoll_wait`, as far as it is seen.
    pub fn waits_for(&self, files: &Files) -> Vec<u64> {
        const MAX: u64 = 1024;
        let Some((number, [first, second])) =
            self.syscall.as_ref().and_then(|file| text_of(file, arguments))
        else {
            return Vec::new();
        };
        let process = format!("proc/{}", self.task.pid);
        let memory = |place: u64, count: u64| {
            let mut bytes = vec![0; usize::try_from(count).ok()?];
            let memory = File::open(files.root().join(&process).join("mem")).ok()?;
            memory.read_exact_at(&mut bytes, place).ok()?;
            Some(bytes)
        };
        let waits = match waits_by(number) {
            Some(WaitsBy::Epoll) => files.text(&format!("{process}/fdinfo/{first}")).map(|set| {
                let members = set.lines().filter_map(|line| line.strip_prefix("tfd:"));
                members.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
            }),
            // `struct pollfd` has 8 bytes, a set of `select` a bit for each descriptor.
            Some(WaitsBy::Poll) => memory(first, 8 * second.min(MAX)).map(|bytes| {
                let fds = bytes.chunks_exact(8).filter_map(|one| one.first_chunk());
                fds.map(|fd| u32::from_ne_bytes(*fd).into()).collect()
            }),
            Some(WaitsBy::Select) => memory(second, first.min(MAX).div_ceil(8)).map(|bytes| {
                let bits =
                    bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
                bits.zip(0..).filter_map(|(is_set, fd)| is_set.then_some(fd)).collect()
            }),
            None => None,
        };
        waits.unwrap_or_default()
    }

    /// True if it stands in a system call because it was stopped (proc_pid_stat(5)).
    pub fn is_stopped(&self) -> bool {
        self.stat().is_some_and(|(state, _)| state == 'T' || state == 't')
    }
}

/// Reads a short file from its beginning.
fn text_of<T>(file: &File, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut bytes = [0; 1024];
    let count = file.read_at(&mut bytes, 0).ok()?;
    read(std::str::from_utf8(&bytes[..count]).ok()?)
}

enum WaitsBy {
    Poll,
    Select,
    Epoll,
}

fn waits_by(number: libc::c_long) -> Option<WaitsBy> {
    match number {
        libc::SYS_ppoll => Some(WaitsBy::Poll),
        libc::SYS_pselect6 => Some(WaitsBy::Select),
        libc::SYS_epoll_pwait => Some(WaitsBy::Epoll),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => Some(WaitsBy::Poll),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => Some(WaitsBy::Select),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => Some(WaitsBy::Epoll),
        _ => None,
    }
}

/// Number of a system call, and its first two arguments.
fn arguments(text: &str) -> Option<(libc::c_long, [u64; 2])> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some((number, [hex()?, hex()?]))
}

/// Reads `running`, the number of a system call with its arguments, or -1 outside of one.
fn doing(text: &str) -> Doing {
    let mut words = text.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()) else {
        return if text == "running" { Doing::Ready } else { Doing::Other };
    };
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let first = first.and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(u64::MAX);
    match number {
        -1 => Doing::Fault,
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
        number if waits_by(number).is_some() => Doing::Poll,
        _ => Doing::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_system_call_is_named_with_its_descriptor() {
        let call = |number: libc::c_long| doing(&format!("{number} 0x3 0x7ffd 0x10 0x0 0x0 0x0"));
        assert_eq!(call(libc::SYS_recvfrom), Doing::Read(3));
        assert_eq!(call(libc::SYS_pwrite64), Doing::Write(3));
        assert_eq!(call(libc::SYS_futex), Doing::Lock);
        assert_eq!(doing("running"), Doing::Ready);
        assert_eq!(doing("-1 0x7ffd 0x10"), Doing::Fault);
    }

    #[test]
    fn a_thread_that_polls_is_seen_with_what_it_waits_for() {
        use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
        let files = Files::default();
        let wait = Timespec { tv_sec: 60, tv_nsec: 0 };
        for by_epoll in [false, true] {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            let fd = u64::try_from(near.as_raw_fd()).unwrap();
            let (sender, tasks) = std::sync::mpsc::channel();
            let waits = std::thread::spawn(move || {
                sender.send(Task::own()).unwrap();
                if by_epoll {
                    let set = epoll::create(epoll::CreateFlags::empty()).unwrap();
                    let data = epoll::EventData::new_u64(0);
                    epoll::add(&set, &near, data, epoll::EventFlags::IN).unwrap();
                    let mut events = Vec::with_capacity(1);
                    epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&wait))
                        .unwrap();
                } else {
                    poll(&mut [PollFd::new(&near, PollFlags::IN)], Some(&wait)).unwrap();
                }
            });
            let open = OpenTask::of(&files, tasks.recv().unwrap()).unwrap();
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while open.doing() != Doing::Poll {
                assert!(std::time::Instant::now() < end, "{:?}", open.doing());
                std::thread::yield_now();
            }
            assert_eq!(open.waits_for(&files), [fd]);
            drop(far);
            waits.join().unwrap();
            assert!(open.waits_for(&files).is_empty());
        }
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
        let open = OpenTask::of(&files, task).unwrap();
        assert_eq!(open.stat(), Some(('R', 3)));
        assert_eq!(open.accounts(), Some((500, 70)));
        assert_eq!(open.doing(), Doing::Hidden);
        drop(root);
        assert!(OpenTask::of(&files, task).is_none());
    }
}
