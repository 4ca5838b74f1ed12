//! Conversion kernels on memory: the limit of a consumer with free read-out.

use daqmeter_harness::facts::last_level_cache_bytes;
use daqmeter_harness::{
    Fault, Job, Problem, Request, Session, StageSpec, Tally, check_lanes, is_one, one,
};
use daqmeter_kernels::convert::Converter;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conversion::{ConversionRequest, stage};
use crate::devices::board::{pattern_sample, to_usize};
use crate::function::Function;
use crate::oracle::{convert, differs};

/// Conversions of samples in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConvertRequest {
    /// 16-bit samples of one conversion
    pub samples: u64,
    /// Conversion, 0 to 8, as daqmeter list functions names it; 0 copies
    pub function: Function,
    /// How it converts.
    #[serde(flatten)]
    pub conversion: ConversionRequest,
    /// Lanes that convert at the same time
    #[serde(default = "one::<usize>", skip_serializing_if = "is_one")]
    pub lanes: usize,
}

impl Request for ConvertRequest {
    const KIND: &'static str = "convert";
    const DESCRIPTION: &'static str =
        "converts digitizer samples in memory: cast, scale, Q-format, decimation";

    fn example() -> ConvertRequest {
        ConvertRequest {
            samples: 10_000,
            function: Function::Scale,
            conversion: ConversionRequest { scale_factor: 0.1, ..ConversionRequest::default() },
            lanes: 1,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        let lane = buffer_bytes(self.samples * 2) + buffer_bytes(self.out_bytes());
        Ok(Job {
            waiver: self.conversion.waiver(),
            memory_bytes: Some(lane.saturating_mul(self.lanes as u64)),
            ..Job::new(self, self.target(), ConvertRequest::open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("samples", self.samples, 1..=1 << 30)?;
        check_lanes("lanes", self.lanes)?;
        Problem::unless_within("function", self.function.number(), 0..=8)?;
        self.conversion.check(self.samples)
    }
}

impl ConvertRequest {
    fn target(&self) -> String {
        let isa = self.conversion.isa;
        let converter = self.converter().ok().flatten();
        match converter.as_ref().and_then(Converter::arithmetic) {
            Some(arithmetic) => format!("{isa}, {arithmetic}"),
            None => isa.to_string(),
        }
    }

    fn converter(&self) -> Result<Option<Converter>, Fault> {
        self.conversion.converter(self.function, to_usize(self.samples), last_level_cache_bytes())
    }

    fn open(&self) -> Result<Vec<Box<dyn Session>>, Fault> {
        let (samples, converter) = (to_usize(self.samples), self.converter()?);
        let session = |_| -> Box<dyn Session> {
            let (request, converter) = (self.clone(), converter.clone());
            Box::new(ConvertSession { request, samples, converter, buffers: None })
        };
        Ok((0..self.lanes).map(session).collect())
    }

    fn out_bytes(&self) -> u64 {
        match self.function {
            Function::Readout => self.samples * 2,
            function => self.conversion.out_bytes(function, to_usize(self.samples)) as u64,
        }
    }
}

struct ConvertSession {
    request: ConvertRequest,
    samples: usize,
    /// `None` copies.
    converter: Option<Converter>,
    buffers: Option<(Buffer, Buffer)>,
}

impl Session for ConvertSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let name = match self.request.function {
            Function::Readout => "copy",
            function => function.classic_name(),
        };
        vec![stage(name, self.converter.as_ref(), self.samples)]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let mut raw = Buffer::new(self.samples * 2, Pages::Transparent)?;
        for (index, sample) in raw.slice_mut::<u16>(self.samples).iter_mut().enumerate() {
            *sample = pattern_sample(index as u64);
        }
        let out_bytes = usize::try_from(self.request.out_bytes()).expect("at most 2^33");
        self.buffers = Some((raw, Buffer::new(out_bytes, Pages::Transparent)?));
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        let (raw, out) = self.buffers.as_mut().expect("prepared before the steps");
        let raw = raw.slice::<u16>(self.samples);
        for _ in 0..operations {
            match &self.converter {
                None => out.slice_mut::<u16>(self.samples).copy_from_slice(raw),
                Some(converter) => drop(convert(converter, raw, out, 0)),
            }
            std::hint::black_box(&mut *out);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.step(0, 1)?;
        let (raw, out) = self.buffers.as_mut().expect("prepared before the steps");
        let raw = raw.slice::<u16>(self.samples);
        match &self.converter {
            None if out.slice::<u16>(self.samples) == raw => Ok(()),
            None => Err(Fault::new("the copy differs from its source")),
            Some(converter) => differs(converter, raw, out, 0),
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
    use daqmeter_harness::Engine;
    use daqmeter_kernels::Isa;

    use super::*;

    const ENGINE: Engine = Engine::of::<ConvertRequest>();

    #[test]
    fn convert_conforms() {
        daqmeter_harness::conformance::run(&ConvertRequest::example().job().unwrap());
    }

    #[test]
    fn lanes_samples_and_functions_are_bounded_and_their_memory_is_known() {
        for (name, value, wanted) in [
            ("lanes", 0_u64, "`lanes` is 0; 1 to "),
            ("lanes", 1 << 63, "`lanes` is 9223372036854775808; 1 to "),
            ("samples", 0, "`samples` is 0; 1 to "),
            ("samples", (1 << 30) + 1, "`samples` is 1073741825; 1 to "),
            ("function", 9, "0 to 8"),
            ("function", 99, "0 to 8"),
            ("function", 100, "0 to 8"),
        ] {
            let refused = ENGINE.parse(&ENGINE.example().with(name, value)).unwrap_err().0;
            assert!(refused.contains(wanted), "{refused}");
        }
        let workload = ENGINE.example().with("samples", 1_u64 << 20).with("lanes", 3_u64);
        assert_eq!(ENGINE.parse(&workload).unwrap().memory_bytes, Some(3 * (6 << 20)));
    }

    #[test]
    fn the_record_names_the_arithmetic_of_a_scaling() {
        let target = |function: u64, isa: &str| {
            let workload = ENGINE.example().with("function", function);
            ENGINE.parse(&workload.with("isa", isa)).unwrap().target
        };
        assert_eq!(target(3, "portable"), "portable, f64");
        assert_eq!(target(4, "portable"), "portable");
        if Isa::Avx2.is_available() {
            assert_eq!(target(3, "avx2"), "avx2, f32-centred");
        }
    }
}
