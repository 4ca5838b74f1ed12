//! The functions of `sis8300drv_threads`, by the numbers that its option `-A` takes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One function of the original. A number in plans and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
#[schemars(with = "u64")]
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

/// The value of `-A`: a function, or all conversions. A number in options, plans and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
#[schemars(with = "u64")]
pub enum FunctionChoice {
    One(Function),
    All,
}

const ALL: u64 = 99;

impl TryFrom<u64> for FunctionChoice {
    type Error = String;

    fn try_from(number: u64) -> Result<FunctionChoice, String> {
        match Function::try_from(number) {
            Ok(function) => Ok(FunctionChoice::One(function)),
            Err(_) if number == ALL => Ok(FunctionChoice::All),
            Err(_) => Err(format!("{number}; 0 to 8, 99 or 100 is wanted")),
        }
    }
}

impl From<FunctionChoice> for u64 {
    fn from(choice: FunctionChoice) -> u64 {
        match choice {
            FunctionChoice::One(function) => function.number(),
            FunctionChoice::All => ALL,
        }
    }
}

impl FunctionChoice {
    pub fn stages(self) -> Vec<Function> {
        match self {
            FunctionChoice::One(Function::WritePattern) => vec![Function::WritePattern],
            FunctionChoice::One(Function::Readout) => vec![Function::Readout],
            FunctionChoice::One(function) => vec![Function::Readout, function],
            FunctionChoice::All => [&[Function::Readout][..], &Function::CONVERSIONS].concat(),
        }
    }
}

impl TryFrom<u64> for Function {
    type Error = String;

    fn try_from(number: u64) -> Result<Function, String> {
        let others = [Function::Readout, Function::WritePattern];
        let mut all = Function::CONVERSIONS.into_iter().chain(others);
        let found = all.find(|function| function.number() == number);
        found.ok_or_else(|| format!("{number}; 0 to 8 or 100 is wanted"))
    }
}

impl From<Function> for u64 {
    fn from(function: Function) -> u64 {
        function.number()
    }
}

impl Function {
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

    /// Returns the number of `-A`, the name in the original's table, and a description.
    fn entry(self) -> (u64, &'static str, &'static str) {
        match self {
            Function::Readout => (0, "func_readout", "read-out only"),
            Function::DecimateScale => (1, "func_decsca", "decimation and scaling to f32"),
            Function::Decimate => (2, "func_dec", "decimation to f32"),
            Function::Scale => (3, "func_sca", "scaling to f32"),
            Function::Cast => (4, "func_no_decsca", "cast to f32"),
            Function::UnsignedF64 => (5, "func_umn2double", "unsigned Q-format to f64"),
            Function::SignedF64 => (6, "func_smn2double", "signed Q-format to f64"),
            Function::UnsignedF32 => (7, "func_umn2float", "unsigned Q-format to f32"),
            Function::SignedF32 => (8, "func_smn2float", "signed Q-format to f32"),
            Function::WritePattern => (100, "func_pattern", "write a pattern to card memory"),
        }
    }

    pub fn number(self) -> u64 {
        self.entry().0
    }

    pub fn classic_name(self) -> &'static str {
        self.entry().1
    }

    pub fn description(self) -> &'static str {
        self.entry().2
    }
}

/// Returns byte `i` of the pattern that function 100 writes: `i % CHAR_MAX`.
pub(crate) fn pattern_byte(i: usize) -> u8 {
    u8::try_from(i % 127).expect("below 127")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_original_runs_what_it_names() {
        let names = |number: u64| -> Vec<_> {
            let choice = FunctionChoice::try_from(number).unwrap();
            assert_eq!(u64::from(choice), number);
            choice.stages().into_iter().map(Function::classic_name).collect()
        };
        assert_eq!(names(0), ["func_readout"]);
        assert_eq!(names(1), ["func_readout", "func_decsca"]);
        assert_eq!(names(5), ["func_readout", "func_umn2double"]);
        assert_eq!(names(99).len(), 9);
        assert_eq!(names(100), ["func_pattern"]);
        for wrong in [9, 101] {
            assert!(FunctionChoice::try_from(wrong).is_err());
        }
    }

    #[test]
    fn the_pattern_wraps_at_char_max() {
        assert_eq!((pattern_byte(126), pattern_byte(127), pattern_byte(128)), (126, 0, 1));
    }
}
