//! `cargo xtask copy-vm`: the kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of mainline.
//!
//! Everything runs in TCG: no time from here is a performance result. Packages come by the system's own apt, into a private
//! state below `target/`, and are unpacked there; nothing is installed into the system but the tools.

mod cache;
mod guest;
pub(crate) mod kernels;
mod patched;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{need, output, root, run, run_with, there, tried};
use guest::{Boot, Machine};
use kernels::{Kernel, Modules};

pub(crate) use cache::pollution;
pub(crate) use patched::static_policies;

/// Everything of the virtual machines lies here.
pub(crate) fn folder() -> PathBuf {
    root().join("target/copy-vm")
}

/// Why the machines cannot be run here, or none.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machines are built for x86-64 hosts".to_owned());
    }
    if !there("apt-get") {
        return Some("no apt-get: kernels and headers are Debian's packages".to_owned());
    }
    None
}

/// Installs what is missing of compilers and emulators.
pub(crate) fn tools() -> Result<()> {
    need("qemu-system-x86_64", &["qemu-system-x86"])?;
    need("cpio", &["cpio"])?;
    need("make", &["make"])?;
    need("gcc-12", &["gcc-12"])?;
    need("xz", &["xz-utils"])?;
    if !PathBuf::from("/bin/busybox").exists() {
        need("busybox", &["busybox-static"])?;
    }
    Ok(())
}

/// All of it: layout, style, both kernels, icount, the emulated engine of mainline.
pub(crate) fn all() -> Result<()> {
    tools()?;
    fs::create_dir_all(folder())?;
    timed("layout of the border, C against Rust", layout)?;
    let programs = timed("static programs", || programs("x86_64-unknown-linux-gnu"))?;
    kernels::update()?;
    let source = timed("files of Debian's linux-source", kernels::source)?;
    timed("checkpatch and sparse", || style(&source))?;
    for series in ["6.1", "6.12"] {
        let kernel = timed(&format!("Debian's {series}: packages"), || Kernel::fetch(series, "amd64"))?;
        let modules = timed(&format!("{series}: modules"), || kernel.modules(&source))?;
        timed(&format!("{series}: boot, all cases"), || cases(&kernel, &modules, &programs))?;
        if series == "6.1" {
            timed("6.1: priority window under icount", || window(&kernel, &modules, &programs))?;
        }
    }
    match arm() {
        Some(why) => println!("!!! NOT RUN: the emulated engine of mainline: {why}"),
        None => timed("6.1 arm64: zynqmp_dma's eight channels on the emulated Versal", || versal(&source))?,
    }
    Ok(())
}

/// The emulated Versal alone.
pub(crate) fn versal_alone() -> Result<()> {
    tools()?;
    fs::create_dir_all(folder())?;
    kernels::update()?;
    let source = kernels::source()?;
    match arm() {
        Some(why) => bail!("{why}"),
        None => timed("6.1 arm64: zynqmp_dma's eight channels on the emulated Versal", || versal(&source)),
    }
}

/// The priority policy's window alone.
pub(crate) fn window_alone() -> Result<()> {
    tools()?;
    fs::create_dir_all(folder())?;
    let programs = programs("x86_64-unknown-linux-gnu")?;
    kernels::update()?;
    let source = kernels::source()?;
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let modules = kernel.modules(&source)?;
    timed("6.1: priority window under icount", || window(&kernel, &modules, &programs))
}

pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("--- {what}");
    let began = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    println!("--- {what}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(done)
}

