//! Panics of engines and observers become faults: they fail a lane, not the run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Fault;

/// Does the work and turns a panic into a fault with its place and message. The state that the work
/// had borrowed may be inconsistent, so the caller may only drop it.
pub(crate) fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let reason = format!(
            "{what} panicked: {}; this is a bug in daqmeter, please report it",
            said(payload.as_ref())
        );
        // Dropping a payload can panic, too; the leak is a few bytes.
        std::mem::forget(payload);
        Fault::new(reason)
    })
}

fn said(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_fault_with_its_place_and_reason() {
        let check =
            |fault: Fault, wanted: &str| assert!(fault.to_string().starts_with(wanted), "{fault}");
        check(
            guarded::<()>("step", || panic!("index {}", 7)).unwrap_err(),
            "step panicked: index 7; ",
        );
        check(guarded::<()>("open", || panic!("plain")).unwrap_err(), "open panicked: plain; ");
        let odd = guarded::<()>("drop", || std::panic::resume_unwind(Box::new(5_u8)));
        check(odd.unwrap_err(), "drop panicked: no reason given; ");
        assert_eq!(guarded("work", || 5), Ok(5));
    }
}
