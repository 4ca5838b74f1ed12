//! The Debian package: the program, its manual pages, completions for three shells, documents.
//! `dpkg-deb` writes it from a folder with the layout of the user's system.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::{line, need, root, started, target};

use super::{VERSION, licences, renew};

const DESCRIPTION: &str = "\
measures the path of data from acquisition device to program
 daqmeter measures, exercises and predicts the path that data takes from an
 acquisition device to a program: read-out, conversion, copies, network,
 registers over Etherbone, counters of the interconnect. Every rate stands
 beside the physical limit measured in the same run, and every path that
 moves data closes a ledger of losses. Emulated devices come with it.
";

/// Documents that are installed; `CHANGELOG.md` becomes `changelog.gz`, as Debian calls it.
const DOCUMENTS: [&str; 2] = ["README.md", "METHODOLOGY.md"];

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/daqmeter"),
    ("zsh", "usr/share/zsh/vendor-completions/_daqmeter"),
    ("fish", "usr/share/fish/vendor_completions.d/daqmeter.fish"),
];

/// Packages of the C library and of its stack unwinder: all dependencies of a dynamic program.
const LIBRARIES: &str = "libc6, libgcc-s1";

pub(super) fn make(program: &Path, folder: &Path) -> Result<PathBuf> {
    need("dpkg-deb")?;
    let stage = target().join("package-root");
    renew(&stage)?;
    put(&stage, "usr/bin/daqmeter", &fs::read(program)?)?;
    let installed = stage.join("usr/bin/daqmeter");
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o755))?;
    manuals(program, &[], &stage)?;
    for (shell, path) in COMPLETIONS {
        let script = started(program).arg("completions").arg(shell).output()?;
        put(&stage, path, script.as_bytes())?;
    }
    documents(&stage)?;
    let needs_libraries = !libraries(program)?.is_empty();
    put(&stage, "DEBIAN/control", control(&stage, needs_libraries)?.as_bytes())?;
    let package = folder.join(format!("daqmeter_{VERSION}_{}.deb", architecture()?));
    line("dpkg-deb --root-owner-group -Zxz --build").arg(&stage).arg(&package).output()?;
    Ok(package)
}

/// Writes a file and its folders, readable by all for any umask.
fn put(stage: &Path, path: &str, bytes: &[u8]) -> Result<()> {
    let mut place = stage.to_owned();
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    for folder in folders.split('/') {
        place.push(folder);
        if !place.exists() {
            fs::create_dir(&place)?;
        }
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    }
    place.push(name);
    fs::write(&place, bytes).with_context(|| place.display().to_string())?;
    Ok(fs::set_permissions(&place, fs::Permissions::from_mode(0o644))?)
}

/// Writes a packed file as Debian requires: without name and time, so that equal files stay equal.
fn put_packed(stage: &Path, path: &str, bytes: &[u8]) -> Result<()> {
    put(stage, path, bytes)?;
    line("gzip -9n").arg(stage.join(path)).run()
}

fn manuals(program: &Path, verbs: &[&str], stage: &Path) -> Result<()> {
    let text = started(program).arg("help").arg("--man").args(verbs).output()?;
    let name = [&["daqmeter"], verbs].concat().join("-");
    put_packed(stage, &format!("usr/share/man/man1/{name}.1"), text.as_bytes())?;
    for verb in below(&text, &name) {
        manuals(program, &[verbs, &[verb.as_str()]].concat(), stage)?;
    }
    Ok(())
}

/// Returns the verbs that a page names as its own.
fn below(page: &str, name: &str) -> Vec<String> {
    let listed = page.split(".SH SUBCOMMANDS").nth(1).unwrap_or("");
    let verb = |line: &str| {
        let page = line.strip_suffix("(1)")?.replace("\\-", "-");
        Some(page.strip_prefix(name)?.strip_prefix('-')?.to_owned())
    };
    listed.lines().filter_map(verb).collect()
}

fn documents(stage: &Path) -> Result<()> {
    let place = |name: &str| format!("usr/share/doc/daqmeter/{name}");
    let read = |name: &str| fs::read(root().join(name)).context(name.to_owned());
    for name in DOCUMENTS {
        put(stage, &place(name), &read(name)?)?;
    }
    put_packed(stage, &place("changelog"), &read("CHANGELOG.md")?)?;
    let licences = licences::text()?;
    put_packed(stage, &place("LICENSES.txt"), licences.as_bytes())?;
    put(stage, &place("copyright"), copyright()?.as_bytes())
}

