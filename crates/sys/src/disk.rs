//! Writes to files with several blocks in flight, by `io_uring` (kernel 5.6), advice for files, and
//! the counters of a disk.
//!
//! A buffer belongs to the queue while the kernel reads it: nothing is copied, and nobody else can
//! write to it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{Advice, FallocateFlags};

use crate::clock::monotonic_ns;
use crate::host::{Files, page_bytes};
use crate::memory::Buffer;

/// One write: whole `bytes` of a buffer to a place in a file.
#[derive(Debug)]
pub struct DiskWrite {
    pub file: Arc<File>,
    pub buffer: Buffer,
    pub bytes: usize,
    pub offset: u64,
}

/// A write that has ended.
#[derive(Debug)]
pub struct DiskWritten {
    /// Number of the write, in the order in which writes were started, from 0 on.
    pub number: u64,
    pub buffer: Buffer,
    pub result: io::Result<()>,
    /// Time from its start to its end.
    pub ns: u64,
}

pub struct WriteQueue {
    /// Without it, each write ends before the next one begins.
    ring: Option<IoUring>,
    /// Number, begin and content of the writes in flight, by their place.
    flying: Vec<Option<(u64, u64, DiskWrite)>>,
    done: VecDeque<DiskWritten>,
    next: u64,
}

impl WriteQueue {
    /// Makes a queue for at most `depth` writes. With a depth of 1, or where the kernel has no
    /// `io_uring` or forbids it, writes go one by one (`pwrite`).
    pub fn new(depth: usize) -> WriteQueue {
        let entries = u32::try_from(depth.max(1)).unwrap_or(u32::MAX);
        let ring = (depth > 1).then(|| IoUring::new(entries).ok()).flatten();
        let flying = (0..ring.as_ref().map_or(1, |_| depth)).map(|_| None).collect();
        WriteQueue { ring, flying, done: VecDeque::with_capacity(depth), next: 0 }
    }

    /// Number of writes that can be in flight.
    pub fn depth(&self) -> usize {
        self.flying.len()
    }

    /// Starts a write, unless as many as [`WriteQueue::depth`] are in flight or not yet taken.
    ///
    /// # Errors
    /// Those of handing it to the kernel; the buffer is lost.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn start(&mut self, write: DiskWrite) -> io::Result<()> {
        let (number, begin_ns) = (self.next, monotonic_ns());
        self.next += 1;
        let bytes = write.buffer.slice::<u8>(write.bytes);
        let Some(ring) = &mut self.ring else {
            let result = write.file.write_all_at(bytes, write.offset);
            let ns = monotonic_ns() - begin_ns;
            self.done.push_back(DiskWritten { number, buffer: write.buffer, result, ns });
            return Ok(());
        };
        let place = self.flying.iter().position(Option::is_none).expect("room for the write");
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let entry = opcode::Write::new(types::Fd(write.file.as_raw_fd()), bytes.as_ptr(), len)
            .offset(write.offset)
            .build()
            .user_data(place as u64);
        self.flying[place] = Some((number, begin_ns, write));
        // SAFETY: file and buffer stay in `flying` until the kernel has reported the write's end;
        // `drop` waits for it, too.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        ring.submit().map(drop)
    }

    /// Returns a write that has ended, which is waited for on request; `None` if none has, or none
    /// is in flight.
    ///
    /// # Errors
    /// Those of waiting.
    pub fn ended(&mut self, waits: bool) -> io::Result<Option<DiskWritten>> {
        if let Some(done) = self.done.pop_front() {
            return Ok(Some(done));
        }
        let is_empty = self.flying.iter().all(Option::is_none);
        let Some(ring) = self.ring.as_mut().filter(|_| !is_empty) else { return Ok(None) };
        let ended = loop {
            if let Some(ended) = ring.completion().next() {
                break ended;
            }
            if !waits {
                return Ok(None);
            }
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        };
        let place = usize::try_from(ended.user_data()).unwrap_or(usize::MAX);
        let ended_write = self.flying.get_mut(place).and_then(Option::take);
        let (number, begin_ns, write) = ended_write.expect("a write that was started");
        let result = rest(&write, ended.result());
        let ns = monotonic_ns() - begin_ns;
        Ok(Some(DiskWritten { number, buffer: write.buffer, result, ns }))
    }
}

/// Writes what the kernel left of a write: near the end of a disk it takes a part.
fn rest(write: &DiskWrite, result: i32) -> io::Result<()> {
    match usize::try_from(result) {
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
        Ok(done) if done >= write.bytes => Ok(()),
        Ok(done) => {
            let left = &write.buffer.slice::<u8>(write.bytes)[done..];
            write.file.write_all_at(left, write.offset + done as u64)
        }
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        while self.flying.iter().any(Option::is_some) {
            if self.ended(true).is_err() {
                // The kernel may still read them: they stay where they are.
                std::mem::forget(std::mem::take(&mut self.flying));
            }
        }
    }
}

/// Reserves room for bytes of a file, whose length they extend.
///
/// # Errors
/// No room, or a file system that cannot.
pub fn reserve(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes)?)
}

