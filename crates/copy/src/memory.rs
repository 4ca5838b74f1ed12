//! Memory read and written in a given ratio over a given footprint, by each store of this CPU and
//! by copies. The session also runs the copies of `plain-copy`.

use daqmeter_harness::{
    Fault, Job, Problem, Request, Session, StageSpec, StopFlag, Tally, check_lanes, is_one, one,
};
use daqmeter_kernels::copy::CopyKernel;
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
    #[serde(default = "one::<usize>", skip_serializing_if = "is_one")]
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
        let memory_bytes = Footprint::of(self).map(|footprint| footprint.memory_bytes(self.lanes));
        Ok(Job { memory_bytes, ..job })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    ratio: StreamRatio,
    read_bytes: usize,
    write_bytes: usize,
}

impl Footprint {
    /// Returns the footprint of a copy of `bytes`.
    pub(crate) fn of_copy(bytes: usize) -> Footprint {
        Footprint { ratio: StreamRatio::COPY, read_bytes: bytes, write_bytes: bytes }
    }

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

    pub(crate) fn memory_bytes(&self, lanes: usize) -> u64 {
        let lane = buffer_bytes(self.read_bytes as u64)
            .saturating_add(buffer_bytes(self.destination_bytes() as u64));
        lane.saturating_mul(lanes as u64)
    }
}

struct MemorySession {
    footprint: Footprint,
    variants: Vec<Variant>,
    buffers: Option<(Buffer, Buffer)>,
    stop: StopFlag,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Variant {
    Stream(Isa, Store),
    Kernel(CopyKernel),
}

impl Variant {
    fn name(self) -> String {
        match self {
            Variant::Stream(isa, store) => format!("{} {}", isa.name(), store.name()),
            Variant::Kernel(kernel) => kernel.name().to_owned(),
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
    if ratio.write_bytes() > 0 && best.has_non_temporal() {
        variants.push(Variant::Stream(best, Store::NonTemporal));
    }
    if ratio == StreamRatio::COPY {
        variants.push(Variant::Kernel(CopyKernel::Memcpy));
    }
    variants
}

fn open(request: &MemoryRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let footprint = Footprint::of(request).ok_or_else(|| {
        Fault::new("read_bytes in that ratio is more than this machine can address")
    })?;
    Ok(sessions(request.lanes, footprint, &variants(footprint.ratio)))
}

/// Returns a session for each lane, with a stage for each variant.
pub(crate) fn sessions(
    lanes: usize,
    footprint: Footprint,
    variants: &[Variant],
) -> Vec<Box<dyn Session>> {
    let session = |_| -> Box<dyn Session> {
        let (variants, stop) = (variants.to_vec(), StopFlag::default());
        Box::new(MemorySession { footprint, variants, buffers: None, stop })
    };
    (0..lanes).map(session).collect()
}

/// Returns a warning of a buffer that got no huge pages.
pub(crate) fn on_base_pages(buffer: &Buffer) -> Option<String> {
    (buffer.pages() == Pages::Base)
        .then(|| "no huge pages for the buffers: TLB misses reduce the rates".to_owned())
}

/// Fills memory with a prime number of different values, so that lines differ. Bytes one by one
/// would take seconds for a gigabyte.
fn fill(bytes: &mut [u8]) {
    let pattern = Vec::from_iter(0..=250).repeat(64);
    for part in bytes.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

impl MemorySession {
    /// Returns the source and the destination.
    fn sides(&mut self) -> (&[u8], &mut [u8]) {
        let (source, destination) = self.buffers.as_mut().expect("prepared before it is used");
        let bytes = self.footprint.destination_bytes();
        (source.slice(self.footprint.read_bytes), destination.slice_mut(bytes))
    }

    /// Checks the bytes that a stage wrote: all of a copy, some lines of a stream.
    fn check(&mut self, stage: usize) -> Result<(), Fault> {
        let (variant, Footprint { ratio, write_bytes, .. }) =
            (self.variants[stage], self.footprint);
        let (source, destination) = self.sides();
        let written = &destination[..write_bytes];
        if let Variant::Kernel(kernel) = variant {
            let differs = || source.iter().zip(written).position(|(from, to)| from != to);
            return match (source != written).then(differs).flatten() {
                None => Ok(()),
                Some(at) => Err(Fault::new(format!("{}: byte {at} is wrong", kernel.name()))),
            };
        }
        let steps = written.chunks_exact(ratio.write_bytes().max(LINE_BYTES));
        for (step, lines) in steps.enumerate().step_by(97) {
            let read = &source[step * ratio.read_bytes()..][..ratio.read_bytes()];
            let expected = read.chunks_exact(LINE_BYTES).fold(0, |folded, line| folded ^ line[5]);
            let found = lines[5];
            if found != expected {
                let variant = variant.name();
                return Err(Fault::new(format!(
                    "{variant}: step {step} wrote {found}, expected {expected}"
                )));
            }
        }
        Ok(())
    }
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
        fill(source.slice_mut::<u8>(self.footprint.read_bytes));
        let destination = Buffer::new(self.footprint.destination_bytes(), Pages::Transparent)?;
        self.buffers = Some((source, destination));
        Ok(())
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let (variant, ratio) = (self.variants[stage], self.footprint.ratio);
        let (source, destination) = self.sides();
        for _ in 0..operations {
            match variant {
                Variant::Stream(isa, store) => {
                    stream(isa, store, ratio, source, destination);
                }
                Variant::Kernel(kernel) => kernel.copy(source, &mut destination[..source.len()]),
            }
            std::hint::black_box(&mut *destination);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        for stage in 0..self.variants.len() {
            if self.stop.is_set() {
                return Err(Fault::interrupted());
            }
            if matches!(self.variants[stage], Variant::Kernel(_)) {
                self.sides().1.fill(0xA5);
            }
            self.step(stage, 1)?;
            self.check(stage)?;
        }
        Ok(())
    }

    fn tally(&mut self) -> Tally {
        let Some((source, _)) = &self.buffers else { return Tally::default() };
        let warnings = on_base_pages(source).into_iter().collect();
        Tally { numa_node: source.numa_node(), warnings, ..Tally::default() }
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
        assert_eq!(request.job().unwrap().memory_bytes, Some(2 * (8 + 18) * MIB));
    }

    #[test]
    fn each_lane_is_a_session() {
        let three = ENGINE.parse(&ENGINE.example().with("lanes", 3_u64)).unwrap();
        assert_eq!(three.open().unwrap().len(), 3);
    }
}
