//! Results of a path: time of its threads, filling of its queues, latency of its blocks.

use crate::border::sum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run of a path, from its source to its sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathRun {
    /// The path in one line, from source to sink.
    pub line: String,
    /// Time from the release of the threads to the end of the last one, in nanoseconds.
    pub wall_ns: u64,
    /// Time from the release of the threads to the time at which the next block was due, in
    /// nanoseconds; absent without a rate, and for a card that is read out live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_due_ns: Option<u64>,
    /// Bytes that the source delivered and the sink saw the blocks of.
    pub payload_bytes: u64,
    /// Blocks that came to the sink.
    pub blocks: u64,
    /// Events in them, where a source or a stage counts events: triggers, subchunks.
    pub events: u64,
    /// Blocks whose bytes were compared with what they had to be.
    pub verified_blocks: u64,
    /// Groups of elements by thread: `pipeline`, `fused x 2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// Layouts that were tried for this run before it, in the order of their rates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<TriedLayout>,
    /// One entry per thread, from source to sink.
    pub threads: Vec<PathThread>,
    /// One entry per queue between two threads.
    pub queues: Vec<PathQueue>,
    /// Time from the moment at which a block was due at the source to the end of its work in the
    /// sink.
    pub latency: Vec<Bucket>,
    /// The longest of these times in nanoseconds.
    pub latency_max_ns: u64,
    /// Longest time from one block to the next at the sink, in nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub longest_gap_ns: u64,
    /// True if blocks were due at a rate; otherwise each was due when the source was free for it.
    pub is_paced: bool,
    /// Bytes that were due per second, of all streams; of a card that is read out, those of its
    /// triggers. None where blocks were not due at a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_bytes_per_s: Option<f64>,
    /// CPUs that the process could use, in parts where it had a quota.
    pub cpus: f64,
    /// Devices that the path serves, and the rate of each, from the file of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// Links that its bytes cross, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PathLink>,
    /// Limit of the path that `path explain` found; absent in other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PathLimit>,
    /// Account of a sink that keeps the blocks; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathKept>,
}

/// Blocks that a path wrote to a folder and left there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathKept {
    /// The folder.
    pub folder: String,
    /// Bytes in flight past the page cache; 0 if they go through it.
    pub direct_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Blocks in the index: a killed program loses none of them.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Blocks that were synchronised: a host without power loses none of them.
    pub durable_blocks: u64,
    /// Bytes of these blocks.
    pub durable_bytes: u64,
    /// Blocks that were read back and compared with what was written.
    pub compared_blocks: u64,
    /// Longest time of one synchronisation, in nanoseconds.
    pub longest_sync_ns: u64,
    /// Times at which the disk took less than before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub falls: Vec<DiskFall>,
}

/// A fall of the rate at which a disk takes bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiskFall {
    /// Time from the begin of the run to that of the interval in which it was seen, in seconds.
    pub at_s: f64,
    /// Bytes per second before.
    pub from_bytes_per_s: f64,
    /// Bytes per second in the interval.
    pub to_bytes_per_s: f64,
    /// Causes that this host shows, the surest first.
    pub causes: Vec<DiskCause>,
}

/// Cause for which a disk takes less, with what shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum DiskCause {
    /// No room.
    Full { free_bytes: u64 },
    /// The recorder waited for a CPU for this share of the time.
    WaitedForCpu { share: f64 },
    /// Limit of a control group.
    GroupLimit { bytes_per_s: f64 },
    /// The kernel holds back who writes: so much of the page cache waits for the disk.
    WriteBack { dirty_bytes: u64 },
    /// The device was busy, and a write took it longer than before.
    SlowDevice { write_s: f64, before_s: f64 },
    /// The device ended no write.
    NoWrite,
    /// The device was busy for this share of the time.
    BusyDevice { share: f64 },
    /// The file system took long to synchronise.
    SlowSync { sync_s: f64 },
    /// The device was not busy: something above it held the writes.
    IdleDevice { share: f64 },
}

/// A layout, and what a path carried in it in a short run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TriedLayout {
    /// The layout, and the CPUs of its threads if they were pinned.
    pub layout: String,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
}

