//! io_uring (by the `io-uring` crate): several copies for one system call, with plain or registered buffers.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::SysError;
use crate::memory::Buffer;

/// A ring over one file and one buffer: `depth` blocks go with each call.
pub struct Blocks {
    ring: IoUring,
    buffer: Buffer,
    file: File,
    block_bytes: u32,
    depth: u32,
    registered: bool,
}

impl Blocks {
    /// `depth` blocks of the file against as many of the buffer; `registered` pins the buffer once and for all.
    ///
    /// # Errors
    /// ENOSYS or EPERM where io_uring is off, ENOMEM beyond the limit of locked memory.
    ///
    /// # Panics
    /// When the buffer is smaller than all blocks.
    pub fn new(
        file: File,
        mut buffer: Buffer,
        block_bytes: u32,
        depth: u32,
        registered: bool,
    ) -> Result<Blocks, SysError> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |source| SysError { call, source }
        };
        let ring = IoUring::new(depth.next_power_of_two()).map_err(failed("make an io_uring"))?;
        let whole = buffer.slice_mut::<u8>(block_bytes as usize * depth as usize);
        if registered {
            let range = libc::iovec { iov_base: whole.as_mut_ptr().cast(), iov_len: whole.len() };
            // SAFETY: the buffer lives as long as the ring: both are fields of this structure, the ring declared (dropped) first.
            unsafe { ring.submitter().register_buffers(&[range]) }.map_err(failed("register a buffer"))?;
        }
        Ok(Blocks { ring, buffer, file, block_bytes, depth, registered })
    }

    /// The buffer.
    pub fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Reads (`write` false: to the user) or writes every block once, in one call.
    ///
    /// # Errors
    /// Those of the ring, and a block that was not moved whole.
    pub fn run(&mut self, write: bool) -> Result<(), SysError> {
        let (bytes, file) = (self.block_bytes, types::Fd(self.file.as_raw_fd()));
        let base = self.buffer.slice_mut::<u8>(bytes as usize * self.depth as usize).as_mut_ptr();
        for block in 0..self.depth {
            let offset = u64::from(block) * u64::from(bytes);
            let at = base.wrapping_add(block as usize * bytes as usize);
            let entry = match (write, self.registered) {
                (false, false) => opcode::Read::new(file, at, bytes).offset(offset).build(),
                (true, false) => opcode::Write::new(file, at, bytes).offset(offset).build(),
                (false, true) => opcode::ReadFixed::new(file, at, bytes, 0).offset(offset).build(),
                (true, true) => opcode::WriteFixed::new(file, at, bytes, 0).offset(offset).build(),
            };
            // SAFETY: the range lies within the buffer, and the call below waits until the kernel is done with it.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.expect("the queue has room for every block");
        }
        let done = self.ring.submit_and_wait(self.depth as usize);
        done.map_err(|source| SysError { call: "submit to io_uring".to_owned(), source })?;
        for entry in self.ring.completion() {
            if entry.result() != bytes.cast_signed() {
                let source = std::io::Error::from_raw_os_error(-entry.result().min(0));
                return Err(SysError { call: format!("a block of {bytes} bytes by io_uring"), source });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::Pages;

    #[test]
    fn blocks_go_both_ways() {
        for registered in [false, true] {
            let file = crate::copies::memory_file(8 * 512, false).unwrap();
            file.write_all_at(&[7; 4096], 0).unwrap();
            let buffer = Buffer::new(4096, Pages::Base).unwrap();
            // Where a sandbox forbids io_uring there is nothing to check.
            let Ok(mut blocks) = Blocks::new(file.try_clone().unwrap(), buffer, 512, 8, registered) else { return };
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
