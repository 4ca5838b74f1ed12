//! Digitizer samples to floating point.
//!
//! The arithmetic is that of `sis8300drv_threads` to the bit: cast `(float)raw`, scale `(float)((double)raw * F + O)` with
//! two roundings (no fused multiply-add), and Q-format `v / 2^n` after the two's complement fold. The division by a power
//! of two is done as a multiplication by its inverse, which is exact and three times as fast in scalar code (reference, section 3.2).
//! The original stored doubles at a 4-byte stride; ours are 8 bytes wide (METHODOLOGY.md, "Defects not copied").

#[cfg(target_arch = "aarch64")]
mod neon;
pub mod oracle;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use crate::{Isa, Store};

/// Fixed-point format of a raw code: m integer bits, n fraction bits, signed (two's complement) or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qmn {
    int_bits: u32,
    frac_bits: u32,
    signed: bool,
    in_degrees: bool,
}

impl Qmn {
    /// Q1.15 unsigned: the magnitude channel of the source document (functions 5 and 7).
    pub const MAGNITUDE: Qmn = Qmn {
        int_bits: 1,
        frac_bits: 15,
        signed: false,
        in_degrees: false,
    };
    /// Q3.13 signed: the phase channel of the source document (functions 6 and 8).
    pub const PHASE: Qmn = Qmn {
        int_bits: 3,
        frac_bits: 13,
        signed: true,
        in_degrees: false,
    };

    /// A format of `int_bits` + `frac_bits` bits. `None` unless the sum is 1 to 63, as in the original's `0x1UL << (m + n)`.
    pub fn new(int_bits: u32, frac_bits: u32, signed: bool) -> Option<Qmn> {
        let bits = int_bits.checked_add(frac_bits)?;
        (1..=63).contains(&bits).then_some(Qmn {
            int_bits,
            frac_bits,
            signed,
            in_degrees: false,
        })
    }

    /// Radians to degrees: the value times 180/pi, which later revisions of the original do in function 6. For f64 only: in f32
    /// the weight of a bit would be rounded.
    #[must_use]
    pub fn in_degrees(self) -> Qmn {
        Qmn {
            in_degrees: true,
            ..self
        }
    }

    /// Integer bits m.
    pub fn int_bits(self) -> u32 {
        self.int_bits
    }

    /// Fraction bits n.
    pub fn frac_bits(self) -> u32 {
        self.frac_bits
    }

    /// Codes from here on are negative. Raw codes have 16 bits, so formats of more than 16 bits never fold.
    pub(crate) fn fold_from(self) -> i32 {
        let bits = self.int_bits + self.frac_bits;
        if self.signed && bits <= 16 {
            1 << (bits - 1)
        } else {
            i32::MAX
        }
    }

    /// What is taken from a negative code: 2^(m+n).
    pub(crate) fn fold_by(self) -> i32 {
        let bits = self.int_bits + self.frac_bits;
        if self.signed && bits <= 16 {
            1 << bits
        } else {
            0
        }
    }

    /// 2^-n, exact in f64 (and in f32, since n is at most 63); in degrees times 180/pi, whose scaling by a power of two is exact.
    pub(crate) fn weight(self) -> f64 {
        (-f64::from(self.frac_bits)).exp2() * self.unit()
    }

    /// What one of the source's units is in that of the result.
    pub(crate) fn unit(self) -> f64 {
        match self.in_degrees {
            true => DEGREES_PER_RADIAN,
            false => 1.0,
        }
    }
}

/// As the original computes it, in double precision.
const DEGREES_PER_RADIAN: f64 = 180.0 / std::f64::consts::PI;

impl std::fmt::Display for Qmn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}Q{}.{}{}",
            if self.signed { "s" } else { "u" },
            self.int_bits,
            self.frac_bits,
            if self.in_degrees { " in degrees" } else { "" }
        )
    }
}

