//! `daqmeter watch`: where a receiver that is already running loses its data.

use std::io::{self, BufReader, IsTerminal};
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use console::Term;
use daqmeter_harness::{Tally, next_line};
use daqmeter_record::watched::Watched;
use daqmeter_record::{Counter, EngineInfo, Sections, Workload};
use daqmeter_report::watched;
use daqmeter_sys::bpf::Sequence;
use daqmeter_sys::host::Files;
use daqmeter_watch::{INTERVAL, LocalPort, Said, Target, Trials, Watch, sequence};

use regex_lite::{Match, Regex};

use crate::arguments::duration;
use crate::command::{end, start};
use crate::context::context;
use crate::interrupt;
use crate::metrics::{Metrics, Page, is_due};
use crate::output::{CANNOT_TELL, Ended, FAILED, Failure, emit};
use crate::progress::Forecast;
use crate::recorder::{Recorder, Recording};

/// Find where a program that is already running loses its packets.
///
/// It counts the packets from the network card to the sockets, and changes nothing without --try or
/// --confirm. Exit code: 0 if nothing was lost, 1 if something was.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/watch.txt"))]
pub(crate) struct Arguments {
    /// Watch this process and those that it started [default: all that this host receives]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Watch the sockets of this port, as udp/5000
    #[arg(long, value_name = "PORT")]
    port: Option<LocalPort>,
    /// Place of a number in datagrams that the sender counts up: finds losses before this host
    ///
    /// As offset=8,bytes=4,big: bytes of the payload before it, its width, and its order (big or
    /// little). It needs root and --port, and looks at every packet of the namespace.
    #[arg(long, value_name = "PLACE", value_parser = sequence, requires = "port")]
    sequence: Option<(u16, u8, bool)>,
    /// Time of the watch [default: until the command ends or Ctrl-C; 10s in a pipe or with a trial]
    ///
    /// Without it, a terminal shows the answer so far each second, until Ctrl-C. So does --metrics.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Number in the command's output to hold against the kernel's count: packets that it received
    ///
    /// A regular expression; its first group is the number, as in 'received ([0-9]+)'. A group
    /// called lost is what the command lost, as in `'lost (?P<lost>[0-9]+)'`, and one called
    /// received may stand beside it. The last numbers count.
    #[arg(long, value_name = "REGEX", value_parser = says, requires = "command")]
    says: Option<Regex>,
    /// Try what would avoid the worst loss at a socket, in turns with the state before
    ///
    /// A larger buffer, or other CPUs for the thread that reads it or for its packets, as the
    /// cause asks for; or a longer backlog. Each is tried in 16 or 32 turns of 0.4 to 4 s after
    /// the watch, and put back at the end and after a kill. Packets that change their CPU may
    /// come out of order. It needs root.
    #[arg(long = "try", conflicts_with = "command")]
    tries: bool,
    /// Confirm the cause of the worst loss: take away what should make the loss larger
    ///
    /// A part of the reader's CPU, or half of the buffer; put back as with --try.
    #[arg(long, conflicts_with = "command")]
    confirm: bool,
    #[command(flatten)]
    recording: Recording,
    #[command(flatten)]
    metrics: Metrics,
    /// Start this command, and watch it until it ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    command: Vec<String>,
}

impl Arguments {
    /// Tests if the watch has no end of its own: a terminal or a page shows how it goes on.
    fn is_open(&self) -> bool {
        let is_asked = self.time.is_some() || self.tries || self.confirm;
        !is_asked && self.command.is_empty() && (self.metrics.is_served() || self.is_seen())
    }

    fn is_seen(&self) -> bool {
        let Recording { json, quiet, .. } = self.recording;
        !json && !quiet && io::stdout().is_terminal()
    }

    fn sequence(&self) -> Result<Option<Sequence>, Failure> {
        let Some(((offset, bytes, is_big_endian), port)) = self.sequence.zip(self.port) else {
            return Ok(None);
        };
        if port.is_tcp {
            return Err(Failure::refused("--sequence needs a port of UDP, as --port udp/5000"));
        }
        Ok(Some(Sequence { port: port.number, offset, bytes, is_big_endian }))
    }
}

/// Time of a watch of programs that were there before.
const TIME: Duration = Duration::from_secs(10);
/// Time between two screens of a watch that goes on.
const SHOW: Duration = Duration::from_secs(1);

/// Draws the answer so far in place of the one before; what does not fit the window is left out.
fn draw(terminal: &Term, watched: &Watched) -> io::Result<()> {
    let mut frame = watched::frame(watched);
    frame.answer.extend(watched::newest(watched, SHOW));
    let rows = usize::from(terminal.size().0).saturating_sub(2);
    terminal.clear_screen()?;
    for line in frame.text(None).lines().take(rows) {
        terminal.write_line(line)?;
    }
    terminal.write_str("Ctrl-C ends the watch and prints its answer.")?;
    terminal.flush()
}

