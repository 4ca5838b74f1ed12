//! The Debian package: the program, links by which it is a C tool, its manual pages, completions
//! for three shells, documents.
//! `dpkg-deb` writes it from a folder with the layout of the user's system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use daqmeter_vm::libraries;
use daqmeter_vm::shell::{line, renew, root, started, target};

use super::{VERSION, licences};

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/daqmeter"),
    ("zsh", "usr/share/zsh/vendor-completions/_daqmeter"),
    ("fish", "usr/share/fish/vendor_completions.d/daqmeter.fish"),
];

/// Names of the C tools of Etherbone, which the program answers to.
const TOOLS: &str = "eb-ls eb-read eb-write eb-find eb-get eb-put eb-discover eb-snoop eb-tunnel";

/// Makes the package of a program in a folder.
pub(super) fn make(program: &Path, folder: &Path) -> Result<()> {
    let stage = target().join("package-root");
    renew(&stage)?;
    let manuals_folder = "usr/share/man/man1";
    // The list of verbs, which a test of the command line writes.
    let verbs = fs::read_to_string(root().join("docs/verbs.txt"))?;
    for verb in verbs.lines().filter_map(|line| line.strip_prefix("daqmeter")?.split(':').next()) {
        let page = started(program).words("help --man").words(verb).output()?;
        put(&stage, &format!("{manuals_folder}/daqmeter{}.1", verb.replace(' ', "-")), &page)?;
    }
    for (shell, path) in COMPLETIONS {
        put(&stage, path, &started(program).words("help --completions").arg(shell).output()?)?;
    }
    let read = |name: &str| fs::read_to_string(root().join(name)).context(name.to_owned());
    let documents = [
        ("README.md", read("README.md")?),
        ("METHODOLOGY.md", read("METHODOLOGY.md")?),
        ("changelog", read("CHANGELOG.md")?),
        ("LICENSES.txt", licences::text()?),
        ("copyright", copyright(&read("LICENSE-MIT")?)?),
    ];
    let place = |name: &str| format!("usr/share/doc/daqmeter/{name}");
    for (name, text) in documents {
        put(&stage, &place(name), &text)?;
    }
    // Debian requires packed files without name and time, so that equal files stay equal.
    line("gzip -9nr")
        .args([manuals_folder, &place("changelog"), &place("LICENSES.txt")])
        .within(&stage)
        .run()?;
    fs::create_dir(stage.join("usr/bin"))?;
    fs::copy(program, stage.join("usr/bin/daqmeter"))?;
    for tool in TOOLS.split(' ') {
        symlink("daqmeter", stage.join("usr/bin").join(tool))?;
    }
    let architecture = line("dpkg --print-architecture").output()?;
    put(&stage, "DEBIAN/control", &control(program, architecture.trim())?)?;
    // All can read the files, for any umask.
    line("chmod -R u=rwX,go=rX").arg(&stage).run()?;
    let package = folder.join(format!("daqmeter_{VERSION}_{}.deb", architecture.trim()));
    line("dpkg-deb --root-owner-group -Zxz --build").arg(&stage).arg(&package).output().map(drop)
}

fn put(stage: &Path, path: &str, text: &str) -> Result<()> {
    let path = stage.join(path);
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Returns the copyright in the form that Debian's tools read.
fn copyright(licence: &str) -> Result<String> {
    let owner = licence.lines().find_map(|line| line.strip_prefix("Copyright (c) "));
    let owner = owner.context("LICENSE-MIT has no line with the copyright")?;
    let mit = licence.trim_end().replace("\n\n", "\n.\n").replace('\n', "\n ");
    let form = include_str!("../debian/copyright");
    Ok(form.replace("{owner}", owner).replace("{mit}", &format!(" {mit}")))
}

/// Returns the control file. The maintainer is the author of the last commit. A program with shared
/// libraries needs the C library and its stack unwinder.
fn control(program: &Path, architecture: &str) -> Result<String> {
    let maintainer = line("git log -1").arg("--format=%an <%ae>").output()?;
    let form = include_str!("../debian/control")
        .replace("{version}", VERSION)
        .replace("{architecture}", architecture)
        .replace("{maintainer}", maintainer.trim());
    // ldd fails on a static program.
    let is_static = libraries(line("ldd").arg(program)).unwrap_or_default().is_empty();
    let depends = if is_static { "" } else { "Depends: libc6, libgcc-s1\n" };
    Ok(form.replace("Depends: {depends}\n", depends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copyright_has_the_licence_in_debians_form() {
        let text = copyright("MIT\n\nCopyright (c) 2026 me\n\nAll of it.\n").unwrap();
        assert!(text.contains("\nCopyright: 2026 me\n"), "{text}");
        assert!(
            text.contains("License: MIT\n MIT\n .\n Copyright (c) 2026 me\n .\n All"),
            "{text}"
        );
    }
}
