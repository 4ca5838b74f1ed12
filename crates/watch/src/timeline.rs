//! Short times in which a socket's buffer fills: what its reader did, and who had its CPU.
//!
//! A socket is polled every millisecond while it fills, and every 10 ms otherwise, also where it
//! has been full for long. A poll takes some microseconds, and does not touch the program.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use daqmeter_record::units::{show_bytes, show_ns, whole};
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::disk::{DeviceMeter, device_of, unwritten_bytes};
use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::SocketState;
use daqmeter_sys::perf::{CpuSample, CpuSampler};
use daqmeter_sys::tasks::{Doing, OpenTask, Task};

use crate::causes::{Evidence, Reader};
use crate::target::Owner;
use crate::threads::{Thread, Times};

/// Sockets that are polled, and threads of a process that are followed.
pub(crate) const MAX_TRACKS: usize = 4;
const MAX_THREADS: usize = 16;
/// Threads of a program among which its reader is looked for; bounds the time of a look at all.
const MAX_LOOKED: usize = 256;
/// Polls between two looks at another thread once a thread was seen reading.
const FOUND: usize = 8;
const MAX_SAMPLED_CPUS: usize = 4;
pub(crate) const FILLING: Duration = Duration::from_millis(1);
pub(crate) const IDLE: Duration = Duration::from_millis(10);
/// A window of a buffer that never empties ends then, so that its evidence is used.
const LONGEST_NS: u64 = 1_000_000_000;
/// A buffer that has not emptied until then is polled as rarely as an idle one.
const LONG_NS: u64 = 300_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Poll {
    at_ns: u64,
    filled: u64,
    drops: u64,
    /// Packets read in the network namespace, at the last count.
    reads: u64,
    times: Times,
}

/// A file or socket that a reader writes to, with the counters of its disk.
struct WrittenFile {
    name: String,
    files: Files,
    disk: Option<DeviceMeter>,
    since_ns: u64,
}

impl WrittenFile {
    fn of(files: &Files, pid: u32, fd: u64) -> WrittenFile {
        let link = files.root().join(format!("proc/{pid}/fd/{fd}"));
        let device = std::fs::metadata(&link).ok().and_then(|about| device_of(about.dev()));
        WrittenFile {
            name: std::fs::read_link(link).unwrap_or_default().to_string_lossy().into_owned(),
            files: files.clone(),
            disk: device.map(|device| DeviceMeter::new(files, device)),
            since_ns: monotonic_ns(),
        }
    }

    /// Its name, and what its disk and the page cache did since it was found.
    fn seen(self) -> String {
        let WrittenFile { mut name, files, disk, since_ns } = self;
        let Some(mut disk) = disk else { return name };
        let seconds = monotonic_ns().saturating_sub(since_ns) as f64 / 1e9;
        if let (Some(device), Some(activity)) = (disk.name(), disk.read(seconds)) {
            name += &format!("; {device} was busy {:.0} % of the time", 100.0 * activity.busy);
            let write_ns = activity.write_s.map(|write_s| show_ns(1e9 * write_s));
            name.extend(write_ns.map(|time| format!(", {time} for a write")));
        }
        let (unwritten, limit) = unwritten_bytes(&files);
        if unwritten > limit / 2 {
            let [unwritten, limit] = [unwritten, limit].map(show_bytes);
            name +=
                &format!("; {unwritten} waited for disks, at most {limit} may (vm.dirty_ratio)");
        }
        name
    }
}

/// Time from the last poll that found the buffer nearly empty.
struct Window {
    start: Poll,
    /// Datagrams read in the network namespace, at the first count after the start.
    start_reads: Option<u64>,
    first_drop_ns: Option<u64>,
    /// End of the time that counts: the reader's work after it is no cause.
    last_drop: Poll,
    doing: BTreeMap<Doing, u32>,
    /// File that the reader wrote to.
    file: Option<WrittenFile>,
    /// Nothing left the buffer after the first drop, and no thread was seen reading the socket.
    is_unread: bool,
    cpu: u32,
    continues: bool,
}

/// A socket over time.
pub(crate) struct Track {
    owner: Owner,
    reader: Option<Task>,
    low: Poll,
    last: Poll,
    window: Option<Window>,
    closed: Vec<(Window, bool)>,
}

