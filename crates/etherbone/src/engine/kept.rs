//! The conversation with a character device, kept from point to point. Such a device serves one
//! client, and its stream carries one probe.

use std::sync::{Mutex, PoisonError};

use super::request::EtherboneRequest;
use crate::Client;

/// The conversation with the device that was measured last.
static KEPT: Mutex<Option<(EtherboneRequest, Client)>> = Mutex::new(None);

fn slot() -> std::sync::MutexGuard<'static, Option<(EtherboneRequest, Client)>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn put(request: &EtherboneRequest, client: Client) {
    let settled = client.is_settled();
    *slot() = settled.then(|| (request.clone(), client));
}

/// Returns the kept conversation, if this request would open an equal one. Another one is closed to
/// free the device.
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
