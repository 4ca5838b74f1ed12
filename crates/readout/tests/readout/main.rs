//! The chain without hardware: the card by itself in simulated time, and with readers and receivers
//! over loopback.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

#[allow(dead_code, reason = "benches look at more of it")]
mod by_hand;
mod card;
mod chain;
mod hostile;
mod lost;
mod memory;
mod received;
mod subscriptions;
