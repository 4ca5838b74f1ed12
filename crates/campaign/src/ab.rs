//! Side of `daqmeter ab`: a program that measures one point again and again, a fresh process each
//! time.

use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use daqmeter_harness::StepPlan;
use daqmeter_record::{Param, RunRecord, Workload, jsonl};
use serde_json::json;
use toml::Value;

use crate::engines::engine;

/// Repetitions of a process, and the time of each stage in one.
const REPETITIONS: u64 = 4;
const TIME_MS: u64 = 5;
/// Time after which a process that does not end is ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Environment variable of a side. It shifts the stack by its length, since the environment lies at
/// its beginning. A page has every alignment that matters to a loop.
const SIDE: &str = "DAQMETER_AB_SIDE";
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

/// A program and its point.
#[derive(Clone, Debug)]
pub struct AbSide {
    pub name: &'static str,
    pub program: PathBuf,
    pub point: PointRequest,
}

impl AbSide {
    /// Measures once, in a fresh process whose stack is shifted by that many bytes.
    ///
    /// # Errors
    /// Names the side, and what it said last.
    pub fn measure(&self, shift_bytes: usize) -> Result<Vec<RunRecord>, String> {
        let wrong = |what: &dyn Display| format!("side {}: {what}", self.name);
        let mut command = Command::new(&self.program);
        command.args(["run", "/dev/stdin", "--json"]);
        if let Some(cpu) = self.point.cpu {
            command.args(["--pin", &cpu.to_string()]);
        }
        let mut child = command
            .env(SIDE, "x".repeat(shift_bytes))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to the parent only.
            .process_group(0)
            .spawn()
            .map_err(|error| wrong(&format!("cannot start {}: {error}", self.program.display())))?;
        // A process that has ended reads nothing, and says why below.
        let _ = child.stdin.take().map(|mut input| input.write_all(self.point.plan().as_bytes()));
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            let _ = err.as_mut().map(|pipe| pipe.read_to_string(&mut said));
            said
        });
        let records = std::thread::spawn(move || out.as_mut().map(read));
        let ended = daqmeter_sys::process::ends_within(&child, PATIENCE);
        if !matches!(ended, Ok(true)) {
            daqmeter_sys::process::kill_group(&child);
        }
        let status = child.wait().map_err(|error| wrong(&error))?;
        let said = said.join().unwrap_or_default();
        let last = said.lines().last().unwrap_or_default();
        let records = records.join().ok().flatten().unwrap_or_default();
        match ended {
            Ok(true) if !records.is_empty() => Ok(records),
            Ok(true) if last.is_empty() => {
                Err(wrong(&format!("ended without a record ({status})")))
            }
            Ok(true) => Err(wrong(&last.trim_start_matches("daqmeter: "))),
            _ => Err(wrong(&format!(
                "made no progress for {} s and was stopped",
                PATIENCE.as_secs()
            ))),
        }
    }
}

fn read(pipe: &mut std::process::ChildStdout) -> Vec<RunRecord> {
    let contents = jsonl::read_printable(std::io::BufReader::new(pipe));
    contents.map(|contents| contents.records).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_side_that_goes_wrong_is_named_with_what_it_said() {
        let side = |program: &str| AbSide {
            name: "B",
            program: program.into(),
            point: PointRequest::parse("null").unwrap(),
        };
        let nothing = side("true").measure(9).unwrap_err();
        assert!(
            nothing.starts_with("side B: ended without a record (exit status: 0)"),
            "{nothing}"
        );
        let said = side("cat").measure(9).unwrap_err();
        assert!(said.starts_with("side B: ") && said.contains("cat"), "{said}");
        let absent = side("/nowhere/daqmeter").measure(9).unwrap_err();
        assert!(absent.starts_with("side B: cannot start /nowhere/daqmeter"), "{absent}");
    }
}
