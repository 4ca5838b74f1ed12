//! A stream on which a message header begins each message: TCP as the C library of 2014 has it.

use std::time::Duration;

use super::{Arrived, EbTransport, Framing};
use crate::EbError;

/// Most bytes of a message that the C library of 2014 receives at once.
const MESSAGE_BYTES: usize = 4000;

/// A connection to such a server.
pub(crate) struct Framed(pub(crate) Box<dyn EbTransport>);

impl EbTransport for Framed {
    fn framing(&self) -> Framing {
        Framing::Messages { max_bytes: MESSAGE_BYTES }
    }

    fn window_bytes(&self) -> usize {
        self.0.window_bytes()
    }

    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError> {
        self.0.send(bytes, lengths)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        self.0.receive(buffer, wait)
    }
}
