//! The client against a transport that plays recorded answers, byte by byte.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use daqmeter_etherbone::transport::{Arrived, EbTransport, Framing};

use super::*;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[derive(Clone, Default)]
struct Played {
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
    stream: bool,
}

impl EbTransport for Played {
    fn framing(&self) -> Framing {
        if self.stream { Framing::Stream } else { Framing::Datagram }
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
    let probes = u32::from(played.stream);
    let options = ClientOptions {
        address: W32,
        data: W32,
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
    client.cycle(&[Op::write(0, 1, Width::W32)], Silent).unwrap();
    let _ = client.cycle(&[Op::read(0, Width::W32)], Silent);
    let sent = played.sent.lock().unwrap();
    assert_eq!(sent[0][..4], [0x4e, 0x6f, 0x14, 0x44]);
    assert_eq!(sent[1][..4], [0x4e, 0x6f, 0x10, 0x44]);
}

#[test]
fn replies_are_never_longer_than_their_requests_and_padding_is_accepted() {
    // The HDL slave answers a cycle of one write and one read with the length of the request, zero
    // words first.
    let played = Played::default();
    let answer = words(&[0x4e6f_1444, 0, 0, 0x0e0f_0100, 0x8000, 0xcafe_f00d]);
    played.answers.lock().unwrap().push_back(answer);
    let ops = [Op::write(0x10000, 1, Width::W32), Op::read(0x10000, Width::W32)];
    let mut client = client(&played);
    assert_eq!(client.cycle(&ops, Silent).unwrap().values, [0, 0xcafe_f00d]);
    assert_eq!(client.counts().malformed, 0);
}

#[test]
fn transports_and_framing_a_stream_has_one_probe_and_then_bare_records() {
    let played = Played { stream: true, ..Played::default() };
    let answers = words(&[0x4e6f_16ff, 0, 0x0e0f_0100, 0x8000, 9]);
    let (probe, record) = answers.split_at(8);
    let parts = [&probe[..4], &probe[4..], &record[..7], &record[7..]].map(<[u8]>::to_vec);
    played.answers.lock().unwrap().extend(parts);
    let mut client = client(&played);
    assert_eq!(client.cycle(&[Op::read(4, Width::W32)], Silent).unwrap().values, [9]);
    let sent = played.sent.lock().unwrap();
    assert_eq!(sent[0][..4], [0x4e, 0x6f, 0x11, 0x44]);
    assert_eq!(sent[1], words(&[0xa80f_0001, 0x8000, 4]));
}
