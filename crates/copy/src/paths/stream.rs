//! Pipes and sockets: a write copies from the user, a read to it. Each write must be read again,
//! outside the clock, before the next.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use daqmeter_harness::Fault;
use daqmeter_kernels::copy::flush;
use daqmeter_sys::copies::set_pipe_bytes;
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, Side, each, not_flushed};
use crate::request::{CopyRequest, Direction};

/// Limit of a pipe for every user, 1 MiB (`/proc/sys/fs/pipe-max-size`); sockets take less than
/// their buffer's size.
const MAX_PIPE_BYTES: usize = 1 << 20;
const MAX_SOCKET_BYTES: usize = 128 << 10;

struct StreamMover {
    name: &'static str,
    bytes: usize,
    write: File,
    read: File,
    user: Option<Buffer>,
    inside: Vec<u8>,
    filled: usize,
}

pub(super) fn pipe(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    fits(request, MAX_PIPE_BYTES)?;
    each(request, |_| {
        let (read, write) =
            io::pipe().map_err(|error| Fault::new(format!("make a pipe: {error}")))?;
        // Whole pages, and one more: an unaligned write begins in a page of its own.
        set_pipe_bytes(&write, request.block_bytes.next_power_of_two().max(1 << 16))?;
        Ok(mover("pipe", request, OwnedFd::from(write).into(), OwnedFd::from(read).into()))
    })
}

pub(super) fn unix(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    fits(request, MAX_SOCKET_BYTES)?;
    each(request, |_| {
        let (write, read) = UnixStream::pair()
            .map_err(|error| Fault::new(format!("make a socket pair: {error}")))?;
        Ok(mover("unix", request, OwnedFd::from(write).into(), OwnedFd::from(read).into()))
    })
}

fn fits(request: &CopyRequest, max: usize) -> Result<(), Fault> {
    if request.block_bytes > max {
        let (path, bytes) = (request.path, request.block_bytes);
        return Err(Fault::new(format!(
            "{path} holds {max} bytes at most, not {bytes}: choose smaller --sizes"
        )));
    }
    Ok(())
}

fn mover(name: &'static str, request: &CopyRequest, write: File, read: File) -> StreamMover {
    StreamMover {
        name,
        bytes: request.block_bytes,
        write,
        read,
        user: None,
        inside: Vec::new(),
        filled: 0,
    }
}

impl StreamMover {
    fn user(&mut self) -> &mut [u8] {
        self.user.as_mut().expect("prepared before the first copy").slice_mut::<u8>(self.bytes)
    }

    fn drain(&mut self) -> Result<(), Fault> {
        if self.filled > 0 {
            let read = self.read.read_exact(&mut self.inside[..self.filled]);
            read.map_err(|error| self.failed(&error))?;
            self.filled = 0;
        }
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Fault {
        Fault::new(format!("{}: {} bytes: {error}", self.name, self.bytes))
    }
}

impl Mover for StreamMover {
    fn device(&self) -> String {
        self.name.to_owned()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.user = Some(Buffer::new(self.bytes, Pages::Base)?);
        self.inside = vec![0; self.bytes];
        Ok(())
    }

    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let user =
            self.user.as_mut().expect("prepared before the first copy").slice_mut::<u8>(self.bytes);
        let done = if direction == Direction::To {
            self.filled = 0;
            self.read.read_exact(user)
        } else {
            self.filled = self.bytes;
            self.write.write_all(user)
        };
        done.map_err(|error| self.failed(&error))
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        if side == Side::User {
            self.user().copy_from_slice(bytes);
            return Ok(());
        }
        self.drain()?;
        self.inside.copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the last bytes written, read back, for the kernel's side.
    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        if side == Side::User {
            into.copy_from_slice(self.user());
            return Ok(());
        }
        self.drain()?;
        into.copy_from_slice(&self.inside);
        Ok(())
    }

    fn is_consumed(&self) -> bool {
        true
    }

    fn before_copy(&mut self, direction: Direction) -> Result<(), Fault> {
        // The bytes read back go in again, so that the content stays.
        self.drain()?;
        if direction == Direction::To {
            let written = self.write.write_all(&self.inside);
            written.map_err(|error| self.failed(&error))?;
            self.filled = self.bytes;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Fault> {
        Err(if flush(self.user()) {
            Fault::new(format!(
                "{}: the kernel's buffer cannot be flushed from here: leave from_nc, to_nc and both_nc out of --operations",
                self.name
            ))
        } else {
            not_flushed()
        })
    }

    fn is_system_call(&self) -> bool {
        true
    }
}
