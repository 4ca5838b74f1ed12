//! Running other programs in the root of the checkout, and installing missing ones.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Returns cargo's build folder: `target`, or the one of `CARGO_TARGET_DIR` or cargo's
/// configuration.
pub fn target() -> PathBuf {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    let asked = || {
        let text = line("cargo metadata --no-deps --offline --format-version 1").output().ok()?;
        let metadata: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(PathBuf::from(metadata["target_directory"].as_str()?))
    };
    TARGET.get_or_init(|| asked().unwrap_or_else(|| root().join("target"))).clone()
}

#[derive(Debug)]
pub struct Line(Command);

/// Makes the command of these words; [`Line::arg`] adds a word with blanks.
pub fn line(words: &str) -> Line {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.current_dir(root()).args(words);
    Line(command)
}

/// Path of the release build of the tool; a step that runs it comes after the step that builds it.
pub fn program() -> PathBuf {
    target().join("release/daqmeter")
}

pub fn daqmeter(words: &str) -> Line {
    started(&program()).words(words)
}

pub fn started(program: &Path) -> Line {
    let mut command = Command::new(program);
    command.current_dir(root());
    Line(command)
}

impl Line {
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Line {
        self.0.arg(word);
        self
    }

    pub fn args(mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Line {
        self.0.args(words);
        self
    }

    pub fn words(self, words: &str) -> Line {
        self.args(words.split_whitespace())
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Line {
        self.0.env(name, value);
        self
    }

    pub fn within(mut self, folder: &Path) -> Line {
        self.0.current_dir(folder);
        self
    }

    /// Runs the command; its output goes through.
    pub fn run(mut self) -> Result<()> {
        let status = self.0.status().with_context(|| self.cannot_start())?;
        ensure!(status.success(), "{}", self.ended(status));
        Ok(())
    }

    /// Runs the command; its output goes through. Returns the exit code; `None` after a signal.
    pub fn code(mut self) -> Result<Option<i32>> {
        let status = self.0.status().with_context(|| self.cannot_start())?;
        Ok(status.code())
    }

    pub fn output(mut self) -> Result<String> {
        let Output { status, stdout, stderr } =
            self.0.output().with_context(|| self.cannot_start())?;
        if !status.success() {
            bail!("{}: {}", self.ended(status), String::from_utf8_lossy(&stderr));
        }
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }

    fn cannot_start(&self) -> String {
        format!("cannot start {}", self.0.get_program().display())
    }

    fn ended(&self, status: ExitStatus) -> String {
        let words = std::iter::once(self.0.get_program()).chain(self.0.get_args());
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        format!("{} ended with {status}", words.join(" "))
    }
}

#[derive(Debug)]
pub enum StepDone {
    Ran,
    /// The task cannot run here; reported at the end.
    LeftOut(String),
}

pub fn ran(result: Result<()>) -> Result<StepDone> {
    result.map(|()| StepDone::Ran)
}

/// Tries of tasks that depend on chance or on the load of the host.
const TRIES: u32 = 3;

/// Repeats a measurement of time on a host that others use, too. Every failed try is reported; a
/// defect fails in each.
pub fn tried<T>(mut once: impl FnMut() -> Result<T>) -> Result<T> {
    for attempt in 1..TRIES {
        match once() {
            Ok(done) => return Ok(done),
            Err(error) => println!("!!! try {attempt} of {TRIES} failed: {error:#}"),
        }
    }
    once()
}

/// Measures again when the judge refuses a share or a time; every refusal is reported. Other
/// failures are final.
pub fn measured<T>(
    mut measure: impl FnMut() -> Result<T>,
    judge: impl Fn(&T) -> Result<()>,
) -> Result<()> {
    for attempt in 1..TRIES {
        match judge(&measure()?) {
            Ok(()) => return Ok(()),
            Err(error) => println!("!!! measurement {attempt} of {TRIES} refused: {error:#}"),
        }
    }
    judge(&measure()?)
}

pub fn there(program: &str) -> bool {
    line("sh -c").arg(format!("command -v {program}")).output().is_ok()
}

/// Programs that every run of CI starts, and their Debian packages.
const TOOLS: &[(&str, &str)] = &[
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    ("busybox", "busybox-static"),
    ("chromium", "chromium"),
    ("cpio", "cpio"),
    ("fdtput", "device-tree-compiler"),
    ("g++", "g++"),
    ("gcc-12", "gcc-12"),
    ("identify", "imagemagick"),
    ("ip", "iproute2"),
    ("make", "make"),
    ("nft", "nftables"),
    ("python3", "python3 python3-venv"),
    ("qemu-aarch64-static", "qemu-user-static"),
    ("qemu-system-aarch64", "qemu-system-arm"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("readelf", "binutils"),
    ("sparse", "sparse"),
    ("tc", "iproute2"),
    ("xz", "xz-utils"),
];

/// Programs that only some hosts need. A package in neither list has its program's name.
const RARE: &[(&str, &str)] = &[("dpkg-deb", "dpkg"), ("fusermount3", "fuse3")];

pub fn install(packages: &str) -> Result<()> {
    let apt = |words: &str| {
        line("apt-get")
            // Another step may be installing.
            .words("-o DPkg::Lock::Timeout=600")
            .words(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
    };
    apt("update -qq")
        .run()
        .and_then(|()| apt("install -y -qq --no-install-recommends").words(packages).run())
        .with_context(|| format!("install {packages} by hand"))
}

pub fn need(program: &str) -> Result<()> {
    if there(program) {
        return Ok(());
    }
    let tool = TOOLS.iter().chain(RARE).find(|tool| tool.0 == program);
    let packages = tool.map_or(program, |tool| tool.1);
    println!("installing {packages} for {program}");
    install(packages).with_context(|| format!("{program} is missing and cannot be installed"))
}

/// Installs all missing programs of CI's steps at once, because package lists are read, and dpkg's
/// triggers run, for each installation.
pub fn need_all() -> Result<StepDone> {
    let missing: Vec<&str> =
        TOOLS.iter().filter(|tool| !there(tool.0)).map(|tool| tool.1).collect();
    if missing.is_empty() {
        return Ok(StepDone::Ran);
    }
    println!("installing {}", missing.join(" "));
    Ok(match install(&missing.join(" ")) {
        Ok(()) => StepDone::Ran,
        Err(error) => StepDone::LeftOut(format!("{error:#}; each step installs what it needs")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_blanks_stays_one_argument() {
        let printed = line("printf %s,").arg("a b").words("c d").output().unwrap();
        assert_eq!(printed, "a b,c,d,");
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_error() {
        let error = line("sh -c").arg("echo reason >&2; exit 3").output().unwrap_err().to_string();
        assert!(
            error.contains("sh -c") && error.contains("reason") && error.contains('3'),
            "{error}"
        );
        assert!(line("no-such-program").run().unwrap_err().to_string().contains("no-such-program"));
    }

    #[test]
    fn the_third_try_decides() {
        let mut tries = 0;
        let third = tried(|| {
            tries += 1;
            ensure!(tries == TRIES, "too early");
            Ok(tries)
        });
        assert_eq!(third.unwrap(), TRIES);
        assert!(tried(|| Err::<(), _>(anyhow::anyhow!("never"))).is_err());
    }

    #[test]
    fn only_what_the_judge_refuses_is_measured_again() {
        let mut made = 0;
        let mut make = || {
            made += 1;
            Ok(made)
        };
        let near = |found: &u32| {
            ensure!(*found == 2, "{found} is not 2");
            Ok(())
        };
        measured(&mut make, near).unwrap();
        assert!(measured(&mut make, near).is_err());
        assert_eq!(made, 2 + TRIES);
        let mut broken = 0;
        let fails = || {
            broken += 1;
            Err::<u32, _>(anyhow::anyhow!("cannot measure"))
        };
        assert!(measured(fails, near).is_err());
        assert_eq!(broken, 1);
    }
}