/// Returns the copyright in the form that Debian's tools read.
fn copyright() -> Result<String> {
    let licence = fs::read_to_string(root().join("LICENSE-MIT"))?;
    let owner = licence.lines().find_map(|line| line.strip_prefix("Copyright (c) "));
    let owner = owner.context("LICENSE-MIT has no line with the copyright")?;
    let indented = |line: &str| match line {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    };
    let mit: String = licence.lines().map(indented).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: daqmeter\n\
         Comment: The libraries that are built into the program, with their licences: LICENSES.txt.gz\n\n\
         Files: *\nCopyright: {owner}\nLicense: MIT or Apache-2.0\n\n\
         License: MIT\n{mit}\n\
         License: Apache-2.0\n On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

fn control(stage: &Path, needs_libraries: bool) -> Result<String> {
    let kib =
        line("du --summarize --apparent-size --block-size=1024").arg(stage.join("usr")).output()?;
    let kib = kib.split_whitespace().next().context("du prints a size")?;
    let depends = match needs_libraries {
        true => format!("Depends: {LIBRARIES}\n"),
        false => String::new(),
    };
    Ok(format!(
        "Package: daqmeter\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {kib}\n\
         Section: science\nPriority: optional\n{depends}Description: {DESCRIPTION}",
        architecture()?,
        maintainer()?
    ))
}

/// Returns DEBFULLNAME and DEBEMAIL, as Debian's own tools do; the default is the author of the
/// last commit.
fn maintainer() -> Result<String> {
    if let (Ok(name), Ok(address)) = (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        return Ok(format!("{name} <{address}>"));
    }
    let last = line("git log -1").arg("--format=%an <%ae>").output();
    let last = last.context("set DEBFULLNAME and DEBEMAIL to say who maintains the package")?;
    ensure!(last.contains('@'), "the last commit has no address: set DEBFULLNAME and DEBEMAIL");
    Ok(last.trim().to_owned())
}

fn architecture() -> Result<String> {
    let printed = line("dpkg --print-architecture").output()?;
    Ok(printed.trim().to_owned())
}

pub(super) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails for other files than dynamic programs, and reports static relocatable programs in
    // words.
    let Ok(text) = line("ldd").arg(program).output() else {
        return Ok(Vec::new());
    };
    ensure!(!text.contains("not found"), "{}: {text}", program.display());
    Ok(library_paths(&text))
}

fn library_paths(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| word.starts_with('/')).map(PathBuf::from)
    };
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_read_from_the_page_that_lists_them() {
        let page = ".SH NAME\nx\\-y(1)\n.SH SUBCOMMANDS\n.TP\ndaqmeter\\-pmu\\-plan(1)\nWhat fits (1)\n.TP\ndaqmeter\\-pmu\\-reads\\-off(1)\n";
        assert_eq!(below(page, "daqmeter-pmu"), ["plan", "reads-off"]);
        assert!(below(".SH NAME\n", "daqmeter").is_empty());
    }

    #[test]
    fn a_static_program_needs_no_library_and_another_all_that_ldd_finds() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        let found = library_paths(text);
        assert_eq!(found, ["/lib/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from));
        assert!(library_paths("\tstatically linked\n").is_empty());
    }

    #[test]
    fn control_names_libraries_only_where_they_are_needed() {
        let stage = tempfile::tempdir().unwrap();
        put(stage.path(), "usr/bin/x", &[0; 4096]).unwrap();
        let with = control(stage.path(), true).unwrap();
        assert!(with.contains("\nDepends: libc6, libgcc-s1\nDescription: "), "{with}");
        let without = control(stage.path(), false).unwrap();
        assert!(!without.contains("Depends"), "{without}");
        // Debian's rule: each line of the long description begins with a blank, and the last one
        // ends.
        let long = without.split("\nDescription: ").nth(1).unwrap();
        assert!(long.ends_with('\n') && long.lines().skip(1).all(|line| line.starts_with(' ')));
    }
}
