//! Digitizer samples to floating point.
//!
//! The arithmetic is that of `sis8300drv_threads` to the bit. It has the cast `(float)raw`, and the
//! scale `(float)((double)raw * F + O)` with two roundings (no fused multiply-add). Q-format is `v
//! / 2^n` after the two's complement fold. The division is done as a multiplication by the inverse,
//! which is exact and three times as fast in scalar code (reference, section 3.2). The original
//! stored doubles at a 4-byte stride; ours are 8 bytes wide (METHODOLOGY.md, "Defects not copied").

pub mod oracle;
mod portable;
mod scaling;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use crate::{Isa, Store};
use scaling::Scaling;

/// Fixed-point format of a raw code: m integer bits, n fraction bits, signed (two's complement) or
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qmn {
    int_bits: u32,
    frac_bits: u32,
    signed: bool,
    in_degrees: bool,
}

impl Qmn {
    /// Q1.15 unsigned: the magnitude channel of the source document (functions 5 and 7).
    pub const MAGNITUDE: Qmn = Qmn { int_bits: 1, frac_bits: 15, signed: false, in_degrees: false };
    /// Q3.13 signed: the phase channel of the source document (functions 6 and 8).
    pub const PHASE: Qmn = Qmn { int_bits: 3, frac_bits: 13, signed: true, in_degrees: false };

    /// Makes a format; `None` unless `int_bits + frac_bits` is 1 to 63, as in the original's `0x1UL
    /// << (m + n)`.
    pub fn new(int_bits: u32, frac_bits: u32, signed: bool) -> Option<Qmn> {
        let bits = int_bits.checked_add(frac_bits)?;
        (1..=63).contains(&bits).then_some(Qmn { int_bits, frac_bits, signed, in_degrees: false })
    }

    /// Multiplies the value by 180/pi, as later revisions of the original do in function 6. Only
    /// f64 supports it, because f32 would round the weight of a bit.
    #[must_use]
    pub fn in_degrees(self) -> Qmn {
        Qmn { in_degrees: true, ..self }
    }

    /// Returns the first negative code. Raw codes have 16 bits, so longer formats never fold.
    pub(crate) fn fold_from(self) -> i32 {
        let bits = self.int_bits + self.frac_bits;
        if self.signed && bits <= 16 { 1 << (bits - 1) } else { i32::MAX }
    }

    pub(crate) fn fold_by(self) -> i32 {
        let bits = self.int_bits + self.frac_bits;
        if self.signed && bits <= 16 { 1 << bits } else { 0 }
    }

    /// Returns 2^-n, exact in f64 (and in f32, because n is at most 63). In degrees it is times
    /// 180/pi; scaling that by a power of two is exact.
    pub(crate) fn weight(self) -> f64 {
        (-f64::from(self.frac_bits)).exp2() * self.unit()
    }

    #[allow(clippy::cast_possible_truncation, reason = "2^-n is exact in f32 for n up to 63")]
    pub(crate) fn weight_f32(self) -> f32 {
        self.weight() as f32
    }

    pub(crate) fn unit(self) -> f64 {
        match self.in_degrees {
            true => DEGREES_PER_RADIAN,
            false => 1.0,
        }
    }
}

const DEGREES_PER_RADIAN: f64 = 180.0 / std::f64::consts::PI;

impl std::fmt::Display for Qmn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Qmn { int_bits, frac_bits, signed, in_degrees } = self;
        let sign = if *signed { "s" } else { "u" };
        let degrees = if *in_degrees { " in degrees" } else { "" };
        write!(f, "{sign}Q{int_bits}.{frac_bits}{degrees}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conversion {
    /// `(float)raw`.
    CastF32,
    /// `(float)((double)raw * factor + offset)`.
    ScaleF32 {
        factor: f64,
        /// Added after the multiplication.
        offset: f64,
    },
    /// Q-format to f32 (exact).
    QmnF32(Qmn),
    /// Q-format to f64 (exact).
    QmnF64(Qmn),
}

