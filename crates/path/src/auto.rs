//! The fastest layout of a path on this host, found by short runs before the measured one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use daqmeter_harness::facts::host_facts;
use daqmeter_harness::placement::{cores, order_near};
use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::border::sum;
use daqmeter_record::path::PathRun;
use daqmeter_sys::affinity::process_cpus;
use daqmeter_sys::available::{self, cpu_quota};
use daqmeter_sys::host::Files;

use crate::chain::Chain;
use crate::chain::shared::{PathSettings, time_ns};
use crate::definition::Path;
use crate::definition::layout::{Layout, MAX_THREADS};
use crate::links::device_node;

/// Time of a try, and of all of them.
const TRY: Duration = Duration::from_millis(10);
const ALL: Duration = Duration::from_millis(180);
/// Longest try under a quota: the kernel's usual period. A shorter try may fall between the times
/// at which the threads may run. Sixteen such times are enough for each layout and its waits.
const LONGEST_TRY: Duration = Duration::from_millis(100);
/// Tries of each layout, and of the best two if they are that close.
const ROUNDS: usize = 2;
const CLOSE: f64 = 0.9;
/// Largest block that is tried: making the blocks of a try takes longer than the try.
const MAX_BLOCK_BYTES: usize = 4 << 20;

/// A layout, and the CPUs of its threads; none leaves them to the scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) layout: Layout,
    pub(crate) cpus: Vec<u32>,
}

impl Path {
    /// Tests if a run stays within this program: it sends nothing, writes nothing, and uses no
    /// device.
    pub(crate) fn may_be_tried(&self) -> bool {
        let mut elements = self.elements.iter();
        elements.all(|one| !one.facts.is_outside && one.cpus.is_empty())
            && self.block_bytes <= MAX_BLOCK_BYTES
    }

    /// Layouts that may be the fastest on these CPUs, the likeliest first. The first CPUs, as many
    /// as there are `cores`, share no core.
    pub(crate) fn candidates(&self, cpus: &[u32], cores: usize, is_chosen: bool) -> Vec<Candidate> {
        let most = cpus.len();
        let names = self.names();
        let group = |names: &[String], workers| (names.to_vec(), workers);
        let (source, rest) = names.split_at(1);
        let (front, sink) = names.split_at(names.len() - 1);
        let workers = match &self.source_facts().boards[..] {
            [] => most,
            boards => most.min(boards.len()),
        };
        let mut layouts = vec![
            (Layout::Fused(workers), true),
            (Layout::Fused(workers), false),
            (Layout::Pipeline, false),
            (Layout::Fused(1), false),
        ];
        if most > 1 {
            let groups = [
                vec![group(source, 1), group(rest, most - 1)],
                vec![group(front, most - 1), group(sink, 1)],
            ];
            layouts.extend(groups.map(|groups| (Layout::Groups(groups), false)));
            layouts.push((Layout::Fused(cores.min(workers)), true));
        }
        let mut all: Vec<Candidate> = Vec::new();
        for (layout, is_pinned) in layouts {
            let cpus = match (&layout, is_chosen) {
                (_, true) => cpus.to_vec(),
                // A client and its server stay on one CPU if all threads do.
                (Layout::Fused(workers), false) if is_pinned => cpus[..*workers].to_vec(),
                _ => Vec::new(),
            };
            let candidate = Candidate { layout, cpus };
            if self.groups(&candidate.layout).is_ok() && !all.contains(&candidate) {
                all.push(candidate);
            }
        }
        all
    }
}

