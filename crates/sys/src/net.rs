//! Datagrams in batches, and waiting for many descriptors.
//!
//! Complements `socket2`, which makes and configures the sockets. A batch of equal datagrams
//! crosses the kernel as one buffer (`UDP_SEGMENT`, `UDP_GRO`;
//! Documentation/networking/segmentation-offloads.rst). The crate quinn-udp makes sockets
//! non-blocking and adds two control messages to each datagram, which slows a blocking round trip.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::host::Files;
use crate::{SysError, failed};

/// Limit of datagrams in one batch (`UDP_MAX_SEGMENTS`; newer kernels take 128).
pub const MAX_SEGMENTS: usize = 64;
/// Limit of bytes in one batch: an IPv4 datagram's 65,535 less the headers.
pub const MAX_BATCH_BYTES: usize = 65_507;

#[repr(C, align(8))]
struct Control([u8; 64]);

#[derive(Debug)]
pub struct ReceivedBatch {
    pub bytes: usize,
    /// Length of each datagram in bytes, except perhaps the last; equal to `bytes` for a single
    /// one.
    pub segment_bytes: usize,
    pub truncated: bool,
}

/// Lets the kernel deliver consecutive datagrams of one sender as one buffer. Returns false before
/// Linux 5.0.
pub fn enable_gro(socket: BorrowedFd<'_>) -> bool {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("4");
    let (fd, value) = (socket.as_raw_fd(), (&raw const on).cast());
    // SAFETY: the pointer is to an int that outlives the call, the length is its own.
    unsafe { libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_GRO, value, length) == 0 }
}

/// Returns the longest unfragmented packet on a connected socket's route, headers included, and
/// forbids fragmentation.
///
/// # Errors
/// Those of `setsockopt(2)` and `getsockopt(2)`; `ENOTCONN` for an unconnected socket.
pub fn route_mtu(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<usize> {
    let mtu = if is_ipv6 {
        sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO)?;
        sockopt::ipv6_mtu(socket)?
    } else {
        sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO)?;
        sockopt::ip_mtu(socket)?
    };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Silence after which a TCP connection has ended: longer than the usual retransmissions of a busy
/// host, shorter than a user waits.
pub const PEER_SILENT: Duration = Duration::from_secs(15);

/// Ends a TCP connection with `TimedOut` when its peer has been silent for [`PEER_SILENT`], as
/// after a pulled cable. Keepalive finds it on an idle connection only: bytes that are not
/// acknowledged stop it, and are repeated for about 15 minutes without `TCP_USER_TIMEOUT`
/// (tcp(7)).
pub fn keepalive(socket: &impl AsFd) -> io::Result<()> {
    let (time, interval) = (Duration::from_secs(5), Duration::from_secs(2));
    let probes = TcpKeepalive::new().with_time(time).with_interval(interval);
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(PEER_SILENT))
}

fn check_size(done: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Receives a datagram or a batch, and its sender. Without `wait`, an empty socket returns
/// `WouldBlock`.
pub fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: bool,
) -> io::Result<(ReceivedBatch, SockAddr)> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the closure fills the storage and its length by recvmsg, which the kernel does for
    // every datagram.
    let (received, from) = unsafe {
        SockAddr::try_init(|storage, length| {
            let received = receive_into(socket, buffer, flags, storage.cast(), *length)?;
            *length = received.1;
            Ok(received.0)
        })
    }?;
    Ok((received, from))
}

/// Receives a datagram or a batch on a connected socket.
///
/// # Errors
/// Those of `recvmsg(2)`; `WouldBlock` after the socket's receive timeout, or at once without
/// `wait`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: bool) -> io::Result<ReceivedBatch> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    receive_into(socket, buffer, flags, std::ptr::null_mut(), 0).map(|(received, _)| received)
}

fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: i32,
    name: *mut libc::c_void,
    name_bytes: libc::socklen_t,
) -> io::Result<(ReceivedBatch, libc::socklen_t)> {
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name;
    message.msg_namelen = name_bytes;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // 64 bytes fit `size_t` of glibc and the 32 bits of musl.
    message.msg_controllen = control.0.len() as _;
    // SAFETY: every pointer of `message` is to memory of the stated length that outlives the call.
    let bytes = check_size(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })?;
    let segment_bytes =
        segment_of(&message).filter(|&segment| segment > 0 && segment < bytes).unwrap_or(bytes);
    let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    Ok((ReceivedBatch { bytes, segment_bytes, truncated }, message.msg_namelen))
}

