//! `/dev/zero`: a read clears the user's memory (`clear_user` in `read_iter_zero`, drivers/char/mem.c) and copies nothing. It shows
//! what reaching user memory costs without a source to read.

use std::fs::File;
use std::io::Read;

use daqmeter_harness::{Availability, Fault};
use daqmeter_kernels::copy::flush;
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, each, not_flushed};
use crate::request::{Direction, Request};

const DEVICE: &str = "/dev/zero";

struct ZeroMover {
    bytes: usize,
    open: Option<(File, Buffer)>,
}

pub(super) fn lanes(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    if request.direction != Direction::To {
        return Err(Fault::new(
            "dev-zero: a write to /dev/zero moves nothing; ask for direction `to`",
        ));
    }
    each(request, |_| Ok(ZeroMover { bytes: request.block_bytes, open: None }))
}

fn device() -> Result<File, String> {
    File::open(DEVICE).map_err(|error| format!("{DEVICE}: {error}"))
}

pub(super) fn probe() -> Availability {
    // A container may have anything under that name.
    let read = device().and_then(|mut file| {
        let mut byte = [1];
        let read = file.read_exact(&mut byte);
        read.map_err(|error| format!("{DEVICE}: {error}"))?;
        Ok(byte)
    });
    match read {
        Ok([0]) => Availability::Ready,
        Ok(_) => Availability::Waived(format!("{DEVICE} does not give zeros")),
        Err(why) => Availability::Waived(why),
    }
}

impl ZeroMover {
    fn open(&mut self) -> (&mut File, &mut [u8]) {
        let (file, buffer) = self.open.as_mut().expect("prepared before the first copy");
        (file, buffer.slice_mut::<u8>(self.bytes))
    }
}

impl Mover for ZeroMover {
    fn device(&self) -> String {
        DEVICE.to_owned()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let buffer = Buffer::new(self.bytes, Pages::Base)?;
        self.open = Some((device().map_err(Fault::new)?, buffer));
        Ok(())
    }

    #[inline]
    fn copy(&mut self, _direction: Direction) -> Result<(), Fault> {
        let wanted = self.bytes;
        let (file, user) = self.open();
        match file.read(user) {
            Ok(bytes) if bytes == wanted => Ok(()),
            Ok(bytes) => Err(Fault::new(format!("{DEVICE}: {bytes} of {wanted} bytes cleared"))),
            Err(error) => Err(Fault::new(format!("{DEVICE}: {wanted} bytes: {error}"))),
        }
    }

    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.open().1.copy_from_slice(bytes);
        Ok(())
    }

    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.open().1);
        Ok(())
    }

    /// There is no other side: it holds zeros, and nothing else can be put there.
    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(Fault::new(format!("{DEVICE} gives zeros only"))),
        }
    }

    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        into.fill(0);
        Ok(())
    }

    fn is_clearing(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), Fault> {
        if flush(self.open().1) { Ok(()) } else { Err(not_flushed()) }
    }

    fn is_system_call(&self) -> bool {
        true
    }

    fn numa_node(&self) -> Option<u32> {
        self.open.as_ref().and_then(|(_, buffer)| buffer.numa_node())
    }
}
