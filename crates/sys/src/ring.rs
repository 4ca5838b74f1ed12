//! Ring of an endless DMA in shared memory. The card writes blocks at its pointer; the host reads
//! behind it and publishes its own pointer.
//!
//! Pointers are offsets with a bit that toggles at each wrap. Equal pointers with equal bits mean
//! full, with unequal bits empty; the bits start unequal (Wupper's descriptors: `even_addr_dma`,
//! `even_addr_pc`). The card takes a host pointer that moves back for a wrap only if it moves back
//! by more than a gap (`PC_PTR_GAP`).
//!
//! One [`Producer`] (the emulated card) and one [`Consumer`] (the reader), in one process or in two
//! that share the memory by its descriptor. Bytes between host pointer and card pointer belong to
//! the consumer; all others belong to the producer.
//!
//! In one process the types keep that rule, and the consumer lends its bytes as slices of the ring.
//! Shared memory may be written by another process at any time. The consumer of a shared ring
//! therefore copies it by atomics into its own memory ([`Consumer::take`]) and lends slices of
//! that. A ring can be shared only after its consumer in this process was dropped.
//!
//! Words beside the ring can be read and written by both sides (accounts, flags). Each unit has the
//! time at which its first trigger was issued, which no real card reports.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::memory::{Buffer, HUGE_BYTES, Mapping, Pages};
use crate::{SysError, available, failed};

/// Marks the memory; the last byte is the layout's version.
const MAGIC: u64 = u64::from_be_bytes(*b"DQMRING\x02");
pub const WORDS: usize = 8192;
const HEADER_WORDS: usize = 1024;
const WORDS_BYTES: usize = (HEADER_WORDS + WORDS) * 8;
const WORD_BYTES: usize = size_of::<u64>();
/// Header words. The two pointers lie on different cache lines, because each has another writer.
const AT_MAGIC: usize = 0;
const AT_RING_BYTES: usize = 1;
const AT_UNIT_BYTES: usize = 2;
const AT_GAP_BYTES: usize = 3;
const AT_CARD: usize = 16;
const AT_HOST: usize = 32;
const AT_READER: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    pub offset: usize,
    pub even: bool,
}

impl Pointer {
    const CARD_START: Pointer = Pointer { offset: 0, even: true };
    const HOST_START: Pointer = Pointer { offset: 0, even: false };

    fn to_raw(self) -> u64 {
        (self.offset as u64) << 1 | u64::from(self.even)
    }

    fn of_raw(raw: u64, ring_bytes: usize) -> Pointer {
        let offset = usize::try_from(raw >> 1).unwrap_or(usize::MAX);
        // A pointer outside the ring counts as its beginning, because the peer is not trusted.
        Pointer { offset: if offset < ring_bytes { offset } else { 0 }, even: raw & 1 == 1 }
    }

    /// Moves forward by at most a whole ring; the bit toggles at the end.
    #[must_use]
    pub fn forward(self, bytes: usize, ring_bytes: usize) -> Pointer {
        let offset = self.offset + bytes;
        if offset < ring_bytes {
            Pointer { offset, ..self }
        } else {
            Pointer { offset: offset - ring_bytes, even: !self.even }
        }
    }
}

pub fn filled(card: Pointer, host: Pointer, ring_bytes: usize) -> usize {
    match card.offset.cmp(&host.offset) {
        std::cmp::Ordering::Greater => card.offset - host.offset,
        std::cmp::Ordering::Less => ring_bytes - host.offset + card.offset,
        std::cmp::Ordering::Equal if card.even == host.even => ring_bytes,
        std::cmp::Ordering::Equal => 0,
    }
}

