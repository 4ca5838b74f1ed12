//! Runs the client against answers from a hostile slave, by datagrams and by a stream: every cycle
//! ends once, without a panic.
#![no_main]

use std::time::Duration;

use daqmeter_etherbone::transport::{Arrived, EbTransport, Framing};
use daqmeter_etherbone::{Client, ClientOptions, EbDialect, EbError};
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck};
use daqmeter_wire::etherbone::{Width, Widths};
use libfuzzer_sys::fuzz_target;

struct Played {
    stream: bool,
    segment: usize,
    left: Vec<u8>,
}

impl EbTransport for Played {
    fn framing(&self) -> Framing {
        if self.stream { Framing::Stream } else { Framing::Datagram }
    }

    fn window_bytes(&self) -> usize {
        256
    }

    fn send(&mut self, _bytes: &[u8], _lengths: &[usize]) -> Result<(), EbError> {
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _wait: Duration) -> Result<Option<Arrived>, EbError> {
        if self.left.is_empty() {
            return Err(EbError::Closed);
        }
        let bytes = self.left.len().min(4 * self.segment).min(buffer.len());
        buffer[..bytes].copy_from_slice(&self.left[..bytes]);
        self.left.drain(..bytes);
        Ok(Some(Arrived { bytes, segment_bytes: self.segment.min(bytes) }))
    }
}

fuzz_target!(|input: (u8, u8, Vec<u8>)| {
    let (kind, segment, bytes) = input;
    let stream = kind & 1 == 1;
    let dialect = if kind & 2 == 2 { EbDialect::Litex } else { EbDialect::Gsi };
    let hello: &[u8] = if stream { &[0x4e, 0x6f, 0x16, 0xff, 0, 0, 0, 0] } else { &[] };
    let left = [hello, &bytes].concat();
    let options = ClientOptions {
        address: Widths::only(Width::W32),
        data: Widths::only(Width::W32),
        probes: u32::from(stream),
        timeout: Duration::from_micros(1),
        window_cycles: 4,
        dialect,
        ..ClientOptions::default()
    };
    let transport = Box::new(Played { stream, segment: usize::from(segment) + 1, left });
    let Ok(mut client) = Client::over(transport, &options, "played") else {
        return;
    };
    let reads: Vec<Op> = (0..40).map(|word| Op::read(4 * word, Width::W32)).collect();
    let _ = client.cycle(&reads[..3], StatusCheck::Status);
    let mut ended = 0_u64;
    let mut submitted = 0_u64;
    {
        let mut pipeline = client.pipeline(|done| {
            assert!(done.words.len() <= 40);
            ended += 1;
        });
        for token in 0..8 {
            let length = 1 + usize::try_from(token).unwrap() * 5;
            match pipeline.submit(&reads[..length], StatusCheck::Status, token) {
                Ok(()) => submitted += 1,
                Err(_) => break,
            }
        }
        let _ = pipeline.finish();
    }
    assert!(ended <= 8 && submitted <= 8);
    if dialect == EbDialect::Gsi {
        let counts = client.counts();
        assert_eq!(
            counts.issued,
            counts.completed + counts.timed_out + counts.abandoned,
            "{counts:?}"
        );
    }
});
