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

#[test]
fn numbers_that_a_command_prints_are_held_against_what_was_counted() {
    let said =
        |says: &str, line: &str| ends_with(3, &format!("watch --says {says} -- echo {line}")).0;
    let (text, lost) = (said("received:([0-9]+)", "received:9"), "it:(?P<lost>[0-9]+)");
    assert!(text.contains("the program says 9, more than the 0 that it read"), "{text}");
    let text = said(lost, "received:9,lost:7,lost:it:8");
    assert!(text.contains("the program says it lost 8, 8 of them before this host or in itself"));
    assert!(!text.contains("that it read"), "{text}");
    assert!(said(lost, "it:none").contains("no number that --says matches"));
    let (_, refused) = ends_with(2, "watch --says (?P<gone>[0-9]+) -- true");
    assert!(refused.contains("a group is called `gone`: call it received or lost"), "{refused}");
}