fn show_counts(page: &Page, watched: &Watched) {
    let target = [watched.target.as_str()];
    page.set("daqmeter_issued_total", &target, watched.came_in() as f64);
    let read = watched.stages.last().map_or(0, |stage| stage.went_on);
    page.set("daqmeter_delivered_total", &target, read as f64);
    for loss in &watched.losses {
        page.set("daqmeter_lost_total", &[&loss.at, &loss.reason], loss.packets as f64);
    }
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let stop = interrupt::flag();
    let mut recorder = Recorder::new(&arguments.recording)?;
    // A command may end at once, so all is open before it begins.
    let own = (!arguments.command.is_empty()).then(std::process::id);
    let mut target = Target { pid: arguments.pid.or(own), port: arguments.port };
    let mut watch =
        Watch::open(&Files::default(), target, arguments.sequence()?).map_err(Failure::refused)?;
    let output = if arguments.says.is_some() { Stdio::piped() } else { Stdio::inherit() };
    let mut program = start(&arguments.command, output)?;
    if let Some((program, command)) = program.as_ref().zip(arguments.command.first()) {
        target.pid = Some(program.id());
        watch.follow_process(program.id(), command);
    }
    let heard =
        program.as_mut().and_then(|program| program.stdout.take()).zip(arguments.says.clone());
    let heard = heard.map(|(output, says)| std::thread::spawn(move || hear(output, &says)));
    let page = arguments.metrics.served(|_| {})?;
    // A command is watched until it ends.
    let is_open = arguments.is_open();
    let time = arguments.time.or_else(|| (program.is_none() && !is_open).then_some(TIME));
    if let Some(time) = time {
        recorder.expect(Forecast::budget(time));
    }
    let terminal = (is_open && arguments.is_seen()).then(Term::buffered_stdout);
    if terminal.is_some() {
        recorder.progress.end();
    }
    let mut shown = None;
    let info = EngineInfo { name: "watch".into(), target: watch.name(), emulated: false };
    // Without numbers of processes, so that watches of a program are one point over time.
    let workload = Workload::new("watch").with("what", watch.what());
    let context = context(arguments.recording.label.as_deref());
    let open = context.open_record("watch", info, workload);
    let began = Instant::now();
    let mut has_ended = false;
    while !stop.is_set() && !has_ended {
        let left = time.map_or(INTERVAL, |time| time.saturating_sub(began.elapsed()));
        if left.is_zero() {
            break;
        }
        watch.step(INTERVAL.min(left)).map_err(Failure::tool)?;
        if (page.is_some() || terminal.is_some()) && is_due(&mut shown, SHOW) {
            let watched = watch.so_far();
            page.iter().for_each(|page| show_counts(page, &watched));
            // The answer at the end tells of a terminal that is gone.
            terminal.iter().for_each(|terminal| drop(draw(terminal, &watched)));
        }
        has_ended = program.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
    }
    terminal
        .iter()
        .for_each(|terminal| drop(terminal.clear_screen().and_then(|()| terminal.flush())));
    watch.end().map_err(Failure::tool)?;
    let status = program.map(end).transpose()?;
    let said: Option<Said> = heard.and_then(|heard| heard.join().ok());
    let mut watched = watch.so_far();
    if let Some(said) = said {
        watch.hold_against(said, &mut watched);
    }
    let trials = Trials { tries: arguments.tries, confirms: arguments.confirm };
    if trials != Trials::default() && !stop.is_set() {
        watch.try_changes(trials, began.elapsed(), &mut watched, || stop.is_set());
    }
    if let Some(status) = status.filter(|status| !status.success() && !stop.is_set()) {
        watched.notes.push(format!("the command failed: {status}"));
    }
    let code = code(&watched, target);
    let counters = vec![Counter::count("lost", watched.lost())];
    let sections = Sections { watched: Some(Box::new(watched)), ..Sections::default() };
    let found = Tally { counters, sections, ..Tally::default() };
    recorder.take(open.so_far(found, Vec::new()))?;
    let frame = recorder
        .records
        .last()
        .and_then(|record| record.sections.watched.as_deref())
        .map(watched::frame);
    recorder.end(|_| frame.unwrap_or_default().text(None))?;
    Ok(code)
}

/// Passes a command's output on. Returns the numbers that matched last.
fn hear(output: ChildStdout, says: &Regex) -> Said {
    let (mut output, mut line, mut said) = (BufReader::new(output), Vec::new(), Said::default());
    let is_named = says.capture_names().flatten().next().is_some();
    while next_line(&mut output, &mut line).is_ok_and(|is_line| is_line) {
        let text = String::from_utf8_lossy(&line);
        if let Some(found) = says.captures(&text) {
            let first =
                if is_named { found.name("received") } else { found.get(1).or(found.get(0)) };
            let number = |found: Option<Match>| found.and_then(|found| found.as_str().parse().ok());
            said.received = number(first).or(said.received);
            said.lost = number(found.name("lost")).or(said.lost);
        }
        // A closed pipe does not end the watch.
        let _ = emit(&format!("{}\n", text.trim_end()));
    }
    said
}

fn says(text: &str) -> Result<Regex, String> {
    let says = Regex::new(text).map_err(|error| format!("{error}: write 'received ([0-9]+)'"))?;
    match says.capture_names().flatten().find(|name| !["received", "lost"].contains(name)) {
        Some(name) => Err(format!("a group is called `{name}`: call it received or lost")),
        None => Ok(says),
    }
}

fn code(watched: &Watched, target: Target) -> ExitCode {
    let mut sockets = watched.sockets.iter();
    let is_unseen = watched.sockets.is_empty() || sockets.any(|socket| socket.has_ring);
    match watched.lost() {
        0 if !target.is_host() && is_unseen => ExitCode::from(CANNOT_TELL),
        0 if watched.unseen.iter().any(|one| one.packets > 0) => ExitCode::from(CANNOT_TELL),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(FAILED),
    }
}
