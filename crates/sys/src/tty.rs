//! Terminals as plain byte pipes: serial ports, and pairs of pseudo-terminals in their place.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{self, OptionalActions};

use crate::{SysError, failed};

/// Puts a terminal into raw mode: no echo, no line editing, no translation. Does nothing to other
/// files.
pub fn make_raw(fd: BorrowedFd<'_>) -> Result<(), SysError> {
    if !termios::isatty(fd) {
        return Ok(());
    }
    let mut attributes = termios::tcgetattr(fd).map_err(failed("tcgetattr"))?;
    attributes.make_raw();
    termios::tcsetattr(fd, OptionalActions::Now, &attributes).map_err(failed("tcsetattr"))
}

pub fn columns(fd: BorrowedFd<'_>) -> Option<usize> {
    let columns = termios::tcgetwinsize(fd).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), SysError> {
    rustix::io::ioctl_fionbio(fd, true).map_err(failed("set O_NONBLOCK"))
}

/// One end of a pseudo-terminal, raw and non-blocking, and the path of the other end for a client.
#[derive(Debug)]
pub struct Pty {
    pub master: File,
    /// Keeps the line open after a client leaves.
    _other: OwnedFd,
    pub path: String,
}

pub fn open_pty() -> Result<Pty, SysError> {
    let open = || {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let path = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let other = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok::<_, rustix::io::Errno>((master, other, path.to_string_lossy().into_owned()))
    };
    let (master, other, path) = open().map_err(failed("open a pseudo-terminal"))?;
    make_raw(other.as_fd())?;
    set_nonblocking(master.as_fd())?;
    Ok(Pty { master: master.into(), _other: other, path })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_cross_a_raw_pair_unchanged() {
        let mut pty = open_pty().unwrap();
        let mut other = std::fs::OpenOptions::new().read(true).write(true).open(&pty.path).unwrap();
        make_raw(other.as_fd()).unwrap();
        let bytes = [0x4e, 0x6f, 0x11, 0xff, 0, 3, b'\n', b'\r'];
        other.write_all(&bytes).unwrap();
        let mut found = [0; 8];
        pty.master.read_exact(&mut found).unwrap();
        assert_eq!(found, bytes);
        pty.master.write_all(&bytes).unwrap();
        other.read_exact(&mut found).unwrap();
        assert_eq!(found, bytes);
    }

    #[test]
    fn what_is_not_a_terminal_is_left_alone() {
        make_raw(File::open("/dev/null").unwrap().as_fd()).unwrap();
    }
}
