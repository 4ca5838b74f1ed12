//! Terminals as plain byte pipes: serial ports, and pairs of pseudo-terminals that stand for them.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::SysError;

/// Puts a terminal into raw mode: no echo, no line editing, no translation. Does nothing to what is not a terminal.
///
/// # Errors
/// When the terminal refuses.
pub fn make_raw(fd: BorrowedFd<'_>) -> Result<(), SysError> {
    // SAFETY: takes no pointers.
    if unsafe { libc::isatty(fd.as_raw_fd()) } != 1 {
        return Ok(());
    }
    // SAFETY: an all-zero termios is only written to by tcgetattr; all pointers are valid.
    let done = unsafe {
        let mut attributes: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(fd.as_raw_fd(), &raw mut attributes) != 0 {
            return Err(SysError::last("tcgetattr"));
        }
        libc::cfmakeraw(&raw mut attributes);
        libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, &raw const attributes)
    };
    if done == 0 { Ok(()) } else { Err(SysError::last("tcsetattr")) }
}

/// Columns of a terminal's window; none where it is not a terminal, or does not know.
pub fn columns(fd: BorrowedFd<'_>) -> Option<usize> {
    // SAFETY: an all-zero winsize is valid, and only written to; TIOCGWINSZ fails on what is not a terminal.
    let (done, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let done = libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size);
        (done, size)
    };
    (done == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Sets `O_NONBLOCK`.
///
/// # Errors
/// When the descriptor refuses.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), SysError> {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: takes no pointers.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if flags >= 0 && done >= 0 { Ok(()) } else { Err(SysError::last("fcntl(O_NONBLOCK)")) }
}

/// One end of a pseudo-terminal, raw and non-blocking, and the path of the other, which a client opens.
#[derive(Debug)]
pub struct Pty {
    /// Our end.
    pub master: File,
    /// The other end, kept open so that a client that leaves does not end the line.
    _other: OwnedFd,
    /// `/dev/pts/N`.
    pub path: String,
}

/// Makes a pair.
///
/// # Errors
/// When there are no pseudo-terminals.
pub fn open_pty() -> Result<Pty, SysError> {
    let (mut master, mut other) = (-1, -1);
    let mut name = [0 as libc::c_char; 128];
    // SAFETY: two descriptors and a name buffer longer than any /dev/pts path; default attributes and size.
    let done = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut other,
            name.as_mut_ptr(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    if done != 0 {
        return Err(SysError::last("openpty"));
    }
    // SAFETY: openpty just gave us both descriptors; nobody else owns them.
    let (master, other) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(other)) };
    // SAFETY: openpty ended the name with a zero.
    let path = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    make_raw(other.as_fd())?;
    set_nonblocking(master.as_fd())?;
    Ok(Pty { master, _other: other, path })
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
