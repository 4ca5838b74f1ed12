//! What is wrong with a map.

/// Why there is no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A description or a map in a file is wrong.
    #[error("{file}: {problem}")]
    File {
        /// File or name.
        file: String,
        /// What is wrong, with the line where there is one.
        problem: String,
    },
    /// Registers make no sense.
    #[error("register {at:#x}: {problem}")]
    Registers {
        /// Offset or address.
        at: u64,
        /// What was found there and what was expected.
        problem: String,
    },
}
