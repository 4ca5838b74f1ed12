//! The table of causes: why a socket's buffer was full, out of what its reader did in that time. A
//! row is all that is known of a cause; the first that holds is named.

use std::collections::BTreeMap;

use daqmeter_record::watched::WatchedCause;
use daqmeter_sys::host::Files;
use daqmeter_sys::tasks::{Doing, Task};

use crate::target::name_of;

/// The thread that reads a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) task: Task,
    pub(crate) name: String,
    pub(crate) is_exact: bool,
}

/// Observations of one time in which a buffer was full; shares are of this time.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    pub(crate) drops: u64,
    /// Packets that were read in the network namespace meanwhile.
    pub(crate) reads: u64,
    /// Share in which the reader had its CPU, without `interrupts`.
    pub(crate) run: f64,
    /// Share of the CPU that soft interrupts had.
    pub(crate) interrupts: f64,
    /// Share in which the CPU took no sample.
    pub(crate) still: f64,
    /// Share in which the reader was ready and had no CPU.
    pub(crate) wait: f64,
    pub(crate) blocked: f64,
    /// System call in which it was seen most often.
    pub(crate) doing: Option<Doing>,
    /// The socket's number in the process.
    pub(crate) fd: u64,
    /// Nothing left the full buffer, and no thread was seen reading it.
    pub(crate) is_unread: bool,
    /// File or socket that the reader wrote to, with what its disk did.
    pub(crate) file: String,
    pub(crate) cpu: u32,
    /// Process that had the CPU most often besides the reader, and its share.
    pub(crate) taker: Option<(u32, f64)>,
    pub(crate) reader: Option<Reader>,
    /// The reader caught up by itself.
    pub(crate) is_emptied: bool,
    pub(crate) continues: bool,
    /// Time from an empty buffer to the last drop.
    pub(crate) length_ns: u64,
    /// Bytes that came in after the buffer was full, as fast as it was filled.
    pub(crate) more_bytes: u64,
}

impl Evidence {
    /// Share that kept the reader from its work most. Its own work counts only where the reader
    /// caught up by itself: where it did not, it needs more than it had. It does not count, too,
    /// where the whole CPU would have been enough, and the reader did not have it.
    fn is_most(&self, share: f64) -> bool {
        let others = self.interrupts + self.wait;
        let is_kept = others > 0.25 && self.run + others > 0.8;
        let is_enough = self.length_ns > COUNTED_NS && self.reads > 0 && self.needs() < 1.0;
        let work = if self.caught_up() && !(is_kept && is_enough) { self.run } else { 0.0 };
        let blocked = if self.waits_for_data() { 0.0 } else { self.blocked };
        share > 0.0 && [work, self.interrupts, self.wait, blocked].iter().all(|one| share >= *one)
    }

    /// Without a log of its switches, a thread's times are those of the kernel's ticks: ten of the
    /// longest ones (CONFIG_HZ 100) are enough.
    fn is_hidden(&self) -> bool {
        const TEN_TICKS_NS: u64 = 100_000_000;
        let is_exact = self.reader.as_ref().is_some_and(|reader| reader.is_exact);
        self.reader.is_none() || !is_exact && self.length_ns < TEN_TICKS_NS
    }

    /// A reader that waits for data has an empty buffer.
    fn waits_for_data(&self) -> bool {
        self.doing.is_none_or(|doing| doing == Doing::Read(self.fd) || doing == Doing::Poll)
    }

    /// A reader that was behind for longer than a few looks at all counters did not just meet a
    /// burst: its reads are known, too.
    fn caught_up(&self) -> bool {
        const LONG_NS: u64 = 300_000_000;
        self.is_emptied && !self.continues && self.length_ns < LONG_NS
    }

    /// Share of time that the reader would have to work for all packets; 0 where its reads were not
    /// counted in so short a time.
    fn needs(&self) -> f64 {
        match self.reads {
            0 => 0.0,
            reads => self.run * (1.0 + self.drops as f64 / reads as f64),
        }
    }
}

/// Times that are longer were counted more than once.
const COUNTED_NS: u64 = 100_000_000;

/// A row of the table; its functions take the name of the process that had the reader's CPU, too.
struct Cause {
    name: &'static str,
    holds: fn(&Evidence, &str) -> bool,
    text: fn(&Evidence, &str) -> String,
    change: fn(&Evidence, &str) -> String,
    /// Changes that would avoid the loss and can be undone.
    tries: &'static [Try],
    /// Change that would make the loss larger.
    confirms: &'static [Try],
}

/// Kind of a change that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    /// A buffer that would have held all, or as large as can be.
    LargerBuffer,
    SmallerBuffer,
    /// The reader on all CPUs but its own.
    OtherCpus,
    /// A part of the reader's CPU is taken.
    LessCpu,
    /// Packets on all CPUs but the reader's.
    OtherInterrupts,
    LongerBacklog,
}
use Try::{LargerBuffer, LessCpu, OtherCpus, OtherInterrupts, SmallerBuffer};

