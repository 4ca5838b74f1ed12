//! Stages that bytes leave this program for: a connection, or somebody's program. They go out at one end and come back at the
//! other, each with its own thread; what is known of a block waits here for its bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use daqmeter_harness::Fault;

use crate::cut::Cuts;
use crate::element::{Inward, Outward, Remarks, Work};
use crate::tcp::{SendBy, TcpSender, set_congestion};

/// A stream that can be ended from outside.
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
        // As above.
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

impl<S: Stream> Outward for End<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let done = self.stream.write_all(bytes);
        done.map_err(|error| failed(self.name, "send", &error))
    }

    fn end(&mut self) {
        self.stream.shut(Shutdown::Write);
    }
}

impl<S: Stream> Inward for End<S> {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let done = self.stream.read_exact(into);
        done.map_err(|error| failed(self.name, "receive", &error))?;
        Ok(true)
    }
}

impl Outward for TcpSender {
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

    fn remarks(&self) -> Remarks {
        TcpSender::remarks(self)
    }
}

/// TCP on loopback, by that congestion control or the host's own.
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
    let inward = End {
        name: "tcp",
        stream: inward,
    };
    Ok(Work::Away(
        Box::new(TcpSender::new(out, by)),
        Box::new(inward),
    ))
}

/// A pair of Unix sockets.
pub(crate) fn unix(cuts: &Cuts) -> Result<Work, Fault> {
    let refused = |error: std::io::Error| failed("unix", "socket pair", &error);
    let (out, inward) = UnixStream::pair().map_err(refused)?;
    let cut = out.try_clone().map_err(refused)?;
    cuts.add(move || cut.shut(Shutdown::Both));
    let end = |stream| {
        Box::new(End {
            name: "unix",
            stream,
        })
    };
    Ok(Work::Away(end(out), end(inward)))
}

/// A program, its pipes, and its end.
struct Running {
    name: String,
    child: Mutex<Child>,
}

impl Running {
    fn kill(&self) {
        // It may have ended by itself.
        let _ = self.lock().kill();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of it, for a fault.
    fn status(&self) -> String {
        match self.lock().try_wait() {
            Ok(Some(status)) => format!("it ended with {status}"),
            _ => "it closed its end".to_owned(),
        }
    }
}

impl Drop for Running {
    /// Nothing is left behind.
    fn drop(&mut self) {
        self.kill();
        // It was killed: this does not wait.
        let _ = self.lock().wait();
    }
}

struct ToProgram {
    running: Arc<Running>,
    pipe: Option<ChildStdin>,
}

struct FromProgram {
    running: Arc<Running>,
    pipe: ChildStdout,
}

/// A program that returns as many bytes as it is given.
pub(crate) fn program(command: &[String], cuts: &Cuts) -> Result<Work, Fault> {
    let (name, arguments) = command
        .split_first()
        .ok_or_else(|| Fault::new("no program"))?;
    let started = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| failed(name, "start the program", &error))?;
    let pipes = (child.stdin.take(), child.stdout.take());
    let running = Arc::new(Running {
        name: name.clone(),
        child: Mutex::new(child),
    });
    let (pipe, Some(back)) = pipes else {
        return Err(Fault::new(format!("{name}: it has no pipes")));
    };
    let killed = Arc::downgrade(&running);
    cuts.add(move || {
        if let Some(running) = killed.upgrade() {
            running.kill();
        }
    });
    let out = ToProgram {
        running: running.clone(),
        pipe,
    };
    let inward = FromProgram {
        running,
        pipe: back,
    };
    Ok(Work::Away(Box::new(out), Box::new(inward)))
}

impl Outward for ToProgram {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(pipe) = &mut self.pipe else {
            return Err(Fault::new(format!("{}: it was ended", self.running.name)));
        };
        pipe.write_all(bytes).map_err(|error| {
            let status = self.running.status();
            Fault::new(format!(
                "{}: write to it: {error}; {status}",
                self.running.name
            ))
        })
    }

    fn end(&mut self) {
        self.pipe = None;
    }
}

impl Inward for FromProgram {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        self.pipe.read_exact(into).map_err(|error| {
            let status = self.running.status();
            Fault::new(format!(
                "{}: read from it: {error}; {status}",
                self.running.name
            ))
        })?;
        Ok(true)
    }
}
