//! Buffers on whole pages, and memory that a device may write.
//!
//! [`Buffer`] is ordinary memory that only this process writes, and lends slices. [`DeviceMemory`]
//! stands for the memory of a device, or memory that an engine transfers from and to. Its writer
//! holds it exclusively.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

use crate::{SysError, available, failed, huge_pages};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Base,
    /// Transparent huge pages (`MADV_HUGEPAGE`) for most of the memory.
    Transparent,
    /// Pages of the reserved huge page pool (`MAP_HUGETLB`, default size).
    HugeTlb,
}

impl Pages {
    pub fn name(self) -> &'static str {
        match self {
            Pages::Base => "base pages",
            Pages::Transparent => "transparent huge pages",
            Pages::HugeTlb => "hugetlb pages",
        }
    }
}

pub(crate) const HUGE_BYTES: usize = 2 << 20;
/// Smallest page size; hosts with larger pages are touched more often than needed.
const PAGE_BYTES: usize = 4096;

pub fn buffer_bytes(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(HUGE_BYTES as u64).unwrap_or(u64::MAX)
}

pub fn buffers_bytes(count: u64, bytes: u64) -> u64 {
    let stride = bytes.max(1).checked_next_multiple_of(PAGE_BYTES as u64);
    let all = stride.and_then(|stride| stride.checked_mul(count));
    all.map_or(u64::MAX, buffer_bytes)
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
}

