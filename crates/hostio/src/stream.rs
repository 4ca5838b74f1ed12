//! Messages of one size over a TCP connection of this host: the bound of a chain's network.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use daqmeter_harness::{Fault, Job, LimitSpec, Problem, Request, Session, StageSpec, Tally};
use daqmeter_record::Ledger;
use daqmeter_sys::affinity;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const MAX_MESSAGE_BYTES: usize = 16 << 20;
const NUMBER_BYTES: usize = 8;

/// Messages that a thread at the other end sends as fast as they are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamRequest {
    /// Bytes of one message, 8 or more
    pub message_bytes: usize,
    /// CPU of the sender; it runs anywhere unless one is named
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_cpu: Option<u32>,
}

impl Request for StreamRequest {
    const KIND: &'static str = "stream";
    const DESCRIPTION: &'static str =
        "messages of one size over TCP on loopback, sender and receiver in threads of their own";

    fn example() -> StreamRequest {
        StreamRequest { message_bytes: 4096, peer_cpu: None }
    }

    fn job(&self) -> Result<Job, Fault> {
        let bytes = self.message_bytes as u64;
        Ok(Job {
            waiver: waiver(),
            memory_bytes: Some(buffer_bytes(bytes).saturating_add(bytes)),
            ..Job::new(self, "tcp on loopback", open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        let bounds = NUMBER_BYTES..=MAX_MESSAGE_BYTES;
        Problem::unless_within("message_bytes", self.message_bytes, bounds)?;
        Problem::unless_cpus_exist("peer_cpu", self.peer_cpu.as_slice())
    }
}

struct StreamSession {
    request: StreamRequest,
    ends: Option<Ends>,
    ledger: Ledger,
}

struct Ends {
    /// `None` once it is closed.
    socket: Option<TcpStream>,
    buffer: Buffer,
    next: u64,
    sender: Option<JoinHandle<()>>,
}

fn open(request: &StreamRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    Ok(vec![Box::new(StreamSession {
        request: request.clone(),
        ends: None,
        ledger: Ledger::new("messages"),
    })])
}

fn waiver() -> Option<String> {
    let error = TcpListener::bind(("127.0.0.1", 0)).err()?;
    Some(format!("no socket on loopback: {error}; bring lo up"))
}

impl Session for StreamSession {
    fn device(&self) -> String {
        "lo".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.request.message_bytes as u64;
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
        let (bytes, cpu) = (self.request.message_bytes, self.request.peer_cpu);
        let spawned = std::thread::Builder::new()
            .name("sender".to_owned())
            .spawn(move || send(&other, message(bytes), cpu));
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
            ends.receive(self.request.message_bytes)?;
            self.ledger.delivered += 1;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let ends = self.ends.as_mut().expect("prepared before verification");
        let bytes = self.request.message_bytes;
        ends.receive(bytes)?;
        let (found, wanted) = (ends.buffer.slice::<u8>(bytes), message(bytes));
        match (NUMBER_BYTES..bytes).find(|&at| found[at] != wanted[at]) {
            None => Ok(()),
            Some(at) => Err(Fault::new(format!("byte {at} of a message is wrong"))),
        }
    }

    fn tally(&mut self) -> Tally {
        Tally { ledgers: vec![self.ledger.clone()], ..Tally::default() }
    }
}

/// Returns the bytes of each message, before its number replaces the first ones.
fn message(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}

fn send(socket: &TcpStream, mut message: Vec<u8>, cpu: Option<u32>) {
    if let Some(cpu) = cpu {
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
    /// Receives one message, which must be the next.
    fn receive(&mut self, bytes: usize) -> Result<(), Fault> {
        let into = self.buffer.slice_mut::<u8>(bytes);
        self.socket
            .as_mut()
            .expect("closed only when dropped")
            .read_exact(into)
            .map_err(|error| Fault::new(format!("receive: {error}")))?;
        let number = into.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        if number != self.next {
            return Err(Fault::new(format!("message {number} came where {} was due", self.next)));
        }
        self.next += 1;
        Ok(())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // Closed, not only shut down: with unread data that resets the connection, and the sender's
        // write ends.
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
        conformance::run(&StreamRequest::example().job().unwrap());
    }

    #[test]
    fn sizes_that_cannot_be_numbered_and_cpus_that_are_not_here_are_refused() {
        let sizes = [0, 7, (16 << 20) + 1].map(|bytes| ("message_bytes", bytes, "is wanted"));
        for (name, value, wanted) in
            [("peer_cpu", 9999, "there is no such CPU")].iter().chain(&sizes)
        {
            let workload = StreamRequest::example().workload().with(name, *value as u64);
            let error = StreamRequest::of(&workload).unwrap_err().0;
            assert!(
                error.contains(&format!("`{name}` is {value}")) && error.contains(wanted),
                "{error}"
            );
        }
    }
}
