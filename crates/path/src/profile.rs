//! A host as `path predict --calibrate` measured it. It has costs of a block by kind of work and
//! size, the four fitted numbers of the prediction, and its errors for held-back paths. A JSON file
//! whose names carry the units.

use daqmeter_record::{Host, Tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const FORMAT: &str = "daqmeter-host-profile";
/// Version of the form and of the measurements; others are refused.
const VERSION: u32 = 6;
/// Held-back runs below which there is no interval of 90 %: of n errors those at ranks 0.05 (n + 1)
/// and 0.95 (n + 1) hold the next one.
pub const MIN_CHECKS: usize = 19;
const AGAIN: &str = "measure one with daqmeter path predict --calibrate";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    pub format: String,
    pub version: u32,
    pub time_utc: String,
    pub tool: Tool,
    pub host: Host,
    pub runs: u64,
    pub seconds: f64,
    pub works: Vec<WorkCost>,
    pub fitted: Fitted,
    /// Median error of the rates that were fitted, as a logarithm of a ratio.
    pub fit_error: f64,
    pub held_back: Vec<HeldBackPath>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkCost {
    pub work: String,
    pub points: Vec<CostPoint>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPoint {
    pub block_bytes: u64,
    pub cpu_ns: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// CPU time of a thread for taking a block over and waking the next thread.
    pub hand_over_ns: f64,
    /// Time until a woken thread runs; each block waits for it once in as many blocks as a ring
    /// has.
    pub wait_ns: f64,
    /// CPU time of a byte that a thread on another CPU wrote.
    pub byte_ns: f64,
    /// Factor on the sum over the CPUs: threads that share them move and preempt one another.
    pub sharing: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldBackPath {
    pub line: String,
    pub threads: usize,
    pub block_bytes: u64,
    pub is_pinned: bool,
    /// `None` for as fast as it goes.
    pub rate_hz: Option<f64>,
    pub rate: PredictedAndMeasured,
    pub p50_ns: PredictedAndMeasured,
    pub p99_ns: PredictedAndMeasured,
    pub cpu: Vec<PredictedAndMeasured>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedAndMeasured {
    pub predicted: f64,
    pub measured: f64,
}

impl HostProfile {
    pub fn new(time_utc: String, tool: Tool, host: Host) -> HostProfile {
        let format = FORMAT.to_owned();
        HostProfile { format, version: VERSION, time_utc, tool, host, ..HostProfile::default() }
    }

    /// Reads a profile. Refuses another version, and values that no calibration writes.
    pub fn parse(text: &str) -> Result<HostProfile, String> {
        let head: Value = serde_json::from_str(text)
            .map_err(|error| format!("is no profile: {error}; {AGAIN}"))?;
        if head["format"] != FORMAT {
            return Err(format!("is no profile: its `format` is not {FORMAT}; {AGAIN}"));
        }
        if head["version"] != VERSION {
            let version = &head["version"];
            return Err(format!("has version {version}, not {VERSION}; {AGAIN}"));
        }
        // The text is parsed directly, so that a fault has its line.
        let profile: HostProfile =
            serde_json::from_str(text).map_err(|error| format!("{error}; {AGAIN}"))?;
        profile.check()?;
        Ok(profile)
    }

    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a profile is plain JSON") + "\n"
    }

    /// Checks the values that a prediction rests on. The error names the wrong one.
    pub fn check(&self) -> Result<(), String> {
        let is_time = |ns: f64| (0.0..1e12).contains(&ns);
        if self.works.is_empty() || self.host.allowed_cpus.is_empty() {
            return Err("works and host.allowed_cpus: at least one entry is wanted".to_owned());
        }
        for WorkCost { work, points } in &self.works {
            let grows = points.is_sorted_by(|a, b| a.block_bytes < b.block_bytes);
            let is_sound = !points.is_empty() && points.iter().all(|point| is_time(point.cpu_ns));
            if !grows || !is_sound {
                return Err(format!("works: {work}: growing sizes with their times are wanted"));
            }
        }
        let Fitted { hand_over_ns, wait_ns, byte_ns, sharing } = self.fitted;
        if ![hand_over_ns, wait_ns, byte_ns, sharing].into_iter().all(is_time) || sharing < 1.0 {
            return Err(
                "fitted: times of 0 to 1000 s and a `sharing` of 1 or more are wanted".to_owned()
            );
        }
        let is_positive =
            |pair: &PredictedAndMeasured| is_time(1e-9 / pair.predicted) && pair.measured > 0.0;
        let pairs = |path: &HeldBackPath| [path.rate, path.p50_ns, path.p99_ns];
        if !self.held_back.iter().flat_map(pairs).all(|pair| is_positive(&pair)) {
            return Err("held_back: rates and latencies above 0 are wanted".to_owned());
        }
        let free = self.held_back.iter().filter(|path| path.rate_hz.is_none()).count();
        let paced = self.held_back.len() - free;
        match free.min(paced) >= MIN_CHECKS {
            true => Ok(()),
            false => Err(format!(
                "held_back: {free} runs as fast as they go and {paced} at a rate; {MIN_CHECKS} of each are wanted: calibrate with a longer --budget"
            )),
        }
    }

    /// CPU time of a block in nanoseconds, interpolated linearly between measured sizes.
    pub(crate) fn cost_ns(&self, work: &str, bytes: u64) -> Result<f64, String> {
        let Some(found) = self.works.iter().find(|found| found.work == work) else {
            let known: Vec<&str> = self.works.iter().map(|found| found.work.as_str()).collect();
            return Err(format!("`{work}` was not calibrated; there are {}", known.join(", ")));
        };
        let points = &found.points;
        let at = points.partition_point(|point| point.block_bytes < bytes);
        match points.get(at) {
            Some(point) if point.block_bytes == bytes => Ok(point.cpu_ns),
            Some(above) if at > 0 => {
                let below = points[at - 1];
                let part = (bytes - below.block_bytes) as f64
                    / (above.block_bytes - below.block_bytes) as f64;
                Ok(below.cpu_ns + part * (above.cpu_ns - below.cpu_ns))
            }
            _ => Err(format!(
                "`{work}`: blocks of {bytes} bytes are outside of what was calibrated, {} to {} bytes",
                points[0].block_bytes,
                points[points.len() - 1].block_bytes
            )),
        }
    }

    /// Held-back runs at such a load, of such placement if there are enough.
    pub(crate) fn like(&self, is_paced: bool, is_pinned: bool) -> Vec<&HeldBackPath> {
        let all = self.held_back.iter().filter(|path| path.rate_hz.is_some() == is_paced);
        let alike = all.clone().filter(|path| path.is_pinned == is_pinned);
        if alike.clone().count() < MIN_CHECKS { all.collect() } else { alike.collect() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A byte costs 1 ns; nothing else costs anything. Runs were up to 38/1024 faster than
    /// predicted.
    pub(crate) fn profile() -> HostProfile {
        let host = Host { allowed_cpus: vec![0, 1], ..Host::default() };
        let mut profile = HostProfile::new(String::new(), Tool::default(), host);
        let point = |block_bytes: u64| CostPoint { block_bytes, cpu_ns: block_bytes as f64 };
        let works = ["memory", "copy memcpy", "read", "work"];
        profile.works = works
            .map(|work| WorkCost {
                work: work.to_owned(),
                points: [4096, 1 << 20].map(point).into(),
            })
            .into();
        profile.fitted = Fitted { sharing: 1.0, ..Fitted::default() };
        let path = |at: u32| {
            let pair =
                PredictedAndMeasured { predicted: 1.0, measured: 1.0 + f64::from(at / 2) / 1024.0 };
            let rate_hz = (at % 2 == 1).then_some(1.0);
            let cpu = vec![pair];
            let threads = 5;
            HeldBackPath {
                rate_hz,
                threads,
                rate: pair,
                p50_ns: pair,
                p99_ns: pair,
                cpu,
                ..HeldBackPath::default()
            }
        };
        profile.held_back = (0..78).map(path).collect();
        profile
    }

    #[test]
    fn a_profile_is_what_was_written_and_costs_lie_between_the_sizes() {
        let profile = profile();
        assert_eq!(HostProfile::parse(&profile.text()).as_ref(), Ok(&profile));
        assert_eq!(profile.cost_ns("read", 8192), Ok(8192.0));
        let error = |work, bytes| profile.cost_ns(work, bytes).unwrap_err();
        assert!(error("read", 4095).contains("outside of what was calibrated, 4096 to 1048576"));
        assert!(error("decode", 4096).contains("was not calibrated"));
    }

    #[test]
    fn what_is_no_sound_profile_is_refused_with_the_reason() {
        type Harm = fn(&mut HostProfile);
        let harms: [(Harm, &str); 7] = [
            (
                |p| p.version = 5,
                "has version 5, not 6; measure one with daqmeter path predict --calibrate",
            ),
            (|p| p.format = "x".to_owned(), "`format`"),
            (|p| p.works[0].points.reverse(), "growing sizes"),
            (|p| p.works[0].points[0].cpu_ns = -1.0, "works: memory"),
            (|p| p.fitted.sharing = 0.5, "`sharing` of 1"),
            (|p| p.held_back.truncate(37), "19 runs as fast as they go and 18 at a rate"),
            (|p| p.held_back[0].rate.predicted = 0.0, "above 0"),
        ];
        for (harm, wanted) in harms {
            let mut profile = profile();
            harm(&mut profile);
            let error = HostProfile::parse(&profile.text()).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        let text = profile().text().replace("\"wait_ns\"", "\"wait\"");
        assert!(HostProfile::parse(&text).unwrap_err().contains("unknown field `wait`"));
        assert!(HostProfile::parse("{\"schema\":1}").unwrap_err().contains("`format`"));
        assert!(HostProfile::parse("title = 1").unwrap_err().contains("is no profile"));
    }
}
