//! Time account of one thread. Only a real wait is timed: a thread that never waits reads no clock
//! for it. Probes between its blocks tell the clock of its CPU.

use daqmeter_record::path::PathThread;
use daqmeter_sys::clock::{monotonic_ns, thread_cpu_ns};
use daqmeter_sys::cpu_time::ThreadTimes;
use daqmeter_sys::probe::probe;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Input,
    Output,
    Due,
}

#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    wall_ns: u64,
    cpu_ns: u64,
    delay_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Account {
    times: ThreadTimes,
    begin: Moment,
    /// CPU time and run-queue delay within the waits.
    waiting: Moment,
    probes: Probes,
    /// The thread with its waits and blocks up to now.
    pub(crate) thread: PathThread,
}

impl Account {
    pub(crate) fn begin(thread: PathThread) -> Account {
        let times = ThreadTimes::of_this_thread();
        let begin = moment(&times);
        let probes = Probes::after(begin.wall_ns);
        Account { begin, times, waiting: Moment::default(), probes, thread }
    }

    /// Time of the waits up to now.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.thread.input_ns + self.thread.output_ns + self.thread.due_ns
    }

    /// Probes the CPU if it is time.
    pub(crate) fn look(&mut self) {
        self.probes.probe_if_due(monotonic_ns());
    }

    /// Counts a block, and probes the CPU if it is time.
    pub(crate) fn done_block(&mut self) {
        self.thread.blocks += 1;
        if self.thread.blocks >= self.probes.next_block {
            self.probes.look(self.thread.blocks);
        }
    }

    pub(crate) fn wait<T>(&mut self, side: Side, work: impl FnOnce() -> T) -> T {
        let mut before = moment(&self.times);
        if self.probes.probe_if_due(before.wall_ns) {
            before = moment(&self.times);
        }
        let done = work();
        let passed = moment(&self.times).since(before);
        match side {
            Side::Input => self.thread.input_ns += passed.wall_ns,
            Side::Output => self.thread.output_ns += passed.wall_ns,
            Side::Due => {
                self.thread.due_ns += passed.wall_ns;
                self.thread.due_cpu_ns += passed.cpu_ns;
            }
        }
        self.waiting.cpu_ns += passed.cpu_ns;
        let delay_ns = self.waiting.delay_ns.unwrap_or(0);
        self.waiting.delay_ns = passed.delay_ns.map(|more| delay_ns + more);
        done
    }

    pub(crate) fn end(self) -> PathThread {
        let Probes { chain_ns, sibling_ns, .. } = self.probes;
        let thread = PathThread {
            chain_ns: middle(chain_ns),
            sibling_ns: middle(sibling_ns),
            ..self.thread
        };
        shares(moment(&self.times).since(self.begin), self.waiting, thread)
    }
}

/// Least time between two probes. One takes 5 to 11 us, less than 1 % of it, which counts as work.
const PROBE_EVERY_NS: u64 = 1_200_000;
const MAX_PROBES: usize = 1024;

#[derive(Debug)]
struct Probes {
    every_ns: u64,
    next_ns: u64,
    /// Number of blocks at which a thread that does not wait looks at the time.
    next_block: u64,
    stride: u64,
    chain_ns: Vec<u32>,
    sibling_ns: Vec<u32>,
}

impl Probes {
    fn after(now_ns: u64) -> Probes {
        Probes {
            every_ns: PROBE_EVERY_NS,
            next_ns: now_ns + PROBE_EVERY_NS,
            next_block: 1,
            stride: 1,
            chain_ns: Vec::with_capacity(MAX_PROBES),
            sibling_ns: Vec::with_capacity(MAX_PROBES),
        }
    }

    /// Probes if it is time, and chooses the next look: four for each probe or so.
    fn look(&mut self, blocks: u64) {
        let now_ns = monotonic_ns();
        let is_far = self.next_ns.saturating_sub(now_ns) > self.every_ns / 2;
        self.stride = match self.probe_if_due(now_ns) {
            true => (self.stride / 2).max(1),
            false if is_far => self.stride * 2,
            false => self.stride,
        };
        self.next_block = blocks + self.stride;
    }

    fn probe_if_due(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        if self.chain_ns.len() == MAX_PROBES {
            self.every_ns *= 2;
            [&mut self.chain_ns, &mut self.sibling_ns].into_iter().for_each(halve);
        }
        let probed = probe();
        let column = |ns| u32::try_from(ns).unwrap_or(u32::MAX);
        self.chain_ns.push(column(probed.chain_ns));
        self.sibling_ns.push(column(probed.sibling_ns));
        self.next_ns = probed.end_ns + self.every_ns;
        true
    }
}

