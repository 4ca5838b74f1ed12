//! Options that read-out and conversion in memory share.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::LazyLock;

use clap::{Args, Command, ValueEnum};
use daqmeter_harness::{Fault, LimitSpec, Problem, StageSpec, is_default};
use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Qmn};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::units::parse_count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::function::Function;

/// Returns the defaults of a request, which its options declare.
pub(crate) fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("defaults"));
    let given = command.ignore_errors(true).get_matches_from(["defaults"]);
    T::from_arg_matches(&given).expect("every option has a default")
}

/// Options of all conversions.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[command(next_help_heading = "Conversion")]
pub struct ConversionRequest {
    /// Decimation: first sample kept
    #[arg(short = 'o', long, value_name = "N", value_parser = parse_count, default_value = "0")]
    pub dec_offset: u64,
    /// Decimation: keep every N-th sample
    #[arg(short = 'f', long, value_name = "N", value_parser = parse_count, default_value = "1")]
    pub dec_factor: u64,
    /// Scaling: offset
    #[arg(
        short = 'O',
        long,
        value_name = "X",
        value_parser = parse_finite,
        default_value = "0",
        allow_hyphen_values = true
    )]
    pub scale_offset: f64,
    /// Scaling: factor
    #[arg(
        short = 'F',
        long,
        value_name = "X",
        value_parser = parse_finite,
        default_value = "1",
        allow_hyphen_values = true
    )]
    pub scale_factor: f64,
    /// Format of functions 5 and 7: bits before and after the point
    #[arg(long, value_name = "M.N", default_value = "1.15", hide_short_help = true)]
    pub unsigned_q: QFormat,
    /// Format of functions 6 and 8: bits before and after the point
    #[arg(long, value_name = "M.N", default_value = "3.13", hide_short_help = true)]
    pub signed_q: QFormat,
    /// Function 6 in degrees: times 180/pi, as later revisions of the original
    #[arg(long, hide_short_help = true)]
    #[serde(skip_serializing_if = "is_default")]
    pub degrees: bool,
    /// Instruction set
    #[arg(long, value_name = "SET", value_enum, default_value = "best", hide_short_help = true)]
    #[serde(skip_serializing_if = "is_default")]
    pub isa: IsaChoice,
    /// Stores
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        default_value = "by-footprint",
        hide_short_help = true
    )]
    #[serde(skip_serializing_if = "is_default")]
    pub store: StoreChoice,
}

impl Default for ConversionRequest {
    fn default() -> Self {
        static DEFAULTS: LazyLock<ConversionRequest> = LazyLock::new(defaults);
        DEFAULTS.clone()
    }
}

/// Returns the stage of a conversion of samples, or of their copy.
pub(crate) fn stage(
    name: impl Into<String>,
    converter: Option<&Converter>,
    samples: usize,
) -> StageSpec {
    let (factor, out_bytes, kept) = converter.map_or((1, 2, samples), |converter| {
        let decimation = converter.decimation();
        (decimation.factor, converter.conversion().out_bytes(), decimation.kept(samples))
    });
    let (raw_bytes, made_bytes) = (2 * samples as u64, (kept * out_bytes) as u64);
    StageSpec {
        limit: Some(LimitSpec::memory(raw_bytes, 2 * factor as u64, out_bytes as u64)),
        ..StageSpec::new(name, raw_bytes, raw_bytes + made_bytes)
    }
}

/// Bits before and after the point of a fixed-point number, written `1.15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct QFormat {
    int_bits: u32,
    frac_bits: u32,
}

impl QFormat {
    fn qmn(self, signed: bool) -> Qmn {
        Qmn::new(self.int_bits, self.frac_bits, signed).expect("checked where it was read")
    }
}

impl FromStr for QFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<QFormat, String> {
        let bits = || {
            let (m, n) = text.split_once('.')?;
            let (int_bits, frac_bits) = (m.parse().ok()?, n.parse().ok()?);
            Qmn::new(int_bits, frac_bits, false)?;
            Some(QFormat { int_bits, frac_bits })
        };
        bits().ok_or_else(|| format!("`{text}`; m.n with 1 to 63 bits in all is wanted, e.g. 1.15"))
    }
}

impl Display for QFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.int_bits, self.frac_bits)
    }
}

daqmeter_harness::by_text!(QFormat);

/// The instruction set that is asked for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum IsaChoice {
    /// The best of this CPU
    #[default]
    Best,
    /// Plain Rust
    Portable,
    /// x86-64 with AVX2
    Avx2,
    /// x86-64 with AVX-512
    Avx512,
    /// AArch64
    Neon,
}

impl IsaChoice {
    fn isa(self) -> Isa {
        match self {
            IsaChoice::Best => Isa::best(),
            IsaChoice::Portable => Isa::Portable,
            IsaChoice::Avx2 => Isa::Avx2,
            IsaChoice::Avx512 => Isa::Avx512,
            IsaChoice::Neon => Isa::Neon,
        }
    }
}

daqmeter_harness::displayed!(IsaChoice);

/// The stores that are asked for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum StoreChoice {
    /// Around the caches where data outgrow them
    #[default]
    ByFootprint,
    /// Through the caches
    Cached,
    /// Around the caches
    NonTemporal,
}