fn segment_of(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled the control buffer and its length; CMSG_* walk within that.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_UDP && control.cmsg_type == libc::UDP_GRO {
                let value: libc::c_int =
                    libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(value).ok();
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// Sends a datagram, or a batch of datagrams of `segment_bytes` each (the last may be shorter).
/// Without an address it goes to the socket's peer.
///
/// # Errors
/// Those of `sendmsg(2)`. `EINVAL` or `EIO` for a batch means that the path does not take batches.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    segment_bytes: usize,
    to: Option<&SockAddr>,
) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(to) = to {
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
    }
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    if segment_bytes < bytes.len() {
        let segment = u16::try_from(segment_bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the control buffer is aligned and has room for one message with a u16 (24 bytes
        // of 64).
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(2) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
        }
    }
    // SAFETY: every pointer of `message` is to memory of the stated length that outlives the call;
    // the kernel only reads.
    check_size(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// Sends on a stream without waiting.
///
/// # Errors
/// Those of `send(2)`; `WouldBlock` when the buffer is full.
pub fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length are those of `bytes`.
    check_size(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    pub read: bool,
    pub write: bool,
}

/// Waits by `ppoll(2)` until one descriptor is ready; no timeout waits for ever. All flags are
/// false after the timeout.
///
/// # Errors
/// Those of `ppoll(2)`; an interrupted call counts as the timeout.
pub fn wait_ready(
    fd: BorrowedFd<'_>,
    wanted: Readiness,
    timeout: Option<Duration>,
) -> io::Result<Readiness> {
    let mut events = PollFlags::empty();
    events.set(PollFlags::IN, wanted.read);
    events.set(PollFlags::OUT, wanted.write);
    let mut entry = [PollFd::from_borrowed_fd(fd, events)];
    match event::poll(&mut entry, timeout.map(timespec).as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Readiness::default()),
        Err(error) => return Err(error.into()),
    }
    let found = entry[0].revents();
    let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    Ok(Readiness {
        read: found.intersects(PollFlags::IN | broken),
        write: found.intersects(PollFlags::OUT | broken),
    })
}

/// Accepts a connection at a listener that does not block, within this time. `None` if none came,
/// or it went away again.
pub fn accept(
    listener: &TcpListener,
    within: Duration,
) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    let read = Readiness { read: true, write: false };
    if !wait_ready(listener.as_fd(), read, Some(within))?.read {
        return Ok(None);
    }
    match listener.accept() {
        Err(error) if matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted) => {
            Ok(None)
        }
        accepted => accepted.map(Some),
    }
}

/// Waits until a descriptor can be read. Returns false on timeout and after a signal.
pub(crate) fn is_readable_within(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, SysError> {
    let read = Readiness { read: true, write: false };
    let ready = wait_ready(fd, read, Some(limit)).map_err(failed("ppoll"))?;
    Ok(ready.read)
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// Sets the congestion control of a socket; `default` keeps that of the host.
pub fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    if name == "default" {
        return Ok(());
    }
    SockRef::from(socket).set_tcp_congestion(name.as_bytes())
}

/// Refuses a congestion control that this host does not have.
pub fn check_congestion(name: &str) -> Result<(), String> {
    if matches!(name, "default" | "reno") {
        return Ok(());
    }
    let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, None) else {
        return Ok(());
    };
    // The kernel cuts longer names (`TCP_CA_NAME_MAX` of linux/tcp.h).
    let set = match name.len() {
        ..16 => socket.set_tcp_congestion(name.as_bytes()).map_err(|error| error.to_string()),
        _ => Err("longer than 15 bytes".to_owned()),
    };
    set.map_err(|error| {
        let there = Files::default().text("proc/sys/net/ipv4/tcp_available_congestion_control");
        let (there, name) = (there.unwrap_or_else(|| "reno".to_owned()), name.escape_default());
        format!("`{name}` is not available here ({error}); this host has: {there}, or default")
    })
}

/// Readiness of many descriptors, level-triggered. The crate mio is edge-triggered, which costs one
/// more call per datagram to see `WouldBlock`. The crate polling arms a timer descriptor in each
/// wait.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

