//! Plain copies: the C library, the string instruction, and vectors of two widths.
//! Vectors store through the caches or around them. All copy exactly the given bytes, at any
//! alignment.

use std::sync::atomic::AtomicU8;

use crate::{Isa, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKernel {
    Memcpy,
    /// `rep movsb`, which the kernel's own user copies use on CPUs with ERMS.
    RepMovsb,
    Vector(Isa, Store),
}

impl CopyKernel {
    pub fn available() -> Vec<CopyKernel> {
        let mut kernels = vec![CopyKernel::Memcpy];
        if cfg!(target_arch = "x86_64") {
            kernels.push(CopyKernel::RepMovsb);
        }
        for isa in Isa::available().filter(|isa| matches!(isa, Isa::Avx2 | Isa::Avx512)) {
            kernels.extend(
                [Store::Cached, Store::NonTemporal].map(|store| CopyKernel::Vector(isa, store)),
            );
        }
        kernels
    }

    pub fn name(self) -> &'static str {
        match self {
            CopyKernel::Memcpy => "memcpy",
            CopyKernel::RepMovsb => "rep-movsb",
            CopyKernel::Vector(Isa::Avx512, Store::Cached) => "avx512",
            CopyKernel::Vector(Isa::Avx512, Store::NonTemporal) => "avx512-nt",
            CopyKernel::Vector(_, Store::Cached) => "avx2",
            CopyKernel::Vector(_, Store::NonTemporal) => "avx2-nt",
        }
    }

    pub fn from_name(name: &str) -> Option<CopyKernel> {
        CopyKernel::available().into_iter().find(|kernel| kernel.name() == name)
    }

    /// Copies all of `from`.
    ///
    /// # Panics
    /// The lengths differ.
    #[inline]
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "both sides of a copy are of one length");
        match self {
            #[cfg(target_arch = "x86_64")]
            CopyKernel::RepMovsb => x86_64::rep_movsb(from, to),
            #[cfg(target_arch = "x86_64")]
            CopyKernel::Vector(Isa::Avx512, store) if Isa::Avx512.is_available() => {
                // SAFETY: the CPU has it.
                unsafe { x86_64::avx512(store, from, to) }
            }
            #[cfg(target_arch = "x86_64")]
            CopyKernel::Vector(Isa::Avx2, store) if Isa::Avx2.is_available() => {
                // SAFETY: the CPU has it.
                unsafe { x86_64::avx2(store, from, to) }
            }
            _ => to.copy_from_slice(from),
        }
    }
}

/// A byte of memory: owned, or written by others.
pub trait Byte {}
impl Byte for u8 {}
impl Byte for AtomicU8 {}

