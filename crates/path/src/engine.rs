//! Engine `path`: a whole path as one point. An operation is a run of the path for its time.

use daqmeter_harness::facts::last_level_cache_bytes;
use daqmeter_harness::search::Observation;
use daqmeter_harness::{
    CpuList, DeviceTime, Fault, Job, Problem, Request, Session, StageSpec, StopFlag, Tally,
    is_default,
};
use daqmeter_readout::chain::observed;
use daqmeter_readout::receive::elink_name;
use daqmeter_record::path::TriedLayout;
use daqmeter_record::{Counter, Ledger, PathRun, RunRecord};
use daqmeter_sys::host::Files;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::auto::{Candidate, tried};
use crate::chain::Chain;
use crate::chain::outcome::Ended;
use crate::chain::shared::{PathSettings, SECONDS, time_ns};
use crate::definition::Path;
use crate::definition::layout::Layout;
use crate::definition::setting::{self, Setting};
use crate::elements::memory::free_blocks;
use crate::links::{Leaves, links};
use crate::readout::card::{self, CardReport, CardResults, ReadOut, TOO_MANY_HZ};

/// A path that is run from its source to its sink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRequest {
    /// The path
    #[serde(flatten, with = "named")]
    #[schemars(with = "PathName")]
    pub path: Path,
    /// Time for which the source goes
    pub seconds: f64,
    /// Blocks of each stream after which its source ends, if that is before its time
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// Blocks that are due per second and stream, instead of what the file says
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_hz: Option<f64>,
    /// True goes as fast as possible, whatever rate the file says; of a card that is read out, BUSY
    /// stops the triggers for which its rings have no room
    #[serde(default, skip_serializing_if = "is_default")]
    pub unpaced: bool,
    /// True loses blocks that are due when there is no room, whatever the file says
    #[serde(default, skip_serializing_if = "is_default")]
    pub lossy: bool,
    /// CPUs that threads are pinned to in turn, from source to sink, instead of those in the file:
    /// 0,1 or 0-3
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpus: CpuList,
    /// Which thread does what, instead of what the file says: auto, pipeline, fused, fused x 2, or
    /// groups with the names of the parts
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Elements that are slowed, 0 for the source, and the nanoseconds of work that are added to
    /// each of their blocks: `[[1,500],[3,200]]`
    #[serde(default, with = "element_times", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "String")]
    pub slower: Vec<(u64, f64)>,
}

/// Name of a path, with the fields that are not as in its file.
#[derive(Serialize, Deserialize, JsonSchema)]
struct PathName {
    /// Path that is run: the name of one that ships, or a file
    path: String,
    /// Digest of its text: a path that was changed since is refused
    #[serde(default, skip_serializing_if = "String::is_empty")]
    digest: String,
    /// Fields that are not as in its file: block=128KiB;stage.1.by=memcpy
    #[serde(default, with = "setting", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "String")]
    with: Vec<Setting>,
}

/// A path by its name, which is loaded once, when a request is read.
mod named {
    use super::{Deserialize, Deserializer, Error, Path, PathName, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        let Path { name, digest, with, .. } = path.clone();
        PathName { path: name, digest, with }.serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Path, D::Error> {
        let PathName { path: name, digest, with } = PathName::deserialize(from)?;
        let path = Path::load_with(&name, &with).map_err(D::Error::custom)?;
        if digest.is_empty() || digest == path.digest {
            return Ok(path);
        }
        let own = &path.digest;
        Err(D::Error::custom(format!(
            "{name} is another path now: its digest is {own}, not {digest}"
        )))
    }
}

/// Elements and nanoseconds in records: a text in JSON.
mod element_times {
    use daqmeter_record::border::from_peer;

    use super::{Deserialize, Deserializer, Error, Serializer};

