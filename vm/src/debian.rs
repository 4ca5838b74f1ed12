//! Debian's packages, downloaded into a private state below the build folder and unpacked there.
//! The system stays unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{Line, line};
use anyhow::{Context, Result, ensure};

use crate::files::{below, folder};

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

pub(crate) fn update() -> Result<()> {
    for directory in ["apt/lists/partial", "apt/cache/archives/partial"] {
        fs::create_dir_all(folder().join(directory))?;
    }
    let mark = folder().join("apt/updated");
    let fresh = fs::metadata(&mark)
        .and_then(|about| about.modified())
        .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 86_400));
    if !fresh {
        apt("apt-get").words("update -qq").run()?;
        fs::write(&mark, "")?;
    }
    Ok(())
}

pub(crate) fn unpack(packages: &[String], into: &Path) -> Result<()> {
    let mark = into.join("unpacked");
    let wanted = packages.join("\n");
    if fs::read_to_string(&mark).is_ok_and(|unpacked| unpacked == wanted) {
        return Ok(());
    }
    if into.exists() {
        fs::remove_dir_all(into)?;
    }
    fs::create_dir_all(into)?;
    apt("apt-get").words("-qq download").args(packages).within(into).run()?;
    for package in fs::read_dir(into)?.flatten().map(|entry| entry.path()) {
        if package.extension().is_some_and(|extension| extension == "deb") {
            line("dpkg-deb -x").arg(&package).arg(into).run()?;
            fs::remove_file(package)?;
        }
    }
    Ok(fs::write(mark, wanted)?)
}

/// Returns a package of another architecture and all its dependencies, as `name:arch`, for an empty
/// system.
pub(crate) fn closure(package: &str, arch: &str) -> Result<Vec<String>> {
    let nothing = folder().join("apt/nothing");
    fs::write(&nothing, "")?;
    let text = apt("apt-get")
        .arg("-o")
        .arg(format!("Dir::State::status={}", nothing.display()))
        .words(&format!("-o APT::Architecture={arch} -o Debug::NoLocking=1"))
        .words("--no-install-recommends --print-uris -y install")
        .arg(package)
        .output()?;
    // 'URI' name_version_arch.deb size hash
    let name = |line: &str| -> Option<String> {
        let file = line.strip_prefix('\'')?.split_whitespace().nth(1)?.strip_suffix(".deb")?;
        let (name, rest) = file.split_once('_')?;
        Some(format!("{name}:{}", rest.rsplit_once('_')?.1))
    };
    let names: Vec<String> = text.lines().filter_map(name).collect();
    ensure!(!names.is_empty(), "apt names no packages for {package}:{arch}");
    Ok(names)
}

pub(crate) fn foreign_busybox(arch: &str) -> Result<PathBuf> {
    let place = folder().join(format!("busybox-{arch}"));
    unpack(&[format!("busybox-static:{arch}")], &place)?;
    let found = ["bin/busybox", "usr/bin/busybox"].map(|name| place.join(name));
    found.into_iter().find(|path| path.exists()).context("busybox-static brings no busybox")
}

/// Reads a version as numbers, for comparing: `6.1.0-56` is 6, 1, 0, 56.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Returns the newest release of a series with a package of that kind, plain kernels only:
/// `6.1.0-56-amd64`.
fn newest(kind: &str, series: &str, arch: &str) -> Result<String> {
    let (kind, end) = (format!("linux-{kind}-"), format!("-{arch}"));
    let start = format!("{kind}{series}.");
    let names = apt("apt-cache").words("pkgnames").arg(&start).output()?;
    let special = ["cloud", "rt", "dbg", "unsigned", "16k", "common"];
    let release = |name: &str| -> Option<String> {
        let release = name.strip_prefix(&kind)?;
        let version = release.strip_suffix(&end)?;
        (!special.iter().any(|kind| version.contains(kind))).then(|| release.to_owned())
    };
    let newest = names.lines().filter_map(release).max_by_key(|release| numbers(release));
    newest.with_context(|| {
        format!("no {start}*{end} in the package lists: add a suite that has the {series} kernel")
    })
}