pub(crate) struct Timeline {
    threads: BTreeMap<Task, Thread>,
    tracks: BTreeMap<u64, Track>,
    /// Samplers of CPUs, and since when they have all samples.
    samplers: BTreeMap<u32, Option<(CpuSampler, u64)>>,
    polls: usize,
    readers_cpus: BTreeSet<u32>,
    /// Samples with their CPU, of the last two windows of the longest kind.
    samples: VecDeque<(u32, CpuSample)>,
    /// Addresses of the function of the kernel in which packets come to a CPU.
    interrupt: Range<u64>,
    /// Mean length of a packet that came to the namespace, with its header of IP.
    pub(crate) packet_bytes: u64,
    /// Datagrams read in the network namespace, at the last count.
    reads: u64,
}

impl Timeline {
    /// `interrupt` are the addresses of `net_rx_action`, empty where the kernel hides them.
    pub(crate) fn new(interrupt: Range<u64>) -> Timeline {
        Timeline {
            threads: BTreeMap::new(),
            tracks: BTreeMap::new(),
            samplers: BTreeMap::new(),
            polls: 0,
            readers_cpus: BTreeSet::new(),
            samples: VecDeque::new(),
            interrupt,
            packet_bytes: 0,
            reads: 0,
        }
    }

    pub(crate) fn cookies(&self) -> Vec<u64> {
        self.tracks.keys().copied().collect()
    }

    /// Follows a socket and the threads of its process.
    pub(crate) fn follow(&mut self, files: &Files, socket: &SocketState, owner: &Owner) {
        let is_known = self.tracks.contains_key(&socket.cookie);
        let has_reader = self.threads.values().any(|thread| thread.reads_of(owner.fd) > 0);
        let is_full = self.tracks.len() >= MAX_TRACKS;
        if owner.pid == 0 || is_known && has_reader || is_full && !is_known {
            return;
        }
        // A program may watch its own sockets, and start the thread that reads them later.
        let mut tasks = Task::all(files, owner.pid);
        if tasks.len() > MAX_THREADS {
            tasks.truncate(MAX_LOOKED);
            tasks.sort_by_cached_key(|task| !is_reading(files, *task, owner.fd));
            tasks.truncate(MAX_THREADS);
        }
        self.threads.retain(|task, _| task.pid != owner.pid || tasks.contains(task));
        for task in tasks {
            if task != Task::own() && !self.threads.contains_key(&task) {
                self.threads.extend(Thread::open(files, task).map(|thread| (task, thread)));
            }
        }
        if is_known {
            return;
        }
        let poll = Poll {
            at_ns: monotonic_ns(),
            filled: socket.filled_bytes.into(),
            drops: socket.drops.into(),
            reads: self.reads,
            ..Poll::default()
        };
        let track = Track {
            owner: owner.clone(),
            reader: None,
            low: poll,
            last: poll,
            window: None,
            closed: Vec::new(),
        };
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
        let is_quiet = is_low && gained == 0;
        // Each poll looks at another thread of the program until its reader is found, and rarely
        // after that.
        let known = track.reader.and_then(|reader| self.threads.get(&reader));
        let is_found = known.is_some_and(|thread| thread.reads_of(track.owner.fd) > 0);
        let polls = if is_found { FOUND } else { 1 };
        self.polls = self.polls.wrapping_add(1);
        let own = self.threads.keys().filter(|task| task.pid == track.owner.pid);
        let count = own.clone().count();
        if count > 1
            && self.polls.is_multiple_of(polls)
            && let Some(task) = own.cycle().nth(self.polls / polls % count).copied()
            && let Some(thread) = self.threads.get_mut(&task).filter(|_| Some(task) != track.reader)
        {
            thread.look(files, false);
        }
        let reader = reader_of(&self.threads, &track.owner, track.reader);
        if reader != track.reader {
            // Times of another thread say nothing of this one.
            (track.reader, track.window) = (reader, None);
            track.closed.clear();
            let known = reader.and_then(|reader| self.threads.get(&reader));
            poll.times = known.map_or(Times::default(), |thread| thread.last);
            (track.low, track.last) = (poll, poll);
        }
        let mut doing = Doing::Hidden;
        let mut cpu = 0;
        if let Some(reader) = reader.and_then(|reader| self.threads.get_mut(&reader)) {
            (doing, poll.times) = reader.look(files, is_quiet && track.window.is_none());
            if track.window.is_none() && !is_quiet {
                cpu = reader.open.stat().map_or(0, |(_, cpu)| cpu);
            }
        }
        if track.window.is_none() && !is_quiet {
            track.open(track.low, cpu, false);
        }
        let before = std::mem::replace(&mut track.last, poll);
        let Some(window) = &mut track.window else {
            track.low = poll;
            return poll.filled * 8 > u64::from(socket.buffer_bytes);
        };
        let is_less = window.first_drop_ns.is_some() && poll.filled < before.filled;
        window.is_unread &= !is_less;
        if gained > 0 {
            window.first_drop_ns.get_or_insert(poll.at_ns);
            window.last_drop = poll;
        }
        *window.doing.entry(doing).or_default() += 1;
        if let Doing::Write(fd) | Doing::Synchronise(fd) = doing
            && window.file.is_none()
        {
            // Now, because the program may close it.
            window.file = Some(WrittenFile::of(files, track.owner.pid, fd));
        }
        let (cpu, length_ns) = (window.cpu, poll.at_ns - window.start.at_ns);
        let is_long = window.continues || length_ns > LONG_NS;
        if is_quiet {
            track.close(true);
            track.low = poll;
        } else if length_ns > LONGEST_NS {
            track.close(false);
            track.open(poll, cpu, true);
        }
        !is_long
    }

