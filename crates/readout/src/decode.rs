//! Engine `decode`: blocks into descriptors of their subchunks, nothing else.

use std::sync::atomic::AtomicBool;

use daqmeter_harness::{
    Fault, Job, LimitSpec, Problem, Request, Resolved, Session, StageSpec, Tally,
};
use daqmeter_record::units::whole;
use daqmeter_record::{Counter, Workload};
use daqmeter_sys::memory::buffer_bytes;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Subchunk, subchunks};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::card::ChannelId;
use crate::recording;
use crate::request::Chosen;
use crate::scenario::Scenario;

/// Blocks of a scenario into descriptors of their subchunks. One operation is one pass over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecodeRequest {
    /// Read-out chain whose blocks are decoded
    pub scenario: Resolved<Scenario>,
    /// Bytes of blocks, at most 16 GiB
    pub bytes: u64,
    /// DMA channels of each device of the card
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Bytes of a chunk
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
}

impl Request for DecodeRequest {
    const KIND: &'static str = "decode";
    const DESCRIPTION: &'static str = "FELIX blocks to descriptors of their subchunks";

    fn example() -> DecodeRequest {
        DecodeRequest {
            scenario: Resolved::default(),
            bytes: 1 << 20,
            channels: None,
            payload_bytes: None,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        let DecodeRequest { scenario, channels, payload_bytes, .. } = self.clone();
        let chosen = Chosen { scenario, channels, payload_bytes, ..Chosen::default() };
        let scenario = chosen.completed()?;
        let ring_bytes = buffer_bytes(scenario.card.ring.0 as u64);
        Ok(Job {
            memory_bytes: Some(self.bytes.saturating_add(ring_bytes)),
            ..Job::new(self, self.scenario.name(), move |request| open(request, &scenario))
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("bytes", self.bytes, 1..=1 << 34)
    }
}

fn open(request: &DecodeRequest, scenario: &Scenario) -> Result<Vec<Box<dyn Session>>, Fault> {
    let format = scenario.format().ok_or_else(|| Fault::new("no format"))?;
    let block_bytes = format.block_bytes as u64;
    let bytes = request.bytes / block_bytes * block_bytes;
    if bytes == 0 {
        let why = format!("is {}, less than a block of {block_bytes}", request.bytes);
        return Err(request.workload().error("bytes", why).into());
    }
    let (scenario, blocks, room) = (scenario.clone(), Vec::new(), Vec::new());
    let session = DecodeSession { scenario, format, bytes, blocks, room, subchunks: 0 };
    Ok(vec![Box::new(session)])
}

/// Limit of a stage that reads these bytes once.
pub fn read_limit(bytes: u64, whose: &str) -> LimitSpec {
    LimitSpec::Measured {
        name: format!("memory read at {bytes} B"),
        how: format!("the {whose} bytes read once, in order, with no arithmetic"),
        workload: Workload::new("memory")
            .with("read_bytes", bytes)
            .with("read_lines", 1_u64)
            .with("write_lines", 0_u64),
        scale: 1.0,
    }
}

struct DecodeSession {
    scenario: Scenario,
    format: BlockFormat,
    bytes: u64,
    blocks: Vec<u8>,
    room: Vec<Subchunk>,
    /// Subchunks of one pass.
    subchunks: u64,
}

/// Finds the subchunks of whole blocks, and returns their number. `room` holds [`most_subchunks`].
/// Fails if the bytes are not blocks of the format.
pub fn decode(format: BlockFormat, blocks: &[u8], room: &mut [Subchunk]) -> Result<u64, Fault> {
    let size = format.block_bytes;
    let mut ahead = blocks.chunks_exact(size).skip(2);
    let mut seen = 0;
    for block in blocks.chunks_exact(size) {
        if let Some(ahead) = ahead.next() {
            daqmeter_kernels::prefetch(ahead);
        }
        let (_, found) =
            subchunks(format, block, room).map_err(|error| Fault::new(error.to_string()))?;
        seen += std::hint::black_box(found).len() as u64;
    }
    Ok(seen)
}

/// Fills a room with whole blocks, as the first channel of an emulated card writes them.
pub fn blocks_of_card(scenario: &Scenario, blocks: &mut [u8]) -> Result<(), Fault> {
    let triggers = whole(blocks.len() as f64 / scenario.event_bytes() * 1.1 + 1000.0);
    let first = ChannelId { device: 0, channel: 0 };
    let (mut left, never) = (&mut blocks[..], AtomicBool::new(false));
    let made = recording::record(scenario, first, triggers, &never, |part| {
        let taken = part.len().min(left.len());
        let (own, rest) = std::mem::take(&mut left).split_at_mut(taken);
        own.copy_from_slice(&part[..own.len()]);
        left = rest;
        Ok(())
    });
    made.map_err(|error| Fault::new(error.to_string()))?;
    match left.is_empty() {
        true => Ok(()),
        false => Err(Fault::new("the card made too few blocks")),
    }
}

impl Session for DecodeSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let limit = Some(read_limit(self.bytes, "blocks'"));
        let name = format!("decode {}", self.scenario.name);
        vec![StageSpec { limit, ..StageSpec::new(name, self.bytes, self.bytes) }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.room = vec![Subchunk::default(); most_subchunks(self.format)];
        let wanted = usize::try_from(self.bytes).map_err(|error| Fault::new(error.to_string()))?;
        let reserved = self.blocks.try_reserve_exact(wanted);
        reserved.map_err(|error| Fault::too_large(format!("{wanted} bytes of blocks: {error}")))?;
        self.blocks.resize(wanted, 0);
        blocks_of_card(&self.scenario, &mut self.blocks)
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            self.subchunks = decode(self.format, &self.blocks, &mut self.room)?;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let mut checker = crate::check::Checker::new(crate::check::CheckOptions::default());
        let checked = checker.take(&self.blocks).and_then(|()| checker.finish())?;
        let subchunks: u64 = checked.rows.iter().flat_map(|row| row.subchunks).sum();
        self.subchunks = decode(self.format, &self.blocks, &mut self.room)?;
        if !checked.is_good() || subchunks != self.subchunks {
            let faults = checked.faults;
            return Err(Fault::new(format!("the checker and the decoder disagree: {faults:?}")));
        }
        Ok(())
    }

    fn tally(&mut self) -> Tally {
        let blocks = (self.blocks.len() / self.format.block_bytes) as u64;
        let counters = [("subchunks per pass", self.subchunks), ("blocks per pass", blocks)];
        let counters = counters.map(|(name, value)| Counter::count(name, value)).to_vec();
        Tally { counters, ..Tally::default() }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::conformance;

    use super::*;

    #[test]
    fn decoding_conforms() {
        conformance::run(&DecodeRequest::example().job().unwrap());
    }

    #[test]
    fn its_memory_is_known_beforehand() {
        let ring = Scenario::load("gbt").unwrap().card.ring.0 as u64;
        let request = DecodeRequest { bytes: 1 << 33, ..DecodeRequest::example() };
        assert_eq!(request.job().unwrap().memory_bytes, Some((1 << 33) + ring));
    }

    #[test]
    fn less_than_a_block_is_refused() {
        let request = DecodeRequest { bytes: 1000, ..DecodeRequest::example() };
        let error = request.job().unwrap().open().err().unwrap().0;
        assert!(error.contains("`bytes` is 1000, less than a block"), "{error}");
    }
}
