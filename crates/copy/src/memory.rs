//! Memory read and written in a given ratio over a given footprint, by each store that this CPU has. Also glibc's memcpy.

use daqmeter_harness::{Availability, Engine, Fault, Parameter, Session, StageSpec, Tally, parameters};
use daqmeter_kernels::stream::{LINE_BYTES, Ratio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::Workload;
use daqmeter_sys::memory::{Buffer, Pages};

/// Streams memory. Workload `memory`: `read_bytes` (footprint of the source), `read_lines`:`write_lines` (ratio), `threads`.
/// Rates count the bytes read, so that they compare directly with a stage that reads the same bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryEngine;

struct MemorySession {
    ratio: Ratio,
    read_bytes: usize,
    write_bytes: usize,
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
    if ratio.write_lines > 0 && best.has_non_temporal() {
        variants.push(Variant::Stream(best, Store::NonTemporal));
    }
    if ratio == Ratio::COPY {
        variants.push(Variant::Memcpy);
    }
    variants
}

fn to_usize(workload: &Workload, name: &str) -> Result<usize, Fault> {
    let value = workload.int(name)?;
    usize::try_from(value)
        .map_err(|_| workload.error(name, format!("is {value}, more than this machine can address")).into())
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

    fn parameters(&self) -> &'static [Parameter] {
        parameters![
            "read_bytes": "bytes read in one pass",
            "read_lines": "cache lines read in each step, at least 1",
            "write_lines": "cache lines written in each step",
            "threads": "lanes that stream at the same time; 1",
        ]
    }

    fn example(&self) -> Workload {
        Workload::new("memory").with("read_bytes", 65_536_u64).with("read_lines", 1_u64).with("write_lines", 2_u64)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let ratio =
            Ratio { read_lines: to_usize(workload, "read_lines")?, write_lines: to_usize(workload, "write_lines")? };
        if ratio.read_lines == 0 {
            return Err(workload.error("read_lines", "is 0; at least one line is read per step").into());
        }
        // Whole steps only, and at least one.
        let step_bytes = LINE_BYTES * ratio.read_lines;
        let read_bytes = to_usize(workload, "read_bytes")?.next_multiple_of(step_bytes).max(step_bytes);
        let write_bytes = read_bytes / ratio.read_lines * ratio.write_lines;
        let threads = if workload.params.contains_key("threads") { workload.int("threads")? } else { 1 };
        let session = |_| -> Box<dyn Session> {
            Box::new(MemorySession { ratio, read_bytes, write_bytes, variants: variants(ratio), buffers: None })
        };
        Ok((0..threads.max(1)).map(session).collect())
    }
}

impl Session for MemorySession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let (read, moved) = (self.read_bytes as u64, (self.read_bytes + self.write_bytes) as u64);
        self.variants.iter().map(|variant| StageSpec::new(variant.name(), read, moved)).collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let mut source = Buffer::new(self.read_bytes, Pages::Transparent)?;
        for (place, value) in source.slice_mut::<u8>(self.read_bytes).iter_mut().zip((0..=250).cycle()) {
            *place = value;
        }
        // One line more: streams begin on a line boundary of the destination.
        let destination = Buffer::new(self.write_bytes + LINE_BYTES, Pages::Transparent)?;
        self.buffers = Some((source, destination));
        Ok(())
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let (source, destination) = self.buffers.as_mut().expect("prepared before the first step");
        let source = source.slice::<u8>(self.read_bytes);
        let destination = destination.slice_mut::<u8>(self.write_bytes + LINE_BYTES);
        for _ in 0..operations {
            match self.variants[stage] {
                Variant::Stream(isa, store) => {
                    stream(isa, store, self.ratio, source, destination);
                }
                Variant::Memcpy => destination[..source.len()].copy_from_slice(source),
            }
            std::hint::black_box(&mut *destination);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let ratio = self.ratio;
        for stage in 0..self.variants.len() {
            self.step(stage, 1)?;
            let (source, destination) = self.buffers.as_ref().expect("prepared before verification");
            let source = source.slice::<u8>(self.read_bytes);
            let written = destination.slice::<u8>(self.write_bytes);
            for (step, lines) in written.chunks_exact(LINE_BYTES * ratio.write_lines.max(1)).enumerate().step_by(97) {
                let read = &source[step * LINE_BYTES * ratio.read_lines..][..LINE_BYTES * ratio.read_lines];
                let expected = read.chunks_exact(LINE_BYTES).fold(0, |folded, line| folded ^ line[5]);
                let found = lines[5];
                if found != expected && ratio.write_lines > 0 {
                    let variant = self.variants[stage].name();
                    return Err(Fault::new(format!("{variant}: step {step} wrote {found}, expected {expected}")));
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
        let fell_back =
            (pages == Pages::Base).then(|| "no huge pages for the buffers: TLB misses lower the rates".to_owned());
        Tally { numa_node, warnings: fell_back.into_iter().collect(), ..Tally::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_conforms() {
        daqmeter_harness::conformance::run(&MemoryEngine);
    }

    #[test]
    fn nothing_to_read_is_refused() {
        let workload = MemoryEngine.example().with("read_lines", 0_u64);
        assert!(MemoryEngine.open(&workload).err().unwrap().0.contains("read_lines"));
    }
}
