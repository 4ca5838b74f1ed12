//! The process of a side, as its parent sees it: started, asked, ended, and its faults as text.

use std::fmt::Display;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::next_line;
use daqmeter_record::Slice;
use daqmeter_stats::Random;

use super::protocol::{Ask, Reply, SideRequest, VERSION};
use super::{Question, Tracked};

/// Environment variable that shifts the stack by its length: the environment lies at its beginning.
pub(super) const SHIFT: &str = "DAQMETER_SHIFT";
/// Bound of the shifts of heaps and stacks: a page has every alignment that matters to a loop.
const MAX_SHIFT: f64 = 4096.0;
const MAX_SHOWN: usize = 200;
const MAX_STAGES: usize = 64;

pub(super) struct Process {
    side: &'static str,
    child: Child,
    replies: Receiver<String>,
    /// Last line on its standard error.
    complaint: Option<JoinHandle<String>>,
    patience: Duration,
    pub(super) stages: Vec<(String, u64)>,
}

impl Process {
    /// Starts a side with random shifts of its stack and heap, and the operations that are known.
    pub(super) fn start(
        question: &Question,
        side: usize,
        known: &[Tracked],
        random: &mut Random,
    ) -> Result<Process, String> {
        let (of, side) = (&question.sides[side], ["A", "B"][side]);
        let [stack, shift_bytes] = [(); 2].map(|()| shift(random));
        let mut child = Command::new(&of.program)
            .args(&of.arguments)
            .env(SHIFT, "x".repeat(stack))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to the parent only.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                format!("side {side}: cannot start {}: {error}", of.program.display())
            })?;
        let (send, replies) = channel();
        let is_reply = |line: &str| line.starts_with('{');
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                each_line(stdout, |line| {
                    // A failed send means that nobody waits for more.
                    let _ = is_reply(line).then(|| send.send(line.to_owned()));
                });
            });
        }
        let complaint = child.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut last = String::new();
                each_line(stderr, |line| line.clone_into(&mut last));
                last
            })
        });
        let patience = question.patience;
        let mut process = Process { side, child, replies, complaint, patience, stages: Vec::new() };
        let operations = known.iter().map(|stage| (stage.stage.clone(), stage.operations));
        let operations = operations.collect();
        match process.ask(&SideRequest { shift_bytes, operations, ..of.request.clone() })? {
            Reply::Ready { stages, .. } if stages.is_empty() || stages.len() > MAX_STAGES => {
                let stages = stages.len();
                Err(process.wrong(format!("has {stages} stages, not 1 to {MAX_STAGES}")))
            }
            Reply::Ready { version: VERSION, stages } => {
                process.stages = stages;
                Ok(process)
            }
            Reply::Ready { version, .. } => Err(process.wrong(format!(
                "{} speaks version {version} of the protocol of sides, this daqmeter version {VERSION}: compare binaries of the same version",
                of.program.display()
            ))),
            other => Err(process.wrong(format!("{other:?} is not an answer to a request"))),
        }
    }

    pub(super) fn slice(&mut self, stage: usize, operations: u64) -> Result<Slice, String> {
        match self.ask(&Ask::Slice { stage, operations })? {
            Reply::Slice(slice) if slice.ns > 0 && slice.chain_ns != Some(0) => Ok(slice),
            Reply::Slice(_) => Err(self.wrong("says that a slice took no time")),
            other => Err(self.wrong(format!("{other:?} is not a slice"))),
        }
    }

    pub(super) fn verify(&mut self) -> Result<(), String> {
        match self.ask(&Ask::Verify)? {
            Reply::Verified {} => Ok(()),
            other => Err(self.wrong(format!("{other:?} is not a verification"))),
        }
    }

    fn ask(&mut self, what: &impl serde::Serialize) -> Result<Reply, String> {
        let mut line = serde_json::to_string(what).map_err(|error| self.wrong(error))?;
        line.push('\n');
        // A side that has ended gives no reply.
        let _ = self.child.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
        let line = match self.replies.recv_timeout(self.patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.patience.as_secs_f64();
                return Err(self.wrong(format!("did nothing for {seconds} s and was ended")));
            }
        };
        match serde_json::from_str(&line) {
            Ok(Reply::Refused(why)) => Err(self.wrong(short(&why))),
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.wrong(format!("`{}` is not an answer of a side", short(&line)))),
        }
    }

    fn wrong(&self, what: impl Display) -> String {
        format!("side {}: {what}", self.side)
    }

    fn ended(&mut self) -> String {
        // A side that only closed its output is ended.
        let _ = self.child.stdin.take();
        let status = self.child.wait().map_or_else(|error| error.to_string(), |s| s.to_string());
        let said = self.complaint.take().and_then(|thread| thread.join().ok());
        let said = said.filter(|line| !line.is_empty());
        let said = said.map_or(String::new(), |line| format!("; it said: {}", short(&line)));
        self.wrong(format!("ended before its work was done ({status}){said}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shift(random: &mut Random) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 4096")]
    let shift = (random.uniform() * MAX_SHIFT) as usize;
    shift
}

/// Reads to the end, so that the side never blocks on a full pipe.
fn each_line(source: impl Read, mut take: impl FnMut(&str)) {
    let (mut source, mut line) = (BufReader::new(source), Vec::new());
    while next_line(&mut source, &mut line).is_ok_and(|is_there| is_there) {
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            take(text.trim());
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
