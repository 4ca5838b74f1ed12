//! Meshes: the places of nodes, from registers (a dump, or an emulated configuration space), the
//! driver's map in debugfs, or a file.

mod debugfs;
mod error;
mod find;
pub mod nodes;
pub mod registers;
pub mod topology;

pub use error::MeshError;
pub use find::{from_text, of_host};
