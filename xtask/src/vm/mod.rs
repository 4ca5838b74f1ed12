//! `cargo xtask copy-vm`: the kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of mainline.
//!
//! Everything runs in TCG: no time from here is a performance result. Packages come by the system's own apt, into a private
//! state below `target/`, and are unpacked there; nothing is installed into the system but the tools.

mod cache;
mod guest;
pub(crate) mod kernels;
mod patched;

use std::fs;
use std::path::{Path, PathBuf};
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

/// The series of Debian's kernels that are booted.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// All that the machines need: layout and style of the C sources checked, kernels fetched, modules and programs built.
pub(crate) fn prepare() -> Result<()> {
    tools()?;
    fs::create_dir_all(folder())?;
    timed("layout of the border, C against Rust", layout)?;
    timed("the guest's program", guest_program)?;
    kernels::update()?;
    let source = timed("files of Debian's linux-source", kernels::source)?;
    timed("checkpatch and sparse", || style(&source))?;
    for series in SERIES {
        let kernel = timed(&format!("Debian's {series}: packages"), || {
            Kernel::fetch(series, "amd64")
        })?;
        timed(&format!("{series}: modules"), || {
            kernel.build_modules(&source)
        })?;
    }
    cache::plugin()?;
    if arm().is_none() {
        timed("6.1 arm64: kernel, modules, program", || {
            prepare_versal(&source)
        })?;
    }
    Ok(())
}

/// Every machine, after [`prepare`]: both kernels, icount, the emulated engine of mainline.
pub(crate) fn all() -> Result<()> {
    let programs = programs()?;
    for series in SERIES {
        let kernel = Kernel::fetch(series, "amd64")?;
        timed(&format!("{series}: boot, all cases"), || {
            cases(&kernel, &kernel.modules()?, &programs)
        })?;
    }
    window()?;
    match arm() {
        Some(why) => println!("!!! NOT RUN: the emulated engine of mainline: {why}"),
        None => versal()?,
    }
    Ok(())
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
    let mut probe = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"daqmeter_uapi.h\"\nint main(void) {\n",
    );
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
    run(
        "gcc-12",
        &[
            "-Wall", "-Werror", "-I", "kmod", &abi, "-o", &program, &source,
        ],
    )?;
    let said: Vec<usize> = output(&program, &[])?
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let layout = daqmeter_sys::uapi::LAYOUT
        .iter()
        .map(|(name, field, at)| (format!("{name}.{field}"), *at));
    let commands = daqmeter_sys::uapi::COMMANDS
        .iter()
        .map(|(name, number)| ((*name).to_owned(), *number as usize));
    let mirrored: Vec<(String, usize)> = layout.chain(commands).collect();
    ensure!(
        said.len() == mirrored.len(),
        "{} lines of {}",
        said.len(),
        mirrored.len()
    );
    for ((name, mirrored), said) in mirrored.iter().zip(&said) {
        ensure!(
            mirrored == said,
            "{name}: {said} in kmod/daqmeter_uapi.h, {mirrored} in crates/sys/src/uapi.rs"
        );
    }
    println!("{} sizes, offsets and commands agree", said.len());
    Ok(())
}

/// The tool and the guest's test program, with the libraries that they are linked with: file here, name in the guest.
pub(crate) struct Programs {
    pub(crate) daqmeter: PathBuf,
    pub(crate) guest: PathBuf,
    pub(crate) libraries: Vec<(PathBuf, String)>,
}

impl Programs {
    /// Files of the guest's root: the programs with their libraries, and more.
    fn files<'a>(&'a self, more: &[(&'a Path, &'a str)]) -> Vec<(&'a Path, &'a str)> {
        let mut files: Vec<(&Path, &str)> =
            vec![(&self.daqmeter, "daqmeter"), (&self.guest, "kmod_guest")];
        files.extend(
            self.libraries
                .iter()
                .map(|(path, name)| (path.as_path(), name.as_str())),
        );
        files.extend(more);
        files
    }
}

/// Builds the guest's test program beside the release build of the tool, which must be there.
fn guest_program() -> Result<()> {
    run(
        "cargo",
        &[
            "build",
            "--release",
            "--quiet",
            "-p",
            "daqmeter-copy",
            "--example",
            "kmod_guest",
        ],
    )
}

