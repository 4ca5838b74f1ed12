//! The engine `pollution`: a program on one CPU, and beside it a neighbour that copies, or only looks as if it did.
//!
//! Time alone misleads: a neighbour that copies nothing can slow a program as much as one that copies, through shared cores,
//! clocks and hypervisors. So there are two neighbours that touch no memory, `spin` and `null-call`, to compare with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use daqmeter_harness::{
    Availability, Engine, Fault, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_kernels::copy::mark;
use daqmeter_record::{Counter, Ledger, Workload};
use daqmeter_sys::affinity;
use daqmeter_sys::copies::null_call;
use daqmeter_sys::perf::{CounterSource, EVENTS, Kernel, OpenCounter};

use crate::paths;
use crate::request::{Context, Direction, MAX_BLOCK_BYTES, Request};
use crate::victims::Victim;

/// What the neighbour does: the study's three systems, and two controls.
pub const NEIGHBOURS: [(&str, &str); 5] = [
    ("ideal", "nothing: the program is alone"),
    ("cpu", "copies by CPU"),
    ("dma", "copies by an engine"),
    ("spin", "counts: no memory, no kernel"),
    ("null-call", "system calls without work"),
];

/// Pairs of operation and block that the study found most often in its traces (section 2.5).
pub const STUDY_COPIES: [(Direction, usize); 6] = [
    (Direction::Both, 16),
    (Direction::From, 224),
    (Direction::From, 1124),
    (Direction::From, 16_064),
    (Direction::To, 1448),
    (Direction::To, 4096),
];

/// Programs beside neighbours. Workload: `test`, `neighbour`, `direction`, `block_bytes`, `path` (of the copies), and
/// `neighbour_cpu` where it is pinned.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollutionEngine;

struct PollutionSession {
    test: String,
    victim: Option<Victim>,
    neighbour: String,
    copies: Request,
    neighbour_cpu: Option<u32>,
    beside: Option<Beside>,
    counters: Option<VictimCounters>,
    runs: u64,
    bytes_before: u64,
}

/// A neighbour at work.
struct Beside {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    fault: Arc<std::sync::Mutex<Option<Fault>>>,
    thread: Option<JoinHandle<()>>,
}

/// References and misses of the victim's thread, where the host counts them.
struct VictimCounters {
    open: [Box<dyn OpenCounter>; 2],
    at: [u64; 2],
    sum: [u64; 2],
}

impl VictimCounters {
    fn open() -> Option<VictimCounters> {
        let open = |name: &str| {
            Kernel
                .open(*EVENTS.iter().find(|event| event.name == name)?)
                .ok()
        };
        Some(VictimCounters {
            open: [open("cache-references")?, open("cache-misses")?],
            at: [0; 2],
            sum: [0; 2],
        })
    }

    fn now(&mut self) -> [u64; 2] {
        let [references, misses] = &mut self.open;
        [references.read().value, misses.read().value]
    }
}

impl Engine for PollutionEngine {
    fn name(&self) -> &'static str {
        "pollution"
    }

    fn description(&self) -> &'static str {
        "a program (SUSAN, quicksort) beside a neighbour that copies, spins or calls the kernel"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn probe_for(&self, workload: &Workload) -> Availability {
        paths::probe_for(workload)
    }

    fn target(&self, workload: &Workload) -> String {
        workload.text("test").unwrap_or("").to_owned()
    }

    fn is_emulated(&self, workload: &Workload) -> bool {
        workload.text("neighbour") == Ok("dma") && workload.text("path") == Ok("engine-thread")
    }

    fn parameters(&self) -> &'static [Parameter] {
        parameters![
            "test": "program that is disturbed, as susan[c]_small",
            "neighbour": "ideal, cpu, dma, spin or null-call",
            "direction": "from the kernel, to it, or both",
            "block_bytes": "bytes of one of the neighbour's copies",
            "path": "the neighbour's way to copy",
            "neighbour_cpu": "CPU of the neighbour",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        // The largest program: an image of 1 MiB, and what is found in it.
        const PROGRAM_BYTES: u64 = 16 << 20;
        let block_bytes = usize::try_from(workload.int("block_bytes").ok()?).ok()?;
        let copies = Request::new(
            workload.text("path").ok()?,
            Direction::Both,
            block_bytes.max(1),
        );
        Some(copies.memory_bytes().saturating_add(PROGRAM_BYTES))
    }

    fn example(&self) -> Workload {
        Workload::new("pollution")
            .with("test", "susan[c]_small")
            .with("neighbour", "cpu")
            .with("direction", "from")
            .with("block_bytes", 224_u64)
            .with("path", "pread")
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let test = workload.text("test")?.to_owned();
        let neighbour = workload.text("neighbour")?.to_owned();
        if !NEIGHBOURS.iter().any(|(name, _)| *name == neighbour) {
            return Err(workload
                .error("neighbour", "is none of ideal, cpu, dma, spin, null-call")
                .into());
        }
        let direction = Direction::from_name(workload.text("direction")?)
            .ok_or_else(|| workload.error("direction", "is none of from, to, both"))?;
        let bytes = workload.int_within("block_bytes", 0..=MAX_BLOCK_BYTES)?;
        let block_bytes = usize::try_from(bytes)
            .map_err(|_| workload.error("block_bytes", "is beyond this machine"))?;
        let mut copies = Request::new(workload.text("path")?, direction, block_bytes.max(1));
        if neighbour == "dma" {
            copies.context = Context::Shared;
        }
        let cpu = workload.int_within_or("neighbour_cpu", u64::MAX, 0..=u64::from(u32::MAX))?;
        let neighbour_cpu = u32::try_from(cpu).ok();
        // A test that is none is refused before anything runs.
        Victim::new(&test)?;
        Ok(vec![Box::new(PollutionSession {
            test,
            victim: None,
            neighbour,
            copies,
            neighbour_cpu,
            beside: None,
            counters: None,
            runs: 0,
            bytes_before: 0,
        })])
    }
}

