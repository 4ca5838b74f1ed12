//! A FUSE file that answers the ESS driver's ioctls, seeks, reads, writes and maps for an emulated
//! board, to test other programs and our real-device code without a card.
//!
//! CUSE is no alternative: it has no mmap and loses the file position, so a program would silently
//! get the wrong channel. The file is mounted on a regular file, whose path is then the device.
//! Needs root or fusermount3, and /dev/fuse.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use daqmeter_harness::{Fault, locked};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyIoctl, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::commands::{REG_READ, REG_WRITE, RELEASE_IRQ, STRUCK_WAIT_USER, WAIT_IRQ};
use super::emulated::{EmulatedBoard, EmulatedCrate};
use super::registers::BoardRegisters;
use super::regs::{check_dma_write, is_dma_read};
use crate::daq::check_trigger_rate;
use crate::devices::board::{Board, EMULATED_PREFIX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Ess,
    /// Struck's own driver: equal registers, other waits. Serves tests of the probe.
    Struck,
}

#[derive(Debug, Default)]
pub struct ServedTraffic {
    /// Reads, writes, and those that a real board or its driver could not do.
    pub counts: [AtomicU64; 3],
}

pub struct ServedBoard {
    session: Option<BackgroundSession>,
    pub path: PathBuf,
    pub traffic: Arc<ServedTraffic>,
    created: bool,
}