/// Applies a host pointer as the card does: the bit toggles only when the pointer moves back by
/// more than the gap.
#[must_use]
pub(crate) fn accept_host(old: Pointer, offset: usize, gap_bytes: usize) -> Pointer {
    let wrapped = offset.saturating_add(gap_bytes) < old.offset;
    Pointer { offset, even: old.even ^ wrapped }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub ring_bytes: usize,
    pub unit_bytes: usize,
    /// `PC_PTR_GAP` of the card: less than half the ring.
    pub gap_bytes: usize,
    pub pages: Pages,
    /// NUMA node to bind to; `None` leaves it to the first touch.
    pub numa_node: Option<u32>,
}

impl Shape {
    fn layout(ring_bytes: usize, unit_bytes: usize) -> Option<(usize, usize)> {
        let timestamps_bytes = ring_bytes / unit_bytes * 8;
        let start = (WORDS_BYTES + timestamps_bytes).checked_next_multiple_of(HUGE_BYTES)?;
        Some((start, start.checked_add(ring_bytes)?.checked_next_multiple_of(HUGE_BYTES)?))
    }
}

#[derive(Debug)]
struct Memory {
    fd: OwnedFd,
    mapping: Mapping,
    ring_start: usize,
    ring_bytes: usize,
    unit_bytes: usize,
    gap_bytes: usize,
    pages: Pages,
}

fn is_whole(ring_bytes: usize, unit_bytes: usize) -> bool {
    unit_bytes > 0
        && unit_bytes.is_multiple_of(WORD_BYTES)
        && ring_bytes / 2 >= unit_bytes
        && ring_bytes.is_multiple_of(unit_bytes)
}

/// Returns a word of a ring's memory, which begins with words of a fixed number.
fn header(mapping: &Mapping, at: usize) -> &AtomicU64 {
    assert!(at < HEADER_WORDS + WORDS, "word {at} of a ring");
    // SAFETY: within the words, which are only ever used as atomics, aligned to 8 because the
    // mapping is to 4096.
    unsafe { AtomicU64::from_ptr(mapping.start.as_ptr().cast::<u64>().add(at)) }
}

