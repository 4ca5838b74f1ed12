//! What predictions for a host rest on: costs by kind of work and size of block, what sleeping and waking up costs, and how far
//! predictions were off for paths that went into none of this. A JSON file, whose names carry the units.

use std::collections::BTreeMap;

use daqmeter_record::{Host, Tool};
use serde::{Deserialize, Serialize};

/// What the file says it is.
const FORMAT: &str = "daqmeter-host-profile";
/// Version of the file; one of another is refused, because its numbers may mean something else.
const VERSION: u32 = 5;
/// Fewest runs of a cost: two have no middle one.
pub const MIN_RUNS: u32 = 3;
/// Fewest held-back runs for an interval: of 19 the smallest and the largest hold the next with 90 %.
pub const MIN_CHECKS: usize = 19;
/// Most entries of any list: far above what a calibration writes.
const MAX_ENTRIES: usize = 10_000;

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Says that the file is one.
    pub format: String,
    /// Its version.
    pub version: u32,
    /// When it was measured, UTC.
    pub time_utc: String,
    /// The program that measured.
    pub tool: Tool,
    /// The host that was measured.
    pub host: Host,
    /// CPUs that the process could use, in parts where it had a quota.
    pub cpus: f64,
    /// Runs in all, and how long they took.
    pub runs: u64,
    /// See `runs`.
    pub seconds: f64,
    /// Costs by kind of work.
    pub works: Vec<WorkCost>,
    /// What sleeping, waking up and sharing CPUs costs.
    pub sharing: Sharing,
    /// Paths that went into no cost: predicted and measured.
    pub checks: Vec<Check>,
}

/// What a block costs a thread by its size, the hand-over to the next thread included, without waking it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkCost {
    /// Kind of work: `copy memcpy`, `convert 3`, `unix in`.
    pub work: String,
    /// How it was found.
    pub how: String,
    /// By size of the block, smallest first.
    pub points: Vec<CostPoint>,
}

/// CPU time of a block of that size, its neighbours on the same CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPoint {
    /// Bytes of the block.
    pub block_bytes: u64,
    /// Median over the runs.
    pub cpu_ns: f64,
    /// Smallest and largest of the runs.
    pub low_ns: f64,
    /// See `low_ns`.
    pub high_ns: f64,
    /// What comes on top where the neighbours are on other CPUs.
    pub apart_ns: f64,
    /// Runs.
    pub runs: u32,
}

/// CPU time of waking another thread for a CPU that was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarWake {
    /// For how long it was idle.
    pub idle_ns: u64,
    /// CPU time of the thread that wakes.
    pub cpu_ns: u64,
}

/// What sleeping, waking up and sharing CPUs costs: measured with paths at a rate, and fitted to short paths by their rate and latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// How it was found.
    pub how: String,
    /// From the moment at which a thread is woken to that at which it runs on a free CPU: values that are equally likely.
    pub wake_ns: Vec<u64>,
    /// CPU time of falling asleep and waking up, where other threads had the CPU meanwhile.
    pub sleep_cpu_ns: u64,
    /// The same where there are eight buffers, and not one: the threads are ready for longer in turn.
    pub several_sleep_cpu_ns: u64,
    /// The same where the CPU was idle.
    pub far_sleep_cpu_ns: u64,
    /// The same where a timer wakes the thread.
    pub timer_cpu_ns: u64,
    /// CPU time of waking another thread where no idle CPU is woken for it.
    pub near_wake_cpu_ns: u64,
    /// The same where one is, the shortest idle time first.
    pub far_wakes: Vec<FarWake>,
    /// Time for which a thread that is ready stays with its CPU, though another is idle.
    pub stay_ns: u64,
    /// Whether a thread that is woken stays with its CPU though another is idle.
    pub keeps_cpu: bool,
    /// Time after which a thread leaves its CPU to another. Not fitted: three ticks of 1 ms, as Linux gives two CPUs.
    pub slice_ns: u64,
    /// Runs that it was fitted to.
    pub points: usize,
    /// Numbers that were fitted.
    pub parameters: usize,
    /// Median size of what is left between model and these runs, as a share.
    pub left: f64,
}

