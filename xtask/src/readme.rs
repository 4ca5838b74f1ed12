//! Commands of the README, run as they stand there.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use daqmeter_vm::shell::{line, program, renew, root, scratch};

/// Longest time of a command. The README states a minute at most.
const MAX_SECONDS: u64 = 90;

/// Begins the lines that other steps of CI run: `.ci/run`, the survey's step, and what users
/// install. The folder of the binary is set for every command.
const ELSEWHERE: [&str; 6] = [
    "cargo run --release -- survey",
    "cargo test --workspace",
    "export PATH=",
    "sha256sum -c",
    "sudo dpkg -i daqmeter_",
    "pip install daqmeter-",
];

#[derive(Debug, PartialEq)]
struct ReadmeCommand {
    text: String,
    /// Exit codes that the README allows.
    codes: Vec<i32>,
}

/// Runs every command in one fresh folder, in order. Fails if one ends with another code than the
/// README says, or takes too long.
pub(crate) fn run() -> Result<()> {
    let commands = commands(&fs::read_to_string(root().join("README.md"))?)?;
    let folder = scratch("readme");
    renew(&folder)?;
    let binaries = program().parent().map(|folder| folder.display().to_string());
    let path =
        format!("{}:{}", binaries.unwrap_or_default(), std::env::var("PATH").unwrap_or_default());
    let mut faults = Vec::new();
    for ReadmeCommand { text, codes } in commands {
        let began = Instant::now();
        let shell = line("timeout").arg(MAX_SECONDS.to_string()).words("sh -c").arg(&text);
        let status = shell.env("PATH", &path).within(&folder).command().status()?;
        let (code, seconds) = (status.code(), began.elapsed().as_secs_f64());
        let is_right = code.is_some_and(|code| codes.contains(&code))
            && began.elapsed() < Duration::from_secs(MAX_SECONDS);
        let fate = if is_right { "" } else { "!!! " };
        println!("=== {fate}{text}: {status}, {seconds:.1} s");
        if !is_right {
            faults.push(text);
        }
    }
    ensure!(faults.is_empty(), "commands of the README that failed:\n  {}", faults.join("\n  "));
    Ok(())
}

/// Takes the commands out of the blocks of `sh` and of the tables.
fn commands(readme: &str) -> Result<Vec<ReadmeCommand>> {
    let mut found = Vec::new();
    let mut block = None;
    for line in readme.lines() {
        let text = match (block, line.strip_prefix("```")) {
            (None, Some(language)) => {
                block = Some(language);
                continue;
            }
            (Some(_), Some(_)) => {
                block = None;
                continue;
            }
            (Some("sh"), None) => line.split(" #").next().unwrap_or(line).trim(),
            (None, None) if line.starts_with('|') => {
                let quoted = line.split('`').skip(1).step_by(2);
                quoted.into_iter().find(|text| text.starts_with("daqmeter ")).unwrap_or_default()
            }
            _ => continue,
        };
        if text.starts_with("daqmeter ") {
            found.push(ReadmeCommand { text: text.to_owned(), codes: codes(line) });
        } else if !text.is_empty() && !ELSEWHERE.iter().any(|start| text.starts_with(start)) {
            bail!("README.md: no step of CI runs `{text}` (xtask/src/readme.rs)");
        }
    }
    ensure!(!found.is_empty(), "README.md has no command");
    Ok(found)
}

/// Reads the exit codes that a line allows: `exit 0, 1 or 3`; 0 alone if it names none.
fn codes(line: &str) -> Vec<i32> {
    let named = line.split("exit ").nth(1).and_then(|rest| rest.split(')').next());
    let words = named.unwrap_or("0").split([' ', ',']);
    words.filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_from_blocks_of_sh_and_tables_with_their_exit_codes() {
        let text = "`daqmeter no`\n```text\ndaqmeter no\n```\n```sh\ncargo test --workspace  # 5\n\
                    daqmeter doctor   # what is there\n```\n| a | b |\n|---|---|\n\
                    | so (exit 0, 1 or 3) | `daqmeter compare a b` |\n| `report` | `daqmeter list` |\n";
        let command = |text: &str, codes: &[i32]| ReadmeCommand {
            text: text.to_owned(),
            codes: codes.to_vec(),
        };
        let expected = [
            command("daqmeter doctor", &[0]),
            command("daqmeter compare a b", &[0, 1, 3]),
            command("daqmeter list", &[0]),
        ];
        assert_eq!(commands(text).unwrap(), expected);
        for (text, why) in
            [("```sh\nmake\n```\n", "no step of CI runs `make`"), ("none", "has no command")]
        {
            let error = commands(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_readme_has_100_lines_of_100_columns_and_commands() {
        let text = fs::read_to_string(root().join("README.md")).unwrap();
        assert!(commands(&text).unwrap().len() > 10);
        assert!(text.lines().count() <= 100);
        let wide = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None);
    }

    #[test]
    fn ci_runs_the_commands_of_the_start() {
        let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
        assert!(read(".ci/run").contains(ELSEWHERE[1]));
        assert!(read("xtask/src/ci/steps.toml").contains("grep '^cargo run' ../../../README.md"));
    }
}