/// A link that the bytes of an element cross.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathLink {
    /// The element.
    pub element: usize,
    /// Name: `PCIe of /dev/nvme0n1`.
    pub name: String,
    /// Capacity in bytes per second.
    pub bytes_per_s: f64,
    /// Bytes of one block that cross it.
    pub bytes_per_block: f64,
    /// Source of the capacity.
    pub by: LinkBy,
}

/// Source of the capacity of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkBy {
    /// The kernel: what was negotiated, less line coding. Headers of packets are not taken off.
    Sysfs,
    /// The profile of an emulated device.
    Profile,
}

/// Devices that a path serves: boards, E-links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Served {
    /// Name of the devices with the rate of each: `E-links at 100 kHz`.
    pub name: String,
    /// Rate of one device.
    pub each: Brings,
}

/// A rate of bytes, or of events.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Brings {
    /// Payload bytes per second.
    BytesPerS(f64),
    /// Events per second.
    EventsPerS(f64),
}

/// Result of runs in which the parts of a path were slowed, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathLimit {
    /// Limit of the path.
    pub found: LimitFound,
    /// Number of runs.
    pub runs: u64,
    /// Use of the limit in the runs as fast as the path goes; absent without a named limit, and for
    /// buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<PathUsed>,
    /// Factor by which the path was faster with eight times as many buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Interval>,
    /// Work of the limit by element, the largest first; empty if it is neither threads nor CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<PathCost>,
    /// Fields of the file with other values, each of which was tried: `block=16KiB`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// The fastest of them, if it was faster at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<PathChange>,
    /// Share of the CPUs that other programs used meanwhile.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub others: f64,
    /// The fastest other layout, whose runs alternate with those of this one; none where no other
    /// was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<PathOther>,
    /// Longest time from one block to the next at the sink in runs as fast as it goes, in
    /// nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub longest_gap_ns: u64,
    /// Payload bytes per second that it carries as fast as it goes.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub carries_bytes_per_s: f64,
    /// Payload bytes per second of its own rate; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<f64>,
}

/// Another layout of a path, whose runs alternate with those of its own. What the threads spend on
/// a block beyond the CPU time of that layout is the cost of hand-overs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathOther {
    /// The layout, and the CPUs of its threads if they were pinned.
    pub layout: String,
    /// Factor by which the path is faster in it.
    pub gain: Interval,
    /// CPU time of the hand-overs of a block, in nanoseconds.
    pub ns: f64,
    /// CPU cycles of the hand-overs of a block; absent if the clock is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
    /// Share of it for sleeping and being woken; the rest moves the block from cache to cache.
    pub wake_up: f64,
    /// Share of its time that the thread waits for a CPU that waits most.
    pub waits_for_cpu: f64,
    /// Name of that thread.
    pub waits: String,
}

/// Work of an element on a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathCost {
    /// Name of the element.
    pub name: String,
    /// Share of the work of the limit.
    pub share: f64,
    /// Bytes that it takes in, or makes as the source, over its own time, per second.
    #[serde(default)]
    pub bytes_per_s: f64,
    /// Rate of as many bytes that as many threads read, and write, without arithmetic; absent
    /// for an element that does more than read and write memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<f64>,
}

/// A field of a path's file with another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathChange {
    /// The field and its value, and the layout that is the fastest then.
    pub what: String,
    /// Factor by which the path is faster, in runs that alternate with those of the path.
    pub gain: Interval,
}

/// Use of a resource, as shares of its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathUsed {
    /// Share of the time at work.
    pub works: Interval,
    /// Share of the time in which its threads are ready, but others have their CPUs.
    pub waits_for_cpu: f64,
}

/// A measured factor or share with its interval (95 %).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Mean; in `explain` of the rounds, from five on without a fifth at either end.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Answer to the question for the limit of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitFound {
    /// This resource.
    Limit(What),
    /// No resource alone.
    NoSingleOne,
    /// The measurements fit several resources, or none.
    CannotTell,
}

