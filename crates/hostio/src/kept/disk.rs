//! Second by second: synchronises, reads back, and says when the disk took less, and why.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use daqmeter_harness::{Fault, locked};
use daqmeter_record::path::{DiskCause, DiskFall, PathKept};
use daqmeter_stats::median;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::cpu_time::ThreadTimes;
use daqmeter_sys::disk::{DeviceMeter, device_of, free_bytes, unwritten_bytes};
use daqmeter_sys::host::Files;
use serde::Serialize;

use crate::kept::settings::{KeepSettings, WriteBy};
use crate::kept::{KeptBlock, KeptCheck, KeptRun, KeptStream};

/// Time from one synchronisation to the next.
const EVERY: Duration = Duration::from_secs(1);
/// Intervals that say what a disk takes.
const BEFORE: usize = 10;
/// Share of its rate before, below which a disk has fallen. That of a virtual machine gave 0.89 to
/// 1.13 of its median in nine intervals (Genoa, direct, 3 GB/s).
const FALL: f64 = 0.6;
/// Part of what is missing that the recorder's waits must explain: a fall begins within an
/// interval, and a source that gives less makes it wait for nothing.
const EXPLAINED: f64 = 0.5;
const MAX_FALLS: usize = 100;
/// Part of what is written that is read back meanwhile.
const COMPARED: u64 = 4;

/// State that the recorder and its background share.
pub(super) struct Progress {
    folder: PathBuf,
    pub(super) streams: Vec<KeptStream>,
    index: Arc<File>,
    /// File of each stream whose header was written last, and the blocks that it says.
    headers: Mutex<Vec<(u32, u64)>>,
    state: Mutex<State>,
    wake: Condvar,
    waits: Waits,
    /// Longest write, in nanoseconds.
    longest_ns: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) kept: PathKept,
    /// Files that were written to since they were synchronised.
    files: Vec<Arc<File>>,
    /// Number, end and blocks of each stream's file with the last block.
    pub(super) ends: Vec<(u32, u64, u64)>,
    pub(super) fault: Option<Fault>,
    has_new_file: bool,
    is_over: bool,
    /// Begin of a synchronisation that has not ended, and the longest since the last interval.
    sync_begin: Option<Instant>,
    sync_ns: u64,
}

/// Time for which a thread waited, also while it still waits. Times are nanoseconds of the
/// monotonic clock; 0 is none.
#[derive(Default)]
pub(super) struct Waits {
    begin_ns: AtomicU64,
    ended_ns: AtomicU64,
}

impl Waits {
    pub(super) fn begin(&self, now_ns: u64) {
        self.begin_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(super) fn end(&self, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.begin_ns.swap(0, Ordering::Relaxed));
        self.ended_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the time since the last call.
    fn take_ns(&self, now_ns: u64) -> u64 {
        let counted = |begin_ns| (begin_ns > 0).then_some(now_ns.max(begin_ns));
        let begin_ns = self.begin_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
        let running_ns = begin_ns.map_or(0, |begin_ns| now_ns.saturating_sub(begin_ns));
        self.ended_ns.swap(0, Ordering::Relaxed) + running_ns
    }
}

impl Progress {
    pub(super) fn new(folder: &Path, run: &KeptRun, index: Arc<File>) -> Progress {
        let streams = run.streams.clone();
        let ends = streams.iter().map(|stream| (0, stream.header_bytes(), 0)).collect();
        Progress {
            folder: folder.to_owned(),
            headers: Mutex::new(vec![(0, 0); streams.len()]),
            streams,
            index,
            state: Mutex::new(State { ends, ..State::default() }),
            wake: Condvar::new(),
            waits: Waits::default(),
            longest_ns: AtomicU64::new(0),
        }
    }

    /// Adds a file; the one before it is synchronised at once.
    pub(super) fn begin_file(&self, file: Arc<File>) {
        let mut state = self.state();
        state.kept.files += 1;
        state.has_new_file = state.kept.files > self.streams.len() as u64;
        state.files.push(file);
        self.wake.notify_all();
    }

