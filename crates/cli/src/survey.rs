//! `daqmeter survey`: the points of the plan `survey`, or of `survey-short` for little time, as one
//! report with answers.

use std::collections::BTreeSet;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_campaign::{Budget, Plan, Site};
use daqmeter_harness::{StopFlag, guarded};
use daqmeter_path::Path;
use daqmeter_record::sanitise::shell_word;
use daqmeter_record::units::{plural, show_bytes};
use daqmeter_record::{Host, RunRecord};
use daqmeter_report::rate::undone;
use daqmeter_report::table::{set_window, wrapped};
use daqmeter_report::{host_text, survey_frame};
use daqmeter_sys::host::Files;

use crate::arguments::budget;
use crate::measure::{Bench, Common};
use crate::named::{Appended, Replaced, is_folder, refuse_same_files, refuse_unwritable};
use crate::output::{Ended, Failure, emit, tell, window_columns, write_file};
use crate::path::Search;
use crate::pmu::chosen::Observed;
use crate::progress::Forecast;
use crate::recorder::Recording;
use crate::run::refuse_refused;

/// Measure this host: print what each path carries and what limits it, write a page and records.
///
/// The page is report.html and the records are records.jsonl, or the next free names, such as
/// report-2.html. In a folder of records, page and records have the name of the host.
#[derive(Debug, Args)]
#[command(
    mut_arg("all", |option| option.alias("tables").help(ALL)),
    after_long_help = include_str!("../help/survey.txt")
)]
pub(crate) struct Arguments {
    /// Time for the whole survey
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "60s")]
    time: Duration,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1", hide_short_help = true)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Help of `--all`.
const ALL: &str = "Print all answers and tables, too, with all rows and columns";

/// Columns of the summary, also of a file or a pipe: it is made to be pasted.
const MAX_COLUMNS: usize = 80;

/// Memory for records, threads and drawing, without the points, which are left out if they do not
/// fit. A survey of 42 s on two CPUs was ended in the middle with address spaces of 200 and 400
/// MiB. With 512 MiB and more it was not.
const MEMORY_BYTES: u64 = 600 << 20;

/// Refuses a survey that would be ended in the middle for lack of memory.
fn refuse_small(free_bytes: Option<u64>) -> Result<(), Failure> {
    let Some(free) = free_bytes.filter(|free| *free < MEMORY_BYTES) else { return Ok(()) };
    let (needed, free) = (show_bytes(MEMORY_BYTES), show_bytes(free));
    Err(Failure::refused(format!(
        "a survey needs {needed} of memory, {free} are available to this process: raise its limit (ulimit -v), or measure points with daqmeter run"
    )))
}

/// Budget below which a survey has fewer points, so that each still has its time.
const SHORT: Duration = Duration::from_secs(40);

const LIMITS_SHARE: f64 = 0.3;

const OBSERVED: [&str; 3] = ["memory", "imc", "mbm"];