/// Resource of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Threads of one element.
    Threads {
        /// The element.
        element: usize,
        /// Name of the threads.
        name: String,
    },
    /// Connection between the two ends of a stage: a socket, a pipe, a program.
    Between {
        /// The element.
        element: usize,
        /// Name of the stage.
        name: String,
    },
    /// A CPU that threads are pinned to.
    Cpu(u32),
    /// All CPUs that may be used.
    AllCpus,
    /// A link that the bytes of an element cross.
    Link {
        /// The element.
        element: usize,
        /// Name of the link.
        name: String,
        /// Source of the capacity.
        by: LinkBy,
    },
    /// The number of blocks between two threads: with more of them the path is faster, and no
    /// resource is used up.
    Buffers,
    /// The hand-over of blocks from thread to thread: the work of the parts leaves time, and in
    /// another layout the path is faster.
    HandOver,
    /// The CPUs that threads are pinned to: threads wait for one, and elsewhere the path is faster.
    Placement,
    /// Other programs, which have the CPUs that its threads wait for.
    OtherPrograms,
}

impl What {
    pub fn text(&self) -> String {
        match self {
            What::Threads { name, .. } => name.clone(),
            What::Between { name, .. } => format!("{name}, between its ends"),
            What::Cpu(cpu) => format!("CPU {cpu}"),
            What::AllCpus => "all CPUs together".to_owned(),
            What::Link { name, by, .. } => match by {
                LinkBy::Sysfs => format!("{name}, by sysfs"),
                LinkBy::Profile => format!("{name}, by profile"),
            },
            What::Buffers => "too few buffers".to_owned(),
            What::HandOver => "hand-over".to_owned(),
            What::Placement => "placement".to_owned(),
            What::OtherPrograms => "other programs".to_owned(),
        }
    }

    /// Tests if work that is added to a part leaves its use unchanged: the path follows none of its
    /// parts.
    pub fn follows_no_part(&self) -> bool {
        matches!(self, What::Between { .. } | What::Link { .. })
    }
}

impl PathThread {
    /// Returns the work of the thread for an element: its own part, or that of another element in
    /// its thread.
    pub fn part_of(&self, element: usize) -> Option<&str> {
        if self.element == element {
            return Some(&self.part);
        }
        Some(&self.within.iter().find(|other| other.element == element)?.name)
    }
}

/// An element that works in the thread of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathWithin {
    /// Name of the element.
    pub name: String,
    /// Number of the element; 0 is the source.
    pub element: usize,
    /// Time of its work, in which the thread may have waited for a CPU.
    pub ns: u64,
}

/// Time of one thread by use. The parts add up to the wall time, but for readings of the clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathThread {
    /// Name of the element, with a number if it has several threads.
    pub name: String,
    /// Name of the threads of its element that do the same.
    pub part: String,
    /// The element's number; 0 is the source.
    pub element: usize,
    /// End of its element, if that has two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Other elements that work in it, and how much of its time at work they took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<PathWithin>,
    /// CPU that it was pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Blocks that it worked on.
    pub blocks: u64,
    /// Time from the release to the end of the thread, in nanoseconds.
    pub wall_ns: u64,
    /// On a CPU, at work.
    pub busy_ns: u64,
    /// Wait for a block from the thread before, until it ran again, in nanoseconds.
    pub input_ns: u64,
    /// Wait for room towards the thread behind, until it ran again, in nanoseconds.
    pub output_ns: u64,
    /// Wait for the time at which its next block is due, until it ran again, in nanoseconds: a
    /// source with a rate.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub due_ns: u64,
    /// CPU time of these waits, which a source without a rate does not need.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub due_cpu_ns: u64,
    /// Ready to work, but another thread had the CPU; none where the kernel does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted_ns: Option<u64>,
    /// The rest: waiting for a device or in a system call.
    pub elsewhere_ns: u64,
    /// CPU time in all, waiting included.
    pub cpu_ns: u64,
    /// Median time of the probes between its blocks, in nanoseconds: the chain of
    /// `clock.chain_cycles` cycles. Zero for a thread without probes.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub chain_ns: u32,
    /// Median time of the independent operations of the probes, which a busy sibling slows, in
    /// nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub sibling_ns: u32,
}

/// An end of an element whose bytes go somewhere and come back: a socket, a pipe, a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The end that writes.
    Out,
    /// The end that reads.
    In,
}