fn invalid(what: &str) -> SysError {
    failed("open a ring")(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl Memory {
    fn create(shape: &Shape) -> Result<Memory, SysError> {
        let wrong = |what: &str| {
            let call = format!("make a ring of {} bytes", shape.ring_bytes);
            failed(call)(io::Error::new(io::ErrorKind::InvalidInput, what))
        };
        if !is_whole(shape.ring_bytes, shape.unit_bytes) {
            return Err(wrong("not a whole number of blocks of whole 64-bit words, or only one"));
        }
        if shape.gap_bytes >= shape.ring_bytes / 2 {
            return Err(wrong(
                "the pointer gap is not less than half of it: no wrap would be seen",
            ));
        }
        let (ring_start, bytes) = Shape::layout(shape.ring_bytes, shape.unit_bytes)
            .ok_or_else(|| wrong("larger than an address space"))?;
        // Touching more than is available would end in a kill without a message.
        if let Some(available) = available::memory_bytes()
            && bytes as u64 > available
        {
            return Err(wrong(&format!("only {available} bytes of memory are available")));
        }
        let huge = (shape.pages == Pages::HugeTlb)
            .then(|| memfd(bytes, MemfdFlags::HUGETLB).ok())
            .flatten();
        let huge = huge.and_then(|fd| Some((map(&fd, bytes).ok()?, fd)));
        let (mapping, fd, pages) = match huge {
            Some((mapping, fd)) => (mapping, fd, Pages::HugeTlb),
            None => {
                let fd = memfd(bytes, MemfdFlags::empty())?;
                (map(&fd, bytes)?, fd, Pages::Base)
            }
        };
        let Shape { ring_bytes, unit_bytes, gap_bytes, .. } = *shape;
        let memory = Memory { fd, mapping, ring_start, ring_bytes, unit_bytes, gap_bytes, pages };
        memory.place(shape);
        for (at, value) in [
            (AT_RING_BYTES, ring_bytes as u64),
            (AT_UNIT_BYTES, unit_bytes as u64),
            (AT_GAP_BYTES, gap_bytes as u64),
            (AT_CARD, Pointer::CARD_START.to_raw()),
            (AT_HOST, Pointer::HOST_START.to_raw()),
        ] {
            memory.header(at).store(value, Ordering::Relaxed);
        }
        memory.header(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    /// Binds to the node, advises huge pages, and touches everything: nothing faults later.
    fn place(&self, shape: &Shape) {
        if let Some(node) = shape.numa_node.filter(|node| *node < 64) {
            let mask = 1_u64 << node;
            const MPOL_BIND: libc::c_int = 2;
            // Where it fails, memory comes from where the toucher runs; `numa_node` tells what was
            // got. SAFETY: our own whole mapping; the mask is one word of 64 bits, as the count of
            // bits says.
            unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    self.mapping.start.as_ptr(),
                    self.mapping.bytes,
                    MPOL_BIND,
                    &raw const mask,
                    64_usize + 1,
                    0_u32,
                )
            };
        }
        if shape.pages != Pages::Base && self.pages == Pages::Base {
            self.mapping.advise_huge();
        }
        self.mapping.touch();
    }

    fn open(fd: OwnedFd) -> Result<Memory, SysError> {
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(invalid("not a sealed memory: it could shrink under the reader"));
        }
        let stat = rustix::fs::fstat(&fd).map_err(failed("fstat of a ring"))?;
        let bytes = usize::try_from(stat.st_size).unwrap_or(0);
        if bytes < WORDS_BYTES {
            return Err(invalid("too short"));
        }
        let mapping = map(&fd, bytes)?;
        if header(&mapping, AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(invalid("no ring of this version of daqmeter"));
        }
        let [ring_bytes, unit_bytes, gap_bytes] = [AT_RING_BYTES, AT_UNIT_BYTES, AT_GAP_BYTES]
            .map(|at| header(&mapping, at).load(Ordering::Acquire))
            .map(|value| usize::try_from(value).unwrap_or(usize::MAX));
        let is_sane =
            ring_bytes <= bytes && is_whole(ring_bytes, unit_bytes) && gap_bytes < ring_bytes / 2;
        let layout = is_sane.then(|| Shape::layout(ring_bytes, unit_bytes)).flatten();
        let Some((ring_start, _)) = layout.filter(|(_, wanted)| *wanted == bytes) else {
            return Err(invalid("its sizes make no sense"));
        };
        let pages = Pages::Base;
        Ok(Memory { fd, mapping, ring_start, ring_bytes, unit_bytes, gap_bytes, pages })
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        header(&self.mapping, at)
    }

    fn timestamp(&self, unit: usize) -> &AtomicU64 {
        assert!(unit < self.ring_bytes / self.unit_bytes, "unit {unit} of a ring");
        // SAFETY: within the table of times (`Shape::layout`), only ever used as atomics, aligned
        // as the words are.
        unsafe {
            AtomicU64::from_ptr(
                self.mapping.start.as_ptr().add(WORDS_BYTES).cast::<u64>().add(unit),
            )
        }
    }

    fn pointer(&self, at: usize, order: Ordering) -> Pointer {
        Pointer::of_raw(self.header(at).load(order), self.ring_bytes)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < WORDS, "word {at} of a ring");
        self.header(HEADER_WORDS + at)
    }

    fn foreign(&self, offset: usize, bytes: usize) -> &[AtomicU64] {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.ring_bytes);
        let whole = offset.is_multiple_of(WORD_BYTES) && bytes.is_multiple_of(WORD_BYTES);
        assert!(fits && whole, "{bytes} bytes at {offset} of a ring of {}", self.ring_bytes);
        // SAFETY: within the ring and aligned; a memory that was opened is used by atomics alone in
        // this process.
        unsafe { std::slice::from_raw_parts(self.ring(offset).cast(), bytes / WORD_BYTES) }
    }

    fn ring(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.ring_bytes);
        // SAFETY: the ring lies within the mapping, and callers stay within the ring.
        unsafe { self.mapping.start.as_ptr().add(self.ring_start + offset) }
    }
}

