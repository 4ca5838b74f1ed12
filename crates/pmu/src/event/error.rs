/// An event that cannot be counted, with the text to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`{problem}")]
pub struct EventError {
    text: String,
    problem: String,
}

impl EventError {
    /// Appends the problem to the text, mostly after a colon.
    pub(super) fn new(text: &str, problem: impl Into<String>) -> EventError {
        EventError { text: text.to_owned(), problem: problem.into() }
    }

    pub(super) fn unknown(text: &str) -> EventError {
        EventError::new(
            text,
            " is not an event: write PMU/EVENT/, SUBSYSTEM:TRACEPOINT, a software event or a counter of the system such as disk.read_bytes (daqmeter pmu list)",
        )
    }

    pub(super) fn unknown_modifier(text: &str, modifier: &str) -> EventError {
        let taken = "there are u (programs), k (kernel) and h (hypervisor)";
        EventError::new(text, format!(": the modifier `:{modifier}` is not taken; {taken}"))
    }
}
