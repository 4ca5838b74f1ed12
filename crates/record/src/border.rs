//! Limits on whole numbers from another process, another host or a file. A number that no run can
//! reach is refused by the name of its field, so that no later sum overflows.

use std::borrow::Borrow;

use serde_json::Value;

/// Largest accepted whole number: every reader of JSON holds it exactly (RFC 8259, section 6). As
/// nanoseconds it is 104 days, as bytes 9 PB; 2,048 of them add up in 64 bits.
pub const MAX_WHOLE: u64 = (1 << 53) - 1;

/// Adds up whole numbers of a record; the sum saturates at 64 bits.
pub fn sum(values: impl IntoIterator<Item = impl Borrow<u64>>) -> u64 {
    let add = |sum: u64, value: _| sum.saturating_add(*Borrow::<u64>::borrow(&value));
    values.into_iter().fold(0, add)
}

/// Refuses the first whole number beyond [`MAX_WHOLE`], by the path of its field.
pub fn refuse_large(value: &Value, path: &mut String) -> Result<(), String> {
    let below = path.len();
    match value {
        Value::Number(number) => {
            let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            if whole.is_some_and(|whole| whole > MAX_WHOLE) {
                return Err(format!("{path} is {number}; the largest number taken is {MAX_WHOLE}"));
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                path.push_str(&format!("[{at}]"));
                refuse_large(item, path)?;
                path.truncate(below);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                if below > 0 {
                    path.push('.');
                }
                path.push_str(name);
                refuse_large(field, path)?;
                path.truncate(below);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_run_reaches_is_refused_by_the_name_of_its_field() {
        let read = |text: &str| {
            let value = serde_json::from_str(text).unwrap();
            refuse_large(&value, &mut String::new())
        };
        assert!(read(r#"{"a": 9007199254740991, "b": [-9007199254740991, 1.5e300]}"#).is_ok());
        let refused = read(r#"{"a": {"lost": [0, 9007199254740992]}}"#).unwrap_err();
        assert!(refused.starts_with("a.lost[1] is 9007199254740992;"), "{refused}");
        assert!(read(r#"{"a": -9223372036854775808}"#).unwrap_err().starts_with("a is -92233"));
    }
}