    /// Writes the number of blocks of a stream's file, through the page cache. Both threads do: a
    /// number that a later one has overtaken is left out.
    pub(super) fn write_header(
        &self,
        stream: usize,
        number: u32,
        blocks: u64,
    ) -> std::io::Result<()> {
        let last = &mut locked(&self.headers)[stream];
        let header = self.streams[stream].header(blocks);
        if header.is_empty() || (number, blocks) < *last {
            return Ok(());
        }
        *last = (number, blocks);
        OpenOptions::new().write(true).open(self.path(stream, number))?.write_all_at(&header, 0)
    }

    pub(super) fn path(&self, stream: usize, number: u32) -> PathBuf {
        self.streams[stream].path(&self.folder, number)
    }

    pub(super) fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(super) fn wrote(&self, ns: u64) {
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    pub(super) fn indexed(&self, blocks: &[KeptBlock]) {
        let mut state = self.state();
        for block in blocks {
            state.kept.blocks += 1;
            state.kept.bytes += u64::from(block.bytes);
            let end = &mut state.ends[block.stream as usize];
            let before = if end.0 == block.file { end.2 } else { 0 };
            *end = (block.file, block.offset + u64::from(block.bytes), before + 1);
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.wake.notify_all();
    }

    /// Synchronises what is in the index now.
    fn synchronise(&self) -> std::io::Result<()> {
        let begin = Instant::now();
        let (files, ends, blocks, bytes) = {
            let mut state = self.state();
            let files = state.files.clone();
            // One that only both lists have has ended: this is its last time.
            state.files.retain(|file| Arc::strong_count(file) > 2);
            state.has_new_file = false;
            state.sync_begin = Some(begin);
            (files, state.ends.clone(), state.kept.blocks, state.kept.bytes)
        };
        files.iter().try_for_each(|file| file.sync_data())?;
        for (stream, (number, _, blocks)) in ends.into_iter().enumerate() {
            self.write_header(stream, number, blocks)?;
        }
        self.index.sync_data()?;
        // The names of new files.
        File::open(&self.folder)?.sync_all()?;
        let ns = ns_since(begin);
        let mut state = self.state();
        state.kept.durable_blocks = blocks;
        state.kept.durable_bytes = bytes;
        state.kept.longest_sync_ns = state.kept.longest_sync_ns.max(ns);
        (state.sync_begin, state.sync_ns) = (None, state.sync_ns.max(ns));
        Ok(())
    }

    /// Waits for the end of the run, a moment, or what else ends the waiting. Returns true at the
    /// end of the run.
    fn wait(&self, until: Instant, ends: impl Fn(&State) -> bool) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waits = |state: &mut State| !state.is_over && !ends(state);
        let waited = self.wake.wait_timeout_while(self.state(), left, waits);
        waited.map_or(true, |(state, _)| state.is_over)
    }
}

fn ns_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One interval, a line of `intervals.ndjson`.
#[derive(Clone, Debug, Default, Serialize)]
struct Interval {
    /// Seconds from the begin of the run to the end of the interval.
    at_s: f64,
    written_bytes_per_s: f64,
    /// Blocks that no kill of the program loses, and blocks that no loss of power does.
    written_blocks: u64,
    durable_blocks: u64,
    /// Share of the interval for which the recorder waited for the disk.
    waits: f64,
    /// Share for which it waited for a CPU.
    waits_for_cpu: f64,
    sync_s: f64,
    longest_write_s: f64,
    /// Share of the interval in which the device had requests, and the mean time of a write there.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_busy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_write_s: Option<f64>,
    /// Mean number of writes there: the share above is too little for long ones before Linux 6.10.
    device_queue: f64,
    /// Bytes of the page cache that wait for the disk.
    dirty_bytes: u64,
    /// Most of them before the kernel holds back who writes.
    dirty_limit_bytes: u64,
    free_bytes: u64,
}

/// The thread that synchronises and reads back. On a slow disk both take longer than an interval.
struct Synchroniser {
    progress: Arc<Progress>,
    check: Option<KeptCheck>,
}

impl Synchroniser {
    fn run(&mut self) {
        let mut next = Instant::now() + EVERY;
        loop {
            let is_over = self.progress.wait(next, |state| state.has_new_file);
            next = Instant::now() + EVERY;
            let synchronised = self.progress.synchronise().map_err(|error| {
                let folder = self.progress.folder.display();
                Fault::new(format!("synchronise {folder}: {error}"))
            });
            let done = synchronised.and_then(|()| if is_over { Ok(()) } else { self.compare() });
            if let Err(fault) = done {
                self.progress.state().fault.get_or_insert(fault);
            }
            if is_over {
                return;
            }
        }
    }

