//! Files that a plan or an option names.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use daqmeter_sys::host::open_regular;

/// Longest text of a file that is written by hand: plans, profiles and bridges are a few kilobytes.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Returns the text of a regular file of at most `max_bytes`. Devices, pipes and folders are
/// refused before a read, so that a name in a plan cannot hang it or take all memory.
pub fn text_file(path: &Path, max_bytes: u64) -> io::Result<String> {
    text_of(open_regular(path)?, max_bytes)
}

/// Returns the text of a file of the command line, which may be a pipe; at most `max_bytes`.
pub fn text_input(path: &Path, max_bytes: u64) -> io::Result<String> {
    text_of(File::open(path)?, max_bytes)
}

fn text_of(file: File, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = file.take(max_bytes + 1).read_to_string(&mut text)?;
    if read as u64 > max_bytes {
        return Err(invalid(format!("longer than {max_bytes} bytes")));
    }
    Ok(text)
}

/// Longest line of [`next_line`]: rows of tables have a few hundred bytes.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// Reads a line of a stream into `line`, without its end; false at the end of the stream.
///
/// # Errors
/// Refuses a line longer than 64 KiB.
pub fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = source.take(MAX_LINE_BYTES + 1).read_until(b'\n', line)?;
    if read as u64 > MAX_LINE_BYTES {
        return Err(invalid(format!("a line longer than {MAX_LINE_BYTES} bytes")));
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(read > 0)
}

fn invalid(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_bound() {
        let mut line = Vec::new();
        let mut source = "a\n\nb".as_bytes();
        for expected in ["a", "", "b"] {
            assert!(next_line(&mut source, &mut line).unwrap());
            assert_eq!(line, expected.as_bytes());
        }
        assert!(!next_line(&mut source, &mut line).unwrap());
        let error = next_line(&mut io::BufReader::new(io::repeat(0)), &mut line).unwrap_err();
        assert!(error.to_string().contains("a line longer than 65536 bytes"));
    }

    #[test]
    fn a_short_regular_file_is_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, "x = 1").unwrap();
        assert_eq!(text_file(&path, MAX_TEXT_BYTES).unwrap(), "x = 1");
        std::fs::write(&path, " ".repeat((1 << 20) + 1)).unwrap();
        assert!(text_file(&path, MAX_TEXT_BYTES).unwrap_err().to_string().contains("longer than"));
        for other in ["/dev/zero", "/dev/null", "/"] {
            assert!(
                text_file(other.as_ref(), MAX_TEXT_BYTES)
                    .unwrap_err()
                    .to_string()
                    .contains("not a regular file"),
                "{other}"
            );
        }
        assert!(
            text_input("/dev/zero".as_ref(), MAX_TEXT_BYTES)
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
        assert_eq!(
            text_file(&folder.path().join("none"), MAX_TEXT_BYTES).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