    /// True while the buffer of a socket is not nearly empty.
    pub(crate) fn is_filling(&self) -> bool {
        self.tracks.values().any(|track| track.window.is_some())
    }

    /// Takes the number of datagrams that were read in the network namespace since it began.
    pub(crate) fn count_reads(&mut self, reads: u64) {
        self.reads = reads;
        let windows = self.tracks.values_mut().filter_map(|track| track.window.as_mut());
        windows.for_each(|window| _ = window.start_reads.get_or_insert(reads));
    }

    /// Evidence of the windows that ended with drops since the last call, for each socket.
    pub(crate) fn evidence(&mut self) -> Vec<(u64, Evidence)> {
        let memory = memory_of(self.packet_bytes);
        let mut found = Vec::new();
        for (cookie, track) in &mut self.tracks {
            for (mut window, is_emptied) in track.closed.drain(..) {
                let mut own =
                    self.threads.values().filter(|one| one.open.task.pid == track.owner.pid);
                window.is_unread &= !own.any(|thread| thread.reads_of(track.owner.fd) > 0);
                // The thread may have ended meanwhile.
                let reader = reader_of(&self.threads, &track.owner, track.reader);
                let reader = reader.and_then(|reader| self.threads.get(&reader));
                let reader = reader.map(|thread| Reader {
                    task: thread.open.task,
                    name: thread.name.clone(),
                    is_exact: thread.is_exact(window.start.at_ns),
                });
                let sampler = self.samplers.get(&window.cpu).and_then(Option::as_ref);
                let since = sampler.map_or(u64::MAX, |(_, since)| *since);
                let cpu = CpuTimes::of(&self.samples, since, &window, reader.as_ref());
                found.push((
                    *cookie,
                    window.evidence(reader, cpu, is_emptied, (track.owner.fd, memory)),
                ));
            }
        }
        found
    }

    /// Ends windows that are open, as at the end of the watch.
    pub(crate) fn end(&mut self) {
        self.tracks.values_mut().for_each(|track| track.close(false));
    }

    /// The reader of a socket, and its CPU.
    pub(crate) fn reader(&self, owner: &Owner) -> Option<(Task, u32)> {
        let reader = self.tracks.values().find(|track| track.owner == *owner)?.reader?;
        Some((reader, self.threads.get(&reader)?.open.stat()?.1))
    }

    /// Reads samples of the readers' CPUs.
    pub(crate) fn look_at_cpus(&mut self) {
        let now = monotonic_ns();
        let readers = self.tracks.values().filter_map(|track| self.reader(&track.owner));
        let cpus: BTreeSet<u32> = readers.map(|(_, cpu)| cpu).collect();
        for &cpu in &cpus {
            if self.samplers.len() < MAX_SAMPLED_CPUS {
                let open = || Some((CpuSampler::of_cpu(cpu).ok()?, now));
                self.samplers.entry(cpu).or_insert_with(open);
            }
        }
        // The watch must not take a reader's CPU.
        if cpus != self.readers_cpus {
            affinity::keep_off(&cpus);
            self.readers_cpus = cpus;
        }
        for (cpu, sampler) in &mut self.samplers {
            if let Some((sampler, since)) = sampler {
                let samples = &mut self.samples;
                if sampler.read(&self.interrupt, |one| samples.push_back((*cpu, one))) > 0 {
                    *since = now;
                }
            }
        }
        while self.samples.front().is_some_and(|(_, one)| one.at_ns + 2 * LONGEST_NS < now) {
            self.samples.pop_front();
        }
    }