impl PollutionSession {
    fn victim(&mut self) -> &mut Victim {
        self.victim.as_mut().expect("prepared before the first run")
    }

    /// Starts the neighbour and waits until it is at work.
    fn start_neighbour(&mut self) -> Result<(), Fault> {
        let (stop, bytes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let fault = Arc::new(std::sync::Mutex::new(None));
        let at_work = Arc::new(AtomicBool::new(false));
        let job = Job {
            kind: self.neighbour.clone(),
            copies: self.copies.clone(),
            cpu: self.neighbour_cpu,
            stop: stop.clone(),
            bytes: bytes.clone(),
            at_work: at_work.clone(),
        };
        let (told, working) = (fault.clone(), at_work.clone());
        let thread = std::thread::Builder::new()
            .name("neighbour".to_owned())
            .spawn(move || {
                if let Err(error) = job.run() {
                    *told
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                }
                working.store(true, Ordering::Release);
            });
        let thread = thread.map_err(|error| Fault::new(format!("start the neighbour: {error}")))?;
        self.beside = Some(Beside {
            stop,
            bytes,
            fault,
            thread: Some(thread),
        });
        while !at_work.load(Ordering::Acquire) && !self.neighbour_has_ended() {
            std::thread::yield_now();
        }
        self.neighbour_fault()
    }

    fn neighbour_has_ended(&self) -> bool {
        let thread = self
            .beside
            .as_ref()
            .and_then(|beside| beside.thread.as_ref());
        thread.is_some_and(JoinHandle::is_finished)
    }

    fn neighbour_fault(&self) -> Result<(), Fault> {
        let Some(beside) = &self.beside else {
            return Ok(());
        };
        // Asked first: a thread that ends with a fault has left it before.
        let has_ended = self.neighbour_has_ended();
        let fault = beside
            .fault
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        match fault {
            Some(fault) => Err(fault.context("the neighbour")),
            None if has_ended => Err(Fault::new(
                "the neighbour's thread panicked: a bug in daqmeter, please report it",
            )),
            None => Ok(()),
        }
    }

    fn copied(&self) -> u64 {
        self.beside
            .as_ref()
            .map_or(0, |beside| beside.bytes.load(Ordering::Relaxed))
    }

    fn settle_counters(&mut self) {
        if let Some(counters) = &mut self.counters {
            let now = counters.now();
            for (sum, (now, at)) in counters
                .sum
                .iter_mut()
                .zip(now.into_iter().zip(counters.at))
            {
                *sum += now - at;
            }
            counters.at = now;
        }
    }
}

/// What the neighbour's thread is to do.
struct Job {
    kind: String,
    copies: Request,
    cpu: Option<u32>,
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    at_work: Arc<AtomicBool>,
}

impl Job {
    fn run(&self) -> Result<(), Fault> {
        if let Some(cpu) = self.cpu {
            affinity::pin_to(cpu)?;
        }
        match self.kind.as_str() {
            "spin" => self.repeat(|| {
                std::hint::spin_loop();
                Ok(0)
            }),
            "null-call" => self.repeat(|| {
                null_call();
                Ok(0)
            }),
            _ => self.copy(),
        }
    }

    fn copy(&self) -> Result<(), Fault> {
        let path = paths::path(&self.copies.path).ok_or_else(|| {
            Fault::new(format!(
                "there is no way to copy called `{}`",
                self.copies.path
            ))
        })?;
        let mut lanes = path.open(&self.copies)?;
        let mover = &mut lanes[0];
        mover.prepare()?;
        let parts = self.copies.direction.parts();
        let bytes = (self.copies.block_bytes * parts.len()) as u64;
        self.repeat(|| {
            for direction in parts {
                if mover.is_consumed() {
                    mover.freshen(*direction)?;
                }
                mover.copy(*direction)?;
            }
            Ok(bytes)
        })
    }

