//! Stages that bytes leave this program for: a connection, or an external program. They go out at
//! one end and come back at the other, each with its own thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_harness::{Fault, locked};
use daqmeter_sys::memory::Buffer;
use daqmeter_sys::net::{self, Readiness, wait_ready};
use daqmeter_sys::process;
use socket2::{Domain, Socket, Type};

use crate::cancel::Cuts;
use crate::element::{Ends, Transform};

struct End {
    name: &'static str,
    socket: Socket,
}

fn failed(name: &str, what: &str, error: &io::Error) -> Fault {
    Fault::new(format!("{name}: {what}: {error}"))
}

/// A cut has a handle of its own, which would keep the connection.
impl Drop for End {
    fn drop(&mut self) {
        // The other end may have gone first.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

pub(crate) fn set_congestion(stream: &TcpStream, name: Option<&str>) -> Result<(), Fault> {
    let name = name.unwrap_or("default");
    let set = net::set_congestion(stream, name);
    set.map_err(|error| Fault::new(format!("tcp: congestion control {name}: {error}")))
}

pub(crate) fn tcp(congestion: Option<&str>, cuts: &Cuts) -> Result<Connected, Fault> {
    let refused = |error: io::Error| failed("tcp", "loopback", &error);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(refused)?;
    let out = TcpStream::connect(listener.local_addr().map_err(refused)?).map_err(refused)?;
    let (inward, peer) = listener.accept().map_err(refused)?;
    if peer != out.local_addr().map_err(refused)? {
        return Err(Fault::new("tcp: another program came first: run again"));
    }
    out.set_nodelay(true).map_err(refused)?;
    set_congestion(&out, congestion)?;
    away("tcp", out.into(), inward.into(), cuts)
}

pub(crate) fn unix(cuts: &Cuts) -> Result<Connected, Fault> {
    let refused = |error: io::Error| failed("unix", "socket pair", &error);
    let (out, inward) = Socket::pair(Domain::UNIX, Type::STREAM, None).map_err(refused)?;
    away("unix", out, inward, cuts)
}

fn away(name: &'static str, out: Socket, inward: Socket, cuts: &Cuts) -> Result<Connected, Fault> {
    let cut = out.try_clone().map_err(|error| failed(name, "share its socket", &error))?;
    cuts.add(move || drop(cut.shutdown(Shutdown::Both)));
    let end = |socket| End { name, socket };
    Ok(Connected { out: end(out), inward: end(inward) })
}

/// Both ends of a connection.
pub(crate) struct Connected {
    out: End,
    inward: End,
}

/// Bytes that are sent before the next look for what came: they stay in the cache.
const TURN_BYTES: usize = 64 << 10;

impl Connected {
    pub(crate) fn in_two_threads(self) -> Ends {
        let Connected { mut out, mut inward } = self;
        let send = move |bytes: &[u8]| {
            out.socket.write_all(bytes).map_err(|error| failed(out.name, "send", &error))
        };
        let receive = move |into: &mut [u8]| {
            inward.socket.read_exact(into).map_err(|error| failed(inward.name, "receive", &error))
        };
        (Box::new(send), Box::new(receive))
    }

    /// Makes both ends the work of one thread: what a block needs is sent and received by turns, so
    /// that neither end waits for the other.
    pub(crate) fn in_one_thread(self) -> Result<Connected, Fault> {
        for end in [&self.out, &self.inward] {
            let set = end.socket.set_nonblocking(true);
            set.map_err(|error| failed(end.name, "set up its socket", &error))?;
        }
        Ok(self)
    }

    /// Sends what there is room for now.
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match (&self.out.socket).write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }

    /// Receives some bytes, for which it waits.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.inward.socket).read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(&self.inward.socket, Readiness { read: true, write: false })?;
                }
                received => return received,
            }
        }
    }
}

fn wait(socket: &Socket, wanted: Readiness) -> io::Result<()> {
    wait_ready(socket.as_fd(), wanted, None).map(drop)
}

impl Transform for Connected {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        let (out, into) = (from.slice::<u8>(bytes), to.slice_mut::<u8>(bytes));
        let (mut sent, mut came) = (0, 0);
        while came < bytes {
            let turn = &out[sent..bytes.min(came + TURN_BYTES)];
            let done = if turn.is_empty() { Ok(0) } else { self.send(turn) };
            sent += done.map_err(|error| failed(self.out.name, "send", &error))?;
            let done = match sent > came {
                true => self.receive(&mut into[came..sent]),
                false => wait(&self.out.socket, Readiness { read: false, write: true }).map(|()| 0),
            };
            came += done.map_err(|error| failed(self.inward.name, "receive", &error))?;
        }
        Ok(bytes)
    }
}

/// A program in a group of its own: whatever it started and left behind ends with it.
struct Running {
    name: String,
    child: Mutex<Child>,
}

impl Running {
    /// Ends all of its group: a process that was left behind may hold the pipe that is read.
    fn failed(&self, what: &str, error: &io::Error) -> Fault {
        let mut child = locked(&self.child);
        // A child that was waited for before has no process to wait for.
        let has_ended = process::ends_within(&child, ENDS_WITHIN).unwrap_or(true);
        process::kill_group(&child);
        let status = match (has_ended, child.wait()) {
            (true, Ok(status)) => format!("it ended with {status}"),
            _ => "it closed its end".to_owned(),
        };
        Fault::new(format!("{}: {what}: {error}; {status}", self.name))
    }
}

/// Time that a program that closed a pipe may take to end: its exit follows at once.
const ENDS_WITHIN: Duration = Duration::from_millis(100);

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = locked(&self.child);
        process::kill_group(&child);
        // It was killed: this does not wait.
        let _ = child.wait();
    }
}

pub(crate) fn program(command: &[String], cuts: &Cuts) -> Result<Ends, Fault> {
    let (name, arguments) = command.split_first().ok_or_else(|| Fault::new("no program"))?;
    let started = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| failed(name, "start the program", &error))?;
    let pipes = (child.stdin.take(), child.stdout.take());
    let running = Arc::new(Running { name: name.clone(), child: Mutex::new(child) });
    let (Some(mut pipe), Some(mut back)) = pipes else {
        return Err(Fault::new(format!("{name}: it has no pipes")));
    };
    let killed = Arc::downgrade(&running);
    cuts.add(move || {
        if let Some(running) = killed.upgrade() {
            process::kill_group(&locked(&running.child));
        }
    });
    let writes = running.clone();
    let send = move |bytes: &[u8]| {
        pipe.write_all(bytes).map_err(|error| writes.failed("write to it", &error))
    };
    let receive = move |into: &mut [u8]| {
        back.read_exact(into).map_err(|error| running.failed("read from it", &error))
    };
    Ok((Box::new(send), Box::new(receive)))
}
