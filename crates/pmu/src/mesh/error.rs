//! Why something is not a mesh.

/// The file or register, and the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MeshError(pub(super) String);

impl MeshError {
    /// A problem in a line of a file, counted from 0.
    pub(super) fn in_line(file: &str, line: usize, problem: &str) -> MeshError {
        MeshError(format!("{file}: line {}: {problem}", line + 1))
    }
}