/// Flushes every line of the bytes from all caches. Returns false without an instruction for user
/// programs.
pub fn flush<B: Byte>(bytes: &[B]) -> bool {
    #[cfg(target_arch = "x86_64")]
    x86_64::flush(bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
    cfg!(target_arch = "x86_64")
}

/// Executes an instruction without effect that an emulator's plugin can see: `nopl` with a
/// displacement of its own. It opens or closes a measured segment in the cache model of
/// `vm/qemu/cache.c`.
#[inline]
pub fn mark(open: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a no-operation with an address that is never accessed.
    unsafe {
        if open {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80, 0x01, 0x4d, 0x51, 0x44",
                options(nostack, preserves_flags)
            );
        } else {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80, 0x00, 0x4d, 0x51, 0x44",
                options(nostack, preserves_flags)
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = open;
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::*;

    use crate::Store;

    pub(super) fn rep_movsb(from: &[u8], to: &mut [u8]) {
        // SAFETY: both slices have `len` bytes and do not overlap; the direction flag is clear by
        // the ABI.
        unsafe {
            std::arch::asm!("rep movsb", inout("rcx") from.len() => _, inout("rsi") from.as_ptr() => _,
                inout("rdi") to.as_mut_ptr() => _, options(nostack, preserves_flags));
        }
    }

    fn head(to: &[u8], align: usize) -> usize {
        to.as_ptr().align_offset(align).min(to.len())
    }

    macro_rules! vector_copy {
        ($name:ident, $feature:literal, $bytes:literal, $load:ident, $store:ident, $stream:ident) => {
            /// # Safety
            /// The CPU has the feature; both slices are of one length.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(store: Store, from: &[u8], to: &mut [u8]) {
                const STEP: usize = 4 * $bytes;
                let head = head(to, $bytes);
                let steps = (to.len() - head) / STEP;
                let body = steps * STEP;
                // An aligned copy of whole steps is the usual one and skips two calls that move
                // nothing.
                if head > 0 {
                    to[..head].copy_from_slice(&from[..head]);
                }
                let mut read = from[head..].as_ptr();
                let mut write = to[head..].as_mut_ptr();
                for _ in 0..steps {
                    // SAFETY: `steps` steps of both slices lie behind the head; `write` is aligned
                    // to a vector.
                    unsafe {
                        let a = $load(read.cast());
                        let b = $load(read.add($bytes).cast());
                        let c = $load(read.add(2 * $bytes).cast());
                        let d = $load(read.add(3 * $bytes).cast());
                        match store {
                            Store::Cached => {
                                $store(write.cast(), a);
                                $store(write.add($bytes).cast(), b);
                                $store(write.add(2 * $bytes).cast(), c);
                                $store(write.add(3 * $bytes).cast(), d);
                            }
                            Store::NonTemporal => {
                                $stream(write.cast(), a);
                                $stream(write.add($bytes).cast(), b);
                                $stream(write.add(2 * $bytes).cast(), c);
                                $stream(write.add(3 * $bytes).cast(), d);
                            }
                        }
                        read = read.add(STEP);
                        write = write.add(STEP);
                    }
                }
                if store == Store::NonTemporal {
                    _mm_sfence();
                }
                if head + body < to.len() {
                    to[head + body..].copy_from_slice(&from[head + body..]);
                }
            }
        };
    }
    vector_copy!(
        avx512,
        "avx512f",
        64,
        _mm512_loadu_si512,
        _mm512_store_si512,
        _mm512_stream_si512
    );
    vector_copy!(avx2, "avx2", 32, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256);

    pub(super) fn flush<B: super::Byte>(bytes: &[B]) {
        for line in bytes.chunks(64) {
            // SAFETY: the address is inside the slice; flushing changes no contents. SSE2 is part
            // of x86-64.
            unsafe { _mm_clflush(line.as_ptr().cast()) };
        }
        if let Some(last) = bytes.last() {
            // SAFETY: as above; an unaligned slice ends in a line of its own. The fence waits for
            // all of it.
            unsafe {
                _mm_clflush(std::ptr::from_ref(last).cast());
                _mm_mfence();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_exactly_at_any_alignment() {
        let source: Vec<u8> = (0..5000_u32).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
        for kernel in CopyKernel::available() {
            assert_eq!(CopyKernel::from_name(kernel.name()), Some(kernel));
            for bytes in [0, 1, 31, 63, 64, 65, 255, 256, 257, 4096] {
                for (from, to) in [(0, 0), (1, 0), (0, 3), (17, 61)] {
                    let mut copy = vec![0xEE_u8; 5000];
                    kernel.copy(&source[from..from + bytes], &mut copy[to..to + bytes]);
                    assert_eq!(
                        copy[to..to + bytes],
                        source[from..from + bytes],
                        "{kernel:?} {bytes} {from} {to}"
                    );
                    let outside = copy[..to].iter().chain(&copy[to + bytes..]);
                    assert!(
                        outside.into_iter().all(|byte| *byte == 0xEE),
                        "{kernel:?} {bytes} {from} {to}"
                    );
                }
            }
        }
    }

    #[test]
    fn flushing_and_marking_change_nothing() {
        let bytes = vec![3_u8; 1000];
        flush(&bytes[5..]);
        flush::<u8>(&[]);
        flush(&[const { AtomicU8::new(3) }; 100]);
        mark(true);
        mark(false);
        assert!(bytes.iter().all(|byte| *byte == 3));
    }
}
