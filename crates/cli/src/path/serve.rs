//! `daqmeter path serve`: the receiver of paths that end on this host.

use std::net::TcpListener;
use std::process::ExitCode;

use clap::Args;
use daqmeter_path::receiver;
use daqmeter_record::sanitise;

use crate::interrupt;
use crate::output::{Ended, Failure, emit};

/// Receive the blocks of paths that end here, compare those that are known, and say what came.
#[derive(Debug, Args)]
#[command(after_long_help = "\
        It serves up to 16 senders at the same time, until Ctrl-C. Over UDP each sender gets its \
        own port. Anybody who reaches the address may send: choose an address of a network that \
        you trust.\n\n\
        Example:\n\n  \
        receiver$ daqmeter path serve 10.0.0.7:5010\n  \
        sender$ daqmeter path run mine.toml\n\n\
        with [sink] kind = \"tcp\", to = \"10.0.0.7:5010\" in mine.toml.")]
pub(crate) struct Arguments {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(value_name = "ADDRESS:PORT")]
    address: String,
    /// Stop after this number of senders; each run of a path is one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    senders: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let wrong = |error| Failure::refused(format!("{}: {error}", arguments.address));
    let listener = TcpListener::bind(&arguments.address).map_err(|error| format!(
            "{}: {error}; an address of this host and a free port are wanted, such as 10.0.0.7:5010",
            arguments.address
        ))?;
    let address = listener.local_addr().map_err(wrong)?;
    emit(&format!("listening on {address}\n"))?;
    let stop = interrupt::flag();
    let (mut senders, mut printed) = (0, Ok(ExitCode::SUCCESS));
    let served = receiver::serve(&listener, &stop, |peer, came| {
        let came = came.map_or_else(|why| sanitise::text(&why).into_owned(), |came| came.text());
        printed = emit(&format!("{peer}: {came}\n"));
        senders += 1;
        if printed.is_err() || arguments.senders.is_some_and(|wanted| senders >= wanted) {
            stop.set();
        }
    });
    served.map_err(wrong)?;
    printed
}
