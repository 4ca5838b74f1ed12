//! The C sources: style and layout checks, and builds against Debian's kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{line, need, root, started};
use anyhow::{Context, Result, bail, ensure};
use daqmeter_sys::uapi;

use crate::debian::{self, Kernel};
use crate::files::{GuestFile, folder};

pub(crate) struct Modules {
    pub(crate) copy: PathBuf,
    pub(crate) trace: PathBuf,
    pub(crate) softdma: PathBuf,
    pub(crate) dmatest: PathBuf,
    pub(crate) zynqmp: PathBuf,
    pub(crate) other_abi: PathBuf,
    /// A tracer that counts copies from the user twice.
    pub(crate) trace_twice: PathBuf,
}

pub(crate) struct Source {
    pub(crate) archive: PathBuf,
    tree: PathBuf,
    drivers: PathBuf,
}

/// Compiles the uapi header and compares every size, offset and command with its mirror.
pub(crate) fn layout() -> Result<()> {
    let (source, program) = (folder().join("layout.c"), folder().join("layout"));
    fs::write(&source, layout_probe())?;
    line("gcc-12 -Wall -Werror -I kmod")
        .arg(format!("-DABI={}", uapi::ABI))
        .arg("-o")
        .args([&program, &source])
        .run()?;
    let printed = started(&program).output()?;
    let in_c: Vec<usize> = printed.lines().map(str::parse).collect::<Result<_, _>>()?;
    let layout = uapi::LAYOUT.iter().map(|(name, field, at)| (format!("{name}.{field}"), *at));
    let commands =
        uapi::COMMANDS.iter().map(|(name, number)| ((*name).to_owned(), *number as usize));
    let in_rust: Vec<(String, usize)> = layout.chain(commands).collect();
    ensure!(in_c.len() == in_rust.len(), "{} lines of {}", in_c.len(), in_rust.len());
    for ((name, in_rust), in_c) in in_rust.iter().zip(&in_c) {
        ensure!(
            in_rust == in_c,
            "{name}: {in_c} in kmod/daqmeter_uapi.h, {in_rust} in crates/sys/src/uapi.rs"
        );
    }
    println!("{} sizes, offsets and commands agree", in_c.len());
    Ok(())
}

fn layout_probe() -> String {
    let mut probe = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"daqmeter_uapi.h\"\nint main(void) {\n",
    );
    for (name, field, _) in uapi::LAYOUT {
        probe.push_str(&if field.is_empty() {
            format!("printf(\"%zu\\n\", sizeof(struct {name}));\n")
        } else {
            format!("printf(\"%zu\\n\", offsetof(struct {name}, {field}));\n")
        });
    }
    for (name, _) in uapi::COMMANDS {
        probe.push_str(&format!("printf(\"%zu\\n\", (size_t){name});\n"));
    }
    probe + "return DAQMETER_ABI == ABI ? 0 : 1; }\n"
}

fn files_in(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let wanted = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    };
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(wanted).collect();
    files.sort();
    Ok(files)
}

/// Runs the kernel's own style checker over the C sources and the patch.
pub(crate) fn style(source: &Source) -> Result<()> {
    need("sparse")?;
    let checkpatch = || {
        line("perl")
            .arg(source.tree.join("scripts/checkpatch.pl"))
            .words("--no-tree --strict --max-line-length=100 --quiet --show-types --ignore")
    };
    let files = files_in(&root().join("kmod"), &["c", "h"])?;
    for file in &files {
        // Only compat.h tests kernel versions, which in-tree code must not do.
        let ignored = if file.ends_with("compat.h") {
            "LINUX_VERSION_CODE,CONSTANT_COMPARISON"
        } else {
            "NONE"
        };
        checkpatch().words(ignored).arg("-f").arg(file).run()?;
    }
    for patch in files_in(&root().join("kmod/patches"), &["patch"])? {
        // The patch is not sent anywhere: it has no sign-off and no maintainers.
        let ignored = "MISSING_SIGN_OFF,FILE_PATH_CHANGES,COMMIT_MESSAGE,NO_AUTHOR_SIGN_OFF,CONFIG_DESCRIPTION";
        checkpatch().words(ignored).arg(patch).run()?;
    }
    println!("checkpatch --strict reports nothing about {} files", files.len());
    Ok(())
}

pub(crate) fn source() -> Result<Source> {
    let place = folder().join("source");
    debian::unpack(&["linux-source-6.1".to_owned()], &place)?;
    let source = Source {
        archive: place.join("usr/src/linux-source-6.1.tar.xz"),
        tree: place.join("linux-source-6.1"),
        drivers: place.join("drivers"),
    };
    let files = [
        "scripts/checkpatch.pl",
        "scripts/spelling.txt",
        "scripts/const_structs.checkpatch",
        "drivers/dma/dmatest.c",
        "drivers/dma/dmaengine.h",
        "drivers/dma/xilinx/zynqmp_dma.c",
    ];
    if files.iter().any(|file| !source.tree.join(file).exists()) {
        line("tar -xJf")
            .arg(&source.archive)
            .arg("-C")
            .arg(&place)
            .args(files.map(|file| format!("linux-source-6.1/{file}")))
            .run()?;
    }
    source.lay_out_drivers()?;
    Ok(source)
}

