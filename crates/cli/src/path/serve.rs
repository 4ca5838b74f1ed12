//! `daqmeter path serve`: the receiver of paths that end on this host.

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::StopFlag;
use daqmeter_path::receiver;
use daqmeter_path::receiver::protocol::COUNTS;
use daqmeter_record::sanitise;
use daqmeter_report::watched;

use crate::beside::OwnWatch;
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Ended, Failure, emit, tell};

/// Receive the blocks of paths that end here, compare those that are known, and say what came.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/path-serve.txt"))]
pub(crate) struct Arguments {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(value_name = "ADDRESS:PORT")]
    address: String,
    /// Stop after this number of senders; each run of a path is one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    senders: Option<u64>,
    #[command(flatten)]
    metrics: Metrics,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let wrong = |error| Failure::refused(format!("{}: {error}", arguments.address));
    let listener = TcpListener::bind(&arguments.address).map_err(|error| format!(
            "{}: {error}; an address of this host and a free port are wanted, such as 10.0.0.7:5010",
            arguments.address
        ))?;
    let address = listener.local_addr().map_err(wrong)?;
    let causes = ["wrong bytes", "stray datagrams", "lost datagrams"];
    let show = move |page: &Page| page.server("path serve", &["blocks", "bytes"], &causes, &COUNTS);
    arguments.metrics.served(show)?;
    let stop = interrupt::flag();
    let mut printer = Printer::start(&stop).map_err(wrong)?;
    printer.print(format!("listening on {address}\n"));
    let watch = OwnWatch::begin();
    let mut senders = 0;
    let served = receiver::serve(&listener, &stop, |peer, came| {
        let came = came.map_or_else(|why| sanitise::text(&why).into_owned(), |came| came.text());
        printer.print(format!("{peer}: {came}\n"));
        senders += 1;
        if arguments.senders.is_some_and(|wanted| senders >= wanted) {
            stop.set();
        }
    });
    served.map_err(wrong)?;
    for loss in watch.end().iter().flat_map(watched::own_losses) {
        tell(&format!("daqmeter: {loss}"));
    }
    printer.end()
}

/// Most lines that wait for a reader of standard output; further ones are counted.
const MAX_LINES: usize = 1024;

/// Thread that prints lines: who serves never waits for a reader of standard output.
struct Printer {
    lines: SyncSender<String>,
    thread: JoinHandle<Ended>,
    left_out: u64,
}

impl Printer {
    /// Sets `stop` when nothing more can be printed.
    fn start(stop: &StopFlag) -> std::io::Result<Printer> {
        let (lines, queue) = sync_channel::<String>(MAX_LINES);
        let stop = stop.clone();
        let print = move || {
            let printed = queue.iter().try_for_each(|line| emit(&line).map(drop));
            if printed.is_err() {
                stop.set();
            }
            printed.map(|()| ExitCode::SUCCESS)
        };
        let thread = std::thread::Builder::new().name("printer".to_owned()).spawn(print)?;
        Ok(Printer { lines, thread, left_out: 0 })
    }

    fn print(&mut self, mut line: String) {
        if self.left_out > 0 {
            line = format!("{} lines were left out: nothing read them\n{line}", self.left_out);
        }
        self.left_out = match self.lines.try_send(line) {
            Ok(()) => 0,
            Err(_) => self.left_out + 1,
        };
    }

    /// Waits until all is printed, or for a moment after a signal.
    fn end(self) -> Ended {
        const LOOK: Duration = Duration::from_millis(10);
        const MOMENT: Duration = Duration::from_millis(100);
        drop(self.lines);
        let begin = Instant::now();
        while !self.thread.is_finished() {
            if interrupt::is_asked() && begin.elapsed() > MOMENT {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(LOOK);
        }
        self.thread.join().unwrap_or_else(|_| Err(Failure::tool("the printer panicked")))
    }
}
