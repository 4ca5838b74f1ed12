//! Command lines that are refused in one line: `refused.txt` has them.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::common::{Folder, PROGRAM, stderr};
use crate::eb::Snoop;
use crate::outputs::{PLAN, RECORDS};

/// Files that the command lines name.
const FILES: [(&str, &str); 15] = [
    ("a.jsonl", RECORDS),
    ("r.jsonl", RECORDS),
    ("page.html", "<!doctype html>"),
    ("p.toml", PLAN),
    ("s.toml", "[card]\nlinks = 1\n"),
    ("data", "of last year"),
    ("empty.jsonl", ""),
    ("newer.jsonl", "{\"schema\":99,\"new\":true}\n"),
    ("plan.toml", PLAN),
    (
        "typo.toml",
        "title = 't'\n[[sweep]]\nstudy = 'a'\nengine = 'null'\nworkload = { raed_lines = 1 }\n",
    ),
    ("bad.toml", "title = 'x'\nblock = '4KiB'\n[source]\nkind = 'memroy'\n[sink]\nkind = 'read'\n"),
    ("card.toml", "[card]\nlinks = 3\ncolour = 'red'\n"),
    ("mesh.toml", "name = 'x'\npart = 'CMN-600'\nwidth = 4\nheight = 2\nsurprise = 1\n"),
    ("group.toml", "name = 'x'\nabout = 'x'\nevents = []\n"),
    ("foreign.dat", "these are neither blocks nor counts\n"),
];

/// Runs a line of the table, and returns why it is not as the table says.
fn wrong(folder: &Folder, line: &str) -> Option<String> {
    let (call, says) = line.split_once(" => ").unwrap();
    let (code, call) = call.split_once(' ').unwrap();
    let output = folder.command(call).output().unwrap();
    let said = stderr(&output);
    // Records that are left out have lines of their own.
    let is_note = |line: &&str| line.contains(": line 1: ") || line.contains(": skipped, ");
    let is_one = said.lines().filter(|line| !is_note(line)).count() == 1;
    let is_right = output.status.code() == code.parse().ok() && said.contains(says);
    // The prompt of a shell, or the next message, begins a line.
    let is_right = is_right && said.ends_with('\n');
    let is_quiet = output.stdout.is_empty() && !said.contains("panicked");
    (!is_right || !is_one || !is_quiet).then(|| format!("{line}: {output:?}"))
}

#[test]
fn bad_input_gives_one_clear_line_and_its_exit_code() {
    let folder = Folder::new();
    FILES.iter().for_each(|(name, text)| folder.write(name, text));
    folder.write("sub/file", "");
    std::os::unix::fs::symlink("r.jsonl", folder.path("link")).unwrap();
    std::os::unix::fs::symlink("not-yet", folder.path("early")).unwrap();
    std::fs::hard_link(folder.path("r.jsonl"), folder.path("hard.csv")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path("fifo")).status().unwrap().success());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    folder.write("taken.toml", format!("[publish]\naddress = '{taken}'\n"));
    let snoop = Snoop::start("--bus timing-receiver");
    let (slave, port) = (snoop.at("udp"), snoop.port.to_string());
    let table = include_str!("refused.txt").replace("SLAVE", &slave).replace("PORT", &port);
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<&str> = lines.collect();
    let files = folder.files();
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let (folder, parts) = (&folder, lines.chunks(lines.len().div_ceil(4)));
        let run = |part: &[&str]| part.iter().filter_map(|line| wrong(folder, line)).collect();
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(move || -> Vec<String> { run(part) })).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(folder.files(), files, "a refused call leaves no file");
    FILES.iter().for_each(|(name, text)| assert_eq!(folder.read(name), *text, "{name}"));
}

#[test]
fn a_name_that_is_not_utf_8_is_refused() {
    let name = std::ffi::OsStr::from_bytes(b"/dev/\xFF\xFE");
    let output = Command::new(PROGRAM).arg("digitizer").arg(name).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("is not UTF-8, as names in records are"), "{said}");
}
