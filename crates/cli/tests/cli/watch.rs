//! Programs that are watched from outside.

use std::process::Command;

use crate::common::{ends_with, stdout};

#[test]
fn a_command_has_all_cpus_and_its_output_comes_before_the_answer() {
    let alone = stdout(&Command::new("nproc").output().unwrap());
    // It has no socket.
    let (text, _) = ends_with(3, "watch -- nproc");
    assert!(text.starts_with(&alone), "{text}");
    assert!(text.contains(": no socket was seen; "), "{text}");
}
