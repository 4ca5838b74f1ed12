//! Short times in which a socket's buffer fills: what its reader did, and who had its CPU.
//!
//! A socket is polled every millisecond while it fills, and every 10 ms otherwise. A poll takes
//! some microseconds, and does not touch the program.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use daqmeter_record::units::whole;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::SocketState;
use daqmeter_sys::perf::CpuSampler;
use daqmeter_sys::tasks::{Doing, Task};
use daqmeter_sys::{affinity, cpu_time};

use crate::causes::{Evidence, Reader};
use crate::target::Owner;
use crate::threads::{Thread, Times};

/// Sockets that are polled, and threads of a process that are followed.
pub(crate) const MAX_TRACKS: usize = 4;
const MAX_THREADS: usize = 16;
const MAX_SAMPLED_CPUS: usize = 4;
pub(crate) const FILLING: Duration = Duration::from_millis(1);
pub(crate) const IDLE: Duration = Duration::from_millis(10);
/// A window of a buffer that never empties ends then, so that its evidence is used.
const LONGEST_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Poll {
    at_ns: u64,
    filled: u64,
    drops: u64,
    /// Packets read in the network namespace, at the last count.
    reads: u64,
    times: Times,
}

/// Time from the last poll that found the buffer nearly empty.
struct Window {
    start: Poll,
    first_drop_ns: Option<u64>,
    /// End of the time that counts: the reader's work after it is no cause.
    last_drop: Poll,
    doing: BTreeMap<Doing, u32>,
    cpu: u32,
    continues: bool,
}

/// A socket over time.
pub(crate) struct Track {
    owner: Owner,
    low: Poll,
    last: Poll,
    window: Option<Window>,
    closed: Vec<(Window, bool)>,
}

#[derive(Default)]
pub(crate) struct Timeline {
    threads: BTreeMap<Task, Thread>,
    tracks: BTreeMap<u64, Track>,
    samplers: BTreeMap<u32, Option<CpuSampler>>,
    readers_cpus: BTreeSet<u32>,
    /// Time, CPU, process and thread.
    samples: VecDeque<(u64, u32, Task)>,
    softirq: BTreeMap<u32, (u64, f64)>,
    softirq_at_ns: u64,
    /// Packets read in the network namespace so far.
    pub(crate) reads: u64,
}

impl Timeline {
    pub(crate) fn cookies(&self) -> Vec<u64> {
        self.tracks.keys().copied().collect()
    }

    /// Follows a socket and the threads of its process.
    pub(crate) fn follow(&mut self, files: &Files, socket: &SocketState, owner: &Owner) {
        if owner.pid == 0
            || self.tracks.len() >= MAX_TRACKS
            || self.tracks.contains_key(&socket.cookie)
        {
            return;
        }
        for task in Task::all(files, owner.pid).into_iter().take(MAX_THREADS) {
            self.threads.entry(task).or_insert_with(|| Thread::open(files, task));
        }
        let poll = Poll {
            at_ns: monotonic_ns(),
            filled: socket.filled_bytes.into(),
            drops: socket.drops.into(),
            reads: self.reads,
            ..Poll::default()
        };
        let track =
            Track { owner: owner.clone(), low: poll, last: poll, window: None, closed: Vec::new() };
        self.tracks.insert(socket.cookie, track);
    }

    /// Takes the state of a socket now. Returns true while its buffer fills.
    pub(crate) fn poll(&mut self, files: &Files, socket: &SocketState) -> bool {
        let Some(track) = self.tracks.get_mut(&socket.cookie) else {
            return false;
        };
        let mut poll = Poll {
            at_ns: monotonic_ns(),
            filled: socket.filled_bytes.into(),
            drops: socket.drops.into(),
            reads: self.reads,
            times: track.last.times,
        };
        let is_low = poll.filled * 4 <= u64::from(socket.buffer_bytes);
        let gained = poll.drops.saturating_sub(track.last.drops);
        let reader = reader_of(&mut self.threads, &track.owner);
        let mut doing = None;
        if let Some(reader) = reader {
            poll.times = reader.times(files);
            doing = Some(reader.look(files));
            if track.window.is_none() && !(is_low && gained == 0) {
                let cpu = reader.task.stat(files).map_or(0, |(_, cpu)| cpu);
                track.open(track.low, cpu, false);
            }
        } else if track.window.is_none() && !(is_low && gained == 0) {
            track.open(track.low, 0, false);
        }
        track.last = poll;
        let Some(window) = &mut track.window else {
            track.low = poll;
            return poll.filled * 8 > u64::from(socket.buffer_bytes);
        };
        if gained > 0 {
            window.first_drop_ns.get_or_insert(poll.at_ns);
            window.last_drop = poll;
        }
        *window.doing.entry(doing.unwrap_or(Doing::Hidden)).or_default() += 1;
        let cpu = window.cpu;
        if is_low && gained == 0 {
            track.close(true);
            track.low = poll;
        } else if poll.at_ns - window.start.at_ns > LONGEST_NS {
            track.close(false);
            track.open(poll, cpu, true);
        }
        true
    }

    /// Evidence of the windows that ended with drops since the last call, for each socket.
    pub(crate) fn evidence(&mut self, files: &Files) -> Vec<(u64, Evidence)> {
        self.look_at_cpus(files);
        let mut found = Vec::new();
        for (cookie, track) in &mut self.tracks {
            for (window, is_emptied) in track.closed.drain(..) {
                let reader = reader_of(&mut self.threads, &track.owner);
                let reader = reader.map(|thread| Reader {
                    task: thread.task,
                    name: thread.name.clone(),
                    is_exact: thread.is_exact(),
                });
                let softirq = self.softirq.get(&window.cpu).map_or(0.0, |(_, share)| *share);
                let taker = taker(&self.samples, &window, reader.as_ref());
                found.push((
                    *cookie,
                    window.evidence(reader, softirq, taker, is_emptied, track.owner.fd),
                ));
            }
        }
        found
    }