/// Replaces shared memory under Miri, which has none.
#[cfg(miri)]
fn memfd(_bytes: usize, _flags: MemfdFlags) -> Result<OwnedFd, SysError> {
    let file = std::fs::File::open("/dev/null");
    file.map(OwnedFd::from).map_err(|source| SysError { call: "open /dev/null".to_owned(), source })
}

#[cfg(miri)]
fn map(_fd: &OwnedFd, bytes: usize) -> Result<Mapping, SysError> {
    Mapping::new(bytes, rustix::mm::MapFlags::empty())
}

#[cfg(not(miri))]
fn memfd(bytes: usize, flags: MemfdFlags) -> Result<OwnedFd, SysError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags;
    let fd = rustix::fs::memfd_create(c"daqmeter-ring", flags).map_err(failed("memfd_create"))?;
    let made = rustix::fs::ftruncate(&fd, bytes as u64);
    made.map_err(failed(format!("make a ring of {bytes} bytes")))?;
    let sealed = rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW);
    sealed.map_err(failed("seal a ring"))?;
    Ok(fd)
}

#[cfg(not(miri))]
fn map(fd: &OwnedFd, bytes: usize) -> Result<Mapping, SysError> {
    Mapping::shared(fd.as_fd(), bytes, format!("map a ring of {bytes} bytes"))
}

pub fn ring(shape: &Shape) -> Result<(Producer, Consumer), SysError> {
    let memory = Arc::new(Memory::create(shape)?);
    let producer = Producer {
        memory: memory.clone(),
        card: Pointer::CARD_START,
        free: Cell::new(memory.ring_bytes),
    };
    Ok((producer, Consumer { memory, host: Pointer::HOST_START, copy: None }))
}

#[derive(Debug)]
pub struct Producer {
    memory: Arc<Memory>,
    card: Pointer,
    /// Free bytes at the last look. Only the card reduces them.
    free: Cell<usize>,
}

impl Producer {
    pub fn ring_bytes(&self) -> usize {
        self.memory.ring_bytes
    }

    /// Returns the memory for another process, which calls [`Consumer::open`].
    ///
    /// # Errors
    /// The consumer that was made with this producer still exists: it lends slices of memory that
    /// the other process could write.
    pub fn share(&self) -> Result<BorrowedFd<'_>, SysError> {
        if Arc::strong_count(&self.memory) > 1 {
            let why = "its reader in this process has not ended";
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, why);
            return Err(failed("share a ring")(busy));
        }
        Ok(self.memory.fd.as_fd())
    }

    /// Frees the ring for another reader after the connection of the first has ended.
    pub fn forget_reader(&self) {
        self.memory.header(AT_READER).store(0, Ordering::Release);
    }

    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    pub fn numa_node(&self) -> Option<u32> {
        crate::affinity::node_of(self.memory.ring(0))
    }

    pub fn card(&self) -> Pointer {
        self.card
    }

    pub fn filled(&self) -> usize {
        self.memory.ring_bytes - self.free()
    }

    pub fn free(&self) -> usize {
        let ring_bytes = self.memory.ring_bytes;
        // Acquire: pairs with the consumer's release, after which its bytes may be written.
        let seen = ring_bytes
            - filled(self.card, self.memory.pointer(AT_HOST, Ordering::Acquire), ring_bytes);
        self.free.set(self.free.get().max(seen));
        self.free.get()
    }

    pub fn write(&mut self, ahead: usize, bytes: &[u8]) {
        let is_free = ahead.checked_add(bytes.len()).is_some_and(|end| end <= self.free());
        assert!(is_free, "the card writes what the host has not released");
        let at = self.card.forward(ahead, self.memory.ring_bytes).offset;
        let first = bytes.len().min(self.memory.ring_bytes - at);
        // SAFETY: both ranges are inside the ring and free: only we touch them (`&mut self`), and
        // slices of the consumer of this process lie outside; other processes have no slices of it.
        // The source is not in the ring, of which we lend nothing.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.ring(at), first);
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr().add(first),
                self.memory.ring(0),
                bytes.len() - first,
            );
        }
    }

    pub fn set_timestamp(&self, ahead: usize, ns: u64) {
        let at = self.card.forward(ahead, self.memory.ring_bytes).offset;
        self.memory.timestamp(at / self.memory.unit_bytes).store(ns, Ordering::Relaxed);
    }

    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.free(), "the card passes the host's pointer");
        self.card = self.card.forward(bytes, self.memory.ring_bytes);
        self.free.set(self.free.get() - bytes);
        // Release: pairs with the consumer's acquire; bytes and times written before are seen.
        self.memory.header(AT_CARD).store(self.card.to_raw(), Ordering::Release);
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at)
    }
}

