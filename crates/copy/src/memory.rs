//! Memory read and written in a given ratio over a given footprint, by each store that this CPU has. Also glibc's memcpy.

use daqmeter_harness::{
    Availability, Engine, Fault, Parameter, Session, StageSpec, Tally, lanes, parameters,
};
use daqmeter_kernels::stream::{LINE_BYTES, Ratio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::Workload;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};

/// Streams memory. Workload `memory`: `read_bytes` (footprint of the source), `read_lines`:`write_lines` (ratio), `threads`.
/// Rates count the bytes read, so that they compare directly with a stage that reads the same bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryEngine;

/// What a workload asks for: whole steps, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    ratio: Ratio,
    read_bytes: usize,
    write_bytes: usize,
    lanes: usize,
}

/// Largest footprint; what a host lacks is refused when it is allocated.
const MAX_READ_BYTES: u64 = 1 << 44;

impl Request {
    fn of(workload: &Workload) -> Result<Request, Fault> {
        let lines = |name: &str, min: u64| -> Result<usize, Fault> {
            let lines = workload.int_within(name, min..=Ratio::MAX_LINES as u64)?;
            Ok(usize::try_from(lines).expect("at most MAX_LINES"))
        };
        let ratio = Ratio::new(lines("read_lines", 1)?, lines("write_lines", 0)?)
            .expect("both were checked");
        let footprint = workload.int_within("read_bytes", 0..=MAX_READ_BYTES)?;
        let too_large = || {
            workload.error(
                "read_bytes",
                "with that ratio is more than this machine can address",
            )
        };
        let footprint = usize::try_from(footprint).map_err(|_| too_large())?;
        let steps = footprint.div_ceil(ratio.read_bytes()).max(1);
        Ok(Request {
            ratio,
            read_bytes: steps
                .checked_mul(ratio.read_bytes())
                .ok_or_else(too_large)?,
            write_bytes: steps
                .checked_mul(ratio.write_bytes())
                .ok_or_else(too_large)?,
            lanes: lanes(workload, "threads")?,
        })
    }

    fn memory_bytes(&self) -> u64 {
        let lane = buffer_bytes(self.read_bytes as u64)
            .saturating_add(buffer_bytes(self.destination_bytes() as u64));
        lane.saturating_mul(self.lanes as u64)
    }

    /// One line more: streams begin on a line boundary of the destination.
    fn destination_bytes(&self) -> usize {
        self.write_bytes + LINE_BYTES
    }
}

struct MemorySession {
    request: Request,
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

/// The best set of this CPU with both stores, and the libc's copy where the ratio is that of a copy.
fn variants(ratio: Ratio) -> Vec<Variant> {
    let best = Isa::best();
    let mut variants = vec![Variant::Stream(best, Store::Cached)];
    if best == Isa::Avx512 {
        // 512-bit stores are not the fastest everywhere (Zen 4 splits them): the limit must be the best of both widths.
        variants.push(Variant::Stream(Isa::Avx2, Store::Cached));
    }
    if ratio.write_lines() > 0 && best.has_non_temporal() {
        variants.push(Variant::Stream(best, Store::NonTemporal));
    }
    if ratio == Ratio::COPY {
        variants.push(Variant::Memcpy);
    }
    variants
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn description(&self) -> &'static str {
        "reads, writes and copies memory in a given ratio: the limit that other stages are held against"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, _workload: &Workload) -> String {
        Isa::best().name().to_owned()
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "read_bytes": "bytes read in one pass",
            "read_lines": "cache lines read in each step, at least 1",
            "write_lines": "cache lines written in each step",
            "threads": "lanes that stream at the same time; 1",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        Some(Request::of(workload).ok()?.memory_bytes())
    }

