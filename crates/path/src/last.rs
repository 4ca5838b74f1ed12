//! The result that was made last, kept for the next run that needs the same.

use std::sync::Mutex;

use daqmeter_harness::{Fault, locked};

/// Result with its key.
pub(crate) type Last<T> = Mutex<Option<(String, T)>>;

/// Makes a result, unless the last one had the same key.
pub(crate) fn made<T: Clone>(
    last: &Last<T>,
    key: &str,
    make: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut last = locked(last);
    if let Some((_, made)) = last.as_ref().filter(|(known, _)| known == key) {
        return Ok(made.clone());
    }
    // The next one may need its memory.
    *last = None;
    Ok(last.insert((key.to_owned(), make()?)).1.clone())
}
