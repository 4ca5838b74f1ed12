//! JSON from other processes: accounts, greetings, subscriptions, requests, bus files.

use daqmeter_record::border::refuse_large;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fields that are names. They are compared and not counted, and use all 64 bits.
const NAMES: [&str; 4] = ["receiver", "stream", "tag", "tags"];

/// Reads a message of a peer; refuses counts that no run reaches, with the path of the field.
pub(crate) fn from_peer<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let message = T::deserialize(&value).map_err(|error| error.to_string())?;
    without_names(&mut value);
    refuse_large(&value, &mut String::new())?;
    Ok(message)
}

fn without_names(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !NAMES.contains(&name.as_str()));
            fields.values_mut().for_each(without_names);
        }
        Value::Array(items) => items.iter_mut().for_each(without_names),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::SubscriptionAccount;

    #[test]
    fn names_have_64_bits_and_counts_do_not() {
        let read = |offered: u64| {
            let text = format!(
                r#"{{"receiver": {0}, "tag": {0}, "offered": {offered}, "unsubscribed": 0, "dropped": 0, "network_lost": 0, "delivered": 0, "delivered_truncated": 0, "delivered_flagged": 0}}"#,
                u64::MAX
            );
            from_peer::<SubscriptionAccount>(text.as_bytes())
        };
        assert_eq!(read(3).unwrap().tag, u64::MAX);
        let refused = read(u64::MAX).unwrap_err();
        assert!(refused.starts_with("offered is 1844"), "{refused}");
    }
}