#[derive(Debug)]
pub struct Consumer {
    memory: Arc<Memory>,
    host: Pointer,
    copy: Option<RingCopy>,
}

#[derive(Debug)]
struct RingCopy {
    bytes: Buffer,
    /// Bytes from the host's pointer on: whole units.
    taken: usize,
    reader: u64,
}

/// Returns a number unique to this process and to each reader in it.
fn reader_number() -> u64 {
    static READERS: AtomicU32 = AtomicU32::new(0);
    u64::from(std::process::id()) << 32 | u64::from(READERS.fetch_add(1, Ordering::Relaxed))
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if let Some(RingCopy { reader, .. }) = self.copy {
            let mark = self.memory.header(AT_READER);
            // The exchange fails when the card has given the ring to another reader.
            let _ = mark.compare_exchange(reader, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl Consumer {
    /// Takes the host's end of a ring that another process made, at its current host pointer.
    /// Allocates as much memory again as the ring has.
    ///
    /// # Errors
    /// The memory is not such a ring, or has a reader already.
    pub fn open(fd: OwnedFd) -> Result<Consumer, SysError> {
        let memory = Arc::new(Memory::open(fd)?);
        let bytes = Buffer::new(memory.ring_bytes, Pages::Transparent)?;
        let reader = reader_number();
        let mark = memory.header(AT_READER);
        // Acquire: pairs with the release of the reader before, and its pointer is taken over.
        if mark.compare_exchange(0, reader, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(invalid("it has a reader already"));
        }
        let host = memory.pointer(AT_HOST, Ordering::Acquire);
        let consumer = Consumer { memory, host, copy: Some(RingCopy { bytes, taken: 0, reader }) };
        if !host.offset.is_multiple_of(consumer.memory.unit_bytes) {
            return Err(invalid("its reader stopped inside a block"));
        }
        Ok(consumer)
    }

    /// Pages of the ring; `None` if another process made it.
    pub fn pages(&self) -> Option<Pages> {
        self.copy.is_none().then_some(self.memory.pages)
    }

    /// Takes up to `most` bytes, at least a unit, that another process has written, for
    /// [`Consumer::spans`]. Does nothing for a card in this process.
    pub fn take(&mut self, most: usize) {
        let written = self.whole_units();
        let Consumer { memory, host, copy: Some(copy) } = self else {
            return;
        };
        let unit = memory.unit_bytes;
        let bytes = written.saturating_sub(copy.taken).min((most / unit).max(1) * unit);
        let at = host.forward(copy.taken, memory.ring_bytes).offset;
        let first = bytes.min(memory.ring_bytes - at);
        for (from, length) in [(at, first), (0, bytes - first)] {
            let into =
                copy.bytes.slice_mut::<u8>(from + length)[from..].as_chunks_mut::<WORD_BYTES>().0;
            for (into, word) in into.iter_mut().zip(memory.foreign(from, length)) {
                // The acquire of the card's pointer orders this; a card that violates the protocol
                // can only mix bytes.
                *into = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        copy.taken += bytes;
    }

    fn whole_units(&self) -> usize {
        self.filled() / self.memory.unit_bytes * self.memory.unit_bytes
    }

    fn readable(&self) -> usize {
        self.copy.as_ref().map_or_else(|| self.whole_units(), |copy| copy.taken)
    }

    pub fn ring_bytes(&self) -> usize {
        self.memory.ring_bytes
    }

    pub fn unit_bytes(&self) -> usize {
        self.memory.unit_bytes
    }

    pub fn host(&self) -> Pointer {
        self.host
    }

    pub fn filled(&self) -> usize {
        // Acquire: pairs with the producer's release.
        filled(self.memory.pointer(AT_CARD, Ordering::Acquire), self.host, self.memory.ring_bytes)
    }

    /// Lends whole units from `skip` bytes beyond the host's pointer: up to the end of the ring,
    /// then from its beginning. The card's pointer may be inside a unit.
    pub fn spans(&self, skip: usize) -> [&[u8]; 2] {
        let whole = self.readable();
        let length = whole.saturating_sub(skip);
        let at = self.host.forward(skip.min(whole), self.memory.ring_bytes).offset;
        let first = length.min(self.memory.ring_bytes - at);
        if let Some(copy) = &self.copy {
            let ring = copy.bytes.slice::<u8>(self.memory.ring_bytes);
            return [&ring[at..at + first], &ring[..length - first]];
        }
        // SAFETY: these bytes are between host and card pointer: the producer, which is in this
        // process, does not write them before `release`, which takes `&mut self` and so ends this
        // borrow. Nobody else can: a ring with such a consumer is not shared.
        unsafe {
            [
                std::slice::from_raw_parts(self.memory.ring(at), first),
                std::slice::from_raw_parts(self.memory.ring(0), length - first),
            ]
        }
    }

    pub fn timestamp(&self, skip: usize) -> u64 {
        let at = self.host.forward(skip, self.memory.ring_bytes).offset;
        self.memory.timestamp(at / self.memory.unit_bytes).load(Ordering::Relaxed)
    }

    /// Gives bytes back to the card. A step back that is shorter than the gap is made in three.
    ///
    /// # Panics
    /// More is released than was written or taken, or a part of a unit of a shared ring.
    pub fn release(&mut self, bytes: usize) {
        let most = if self.copy.is_some() { self.readable() } else { self.filled() };
        assert!(bytes <= most, "the host releases what the card has not written");
        if let Some(copy) = &mut self.copy {
            assert!(
                bytes.is_multiple_of(self.memory.unit_bytes),
                "the host releases a part of a block"
            );
            copy.taken -= bytes;
        }
        let target = self.host.forward(bytes, self.memory.ring_bytes);
        let mut seen = accept_host(self.host, target.offset, self.memory.gap_bytes);
        if seen != target {
            // Goes forward to the last unit, back to the beginning by more than the gap, and
            // forward again.
            let mut at = self.host;
            for stop in [self.memory.ring_bytes - self.memory.unit_bytes, 0, target.offset] {
                at = accept_host(at, stop, self.memory.gap_bytes);
                self.memory.header(AT_HOST).store(at.to_raw(), Ordering::Release);
            }
            seen = at;
        }
        assert_eq!(seen, target, "a gap below half the ring lets every wrap be seen");
        self.host = target;
        // Release: pairs with the producer's acquire; our reads of the bytes are done.
        self.memory.header(AT_HOST).store(target.to_raw(), Ordering::Release);
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at)
    }

    pub fn numa_node(&self) -> Option<u32> {
        crate::affinity::node_of(self.memory.ring(0))
    }
}

#[cfg(test)]
mod tests;
