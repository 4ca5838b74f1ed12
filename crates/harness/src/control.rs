//! Controls: work of a fixed kind that loads the same resource as a stage, done between its
//! samples.
//!
//! What the host does to a resource meanwhile meets the control as it meets the stage, and no
//! change of the program moves it: a copy of like footprint beside copies and conversions, an empty
//! system call beside calls, a round trip over the loopback beside round trips. What a comparison
//! makes of them is in `daqmeter_stats`. Nothing here is a result.

use std::hint::black_box;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_record::{ControlSeries, CpuTime};
use daqmeter_sys::{clock, cpu_time};

/// Work that loads a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Copies between two buffers of together so many bytes, a part at a time.
    Copy {
        /// What the stage reads and writes.
        footprint_bytes: u64,
    },
    /// Asks the kernel for the parent's number, which is all that it does.
    Call,
    /// Sends a small datagram over the loopback to a thread that sends it back.
    RoundTrip,
}

/// A sample of a control lasts about so long: long against the clock and the lines that the stage
/// left in the caches.
const SAMPLE_NS: u64 = 20_000;
/// Time between two samples, in samples: controls take 3 % of a stage's time.
const EVERY: u64 = 32;
/// After so many samples the time between them doubles: a stage of 10 s has about 500.
const DOUBLE_AFTER: usize = 64;
/// Room for samples; the time between the last ones would be 32 times 2^40 as long as one.
const MAX_SAMPLES: usize = 40 * DOUBLE_AFTER;
/// Largest buffer, of a lane that is alone. The stage itself empties the caches of what it holds:
/// it moves 32 times as much.
const MAX_BUFFER_BYTES: u64 = 8 << 20;
/// Largest buffers of all lanes together.
const MAX_ALL_BYTES: u64 = 64 << 20;
/// Least buffer.
const MIN_BUFFER_BYTES: u64 = 4096;
/// Part of a buffer that one operation copies.
const PART_BYTES: usize = 64 << 10;
/// Bytes of a datagram: an Etherbone cycle of a few reads.
const MESSAGE: [u8; 32] = [0x5a; 32];
/// A datagram that has not come back by then is lost, and not counted.
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

/// A control that is ready to be sampled.
pub(crate) struct Controlled {
    work: Work,
    series: ControlSeries,
    every_ns: u64,
    due_ns: u64,
    /// CPU time of all samples.
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
        // Not zero: pages of zeros would be one page until they are written.
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

/// A thread on the same CPUs that sends back what it gets.
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

/// Until an empty datagram comes, or the other end is gone.
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
        // A thread that could not be told is left: it ends when it sends to a socket that is gone.
        if let Some(thread) = self.thread.take().filter(|_| is_told) {
            let _ = thread.join();
        }
    }
}

impl Work {
    /// So many operations; whether all were done.
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
    /// Makes a control ready, for a lane that is one of so many. None where this host cannot do its
    /// work: without loopback sockets there is no round trip.
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

    /// Finds how many operations last long enough; false when the work cannot be done.
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

    /// Whether it is time for a sample.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns && self.series.sample_ns.len() < MAX_SAMPLES
    }

    /// Takes one, after so many of the stage.
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

    /// What it took, and the CPU time of that.
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
