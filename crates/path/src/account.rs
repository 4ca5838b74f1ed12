//! Time account of one thread. Only a real wait is timed: a thread that never waits reads no clock
//! for it.

use daqmeter_record::path::PathThread;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::cpu_time::ThreadTimes;

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
    /// The thread with its waits and blocks up to now.
    pub(crate) thread: PathThread,
}

impl Account {
    pub(crate) fn begin(thread: PathThread) -> Account {
        let times = ThreadTimes::of_this_thread();
        Account { begin: moment(&times), times, waiting: Moment::default(), thread }
    }

    pub(crate) fn wait<T>(&mut self, side: Side, work: impl FnOnce() -> T) -> T {
        let before = moment(&self.times);
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
        shares(moment(&self.times).since(self.begin), self.waiting, self.thread)
    }
}

fn moment(times: &ThreadTimes) -> Moment {
    Moment { wall_ns: monotonic_ns(), cpu_ns: times.cpu_ns(), delay_ns: times.delay_ns() }
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
    fn a_wait_is_booked_on_its_side() {
        let mut account = Account::begin(PathThread::default());
        let until_ns = monotonic_ns() + 2_000_000;
        account.wait(Side::Output, || while monotonic_ns() < until_ns {});
        let thread = account.end();
        assert!(thread.output_ns >= 1_900_000 && thread.input_ns == 0);
        assert!(thread.output_ns <= thread.wall_ns);
    }
}