/// Leaves out every other value.
pub(crate) fn halve(all: &mut Vec<u32>) {
    let mut is_kept = false;
    all.retain(|_| {
        is_kept = !is_kept;
        is_kept
    });
}

/// Returns the middle value; 0 of none.
pub(crate) fn middle(mut all: Vec<u32>) -> u32 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

fn moment(times: &ThreadTimes) -> Moment {
    Moment { wall_ns: monotonic_ns(), cpu_ns: thread_cpu_ns(), delay_ns: times.delay_ns() }
}

impl Moment {
    fn since(self, before: Moment) -> Moment {
        let delay_ns = self.delay_ns.zip(before.delay_ns);
        Moment {
            wall_ns: self.wall_ns.saturating_sub(before.wall_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            delay_ns: delay_ns.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Divides the whole time of a thread whose waits are known. The time neither on a CPU, nor
/// waiting, nor on a run queue, was elsewhere.
fn shares(all: Moment, waiting: Moment, thread: PathThread) -> PathThread {
    let busy_ns = all.cpu_ns.saturating_sub(waiting.cpu_ns);
    let waits_ns = thread.input_ns + thread.output_ns + thread.due_ns;
    let rest_ns = all.wall_ns.saturating_sub(busy_ns + waits_ns);
    let in_waits_ns = waiting.delay_ns.unwrap_or(0);
    let preempted_ns =
        all.delay_ns.map(|delay_ns| delay_ns.saturating_sub(in_waits_ns).min(rest_ns));
    PathThread {
        wall_ns: all.wall_ns,
        busy_ns,
        preempted_ns,
        elsewhere_ns: rest_ns - preempted_ns.unwrap_or(0),
        cpu_ns: all.cpu_ns,
        ..thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up_to_the_wall_time() {
        let all = Moment { wall_ns: 1000, cpu_ns: 500, delay_ns: Some(180) };
        let waiting = Moment { wall_ns: 0, cpu_ns: 40, delay_ns: Some(60) };
        let waits =
            PathThread { input_ns: 150, output_ns: 100, due_ns: 50, ..PathThread::default() };
        let thread = shares(all, waiting, waits);
        assert_eq!((thread.busy_ns, thread.preempted_ns), (460, Some(120)));
        assert_eq!(thread.elsewhere_ns, 120);
        let waits = thread.input_ns + thread.output_ns + thread.due_ns;
        let sum = thread.busy_ns + waits + thread.elsewhere_ns;
        assert_eq!(sum + thread.preempted_ns.unwrap(), thread.wall_ns);
    }

    #[test]
    fn without_the_kernel_s_count_nobody_says_that_a_thread_was_preempted() {
        let all = Moment { wall_ns: 1000, cpu_ns: 500, delay_ns: None };
        let thread = shares(all, Moment::default(), PathThread::default());
        assert_eq!((thread.preempted_ns, thread.elsewhere_ns), (None, 500));
    }

    #[test]
    fn probes_of_a_thread_that_never_waits_are_few_and_of_a_long_one_bounded() {
        let mut account = Account::begin(PathThread::default());
        for _ in 0..1000 {
            account.done_block();
        }
        assert!(account.probes.stride > 64, "{:?}", account.probes);
        let mut probes = Probes::after(0);
        let mut now_ns = 0;
        for _ in 0..3 * MAX_PROBES {
            now_ns = now_ns.max(probes.next_ns);
            assert!(probes.probe_if_due(now_ns) && !probes.probe_if_due(now_ns));
        }
        assert!(probes.chain_ns.len() <= MAX_PROBES && probes.every_ns >= 2 * PROBE_EVERY_NS);
        assert_eq!([vec![], vec![7], vec![9, 1, 5]].map(middle), [0, 7, 5]);
    }

    #[test]
    fn a_wait_is_booked_on_its_side() {
        let mut account = Account::begin(PathThread::default());
        account.wait(Side::Output, || {
            let begin_ns = monotonic_ns();
            while monotonic_ns() < begin_ns + 2_000_000 {}
        });
        let thread = account.end();
        assert!(thread.output_ns >= 2_000_000 && thread.input_ns == 0);
        assert!(thread.output_ns <= thread.wall_ns);
    }
}