impl Drop for ServedBoard {
    fn drop(&mut self) {
        let unmounted = self.session.take().map(BackgroundSession::umount_and_join);
        if unmounted.is_some_and(|unmounted| unmounted.is_err()) {
            // A program has the file open: the mount ends when it closes it.
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

type Shared = Arc<Mutex<EmulatedBoard>>;

struct BoardFile {
    board: Shared,
    dialect: Dialect,
    memory_bytes: u64,
    traffic: Arc<ServedTraffic>,
    /// Number of times that waiting threads were released.
    releases: Arc<AtomicU64>,
}

/// Serves an emulated board at `path` until the result is dropped; creates a missing file.
///
/// # Errors
/// The path is not a regular file, or FUSE is missing or forbidden.
pub fn serve(board: EmulatedBoard, path: &Path, dialect: Dialect) -> Result<ServedBoard, Fault> {
    let refuse = |why: String| Fault::new(format!("cannot serve at {}: {why}", path.display()));
    let created = !path.exists();
    if created {
        std::fs::File::create_new(path).map_err(|error| match error.kind() {
            // It is there and does not answer.
            ErrorKind::AlreadyExists => refuse(format!(
                "a server that was killed left its mount there: umount {}",
                path.display()
            )),
            _ => refuse(error.to_string()),
        })?;
    } else if !path.is_file() {
        return Err(refuse("it is there and no regular file; name a new path".to_owned()));
    }
    let traffic = Arc::<ServedTraffic>::default();
    let file = BoardFile {
        memory_bytes: board.identity().memory_bytes.unwrap_or(0),
        board: Arc::new(Mutex::new(board)),
        dialect,
        traffic: Arc::clone(&traffic),
        releases: Arc::default(),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("daqmeter".to_owned()),
        MountOption::Subtype("sis8300".to_owned()),
    ];
    let mounted = fuser::spawn_mount(file, path, &config);
    let session = mounted.map_err(|error| {
        if created {
            let _ = std::fs::remove_file(path);
        }
        refuse(format!("{error} (needs /dev/fuse, and root or fusermount3)"))
    })?;
    Ok(ServedBoard { session: Some(session), path: path.to_owned(), traffic, created })
}

/// Serves an emulated board of that name at `path`, as the ESS driver does.
///
/// # Errors
/// No such board, or FUSE is missing or forbidden.
pub fn serve_emulated(
    device: &str,
    path: &Path,
    crate_: &Arc<EmulatedCrate>,
    rate_hz: Option<f64>,
) -> Result<ServedBoard, Fault> {
    let name = device.strip_prefix(EMULATED_PREFIX).unwrap_or(device);
    let mut board = crate_.board(device, name)?;
    if let Some(rate) = rate_hz {
        check_trigger_rate(rate)?;
        board.set_trigger_rate(rate);
    }
    serve(board, path, Dialect::Ess)
}

const GONE: Errno = Errno::ENODEV;

impl BoardFile {
    fn count(&self, at: usize) {
        self.traffic.counts[at].fetch_add(1, Ordering::Relaxed);
    }

    fn read_memory(&self, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        if !is_dma_read(offset, size) {
            self.count(2);
            return Err(Errno::EINVAL);
        }
        let left = self.memory_bytes.saturating_sub(offset).min(size as u64);
        let mut bytes = vec![0; usize::try_from(left).expect("at most what is asked for")];
        let delivered = locked(&self.board).read(offset, &mut bytes).map_err(|_| GONE)?;
        bytes.truncate(delivered);
        self.count(0);
        Ok(bytes)
    }

    fn write_memory(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if check_dma_write(offset, data.len()).is_err() {
            self.count(2);
            return Err(Errno::EINVAL);
        }
        let written = locked(&self.board).dma_write(offset, data);
        written.map_err(|_| Errno::EIO)?;
        self.count(1);
        Ok(())
    }

    fn register_access(&self, command: u32, argument: &[u8], reply: ReplyIoctl) {
        let Some((offset, data)) = argument.first_chunk::<4>().zip(argument.get(4..8)) else {
            return reply.error(Errno::EINVAL);
        };
        let offset = u32::from_ne_bytes(*offset);
        let data = u32::from_ne_bytes(data.try_into().expect("4 bytes by the range"));
        let mut board = locked(&self.board);
        let done = if command == REG_READ {
            board.read_register(offset)
        } else {
            board.write_register(offset, data).map(|()| data)
        };
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
        let board = Arc::clone(&self.board);
        // The driver clears its flag on entry and so forgets earlier interrupts; the emulation does
        // so, too.
        let forgotten = locked(&board).wait(Duration::ZERO);
        let (releases, before) = (self.releases.clone(), self.releases.load(Ordering::SeqCst));
        std::thread::spawn(move || {
            let status = match forgotten {
                Err(_) => Err(GONE),
                Ok(_) => {
                    wait_in_slices(&board, timeout_ms, || releases.load(Ordering::SeqCst) != before)
                }
            };
            match status {
                Ok(status) => {
                    let wait = [timeout_ms, 0, status].map(u32::to_ne_bytes);
                    reply.ioctl(0, wait.as_flattened());
                }
                Err(errno) => reply.error(errno),
            }
        });
    }
}

/// Returns the driver's status: 0 fired, 1 released, 2 timeout. Waits in slices, so that others can
/// use the board in between.
fn wait_in_slices(
    board: &Shared,
    timeout_ms: u32,
    is_released: impl Fn() -> bool,
) -> Result<u32, Errno> {
    let slice = Duration::from_millis(1);
    let slices = if timeout_ms == 0 { u32::MAX } else { timeout_ms };
    for _ in 0..slices {
        match locked(board).wait(slice) {
            Ok(true) => return Ok(0),
            Ok(false) => {}
            Err(_) => return Err(GONE),
        }
        if is_released() {
            return Ok(1);
        }
        std::thread::yield_now();
    }
    Ok(2)
}

impl Filesystem for BoardFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Lets a file with direct I/O be mapped shared (Linux 6.6 and later).
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn getattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let now = SystemTime::UNIX_EPOCH;
        let attributes = FileAttr {
            ino: INodeNo::ROOT,
            size: self.memory_bytes,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::RegularFile,
            perm: 0o666,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(3600), &attributes);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Direct I/O: every read reaches the board, as with a driver.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_memory(offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let taken = u32::try_from(data.len()).expect("FUSE writes are far below 4 GiB");
        // A mapped page stands for the driver's buffer and not for the card's memory, so its writes
        // are dropped.
        if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return reply.written(taken);
        }
        match self.write_memory(offset, data) {
            Ok(()) => reply.written(taken),
            Err(errno) => reply.error(errno),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match (self.dialect, command) {
            (_, REG_READ | REG_WRITE) => self.register_access(command, in_data, reply),
            (Dialect::Ess, WAIT_IRQ) => self.wait_irq(in_data, reply),
            (Dialect::Ess, RELEASE_IRQ) => {
                self.releases.fetch_add(1, Ordering::SeqCst);
                reply.ioctl(0, in_data);
            }
            (Dialect::Struck, STRUCK_WAIT_USER) => reply.error(Errno::EIO),
            _ => reply.error(Errno::EINVAL),
        }
    }
}
