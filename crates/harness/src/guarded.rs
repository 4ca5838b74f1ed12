//! Panics of engines and observers become faults: they fail a lane, not the run.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::Fault;

thread_local! {
    /// Place of this thread's last panic.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

fn note_places() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            PLACE.set(panic.location().map_or(String::new(), |place| format!(" at {place}")));
            before(panic);
        }));
    });
}

/// Does the work and turns a panic into a fault with its place and message. The state that the work
/// had borrowed may be inconsistent, so the caller may only drop it.
pub fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, Fault> {
    note_places();
    PLACE.take();
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let (place, said) = (PLACE.take(), said(payload.as_ref()));
        let reason =
            format!("{what} panicked{place}: {said}; this is a bug in daqmeter, please report it");
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
        let at = format!("panicked at {}:{}:", file!(), line!() + 1);
        let index = guarded::<()>("step", || panic!("index {}", 7)).unwrap_err();
        assert!(index.0.contains(&at) && index.0.contains(": index 7; "), "{index}");
        let odd = guarded::<()>("drop", || std::panic::resume_unwind(Box::new(5_u8)));
        check(odd.unwrap_err(), "drop panicked: no reason given; ");
        assert_eq!(guarded("work", || 5), Ok(5));
    }
}
