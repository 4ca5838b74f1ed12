//! The UDP side of the server: batches in, batches out.

use std::os::fd::AsFd;

use daqmeter_sys::net;
use socket2::SockAddr;

use super::{Destination, EbServer};
use crate::transport::batch;

/// Batches taken from one socket in a row; then the others have their turn.
const TURNS: usize = 16;
const MAX_DELAYED: usize = 1 << 15;
/// A datagram of this length is likely to be followed by another.
const LONG_BYTES: usize = 1024;

impl EbServer {
    pub(super) fn serve_datagrams(&mut self, now_ns: u64, socket: usize) {
        for _ in 0..TURNS {
            let received = net::receive_from(self.udp[socket].as_fd(), &mut self.buffer, false);
            let Ok((received, from)) = received else {
                return;
            };
            self.answer.clear();
            self.lengths.clear();
            let buffer = std::mem::take(&mut self.buffer);
            for request in buffer[..received.bytes].chunks(received.segment_bytes.max(1)) {
                let before = self.answer.len();
                let ready_ns = self.slave.datagram(now_ns, request, &mut self.answer);
                match self.answer.len() - before {
                    0 => {}
                    bytes if ready_ns > now_ns => self.delay_last(bytes, ready_ns, socket, &from),
                    bytes => self.lengths.push(bytes),
                }
            }
            self.buffer = buffer;
            self.send_gathered(socket, from);
            self.tell_accesses();
            if received.bytes < LONG_BYTES {
                return;
            }
        }
    }

    fn send_gathered(&mut self, socket: usize, to: SockAddr) {
        if self.answer.is_empty() {
            return;
        }
        let (answer, lengths) =
            (std::mem::take(&mut self.answer), std::mem::take(&mut self.lengths));
        self.send_datagrams(socket, &answer, &lengths, &self.target(to));
        (self.answer, self.lengths) = (answer, lengths);
        self.answer.clear();
        self.lengths.clear();
    }

    fn delay_last(&mut self, bytes: usize, ready_ns: u64, socket: usize, from: &SockAddr) {
        let last = self.answer.split_off(self.answer.len() - bytes);
        self.send_gathered(socket, from.clone());
        if self.delayed.len() >= MAX_DELAYED {
            self.slave.counts.refused += 1;
            return;
        }
        self.answer = last;
        self.delay(ready_ns, Destination::Datagram { socket, to: self.target(from.clone()) });
    }

    fn target(&self, from: SockAddr) -> SockAddr {
        match (self.options.reply_port, from.as_socket()) {
            (Some(port), Some(mut address)) => {
                address.set_port(port);
                address.into()
            }
            _ => from,
        }
    }

    /// Sends answers. A refused datagram is lost, and the client's deadline finds it.
    pub(super) fn send_datagrams(
        &mut self,
        socket: usize,
        answers: &[u8],
        lengths: &[usize],
        to: &SockAddr,
    ) {
        let fd = self.udp[socket].as_fd();
        let (mut rest, mut left) = (answers, lengths);
        while let Some(&segment) = left.first() {
            let (count, bytes) = batch(left);
            let (now, later) = rest.split_at(bytes);
            if net::send(fd, now, segment, Some(to)).is_err() && count > 1 {
                for datagram in now.chunks(segment) {
                    let _ = net::send(fd, datagram, datagram.len(), Some(to));
                }
            }
            (rest, left) = (later, &left[count..]);
        }
    }
}
