//! Threads that may read a socket: the time that they had a CPU or waited for one.

use std::collections::BTreeMap;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::perf::{Switch, SwitchLog};
use daqmeter_sys::tasks::{Doing, OpenTask, Task};

/// Descriptors of a thread that are remembered.
const MAX_READ: usize = 64;

/// Times of a thread since it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) run_ns: u64,
    pub(crate) wait_ns: u64,
}

pub(crate) struct Thread {
    pub(crate) open: OpenTask,
    pub(crate) name: String,
    log: Option<SwitchLog>,
    /// Time since which no switch was missed.
    exact_since_ns: u64,
    switches: Switches,
    /// Accounts when it was first seen.
    first: (u64, u64),
    pub(crate) last: Times,
    /// Times at which it was seen reading each descriptor, or waiting for it.
    reads: BTreeMap<u64, u32>,
    looks: u32,
}

/// Running time by switches. Until the first one, a thread that could run is taken as running.
#[derive(Clone, Copy, Debug)]
struct Switches {
    opened_ns: u64,
    run_ns: u64,
    since: Option<u64>,
    /// It lost its CPU then, or was seen blocked.
    ready_ns: u64,
    is_first: bool,
}

impl Switches {
    fn new(now_ns: u64, is_running: bool) -> Switches {
        let since = is_running.then_some(now_ns);
        Switches { opened_ns: now_ns, run_ns: 0, since, ready_ns: now_ns, is_first: true }
    }

    fn add(&mut self, switch: Switch) {
        let at_ns = switch.at_ns;
        let since = if self.is_first && !switch.is_in { Some(self.opened_ns) } else { self.since };
        if switch.is_in {
            self.since = Some(at_ns);
        } else if let Some(since) = since {
            self.run_ns += at_ns.saturating_sub(since);
            self.since = None;
        }
        self.ready_ns = at_ns;
        self.is_first = false;
    }

    fn run_until(&self, now_ns: u64) -> u64 {
        self.run_ns + self.since.map_or(0, |since| now_ns.saturating_sub(since))
    }

    /// Wait that is not over yet, of a thread that could run when it was looked at.
    fn wait_until(&mut self, now_ns: u64, is_ready: bool) -> u64 {
        if !is_ready {
            self.ready_ns = now_ns;
        }
        if self.since.is_some() { 0 } else { now_ns.saturating_sub(self.ready_ns) }
    }
}

impl Thread {
    /// Opens the accounts of a thread; `None` when it ended.
    pub(crate) fn open(files: &Files, task: Task) -> Option<Thread> {
        let open = OpenTask::of(files, task)?;
        let log = SwitchLog::of_thread(task.tid).ok();
        let is_ready = open.stat()?.0 == 'R';
        Some(Thread {
            name: task.name(files),
            log,
            exact_since_ns: 0,
            switches: Switches::new(monotonic_ns(), is_ready),
            first: open.accounts()?,
            last: Times::default(),
            reads: BTreeMap::new(),
            looks: 0,
            open,
        })
    }

    /// Returns false where the times since then have the resolution of the kernel's ticks only.
    pub(crate) fn is_exact(&self, since_ns: u64) -> bool {
        self.log.is_some() && since_ns >= self.exact_since_ns
    }

    /// Looks at what the thread does, and at its times until now. Where nothing depends on it, a
    /// look at its system call is saved most times.
    pub(crate) fn look(&mut self, files: &Files, is_quiet: bool) -> (Doing, Times) {
        const QUIET: u32 = 8;
        self.looks = self.looks.wrapping_add(1);
        let is_saved = is_quiet && !self.looks.is_multiple_of(QUIET);
        let mut doing = if is_saved { Doing::Hidden } else { self.open.doing() };
        // A thread that waits although data are there was stopped.
        if !is_quiet && doing != Doing::Ready && self.open.is_stopped() {
            doing = Doing::Stopped;
        }
        let fds = match doing {
            Doing::Read(fd) => vec![fd],
            Doing::Poll => self.open.waits_for(files),
            _ => Vec::new(),
        };
        for fd in fds {
            if self.reads.len() < MAX_READ || self.reads.contains_key(&fd) {
                *self.reads.entry(fd).or_default() += 1;
            }
        }
        let (run, wait) = self.open.accounts().unwrap_or(self.first);
        let now = monotonic_ns();
        let switches = &mut self.switches;
        let lost = self.log.as_mut().map(|log| log.read(|one| switches.add(one)));
        if lost.is_some_and(|lost| lost > 0) {
            *switches = Switches { run_ns: switches.run_ns, ..Switches::new(now, false) };
            self.exact_since_ns = now;
        }
        let (run_ns, waiting_ns) = match self.log {
            Some(_) => (switches.run_until(now), switches.wait_until(now, doing == Doing::Ready)),
            None => (run.saturating_sub(self.first.0), 0),
        };
        self.last = Times { run_ns, wait_ns: wait.saturating_sub(self.first.1) + waiting_ns };
        (doing, self.last)
    }

    pub(crate) fn reads_of(&self, fd: u64) -> u32 {
        self.reads.get(&fd).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(at_ns: u64, is_in: bool) -> Switch {
        Switch { at_ns, is_in }
    }

    #[test]
    fn a_thread_runs_between_its_switches() {
        let mut switches = Switches::new(100, false);
        switches.add(switch(150, false));
        assert_eq!(switches.run_until(1000), 50, "it ran when it was first seen");
        switches.add(switch(200, true));
        assert_eq!(switches.run_until(260), 110);
        switches.add(switch(300, false));
        assert_eq!(switches.run_until(1000), 150);
        let mut waiting = Switches::new(100, true);
        waiting.add(switch(180, true));
        assert_eq!(waiting.run_until(200), 20, "it only waited for a CPU before");
    }

    #[test]
    fn a_thread_that_can_run_and_has_no_cpu_waits() {
        let mut switches = Switches::new(100, true);
        assert_eq!(switches.wait_until(150, true), 0, "it runs");
        switches.add(switch(200, false));
        assert_eq!(switches.wait_until(260, true), 60);
        assert_eq!(switches.wait_until(300, false), 0, "it was blocked");
        assert_eq!(switches.wait_until(310, true), 10);
        switches.add(switch(320, true));
        assert_eq!(switches.wait_until(400, true), 0);
    }

    #[test]
    fn this_thread_is_seen() {
        let own = std::process::id();
        let task = Task { pid: own, tid: own };
        let mut thread = Thread::open(&Files::default(), task).unwrap();
        assert!(!thread.name.is_empty());
        let (_, before) = thread.look(&Files::default(), false);
        assert!(thread.look(&Files::default(), true).1.run_ns >= before.run_ns);
    }
}
