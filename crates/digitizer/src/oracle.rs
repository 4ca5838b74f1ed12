//! Comparison of converted samples with the scalar oracle, and memory for conversions.

use daqmeter_harness::Fault;
use daqmeter_kernels::convert::{Conversion, Converter, Out, oracle};
use daqmeter_sys::memory::Buffer;

pub(crate) fn elements<'a>(
    converter: &Converter,
    out: &'a mut Buffer,
    at: usize,
    kept: usize,
) -> Out<'a> {
    match converter.conversion() {
        Conversion::QmnF64(_) => Out::F64(&mut out.slice_mut::<f64>(at + kept)[at..]),
        _ => Out::F32(&mut out.slice_mut::<f32>(at + kept)[at..]),
    }
}

pub(crate) fn differs(
    converter: &Converter,
    raw: &[u16],
    converted: &Out<'_>,
) -> Result<(), Fault> {
    let (conversion, decimation) = (converter.conversion(), converter.decimation());
    match oracle::first_difference(conversion, decimation, raw, converted) {
        None => Ok(()),
        Some((index, found, expected)) => Err(Fault::new(format!(
            "converted sample {index} has bits {found:#x}, the oracle says {expected:#x}"
        ))),
    }
}
