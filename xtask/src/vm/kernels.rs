//! Debian's kernels, headers and sources, unpacked below `target/`; modules built against them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::folder;
use crate::shell::{output, root, run};

/// Options that keep apt's state to ourselves, for two architectures.
fn apt_options() -> Vec<String> {
    let lists = folder().join("apt/lists");
    let cache = folder().join("apt/cache");
    let mut options = Vec::new();
    for option in [
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", cache.display()),
        "APT::Architectures::=amd64".to_owned(),
        "APT::Architectures::=arm64".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
    ] {
        options.extend(["-o".to_owned(), option]);
    }
    options
}

fn apt(program: &str, arguments: &[&str]) -> Result<String> {
    let options = apt_options();
    let all: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(arguments.iter().copied())
        .collect();
    output(program, &all)
}

/// Reads the package lists, once a day.
pub(crate) fn update() -> Result<()> {
    for directory in ["apt/lists/partial", "apt/cache/archives/partial", "debs"] {
        fs::create_dir_all(folder().join(directory))?;
    }
    let mark = folder().join("apt/updated");
    let fresh = fs::metadata(&mark)
        .and_then(|about| about.modified())
        .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 86_400));
    if !fresh {
        apt("apt-get", &["update", "-qq"])?;
        fs::write(&mark, "")?;
    }
    Ok(())
}

/// Downloads packages (unless they are there) and unpacks them below a folder of their own.
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
    let options = apt_options();
    let status = Command::new("apt-get")
        .args(&options)
        .args(["-qq", "download"])
        .args(packages)
        .current_dir(into)
        .status()
        .context("cannot start apt-get")?;
    ensure!(
        status.success(),
        "apt-get could not download {}",
        packages.join(" ")
    );
    for entry in fs::read_dir(into)?.flatten().map(|entry| entry.path()) {
        if entry
            .extension()
            .is_some_and(|extension| extension == "deb")
        {
            run(
                "dpkg-deb",
                &[
                    "-x",
                    &entry.display().to_string(),
                    &into.display().to_string(),
                ],
            )?;
            fs::remove_file(entry)?;
        }
    }
    Ok(fs::write(mark, wanted)?)
}

/// A version as numbers, for comparing: `6.1.0-56` is 6, 1, 0, 56.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// A kernel with its headers.
pub(crate) struct Kernel {
    pub(crate) series: String,
    arch: String,
    release: String,
    root: PathBuf,
    pub(crate) image: PathBuf,
}

/// What is built for it.
pub(crate) struct Modules {
    pub(crate) copy: PathBuf,
    pub(crate) trace: PathBuf,
    pub(crate) softdma: PathBuf,
    pub(crate) dmatest: PathBuf,
    pub(crate) zynqmp: PathBuf,
    pub(crate) other_abi: PathBuf,
}