impl ConversionRequest {
    pub fn of(&self, function: Function) -> Option<(Conversion, Decimation)> {
        let (unsigned, signed) = (self.unsigned_q.qmn(false), self.signed_q.qmn(true));
        let conversion = match function {
            Function::Readout | Function::All | Function::WritePattern => return None,
            Function::DecimateScale | Function::Scale => {
                Conversion::ScaleF32 { factor: self.scale_factor, offset: self.scale_offset }
            }
            Function::Decimate | Function::Cast => Conversion::CastF32,
            Function::UnsignedF64 => Conversion::QmnF64(unsigned),
            Function::SignedF64 if self.degrees => Conversion::QmnF64(signed.in_degrees()),
            Function::SignedF64 => Conversion::QmnF64(signed),
            Function::UnsignedF32 => Conversion::QmnF32(unsigned),
            Function::SignedF32 => Conversion::QmnF32(signed),
        };
        let decimates = matches!(function, Function::DecimateScale | Function::Decimate);
        Some((conversion, if decimates { self.decimation() } else { Decimation::NONE }))
    }

    pub(crate) fn decimation(&self) -> Decimation {
        let within = |value: u64| usize::try_from(value).expect("at most the samples of a read");
        Decimation { offset: within(self.dec_offset), factor: within(self.dec_factor) }
    }

    /// Returns the bytes that a function makes from that many samples; zero for functions that
    /// convert nothing.
    pub(crate) fn out_bytes(&self, function: Function, samples: usize) -> usize {
        self.of(function)
            .map_or(0, |(conversion, decimation)| decimation.kept(samples) * conversion.out_bytes())
    }

    /// Returns a function's kernel; `None` for functions that convert nothing.
    ///
    /// # Errors
    /// This CPU has no such kernel.
    pub fn converter(
        &self,
        function: Function,
        samples: usize,
        last_level_bytes: u64,
    ) -> Result<Option<Converter>, Fault> {
        let Some((conversion, decimation)) = self.of(function) else {
            return Ok(None);
        };
        let isa = self.isa.isa();
        let footprint = samples * 2 + self.out_bytes(function, samples);
        let store = match self.store {
            StoreChoice::ByFootprint => {
                Store::for_footprint(isa, footprint as u64, last_level_bytes)
            }
            StoreChoice::Cached => Store::Cached,
            StoreChoice::NonTemporal => Store::NonTemporal,
        };
        let made = Converter::new(conversion, decimation, isa, store);
        made.map(Some)
            .ok_or_else(|| Fault::new(format!("no {} kernel for {conversion:?} here", isa.name())))
    }

    pub(crate) fn waiver(&self) -> Option<String> {
        let isa = self.isa.isa();
        Some(if !isa.is_available() {
            let here: Vec<&str> = Isa::available().map(Isa::name).collect();
            format!("this CPU has no {}; it has {}", isa.name(), here.join(", "))
        } else if self.store == StoreChoice::NonTemporal && !isa.has_non_temporal() {
            format!("{} has no non-temporal stores; use cached", isa.name())
        } else {
            return None;
        })
    }

    /// # Errors
    /// The parameter, its value and its range.
    pub fn check(&self, samples: u64) -> Result<(), Problem> {
        let (offset, factor) = (self.dec_offset, self.dec_factor);
        let text = "is 0; decimation keeps every first, second, ... sample: 1 or more";
        Problem::when(factor == 0, "dec_factor", text)?;
        for (name, value, max) in
            [("dec_offset", offset, samples - 1), ("dec_factor", factor, samples)]
        {
            let text = format!("is {value}, past the {samples} samples of a read");
            Problem::when(value > max, name, text)?;
        }
        // A sample is kept only if a whole group of `factor` follows the offset, as in the
        // original.
        let text = format!(
            "is {factor}, but only {} of the {samples} samples of a read follow dec_offset {offset}: none is kept; \
             lower dec_offset to {} or less",
            samples - offset,
            samples - factor
        );
        Problem::when((samples - offset) / factor == 0, "dec_factor", text)
    }
}

/// Parses a finite number: JSON has neither infinity nor NaN.
fn parse_finite(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("`{text}` is not a finite number such as 0.5, -45.6 or -7e-05"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_1_and_2_decimate_and_only_function_6_has_degrees() {
        let request =
            ConversionRequest { dec_factor: 10, degrees: true, ..ConversionRequest::default() };
        for function in Function::conversions() {
            let (conversion, decimation) = request.of(function).unwrap();
            let decimates = matches!(function, Function::DecimateScale | Function::Decimate);
            assert_eq!(decimation.factor, if decimates { 10 } else { 1 }, "{function:?}");
            let is_in_degrees = conversion == Conversion::QmnF64(Qmn::PHASE.in_degrees());
            assert_eq!(is_in_degrees, function == Function::SignedF64, "{function:?}");
        }
    }

    #[test]
    fn formats_are_read_as_they_are_written_and_bounded() {
        for text in ["1.15", "0.12", "20.43"] {
            assert_eq!(String::from(text.parse::<QFormat>().unwrap()), text);
        }
        assert!("0.0".parse::<QFormat>().unwrap_err().contains("1 to 63"));
    }
}
