//! Initial file systems of the machines.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::shell::{Line, line, renew, target};

/// Folder of packages, kernels, modules and consoles.
pub(crate) fn folder() -> PathBuf {
    target().join("copy-vm")
}

pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut open, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(directory) = open.pop().filter(|directory| directory.exists()) {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() { &mut open } else { &mut files }.push(path);
        }
    }
    Ok(files)
}

/// Mounts the file systems of programs, runs the script, and ends the machine in any case.
const INIT: &str = "#!/bin/busybox sh\n\
/bin/busybox --install -s /bin\n\
export PATH=/bin LD_LIBRARY_PATH=/lib HOME=/tmp\n\
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
mount -t debugfs debug /sys/kernel/debug; mount -t tracefs trace /sys/kernel/tracing; mount -t tmpfs tmp /tmp\n\
echo root:x:0:0::/:/bin/sh > /etc/passwd; echo nobody:x:65534:65534::/:/bin/sh >> /etc/passwd\n\
dmesg -n 5\n\
echo; echo GUEST begin $(uname -r)\n\
sh /script 2>&1\n\
echo GUEST end uptime $(cut -d' ' -f1 /proc/uptime)\n\
sync; poweroff -f\n";

/// The tree of a machine's initial file system.
pub(crate) struct Initrd(PathBuf);

impl Initrd {
    /// Makes a tree with a shell that runs the script.
    pub(crate) fn new(name: &str, busybox: &Path, script: &str) -> Result<Initrd> {
        let tree = Initrd(folder().join(format!("initrd-{name}")));
        renew(&tree.0)?;
        for directory in ["proc", "sys", "dev", "tmp", "etc"] {
            fs::create_dir(tree.0.join(directory))?;
        }
        tree.take("bin/busybox", busybox)?;
        tree.put("script", script)?;
        tree.put("init", INIT)?;
        fs::set_permissions(tree.0.join("init"), fs::Permissions::from_mode(0o755))?;
        Ok(tree)
    }

    pub(crate) fn put(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(fs::write(self.0.join(path), bytes)?)
    }

    pub(crate) fn take(&self, path: &str, from: &Path) -> Result<()> {
        let to = self.0.join(path);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(from, to).with_context(|| from.display().to_string())?;
        Ok(())
    }

    /// Takes the shared libraries that `ldd`, or a loader that lists, names. Those below `root`
    /// come first.
    pub(crate) fn take_libraries(&self, ldd: Line, root: &Path) -> Result<()> {
        for library in libraries(ldd)? {
            let name = library.file_name().context("a library has a name")?.to_string_lossy();
            let folder = if name.starts_with("ld-linux-x86") { "lib64" } else { "lib" };
            let below = root.join(library.strip_prefix("/").unwrap_or(&library));
            let from = if below.exists() { &below } else { &library };
            self.take(&format!("{folder}/{name}"), from)?;
        }
        Ok(())
    }

    /// Packs the tree. During its unpacking the guest's memory holds both.
    pub(crate) fn pack(self) -> Result<PathBuf> {
        let archive = PathBuf::from(format!("{}.cpio.gz", self.0.display()));
        let pack = "find . | cpio -o -H newc --quiet | gzip -1 > \"$ARCHIVE\"";
        line("sh -c").arg(pack).env("ARCHIVE", &archive).within(&self.0).run()?;
        Ok(archive)
    }
}

/// Returns the shared libraries that `ldd` names. The lines are `libc.so.6 => /lib/libc.so.6
/// (0x...)`, or the loader's path alone. A static program has none.
pub fn libraries(ldd: Line) -> Result<Vec<PathBuf>> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(ldd.output()?.lines().filter_map(path).collect())
}

/// Reads a table of a file of ours: `[[kind]]` for each of its rows.
pub fn rows<T: DeserializeOwned>(text: &str, kind: &str) -> Result<Vec<T>> {
    let mut kinds: BTreeMap<String, Vec<T>> = toml::from_str(text)?;
    kinds.remove(kind).with_context(|| format!("no {kind}"))
}

pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("--- {what}");
    let began = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    println!("--- {what}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(done)
}

pub(crate) fn tail(printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