/// Compiles the uapi header and compares every size, offset and command with its mirror.
fn layout() -> Result<()> {
    let mut probe =
        String::from("#include <stddef.h>\n#include <stdio.h>\n#include \"daqmeter_uapi.h\"\nint main(void) {\n");
    for (name, field, _) in daqmeter_sys::uapi::LAYOUT {
        probe.push_str(&if field.is_empty() {
            format!("printf(\"%zu\\n\", sizeof(struct {name}));\n")
        } else {
            format!("printf(\"%zu\\n\", offsetof(struct {name}, {field}));\n")
        });
    }
    for (name, _) in daqmeter_sys::uapi::COMMANDS {
        probe.push_str(&format!("printf(\"%zu\\n\", (size_t){name});\n"));
    }
    probe.push_str("return DAQMETER_ABI == ABI ? 0 : 1; }\n");
    let (source, program) = (folder().join("layout.c"), folder().join("layout"));
    fs::write(&source, probe)?;
    let (source, program) = (source.display().to_string(), program.display().to_string());
    let abi = format!("-DABI={}", daqmeter_sys::uapi::ABI);
    run("gcc-12", &["-Wall", "-Werror", "-I", "kmod", &abi, "-o", &program, &source])?;
    let said: Vec<usize> = output(&program, &[])?.lines().map(str::parse).collect::<Result<_, _>>()?;
    let layout = daqmeter_sys::uapi::LAYOUT.iter().map(|(name, field, at)| (format!("{name}.{field}"), *at));
    let commands = daqmeter_sys::uapi::COMMANDS.iter().map(|(name, number)| ((*name).to_owned(), *number as usize));
    let mirrored: Vec<(String, usize)> = layout.chain(commands).collect();
    ensure!(said.len() == mirrored.len(), "{} lines of {}", said.len(), mirrored.len());
    for ((name, mirrored), said) in mirrored.iter().zip(&said) {
        ensure!(mirrored == said, "{name}: {said} in kmod/daqmeter_uapi.h, {mirrored} in crates/sys/src/uapi.rs");
    }
    println!("{} sizes, offsets and commands agree", said.len());
    Ok(())
}

/// The tool and the guest's test program, each one file without libraries.
pub(crate) struct Programs {
    pub(crate) daqmeter: PathBuf,
    pub(crate) guest: PathBuf,
}

pub(crate) fn programs(target: &str) -> Result<Programs> {
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    let mut environment = vec![(variable.as_str(), "-Ctarget-feature=+crt-static")];
    if target.starts_with("aarch64") {
        environment.push(("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"));
    }
    // Whole-program optimisation would double the time and serve nobody here.
    let common = ["build", "--release", "--quiet", "--config", "profile.release.lto=false", "--target", target];
    if target.starts_with("x86_64") {
        run_with("cargo", &[&common[..], &["-p", "daqmeter-cli"]].concat(), &environment)?;
    }
    run_with("cargo", &[&common[..], &["-p", "daqmeter-copy", "--example", "kmod_guest"]].concat(), &environment)?;
    let built = root().join("target").join(target).join("release");
    Ok(Programs { daqmeter: built.join("daqmeter"), guest: built.join("examples/kmod_guest") })
}

/// The kernel's own style checker over the C sources and the patch; sparse, through the kernel's build, over the modules.
fn style(source: &kernels::Source) -> Result<()> {
    need("sparse", &["sparse"])?;
    let script = source.file("scripts/checkpatch.pl").display().to_string();
    // compat.h is the one file that asks for kernel versions, which in-tree code must not.
    let common = [script.as_str(), "--no-tree", "--strict", "--max-line-length=100", "--quiet", "--show-types"];
    let mut files: Vec<String> = fs::read_dir(root().join("kmod"))?
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.ends_with(".c") || path.ends_with(".h"))
        .collect();
    files.sort();
    for file in &files {
        let ignored = ["--ignore", "LINUX_VERSION_CODE,CONSTANT_COMPARISON"];
        let ignored = if file.ends_with("compat.h") { &ignored[..] } else { &[] };
        run("perl", &[&common[..], ignored, &["-f", file.as_str()]].concat())?;
    }
    for patch in fs::read_dir(root().join("kmod/patches"))?.flatten().map(|entry| entry.path()) {
        if patch.extension().is_some_and(|extension| extension == "patch") {
            // Not sent anywhere: no sign-off, no maintainers.
            let ignored =
                ["--ignore", "MISSING_SIGN_OFF,FILE_PATH_CHANGES,COMMIT_MESSAGE,NO_AUTHOR_SIGN_OFF,CONFIG_DESCRIPTION"];
            run("perl", &[&common[..], &ignored[..], &[patch.display().to_string().as_str()]].concat())?;
        }
    }
    println!("checkpatch --strict has nothing to say about {} files", files.len());
    Ok(())
}