    /// True where all that has the CPU of a reader can be seen.
    pub(crate) fn sees_cpus(&self) -> bool {
        let is_hidden = !self.samplers.is_empty() && self.interrupt.is_empty();
        !is_hidden && self.samplers.values().all(Option::is_some)
    }
}

/// Memory that a packet takes in a buffer: its data with headers and `struct skb_shared_info`, in
/// a block of the allocator, and `struct sk_buff` (`SKB_TRUESIZE`). Drivers that give each packet a
/// part of a page take more.
fn memory_of(packet_bytes: u64) -> u64 {
    const HEADERS_AND_SHARED_INFO: u64 = 64 + 320;
    const SK_BUFF: u64 = 256;
    (packet_bytes + HEADERS_AND_SHARED_INFO).next_power_of_two() + SK_BUFF
}

/// True if a thread is in a read of a descriptor, or waits for it.
fn is_reading(files: &Files, task: Task, fd: u64) -> bool {
    OpenTask::of(files, task).is_some_and(|open| match open.doing() {
        Doing::Read(of) => of == fd,
        Doing::Poll => open.waits_for(files).contains(&fd),
        _ => false,
    })
}

/// The thread that was seen reading the socket most often; else that with the most CPU time. The
/// present one stays until another has twice as much.
fn reader_of(
    threads: &BTreeMap<Task, Thread>,
    owner: &Owner,
    present: Option<Task>,
) -> Option<Task> {
    let of_process = threads.values().filter(|thread| thread.open.task.pid == owner.pid);
    let seen = |thread: &Thread| (thread.reads_of(owner.fd), thread.last.run_ns);
    let most = of_process.max_by_key(|thread| seen(thread))?;
    let stays = present.filter(|present| {
        threads.get(present).map(seen).is_some_and(|(reads, run_ns)| match seen(most) {
            (0, most_ns) => reads == 0 && 2 * run_ns >= most_ns,
            (most, _) => reads > 0 && 2 * reads >= most,
        })
    });
    stays.or(Some(most.open.task))
}

/// Activity of the reader's CPU during a window, in samples. Some kernels take none of an idle CPU.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTimes {
    /// Samples of a CPU that was never idle.
    wanted: f64,
    /// All samples; `None` where the sampler was not there from the start.
    all: Option<f64>,
    /// Share of soft interrupts of packets.
    interrupts: f64,
    /// Share of those that took the time of the reader.
    in_reader: f64,
    /// Process that had it most often besides the reader, and its share.
    taker: Option<(u32, f64)>,
}

impl CpuTimes {
    /// A short window has few samples, so those of the time around it count as four more.
    fn of(
        samples: &VecDeque<(u32, CpuSample)>,
        since: u64,
        window: &Window,
        reader: Option<&Reader>,
    ) -> CpuTimes {
        const AROUND: f64 = 4.0;
        let (start, end) = (window.start.at_ns, window.last_drop.at_ns);
        let wanted = |from: u64, to: u64| {
            let seconds = to.saturating_sub(from) as f64 / 1e9;
            (seconds * f64::from(CpuSampler::HERTZ)).max(1.0)
        };
        let (mut around, mut now) = ([0.0; 3], [0.0; 3]);
        let mut by = BTreeMap::<u32, f64>::new();
        let here = samples.iter().filter(|(cpu, _)| *cpu == window.cpu).map(|(_, sample)| sample);
        for sample in here.clone() {
            let is_reader = reader.is_some_and(|reader| reader.task.tid == sample.task.tid);
            let is_taken = sample.is_inside && is_reader;
            let counted = [true, sample.is_inside, is_taken].map(|is| f64::from(u8::from(is)));
            let add = |sums: &mut [f64; 3]| {
                sums.iter_mut().zip(counted).for_each(|(sum, one)| *sum += one);
            };
            add(&mut around);
            if (start..=end).contains(&sample.at_ns) {
                add(&mut now);
                if !is_reader && sample.task.pid != 0 {
                    *by.entry(sample.task.pid).or_default() += 1.0;
                }
            }
        }
        let times = here.map(|sample| sample.at_ns);
        let (first, last) = (times.clone().min().unwrap_or(start), times.max().unwrap_or(end));
        let (wanted, wanted_around) = (wanted(start, end), wanted(first.min(start), last.max(end)));
        let share = |at: usize| {
            let usual = AROUND * (around[at] / wanted_around).min(1.0);
            ((now[at] + usual) / (wanted + AROUND)).min(1.0)
        };
        let most = by.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        CpuTimes {
            wanted,
            all: (since <= start).then_some(now[0]),
            interrupts: share(1),
            in_reader: share(2),
            taker: most.map(|(pid, samples)| (pid, (samples / wanted).min(1.0))),
        }
    }

