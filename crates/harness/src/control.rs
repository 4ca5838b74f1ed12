//! Controls: work of a fixed kind that loads the resource of a stage, between its samples.
//!
//! A disturbance of the resource affects both control and stage, and no change of the program
//! affects the control. Copies and conversions have a copy of like footprint, calls an empty system
//! call, round trips a round trip over the loopback. `daqmeter_stats` uses them in comparisons. A
//! control is not a result.

use std::hint::black_box;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_record::{ControlSeries, CpuTime};
use daqmeter_sys::{clock, cpu_time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Copies between two buffers of `footprint_bytes` together, a part at a time.
    Copy {
        /// Bytes that the stage reads and writes.
        footprint_bytes: u64,
    },
    /// Asks the kernel for the parent's process number, the whole work of the call.
    Call,
    /// Sends a small datagram over the loopback to a thread that returns it.
    RoundTrip,
}

/// Target time of a control's sample: long against the clock and the lines that the stage left in
/// the caches.
const SAMPLE_NS: u64 = 20_000;
/// Time between two samples, in samples: controls take 3 % of a stage's time.
const EVERY: u64 = 32;
/// Number of samples after which the time between them doubles: a stage of 10 s has about 500.
const DOUBLE_AFTER: usize = 64;
/// Room for samples; the last interval would be 32 times 2^40 samples.
const MAX_SAMPLES: usize = 40 * DOUBLE_AFTER;
/// Largest buffer of a single lane. The stage itself replaces the control's data in the caches,
/// because it moves 32 times as much.
const MAX_BUFFER_BYTES: u64 = 8 << 20;
const MAX_ALL_BYTES: u64 = 64 << 20;
const MIN_BUFFER_BYTES: u64 = 4096;
const PART_BYTES: usize = 64 << 10;
/// Datagram of the size of an Etherbone cycle of a few reads.
const MESSAGE: [u8; 32] = [0x5a; 32];
/// Time after which a datagram is lost, and not counted.
const PATIENCE: Duration = Duration::from_millis(100);

impl Control {
    fn name(self) -> &'static str {
        match self {
            Control::Copy { .. } => "copy",
            Control::Call => "call",
            Control::RoundTrip => "round-trip",
        }
    }
}

pub(crate) struct Controlled {
    work: Work,
    series: ControlSeries,
    every_ns: u64,
    due_ns: u64,
    cpu: CpuTime,
}

enum Work {
    Copy(Copying),
    Call,
    RoundTrip(Echo),
}

struct Copying {
    from: Vec<u8>,
    to: Vec<u8>,
    at: usize,
}

impl Copying {
    fn new(footprint_bytes: u64, lanes: usize) -> Copying {
        let most = (MAX_ALL_BYTES / 2 / lanes.max(1) as u64).min(MAX_BUFFER_BYTES);
        let bytes = (footprint_bytes / 2).clamp(MIN_BUFFER_BYTES, most.max(MIN_BUFFER_BYTES));
        let bytes = usize::try_from(bytes).expect("at most 8 MiB");
        // Zeroed pages would share one physical page before a write.
        let (from, to) = (vec![1; bytes], vec![2; bytes]);
        Copying { from, to, at: 0 }
    }

    fn part(&mut self) {
        let end = (self.at + PART_BYTES).min(self.from.len());
        let to = &mut black_box(&mut self.to)[self.at..end];
        to.copy_from_slice(&black_box(&self.from)[self.at..end]);
        self.at = if end < self.from.len() { end } else { 0 };
    }
}

struct Echo {
    socket: UdpSocket,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> std::io::Result<Echo> {
        let bound = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let (socket, other) = (bound()?, bound()?);
        socket.connect(other.local_addr()?)?;
        other.connect(socket.local_addr()?)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = Some(thread.spawn(move || echo(&other))?);
        Ok(Echo { socket, thread })
    }

    fn once(&self) -> bool {
        let mut answer = MESSAGE;
        self.socket.send(&MESSAGE).is_ok() && self.socket.recv(&mut answer).is_ok()
    }
}

