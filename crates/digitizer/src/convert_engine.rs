//! The conversion kernels alone, on memory: what a consumer could reach if read-out cost nothing.

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, Tally, lanes, parameters,
};
use daqmeter_kernels::Store;
use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out};
use daqmeter_record::Workload;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};

use crate::devices::emulated::pattern_sample;
use crate::engine::differs;
use crate::function::Function;
use crate::request::{missing_here, parse_conversions, parse_isa, parse_store};

/// Converts samples in memory. Workload `convert`: `samples`, `function` (0 to 8; 0 copies), the parameters of the
/// conversions, `isa`, `store`, `threads`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertEngine {
    /// Size of the last-level cache, for the choice of stores; zero when unknown.
    pub last_level_bytes: u64,
}

/// What a workload asks for, checked.
struct Request {
    samples: usize,
    function: Function,
    /// What is done to each sample, and which are kept; none copies.
    work: Option<(Conversion, Decimation)>,
    lanes: usize,
}

impl Request {
    fn of(workload: &Workload) -> Result<Request, Fault> {
        let samples = workload.int_within("samples", 1..=1 << 30)?;
        let number = workload.int("function")?;
        let stages = Function::stages(number).filter(|_| number <= 8);
        let function = stages.and_then(|stages| stages.last().copied());
        let function = function
            .ok_or_else(|| workload.error("function", format!("is {number}; 0 to 8 is wanted")))?;
        let work = parse_conversions(workload, samples)?.of(function);
        let samples = usize::try_from(samples).expect("at most 2^30");
        Ok(Request {
            samples,
            function,
            work,
            lanes: lanes(workload, "threads")?,
        })
    }

    fn out_bytes(&self) -> u64 {
        let out = |(conversion, decimation): (Conversion, Decimation)| {
            decimation.kept(self.samples) * conversion.out_bytes()
        };
        self.work.map_or(self.samples * 2, out) as u64
    }

    fn memory_bytes(&self) -> u64 {
        (buffer_bytes(self.samples as u64 * 2) + buffer_bytes(self.out_bytes()))
            .saturating_mul(self.lanes as u64)
    }
}

struct ConvertSession {
    name: String,
    samples: usize,
    /// None copies.
    converter: Option<Converter>,
    buffers: Option<(Buffer, Buffer)>,
}

impl Engine for ConvertEngine {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn description(&self) -> &'static str {
        "converts digitizer samples in memory: cast, scale, Q-format, decimation"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn probe_for(&self, workload: &Workload) -> Availability {
        missing_here(workload)
    }

    fn target(&self, workload: &Workload) -> String {
        workload.text("isa").unwrap_or("best").to_owned()
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "samples": "16-bit samples of one conversion",
            "function": "conversion, 0 to 8, as daqmeter list functions names it",
            "dec_factor": "keeps each n-th sample; 1",
            "dec_offset": "first sample that is kept; 0",
            "scale_factor": "factor of scaling; 1",
            "scale_offset": "offset of scaling; 0",
            "unsigned_q": "fixed-point format of magnitudes, bits before and after the point, as 16.16",
            "signed_q": "fixed-point format of phases",
            "fast": "true scales in single precision: product and sum are each rounded to f32",
            "isa": "instruction set, as daqmeter list kernels names it; best",
            "store": "by-footprint, cached or non-temporal",
            "threads": "lanes that convert at the same time; 1",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        Some(Request::of(workload).ok()?.memory_bytes())
    }

    fn example(&self) -> Workload {
        Workload::new("convert")
            .with("samples", 10_000_u64)
            .with("function", 3_u64)
            .with("scale_factor", 0.1)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let request = Request::of(workload)?;
        let isa = parse_isa(workload)?;
        let forced_store = parse_store(workload, isa)?;
        let footprint = request.samples as u64 * 2 + request.out_bytes();
        let store = forced_store
            .unwrap_or_else(|| Store::for_footprint(isa, footprint, self.last_level_bytes));
        let converter = request.work.and_then(|(conversion, decimation)| {
            Converter::new(conversion, decimation, isa, store)
        });
        let Request {
            samples,
            function,
            lanes,
            ..
        } = request;
        let name = if function == Function::Readout {
            "copy"
        } else {
            function.classic_name()
        };
        let session = |_| -> Box<dyn Session> {
            Box::new(ConvertSession {
                name: name.to_owned(),
                samples,
                converter: converter.clone(),
                buffers: None,
            })
        };
        Ok((0..lanes).map(session).collect())
    }
}