    /// Reads back a part of what is durable.
    fn compare(&mut self) -> Result<(), Fault> {
        let Some(check) = &mut self.check else { return Ok(()) };
        let PathKept { blocks, durable_blocks, .. } = self.progress.state().kept;
        let compared = check.until(durable_blocks.min(blocks / COMPARED))?;
        self.progress.state().kept.compared_blocks += compared;
        Ok(())
    }
}

/// The thread that takes the intervals.
pub(super) struct Background {
    progress: Arc<Progress>,
    synchroniser: Option<Synchroniser>,
    evidence: Evidence,
    file: File,
    /// Times of the recorder's thread, and what they were at the last interval.
    times: ThreadTimes,
    times_ns: (u64, u64),
    /// True if it waits within a write, which takes CPU time, too.
    is_cached: bool,
    /// Rates of the last intervals.
    before: VecDeque<Interval>,
    has_fallen: bool,
}

impl Background {
    pub(super) fn new(
        settings: &KeepSettings,
        run: &KeptRun,
        progress: Arc<Progress>,
    ) -> Result<Background, Fault> {
        let path = settings.folder.join("intervals.ndjson");
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| Fault::new(format!("{}: {error}", path.display())))?;
        let compares = settings.compares && !settings.is_trial;
        let check = compares.then(|| KeptCheck::of(&settings.folder, run)).transpose()?;
        Ok(Background {
            evidence: Evidence::new(&Files::below("/"), &file),
            synchroniser: Some(Synchroniser { progress: progress.clone(), check }),
            progress,
            file,
            times: ThreadTimes::of_this_thread(),
            times_ns: (0, 0),
            is_cached: run.write == WriteBy::Cached,
            before: VecDeque::new(),
            has_fallen: false,
        })
    }

    pub(super) fn start(mut self) -> Result<JoinHandle<()>, Fault> {
        let failed = |error| Fault::new(format!("no thread: {error}"));
        let mut synchroniser = self.synchroniser.take().expect("it is started once");
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let synchronises = thread("synchronise").spawn(move || {
            daqmeter_sys::affinity::unpin();
            synchroniser.run();
        });
        let synchronises = synchronises.map_err(failed)?;
        let progress = self.progress.clone();
        let keeps = thread("keep").spawn(move || self.run(synchronises));
        keeps.inspect_err(|_| progress.end()).map_err(failed)
    }

    fn run(&mut self, synchronises: JoinHandle<()>) {
        daqmeter_sys::affinity::unpin();
        let begin = Instant::now();
        let mut last = (begin, 0);
        while !self.progress.wait(last.0 + EVERY, |_| false) {
            self.interval(begin, &mut last, false);
        }
        // Its panic is one of this thread, too.
        synchronises.join().expect("the thread that synchronises panicked");
        self.interval(begin, &mut last, true);
    }