    /// Ends windows that are open, as at the end of the watch.
    pub(crate) fn end(&mut self) {
        self.tracks.values_mut().for_each(|track| track.close(false));
    }

    /// Reads samples of the readers' CPUs, and the share of soft interrupts there.
    fn look_at_cpus(&mut self, files: &Files) {
        let now = monotonic_ns();
        let cpus = self.threads.values().filter_map(|thread| thread.task.stat(files));
        let cpus: BTreeSet<u32> = cpus.map(|(_, cpu)| cpu).collect();
        for &cpu in &cpus {
            if self.samplers.len() < MAX_SAMPLED_CPUS {
                self.samplers.entry(cpu).or_insert_with(|| CpuSampler::of_cpu(cpu).ok());
            }
        }
        // The watch must not take a reader's CPU.
        if cpus != self.readers_cpus {
            affinity::keep_off(&cpus);
            self.readers_cpus = cpus;
        }
        for (cpu, sampler) in &mut self.samplers {
            if let Some(sampler) = sampler {
                sampler.read(|at, task| self.samples.push_back((at, *cpu, task)));
            }
        }
        while self.samples.front().is_some_and(|(at, ..)| at + 2 * LONGEST_NS < now) {
            self.samples.pop_front();
        }
        let span = now.saturating_sub(self.softirq_at_ns).max(1) as f64;
        self.softirq_at_ns = now;
        for (cpu, [_, _, _, _, irq, softirq, _]) in cpu_time::of_host() {
            let ns = irq + softirq;
            let (before, share) = self.softirq.entry(cpu.unwrap_or(u32::MAX)).or_insert((ns, 0.0));
            *share = ns.saturating_sub(*before) as f64 / span;
            *before = ns;
        }
    }

    /// True where the processes of a reader's CPU can be seen.
    pub(crate) fn sees_cpus(&self) -> bool {
        self.samplers.values().all(Option::is_some)
    }
}

/// The thread that was seen reading the socket; else that with the most CPU time.
fn reader_of<'a>(threads: &'a mut BTreeMap<Task, Thread>, owner: &Owner) -> Option<&'a mut Thread> {
    let of_process = threads.values_mut().filter(|thread| thread.task.pid == owner.pid);
    of_process.max_by_key(|thread| (thread.reads_of(owner.fd), thread.last.run_ns))
}

/// Process that had the reader's CPU most often while the reader had it not, and its share of the
/// samples.
fn taker(
    samples: &VecDeque<(u64, u32, Task)>,
    window: &Window,
    reader: Option<&Reader>,
) -> Option<(u32, f64)> {
    let span = window.start.at_ns..=window.last_drop.at_ns;
    let here = samples.iter().filter(|(at, cpu, _)| *cpu == window.cpu && span.contains(at));
    let (mut all, mut by) = (0_u32, BTreeMap::<u32, u32>::new());
    for (_, _, task) in here {
        all += 1;
        if task.pid != 0 && reader.is_none_or(|reader| reader.task.tid != task.tid) {
            *by.entry(task.pid).or_default() += 1;
        }
    }
    let (pid, most) = by.into_iter().max_by_key(|(_, samples)| *samples)?;
    Some((pid, f64::from(most) / f64::from(all)))
}

impl Track {
    fn open(&mut self, start: Poll, cpu: u32, continues: bool) {
        self.window = Some(Window {
            start,
            first_drop_ns: None,
            last_drop: start,
            doing: BTreeMap::new(),
            cpu,
            continues,
        });
    }

    fn close(&mut self, is_emptied: bool) {
        if let Some(window) = self.window.take()
            && window.last_drop.drops > window.start.drops
        {
            self.closed.push((window, is_emptied));
        }
    }
}

impl Window {
    fn evidence(
        &self,
        reader: Option<Reader>,
        interrupts: f64,
        taker: Option<(u32, f64)>,
        is_emptied: bool,
        fd: u64,
    ) -> Evidence {
        let end = self.last_drop;
        let span = (end.at_ns - self.start.at_ns).max(1) as f64;
        let share = |of: fn(&Times) -> u64| {
            let gained = of(&end.times).saturating_sub(of(&self.start.times));
            (gained as f64 / span).min(1.0)
        };
        let (run, wait) = (share(|times| times.run_ns), share(|times| times.wait_ns));
        let doing = self.doing.iter().filter(|(doing, _)| **doing != Doing::Ready);
        let first = self.first_drop_ns.unwrap_or(end.at_ns);
        let filling = first.saturating_sub(self.start.at_ns).max(1) as f64;
        let high = end.filled.max(self.start.filled);
        let slope = high.saturating_sub(self.start.filled) as f64 / filling;
        Evidence {
            drops: end.drops - self.start.drops,
            reads: end.reads - self.start.reads,
            run: (run - interrupts).max(0.0),
            interrupts,
            wait,
            blocked: (1.0 - run - wait).max(0.0),
            doing: doing.max_by_key(|(_, times)| **times).map(|(doing, _)| *doing),
            fd,
            cpu: self.cpu,
            taker,
            reader,
            is_emptied,
            continues: self.continues,
            length_ns: end.at_ns.saturating_sub(self.start.at_ns),
            more_bytes: whole(slope * end.at_ns.saturating_sub(first) as f64),
        }
    }
}
