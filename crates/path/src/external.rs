//! Stages that bytes leave this program for: a connection, or an external program. They go out at
//! one end and come back at the other, each with its own thread. The labels of blocks wait here for
//! their bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_sys::net::{Readiness, wait_ready};
use daqmeter_sys::{process, tty};

use crate::cancel::Cuts;
use crate::element::{BlockReceiver, BlockSender, ConnectionStats, Work};
use crate::tcp::{SendBy, TcpSender, set_congestion};

trait Stream: Read + Write + Send {
    fn shut(&self, how: Shutdown);
}

impl Stream for TcpStream {
    fn shut(&self, how: Shutdown) {
        // The other end may have gone first.
        let _ = self.shutdown(how);
    }
}

impl Stream for UnixStream {
    fn shut(&self, how: Shutdown) {
        let _ = self.shutdown(how);
    }
}

struct End<S> {
    name: &'static str,
    stream: S,
}

fn failed(name: &str, what: &str, error: &std::io::Error) -> Fault {
    Fault::new(format!("{name}: {what}: {error}"))
}

impl<S: Stream> BlockSender for End<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let done = self.stream.write_all(bytes);
        done.map_err(|error| failed(self.name, "send", &error))
    }

    fn end(&mut self) {
        self.stream.shut(Shutdown::Write);
    }
}

impl<S: Stream> BlockReceiver for End<S> {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let done = self.stream.read_exact(into);
        done.map_err(|error| failed(self.name, "receive", &error))?;
        Ok(true)
    }
}

impl BlockSender for TcpSender {
    fn prepare(&mut self) -> Result<(), Fault> {
        TcpSender::prepare(self).map_err(|error| failed("tcp", "prepare", &error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        TcpSender::write(self, &[], bytes).map_err(|error| failed("tcp", "send", &error))
    }

    fn unfinished(&mut self, most: usize) -> Result<usize, Fault> {
        let left = TcpSender::unfinished(self, most);
        left.map_err(|error| failed("tcp", "wait for what was sent without a copy", &error))
    }

    fn end(&mut self) {
        self.stream().shut(Shutdown::Write);
    }

    fn remarks(&self) -> ConnectionStats {
        TcpSender::remarks(self)
    }
}

pub(crate) fn tcp(congestion: Option<&str>, by: SendBy, cuts: &Cuts) -> Result<Work, Fault> {
    let refused = |error: std::io::Error| failed("tcp", "loopback", &error);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(refused)?;
    let out = TcpStream::connect(listener.local_addr().map_err(refused)?).map_err(refused)?;
    let (inward, peer) = listener.accept().map_err(refused)?;
    if peer != out.local_addr().map_err(refused)? {
        return Err(Fault::new("tcp: another program came first: run again"));
    }
    out.set_nodelay(true).map_err(refused)?;
    set_congestion(&out, congestion)?;
    let cut = out.try_clone().map_err(refused)?;
    cuts.add(move || cut.shut(Shutdown::Both));
    let inward = End { name: "tcp", stream: inward };
    Ok(Work::Away(Box::new(TcpSender::new(out, by)), Box::new(inward)))
}

pub(crate) fn unix(cuts: &Cuts) -> Result<Work, Fault> {
    let refused = |error: std::io::Error| failed("unix", "socket pair", &error);
    let (out, inward) = UnixStream::pair().map_err(refused)?;
    let cut = out.try_clone().map_err(refused)?;
    cuts.add(move || cut.shut(Shutdown::Both));
    let end = |stream| Box::new(End { name: "unix", stream });
    Ok(Work::Away(end(out), end(inward)))
}

struct Running {
    name: String,
    child: Mutex<Child>,
    is_cut: AtomicBool,
}

/// Interval at which a wait for a program checks whether the path was cut. A process that left the
/// program's group may hold its pipe.
const LOOK: Duration = Duration::from_millis(100);

impl Running {
    fn kill(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        process::kill_group(&self.lock());
    }

    fn wait(&self, pipe: BorrowedFd<'_>, wanted: Readiness) -> io::Result<()> {
        while !self.is_cut.load(Ordering::Relaxed) {
            let ready = wait_ready(pipe, wanted, Some(LOOK))?;
            if ready.read || ready.write {
                return Ok(());
            }
            // A process that the program left behind may hold the pipe.
            if process::ends_within(&self.lock(), Duration::ZERO).unwrap_or(true) {
                return Err(io::Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Err(io::Error::other("it was ended"))
    }

    fn failed(&self, what: &str, error: &io::Error) -> Fault {
        let status = self.status();
        Fault::new(format!("{}: {what}: {error}; {status}", self.name))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> String {
        let mut child = self.lock();
        match process::ends_within(&child, Duration::ZERO) {
            Ok(true) => {
                // Ends the processes that the program left behind, while its number is still its
                // own.
                process::kill_group(&child);
                child.wait().map_or_else(
                    |error| format!("it ended: {error}"),
                    |status| format!("it ended with {status}"),
                )
            }
            _ => "it closed its end".to_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        // It was killed: this does not wait.
        let _ = self.lock().wait();
    }
}

const READ: Readiness = Readiness { read: true, write: false };
const WRITE: Readiness = Readiness { read: false, write: true };

struct ToProgram {
    running: Arc<Running>,
    pipe: Option<ChildStdin>,
}

struct FromProgram {
    running: Arc<Running>,
    pipe: ChildStdout,
}

pub(crate) fn program(command: &[String], cuts: &Cuts) -> Result<Work, Fault> {
    let (name, arguments) = command.split_first().ok_or_else(|| Fault::new("no program"))?;
    let started = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| failed(name, "start the program", &error))?;
    let pipes = (child.stdin.take(), child.stdout.take());
    let running = Arc::new(Running {
        name: name.clone(),
        child: Mutex::new(child),
        is_cut: AtomicBool::new(false),
    });
    let (Some(pipe), Some(back)) = pipes else {
        return Err(Fault::new(format!("{name}: it has no pipes")));
    };
    for end in [pipe.as_fd(), back.as_fd()] {
        tty::set_nonblocking(end)?;
    }
    let killed = Arc::downgrade(&running);
    cuts.add(move || {
        if let Some(running) = killed.upgrade() {
            running.kill();
        }
    });
    let out = ToProgram { running: running.clone(), pipe: Some(pipe) };
    let inward = FromProgram { running, pipe: back };
    Ok(Work::Away(Box::new(out), Box::new(inward)))
}

impl BlockSender for ToProgram {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(pipe) = &mut self.pipe else {
            return Err(Fault::new(format!("{}: it was ended", self.running.name)));
        };
        let mut left = bytes;
        while !left.is_empty() {
            let written = match pipe.write(left) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waited = self.running.wait(pipe.as_fd(), WRITE);
                    waited.map(|()| 0)
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
                written => written,
            };
            let written = written.map_err(|error| self.running.failed("write to it", &error))?;
            left = &left[written..];
        }
        Ok(())
    }

    fn end(&mut self) {
        self.pipe = None;
    }
}

impl BlockReceiver for FromProgram {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let mut have = 0;
        while have < into.len() {
            let read = match self.pipe.read(&mut into[have..]) {
                Ok(0) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waited = self.running.wait(self.pipe.as_fd(), READ);
                    waited.map(|()| 0)
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
                read => read,
            };
            have += read.map_err(|error| self.running.failed("read from it", &error))?;
        }
        Ok(true)
    }
}