impl Conversion {
    pub fn out_bytes(self) -> usize {
        if matches!(self, Conversion::QmnF64(_)) { 8 } else { 4 }
    }
}

/// Keeps every `factor`-th sample from `offset` on: `(n - offset) / factor` samples, as in the
/// original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimation {
    pub offset: usize,
    pub factor: usize,
}

impl Decimation {
    pub const NONE: Decimation = Decimation { offset: 0, factor: 1 };

    pub fn kept(self, samples: usize) -> usize {
        samples.saturating_sub(self.offset) / self.factor.max(1)
    }
}

#[derive(Debug)]
pub enum Out<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Converter {
    conversion: Conversion,
    decimation: Decimation,
    isa: Isa,
    store: Store,
    prepared: Prepared,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Prepared {
    #[cfg(target_arch = "x86_64")]
    picks: Option<x86_64::avx512::Picks>,
    scaling: Scaling,
}

/// Results of one part of a trial. Cache-line alignment avoids a scalar head, whose codes would
/// escape the trial.
#[derive(Clone)]
#[repr(align(64))]
struct Part([f32; 4096]);

impl Converter {
    /// Returns `None` when this CPU lacks the instruction set, or the decimation factor is zero.
    ///
    /// Tries a scaling on all codes, in up to eight ways: 0.1 to 1 ms.
    pub fn new(
        conversion: Conversion,
        decimation: Decimation,
        isa: Isa,
        store: Store,
    ) -> Option<Converter> {
        let runnable = isa.is_available() && decimation.factor > 0;
        runnable.then(|| Converter {
            conversion,
            decimation,
            isa,
            store,
            prepared: Prepared {
                #[cfg(target_arch = "x86_64")]
                picks: (isa == Isa::Avx512)
                    .then(|| x86_64::avx512::Picks::new(decimation.factor))
                    .flatten(),
                scaling: fastest_exact(conversion, isa),
            },
        })
    }

    /// Names the arithmetic of a scaling; `None` for other conversions, which have only one.
    pub fn arithmetic(&self) -> Option<&'static str> {
        let is_scaling = matches!(self.conversion, Conversion::ScaleF32 { .. });
        is_scaling.then(|| self.prepared.scaling.name())
    }

    pub fn conversion(&self) -> Conversion {
        self.conversion
    }

    pub fn decimation(&self) -> Decimation {
        self.decimation
    }

    /// Drops the offset, for slices that begin with the first kept sample.
    #[must_use]
    pub fn without_offset(&self) -> Converter {
        Converter { decimation: Decimation { offset: 0, ..self.decimation }, ..self.clone() }
    }