const UNREAD: &str = "not read";

const CAUSES: &[Cause] = &[
    Cause {
        name: "reader not seen",
        holds: |seen, _| seen.is_hidden(),
        text: |_, _| "this user cannot see in enough detail what its program did".to_owned(),
        change: |_, _| "watch as root".to_owned(),
        tries: &[LargerBuffer],
        confirms: &[LessCpu],
    },
    Cause {
        name: "stopped",
        holds: |seen, _| seen.doing == Some(Doing::Stopped) && seen.is_most(seen.blocked),
        text: |seen, _| format!("{} was stopped by a signal or a debugger", seen.reader()),
        change: |seen, _| format!("kill -CONT {}", seen.tid()),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: UNREAD,
        holds: |seen, _| {
            let is_long = seen.length_ns > COUNTED_NS;
            is_long && seen.is_unread && seen.blocked > 0.5 && seen.waits_for_data()
        },
        text: |_, _| {
            "no thread of its program read it, and all waited for something else".to_owned()
        },
        change: |_, _| {
            "the program should close a socket that it does not read, or read it".to_owned()
        },
        tries: &[],
        confirms: &[],
    },
    Cause {
        name: "CPU stood still",
        holds: |seen, _| seen.still > 0.5,
        text: |seen, _| {
            let (cpu, still) = (seen.cpu, 100.0 * seen.still);
            format!(
                "CPU {cpu} did not run for {still:.0} % of the time: the hypervisor had it, or the \
                 kernel kept its interrupts off"
            )
        },
        change: |seen, _| {
            format!(
                "a CPU of the machine's own: column `st` of mpstat -P {} 1 shows the hypervisor's \
                 share",
                seen.cpu
            )
        },
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "slow program",
        holds: |seen, _| {
            let is_kept = seen.wait.max(seen.blocked).max(seen.interrupts) > seen.run;
            !seen.caught_up() && !is_kept && (seen.run > 0.9 || seen.needs() > 1.0)
        },
        text: |seen, _| {
            let (busy, needs) = (100.0 * seen.run, 100.0 * seen.needs());
            format!(
                "{} is slower than the data: it worked {busy:.0} % of the time, and all packets \
                 take {needs:.0} %",
                seen.reader()
            )
        },
        change: |_, _| {
            "less work for each packet, or more threads (SO_REUSEPORT): no buffer is large enough"
                .to_owned()
        },
        tries: &[],
        confirms: &[LessCpu],
    },
    Cause {
        name: "interrupts",
        holds: |seen, taker| {
            seen.is_most(seen.interrupts)
                || seen.is_most(seen.wait) && taker.starts_with("ksoftirqd/")
        },
        text: |seen, _| format!("soft interrupts of packets had its CPU {}", seen.cpu),
        change: |seen, _| {
            format!(
                "interrupts and reader on different CPUs: taskset -cp OTHER {}, or \
                 /proc/irq/*/smp_affinity_list and /sys/class/net/DEVICE/queues/rx-*/rps_cpus",
                seen.tid()
            )
        },
        tries: &[OtherInterrupts, OtherCpus, LargerBuffer],
        confirms: &[LessCpu],
    },
    Cause {
        name: "CPU taken",
        holds: |seen, _| seen.is_most(seen.wait),
        text: |seen, taker| {
            let had = match taker {
                "" => "who had it was not seen".to_owned(),
                taker => format!("{taker} had it"),
            };
            format!("{} waited for CPU {}: {had}", seen.reader(), seen.cpu)
        },
        change: |seen, _| {
            format!("a CPU of its own: taskset -cp CPU {0}, or chrt -f -p 1 {0}", seen.tid())
        },
        tries: &[OtherCpus, LargerBuffer],
        confirms: &[LessCpu],
    },
    Cause {
        name: "blocked by a file",
        holds: |seen, _| {
            let is_file = matches!(seen.doing, Some(Doing::Write(_) | Doing::Synchronise(_)));
            seen.is_most(seen.blocked) && is_file
        },
        text: |seen, _| {
            let file = if seen.file.is_empty() { "a file" } else { &seen.file };
            format!("{} was blocked by writing {file}", seen.reader())
        },
        change: |_, _| {
            "writing in a thread of its own with a queue between, or a faster disk: \
             daqmeter survey shows this one's rate"
                .to_owned()
        },
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "page faults",
        holds: |seen, _| seen.is_most(seen.blocked) && seen.doing == Some(Doing::Fault),
        text: |seen, _| {
            format!("{} waited for pages of its memory: swap, or a mapped file", seen.reader())
        },
        change: |_, _| "mlockall in the program; vmstat 1 shows what is swapped".to_owned(),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "blocked by a lock",
        holds: |seen, _| seen.is_most(seen.blocked) && seen.doing == Some(Doing::Lock),
        text: |seen, _| format!("{} waited for another thread (futex)", seen.reader()),
        change: |_, _| "find who holds it: perf trace -s, or gdb -p PID".to_owned(),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "asleep",
        holds: |seen, _| seen.is_most(seen.blocked) && seen.doing == Some(Doing::Sleep),
        text: |seen, _| format!("{} slept by its own will (nanosleep)", seen.reader()),
        change: |_, _| "the program should wait for its socket in place of a time".to_owned(),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "blocked elsewhere",
        holds: |seen, _| seen.is_most(seen.blocked) && !seen.waits_for_data(),
        text: |seen, _| format!("{} was blocked in another system call", seen.reader()),
        change: |seen, _| format!("see which: cat /proc/{}/syscall /proc/{0}/wchan", seen.tid()),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
    Cause {
        name: "burst",
        holds: |_, _| true,
        text: |seen, _| {
            format!("packets came faster than {} reads, and the buffer is small", seen.reader())
        },
        change: |_, _| String::new(),
        tries: &[LargerBuffer],
        confirms: &[SmallerBuffer],
    },
];

impl Evidence {
    fn reader(&self) -> String {
        let name = self.reader.as_ref().map_or("the reader", |reader| &reader.name);
        format!("thread {name}")
    }

    fn tid(&self) -> String {
        self.reader.as_ref().map_or("TID".to_owned(), |reader| reader.task.tid.to_string())
    }
}

/// Causes of one socket, by the packets that were dropped for them.
#[derive(Default)]
pub(crate) struct Causes {
    found: BTreeMap<&'static str, WatchedCause>,
    pub(crate) bursts: u64,
    pub(crate) longest_ns: u64,
    /// Most bytes beyond the buffer that a burst needed; a reader that never catches up has none.
    more_bytes: u64,
}

impl Causes {
    pub(crate) fn add(&mut self, files: &Files, seen: &Evidence) {
        let taker = seen.taker.map_or(String::new(), |(pid, share)| {
            format!("{} ({pid}, {:.0} %)", name_of(files, pid), 100.0 * share)
        });
        let Some(cause) = CAUSES.iter().find(|cause| (cause.holds)(seen, &taker)) else {
            return;
        };
        let bursts = u64::from(!seen.continues);
        let found = self.found.entry(cause.name).or_insert_with(|| WatchedCause {
            cause: cause.name.to_owned(),
            ..WatchedCause::default()
        });
        found.bursts += bursts;
        found.packets += seen.drops;
        // The words of the burst that lost most.
        if seen.drops >= found.most_packets {
            found.most_packets = seen.drops;
            found.text = (cause.text)(seen, &taker);
            found.change = (cause.change)(seen, &taker);
        }
        self.bursts += bursts;
        self.longest_ns = self.longest_ns.max(seen.length_ns);
        if seen.is_emptied {
            self.more_bytes = self.more_bytes.max(seen.more_bytes);
        }
    }

    /// Size of the buffer that would have held the largest burst, in bytes; 0 if none would.
    pub(crate) fn enough(&self, buffer_bytes: u64) -> u64 {
        match self.more_bytes {
            0 => 0,
            more => (buffer_bytes + more).next_power_of_two(),
        }
    }

    /// Changes that help against the cause of the most drops, and those that confirm it.
    pub(crate) fn trials(&self) -> Option<[&'static [Try]; 2]> {
        let found = self.found.values().max_by_key(|cause| cause.packets)?;
        let row = CAUSES.iter().find(|cause| cause.name == found.cause)?;
        Some([row.tries, row.confirms])
    }

    /// True if the socket lost most packets because no thread reads it.
    pub(crate) fn is_unread(&self) -> bool {
        let most = self.found.values().max_by_key(|cause| cause.packets);
        most.is_some_and(|cause| cause.cause == UNREAD)
    }

    pub(crate) fn sorted(&self) -> Vec<WatchedCause> {
        let mut causes: Vec<WatchedCause> = self.found.values().cloned().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.packets));
        causes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that works and catches up; tests change one thing each.
    fn evidence() -> Evidence {
        Evidence {
            drops: 100,
            reads: 10_000,
            run: 0.6,
            interrupts: 0.05,
            still: 0.0,
            wait: 0.05,
            blocked: 0.3,
            doing: Some(Doing::Read(3)),
            fd: 3,
            is_unread: false,
            file: String::new(),
            cpu: 1,
            taker: None,
            reader: Some(Reader {
                task: Task { pid: 7, tid: 8 },
                name: "rx-2".into(),
                is_exact: true,
            }),
            is_emptied: true,
            continues: false,
            length_ns: 3_000_000,
            more_bytes: 50_000,
        }
    }

    fn named(seen: &Evidence) -> WatchedCause {
        let root = tempfile::tempdir().unwrap();
        for (pid, name) in [(7, "recorder"), (21, "ksoftirqd/1"), (22, "backup")] {
            let folder = root.path().join(format!("proc/{pid}/fd"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("../comm"), name).unwrap();
        }
        let mut causes = Causes::default();
        causes.add(&Files::below(root.path()), seen);
        causes.sorted().remove(0)
    }

    #[test]
    fn a_socket_without_a_reader_and_a_stopped_program_have_causes_of_their_own() {
        let seen = Evidence {
            run: 0.0,
            wait: 0.0,
            interrupts: 0.3,
            blocked: 1.0,
            is_unread: true,
            is_emptied: false,
            length_ns: 1_000_000_000,
            ..evidence()
        };
        assert_eq!(named(&seen).cause, "not read");
        let stopped = Evidence { doing: Some(Doing::Stopped), ..seen.clone() };
        assert_eq!(named(&stopped).change, "kill -CONT 8");
        let short = Evidence { length_ns: 2_000_000, is_emptied: true, ..seen.clone() };
        assert_ne!(named(&short).cause, "not read");
        let busy = Evidence { run: 0.95, blocked: 0.05, ..seen };
        assert_eq!(named(&busy).cause, "slow program");
    }

    #[test]
    fn each_cause_is_named_by_what_was_seen() {
        let check = |seen: Evidence, cause: &str, text: &str| {
            let found = named(&seen);
            assert_eq!(found.cause, cause, "{seen:?}");
            assert!(found.text.contains(text), "{}", found.text);
        };
        let seen = evidence();
        check(seen.clone(), "burst", "packets came faster than thread rx-2 reads");
        let full = Evidence { is_emptied: false, run: 0.95, drops: 5_000, ..seen.clone() };
        check(full.clone(), "slow program", "worked 95 % of the time, and all packets take 142 %");
        let writes = Evidence {
            doing: Some(Doing::Write(5)),
            file: "/data/run7.dat".into(),
            run: 0.2,
            blocked: 0.7,
            ..seen.clone()
        };
        check(writes, "blocked by a file", "writing /data/run7.dat");
        let locked = Evidence { doing: Some(Doing::Lock), run: 0.2, blocked: 0.7, ..seen.clone() };
        let faults = Evidence { doing: Some(Doing::Fault), ..locked.clone() };
        check(locked, "blocked by a lock", "another thread");
        check(faults, "page faults", "pages of its memory");
        let waits = Evidence { wait: 0.7, run: 0.1, taker: Some((22, 0.6)), ..seen.clone() };
        check(waits.clone(), "CPU taken", "waited for CPU 1: backup (22, 60 %) had it");
        check(Evidence { taker: Some((21, 0.6)), ..waits }, "interrupts", "had its CPU 1");
        check(Evidence { interrupts: 0.7, run: 0.1, ..seen.clone() }, "interrupts", "CPU 1");
        check(Evidence { still: 0.8, ..full.clone() }, "CPU stood still", "did not run for 80 %");
        check(Evidence { reader: None, ..full }, "reader not seen", "cannot see");
    }

    #[test]
    fn time_in_which_a_reader_waits_for_data_is_no_cause() {
        let idle = Evidence { run: 0.1, wait: 0.2, blocked: 0.65, is_emptied: false, ..evidence() };
        assert_eq!(named(&idle).cause, "CPU taken");
    }

    #[test]
    fn a_reader_that_would_keep_up_with_its_whole_cpu_is_not_slow() {
        let seen =
            Evidence { run: 0.45, interrupts: 0.5, is_emptied: false, drops: 9_000, ..evidence() };
        assert!(seen.needs() < 1.0);
        assert_eq!(named(&seen).cause, "interrupts");
    }

    #[test]
    fn a_reader_with_half_a_cpu_is_kept_by_what_has_the_other_half() {
        let kept = Evidence { run: 0.55, interrupts: 0.45, length_ns: 200_000_000, ..evidence() };
        assert_eq!(named(&kept).cause, "interrupts");
        assert_eq!(named(&Evidence { drops: 20_000, ..kept.clone() }).cause, "burst");
        assert_eq!(named(&Evidence { length_ns: 3_000_000, ..kept }).cause, "burst");
    }

    #[test]
    fn bursts_add_up() {
        let mut causes = Causes::default();
        let files = Files::below("/nonexistent");
        causes.add(&files, &evidence());
        causes.add(&files, &Evidence { more_bytes: 70_000, length_ns: 1, ..evidence() });
        causes.add(&files, &Evidence { continues: true, ..evidence() });
        assert_eq!((causes.bursts, causes.longest_ns, causes.more_bytes), (2, 3_000_000, 70_000));
    }
}
