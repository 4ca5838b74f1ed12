//! An emulated bridge with an emulated timing receiver behind it, all in the calling thread.
//! The link decides when a request arrives, the bus adds its time, and the link decides when the
//! answer is back. The client waits for that moment. The measured time is the model's plus the
//! client's own costs, without the kernel's.

use std::collections::BTreeMap;
use std::time::Duration;

use daqmeter_harness::{Loaded, Shipped, TomlText};
use daqmeter_sys::clock::monotonic_ns;
use serde::Deserialize;

use super::{Arrived, EbTransport, Framing, wait_until};
use crate::EbError;
use crate::bus::{BusTiming, Description};
use crate::link::{EmulatedLink, LinkProfile};
use crate::slave::{Slave, Stream};

/// Bridges between a host and the Wishbone bus of a timing receiver.
pub const BRIDGES: Shipped = Shipped {
    kind: "bridge",
    files: &[
        ("scu-pcie-2018", include_str!("../../profiles/bridges/scu-pcie-2018.toml")),
        ("gige", include_str!("../../profiles/bridges/gige.toml")),
        ("usb-t5810-2018", include_str!("../../profiles/bridges/usb-t5810-2018.toml")),
        ("usb-t3500-2014", include_str!("../../profiles/bridges/usb-t3500-2014.toml")),
        ("pcie-t3500-2014", include_str!("../../profiles/bridges/pcie-t3500-2014.toml")),
        ("pcie-t5810-2018", include_str!("../../profiles/bridges/pcie-t5810-2018.toml")),
        ("scu2-pcie-2014", include_str!("../../profiles/bridges/scu2-pcie-2014.toml")),
        ("vme-rio4-2014", include_str!("../../profiles/bridges/vme-rio4-2014.toml")),
        ("vme-men-2014", include_str!("../../profiles/bridges/vme-men-2014.toml")),
        ("perfect", include_str!("../../profiles/bridges/perfect.toml")),
    ],
};

/// Bytes that arrive together: less than the shortest cycle with an answer.
const STREAM_PIECE_BYTES: usize = 16;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    #[serde(skip)]
    pub name: String,
    pub about: String,
    /// True for a character device, false for datagrams.
    #[serde(default)]
    pub stream: bool,
    #[serde(default)]
    pub request: LinkProfile,
    #[serde(default)]
    pub reply: LinkProfile,
    #[serde(default)]
    pub timing: BusTiming,
}

impl Loaded for Bridge {
    const SHIPPED: Shipped = BRIDGES;
    const HAS_TABLES: bool = false;

    fn read(file: &TomlText) -> Result<Bridge, String> {
        let bridge: Bridge = file.parse()?;
        for (way, link) in [("request", bridge.request), ("reply", bridge.reply)] {
            let fault = |why: String| format!("{}: {way}: {why}", file.name);
            link.check().map_err(fault)?;
            if bridge.stream && link.is_unreliable() {
                return Err(fault("a stream neither loses nor reorders".to_owned()));
            }
        }
        Ok(Bridge { name: file.name.clone(), ..bridge })
    }
}

impl Bridge {
    pub(crate) fn transport(&self) -> Result<Emulated, EbError> {
        let mut bus = Description::timing_receiver().build()?;
        bus.timing = self.timing;
        Ok(Emulated::new(self, Slave::new(bus)))
    }
}

pub struct Emulated {
    slave: Slave,
    stream: Option<Stream>,
    request: EmulatedLink,
    reply: EmulatedLink,
    /// Answers by the time of their arrival, and then in the order of sending.
    answers: BTreeMap<(u64, u64), Vec<u8>>,
    sent: u64,
}

impl Emulated {
    pub fn new(bridge: &Bridge, slave: Slave) -> Emulated {
        Emulated {
            slave,
            stream: bridge.stream.then(Stream::default),
            request: EmulatedLink::new(bridge.request, 1),
            reply: EmulatedLink::new(bridge.reply, 2),
            answers: BTreeMap::new(),
            sent: 0,
        }
    }

    fn deliver(&mut self, now_ns: u64, message: &[u8]) -> Result<(), EbError> {
        for arrives_ns in self.request.carry(now_ns, message.len()) {
            let mut answer = Vec::new();
            let ready_ns = match &mut self.stream {
                None => self.slave.datagram(arrives_ns, message, &mut answer),
                Some(stream) => stream.feed(&mut self.slave, arrives_ns, message, &mut answer)?,
            };
            if !answer.is_empty() {
                for back_ns in self.reply.carry(ready_ns, answer.len()) {
                    self.sent += 1;
                    self.answers.insert((back_ns, self.sent), answer.clone());
                }
            }
        }
        Ok(())
    }
}

impl EbTransport for Emulated {
    fn framing(&self) -> Framing {
        if self.stream.is_some() { Framing::Stream } else { Framing::Datagram }
    }

    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError> {
        let now_ns = monotonic_ns();
        if self.stream.is_some() {
            // Bytes of a stream arrive one after the other: a cycle begins with its own last byte.
            return bytes
                .chunks(STREAM_PIECE_BYTES)
                .try_for_each(|piece| self.deliver(now_ns, piece));
        }
        let mut rest = bytes;
        for &length in lengths {
            let (message, later) = rest.split_at(length);
            self.deliver(now_ns, message)?;
            rest = later;
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = monotonic_ns().saturating_add(wait_ns);
        let next = self.answers.first_entry().filter(|next| next.key().0 <= until_ns);
        let Some(next) = next else {
            wait_until(until_ns);
            return Ok(None);
        };
        wait_until(next.key().0);
        let answer = next.remove();
        let bytes = answer.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&answer[..bytes]);
        Ok(Some(Arrived { bytes, segment_bytes: bytes.max(1) }))
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::Resolved;

    use super::*;

    #[test]
    fn the_bridges_that_ship_are_sound_and_wrong_ones_say_what_is_wrong() {
        BRIDGES.all().for_each(|file| drop(Bridge::read(&file).unwrap()));
        let error = "warp".parse::<Resolved<Bridge>>().unwrap_err();
        assert!(error.contains("bridge warp") && error.contains("scu-pcie-2018"), "{error}");
        for (text, why) in [
            ("about = \"\"\nstream = true\nrequest = { loss = 0.5 }", "neither loses"),
            ("about = \"\"\nspeed = 1", "unknown field `speed`"),
            ("about = \"\"\nreply = { loss = 1.5 }", "bridge: reply: loss = 1.5"),
        ] {
            let error = Bridge::read(&TomlText::new("bridge", text)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
