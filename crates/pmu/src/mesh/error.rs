#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MeshError(pub(super) String);

impl MeshError {
    pub(super) fn in_line(file: &str, line: usize, problem: &str) -> MeshError {
        MeshError(format!("{file}: line {}: {problem}", line + 1))
    }
}
