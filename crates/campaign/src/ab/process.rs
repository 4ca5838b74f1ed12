//! The process of a side, as its parent sees it: started, given turns, ended, and its faults as
//! text.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daqmeter_sys::turns::Page;

use super::protocol::{Reply, SideRequest, VERSION, WRITER, has_fault, next_step, position};
use super::question::{AbSide, letter};

const LOOK: Duration = Duration::from_millis(20);
/// Environment variable that shifts the stack by its length: the environment lies at its beginning.
pub(super) const SHIFT: &str = "DAQMETER_SHIFT";
const MAX_SHOWN: usize = 200;

const MAX_STAGES: usize = 64;

pub(super) struct Process {
    side: usize,
    child: Child,
    complaint: Option<JoinHandle<String>>,
    pub(super) schema: u32,
    pub(super) stages: Vec<(String, u64)>,
}

impl Process {
    pub(super) fn start(
        of: &AbSide,
        page: &Page,
        request: &SideRequest,
        shift: usize,
        patience: Duration,
    ) -> Result<Process, String> {
        let side = request.side;
        let wrong = |what: String| format!("side {}: {what}", letter(side));
        let AbSide::Point { program, arguments, .. } = of else {
            return Err(wrong("a command takes no turns".to_owned()));
        };
        let text = serde_json::to_string(request).map_err(|error| wrong(error.to_string()))?;
        page.set_text(&text).map_err(|error| wrong(error.to_string()))?;
        let seen = page.word(WRITER).load(Ordering::Acquire);
        let mut child = Command::new(program)
            .args(arguments)
            .env(SHIFT, "x".repeat(shift))
            .stdin(page.share().map_err(|error| wrong(error.to_string()))?)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C goes to the parent only.
            .process_group(0)
            .spawn()
            .map_err(|error| wrong(format!("cannot start {}: {error}", program.display())))?;
        let complaint = child.stderr.take().map(last_line);
        let (schema, stages) = (0, Vec::new());
        let mut process = Process { side, child, complaint, schema, stages };
        wait(page, seen, patience, side, &mut [&mut process])?;
        match process.reply(page)? {
            Reply::Ready { stages, .. } if stages.is_empty() || stages.len() > MAX_STAGES => {
                let stages = stages.len();
                Err(process.wrong(format!("has {stages} stages, not 1 to {MAX_STAGES}")))
            }
            Reply::Ready { version: VERSION, schema, stages } => {
                (process.schema, process.stages) = (schema, stages);
                Ok(process)
            }
            Reply::Ready { version, .. } => Err(process.wrong(format!(
                "{} speaks version {version} of the protocol of sides, this daqmeter version {VERSION}: compare binaries of the same version",
                program.display()
            ))),
            other => Err(process.wrong(format!("{other:?} is not an answer to a request"))),
        }
    }

    pub(super) fn wrong(&self, what: impl std::fmt::Display) -> String {
        format!("side {}: {what}", letter(self.side))
    }

    pub(super) fn reply(&self, page: &Page) -> Result<Reply, String> {
        let text = page.text().map_err(|error| self.wrong(error))?;
        match serde_json::from_str(&text) {
            Ok(Reply::Refused(why)) => Err(self.wrong(short(&why))),
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.wrong(format!("`{}` is not an answer of a side", short(&text)))),
        }
    }

    fn is_there(&mut self) -> Result<(), String> {
        let status = match self.child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let said = self.complaint.take().and_then(|thread| thread.join().ok());
        let said = said.filter(|line| !line.is_empty());
        let said = said.map_or(String::new(), |line| format!("; it said: {}", short(&line)));
        Err(self.wrong(format!("ended before its work was done ({status}){said}")))
    }
}

/// Waits until the turn comes back to the writer of the steps. Patience begins anew with every step
/// that is done. An error names the side with the current step, or the one that was asked.
pub(super) fn wait(
    page: &Page,
    seen: u64,
    patience: Duration,
    asked: usize,
    sides: &mut [&mut Process],
) -> Result<(), String> {
    let (mut since, mut at) = (Instant::now(), position(page));
    let at_turn = || next_step(page).map_or(asked, |step| step.side);
    while !page.wait(WRITER, seen, LOOK) {
        sides.iter_mut().try_for_each(|side| side.is_there())?;
        if position(page) != at {
            (since, at) = (Instant::now(), position(page));
        }
        if since.elapsed() > patience {
            let (side, seconds) = (letter(at_turn()), patience.as_secs_f64());
            return Err(format!("side {side}: did nothing for {seconds} s and was ended"));
        }
    }
    let at_turn = at_turn();
    match sides.iter().find(|side| side.side == at_turn) {
        Some(side) if has_fault(page) => side.reply(page).map(|_| ()),
        _ => Ok(()),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads to the end, so that the side never blocks on a full pipe, and keeps the last nonempty
/// line.
fn last_line(stderr: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if !line.trim().is_empty() {
                last = short(line.trim());
            }
        }
        last
    })
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
