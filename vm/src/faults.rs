//! A machine with a disk that becomes slower and a network that loses packets. Device mapper and
//! netem are those of Debian's kernel, which a host's kernel may lack.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::boot::{Boot, judge};
use crate::debian::Kernel;
use crate::files::Initrd;
use crate::shell::{left_out, line, program};

const QEMU: &str =
    "qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536 -smp 2 -accel tcg,thread=single";
/// Modules of the kernel, in the order in which they are loaded.
const MODULES: &str = "dm-mod dm-delay configfs null_blk crc16 mbcache jbd2 crc32c_generic ext4 \
     sch_netem veth";
/// Programs of the host. The shell of the machine has others of these names.
const PROGRAMS: &str = "dmsetup mkfs.ext4 ip tc";
const CASES: usize = 6;

pub(crate) fn boot() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return left_out("the machine runs programs of an x86-64 host");
    }
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let initrd = Initrd::new("faults", Path::new("/bin/busybox"), include_str!("faults.sh"))?;
    let found = line("which").words(PROGRAMS).output()?;
    for path in found.lines().map(PathBuf::from).chain([program()]) {
        let name = path.file_name().context("a program has a name")?.to_string_lossy();
        initrd.take(&format!("programs/{name}"), &path)?;
        initrd.take_libraries(line("ldd").arg(&path), "/".as_ref())?;
    }
    for (at, name) in MODULES.split_whitespace().enumerate() {
        if let Some(module) = kernel.module(name)? {
            initrd.take(&format!("modules/{at:02}-{name}.ko"), &module)?;
        }
    }
    let (name, qemu, options) = ("faults", QEMU, "ipv6.disable=1");
    let boot = Boot { name, qemu, kernel: &kernel.image, options, limit_s: 240 };
    judge(&boot.run(initrd)?, CASES)
}