fn flags_of(wanted: Readiness) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, wanted.read);
    flags.set(EventFlags::OUT, wanted.write);
    flags
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub fn add(&self, fd: &impl AsFd, key: u64, wanted: Readiness) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), flags_of(wanted))?)
    }

    pub fn change(&self, fd: &impl AsFd, key: u64, wanted: Readiness) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(key), flags_of(wanted))?)
    }

    /// Waits up to the timeout, rounded up to a millisecond, and fills in the key of each ready
    /// descriptor. Closed descriptors leave the set.
    ///
    /// # Errors
    /// Those of `epoll_pwait(2)`; an interrupted call counts as the timeout.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<(u64, Readiness)>,
    ) -> io::Result<()> {
        ready.clear();
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let found = match epoll::wait(&self.0, &mut room, timeout.map(timespec).as_ref()) {
            Ok((found, _)) => found,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ready.extend(found.iter().map(|event| {
            let (found, broken) = (event.flags, EventFlags::ERR | EventFlags::HUP);
            let readiness = Readiness {
                read: found.intersects(EventFlags::IN | broken),
                write: found.intersects(EventFlags::OUT | broken),
            };
            (event.data.u64(), readiness)
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        let (a, b) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        (a, b)
    }

    #[test]
    fn a_batch_arrives_as_one_buffer_where_both_ends_take_batches() {
        let (a, b) = pair();
        assert!(enable_gro(b.as_fd()));
        let bytes: Vec<u8> = (0..250).collect();
        assert_eq!(send(a.as_fd(), &bytes, 100, None).unwrap(), 250);
        let mut buffer = vec![0; 65536];
        let (received, from) = receive_from(b.as_fd(), &mut buffer, true).unwrap();
        assert_eq!((received.bytes, received.segment_bytes, received.truncated), (250, 100, false));
        assert_eq!(buffer[..250], bytes);
        assert_eq!(from.as_socket().unwrap(), a.local_addr().unwrap());
    }

    #[test]
    fn a_batch_arrives_as_datagrams_where_the_receiver_takes_none() {
        let (a, b) = pair();
        send(a.as_fd(), &[7; 250], 100, None).unwrap();
        let mut buffer = [0; 1000];
        let sizes: Vec<usize> =
            (0..3).map(|_| receive(b.as_fd(), &mut buffer, true).unwrap().bytes).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let nothing = receive(b.as_fd(), &mut buffer, false).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_route_to_this_host_takes_what_its_device_takes() {
        let (a, b) = pair();
        let files = crate::host::Files::default();
        let device = files.text("sys/class/net/lo/mtu").unwrap();
        let mtu = route_mtu(a.as_fd(), false).unwrap();
        assert_eq!(mtu, device.trim().parse::<usize>().unwrap().min(65_535));
        assert!(route_mtu(b.as_fd(), false).is_err(), "b is not connected");
    }

    /// Regression: bytes under way keep keepalive off, and a dead peer was waited for for 15 min.
    #[test]
    fn a_connection_ends_when_its_peer_is_silent_whatever_is_under_way() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        keepalive(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(PEER_SILENT));
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_is_said_to_be_cut() {
        let (a, b) = pair();
        a.send(&[1; 100]).unwrap();
        let received = receive(b.as_fd(), &mut [0; 10], true).unwrap();
        assert!(received.truncated);
    }

    #[test]
    fn readiness_is_told_by_every_way_of_waiting() {
        let (a, b) = pair();
        let read = Readiness { read: true, write: false };
        let soon = Some(Duration::from_millis(1));
        assert_eq!(wait_ready(b.as_fd(), read, soon).unwrap(), Readiness::default());
        let mut epoll = Epoll::new().unwrap();
        epoll.add(&b, 42, read).unwrap();
        let mut ready = Vec::new();
        epoll.wait(soon, &mut ready).unwrap();
        assert!(ready.is_empty());
        a.send(b"x").unwrap();
        assert!(wait_ready(b.as_fd(), read, None).unwrap().read);
        epoll.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [(42, read)]);
        epoll.change(&b, 43, Readiness { read: true, write: true }).unwrap();
        epoll.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [(43, Readiness { read: true, write: true })]);
    }
}