/// Everything that one boot can check.
fn cases(kernel: &Kernel, modules: &Modules, programs: &Programs) -> Result<()> {
    let script = include_str!("cases.sh");
    let boot = Boot {
        name: &kernel.series,
        machine: Machine::X86 { cpus: 4, icount: false, plugin: None },
        kernel: &kernel.image,
        script,
        command_line: "slub_debug=FZPU",
        files: &[
            (&programs.daqmeter, "daqmeter"),
            (&programs.guest, "kmod_guest"),
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.trace, "daqmeter_trace.ko"),
            (&modules.softdma, "softdma.ko"),
            (&modules.dmatest, "dmatest.ko"),
            (&modules.other_abi, "other_abi.ko"),
        ],
        limit_s: 240,
    };
    tried(|| guest::judge(&boot.run()?, 20))
}

/// One CPU whose clock counts instructions: there the window can be kept.
fn window(kernel: &Kernel, modules: &Modules, programs: &Programs) -> Result<()> {
    let script = "insmod /softdma.ko channels=3\ninsmod /daqmeter_copy.ko region_mb=8\n/kmod_guest priority\ninsmod /daqmeter_trace.ko\n/kmod_guest trace-cost\n\
                  rmmod daqmeter_trace\ninsmod /daqmeter_trace.ko inline_forms=0\n/kmod_guest trace-cost\n";
    let boot = Boot {
        name: "icount",
        machine: Machine::X86 { cpus: 1, icount: true, plugin: None },
        kernel: &kernel.image,
        script,
        command_line: "daqmeter.icount=1 preempt=full",
        files: &[
            (&programs.guest, "kmod_guest"),
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.trace, "daqmeter_trace.ko"),
            (&modules.softdma, "softdma.ko"),
        ],
        limit_s: 240,
    };
    tried(|| guest::judge(&boot.run()?, 3))
}

fn arm() -> Option<String> {
    let ready = need("qemu-system-aarch64", &["qemu-system-arm"])
        .and_then(|()| need("aarch64-linux-gnu-gcc", &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]));
    if let Err(error) = ready {
        return Some(format!("{error:#}"));
    }
    let target = "aarch64-unknown-linux-gnu";
    if !there("rustup") || run("rustup", &["target", "add", target]).is_err() {
        return Some(format!("rustup cannot add the target {target}"));
    }
    None
}

/// The client on a driver of mainline whose hardware QEMU emulates.
fn versal(source: &kernels::Source) -> Result<()> {
    let kernel = Kernel::fetch("6.1", "arm64")?;
    let modules = kernel.modules(source)?;
    let programs = programs("aarch64-unknown-linux-gnu")?;
    let busybox = kernels::foreign_busybox("arm64")?;
    let script = include_str!("versal.sh");
    let boot = Boot {
        name: "versal",
        machine: Machine::Versal { busybox: &busybox },
        kernel: &kernel.image,
        script,
        command_line: "",
        files: &[
            (&programs.guest, "kmod_guest"),
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.zynqmp, "zynqmp_dma.ko"),
            (&modules.dmatest, "dmatest.ko"),
        ],
        limit_s: 300,
    };
    tried(|| guest::judge(&boot.run()?, 3))
}

/// A cpio archive as an initial file system.
fn archive(name: &str, files: &[(String, Vec<u8>, u32)]) -> Result<PathBuf> {
    archive_in(&folder(), name, files)
}

/// The same in another folder.
pub(crate) fn archive_in(folder: &std::path::Path, name: &str, files: &[(String, Vec<u8>, u32)]) -> Result<PathBuf> {
    let tree = folder.join(format!("initrd-{name}"));
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for directory in ["bin", "lib", "proc", "sys", "dev", "tmp", "etc"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for (path, bytes, mode) in files {
        let path = tree.join(path);
        fs::write(&path, bytes)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(*mode))?;
    }
    let archive = folder.join(format!("{name}.cpio"));
    let command = format!("cd '{}' && find . | cpio -o -H newc --quiet > '{}'", tree.display(), archive.display());
    if !std::process::Command::new("sh").args(["-c", &command]).status()?.success() {
        bail!("cpio could not write {}", archive.display());
    }
    Ok(archive)
}
