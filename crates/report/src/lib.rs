//! From records alone: aligned tables, the original's classic table, Markdown, CSV, and one self-contained HTML page.
//!
//! Knows no engine: what a figure shows is found in the records' workloads. Prints nothing itself; everything returns text.
//! Begin with [`mod@rows`].

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers are rounded for display; nothing is computed from them afterwards"
)]

pub mod advice;
pub mod answers;
pub mod classic;
pub mod cmp;
pub mod copy;
pub mod copy_classic;
pub mod copy_model;
pub mod etherbone;
pub mod export;
pub mod figures;
pub mod history;
pub mod html;
pub mod path;
pub mod pmu;
pub mod points;
pub mod rate;
pub mod readout;
pub mod rows;
pub mod studies;
pub mod table;

pub use answers::{Answer, answers};
pub use figures::{Figure, figures};
pub use html::{page, page_of};
pub use rows::{Row, rows};