/// A kernel, with its headers if [`Kernel::fetch`] brought them.
pub(crate) struct Kernel {
    pub(crate) series: String,
    pub(crate) arch: String,
    pub(crate) release: String,
    root: PathBuf,
    pub(crate) image: PathBuf,
}

impl Kernel {
    pub(crate) fn fetch(series: &str, arch: &str) -> Result<Kernel> {
        let release = newest("headers", series, arch)?;
        let version = release.trim_end_matches(&format!("-{arch}"));
        let headers = format!("linux-headers-{release}:{arch}");
        let depends = apt("apt-cache").words("depends").arg(&headers).output()?;
        let kbuild = depends
            .split_whitespace()
            .map(|word| word.trim_matches(['<', '>']))
            .find(|word| word.starts_with("linux-kbuild"))
            .and_then(|word| word.split(':').next())
            .context("the headers depend on no linux-kbuild")?;
        let with = |image: String| {
            let common = format!("linux-headers-{version}-common:all");
            vec![image, headers.clone(), common, format!("{kbuild}:amd64")]
        };
        let root = folder().join(format!("{series}-{arch}"));
        // Signed images may be one version later or earlier; the unsigned ones are always there.
        let signed = format!("linux-image-{release}:{arch}");
        let unsigned = format!("linux-image-{release}-unsigned:{arch}");
        if apt("apt-cache").words("show").arg(&signed).output().is_err()
            || unpack(&with(signed), &root).is_err()
        {
            unpack(&with(unsigned), &root)?;
        }
        let kernel = Kernel::below(root, series, arch, release)?;
        kernel.relocate()?;
        Ok(kernel)
    }

    pub(crate) fn image_of(series: &str, arch: &str) -> Result<Kernel> {
        let release = newest("image", series, arch)?;
        let root = folder().join(format!("{series}-{arch}-image"));
        unpack(&[format!("linux-image-{release}:{arch}")], &root)?;
        Kernel::below(root, series, arch, release)
    }

    fn below(root: PathBuf, series: &str, arch: &str, release: String) -> Result<Kernel> {
        let image = root.join(format!("boot/vmlinuz-{release}"));
        ensure!(image.exists(), "{} is not in the package", image.display());
        println!("kernel {release}");
        let (series, arch) = (series.to_owned(), arch.to_owned());
        Ok(Kernel { series, arch, release, root, image })
    }

    /// Returns the bytes of one of the kernel's own modules; `None` if it is not a module.
    pub(crate) fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (plain, packed) = (format!("{name}.ko"), format!("{name}.ko.xz"));
        for modules in ["lib/modules", "usr/lib/modules"].map(|path| self.root.join(path)) {
            for path in below(&modules)? {
                if path.ends_with(&plain) {
                    return Ok(Some(fs::read(path)?));
                }
                if path.ends_with(&packed) {
                    let copy = self.root.join(&packed);
                    fs::copy(path, &copy)?;
                    line("xz -d --force").arg(&copy).run()?;
                    return Ok(Some(fs::read(copy.with_extension(""))?));
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn headers(&self) -> PathBuf {
        self.root.join(format!("usr/src/linux-headers-{}", self.release))
    }

    fn relocate(&self) -> Result<()> {
        let here = self.root.display().to_string();
        for name in ["Makefile", ".kernelvariables"] {
            let path = self.headers().join(name);
            let text = fs::read_to_string(&path)?;
            if text.contains(&here) {
                continue;
            }
            let text = text
                .replace("/usr/src/", &format!("{here}/usr/src/"))
                .replace("/usr/lib/", &format!("{here}/usr/lib/"));
            fs::write(&path, text)?;
        }
        Ok(())
    }
}
