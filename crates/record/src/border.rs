//! Limits on whole numbers from another process, another host or a file. A number that no run can
//! reach is refused by the name of its field, so that no later sum overflows.

use std::borrow::Borrow;

use serde::de::DeserializeOwned;
use serde_json::Value;

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
pub fn refuse_large(value: &Value, path: &str, names: &[&str]) -> Result<(), String> {
    match value {
        Value::Number(number) => {
            let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            match whole.is_some_and(|whole| whole > MAX_WHOLE) {
                true => Err(format!("{path} is {number}; the largest number taken is {MAX_WHOLE}")),
                false => Ok(()),
            }
        }
        Value::Array(items) => {
            let each = items.iter().enumerate();
            let mut each = each.map(|(at, item)| (format!("{path}[{at}]"), item));
            each.try_for_each(|(path, item)| refuse_large(item, &path, names))
        }
        Value::Object(fields) => {
            let dot = if path.is_empty() { "" } else { "." };
            let counted = fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
            let mut each = counted.map(|(name, field)| (format!("{path}{dot}{name}"), field));
            each.try_for_each(|(path, field)| refuse_large(field, &path, names))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Reads a message of another process, whose fields of these names use all 64 bits.
pub fn from_peer<T: DeserializeOwned>(bytes: &[u8], names: &[&str]) -> Result<T, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    refuse_large(&value, "", names)?;
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