/// A path that was held back, predicted before its intervals were known, and measured: medians of several runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The path in one line.
    pub line: String,
    /// Its threads.
    pub threads: usize,
    /// Bytes of its blocks.
    pub block_bytes: u64,
    /// Whether its threads were pinned.
    pub is_pinned: bool,
    /// Blocks that were due per second; none as fast as it goes.
    pub rate_hz: Option<f64>,
    /// Blocks per second.
    pub rate: Pair,
    /// Median and p99 of the latency in nanoseconds.
    pub p50_ns: Pair,
    /// See `p50_ns`.
    pub p99_ns: Pair,
    /// CPUs of each thread, by row.
    pub cpu: Vec<Pair>,
    /// Mean blocks in the rings before each row but the first.
    pub depth: Vec<Pair>,
}

/// Predicted, not corrected by other checks, and measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Predicted.
    pub predicted: f64,
    /// Measured.
    pub measured: f64,
}

/// A profile cannot be used, or does not hold what is asked; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(pub String);

fn wrong<T>(problem: impl Into<String>) -> Result<T, ProfileError> {
    Err(ProfileError(problem.into()))
}

const AGAIN: &str = "measure one with daqmeter twin calibrate";

impl Sharing {
    /// CPU time of a wait where other threads had the CPU meanwhile, by the buffers of a ring: between one and eight it goes with their
    /// logarithm; beyond it is as with eight.
    pub fn sleep_at(&self, buffers: u64) -> u64 {
        let share = (buffers.clamp(1, 8) as f64).log2() / 3.0;
        let (one, several) = (self.sleep_cpu_ns as f64, self.several_sleep_cpu_ns as f64);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between two times that are given in whole nanoseconds"
        )]
        let sleep_ns = (one + share * (several - one)).round() as u64;
        sleep_ns
    }
}

impl Profile {
    /// An empty one of this version.
    pub fn new(time_utc: String, tool: Tool, host: Host, cpus: f64) -> Profile {
        Profile {
            format: FORMAT.to_owned(),
            version: VERSION,
            time_utc,
            tool,
            host,
            cpus,
            ..Profile::default()
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// When it is something else, of another version, lacks something, or contradicts itself.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let first = text.lines().next().unwrap_or("");
        if let Ok(line) = serde_json::from_str::<BTreeMap<String, serde_json::Value>>(first)
            && line.contains_key("workload")
        {
            return wrong(format!("is a file of records, not a profile of a host; {AGAIN}"));
        }
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|error| ProfileError(format!("is no JSON: {error}; {AGAIN}")))?;
        if value["format"] != FORMAT {
            return wrong(format!(
                "is no profile of a host: its `format` is not {FORMAT}; {AGAIN}"
            ));
        }
        if value["version"] != VERSION {
            let version = value["version"].to_string();
            return wrong(format!("has version {version}; this program reads {VERSION}; {AGAIN}"));
        }
        // From the text, so that a fault has its line.
        let profile: Profile = serde_json::from_str(text)
            .map_err(|error| ProfileError(format!("{error}; {AGAIN}")))?;
        profile.check()?;
        Ok(profile)
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a profile is plain JSON");
        text.push('\n');
        text
    }

