//! io_uring (by the `io-uring` crate): several copies for one system call, with plain or registered
//! buffers.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::SysError;
use crate::memory::Buffer;

/// A ring over one file and one buffer: each call moves `depth` blocks, from the thread that made
/// it.
pub struct UringBlocks {
    ring: IoUring,
    buffer: Lent,
    block_bytes: u32,
    depth: u32,
    registered: bool,
}

/// A buffer that the kernel may be using. It is never freed if its use is unknown.
struct Lent {
    buffer: ManuallyDrop<Buffer>,
    is_lost: bool,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.is_lost {
            // SAFETY: dropped here, once, and not used afterwards; no request is in flight.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

/// Errors of io_uring_enter(2) after which waiting goes on: requests may be in flight.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Makes a ring with one submitting thread and completions only while it waits (Linux 6.1). Memory
/// files, whose requests go to a worker of the kernel, take a quarter less time. Older kernels get
/// a plain ring.
fn ring_of(entries: u32) -> io::Result<IoUring> {
    let for_one_thread =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    for_one_thread.or_else(|_| IoUring::new(entries))
}

impl UringBlocks {
    /// Pairs `depth` blocks of the file with blocks of the buffer; `registered` pins the buffer
    /// once.
    ///
    /// # Errors
    /// ENOSYS or EPERM with io_uring off, ENOMEM beyond the limit of locked memory.
    ///
    /// # Panics
    /// The buffer is smaller than all blocks.
    pub fn new(
        file: &File,
        mut buffer: Buffer,
        block_bytes: u32,
        depth: u32,
        registered: bool,
    ) -> Result<UringBlocks, SysError> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |source| SysError { call, source }
        };
        let ring = ring_of(depth.next_power_of_two()).map_err(failed("make an io_uring"))?;
        ring.submitter().register_files(&[file.as_raw_fd()]).map_err(failed("register a file"))?;
        let whole = buffer.slice_mut::<u8>(block_bytes as usize * depth as usize);
        if registered {
            let range = libc::iovec { iov_base: whole.as_mut_ptr().cast(), iov_len: whole.len() };
            // SAFETY: the buffer lives as long as the ring: both are fields of this structure, the
            // ring declared (dropped) first.
            unsafe { ring.submitter().register_buffers(&[range]) }
                .map_err(failed("register a buffer"))?;
        }
        let buffer = Lent { buffer: ManuallyDrop::new(buffer), is_lost: false };
        Ok(UringBlocks { ring, buffer, block_bytes, depth, registered })
    }

    pub fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer.buffer
    }

    /// Reads (`write` false: to the user) or writes every block once, in one call. Returns after
    /// the kernel is done with all of them, also after an error or a signal.
    ///
    /// # Errors
    /// Those of the ring, and a block that was not moved whole.
    pub fn run(&mut self, write: bool) -> Result<(), SysError> {
        if self.buffer.is_lost {
            return Err(submitting(io::Error::other("the ring failed before")));
        }
        self.push_all(write);
        let (mut left, mut fault) = (self.depth as usize, None);
        while left > 0 {
            let waited = self.ring.submit_and_wait(left);
            for entry in self.ring.completion() {
                left -= 1;
                if entry.result() != self.block_bytes.cast_signed() {
                    fault.get_or_insert(entry.result());
                }
            }
            if let Err(error) = waited
                && !is_transient(&error)
                && left > 0
            {
                self.buffer.is_lost = true;
                return Err(submitting(error));
            }
        }
        let Some(result) = fault else { return Ok(()) };
        let source = io::Error::from_raw_os_error(-result.min(0));
        Err(SysError { call: format!("a block of {} bytes by io_uring", self.block_bytes), source })
    }

    fn push_all(&mut self, write: bool) {
        let (bytes, file) = (self.block_bytes, types::Fixed(0));
        let base =
            self.buffer.buffer.slice_mut::<u8>(bytes as usize * self.depth as usize).as_mut_ptr();
        for block in 0..self.depth {
            let offset = u64::from(block) * u64::from(bytes);
            let at = base.wrapping_add(block as usize * bytes as usize);
            let entry = match (write, self.registered) {
                (false, false) => opcode::Read::new(file, at, bytes).offset(offset).build(),
                (true, false) => opcode::Write::new(file, at, bytes).offset(offset).build(),
                (false, true) => opcode::ReadFixed::new(file, at, bytes, 0).offset(offset).build(),
                (true, true) => opcode::WriteFixed::new(file, at, bytes, 0).offset(offset).build(),
            };
            // SAFETY: the range lies within the buffer, which is borrowed until `run` has seen all
            // completions, or is never freed.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.expect("the queue has room for every block");
        }
    }
}

fn submitting(source: io::Error) -> SysError {
    SysError { call: "submit to io_uring".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::Pages;

    /// A call took completions of the failed call before it for its own and returned with requests
    /// in flight.
    #[test]
    fn a_call_after_one_that_failed_waits_for_its_own_blocks() {
        let file = crate::copies::memory_file(4 * 512, false).unwrap();
        let buffer = Buffer::new(8 * 512, Pages::Base).unwrap();
        let mut blocks = UringBlocks::new(&file, buffer, 512, 8, false).unwrap();
        // The second half of the blocks is beyond the end of the file and reads nothing.
        assert!(blocks.run(false).is_err());
        file.set_len(8 * 512).unwrap();
        blocks.run(false).expect("every block is there now");
        assert_eq!(blocks.ring.completion().len(), 0, "nothing of these calls is left");
    }

    #[test]
    fn blocks_go_both_ways() {
        for registered in [false, true] {
            let file = crate::copies::memory_file(8 * 512, false).unwrap();
            file.write_all_at(&[7; 4096], 0).unwrap();
            let buffer = Buffer::new(4096, Pages::Base).unwrap();
            let mut blocks = UringBlocks::new(&file, buffer, 512, 8, registered).unwrap();
            blocks.run(false).unwrap();
            assert!(blocks.buffer().slice::<u8>(4096).iter().all(|byte| *byte == 7));
            blocks.buffer().slice_mut::<u8>(4096).fill(9);
            blocks.run(true).unwrap();
            let mut back = [0; 4096];
            file.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(back, [9; 4096]);
        }
    }
}
