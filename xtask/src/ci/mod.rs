//! What CI runs after `cargo test`: everything that needs root, other packages, another CPU, a browser or time.
//!
//! Each step is a process of its own (`cargo xtask step NAME`), so that what it printed stays together and its CPU time is known.
//! [`schedule`] says which may run side by side. A step that fails does not stop the others: one run names every fault.

mod page;
mod schedule;
mod steps;

use std::fs::{self, File};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub(crate) use page::page;
pub(crate) use steps::{published_run_whole, schema};

use crate::shell::root;
use schedule::{Load, Order, State};

/// Exit code of a step that could not be run here; its reason is in a file beside its log.
const LEFT_OUT: u8 = 3;

/// How a step ended, when it did not fail.
pub(crate) enum Done {
    Ran,
    /// Could not be run here; said loudly at the end.
    LeftOut(String),
}

pub(crate) fn ran(result: Result<()>) -> Result<Done> {
    result.map(|()| Done::Ran)
}

/// One step of CI.
pub(crate) struct Step {
    order: Order<'static>,
    run: fn() -> Result<Done>,
}

const fn step(
    name: &'static str,
    load: Load,
    after: &'static [&'static str],
    run: fn() -> Result<Done>,
) -> Step {
    Step {
        order: Order { name, load, after },
        run,
    }
}

/// Runs all steps, or those with `only` in their name and what they come after.
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

/// Runs one step in this process, for [`all`]; the exit code.
pub(crate) fn one(name: &str) -> Result<u8> {
    let step = steps::STEPS
        .iter()
        .find(|step| step.order.name == name)
        .with_context(|| format!("no step `{name}`"))?;
    Ok(match (step.run)()? {
        Done::Ran => 0,
        Done::LeftOut(why) => {
            fs::write(place(name, "left-out"), why)?;
            LEFT_OUT
        }
    })
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Step>> {
    let Some(only) = only else {
        return Ok(steps::STEPS.iter().collect());
    };
    let mut wanted: Vec<&str> = steps::STEPS
        .iter()
        .map(|step| step.order.name)
        .filter(|name| name.contains(only))
        .collect();
    ensure!(!wanted.is_empty(), "no step has `{only}` in its name");
    // What a step comes after is part of the run; the table names those first or later, so this goes on until nothing is added.
    loop {
        let needed = |step: &&Step| wanted.contains(&step.order.name);
        let more: Vec<&str> = steps::STEPS
            .iter()
            .filter(needed)
            .flat_map(|step| step.order.after)
            .copied()
            .collect();
        let before = wanted.len();
        wanted.extend(more);
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.len() == before {
            return Ok(steps::STEPS
                .iter()
                .filter(|step| wanted.contains(&step.order.name))
                .collect());
        }
    }
}

/// A file of a step below `target/ci/log`.
fn place(step: &str, kind: &str) -> std::path::PathBuf {
    let name: String = step
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    root().join("target/ci/log").join(format!("{name}.{kind}"))
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
        for kind in ["left-out", "cpu"] {
            if place(order.name, kind).exists() {
                fs::remove_file(place(order.name, kind))?;
            }
        }
        let file = File::create(log)?;
        let own = std::env::current_exe()?;
        // Builds give way to the emulators beside them, whose cases have deadlines.
        let mut command = if order.load == Load::Build {
            let mut nice = Command::new("nice");
            nice.args(["-n", "10"]).arg(own);
            nice
        } else {
            Command::new(own)
        };
        command
            .args(["step", order.name])
            .stdin(std::process::Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        println!("... {}", order.name);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start step `{}`", order.name))?;
        Ok(Running {
            at,
            name: order.name,
            child,
            began: Instant::now(),
        })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Prints all that the step printed, with how it ended.
    fn end(mut self) -> Result<Ended> {
        let code = self.child.wait()?.code();
        let wall = self.began.elapsed();
        let printed = fs::read(place(self.name, "log"))?;
        println!(
            "\n=== {}\n{}",
            self.name,
            String::from_utf8_lossy(&printed).trim_end()
        );
        let cpu = fs::read_to_string(place(self.name, "cpu")).unwrap_or_else(|_| "?".to_owned());
        let fate = match code {
            Some(0) => Fate::Passed,
            Some(code) if code == i32::from(LEFT_OUT) => {
                Fate::LeftOut(fs::read_to_string(place(self.name, "left-out")).unwrap_or_default())
            }
            code => Fate::Failed(code.map_or("ended by a signal".to_owned(), |code| {
                format!("exit code {code}")
            })),
        };
        let ended = Ended {
            name: self.name,
            fate,
            wall,
            cpu,
        };
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
        format!(
            "{}: {how} in {:.0} s (CPU {} s)",
            self.name,
            self.wall.as_secs_f64(),
            self.cpu
        )
    }
}

/// Writes the CPU time of this step and all its children for the process that started it.
pub(crate) fn leave_cpu_time(name: &str) {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else {
        return;
    };
    // Fields 14 to 17 of proc(5), counted after the name, which may hold blanks: utime, stime, cutime, cstime in ticks of 10 ms.
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(11)
        .take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    // The table only lacks a figure where this cannot be written.
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
    let count = |of: fn(&Fate) -> bool| ended.iter().filter(|step| of(&step.fate)).count();
    let (failed, left_out) = (
        count(|fate| matches!(fate, Fate::Failed(_))),
        count(|fate| matches!(fate, Fate::LeftOut(_))),
    );
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
