//! Tests of the format: by topic between our own ends, and byte by byte.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::transport::{Arrived, EbTransport, Framing};
use daqmeter_etherbone::{Client, ClientOptions, EbError, Slave};
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbMessage, Endian, Width, Widths};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn memory() -> Slave {
    Slave::new(Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Big).build().unwrap())
}

fn answered(slave: &mut Slave, request: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    slave.datagram(0, &hex(request), &mut answer);
    answer
}

#[derive(Clone, Default)]
struct Played {
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
    stream: bool,
}

impl EbTransport for Played {
    fn framing(&self) -> Framing {
        if self.stream { Framing::Stream } else { Framing::Datagram { max_bytes: 1472 } }
    }
    fn send(&mut self, bytes: &[u8], _lengths: &[usize]) -> Result<(), EbError> {
        self.sent.lock().unwrap().push(bytes.to_vec());
        Ok(())
    }
    fn receive(&mut self, buffer: &mut [u8], _wait: Duration) -> Result<Option<Arrived>, EbError> {
        let Some(answer) = self.answers.lock().unwrap().pop_front() else {
            return Err(EbError::Closed);
        };
        buffer[..answer.len()].copy_from_slice(&answer);
        Ok(Some(Arrived { bytes: answer.len(), segment_bytes: answer.len() }))
    }
}

fn client(played: &Played) -> Client {
    let w32 = Widths::only(Width::W32);
    let probes = u32::from(played.stream);
    let options = ClientOptions {
        address: w32,
        data: w32,
        probes,
        timeout: Duration::from_millis(5),
        ..ClientOptions::default()
    };
    Client::over(Box::new(played.clone()), &options, "played").unwrap()
}

#[test]
fn message_header_names_one_width_each_and_says_whether_anything_is_answered() {
    let played = Played::default();
    let mut client = client(&played);
    client.cycle(&[Op::write(0, 1, Width::W32)], StatusCheck::Silent).unwrap();
    let _ = client.cycle(&[Op::read(0, Width::W32)], StatusCheck::Silent);
    let sent = played.sent.lock().unwrap();
    assert_eq!(sent[0][..4], [0x4e, 0x6f, 0x14, 0x44]);
    assert_eq!(sent[1][..4], [0x4e, 0x6f, 0x10, 0x44]);
    assert!(EbHeader::parse(&sent[1]).unwrap().layout().is_ok());
}

#[test]
fn alignment_of_values_and_headers_follows_the_wider_width_in_both_directions() {
    for layout in EbLayout::all() {
        let read = Op::read(0, layout.data);
        let mut out = [0; 256];
        let encoded = encode(&[read], layout, 0x8000, StatusCheck::Silent, &mut out).unwrap();
        assert_eq!(encoded.bytes, layout.header_bytes() + 2 * layout.value_bytes());
        let mut request = EbHeader::of(layout, false).emit().to_vec();
        request.resize(layout.header_bytes(), 0);
        request.extend(&out[..encoded.bytes]);
        let mut answer = Vec::new();
        memory().datagram(0, &request, &mut answer);
        assert_eq!(answer.len(), request.len(), "{layout:?}");
        assert_eq!(EbMessage::parse(&answer).unwrap().layout, layout);
    }
}

#[test]
fn replies_are_never_longer_than_their_requests_and_padding_is_accepted() {
    // The HDL slave answers a cycle of one write and one read with the length of the request, zero
    // words first.
    let played = Played::default();
    let answer = "4e6f1444 00000000 00000000 0e0f0100 00008000 cafef00d";
    played.answers.lock().unwrap().push_back(hex(answer));
    let ops = [Op::write(0x10000, 1, Width::W32), Op::read(0x10000, Width::W32)];
    let mut client = client(&played);
    assert_eq!(client.cycle(&ops, StatusCheck::Silent).unwrap().values, [0, 0xcafe_f00d]);
    assert_eq!(client.counts().malformed, 0);
}

#[test]
fn cyc_ends_a_cycle_and_a_datagram_may_hold_many() {
    let mut slave = memory();
    let two = "4e6f1044 a80f0001 00008000 00010000 a80f0001 00008002 00010004";
    let answer = answered(&mut slave, two);
    assert_eq!(answer, hex("4e6f1444 0e0f0100 00008000 00000000 0e0f0100 00008002 00000000"));
    assert_eq!(slave.counts.cycles, 2);
    // A cycle may not span datagrams: complete operations are executed, nothing is held.
    assert_eq!(answered(&mut slave, "4e6f1044 a00f0001 00008000 00010000").len(), 16);
    assert_eq!(answered(&mut slave, "4e6f1044 a80f0001 00008002 00010000").len(), 16);
}

#[test]
fn per_operation_errors_are_shifted_in_but_not_by_config_operations_or_sdb_reads() {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    // Good, bad, config read, table read, bad; then the register.
    let answer = answered(
        &mut slave,
        "4e6f1044 a00f0002 00008000 00010000 70000000 e00f0001 00008000 0000000c
         a00f0002 00008000 00000300 70000000 e80f0001 00008001 00000004",
    );
    assert_eq!(answer[answer.len() - 4..], hex("00000005"));
}

#[test]
fn transports_and_framing_a_stream_has_one_probe_and_then_bare_records() {
    let played = Played { stream: true, ..Played::default() };
    played.answers.lock().unwrap().extend([
        hex("4e6f16ff"),
        hex("00000000"),
        hex("0e0f0100 000080"),
        hex("00 00000009"),
    ]);
    let mut client = client(&played);
    assert_eq!(client.cycle(&[Op::read(4, Width::W32)], StatusCheck::Silent).unwrap().values, [9]);
    let sent = played.sent.lock().unwrap();
    assert_eq!(sent[0][..4], [0x4e, 0x6f, 0x11, 0x44]);
    assert_eq!(sent[1], hex("a80f0001 00008000 00000004"));
}

#[test]
fn config_space_is_a_bus_of_its_own() {
    let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
    let pointer = answered(&mut slave, "4e6f1044 e80f0002 00008000 00000008 0000000c");
    assert_eq!(pointer, hex("4e6f1444 0e0f0200 00008000 00000000 00000300"));
    answered(&mut slave, "4e6f1444 ac0f0100 0000000c deadbeef");
    assert_eq!(answered(&mut slave, "4e6f1044 e80f0002 00008000 00000008 0000000c"), pointer);
    assert_eq!(answered(&mut slave, "4e6f1044 e80f0001 00008000 0000002c")[12..], hex("00000002"));
}