/// Runs a path in each layout that makes sense for a short time, in turns, and returns their rates
/// in bytes per second, the fastest first. None is tried for a path that touches something outside
/// of this program.
pub(crate) fn tried(
    path: &Path,
    how: &PathSettings,
    stop: &StopFlag,
) -> Result<Vec<(f64, Candidate)>, Fault> {
    if !path.may_be_tried() {
        return Ok(Vec::new());
    }
    let is_chosen = !how.cpus.is_empty();
    let mut host = host_facts(&Files::default(), Vec::new());
    // This thread may be pinned; those of the path are not.
    host.allowed_cpus = process_cpus().to_vec();
    let mut cpus = match is_chosen {
        true => Vec::from_iter(BTreeSet::from_iter(how.cpus.iter().copied())),
        false => order_near(&host, device_node(path, &Files::default())),
    };
    cpus.truncate(most_cpus());
    let mut candidates = path.candidates(&cpus, cores(&host), is_chosen);
    if is_chosen {
        // A choice stays as it is, with the CPUs that it names twice.
        candidates.iter_mut().for_each(|one| one.cpus.clone_from(&how.cpus));
    }
    let mut tried: Vec<(f64, Candidate)> = candidates.into_iter().map(|one| (0.0, one)).collect();
    let begin = Instant::now();
    let quota = cpu_quota(&Files::default()).filter(|quota| quota.cpus <= available::cpus());
    let (time, all, rounds) = match quota.map(|quota| quota.period.clamp(TRY, LONGEST_TRY)) {
        None => (TRY, ALL, ROUNDS),
        Some(time) => (time, 16 * time, 1),
    };
    let attempt = |(best, candidate): &mut (f64, Candidate)| -> Result<(), Fault> {
        if begin.elapsed() < all && !stop.is_set() {
            let run = short_run(path, how, candidate, time, stop)?;
            *best = best.max(bytes_per_s(&run, quota.map(|quota| quota.cpus)));
        }
        Ok(())
    };
    for _ in 0..rounds {
        tried.iter_mut().try_for_each(&attempt)?;
    }
    let by_rate = |a: &(f64, Candidate), b: &(f64, Candidate)| b.0.total_cmp(&a.0);
    tried.sort_by(by_rate);
    if let [first, second, ..] = &mut tried[..]
        && second.0 > CLOSE * first.0
    {
        for _ in 0..rounds {
            attempt(first)?;
            attempt(second)?;
        }
    }
    tried.sort_by(by_rate);
    tried.retain(|(rate, _)| *rate > 0.0);
    Ok(tried)
}

/// CPUs of which a worker may have one each: no more than a quota gives.
fn most_cpus() -> usize {
    let cpus = available::cpus().round().clamp(1.0, MAX_THREADS as f64);
    daqmeter_record::units::whole(cpus).try_into().unwrap_or(1)
}

fn short_run(
    path: &Path,
    how: &PathSettings,
    candidate: &Candidate,
    time: Duration,
    stop: &StopFlag,
) -> Result<PathRun, Fault> {
    let groups = path.groups(&candidate.layout).map_err(Fault::new)?;
    let how = PathSettings {
        time_ns: time_ns(time.as_secs_f64()),
        most_blocks: None,
        rate_hz: None,
        lossless: true,
        groups,
        cpus: candidate.cpus.clone(),
        ..how.clone()
    };
    let ended = Chain::start(path, &how, stop, false)?.run(stop);
    ended.fault.map_or(Ok(()), Err)?;
    Ok(ended.run)
}

/// Returns the rate that a path can sustain: no more than its CPU time allows in a quota, of which
/// a short run may use all before its period is over.
fn bytes_per_s(run: &PathRun, quota_cpus: Option<f64>) -> f64 {
    let cpu_ns = sum(run.threads.iter().map(|thread| thread.cpu_ns)) as f64;
    let least_ns = quota_cpus.map_or(0.0, |cpus| cpu_ns / cpus);
    run.payload_bytes as f64 / least_ns.max(run.time_ns() as f64) * 1e9
}

