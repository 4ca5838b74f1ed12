//! The processes of the host from `/proc`, below a root that tests replace: the columns of `top`.
//!
//! Reads names only, because command lines may hold secrets.

use std::collections::BTreeMap;

use crate::cpu_time::ns_per_tick;
use crate::host::{Files, page_bytes};

const MAX_PROCESSES: usize = 16_384;
/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`: a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name, 15 bytes at most.
    pub name: String,
    /// `R`, `S`, ... as `ps` prints it.
    pub state: char,
    pub is_kernel: bool,
    /// Priority of the kernel: 20 is usual, below 0 is real time.
    pub priority: i64,
    pub nice: i64,
    /// CPU time so far, in whole ticks of the kernel (10 ms).
    pub cpu_ns: u64,
    pub virtual_bytes: u64,
    pub resident_bytes: u64,
    /// Start time in ticks since boot: tells two processes of one number apart.
    pub start_ticks: u64,
}

pub fn all(files: &Files) -> BTreeMap<u32, Process> {
    let numbers = files.names("proc");
    let numbers = numbers.iter().filter_map(|name| name.parse::<u32>().ok());
    numbers
        .take(MAX_PROCESSES)
        .filter_map(|pid| Some((pid, read(files, &format!("proc/{pid}/stat"))?)))
        .collect()
}

/// Numbers of the other processes of that name with one of these words as a first or second
/// argument. Command lines of other programs are not read.
pub fn with_argument(files: &Files, name: &str, words: &[&str]) -> Vec<u32> {
    let has_word = |pid: &u32| {
        let line = files.text(&format!("proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').skip(1).take(2).any(|word| words.contains(&word))
    };
    let named = all(files).into_iter().filter(|(_, process)| process.name == name);
    let others = named.map(|(pid, _)| pid).filter(|pid| *pid != std::process::id());
    others.filter(has_word).collect()
}

/// CPU time of a process so far, in whole ticks of the kernel; 0 if there is none.
pub fn cpu_ns(files: &Files, pid: u32) -> u64 {
    read(files, &format!("proc/{pid}/stat")).map_or(0, |process| process.cpu_ns)
}

/// Bytes of a process' resident set that it shares with others (files, shared memory), and the
/// number of its user.
pub fn shared_and_user(files: &Files, pid: u32) -> Option<(u64, u32)> {
    use std::os::unix::fs::MetadataExt;
    let statm = files.text(&format!("proc/{pid}/statm"))?;
    let pages: u64 = statm.split_whitespace().nth(2)?.parse().ok()?;
    let about = std::fs::metadata(files.root().join(format!("proc/{pid}"))).ok()?;
    Some((pages.saturating_mul(page_bytes()), about.uid()))
}

fn read(files: &Files, path: &str) -> Option<Process> {
    parse(&files.text(path)?)
}

/// A line of `/proc/PID/stat` (proc_pid_stat(5)). The name stands in parentheses and may hold any
/// character.
fn parse(text: &str) -> Option<Process> {
    let (before, after) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let signed = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    let ticks = number(14)?.checked_add(number(15)?)?;
    Some(Process {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        is_kernel: number(9)? & KERNEL_THREAD != 0,
        priority: signed(18)?,
        nice: signed(19)?,
        cpu_ns: ticks.saturating_mul(ns_per_tick()),
        start_ticks: number(22)?,
        virtual_bytes: number(23)?,
        resident_bytes: number(24)?.saturating_mul(page_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RNGD: &str = "1469 (rng) d) S 1 1469 1469 0 -1 1077936384 150 0 0 0 300 20 0 0 20 0 3 0 900 92815360 807 1844";
    const WORKER: &str =
        "15 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 0 7 0 0 20 0 1 0 33 0 0 1844";

    #[test]
    fn a_process_is_read_field_by_field() {
        let rngd = parse(RNGD).unwrap();
        assert_eq!((rngd.name.as_str(), rngd.state), ("rng) d", 'S'));
        assert_eq!(rngd.cpu_ns, 320 * ns_per_tick());
        assert_eq!((rngd.priority, rngd.nice), (20, 0));
        assert_eq!(rngd.virtual_bytes, 92_815_360);
        assert_eq!(rngd.resident_bytes, 807 * page_bytes());
        assert!(!rngd.is_kernel);
        assert!(parse(WORKER).unwrap().is_kernel);
    }

    #[test]
    fn what_is_no_process_is_none() {
        for text in [
            "",
            "1 (a",
            "1 (a) S 1",
            "1 a S",
            "1 (a) S x x x x x x x x x x x x x x x x x x x x x x",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        let most = RNGD.replace(" 300 20 ", " 18446744073709551615 20 ");
        assert_eq!(parse(&most), None, "ticks that cannot be");
    }

    #[test]
    fn processes_are_listed_by_number() {
        let (_root, files) = crate::host::root_with(&[
            ("proc/1469/stat", RNGD),
            ("proc/1469/statm", "22660 807 90 5 0 400 0\n"),
            ("proc/15/stat", WORKER),
            ("proc/16/stat", "gone"),
            ("proc/self/stat", RNGD),
        ]);
        assert_eq!(all(&files).keys().copied().collect::<Vec<_>>(), [15, 1469]);
        let (shared, _) = shared_and_user(&files, 1469).unwrap();
        assert_eq!(shared, 90 * page_bytes());
    }

    #[test]
    fn this_process_is_there() {
        let own = std::process::id();
        assert!(all(&Files::default())[&own].resident_bytes > 0);
        assert!(shared_and_user(&Files::default(), own).is_some());
    }
}