impl ConvertSession {
    fn out_bytes(&self) -> usize {
        match &self.converter {
            None => self.samples * 2,
            Some(converter) => {
                converter.decimation().kept(self.samples) * converter.conversion().out_bytes()
            }
        }
    }
}

impl Session for ConvertSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let raw_bytes = self.samples as u64 * 2;
        let (stride_bytes, out_bytes) = match &self.converter {
            None => (2, 2),
            Some(converter) => (
                2 * converter.decimation().factor as u64,
                converter.conversion().out_bytes() as u64,
            ),
        };
        vec![StageSpec {
            limit: Some(LimitSpec::memory(raw_bytes, stride_bytes, out_bytes)),
            ..StageSpec::new(
                self.name.clone(),
                raw_bytes,
                raw_bytes + self.out_bytes() as u64,
            )
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let mut raw = Buffer::new(self.samples * 2, Pages::Transparent)?;
        for (index, sample) in raw.slice_mut::<u16>(self.samples).iter_mut().enumerate() {
            *sample = pattern_sample(index as u64);
        }
        self.buffers = Some((raw, Buffer::new(self.out_bytes(), Pages::Transparent)?));
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let out_bytes = self.out_bytes();
        let (raw, out) = self
            .buffers
            .as_mut()
            .expect("prepared before the first step");
        let raw = raw.slice::<u16>(self.samples);
        for _ in 0..operations {
            match &self.converter {
                None => out.slice_mut::<u16>(self.samples).copy_from_slice(raw),
                Some(converter) => match converter.conversion() {
                    Conversion::QmnF64(_) => {
                        converter.convert(raw, Out::F64(out.slice_mut(out_bytes / 8)))
                    }
                    _ => converter.convert(raw, Out::F32(out.slice_mut(out_bytes / 4))),
                },
            }
            std::hint::black_box(&mut *out);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.step(0, 1)?;
        let out_bytes = self.out_bytes();
        let (raw, out) = self.buffers.as_mut().expect("prepared before verification");
        let raw = raw.slice::<u16>(self.samples);
        match &self.converter {
            None if out.slice::<u16>(self.samples) == raw => Ok(()),
            None => Err(Fault::new("the copy differs from its source")),
            Some(converter) => match converter.conversion() {
                Conversion::QmnF64(_) => {
                    differs(converter, raw, &Out::F64(out.slice_mut(out_bytes / 8)))
                }
                _ => differs(converter, raw, &Out::F32(out.slice_mut(out_bytes / 4))),
            },
        }
    }

    fn tally(&mut self) -> Tally {
        Tally {
            numa_node: self.buffers.as_ref().and_then(|(raw, _)| raw.numa_node()),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convert_conforms() {
        daqmeter_harness::conformance::run(&ConvertEngine::default());
    }

    #[test]
    fn lanes_and_samples_are_bounded_and_their_memory_is_known() {
        let engine = ConvertEngine::default();
        for (name, value) in [
            ("threads", 0_u64),
            ("threads", 1 << 63),
            ("samples", 0),
            ("samples", (1 << 30) + 1),
        ] {
            let workload = engine.example().with(name, value);
            assert!(
                engine
                    .open(&workload)
                    .err()
                    .unwrap()
                    .0
                    .contains(&format!("`{name}` is {value}; 1 to "))
            );
            assert_eq!(engine.memory_bytes(&workload), None);
        }
        // 2 MiB of samples become 4 MiB.
        let workload = engine
            .example()
            .with("samples", 1_u64 << 20)
            .with("threads", 3_u64);
        assert_eq!(engine.memory_bytes(&workload), Some(3 * (6 << 20)));
    }

    #[test]
    fn functions_that_convert_nothing_in_memory_are_refused() {
        for function in [9_u64, 99, 100] {
            let workload = ConvertEngine::default()
                .example()
                .with("function", function);
            assert!(
                ConvertEngine::default()
                    .open(&workload)
                    .err()
                    .unwrap()
                    .0
                    .contains("0 to 8")
            );
        }
    }
}
