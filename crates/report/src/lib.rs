//! Output of records alone: aligned tables, the original's classic table, Markdown, CSV, and a
//! self-contained HTML page. This crate imports no engine: records contain all data of tables and
//! figures. It prints nothing; each function returns text. Begin with `families`: each family of
//! measurements has its tables, figures and answers in one place.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers are rounded for display; nothing is computed from them afterwards"
)]

mod aligned;
mod answers;
pub mod cmp;
mod columns;
pub mod export;
mod families;
mod family;
mod faults;
pub mod figures;
pub mod formats;
mod frame;
mod headline;
pub mod history;
pub mod hosts;
mod html;
mod levels;
pub mod losses;
mod names;
pub mod nightly;
mod parameters;
#[cfg(feature = "parquet")]
mod parquet;
pub mod points;
pub mod rate;
pub mod rows;
mod samples;
mod screen;
pub mod studies;
pub mod table;
mod template;
mod words;

pub use answers::answers_text;
pub(crate) use daqmeter_record::groups;
pub use families::copy::study::{classic as copy_classic, findings, imported as copy_imported};
pub use families::digitizer::classic;
pub use families::{copy, etherbone, felix, figures, path as paths, pmu, watched};
pub use figures::Figure;
pub use frame::Frame;
pub use headline::{disturbed, headline};
pub use html::{index_page, page, page_of};
pub use rows::rows;
pub use screen::{host_text, survey_frame};
pub use words::label;

#[cfg(test)]
mod tests;
#[cfg(test)]
use tests::examples;
