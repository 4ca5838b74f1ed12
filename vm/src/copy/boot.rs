//! One boot of a virtual machine: an initial file system with a script, and the guest's console.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::files::{GuestFile, archive, folder, tail};

pub(crate) enum Machine<'a> {
    /// A PC.
    Pc(Pc<'a>),
    /// AMD Versal, with a shell for its architecture; QEMU emulates its eight ADMA controllers.
    Versal { busybox: &'a Path },
    /// QEMU's own Arm machine, with these options for its CPUs, and another device tree than its
    /// own.
    Arm { cpus: &'a str, busybox: &'a Path, tree: Option<&'a Path> },
}

/// Options of the Arm machine that all cases share.
pub(crate) const ARM: &str =
    "qemu-system-aarch64 -machine virt -cpu cortex-a72 -accel tcg,thread=multi";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pc<'a> {
    pub(crate) cpus: u32,
    pub(crate) run: Run<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Run<'a> {
    /// One host thread for all CPUs, one after the other.
    InTurn,
    /// One host thread for each CPU: they race.
    AtOnce,
    /// One CPU with a clock that counts instructions.
    Counted,
    /// One host thread, watched by a TCG plugin, given with its arguments.
    Watched(&'a str),
}

pub(crate) struct Boot<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: Machine<'a>,
    pub(crate) kernel: &'a Path,
    pub(crate) script: &'a str,
    pub(crate) command_line: &'a str,
    pub(crate) limit_s: u32,
}

/// Mounts the file systems of programs, runs the script, and ends the machine in any case.
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
    pub(crate) fn run(&self, mut files: Vec<GuestFile>) -> Result<String> {
        let shell = match self.machine {
            Machine::Pc(_) => Path::new("/bin/busybox"),
            Machine::Versal { busybox } | Machine::Arm { busybox, .. } => busybox,
        };
        files.push(GuestFile::script("init", INIT));
        files.push(GuestFile::script("script", self.script));
        files.push(GuestFile::program("bin/busybox", shell)?);
        let initrd = archive(&folder(), self.name, &files)?;
        let console = folder().join(format!("{}.console", self.name));
        let status = self.command(&initrd, &console).status().context("cannot start QEMU")?;
        let printed = String::from_utf8_lossy(&fs::read(&console)?).replace('\r', "");
        let last = tail(&printed);
        ensure!(
            status.code() != Some(124),
            "not done after {} s; last lines:\n{last}",
            self.limit_s
        );
        ensure!(printed.contains("GUEST end"), "the machine ended early; last lines:\n{last}");
        Ok(printed)
    }

    fn command(&self, initrd: &Path, console: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.arg(self.limit_s.to_string());
        let tty = match &self.machine {
            Machine::Pc(pc) => pc.begin(&mut command),
            Machine::Versal { .. } => {
                let machine = "qemu-system-aarch64 -machine xlnx-versal-virt -m 2G -smp 4";
                command.args(machine.split(' '));
                "ttyAMA0"
            }
            Machine::Arm { cpus, tree, .. } => {
                command.args(ARM.split(' ').chain(cpus.split_whitespace()));
                if let Some(tree) = tree {
                    command.arg("-dtb").arg(tree);
                }
                "ttyAMA0"
            }
        };
        command.args("-nographic -no-reboot -nic none -monitor none -serial".split(' '));
        command.arg(format!("file:{}", console.display()));
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(initrd).arg("-append");
        command.arg(format!(
            "console={tty} quiet panic=-1 oops=panic rdinit=/init {}",
            self.command_line
        ));
        command
    }
}

impl Pc<'_> {
    pub(crate) const IN_TURN: Pc<'static> = Pc { cpus: 4, run: Run::InTurn };

    fn begin(&self, command: &mut Command) -> &'static str {
        // With several host threads, a CPU can meet the int3 of a kernel that patches its own code
        // (static keys). If the others have forgotten it, the kernel dies. That machine starts its
        // other CPUs after the boot.
        let accelerator = match self.run {
            Run::AtOnce => "tcg,thread=multi",
            _ => "tcg,thread=single",
        };
        // qemu64 has neither ERMS nor FSRM: the string instruction is then not emulated byte by
        // byte.
        command.args("qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536 -accel".split(' '));
        command.arg(accelerator).arg("-smp").arg(self.cpus.to_string());
        match self.run {
            Run::Counted => command.args(["-icount", "shift=3,sleep=off"]),
            Run::Watched(plugin) => command.args(["-plugin", plugin]),
            Run::InTurn | Run::AtOnce => command,
        };
        "ttyS0"
    }
}

/// Messages of a faulty kernel.
const COMPLAINTS: [&str; 9] = [
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

/// Requires this number of passed cases, no failed one, and no complaint of the kernel.
pub(crate) fn judge(printed: &str, cases: usize) -> Result<()> {
    let starting = |start: &str| printed.lines().filter(|line| line.starts_with(start)).count();
    printed.lines().filter(|line| line.starts_with("GUEST")).for_each(|line| println!("{line}"));
    let failed = starting("GUEST failed");
    ensure!(failed == 0, "{failed} cases failed; last lines:\n{}", tail(printed));
    let complaint = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    if let Some(line) = printed.lines().find(complaint) {
        bail!("the kernel complained: {line}; last lines:\n{}", tail(printed));
    }
    let passed = starting("GUEST ok");
    ensure!(passed >= cases, "{passed} of {cases} cases passed; last lines:\n{}", tail(printed));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_passes_when_all_cases_did_and_the_kernel_was_quiet() {
        let good = "GUEST ok one\nGUEST ok two\n";
        judge(good, 2).unwrap();
        for (printed, why) in [
            (good.to_owned() + "GUEST failed three\n", "1 cases failed"),
            (
                good.to_owned() + "[ 1.0] BUG: sleeping function\n",
                "the kernel complained: [ 1.0] BUG",
            ),
            ("GUEST ok one\n".to_owned(), "1 of 2 cases passed"),
        ] {
            let error = judge(&printed, 2).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
