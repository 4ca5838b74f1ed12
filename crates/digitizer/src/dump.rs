//! Samples or converted numbers as a file: NumPy's format for names in `.npy`, else the numbers
//! alone, little-endian. Channels follow one another; in `.npy` each is a row.

use std::io::{self, Write};
use std::path::Path;

use daqmeter_harness::Fault;
use daqmeter_kernels::convert::Out;
use daqmeter_record::file::Replacement;

pub(crate) enum Column<'a> {
    Raw(&'a [u16]),
    Converted(Out<'a>),
}

impl Column<'_> {
    fn shape(&self) -> (&'static str, usize) {
        match self {
            Column::Raw(samples) => ("<u2", samples.len()),
            Column::Converted(Out::F32(values)) => ("<f4", values.len()),
            Column::Converted(Out::F64(values)) => ("<f8", values.len()),
        }
    }

    fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Column::Raw(samples) => {
                samples.iter().try_for_each(|sample| out.write_all(&sample.to_le_bytes()))
            }
            Column::Converted(Out::F32(values)) => {
                values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
            }
            Column::Converted(Out::F64(values)) => {
                values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
            }
        }
    }
}

/// Makes the header of version 1.0 (numpy.lib.format): magic, version, length, and text, padded to
/// 64 bytes in all.
fn npy_header(descr: &str, len: usize, rows: usize) -> Vec<u8> {
    const FIXED_BYTES: usize = 10;
    let shape = match rows {
        1 => format!("{len},"),
        rows => format!("{rows}, {}", len / rows),
    };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let end = (FIXED_BYTES + header.len() + 1).next_multiple_of(64) - FIXED_BYTES;
    header = format!("{header:<width$}\n", width = end - 1);
    let length = u16::try_from(header.len()).expect("some 118 bytes");
    let mut all = b"\x93NUMPY\x01\x00".to_vec();
    all.extend(length.to_le_bytes());
    all.extend(header.as_bytes());
    all
}

/// Replaces the file. The column holds `rows` successive channels of equal length.
pub(crate) fn write(path: &str, column: &Column<'_>, rows: usize) -> Result<(), Fault> {
    let is_npy = Path::new(path).extension().is_some_and(|end| end == "npy");
    let (descr, len) = column.shape();
    let written = || {
        let mut out = Replacement::begin(Path::new(path))?;
        if is_npy {
            out.write_all(&npy_header(descr, len, rows))?;
        }
        column.write_to(&mut out)?;
        out.commit()
    };
    written().map_err(|error: io::Error| Fault::new(format!("{path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numpy_file_has_its_shape_in_a_header_of_whole_64_bytes() {
        let header = npy_header("<f4", 3_000_000, 1);
        assert!(header.len().is_multiple_of(64) && header.ends_with(b"\n"));
        let text = String::from_utf8_lossy(&header[10..]);
        assert_eq!(
            text.trim_end(),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3000000,), }"
        );
        assert_eq!(usize::from(header[8]) + 10, header.len());
        let channels = npy_header("<u2", 300_160, 10);
        assert!(String::from_utf8_lossy(&channels).contains("'shape': (10, 30016), "));
    }
}