    fn example(&self) -> Workload {
        Workload::new("memory")
            .with("read_bytes", 65_536_u64)
            .with("read_lines", 1_u64)
            .with("write_lines", 2_u64)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let request = Request::of(workload)?;
        let session = |_| -> Box<dyn Session> {
            Box::new(MemorySession {
                request,
                variants: variants(request.ratio),
                buffers: None,
            })
        };
        Ok((0..request.lanes).map(session).collect())
    }
}

impl Session for MemorySession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let Request {
            read_bytes,
            write_bytes,
            ..
        } = self.request;
        let (read, moved) = (read_bytes as u64, read_bytes as u64 + write_bytes as u64);
        self.variants
            .iter()
            .map(|variant| StageSpec::new(variant.name(), read, moved))
            .collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let mut source = Buffer::new(self.request.read_bytes, Pages::Transparent)?;
        for (place, value) in source
            .slice_mut::<u8>(self.request.read_bytes)
            .iter_mut()
            .zip((0..=250).cycle())
        {
            *place = value;
        }
        let destination = Buffer::new(self.request.destination_bytes(), Pages::Transparent)?;
        self.buffers = Some((source, destination));
        Ok(())
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let (source, destination) = self
            .buffers
            .as_mut()
            .expect("prepared before the first step");
        let source = source.slice::<u8>(self.request.read_bytes);
        let destination = destination.slice_mut::<u8>(self.request.destination_bytes());
        for _ in 0..operations {
            match self.variants[stage] {
                Variant::Stream(isa, store) => {
                    stream(isa, store, self.request.ratio, source, destination);
                }
                Variant::Memcpy => destination[..source.len()].copy_from_slice(source),
            }
            std::hint::black_box(&mut *destination);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let Request {
            ratio,
            read_bytes,
            write_bytes,
            ..
        } = self.request;
        for stage in 0..self.variants.len() {
            self.step(stage, 1)?;
            let (source, destination) =
                self.buffers.as_ref().expect("prepared before verification");
            let source = source.slice::<u8>(read_bytes);
            let written = destination.slice::<u8>(write_bytes);
            for (step, lines) in written
                .chunks_exact(ratio.write_bytes().max(LINE_BYTES))
                .enumerate()
                .step_by(97)
            {
                let read = &source[step * ratio.read_bytes()..][..ratio.read_bytes()];
                let expected = read
                    .chunks_exact(LINE_BYTES)
                    .fold(0, |folded, line| folded ^ line[5]);
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
            .then(|| "no huge pages for the buffers: TLB misses lower the rates".to_owned());
        Tally {
            numa_node,
            warnings: fell_back.into_iter().collect(),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_conforms() {
        daqmeter_harness::conformance::run(&MemoryEngine);
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
            ("threads", 0),
            ("threads", 1 << 63),
        ] {
            let workload = MemoryEngine.example().with(name, value);
            let fault = MemoryEngine.open(&workload).err().unwrap().0;
            assert!(fault.contains(&format!("`{name}` is {value}; ")), "{fault}");
            assert_eq!(MemoryEngine.memory_bytes(&workload), None);
        }
    }

    #[test]
    fn the_largest_ratio_writes_what_was_read_and_nothing_else() {
        let max = Ratio::MAX_LINES as u64;
        for (reads, writes) in [(max, 1), (1, max), (max, max)] {
            let workload = MemoryEngine
                .example()
                .with("read_lines", reads)
                .with("write_lines", writes);
            let mut sessions = MemoryEngine
                .open(&workload.with("read_bytes", 3 * 64 * reads - 1))
                .unwrap();
            sessions[0].prepare().unwrap();
            sessions[0].verify().unwrap();
        }
    }

    #[test]
    fn the_memory_of_a_point_is_known_beforehand() {
        const MIB: u64 = 1 << 20;
        let workload = MemoryEngine
            .example()
            .with("read_bytes", 8 * MIB)
            .with("threads", 2_u64);
        assert_eq!(
            MemoryEngine.memory_bytes(&workload),
            Some(2 * (8 + 18) * MIB)
        );
    }
}
