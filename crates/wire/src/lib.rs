//! Formats on the wire, as views over bytes and types with meaning: parse and emit are inverses.
//! No code here allocates, reads a clock or does I/O, so it can be fuzzed and run anywhere. Lengths
//! on the wire are never trusted: a view checks them once, when it is made.

// Tests have std.
#![cfg_attr(not(test), no_std)]

pub mod capture;
pub mod etherbone;
pub mod felix;
