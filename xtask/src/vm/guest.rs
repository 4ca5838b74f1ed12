//! One boot of a virtual machine: an initial file system with a script, and what the guest said.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{archive, folder};

/// The emulated machine.
pub(crate) enum Machine<'a> {
    /// A PC.
    X86 {
        cpus: u32,
        /// The clock counts instructions; one CPU.
        icount: bool,
        /// A TCG plugin with its arguments.
        plugin: Option<&'a str>,
    },
    /// AMD Versal, whose eight ADMA controllers QEMU emulates; with a shell for its architecture.
    Versal { busybox: &'a Path },
}

/// What to boot.
pub(crate) struct Boot<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: Machine<'a>,
    pub(crate) kernel: &'a Path,
    pub(crate) script: &'a str,
    pub(crate) command_line: &'a str,
    /// Files, and their names in the guest's root.
    pub(crate) files: &'a [(&'a Path, &'a str)],
    pub(crate) limit_s: u32,
}

/// Mounts what programs expect, runs the script, and ends the machine whatever the script did.
const INIT: &str = "#!/bin/busybox sh\n\
/bin/busybox --install -s /bin\n\
export PATH=/bin\n\
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t debugfs debug /sys/kernel/debug\n\
mount -t tmpfs tmp /tmp\n\
echo root:x:0:0::/:/bin/sh > /etc/passwd; echo nobody:x:65534:65534::/:/bin/sh >> /etc/passwd\n\
dmesg -n 4\n\
echo GUEST begin $(uname -r) uptime $(cut -d' ' -f1 /proc/uptime)\n\
sh /script 2>&1\n\
echo GUEST end uptime $(cut -d' ' -f1 /proc/uptime)\n\
sync; poweroff -f\n";

impl Boot<'_> {
    /// Runs the machine to its end; returns the console.
    pub(crate) fn run(&self) -> Result<String> {
        let shell = match self.machine {
            Machine::X86 { .. } => Path::new("/bin/busybox"),
            Machine::Versal { busybox } => busybox,
        };
        let mut files = vec![
            ("init".to_owned(), INIT.as_bytes().to_vec(), 0o755),
            ("script".to_owned(), self.script.as_bytes().to_vec(), 0o755),
            (
                "bin/busybox".to_owned(),
                fs::read(shell).with_context(|| shell.display().to_string())?,
                0o755,
            ),
        ];
        for (path, name) in self.files {
            let bytes = fs::read(path).with_context(|| path.display().to_string())?;
            files.push(((*name).to_owned(), bytes, 0o755));
        }
        let initrd = archive(self.name, &files)?;
        let console = folder().join(format!("{}.console", self.name));
        let status = self
            .command(&initrd, &console)
            .status()
            .context("cannot start QEMU")?;
        let said = String::from_utf8_lossy(&fs::read(&console)?).replace('\r', "");
        ensure!(
            status.code() != Some(124),
            "not done after {} s; {}",
            self.limit_s,
            tail(&said)
        );
        ensure!(
            said.contains("GUEST end"),
            "the machine ended early; {}",
            tail(&said)
        );
        Ok(said)
    }

    fn command(&self, initrd: &Path, console: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.arg(self.limit_s.to_string());
        let tty = match &self.machine {
            Machine::X86 {
                cpus,
                icount,
                plugin,
            } => {
                // qemu64 has neither ERMS nor FSRM: the string instruction is then not emulated byte by byte.
                // One host thread for all CPUs: with several, a CPU can meet the int3 of a kernel that patches its own code
                // (static keys) after the others have forgotten it, and the kernel dies of that.
                command.args([
                    "qemu-system-x86_64",
                    "-machine",
                    "q35",
                    "-accel",
                    "tcg,thread=single",
                    "-cpu",
                    "qemu64",
                ]);
                command.args(["-m", "1536"]);
                command.args(["-smp", &cpus.to_string()]);
                if *icount {
                    command.args(["-icount", "shift=3,sleep=off"]);
                }
                if let Some(plugin) = plugin {
                    command.args(["-plugin", plugin]);
                }
                "ttyS0"
            }
            Machine::Versal { .. } => {
                // The machine wants four CPUs; Linux sees the two of the APU.
                command.args([
                    "qemu-system-aarch64",
                    "-machine",
                    "xlnx-versal-virt",
                    "-m",
                    "2G",
                    "-smp",
                    "4",
                ]);
                "ttyAMA0"
            }
        };
        command.args(["-nographic", "-no-reboot", "-nic", "none", "-serial"]);
        command
            .arg(format!("file:{}", console.display()))
            .args(["-monitor", "none"]);
        command
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(initrd)
            .arg("-append");
        command.arg(format!(
            "console={tty} quiet panic=-1 oops=panic rdinit=/init {}",
            self.command_line
        ));
        command
    }
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().rev().take(25).collect();
    format!(
        "it said last:\n{}",
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    )
}

/// At least so many cases passed, none failed, and the kernel complained of nothing.
pub(crate) fn judge(said: &str, least: usize) -> Result<()> {
    let lines = |start: &str| {
        said.lines()
            .filter(|line| line.starts_with(start))
            .collect::<Vec<_>>()
    };
    for line in lines("GUEST") {
        println!("{line}");
    }
    let failed = lines("GUEST failed");
    if !failed.is_empty() {
        bail!("{} cases failed; {}", failed.len(), tail(said));
    }
    let complaints = [
        "BUG:",
        "Oops",
        "WARNING: CPU",
        "general protection",
        "KASAN",
        "lockdep",
        "Kernel panic",
        "Redzone",
        "Poison overwritten",
    ];
    if let Some(line) = said
        .lines()
        .find(|line| complaints.iter().any(|complaint| line.contains(complaint)))
    {
        bail!("the kernel complained: {line}; {}", tail(said));
    }
    let passed = lines("GUEST ok").len();
    ensure!(
        passed >= least,
        "{passed} cases passed, at least {least} were expected; {}",
        tail(said)
    );
    Ok(())
}
