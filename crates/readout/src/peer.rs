//! JSON from other processes: accounts, greetings, subscriptions, requests, bus files.

use daqmeter_record::border;
use serde::de::DeserializeOwned;

/// Reads a message of a peer; refuses counts that no run reaches. Names use all 64 bits.
pub(crate) fn from_peer<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    border::from_peer(bytes, &["receiver", "stream", "tag", "tags"].map(|name| (name, u64::MAX)))
}
