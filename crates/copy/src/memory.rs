//! Memory read and written in a given ratio over a given footprint, by each store of this CPU and
//! by glibc's memcpy.

use daqmeter_harness::{
    Fault, Job, Problem, Request, Session, StageSpec, Tally, check_lanes, is_one, one,
};
use daqmeter_kernels::stream::{LINE_BYTES, StreamRatio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory read and written in a given ratio. Rates count the bytes read, so that they compare
/// directly with a stage that reads the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryRequest {
    /// Bytes read in one pass; whole steps are read, at least one
    pub read_bytes: u64,
    /// Cache lines read in each step, at least 1
    pub read_lines: u64,
    /// Cache lines written in each step
    pub write_lines: u64,
    /// Threads that stream at the same time
    #[serde(default = "one::<usize>", alias = "threads", skip_serializing_if = "is_one")]
    pub lanes: usize,
}

/// Largest footprint; allocation refuses more than the host has.
const MAX_READ_BYTES: u64 = 1 << 44;

impl MemoryRequest {
    /// Limit of lines read or written in a step: 64 KiB. Conversions need 64.
    pub const MAX_LINES: u64 = 1024;

    pub fn new(read_bytes: u64, read_lines: u64, write_lines: u64) -> MemoryRequest {
        MemoryRequest { read_bytes, read_lines, write_lines, lanes: 1 }
    }
}

impl Request for MemoryRequest {
    const KIND: &'static str = "memory";
    const DESCRIPTION: &'static str = "reads, writes and copies memory in a given ratio: the limit that other stages are held against";

    fn example() -> MemoryRequest {
        MemoryRequest::new(65_536, 1, 2)
    }

    fn check(&self) -> Result<(), Problem> {
        let max_lines = MemoryRequest::MAX_LINES;
        Problem::unless_within("read_lines", self.read_lines, 1..=max_lines)?;
        Problem::unless_within("write_lines", self.write_lines, 0..=max_lines)?;
        Problem::unless_within("read_bytes", self.read_bytes, 0..=MAX_READ_BYTES)?;
        check_lanes("lanes", self.lanes)
    }