impl Kernel {
    /// The newest of a series that the system's package lists have.
    pub(crate) fn fetch(series: &str, arch: &str) -> Result<Kernel> {
        let start = format!("linux-headers-{series}.");
        let end = format!("-{arch}");
        let names = apt("apt-cache", &["pkgnames", &start])?;
        let plain = |name: &&str| {
            let Some(version) = name
                .strip_prefix("linux-headers-")
                .and_then(|rest| rest.strip_suffix(&end))
            else {
                return false;
            };
            !version.contains("cloud") && !version.contains("rt") && !version.contains("common")
        };
        let mut releases: Vec<&str> = names.lines().filter(plain).collect();
        releases.sort_by_key(|name| numbers(name));
        let Some(headers) = releases.last() else {
            bail!(
                "no {start}*{end} in the package lists: add a suite that has the {series} kernel"
            );
        };
        let release = headers.trim_start_matches("linux-headers-").to_owned();
        let common = format!("linux-headers-{}-common", release.trim_end_matches(&end));
        let depends = apt("apt-cache", &["depends", &format!("{headers}:{arch}")])?;
        let kbuild = depends
            .split_whitespace()
            .map(|word| word.trim_matches(['<', '>']))
            .find(|word| word.starts_with("linux-kbuild"));
        let kbuild = kbuild
            .context("the headers depend on no linux-kbuild")?
            .split(':')
            .next()
            .unwrap_or("")
            .to_owned();
        let root = folder().join(format!("{series}-{arch}"));
        let image = format!("linux-image-{release}:{arch}");
        // Signed images are of one version later or earlier at times; the unsigned ones are always there.
        let image = if apt("apt-cache", &["show", &image]).is_ok() {
            image
        } else {
            format!("linux-image-{release}-unsigned:{arch}")
        };
        unpack(
            &[
                image,
                format!("{headers}:{arch}"),
                format!("{common}:all"),
                format!("{kbuild}:amd64"),
            ],
            &root,
        )
        .or_else(|_| {
            unpack(
                &[
                    format!("linux-image-{release}-unsigned:{arch}"),
                    format!("{headers}:{arch}"),
                    common.clone(),
                    format!("{kbuild}:amd64"),
                ],
                &root,
            )
        })?;
        let image = root.join(format!("boot/vmlinuz-{release}"));
        ensure!(image.exists(), "{} is not in the package", image.display());
        let kernel = Kernel {
            series: series.to_owned(),
            arch: arch.to_owned(),
            release,
            root,
            image,
        };
        kernel.relocate()?;
        println!("kernel {}", kernel.release);
        Ok(kernel)
    }

    /// The newest image of a series by itself, without headers.
    pub(crate) fn image_of(series: &str, arch: &str) -> Result<Kernel> {
        let start = format!("linux-image-{series}.");
        let end = format!("-{arch}");
        let names = apt("apt-cache", &["pkgnames", &start])?;
        let version = |name: &str| -> Option<String> {
            let release = name
                .strip_prefix("linux-image-")?
                .strip_suffix(&end)?
                .to_owned();
            let special = ["cloud", "rt", "dbg", "unsigned", "16k"]
                .iter()
                .any(|kind| release.contains(kind));
            (!special).then_some(release)
        };
        let mut releases: Vec<String> = names.lines().filter_map(version).collect();
        releases.sort_by_key(|release| numbers(release));
        let Some(release) = releases.pop().map(|release| release + &end) else {
            bail!(
                "no {start}*{end} in the package lists: add a suite that has the {series} kernel"
            );
        };
        let root = folder().join(format!("{series}-{arch}-image"));
        unpack(&[format!("linux-image-{release}:{arch}")], &root)?;
        let image = root.join(format!("boot/vmlinuz-{release}"));
        ensure!(image.exists(), "{} is not in the package", image.display());
        println!("kernel {release}");
        Ok(Kernel {
            series: series.to_owned(),
            arch: arch.to_owned(),
            release,
            root,
            image,
        })
    }

