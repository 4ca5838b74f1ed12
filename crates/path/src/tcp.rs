//! The sending end of a TCP connection, by each way to hand bytes to the kernel.

use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_record::Counter;
use daqmeter_record::units::significant;
use daqmeter_sys::net::send_more;
use daqmeter_sys::{uring, zerocopy};
use serde::Deserialize;
use socket2::SockRef;

use crate::element::ConnectionStats;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SendBy {
    /// Copied by the system call.
    #[default]
    Copy,
    /// Read by the kernel in place (`MSG_ZEROCOPY`); the block is used again when the kernel is
    /// done.
    Zerocopy,
    /// Copied by a request to io_uring.
    IoUring,
}

impl SendBy {
    pub(crate) const ALL: [SendBy; 3] = [SendBy::Copy, SendBy::Zerocopy, SendBy::IoUring];

    pub(crate) fn name(self) -> &'static str {
        match self {
            SendBy::Copy => "copy",
            SendBy::Zerocopy => "zerocopy",
            SendBy::IoUring => "io-uring",
        }
    }

    pub(crate) fn check(self) -> Result<(), String> {
        let tried = match self {
            SendBy::Copy => Ok(()),
            SendBy::Zerocopy => {
                let kind = socket2::Type::STREAM;
                socket2::Socket::new(socket2::Domain::IPV4, kind, None)
                    .and_then(|socket| zerocopy::enable(socket.as_fd()))
            }
            SendBy::IoUring => uring::Sender::new().map(drop),
        };
        tried.map_err(|error| {
            format!(
                "this kernel does not send by `{}` ({error}): write \"copy\", or leave it out",
                self.name()
            )
        })
    }
}

pub(crate) struct TcpSender {
    stream: TcpStream,
    by: SendBy,
    ring: Option<uring::Sender>,
    sends: zerocopy::Sends,
    /// For each block that the kernel may still read, the send that must be done first.
    marks: VecDeque<u64>,
}

impl TcpSender {
    pub(crate) fn new(stream: TcpStream, by: SendBy) -> TcpSender {
        TcpSender {
            stream,
            by,
            ring: None,
            sends: zerocopy::Sends::default(),
            marks: VecDeque::new(),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn prepare(&mut self) -> std::io::Result<()> {
        match self.by {
            SendBy::Copy => {}
            SendBy::Zerocopy => zerocopy::enable(self.stream.as_fd())?,
            SendBy::IoUring => self.ring = Some(uring::Sender::new()?),
        }
        Ok(())
    }

    /// Sends a block behind its head. Only the block may be read later: see
    /// [`TcpSender::unfinished`].
    pub(crate) fn write(&mut self, head: &[u8], block: &[u8]) -> std::io::Result<()> {
        let socket = self.stream.as_fd();
        match (self.by, &mut self.ring) {
            (SendBy::Zerocopy, _) => {
                before_more(&self.stream, head)?;
                self.sends.send_all(socket, block, PATIENCE)?;
                self.marks.push_back(self.sends.begun());
                Ok(())
            }
            (SendBy::IoUring, Some(ring)) => {
                before_more(&self.stream, head)?;
                ring.send_all(socket, block)
            }
            _ => write_both(&self.stream, head, block),
        }
    }

    /// Waits until the kernel may still read at most `most` of the blocks; returns how many.
    pub(crate) fn unfinished(&mut self, most: usize) -> std::io::Result<usize> {
        if self.marks.is_empty() {
            return Ok(0);
        }
        self.sends.reap(self.stream.as_fd())?;
        loop {
            while self.marks.front().is_some_and(|mark| *mark <= self.sends.done()) {
                self.marks.pop_front();
            }
            match self.marks.front() {
                Some(mark) if self.marks.len() > most => {
                    self.sends.wait(self.stream.as_fd(), *mark, PATIENCE)?;
                }
                _ => return Ok(self.marks.len()),
            }
        }
    }

    pub(crate) fn remarks(&self) -> ConnectionStats {
        let (done, copied) = (self.sends.done(), self.sends.copied());
        if self.by != SendBy::Zerocopy {
            return ConnectionStats::default();
        }
        let share = significant(100.0 * copied as f64 / done.max(1) as f64, 3);
        let note = format!(
            "the kernel copied {share} % of what was to be sent without a copy, as it does on loopback and where a device cannot"
        );
        ConnectionStats {
            counters: vec![
                Counter::count("zerocopy-sends", done),
                Counter::count("zerocopy-copied", copied),
            ],
            notes: (copied > 0).then_some(note).into_iter().collect(),
            ..ConnectionStats::default()
        }
    }
}

/// Writes a head that a block follows.
fn before_more(stream: &TcpStream, mut head: &[u8]) -> std::io::Result<()> {
    while !head.is_empty() {
        let sent = send_more(stream.as_fd(), head)?;
        head = &head[sent..];
    }
    Ok(())
}

/// Writes both in one call, as far as the kernel takes them.
fn write_both(mut stream: &TcpStream, head: &[u8], block: &[u8]) -> std::io::Result<()> {
    if head.is_empty() {
        return stream.write_all(block);
    }
    let sent = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(block)])?;
    if sent < head.len() {
        stream.write_all(&head[sent..])?;
    }
    stream.write_all(&block[sent.saturating_sub(head.len())..])
}

pub(crate) fn set_congestion(stream: &TcpStream, name: Option<&str>) -> Result<(), Fault> {
    let Some(name) = name.filter(|name| *name != "default") else {
        return Ok(());
    };
    let set = SockRef::from(stream).set_tcp_congestion(name.as_bytes());
    set.map_err(|error| Fault::new(format!("tcp: congestion control {name}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_way_sends_the_same_bytes_in_order_and_ends_with_no_block_in_use() {
        for by in SendBy::ALL {
            if by.check().is_err() {
                continue;
            }
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut inward, _) = listener.accept().unwrap();
            let blocks: Vec<Vec<u8>> = (0..20).map(|n| vec![n; 70_000]).collect();
            let reads = std::thread::spawn(move || {
                let mut all = Vec::new();
                inward.read_to_end(&mut all).map(|_| all)
            });
            let mut sender = TcpSender::new(out, by);
            sender.prepare().unwrap();
            for block in &blocks {
                sender.write(b"head", block).unwrap();
                assert!(sender.unfinished(1).unwrap() <= 1);
            }
            assert_eq!(sender.unfinished(0).unwrap(), 0);
            let is_counted = !sender.remarks().counters.is_empty();
            assert_eq!(is_counted, by == SendBy::Zerocopy);
            drop(sender);
            let wanted: Vec<u8> =
                blocks.iter().flat_map(|block| [b"head", &block[..]].concat()).collect();
            assert!(reads.join().unwrap().unwrap() == wanted, "{by:?}");
        }
    }
}