    fn job(&self) -> Result<Job, Fault> {
        let job = Job::new(self, Isa::best().name(), open);
        Ok(Job { memory_bytes: memory_bytes(self), ..job })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Footprint {
    ratio: StreamRatio,
    read_bytes: usize,
    write_bytes: usize,
}

impl Footprint {
    /// Computes the footprint of a checked request; `None` beyond the address space.
    fn of(request: &MemoryRequest) -> Option<Footprint> {
        let lines = |lines: u64| usize::try_from(lines).ok();
        let ratio = StreamRatio::new(lines(request.read_lines)?, lines(request.write_lines)?)?;
        let read_bytes = usize::try_from(request.read_bytes).ok()?;
        let steps = read_bytes.div_ceil(ratio.read_bytes()).max(1);
        Some(Footprint {
            ratio,
            read_bytes: steps.checked_mul(ratio.read_bytes())?,
            write_bytes: steps.checked_mul(ratio.write_bytes())?,
        })
    }

    /// Adds one line, because streams begin on a line boundary of the destination.
    fn destination_bytes(&self) -> usize {
        self.write_bytes + LINE_BYTES
    }
}

struct MemorySession {
    footprint: Footprint,
    variants: Vec<Variant>,
    buffers: Option<(Buffer, Buffer)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Stream(Isa, Store),
    Memcpy,
}

impl Variant {
    fn name(self) -> String {
        match self {
            Variant::Stream(isa, store) => format!("{} {}", isa.name(), store.name()),
            Variant::Memcpy => "memcpy".to_owned(),
        }
    }
}

/// Lists the best set of this CPU with both stores, and the libc's copy for the ratio of a copy.
fn variants(ratio: StreamRatio) -> Vec<Variant> {
    let best = Isa::best();
    let mut variants = vec![Variant::Stream(best, Store::Cached)];
    if best == Isa::Avx512 {
        // 512-bit stores are not the fastest everywhere (Zen 4 splits them): the limit must be the
        // better of both widths.
        variants.push(Variant::Stream(Isa::Avx2, Store::Cached));
    }
    if ratio.write_lines() > 0 && best.has_non_temporal() {
        variants.push(Variant::Stream(best, Store::NonTemporal));
    }
    if ratio == StreamRatio::COPY {
        variants.push(Variant::Memcpy);
    }
    variants
}

fn memory_bytes(request: &MemoryRequest) -> Option<u64> {
    let footprint = Footprint::of(request)?;
    let lane = buffer_bytes(footprint.read_bytes as u64)
        .saturating_add(buffer_bytes(footprint.destination_bytes() as u64));
    Some(lane.saturating_mul(request.lanes as u64))
}

fn open(request: &MemoryRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let footprint = Footprint::of(request).ok_or_else(|| {
        Fault::new("read_bytes in that ratio is more than this machine can address")
    })?;
    let session = |_| -> Box<dyn Session> {
        Box::new(MemorySession { footprint, variants: variants(footprint.ratio), buffers: None })
    };
    Ok((0..request.lanes).map(session).collect())
}

impl Session for MemorySession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let Footprint { read_bytes, write_bytes, .. } = self.footprint;
        let (read, moved) = (read_bytes as u64, read_bytes as u64 + write_bytes as u64);
        self.variants.iter().map(|variant| StageSpec::new(variant.name(), read, moved)).collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let mut source = Buffer::new(self.footprint.read_bytes, Pages::Transparent)?;
        crate::plain::fill(source.slice_mut::<u8>(self.footprint.read_bytes));
        let destination = Buffer::new(self.footprint.destination_bytes(), Pages::Transparent)?;
        self.buffers = Some((source, destination));
        Ok(())
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let (source, destination) = self.buffers.as_mut().expect("prepared before the first step");
        let source = source.slice::<u8>(self.footprint.read_bytes);
        let destination = destination.slice_mut::<u8>(self.footprint.destination_bytes());
        for _ in 0..operations {
            match self.variants[stage] {
                Variant::Stream(isa, store) => {
                    stream(isa, store, self.footprint.ratio, source, destination);
                }
                Variant::Memcpy => destination[..source.len()].copy_from_slice(source),
            }
            std::hint::black_box(&mut *destination);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let Footprint { ratio, read_bytes, write_bytes, .. } = self.footprint;
        for stage in 0..self.variants.len() {
            self.step(stage, 1)?;
            let (source, destination) =
                self.buffers.as_ref().expect("prepared before verification");
            let source = source.slice::<u8>(read_bytes);
            let written = destination.slice::<u8>(write_bytes);
            for (step, lines) in
                written.chunks_exact(ratio.write_bytes().max(LINE_BYTES)).enumerate().step_by(97)
            {
                let read = &source[step * ratio.read_bytes()..][..ratio.read_bytes()];
                let expected =
                    read.chunks_exact(LINE_BYTES).fold(0, |folded, line| folded ^ line[5]);
                let found = lines[5];
                if found != expected && ratio.write_lines() > 0 {
                    let variant = self.variants[stage].name();
                    return Err(Fault::new(format!(
                        "{variant}: step {step} wrote {found}, expected {expected}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn tally(&mut self) -> Tally {
        let (pages, numa_node) = match &self.buffers {
            Some((source, _)) => (source.pages(), source.numa_node()),
            None => return Tally::default(),
        };
        let fell_back = (pages == Pages::Base)
            .then(|| "no huge pages for the buffers: TLB misses reduce the rates".to_owned());
        Tally { numa_node, warnings: fell_back.into_iter().collect(), ..Tally::default() }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::Engine;

    use super::*;

    const ENGINE: Engine = Engine::of::<MemoryRequest>();

    #[test]
    fn memory_conforms() {
        daqmeter_harness::conformance::run(&MemoryRequest::example().job().unwrap());
    }

    /// The products wrapped in a release build: one wrote out of bounds, the other divided by zero.
    #[test]
    fn ratios_footprints_and_lanes_that_cannot_be_are_refused_by_name() {
        for (name, value) in [
            ("read_lines", 0),
            ("read_lines", 288_230_376_151_711_745),
            ("read_lines", 1 << 58),
            ("write_lines", 288_230_376_151_711_745),
            ("write_lines", 1 << 58),
            ("read_bytes", u64::MAX),
            ("lanes", 0),
            ("lanes", 1 << 63),
        ] {
            let fault = ENGINE.parse(&ENGINE.example().with(name, value)).unwrap_err().0;
            assert!(fault.contains(&format!("`{name}` is {value}; ")), "{fault}");
        }
    }

    #[test]
    fn the_largest_ratio_writes_what_was_read_and_nothing_else() {
        let max = MemoryRequest::MAX_LINES;
        assert_eq!(max, StreamRatio::MAX_LINES as u64);
        for (reads, writes) in [(max, 1), (1, max), (max, max)] {
            let request = MemoryRequest::new(3 * 64 * reads - 1, reads, writes);
            let mut sessions = open(&request).unwrap();
            sessions[0].prepare().unwrap();
            sessions[0].verify().unwrap();
        }
    }

    #[test]
    fn the_memory_of_a_point_is_known_beforehand() {
        const MIB: u64 = 1 << 20;
        let request = MemoryRequest { read_bytes: 8 * MIB, lanes: 2, ..MemoryRequest::example() };
        assert_eq!(memory_bytes(&request), Some(2 * (8 + 18) * MIB));
    }

    #[test]
    fn each_lane_is_a_session() {
        let three = ENGINE.parse(&ENGINE.example().with("lanes", 3_u64)).unwrap();
        assert_eq!(three.open().unwrap().len(), 3);
    }
}