    pub(super) fn serialize<S: Serializer>(all: &[(u64, f64)], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&serde_json::json!(all).to_string())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Vec<(u64, f64)>, D::Error> {
        from_peer(String::deserialize(from)?.as_bytes(), &[]).map_err(D::Error::custom)
    }
}

const MAX_SLOW_NS: f64 = 1e9;

impl PathRequest {
    pub fn new(path: &Path, seconds: f64) -> PathRequest {
        PathRequest {
            path: path.clone(),
            seconds,
            blocks: None,
            rate_hz: None,
            unpaced: false,
            lossy: false,
            cpus: CpuList::default(),
            layout: None,
            slower: Vec::new(),
        }
    }

    /// Runs the path for a short time in each layout that makes sense. Returns this request with
    /// the fastest one, and the name of that. `None` for a path that uses something outside of this
    /// program: its layout is `pipeline`.
    ///
    /// # Errors
    /// Those of the path's parts, and a signal.
    pub fn fastest(&self, stop: &StopFlag) -> Result<Option<(PathRequest, String)>, Fault> {
        let tried = tried(&self.path, &how(self, Layout::Auto)?, stop)?;
        Ok(tried.into_iter().next().map(|(_, best)| {
            let (name, layout) = (best.text(!self.cpus.0.is_empty()), Some(best.layout));
            (PathRequest { layout, cpus: CpuList(best.cpus), ..self.clone() }, name)
        }))
    }
}

impl Request for PathRequest {
    const KIND: &'static str = "path";
    const DESCRIPTION: &'static str =
        "runs a path of source, stages and sink as a chain of threads";

    fn example() -> PathRequest {
        PathRequest::new(&Path::load("pattern").expect("it ships"), 0.003)
    }

