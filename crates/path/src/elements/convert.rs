//! Stage `convert`: samples to numbers.

use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::function::Function;
use daqmeter_digitizer::oracle::convert;
use daqmeter_harness::Fault;
use daqmeter_kernels::convert::{Converter, oracle};
use daqmeter_sys::memory::Buffer;
use serde::{Deserialize, Deserializer, de};

use crate::definition::flow::{Flow, NUMBERS, Numbers, Place, SAMPLES, unless};
use crate::definition::kind::{Facts, StageElement};
use crate::element::{Transform, Work};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Converted {
    #[serde(deserialize_with = "function")]
    function: Function,
    #[serde(flatten)]
    request: ConversionRequest,
}

fn function<'de, D: Deserializer<'de>>(from: D) -> Result<Function, D::Error> {
    let number = u64::deserialize(from)?;
    let found = Function::conversions().find(|function| function.number() == number);
    found.ok_or_else(|| de::Error::custom(format!("is {number}; 1 to 8 is wanted")))
}

impl StageElement for Converted {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        flow.takes(SAMPLES)?;
        let problem = format_args!("blocks of {} bytes are not whole samples", flow.bytes);
        unless(flow.bytes.is_multiple_of(2), "kind", problem)?;
        self.request.check(flow.bytes as u64 / 2)?;
        let (conversion, decimation) = self.request.of(self.function).expect("a conversion");
        let facts = Facts::of(format!("convert, function {}", self.function.number()));
        let (stride_bytes, out_bytes) = (2 * decimation.factor, conversion.out_bytes());
        let facts = facts.beside_memory(flow.bytes, stride_bytes as u64, out_bytes as u64);
        let kept = decimation.kept(flow.bytes / 2);
        flow.bytes = kept * out_bytes;
        flow.numbers = flow.numbers.take().map(|Numbers { shape, .. }| Numbers {
            dtype: if out_bytes == 8 { "<f8" } else { "<f4" },
            shape: if shape.iter().product::<usize>() == kept { shape } else { vec![kept] },
        });
        flow.unit = NUMBERS;
        Ok(facts)
    }

    fn work(&self, in_bytes: usize, last_level_bytes: u64) -> Result<Work, Fault> {
        let made = self.request.converter(self.function, in_bytes / 2, last_level_bytes)?;
        let made = made.ok_or_else(|| Fault::new("this function converts nothing"))?;
        Ok(Work::Transform(Box::new(Convert(made))))
    }
}

struct Convert(Converter);

impl Transform for Convert {
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault> {
        let made = convert(&self.0, from.slice::<u16>(bytes / 2), to, 0);
        Ok(made * self.0.conversion().out_bytes())
    }

    /// By the oracle, one sample at a time.
    fn reference(&self, from: &[u8]) -> Vec<u8> {
        let pairs = from.as_chunks::<2>().0.iter();
        let raw: Vec<u16> = pairs.map(|pair| u16::from_le_bytes(*pair)).collect();
        let conversion = self.0.conversion();
        let bits = oracle::bits(conversion, self.0.decimation(), &raw);
        bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(conversion.out_bytes())).collect()
    }
}
