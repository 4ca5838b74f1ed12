//! An emulated board as a file that answers the ESS driver's ioctls, seeks, reads, writes and maps, so that other people's
//! programs (and our own real-device code) can be tried without a card.
//!
//! A FUSE file rather than CUSE: CUSE has no mmap and loses the file position, so the driver's own protocol would silently
//! deliver the wrong channel. Mounted on a regular file, so the path is the device. Needs root or fusermount3, and /dev/fuse.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use daqmeter_harness::Fault;
use daqmeter_sys::sis8300::{
    IrqWait, REG_READ, REG_WRITE, RELEASE_IRQ, STRUCK_WAIT_USER, WAIT_IRQ,
};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyIoctl, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::devices::{Board, is_dma_read, is_dma_write};

/// Whose ioctls to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The ESS driver's.
    Ess,
    /// Struck's own: the same registers, other waits. For tests of the probe.
    Struck,
}

type Shared = Arc<Mutex<Box<dyn Board>>>;

struct BoardFile {
    board: Shared,
    dialect: Dialect,
    memory_bytes: u64,
    traffic: Arc<Traffic>,
}

/// What programs did with a served board so far.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Waits that ended with a trigger.
    pub triggers: AtomicU64,
    /// Bytes read from the card's memory; pages of a mapping among them.
    pub read_bytes: AtomicU64,
    /// DMA writes to the card's memory.
    pub writes: AtomicU64,
    /// Reads and writes that a real board or its driver could not have done.
    pub refused: AtomicU64,
    /// Registers read or written.
    pub registers: AtomicU64,
}

/// A board that is being served; it is gone when this is dropped.
pub struct Served {
    session: Option<BackgroundSession>,
    /// Where.
    pub path: PathBuf,
    /// What was done with it.
    pub traffic: Arc<Traffic>,
    created: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Nothing can be done about a mount that somebody still uses.
            let _ = session.umount_and_join();
        }
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves a board at `path`, which is created if it is not there, until the result is dropped.
///
/// # Errors
/// When the path is no regular file, or FUSE is missing or forbidden.
pub fn serve(board: Box<dyn Board>, path: &Path, dialect: Dialect) -> Result<Served, Fault> {
    let refuse = |why: String| Fault::new(format!("cannot serve at {}: {why}", path.display()));
    let created = !path.exists();
    if created {
        std::fs::File::create_new(path).map_err(|error| refuse(error.to_string()))?;
    } else if !path.is_file() {
        return Err(refuse(
            "it is there and no regular file; name a new path".to_owned(),
        ));
    }
    let memory_bytes = board.identity().memory_bytes;
    let traffic = Arc::<Traffic>::default();
    let file = BoardFile {
        board: Arc::new(Mutex::new(board)),
        dialect,
        memory_bytes,
        traffic: traffic.clone(),
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
        refuse(format!(
            "{error} (needs /dev/fuse, and root or fusermount3)"
        ))
    })?;
    Ok(Served {
        session: Some(session),
        path: path.to_owned(),
        traffic,
        created,
    })
}

fn lock(board: &Shared) -> MutexGuard<'_, Box<dyn Board>> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Any fault of an emulated board is the board being gone.
const GONE: Errno = Errno::ENODEV;

impl BoardFile {
    fn attributes(&self) -> FileAttr {
        let now = SystemTime::UNIX_EPOCH;
        FileAttr {
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
        }
    }

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

    /// Waits in a thread of its own: the file system goes on answering register reads meanwhile.
    fn wait_irq(&self, argument: &[u8], reply: ReplyIoctl) {
        let Some((timeout, _)) = argument.split_first_chunk::<4>() else {
            return reply.error(Errno::EINVAL);
        };
        let timeout_ms = u32::from_ne_bytes(*timeout);
        let (board, traffic) = (Arc::clone(&self.board), Arc::clone(&self.traffic));
        // The driver forgets what came before the call: its flag is cleared on entry, and so is ours.
        let forgotten = lock(&board).wait_daq_done(Duration::ZERO);
        std::thread::spawn(move || {
            let status = match forgotten {
                Err(_) => Err(GONE),
                Ok(_) => wait_in_slices(&board, timeout_ms),
            };
            match status {
                Ok(status) => {
                    traffic
                        .triggers
                        .fetch_add(u64::from(status == 0), Ordering::Relaxed);
                    let wait = IrqWait {
                        timeout_ms,
                        kind: 0,
                        status,
                    };
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

/// The driver's status: 0 fired, 2 timeout. Waits a little at a time, so that the board is free for others in between.
fn wait_in_slices(board: &Shared, timeout_ms: u32) -> Result<u32, Errno> {
    let slice = Duration::from_millis(1);
    let slices = if timeout_ms == 0 {
        u32::MAX
    } else {
        timeout_ms
    };
    for _ in 0..slices {
        match lock(board).wait_daq_done(slice) {
            Ok(true) => return Ok(0),
            Ok(false) => {}
            Err(_) => return Err(GONE),
        }
        std::thread::yield_now();
    }
    Ok(2)
}

impl Filesystem for BoardFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without it, a file with direct I/O cannot be mapped shared (Linux 6.6 and later have it).
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
        reply.attr(&Duration::from_secs(3600), &self.attributes());
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
        if !is_dma_read(offset, size as usize) {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            return reply.error(Errno::EINVAL);
        }
        let room = self
            .memory_bytes
            .saturating_sub(offset)
            .min(u64::from(size));
        let mut bytes = vec![0; usize::try_from(room).expect("at most a 32-bit size")];
        match lock(&self.board).read(offset, &mut bytes) {
            Ok(delivered) => {
                self.traffic
                    .read_bytes
                    .fetch_add(delivered as u64, Ordering::Relaxed);
                reply.data(&bytes[..delivered]);
            }
            Err(_) => reply.error(GONE),
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
        // A mapped page stands for the driver's DMA buffer, not for card memory: what was written there goes nowhere.
        if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return reply.written(taken);
        }
        if !is_dma_write(offset, data.len()) {
            self.traffic.refused.fetch_add(1, Ordering::Relaxed);
            return reply.error(Errno::EINVAL);
        }
        match lock(&self.board).write(offset, data) {
            Ok(_) => {
                self.traffic.writes.fetch_add(1, Ordering::Relaxed);
                reply.written(taken);
            }
            Err(_) => reply.error(Errno::EIO),
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
            (Dialect::Ess, RELEASE_IRQ) => reply.ioctl(0, in_data),
            (Dialect::Struck, STRUCK_WAIT_USER) => reply.error(Errno::EIO),
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}
