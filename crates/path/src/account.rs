//! Where the time of one thread goes. A wait is timed only when there is one: a thread that never waits reads no clock for it.
//!
//! Of each wait the length is measured. What else it costs (CPU time, time on the run queue) is measured of some waits drawn at
//! random, because reading that takes more than a microsecond: see `waits.rs`.

use daqmeter_record::path::PathThread;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::cpu_time::ThreadTimes;

use crate::waits::{Cost, Waits};

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// A block from the thread before.
    Input,
    /// Room towards the thread behind.
    Output,
    /// The time at which a block is due.
    Due,
}

/// Readings at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    wall_ns: u64,
    cpu_ns: u64,
    delay_ns: Option<u64>,
}

/// The account of one thread, kept by itself.
#[derive(Debug)]
pub(crate) struct Account {
    times: ThreadTimes,
    begin: Moment,
    /// CPU time of reading the CPU time, which is no part of a wait.
    reading_ns: u64,
    /// By side.
    waits: [Waits; 3],
    pub(crate) blocks: u64,
}

impl Account {
    /// Of the calling thread, from now on.
    pub(crate) fn begin() -> Account {
        let times = ThreadTimes::of_this_thread();
        Account {
            reading_ns: reading_ns(&times),
            begin: moment(&times),
            times,
            waits: Default::default(),
            blocks: 0,
        }
    }

    /// Waits, and books the time.
    pub(crate) fn wait<T>(&mut self, side: Side, work: impl FnOnce() -> T) -> T {
        let waits = &mut self.waits[side as usize];
        let before = waits.is_looked_at().then(|| before(&self.times));
        let begin_ns = monotonic_ns();
        let done = work();
        let now_ns = monotonic_ns();
        let wall_ns = now_ns - begin_ns;
        let cost = before.map(|before| after(&self.times).since(before, self.reading_ns));
        waits.book(wall_ns, cost, now_ns - self.begin.wall_ns);
        done
    }

    /// Closes the account.
    pub(crate) fn end(&self, thread: PathThread) -> PathThread {
        let all = moment(&self.times).since(self.begin);
        let [input, output, due] = &self.waits;
        let costs = self.waits.each_ref().map(Waits::cost);
        let waiting = Cost {
            cpu_ns: costs.iter().map(|cost| cost.cpu_ns).sum(),
            delay_ns: costs.iter().map(|cost| cost.delay_ns).sum(),
        };
        shares(
            all,
            waiting,
            PathThread {
                blocks: self.blocks,
                input_ns: input.wall_ns(),
                output_ns: output.wall_ns(),
                due_ns: due.wall_ns(),
                due_cpu_ns: costs[2].cpu_ns,
                ..thread
            },
        )
    }
}

/// Readings of the CPU time for what one of them takes.
const READINGS: usize = 4;

/// The fastest of some: nothing disturbed it.
fn reading_ns(times: &ThreadTimes) -> u64 {
    let readings: [u64; READINGS] = std::array::from_fn(|_| times.cpu_ns());
    let taken = readings.windows(2).map(|pair| pair[1] - pair[0]);
    taken.min().unwrap_or(0)
}

/// Costs up to now, the CPU time last: reading the others is no part of what follows.
fn before(times: &ThreadTimes) -> Cost {
    let delay_ns = times.delay_ns().unwrap_or(0);
    let cpu_ns = times.cpu_ns();
    Cost { cpu_ns, delay_ns }
}

/// The same, the CPU time first.
fn after(times: &ThreadTimes) -> Cost {
    let cpu_ns = times.cpu_ns();
    let delay_ns = times.delay_ns().unwrap_or(0);
    Cost { cpu_ns, delay_ns }
}

impl Cost {
    fn since(self, before: Cost, reading_ns: u64) -> Cost {
        let cpu_ns = self.cpu_ns.saturating_sub(before.cpu_ns);
        Cost {
            cpu_ns: cpu_ns.saturating_sub(reading_ns),
            delay_ns: self.delay_ns.saturating_sub(before.delay_ns),
        }
    }
}

fn moment(times: &ThreadTimes) -> Moment {
    Moment {
        wall_ns: monotonic_ns(),
        cpu_ns: times.cpu_ns(),
        delay_ns: times.delay_ns(),
    }
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

/// Divides all the time of a thread whose waits are known: what was neither on a CPU, nor waiting, nor on a run queue, was elsewhere.
fn shares(all: Moment, waiting: Cost, thread: PathThread) -> PathThread {
    let busy_ns = all.cpu_ns.saturating_sub(waiting.cpu_ns);
    let waits_ns = thread.input_ns + thread.output_ns + thread.due_ns;
    let rest_ns = all.wall_ns.saturating_sub(busy_ns + waits_ns);
    let preempted_ns = all
        .delay_ns
        .map(|delay_ns| delay_ns.saturating_sub(waiting.delay_ns).min(rest_ns));
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
        let all = Moment {
            wall_ns: 1000,
            cpu_ns: 500,
            delay_ns: Some(180),
        };
        let waiting = Cost {
            cpu_ns: 40,
            delay_ns: 60,
        };
        let waits = PathThread {
            input_ns: 150,
            output_ns: 100,
            due_ns: 50,
            ..PathThread::default()
        };
        let thread = shares(all, waiting, waits);
        assert_eq!((thread.busy_ns, thread.preempted_ns), (460, Some(120)));
        assert_eq!(thread.elsewhere_ns, 120);
        let waits = thread.input_ns + thread.output_ns + thread.due_ns;
        let sum = thread.busy_ns + waits + thread.elsewhere_ns;
        assert_eq!(sum + thread.preempted_ns.unwrap(), thread.wall_ns);
    }

    #[test]
    fn without_the_kernel_s_count_nobody_says_that_a_thread_was_preempted() {
        let all = Moment {
            wall_ns: 1000,
            cpu_ns: 500,
            delay_ns: None,
        };
        let thread = shares(all, Cost::default(), PathThread::default());
        assert_eq!((thread.preempted_ns, thread.elsewhere_ns), (None, 500));
    }

    #[test]
    fn a_wait_is_booked_on_its_side() {
        let mut account = Account::begin();
        let until_ns = monotonic_ns() + 2_000_000;
        account.wait(Side::Output, || while monotonic_ns() < until_ns {});
        let thread = account.end(PathThread::default());
        assert!(thread.output_ns >= 1_900_000 && thread.input_ns == 0);
        assert!(thread.output_ns <= thread.wall_ns);
    }
}
