//! `daqmeter twin links`: the largest number of links that this host reads out, by a prediction and the few probes that confirm it.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::{Request, Settings, StepPlan};
use daqmeter_readout::chain::observation;
use daqmeter_readout::request::{Chosen, Receivers};
use daqmeter_readout::search::{Allowed, Verdict};
use daqmeter_readout::{ReadoutRequest, Scenario};
use daqmeter_record::units::{plural, show_ns, significant};
use daqmeter_record::{Outcome, Role, RunRecord};
use daqmeter_report::table::{numbers_from, wrapped};
use daqmeter_sys::{affinity, available};
use daqmeter_twin::links::{LinkHost, LinkProbe, MostLinks, Placed, Use, most_links, place};

use crate::arguments::duration;
use crate::named::Replaced;
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// Find how many readers of a scenario this host carries, each with its links; measures short probes at the scenario's rate.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Where the next probe is to be is predicted from what the threads used before. The search ends with a number that is carried\nbeside one that is not, so the answer was seen. A number that is not carried is tried up to three times.\n\nExample:\n\n  $ daqmeter twin links full --rate 100kHz --max 24 --pins pins.toml"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Most links to try; whole readers
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=256))]
    max: u32,
    /// Time of a probe
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    probe: Duration,
    /// Write which thread goes to which CPU to this file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pins: Option<Replaced>,
    #[command(flatten)]
    receivers: Receivers,
    #[command(flatten)]
    common: Common,
}

/// This host with emulated cards.
struct Here<'a> {
    runner: &'a mut Runner,
    request: ReadoutRequest,
    pin: Vec<u32>,
    runs: u32,
}

impl Here<'_> {
    fn once(&mut self, readers: u32) -> Result<(bool, Vec<Use>), Failure> {
        let settings = Settings {
            role: Role::Probe,
            ..self.runner.settings(StepPlan::ByStage(1), "twin/links", &self.pin)
        };
        let mut request = self.request.clone();
        // A scenario with more is refused by its own check.
        request.chosen.channels = Some(u16::try_from(readers).unwrap_or(u16::MAX));
        self.runner.point("readout", &request.workload(), &settings, None)?;
        self.runs += 1;
        if self.runner.stop.is_set() {
            return Err(Failure::interrupted());
        }
        let record = self.runner.recorder.records.last();
        let record = record.ok_or_else(|| Failure::refused("nothing was measured"))?;
        match &record.outcome {
            Outcome::Ok => Ok((is_carried(record), uses(record, readers))),
            other => Err(Failure::tool(other.reason().unwrap_or("failed"))),
        }
    }
}

fn is_carried(record: &RunRecord) -> bool {
    let allowed = Allowed { lost: 0, dead_share: 0.0 };
    observation(record).verdict(allowed) == Verdict::Stable
}

/// What threads used; the counters of all readers are added up in the record.
fn uses(record: &RunRecord, readers: u32) -> Vec<Use> {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let (reading, receiving) = (value("reader-cpu-ppm") * 1e-6, value("receiver-cpu"));
    let each = f64::from(readers);
    let used = |resource: &str, share: f64| Use { resource: resource.to_owned(), share };
    vec![
        used(READER, reading / each),
        used(RECEIVER, receiving / each),
        used("all CPUs", (reading + receiving) / available::cpus()),
    ]
}

const READER: &str = "reader";
const RECEIVER: &str = "receiver";

impl LinkHost for Here<'_> {
    type Error = Failure;

    /// The majority of up to three: the host may have been disturbed.
    fn probe(&mut self, readers: u32) -> Result<(bool, Vec<Use>), Failure> {
        let first = self.once(readers)?;
        if first.0 {
            return Ok(first);
        }
        let second = self.once(readers)?;
        match second.0 {
            true => self.once(readers),
            false => Ok(second),
        }
    }
}

