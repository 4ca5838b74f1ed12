//! Changes that are tried in turns with the state before, and put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daqmeter_record::units::{show_bytes, whole};
use daqmeter_record::watched::{TurnCounts, Watched, WatchedTrial};
use daqmeter_stats::trimmed_interval;
use daqmeter_sys::SysError;
use daqmeter_sys::affinity::{self, process_cpus};
use daqmeter_sys::trial::{Keeper, TrialSetting};

use crate::causes::Try;
use crate::ledger::{INTERVAL, Watch, WatchError, Worst};

/// Pairs of a turn without and one with the change, after which it is looked if they differ. Where
/// they do not, as many follow once.
const PAIRS: usize = 8;
const LOOKS: usize = 2;
/// Confidence of one look: both together have 99 %.
const CONFIDENCE: f64 = 0.995;
const SHORTEST: Duration = Duration::from_millis(400);
const LONGEST: Duration = Duration::from_secs(4);
/// Bursts, or intervals with a loss, that a turn has on average.
const LOSING: u32 = 2;
/// Time after a change that counts for neither state.
const SETTLE: Duration = Duration::from_millis(100);
/// A buffer for which no size was measured, or the largest that is tried.
const USUAL_BYTES: u64 = 8 << 20;
const MAX_BYTES: u64 = 256 << 20;
/// Number of packets that wait for the protocols on a CPU, and how much larger it is tried.
const MAX_BACKLOG: &str = "net/core/netdev_max_backlog";
const LONGER: u64 = 10;
/// Part of a CPU that is taken.
const TAKEN: f64 = 0.3;

/// Changes that the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trials {
    /// Those that would avoid the loss.
    pub tries: bool,
    /// Those that would make it larger.
    pub confirms: bool,
}

enum Change {
    Setting {
        setting: TrialSetting,
        /// Puts it back when this process ends.
        _keeper: Keeper,
    },
    Load(u32, Option<Load>),
}

impl Change {
    fn set(&mut self, is_changed: bool) -> Result<(), SysError> {
        match self {
            Change::Setting { setting, .. } if is_changed => setting.change()?,
            Change::Setting { setting, .. } => setting.put_back(),
            Change::Load(cpu, load) => *load = is_changed.then(|| Load::begin(*cpu)),
        }
        Ok(())
    }
}

