//! A host as `path predict --calibrate` measured it. It has costs of a block by kind of work and
//! size in cycles, the clock that the host had, the three fitted numbers of the prediction, and its
//! errors for held-back paths. A JSON file whose names carry the units.

use daqmeter_record::border::refuse_large;
use daqmeter_record::{Host, Tool};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shape::{PathShape, Work};

const FORMAT: &str = "daqmeter-host-profile";
/// Version of the form and of the measurements; others are refused.
const VERSION: u32 = 8;
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
    /// Cycles in a nanosecond; 1 on a host whose cycles are not known.
    pub clock_ghz: f64,
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
    /// CPU time for a block from a thread on the same CPU, with its share of the hand-over.
    pub cycles: f64,
    /// The same for a block from another CPU.
    pub apart_cycles: f64,
    /// CPU time for a block that stays in its thread, without a hand-over.
    pub fused_cycles: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Work of a thread to sleep and to be woken, which each block needs once in as many blocks as
    /// a ring has.
    pub wake_cycles: f64,
    /// Share of the blocks that come from another CPU to a thread without a CPU of its own.
    pub apart: f64,
    /// Factor on the sum over all CPUs for threads without a CPU of their own: CPUs idle while they
    /// move, and while they wait for one another.
    pub sharing: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldBackPath {
    pub line: String,
    pub threads: usize,
    pub block_bytes: u64,
    pub is_pinned: bool,
    /// True if each thread does everything.
    pub is_fused: bool,
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
        refuse_large(&head, &[]).map_err(|why| format!("{why}; {AGAIN}"))?;
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
            let is_sound = |point: &CostPoint| {
                [point.cycles, point.apart_cycles, point.fused_cycles].into_iter().all(is_time)
            };
            let is_sound = !points.is_empty() && points.iter().all(is_sound);
            if !grows || !is_sound {
                return Err(format!("works: {work}: growing sizes with their times are wanted"));
            }
        }
        let Fitted { wake_cycles, apart, sharing } = self.fitted;
        if !is_time(wake_cycles)
            || !(0.0..=1.0).contains(&apart)
            || !(1.0..100.0).contains(&sharing)
        {
            return Err("fitted: `apart` of 0 to 1 and `sharing` of 1 to 100 are wanted".to_owned());
        }
        if !(0.01..100.0).contains(&self.clock_ghz) {
            return Err("clock_ghz: 0.01 to 100 is wanted".to_owned());
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
                "held_back: {free} runs as fast as they go and {paced} at a rate; {MIN_CHECKS} of each are wanted: calibrate again on an idle host"
            )),
        }
    }

    /// Cycles of a work on a block, `apart` of which come from another CPU, or without any
    /// hand-over, interpolated linearly between measured sizes.
    pub(crate) fn cycles(&self, work: &Work, apart: Option<f64>) -> Result<f64, String> {
        let &Work { name: ref work, bytes, is_fused } = work;
        let cycles = |point: &CostPoint| match apart.filter(|_| !is_fused) {
            None => point.fused_cycles,
            Some(apart) => point.cycles + apart * (point.apart_cycles - point.cycles),
        };
        let Some(found) = self.works.iter().find(|found| found.work == *work) else {
            let known: Vec<&str> = self.works.iter().map(|found| found.work.as_str()).collect();
            return Err(format!("`{work}` was not calibrated; there are {}", known.join(", ")));
        };
        let points = &found.points;
        let at = points.partition_point(|point| point.block_bytes < bytes);
        match points.get(at) {
            Some(point) if point.block_bytes == bytes => Ok(cycles(point)),
            Some(above) if at > 0 => {
                let below = points[at - 1];
                let part = (bytes - below.block_bytes) as f64
                    / (above.block_bytes - below.block_bytes) as f64;
                Ok(cycles(&below) + part * (cycles(above) - cycles(&below)))
            }
            _ => Err(format!(
                "`{work}`: blocks of {bytes} bytes are outside of what was calibrated, {} to {} bytes",
                points[0].block_bytes,
                points[points.len() - 1].block_bytes
            )),
        }
    }

    /// Held-back runs at such a load, of such placement and layout if there are enough.
    pub(crate) fn like(&self, is_paced: bool, shape: &PathShape) -> Vec<&HeldBackPath> {
        let all = self.held_back.iter().filter(|path| path.rate_hz.is_some() == is_paced);
        let is_fused = shape.rows.len() == 1;
        let alike = all.clone().filter(|path| path.is_fused == is_fused);
        // Threads that do everything are alike wherever they are.
        let alike = alike.filter(|path| is_fused || path.is_pinned == shape.is_pinned());
        if alike.clone().count() < MIN_CHECKS { all.collect() } else { alike.collect() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A byte costs 1 ns, from another CPU 2, in the same thread a half; nothing else costs
    /// anything. Runs were up to 38/1024 faster than predicted.
    pub(crate) fn profile() -> HostProfile {
        let host = Host { allowed_cpus: vec![0, 1], ..Host::default() };
        let mut profile = HostProfile::new(String::new(), Tool::default(), host);
        let point = |block_bytes: u64| {
            let cycles = block_bytes as f64;
            CostPoint {
                block_bytes,
                cycles,
                apart_cycles: 2.0 * cycles,
                fused_cycles: cycles / 2.0,
            }
        };
        let works = ["memory", "copy memcpy", "read", "work"];
        profile.works = works
            .map(|work| WorkCost {
                work: work.to_owned(),
                points: [4096, 1 << 20].map(point).into(),
            })
            .into();
        profile.clock_ghz = 1.0;
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
        let work = |name: &str, bytes, is_fused| Work { name: name.to_owned(), bytes, is_fused };
        assert_eq!(profile.cycles(&work("read", 8192, false), Some(0.0)), Ok(8192.0));
        assert_eq!(profile.cycles(&work("read", 8192, false), Some(0.5)), Ok(12_288.0));
        assert_eq!(profile.cycles(&work("read", 8192, true), Some(0.5)), Ok(4096.0));
        let error = |name, bytes| profile.cycles(&work(name, bytes, false), Some(0.0)).unwrap_err();
        assert!(error("read", 4095).contains("outside of what was calibrated, 4096 to 1048576"));
        assert!(error("decode", 4096).contains("was not calibrated"));
    }

    #[test]
    fn what_is_no_sound_profile_is_refused_with_the_reason() {
        type Harm = fn(&mut HostProfile);
        let harms: [(Harm, &str); 9] = [
            (
                |p| p.version = 7,
                "has version 7, not 8; measure one with daqmeter path predict --calibrate",
            ),
            (|p| p.format = "x".to_owned(), "`format`"),
            (|p| p.works[0].points.reverse(), "growing sizes"),
            (|p| p.works[0].points[0].apart_cycles = -1.0, "works: memory"),
            (|p| p.fitted.sharing = 0.5, "`sharing` of 1"),
            (|p| p.fitted.apart = 1.5, "`apart` of 0 to 1"),
            (|p| p.clock_ghz = 0.0, "clock_ghz"),
            (|p| p.held_back.truncate(37), "19 runs as fast as they go and 18 at a rate"),
            (|p| p.held_back[0].rate.predicted = 0.0, "above 0"),
        ];
        for (harm, wanted) in harms {
            let mut profile = profile();
            harm(&mut profile);
            let error = HostProfile::parse(&profile.text()).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        let text = profile().text().replace("\"wake_cycles\"", "\"wait\"");
        assert!(HostProfile::parse(&text).unwrap_err().contains("unknown field `wait`"));
        assert!(HostProfile::parse("{\"schema\":1}").unwrap_err().contains("`format`"));
        assert!(HostProfile::parse("title = 1").unwrap_err().contains("is no profile"));
    }
}