    /// Converts `raw` into the first `decimation.kept(raw.len())` places of `out`.
    ///
    /// # Panics
    /// `out` is too short or not of the conversion's type.
    pub fn convert(&self, raw: &[u16], out: Out<'_>) {
        let kept = self.decimation.kept(raw.len());
        let raw = raw.get(self.decimation.offset..).unwrap_or(&[]);
        match out {
            Out::F32(out) => self.convert_f32(raw, &mut out[..kept]),
            Out::F64(out) => self.convert_f64(raw, &mut out[..kept]),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn samples<'a>(&'a self, raw: &'a [u16]) -> x86_64::Samples<'a> {
        let &Converter { conversion, store, decimation, ref prepared, .. } = self;
        let (factor, scaling) = (decimation.factor, prepared.scaling);
        let picks = prepared.picks.as_ref();
        x86_64::Samples { raw, factor, picks, conversion, scaling, store }
    }

    fn convert_f32(&self, raw: &[u16], out: &mut [f32]) {
        let factor = self.decimation.factor;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Converter::new` saw that this CPU has the instruction set.
            Isa::Avx512 => unsafe { x86_64::avx512::to_f32(self.samples(raw), out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { x86_64::avx2::to_f32(self.samples(raw), out) },
            _ => portable::to_f32(self.conversion, factor, raw, out),
        }
    }

    fn convert_f64(&self, raw: &[u16], out: &mut [f64]) {
        let Conversion::QmnF64(qmn) = self.conversion else { panic!("only QmnF64 writes f64") };
        let factor = self.decimation.factor;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Converter::new` saw that this CPU has the instruction set.
            Isa::Avx512 => unsafe { x86_64::avx512::to_f64(qmn, self.samples(raw), out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { x86_64::avx2::to_f64(qmn, self.samples(raw), out) },
            _ => portable::to_f64(qmn, factor, raw, out),
        }
    }
}

/// Returns the first arithmetic of the ladder that gives the oracle's bits; portable kernels have
/// only the oracle's.
fn fastest_exact(conversion: Conversion, isa: Isa) -> Scaling {
    let Conversion::ScaleF32 { factor, offset } = conversion else {
        return Scaling::default();
    };
    if !matches!(isa, Isa::Avx2 | Isa::Avx512) {
        return Scaling::default();
    }
    let mut ladder = Scaling::ladder(factor, offset);
    let exact = ladder.find(|&scaling| equals_the_oracle(conversion, isa, scaling));
    exact.unwrap_or_default()
}

/// Tries all codes part by part: most wrong ways fail in the first part.
fn equals_the_oracle(conversion: Conversion, isa: Isa, scaling: Scaling) -> bool {
    let trial = Converter {
        conversion,
        decimation: Decimation::NONE,
        isa,
        store: Store::Cached,
        prepared: Prepared { scaling, ..Prepared::default() },
    };
    let codes: Vec<u16> = (0..=u16::MAX).collect();
    let mut out = Box::new(Part([0.0; 4096]));
    codes.chunks(out.0.len()).all(|codes| {
        trial.convert_f32(codes, &mut out.0);
        let found = Out::F32(&mut out.0);
        oracle::first_difference(conversion, Decimation::NONE, codes, &found).is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Usual factors and offsets, those that fail single rungs of the ladder, and those that
    /// overflow or vanish.
    const SCALES: [(f64, f64); 16] = [
        (1.0, 0.0),
        (0.1, -3.7),
        (0.1, 0.0),
        (0.123, -45.6),
        (20.0 / 65_536.0, -10.0),
        (3.0518e-4, -10.0013),
        (-std::f64::consts::PI, 0.0),
        (1e-40, 0.0),
        (2.0, -0.0),
        (-2.0, -0.0),
        (-0.1, -0.0),
        (1e-6, 100.0),
        (0.1, 1_000_000_007.0),
        (0.0, 0.3),
        (1e300, 1e-300),
        (1e305, -1e305),
    ];

    fn conversions() -> Vec<Conversion> {
        let qmn = |m, n, signed| Qmn::new(m, n, signed).unwrap();
        let mut all = vec![Conversion::CastF32];
        all.extend(SCALES.map(|(factor, offset)| Conversion::ScaleF32 { factor, offset }));
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

    /// Converts into a buffer that starts `misalign` samples off a cache line, with canaries behind
    /// it.
    fn run(converter: &Converter, raw: &[u16], misalign: usize) -> Vec<u64> {
        let within = misalign..misalign + converter.decimation().kept(raw.len());
        let places = within.end + 8;
        let bits: Vec<u64> = if converter.conversion().out_bytes() == 4 {
            let mut out = vec![f32::from_bits(0xDEAD_BEEF); places];
            converter.convert(raw, Out::F32(&mut out[within.clone()]));
            out.iter().map(|x| u64::from(x.to_bits())).collect()
        } else {
            let mut out = vec![f64::from_bits(0xDEAD_BEEF); places];
            converter.convert(raw, Out::F64(&mut out[within.clone()]));
            out.iter().map(|x| x.to_bits()).collect()
        };
        let mut outside = bits[..misalign].iter().chain(&bits[within.end..]);
        assert!(outside.all(|bits| *bits == 0xDEAD_BEEF));
        bits[within].to_vec()
    }

    fn check(conversion: Conversion, decimation: Decimation, raw: &[u16], misalign: usize) {
        let expected: Vec<u64> = oracle::bits(conversion, decimation, raw).collect();
        let stores = [Store::Cached, Store::NonTemporal];
        for (isa, store) in Isa::available().flat_map(|isa| stores.map(|store| (isa, store))) {
            let converter = Converter::new(conversion, decimation, isa, store).unwrap();
            let (found, n) = (run(&converter, raw, misalign), raw.len());
            assert!(found == expected, "{conversion:?} {decimation:?} {isa:?} {store:?} n={n}");
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
            (kept(100, 0, 1), kept(100, 0, 10), kept(100, 1, 10), kept(5, 9, 2)),
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
        let zero = Decimation { offset: 0, factor: 0 };
        assert_eq!(Converter::new(Conversion::CastF32, zero, Isa::Portable, Store::Cached), None);
    }

    /// Makes calibrations like those of converters: full scale and offset in volts of 16-bit codes,
    /// with errors of gain and offset.
    fn usual(number: u32) -> (f64, f64) {
        let part = |salt: u32| {
            f64::from(number.wrapping_mul(2_654_435_761 ^ salt) >> 8) / f64::from(1 << 24)
        };
        let full_scale_v = [1.0, 2.0, 5.0, 10.0, 20.0][number as usize % 5];
        let factor = full_scale_v / 65_536.0 * (0.99 + 0.02 * part(1));
        let offset = [0.0, -full_scale_v / 2.0, full_scale_v * (part(2) - 0.5)];
        (factor, offset[number as usize / 5 % 3] + 1e-3 * part(4))
    }

    #[test]
    fn usual_calibrations_are_scaled_in_single_precision() {
        let arithmetic = |(factor, offset), isa| {
            let conversion = Conversion::ScaleF32 { factor, offset };
            let made = Converter::new(conversion, Decimation::NONE, isa, Store::Cached);
            made.unwrap().arithmetic().unwrap()
        };
        for isa in [Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available()) {
            let found = (0..200).map(|number| arithmetic(usual(number), isa));
            let single = found.filter(|found| *found == "f32-centred").count();
            assert!(single >= 195, "{isa:?} {single} of 200");
            assert_eq!(arithmetic((0.1, 1_000_000_007.0), isa), "f64-fused");
            assert_eq!(arithmetic((1e305, -1e305), isa), "f64");
        }
        assert_eq!(arithmetic((0.1, 0.0), Isa::Portable), "f64");
    }

    /// The first codes of a part off a cache line were not tried, and a zero of the wrong sign
    /// passed.
    #[test]
    fn a_trial_tries_the_first_codes_too() {
        let scale = Conversion::ScaleF32 { factor: -2.0, offset: -0.0 };
        check(scale, Decimation::NONE, &[0; 64], 0);
    }

    proptest! {
        #[test]
        fn a_scaling_equals_the_oracle_for_any_calibration(
            factor in prop_oneof![any::<f64>(), -1e3..1e3_f64, 1e-7..1e-2_f64],
            offset in prop_oneof![any::<f64>(), -1e3..1e3_f64, Just(0.0)],
        ) {
            let codes: Vec<u16> = (0..=u16::MAX).step_by(7).collect();
            check(Conversion::ScaleF32 { factor, offset }, Decimation::NONE, &codes, 3);
        }

        #[test]
        fn every_variant_equals_the_oracle_for_any_length_and_alignment(
            raw in proptest::collection::vec(any::<u16>(), 0..300),
            which in 0..conversions().len(), offset in 0..20_usize, factor in 1..70_usize, misalign in 0..17_usize,
        ) {
            check(conversions()[which], Decimation { offset, factor }, &raw, misalign);
        }
    }
}
