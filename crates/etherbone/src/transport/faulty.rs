//! A link around any transport: messages are delayed, paced, lost, doubled and reordered.

use std::collections::BTreeMap;
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;

use super::{Arrived, EbTransport, Framing, RECEIVE_BYTES};
use crate::EbError;
use crate::link::{EmulatedLink, Fate, LinkProfile};

/// Messages on their way, by arrival and then by the order of sending. Buffers are reused.
#[derive(Default)]
pub(super) struct OnTheWay {
    messages: BTreeMap<(u64, u64), Vec<u8>>,
    spare: Vec<Vec<u8>>,
    sent: u64,
}

impl OnTheWay {
    pub(super) fn put(&mut self, fate: Fate, bytes: &[u8]) {
        for at in fate.arrivals() {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.extend_from_slice(bytes);
            self.messages.insert((at, self.sent), buffer);
            self.sent += 1;
        }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.messages.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take(&mut self, now_ns: u64, buffer: &mut [u8]) -> Option<usize> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let (_, mut message) = self.messages.pop_first()?;
        let bytes = message.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&message[..bytes]);
        message.clear();
        self.spare.push(message);
        Some(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Waits until a monotonic time. It sleeps first and then spins, because a sleep ends tens of
/// microseconds late.
pub(super) fn wait_until(time_ns: u64) {
    const SPIN_NS: u64 = 150_000;
    loop {
        let left_ns = time_ns.saturating_sub(monotonic_ns());
        match left_ns {
            0 => return,
            1..=SPIN_NS => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS)),
        }
    }
}

pub struct Faulty {
    inner: Box<dyn EbTransport>,
    request: EmulatedLink,
    reply: EmulatedLink,
    outbox: OnTheWay,
    inbox: OnTheWay,
    scratch: Vec<u8>,
}

impl Faulty {
    pub fn new(
        inner: Box<dyn EbTransport>,
        request: LinkProfile,
        reply: LinkProfile,
        seed: u64,
    ) -> Result<Faulty, EbError> {
        for profile in [request, reply] {
            profile.check().map_err(EbError::Unsupported)?;
            if profile.is_unreliable() && inner.framing().is_stream() {
                return Err(EbError::Unsupported(
                    "a stream neither loses nor reorders: give it delay and rate only".to_owned(),
                ));
            }
        }
        Ok(Faulty {
            inner,
            request: EmulatedLink::new(request, seed),
            reply: EmulatedLink::new(reply, seed.wrapping_add(1)),
            outbox: OnTheWay::default(),
            inbox: OnTheWay::default(),
            scratch: vec![0; RECEIVE_BYTES],
        })
    }

    fn pump(&mut self, wait: Duration) -> Result<(), EbError> {
        let now_ns = monotonic_ns();
        while let Some(bytes) = self.outbox.take(now_ns, &mut self.scratch) {
            self.inner.send(&self.scratch[..bytes], &[bytes])?;
        }
        if let Some(arrived) = self.inner.receive(&mut self.scratch, wait)? {
            let now_ns = monotonic_ns();
            for message in self.scratch[..arrived.bytes].chunks(arrived.segment_bytes.max(1)) {
                self.inbox.put(self.reply.carry(now_ns, message.len()), message);
            }
        }
        Ok(())
    }
}

impl EbTransport for Faulty {
    fn framing(&self) -> Framing {
        self.inner.framing()
    }

    fn window_bytes(&self) -> usize {
        self.inner.window_bytes()
    }

    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError> {
        let now_ns = monotonic_ns();
        let mut rest = bytes;
        for &length in lengths {
            let (message, later) = rest.split_at(length);
            self.outbox.put(self.request.carry(now_ns, length), message);
            rest = later;
        }
        self.pump(Duration::ZERO)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let until_ns =
            monotonic_ns().saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let now_ns = monotonic_ns();
            if let Some(bytes) = self.inbox.take(now_ns, buffer) {
                return Ok(Some(Arrived { bytes, segment_bytes: bytes.max(1) }));
            }
            if now_ns >= until_ns {
                return Ok(None);
            }
            let next_ns = [self.outbox.next_ns(), self.inbox.next_ns()]
                .into_iter()
                .flatten()
                .fold(until_ns, u64::min);
            let left = Duration::from_nanos(next_ns.saturating_sub(now_ns));
            // The transport's wait is coarse; near the next event it is polled.
            self.pump(left.saturating_sub(Duration::from_millis(1)))?;
        }
    }
}
