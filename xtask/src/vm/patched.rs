//! `cargo xtask copy-vm --static`: the static policies. Debian's linux-source 6.1 with the patch of `kmod/patches`, a small
//! configuration with KASAN, booted once for each policy with `softdma` built in. On demand: it compiles a kernel.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::guest::{self, Boot, Machine};
use super::{folder, kernels, programs, timed, tools};
use crate::shell::{need, output, root, run};

/// What a kernel needs to run the tool's checks, on top of `tinyconfig`. KASAN watches all of it.
const CONFIG: &str = "\
64BIT SMP PRINTK TTY SERIAL_8250 SERIAL_8250_CONSOLE BLK_DEV_INITRD BINFMT_ELF BINFMT_SCRIPT PROC_FS PROC_SYSCTL SYSFS DEVTMPFS \
TMPFS SHMEM MEMFD_CREATE MULTIUSER FUTEX EPOLL EVENTFD TIMERFD SIGNALFD POSIX_TIMERS HIGH_RES_TIMERS ACPI PCI NET UNIX DEBUG_FS \
CROSS_MEMORY_ATTACH IO_URING ADVISE_SYSCALLS FILE_LOCKING MODULES PREEMPT DMADEVICES DMA_ENGINE SOFTDMA KALLSYMS BUG \
MEMBARRIER RSEQ VM_EVENT_COUNTERS COMPACTION TRANSPARENT_HUGEPAGE DEBUG_KERNEL SLUB KASAN KASAN_GENERIC KASAN_INLINE SLUB_DEBUG \
X86_TSC_DEADLINE_TIMER HPET_TIMER EARLY_PRINTK";

/// Builds and boots both policies.
pub(crate) fn static_policies() -> Result<()> {
    tools()?;
    need("flex", &["flex"])?;
    need("bison", &["bison"])?;
    need("bc", &["bc"])?;
    fs::create_dir_all(folder())?;
    kernels::update()?;
    let source = timed("files of Debian's linux-source", kernels::source)?;
    if !Path::new("/usr/include/libelf.h").exists() {
        run(
            "apt-get",
            &[
                "install",
                "-y",
                "-qq",
                "--no-install-recommends",
                "libelf-dev",
            ],
        )?;
    }
    let programs = {
        run("cargo", &["build", "--release", "--quiet"])?;
        super::guest_program()?;
        programs()?
    };
    let tree = timed("the whole source, patched", || patched(&source))?;
    for policy in ["EXCLUSIVE", "SHARED"] {
        timed(&format!("{policy}: kernel"), || build(&tree, policy))?;
        let image = tree.join("arch/x86/boot/bzImage");
        let script = include_str!("static.sh");
        let boot = Boot {
            name: "static",
            machine: Machine::X86 {
                cpus: 2,
                icount: false,
                plugin: None,
            },
            kernel: &image,
            script,
            command_line: "kasan.fault=panic",
            files: &programs.files(&[]),
            limit_s: 300,
        };
        timed(&format!("{policy}: boot, integrity"), || {
            guest::judge(&boot.run()?, 4)
        })?;
    }
    Ok(())
}

fn patched(source: &kernels::Source) -> Result<std::path::PathBuf> {
    let place = folder().join("patched");
    let tree = place.join("linux-source-6.1");
    let patch = root().join("kmod/patches/0001-usercopy-dma-6.1.patch");
    let wanted = output("sha256sum", &[&patch.display().to_string()])?;
    let mark = place.join("patched");
    if fs::read_to_string(&mark).is_ok_and(|known| known == wanted) {
        return Ok(tree);
    }
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    run(
        "tar",
        &[
            "-xJf",
            &source.archive.display().to_string(),
            "-C",
            &place.display().to_string(),
        ],
    )?;
    run(
        "patch",
        &[
            "-p1",
            "--quiet",
            "-d",
            &tree.display().to_string(),
            "-i",
            &patch.display().to_string(),
        ],
    )?;
    for name in ["softdma.c", "compat.h"] {
        fs::copy(
            root().join("kmod").join(name),
            tree.join("drivers/dma").join(name),
        )?;
    }
    append(
        &tree.join("drivers/dma/Makefile"),
        "obj-$(CONFIG_SOFTDMA) += softdma.o\n",
    )?;
    let kconfig = fs::read_to_string(tree.join("drivers/dma/Kconfig"))?;
    let ours = "config SOFTDMA\n\tbool \"softdma\"\n\tselect DMA_ENGINE\n\n";
    fs::write(
        tree.join("drivers/dma/Kconfig"),
        kconfig.replacen(
            "config DMA_ENGINE\n",
            &format!("{ours}config DMA_ENGINE\n"),
            1,
        ),
    )?;
    fs::write(mark, wanted)?;
    Ok(tree)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let known = fs::read_to_string(path)?;
    Ok(fs::write(path, known + text)?)
}

fn build(tree: &Path, policy: &str) -> Result<()> {
    let make = |arguments: &[&str]| -> Result<()> {
        let built = Command::new("make")
            .arg("-s")
            .args(arguments)
            .current_dir(tree)
            .output()
            .context("cannot start make")?;
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        ensure!(
            built.status.success(),
            "make {}: {said}",
            arguments.join(" ")
        );
        Ok(())
    };
    make(&["tinyconfig"])?;
    let mut options: Vec<String> = CONFIG
        .split_whitespace()
        .map(|name| format!("CONFIG_{name}=y\n"))
        .collect();
    options.push(format!("CONFIG_USERCOPY_DMA_{policy}=y\nCONFIG_USERCOPY_DMA_LEAST=64\nCONFIG_LOG_BUF_SHIFT=17\n# CONFIG_SLOB is not set\n"));
    append(&tree.join(".config"), &options.concat())?;
    make(&["olddefconfig"])?;
    let config = fs::read_to_string(tree.join(".config"))?;
    for name in [
        format!("USERCOPY_DMA_{policy}"),
        "KASAN".to_owned(),
        "SOFTDMA".to_owned(),
    ] {
        ensure!(
            config.contains(&format!("CONFIG_{name}=y")),
            "the configuration did not take {name}"
        );
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(&[&format!("-j{jobs}"), "bzImage"])
}
