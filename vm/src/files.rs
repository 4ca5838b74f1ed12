//! Folders of the machines' files, and their initial file systems.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::shell::line;
use anyhow::{Context, Result};

/// Folder of packages, kernels, modules and consoles of the copying machines.
pub(crate) fn folder() -> PathBuf {
    crate::shell::target().join("copy-vm")
}

pub(crate) fn mesh_folder() -> PathBuf {
    crate::shell::target().join("pmu-vm")
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

pub(crate) struct GuestFile {
    path: String,
    bytes: Vec<u8>,
    mode: u32,
}

impl GuestFile {
    pub(crate) fn script(path: &str, text: &str) -> GuestFile {
        GuestFile { path: path.to_owned(), bytes: text.as_bytes().to_vec(), mode: 0o755 }
    }

    pub(crate) fn data(path: &str, bytes: Vec<u8>) -> GuestFile {
        GuestFile { path: path.to_owned(), bytes, mode: 0o644 }
    }

    pub(crate) fn program(path: &str, from: &Path) -> Result<GuestFile> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        Ok(GuestFile { path: path.to_owned(), bytes, mode: 0o755 })
    }
}

/// Writes a packed cpio archive `NAME.cpio.gz` in the folder, as an initial file system. During its
/// unpacking the guest's memory holds both.
pub(crate) fn archive(folder: &Path, name: &str, files: &[GuestFile]) -> Result<PathBuf> {
    let tree = folder.join(format!("initrd-{name}"));
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for directory in ["bin", "lib", "lib64", "proc", "sys", "dev", "tmp", "etc"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for file in files {
        let path = tree.join(&file.path);
        fs::write(&path, &file.bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    let archive = folder.join(format!("{name}.cpio"));
    let pack = "find . | cpio -o -H newc --quiet > \"$ARCHIVE\" && gzip -1 -f \"$ARCHIVE\"";
    line("sh -c").arg(pack).env("ARCHIVE", &archive).within(&tree).run()?;
    Ok(archive.with_extension("cpio.gz"))
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
