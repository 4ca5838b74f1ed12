//! Quantities in files of TOML, written with their units or as numbers.

use serde::Deserialize;

use crate::units;

/// A size, written `64MiB` or as a number of bytes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "Written")]
pub struct ByteSize(pub usize);

/// A time, written `100us`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "Written")]
pub struct Nanos(pub u64);

/// A rate, written `1MHz` or as a number of hertz.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(try_from = "Written")]
pub struct Hertz(pub f64);

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text such as \"64MiB\", \"100us\" or \"1MHz\", or a number"
)]
enum Written {
    Text(String),
    Int(i64),
    Float(f64),
}

impl Written {
    fn read<T>(self, parse: fn(&str) -> Result<T, String>) -> Result<T, String> {
        let text = match self {
            Written::Text(text) => text,
            Written::Int(int) => int.to_string(),
            Written::Float(float) => float.to_string(),
        };
        parse(&text)
    }
}

impl TryFrom<Written> for ByteSize {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let bytes = usize::try_from(written.read(units::parse_bytes)?);
        bytes.map(ByteSize).map_err(|error| error.to_string())
    }
}

impl TryFrom<Written> for Nanos {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.read(units::parse_ns).map(Nanos)
    }
}

impl TryFrom<Written> for Hertz {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.read(units::parse_rate_hz).map(Hertz)
    }
}
