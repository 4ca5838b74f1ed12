//! Users of the CPUs during a measurement: our threads, other parts of a chain, the kernel, other
//! programs.

use std::collections::BTreeMap;

use daqmeter_record::{ProcessPart, ProcessUse};
use daqmeter_sys::host::Files;
use daqmeter_sys::processes::{Process, all, shared_and_user};

/// Maximum number of rows: the rest used almost no time.
const MAX_ROWS: usize = 64;

pub(crate) struct Processes {
    files: Files,
    before: BTreeMap<u32, Process>,
    own: u32,
}

impl Processes {
    /// Looks at them once; `own` is the number of this process.
    pub(crate) fn before(files: Files, own: u32) -> Processes {
        Processes { before: all(&files), files, own }
    }

    /// Returns the use of each since then, the busiest first. `threads` are ours, by name and
    /// number: their use since then, and since their start.
    pub(crate) fn used(&self, threads: &BTreeMap<String, (u64, u64)>) -> Vec<ProcessUse> {
        // The use since a process's start is not its use since the first look.
        let now = if self.before.is_empty() { BTreeMap::new() } else { all(&self.files) };
        let name = now.get(&self.own).map(|own| own.name.clone());
        let row = |(pid, process): (&u32, &Process)| {
            // Another process may have had its number.
            let is_same = |before: &&Process| before.start_ticks == process.start_ticks;
            let before_ns = self.before.get(pid).filter(is_same).map_or(0, |before| before.cpu_ns);
            let row = ProcessUse {
                cpu_ns: process.cpu_ns.saturating_sub(before_ns),
                total_cpu_ns: process.cpu_ns,
                part: self.part(*pid, process, name.as_deref()),
                ..self.row(*pid, process)
            };
            let is_shown = matches!(row.part, ProcessPart::Own | ProcessPart::Chain);
            (is_shown || row.cpu_ns > 0).then_some(row)
        };
        let mut rows: Vec<ProcessUse> = now.iter().filter_map(row).collect();
        if let Some(own) = now.get(&self.own) {
            rows.extend(threads.iter().filter_map(|thread| self.thread(thread, own)));
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.cpu_ns));
        rows.truncate(MAX_ROWS);
        rows
    }

    fn part(&self, pid: u32, process: &Process, own_name: Option<&str>) -> ProcessPart {
        if pid == self.own {
            ProcessPart::Own
        } else if process.is_kernel {
            ProcessPart::Kernel
        } else if Some(process.name.as_str()) == own_name {
            ProcessPart::Chain
        } else {
            ProcessPart::Other
        }
    }

    fn row(&self, pid: u32, process: &Process) -> ProcessUse {
        let (shared_bytes, user) = shared_and_user(&self.files, pid).unwrap_or_default();
        ProcessUse {
            pid,
            name: process.name.clone(),
            user,
            priority: process.priority,
            nice: process.nice,
            state: process.state,
            virtual_bytes: process.virtual_bytes,
            resident_bytes: process.resident_bytes,
            shared_bytes,
            ..ProcessUse::default()
        }
    }

    /// Returns a thread of ours, `name/number`, except the first, which has the number of the
    /// process.
    fn thread(&self, thread: (&String, &(u64, u64)), own: &Process) -> Option<ProcessUse> {
        let (name, (cpu_ns, total_cpu_ns)) = thread;
        let (name, number) = name.rsplit_once('/')?;
        let pid: u32 = number.parse().ok()?;
        (pid != self.own).then(|| ProcessUse {
            pid,
            name: name.to_owned(),
            part: ProcessPart::Own,
            cpu_ns: *cpu_ns,
            total_cpu_ns: *total_cpu_ns,
            ..self.row(self.own, own)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a process of the root's `/proc`: its name, flags, and CPU time in ticks.
    fn write(root: &std::path::Path, pid: u32, name: &str, flags: u64, ticks: u64) {
        let folder = root.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&folder).unwrap();
        let stat = format!(
            "{pid} ({name}) S 1 1 1 0 -1 {flags} 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {pid} 4096 2 0"
        );
        std::fs::write(folder.join("stat"), stat).unwrap();
    }

    #[test]
    fn what_ran_is_named_with_whose_it_is() {
        let root = tempfile::tempdir().unwrap();
        let make = |ticks: u64| {
            write(root.path(), 10, "daqmeter", 0, 100 * ticks);
            write(root.path(), 11, "daqmeter", 0, 50);
            write(root.path(), 12, "kworker/0:1", 0x0020_0000, 2 * ticks);
            write(root.path(), 13, "rngd", 0, 10 * ticks);
            write(root.path(), 14, "idle", 0, 7);
        };
        make(1);
        let processes = Processes::before(Files::below(root.path()), 10);
        make(3);
        let threads = BTreeMap::from([
            ("lane-0/21".to_owned(), (5_000, 6_000)),
            ("daqmeter/10".to_owned(), (1, 1)),
        ]);
        let used = processes.used(&threads);
        let found: Vec<(&str, ProcessPart)> =
            used.iter().map(|row| (row.name.as_str(), row.part)).collect();
        let expected = [
            ("daqmeter", ProcessPart::Own),
            ("rngd", ProcessPart::Other),
            ("kworker/0:1", ProcessPart::Kernel),
            ("lane-0", ProcessPart::Own),
            ("daqmeter", ProcessPart::Chain),
        ];
        assert_eq!(found, expected);
        let tick = used[0].cpu_ns / 200;
        assert_eq!((used[1].cpu_ns, used[1].total_cpu_ns), (20 * tick, 30 * tick));
        assert_eq!((used[3].cpu_ns, used[3].total_cpu_ns), (5_000, 6_000));
        assert_eq!(used[3].virtual_bytes, 4096);
    }

    #[test]
    fn another_process_of_the_same_number_brings_no_time_from_before() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), 13, "rngd", 0, 10);
        let processes = Processes::before(Files::below(root.path()), 1);
        let stat = root.path().join("proc/13/stat");
        let text = std::fs::read_to_string(&stat).unwrap();
        std::fs::write(&stat, text.replace(" 13 4096", " 99 4096").replace("rngd", "new")).unwrap();
        let used = processes.used(&BTreeMap::new());
        assert_eq!((used[0].name.as_str(), used[0].cpu_ns), ("new", used[0].total_cpu_ns));
    }
}
