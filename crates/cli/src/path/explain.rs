//! `daqmeter path explain`: which resource limits a path, by slowing each part in turn.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::Fault;
use daqmeter_path::ceilings::{self, CeilingKind, Ceilings};
use daqmeter_path::explain::{
    Explanation, Interval, LimitAnswer, PathLoad, PathSystem, Seen, Slope, Used, WATCHES, explain,
};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::resources::What;
use daqmeter_record::sanitise;
use daqmeter_record::units::{show_mb_per_s, show_ns, significant};
use daqmeter_report::paths;
use daqmeter_report::table::numbers_from;

use super::ceiling::Ceiling;
use super::limits;
use super::max::{probe, probe_quietly, run_of};
use super::placed::Placed;
use super::run::{checked, loaded, request};
use super::trying;
use crate::arguments::{budget, duration};
use crate::measure::{Bench, Common};
use crate::output::Failure;

/// Name the resource that limits a path, confirm it by slowing each part, and say what removing it
/// gains.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Runs as fast as the path goes say how far each resource is used: threads, CPUs, links, memory, what lies between the\n\
ends of a socket. Runs with 20 % of work added to one part say what the whole follows: its slope is 1 for the limit and\n\
0 for a part with time to spare. Runs with eight times as many buffers say whether parts wait for one another. The\n\
resource that explains what was seen much better than all others is named; rounds go on until there is one or the budget\n\
ends. \"No single one\" and \"cannot tell\" are answers. Runs at 80 % of the rate say what a block needs, from which the\n\
largest rate is predicted, and whether blocks that were due had room. The gain is measured without the work of the limit\n\
where that can be left out.\n\n\
Each thread gets a core of its own where there are as many, the busiest ones fast cores, unless the file or --pin chooses.\n\
What CPUs and memory carry is measured in turn with the runs: a core of each kind, the threads of a core, all CPUs,\n\
memory of each node from each node.\n\n\
With --try, changes are tried in turns with the path as it is, wherever the scheduler puts its threads: threads of the\n\
limit, CPUs by topology, blocks of twice and half the size, stores around the caches, huge pages, congestion control.\n\
Those that need root are named.\n\nExample:\n\n  $ daqmeter path explain digitizer-crate --budget 1m"
)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Time of one run
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100ms")]
    time: Duration,
    /// Time in which the limit is to be found; four rounds over all parts are run in any case
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "30s")]
    budget: Duration,
    /// Then try what may make it faster and needs no root, in turns with the path as it is, within
    /// this time [default: 30s]
    #[arg(long = "try", value_name = "TIME", value_parser = budget, num_args = 0..=1, require_equals = true, default_missing_value = "30s")]
    within: Option<Duration>,
    /// Another value for a field of the file: block=128KiB, stage.1.threads=2
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    common: Common,
}

pub(super) struct Chain<'a> {
    pub(super) bench: &'a mut Bench,
    pub(super) request: PathRequest,
    pub(super) path: Path,
    is_kept: bool,
    pub(super) ceiling: Ceiling,
    topology: Option<Topology>,
}

struct Topology {
    ceilings: Ceilings,
    runs: u32,
}

const RUNS: u32 = 8;

impl Topology {
    fn of(bench: &Bench) -> Result<Topology, Fault> {
        let ceilings = Ceilings::new(&bench.runner.context.host)?;
        Ok(Topology { ceilings, runs: 0 })
    }

    fn beside(&mut self) -> Result<(), Failure> {
        if self.runs.is_multiple_of(RUNS) {
            self.ceilings.measure()?;
        }
        self.runs += 1;
        Ok(())
    }
}

impl Chain<'_> {
    pub(super) fn new<'a>(
        bench: &'a mut Bench,
        path: &Path,
        request: PathRequest,
        is_kept: bool,
    ) -> Chain<'a> {
        Chain {
            bench,
            request,
            path: path.clone(),
            is_kept,
            ceiling: Ceiling::default(),
            topology: None,
        }
    }
}