    fn repeat(&self, mut once: impl FnMut() -> Result<u64, Fault>) -> Result<(), Fault> {
        self.bytes.fetch_add(once()?, Ordering::Relaxed);
        self.at_work.store(true, Ordering::Release);
        while !self.stop.load(Ordering::Relaxed) {
            // The counter is the neighbour's alone while it runs: its line stays where it is.
            self.bytes.fetch_add(once()?, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Session for PollutionSession {
    fn device(&self) -> String {
        format!("{} beside {}", self.test, self.neighbour)
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![StageSpec {
            fresh: true,
            ..StageSpec::new(self.test.clone(), 0, 0)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.victim = Some(Victim::new(&self.test)?);
        if self.neighbour != "ideal" {
            self.start_neighbour()?;
        }
        // After the neighbour's thread was made: it would inherit them.
        self.counters = VictimCounters::open();
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            mark(true);
            self.victim().run();
            mark(false);
            self.runs += 1;
        }
        Ok(())
    }

    /// Between runs: what was counted is put away, and a neighbour that failed is noticed.
    fn freshen(&mut self, _stage: usize) -> Result<(), Fault> {
        self.neighbour_fault()?;
        self.settle_counters();
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        // What was counted until now is of the runs; verification is not.
        self.settle_counters();
        let test = self.test.clone();
        let victim = self.victim();
        victim.run();
        victim
            .check()
            .map_err(|error| Fault::new(format!("{test}: {error}")))
    }

    fn begin(&mut self) {
        self.runs = 0;
        self.bytes_before = self.copied();
        if let Some(counters) = &mut self.counters {
            counters.at = counters.now();
            counters.sum = [0; 2];
        }
    }

    fn tally(&mut self) -> Tally {
        let mut counters = vec![
            Counter::count("victim-runs", self.runs),
            Counter {
                unit: "B".to_owned(),
                ..Counter::count("neighbour-bytes", self.copied() - self.bytes_before)
            },
        ];
        if let Some(counted) = &self.counters {
            counters.push(Counter::count("victim-cache-references", counted.sum[0]));
            counters.push(Counter::count("victim-cache-misses", counted.sum[1]));
        }
        let crowded = self.neighbour == "dma" && self.copies.path == "engine-thread";
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let warning = (crowded && cpus < 3).then(|| {
            format!(
                "an emulated engine needs a CPU of its own beside the program's and the neighbour's; here are {cpus}"
            )
        });
        let ledger = Ledger {
            issued: self.runs,
            delivered: self.runs,
            ..Ledger::new("runs")
        };
        Tally {
            ledgers: vec![ledger],
            counters,
            warnings: warning.into_iter().collect(),
            ..Tally::default()
        }
    }
}

impl Drop for PollutionSession {
    fn drop(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.stop.store(true, Ordering::Relaxed);
            if let Some(thread) = beside.thread.take() {
                // A panic there has been reported by its own thread.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::{Context as Facts, Settings, StepPlan, measure};

    use super::*;

    #[test]
    fn pollution_conforms() {
        daqmeter_harness::conformance::run(&PollutionEngine);
    }

    #[test]
    fn every_neighbour_stands_beside_the_program() {
        for (neighbour, _) in NEIGHBOURS {
            let mut workload = PollutionEngine.example().with("neighbour", neighbour);
            if neighbour == "dma" {
                workload = workload.with("path", "engine-thread");
            }
            let settings = Settings::new(StepPlan::ByStage(4), "test");
            let copied = || {
                let record = measure(
                    &PollutionEngine,
                    &workload,
                    &settings,
                    &Facts::default(),
                    &[],
                    &mut [],
                )
                .unwrap();
                assert!(record.outcome.is_ok(), "{neighbour}: {:?}", record.outcome);
                assert_eq!(record.counter("victim-runs"), Some(4.0));
                record.counter("neighbour-bytes").unwrap()
            };
            if ["cpu", "dma"].contains(&neighbour) {
                // Four short runs can be over before a crowded host lets the neighbour finish a copy: then they are run again.
                assert!(
                    (0..1000).any(|_| copied() > 0.0),
                    "{neighbour} copied nothing"
                );
            } else {
                assert_eq!(copied(), 0.0, "{neighbour}");
            }
        }
    }

    #[test]
    fn a_neighbour_that_cannot_copy_fails_the_run_with_the_reason() {
        let workload = PollutionEngine.example().with("path", "nowhere");
        let settings = Settings::new(StepPlan::ByStage(1), "test");
        let record = measure(
            &PollutionEngine,
            &workload,
            &settings,
            &Facts::default(),
            &[],
            &mut [],
        )
        .unwrap();
        assert!(
            record
                .outcome
                .reason()
                .unwrap()
                .contains("no way to copy called `nowhere`")
        );
    }
}
