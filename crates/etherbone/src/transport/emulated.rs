//! An emulated bridge with an emulated timing receiver behind it, all in the calling thread.
//! The link decides when a request arrives, the bus adds its time, and the link decides when the
//! answer is back. The client waits for that moment. The measured time is the model's plus the
//! client's own costs, without the kernel's.

use std::time::Duration;

use daqmeter_harness::text_file;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::DATAGRAM_BYTES;
use serde::Deserialize;

use super::faulty::{OnTheWay, wait_until};
use super::{Arrived, EbTransport, Framing};
use crate::EbError;
use crate::bus::{BusTiming, Description};
use crate::link::{EmulatedLink, LinkProfile};
use crate::slave::{Slave, Stream};

const BRIDGES: &str = include_str!("../../profiles/bridges.toml");

/// Bytes that arrive together: less than the shortest cycle with an answer.
const STREAM_PIECE_BYTES: usize = 16;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BridgeFile {
    bridge: Vec<Bridge>,
}

pub fn bridges() -> Vec<Bridge> {
    Bridge::parse(BRIDGES).expect("ships with the binary and is tested")
}

impl Bridge {
    pub fn parse(text: &str) -> Result<Vec<Bridge>, EbError> {
        let file: BridgeFile = toml::from_str(text)
            .map_err(|error| EbError::Unsupported(error.to_string().trim_end().to_owned()))?;
        for bridge in &file.bridge {
            for (way, link) in [("request", bridge.request), ("reply", bridge.reply)] {
                let fault = |why: String| {
                    EbError::Unsupported(format!("bridge `{}`, {way}: {why}", bridge.name))
                };
                link.check().map_err(fault)?;
                if bridge.stream && link.is_unreliable() {
                    return Err(fault("a stream neither loses nor reorders".to_owned()));
                }
            }
        }
        Ok(file.bridge)
    }

    /// Finds a bridge by its name, or reads the first one of a TOML file.
    pub fn named(name: &str) -> Result<Bridge, EbError> {
        if !name.ends_with(".toml") {
            let all = bridges();
            let names: Vec<&str> = all.iter().map(|bridge| bridge.name.as_str()).collect();
            let unknown = format!(
                "no bridge `{name}`; there are {}, or a file ending in .toml",
                names.join(", ")
            );
            let found = all.into_iter().find(|bridge| bridge.name == name);
            return found.ok_or(EbError::Unsupported(unknown));
        }
        let text = text_file(name.as_ref())
            .map_err(|error| EbError::Unsupported(format!("cannot read {name}: {error}")))?;
        let found = Bridge::parse(&text)
            .map_err(|error| EbError::Unsupported(format!("{name}: {error}")))?;
        let none = || EbError::Unsupported(format!("{name}: no [[bridge]] in it"));
        found.into_iter().next().ok_or_else(none)
    }

    pub fn transport(&self) -> Result<Box<dyn EbTransport>, EbError> {
        let mut bus = Description::timing_receiver().build()?;
        bus.set_timing(self.timing);
        Ok(Box::new(Emulated::new(self, Slave::new(bus))))
    }
}

pub struct Emulated {
    slave: Slave,
    stream: Option<Stream>,
    request: EmulatedLink,
    reply: EmulatedLink,
    on_the_way: OnTheWay,
    answer: Vec<u8>,
}

impl Emulated {
    pub fn new(bridge: &Bridge, slave: Slave) -> Emulated {
        Emulated {
            slave,
            stream: bridge.stream.then(Stream::default),
            request: EmulatedLink::new(bridge.request, 1),
            reply: EmulatedLink::new(bridge.reply, 2),
            on_the_way: OnTheWay::default(),
            answer: Vec::new(),
        }
    }

    fn deliver(&mut self, now_ns: u64, message: &[u8]) -> Result<(), EbError> {
        for arrives_ns in self.request.carry(now_ns, message.len()).arrivals() {
            self.answer.clear();
            let (slave, answer) = (&mut self.slave, &mut self.answer);
            let ready_ns = match &mut self.stream {
                None => slave.datagram(arrives_ns, message, answer),
                Some(stream) => {
                    stream.feed(slave, arrives_ns, message, answer).map_err(|fault| {
                        let why = format!("the emulated slave ended the stream: {fault}");
                        EbError::Unsupported(why)
                    })?
                }
            };
            if !self.answer.is_empty() {
                self.on_the_way.put(self.reply.carry(ready_ns, self.answer.len()), &self.answer);
            }
        }
        Ok(())
    }
}

impl EbTransport for Emulated {
    fn framing(&self) -> Framing {
        if self.stream.is_some() {
            Framing::Stream
        } else {
            Framing::Datagram { max_bytes: DATAGRAM_BYTES }
        }
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
        let now_ns = monotonic_ns();
        let until_ns = now_ns.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        if self.on_the_way.is_empty() {
            wait_until(until_ns);
            return Ok(None);
        }
        let next_ns = self.on_the_way.next_ns().unwrap_or(until_ns).min(until_ns);
        wait_until(next_ns);
        let bytes = self.on_the_way.take(next_ns, buffer);
        Ok(bytes.map(|bytes| Arrived { bytes, segment_bytes: bytes.max(1) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridges_that_ship_are_sound_and_have_different_names() {
        let all = bridges();
        let mut names: Vec<&String> = all.iter().map(|bridge| &bridge.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(Bridge::named("scu-pcie-2018").is_ok());
    }

    #[test]
    fn wrong_bridges_say_what_is_wrong() {
        let error = Bridge::named("warp").unwrap_err().to_string();
        assert!(error.contains("no bridge `warp`") && error.contains("scu-pcie-2018"), "{error}");
        assert!(Bridge::named("absent.toml").unwrap_err().to_string().contains("cannot read"));
        let lossy =
            "[[bridge]]\nname = \"x\"\nabout = \"\"\nstream = true\nrequest = { loss = 0.5 }";
        assert!(Bridge::parse(lossy).unwrap_err().to_string().contains("neither loses"));
        assert!(Bridge::parse("[[bridge]]\nspeed = 1").unwrap_err().to_string().contains("speed"));
    }
}
