//! Steps of CI after `cargo test`: those that need root, other packages, another CPU, a browser or
//! time.
//! Each step is a process of its own (`cargo xtask step NAME`), so its output stays together and
//! its CPU time is known. [`schedule`] selects the steps that may run side by side. A failed step
//! does not stop the others: one run names every fault.

mod builds;
mod checks;
mod page;
mod schedule;
pub(crate) mod step;
mod steps;

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use daqmeter_vm::shell::StepDone;
pub(crate) use page::page;
use schedule::{Load, Order, State};
use step::{Step, place};

/// Exit code of a step that could not be run here; its reason is in a file beside its log.
const LEFT_OUT: u8 = 3;

/// Runs all steps, or those with `only` in their name and their prerequisites.
pub(crate) fn all(only: Option<&str>) -> Result<()> {
    let chosen = chosen(only)?;
    let orders: Vec<Order> = chosen.iter().map(|step| step.order).collect();
    let mut states = vec![State::Waiting; chosen.len()];
    let mut running: Vec<Running> = Vec::new();
    let mut ended: Vec<Ended> = Vec::new();
    let began = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    while ended.len() < chosen.len() {
        while let Some(at) = schedule::next(&orders, &states, cpus) {
            running.push(Running::start(at, orders[at])?);
            states[at] = State::Running;
        }
        let Some(done) = running.iter_mut().position(|step| step.has_ended()) else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let step = running.swap_remove(done);
        states[step.at] = State::Ended;
        ended.push(step.end()?);
    }
    conclude(&ended, began.elapsed())
}

/// Runs one step in this process, for [`all`]; returns the exit code.
pub(crate) fn one(name: &str) -> Result<u8> {
    let step = steps::STEPS.iter().find(|step| step.order.name == name);
    let done = (step.with_context(|| format!("no step `{name}`"))?.run)();
    leave_cpu_time(name);
    Ok(match done? {
        StepDone::Ran => 0,
        StepDone::LeftOut(why) => {
            fs::write(place(name, "left-out"), why)?;
            LEFT_OUT
        }
    })
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Step>> {
    let only = only.unwrap_or("");
    let mut wanted: Vec<&Step> =
        steps::STEPS.iter().filter(|step| step.order.name.contains(only)).collect();
    ensure!(!wanted.is_empty(), "no step has `{only}` in its name");
    let mut at = 0;
    while let Some(step) = wanted.get(at) {
        let is_new = |name: &str| wanted.iter().all(|step| step.order.name != name);
        let new: Vec<&str> = step.order.after.iter().copied().filter(|name| is_new(name)).collect();
        wanted.extend(steps::STEPS.iter().filter(|step| new.contains(&step.order.name)));
        at += 1;
    }
    let is_wanted = |step: &&Step| wanted.iter().any(|one| one.order.name == step.order.name);
    Ok(steps::STEPS.iter().filter(is_wanted).collect())
}

struct Running {
    at: usize,
    name: &'static str,
    child: Child,
    began: Instant,
}

impl Running {
    fn start(at: usize, order: Order<'static>) -> Result<Running> {
        let log = place(order.name, "log");
        fs::create_dir_all(log.parent().expect("a file in a folder"))?;
        for left in ["left-out", "cpu"].map(|kind| place(order.name, kind)) {
            if left.exists() {
                fs::remove_file(left)?;
            }
        }
        let file = File::create(log)?;
        // Builds have a lower priority than the emulators beside them, which have deadlines.
        let niceness = if order.load == Load::Build { "10" } else { "0" };
        println!("... {}", order.name);
        let child = Command::new("nice")
            .args(["-n", niceness])
            .arg(std::env::current_exe()?)
            .args(["step", order.name])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start step `{}`", order.name))?;
        Ok(Running { at, name: order.name, child, began: Instant::now() })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn end(mut self) -> Result<Ended> {
        let code = self.child.wait()?.code();
        let wall = self.began.elapsed();
        let printed = fs::read(place(self.name, "log"))?;
        println!("\n=== {}\n{}", self.name, String::from_utf8_lossy(&printed).trim_end());
        let cpu = fs::read_to_string(place(self.name, "cpu")).unwrap_or_else(|_| "?".to_owned());
        let fate = match code {
            Some(0) => Fate::Passed,
            Some(code) if code == i32::from(LEFT_OUT) => {
                Fate::LeftOut(fs::read_to_string(place(self.name, "left-out")).unwrap_or_default())
            }
            code => Fate::Failed(
                code.map_or("ended by a signal".to_owned(), |code| format!("exit code {code}")),
            ),
        };
        let ended = Ended { name: self.name, fate, wall, cpu };
        println!("=== {}", ended.line());
        Ok(ended)
    }
}

enum Fate {
    Passed,
    LeftOut(String),
    Failed(String),
}

struct Ended {
    name: &'static str,
    fate: Fate,
    wall: Duration,
    /// Seconds of CPU time with all children.
    cpu: String,
}

impl Ended {
    fn line(&self) -> String {
        let how = match &self.fate {
            Fate::Passed => "passed",
            Fate::LeftOut(_) => "left out",
            Fate::Failed(_) => "FAILED",
        };
        format!("{}: {how} in {:.0} s (CPU {} s)", self.name, self.wall.as_secs_f64(), self.cpu)
    }
}

/// Writes the CPU time of this step and all its children for the process that started it.
fn leave_cpu_time(name: &str) {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else {
        return;
    };
    // Fields 14 to 17 of proc(5), counted after the name, which may hold blanks: utime, stime,
    // cutime, cstime in ticks of 10 ms.
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    // A failed write only leaves a gap in the table.
    let _ = fs::write(place(name, "cpu"), format!("{}", ticks / 100));
}

fn conclude(ended: &[Ended], wall: Duration) -> Result<()> {
    println!("\nsteps, in the order in which they ended:");
    for step in ended {
        println!("  {}", step.line());
    }
    for step in ended {
        match &step.fate {
            Fate::LeftOut(why) => println!("!!! NOT RUN: {}: {why}", step.name),
            Fate::Failed(how) => println!("!!! FAILED: {}: {how}", step.name),
            Fate::Passed => {}
        }
    }
    let failed = ended.iter().filter(|step| matches!(step.fate, Fate::Failed(_))).count();
    let left_out = ended.iter().filter(|step| matches!(step.fate, Fate::LeftOut(_))).count();
    println!(
        "\nxtask ci: {} steps passed, {failed} failed, {left_out} left out, in {:.0} s",
        ended.len() - failed - left_out,
        wall.as_secs_f64()
    );
    if failed > 0 {
        bail!("{failed} steps failed");
    }
    Ok(())
}
