//! Descriptors of other processes: passed over a Unix socket (`SCM_RIGHTS`, unix(7)), or copied.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Copies a descriptor of a process.
///
/// # Errors
/// The right to trace the process is missing, or Linux is older than 5.6.
pub fn copied(pid: u32, fd: u64) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    pidfd_getfd(process, fd, PidfdGetfdFlags::empty())
}

pub const MAX: usize = 64;
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX));

/// Sends bytes and descriptors in one message, which the other side must receive in one call.
///
/// # Errors
/// Those of `sendmsg(2)`; too many descriptors, or no byte to carry them.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
    if bytes.is_empty() || !fits || fds.len() > MAX {
        let why = "1 to 64 descriptors, with at least a byte";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::WriteZero, "the socket took only a part")),
    }
}

pub fn receive(socket: &UnixStream, room: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(room)];
    let got = recvmsg(socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((got.bytes, fds.flatten().collect()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_pipe_s_ends_arrive_and_work() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut read, write) = io::pipe().unwrap();
        send(&here, b"two", &[write.as_fd(), here.as_fd()]).unwrap();
        drop(write);
        let mut room = [0; 16];
        let (got, mut fds) = receive(&there, &mut room).unwrap();
        assert_eq!((&room[..got], fds.len()), (&b"two"[..], 2));
        let mut write = std::fs::File::from(fds.remove(0));
        write.write_all(b"through").unwrap();
        drop(write);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn bytes_alone_arrive_too_and_descriptors_alone_do_not() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, b"x", &[]).unwrap();
        assert_eq!(receive(&there, &mut [0; 4]).unwrap().1.len(), 0);
        assert!(send(&here, b"", &[here.as_fd()]).is_err());
    }
}