/// What the x86 machines run: the release build itself.
pub(crate) fn programs() -> Result<Programs> {
    let built = root().join("target/release");
    let (daqmeter, guest) = (built.join("daqmeter"), built.join("examples/kmod_guest"));
    let mut libraries: Vec<(PathBuf, String)> = Vec::new();
    for program in [&daqmeter, &guest] {
        for path in libraries_of(program)? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .context("a library without a name")?;
            // The loader is named by its whole path in every program; the rest is sought in /lib.
            let folder = if name.starts_with("ld-linux") {
                "lib64"
            } else {
                "lib"
            };
            let place = format!("{folder}/{name}");
            if libraries.iter().all(|(_, known)| *known != place) {
                libraries.push((path, place));
            }
        }
    }
    Ok(Programs {
        daqmeter,
        guest,
        libraries,
    })
}

/// The files that the loader would map for a program of this host.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let text = output("ldd", &[&program.display().to_string()])?;
    // `libc.so.6 => /lib/.../libc.so.6 (0x...)`, or the loader's path alone.
    let path = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    Ok(text.lines().filter_map(path).collect())
}

/// The guest's test program for an emulated host of another architecture, in one file without libraries.
fn foreign_guest() -> Result<PathBuf> {
    let environment = [
        (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
            "-Ctarget-feature=+crt-static",
        ),
        (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        ),
    ];
    // Optimising the whole program would double the time and serve nobody here.
    let build = [
        "build",
        "--release",
        "--quiet",
        "--config",
        "profile.release.lto=false",
        "--target",
        ARM_TARGET,
    ];
    run_with(
        "cargo",
        &[
            &build[..],
            &["-p", "daqmeter-copy", "--example", "kmod_guest"],
        ]
        .concat(),
        &environment,
    )?;
    Ok(root()
        .join("target")
        .join(ARM_TARGET)
        .join("release/examples/kmod_guest"))
}

const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

/// The kernel's own style checker over the C sources and the patch; sparse, through the kernel's build, over the modules.
fn style(source: &kernels::Source) -> Result<()> {
    need("sparse", &["sparse"])?;
    let script = source.file("scripts/checkpatch.pl").display().to_string();
    // compat.h is the one file that asks for kernel versions, which in-tree code must not.
    let common = [
        script.as_str(),
        "--no-tree",
        "--strict",
        "--max-line-length=100",
        "--quiet",
        "--show-types",
    ];
    let mut files: Vec<String> = fs::read_dir(root().join("kmod"))?
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.ends_with(".c") || path.ends_with(".h"))
        .collect();
    files.sort();
    for file in &files {
        let ignored = ["--ignore", "LINUX_VERSION_CODE,CONSTANT_COMPARISON"];
        let ignored = if file.ends_with("compat.h") {
            &ignored[..]
        } else {
            &[]
        };
        run(
            "perl",
            &[&common[..], ignored, &["-f", file.as_str()]].concat(),
        )?;
    }
    for patch in fs::read_dir(root().join("kmod/patches"))?
        .flatten()
        .map(|entry| entry.path())
    {
        if patch
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            // Not sent anywhere: no sign-off, no maintainers.
            let ignored = [
                "--ignore",
                "MISSING_SIGN_OFF,FILE_PATH_CHANGES,COMMIT_MESSAGE,NO_AUTHOR_SIGN_OFF,CONFIG_DESCRIPTION",
            ];
            run(
                "perl",
                &[
                    &common[..],
                    &ignored[..],
                    &[patch.display().to_string().as_str()],
                ]
                .concat(),
            )?;
        }
    }
    println!(
        "checkpatch --strict has nothing to say about {} files",
        files.len()
    );
    Ok(())
}

/// Everything that one boot can check.
fn cases(kernel: &Kernel, modules: &Modules, programs: &Programs) -> Result<()> {
    let script = include_str!("cases.sh");
    let boot = Boot {
        name: &kernel.series,
        machine: Machine::X86 {
            cpus: 4,
            icount: false,
            plugin: None,
        },
        kernel: &kernel.image,
        script,
        command_line: "slub_debug=FZPU",
        files: &programs.files(&[
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.trace, "daqmeter_trace.ko"),
            (&modules.softdma, "softdma.ko"),
            (&modules.dmatest, "dmatest.ko"),
            (&modules.other_abi, "other_abi.ko"),
        ]),
        limit_s: 240,
    };
    tried(|| guest::judge(&boot.run()?, 20))
}

