//! The engine `pollution`: a program on one CPU beside a neighbour that copies, or runs without
//! copying.
//!
//! A neighbour that copies nothing can slow a program through shared cores, clocks and hypervisors.
//! Two neighbours without memory traffic, `spin` and `null-call`, serve for comparison.

use clap::Args;
use daqmeter_harness::{Fault, Job, Problem, Session, StageSpec, Tally, did_you_mean, is_default};
use daqmeter_kernels::copy::mark;
use daqmeter_record::copies::{MISSES, REFERENCES};
use daqmeter_record::{Counter, Ledger, TimeSeries};
use daqmeter_sys::clock;
use daqmeter_sys::perf::{EVENTS, OpenCounter, Reading, open_counter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine;
use crate::neighbour::{Neighbour, Running};
use crate::request::{CopyContext, CopyPath, CopyRequest, Direction, MAX_BLOCK_BYTES};
use crate::victims::{TESTS, Victim};

/// Pairs of operation and block that the study found most often in its traces (section 2.5).
pub const STUDY_COPIES: [(Direction, usize); 6] = [
    (Direction::Both, 16),
    (Direction::From, 224),
    (Direction::From, 1124),
    (Direction::From, 16_064),
    (Direction::To, 1448),
    (Direction::To, 4096),
];

/// One program beside one neighbour. The verb sweeps the fields without an option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
#[serde(deny_unknown_fields)]
pub struct PollutionRequest {
    /// Program that is disturbed, as `susan[c]_small`
    #[arg(skip = TESTS[0].to_owned())]
    pub test: String,
    /// What the neighbour does: ideal, cpu, dma, spin, null-call
    #[arg(skip = Neighbour::Ideal)]
    pub neighbour: Neighbour,
    /// Which way it copies: from, to, both
    #[arg(skip = Direction::From)]
    pub direction: Direction,
    /// Bytes of one of its copies
    #[arg(skip = 1_usize)]
    pub block_bytes: usize,
    /// How the neighbour copies by CPU
    #[arg(long, value_enum, value_name = "NAME", default_value_t = CopyPath::Pread, hide_possible_values = true)]
    pub path: CopyPath,
    /// CPU of the neighbour; it runs anywhere unless one is named
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_cpu: Option<u32>,
    /// Times are those of an emulator: the records say so, and no table shows them as results
    #[arg(long, hide = true)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub simulated: bool,
}

impl daqmeter_harness::Request for PollutionRequest {
    const KIND: &'static str = "pollution";
    const DESCRIPTION: &'static str =
        "a program (SUSAN, quicksort) beside a neighbour that copies, spins or calls the kernel";

    fn example() -> PollutionRequest {
        PollutionRequest {
            test: "susan[c]_small".to_owned(),
            neighbour: Neighbour::Cpu,
            direction: Direction::From,
            block_bytes: 224,
            path: CopyPath::Pread,
            peer_cpu: None,
            simulated: false,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        // The largest program: an image of 1 MiB and its results.
        const PROGRAM_BYTES: u64 = 16 << 20;
        Ok(Job {
            waiver: self.path.waiver(),
            is_emulated: self.neighbour == Neighbour::Dma && engine::is_emulated(&self.copies()),
            memory_bytes: Some(self.copies().memory_bytes().saturating_add(PROGRAM_BYTES)),
            ..Job::new(self, self.test.as_str(), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("block_bytes", self.block_bytes, 1..=MAX_BLOCK_BYTES)?;
        Problem::unless_cpus_exist("peer_cpu", self.peer_cpu.as_slice())?;
        if TESTS.contains(&self.test.as_str()) {
            return Ok(());
        }
        let (test, names) = (&self.test, TESTS.join(", "));
        let hint = did_you_mean(test, &TESTS);
        Err(Problem::new("test", format!("is `{test}`; one of {names} is wanted{hint}")))
    }
}

impl PollutionRequest {
    fn copies(&self) -> CopyRequest {
        let context = match self.neighbour {
            Neighbour::Dma => CopyContext::Shared,
            _ => CopyContext::Cpu,
        };
        CopyRequest { context, ..CopyRequest::new(self.path, self.direction, self.block_bytes) }
    }
}

struct PollutionSession {
    request: PollutionRequest,
    victim: Option<Victim>,
    running: Option<Running>,
    counters: Option<VictimCounters>,
    runs: u64,
    /// True if the counts of the last run have not been taken.
    is_uncounted: bool,
    bytes_before: u64,
}

struct VictimCounters {
    open: [Box<dyn OpenCounter>; 2],
    at: [Option<Reading>; 2],
    began_ns: u64,
    /// Time, references and misses of each run.
    runs: Vec<(u64, Option<[f64; 2]>)>,
}

/// Limit of the runs of one point: the samples that a stage keeps.
const MAX_RUNS: usize = 1 << 16;

/// Names of the counts of each run, for the counters of sums and the series of runs.
const COUNTED: [&str; 2] = [REFERENCES, MISSES];

impl VictimCounters {
    fn open() -> Option<VictimCounters> {
        let open = |name: &str| open_counter(*EVENTS.iter().find(|event| event.name == name)?).ok();
        Some(VictimCounters {
            open: [open("cache-references")?, open("cache-misses")?],
            at: [None; 2],
            began_ns: 0,
            runs: Vec::with_capacity(MAX_RUNS),
        })
    }

    fn now(&mut self) -> [Option<Reading>; 2] {
        self.open.each_mut().map(|counter| counter.read())
    }

    fn end_run(&mut self) {
        let (now, at) = (self.now(), self.at);
        let ns = clock::monotonic_ns() - self.began_ns;
        let counted = |which: usize| Some(now[which]?.since(at[which]?).scaled()?.0);
        // A program without a reference, or with more misses, was not counted.
        let counted = counted(0).zip(counted(1));
        let counted =
            counted.filter(|(references, misses)| misses <= references && *references > 0.0);
        self.runs.push((ns, counted.map(|(references, misses)| [references, misses])));
    }

    /// Returns the sums over all runs; none if a run was not counted.
    fn sums(&self) -> Vec<Counter> {
        let sum = |which: usize| -> Option<(&str, f64)> {
            let runs = self.runs.iter().map(|(_, run)| Some((*run)?[which]));
            let sum = runs.sum::<Option<f64>>().filter(|_| !self.runs.is_empty())?;
            Some((COUNTED[which], sum))
        };
        let sums = [0, 1].into_iter().filter_map(sum);
        sums.map(|(name, value)| Counter::measured(name, value, "")).collect()
    }

    fn series(&self) -> Vec<TimeSeries> {
        let of = |which: usize| TimeSeries {
            name: COUNTED[which].to_owned(),
            unit: "count".to_owned(),
            times_ns: self.runs.iter().map(|(ns, _)| *ns).collect(),
            values: self.runs.iter().map(|(_, run)| Some((*run)?[which])).collect(),
        };
        vec![of(0), of(1)]
    }
}

fn open(request: &PollutionRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    Ok(vec![Box::new(PollutionSession {
        request: request.clone(),
        victim: None,
        running: None,
        counters: None,
        runs: 0,
        is_uncounted: false,
        bytes_before: 0,
    })])
}

impl PollutionSession {
    fn victim(&mut self) -> &mut Victim {
        self.victim.as_mut().expect("prepared before the first run")
    }

    fn copied(&self) -> u64 {
        self.running.as_ref().map_or(0, Running::copied)
    }

    fn end_run(&mut self) {
        if std::mem::take(&mut self.is_uncounted)
            && let Some(counters) = &mut self.counters
        {
            counters.end_run();
        }
    }

    fn crowded(&self) -> Option<String> {
        let PollutionRequest { neighbour, path, .. } = self.request;
        let has_engine = neighbour == Neighbour::Dma && path == CopyPath::EngineThread;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (has_engine && cpus < 3).then(|| {
            format!(
                "an emulated engine needs a CPU of its own beside the program's and the neighbour's; here are {cpus}"
            )
        })
    }
}

impl Session for PollutionSession {
    fn device(&self) -> String {
        let PollutionRequest { test, neighbour, .. } = &self.request;
        format!("{test} beside {neighbour}")
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![StageSpec { before_sample: true, ..StageSpec::new(self.request.test.clone(), 0, 0) }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let request = &self.request;
        self.victim = Some(Victim::new(&request.test)?);
        if request.neighbour != Neighbour::Ideal {
            let copies = request.copies();
            self.running = Some(Running::start(request.neighbour, copies, request.peer_cpu)?);
        }
        // Opened after the neighbour's thread was made, which would inherit them.
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
        self.is_uncounted = true;
        Ok(())
    }

    /// Checks between runs that the neighbour has not failed, and keeps the previous run's counts.
    fn before_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        self.end_run();
        self.running.as_ref().map_or(Ok(()), Running::check)?;
        if let Some(counters) = &mut self.counters {
            counters.at = counters.now();
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        // The counts so far belong to the last run; those of verification do not.
        self.end_run();
        let victim = self.victim();
        victim.run();
        let checked = victim.check();
        checked.map_err(|error| Fault::new(format!("{}: {error}", self.request.test)))
    }

    fn begin(&mut self) {
        self.runs = 0;
        self.bytes_before = self.copied();
        self.is_uncounted = false;
        if let Some(counters) = &mut self.counters {
            counters.runs.clear();
            counters.began_ns = clock::monotonic_ns();
        }
    }

    fn tally(&mut self) -> Tally {
        self.end_run();
        let bytes = self.copied() - self.bytes_before;
        let mut counters = vec![
            Counter::count("victim-runs", self.runs),
            Counter::measured("neighbour-bytes", bytes as f64, "B"),
        ];
        let mut series = Vec::new();
        if let Some(counted) = &self.counters {
            counters.extend(counted.sums());
            series = counted.series();
        }
        let ledger = Ledger { issued: self.runs, delivered: self.runs, ..Ledger::new("runs") };
        Tally {
            ledgers: vec![ledger],
            counters,
            series,
            warnings: self.crowded().into_iter().collect(),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use daqmeter_harness::{Context as Facts, Request as _, Settings, StepPlan, measure};
    use daqmeter_record::RunRecord;

    use super::*;

    fn run(request: &PollutionRequest, runs: u64) -> RunRecord {
        let settings = Settings::new(StepPlan::ByStage(runs), "test");
        let job = request.job().unwrap();
        measure(&job, &settings, &Facts::default(), &[], &mut []).unwrap()
    }

    fn example() -> PollutionRequest {
        PollutionRequest::example()
    }

    #[test]
    fn pollution_conforms() {
        daqmeter_harness::conformance::run(&example().job().unwrap());
    }

    #[test]
    fn every_neighbour_stands_beside_the_program() {
        for &neighbour in Neighbour::value_variants() {
            let mut request = PollutionRequest { neighbour, ..example() };
            if neighbour == Neighbour::Dma {
                request.path = CopyPath::EngineThread;
            }
            let copied = || {
                let record = run(&request, 4);
                assert!(record.outcome.is_ok(), "{neighbour}: {:?}", record.outcome);
                assert_eq!(record.counter("victim-runs"), Some(4.0));
                record.counter("neighbour-bytes").unwrap()
            };
            if [Neighbour::Cpu, Neighbour::Dma].contains(&neighbour) {
                // Four short runs can end before a crowded host lets the neighbour finish a copy;
                // they run again.
                assert!((0..1000).any(|_| copied() > 0.0), "{neighbour} copied nothing");
            } else {
                assert_eq!(copied(), 0.0, "{neighbour}");
            }
        }
    }

    /// Gives these readings, and then none.
    struct Given(std::vec::IntoIter<Reading>);

    impl OpenCounter for Given {
        fn read(&mut self) -> Option<Reading> {
            self.0.next()
        }
    }

    /// Regression: counts of a tenth of the time were not scaled, a failed read was 0, and no
    /// reference was a count.
    #[test]
    fn each_run_has_its_own_scaled_references_and_misses_or_none() {
        let counted = |references: &[(u64, u64)], misses: &[(u64, u64)]| {
            // Value and running time of each reading, of 100 ns enabled in each run.
            let given = |readings: &[(u64, u64)]| -> Box<dyn OpenCounter> {
                let reading = |(at, (value, running_ns)): (usize, &(u64, u64))| Reading {
                    value: *value,
                    enabled_ns: 100 * at as u64,
                    running_ns: *running_ns,
                };
                let readings = readings.iter().enumerate().map(reading);
                Box::new(Given(readings.collect::<Vec<_>>().into_iter()))
            };
            let open = [given(references), given(misses)];
            let mut counters =
                VictimCounters { open, at: [None; 2], began_ns: 0, runs: Vec::new() };
            counters.runs.clear();
            counters.began_ns = clock::monotonic_ns();
            counters.at = counters.now();
            counters.end_run();
            let values: Vec<_> =
                counters.series().into_iter().flat_map(|series| series.values).collect();
            (values, counters.sums().len())
        };
        for (references, misses, wanted) in [
            (&[(5, 0), (105, 100)][..], &[(0, 0), (10, 100)][..], Some((100.0, 10.0))),
            (&[(0, 0), (100, 100)], &[(0, 0), (1, 10)], Some((100.0, 10.0))),
            (&[(0, 0), (100, 100)], &[(0, 0), (0, 0)], None),
            (&[(0, 0), (100, 100)], &[(0, 0)], None),
            (&[(0, 0), (0, 100)], &[(0, 0), (0, 100)], None),
            (&[(0, 0), (2, 100)], &[(0, 0), (10, 100)], None),
        ] {
            let found = counted(references, misses);
            let (values, sums) = match wanted {
                Some((references, misses)) => (vec![Some(references), Some(misses)], 2),
                None => (vec![None, None], 0),
            };
            assert_eq!(found, (values, sums), "{references:?} {misses:?}");
        }
    }

    #[test]
    fn a_neighbour_that_cannot_copy_fails_the_run_with_the_reason() {
        let record = run(&PollutionRequest { neighbour: Neighbour::Dma, ..example() }, 1);
        let reason = record.outcome.reason().unwrap();
        assert!(reason.contains("the neighbour: pread has no channels"), "{reason}");
    }

    #[test]
    fn programs_and_cpus_that_are_not_here_are_refused() {
        for (name, value, wanted) in [
            ("test", "susan[c]_smal".into(), "did you mean `susan[c]_small`?"),
            ("path", "nowhere".into(), "expected one of `pread`"),
            ("peer_cpu", 9999_u64.into(), "`peer_cpu` is 9999: there is no such CPU"),
            ("block_bytes", 0_u64.into(), "`block_bytes` is 0"),
        ] {
            let value: daqmeter_record::Param = value;
            let workload = example().workload().with(name, value);
            let fault = PollutionRequest::of(&workload).unwrap_err().0;
            assert!(fault.contains(wanted), "{fault}");
        }
    }
}
