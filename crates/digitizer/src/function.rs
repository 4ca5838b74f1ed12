//! The functions of `sis8300drv_threads`, by the numbers that its option `-A` takes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The value of `-A`: a function of the original, or all of them. A number in options, plans and
/// records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
#[schemars(with = "u64")]
pub enum Function {
    Readout = 0,
    /// Decimation and scaling in one pass.
    DecimateScale = 1,
    Decimate = 2,
    Scale = 3,
    Cast = 4,
    UnsignedF64 = 5,
    SignedF64 = 6,
    UnsignedF32 = 7,
    SignedF32 = 8,
    All = 99,
    WritePattern = 100,
}

/// Every function with its name in the original's table.
const FUNCTIONS: [(Function, &str); 11] = [
    (Function::Readout, "func_readout"),
    (Function::DecimateScale, "func_decsca"),
    (Function::Decimate, "func_dec"),
    (Function::Scale, "func_sca"),
    (Function::Cast, "func_no_decsca"),
    (Function::UnsignedF64, "func_umn2double"),
    (Function::SignedF64, "func_smn2double"),
    (Function::UnsignedF32, "func_umn2float"),
    (Function::SignedF32, "func_smn2float"),
    (Function::All, "all"),
    (Function::WritePattern, "func_pattern"),
];

impl TryFrom<u64> for Function {
    type Error = String;

    fn try_from(number: u64) -> Result<Function, String> {
        let found = Function::all().find(|function| function.number() == number);
        found.ok_or_else(|| format!("{number}; 0 to 8, 99 or 100 is wanted"))
    }
}

impl From<Function> for u64 {
    fn from(function: Function) -> u64 {
        function.number()
    }
}

impl Function {
    pub fn all() -> impl Iterator<Item = Function> {
        FUNCTIONS.iter().map(|(function, _)| *function)
    }

    pub fn conversions() -> impl Iterator<Item = Function> {
        Function::all().filter(|function| (1..=8).contains(&function.number()))
    }

    /// Lists the functions that run, in their order.
    pub fn stages(self) -> Vec<Function> {
        match self {
            Function::Readout | Function::WritePattern => vec![self],
            Function::All => {
                std::iter::once(Function::Readout).chain(Function::conversions()).collect()
            }
            conversion => vec![Function::Readout, conversion],
        }
    }

    pub fn number(self) -> u64 {
        self as u64
    }

    /// Returns the name in the original's table.
    pub fn classic_name(self) -> &'static str {
        let found = FUNCTIONS.into_iter().find(|entry| entry.0 == self);
        found.expect("every function is in the table").1
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
    fn the_pattern_wraps_at_char_max() {
        assert_eq!((pattern_byte(126), pattern_byte(127), pattern_byte(128)), (126, 0, 1));
    }
}