impl PathSystem for Chain<'_> {
    type Error = Failure;

    fn run(&mut self, load: PathLoad) -> Result<Seen, Failure> {
        if let Some(topology) = &mut self.topology {
            topology.beside()?;
        }
        let free = self.request.clone();
        let request = match load {
            PathLoad::Free => free,
            PathLoad::Slowed { element, ns } => {
                PathRequest { slow_element: Some(element as u64), slow_ns: ns, ..free }
            }
            PathLoad::Without { element } => PathRequest { left_out: Some(element as u64), ..free },
            PathLoad::Buffers { times } => {
                PathRequest { with: self.path.with_more_buffers(times), ..free }
            }
            PathLoad::Every { ns } => {
                PathRequest { unpaced: false, rate_hz: Some(self.path.rate_every(ns)), ..free }
            }
        };
        let record = match self.is_kept {
            true => probe(self.bench, &request)?,
            false => probe_quietly(self.bench, &request)?,
        };
        let mut run = run_of(&record)?.clone();
        self.ceiling.put_into(&mut run, self.bench);
        Ok(Seen::of(&run))
    }

    /// Returns the number of watched runs: a part of a survey has none.
    fn watches(&self) -> usize {
        match self.is_kept && !self.path.is_live() {
            true => WATCHES,
            false => 0,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = loaded(&arguments.path, &arguments.set)?;
    let mut request =
        PathRequest { unpaced: true, ..request(&path, arguments.time, &arguments.common) };
    checked(&request)?;
    let mut bench = Bench::new(&arguments.common, 0)?;
    // The scheduler places the threads of changes: one change is a choice of CPUs, others change
    // the number of threads.
    let free = request.clone();
    let placed = Placed::choose(&bench, &path, &mut request)?;
    let begin = Instant::now();
    let (topology, not_measured) = match Topology::of(&bench) {
        Ok(topology) => (Some(topology), None),
        Err(fault) => (None, Some(fault)),
    };
    let mut chain = Chain::new(&mut bench, &path, request, true);
    chain.topology = topology;
    let explained = explain(&mut chain, &path.parts(), |_| begin.elapsed() < arguments.budget)?;
    let topology = chain.topology.take();
    let mut record = limits::proved(chain, "path/explain", &explained)?;
    if let (Some(within), Some(run)) = (arguments.within, &mut record.path) {
        let limit = match &explained.answer {
            LimitAnswer::Limit(what) => Some(what),
            LimitAnswer::NoSingle | LimitAnswer::CannotTell => None,
        };
        let seen = probe_quietly(&bench, &free)?;
        run.trials = trying::trials(&bench, &path, &free, run_of(&seen)?, limit, within)?;
    }
    bench.recorder.take(record)?;
    bench.recorder.finish(|records| {
        let last = records.iter().rev().find_map(|record| record.path.as_deref());
        let line = last.map_or_else(String::new, |run| format!("{}\n", sanitise::text(&run.line)));
        let shown = Shown {
            explained: &explained,
            placed: &placed,
            topology: topology.as_ref(),
            not_measured: not_measured.as_ref(),
            block_bytes: path.block_bytes as f64,
            buffers: path.buffers as u64,
            is_live: path.is_live(),
        };
        line + &shown.text() + &paths::text(records)
    })
}

struct Shown<'a> {
    explained: &'a Explanation,
    placed: &'a Placed,
    topology: Option<&'a Topology>,
    not_measured: Option<&'a Fault>,
    block_bytes: f64,
    buffers: u64,
    is_live: bool,
}