    fn job(&self) -> Result<Job, Fault> {
        let path = &self.path;
        Ok(Job {
            is_emulated: path.is_emulated(),
            memory_bytes: Some(path.memory_bytes()),
            ..Job::new(self, path.line(), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("seconds", self.seconds, SECONDS)?;
        Problem::unless_within("blocks", self.blocks.unwrap_or(1), 1..=u64::MAX)?;
        for (_, ns) in &self.slower {
            Problem::unless_within("slower", *ns, 0.0..=MAX_SLOW_NS)?;
        }
        Problem::unless_cpus_exist("cpus", &self.cpus.0)?;
        let Some(hz) = self.rate_hz else {
            return Ok(());
        };
        if self.unpaced {
            return Err(Problem::new("rate_hz", "is given, and unpaced as well: one of both"));
        }
        let bounds = daqmeter_record::units::TRIGGER_RATES_HZ;
        Problem::unless_within("rate_hz", hz, bounds)
    }
}

fn how(request: &PathRequest, layout: Layout) -> Result<PathSettings, Fault> {
    let path = &request.path;
    let fault = |name, problem: String| Problem::new(name, problem).of(&request.workload());
    if request.lossy && path.is_live() {
        let problem = "does not go with the source `card`: BUSY stops its triggers";
        return Err(fault("lossy", problem.into()));
    }
    let last = path.stages.len() as u64 + 1;
    if request.slower.iter().any(|(at, _)| *at > last) {
        return Err(fault("slower", format!("is beyond the last, {last}")));
    }
    let rate_hz = request
        .rate_hz
        .or(path.rate_hz)
        .filter(|_| !request.unpaced)
        .or((request.unpaced && path.is_live()).then_some(TOO_MANY_HZ));
    if request.lossy && rate_hz.is_none() && !path.may_lose() {
        let problem = "is true, but a path loses nothing without a rate: give it one";
        return Err(fault("lossy", problem.into()));
    }
    let laid_out = PathSettings::laid_out(path, &layout, &request.cpus.0)
        .map_err(|problem| fault("layout", problem))?;
    Ok(PathSettings {
        time_ns: time_ns(request.seconds),
        most_blocks: request.blocks,
        rate_hz,
        is_unpaced: request.unpaced,
        lossless: path.lossless && !request.lossy,
        slowed: request.slower.clone(),
        is_watched: request.unpaced || !request.slower.is_empty(),
        last_level_bytes: last_level_cache_bytes(),
        ..laid_out
    })
}

fn open(request: &PathRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let path = request.path.clone();
    let layout = request.layout.clone().unwrap_or_else(|| path.layout.clone());
    let is_open = layout == Layout::Auto;
    let how = how(request, layout)?;
    if path.is_live() {
        let report = CardReport {
            device: |read_out, _| read_out.path.name.clone(),
            stage: stage(&path),
            tally: tally_live,
        };
        return card::open(path, &how, report);
    }
    path.sink.ready()?;
    Ok(vec![Box::new(PathSession {
        path,
        how,
        is_open,
        tried: Vec::new(),
        stop: StopFlag::default(),
        ready: None,
        ended: None,
    })])
}

struct PathSession {
    path: Path,
    how: PathSettings,
    /// True until the fastest layout is found.
    is_open: bool,
    tried: Vec<TriedLayout>,
    stop: StopFlag,
    ready: Option<Chain>,
    ended: Option<Ended>,
}

impl Drop for PathSession {
    fn drop(&mut self) {
        free_blocks(self.path.source_facts().span_bytes);
    }
}

impl PathSession {
    fn chain(&mut self) -> Result<Chain, Fault> {
        if std::mem::take(&mut self.is_open) {
            let is_chosen = !self.how.cpus.is_empty();
            let tried = tried(&self.path, &self.how, &self.stop)?;
            let shown = |&(bytes_per_s, ref one): &(f64, Candidate)| TriedLayout {
                layout: one.text(is_chosen),
                bytes_per_s,
            };
            self.tried = tried.iter().map(shown).collect();
            // Without a try the path is a pipeline.
            self.how.layout = Layout::Pipeline.to_string();
            if let Some((_, best)) = tried.into_iter().next() {
                self.how.layout = best.text(is_chosen);
                self.how.groups = self.path.groups(&best.layout).map_err(Fault::new)?;
                self.how.cpus = best.cpus;
            }
        }
        Chain::start(&self.path, &self.how, &self.stop, true)
    }

    fn compare(&mut self) -> Result<(), Fault> {
        self.ended.as_mut().map_or(Ok(()), Ended::check)
    }
}

fn stage(path: &Path) -> StageSpec {
    let bytes = path.block_bytes as u64;
    StageSpec { once: true, ..StageSpec::new("path", bytes, bytes) }
}

impl Session for PathSession {
    fn device(&self) -> String {
        self.path.name.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![StageSpec { device_timed: true, ..stage(&self.path) }]
    }

    fn device_time(&self) -> DeviceTime {
        self.ended.as_ref().map_or_else(DeviceTime::default, |ended| {
            let begin_ns = ended.shared.begin_ns.get().copied().flatten().unwrap_or(0);
            DeviceTime {
                before_ns: begin_ns,
                after_ns: begin_ns.saturating_add(ended.run.time_ns()),
            }
        })
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.ready = Some(self.chain()?);
        Ok(())
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            // A caller may run the path again without verifying the bytes. They are compared here
            // then, so that the file's name is free.
            self.compare()?;
            let chain = self.ready.take().map_or_else(|| self.chain(), Ok)?;
            let ended = chain.run(&self.stop);
            let fault = ended.fault.clone();
            self.ended = Some(ended);
            // Other faults are of no interest then.
            if self.stop.is_set() {
                return Err(Fault::interrupted());
            }
            fault.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Compares the blocks that the sink keeps. Blocks that only passed through the sink were
    /// compared there. No run precedes the measured one.
    fn verify(&mut self) -> Result<(), Fault> {
        self.compare()?;
        let Some(ended) = &self.ended else {
            return Ok(());
        };
        let open = ended.ledgers.iter().find(|ledger| !ledger.closes());
        open.map_or(Ok(()), |ledger| Err(Fault::new(ledger.to_string())))
    }

    fn tally(&mut self) -> Tally {
        let Some(ended) = self.ended.take() else {
            return Tally::default();
        };
        let are_known = ended.shared.expected.iter().any(|own| !own.is_empty());
        let mut tally = Tally {
            warnings: warnings(&self.path, ended.notes, &ended.run, are_known),
            carried_bytes: Some(ended.run.payload_bytes),
            ledgers: ended.ledgers,
            counters: ended.counters,
            ..Tally::default()
        };
        tally.counters.push(Counter::count("blocks", ended.run.blocks));
        tally.sections.path = Some(Box::new(PathRun {
            line: self.path.line(),
            served: self.path.served.clone(),
            links: links(&self.path, &Files::default()),
            tried: self.tried.clone(),
            asked_bytes_per_s: self.how.rate_hz.map(|hz| self.path.due_bytes_per_s(hz)),
            is_paced: ended.run.is_paced
                || self.path.source_facts().is_timed && !self.how.is_unpaced,
            ..ended.run
        }));
        tally
    }
}

/// Account of a reader's lane; the first lane has those of all: a ledger for each E-link, from
/// trigger to receiver.
fn tally_live(read_out: &ReadOut, results: &CardResults, at: usize) -> Tally {
    let ReadOut { path, scenario, .. } = read_out;
    let (mut tally, each) = read_out.tally(results, at);
    tally.ledgers = each.into_iter().map(|each| of_elink(each, results)).collect();
    if let Some(run) = &mut tally.sections.path {
        run.served.clone_from(&path.served);
        let hz = scenario.trigger.rate.0;
        run.asked_bytes_per_s = run.is_paced.then(|| path.due_bytes_per_s(hz));
        tally.warnings.extend(warnings(path, Vec::new(), run, true));
    }
    tally
}

/// Ledger of an E-link. Chunks that a failed run left on their way are booked as such.
fn of_elink((tag, mut ledger): (u64, Ledger), results: &CardResults) -> Ledger {
    ledger.unit = format!("triggers of E-link {}", elink_name(tag));
    let left = u64::try_from(ledger.gap()).unwrap_or(0);
    if results.fault.is_some() && left > 0 {
        ledger.lose("in the path when it failed", left);
    }
    ledger
}

fn warnings(path: &Path, notes: Vec<String>, run: &PathRun, are_known: bool) -> Vec<String> {
    let mut warnings = notes;
    let leaves = Leaves::of(path, &Files::default());
    warnings.extend(leaves.and_then(|leaves| leaves.unknown()));
    let (blocks, verified) = (run.blocks, run.verified_blocks);
    if blocks > 0 && verified == 0 {
        let why = match are_known {
            true => "the sink did not confirm any",
            false => "they are not known beforehand",
        };
        warnings.push(format!("no block's bytes were compared: {why}"));
    }
    let cpus = daqmeter_sys::available::cpus();
    let threads = run.threads.len();
    if threads as f64 > cpus {
        warnings.push(format!(
            "{threads} threads share {} CPUs: the rate is that of the CPUs together",
            daqmeter_record::units::significant(cpus, 3)
        ));
    }
    warnings
}

/// Observation for a search for the largest rate without loss, from a record at a rate: blocks that
/// were lost, and a source that could not begin them when they were due.
pub fn observation(path: &Path, record: &RunRecord) -> Observation {
    if let Some(scenario) = path.live() {
        return observed(record, scenario.event_bytes());
    }
    let ledgers = record.ledgers.iter();
    let share = |run: &PathRun| Some(run.behind_ns()? / run.time_ns() as f64);
    Observation {
        lost: ledgers.map(daqmeter_record::Ledger::lost).sum(),
        dead_share: record.sections.path.as_deref().and_then(share).unwrap_or(0.0),
        ..Observation::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(request: &PathRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
        request.job()?.open()
    }

    #[test]
    fn paths_conform() {
        daqmeter_harness::conformance::run(&PathRequest::example().job().unwrap());
    }

    /// The time in which a file was written included its read-back.
    #[test]
    fn a_file_is_read_back_after_the_time_of_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let (path, out) = (folder.path().join("a.toml"), folder.path().join("out"));
        let text = format!(
            "title = \"a test\"\nblock = \"4KiB\"\n[source]\nkind = \"memory\"\n\
             [sink]\nkind = \"file\"\npath = \"{}\"\n",
            out.display()
        );
        std::fs::write(&path, text).unwrap();
        let path = Path::load(path.to_str().unwrap()).unwrap();
        let request = PathRequest { blocks: Some(5), ..PathRequest::new(&path, 60.0) };
        let mut session = opened(&request).unwrap().remove(0);
        session.prepare().unwrap();
        session.step(0, 1).unwrap();
        assert_eq!(session.tally().sections.path.unwrap().verified_blocks, 0);
        session.step(0, 1).unwrap();
        session.verify().unwrap();
        assert_eq!(session.tally().sections.path.unwrap().verified_blocks, 5);
    }

    /// Regression: n blocks of a rate were counted over n - 1 periods.
    #[test]
    fn the_blocks_of_a_rate_fill_as_many_periods() {
        for (layout, blocks) in [("pipeline", 1), ("pipeline", 2), ("fused x 2", 5)] {
            let request = PathRequest {
                rate_hz: Some(500.0),
                blocks: Some(blocks),
                layout: layout.parse().ok(),
                ..PathRequest::new(&Path::load("pattern").unwrap(), 60.0)
            };
            let mut session = opened(&request).unwrap().remove(0);
            session.prepare().unwrap();
            session.step(0, 1).unwrap();
            let DeviceTime { before_ns, after_ns } = session.device_time();
            let run = session.tally().sections.path.unwrap();
            assert_eq!(run.next_due_ns, Some(blocks * 2_000_000), "{layout}");
            assert!(run.time_ns() >= blocks * 2_000_000 && run.per_s(blocks) <= 500.0);
            assert_eq!((run.blocks, after_ns - before_ns), (blocks, run.time_ns()));
        }
    }

    #[test]
    fn a_source_that_is_behind_is_no_stable_rate() {
        let observed = |wall_ns| {
            let next_due_ns = Some(1_000_000_000);
            let run = PathRun { wall_ns, next_due_ns, ..PathRun::default() };
            let mut record = RunRecord::default();
            record.sections.path = Some(Box::new(run));
            observation(&Path::load("pattern").unwrap(), &record).dead_share
        };
        assert_eq!(observed(1_005_000_000), 0.0);
        assert!((observed(1_250_000_000) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_path_that_was_changed_is_refused() {
        let workload = PathRequest::example().workload().with("digest", "0");
        let error = PathRequest::of(&workload).unwrap_err().0;
        assert!(error.contains("is another path now"), "{error}");
    }

    /// A search for the largest rate over UDP begins with a run as fast as it goes, in which blocks
    /// are lost.
    #[test]
    fn as_fast_as_it_goes_only_a_path_that_may_lose_blocks_may_be_lossy() {
        let lossy = |with: &[&str]| {
            let with: Vec<Setting> = with.iter().map(|one| one.parse().unwrap()).collect();
            let path = Path::load_with("felix-card", &with).unwrap();
            let request = PathRequest { lossy: true, ..PathRequest::new(&path, 0.001) };
            opened(&request).map(drop)
        };
        let refused = lossy(&[]).unwrap_err().0;
        assert!(refused.contains("loses nothing without a rate"), "{refused}");
        assert_eq!(lossy(&["sink.kind=udp", "sink.to=daq7:5010"]), Ok(()));
    }

    #[test]
    fn what_excludes_each_other_and_what_is_beyond_the_path_is_refused() {
        let both = PathRequest { rate_hz: Some(1.0), unpaced: true, ..PathRequest::example() };
        assert!(both.check().unwrap_err().text.contains("one of both"));
        let beyond = PathRequest { slower: vec![(9, 1.0)], ..PathRequest::example() };
        let error = opened(&beyond).err().unwrap().0;
        assert!(error.contains("beyond the last"), "{error}");
        let card = Path::load("felix-readout").unwrap();
        let lossy = PathRequest { lossy: true, ..PathRequest::new(&card, 1.0) };
        let error = opened(&lossy).err().unwrap().0;
        assert!(error.contains("lossy") && error.contains("`card`"), "{error}");
    }
}
