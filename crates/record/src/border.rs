//! Limits on whole numbers from another process, another host or a file. A number that no run can
//! reach is refused by the name of its field, so that no later sum overflows.

use std::borrow::Borrow;

use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

/// Largest accepted whole number: every reader of JSON holds it exactly (RFC 8259, section 6). As
/// nanoseconds it is 104 days, as bytes 9 PB; 2,048 of them add up in 64 bits.
pub const MAX_WHOLE: u64 = (1 << 53) - 1;

/// Adds up whole numbers of a record; the sum saturates at 64 bits.
pub fn sum(values: impl IntoIterator<Item = impl Borrow<u64>>) -> u64 {
    let add = |sum: u64, value: _| sum.saturating_add(*Borrow::<u64>::borrow(&value));
    values.into_iter().fold(0, add)
}

/// Refuses the first whole number beyond [`MAX_WHOLE`], by the path of its field. Fields of these
/// names are not looked at.
pub(crate) fn refuse_large(value: &Value, names: &[&str]) -> Result<(), String> {
    large(value, names).map_or(Ok(()), |(path, number)| {
        let path = path.trim_start_matches('.');
        Err(format!("{path} is {number}; the maximum is {MAX_WHOLE}"))
    })
}

/// Returns the first number that is too large, and its path.
fn large<'a>(value: &'a Value, names: &[&str]) -> Option<(String, &'a Number)> {
    match value {
        Value::Number(number) => {
            let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            (whole? > MAX_WHOLE).then(|| (String::new(), number))
        }
        Value::Array(items) => items.iter().enumerate().find_map(|(at, item)| {
            large(item, names).map(|(path, number)| (format!("[{at}]{path}"), number))
        }),
        Value::Object(fields) => fields.iter().find_map(|(name, field)| {
            let found = if names.contains(&name.as_str()) { None } else { large(field, names) };
            found.map(|(path, number)| (format!(".{name}{path}"), number))
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Reads a message of another process, whose fields of these names use all 64 bits.
pub fn from_peer<T: DeserializeOwned>(bytes: &[u8], names: &[&str]) -> Result<T, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    refuse_large(&value, names)?;
    T::deserialize(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_run_reaches_is_refused_by_the_name_of_its_field() {
        let read = |text: &str| from_peer::<Value>(text.as_bytes(), &["tag"]);
        assert!(read(r#"{"a": 9007199254740991, "b": [-9007199254740991, 1.5e300]}"#).is_ok());
        let refused = read(r#"{"a": {"lost": [0, 9007199254740992]}}"#).unwrap_err();
        assert!(refused.starts_with("a.lost[1] is 9007199254740992;"), "{refused}");
        assert!(read(r#"{"a": -9223372036854775808}"#).unwrap_err().starts_with("a is -92233"));
        assert!(read(r#"{"tag": 18446744073709551615}"#).is_ok());
    }
}
