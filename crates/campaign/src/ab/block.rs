//! One block: two fresh processes, groups of four slices, and both ended.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use daqmeter_harness::{Slice, StopFlag};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::protocol::{Ready, Reply, Request, VERSION};
use super::{Found, Question};

/// A side that does not answer for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Heaps and stacks are shifted by less than this: a page holds every alignment that matters to a loop.
const MAX_SHIFT: u64 = 4096;

/// How the process of a side is started, and what it is asked.
#[derive(Clone, Debug)]
pub struct Command {
    /// `A` or `B`, and what it is, for messages.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments, after which it speaks the protocol of sides on its standard input and output.
    pub arguments: Vec<String>,
    /// What it is asked.
    pub request: Request,
}

/// A file of the host's settings and its two values.
#[derive(Clone, Debug)]
pub struct Switch {
    /// For example `/proc/sys/net/ipv4/tcp_congestion_control`.
    pub path: PathBuf,
    /// Value for A and for B.
    pub values: [String; 2],
}

impl Switch {
    fn set(&self, side: usize) -> Result<(), String> {
        write(&self.path, &self.values[side])
    }
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    std::fs::write(path, value)
        .map_err(|error| format!("cannot write {value} to {}: {error}", path.display()))
}

/// Puts a setting back to what it was.
struct Restored(PathBuf, String);

impl Restored {
    fn of(switch: &Switch) -> Result<Restored, String> {
        let value = std::fs::read_to_string(&switch.path)
            .map_err(|error| format!("cannot read {}: {error}", switch.path.display()))?;
        Ok(Restored(switch.path.clone(), value.trim().to_owned()))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // It was written a moment ago; if that fails now there is nobody left to tell.
        let _ = write(&self.0, &self.1);
    }
}

/// Two processes that are ready.
pub(super) struct Block {
    sides: [Process; 2],
    _restored: Option<Restored>,
}

impl Block {
    pub(super) fn start(
        question: &Question,
        random: &mut Xoshiro256PlusPlus,
    ) -> Result<Block, String> {
        let restored = question.switch.as_ref().map(Restored::of).transpose()?;
        // Who comes first gets the memory that is free first.
        let a_is_first = random.next_u64() & 1 == 0;
        let mut start = |side: usize| {
            if let Some(switch) = &question.switch {
                switch.set(side)?;
            }
            Process::start(&question.sides[side], random)
        };
        let sides = if a_is_first {
            let a = start(0)?;
            [a, start(1)?]
        } else {
            let b = start(1)?;
            [start(0)?, b]
        };
        let names = |process: &Process| {
            let names = process.stages.iter().map(|(name, _)| name.clone());
            names.collect::<Vec<_>>()
        };
        if names(&sides[0]) != names(&sides[1]) {
            return Err(format!(
                "the sides have different stages: {} and {}",
                names(&sides[0]).join(", "),
                names(&sides[1]).join(", ")
            ));
        }
        Ok(Block {
            sides,
            _restored: restored,
        })
    }

    pub(super) fn stages(&self) -> Vec<String> {
        self.sides[0]
            .stages
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Works groups of four slices of all stages in turn until the block's time is over.
    pub(super) fn measure(
        &mut self,
        question: &Question,
        random: &mut Xoshiro256PlusPlus,
        stop: &StopFlag,
        mut found: impl FnMut(usize, Found),
    ) -> Result<(), String> {
        let began = Instant::now();
        let stages = self.sides[0].stages.len();
        let empty = || Found {
            log_ratios: Vec::new(),
            times_ns: [Vec::new(), Vec::new()],
            left_out: 0,
        };
        let mut all: Vec<Found> = (0..stages).map(|_| empty()).collect();
        while began.elapsed() < question.block && !stop.is_set() {
            for (stage, of_stage) in all.iter_mut().enumerate() {
                let order = if random.next_u64() & 1 == 0 {
                    [0, 1, 1, 0]
                } else {
                    [1, 0, 0, 1]
                };
                self.group(question, stage, order, of_stage)?;
            }
        }
        all.into_iter()
            .enumerate()
            .for_each(|(stage, of_stage)| found(stage, of_stage));
        Ok(())
    }

    fn group(
        &mut self,
        question: &Question,
        stage: usize,
        order: [usize; 4],
        found: &mut Found,
    ) -> Result<(), String> {
        let (mut op_ns, mut disturbed) = ([0.0; 2], false);
        for side in order {
            if let Some(switch) = &question.switch {
                switch.set(side)?;
            }
            let slice = self.sides[side].slice(stage)?;
            op_ns[side] += slice.ns.max(1) as f64 / slice.operations as f64 / 2.0;
            disturbed |= slice.disturbed;
        }
        if disturbed {
            found.left_out += 1;
            return Ok(());
        }
        found.log_ratios.push((op_ns[1] / op_ns[0]).ln());
        for (times, ns) in found.times_ns.iter_mut().zip(op_ns) {
            times.push(ns);
        }
        Ok(())
    }

    /// Compares bytes on both sides and ends their processes.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.sides.iter_mut().try_for_each(Process::verify)
    }
}