/// Drops what the page cache holds of bytes of a file that are on the disk, so that they are read
/// from there; of all up to its end if `bytes` is 0.
pub fn uncache(file: &File, offset: u64, bytes: u64) {
    let bytes = std::num::NonZero::new(bytes);
    // Where it fails, they are read from the cache.
    let _ = rustix::fs::fadvise(file, offset, bytes, Advice::DontNeed);
}

/// Free bytes of the file system that holds a file, for users without privileges.
pub fn free_bytes(file: &File) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(file).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Number of the block device of a file system, as `MAJOR:MINOR`; `None` if it has none.
pub fn device_of(st_dev: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(st_dev), rustix::fs::minor(st_dev));
    (major > 0).then(|| format!("{major}:{minor}"))
}

/// Bytes of the page cache that wait for a disk, and the most of them before the kernel holds back
/// who writes.
pub fn unwritten_bytes(files: &Files) -> (u64, u64) {
    let vmstat = files.text("proc/vmstat").unwrap_or_default();
    let of = |name: &str| {
        let mut fields = vmstat.lines().filter_map(|line| line.split_once(' '));
        let pages = fields.find_map(|(of, pages)| pages.parse::<u64>().ok().filter(|_| of == name));
        pages.unwrap_or(0).saturating_mul(page_bytes())
    };
    (of("nr_dirty").saturating_add(of("nr_writeback")), of("nr_dirty_threshold"))
}

/// Activity of a block device between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceActivity {
    /// Share of the time in which it had requests. Before Linux 6.10 the kernel adds to it only
    /// when a request begins or ends (99dc422335d8), which is too little for long ones.
    pub busy: f64,
    /// Mean time of a write.
    pub write_s: Option<f64>,
    /// Mean number of writes there.
    pub queue: f64,
}

/// Reader of the counters of a block device (`/sys/dev/block/.../stat`,
/// `Documentation/block/stat.rst`).
#[derive(Debug)]
pub struct DeviceMeter {
    files: Files,
    device: String,
    /// Time with requests and time of all writes, in ms, and the number of these.
    before: Option<[u64; 3]>,
}

impl DeviceMeter {
    pub fn new(files: &Files, device: String) -> DeviceMeter {
        let mut meter = DeviceMeter { files: files.clone(), device, before: None };
        meter.before = meter.times();
        meter
    }

    pub fn device(&self) -> &str {
        &self.device
    }

    /// Name of the device, as `nvme0n1p2`.
    pub fn name(&self) -> Option<String> {
        let link = self.files.root().join(format!("sys/dev/block/{}", self.device));
        Some(std::fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
    }

    fn times(&self) -> Option<[u64; 3]> {
        let text = self.files.text(&format!("sys/dev/block/{}/stat", self.device))?;
        let fields: Vec<u64> =
            text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        Some([*fields.get(9)?, *fields.get(7)?, *fields.get(4)?])
    }

    /// Activity in the seconds since the last reading.
    pub fn read(&mut self, seconds: f64) -> Option<DeviceActivity> {
        let now = self.times();
        let before = std::mem::replace(&mut self.before, now);
        let (now, before) = now.zip(before)?;
        let [busy_ms, writes_ms, writes] =
            [0, 1, 2].map(|at| now[at].saturating_sub(before[at]) as f64);
        Some(DeviceActivity {
            busy: (busy_ms / 1e3 / seconds).min(1.0),
            write_s: (writes > 0.0).then(|| writes_ms / 1e3 / writes),
            queue: writes_ms / 1e3 / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;

    #[test]
    fn writes_end_in_any_order_and_all_bytes_are_in_the_file() {
        for depth in [1, 8] {
            let path = tempfile::NamedTempFile::new().unwrap();
            let file = Arc::new(File::create(path.path()).unwrap());
            let mut queue = WriteQueue::new(depth);
            let mut free = Buffer::several(queue.depth(), 4096, Pages::Base).unwrap();
            let mut seen = Vec::new();
            for block in 0..40_u8 {
                while free.is_empty() {
                    let done = queue.ended(true).unwrap().expect("one is in flight");
                    done.result.unwrap();
                    seen.push(done.number);
                    free.push(done.buffer);
                }
                let mut buffer = free.pop().unwrap();
                buffer.slice_mut::<u8>(4096).fill(block);
                let offset = u64::from(block) * 4096;
                queue.start(DiskWrite { file: file.clone(), buffer, bytes: 4096, offset }).unwrap();
            }
            while let Some(done) = queue.ended(true).unwrap() {
                seen.push(done.number);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..40).collect::<Vec<_>>());
            let wanted: Vec<u8> = (0..40).flat_map(|block| [block; 4096]).collect();
            assert_eq!(std::fs::read(path.path()).unwrap(), wanted);
        }
    }

    #[test]
    fn a_write_that_fails_gives_its_error_and_its_buffer() {
        let mut queue = WriteQueue::new(4);
        let buffer = Buffer::new(4096, Pages::Base).unwrap();
        // A file that is open for reading only.
        let file = Arc::new(File::open("/proc/self/exe").unwrap());
        queue.start(DiskWrite { file, buffer, bytes: 4096, offset: 0 }).unwrap();
        let done = queue.ended(true).unwrap().unwrap();
        assert!(done.result.is_err());
        assert_eq!(done.buffer.slice::<u8>(4096).len(), 4096);
    }
}