// SAFETY: a mapping is plain memory that belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: the mapping itself hands out no references; its owners uphold the rules for theirs.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize, flags: MapFlags) -> Result<Mapping, SysError> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory
        // of ours.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        Mapping::of(start.map_err(failed(format!("map {bytes} bytes")))?, bytes)
    }

    pub(crate) fn shared(
        fd: BorrowedFd<'_>,
        bytes: usize,
        call: impl Into<String>,
    ) -> Result<Mapping, SysError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) };
        Mapping::of(start.map_err(failed(call))?, bytes)
    }

    fn of(start: *mut std::ffi::c_void, bytes: usize) -> Result<Mapping, SysError> {
        let start = NonNull::new(start.cast()).expect("the kernel never maps page zero unasked");
        Ok(Mapping { start, bytes })
    }

    pub(crate) fn advise_huge(&self) {
        // SAFETY: advice on our own whole mapping; it changes no contents.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
    }

    pub(crate) fn touch(&self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: the offset lies within the mapping, which is fresh; a volatile write makes
            // the page present.
            unsafe { self.start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// Makes a mapping of whole huge pages. Kernels before 6.7 map anywhere, and the ends of an
    /// unaligned mapping cannot be huge.
    fn on_huge_boundary(bytes: usize) -> Result<Mapping, SysError> {
        let with_ends = bytes.checked_add(HUGE_BYTES).ok_or_else(|| too_large(bytes))?;
        let whole = Mapping::new(with_ends, MapFlags::empty())?;
        let head = whole.start.as_ptr().align_offset(HUGE_BYTES).min(HUGE_BYTES);
        let (first, tail) = (whole.start.as_ptr(), HUGE_BYTES - head);
        // The parts are unmapped here, so the whole must not be.
        std::mem::forget(whole);
        // SAFETY: both parts are whole pages of our own fresh mapping, before and behind what
        // stays; nobody uses them.
        unsafe {
            let start = first.add(head);
            if head > 0 {
                libc::munmap(first.cast(), head);
            }
            if tail > 0 {
                libc::munmap(start.add(bytes).cast(), tail);
            }
            Ok(Mapping { start: NonNull::new_unchecked(start), bytes })
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody holds a reference into it any more: they borrow
        // from its owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Element types that any bytes are valid for.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + 'static {}
// SAFETY: unsigned integers and floats take every bit pattern and have no padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}

/// Zeroed memory on pages that are present, so that a timed step causes no fault.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    whole: Arc<Whole>,
}

// SAFETY: its part is plain memory that belongs to no thread; the buffers of a mapping do not
// overlap.
unsafe impl Send for Buffer {}
// SAFETY: it lends its part for writing only where it is borrowed exclusively itself.
unsafe impl Sync for Buffer {}

#[derive(Debug)]
struct Whole {
    mapping: Mapping,
    pages: OnceLock<Pages>,
    number: huge_pages::Number,
}

impl Buffer {
    /// Maps and touches at least `bytes`: reserved huge pages, else transparent ones, else base
    /// pages.
    pub fn new(bytes: usize, wanted: Pages) -> Result<Buffer, SysError> {
        let whole = Arc::new(Whole::new(bytes, wanted)?);
        Ok(Buffer { start: whole.mapping.start, bytes, whole })
    }

    /// Makes `count` buffers of `bytes` each in one mapping. Separate mappings would all begin at a
    /// huge page boundary and share a few sets of the caches. Each would also take whole huge
    /// pages.
    pub fn several(count: usize, bytes: usize, wanted: Pages) -> Result<Vec<Buffer>, SysError> {
        let stride = bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let all = stride.and_then(|stride| stride.checked_mul(count));
        let (Some(stride), Some(all)) = (stride, all) else {
            return Err(too_large(bytes));
        };
        let whole = Arc::new(Whole::new(all, wanted)?);
        let part = |at: usize| Buffer {
            // SAFETY: the mapping has a stride for each of them.
            start: unsafe { whole.mapping.start.add(at * stride) },
            bytes,
            whole: whole.clone(),
        };
        Ok((0..count).map(part).collect())
    }
}

fn too_large(bytes: usize) -> SysError {
    failed(format!("map {bytes} bytes"))(Errno::NOMEM)
}

impl Whole {
    fn new(bytes: usize, wanted: Pages) -> Result<Whole, SysError> {
        let rounded =
            bytes.max(1).checked_next_multiple_of(HUGE_BYTES).ok_or_else(|| too_large(bytes))?;
        if wanted == Pages::HugeTlb
            && let Ok(mapping) = Mapping::new(rounded, MapFlags::HUGETLB)
        {
            return Ok(Whole::touched(mapping, Some(Pages::HugeTlb)));
        }
        // An excess would be killed at first touch without a message.
        if let Some(available) = available::memory_bytes()
            && rounded as u64 > available
        {
            return Err(too_large(bytes));
        }
        if wanted == Pages::Base {
            let mapping = Mapping::new(rounded, MapFlags::empty())?;
            return Ok(Whole::touched(mapping, Some(Pages::Base)));
        }
        let mapping = Mapping::on_huge_boundary(rounded)?;
        mapping.advise_huge();
        Ok(Whole::touched(mapping, None))
    }

    fn touched(mapping: Mapping, pages: Option<Pages>) -> Whole {
        mapping.touch();
        Whole {
            mapping,
            pages: pages.map_or_else(OnceLock::new, OnceLock::from),
            number: huge_pages::number(),
        }
    }

    fn resident(&self) -> Option<huge_pages::Resident> {
        huge_pages::resident_of(self.mapping.start.as_ptr().addr(), self.number)
    }
}

impl Buffer {
    pub fn pages(&self) -> Pages {
        *self.whole.pages.get_or_init(|| match self.whole.resident() {
            Some(resident) if resident.is_mostly_huge() => Pages::Transparent,
            _ => Pages::Base,
        })
    }

    /// Borrows the first `len` elements.
    pub fn slice<T: Plain>(&self, len: usize) -> &[T] {
        self.check::<T>(len);
        // SAFETY: `check` saw that they fit; pages are aligned for every `Plain` type, and any
        // bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), len) }
    }

    pub fn slice_mut<T: Plain>(&mut self, len: usize) -> &mut [T] {
        self.check::<T>(len);
        // SAFETY: as in `slice`; the borrow of the buffer is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), len) }
    }

    fn check<T: Plain>(&self, len: usize) {
        let fits = len.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= self.bytes);
        assert!(
            fits,
            "{len} elements of {} bytes in a buffer of {} bytes",
            size_of::<T>(),
            self.bytes
        );
    }

    pub fn numa_node(&self) -> Option<u32> {
        crate::affinity::node_of(self.start.as_ptr())
    }
}

/// Memory of a device: sparse (untouched pages cost nothing), copied from and to.
///
/// Every write needs `&mut`, so that no safe program copies while another writes; lanes and an
/// engine's thread lock it.
#[derive(Debug)]
pub struct DeviceMemory {
    mapping: Mapping,
}

impl DeviceMemory {
    pub fn sparse(bytes: usize) -> Result<DeviceMemory, SysError> {
        let mapping = Mapping::new(bytes, MapFlags::NORESERVE)?;
        // Huge pages save TLB misses in the emulated DMA.
        mapping.advise_huge();
        Ok(DeviceMemory { mapping })
    }

    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    fn check(&self, offset: usize, len: usize) {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.mapping.bytes);
        assert!(fits, "{len} bytes at {offset} of device memory of {} bytes", self.mapping.bytes);
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: the range was checked, and `into` is not a part of the mapping, which is lent
        // only for reading. Nothing writes the source meanwhile: that needs `&mut`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.mapping.start.as_ptr().add(offset),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    pub fn with_bytes<T>(&self, work: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the mapping is readable and has as many bytes; writing it needs `&mut`, so nobody
        // does during the borrow.
        work(unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr(), self.mapping.bytes) })
    }

    pub fn write(&mut self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the range was checked; the borrow is exclusive, so `from` is elsewhere and nobody
        // reads or writes meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.mapping.start.as_ptr().add(offset),
                from.len(),
            );
        }
    }
}

