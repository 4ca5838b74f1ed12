//! Comparison of converted samples with the scalar oracle, and memory for conversions.

use daqmeter_harness::Fault;
use daqmeter_kernels::convert::{Conversion, Converter, Out, oracle};
use daqmeter_sys::memory::Buffer;

/// Elements from one on, for the results of samples.
fn elements<'a>(converter: &Converter, raw: &[u16], out: &'a mut Buffer, at: usize) -> Out<'a> {
    let kept = converter.decimation().kept(raw.len());
    match converter.conversion() {
        Conversion::QmnF64(_) => Out::F64(&mut out.slice_mut::<f64>(at + kept)[at..]),
        _ => Out::F32(&mut out.slice_mut::<f32>(at + kept)[at..]),
    }
}

/// Converts samples into a buffer, which must hold them, from an element on; returns the number of
/// elements written.
pub fn convert(converter: &Converter, raw: &[u16], out: &mut Buffer, at: usize) -> usize {
    converter.convert(raw, elements(converter, raw, out, at));
    converter.decimation().kept(raw.len())
}

/// Compares what samples were converted to.
pub(crate) fn differs(
    converter: &Converter,
    raw: &[u16],
    out: &mut Buffer,
    at: usize,
) -> Result<(), Fault> {
    let (conversion, decimation) = (converter.conversion(), converter.decimation());
    match oracle::first_difference(conversion, decimation, raw, &elements(converter, raw, out, at))
    {
        None => Ok(()),
        Some((index, found, expected)) => Err(Fault::new(format!(
            "converted sample {index} has bits {found:#x}, the oracle says {expected:#x}"
        ))),
    }
}