    /// The bytes of one of the kernel's own modules; none when it is not a module.
    pub(crate) fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let below = [
            self.root.join("lib/modules"),
            self.root.join("usr/lib/modules"),
        ];
        let mut open: Vec<PathBuf> = below.into_iter().filter(|path| path.exists()).collect();
        while let Some(directory) = open.pop() {
            for path in fs::read_dir(&directory)?
                .flatten()
                .map(|entry| entry.path())
            {
                let file = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or("");
                if path.is_dir() {
                    open.push(path);
                } else if file == format!("{name}.ko") {
                    return Ok(Some(fs::read(path)?));
                } else if file == format!("{name}.ko.xz") {
                    let done = Command::new("xz")
                        .args(["-dc"])
                        .arg(&path)
                        .output()
                        .context("cannot start xz")?;
                    ensure!(done.status.success(), "xz cannot read {}", path.display());
                    return Ok(Some(done.stdout));
                }
            }
        }
        Ok(None)
    }

    fn headers(&self) -> PathBuf {
        self.root
            .join(format!("usr/src/linux-headers-{}", self.release))
    }

    /// Debian's headers name each other by absolute paths: those become ours.
    fn relocate(&self) -> Result<()> {
        let here = self.root.display().to_string();
        for name in ["Makefile", ".kernelvariables"] {
            let path = self.headers().join(name);
            let text = fs::read_to_string(&path)?;
            if !text.contains(&here) {
                let text = text
                    .replace("/usr/src/", &format!("{here}/usr/src/"))
                    .replace("/usr/lib/", &format!("{here}/usr/lib/"));
                fs::write(&path, text)?;
            }
        }
        Ok(())
    }

    /// Builds in a copy of the folder.
    fn build(&self, sources: &Path, name: &str, more: &[&str]) -> Result<()> {
        let place = self.place(name);
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        for entry in fs::read_dir(sources)?
            .flatten()
            .filter(|entry| entry.path().is_file())
        {
            fs::copy(entry.path(), place.join(entry.file_name()))?;
        }
        self.make(&place, more)
    }

    fn make(&self, place: &Path, more: &[&str]) -> Result<()> {
        let (headers, place) = (
            self.headers().display().to_string(),
            place.display().to_string(),
        );
        let modules = format!("M={place}");
        let mut arguments = vec![
            "-s",
            "-C",
            &headers,
            &modules,
            "CONFIG_DEBUG_INFO_BTF_MODULES=",
            "modules",
        ];
        if self.arch == "arm64" {
            arguments.extend([
                "ARCH=arm64",
                "CROSS_COMPILE=aarch64-linux-gnu-",
                "CC=aarch64-linux-gnu-gcc",
            ]);
        }
        arguments.extend(more);
        let built = Command::new("make")
            .args(&arguments)
            .output()
            .context("cannot start make")?;
        let said = String::from_utf8_lossy(&built.stdout).into_owned()
            + &String::from_utf8_lossy(&built.stderr);
        ensure!(
            built.status.success(),
            "make {}: {said}",
            arguments.join(" ")
        );
        let ours = |line: &&str| line.contains("warning:") || line.contains("error:");
        if let Some(line) = said.lines().find(ours) {
            bail!("the build is not clean: {line}");
        }
        Ok(())
    }

    /// Where a module's sources are built.
    fn place(&self, name: &str) -> PathBuf {
        folder().join(format!("build-{}-{}-{name}", self.series, self.arch))
    }

    /// Builds our modules (with extra warnings and sparse), and the kernel's own dmatest and zynqmp_dma from Debian's source.
    pub(crate) fn build_modules(&self, source: &Source) -> Result<()> {
        let sources = root().join("kmod");
        let native = self.arch == "amd64";
        let sparse: &[&str] = if native {
            &["W=1", "C=2", "CHECK=sparse"]
        } else {
            &[]
        };
        self.build(&sources, "kmod", sparse)?;
        self.build(&source.drivers, "drivers", &["KCFLAGS=-w"])?;
        if !native {
            return Ok(());
        }
        // The same module, as if of another version: both must notice.
        let other = folder().join("other-abi");
        fs::create_dir_all(&other)?;
        for entry in fs::read_dir(&sources)?
            .flatten()
            .filter(|entry| entry.path().is_file())
        {
            let text = fs::read_to_string(entry.path())?;
            fs::write(
                other.join(entry.file_name()),
                text.replace("#define DAQMETER_ABI 1", "#define DAQMETER_ABI 2"),
            )?;
        }
        self.build(&other, "other-abi", &[])
    }

    /// The modules that [`Kernel::build_modules`] left.
    pub(crate) fn modules(&self) -> Result<Modules> {
        let (ours, kernels) = (self.place("kmod"), self.place("drivers"));
        let other = if self.arch == "amd64" {
            self.place("other-abi")
        } else {
            ours.clone()
        };
        ensure!(
            ours.join("daqmeter_copy.ko").exists(),
            "the modules for {} are not built",
            self.release
        );
        Ok(Modules {
            copy: ours.join("daqmeter_copy.ko"),
            trace: ours.join("daqmeter_trace.ko"),
            softdma: ours.join("softdma.ko"),
            dmatest: kernels.join("dmatest.ko"),
            zynqmp: kernels.join("zynqmp_dma.ko"),
            other_abi: other.join("daqmeter_copy.ko"),
        })
    }
}