/// What is done to each sample that is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conversion {
    /// `(float)raw`.
    CastF32,
    /// `(float)((double)raw * factor + offset)`.
    ScaleF32 {
        /// Multiplier.
        factor: f64,
        /// Added after the multiplication.
        offset: f64,
    },
    /// The same in f32 throughout; see [`oracle::fast_scale_error`] for what that costs.
    FastScaleF32 {
        /// Multiplier, rounded to f32.
        factor: f32,
        /// Offset, rounded to f32.
        offset: f32,
    },
    /// Q-format to f32 (exact).
    QmnF32(Qmn),
    /// Q-format to f64 (exact).
    QmnF64(Qmn),
}

impl Conversion {
    /// Bytes of one converted sample.
    pub fn out_bytes(self) -> usize {
        if matches!(self, Conversion::QmnF64(_)) {
            8
        } else {
            4
        }
    }
}

/// Which samples are kept: every `factor`-th from `offset` on; `(n - offset) / factor` of them, as in the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimation {
    /// First sample kept.
    pub offset: usize,
    /// Distance between samples kept; at least 1.
    pub factor: usize,
}

impl Decimation {
    /// Every sample.
    pub const NONE: Decimation = Decimation {
        offset: 0,
        factor: 1,
    };

    /// Number of samples kept of `samples`.
    pub fn kept(self, samples: usize) -> usize {
        samples.saturating_sub(self.offset) / self.factor.max(1)
    }
}

/// Where converted samples go.
#[derive(Debug)]
pub enum Out<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Double precision.
    F64(&'a mut [f64]),
}

/// One conversion, bound to an instruction set that this CPU has.
#[derive(Clone, Debug, PartialEq)]
pub struct Converter {
    conversion: Conversion,
    decimation: Decimation,
    isa: Isa,
    store: Store,
    prepared: Prepared,
}

/// What a kernel works out once, before anything is timed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Prepared {
    #[cfg(target_arch = "x86_64")]
    picks: Option<x86_64::avx512::Picks>,
    /// Scaling in single precision, where all 65,536 codes have shown it to give the bits of the double arithmetic.
    #[cfg(target_arch = "x86_64")]
    product: Option<x86_64::avx512::Product>,
}