    /// Share of the time in which the CPU did not run, of that in which it was needed.
    fn still(&self, needed: f64) -> f64 {
        /// Samples without which a standstill is not told from chance.
        const FEWEST: f64 = 5.0;
        let wanted = self.wanted * needed;
        match self.all {
            Some(all) if wanted >= FEWEST => (1.0 - (all + 1.0) / wanted).max(0.0),
            _ => 0.0,
        }
    }
}

impl Track {
    fn open(&mut self, start: Poll, cpu: u32, continues: bool) {
        self.window = Some(Window {
            start,
            start_reads: continues.then_some(start.reads),
            first_drop_ns: None,
            last_drop: start,
            doing: BTreeMap::new(),
            file: None,
            is_unread: true,
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
        self,
        reader: Option<Reader>,
        of_cpu: CpuTimes,
        is_emptied: bool,
        (fd, memory): (u64, u64),
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
        // A buffer that is filled between two polls shows no slope.
        let lost_bytes = (end.drops - self.start.drops) * memory;
        Evidence {
            drops: end.drops - self.start.drops,
            reads: self.start_reads.map_or(0, |start| end.reads.saturating_sub(start)),
            run: (run - of_cpu.in_reader).max(0.0),
            interrupts: of_cpu.interrupts,
            still: of_cpu.still(run + wait),
            wait,
            blocked: (1.0 - run - wait).max(0.0),
            doing: doing.max_by_key(|(_, times)| **times).map(|(doing, _)| *doing),
            fd,
            is_unread: self.is_unread,
            file: self.file.map(WrittenFile::seen).unwrap_or_default(),
            cpu: self.cpu,
            taker: of_cpu.taker,
            reader,
            is_emptied,
            continues: self.continues,
            length_ns: end.at_ns.saturating_sub(self.start.at_ns),
            more_bytes: whole(slope * end.at_ns.saturating_sub(first) as f64).max(lost_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use daqmeter_sys::netlink::{Family, Netlink, SocketKind};

    #[test]
    fn the_reader_is_the_thread_that_waits_for_the_socket() {
        let files = Files::default();
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let (sender, tasks) = mpsc::channel();
        let entry = Arc::clone(&socket);
        let reads = std::thread::spawn(move || {
            sender.send(Task::own()).unwrap();
            entry.recv(&mut [0; 8]).unwrap();
        });
        let reader = tasks.recv().unwrap();
        // A younger thread, with more CPU time.
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let works = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let mut all = Netlink::open(Family::SocketDiagnosis).unwrap();
        let local = socket.local_addr().unwrap();
        let mut states = all.sockets(SocketKind::Udp4).unwrap().into_iter();
        let state = states.find(|state| state.local == local).unwrap();
        let fd = u64::try_from(socket.as_raw_fd()).unwrap();
        let owner = Owner { pid: std::process::id(), fd, name: String::new() };
        let mut timeline = Timeline::new(0..0);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while timeline.reader(&owner).is_none_or(|(task, _)| task != reader) {
            assert!(std::time::Instant::now() < end, "{:?}", timeline.reader(&owner));
            timeline.follow(&files, &state, &owner);
            timeline.poll(&files, &state);
        }
        is_over.store(true, Ordering::Relaxed);
        socket.send_to(&[0], local).unwrap();
        for thread in [reads, works] {
            thread.join().unwrap();
        }
    }
}