    fn interval(&mut self, begin: Instant, last: &mut (Instant, u64), is_over: bool) {
        let (kept, sync_ns) = {
            let mut state = self.progress.state();
            let running_ns = state.sync_begin.map_or(0, ns_since);
            (state.kept.clone(), std::mem::take(&mut state.sync_ns).max(running_ns))
        };
        let (now, from_s) = (Instant::now(), (last.0 - begin).as_secs_f64());
        let seconds = (now - last.0).as_secs_f64();
        let mut waited_ns = self.progress.waits.take_ns(monotonic_ns());
        let times_ns = self.times.both_ns().unwrap_or_default();
        let cpu_ns = times_ns.0.saturating_sub(self.times_ns.0);
        let delay_ns = times_ns.1.saturating_sub(self.times_ns.1);
        self.times_ns = times_ns;
        if self.is_cached {
            waited_ns = waited_ns.saturating_sub(cpu_ns + delay_ns);
        }
        let found = self.evidence.now(seconds, &self.file);
        let interval = Interval {
            at_s: (now - begin).as_secs_f64(),
            written_bytes_per_s: (kept.bytes - last.1) as f64 / seconds,
            written_blocks: kept.blocks,
            durable_blocks: kept.durable_blocks,
            waits: waited_ns as f64 / 1e9 / seconds,
            waits_for_cpu: delay_ns as f64 / 1e9 / seconds,
            sync_s: sync_ns as f64 / 1e9,
            longest_write_s: self.progress.longest_ns.swap(0, Ordering::Relaxed) as f64 / 1e9,
            ..found
        };
        *last = (now, kept.bytes);
        if !is_over {
            self.judge(&interval, from_s);
        }
        let line = serde_json::to_string(&interval).unwrap_or_default();
        // It is for the reader alone: a full disk ends the run elsewhere. A slow one may hold it.
        let _ = writeln!(self.file, "{line}");
    }

    /// Names a fall of what the disk takes, once. The first interval has both rates: if the second
    /// is as low, rate and cause are those of the second.
    fn judge(&mut self, interval: &Interval, from_s: f64) {
        let rates: Vec<f64> = self.before.iter().map(|one| one.written_bytes_per_s).collect();
        let usual = median(&rates).filter(|_| rates.len() > 1).unwrap_or(0.0);
        let left = interval.written_bytes_per_s / usual;
        let waits = interval.waits + interval.waits_for_cpu;
        let is_fall = left < FALL && waits > EXPLAINED * (1.0 - left);
        let is_second = is_fall && self.has_fallen;
        if is_fall {
            let mut fall = DiskFall {
                at_s: from_s,
                from_bytes_per_s: usual,
                to_bytes_per_s: interval.written_bytes_per_s,
                causes: self.evidence.causes(interval, self.before.back(), usual),
            };
            let mut state = self.progress.state();
            let falls = &mut state.kept.falls;
            if let Some(first) = falls.pop_if(|_| is_second) {
                fall.at_s = first.at_s;
            }
            if falls.len() < MAX_FALLS {
                falls.push(fall);
            }
        }
        if is_second {
            // The new rate is what the disk takes now.
            self.before.clear();
        }
        if is_second || !is_fall {
            self.before.push_back(interval.clone());
        }
        if self.before.len() > BEFORE {
            self.before.pop_front();
        }
        self.has_fallen = is_fall && !is_second;
    }
}

/// Readings of the host about the disk.
struct Evidence {
    files: Files,
    device: Option<DeviceMeter>,
}

impl Evidence {
    fn new(files: &Files, file: &File) -> Evidence {
        let device = file.metadata().ok().and_then(|about| device_of(about.dev()));
        let device = device.map(|device| DeviceMeter::new(files, device));
        Evidence { files: files.clone(), device }
    }