impl Arguments {
    fn plan(&self, host: &Host, left: Duration) -> Result<Plan, Failure> {
        let name = if self.time < SHORT { "survey-short" } else { "survey" };
        let pin = self.common.pin.clone().map(|list| list.0);
        let site = Site { host: host.clone(), pin, seed: Some(self.seed) };
        let mut plan = Plan::load_for(name, &site)?;
        plan.budget.time = Some(left);
        // The answer is about whole paths: a budget that is too short leaves out stages measured
        // alone.
        plan.points.sort_by_key(|point| point.engine != "path");
        for (position, point) in plan.points.iter_mut().enumerate() {
            point.place.position = position as u64;
        }
        Ok(plan)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let began = Instant::now();
    set_window(window_columns().min(MAX_COLUMNS));
    refuse_small(daqmeter_sys::available::memory_bytes())?;
    let is_there = |name: &str| FilePath::new(name).is_file() || FilePath::new(name).is_dir();
    let (page, out) = new_files(&arguments.common.recording, is_there)?;
    refuse_same_files([("--output", &page), ("--records", &out)])?;
    refuse_unwritable(&page, false).and_then(|()| refuse_unwritable(&out, true))?;
    let mut common = arguments.common.clone();
    (common.recording.records, common.recording.output) = (Some(out.clone()), None);
    let is_shown = !common.recording.json && !common.recording.quiet;
    let mut bench = Bench::new(&common)?;
    // The wait for --at is not part of the time of the survey.
    let began = if common.at.is_some() { Instant::now() } else { began };
    // The answer is on the screen, even if the disk is full.
    bench.recorder.stop = StopFlag::default();
    if is_shown {
        emit(&about(&bench.runner.context.host))?;
    }
    bench.recorder.expect(Forecast::budget(arguments.time));
    if common.observe.is_none()
        && let Some(observed) = OBSERVED.iter().find_map(|group| Observed::understand(group).ok())
    {
        bench.runner.observe(move || observed.observer());
    }
    let left = arguments.time.saturating_sub(began.elapsed());
    let is_short = arguments.time < SHORT;
    let for_limits = if is_short { Duration::ZERO } else { left.mul_f64(LIMITS_SHARE) };
    let plan = arguments.plan(&bench.runner.context.host, left.saturating_sub(for_limits))?;
    let budget = plan.budget;
    let done = bench.runner.run(plan.points, budget, &[], |event| bench.recorder.follow(event))?;
    limits(&mut bench, for_limits)?;
    counters(&mut bench, budget)?;
    let disturbed = bench.recorder.disturbed();
    let printed = bench.recorder.end(|records| survey_frame(records).text(disturbed));
    let records = &bench.recorder.records;
    let written = write_file(&page, &daqmeter_report::page(records));
    if is_shown {
        let left_out = if bench.runner.stop.is_set() { 0 } else { done.left_out };
        let points = done.different - done.left_out;
        emit(&ending(points, records, began.elapsed(), left_out, &[&page, &out]))?;
    }
    written?;
    refuse_refused(&done)?;
    printed
}

/// Describes the host and what it lacks, before anything is measured.
fn about(host: &Host) -> String {
    let missing = crate::doctor::missing();
    let names = missing.join(", ");
    let missing = (!missing.is_empty())
        .then(|| format!("not here: {names}; how to get them: daqmeter doctor"));
    let lost = daqmeter_watch::datagrams_lost(&Files::default());
    let lost = (lost > 0).then(|| {
        format!("{} lost since boot; where and why: daqmeter watch", plural(lost, "datagram"))
    });
    let lines = missing.into_iter().chain(lost).map(|line| wrapped(&line, 2) + "\n");
    host_text(host) + &lines.collect::<String>()
}

/// Finds the limit of each path that was run, all of them within that time. A path that fails then
/// is reported, and costs only itself.
fn limits(bench: &mut Bench, within: Duration) -> Result<(), Failure> {
    let begin = Instant::now();
    let run = bench.recorder.records.iter().filter(|record| record.sections.path.is_some());
    let names: BTreeSet<String> =
        run.filter_map(|record| Some(record.workload.text("path").ok()?.to_owned())).collect();
    let paths = names.iter().map(|name| Path::load(name));
    let mut paths = paths.collect::<Result<Vec<Path>, _>>()?;
    // Runs of a card that is read out live fill and empty its ring, which takes longer than a
    // survey.
    paths.retain(|path| !path.is_live());
    for (at, path) in paths.iter().enumerate() {
        let left = within.saturating_sub(begin.elapsed());
        if bench.runner.stop.is_set() || left.is_zero() {
            break;
        }
        let each = left / u32::try_from(paths.len() - at).unwrap_or(u32::MAX);
        let search = Search { path, layout: None, cpus: Vec::new(), within: Some(each) };
        let name = &path.name;
        let found = guarded("the search", || search.prove(bench, "survey/limits", false));
        match found.map_err(Failure::tool).flatten() {
            Err(_) if bench.runner.stop.is_set() => break,
            Err(failure) => tell(&format!("daqmeter: limit of {name}: {}", failure.line)),
            Ok(Some(_)) => {}
            Ok(None) => tell(&format!(
                "daqmeter: no time to find the limit of {name}: give more with --time, or use daqmeter path explain {}",
                shell_word(name)
            )),
        }
    }
    Ok(())
}

/// Holds the counters of this host against known loads, each for a fiftieth of the budget.
fn counters(bench: &mut Bench, budget: Budget) -> Result<(), Failure> {
    if bench.runner.stop.is_set() {
        return Ok(());
    }
    let each = budget.time.unwrap_or(SHORT).div_f64(50.0).min(Duration::from_secs(2));
    match guarded("the counters", || crate::pmu::survey(each, &bench.runner)) {
        Ok(record) => record.map_or(Ok(()), |record| bench.recorder.take(record)),
        Err(fault) => {
            tell(&format!("daqmeter: {fault}"));
            Ok(())
        }
    }
}

/// Writes what was measured, what was left out, and where to read on.
fn ending(
    points: usize,
    records: &[RunRecord],
    took: Duration,
    left_out: usize,
    files: &[&FilePath],
) -> String {
    let count = |word| {
        let undone = records
            .iter()
            .filter(|record| undone(&record.outcome).is_some_and(|(how, _)| how == word));
        undone.map(|record| (&record.study, record.workload.key())).collect::<BTreeSet<_>>().len()
    };
    let counted = [
        (count("failed"), "failed"),
        (count("waived"), "not possible here"),
        (left_out, "left out for lack of time (--time)"),
    ];
    let counted = counted.into_iter().filter(|(points, _)| *points > 0);
    let counted: String = counted.map(|(points, what)| format!(", {points} {what}")).collect();
    let points = plural(points as u64, "point");
    let mut more: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    more.push("daqmeter path explain NAME".to_owned());
    let took_s = took.as_secs_f64();
    let more = format!("More: {}", more.join(", "));
    let lines = [format!("{points} in {took_s:.0} s{counted}"), more];
    lines.map(|line| wrapped(&line, 2) + "\n").concat()
}

/// Returns the page and the file of records of a survey as they were named, else with the first
/// number that is free for both. Records may be appended to an existing file, but a page would be
/// written over it.
fn new_files(
    named: &Recording,
    is_there: impl Fn(&str) -> bool,
) -> Result<(Replaced, Appended), Failure> {
    if let Some(page) = named.output.as_ref().filter(|page| is_there(&page.to_string_lossy())) {
        let page = page.display();
        return Err(Failure::refused(format!(
            "{page} is there: a survey writes over nothing; name a new page with --output"
        )));
    }
    let records = named.file()?;
    let in_folder = named.records.as_deref().is_some_and(is_folder);
    let of_host = records.as_ref().filter(|_| in_folder).map(|file| file.with_extension(""));
    let report = of_host.map_or("report".into(), |stem| stem.to_string_lossy().into_owned());
    let numbers = std::iter::once(String::new()).chain((2_u64..).map(|at| format!("-{at}")));
    let mut names = numbers.map(|at| (format!("{report}{at}.html"), format!("records{at}.jsonl")));
    let is_free = |(page, file): &(String, String)| {
        (named.output.is_some() || !is_there(page)) && (records.is_some() || !is_there(file))
    };
    let (page, file) = names.find(is_free).expect("there are more numbers than files");
    let page = named.output.clone().unwrap_or_else(|| Replaced::at(page));
    Ok((page, records.unwrap_or_else(|| Appended::at(file))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_folder_of_records_page_and_records_have_the_name_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join("farm").join(name);
        let (records, label) = (Some(Appended::at(place(""))), Some("n1.cern.ch".to_owned()));
        let named = Recording { records, label, ..Recording::default() };
        for (there, expected) in [(None, "n1.cern.ch.html"), (Some(()), "n1.cern.ch-2.html")] {
            let is_there = |name: &str| there.is_some() && name.ends_with("n1.cern.ch.html");
            let (page, file) = new_files(&named, is_there).unwrap();
            assert_eq!((&*page, &*file), (&*place(expected), &*place("n1.cern.ch.jsonl")));
        }
    }

    /// Regression: a survey emptied the records of the one before and wrote over its page.
    #[test]
    fn files_of_a_survey_before_stay_and_the_next_number_is_taken_for_both() {
        let page = |name| Some(Replaced::at(name));
        for (page, there, found) in [
            (None, &[][..], Ok("report.html records.jsonl")),
            (None, &["records.jsonl", "report-2.html"], Ok("report-3.html records-3.jsonl")),
            (page("a.html"), &["records.jsonl"], Ok("a.html records-2.jsonl")),
            (page("a.html"), &["a.html"], Err("a.html is there: a survey writes over nothing")),
        ] {
            let named = Recording { output: page, ..Recording::default() };
            match (new_files(&named, |file| there.contains(&file)), found) {
                (Ok((page, records)), Ok(wanted)) => {
                    assert_eq!(format!("{} {}", page.display(), records.display()), wanted);
                }
                (Err(failure), Err(why)) => assert!(failure.line.starts_with(why)),
                (_, wanted) => panic!("{wanted:?}"),
            }
        }
    }
}