/// Runs until an empty datagram comes, or the other end is gone.
fn echo(socket: &UdpSocket) {
    let mut message = MESSAGE;
    loop {
        match socket.recv(&mut message) {
            Ok(0) => return,
            Ok(bytes) => {
                let _ = socket.send(&message[..bytes]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let is_told = self.socket.send(&[]).is_ok();
        // A thread without the message ends when it sends to a closed socket.
        if let Some(thread) = self.thread.take().filter(|_| is_told) {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(&mut self, operations: u64) -> bool {
        (0..operations).all(|_| match self {
            Work::Copy(copying) => {
                copying.part();
                true
            }
            Work::Call => black_box(std::os::unix::process::parent_id()) < u32::MAX,
            Work::RoundTrip(echo) => echo.once(),
        })
    }
}

impl Controlled {
    /// Prepares a control for one of `lanes` lanes. `None` if this host cannot do its work: without
    /// loopback sockets there is no round trip.
    pub(crate) fn new(control: Control, lanes: usize) -> Option<Controlled> {
        let mut footprint = 0;
        let work = match control {
            Control::Copy { footprint_bytes } => {
                let copying = Copying::new(footprint_bytes, lanes);
                footprint = 2 * copying.from.len() as u64;
                Work::Copy(copying)
            }
            Control::Call => Work::Call,
            Control::RoundTrip => Work::RoundTrip(Echo::start().ok()?),
        };
        let mut ready = Controlled {
            work,
            series: ControlSeries {
                name: control.name().into(),
                footprint_bytes: footprint,
                ops_per_sample: 1,
                sample_ns: Vec::with_capacity(MAX_SAMPLES),
                after_samples: Vec::with_capacity(MAX_SAMPLES),
            },
            every_ns: 0,
            due_ns: 0,
            cpu: CpuTime::default(),
        };
        ready.calibrate().then_some(ready)
    }

    fn calibrate(&mut self) -> bool {
        const MOST: u64 = 1 << 12;
        let once = |work: &mut Work, operations| {
            let begin = clock::monotonic_ns();
            work.run(operations).then(|| clock::monotonic_ns().saturating_sub(begin))
        };
        if once(&mut self.work, 1).is_none() {
            return false;
        }
        loop {
            let Some(ns) = once(&mut self.work, self.series.ops_per_sample) else {
                return false;
            };
            if ns >= SAMPLE_NS || self.series.ops_per_sample >= MOST {
                self.every_ns = ns.clamp(1, 100 * SAMPLE_NS) * EVERY;
                return true;
            }
            self.series.ops_per_sample *= 2;
        }
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns && self.series.sample_ns.len() < MAX_SAMPLES
    }

    pub(crate) fn take(&mut self, after_samples: usize) {
        let before = cpu_time::of_thread();
        let begin = clock::monotonic_ns();
        let is_done = self.work.run(self.series.ops_per_sample);
        let end = clock::monotonic_ns();
        let after = cpu_time::of_thread();
        self.cpu.user_ns += after.user_ns.saturating_sub(before.user_ns);
        self.cpu.system_ns += after.system_ns.saturating_sub(before.system_ns);
        if is_done {
            self.series.sample_ns.push(end - begin);
            self.series.after_samples.push(after_samples as u64);
        }
        if self.series.sample_ns.len().is_multiple_of(DOUBLE_AFTER) {
            self.every_ns = self.every_ns.saturating_mul(2);
        }
        self.due_ns = end.saturating_add(self.every_ns);
    }

    pub(crate) fn series(self) -> (ControlSeries, CpuTime) {
        let mut series = self.series;
        series.sample_ns.shrink_to_fit();
        series.after_samples.shrink_to_fit();
        (series, self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_control_does_its_work_and_counts_it() {
        let copy = Control::Copy { footprint_bytes: 300_000 };
        for (control, footprint) in [(copy, 300_000), (Control::Call, 0), (Control::RoundTrip, 0)] {
            let mut ready = Controlled::new(control, 1).unwrap();
            for at in 0..3 {
                ready.take(5 * at);
            }
            let (series, _) = ready.series();
            assert_eq!(
                (series.footprint_bytes, series.after_samples.as_slice()),
                (footprint, [0, 5, 10].as_slice())
            );
            assert_eq!(series.times_ns().len(), 3, "{series:?}");
        }
    }

    #[test]
    fn buffers_are_of_like_footprint_and_bounded_over_all_lanes() {
        let bytes = |footprint, lanes| Copying::new(footprint, lanes).from.len() as u64;
        assert_eq!(bytes(100_000, 1), 50_000);
        assert_eq!(bytes(0, 1), MIN_BUFFER_BYTES);
        assert_eq!(bytes(u64::MAX, 1), MAX_BUFFER_BYTES);
        assert_eq!(bytes(u64::MAX, 64), MAX_ALL_BYTES / 128);
        assert_eq!(bytes(u64::MAX, 1 << 20), MIN_BUFFER_BYTES);
    }

    #[test]
    fn a_part_after_the_other_is_copied_until_all_is() {
        let mut copying = Copying::new(2 * (PART_BYTES as u64 + 7), 1);
        copying.part();
        assert_ne!(copying.to, copying.from);
        copying.part();
        assert_eq!((copying.at, &copying.to), (0, &copying.from));
    }

    #[test]
    fn the_next_one_is_due_after_32_times_its_time_and_later_after_more() {
        let mut ready = Controlled::new(Control::Call, 1).unwrap();
        assert!(ready.is_due(0));
        ready.take(0);
        let every = ready.every_ns;
        assert!(!ready.is_due(ready.due_ns - every) && ready.is_due(ready.due_ns));
        (1..DOUBLE_AFTER).for_each(|at| ready.take(at));
        assert_eq!(ready.every_ns, 2 * every);
    }
}