impl Candidate {
    /// The layout, and the CPUs that the user did not choose.
    pub(crate) fn text(&self, is_chosen: bool) -> String {
        let layout = &self.layout;
        if is_chosen || self.cpus.is_empty() {
            return layout.to_string();
        }
        let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        let s = if cpus.len() > 1 { "s" } else { "" };
        format!("{layout} on CPU{s} {}", cpus.join(","))
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::PathThread;

    use super::*;

    fn candidates(path: &str, cpus: &[u32], cores: usize, is_chosen: bool) -> Vec<String> {
        let path = Path::load(path).unwrap();
        let all = path.candidates(cpus, cores, is_chosen);
        for candidate in &all {
            let threads: usize =
                path.groups(&candidate.layout).unwrap().iter().map(|group| group.workers).sum();
            assert!(candidate.layout == Layout::Pipeline || threads <= cpus.len().max(2));
        }
        all.iter().map(|one| one.text(is_chosen)).collect()
    }

    #[test]
    fn layouts_are_those_that_make_sense_for_the_cpus_of_a_host() {
        // One CPU; two; four cores of two threads each, of which the first four CPUs share none.
        assert_eq!(candidates("pattern", &[0], 1, false), ["fused on CPU 0", "fused", "pipeline"]);
        assert_eq!(
            candidates("pattern", &[1, 0], 2, false),
            [
                "fused x 2 on CPUs 1,0",
                "fused x 2",
                "pipeline",
                "fused",
                "[memory] [copy, read]",
                "[memory, copy] [read]"
            ]
        );
        assert_eq!(
            candidates("pattern", &[7, 5, 3, 1, 6, 4, 2, 0], 4, false),
            [
                "fused x 8 on CPUs 7,5,3,1,6,4,2,0",
                "fused x 8",
                "pipeline",
                "fused",
                "[memory] [copy, read] x 7",
                "[memory, copy] x 7 [read]",
                "fused x 4 on CPUs 7,5,3,1"
            ]
        );
        // Two boards, and CPUs that the user chose.
        assert_eq!(
            candidates("digitizer-crate", &[3, 2, 1, 0], 4, true),
            ["fused x 2", "pipeline", "fused", "[digitizer] [convert, read] x 3"]
        );
    }

    /// Regression: 0.2 CPUs carried 8234 MB/s in a try, and 1545 in the run.
    #[test]
    fn a_try_within_a_quota_s_first_period_is_no_sustained_rate() {
        let run = |wall_ms: u64, cpu_ms: u64| {
            let thread = PathThread { cpu_ns: cpu_ms * 1_000_000, ..PathThread::default() };
            let (wall_ns, payload_bytes) = (wall_ms * 1_000_000, 80_000_000);
            PathRun { wall_ns, payload_bytes, threads: vec![thread; 2], ..PathRun::default() }
        };
        for (run, quota_cpus, expected) in [
            (run(10, 5), None, 8e9),
            (run(10, 5), Some(0.2), 1.6e9),
            // It waited for the next period, or for its work.
            (run(100, 5), Some(0.2), 0.8e9),
            (run(10, 5), Some(3.0), 8e9),
        ] {
            assert_eq!(bytes_per_s(&run, quota_cpus), expected, "{quota_cpus:?}");
        }
    }

    #[test]
    fn a_path_that_others_would_see_is_not_tried() {
        for (path, with, may_be_tried) in [
            ("pattern", "", true),
            ("register-control", "", true),
            ("felix-readout", "", false),
            ("register-control", "source.address=udp/tr42.example.org", false),
            ("digitizer-crate", "source.trigger=14Hz", false),
            ("pattern", "sink={kind = \"tcp\", to = \"daq7:5010\"}", false),
            ("pattern", "sink={kind = \"file\", path = \"out\"}", false),
            ("pattern", "source.cpus=[0]", false),
        ] {
            let with = Some(with).filter(|it| !it.is_empty()).map(|it| it.parse().unwrap());
            let with = Vec::from_iter(with);
            let path = Path::load_with(path, &with).unwrap();
            assert_eq!(path.may_be_tried(), may_be_tried, "{with:?}");
        }
    }
}
