//! Trials: a user's first commands, in a system with the installed files only.
//! The system is a folder that `chroot` makes the root, with `/proc` and `/dev` of this host. It
//! has a mount namespace of its own, so no mount remains. That takes root, or a kernel that lets
//! users make namespaces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::{Line, StepDone, line, started, target};

use super::package::libraries;
use super::{VERSION, renew};

const INSIDE: &str =
    "mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" \"$@\"";

struct Bare {
    root: PathBuf,
}

impl Bare {
    fn new(name: &str) -> Result<Bare> {
        let root = target().join("trial").join(name);
        renew(&root)?;
        for folder in ["proc", "dev", "tmp"] {
            fs::create_dir(root.join(folder))?;
        }
        Ok(Bare { root })
    }

    /// Copies a file to an equal path, or to another.
    fn take(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.root.join(to.strip_prefix("/").unwrap_or(to));
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    }

    fn daqmeter(&self, program: &str, words: &str) -> Result<String> {
        let inside = unshared().words("sh -c").arg(INSIDE).arg(&self.root);
        inside
            .arg(program)
            .words(words)
            // The environment of this host's shell stays outside.
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
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

    fn dpkg(&self, words: &str, what: &Path, may_lack: bool) -> Result<()> {
        let force = if may_lack { "--force-depends" } else { "--force-not-root" };
        unshared()
            .arg("dpkg")
            .arg(format!("--root={}", self.root.display()))
            .arg(format!("--log={}", self.root.join("dpkg.log").display()))
            .arg(force)
            .words(words)
            .arg(what)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .map(|_| ())
    }
}

fn unshared() -> Line {
    let is_root = line("id -u").output().is_ok_and(|id| id.trim() == "0");
    let user = if is_root { "" } else { "--map-root-user" };
    line("unshare --mount").words(user)
}

fn missing() -> Option<StepDone> {
    let tried = unshared().words("mount --rbind /proc /proc").output();
    tried.err().map(|error| {
        StepDone::LeftOut(format!(
            "no file system of its own can be made here, which takes root or user namespaces: {error:#}"
        ))
    })
}

pub(super) fn binary(program: &Path) -> Result<StepDone> {
    let needed = libraries(program)?;
    ensure!(needed.is_empty(), "it is not static: it needs {needed:?}");
    if let Some(left_out) = missing() {
        return Ok(left_out);
    }
    let bare = Bare::new("binary")?;
    bare.take(program, Path::new("daqmeter"))?;
    bare.first_commands("/daqmeter")?;
    Ok(StepDone::Ran)
}

pub(super) fn package(package: &Path, program: &Path) -> Result<StepDone> {
    if let Some(left_out) = missing() {
        return Ok(left_out);
    }
    let bare = Bare::new("package")?;
    let needed = libraries(program)?;
    for library in &needed {
        bare.take(library, library)?;
    }
    let admin = bare.root.join("var/lib/dpkg");
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(admin.join(folder))?;
    }
    fs::write(admin.join("status"), "")?;
    // Only the libraries are there, not their packages.
    bare.dpkg("--install", package, !needed.is_empty())?;
    let files = fs::read_to_string(admin.join("info/daqmeter.list"))?;
    installed(&bare, &files)?;
    bare.first_commands("/usr/bin/daqmeter")?;
    bare.dpkg("--purge", Path::new("daqmeter"), false)?;
    let left: Vec<&str> =
        files.lines().filter(|file| bare.root.join(&file[1..]).is_file()).collect();
    ensure!(left.is_empty(), "left behind by dpkg --purge: {left:?}");
    Ok(StepDone::Ran)
}

/// Checks that all files of the package are there, in a form that shells and man can read.
fn installed(bare: &Bare, files: &str) -> Result<()> {
    for wanted in [
        "/usr/bin/daqmeter",
        "/usr/share/man/man1/daqmeter.1.gz",
        "/usr/share/man/man1/daqmeter-readout-run.1.gz",
        "/usr/share/zsh/vendor-completions/_daqmeter",
        "/usr/share/fish/vendor_completions.d/daqmeter.fish",
        "/usr/share/doc/daqmeter/copyright",
        "/usr/share/doc/daqmeter/changelog.gz",
    ] {
        let is_there = files.lines().any(|file| file == wanted);
        ensure!(is_there, "the package has no {wanted}");
    }
    for page in files.lines().filter(|file| file.ends_with(".gz")) {
        line("gzip --test").arg(bare.root.join(&page[1..])).run()?;
    }
    let completions = "usr/share/bash-completion/completions/daqmeter";
    line("bash -n").arg(bare.root.join(completions)).run()
}

const PYTHON: &str = "\
import daqmeter, sys
record = daqmeter.run('null', seconds=0.01)
assert record['outcome'] == {'status': 'ok'}, record['outcome']
assert daqmeter.__version__ == sys.argv[1], daqmeter.__version__
";

pub(super) fn wheel(wheel: &Path) -> Result<StepDone> {
    let venv = target().join("trial/venv");
    renew(&venv)?;
    line("python3 -m venv").arg(&venv).run()?;
    started(&venv.join("bin/pip"))
        .words("install --quiet --disable-pip-version-check")
        .arg(wheel)
        .run()?;
    started(&venv.join("bin/python"))
        .arg("-c")
        .arg(PYTHON)
        .arg(VERSION)
        // The folder avoids the sources of the package, which Python would take instead.
        .within(&venv)
        .run()?;
    Ok(StepDone::Ran)
}