impl Converter {
    /// `None` when this CPU lacks the instruction set, or the decimation factor is zero.
    pub fn new(
        conversion: Conversion,
        decimation: Decimation,
        isa: Isa,
        store: Store,
    ) -> Option<Converter> {
        let runnable = isa.is_available() && decimation.factor > 0;
        let converter = Converter {
            conversion,
            decimation,
            isa,
            store,
            prepared: Prepared::default(),
        };
        runnable.then(|| converter.prepared())
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn prepared(self) -> Converter {
        self
    }

    #[cfg(target_arch = "x86_64")]
    fn prepared(mut self) -> Converter {
        if self.isa == Isa::Avx512 {
            self.prepared.picks = x86_64::avx512::Picks::new(self.decimation.factor);
            self.prepared.product = self.proven_product();
        }
        self
    }

    /// The single-precision product for a scaling without offset, if it equals the oracle for every code.
    #[cfg(target_arch = "x86_64")]
    fn proven_product(&self) -> Option<x86_64::avx512::Product> {
        let Conversion::ScaleF32 { factor, offset } = self.conversion else {
            return None;
        };
        // A negative zero as offset would change the sign of a zero product.
        if offset.to_bits() != 0 {
            return None;
        }
        let product = x86_64::avx512::Product::new(factor);
        let codes: Vec<u16> = (0..=u16::MAX).collect();
        let mut out = vec![0.0; codes.len()];
        let source = x86_64::avx512::Source {
            factor: 1,
            picks: None,
        };
        // SAFETY: only called for AVX-512 converters, for which `Converter::new` saw that this CPU has it.
        unsafe {
            x86_64::avx512::product_f32(product, factor, Store::Cached, source, &codes, &mut out)
        };
        let differs = oracle::first_difference(
            self.conversion,
            Decimation::NONE,
            &codes,
            &Out::F32(&mut out),
        );
        differs.is_none().then_some(product)
    }

    /// What it does to each sample.
    pub fn conversion(&self) -> Conversion {
        self.conversion
    }

    /// Which samples it keeps.
    pub fn decimation(&self) -> Decimation {
        self.decimation
    }

    /// The same for a slice that begins with the first sample to be kept.
    #[must_use]
    pub fn without_offset(&self) -> Converter {
        Converter {
            decimation: Decimation {
                offset: 0,
                ..self.decimation
            },
            ..self.clone()
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Converts `raw` into the first `decimation.kept(raw.len())` places of `out`.
    ///
    /// # Panics
    /// When `out` is too short or not of the conversion's type: both are the caller's mistakes, made once, before timing.
    pub fn convert(&self, raw: &[u16], out: Out<'_>) {
        let kept = self.decimation.kept(raw.len());
        let raw = raw.get(self.decimation.offset..).unwrap_or(&[]);
        match out {
            Out::F32(out) => self.convert_f32(raw, &mut out[..kept]),
            Out::F64(out) => self.convert_f64(raw, &mut out[..kept]),
        }
    }

    fn convert_f32(&self, raw: &[u16], out: &mut [f32]) {
        let factor = self.decimation.factor;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                let source = x86_64::avx512::Source {
                    factor,
                    picks: self.prepared.picks.as_ref(),
                };
                match (self.prepared.product, self.conversion) {
                    // SAFETY: `Converter::new` saw that this CPU has the instruction set.
                    (Some(product), Conversion::ScaleF32 { factor, .. }) => unsafe {
                        x86_64::avx512::product_f32(product, factor, self.store, source, raw, out);
                    },
                    // SAFETY: as above.
                    (_, conversion) => unsafe {
                        x86_64::avx512::to_f32(conversion, self.store, source, raw, out)
                    },
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe {
                x86_64::avx2::to_f32(self.conversion, self.store, factor, raw, out)
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { neon::to_f32(self.conversion, factor, raw, out) },
            _ => portable::to_f32(self.conversion, factor, raw, out),
        }
    }

    fn convert_f64(&self, raw: &[u16], out: &mut [f64]) {
        let Conversion::QmnF64(qmn) = self.conversion else {
            panic!("only QmnF64 writes f64")
        };
        let factor = self.decimation.factor;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Converter::new` saw that this CPU has the instruction set.
            Isa::Avx512 => unsafe {
                let source = x86_64::avx512::Source {
                    factor,
                    picks: self.prepared.picks.as_ref(),
                };
                x86_64::avx512::to_f64(qmn, self.store, source, raw, out);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { x86_64::avx2::to_f64(qmn, self.store, factor, raw, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { neon::to_f64(qmn, factor, raw, out) },
            _ => portable::to_f64(qmn, factor, raw, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conversions() -> Vec<Conversion> {
        let qmn = |m, n, signed| Qmn::new(m, n, signed).unwrap();
        let mut all = vec![
            Conversion::CastF32,
            Conversion::ScaleF32 {
                factor: 1.0,
                offset: 0.0,
            },
            Conversion::ScaleF32 {
                factor: 0.1,
                offset: -3.7,
            },
            Conversion::ScaleF32 {
                factor: 0.1,
                offset: 0.0,
            },
            Conversion::ScaleF32 {
                factor: -std::f64::consts::PI,
                offset: 0.0,
            },
            Conversion::ScaleF32 {
                factor: 1e-40,
                offset: 0.0,
            },
            Conversion::ScaleF32 {
                factor: 2.0,
                offset: -0.0,
            },
            Conversion::ScaleF32 {
                factor: 1e300,
                offset: 1e-300,
            },
            Conversion::FastScaleF32 {
                factor: 0.1,
                offset: -3.7,
            },
        ];
        for q in [
            Qmn::MAGNITUDE,
            Qmn::PHASE,
            qmn(1, 0, true),
            qmn(0, 12, true),
            qmn(4, 8, false),
            qmn(16, 0, true),
            qmn(20, 43, true),
        ] {
            all.extend([Conversion::QmnF32(q), Conversion::QmnF64(q)]);
        }
        all.push(Conversion::QmnF64(Qmn::PHASE.in_degrees()));
        all
    }

    /// Converts with the kernel into a buffer that starts `misalign` samples off a cache line, with canaries behind it.
    fn run(converter: &Converter, raw: &[u16], misalign: usize) -> Vec<u64> {
        let kept = converter.decimation().kept(raw.len());
        let places = kept + misalign + 8;
        if converter.conversion().out_bytes() == 4 {
            let mut out = vec![f32::from_bits(0xDEAD_BEEF); places];
            converter.convert(raw, Out::F32(&mut out[misalign..misalign + kept]));
            let canary = |x: &f32| x.to_bits() == 0xDEAD_BEEF;
            assert!(
                out[..misalign].iter().all(canary) && out[misalign + kept..].iter().all(canary)
            );
            out[misalign..misalign + kept]
                .iter()
                .map(|x| u64::from(x.to_bits()))
                .collect()
        } else {
            let mut out = vec![f64::from_bits(0xDEAD_BEEF); places];
            converter.convert(raw, Out::F64(&mut out[misalign..misalign + kept]));
            let canary = |x: &f64| x.to_bits() == 0xDEAD_BEEF;
            assert!(
                out[..misalign].iter().all(canary) && out[misalign + kept..].iter().all(canary)
            );
            out[misalign..misalign + kept]
                .iter()
                .map(|x| x.to_bits())
                .collect()
        }
    }

    fn check(conversion: Conversion, decimation: Decimation, raw: &[u16], misalign: usize) {
        let expected: Vec<u64> = oracle::bits(conversion, decimation, raw).collect();
        for isa in Isa::available() {
            for store in [Store::Cached, Store::NonTemporal] {
                let converter = Converter::new(conversion, decimation, isa, store).unwrap();
                let found = run(&converter, raw, misalign);
                assert!(
                    found == expected,
                    "{conversion:?} {decimation:?} {isa:?} {store:?} n={}",
                    raw.len()
                );
            }
        }
    }

    #[test]
    fn every_variant_equals_the_oracle_over_all_65536_codes() {
        let codes: Vec<u16> = (0..=u16::MAX).collect();
        for conversion in conversions() {
            for factor in [1, 2, 3, 10, 31, 32, 33] {
                check(conversion, Decimation { offset: 0, factor }, &codes, 0);
            }
        }
    }

    #[test]
    fn decimation_keeps_what_the_original_keeps() {
        let kept = |n, offset, factor| Decimation { offset, factor }.kept(n);
        assert_eq!(
            (
                kept(100, 0, 1),
                kept(100, 0, 10),
                kept(100, 1, 10),
                kept(5, 9, 2)
            ),
            (100, 10, 9, 0)
        );
    }

    #[test]
    fn a_format_without_bits_or_with_too_many_is_refused() {
        assert_eq!(Qmn::new(0, 0, true), None);
        assert_eq!(Qmn::new(32, 32, true), None);
        assert_eq!(Qmn::new(u32::MAX, 1, true), None);
        assert_eq!(Qmn::PHASE.to_string(), "sQ3.13");
        assert_eq!(Qmn::PHASE.in_degrees().to_string(), "sQ3.13 in degrees");
    }

    #[test]
    fn a_set_that_this_cpu_lacks_is_refused() {
        for isa in Isa::ALL {
            let made = Converter::new(Conversion::CastF32, Decimation::NONE, isa, Store::Cached);
            assert_eq!(made.is_some(), isa.is_available());
        }
        let zero = Decimation {
            offset: 0,
            factor: 0,
        };
        assert_eq!(
            Converter::new(Conversion::CastF32, zero, Isa::Portable, Store::Cached),
            None
        );
    }

    proptest! {
        #[test]
        fn every_variant_equals_the_oracle_for_any_length_and_alignment(
            raw in proptest::collection::vec(any::<u16>(), 0..300),
            which in 0..23_usize, offset in 0..20_usize, factor in 1..70_usize, misalign in 0..17_usize,
        ) {
            check(conversions()[which], Decimation { offset, factor }, &raw, misalign);
        }
    }
}
