//! Connections over TCP that carry frames, of pages and of the blocks of paths. Nothing waits but
//! by a limit of time.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use daqmeter_sys::net::{Readiness, keepalive, wait_ready};
use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind};
use serde::Serialize;

/// Largest message in JSON: every E-link of a channel with 20 digits is below 20 KB.
pub const MAX_CONTROL_BYTES: usize = 64 << 10;
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Interval at which a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are read ahead, and memory taken at a time beyond the bytes that came.
const AHEAD_BYTES: usize = 1 << 20;

pub struct FrameStream {
    stream: TcpStream,
    max_body_bytes: usize,
    buffer: Vec<u8>,
    /// Received bytes that were not taken.
    begin: usize,
    end: usize,
    /// Bytes of the frame at hand that have gone.
    sent: usize,
}

impl FrameStream {
    /// Connects to the first address that answers.
    pub fn connect(address: &str, max_body_bytes: usize) -> io::Result<FrameStream> {
        let mut failed = io::Error::new(ErrorKind::NotFound, "it has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
                Ok(stream) => return FrameStream::new(stream, max_body_bytes),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Makes the end of a connection. Frames with a longer body than this end it.
    pub fn new(stream: TcpStream, max_body_bytes: usize) -> io::Result<FrameStream> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keepalive(&stream)?;
        let buffer = vec![0; AHEAD_BYTES.min(max_body_bytes)];
        Ok(FrameStream { stream, max_body_bytes, buffer, begin: 0, end: 0, sent: 0 })
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns a function that ends the connection, and with it all waits for it.
    pub fn cut(&self) -> io::Result<impl FnMut() + Send + use<>> {
        let stream = self.stream.try_clone()?;
        // A peer that is gone already need not be cut off.
        Ok(move || drop(stream.shutdown(Shutdown::Both)))
    }

    /// Sends as much of a frame as the socket takes; the body may lie in two parts. False if not
    /// all went: the same frame must be offered again.
    pub fn offer(&mut self, frame: &FelixFrame, body: [&[u8]; 2]) -> io::Result<bool> {
        let (head, total) = (frame.emit(), FRAME_BYTES + frame.body_bytes as usize);
        while self.sent < total {
            let mut skip = self.sent;
            let parts = [&head[..], body[0], body[1]].map(|part| {
                let (gone, rest) = part.split_at(skip.min(part.len()));
                skip -= gone.len();
                IoSlice::new(rest)
            });
            match self.stream.write_vectored(&parts) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        Ok(true)
    }

    /// Sends a frame. Fails with `TimedOut` if the peer takes nothing for this time.
    pub fn send(
        &mut self,
        frame: &FelixFrame,
        body: [&[u8]; 2],
        patience: Duration,
    ) -> io::Result<()> {
        let mut before = (self.sent, Instant::now());
        while !self.offer(frame, body)? {
            if self.sent > before.0 {
                before = (self.sent, Instant::now());
            }
            let left = patience.checked_sub(before.1.elapsed()).ok_or(ErrorKind::TimedOut)?;
            let wanted = Readiness { read: false, write: true };
            wait_ready(self.stream.as_fd(), wanted, Some(left))?;
        }
        Ok(())
    }

    /// Sends a message in JSON, as [`FrameStream::send`] does.
    pub fn say(
        &mut self,
        kind: FrameKind,
        message: &impl Serialize,
        patience: Duration,
    ) -> io::Result<()> {
        let (frame, body) = message_frame(kind, message);
        self.send(&frame, [&body, &[]], patience)
    }

    /// Receives the next frame with its body. `None` if none came in the time, or before `quit` was
    /// true.
    pub fn receive(
        &mut self,
        wait: Duration,
        quit: &dyn Fn() -> bool,
    ) -> io::Result<Option<(FelixFrame, &[u8])>> {
        // Data that comes byte by byte must not hold up the wait for a frame.
        let mut begin = None;
        let frame = loop {
            let (frame, wanted) = self.next()?;
            if let Some(frame) = frame.filter(|_| self.end - self.begin >= wanted) {
                break frame;
            }
            self.make_room(wanted);
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.end += got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if wait.is_zero() {
                        return Ok(None);
                    }
                    let begin = begin.get_or_insert_with(Instant::now);
                    let left = wait.saturating_sub(begin.elapsed());
                    if left.is_zero() || quit() {
                        return Ok(None);
                    }
                    let wanted = Readiness { read: true, write: false };
                    wait_ready(self.stream.as_fd(), wanted, Some(left.min(LOOK)))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let body = self.begin + FRAME_BYTES;
        self.begin = body + frame.body_bytes as usize;
        Ok(Some((frame, &self.buffer[body..self.begin])))
    }

    /// Head of the next frame, if it is there, and the bytes to which the frame is wanted.
    fn next(&self) -> io::Result<(Option<FelixFrame>, usize)> {
        let Some(head) = self.buffer[self.begin..self.end].first_chunk::<FRAME_BYTES>() else {
            return Ok((None, FRAME_BYTES));
        };
        let frame = FelixFrame::parse(head).map_err(io::Error::other)?;
        let (kind, bytes, most) = (frame.kind, frame.body_bytes as usize, self.max_body_bytes);
        if bytes > most {
            let why = format!("a frame of kind {kind:?} with {bytes} bytes; {most} is the most");
            return Err(io::Error::other(why));
        }
        Ok((Some(frame), FRAME_BYTES + bytes))
    }

    fn make_room(&mut self, wanted: usize) {
        if self.begin > 0 && (self.begin + wanted > self.buffer.len() || self.begin == self.end) {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        // Memory follows the bytes that came, whatever a head promises.
        let wanted = wanted.min(self.end - self.begin + AHEAD_BYTES);
        if self.begin + wanted > self.buffer.len() {
            self.buffer.resize(self.begin + wanted, 0);
        }
    }
}

pub fn message_frame(kind: FrameKind, message: &impl Serialize) -> (FelixFrame, Vec<u8>) {
    let body = serde_json::to_vec(message).expect("plain data");
    (FelixFrame::control(kind, u32::try_from(body.len()).unwrap_or(u32::MAX)), body)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn pair(max_body_bytes: usize) -> (FrameStream, FrameStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let out = FrameStream::connect(&address, max_body_bytes).unwrap();
        (out, FrameStream::new(listener.accept().unwrap().0, max_body_bytes).unwrap())
    }

    #[test]
    fn frames_arrive_whole_whatever_their_lengths() {
        let lengths = [0, 1, 40, 70_000, 5 << 20, 3, (3 << 20) + 7];
        let (mut out, mut inward) = pair(8 << 20);
        let body = |nth: usize, length| vec![u8::try_from(nth).unwrap(); length];
        let sends = std::thread::spawn(move || {
            for (nth, length) in lengths.into_iter().enumerate() {
                let frame = FelixFrame {
                    sequence: nth as u64,
                    ..FelixFrame::control(FrameKind::Blocks, u32::try_from(length).unwrap())
                };
                let body = body(nth, length);
                let (head, rest) = body.split_at(length / 3);
                out.send(&frame, [head, rest], SOON).unwrap();
            }
            out
        });
        for (nth, length) in lengths.into_iter().enumerate() {
            let (frame, got) = inward.receive(SOON, &|| false).unwrap().unwrap();
            assert_eq!((frame.sequence, got.len()), (nth as u64, length));
            assert_eq!(got, body(nth, length));
        }
        let out = sends.join().unwrap();
        assert!(inward.receive(Duration::ZERO, &|| false).unwrap().is_none());
        assert!(inward.receive(SOON, &|| true).unwrap().is_none(), "it is to end");
        drop(out);
        let ended = inward.receive(SOON, &|| false).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_head_that_promises_more_than_comes_takes_no_memory_for_it() {
        let (mut out, mut inward) = pair(256 << 20);
        let promised = FelixFrame::control(FrameKind::Blocks, 256 << 20);
        out.stream.write_all(&promised.emit()).unwrap();
        assert!(inward.receive(Duration::from_millis(20), &|| false).unwrap().is_none());
        assert!(inward.buffer.len() <= 2 * AHEAD_BYTES);
        let (mut out, mut inward) = pair(100);
        out.send(&FelixFrame::control(FrameKind::Blocks, 101), [&[0; 101], &[]], SOON).unwrap();
        let refused = inward.receive(SOON, &|| false).unwrap_err().to_string();
        assert!(refused.contains("101 bytes; 100 is the most"), "{refused}");
    }

    #[test]
    fn a_peer_that_takes_nothing_ends_a_send_and_a_cut_ends_a_wait() {
        let (mut out, inward) = pair(64 << 20);
        let body = vec![0; 64 << 20];
        let frame = FelixFrame::control(FrameKind::Blocks, 64 << 20);
        let slow = out.send(&frame, [&body, &[]], Duration::from_millis(50)).unwrap_err();
        assert_eq!(slow.kind(), ErrorKind::TimedOut);
        let (mut waiting, mut cut) = (inward, out.cut().unwrap());
        let waits = std::thread::spawn(move || {
            while waiting.receive(SOON, &|| false).is_ok_and(|frame| frame.is_some()) {}
        });
        cut();
        waits.join().unwrap();
    }
}