/// Debian's linux-source 6.1.
pub(crate) struct Source {
    /// The archive that the package brings.
    pub(crate) archive: PathBuf,
    tree: PathBuf,
    drivers: PathBuf,
}

impl Source {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.tree.join(name)
    }
}

/// Takes the few files that are needed out of the archive.
pub(crate) fn source() -> Result<Source> {
    let place = folder().join("source");
    unpack(&["linux-source-6.1".to_owned()], &place)?;
    let archive = place.join("usr/src/linux-source-6.1.tar.xz");
    let tree = place.join("linux-source-6.1");
    let files = [
        "scripts/checkpatch.pl",
        "scripts/spelling.txt",
        "scripts/const_structs.checkpatch",
        "drivers/dma/dmatest.c",
        "drivers/dma/dmaengine.h",
        "drivers/dma/xilinx/zynqmp_dma.c",
    ];
    if files.iter().any(|file| !tree.join(file).exists()) {
        let names: Vec<String> = files
            .iter()
            .map(|file| format!("linux-source-6.1/{file}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (archive, place) = (archive.display().to_string(), place.display().to_string());
        run(
            "tar",
            &[&["-xJf", &archive, "-C", &place], &names[..]].concat(),
        )?;
    }
    let drivers = place.join("drivers");
    fs::create_dir_all(&drivers)?;
    fs::copy(
        tree.join("drivers/dma/dmatest.c"),
        drivers.join("dmatest.c"),
    )?;
    fs::copy(
        tree.join("drivers/dma/dmaengine.h"),
        drivers.join("dmaengine.h"),
    )?;
    let zynqmp = fs::read_to_string(tree.join("drivers/dma/xilinx/zynqmp_dma.c"))?;
    fs::write(
        drivers.join("zynqmp_dma.c"),
        zynqmp.replace("\"../dmaengine.h\"", "\"dmaengine.h\""),
    )?;
    fs::write(
        drivers.join("Kbuild"),
        "obj-m := dmatest.o\nobj-$(if $(CONFIG_ARM64),m) += zynqmp_dma.o\n",
    )?;
    Ok(Source {
        archive,
        tree,
        drivers,
    })
}

/// A package of another architecture and everything that it depends on, as `name:arch`, for a system that has nothing yet.
pub(crate) fn closure(package: &str, arch: &str) -> Result<Vec<String>> {
    let nothing = folder().join("apt/nothing");
    fs::write(&nothing, "")?;
    let status = format!("Dir::State::status={}", nothing.display());
    let native = format!("APT::Architecture={arch}");
    let options = [
        "-o",
        &status,
        "-o",
        &native,
        "-o",
        "Debug::NoLocking=1",
        "--no-install-recommends",
        "--print-uris",
        "-y",
    ];
    let text = apt("apt-get", &[&options[..], &["install", package]].concat())?;
    // 'URI' name_version_arch.deb size hash
    let name = |line: &str| -> Option<String> {
        let file = line
            .strip_prefix('\'')?
            .split_whitespace()
            .nth(1)?
            .strip_suffix(".deb")?;
        let (name, rest) = file.split_once('_')?;
        Some(format!("{name}:{}", rest.rsplit_once('_')?.1))
    };
    let names: Vec<String> = text.lines().filter_map(name).collect();
    ensure!(
        !names.is_empty(),
        "apt names no packages for {package}:{arch}"
    );
    Ok(names)
}

/// A static busybox of another architecture.
pub(crate) fn foreign_busybox(arch: &str) -> Result<PathBuf> {
    let place = folder().join(format!("busybox-{arch}"));
    unpack(&[format!("busybox-static:{arch}")], &place)?;
    let found = ["bin/busybox", "usr/bin/busybox"].map(|name| place.join(name));
    found
        .into_iter()
        .find(|path| path.exists())
        .context("busybox-static brings no busybox")
}
