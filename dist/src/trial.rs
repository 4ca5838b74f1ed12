//! Trials: a user's first commands, in a system with the installed files only.
//! The system is a folder that `chroot` makes the root, with `/proc` and `/dev` of this host. It
//! has a mount namespace of its own, so no mount remains. That takes root, or a kernel that lets
//! users make namespaces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::libraries;
use daqmeter_vm::shell::{Line, left_out, line, renew, target};

use super::{VERSION, of_readme};

const INSIDE: &str =
    "mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" \"$@\"";

const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

struct Bare {
    root: PathBuf,
}

impl Bare {
    fn new(name: &str) -> Result<Bare> {
        if let Err(error) = unshared().words("mount --rbind /proc /proc").output() {
            return left_out(format!("no mounts of a trial's own can be made here: {error:#}"));
        }
        let root = target().join("trial").join(name);
        renew(&root)?;
        for folder in ["proc", "dev", "tmp"] {
            fs::create_dir(root.join(folder))?;
        }
        Ok(Bare { root })
    }

    fn daqmeter(&self, program: &str, words: &str) -> Result<String> {
        let inside = unshared().words("sh -c").arg(INSIDE).arg(&self.root).arg(program);
        // The environment of this host's shell stays outside.
        inside.words(words).env("PATH", PATH).output()
    }

    /// Runs a command with dpkg on this system instead of the host's.
    fn dpkg(&self, command: &str, options: &str, folder: &Path) -> Result<()> {
        let here = format!("dpkg --log=/dev/null --root='{}' {options}", self.root.display());
        let command = command.replace("sudo dpkg", &here);
        unshared().words("sh -c").arg(command).env("PATH", PATH).within(folder).output().map(drop)
    }

    fn first_commands(&self, program: &str) -> Result<()> {
        let version = self.daqmeter(program, "--version")?;
        ensure!(version.trim() == format!("daqmeter {VERSION}"), "{version}");
        self.daqmeter(program, "doctor")?;
        self.daqmeter(program, "digitizer emu:l0 -S 3200 -N 5 --records /tmp/r.jsonl")?;
        self.daqmeter(program, "report /tmp/r.jsonl -o /tmp/r.html")?;
        let page = fs::read_to_string(self.root.join("tmp/r.html"))?;
        ensure!(page.contains("emu:l0"), "the page does not show the board");
        let manual = self.daqmeter(program, "help --man readout run")?;
        ensure!(manual.contains(".SH SYNOPSIS"), "{manual}");
        Ok(())
    }
}

fn unshared() -> Line {
    let is_root = line("id -u").output().is_ok_and(|id| id.trim() == "0");
    line("unshare --mount").words(if is_root { "" } else { "--map-root-user" })
}

/// Tries a program that needs no library.
pub(super) fn binary(program: &Path) -> Result<()> {
    let bare = Bare::new("binary")?;
    fs::copy(program, bare.root.join("daqmeter"))?;
    bare.first_commands("/daqmeter")
}

/// Installs the package of a folder with the README's command, tries its program, and removes it.
/// The libraries that the program may depend on are beside it, without their packages.
pub(super) fn package(folder: &Path, program: &Path) -> Result<()> {
    let bare = Bare::new("package")?;
    let needed = libraries(line("ldd").arg(program)).unwrap_or_default();
    for library in &needed {
        let to = bare.root.join(library.strip_prefix("/").unwrap_or(library));
        fs::create_dir_all(to.parent().context("a library has a folder")?)?;
        fs::copy(library, &to).with_context(|| library.display().to_string())?;
    }
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(bare.root.join("var/lib/dpkg").join(folder))?;
    }
    fs::write(bare.root.join("var/lib/dpkg/status"), "")?;
    let options = if needed.is_empty() { "" } else { "--force-depends" };
    bare.dpkg(&of_readme("sudo dpkg")?, options, folder)?;
    bare.first_commands("/usr/bin/daqmeter")?;
    let found = bare.daqmeter("/usr/bin/eb-find", "emu/gige 0x651 0xb2afc251")?;
    ensure!(found.trim() == "0x101000", "eb-find: {found}");
    let installed = |path: &str| bare.root.join("usr").join(path);
    line("gzip --test").arg(installed("share/man/man1/daqmeter-readout-run.1.gz")).run()?;
    line("bash -n").arg(installed("share/bash-completion/completions/daqmeter")).run()?;
    bare.dpkg("sudo dpkg --purge daqmeter", "", folder)?;
    ensure!(!installed("bin/daqmeter").exists(), "dpkg --purge left the program");
    Ok(())
}
