//! Locks whose holder may have panicked: what they guard is then as it was between two changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