    fn now(&mut self, seconds: f64, file: &File) -> Interval {
        let device = self.device.as_mut().and_then(|device| device.read(seconds));
        let (dirty_bytes, dirty_limit_bytes) = unwritten_bytes(&self.files);
        Interval {
            device_busy: device.map(|device| device.busy),
            device_write_s: device.and_then(|device| device.write_s),
            device_queue: device.map_or(0.0, |device| device.queue),
            dirty_bytes,
            dirty_limit_bytes,
            free_bytes: free_bytes(file).unwrap_or(u64::MAX),
            ..Interval::default()
        }
    }

    /// Finds why the disk took less, by what is seen, the surest first.
    fn causes(&self, interval: &Interval, before: Option<&Interval>, usual: f64) -> Vec<DiskCause> {
        let &Interval { free_bytes, dirty_bytes, sync_s, .. } = interval;
        let left_s = free_bytes as f64 / interval.written_bytes_per_s.max(1.0);
        if free_bytes == 0 || left_s < 1.0 {
            return vec![DiskCause::Full { free_bytes }];
        }
        if interval.waits_for_cpu > interval.waits {
            return vec![DiskCause::WaitedForCpu { share: interval.waits_for_cpu }];
        }
        let device = self.device.as_ref().map(DeviceMeter::device);
        let limit = device.and_then(|device| group_limit(&self.files, device));
        if let Some(bytes_per_s) = limit.filter(|limit| *limit < usual) {
            return vec![DiskCause::GroupLimit { bytes_per_s }];
        }
        let mut causes = Vec::new();
        if dirty_bytes as f64 > 0.7 * interval.dirty_limit_bytes.max(1) as f64 {
            causes.push(DiskCause::WriteBack { dirty_bytes });
        }
        let share = interval.device_busy;
        let is_busy = share > Some(0.8) || interval.device_queue >= 1.0;
        let writes = interval.device_write_s.zip(before.and_then(|one| one.device_write_s));
        match (share, writes) {
            (_, Some((write_s, before_s))) if is_busy && write_s > 1.5 * before_s => {
                causes.push(DiskCause::SlowDevice { write_s, before_s });
            }
            (Some(_), _) if interval.device_write_s.is_none() => causes.push(DiskCause::NoWrite),
            (Some(share @ 0.8..), _) => causes.push(DiskCause::BusyDevice { share }),
            _ => {}
        }
        if sync_s > 0.5 {
            causes.push(DiskCause::SlowSync { sync_s });
        }
        if let (true, Some(share @ ..0.5)) = (causes.is_empty() && !is_busy, share) {
            causes.push(DiskCause::IdleDevice { share });
        }
        causes
    }
}

/// Least limit of bytes per second for writes to a device, of this process's control group and
/// those above it (`io.max`, or `blkio.throttle.write_bps_device` of version 1).
fn group_limit(files: &Files, device: &str) -> Option<f64> {
    let groups = files.text("proc/self/cgroup")?;
    let disk = disk_of(files, device);
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (roots, name): (&[&str], _) = match controllers {
            "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "io.max"),
            "blkio" => (&["sys/fs/cgroup/blkio"], "blkio.throttle.write_bps_device"),
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let group = group.display().to_string();
            let of_root = |root: &&str| files.text(&format!("{root}{group}/{name}"));
            for text in roots.iter().filter_map(of_root) {
                let own = text.lines().filter_map(|line| line.split_once(' '));
                let own = own.filter(|(of, _)| [device, &disk].contains(of));
                limits.extend(own.filter_map(|(_, limit)| {
                    let mut words = limit.split_whitespace();
                    words.find_map(|word| word.trim_start_matches("wbps=").parse::<f64>().ok())
                }));
            }
        }
    }
    limits.into_iter().reduce(f64::min)
}