impl Shown<'_> {
    fn text(&self) -> String {
        let Explanation { runs, .. } = self.explained;
        format!(
            "placement: {}\n{}\n{}\n\n{}\n{}\n{}\n{runs} runs; intervals hold with 95 % confidence each\n",
            self.placed.text(),
            self.answer(),
            self.rates(),
            self.resources(),
            self.slopes(),
            self.ceilings()
        )
    }

    fn rate(&self, block_ns: f64) -> String {
        show_mb_per_s(self.block_bytes / block_ns * 1e9)
    }

    fn rates(&self) -> String {
        let rate = |ns: Interval| {
            let (low, high) = (self.rate(ns.high), self.rate(ns.low.max(f64::MIN_POSITIVE)));
            format!("{} MB/s ({low} to {high})", self.rate(ns.mean))
        };
        let Explanation { block_ns, predicted_ns, .. } = self.explained;
        let Interval { mean, low, high } = self.explained.more_buffers;
        let [mean, low, high] = [mean, low, high].map(|times| significant(times, 3));
        let more = self.more_buffers();
        format!(
            "largest rate: {}; predicted from runs at 80 % of it: {}\n{}{more}: {mean} times as fast ({low} to {high})",
            rate(*block_ns),
            rate(*predicted_ns),
            self.without_loss()
        )
    }

    /// Text of the largest rate of a source that cannot wait. A card loses nothing: it stops its
    /// triggers.
    fn without_loss(&self) -> String {
        if self.is_live {
            return String::new();
        }
        let (buffers, room) = (self.buffers, self.explained.room);
        let share = room.share_without_loss(buffers, buffers);
        let full = match room.no_room_ns > 0.0 {
            true => format!("were too few for up to {}", show_ns(room.no_room_ns)),
            false => {
                format!("were at most {} % full", significant(room.fullest.min(1.0) * 100.0, 2))
            }
        };
        format!(
            "without loss from a source that cannot wait: about {} MB/s, predicted: at 80 % its {buffers} buffers {full}, in {}\n",
            self.rate(self.explained.predicted_ns.mean / share),
            show_ns(room.watched_ns)
        )
    }

    fn more_buffers(&self) -> &'static str {
        match self.is_live {
            true => "with the ring looked at eight times as often",
            false => "with eight times as many buffers",
        }
    }

    fn answer(&self) -> String {
        match &self.explained.answer {
            LimitAnswer::Limit(what @ What::Between { .. }) => format!(
                "limit: {}. Both ends wait for it, and the path follows no part{}",
                sanitise::text(&what.text()),
                self.gain(what)
            ),
            LimitAnswer::Limit(what @ What::Buffers) if self.is_live => format!(
                "limit: the card's ring. No resource is used up, and the ring is full before it is looked at again{}",
                self.gain(what)
            ),
            LimitAnswer::Limit(what @ What::Buffers) => format!(
                "limit: {}. No resource is used up, and threads wait for one another{}",
                what.text(),
                self.gain(what)
            ),
            LimitAnswer::Limit(what) if what.follows_no_part() => format!(
                "limit: {}. It {}, and the path follows no part{}",
                sanitise::text(&what.text()),
                self.how_far_used(what),
                self.gain(what)
            ),
            LimitAnswer::Limit(what) => format!(
                "limit: {}. It {}, and the path follows what uses it{}",
                sanitise::text(&what.text()),
                self.how_far_used(what),
                self.gain(what)
            ),
            LimitAnswer::NoSingle => "limit: no single one. No part moves the path one for one, and no resource that was looked at is used up: \
                 the time of wake-ups, or memory where it is no resource above, is left"
                .to_owned(),
            LimitAnswer::CannotTell => {
                "limit: cannot tell. What was measured fits several resources, or none: a longer --budget, a longer --time, or a quiet host"
                    .to_owned()
            }
        }
    }

    fn how_far_used(&self, what: &What) -> String {
        let used = limits::used(self.explained, what);
        used.map_or_else(String::new, |used| used.text())
    }

    fn gain(&self, what: &What) -> String {
        let Some(gain) = self.explained.gain else {
            return String::new();
        };
        if let Some(tried) = gain.tried {
            let how = match what {
                What::Buffers => self.more_buffers(),
                _ => "without its work",
            };
            return format!(
                ".\nMeasured {how}, the path is {} times as fast ({} to {})",
                significant(tried.mean, 3),
                significant(tried.low, 3),
                significant(tried.high, 3)
            );
        }
        let removed = match what {
            What::Threads { .. } | What::Between { .. } => "If it took no time",
            What::Cpu(_) | What::AllCpus => "With more CPUs",
            What::Link { .. } => "With a faster link",
            What::Memory => "If its blocks stayed in the cache",
            What::Buffers => "With more buffers",
        };
        let factor = significant(gain.predicted.mean, 2);
        format!(
            ".\n{removed}, the path would be about {factor} times as fast until the next resource is used up: predicted from what a \
             block needs now, not tried"
        )
    }

    fn resources(&self) -> String {
        let percent = |share: f64| significant(share * 100.0, 3);
        let row = |used: &Used| {
            vec![
                used.what.text(),
                percent(used.used.mean),
                format!("{} to {}", percent(used.used.low), percent(used.used.high)),
                percent(used.occupied.mean),
                show_ns(used.least_ns.mean),
                self.rate(used.least_ns.mean.max(f64::MIN_POSITIVE)),
            ]
        };
        let headings = [
            "resource",
            "used [%]",
            "interval",
            "or waits for a CPU [%]",
            "per block",
            "allows MB/s",
        ];
        let table = numbers_from(1, &headings, self.explained.resources.iter().map(row));
        let refuted = self.explained.resources.iter().filter(|one| one.is_refuted());
        let notes = refuted.map(|one| {
            format!(
                "{}: more than was measured to go through it, so that part of what is counted for it stayed in the cache; not taken for a limit\n",
                one.what.text()
            )
        });
        table + &notes.collect::<String>()
    }

    fn slopes(&self) -> String {
        let row = |slope: &Slope| {
            let Interval { mean, low, high } = slope.slope;
            vec![
                slope.name.clone(),
                significant(mean, 2),
                format!("{} to {}", significant(low, 2), significant(high, 2)),
            ]
        };
        numbers_from(1, &["part", "slope", "interval"], self.explained.slopes.iter().map(row))
    }

    fn ceilings(&self) -> String {
        if let Some(why) = self.not_measured {
            return format!(
                "ceilings of CPUs and memory: not measured: {}\n",
                sanitise::text(&why.0)
            );
        }
        let row = |(ceiling, found): (&ceilings::Ceiling, Interval)| {
            let shown = |value: f64| match ceiling.kind {
                CeilingKind::Arithmetic => format!("{} cores", significant(value, 3)),
                CeilingKind::Memory { .. } => format!("{} MB/s", show_mb_per_s(value)),
            };
            let mut cpus = ceiling.cpus.clone();
            cpus.sort_unstable();
            let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
            vec![
                ceiling.name.clone(),
                cpus.join(","),
                shown(found.mean),
                format!("{} to {}", shown(found.low), shown(found.high)),
            ]
        };
        let headings = ["ceiling", "CPUs", "carries", "interval"];
        let found = self.topology.iter().flat_map(|one| one.ceilings.found());
        numbers_from(1, &headings, found.map(row))
    }
}
