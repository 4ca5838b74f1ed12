//! An emulated board behind a file that answers the ESS driver's ioctls, seeks, reads, writes and
//! maps.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_sys::sis8300::{
    IrqWait, REG_READ, REG_WRITE, RELEASE_IRQ, STRUCK_WAIT_USER, WAIT_IRQ,
};
use fuser::{Errno, ReplyIoctl};

use super::emulated::EmulatedBoard;
use super::registers::BoardRegisters;
use super::regs::{is_dma_read, is_dma_write};
use crate::devices::board::Board;
use crate::serve::{DriverFile, ServedBoard, ServedTraffic};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Ess,
    /// Struck's own driver: equal registers, other waits. Serves tests of the probe.
    Struck,
}

type Shared = Arc<Mutex<EmulatedBoard>>;

struct BoardFile {
    board: Shared,
    dialect: Dialect,
    memory_bytes: u64,
    traffic: Arc<ServedTraffic>,
}

/// Serves an emulated board at `path` until the result is dropped.
///
/// # Errors
/// The path is not a regular file, or FUSE is missing or forbidden.
pub fn serve(board: EmulatedBoard, path: &Path, dialect: Dialect) -> Result<ServedBoard, Fault> {
    let traffic = Arc::<ServedTraffic>::default();
    let file = BoardFile {
        memory_bytes: board.identity().memory_bytes.unwrap_or(0),
        board: Arc::new(Mutex::new(board)),
        dialect,
        traffic: Arc::clone(&traffic),
    };
    crate::serve::serve(file, path, traffic)
}

fn lock(board: &Shared) -> MutexGuard<'_, EmulatedBoard> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

const GONE: Errno = Errno::ENODEV;

impl BoardFile {
    fn register_access(&self, command: u32, argument: &[u8], reply: ReplyIoctl) {
        let Some((offset, data)) = argument.first_chunk::<4>().zip(argument.get(4..8)) else {
            return reply.error(Errno::EINVAL);
        };
        let offset = u32::from_ne_bytes(*offset);
        let data = u32::from_ne_bytes(data.try_into().expect("4 bytes by the range"));
        let mut board = lock(&self.board);
        let done = if command == REG_READ {
            board.read_register(offset)
        } else {
            board.write_register(offset, data).map(|()| data)
        };
        self.traffic.registers.fetch_add(1, Ordering::Relaxed);
        match done {
            Ok(data) => reply.ioctl(0, &[offset.to_ne_bytes(), data.to_ne_bytes()].concat()),
            Err(_) => reply.error(GONE),
        }
    }

    /// Waits in its own thread, so that the file system keeps answering register reads.
    fn wait_irq(&self, argument: &[u8], reply: ReplyIoctl) {
        let Some((timeout, _)) = argument.split_first_chunk::<4>() else {
            return reply.error(Errno::EINVAL);
        };
        let timeout_ms = u32::from_ne_bytes(*timeout);
        let (board, traffic) = (Arc::clone(&self.board), Arc::clone(&self.traffic));
        // The driver clears its flag on entry and so forgets earlier interrupts; the emulation does
        // so, too.
        let forgotten = lock(&board).wait(Duration::ZERO);
        std::thread::spawn(move || {
            let status = match forgotten {
                Err(_) => Err(GONE),
                Ok(_) => wait_in_slices(&board, timeout_ms),
            };
            match status {
                Ok(status) => {
                    traffic.triggers.fetch_add(u64::from(status == 0), Ordering::Relaxed);
                    let wait = IrqWait { timeout_ms, kind: 0, status };
                    reply.ioctl(
                        0,
                        &[
                            wait.timeout_ms.to_ne_bytes(),
                            wait.kind.to_ne_bytes(),
                            wait.status.to_ne_bytes(),
                        ]
                        .concat(),
                    );
                }
                Err(errno) => reply.error(errno),
            }
        });
    }
}

/// Returns the driver's status: 0 fired, 2 timeout. Waits in slices, so that others can use the
/// board in between.
fn wait_in_slices(board: &Shared, timeout_ms: u32) -> Result<u32, Errno> {
    let slice = Duration::from_millis(1);
    let slices = if timeout_ms == 0 { u32::MAX } else { timeout_ms };
    for _ in 0..slices {
        match lock(board).wait(slice) {
            Ok(true) => return Ok(0),
            Ok(false) => {}
            Err(_) => return Err(GONE),
        }
        std::thread::yield_now();
    }
    Ok(2)
}

impl DriverFile for BoardFile {
    fn driver(&self) -> &'static str {
        "sis8300"
    }

    fn size_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        if !is_dma_read(offset, size) {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::EINVAL);
        }
        let left = self.memory_bytes.saturating_sub(offset).min(size as u64);
        let mut bytes = vec![0; usize::try_from(left).expect("at most what is asked for")];
        let delivered = lock(&self.board).read(offset, &mut bytes).map_err(|_| GONE)?;
        bytes.truncate(delivered);
        self.traffic.read_bytes.fetch_add(delivered as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if !is_dma_write(offset, data.len()) {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::EINVAL);
        }
        let written = lock(&self.board).dma_write(offset, data);
        written.map_err(|_| Errno::EIO)?;
        self.traffic.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn ioctl(&self, command: u32, argument: &[u8], reply: ReplyIoctl) {
        match (self.dialect, command) {
            (_, REG_READ | REG_WRITE) => self.register_access(command, argument, reply),
            (Dialect::Ess, WAIT_IRQ) => self.wait_irq(argument, reply),
            (Dialect::Ess, RELEASE_IRQ) => reply.ioctl(0, argument),
            (Dialect::Struck, STRUCK_WAIT_USER) => reply.error(Errno::EIO),
            _ => reply.error(Errno::EINVAL),
        }
    }
}