/// Number of the disk that a partition is of; the device's own for a disk.
fn disk_of(files: &Files, device: &str) -> String {
    let of_partition = format!("sys/dev/block/{device}/../dev");
    let is_partition = files.text(&format!("sys/dev/block/{device}/partition")).is_some();
    let disk = is_partition.then(|| files.text(&of_partition)).flatten();
    disk.map_or_else(|| device.to_owned(), |disk| disk.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_file_never_says_fewer_blocks_than_before() {
        let folder = tempfile::tempdir().unwrap();
        let stream = KeptStream {
            file: "a".to_owned(),
            dtype: Some("<u2".to_owned()),
            shape: vec![4],
            ..KeptStream::default()
        };
        let run = KeptRun { streams: vec![stream], ..KeptRun::default() };
        let index = Arc::new(File::create(folder.path().join("index")).unwrap());
        let progress = Progress::new(folder.path(), &run, index);
        for number in 0..2 {
            File::create(progress.path(0, number)).unwrap();
        }
        // The recorder ends file 0 and begins file 1 while the other thread has read 6 of 7.
        for (number, blocks) in [(0, 0), (0, 7), (0, 6), (1, 0), (0, 6), (1, 2)] {
            progress.write_header(0, number, blocks).unwrap();
        }
        for (number, blocks) in [(0, 7), (1, 2)] {
            let found = std::fs::read(progress.path(0, number)).unwrap();
            assert_eq!(found, run.streams[0].header(blocks));
        }
    }

    #[test]
    fn a_wait_counts_in_every_interval_that_it_lasts() {
        let waits = Waits::default();
        waits.begin(100);
        assert_eq!([waits.take_ns(130), waits.take_ns(150)], [30, 20]);
        waits.end(170);
        waits.begin(180);
        waits.end(185);
        assert_eq!([waits.take_ns(200), waits.take_ns(300)], [25, 0]);
    }

    #[test]
    fn a_device_with_long_writes_is_not_called_idle() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("sys/dev/block/254:0");
        std::fs::create_dir_all(&place).unwrap();
        let file = File::create(root.path().join("f")).unwrap();
        let files = Files::below(root.path());
        let device = Some(DeviceMeter::new(&files, "254:0".to_owned()));
        let mut evidence = Evidence { files, device };
        let mut before = None;
        // Writes, their time, and the time with requests, in ms.
        for ([writes, ms, busy_ms], wanted) in [
            ([100, 100, 100], DiskCause::NoWrite),
            ([200, 200, 200], DiskCause::IdleDevice { share: 0.1 }),
            ([200, 200, 200], DiskCause::NoWrite),
            ([210, 6200, 800], DiskCause::SlowDevice { write_s: 0.6, before_s: 1e-3 }),
            ([300, 6290, 1700], DiskCause::BusyDevice { share: 0.9 }),
        ] {
            let text = format!("0 0 0 0 {writes} 0 0 {ms} 0 {busy_ms} 0");
            std::fs::write(place.join("stat"), text).unwrap();
            let interval = Interval { free_bytes: u64::MAX, ..evidence.now(1.0, &file) };
            let causes = evidence.causes(&interval, before.as_ref(), 1e6);
            assert!(before.is_none() || causes == [wanted], "{causes:?}");
            before.get_or_insert(interval);
            before.as_mut().unwrap().device_write_s = Some(1e-3);
        }
    }

    #[test]
    fn a_limit_of_a_group_above_is_found_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let files = Files::below(root.path());
        write("proc/self/cgroup", "8:blkio:/daq/run\n0::/user/me\n");
        assert_eq!(group_limit(&files, "254:0"), None);
        write("sys/fs/cgroup/blkio/daq/blkio.throttle.write_bps_device", "254:0 5000000\n");
        assert_eq!(group_limit(&files, "254:0"), Some(5e6));
        write("sys/fs/cgroup/user/me/io.max", "8:0 rbps=1 wbps=2\n254:0 rbps=max wbps=4000000\n");
        assert_eq!(group_limit(&files, "254:0"), Some(4e6));
        assert_eq!(group_limit(&files, "254:1"), None);
        write("sys/dev/block/254:1/partition", "1\n");
        write("sys/dev/block/dev", "254:0\n");
        assert_eq!(group_limit(&files, "254:1"), Some(4e6));
    }
}
