//! Limits on whole numbers from another process, another host or a file. A number that no run can
//! reach is refused by the name of its field, so that no later sum overflows.

use std::borrow::Borrow;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest accepted whole number: every reader of JSON holds it exactly (RFC 8259, section 6). As
/// nanoseconds it is 104 days, as bytes 9 PB; 2,048 of them add up in 64 bits.
pub const MAX_WHOLE: u64 = (1 << 53) - 1;

/// Largest accepted time of a clock in nanoseconds: 292 years after the start of the host, or after
/// 1970. With it, the sum with a duration up to [`MAX_WHOLE`] stays within 64 bits.
pub const MAX_STAMP_NS: u64 = i64::MAX.cast_unsigned();

/// Names of fields with a maximum other than [`MAX_WHOLE`], which holds for all that they contain.
pub type Maxima = [(&'static str, u64)];

/// Whole number in a text from outside, at most `MAX`. Only its reader makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounded<const MAX: u64>(u64);

pub type Whole = Bounded<MAX_WHOLE>;
pub type StampNs = Bounded<MAX_STAMP_NS>;

impl<const MAX: u64> Bounded<MAX> {
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<const MAX: u64> FromStr for Bounded<MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if number <= MAX => Ok(Bounded(number)),
            _ if is_number => Err(format!("{text:.40} is above the maximum, {MAX}")),
            _ => Err(format!("`{text:.40}` is no whole number")),
        }
    }
}

/// Adds up whole numbers of a record; the sum saturates at 64 bits.
pub fn sum(values: impl IntoIterator<Item = impl Borrow<u64>>) -> u64 {
    let add = |sum: u64, value: _| sum.saturating_add(*Borrow::<u64>::borrow(&value));
    values.into_iter().fold(0, add)
}

/// Refuses the first whole number beyond its maximum, by the path of its field.
pub fn refuse_large(value: &Value, maxima: &Maxima) -> Result<(), String> {
    refuse(value, MAX_WHOLE, maxima, &|value, max| {
        let number = value.as_number()?;
        let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
        (whole? > max).then(|| format!("{number}; the maximum is {max}"))
    })
}

/// Refuses the first number of a TOML file that is not finite: it is null as a value of JSON.
pub fn refuse_infinite(value: &Value) -> Result<(), String> {
    refuse(value, MAX_WHOLE, &[], &|value, _| value.is_null().then(|| "no finite number".into()))
}

/// Refuses the first value in which there is a fault at its maximum.
fn refuse(
    value: &Value,
    max: u64,
    maxima: &Maxima,
    fault: &impl Fn(&Value, u64) -> Option<String>,
) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().enumerate().try_for_each(|(at, item)| {
            refuse(item, max, maxima, fault).map_err(|why| format!("[{at}]{}", before(&why)))
        }),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            let own = maxima.iter().find(|(known, _)| known == name);
            let max = own.map_or(max, |(_, max)| *max);
            refuse(field, max, maxima, fault).map_err(|why| format!("{name}{}", before(&why)))
        }),
        value => fault(value, max).map_or(Ok(()), |why| Err(format!(" is {why}"))),
    }
}

/// Returns the rest of a path, with a dot before the name of a field.
fn before(rest: &str) -> String {
    if rest.starts_with([' ', '[']) { rest.to_owned() } else { format!(".{rest}") }
}

/// Reads a message of another process.
pub fn from_peer<T: DeserializeOwned>(bytes: &[u8], maxima: &Maxima) -> Result<T, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    refuse_large(&value, maxima)?;
    T::deserialize(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_text_is_taken_up_to_its_maximum_and_else_refused() {
        for (text, found) in [
            ("0", Ok(0)),
            ("9007199254740991", Ok(MAX_WHOLE)),
            ("9007199254740992", Err("is above the maximum")),
            ("18446744073709551616", Err("is above the maximum")),
            ("-1", Err("is no whole number")),
            ("1e999", Err("is no whole number")),
            ("", Err("is no whole number")),
        ] {
            match (text.parse::<Whole>(), found) {
                (Ok(whole), Ok(value)) => assert_eq!(whole.get(), value),
                (Err(why), Err(says)) => assert!(why.contains(says), "{why}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
        assert_eq!("9223372036854775807".parse().map(StampNs::get), Ok(MAX_STAMP_NS));
    }

    #[test]
    fn a_number_that_no_run_reaches_is_refused_by_the_name_of_its_field() {
        let read = |text: &str| from_peer::<Value>(text.as_bytes(), &[("tag", u64::MAX)]);
        assert!(read(r#"{"a": 9007199254740991, "b": [-9007199254740991, 1.5e300]}"#).is_ok());
        let refused = read(r#"{"a": {"lost": [0, 9007199254740992]}}"#).unwrap_err();
        assert!(refused.starts_with("a.lost[1] is 9007199254740992;"), "{refused}");
        assert!(read(r#"{"a": -9223372036854775808}"#).unwrap_err().starts_with("a is -92233"));
        assert!(read(r#"{"tag": 18446744073709551615}"#).is_ok());
    }
}
