//! Debian's packages, downloaded into a private state below the build folder and unpacked there.
//! The system stays unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files::{below, folder};
use crate::shell::{Line, left_out, line, renew};

/// Runs Apt with a private state, for two architectures.
fn apt(program: &str) -> Line {
    let state = folder().join("apt");
    line(program)
        .arg("-o")
        .arg(format!("Dir::State::lists={}", state.join("lists").display()))
        .arg("-o")
        .arg(format!("Dir::Cache={}", state.join("cache").display()))
        .words("-o APT::Architectures::=amd64 -o APT::Architectures::=arm64")
        .words("-o APT::Sandbox::User=root")
}

/// Updates the package lists once a day.
pub(crate) fn update() -> Result<()> {
    if line("apt-get --version").output().is_err() {
        return left_out("no apt-get: kernels and programs of the machines are Debian's packages");
    }
    for directory in ["apt/lists/partial", "apt/cache/archives/partial"] {
        fs::create_dir_all(folder().join(directory))?;
    }
    let mark = folder().join("apt/updated");
    let age = fs::metadata(&mark).and_then(|about| about.modified()).map(|at| at.elapsed());
    if !matches!(age, Ok(Ok(age)) if age.as_secs() < 86_400) {
        apt("apt-get").words("update -qq").run()?;
        fs::write(&mark, "")?;
    }
    Ok(())
}

/// Unpacks these packages, without their dependencies.
pub(crate) fn unpack(packages: &str, into: &Path) -> Result<()> {
    unpacked(apt("apt-get").words("-qq download"), packages, into)
}

/// Unpacks a package and all its dependencies, for a system that has nothing.
pub(crate) fn unpack_all(package: &str, arch: &str, into: &Path) -> Result<()> {
    let install = apt("apt-get")
        .words("-qq -y install --download-only --no-install-recommends")
        .words("-o Dir::State::status=/dev/null -o Debug::NoLocking=1")
        .words(&format!("-o Dir::Cache::archives={}", into.display()))
        .words(&format!("-o APT::Architecture={arch}"));
    unpacked(install, package, into)
}

fn unpacked(download: Line, packages: &str, into: &Path) -> Result<()> {
    let mark = into.join("unpacked");
    if fs::read_to_string(&mark).is_ok_and(|unpacked| unpacked == packages) {
        return Ok(());
    }
    renew(into)?;
    fs::create_dir(into.join("partial"))?;
    download.words(packages).within(into).run()?;
    for package in fs::read_dir(into)?.flatten().map(|entry| entry.path()) {
        if package.extension().is_some_and(|extension| extension == "deb") {
            line("dpkg-deb -x").arg(&package).arg(into).run()?;
            fs::remove_file(package)?;
        }
    }
    Ok(fs::write(mark, packages)?)
}

pub(crate) fn arm_busybox() -> Result<PathBuf> {
    let place = folder().join("busybox-arm64");
    unpack("busybox-static:arm64", &place)?;
    let found = ["bin/busybox", "usr/bin/busybox"].map(|name| place.join(name));
    found.into_iter().find(|path| path.exists()).context("busybox-static brings no busybox")
}

/// A kernel with its headers.
pub(crate) struct Kernel {
    pub(crate) series: String,
    pub(crate) arch: String,
    release: String,
    root: PathBuf,
    pub(crate) image: PathBuf,
}

impl Kernel {
    /// Fetches the newest plain kernel of a series: `6.1.0-56-amd64`. Its unsigned image is there
    /// with its headers; the signed one may be a version later or earlier.
    pub(crate) fn fetch(series: &str, arch: &str) -> Result<Kernel> {
        let release = newest(series, arch)?;
        let version = release.trim_end_matches(&format!("-{arch}"));
        let headers = format!("linux-headers-{release}:{arch}");
        let depends = apt("apt-cache").words("depends").arg(&headers).output()?;
        let mut words = depends.split(|c: char| c.is_whitespace() || "<>:".contains(c));
        let kbuild = words.find(|word| word.starts_with("linux-kbuild"));
        let kbuild = kbuild.context("the headers depend on no linux-kbuild")?;
        let root = folder().join(format!("{series}-{arch}"));
        let image = format!("linux-image-{release}-unsigned:{arch}");
        let common = format!("linux-headers-{version}-common:all");
        unpack(&format!("{image} {headers} {common} {kbuild}:amd64"), &root)?;
        let image = root.join(format!("boot/vmlinuz-{release}"));
        ensure!(image.exists(), "{} is not in the package", image.display());
        let (series, arch) = (series.to_owned(), arch.to_owned());
        let kernel = Kernel { series, arch, release, root, image };
        kernel.relocate()?;
        Ok(kernel)
    }

    /// Returns the file of one of the kernel's own modules; `None` if it is not a module.
    pub(crate) fn module(&self, name: &str) -> Result<Option<PathBuf>> {
        let files = below(&self.root)?;
        let file = |end: &str| files.iter().find(|path| path.ends_with(format!("{name}.{end}")));
        match (file("ko"), file("ko.xz")) {
            (Some(plain), _) => Ok(Some(plain.clone())),
            (None, Some(packed)) => {
                line("xz -d --keep").arg(packed).run()?;
                Ok(Some(packed.with_extension("")))
            }
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn headers(&self) -> PathBuf {
        self.root.join(format!("usr/src/linux-headers-{}", self.release))
    }

    /// Makes the headers' paths those of the folder.
    fn relocate(&self) -> Result<()> {
        let here = self.root.display().to_string();
        for name in ["Makefile", ".kernelvariables"] {
            let path = self.headers().join(name);
            let text = fs::read_to_string(&path)?;
            if !text.contains(&here) {
                let usr = |part: &str| (format!("/usr/{part}/"), format!("{here}/usr/{part}/"));
                let [(src, own_src), (lib, own_lib)] = ["src", "lib"].map(usr);
                fs::write(&path, text.replace(&src, &own_src).replace(&lib, &own_lib))?;
            }
        }
        Ok(())
    }
}

fn newest(series: &str, arch: &str) -> Result<String> {
    let (start, end) = (format!("linux-headers-{series}."), format!("-{arch}"));
    let names = apt("apt-cache").words("pkgnames").arg(&start).output()?;
    let special = ["cloud", "rt", "16k", "common"];
    let plain = names.lines().filter(|name| {
        name.ends_with(&end) && !special.iter().any(|special| name.contains(special))
    });
    let newest = plain.max_by_key(|name| numbers(name)).with_context(|| {
        format!("no {start}*{end} in the package lists: add a suite that has the {series} kernel")
    })?;
    Ok(newest.trim_start_matches("linux-headers-").to_owned())
}

/// Reads a version as numbers, for comparing: `6.1.0-56` is 6, 1, 0, 56.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}
