//! Running other programs in the root of the checkout, and installing Debian's packages.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

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

/// Returns the path of a file that a step of CI makes.
pub fn scratch(name: &str) -> PathBuf {
    root().join("target/ci").join(name)
}

/// Makes an empty folder of that path.
pub fn renew(folder: &Path) -> Result<()> {
    let made = || {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        std::fs::create_dir_all(folder)
    };
    made().with_context(|| folder.display().to_string())
}

#[derive(Debug)]
pub struct Line(Command);

/// Makes the command of these words; [`Line::arg`] adds a word with blanks.
pub fn line(words: &str) -> Line {
    let mut words = words.split_whitespace();
    started(words.next().expect("a command has a name").as_ref()).args(words)
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

    /// Returns the command, for a start in the background.
    pub fn command(self) -> Command {
        self.0
    }

    /// Runs the command; its output goes through.
    pub fn run(mut self) -> Result<()> {
        let status = self.0.status().with_context(|| self.cannot_start())?;
        ensure!(status.success(), "{}", self.ended(status));
        Ok(())
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
        let program = self.0.get_program().display();
        format!("cannot start {program} (`cargo xtask packages` installs what Debian has)")
    }

    fn ended(&self, status: ExitStatus) -> String {
        let words = std::iter::once(self.0.get_program()).chain(self.0.get_args());
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        format!("{} ended with {status}", words.join(" "))
    }
}

/// A program in the background; ended when dropped.
pub(crate) struct Background(pub(crate) Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats until it holds or the time is over; errors count as not yet.
pub(crate) fn until(
    what: &str,
    limit: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    loop {
        match holds() {
            Ok(true) => return Ok(()),
            Ok(false) if began.elapsed() > limit => bail!("{what}: not within {limit:?}"),
            Err(error) if began.elapsed() > limit => return Err(error.context(what.to_owned())),
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The reason why a task cannot run on this host; CI reports it at its end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LeftOut(String);

pub fn left_out<T>(why: impl Into<String>) -> Result<T> {
    Err(LeftOut(why.into()).into())
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

/// Adds Rust's standard library for a target.
pub fn rust_target(triple: &str) -> Result<()> {
    line("rustup target add")
        .arg(triple)
        .output()
        .map(drop)
        .or_else(|error| left_out(format!("rustup cannot add the target {triple}: {error:#}")))
}

/// Programs that CI starts, and Debian's packages that have them.
const PROGRAMS: &str = "aarch64-linux-gnu-gcc ansible-playbook arv-camera-test-0.8 busybox chromium clush cpio dmsetup dpdk-testpmd dpkg-deb dropwatch \
     fdtput g++ gcc-12 identify ip iperf3 make mkfs.ext4 mkfs.xfs munged nft qemu-aarch64-static qemu-system-aarch64 qemu-system-x86_64 sbatch \
     slurmctld slurmd socat sparse sshd tc xz";
const PACKAGES: &str = "ansible-core aravis-tools clustershell gcc-aarch64-linux-gnu libc6-dev-arm64-cross chromium cpio dmsetup dpdk-dev \
     dpkg dropwatch e2fsprogs g++ gcc-12 device-tree-compiler imagemagick iperf3 iproute2 make munge nftables openssh-client openssh-server \
     python3-venv qemu-user-static qemu-system-arm qemu-system-x86 slurm-client slurmctld slurmd socat sparse xfsprogs xz-utils";

/// Installs the packages if a program is missing.
pub fn packages() -> Result<()> {
    let test = format!(
        "for program in {PROGRAMS}; do command -v $program || exit 1; done; python3 -c 'import ensurepip'"
    );
    if line("sh -c").arg(test).output().is_ok() {
        return Ok(());
    }
    let busybox = if Path::new("/bin/busybox").exists() { "" } else { "busybox-static" };
    install(&format!("{PACKAGES} {busybox}"))
        .or_else(|error| left_out(format!("install by hand: {PACKAGES} {busybox} ({error:#})")))
}

pub fn install(packages: &str) -> Result<()> {
    let apt = |words: &str| line("apt-get").words(words).env("DEBIAN_FRONTEND", "noninteractive");
    apt("update -qq").run()?;
    apt("install -y -qq --no-install-recommends").words(packages).run()
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
}
