//! Descriptors passed between processes over a Unix socket (`SCM_RIGHTS`, unix(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors in one message.
pub const MOST: usize = 64;

/// Room for the control message, aligned as its header must be.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 512]);

fn space(count: usize) -> usize {
    let bytes = u32::try_from(count * size_of::<libc::c_int>()).expect("at most 64 descriptors");
    // SAFETY: arithmetic only.
    unsafe { libc::CMSG_SPACE(bytes) as usize }
}

/// Sends bytes and with them the descriptors. The other side must ask for them in one go.
///
/// # Errors
/// When the socket fails, or there are too many descriptors or no byte to send them with.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MOST || bytes.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "1 to 64 descriptors, with at least a byte",
        ));
    }
    let numbers: Vec<libc::c_int> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut control = Control([MaybeUninit::zeroed(); 512]);
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    if !numbers.is_empty() {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = crate::control_length(space(numbers.len()));
        // SAFETY: the control room is aligned and holds a header and 64 numbers (`space(64)` is below 512 bytes).
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            let length = u32::try_from(size_of_val(&numbers[..])).expect("at most 256 bytes");
            (*header).cmsg_len = crate::control_length(libc::CMSG_LEN(length) as usize);
            std::ptr::copy_nonoverlapping(
                numbers.as_ptr(),
                libc::CMSG_DATA(header).cast(),
                numbers.len(),
            );
        }
    }
    // SAFETY: message, vector and control are valid for the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "the socket took only a part")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives up to `room` bytes and the descriptors that came with them.
///
/// # Errors
/// When the socket fails.
pub fn receive(socket: &UnixStream, room: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([MaybeUninit::zeroed(); 512]);
    let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = crate::control_length(space(MOST));
    // SAFETY: message, vector and control are valid for the call.
    let got =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control room, whose headers the CMSG functions walk within `msg_controllen`; descriptors in it
    // are new and owned by nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - crate::control_length(libc::CMSG_LEN(0) as usize);
                let count = bytes / crate::control_length(size_of::<libc::c_int>());
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                for at in 0..count as usize {
                    fds.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((got, fds))
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