    /// Whether it is sound.
    ///
    /// # Errors
    /// Names the first fault.
    pub fn check(&self) -> Result<(), ProfileError> {
        if !(self.cpus > 0.0 && self.cpus <= 65_536.0) || self.host.allowed_cpus.is_empty() {
            return wrong("cpus: a number above 0, and host.allowed_cpus, are wanted");
        }
        let lists = [
            self.works.len(),
            self.checks.len(),
            self.sharing.wake_ns.len(),
            self.sharing.far_wakes.len(),
        ];
        if lists.into_iter().any(|n| n > MAX_ENTRIES) || self.host.allowed_cpus.len() > MAX_ENTRIES
        {
            return wrong(format!("a list has more than {MAX_ENTRIES} entries"));
        }
        self.works.iter().try_for_each(WorkCost::check)?;
        self.sharing.check()?;
        self.checks.iter().try_for_each(Check::check)?;
        let free = self.checks.iter().filter(|check| check.rate_hz.is_none()).count();
        let paced = self.checks.len() - free;
        match free.min(paced) >= MIN_CHECKS {
            true => Ok(()),
            false => wrong(format!(
                "checks: {free} as fast as they go and {paced} at a rate; {MIN_CHECKS} of each are wanted for intervals of 90 %: calibrate with a longer --budget"
            )),
        }
    }

    /// CPU time of a block of that kind of work, between the calibrated sizes by a straight line.
    ///
    /// # Errors
    /// When the kind or the size was not calibrated.
    pub fn cost(&self, work: &str, block_bytes: u64) -> Result<Cost, ProfileError> {
        let Some(found) = self.works.iter().find(|found| found.work == work) else {
            let known: Vec<&str> = self.works.iter().map(|found| found.work.as_str()).collect();
            return wrong(format!("`{work}` was not calibrated; there are {}", known.join(", ")));
        };
        let at = found.points.partition_point(|point| point.block_bytes < block_bytes);
        match found.points.get(at) {
            Some(point) if point.block_bytes == block_bytes => Ok(point.cost()),
            Some(above) if at > 0 => Ok(between(found.points[at - 1], *above, block_bytes)),
            _ => wrong(format!(
                "`{work}`: blocks of {block_bytes} bytes are outside of what was calibrated, {} to {} bytes",
                found.points[0].block_bytes,
                found.points[found.points.len() - 1].block_bytes
            )),
        }
    }

    /// The same profile for other CPUs of its host. What neighbours on other CPUs cost is known only where it was measured: on more
    /// than one.
    #[must_use]
    pub fn on(mut self, cpus: &[u32]) -> Profile {
        self.host.allowed_cpus = cpus.to_vec();
        self.cpus = cpus.len() as f64;
        self
    }

    /// Whether costs were measured with neighbours on other CPUs.
    pub fn knows_neighbours(&self) -> bool {
        let points = self.works.iter().flat_map(|work| &work.points);
        points.into_iter().any(|point| point.apart_ns > 0.0)
    }

    /// Checks of the same load that are pinned as a path is, or not; all of the same load where these are too few for an interval.
    pub fn checks_like(&self, is_paced: bool, is_pinned: bool) -> Vec<&Check> {
        let all = self.checks.iter();
        let all: Vec<&Check> = all.filter(|check| check.rate_hz.is_some() == is_paced).collect();
        let alike: Vec<&Check> =
            all.iter().filter(|check| check.is_pinned == is_pinned).copied().collect();
        if alike.len() < MIN_CHECKS { all } else { alike }
    }

    /// Most threads of a path that was checked.
    pub fn max_threads(&self) -> usize {
        self.checks.iter().map(|check| check.threads).max().unwrap_or(0)
    }
}

/// CPU time of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Its neighbours on the same CPU.
    pub cpu_ns: f64,
    /// What comes on top where they are on others.
    pub apart_ns: f64,
}

impl CostPoint {
    fn cost(&self) -> Cost {
        Cost { cpu_ns: self.cpu_ns, apart_ns: self.apart_ns }
    }
}

fn between(below: CostPoint, above: CostPoint, block_bytes: u64) -> Cost {
    let part =
        (block_bytes - below.block_bytes) as f64 / (above.block_bytes - below.block_bytes) as f64;
    let line = |from: f64, to: f64| from + part * (to - from);
    Cost {
        cpu_ns: line(below.cpu_ns, above.cpu_ns),
        apart_ns: line(below.apart_ns, above.apart_ns),
    }
}

fn is_time(ns: f64) -> bool {
    (0.0..1e12).contains(&ns)
}