/// A thread that takes a part of a CPU until it is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn begin(cpu: u32) -> Load {
        /// A buffer of the usual size does not hold the packets of such a stall.
        const PERIOD: Duration = Duration::from_millis(50);
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            // On another CPU it would confirm nothing, and the answer says so.
            let _ = affinity::pin_to(cpu);
            // Before the reader; without the right (CAP_SYS_NICE) beside it.
            let _ = affinity::run_first();
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                while began.elapsed() < PERIOD.mul_f64(TAKEN) {
                    std::hint::spin_loop();
                }
                std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
            }
        });
        Load { ends, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Worst {
    /// Prepares a change; returns it and its words.
    fn change(&self, watch: &Watch, what: Try) -> Result<(Change, String), SysError> {
        let missing = |what: &str| SysError {
            call: "the reader".to_owned(),
            source: std::io::Error::other(what.to_owned()),
        };
        let reader = || self.reader.ok_or_else(|| missing("it was not seen"));
        let others = |cpu: u32| {
            let all = process_cpus().iter().copied();
            let others: Vec<u32> = all.filter(|&one| one != cpu).collect();
            if others.is_empty() { Err(missing("this host has no other CPU")) } else { Ok(others) }
        };
        let with_keeper = |setting: TrialSetting, text: String| {
            let message = format!("daqmeter: killed while it tried {text}: that is put back\n");
            let keeper = Keeper::of(&setting, &message)?;
            Ok((Change::Setting { setting, _keeper: keeper }, text))
        };
        let buffer = |bytes: u64| {
            let (pid, fd) = (self.owner.pid, self.owner.fd);
            let bytes = bytes.clamp(4096, MAX_BYTES);
            // The kernel doubles what SO_RCVBUF takes.
            let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
            let text = format!("a buffer of {}", show_bytes(bytes));
            with_keeper(TrialSetting::buffer(pid, fd, half)?, text)
        };
        match what {
            Try::LargerBuffer => {
                let usual = USUAL_BYTES.max(8 * self.buffer_bytes);
                buffer(if self.enough_bytes > 0 { 2 * self.enough_bytes } else { usual })
            }
            Try::SmallerBuffer => buffer(self.buffer_bytes / 2),
            Try::OtherCpus => {
                let (reader, cpu) = reader()?;
                let text = format!("the reader on other CPUs than {cpu}");
                with_keeper(TrialSetting::cpus(watch.files(), reader, &others(cpu)?)?, text)
            }
            Try::OtherInterrupts => {
                let (reader, cpu) = reader()?;
                let (pid, devices) = (reader.pid, watch.entry_names());
                let setting = TrialSetting::interrupts(pid, &devices, cpu, &others(cpu)?)?;
                with_keeper(setting, format!("packets on other CPUs than {cpu}"))
            }
            Try::LongerBacklog => {
                let setting = TrialSetting::larger(watch.files(), MAX_BACKLOG, LONGER)?;
                with_keeper(setting, format!("a backlog that is {LONGER} times as long"))
            }
            Try::LessCpu => {
                let (_, cpu) = reader()?;
                let text = format!("{:.0} % of CPU {cpu} taken from it", 100.0 * TAKEN);
                Ok((Change::Load(cpu, None), text))
            }
        }
    }
}

impl Watch {
    /// Tries changes against the loss of the socket that lost most, and adds what it found to the
    /// answer. `time` is the time of the watch before; `is_stopped` ends the trials early. A change
    /// that cannot be made is a note.
    pub fn try_changes(
        &mut self,
        which: Trials,
        time: Duration,
        watched: &mut Watched,
        is_stopped: impl Fn() -> bool,
    ) {
        let Some(worst) = self.worst() else {
            watched.notes.push(
                "nothing to try: neither a backlog nor an open socket of UDP lost packets"
                    .to_owned(),
            );
            return;
        };
        if which.tries && worst.tries.is_empty() {
            let note = "nothing to try: no change from outside helps a program that is too slow";
            watched.notes.push(note.to_owned());
        }
        let losing = worst.bursts.max(self.losing() as u64);
        let losing = u32::try_from(losing).unwrap_or(u32::MAX).max(1);
        let turn = (time * LOSING / losing).clamp(SHORTEST, LONGEST);
        let tries = worst.tries.iter().filter(|_| which.tries).map(|what| (*what, false));
        let confirms = worst.confirms.iter().filter(|_| which.confirms).map(|what| (*what, true));
        for (what, confirms) in tries.chain(confirms) {
            let found = worst.change(self, what).map_err(WatchError::from);
            let found = found.and_then(|(change, text)| {
                let trial = self.in_turn(change, &worst, turn, &is_stopped)?;
                Ok(WatchedTrial { change: text, confirms, ..trial })
            });
            match found {
                // The first loss at its place is that of the worst.
                Ok(trial) if trial.turns > 0 => {
                    let losses = &mut watched.losses;
                    let loss = losses.iter_mut().find(|loss| loss.place == worst.place);
                    loss.into_iter().for_each(|loss| loss.trials.push(trial.clone()));
                }
                Ok(_) => return,
                Err(why) => watched.notes.push(format!("a change was not tried: {why}")),
            }
        }
    }

    /// Counts with and without a change, in turns whose order changes.
    fn in_turn(
        &mut self,
        mut change: Change,
        worst: &Worst,
        turn: Duration,
        is_stopped: impl Fn() -> bool,
    ) -> Result<WatchedTrial, WatchError> {
        let mut pairs: Vec<[TurnCounts; 2]> = Vec::new();
        let mut less = (-1.0, 1.0);
        'pairs: for pair in 0..LOOKS * PAIRS {
            let mut found = [TurnCounts::default(); 2];
            let is_changed_first = pair % 2 == 1;
            for is_changed in [is_changed_first, !is_changed_first] {
                if is_stopped() {
                    break 'pairs;
                }
                change.set(is_changed)?;
                self.step(SETTLE)?;
                let before = self.came_and_lost(worst);
                let end = Instant::now() + turn;
                loop {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.step(left.min(INTERVAL))?;
                }
                let after = self.came_and_lost(worst);
                found[usize::from(is_changed)] = TurnCounts {
                    packets: after.packets.saturating_sub(before.packets),
                    lost: after.lost.saturating_sub(before.lost),
                };
            }
            pairs.push(found);
            if pairs.len().is_multiple_of(PAIRS) {
                let shares: Vec<f64> = pairs.iter().map(|[a, b]| a.share() - b.share()).collect();
                less = trimmed_interval(&shares, CONFIDENCE)
                    .map_or(less, |(_, low, high)| (low, high));
                if less.0 > 0.0 || less.1 < 0.0 {
                    break;
                }
            }
        }
        change.set(false)?;
        let sum = |state: usize| TurnCounts {
            packets: pairs.iter().map(|pair| pair[state].packets).sum(),
            lost: pairs.iter().map(|pair| pair[state].lost).sum(),
        };
        Ok(WatchedTrial {
            turns: pairs.len() as u64,
            turn_ns: whole(turn.as_secs_f64() * 1e9),
            before: sum(0),
            after: sum(1),
            less_low: less.0,
            less_high: less.1,
            ..WatchedTrial::default()
        })
    }
}