/// One CPU whose clock counts instructions: there the window can be kept.
pub(crate) fn window() -> Result<()> {
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let modules = kernel.modules()?;
    let programs = programs()?;
    let script = "insmod /softdma.ko channels=3\ninsmod /daqmeter_copy.ko region_mb=8\n/kmod_guest priority\ninsmod /daqmeter_trace.ko\n/kmod_guest trace-cost\n\
                  rmmod daqmeter_trace\ninsmod /daqmeter_trace.ko inline_forms=0\n/kmod_guest trace-cost\n";
    let boot = Boot {
        name: "icount",
        machine: Machine::X86 {
            cpus: 1,
            icount: true,
            plugin: None,
        },
        kernel: &kernel.image,
        script,
        command_line: "daqmeter.icount=1 preempt=full",
        files: &programs.files(&[
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.trace, "daqmeter_trace.ko"),
            (&modules.softdma, "softdma.ko"),
        ]),
        limit_s: 240,
    };
    timed("6.1: priority window under icount", || {
        tried(|| guest::judge(&boot.run()?, 3))
    })
}

fn arm() -> Option<String> {
    let ready = need("qemu-system-aarch64", &["qemu-system-arm"]).and_then(|()| {
        need(
            "aarch64-linux-gnu-gcc",
            &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        )
    });
    if let Err(error) = ready {
        return Some(format!("{error:#}"));
    }
    if !there("rustup") || run("rustup", &["target", "add", ARM_TARGET]).is_err() {
        return Some(format!("rustup cannot add the target {ARM_TARGET}"));
    }
    None
}

fn prepare_versal(source: &kernels::Source) -> Result<()> {
    let kernel = Kernel::fetch("6.1", "arm64")?;
    kernel.build_modules(source)?;
    kernels::foreign_busybox("arm64")?;
    foreign_guest().map(drop)
}

/// The client on a driver of mainline whose hardware QEMU emulates.
pub(crate) fn versal() -> Result<()> {
    let kernel = Kernel::fetch("6.1", "arm64")?;
    let modules = kernel.modules()?;
    let guest = foreign_guest()?;
    let busybox = kernels::foreign_busybox("arm64")?;
    let script = include_str!("versal.sh");
    let boot = Boot {
        name: "versal",
        machine: Machine::Versal { busybox: &busybox },
        kernel: &kernel.image,
        script,
        command_line: "",
        files: &[
            (&guest, "kmod_guest"),
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.zynqmp, "zynqmp_dma.ko"),
            (&modules.dmatest, "dmatest.ko"),
        ],
        limit_s: 300,
    };
    timed(
        "6.1 arm64: zynqmp_dma's eight channels on the emulated Versal",
        || tried(|| guest::judge(&boot.run()?, 3)),
    )
}

/// A cpio archive as an initial file system.
fn archive(name: &str, files: &[(String, Vec<u8>, u32)]) -> Result<PathBuf> {
    archive_in(&folder(), name, files)
}

/// The same in another folder.
pub(crate) fn archive_in(
    folder: &Path,
    name: &str,
    files: &[(String, Vec<u8>, u32)],
) -> Result<PathBuf> {
    let tree = folder.join(format!("initrd-{name}"));
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for directory in ["bin", "lib", "lib64", "proc", "sys", "dev", "tmp", "etc"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for (path, bytes, mode) in files {
        let path = tree.join(path);
        fs::write(&path, bytes)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(*mode))?;
    }
    let archive = folder.join(format!("{name}.cpio"));
    let command = format!(
        "cd '{}' && find . | cpio -o -H newc --quiet > '{}'",
        tree.display(),
        archive.display()
    );
    if !std::process::Command::new("sh")
        .args(["-c", &command])
        .status()?
        .success()
    {
        bail!("cpio could not write {}", archive.display());
    }
    Ok(archive)
}