/// Filling of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathQueue {
    /// Thread that fills it.
    pub from: String,
    /// Thread that empties it.
    pub to: String,
    /// Number of requests of the next block by the number of blocks in the queue: none, one, and so
    /// on.
    pub seen: Vec<u64>,
}

impl PathQueue {
    /// Returns the mean number of queued blocks at each request of the next; `None` without
    /// requests.
    pub fn mean(&self) -> Option<f64> {
        let looks = sum(&self.seen);
        let blocks = self.seen.iter().enumerate();
        let blocks: f64 = blocks.map(|(depth, &n)| depth as f64 * n as f64).sum();
        (looks > 0).then(|| blocks / looks as f64)
    }
}

/// Number of values from one value up to the next bucket; buckets are about 3 % wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Smallest value in nanoseconds.
    pub from_ns: u64,
    /// Number of values.
    pub count: u64,
}

/// Share of its time by which a run may end late; a later run was behind.
const BEHIND: f64 = 0.01;
/// Time in nanoseconds by which any run may end late: the rings still drain to the sink, and hosts
/// stop for moments.
const DRAIN_NS: f64 = 3e6;

impl PathRun {
    /// Returns the time of its blocks in nanoseconds, of which rates and shares are: n blocks of a
    /// rate fill n periods, though the last one begins after n - 1.
    pub fn time_ns(&self) -> u64 {
        self.wall_ns.max(self.next_due_ns.unwrap_or(0)).max(1)
    }

    /// Returns a count over [`PathRun::time_ns`]: of bytes, the sustained rate.
    pub fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.time_ns() as f64 * 1e9
    }

    /// Returns the delay of the run against the time at which its next block was due, in
    /// nanoseconds. Zero up to the time in which its buffers drain; `None` without a rate.
    pub fn behind_ns(&self) -> Option<f64> {
        let due_ns = self.next_due_ns? as f64;
        let behind_ns = self.wall_ns as f64 - due_ns;
        let is_behind = behind_ns > DRAIN_NS.max(BEHIND * due_ns);
        Some(if is_behind { behind_ns } else { 0.0 })
    }

    /// Returns the latency below which that share of the blocks stays, to the width of a bucket;
    /// `None` without blocks.
    pub fn latency_ns(&self, share: f64) -> Option<u64> {
        let all = sum(self.latency.iter().map(|bucket| bucket.count));
        let mut seen = 0;
        let found = self.latency.iter().find(|bucket| {
            seen += bucket.count;
            seen as f64 >= share * all as f64
        });
        found.map(|bucket| bucket.from_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_at_a_rate_lasts_to_the_time_of_its_next_block() {
        let run = |wall_ms: u64, due_ms: Option<u64>| PathRun {
            wall_ns: wall_ms * 1_000_000,
            next_due_ns: due_ms.map(|ms| ms * 1_000_000),
            ..PathRun::default()
        };
        // Two blocks of 0.5 Hz; ones that came late; as fast as it goes; nothing.
        for (run, hz, behind_ns) in [
            (run(2000, Some(4000)), 0.5, Some(0.0)),
            (run(4039, Some(4000)), 2.0 / 4.039, Some(0.0)),
            (run(5000, Some(4000)), 0.4, Some(1e9)),
            (run(1000, None), 2.0, None),
            (run(0, None), 2e9, None),
        ] {
            assert_eq!((run.per_s(2), run.behind_ns()), (hz, behind_ns));
        }
    }

    #[test]
    fn quantiles_and_means_are_of_what_was_counted() {
        let bucket = |from_ns, count| Bucket { from_ns, count };
        let run = PathRun {
            latency: vec![bucket(10, 50), bucket(20, 49), bucket(900, 1)],
            ..PathRun::default()
        };
        assert_eq!(run.latency_ns(0.5), Some(10));
        assert_eq!(run.latency_ns(0.99), Some(20));
        assert_eq!(run.latency_ns(1.0), Some(900));
        assert_eq!(PathRun::default().latency_ns(0.5), None);
        let queue = PathQueue { seen: vec![1, 0, 3], ..PathQueue::default() };
        assert_eq!(queue.mean(), Some(1.5));
        assert_eq!(PathQueue::default().mean(), None);
    }
}
