//! Why an event is refused.

use crate::format::FormatError;

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Braces or slashes that do not match.
    #[error("`{text}`: {problem}")]
    Syntax {
        /// The text.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No such PMU.
    #[error("`{text}`: this host has no PMU `{pmu}`; it has {there} (daqmeter pmu list)")]
    NoPmu {
        /// The event.
        text: String,
        /// The PMU.
        pmu: String,
        /// Those that exist.
        there: String,
    },
    /// No such named event or field.
    #[error("`{text}`: {pmu} has neither an event nor a field `{term}`{hint}")]
    NoTerm {
        /// The event.
        text: String,
        /// The PMU.
        pmu: String,
        /// The term.
        term: String,
        /// Names that are near, or the fields.
        hint: String,
    },
    /// A field that needs a value.
    #[error("`{text}`: {term} needs a value, {term}=NUMBER")]
    NoValue {
        /// The event.
        text: String,
        /// The field.
        term: String,
    },
    /// A value that does not fit.
    #[error("`{text}`: {error}")]
    Format {
        /// The event.
        text: String,
        /// Why not.
        error: FormatError,
    },
    /// A name without a PMU that is nothing we know.
    #[error(
        "`{text}` is not an event: write PMU/EVENT/, SUBSYSTEM:TRACEPOINT, a software event or a counter of the system such as disk.read_bytes (daqmeter pmu list)"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// A tracepoint, but no tracefs in which to find it.
    #[error(
        "`{text}`: no tracepoint can be seen: tracefs is not mounted, or needs root; as root: mount -t tracefs none /sys/kernel/tracing"
    )]
    NoTracefs {
        /// The text.
        text: String,
    },
    /// A modifier that is not supported here, though perf may know it.
    #[error(
        "`{text}`: the modifier `:{modifier}` is not taken; there are u (programs), k (kernel) and h (hypervisor)"
    )]
    UnknownModifier {
        /// The event.
        text: String,
        /// The modifier.
        modifier: String,
    },
    /// A modifier for a PMU that does not belong to the CPUs.
    #[error(
        "`{text}`: the modifier `:{modifier}` is not taken here: what is shared by all CPUs has no user and kernel mode"
    )]
    Modifier {
        /// The event.
        text: String,
        /// The modifier.
        modifier: String,
    },
}