impl WorkCost {
    fn check(&self) -> Result<(), ProfileError> {
        let work = &self.work;
        if self.points.is_empty() || self.points.len() > MAX_ENTRIES {
            return wrong(format!("works: {work}: 1 to {MAX_ENTRIES} points are wanted"));
        }
        if !self.points.is_sorted_by(|a, b| a.block_bytes < b.block_bytes) {
            return wrong(format!("works: {work}: sizes do not grow from point to point"));
        }
        for point in &self.points {
            let bytes = point.block_bytes;
            let is_ordered = point.low_ns <= point.cpu_ns && point.cpu_ns <= point.high_ns;
            let times = [point.low_ns, point.high_ns, point.apart_ns];
            if !(is_ordered && times.into_iter().all(is_time)) {
                return wrong(format!(
                    "works: {work}: {bytes} bytes: low_ns <= cpu_ns <= high_ns do not hold"
                ));
            }
            if point.runs < MIN_RUNS {
                return wrong(format!(
                    "works: {work}: {bytes} bytes: {} runs; {MIN_RUNS} are wanted",
                    point.runs
                ));
            }
        }
        Ok(())
    }
}

impl Sharing {
    fn check(&self) -> Result<(), ProfileError> {
        if self.points <= self.parameters {
            return wrong(format!(
                "sharing: {} parameters were fitted to {} points; more points than parameters are wanted",
                self.parameters, self.points
            ));
        }
        let times = [
            self.sleep_cpu_ns,
            self.several_sleep_cpu_ns,
            self.far_sleep_cpu_ns,
            self.timer_cpu_ns,
            self.near_wake_cpu_ns,
            self.stay_ns,
            self.slice_ns,
        ];
        let far = self.far_wakes.iter().flat_map(|far| [&far.idle_ns, &far.cpu_ns]);
        let all = times.iter().chain(&self.wake_ns).chain(far);
        let grow = self.far_wakes.is_sorted_by(|a, b| a.idle_ns < b.idle_ns);
        if !grow {
            return wrong("sharing: far_wakes: idle times do not grow");
        }
        match self.wake_ns.is_empty()
            || self.slice_ns == 0
            || all.clone().any(|ns| *ns > 10_000_000_000)
        {
            true => {
                wrong("sharing: wake_ns and slice_ns are wanted, and no time is longer than 10 s")
            }
            false => Ok(()),
        }
    }
}

