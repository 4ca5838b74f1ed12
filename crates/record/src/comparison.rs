//! A published figure beside ours.

/// One line of a comparison with a published study.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Table that it belongs to.
    pub table: String,
    /// Row within the table.
    pub row: String,
    /// What the study says.
    pub published: f64,
    /// What our model of the study's machine says.
    pub model: Option<f64>,
    /// What was measured on this host.
    pub measured: Option<f64>,
    /// Unit of all three.
    pub unit: &'static str,
}

impl Comparison {
    /// Measured over published, less one.
    pub fn difference(&self) -> Option<f64> {
        Some(self.measured? / self.published - 1.0)
    }
}