pub fn device_copy(
    from: &DeviceMemory,
    from_at: usize,
    to: &mut DeviceMemory,
    to_at: usize,
    bytes: usize,
) {
    from.check(from_at, bytes);
    to.check(to_at, bytes);
    // SAFETY: both ranges were checked; the memories are two, because one of them is borrowed
    // exclusively.
    unsafe {
        let source = from.mapping.start.as_ptr().add(from_at);
        std::ptr::copy_nonoverlapping(source, to.mapping.start.as_ptr().add(to_at), bytes);
    }
}

/// A mapping of a driver's DMA buffer: a `read` to its start transfers without a copy. No reference
/// exists during a read, because the device writes it.
#[derive(Debug)]
pub struct DriverBuffer(Mapping);

impl DriverBuffer {
    /// Requests a contiguous buffer of `bytes`, mapped for reading and writing. The driver needs
    /// only PROT_READ, but a FUSE file refuses to read into a mapping without write access.
    ///
    /// # Errors
    /// ENOMEM without a contiguous buffer of that size (usually 4 MiB at most), ENODEV without
    /// mmap.
    pub fn map(file: &File, bytes: usize) -> Result<DriverBuffer, SysError> {
        let call = format!("map a DMA buffer of {bytes} bytes");
        Mapping::shared(file.as_fd(), bytes, call).map(DriverBuffer)
    }

    /// Reads `bytes` at a device's offset into the mapping's start; returns the bytes delivered.
    pub fn read_into(&mut self, file: &File, offset: u64, bytes: usize) -> Result<usize, SysError> {
        assert!(bytes <= self.0.bytes, "{bytes} bytes into a DMA buffer of {}", self.0.bytes);
        let position = libc::off_t::try_from(offset).expect("memory is far below 2^63 bytes");
        // The driver knows lseek + read only: its read() uses and advances the file position.
        // SAFETY: plain calls on an open descriptor; the buffer has `bytes` bytes.
        let got = unsafe {
            libc::lseek(file.as_raw_fd(), position, libc::SEEK_SET);
            libc::read(file.as_raw_fd(), self.0.start.as_ptr().cast(), bytes)
        };
        usize::try_from(got)
            .map_err(|_| SysError::last(format!("read {bytes} bytes at {offset:#x}")))
    }