impl Source {
    /// Lays out the kernel's dmatest and zynqmp_dma as modules that can be built separately.
    fn lay_out_drivers(&self) -> Result<()> {
        let dma = self.tree.join("drivers/dma");
        fs::create_dir_all(&self.drivers)?;
        for name in ["dmatest.c", "dmaengine.h"] {
            fs::copy(dma.join(name), self.drivers.join(name))?;
        }
        let zynqmp = fs::read_to_string(dma.join("xilinx/zynqmp_dma.c"))?;
        let zynqmp = zynqmp.replace("\"../dmaengine.h\"", "\"dmaengine.h\"");
        fs::write(self.drivers.join("zynqmp_dma.c"), zynqmp)?;
        let kbuild = "obj-m := dmatest.o\nobj-$(if $(CONFIG_ARM64),m) += zynqmp_dma.o\n";
        Ok(fs::write(self.drivers.join("Kbuild"), kbuild)?)
    }
}

fn place(kernel: &Kernel, name: &str) -> PathBuf {
    folder().join(format!("build-{}-{}-{name}", kernel.series, kernel.arch))
}

pub(crate) fn build(kernel: &Kernel, source: &Source) -> Result<()> {
    let native = kernel.arch == "amd64";
    let ours = root().join("kmod");
    build_copy(kernel, &ours, "kmod", if native { "W=1 C=2 CHECK=sparse" } else { "" }, as_is)?;
    build_copy(kernel, &source.drivers, "drivers", "KCFLAGS=-w", as_is)?;
    if native {
        // Modules with deliberate faults that tests must notice. One has another version, one lacks
        // the test that a helper was called by an outer function.
        let [own, other] = [0, 1].map(|more| format!("#define DAQMETER_ABI {}", uapi::ABI + more));
        let abi = (own.as_str(), other.as_str());
        let outer = "(address >= outer[0].start && address < outer[0].end) ||";
        for (name, (right, wrong)) in [("other-abi", abi), ("twice", (outer, ""))] {
            build_copy(kernel, &ours, name, "", |text| text.replace(right, wrong))?;
        }
    }
    Ok(())
}

fn as_is(text: String) -> String {
    text
}

fn build_copy(
    kernel: &Kernel,
    sources: &Path,
    name: &str,
    options: &str,
    change: impl Fn(String) -> String,
) -> Result<()> {
    let place = place(kernel, name);
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    for entry in fs::read_dir(sources)?.flatten().filter(|entry| entry.path().is_file()) {
        fs::write(place.join(entry.file_name()), change(fs::read_to_string(entry.path())?))?;
    }
    make(kernel, &place, options)
}

/// Runs the kernel's build of modules; a warning is an error.
fn make(kernel: &Kernel, place: &Path, options: &str) -> Result<()> {
    let mut make = Command::new("make");
    make.args(["-s", "-C"]).arg(kernel.headers()).arg(format!("M={}", place.display()));
    make.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    if kernel.arch == "arm64" {
        make.args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "CC=aarch64-linux-gnu-gcc"]);
    }
    let built = make.args(options.split_whitespace()).output().context("cannot start make")?;
    let printed = [built.stdout, built.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    ensure!(built.status.success(), "make in {}: {printed}", place.display());
    let complaint = |line: &&str| line.contains("warning:") || line.contains("error:");
    if let Some(line) = printed.lines().find(complaint) {
        bail!("the build is not clean: {line}");
    }
    Ok(())
}

pub(crate) fn built(kernel: &Kernel) -> Result<Modules> {
    let (ours, drivers) = (place(kernel, "kmod"), place(kernel, "drivers"));
    let copy = ours.join("daqmeter_copy.ko");
    ensure!(copy.exists(), "the modules for {} are not built", kernel.release);
    Ok(Modules {
        copy,
        trace: ours.join("daqmeter_trace.ko"),
        softdma: ours.join("softdma.ko"),
        dmatest: drivers.join("dmatest.ko"),
        zynqmp: drivers.join("zynqmp_dma.ko"),
        other_abi: place(kernel, "other-abi").join("daqmeter_copy.ko"),
        trace_twice: place(kernel, "twice").join("daqmeter_trace.ko"),
    })
}

pub(super) fn files(modules: &Modules) -> Result<Vec<GuestFile>> {
    Ok(vec![
        GuestFile::program("daqmeter_copy.ko", &modules.copy)?,
        GuestFile::program("daqmeter_trace.ko", &modules.trace)?,
        GuestFile::program("softdma.ko", &modules.softdma)?,
        GuestFile::program("dmatest.ko", &modules.dmatest)?,
        GuestFile::program("other_abi.ko", &modules.other_abi)?,
        GuestFile::program("trace_twice.ko", &modules.trace_twice)?,
    ])
}