impl Check {
    fn check(&self) -> Result<(), ProfileError> {
        let positive = [self.rate, self.p50_ns, self.p99_ns];
        let shares = self.cpu.iter().chain(&self.depth);
        let mut others = shares.flat_map(|pair| [pair.predicted, pair.measured]);
        let is_sound = positive.iter().all(|pair| pair.predicted > 0.0 && pair.measured > 0.0)
            && positive.iter().all(|pair| (pair.measured / pair.predicted).is_finite())
            && self.cpu.len() + self.depth.len() <= MAX_ENTRIES
            && others.all(|value| (0.0..1e9).contains(&value));
        match is_sound {
            true => Ok(()),
            false => wrong(format!(
                "checks: {}: a rate, latency or share is not a number above 0",
                self.line
            )),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Costs of 1 ns per byte, exact predictions but for some per cent.
    pub(crate) fn profile() -> Profile {
        let host = Host { allowed_cpus: vec![0, 1], ..Host::default() };
        let point = |block_bytes: u64| CostPoint {
            block_bytes,
            cpu_ns: block_bytes as f64,
            low_ns: block_bytes as f64,
            high_ns: block_bytes as f64,
            apart_ns: 0.0,
            runs: 3,
        };
        let work = |work: &str| WorkCost {
            work: work.to_owned(),
            how: String::new(),
            points: vec![point(4096), point(1 << 20)],
        };
        let check = |at: usize| {
            let off = |predicted: f64| Pair {
                predicted,
                // Exact in binary and decimal.
                measured: predicted * (1.0 + (at / 2) as f64 / 1024.0),
            };
            Check {
                line: format!("path {at}"),
                threads: 3,
                rate_hz: (at % 2 == 1).then_some(10.0),
                rate: off(1000.0),
                p50_ns: off(1e5),
                p99_ns: off(2e5),
                cpu: vec![off(0.5)],
                depth: vec![off(1.0)],
                ..Check::default()
            }
        };
        let mut profile =
            Profile::new("2026-11-22T00:00:00Z".to_owned(), Tool::default(), host, 2.0);
        profile.works = ["memory", "copy memcpy", "read"].map(work).into();
        // Something has costs of neighbours: it was measured on more than one CPU.
        let apart = WorkCost {
            points: vec![CostPoint { apart_ns: 1.0, ..point(4096) }],
            ..work("checksum")
        };
        profile.works.push(apart);
        profile.sharing = Sharing {
            wake_ns: vec![0],
            slice_ns: 3_000_000,
            points: 9,
            parameters: 3,
            ..Sharing::default()
        };
        profile.checks = (0..2 * 39).map(check).collect();
        profile
    }

    #[test]
    fn a_wait_goes_with_the_logarithm_of_the_buffers_up_to_eight() {
        let sharing =
            Sharing { sleep_cpu_ns: 3000, several_sleep_cpu_ns: 9000, ..Sharing::default() };
        let found = [0, 1, 2, 4, 8, 16].map(|buffers| sharing.sleep_at(buffers));
        assert_eq!(found, [3000, 3000, 5000, 7000, 9000, 9000]);
    }

    #[test]
    fn a_profile_is_what_was_written() {
        let profile = profile();
        assert_eq!(Profile::parse(&profile.text()), Ok(profile));
    }

    #[test]
    fn costs_lie_between_the_sizes_that_were_measured_and_nowhere_else() {
        let profile = profile();
        let cost = |cpu_ns: f64| Ok(Cost { cpu_ns, apart_ns: 0.0 });
        assert_eq!(profile.cost("read", 4096), cost(4096.0));
        assert_eq!(profile.cost("read", 8192), cost(8192.0));
        let error = |work, bytes| profile.cost(work, bytes).unwrap_err().0;
        assert!(error("read", 4095).contains("outside of what was calibrated, 4096 to 1048576"));
        assert!(error("read", 1 << 21).contains("outside"));
        assert!(error("decode", 4096).contains("was not calibrated"));
    }

    #[test]
    fn what_is_no_sound_profile_is_refused_with_the_reason() {
        type Change = fn(&mut Profile);
        let changes: [(Change, &str); 10] = [
            (|p| p.version = 2, "version 2"),
            (|p| p.format = "x".to_owned(), "`format`"),
            (|p| p.cpus = 0.0, "cpus"),
            (|p| p.works[0].points.reverse(), "do not grow"),
            (|p| p.works[0].points[0].runs = 2, "2 runs; 3 are wanted"),
            (|p| p.works[0].points[0].low_ns = 5000.0, "low_ns <= cpu_ns"),
            (|p| p.sharing.points = 3, "3 parameters were fitted to 3 points"),
            (|p| p.sharing.far_wakes = vec![FarWake::default(); 2], "idle times do not grow"),
            (|p| p.checks.truncate(20), "19 of each"),
            (|p| p.checks[0].rate.predicted = 0.0, "path 0"),
        ];
        for (change, wanted) in changes {
            let mut profile = profile();
            change(&mut profile);
            let error = Profile::parse(&profile.text()).unwrap_err().0;
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn other_files_and_fields_without_their_unit_are_refused() {
        let record = "{\"schema\":1,\"workload\":{}}\n";
        assert!(Profile::parse(record).unwrap_err().0.contains("file of records"));
        assert!(Profile::parse("title = 1").unwrap_err().0.contains("no JSON"));
        let text = profile().text().replace("\"sleep_cpu_ns\"", "\"sleep_cpu\"");
        assert!(Profile::parse(&text).unwrap_err().0.contains("unknown field `sleep_cpu`"));
    }
}
