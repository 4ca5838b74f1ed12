//! The conversation with a character device, kept from point to point: such a device serves one
//! client, and its stream carries one probe.

use std::sync::{Mutex, PoisonError};

use super::request::EtherboneRequest;
use crate::Client;

/// At most one conversation: the one with the device that was measured last.
static KEPT: Mutex<Option<(EtherboneRequest, Client)>> = Mutex::new(None);

fn slot() -> std::sync::MutexGuard<'static, Option<(EtherboneRequest, Client)>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a conversation in which every cycle was answered.
pub(super) fn put(request: &EtherboneRequest, client: Client) {
    let settled = client.is_settled();
    *slot() = settled.then(|| (request.clone(), client));
}

/// Returns the kept conversation, if this request would open one like it. Another one is closed, so
/// that the device is free.
pub(super) fn take(request: &EtherboneRequest) -> Option<Client> {
    let (kept, client) = slot().take()?;
    let same = EtherboneRequest {
        method: kept.method,
        payload: kept.payload,
        count: kept.count,
        cycles: kept.cycles,
        base: kept.base,
        pop_channel: kept.pop_channel,
        ..request.clone()
    };
    (same == kept).then_some(client)
}
