//! Fetching bytes before they are read.

const LINE_BYTES: usize = 64;

/// Prefetches every line of the bytes; it has no other effect and does not wait.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the address is inside the slice; a prefetch reads nothing that the program sees.
        // SSE is part of x86-64.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                line.as_ptr().cast(),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the address is inside the slice; a prefetch reads nothing that the program sees,
        // and changes no register or flag.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_changes_nothing_whatever_the_length() {
        for length in [0, 1, 63, 64, 65, 4096] {
            let bytes = vec![7_u8; length];
            super::prefetch(&bytes);
            assert!(bytes.iter().all(|&byte| byte == 7));
        }
    }
}
