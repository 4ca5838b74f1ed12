//! Threads that may read a socket: the time that they had a CPU or waited for one.

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::perf::SwitchLog;
use daqmeter_sys::tasks::{Doing, Task};

/// Times of a thread since it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) run_ns: u64,
    pub(crate) wait_ns: u64,
}

pub(crate) struct Thread {
    pub(crate) task: Task,
    pub(crate) name: String,
    log: Option<SwitchLog>,
    switches: Switches,
    first: (u64, u64),
    pub(crate) last: Times,
    /// Times at which it was seen in a read of each descriptor.
    pub(crate) reads: Vec<(u64, u32)>,
}

/// Running time by switches. Until the first one, a thread that could run is taken as running.
#[derive(Clone, Copy, Debug)]
struct Switches {
    opened_ns: u64,
    run_ns: u64,
    since: Option<u64>,
    is_first: bool,
}

impl Switches {
    fn add(&mut self, at_ns: u64, is_in: bool) {
        let since = if self.is_first && !is_in { Some(self.opened_ns) } else { self.since };
        match (is_in, since) {
            (true, _) => self.since = Some(at_ns),
            (false, Some(since)) => {
                self.run_ns += at_ns.saturating_sub(since);
                self.since = None;
            }
            (false, None) => {}
        }
        self.is_first = false;
    }

    fn until(&self, now_ns: u64) -> u64 {
        self.run_ns + self.since.map_or(0, |since| now_ns.saturating_sub(since))
    }
}

impl Thread {
    pub(crate) fn open(files: &Files, task: Task) -> Thread {
        let now = monotonic_ns();
        let mut thread = Thread {
            task,
            name: task.name(files),
            log: SwitchLog::of_thread(task.tid).ok(),
            switches: Switches { opened_ns: now, run_ns: 0, since: None, is_first: true },
            first: (0, 0),
            last: Times::default(),
            reads: Vec::new(),
        };
        thread.first = task.accounts(files).unwrap_or_default();
        if task.stat(files).is_some_and(|(state, _)| state == 'R') {
            thread.switches.since = Some(now);
        }
        thread
    }

    /// Returns false where the times have the resolution of the kernel's ticks only.
    pub(crate) fn is_exact(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn times(&mut self, files: &Files) -> Times {
        let (run, wait) = self.task.accounts(files).unwrap_or(self.first);
        let now = monotonic_ns();
        let switches = &mut self.switches;
        let lost = self.log.as_mut().map(|log| log.read(|one| switches.add(one.at_ns, one.is_in)));
        if lost.is_some_and(|lost| lost > 0) {
            self.log = None;
        }
        self.last = Times {
            run_ns: match self.log {
                Some(_) => switches.until(now),
                None => run.saturating_sub(self.first.0),
            },
            wait_ns: wait.saturating_sub(self.first.1),
        };
        self.last
    }

    /// Looks at the system call (`/proc/PID/task/TID/syscall`).
    pub(crate) fn look(&mut self, files: &Files) -> Doing {
        let doing = self.task.doing(files);
        if let Doing::Read(fd) = doing {
            match self.reads.iter_mut().find(|(of, _)| *of == fd) {
                Some((_, times)) => *times += 1,
                None => self.reads.push((fd, 1)),
            }
        }
        doing
    }

    pub(crate) fn reads_of(&self, fd: u64) -> u32 {
        self.reads.iter().find(|(of, _)| *of == fd).map_or(0, |(_, times)| *times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_between_its_switches() {
        let mut switches = Switches { opened_ns: 100, run_ns: 0, since: None, is_first: true };
        switches.add(150, false);
        assert_eq!(switches.until(1000), 50, "it ran when it was first seen");
        switches.add(200, true);
        assert_eq!(switches.until(260), 110);
        switches.add(300, false);
        assert_eq!(switches.until(1000), 150);
        let mut waiting = Switches { opened_ns: 100, run_ns: 0, since: Some(100), is_first: true };
        waiting.add(180, true);
        assert_eq!(waiting.until(200), 20, "it only waited for a CPU before");
    }

    #[test]
    fn this_thread_is_seen() {
        let own = std::process::id();
        let mut thread = Thread::open(&Files::default(), Task { pid: own, tid: own });
        assert!(!thread.name.is_empty());
        let before = thread.times(&Files::default());
        assert!(thread.times(&Files::default()).run_ns >= before.run_ns);
    }
}
