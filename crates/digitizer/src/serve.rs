//! A FUSE file that answers as a driver's device, to test other programs and our real-device code
//! without a card. The devices' folders hold the answers.
//!
//! CUSE is no alternative: it has no mmap and loses the file position, so a program would silently
//! get the wrong channel. The file is mounted on a regular file, whose path is then the device.
//! Needs root or fusermount3, and /dev/fuse.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use daqmeter_harness::Fault;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyIoctl, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

pub trait DriverFile: Send + Sync + 'static {
    fn driver(&self) -> &'static str;

    fn size_bytes(&self) -> u64;

    fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno>;

    fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn ioctl(&self, _command: u32, _argument: &[u8], reply: ReplyIoctl) {
        reply.error(Errno::ENOTTY);
    }
}

#[derive(Debug, Default)]
pub struct ServedTraffic {
    /// Waits that ended with a trigger.
    pub triggers: AtomicU64,
    /// Bytes read from the card's memory, including pages of a mapping.
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    /// Reads and writes that a real board or its driver could not do.
    pub refused: AtomicU64,
    pub registers: AtomicU64,
}

pub struct ServedBoard {
    session: Option<BackgroundSession>,
    pub path: PathBuf,
    pub traffic: Arc<ServedTraffic>,
    created: bool,
}

impl Drop for ServedBoard {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // An unmount can fail while a program uses the mount.
            let _ = session.umount_and_join();
        }
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct Fuse<F>(F);

/// Serves a device at `path` until the result is dropped; creates a missing file.
///
/// # Errors
/// The path is not a regular file, or FUSE is missing or forbidden.
pub fn serve(
    file: impl DriverFile,
    path: &Path,
    traffic: Arc<ServedTraffic>,
) -> Result<ServedBoard, Fault> {
    let refuse = |why: String| Fault::new(format!("cannot serve at {}: {why}", path.display()));
    let created = !path.exists();
    if created {
        std::fs::File::create_new(path).map_err(|error| refuse(error.to_string()))?;
    } else if !path.is_file() {
        return Err(refuse("it is there and no regular file; name a new path".to_owned()));
    }
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("daqmeter".to_owned()),
        MountOption::Subtype(file.driver().to_owned()),
    ];
    let mounted = fuser::spawn_mount(Fuse(file), path, &config);
    let session = mounted.map_err(|error| {
        if created {
            let _ = std::fs::remove_file(path);
        }
        refuse(format!("{error} (needs /dev/fuse, and root or fusermount3)"))
    })?;
    Ok(ServedBoard { session: Some(session), path: path.to_owned(), traffic, created })
}

impl<F: DriverFile> Fuse<F> {
    fn attributes(&self) -> FileAttr {
        let now = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.0.size_bytes(),
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
}

impl<F: DriverFile> Filesystem for Fuse<F> {
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
        match self.0.read(offset, size as usize) {
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
        match self.0.write(offset, data) {
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
        self.0.ioctl(command, in_data, reply);
    }
}