/// The process of a side.
struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
    stages: Vec<(String, u64)>,
}

impl Process {
    fn start(command: &Command, random: &mut Xoshiro256PlusPlus) -> Result<Process, String> {
        let wrong = |what: String| format!("side {}: {what}", command.name);
        let mut child = std::process::Command::new(&command.program)
            .args(&command.arguments)
            // The environment lies at the end of the stack.
            .env("DAQMETER_SHIFT", "x".repeat(shift(random)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                wrong(format!(
                    "cannot start {}: {error}",
                    command.program.display()
                ))
            })?;
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Process {
            name: command.name.clone(),
            child,
            input,
            lines,
            stages: Vec::new(),
        };
        let request = Request {
            shift_bytes: shift(random),
            ..command.request.clone()
        };
        let request = serde_json::to_string(&request).expect("plain data");
        let line = process.asked(&request)?;
        process.stages = process.ready(&line)?;
        Ok(process)
    }

    fn wrong(&self, what: impl std::fmt::Display) -> String {
        format!("side {}: {what}", self.name)
    }

    /// The stages in a side's first line.
    fn ready(&self, line: &str) -> Result<Vec<(String, u64)>, String> {
        if let Some(Reply::Refused(why)) = Reply::parse(line) {
            return Err(self.wrong(why));
        }
        let ready: Ready = serde_json::from_str(line).map_err(|_| {
            self.wrong(format!(
                "`{}` is no answer of a daqmeter that can be a side",
                short(line)
            ))
        })?;
        if ready.version != VERSION {
            return Err(self.wrong(format!("speaks version {}, not {VERSION}", ready.version)));
        }
        Ok(ready.stages)
    }

    /// Writes a line and waits for one.
    fn asked(&mut self, line: &str) -> Result<String, String> {
        // A side that ended is seen below.
        let _ = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        match self.lines.recv_timeout(PATIENCE) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(self.wrong(format!("cannot be read: {error}"))),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.wrong(format!("gave no answer for {} s", PATIENCE.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_err(|error| self.wrong(error))?;
                Err(self.wrong(format!("ended in the middle ({status})")))
            }
        }
    }

    fn slice(&mut self, stage: usize) -> Result<Slice, String> {
        let line = self.asked(&stage.to_string())?;
        match Reply::parse(&line) {
            Some(Reply::Slice(slice)) => Ok(slice),
            Some(Reply::Refused(why)) => Err(self.wrong(why)),
            _ => Err(self.wrong(format!("`{}` is no answer", short(&line)))),
        }
    }

    fn verify(&mut self) -> Result<(), String> {
        let line = self.asked("verify")?;
        match Reply::parse(&line) {
            Some(Reply::Verified) => Ok(()),
            Some(Reply::Refused(why)) => Err(self.wrong(why)),
            _ => Err(self.wrong(format!("`{}` is no answer", short(&line)))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn short(line: &str) -> String {
    line.chars().take(60).collect()
}

fn shift(random: &mut Xoshiro256PlusPlus) -> usize {
    usize::try_from(random.next_u64() % MAX_SHIFT).expect("small")
}
