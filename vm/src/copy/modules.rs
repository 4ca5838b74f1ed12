//! The C sources: style and layout checks, and builds against Debian's kernels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use daqmeter_sys::uapi;

use crate::debian::{self, Kernel};
use crate::files::{Initrd, below, folder};
use crate::shell::{line, renew, root};

/// Compiles the uapi header with its mirror's every size, offset and command as an assertion.
pub(super) fn layout() -> Result<()> {
    let mut facts = vec![("DAQMETER_ABI".to_owned(), uapi::ABI as usize)];
    facts.extend(uapi::LAYOUT.iter().map(|(name, field, at)| match *field {
        "" => (format!("sizeof(struct {name})"), *at),
        field => (format!("offsetof(struct {name}, {field})"), *at),
    }));
    facts.extend(uapi::COMMANDS.iter().map(|(name, value)| ((*name).to_owned(), *value as usize)));
    let assertion =
        |(fact, value): &(String, usize)| format!("_Static_assert({fact} == {value}, \"Rust\");\n");
    let source = folder().join("layout.c");
    let assertions: String = facts.iter().map(assertion).collect();
    fs::write(&source, format!("#include <stddef.h>\n#include \"daqmeter_uapi.h\"\n{assertions}"))?;
    line("gcc-12 -fsyntax-only -Wall -Werror -I kmod").arg(source).run()?;
    println!("{} sizes, offsets and commands agree", facts.len());
    Ok(())
}

/// Runs the kernel's own style checker over the C sources and the patches.
pub(super) fn style() -> Result<()> {
    let checkpatch = source()?.join("scripts/checkpatch.pl");
    for file in below(&root().join("kmod"))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let (kind, ignored) = match name.rsplit('.').next() {
            // Only compat.h tests kernel versions, which in-tree code must not do.
            _ if name == "compat.h" => ("--file", "LINUX_VERSION_CODE,CONSTANT_COMPARISON"),
            Some("c" | "h") => ("--file", "NONE"),
            // The patch is not sent anywhere: it has no sign-off and no maintainers.
            Some("patch") => (
                "--patch",
                "MISSING_SIGN_OFF,FILE_PATH_CHANGES,COMMIT_MESSAGE,NO_AUTHOR_SIGN_OFF,CONFIG_DESCRIPTION",
            ),
            _ => continue,
        };
        line("perl")
            .arg(&checkpatch)
            .words("--no-tree --strict --max-line-length=100 --quiet --show-types --ignore")
            .args([ignored, kind])
            .arg(&file)
            .run()?;
    }
    Ok(())
}

pub(super) fn archive() -> Result<PathBuf> {
    let place = folder().join("source");
    debian::unpack("linux-source-6.1", &place)?;
    Ok(place.join("usr/src/linux-source-6.1.tar.xz"))
}

/// Returns the folder with the needed files of Debian's linux-source: checkpatch, and drivers that
/// Debian does not build.
pub(crate) fn source() -> Result<PathBuf> {
    let archive = archive()?;
    let place = folder().join("source");
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
        let names = files.map(|file| format!("linux-source-6.1/{file}"));
        line("tar -xJf").arg(&archive).arg("-C").arg(&place).args(names).run()?;
    }
    let kbuild = "obj-m := dmatest.o\nobj-$(if $(CONFIG_ARM64),m) += xilinx/zynqmp_dma.o\n";
    fs::write(tree.join("drivers/dma/Kbuild"), kbuild)?;
    Ok(tree)
}

fn place(kernel: &Kernel, name: &str) -> PathBuf {
    folder().join(format!("build-{}-{}-{name}", kernel.series, kernel.arch))
}

pub(super) fn build(kernel: &Kernel) -> Result<()> {
    let is_pc = kernel.arch == "amd64";
    let (ours, drivers) = (root().join("kmod"), source()?.join("drivers/dma"));
    let checks = if is_pc { "W=1 C=2 CHECK=sparse" } else { "" };
    build_copy(kernel, &ours, "kmod", checks, ("", ""))?;
    build_copy(kernel, &drivers, "drivers", "KCFLAGS=-w", ("", ""))?;
    if is_pc {
        // Modules with deliberate faults that tests must notice. One has another version, one lacks
        // the test that a helper was called by an outer function.
        let [own, other] = [0, 1].map(|more| format!("#define DAQMETER_ABI {}", uapi::ABI + more));
        build_copy(kernel, &ours, "other-abi", "", (&own, &other))?;
        let outer = "(address >= outer[0].start && address < outer[0].end) ||";
        build_copy(kernel, &ours, "twice", "", (outer, ""))?;
    }
    Ok(())
}

/// Builds modules from a copy of the sources with one text replaced; a warning is an error.
fn build_copy(
    kernel: &Kernel,
    sources: &Path,
    name: &str,
    options: &str,
    (right, wrong): (&str, &str),
) -> Result<()> {
    let place = place(kernel, name);
    renew(&place)?;
    line("cp -rT").args([sources, &place]).run()?;
    for file in below(&place)?.iter().filter(|_| right != wrong) {
        fs::write(file, fs::read_to_string(file)?.replace(right, wrong))?;
    }
    let cross = match &*kernel.arch {
        "arm64" => "ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- CC=aarch64-linux-gnu-gcc",
        _ => "",
    };
    let built = line("make -s CONFIG_DEBUG_INFO_BTF_MODULES= modules -C")
        .arg(kernel.headers())
        .arg(format!("M={}", place.display()))
        .words(cross)
        .words(options)
        .command()
        .output()
        .context("cannot start make")?;
    let printed = [built.stdout, built.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    ensure!(built.status.success(), "make in {}: {printed}", place.display());
    let complaint = |line: &&str| line.contains("warning:") || line.contains("error:");
    if let Some(line) = printed.lines().find(complaint) {
        bail!("the build is not clean: {line}");
    }
    Ok(())
}

/// Puts the built modules into a machine, and one of the kernel's own, which uses channels.
pub(super) fn install(kernel: &Kernel, initrd: &Initrd) -> Result<()> {
    for name in ["kmod", "drivers", "other-abi", "twice"] {
        let folder = if ["kmod", "drivers"].contains(&name) { "" } else { name };
        let files = below(&place(kernel, name))?;
        for module in files.iter().filter(|file| file.extension().is_some_and(|end| end == "ko")) {
            let file = module.file_name().unwrap_or_default();
            initrd.take(&Path::new(folder).join(file).to_string_lossy(), module)?;
        }
    }
    let client = kernel.module("async_tx")?;
    client.map_or(Ok(()), |module| initrd.take("async_tx.ko", &module))
}
