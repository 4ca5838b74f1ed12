//! Steps of CI after `cargo test`: those that need root, other packages, another CPU, a browser or
//! time. `steps.toml` has them.
//! Each step is a process of its own with its log. [`schedule`] selects the steps that may run side
//! by side. A failed step does not stop the others: one run names every fault.

mod schedule;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::rows;
use daqmeter_vm::shell::{line, program, scratch, target};
use serde::Deserialize;

use schedule::{Load, Order, State};

/// Exit code of a step that could not be run here; the last line of its log has the reason.
pub(crate) const LEFT_OUT: u8 = 3;

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(flatten)]
    order: Order,
    run: String,
    tries: Option<u32>,
}

fn steps() -> Result<Vec<Step>> {
    rows(include_str!("steps.toml"), "step")
}

/// Runs all steps, or those with `only` in their name and their prerequisites.
pub(crate) fn run(only: &str) -> Result<()> {
    let steps = chosen(steps()?, only)?;
    let orders: Vec<&Order> = steps.iter().map(|step| &step.order).collect();
    let mut states = vec![State::Waiting; steps.len()];
    let mut running: Vec<Running> = Vec::new();
    let mut ended: Vec<Ended> = Vec::new();
    let began = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    while ended.len() < steps.len() {
        while let Some((at, failed)) = schedule::blocked(&orders, &states) {
            states[at] = State::Failed;
            ended.push(Ended::not_run(&steps[at], &steps[failed]));
        }
        while let Some(at) = schedule::next(&orders, &states, cpus) {
            running.push(Running::start(at, &steps[at])?);
            states[at] = State::Running;
        }
        std::thread::sleep(Duration::from_millis(100));
        for at in (0..running.len()).rev() {
            let Some(status) = running[at].child.try_wait()? else { continue };
            let Running { at, began, .. } = running.swap_remove(at);
            let one = Ended::new(&steps[at], status.code(), began.elapsed())?;
            states[at] = if one.has_failed() { State::Failed } else { State::Done };
            ended.push(one);
        }
    }
    conclude(&ended, began.elapsed())
}

/// Returns the steps with `only` in their name and their prerequisites, in their order.
fn chosen(steps: Vec<Step>, only: &str) -> Result<Vec<Step>> {
    let is_named = |step: &&Step| step.order.name.contains(only);
    let mut wanted: Vec<String> =
        steps.iter().filter(is_named).map(|step| step.order.name.clone()).collect();
    ensure!(!wanted.is_empty(), "no step has `{only}` in its name");
    let mut at = 0;
    while let Some(name) = wanted.get(at) {
        let step = steps.iter().find(|step| step.order.name == *name);
        wanted.extend(step.with_context(|| format!("no step `{name}`"))?.order.after.clone());
        at += 1;
    }
    Ok(steps.into_iter().filter(|step| wanted.contains(&step.order.name)).collect())
}

fn log(step: &str) -> PathBuf {
    let name = step.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    scratch("log").join(format!("{name}.log"))
}

struct Running {
    at: usize,
    child: Child,
    began: Instant,
}

impl Running {
    fn start(at: usize, step: &Step) -> Result<Running> {
        fs::create_dir_all(scratch("log"))?;
        let file = File::create(log(&step.order.name))?;
        // Builds have a lower priority than the emulators beside them, which have deadlines.
        let niceness = if step.order.load == Load::Build { "10" } else { "0" };
        println!("... {}", step.order.name);
        let tries = "for try in $(seq $TRIES); do sh -e -c \"$STEP\" && exit 0; code=$?; \
                     echo \"!!! try $try of $TRIES ended with $code\" >&2; done; exit $code";
        let tries = if step.tries.is_none() { "exec sh -e -c \"$STEP\"" } else { tries };
        let child = line("nice -n")
            .arg(niceness)
            .words("sh -c")
            .arg(tries)
            .env("TRIES", step.tries.unwrap_or(1).to_string())
            .env("STEP", &step.run)
            .env("XTASK", std::env::current_exe()?)
            .env("DAQMETER", program())
            .env("BUILT", target())
            .env("CI", scratch(""))
            .command()
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start step `{}`", step.order.name))?;
        Ok(Running { at, child, began: Instant::now() })
    }
}

struct Ended {
    code: Option<i32>,
    /// Name, fate, and time if it ran.
    line: String,
}

impl Ended {
    fn new(step: &Step, code: Option<i32>, wall: Duration) -> Result<Ended> {
        let name = &step.order.name;
        let printed = fs::read(log(name))?;
        let printed = String::from_utf8_lossy(&printed);
        let printed = printed.trim_end();
        let fate = match code {
            Some(0) => "passed".to_owned(),
            Some(code) if code == i32::from(LEFT_OUT) => {
                format!("!!! NOT RUN: {}", printed.lines().last().unwrap_or_default())
            }
            code => format!("!!! FAILED ({code:?})"),
        };
        let line = format!("{name}: {:.0} s: {fate}", wall.as_secs_f64());
        println!("\n=== {name}\n{printed}\n=== {line}");
        Ok(Ended { code, line })
    }

    fn not_run(step: &Step, failed: &Step) -> Ended {
        let (name, failed) = (&step.order.name, &failed.order.name);
        let line = format!("{name}: !!! NOT RUN: it comes after `{failed}`, which did not pass");
        println!("\n=== {line}");
        Ended { code: Some(LEFT_OUT.into()), line }
    }

    fn has_failed(&self) -> bool {
        ![Some(0), Some(LEFT_OUT.into())].contains(&self.code)
    }
}

fn conclude(ended: &[Ended], wall: Duration) -> Result<()> {
    println!("\nsteps, in the order in which they ended:");
    ended.iter().for_each(|step| println!("  {}", step.line));
    let passed = ended.iter().filter(|step| step.code == Some(0)).count();
    let failed = ended.iter().filter(|step| step.has_failed()).count();
    let left_out = ended.len() - passed - failed;
    println!(
        "\nxtask ci: {passed} steps passed, {failed} failed, {left_out} left out, in {:.0} s",
        wall.as_secs_f64()
    );
    ensure!(failed == 0, "{failed} steps failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_steps_has_its_prerequisites() {
        let names = |only: &str| -> Vec<String> {
            let steps = chosen(steps().unwrap(), only).unwrap();
            steps.into_iter().map(|step| step.order.name).collect()
        };
        let all = names("");
        assert_eq!(all.len(), steps().unwrap().len());
        let kernels = ["Debian packages", "machines: kernels", "program"];
        let guests = ["mesh guests: program", "guests: modules, programs"];
        let copies = "copies: the kernel modules under Debian's kernels in QEMU";
        assert_eq!(names("the kernel modules"), [&kernels[..], &guests, &[copies]].concat());
        assert!(chosen(steps().unwrap(), "no such step").is_err());
    }
}
