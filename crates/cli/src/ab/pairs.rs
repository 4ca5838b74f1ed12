//! Pairs of sides from the command line.

use std::path::{Path, PathBuf};

use daqmeter_campaign::ab::{AbSide, SideRequest};
use daqmeter_campaign::{Plan, Site, engine};
use daqmeter_harness::request::Problem;
use daqmeter_harness::slices;

use super::arguments::Arguments;
use crate::output::Failure;

pub(crate) const SIDE: &str = "ab-side";

pub(super) struct Pair {
    pub(super) point: String,
    pub(super) names: [String; 2],
    pub(super) sides: [AbSide; 2],
    /// Reason why the point of a plan cannot be measured in turns.
    pub(super) left_out: Option<String>,
}

pub(super) fn pairs(arguments: &Arguments) -> Result<Vec<Pair>, Failure> {
    let pins: Vec<u32> = arguments.pin.into_iter().collect();
    check_cpus("--pin", &pins)?;
    if let Some(plan) = &arguments.plan {
        return of_plan(arguments, plan);
    }
    let names = [arguments.a.clone(), arguments.b.clone()];
    let own = std::env::current_exe()?;
    let side = |text: &str, option: &str| {
        let request = SideRequest::parse(text);
        let request = request.map_err(|why| format!("{option}: {why}"))?;
        let cpus: Vec<u32> = request.cpu.into_iter().collect();
        check_cpus(&format!("{option}: cpu"), &cpus)?;
        Ok::<AbSide, Failure>(point(own.clone(), placed(arguments, request)?))
    };
    let sides = [side(&names[0], "A")?, side(&names[1], "B")?];
    Ok(vec![Pair { point: shared(&names), sides, names, left_out: None }])
}

fn check_cpus(name: &str, cpus: &[u32]) -> Result<(), Failure> {
    let checked = Problem::unless_cpus_exist("", cpus);
    Ok(checked.map_err(|problem| format!("{name} {}", problem.text))?)
}

fn shared(names: &[String; 2]) -> String {
    let [a, b] = names;
    let is_shared = |word: &&str| b.split_whitespace().any(|other| other == *word);
    a.split_whitespace().filter(is_shared).collect::<Vec<_>>().join(" ")
}

/// Places a side on the CPU of the point, or of the option, or on the last one, since the first
/// ones serve most interrupts.
fn placed(arguments: &Arguments, request: SideRequest) -> Result<SideRequest, Failure> {
    let allowed = daqmeter_sys::affinity::allowed_cpus()?;
    let cpu = request.cpu.or(arguments.pin).or(allowed.last().copied());
    Ok(SideRequest { cpu, ..request })
}

fn point(program: PathBuf, request: SideRequest) -> AbSide {
    AbSide { program, arguments: vec![SIDE.to_owned()], request }
}

fn of_plan(arguments: &Arguments, plan: &str) -> Result<Vec<Pair>, Failure> {
    let site = Site { pin: arguments.pin.map(|cpu| vec![cpu]), ..Site::here() };
    let plan = Plan::load_for(plan, &site)?;
    let binaries = [binary(&arguments.a)?, binary(&arguments.b)?];
    let mut pairs: Vec<Pair> = Vec::new();
    for planned in &plan.points {
        let cpu = planned.pin.first().copied();
        let placement = cpu.map_or(String::new(), |cpu| format!(" cpu={cpu}"));
        let name = format!("{}{placement}", planned.workload);
        // `ab` repeats points itself.
        if pairs.iter().any(|pair| pair.point == name) {
            continue;
        }
        let request = SideRequest::new(planned.workload.clone(), cpu);
        let request = placed(arguments, request)?;
        pairs.push(Pair {
            left_out: left_out(&planned.engine, &request),
            point: name,
            names: [arguments.a.clone(), arguments.b.clone()],
            sides: binaries.clone().map(|binary| point(binary, request.clone())),
        });
    }
    let left_out: Option<Vec<&String>> = pairs.iter().map(|pair| pair.left_out.as_ref()).collect();
    match left_out.as_deref() {
        Some([why, ..]) => {
            Err(format!("no point of this plan can be measured in turns: {why}").into())
        }
        _ => Ok(pairs),
    }
}

/// Returns the reason why this work cannot be measured in turns. An engine that is unknown here
/// gives none, since the binaries may know it.
fn left_out(name: &str, request: &SideRequest) -> Option<String> {
    let job = engine(name).ok()?.parse(&request.workload);
    job.and_then(|job| slices::check(&job)).err().map(|fault| fault.to_string())
}

/// Returns the path of a file, even if it has no folder; else looks for it as the shell does.
pub(crate) fn binary(name: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(std::path::absolute(path)?);
    }
    match name.contains('/') {
        true => Err(format!("{name} is not a file; a binary of daqmeter is wanted").into()),
        false => Ok(path.to_owned()),
    }
}
