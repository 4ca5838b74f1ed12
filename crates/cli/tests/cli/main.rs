//! The program as users and scripts call it.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod ab;
mod common;
mod copy;
mod digitizer;
mod eb;
mod hostile;
mod interrupt;
mod memory;
mod named_files;
mod notebook;
mod options;
mod outputs;
mod path;
mod pmu;
mod points;
mod readout;
mod refused;
mod start;
mod watch;
