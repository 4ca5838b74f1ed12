//! TCP without the copy into the kernel: `MSG_ZEROCOPY`
//! (Documentation/networking/msg_zerocopy.rst). The kernel reads the pages of a send until it
//! reports its end in the socket's error queue. It holds these pages, so freed memory is no danger,
//! but later changes of the bytes may be sent.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::net::{Readiness, wait_ready};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sends {
    begun: u64,
    done: u64,
    copied: u64,
    /// Completions that came before those of earlier sends: the first send, and the one behind the
    /// last.
    ahead: BTreeMap<u64, u64>,
}

/// Room for the control message: a header, `sock_extended_err`, and the address that may follow it.
#[repr(C, align(8))]
struct Control([u8; 128]);

const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Lets a stream send without a copy.
///
/// # Errors
/// `setsockopt(2)` fails before Linux 4.14, and for other kinds of socket.
pub fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::net::set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

impl Sends {
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Counts the sends from the first on whose bytes the kernel reads no more.
    pub fn done(&self) -> u64 {
        self.done
    }

    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Sends the bytes, which must not change until all sends begun so far are done.
    ///
    /// # Errors
    /// Those of `send(2)`, and of waiting up to `patience` for earlier sends when too many are not
    /// done (`net.core.optmem_max`).
    pub fn send_all(
        &mut self,
        socket: BorrowedFd<'_>,
        mut bytes: &[u8],
        patience: Duration,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(socket, bytes) {
                Ok(sent) => {
                    self.begun += 1;
                    bytes = &bytes[sent..];
                }
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOBUFS) && self.done < self.begun =>
                {
                    self.wait(socket, self.done + 1, patience)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the completions in the error queue.
    ///
    /// # Errors
    /// Other entries of the error queue, and those of `recvmsg(2)`.
    pub fn reap(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while let Some((first, last, is_copied)) = completion(socket)? {
            self.book(first, last, is_copied);
        }
        Ok(())
    }

    /// Books a range of sends, both ends included. Numbers wrap after 2^32, and ranges may come in
    /// another order than the sends.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the kernel's numbers are the low 32 bits of ours"
    )]
    fn book(&mut self, first: u32, last: u32, is_copied: bool) {
        let from = self.done + u64::from(first.wrapping_sub(self.done as u32));
        let sends = u64::from(last.wrapping_sub(first)) + 1;
        self.copied += if is_copied { sends } else { 0 };
        self.ahead.insert(from, from + sends);
        while let Some(end) = self.ahead.remove(&self.done) {
            self.done = end;
        }
    }

    pub fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        done: u64,
        patience: Duration,
    ) -> io::Result<()> {
        self.reap(socket)?;
        while self.done < done {
            let before = (self.done, self.ahead.len());
            // `POLLERR` announces the error queue and needs no request.
            let ready = wait_ready(socket, Readiness::default(), Some(patience))?;
            if ready == Readiness::default() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.reap(socket)?;
            // `POLLERR` also announces the end of the connection, each time again.
            if (self.done, self.ahead.len()) == before {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(())
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length are those of `bytes`. The kernel takes a reference of each page
    // before it returns and only reads them afterwards, so that no memory is read that somebody
    // else owns by then.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Reads the next entry of the error queue: first and last send, and a flag for copied bytes.
fn completion(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, u32, bool)>> {
    let mut control = Control([0; 128]);
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = crate::control_length(control.0.len());
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the control buffer has the stated length and outlives the call; there is no other
    // pointer.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: the kernel filled the control buffer and its length; CMSG_* stay within that.
    let error = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned()
    };
    if error.ee_origin != ORIGIN_ZEROCOPY {
        return Err(io::Error::from_raw_os_error(error.ee_errno.cast_signed()));
    }
    let is_copied = error.ee_code & CODE_COPIED != 0;
    Ok(Some((error.ee_info, error.ee_data, is_copied)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_send_without_a_copy_is_done_once_and_loopback_copies_it_after_all() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut inward, _) = listener.accept().unwrap();
        enable(out.as_fd()).unwrap();
        let bytes = vec![7; 100_000];
        let mut sends = Sends::default();
        let patience = Duration::from_secs(10);
        let reads = std::thread::spawn(move || {
            let mut back = vec![0; 100_000];
            inward.read_exact(&mut back).map(|()| back)
        });
        sends.send_all(out.as_fd(), &bytes, patience).unwrap();
        let begun = sends.begun();
        sends.wait(out.as_fd(), begun, patience).unwrap();
        assert_eq!((sends.done(), sends.copied()), (begun, begun));
        assert_eq!(reads.join().unwrap().unwrap(), bytes);
        sends.reap(out.as_fd()).unwrap();
        assert_eq!(sends.done(), begun);
    }

    #[test]
    fn a_send_is_done_when_all_before_it_are_in_whatever_order_the_kernel_says_so() {
        let start = u64::from(u32::MAX) - 1;
        let mut sends = Sends { begun: start + 6, done: start, ..Sends::default() };
        let mut seen = Vec::new();
        let (a, b) = (u32::MAX - 1, u32::MAX);
        for (first, last, is_copied) in [(b, 0, true), (2, 2, false), (a, a, false), (1, 1, true)] {
            sends.book(first, last, is_copied);
            seen.push(sends.done() - start);
        }
        assert_eq!((seen, sends.copied()), (vec![0, 0, 3, 5], 3));
    }

    #[test]
    fn a_wait_for_a_connection_that_is_gone_ends() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let mut sends = Sends::default();
        let soon = Duration::from_millis(1);
        assert!(sends.wait(out.as_fd(), 1, soon).is_err());
        out.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(sends.wait(out.as_fd(), 1, Duration::from_secs(10)).is_err());
    }
}
