//! The source document's arithmetic, one sample at a time, with its divisions and comparisons in
//! doubles. Tests compare every kernel with it to the bit.

use super::{Conversion, Decimation, Out, Qmn};

/// Converts one sample by the document's Q-format rule: fold above `2^(m+n)/2 - 1`, then divide by
/// `2^n`. Degrees follow if requested.
pub fn qmn(raw: u16, format: Qmn) -> f64 {
    let full = (1_u64 << (format.int_bits + format.frac_bits)) as f64;
    let mut value = f64::from(raw);
    if format.signed && value > full / 2.0 - 1.0 {
        value -= full;
    }
    value / (1_u64 << format.frac_bits) as f64 * format.unit()
}

#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what the conversion is")]
pub(crate) fn to_f32(raw: u16, conversion: Conversion) -> Option<f32> {
    Some(match conversion {
        Conversion::CastF32 => f32::from(raw),
        Conversion::ScaleF32 { factor, offset } => (f64::from(raw) * factor + offset) as f32,
        Conversion::QmnF32(format) => qmn(raw, format) as f32,
        Conversion::QmnF64(_) => return None,
    })
}

/// Converts all kept samples to bits (f32 bits in the lower half), so that NaN and signed zero
/// compare too.
pub fn bits(
    conversion: Conversion,
    decimation: Decimation,
    raw: &[u16],
) -> impl ExactSizeIterator<Item = u64> {
    (0..decimation.kept(raw.len())).map(move |j| {
        let sample = raw[j * decimation.factor + decimation.offset];
        match conversion {
            Conversion::QmnF64(format) => qmn(sample, format).to_bits(),
            other => u64::from(to_f32(sample, other).expect("QmnF64 is handled above").to_bits()),
        }
    })
}

/// Finds the first sample that differs from the oracle: its index, the bits found, and those
/// expected.
pub fn first_difference(
    conversion: Conversion,
    decimation: Decimation,
    raw: &[u16],
    found: &Out<'_>,
) -> Option<(usize, u64, u64)> {
    let found = |index: usize| match found {
        Out::F32(out) => u64::from(out[index].to_bits()),
        Out::F64(out) => out[index].to_bits(),
    };
    let mut expected = bits(conversion, decimation, raw).enumerate();
    expected
        .find(|&(index, expected)| found(index) != expected)
        .map(|(index, expected)| (index, found(index), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_two_formats_give_known_values() {
        for (raw, expected) in
            [(0, 0.0), (0x4000, 0.5), (0x8000, 1.0), (0xFFFF, 65_535.0 / 32_768.0)]
        {
            assert_eq!(qmn(raw, Qmn::MAGNITUDE), expected);
        }
        for (raw, expected) in
            [(0x2000, 1.0), (0x7FFF, 32_767.0 / 8192.0), (0x8000, -4.0), (0xFFFF, -1.0 / 8192.0)]
        {
            assert_eq!(qmn(raw, Qmn::PHASE), expected);
        }
    }
}
