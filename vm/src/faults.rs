//! Machines with Debian's kernels for what a host's kernel may lack: a disk that becomes slower and
//! a network that loses packets (device mapper, netem), and losses that dropwatch counts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::boot::{Boot, judge};
use crate::debian::Kernel;
use crate::files::{Initrd, timed};
use crate::shell::{left_out, line, program};

const QEMU: &str =
    "qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536 -smp 2 -accel tcg,thread=single";

pub(crate) struct Guest {
    name: &'static str,
    series: &'static str,
    script: &'static str,
    /// Modules of the kernel, in the order in which they are loaded.
    modules: &'static str,
    /// Programs of the host. The shell of the machine has others of some names.
    programs: &'static str,
    cases: usize,
}

pub(crate) const FAULTS: &[Guest] = &[Guest {
    name: "faults",
    series: "6.1",
    script: include_str!("faults.sh"),
    modules: "dm-mod dm-delay configfs null_blk crc16 mbcache jbd2 crc32c_generic ext4 sch_netem \
              veth",
    programs: "dmsetup mkfs.ext4 ip tc",
    cases: 6,
}];

/// These kernels number the reasons of drops differently, and tell no socket with them.
pub(crate) const LOSSES: &[Guest] = &[
    Guest { name: "losses-6.1", series: "6.1", ..LOSING },
    Guest { name: "losses-6.12", series: "6.12", ..LOSING },
];

const LOSING: Guest = Guest {
    name: "",
    series: "",
    script: include_str!("losses.sh"),
    modules: "crc32c_generic libcrc32c nfnetlink nf_tables nft_numgen drop_monitor",
    programs: "dropwatch ip nft socat",
    cases: 4,
};

pub(crate) fn boot(guests: &[Guest]) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return left_out("the machine runs programs of an x86-64 host");
    }
    guests.iter().try_for_each(|guest| timed(guest.name, || guest.boot()))
}

impl Guest {
    fn boot(&self) -> Result<()> {
        let kernel = Kernel::fetch(self.series, "amd64")?;
        let initrd = Initrd::new(self.name, Path::new("/bin/busybox"), self.script)?;
        let found = line("which").words(self.programs).output()?;
        for path in found.lines().map(PathBuf::from).chain([program()]) {
            let name = path.file_name().context("a program has a name")?.to_string_lossy();
            initrd.take(&format!("programs/{name}"), &path)?;
            initrd.take_libraries(line("ldd").arg(&path), "/".as_ref())?;
        }
        for (at, name) in self.modules.split_whitespace().enumerate() {
            if let Some(module) = kernel.module(name)? {
                initrd.take(&format!("modules/{at:02}-{name}.ko"), &module)?;
            }
        }
        let (qemu, options) = (QEMU, "ipv6.disable=1");
        let boot = Boot { name: self.name, qemu, kernel: &kernel.image, options, limit_s: 240 };
        judge(&boot.run(initrd)?, self.cases)
    }
}
