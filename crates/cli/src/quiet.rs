//! Wait until the host is quiet. A survey that begins beside a compiler or a backup measures them,
//! too.
//!
//! It waits for at most a quarter of its budget, and never longer than 15 s, the quarter of a
//! minute. The time is taken from the budget. Bursts of cron, of a package manager or of a build's
//! end are over by then. The rest is enough for all points. Other loads may last for hours. A host
//! that is still busy is measured all the same, and the report says so.

use std::time::Duration;

use daqmeter_record::conditions::FOREIGN_ON_ALL;
use daqmeter_sys::cpu_time;

use crate::output::tell;

const PART: u32 = 4;

const LONGEST: Duration = Duration::from_secs(15);

/// Time of one look: thirty ticks of `/proc/stat`, so that a tick is 3 % of a CPU.
const LOOK: Duration = Duration::from_millis(300);

/// Looks until the host is quiet, time for another look is lacking, or a signal came. Reports the
/// wait on stderr.
pub(crate) fn wait_for_quiet(budget: Duration, is_stopped: impl Fn() -> bool) {
    let longest = (budget / PART).min(LONGEST);
    let busy = until_quiet(longest, foreign_share, is_stopped, |share| {
        tell(&format!(
            "daqmeter: other programs take {:.0} % of the CPUs: waiting up to {:.0} s for quiet (--no-wait measures at once)",
            share * 100.0,
            longest.as_secs_f64()
        ));
    });
    if let Some(share) = busy {
        let share = share * 100.0;
        tell(&format!(
            "daqmeter: other programs still take {share:.0} % of the CPUs: measuring beside them"
        ));
    }
}

/// Returns the share of other programs if the host is still busy in the end.
fn until_quiet(
    longest: Duration,
    mut look: impl FnMut() -> f64,
    is_stopped: impl Fn() -> bool,
    mut begin_to_wait: impl FnMut(f64),
) -> Option<f64> {
    let looks = (longest.as_millis() / LOOK.as_millis()).max(1);
    let mut busy = None;
    for _ in 0..looks {
        let share = look();
        if share <= FOREIGN_ON_ALL || is_stopped() {
            return None;
        }
        if busy.replace(share).is_none() {
            begin_to_wait(share);
        }
    }
    busy
}

/// Share of all CPUs that other programs and the hypervisor take, during one look. It is 0 if the
/// kernel does not report it, since waiting would give no more information.
fn foreign_share() -> f64 {
    let before = (cpu_time::of_host("/".as_ref()), cpu_time::of_process());
    std::thread::sleep(LOOK);
    let host = before.0.zip(cpu_time::of_host("/".as_ref()));
    let (own, own_before) = (cpu_time::of_process(), before.1);
    let own_ns =
        (own.user_ns + own.system_ns).saturating_sub(own_before.user_ns + own_before.system_ns);
    host.map_or(0.0, |(before, now)| share(now.since(before), own_ns))
}

fn share(host: cpu_time::HostTimes, own_ns: u64) -> f64 {
    let busy = host.user_ns + host.system_ns + host.steal_ns;
    let all = busy + host.idle_ns + host.iowait_ns + host.irq_ns + host.softirq_ns;
    busy.saturating_sub(own_ns) as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_host_is_waited_for_within_bounds_and_a_signal_ends_the_wait() {
        let wait = |longest, shares: &[f64], is_stopped| {
            let (mut looks, mut told) = (shares.iter().copied(), 0);
            let look = || looks.next().unwrap_or(0.9);
            (until_quiet(longest, look, || is_stopped, |_| told += 1), told)
        };
        assert_eq!(wait(LOOK * 10, &[0.02], false), (None, 0));
        assert_eq!(wait(LOOK * 10, &[0.9, 0.5, 0.05], false), (None, 1));
        assert_eq!(wait(LOOK * 10, &[], false), (Some(0.9), 1));
        assert_eq!(wait(Duration::ZERO, &[0.4], false), (Some(0.4), 1), "one look in any case");
        assert_eq!(wait(LOOK * 10, &[], true), (None, 0));
    }

    #[test]
    fn what_this_program_does_is_not_foreign() {
        let host = cpu_time::HostTimes {
            user_ns: 60,
            system_ns: 10,
            steal_ns: 10,
            idle_ns: 20,
            ..Default::default()
        };
        assert_eq!(share(host, 70), 0.1);
        assert_eq!(share(cpu_time::HostTimes::default(), 5), 0.0);
    }
}
