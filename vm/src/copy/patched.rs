//! The static policies: Debian's linux-source 6.1 with the patch of `kmod/patches`, a small
//! configuration with KASAN and `softdma` built in. It is booted once for each policy, and on
//! demand only, because it compiles a kernel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{LIMIT_S, PC, initrd, modules, programs};
use crate::boot::{Boot, judge};
use crate::debian::{self, Kernel};
use crate::files::{folder, timed};
use crate::shell::{install, line, renew, root};

/// Options for the tool's checks, on top of `tinyconfig`. KASAN watches all of it.
const CONFIG: &str = "\
64BIT SMP PRINTK TTY SERIAL_8250 SERIAL_8250_CONSOLE BLK_DEV_INITRD BINFMT_ELF BINFMT_SCRIPT PROC_FS PROC_SYSCTL SYSFS DEVTMPFS \
TMPFS SHMEM MEMFD_CREATE MULTIUSER FUTEX EPOLL EVENTFD TIMERFD SIGNALFD POSIX_TIMERS HIGH_RES_TIMERS ACPI PCI NET UNIX DEBUG_FS \
CROSS_MEMORY_ATTACH IO_URING ADVISE_SYSCALLS FILE_LOCKING MODULES PREEMPT DMADEVICES DMA_ENGINE SOFTDMA KALLSYMS BUG \
MEMBARRIER RSEQ VM_EVENT_COUNTERS COMPACTION TRANSPARENT_HUGEPAGE DEBUG_KERNEL SLUB KASAN KASAN_GENERIC KASAN_INLINE SLUB_DEBUG \
X86_TSC_DEADLINE_TIMER HPET_TIMER EARLY_PRINTK";

pub(crate) fn static_policies() -> Result<()> {
    install("flex bison bc libelf-dev")?;
    debian::update()?;
    timed("the guest's programs", programs)?;
    let tree = timed("the whole source, patched", patched)?;
    for policy in ["EXCLUSIVE", "SHARED"] {
        timed(&format!("{policy}: kernel"), || build(&tree, policy))?;
        timed(&format!("{policy}: boot, integrity"), || {
            boot(&tree, "", 4)?;
            boot(&tree, "softdma.terminating=0", 1)
        })?;
    }
    Ok(())
}

fn boot(tree: &Path, option: &str, cases: usize) -> Result<()> {
    let boot = Boot {
        name: "static",
        qemu: &format!("{PC} -smp 2 -accel tcg,thread=single"),
        kernel: &tree.join("arch/x86/boot/bzImage"),
        options: &format!("kasan.fault=panic {option}"),
        limit_s: LIMIT_S,
    };
    let programs = initrd("static", &Kernel::fetch("6.1", "amd64")?, include_str!("static.sh"))?;
    judge(&boot.run(programs)?, cases)
}

/// Returns the source with the patch and softdma, unpacked anew.
fn patched() -> Result<PathBuf> {
    let place = folder().join("patched");
    let (tree, kmod) = (place.join("linux-source-6.1"), root().join("kmod"));
    renew(&place)?;
    line("tar -xJf").arg(modules::archive()?).arg("-C").arg(&place).run()?;
    let patch = kmod.join("patches/0001-usercopy-dma-6.1.patch");
    line("patch -p1 --quiet -d").arg(&tree).arg("-i").arg(patch).run()?;
    let drivers = tree.join("drivers/dma");
    line("cp -t")
        .arg(&drivers)
        .args(["softdma.c", "compat.h"].map(|file| kmod.join(file)))
        .run()?;
    append(&drivers.join("Makefile"), "obj-$(CONFIG_SOFTDMA) += softdma.o\n")?;
    let ours =
        "\nconfig SOFTDMA\n\tbool \"softdma\"\n\tdepends on DMADEVICES\n\tselect DMA_ENGINE\n";
    append(&drivers.join("Kconfig"), ours)?;
    Ok(tree)
}

fn append(path: &Path, text: &str) -> Result<()> {
    let known = fs::read_to_string(path)?;
    Ok(fs::write(path, known + text)?)
}

fn build(tree: &Path, policy: &str) -> Result<()> {
    let make = |target: &str| line("make -s").within(tree).arg(target);
    make("tinyconfig").output()?;
    let mut options: String =
        CONFIG.split_whitespace().map(|name| format!("CONFIG_{name}=y\n")).collect();
    options += &format!(
        "CONFIG_USERCOPY_DMA_{policy}=y\nCONFIG_USERCOPY_DMA_LEAST=64\nCONFIG_LOG_BUF_SHIFT=17\n# CONFIG_SLOB is not set\n"
    );
    append(&tree.join(".config"), &options)?;
    make("olddefconfig").output()?;
    let config = fs::read_to_string(tree.join(".config"))?;
    for name in [&format!("USERCOPY_DMA_{policy}"), "KASAN", "SOFTDMA"] {
        let is_set = config.contains(&format!("CONFIG_{name}=y"));
        ensure!(is_set, "the configuration did not take {name}");
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make("bzImage").arg(format!("-j{jobs}")).output().map(drop)
}
