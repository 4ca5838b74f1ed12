//! Side of `daqmeter ab`: a point that daqmeter measures, or a shell command, a fresh process each
//! time.

use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use daqmeter_harness::{Context, StepPlan};
use daqmeter_record::{EngineInfo, Lane, Param, RunRecord, Stage, Workload, jsonl};
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::process::{ends_within, kill_group};
use serde_json::json;
use toml::Value;

use crate::engines::engine;

/// Repetitions of a process, and the time of each stage in one.
const REPETITIONS: u64 = 4;
const TIME_MS: u64 = 5;
/// Time in which a process of a point ends.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Kind of the work of a shell command.
pub const COMMAND: &str = "command";
/// Environment variable of a side. It shifts the stack by its length, since the environment lies at
/// its beginning. A page has every alignment that matters to a loop.
const SIDE: &str = "DAQMETER_AB_SIDE";
/// Environment variable of a command, which has only its length.
const SHIFT: &str = "DAQMETER_AB_SHIFT";
pub const MAX_SHIFT: f64 = 4096.0;

/// Tests if this process is a side of a comparison, which needs neither limits nor further rounds.
pub fn is_side() -> bool {
    std::env::var_os(SIDE).is_some()
}

/// Point that is measured, without a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PointRequest {
    pub workload: Workload,
    pub cpu: Option<u32>,
    pub steps: StepPlan,
}

impl PointRequest {
    /// Parses a request as records show it, such as `convert function=3 samples=3000000 isa=avx2`;
    /// `cpu=1` sets its CPU. Values may have quotes, as for a shell.
    pub fn parse(text: &str) -> Result<PointRequest, String> {
        let words = shlex::split(text).ok_or_else(|| format!("`{text}`: a quote is open"))?;
        let (kind, words) =
            words.split_first().ok_or("a point begins with the name of an engine")?;
        let parameters = engine(kind)?.parameters();
        let is_text = |name: &str| parameters.iter().any(|one| one.is_text && one.name == name);
        let (mut workload, mut cpu) = (Workload::new(kind), None);
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                format!("`{word}` is not a parameter: ENGINE NAME=VALUE ... is wanted")
            })?;
            if name == "cpu" {
                cpu = Some(value.parse().map_err(|_| format!("cpu={value}: no CPU number"))?);
            } else if is_text(name) {
                workload.params.insert(name.to_owned(), value.into());
            } else {
                workload.params.insert(name.to_owned(), param(name, value)?);
            }
        }
        let steps = StepPlan::Timed(Duration::from_millis(TIME_MS));
        Ok(PointRequest { workload, cpu, steps })
    }

    /// Returns the plan of its repetitions.
    pub fn plan(&self) -> String {
        let (name, extent) = match self.steps {
            StepPlan::Timed(_) => ("time", json!(format!("{TIME_MS}ms"))),
            StepPlan::ByStage(operations) => ("reads", json!(operations)),
            StepPlan::ByPass(passes) => ("passes", json!(passes)),
        };
        let Workload { kind, params } = &self.workload;
        let sweep = json!({"study": "ab", "engine": kind, (name): extent, "workload": params});
        let file = json!({"title": "ab", "repetitions": REPETITIONS, "sweep": [sweep]});
        toml::to_string(&file).expect("plain data")
    }
}

/// Reads a value as in plans.
fn param(name: &str, text: &str) -> Result<Param, String> {
    let flag = text.parse().map(Value::Boolean);
    let number = || text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float));
    let value = flag.or_else(|_| number()).unwrap_or_else(|_| Value::String(text.to_owned()));
    crate::plan::param(name, &value).map_err(|problem| format!("{name}: {problem}"))
}

/// Work of a side.
#[derive(Clone, Debug)]
pub enum AbWork {
    /// A program of daqmeter that measures the point.
    Point(PathBuf, PointRequest),
    /// A command of the shell, with the facts of its records. One run is one sample.
    Shell(String, Context),
}

/// A name and its work.
#[derive(Clone, Debug)]
pub struct AbSide {
    pub name: &'static str,
    pub work: AbWork,
    /// Time after which a process that does not end is ended.
    pub patience: Duration,
}