/// Refuses before the first probe what the last would refuse: a card has so many readers.
fn refuse_more_than_a_card_has(
    request: &ReadoutRequest,
    readers: u32,
    max: u32,
) -> Result<(), Failure> {
    let mut largest = request.clone();
    largest.chosen.channels = Some(u16::try_from(readers).unwrap_or(u16::MAX));
    let checked = largest.chosen.load().map(|_| ());
    checked.map_err(|error| {
        Failure::refused(format!(
            "--max {max}, with {readers} readers: {error}: give a smaller --max"
        ))
    })
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let scenario = arguments.chosen.load().map_err(Failure::refused)?;
    let each = u32::from(scenario.card.links);
    let readers = arguments.max / each;
    if readers == 0 {
        return Err(Failure::refused(format!(
            "--max {}: a reader of this scenario has {each} links, so at least {each} are wanted",
            arguments.max
        )));
    }
    let request = ReadoutRequest {
        chosen: arguments.chosen.clone(),
        receivers: arguments.receivers.clone(),
        seconds: arguments.probe.as_secs_f64(),
        probe: true,
        ..ReadoutRequest::default()
    };
    request
        .check()
        .map_err(|wrong| Failure::refused(format!("`{}` {}", wrong.name, wrong.text)))?;
    refuse_more_than_a_card_has(&request, readers, arguments.max)?;
    let began = Instant::now();
    let mut runner = Runner::new(&arguments.common, 0)?;
    let mut here = Here { runner: &mut runner, request, pin: arguments.common.pins(), runs: 0 };
    let found = most_links(&mut here, readers)?;
    let runs = here.runs;
    let placed = placed(&found);
    if let Some(file) = &arguments.pins {
        let text = pins(arguments, &scenario, &found, &placed);
        daqmeter_record::file::replace(file, text.as_bytes())
            .map_err(|error| Failure::refused(format!("{}: {error}", file.display())))?;
    }
    let took = began.elapsed();
    runner.conclude(None, |_| text(&found, each, readers, runs, took))
}

/// Readers and receivers of the largest number, by what they used, on the CPUs of this process.
fn placed(found: &MostLinks) -> Vec<Placed> {
    let largest = found.probes.iter().find(|probe| probe.links == found.links);
    let Some(largest) = largest else {
        return Vec::new();
    };
    let threads = |name: &str| {
        let share = largest.uses.iter().find(|used| used.resource == name);
        let share = share.map_or(0.0, |used| used.share);
        (0..found.links).map(|at| (format!("{name} {at}"), share)).collect::<Vec<_>>()
    };
    let all = [threads(READER), threads(RECEIVER)].concat();
    place(&all, affinity::process_cpus())
}

fn text(found: &MostLinks, each: u32, readers: u32, runs: u32, took: Duration) -> String {
    let row = |probe: &LinkProbe| {
        let used = |at: usize| significant(probe.uses[at].share * 100.0, 3);
        let predicted = probe.predicted.map(|share| significant(share * 100.0, 3));
        vec![
            (probe.links * each).to_string(),
            probe.links.to_string(),
            predicted.unwrap_or("-".to_owned()),
            used(0),
            used(1),
            used(2),
            if probe.is_carried { "yes" } else { "no" }.to_owned(),
        ]
    };
    let headings = [
        "links",
        "readers",
        "predicted [%]",
        "each reader [%]",
        "each receiver [%]",
        "all CPUs [%]",
        "carried",
    ];
    let mut out = numbers_from(0, &headings, found.probes.iter().map(row));
    let links = found.links * each;
    let most = match found.links == readers {
        true => format!("{links} links are carried, the most that were to be tried"),
        false => format!("{links} links are carried, {} are not", links + each),
    };
    let limiting = found.limiting.as_deref().unwrap_or("-");
    let line = format!(
        "{most}; what is used most there: {limiting}. {} in {}, where one run of 12 min for each number would take {} min.",
        plural(u64::from(runs), "probe"),
        show_ns(took.as_secs_f64() * 1e9),
        12 * readers
    );
    let _ = write!(out, "\n{}\n", wrapped(&line, 0));
    out
}

/// CPUs of some threads in their order, as options want them.
fn list(placed: &[Placed], name: &str) -> String {
    let of = placed.iter().filter(|placed| placed.thread.starts_with(name));
    of.map(|placed| placed.cpu.to_string()).collect::<Vec<_>>().join(",")
}

fn pins(
    arguments: &Arguments,
    scenario: &Scenario,
    found: &MostLinks,
    placed: &[Placed],
) -> String {
    let mut out = format!(
        "# Threads and CPUs for {} readers of {} links each, by what they used in probes of {}.\n# daqmeter readout sweep {} --instances {} --pin {} --receiver-pin {}\n",
        found.links,
        scenario.card.links,
        show_ns(arguments.probe.as_secs_f64() * 1e9),
        daqmeter_record::sanitise::text(&arguments.chosen.scenario),
        found.links,
        list(placed, READER),
        list(placed, RECEIVER)
    );
    for placed in placed {
        let _ = write!(
            out,
            "\n[[thread]]\nname = \"{}\"\ncpu = {}\nused_percent = {:.1}\n",
            placed.thread,
            placed.cpu,
            placed.share * 100.0
        );
    }
    out
}
