//! One boot of a virtual machine: an initial file system with a script, and the guest's console.
//! Everything is emulated: no time from here is a performance result.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::files::{Initrd, folder, tail};
use crate::shell::line;

pub(crate) struct Boot<'a> {
    pub(crate) name: &'a str,
    /// QEMU and its options for the machine.
    pub(crate) qemu: &'a str,
    pub(crate) kernel: &'a Path,
    /// Options of the kernel.
    pub(crate) options: &'a str,
    pub(crate) limit_s: u32,
}

impl Boot<'_> {
    /// Runs the machine to its end; returns what it printed.
    pub(crate) fn run(&self, initrd: Initrd) -> Result<String> {
        let console = folder().join(format!("{}.console", self.name));
        let tty = if self.qemu.starts_with("qemu-system-x86_64") { "ttyS0" } else { "ttyAMA0" };
        let ended = line("timeout")
            .arg(self.limit_s.to_string())
            .words(self.qemu)
            .words("-nographic -no-reboot -nic none -monitor none -serial")
            .arg(format!("file:{}", console.display()))
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(initrd.pack()?)
            .arg("-append")
            .arg(format!("console={tty} quiet panic=-1 oops=panic rdinit=/init {}", self.options))
            .run();
        let printed = String::from_utf8_lossy(&fs::read(&console)?).replace('\r', "");
        let last = tail(&printed);
        ensure!(ended.is_ok(), "{ended:?} within {} s; last lines:\n{last}", self.limit_s);
        ensure!(printed.contains("GUEST end"), "the machine ended early; last lines:\n{last}");
        ensure!(!printed.contains("GUEST failed"), "a case failed; last lines:\n{last}");
        Ok(printed)
    }
}

/// Writes QEMU's device tree of a machine of type `virt`.
pub(crate) fn device_tree(qemu: &str, path: &Path) -> Result<()> {
    let dump = format!("virt,dumpdtb={}", path.display());
    line(&qemu.replacen("virt", &dump, 1)).output().map(drop)
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

/// Requires this number of passed cases, and no complaint of the kernel.
pub(crate) fn judge(printed: &str, cases: usize) -> Result<()> {
    printed.lines().filter(|line| line.starts_with("GUEST")).for_each(|line| println!("{line}"));
    let complaint = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    if let Some(line) = printed.lines().find(complaint) {
        bail!("the kernel complained: {line}; last lines:\n{}", tail(printed));
    }
    let passed = printed.lines().filter(|line| line.starts_with("GUEST ok")).count();
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
            ("[ 1.0] BUG: sleeping function\n", "the kernel complained: [ 1.0] BUG"),
            ("GUEST ok one\n", "1 of 2 cases passed"),
        ] {
            let error = judge(printed, 2).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