impl AbSide {
    /// Measures once, in a fresh process whose stack is shifted by that many bytes.
    ///
    /// # Errors
    /// Names the side, and what it said last.
    pub fn measure(&self, shift_bytes: usize) -> Result<Vec<RunRecord>, String> {
        match &self.work {
            AbWork::Point(program, point) => {
                let mut command = Command::new(program);
                command.args(["run", "/dev/stdin", "--json"]).stdout(Stdio::piped());
                if let Some(cpu) = point.cpu {
                    command.args(["--pin", &cpu.to_string()]);
                }
                let ended = self.ended(command, shift_bytes, &point.plan())?;
                let has_records = !ended.records.is_empty();
                Ok(self.checked(ended, has_records, "ended without a record")?.records)
            }
            AbWork::Shell(text, context) => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", text]).stdout(Stdio::null());
                let mut record = shell_record(text, context);
                let ended = self.ended(command, shift_bytes, "")?;
                let is_good = ended.status.success();
                record.wall_ns = self.checked(ended, is_good, "failed")?.took_ns;
                let stage = &mut record.lanes[0].stages[0];
                (stage.end_ns, stage.sample_ns) = (record.wall_ns, vec![record.wall_ns]);
                Ok(vec![record])
            }
        }
    }

    fn wrong(&self, what: impl Display) -> String {
        format!("side {}: {what}", self.name)
    }

    fn checked(&self, ended: Ended, is_good: bool, what: &str) -> Result<Ended, String> {
        let said = ended.said.lines().last().map(|line| format!(": {line}")).unwrap_or_default();
        let status = ended.status;
        if is_good { Ok(ended) } else { Err(self.wrong(format!("{what} ({status}){said}"))) }
    }

    /// Runs a process to its end with that input.
    fn ended(
        &self,
        mut command: Command,
        shift_bytes: usize,
        input: &str,
    ) -> Result<Ended, String> {
        // A command may be daqmeter, which then measures as usual.
        let variable = if matches!(self.work, AbWork::Shell(..)) { SHIFT } else { SIDE };
        let begin_ns = monotonic_ns();
        let mut child = command
            .env(variable, "x".repeat(shift_bytes))
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stderr(Stdio::piped())
            // Ctrl-C goes to the parent only.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                self.wrong(format!("cannot start {}: {error}", command.get_program().display()))
            })?;
        // A process that has ended reads nothing, and says why below.
        let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let (out, mut err) = (child.stdout.take(), child.stderr.take());
        let said = std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = err.as_mut().map(|pipe| pipe.read_to_end(&mut said));
            String::from_utf8_lossy(&said).into_owned()
        });
        let records = std::thread::spawn(move || out.map(read).unwrap_or_default());
        let ended = ends_within(&child, self.patience);
        let took_ns = monotonic_ns() - begin_ns;
        // Processes that a command left behind hold its pipes open.
        kill_group(&child);
        let status = child.wait().map_err(|error| self.wrong(error))?;
        let (said, records) = (said.join().unwrap_or_default(), records.join().unwrap_or_default());
        match ended {
            Ok(true) => Ok(Ended { took_ns, status, said, records }),
            _ => Err(self.wrong(format!(
                "did not end within {} s and was stopped",
                self.patience.as_secs()
            ))),
        }
    }
}

/// End of a process.
struct Ended {
    took_ns: u64,
    status: ExitStatus,
    /// Text that it wrote to its standard error.
    said: String,
    records: Vec<RunRecord>,
}

/// Returns the record of a run of a command, without its time. Each is an invocation.
fn shell_record(text: &str, context: &Context) -> RunRecord {
    let engine = EngineInfo { name: COMMAND.into(), target: "/bin/sh".into(), emulated: false };
    let workload = Workload::new(COMMAND).with("line", text);
    let mut record = context.blank_record(engine, workload);
    record.study = "ab".to_owned();
    record.origin_ns = monotonic_ns();
    record.run_id = format!("{}-{}", context.run_id, record.origin_ns);
    let stage = Stage { name: COMMAND.into(), ops_per_sample: 1, ..Stage::default() };
    record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
    record
}

fn read(pipe: std::process::ChildStdout) -> Vec<RunRecord> {
    let contents = jsonl::read_printable(std::io::BufReader::new(pipe));
    contents.map(|contents| contents.records).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_request_becomes_a_plan_of_the_same_point() {
        let request =
            PointRequest::parse("memory read_bytes=4KiB read_lines=1 write_lines=1 cpu=1");
        let request = request.unwrap();
        assert_eq!(request.cpu, Some(1));
        let plan = crate::Plan::parse(&request.plan(), "ab.toml").unwrap();
        assert_eq!(plan.points.len() as u64, REPETITIONS);
        let workload = &plan.points[0].workload;
        assert_eq!(workload.int("read_bytes"), Ok(4096));
        assert_eq!(
            (&workload.params, plan.points[0].steps),
            (&request.workload.params, request.steps)
        );
        let passes = PointRequest { steps: StepPlan::ByPass(7), ..request };
        let plan = crate::Plan::parse(&passes.plan(), "ab.toml").unwrap();
        assert_eq!(plan.points[0].steps, StepPlan::ByPass(7));
    }

    fn side(work: AbWork) -> AbSide {
        AbSide { name: "B", work, patience: PATIENCE }
    }

    #[test]
    fn a_side_that_goes_wrong_is_named_with_what_it_said() {
        let said = |program: &str| {
            let point = PointRequest::parse("null").unwrap();
            side(AbWork::Point(program.into(), point)).measure(9).unwrap_err()
        };
        let nothing = said("true");
        assert!(
            nothing.starts_with("side B: ended without a record (exit status: 0)"),
            "{nothing}"
        );
        assert!(said("cat").starts_with("side B: ") && said("cat").contains("cat"));
        let absent = said("/nowhere/daqmeter");
        assert!(absent.starts_with("side B: cannot start /nowhere/daqmeter"), "{absent}");
    }

    fn shell(text: &str, patience: Duration) -> Result<Vec<RunRecord>, String> {
        let work = AbWork::Shell(text.to_owned(), Context::default());
        AbSide { patience, ..side(work) }.measure(9)
    }

    #[test]
    fn a_command_is_one_sample_of_its_wall_time_and_its_end_is_said() {
        let begin = Instant::now();
        let records = shell("cat; echo out; sleep 100 &", PATIENCE).unwrap();
        assert!(begin.elapsed() < PATIENCE, "what it leaves behind is ended");
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!(record.lanes[0].stages[0].sample_ns, [record.wall_ns]);
        assert!(u128::from(record.wall_ns) <= begin.elapsed().as_nanos() && record.wall_ns > 0);
        assert_eq!(record.workload.text("line"), Ok("cat; echo out; sleep 100 &"));
        let failed = |text| shell(text, PATIENCE).unwrap_err();
        let said = failed("echo one >&2; echo two >&2; exit 7");
        assert_eq!(said, "side B: failed (exit status: 7): two");
        assert_eq!(failed("exit 7"), "side B: failed (exit status: 7)");
        assert!(failed("no-such-command").contains("exit status: 127"));
        let long = shell("cat /dev/zero", Duration::from_millis(1)).unwrap_err();
        assert!(long.starts_with("side B: did not end within 0 s"), "{long}");
    }
}