    /// Borrows the samples of the last read. The device does not write while `&self` is held.
    pub fn samples(&self, len: usize) -> &[u16] {
        assert!(len <= self.0.bytes / 2, "{len} samples of a DMA buffer of {} bytes", self.0.bytes);
        // SAFETY: within the mapping, page-aligned; `read_into` needs `&mut self`, so no transfer
        // runs meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_copies_between_memories_but_never_beyond_them() {
        let (mut one, mut other) =
            (DeviceMemory::sparse(8192).unwrap(), DeviceMemory::sparse(4096).unwrap());
        one.write(100, b"bytes");
        device_copy(&one, 100, &mut other, 7, 5);
        device_copy(&other, 7, &mut one, 4096, 5);
        let mut back = [0; 5];
        one.read(4096, &mut back);
        assert_eq!(&back, b"bytes");
        for at in [4092, 4096, usize::MAX] {
            let copy = std::panic::AssertUnwindSafe(|| device_copy(&one, 0, &mut other, at, 5));
            assert!(std::panic::catch_unwind(copy).is_err(), "{at}");
        }
    }

    #[test]
    fn a_buffer_is_zeroed_and_says_which_pages_it_got() {
        for wanted in [Pages::Base, Pages::Transparent, Pages::HugeTlb] {
            let mut buffer = Buffer::new(10_000, wanted).unwrap();
            assert!(buffer.slice::<u8>(10_000).iter().all(|&byte| byte == 0));
            buffer.slice_mut::<f32>(2500)[2499] = 1.5;
            assert_eq!(buffer.slice::<f32>(2500)[2499], 1.5);
            assert!(wanted != Pages::Base || buffer.pages() == Pages::Base);
        }
    }

    #[test]
    fn several_buffers_lie_one_behind_the_other_and_outlive_one_another() {
        let mut all = Buffer::several(5, 5000, Pages::Transparent).unwrap();
        for (at, buffer) in all.iter_mut().enumerate() {
            buffer.slice_mut::<u8>(5000).fill(u8::try_from(at + 1).unwrap());
        }
        let last = all.pop().unwrap();
        for (at, buffer) in all.iter().enumerate() {
            let bytes = buffer.slice::<u8>(5000);
            assert!(bytes.iter().all(|&byte| usize::from(byte) == at + 1));
            // Equal places in a huge page would share a few sets of the caches.
            let offset = buffer.start.as_ptr().addr() - all[0].start.as_ptr().addr();
            assert_eq!(offset, at * 8192);
        }
        drop(all);
        assert!(last.slice::<u8>(5000).iter().all(|&byte| byte == 5));
        assert!(Buffer::several(2, usize::MAX, Pages::Base).is_err());
        assert!(Buffer::several(usize::MAX, 5000, Pages::Base).is_err());
        assert!(Buffer::several(0, 5000, Pages::Base).unwrap().is_empty());
    }

    /// Tests issue 14, A11: `madvise` succeeds also when no huge page will come, which was reported
    /// as got.
    #[test]
    fn transparent_huge_pages_are_reported_only_where_the_kernel_gave_them() {
        let disable = |off: libc::c_ulong| {
            // SAFETY: sets a flag of this process that decides which pages later faults get.
            let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, off, 0, 0, 0) };
            assert_eq!(result, 0);
        };
        disable(1);
        let without = Buffer::new(8 << 20, Pages::Transparent).unwrap().pages();
        disable(0);
        assert_eq!(without, Pages::Base);
        let buffer = Buffer::new(8 << 20, Pages::Transparent).unwrap();
        assert_eq!(buffer.start.as_ptr().addr() % HUGE_BYTES, 0);
        let got = buffer.whole.resident().unwrap();
        assert!(got.bytes >= 8 << 20, "{got:?}");
        assert_eq!(buffer.pages() == Pages::Transparent, got.is_mostly_huge());
    }

    #[test]
    fn more_memory_than_there_is_is_refused_with_the_size() {
        let error = Buffer::new(1 << 50, Pages::Transparent).unwrap_err().to_string();
        assert!(error.contains("1125899906842624"), "{error}");
        assert!(Buffer::new(usize::MAX, Pages::Base).is_err());
    }

    #[test]
    fn sparse_memory_keeps_what_is_written_far_apart() {
        let mut memory = DeviceMemory::sparse(2 << 30).unwrap();
        memory.write((2 << 30) - 4, &[1, 2, 3, 4]);
        let mut back = [0; 4];
        memory.read((2 << 30) - 4, &mut back);
        assert_eq!(back, [1, 2, 3, 4]);
    }
}
