//! Counters of a whole CPU or of shared parts, by any PMU that Linux exposes: `perf_event_open(2)`
//! with groups.
//!
//! [`crate::perf`] counts threads of this process. One system call reads a group, so that its
//! values belong to one moment.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::SysError;
use crate::perf::{self, Attr, Reading};

const READ_GROUP: u64 = 1 << 3;
const IOC_FLAG_GROUP: libc::c_ulong = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the PMU, from its `type` file.
    pub kind: u32,
    pub config: u64,
    pub config1: u64,
    pub config2: u64,
}

#[derive(Debug)]
pub struct CounterGroup {
    members: Vec<OwnedFd>,
    /// `nr, enabled, running, values...`, room for the largest read.
    words: Vec<u64>,
}

#[derive(Debug)]
pub struct CounterGroupError {
    pub member: usize,
    pub error: SysError,
}

impl CounterGroup {
    /// Opens the events on a CPU, all processes; the first leads. Counting begins at once.
    ///
    /// # Errors
    /// ENOENT or EINVAL when a PMU refuses an event or the group, EACCES, EMFILE, ENODEV when the
    /// CPU is offline.
    pub fn open(events: &[Attributes], cpu: u32) -> Result<CounterGroup, CounterGroupError> {
        let place = i32::try_from(cpu).unwrap_or(i32::MAX);
        let mut members: Vec<OwnedFd> = Vec::with_capacity(events.len());
        for (member, event) in events.iter().enumerate() {
            let leader = members.first().map_or(-1, AsRawFd::as_raw_fd);
            let mut attr = Attr {
                kind: event.kind,
                config: event.config,
                config1: event.config1,
                config2: event.config2,
                read_format: perf::READ_TOTAL_TIME_ENABLED
                    | perf::READ_TOTAL_TIME_RUNNING
                    | READ_GROUP,
                // The leader starts the group; siblings follow it.
                flags: if members.is_empty() { perf::FLAG_DISABLED } else { 0 },
                ..Attr::default()
            };
            let what =
                format!("perf_event_open type {} config {:#x} CPU {cpu}", event.kind, event.config);
            let opened = perf::open_at(&mut attr, (-1, place, leader), &what);
            members.push(opened.map_err(|error| CounterGroupError { member, error })?);
        }
        let group = CounterGroup { words: vec![0; 3 + members.len()], members };
        group.ioctl(perf::IOC_ENABLE);
        Ok(group)
    }

    fn ioctl(&self, command: libc::c_ulong) {
        if let Some(leader) = self.members.first() {
            // SAFETY: the descriptor is open; the command takes a number.
            unsafe { libc::ioctl(leader.as_raw_fd(), command as libc::Ioctl, IOC_FLAG_GROUP) };
        }
    }

    /// Reads all members at once; the times are the group's. A CPU that went offline gives its
    /// earlier counts.
    pub fn read(&mut self, into: &mut [Reading]) {
        let Some(leader) = self.members.first() else {
            return;
        };
        // SAFETY: the descriptor is open, and `words` has room for the count, two times and one
        // value for each member.
        let got = unsafe {
            libc::read(
                leader.as_raw_fd(),
                self.words.as_mut_ptr().cast(),
                size_of_val(self.words.as_slice()),
            )
        };
        if got >= 24 {
            for (reading, value) in into.iter_mut().zip(&self.words[3..]) {
                *reading =
                    Reading { value: *value, enabled_ns: self.words[1], running_ns: self.words[2] };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const FAULTS: u64 = 2;

    #[test]
    fn a_group_counts_a_whole_cpu_where_the_kernel_allows_it() {
        let events = [CPU_CLOCK, FAULTS].map(|config| Attributes {
            kind: SOFTWARE,
            config,
            ..Attributes::default()
        });
        let cpu = crate::affinity::allowed_cpus().unwrap()[0];
        let mut group = match CounterGroup::open(&events, cpu) {
            Ok(group) => group,
            Err(refused) => {
                return assert_eq!(
                    (refused.member, refused.error.errno()),
                    (0, Some(libc::EACCES))
                );
            }
        };
        let (mut first, mut second) = ([Reading::default(); 2], [Reading::default(); 2]);
        group.read(&mut first);
        group.read(&mut second);
        assert!(
            second[0].enabled_ns > first[0].enabled_ns
                && second[0].running_ns == second[0].enabled_ns
        );
        assert!(second[0].value > first[0].value, "the CPU clock goes on");
        assert_eq!(second[0].enabled_ns, second[1].enabled_ns, "one moment for all members");
    }

    #[test]
    fn the_member_that_is_refused_is_named() {
        let good = Attributes { kind: SOFTWARE, ..Attributes::default() };
        let wrong = Attributes { kind: 0xFFFF, ..good };
        let refused = CounterGroup::open(&[good, wrong], 0).unwrap_err();
        assert!(refused.member == 1 || refused.error.errno() == Some(libc::EACCES), "{refused:?}");
    }
}
