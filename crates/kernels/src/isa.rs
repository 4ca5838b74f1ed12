//! Instruction sets of the kernels, and the two ways to store.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, as the compiler vectorises it for the baseline of the target.
    Portable,
    /// x86-64 with AVX2 and FMA, which all CPUs with AVX2 but a few of VIA have.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AArch64's baseline, with which the compiler vectorises the portable loops.
    Neon,
}

impl Isa {
    /// All sets, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.is_available()
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "which sets remain depends on the target")]
            _ => false,
        }
    }

    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    pub fn best() -> Isa {
        Isa::available().last().unwrap_or(Isa::Portable)
    }

    pub fn has_non_temporal(self) -> bool {
        matches!(self, Isa::Avx2 | Isa::Avx512)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Stores through the caches: for results that fit, or that a consumer reads soon.
    Cached,
    /// Stores around the caches: saves the read-for-ownership of lines that would be evicted
    /// unread.
    NonTemporal,
}

impl Store {
    pub fn name(self) -> &'static str {
        match self {
            Store::Cached => "cached",
            Store::NonTemporal => "non-temporal",
        }
    }

    /// Chooses the store for a kernel that reads and writes `footprint_bytes` in one pass.
    /// `last_level_bytes` is the host's last-level cache, 0 when unknown. Sets without non-temporal
    /// stores have only one way.
    ///
    /// Non-temporal stores win by 1.1 to 2.3 beyond the last-level cache, depending on the host;
    /// within it they gain nothing (METHODOLOGY.md, "Stores").
    pub fn for_footprint(isa: Isa, footprint_bytes: u64, last_level_bytes: u64) -> Store {
        if !isa.has_non_temporal() {
            return Store::Cached;
        }
        let last_level_bytes = if last_level_bytes == 0 { 32 << 20 } else { last_level_bytes };
        if footprint_bytes > last_level_bytes { Store::NonTemporal } else { Store::Cached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_go_around_the_cache_only_beyond_it_and_by_sets_that_can() {
        let store = |isa, mib: u64| Store::for_footprint(isa, mib << 20, 32 << 20);
        assert_eq!(store(Isa::Avx2, 18), Store::Cached);
        assert_eq!(store(Isa::Avx2, 720), Store::NonTemporal);
        assert_eq!(Store::for_footprint(Isa::Avx512, 720 << 20, 0), Store::NonTemporal);
        assert_eq!([Isa::Portable, Isa::Neon].map(|isa| store(isa, 720)), [Store::Cached; 2]);
    }
}
