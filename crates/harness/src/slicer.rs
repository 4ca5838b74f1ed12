//! Cuts samples into slices and probes the CPU after each: its clock, its sibling, and if the
//! thread lost it.

use daqmeter_record::{Slices, Stage};
use daqmeter_sys::{affinity, clock, cpu_time, probe};

use crate::{Context, StepPlan};

/// Slices of a repetition, if these bounds allow it.
const SLICES: u64 = 40;
/// Below this the probes would take more than 5 % of the time; disturbances every few milliseconds
/// meet most of the longer ones.
const LENGTH_NS: std::ops::RangeInclusive<u64> = 250_000..=1_000_000;
const MAX_SLICES: usize = 4096;
/// Wall time beyond CPU time that is no theft: reading both clocks, a timer tick.
const MIN_STOLEN_NS: u64 = 20_000;
const MIN_STOLEN_SHARE: u64 = 50;

pub(crate) struct Slicer {
    length_ns: u64,
    has_probe: bool,
    from_ns: u64,
    samples: u32,
    seen: Seen,
}

impl Slicer {
    /// Returns the least length of a slice in that plan.
    pub(crate) fn length_ns(plan: StepPlan) -> u64 {
        let StepPlan::Timed(budget) = plan else { return *LENGTH_NS.end() };
        let budget_ns = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        let length_ns = (budget_ns / SLICES).clamp(*LENGTH_NS.start(), *LENGTH_NS.end());
        length_ns.max(budget_ns / MAX_SLICES as u64)
    }

    /// Returns empty columns with room for the slices of that many samples.
    pub(crate) fn room(plan: StepPlan, samples: usize, context: &Context) -> Slices {
        let most = if matches!(plan, StepPlan::Timed(_)) { MAX_SLICES } else { samples };
        let room = || Vec::with_capacity(samples.min(most));
        let probed = || if context.clock.chain_cycles > 0 { room() } else { Vec::new() };
        let (chain_ns, sibling_ns) = (probed(), probed());
        Slices { samples: room(), gap_ns: room(), chain_ns, sibling_ns, lost: room() }
    }

    pub(crate) fn begin(plan: StepPlan, context: &Context, now_ns: u64) -> Slicer {
        let (length_ns, has_probe) = (Slicer::length_ns(plan), context.clock.chain_cycles > 0);
        Slicer { length_ns, has_probe, from_ns: now_ns, samples: 0, seen: Seen::now() }
    }

    /// Counts a sample that ended now, and ends a slice that is long enough. Returns the time at
    /// which the next sample begins.
    pub(crate) fn sampled(&mut self, slices: &mut Slices, now_ns: u64) -> u64 {
        self.samples += 1;
        let is_whole = now_ns - self.from_ns >= self.length_ns;
        if !is_whole || slices.samples.len() == slices.samples.capacity() {
            return now_ns;
        }
        self.close(slices, now_ns)
    }

    /// Leaves out the time of a sample that is not kept. Returns the time at which the next begins.
    pub(crate) fn skip(&mut self) -> u64 {
        (self.from_ns, self.seen) = (clock::monotonic_ns(), Seen::now());
        self.from_ns
    }

    /// Keeps the samples after the last slice as one, if they are most of a slice or all there is.
    pub(crate) fn end(mut self, slices: &mut Slices) {
        let now_ns = clock::monotonic_ns();
        let is_most = now_ns - self.from_ns >= self.length_ns / 2;
        let has_room = slices.samples.len() < slices.samples.capacity();
        if self.samples > 0 && has_room && (is_most || slices.is_empty()) {
            self.close(slices, now_ns);
        }
    }

    /// Keeps one pass as a slice, if it is long enough and if all before it were.
    pub(crate) fn passed(mut self, stage: &mut Stage, now_ns: u64) {
        let is_next = stage.slices.samples.len() + 1 == stage.sample_ns.len();
        if is_next && now_ns - self.from_ns >= *LENGTH_NS.start() {
            self.samples = 1;
            self.close(&mut stage.slices, now_ns);
        }
    }

    fn close(&mut self, slices: &mut Slices, now_ns: u64) -> u64 {
        let mut end_ns = now_ns;
        if self.has_probe {
            let probe = probe::probe();
            slices.chain_ns.push(column(probe.chain_ns));
            slices.sibling_ns.push(column(probe.sibling_ns));
            end_ns = probe.end_ns;
        }
        let seen = Seen::now();
        if self.seen.is_disturbed(seen, end_ns - self.from_ns) {
            slices.lost.push(u32::try_from(slices.samples.len()).unwrap_or(u32::MAX));
        }
        slices.samples.push(self.samples);
        let next_ns = clock::monotonic_ns();
        slices.gap_ns.push(column(next_ns - now_ns));
        (self.from_ns, self.samples, self.seen) = (next_ns, 0, seen);
        next_ns
    }
}

fn column(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    cpu: Option<u32>,
    cpu_ns: u64,
    usage: cpu_time::Usage,
}

impl Seen {
    fn now() -> Seen {
        Seen {
            usage: cpu_time::of_thread(),
            cpu: affinity::current_cpu(),
            cpu_ns: clock::thread_cpu_ns(),
        }
    }

    fn is_disturbed(self, after: Seen, wall_ns: u64) -> bool {
        let missing_ns = wall_ns.saturating_sub(after.cpu_ns - self.cpu_ns);
        let is_missed = missing_ns > MIN_STOLEN_NS.max(wall_ns / MIN_STOLEN_SHARE);
        // A thread that neither ran nor waited lost its CPU to a hypervisor.
        let never_left = after.usage.context_switches == self.usage.context_switches;
        after.usage.preemptions != self.usage.preemptions
            || after.cpu != self.cpu
            || (is_missed && never_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_lost_its_cpu_is_told_from_one_that_waited() {
        let before = Seen { cpu: Some(1), cpu_ns: 0, usage: cpu_time::Usage::default() };
        for (cpu, cpu_ns, context_switches, preemptions, wanted) in [
            (1, 985_000, 0, 0, false),
            // A wait for a device is a voluntary switch.
            (1, 100_000, 1, 0, false),
            (1, 900_000, 0, 0, true),
            (1, 100_000, 1, 1, true),
            (0, 999_000, 0, 0, true),
        ] {
            let usage = cpu_time::Usage { context_switches, preemptions, ..before.usage };
            let after = Seen { cpu: Some(cpu), cpu_ns, usage };
            assert_eq!(before.is_disturbed(after, 1_000_000), wanted, "{after:?}");
        }
    }
}
