//! The functions of `sis8300drv_threads`, by the numbers that its option `-A` takes.

use daqmeter_kernels::convert::{Conversion, Decimation, Qmn};

/// One function of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// 0: read-out only.
    Readout,
    /// 1: decimation and scaling in one pass.
    DecimateScale,
    /// 2: decimation.
    Decimate,
    /// 3: scaling.
    Scale,
    /// 4: cast only.
    Cast,
    /// 5: unsigned Q-format to double.
    UnsignedF64,
    /// 6: signed Q-format to double.
    SignedF64,
    /// 7: unsigned Q-format to float.
    UnsignedF32,
    /// 8: signed Q-format to float.
    SignedF32,
    /// 100: write a pattern to the card's memory.
    WritePattern,
}

/// The number that stands for all conversions.
pub const ALL: u64 = 99;

impl Function {
    /// Every function, in the order of `-A 99`.
    pub const CONVERSIONS: [Function; 8] = [
        Function::DecimateScale,
        Function::Decimate,
        Function::Scale,
        Function::Cast,
        Function::UnsignedF64,
        Function::SignedF64,
        Function::UnsignedF32,
        Function::SignedF32,
    ];

    /// The functions that run for an `-A` number, read-out first; `None` for an unknown number.
    pub fn stages(number: u64) -> Option<Vec<Function>> {
        let mut stages = vec![Function::Readout];
        match number {
            0 => {}
            ALL => stages.extend(Function::CONVERSIONS),
            100 => stages = vec![Function::WritePattern],
            number => {
                stages.push(
                    Function::CONVERSIONS
                        .into_iter()
                        .find(|function| function.number() == number)?,
                );
            }
        }
        Some(stages)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        match self {
            Function::Readout => 0,
            Function::DecimateScale => 1,
            Function::Decimate => 2,
            Function::Scale => 3,
            Function::Cast => 4,
            Function::UnsignedF64 => 5,
            Function::SignedF64 => 6,
            Function::UnsignedF32 => 7,
            Function::SignedF32 => 8,
            Function::WritePattern => 100,
        }
    }

    /// The name in the original's table.
    pub fn classic_name(self) -> &'static str {
        match self {
            Function::Readout => "func_readout",
            Function::DecimateScale => "func_decsca",
            Function::Decimate => "func_dec",
            Function::Scale => "func_sca",
            Function::Cast => "func_no_decsca",
            Function::UnsignedF64 => "func_umn2double",
            Function::SignedF64 => "func_smn2double",
            Function::UnsignedF32 => "func_umn2float",
            Function::SignedF32 => "func_smn2float",
            Function::WritePattern => "func_pattern",
        }
    }

    /// What it does, in words.
    pub fn description(self) -> &'static str {
        match self {
            Function::Readout => "read-out only",
            Function::DecimateScale => "decimation and scaling to f32",
            Function::Decimate => "decimation to f32",
            Function::Scale => "scaling to f32",
            Function::Cast => "cast to f32",
            Function::UnsignedF64 => "unsigned Q-format to f64",
            Function::SignedF64 => "signed Q-format to f64",
            Function::UnsignedF32 => "unsigned Q-format to f32",
            Function::SignedF32 => "signed Q-format to f32",
            Function::WritePattern => "write a pattern to card memory",
        }
    }
}

/// The parameters of the conversions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConversionParams {
    /// For functions 1 and 2.
    pub decimation: Decimation,
    /// For functions 1 and 3.
    pub scale_factor: f64,
    /// For functions 1 and 3.
    pub scale_offset: f64,
    /// Single-precision scaling instead of the original's double arithmetic.
    pub fast: bool,
    /// Format of functions 5 and 7.
    pub unsigned_format: Qmn,
    /// Format of functions 6 and 8.
    pub signed_format: Qmn,
}

impl Default for ConversionParams {
    fn default() -> Self {
        ConversionParams {
            decimation: Decimation::NONE,
            scale_factor: 1.0,
            scale_offset: 0.0,
            fast: false,
            unsigned_format: Qmn::MAGNITUDE,
            signed_format: Qmn::PHASE,
        }
    }
}

impl ConversionParams {
    /// What a function does to the samples; `None` for those that convert nothing.
    pub fn of(&self, function: Function) -> Option<(Conversion, Decimation)> {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the fast path rounds its constants to f32 by definition"
        )]
        let scale = if self.fast {
            Conversion::FastScaleF32 {
                factor: self.scale_factor as f32,
                offset: self.scale_offset as f32,
            }
        } else {
            Conversion::ScaleF32 {
                factor: self.scale_factor,
                offset: self.scale_offset,
            }
        };
        Some(match function {
            Function::Readout | Function::WritePattern => return None,
            Function::DecimateScale => (scale, self.decimation),
            Function::Decimate => (Conversion::CastF32, self.decimation),
            Function::Scale => (scale, Decimation::NONE),
            Function::Cast => (Conversion::CastF32, Decimation::NONE),
            Function::UnsignedF64 => (Conversion::QmnF64(self.unsigned_format), Decimation::NONE),
            Function::SignedF64 => (Conversion::QmnF64(self.signed_format), Decimation::NONE),
            Function::UnsignedF32 => (Conversion::QmnF32(self.unsigned_format), Decimation::NONE),
            Function::SignedF32 => (Conversion::QmnF32(self.signed_format), Decimation::NONE),
        })
    }
}

/// Byte `i` of the pattern that function 100 writes: `i % CHAR_MAX`.
pub fn pattern_byte(i: usize) -> u8 {
    u8::try_from(i % 127).expect("below 127")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_original_runs_what_it_names() {
        let names = |number| -> Vec<_> {
            Function::stages(number)
                .unwrap()
                .into_iter()
                .map(Function::classic_name)
                .collect()
        };
        assert_eq!(names(0), ["func_readout"]);
        assert_eq!(names(1), ["func_readout", "func_decsca"]);
        assert_eq!(names(5), ["func_readout", "func_umn2double"]);
        assert_eq!(names(99).len(), 9);
        assert_eq!(names(100), ["func_pattern"]);
        assert_eq!(Function::stages(9), None);
        assert_eq!(Function::stages(101), None);
    }

    #[test]
    fn the_pattern_wraps_at_char_max() {
        assert_eq!(
            (pattern_byte(126), pattern_byte(127), pattern_byte(128)),
            (126, 0, 1)
        );
    }

    #[test]
    fn only_functions_1_and_2_decimate() {
        let params = ConversionParams {
            decimation: Decimation {
                offset: 0,
                factor: 10,
            },
            ..Default::default()
        };
        for function in Function::CONVERSIONS {
            let (_, decimation) = params.of(function).unwrap();
            let decimates = matches!(function, Function::DecimateScale | Function::Decimate);
            assert_eq!(
                decimation.factor,
                if decimates { 10 } else { 1 },
                "{function:?}"
            );
        }
    }
}
