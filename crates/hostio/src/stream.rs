//! Messages of one size over a TCP connection of this host: what a chain's network could carry at best.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_record::{Ledger, Workload};
use daqmeter_sys::affinity;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};

/// Largest message.
const MOST_BYTES: u64 = 16 << 20;
/// Every message begins with its number.
const NUMBER_BYTES: usize = 8;

/// Receives what a thread at the other end sends as fast as it is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamEngine;

struct StreamSession {
    bytes: usize,
    sender_cpu: Option<u32>,
    ends: Option<Ends>,
    ledger: Ledger,
}

struct Ends {
    /// None once it is closed.
    socket: Option<TcpStream>,
    buffer: Buffer,
    next: u64,
    sender: Option<JoinHandle<()>>,
}

impl Engine for StreamEngine {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn description(&self) -> &'static str {
        "messages of one size over TCP on loopback, sender and receiver in threads of their own"
    }

    fn probe(&self) -> Availability {
        match TcpListener::bind(("127.0.0.1", 0)) {
            Ok(_) => Availability::Ready,
            Err(error) => {
                Availability::Waived(format!("no socket on loopback: {error}; bring lo up"))
            }
        }
    }

    fn target(&self, _workload: &Workload) -> String {
        "tcp on loopback".to_owned()
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "message_bytes": "bytes of one message, 8 or more",
            "sender_cpu": "CPU of the sender; it runs anywhere unless one is named",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        let bytes = workload.int("message_bytes").ok()?;
        Some(buffer_bytes(bytes).saturating_add(bytes))
    }

    fn example(&self) -> Workload {
        Workload::new("stream").with("message_bytes", 4096_u64)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let bytes = workload.int("message_bytes")?;
        if !(NUMBER_BYTES as u64..=MOST_BYTES).contains(&bytes) {
            let problem = format!("is {bytes}; {NUMBER_BYTES} to {MOST_BYTES} is wanted");
            return Err(workload.error("message_bytes", problem).into());
        }
        let sender_cpu = if workload.params.contains_key("sender_cpu") {
            let cpu = workload.int("sender_cpu")?;
            Some(
                u32::try_from(cpu)
                    .map_err(|_| workload.error("sender_cpu", format!("is {cpu}, not a CPU")))?,
            )
        } else {
            None
        };
        let bytes = usize::try_from(bytes).map_err(|_| Fault::new("beyond this machine"))?;
        Ok(vec![Box::new(StreamSession {
            bytes,
            sender_cpu,
            ends: None,
            ledger: Ledger::new("messages"),
        })])
    }
}

impl Session for StreamSession {
    fn device(&self) -> String {
        "lo".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.bytes as u64;
        let mut stage = StageSpec::new("receive", bytes, 2 * bytes);
        // Each end copies each byte once; with a CPU for each end the slower copy is the limit.
        stage.limit = Some(LimitSpec::memory(bytes, 1, 1));
        vec![stage]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let refused = |error: std::io::Error| Fault::new(format!("loopback: {error}"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(refused)?;
        let socket =
            TcpStream::connect(listener.local_addr().map_err(refused)?).map_err(refused)?;
        let (other, _) = listener.accept().map_err(refused)?;
        let (bytes, cpu) = (self.bytes, self.sender_cpu);
        let mut message = vec![0_u8; bytes];
        for (place, value) in message.iter_mut().zip((0..=250).cycle()) {
            *place = value;
        }
        let spawned = std::thread::Builder::new()
            .name("sender".to_owned())
            .spawn(move || send(&other, message, cpu));
        let buffer = Buffer::new(bytes, Pages::Transparent)?;
        self.ends = Some(Ends {
            socket: Some(socket),
            buffer,
            next: 0,
            sender: Some(spawned.map_err(refused)?),
        });
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let ends = self.ends.as_mut().expect("prepared before the first step");
        for _ in 0..operations {
            self.ledger.issued += 1;
            ends.receive(self.bytes)?;
            self.ledger.delivered += 1;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let ends = self.ends.as_mut().expect("prepared before verification");
        ends.receive(self.bytes)?;
        let wrong = ends
            .buffer
            .slice::<u8>(self.bytes)
            .iter()
            .zip((0..=250).cycle())
            .skip(NUMBER_BYTES)
            .position(|(a, b)| *a != b);
        match wrong {
            None => Ok(()),
            Some(at) => Err(Fault::new(format!(
                "byte {} of a message is wrong",
                at + NUMBER_BYTES
            ))),
        }
    }

    fn tally(&mut self) -> Tally {
        Tally {
            ledgers: vec![self.ledger.clone()],
            ..Tally::default()
        }
    }
}

/// Sends until the other end goes away.
fn send(socket: &TcpStream, mut message: Vec<u8>, cpu: Option<u32>) {
    if let Some(cpu) = cpu {
        // Where it is refused the thread runs anywhere, as the record's placement then shows.
        let _ = affinity::pin_to(cpu);
    }
    let mut socket = socket;
    for number in 0_u64.. {
        message[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        if socket.write_all(&message).is_err() {
            return;
        }
    }
}

impl Ends {
    /// One message, which must be the next.
    fn receive(&mut self, bytes: usize) -> Result<(), Fault> {
        let into = self.buffer.slice_mut::<u8>(bytes);
        self.socket
            .as_mut()
            .expect("closed only when dropped")
            .read_exact(into)
            .map_err(|error| Fault::new(format!("receive: {error}")))?;
        let number = into
            .first_chunk()
            .map_or(0, |number| u64::from_le_bytes(*number));
        if number != self.next {
            return Err(Fault::new(format!(
                "message {number} came where {} was due",
                self.next
            )));
        }
        self.next += 1;
        Ok(())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // Closed, not only shut down: with unread data that resets the connection, and the sender's write ends.
        drop(self.socket.take());
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_harness::conformance;

    #[test]
    fn it_keeps_the_contract() {
        conformance::run(&StreamEngine);
    }

    #[test]
    fn sizes_that_cannot_be_numbered_are_refused() {
        for bytes in [0_u64, 7, (16 << 20) + 1] {
            let error = StreamEngine
                .open(&StreamEngine.example().with("message_bytes", bytes))
                .err()
                .unwrap();
            assert!(error.0.contains("message_bytes"), "{}", error.0);
        }
    }
}
