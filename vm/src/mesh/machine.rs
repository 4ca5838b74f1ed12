//! One machine with meshes; their registers are a file of ours.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::shell::{Line, line};
use anyhow::{Context, Result, ensure};
use daqmeter_pmu::emulated::{Emulator, Happening, Image, RegisterMemory, Wrap};
use daqmeter_record::Mesh;
use serde_json::json;

use super::perf::Perf;
use super::qmp::{Qmp, Qtest};
use crate::debian::Kernel;
use crate::files::{GuestFile, archive, mesh_folder, tail};

/// RAM of QEMU's `virt`. The first mesh is behind its 256 MiB, at the N1SDP's own address.
const RAM_MIB: u64 = 256;
const MESH_BASE: u64 = 0x5000_0000;
const MESH_BYTES: u64 = 0x400_0000;

pub(crate) struct Guest {
    pub(crate) daqmeter: PathBuf,
    pub(crate) busybox: PathBuf,
    pub(crate) perf: Perf,
}

/// Returns the shared interrupt of the n-th controller: the N1SDP's own 46, then those behind
/// virtio-mmio, of which the disk's is last.
fn spi(number: usize) -> usize {
    if number == 0 { 46 } else { 47 + number }
}

/// Registers in a file that the machine maps.
#[derive(Debug)]
pub(crate) struct FileMemory {
    file: File,
    at: u64,
}

impl RegisterMemory for FileMemory {
    fn read(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        let done = self.file.read_exact_at(&mut bytes, self.at + offset);
        done.expect("the file was made as large as the meshes");
        u64::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u64) {
        let done = self.file.write_all_at(&value.to_le_bytes(), self.at + offset);
        done.expect("the file was made as large as the meshes");
    }
}

pub(crate) struct Machine {
    child: Child,
    input: ChildStdin,
    console: Console,
    log: String,
    qmp: Qmp,
    qtest: Qtest,
    controllers: Vec<usize>,
    pub(crate) meshes: Vec<Emulator<FileMemory>>,
    pub(crate) boot_s: f64,
}

struct Console {
    lines: Receiver<String>,
    next: Option<String>,
}

impl Console {
    fn of(output: ChildStdout) -> Console {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Console { lines, next: None }
    }

    fn line(&mut self) -> Option<String> {
        self.next.take().or_else(|| self.lines.recv().ok())
    }

    /// Waits at most the given time for a line.
    fn is_silent_for(&mut self, time: Duration) -> bool {
        if self.next.is_none() {
            match self.lines.recv_timeout(time) {
                Ok(line) => self.next = Some(line),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        false
    }
}

fn first_controller(meshes: &[Mesh], at: usize) -> usize {
    meshes[..at].iter().map(Mesh::dtcs).sum()
}

/// Prepares the system, announces it, and then runs the host's commands, a line at a time.
const INIT: &str = "#!/bin/busybox sh\n\
/bin/busybox --install -s /bin\n\
export PATH=/bin LD_LIBRARY_PATH=/lib HOME=/tmp\n\
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t debugfs debug /sys/kernel/debug\n\
mount -t tracefs trace /sys/kernel/tracing; mount -t tmpfs tmp /tmp; ip link set lo up 2>/dev/null\n\
echo root:x:0:0::/:/bin/sh > /etc/passwd; echo nobody:x:65534:65534::/:/bin/sh >> /etc/passwd\n\
dmesg -n 3\n\
for module in $(cat /modules); do insmod /$module || echo GUEST cannot load $module; done\n\
stty -echo -onlcr\n\
echo GUEST ready $(uname -r)\n\
while read -r line; do eval \"$line\"; echo \"GUEST status $?\"; done\n\
poweroff -f\n";

struct Plan<'a> {
    place: PathBuf,
    meshes: &'a [Mesh],
    cpus: u32,
}

impl Plan<'_> {
    fn new<'a>(name: &str, meshes: &'a [Mesh], cpus: u32) -> Result<Plan<'a>> {
        let place = mesh_folder().join(name);
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        Ok(Plan { place, meshes, cpus })
    }

    fn file(&self, name: &str) -> String {
        self.place.join(name).display().to_string()
    }

    /// Makes the file of all registers, as they are after a reset.
    fn registers(&self) -> Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let registers = options.open(self.file("registers"))?;
        for (at, mesh) in self.meshes.iter().enumerate() {
            Image::of(mesh).write_to(&registers, MESH_BYTES, at as u64 * MESH_BYTES)?;
        }
        File::create(self.file("disk"))?.set_len(64 << 20)?;
        Ok(registers)
    }

    fn parts(&self) -> Vec<String> {
        let window_mib = (self.meshes.len() as u64 * MESH_BYTES) >> 20;
        let (registers, disk) = (self.file("registers"), self.file("disk"));
        let text = format!(
            "-accel tcg,thread=single -cpu neoverse-n1 -smp {} -m {}M -nodefaults -display none \
             -object memory-backend-ram,id=r0,size={RAM_MIB}M \
             -numa node,nodeid=0,cpus=0-{},memdev=r0 -numa node,nodeid=1,memdev=r1 \
             -device virtio-blk-device,drive=d0",
            self.cpus,
            RAM_MIB + window_mib,
            self.cpus - 1
        );
        let mut parts: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        parts.push("-object".to_owned());
        parts.push(format!(
            "memory-backend-file,id=r1,size={window_mib}M,mem-path={registers},share=on"
        ));
        parts.push("-drive".to_owned());
        parts.push(format!("file={disk},if=none,id=d0,format=raw,cache=writeback"));
        parts
    }

    /// Makes the device tree: QEMU's own with a node for each mesh.
    fn tree(&self) -> Result<PathBuf> {
        let path = self.place.join("machine.dtb");
        line("qemu-system-aarch64 -M")
            .arg(format!("{MACHINE},dumpdtb={}", path.display()))
            .args(self.parts())
            .output()?;
        for at in 0..self.meshes.len() {
            self.add_node(&path, at)?;
        }
        Ok(path)
    }

    fn add_node(&self, tree: &Path, at: usize) -> Result<()> {
        let mesh = &self.meshes[at];
        let base = MESH_BASE + at as u64 * MESH_BYTES;
        let node = format!("/pmu@{base:x}");
        let put = |kind: &str| -> Line { line("fdtput -t").arg(kind).arg(tree).arg(&node) };
        let compatible = match mesh.part.as_str() {
            "CMN-600" => "arm,cmn-600",
            "CMN-650" => "arm,cmn-650",
            "CMN-700" => "arm,cmn-700",
            _ => "arm,cmn-s3",
        };
        line("fdtput -c").arg(tree).arg(&node).run()?;
        put("s").arg("compatible").arg(compatible).run()?;
        let address = format!("reg {:x} {base:x} 0 {MESH_BYTES:x}", base >> 32);
        put("x").words(&address).run()?;
        let first = first_controller(self.meshes, at);
        let of = |dtc: usize| format!("0 {:x} 1 ", spi(first + dtc));
        let interrupts: String = (0..mesh.dtcs()).map(of).collect();
        put("x").arg("interrupts").words(&interrupts).run()?;
        if mesh.part == "CMN-600" {
            let root = format!("{:x}", Image::of(mesh).root());
            put("x").arg("arm,root-node").arg(root).run()?;
        }
        Ok(())
    }

    fn start(&self, kernel: &Kernel, initrd: &Path) -> Result<Child> {
        let socket = |name: &str| format!("unix:{},server=on,wait=off", self.file(name));
        let mut command = Command::new("qemu-system-aarch64");
        command.arg("-M").arg(MACHINE).args(self.parts());
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initrd);
        command.arg("-dtb").arg(self.tree()?);
        // The kernel's default root file system of half the memory is too small for the program
        // beside its archive. The memory is too small, too, if a part is kept for devices (`cma`).
        command.arg("-append").arg(format!(
            "console=ttyAMA0 quiet panic=-1 oops=panic rdinit=/init rootfstype=ramfs cma=0 mem={RAM_MIB}M"
        ));
        command.args(["-serial", "stdio", "-no-reboot", "-qtest-log", "none"]);
        command.arg("-qmp").arg(socket("qmp")).arg("-qtest").arg(socket("qtest"));
        let log = File::create(self.file("qemu.log"))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        child.context("cannot start QEMU")
    }
}

const MACHINE: &str = "virt,gic-version=3";

impl Machine {
    /// Boots with the meshes, `cpus` CPUs and a disk of 64 MiB.
    pub(crate) fn boot(
        name: &str,
        kernel: &Kernel,
        guest: &Guest,
        meshes: &[Mesh],
        cpus: u32,
    ) -> Result<Machine> {
        let plan = Plan::new(name, meshes, cpus)?;
        let registers = plan.registers()?;
        let initrd = initrd(name, kernel, guest)?;
        let began = Instant::now();
        let child = plan.start(kernel, &initrd)?;
        let mut machine = Machine::connect(child, &plan, &registers)?;
        machine.until("GUEST ready")?;
        machine.boot_s = began.elapsed().as_secs_f64();
        let loaded = !machine.log.contains("GUEST cannot load");
        ensure!(loaded, "a module cannot be loaded:\n{}", machine.log);
        Ok(machine)
    }

    fn connect(mut child: Child, plan: &Plan, registers: &File) -> Result<Machine> {
        let input = child.stdin.take().context("no console")?;
        let console = Console::of(child.stdout.take().context("no console")?);
        let qmp = Qmp::connect(&plan.place.join("qmp"));
        let mut qmp =
            qmp.with_context(|| fs::read_to_string(plan.file("qemu.log")).unwrap_or_default())?;
        let qtest = Qtest::connect(&plan.place.join("qtest"), qmp.find("arm-gicv3")?)?;
        let emulator = |(at, mesh): (usize, &Mesh)| -> Result<Emulator<FileMemory>> {
            let (file, at) = (registers.try_clone()?, at as u64 * MESH_BYTES);
            Ok(Emulator::new(mesh, FileMemory { file, at }))
        };
        let meshes = plan.meshes.iter().enumerate().map(emulator).collect::<Result<_>>()?;
        let controllers =
            (0..plan.meshes.len()).map(|at| first_controller(plan.meshes, at)).collect();
        let log = String::new();
        Ok(Machine { child, input, console, log, qmp, qtest, controllers, meshes, boot_s: 0.0 })
    }

    pub(crate) fn line(&mut self) -> Result<String> {
        let ended = || format!("the machine ended; last lines:\n{}", tail(&self.log));
        let line = self.console.line().with_context(ended)?;
        self.log.push_str(&line);
        self.log.push('\n');
        Ok(line)
    }

    pub(crate) fn until(&mut self, start: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if let Some(at) = line.find(start) {
                return Ok(line[at..].to_owned());
            }
        }
    }

    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.console.is_silent_for(time)
    }

    /// Waits for a line that holds `text`, unless there was one already.
    pub(crate) fn until_heard(&mut self, text: &str) -> Result<()> {
        match self.log.contains(text) {
            true => Ok(()),
            false => self.until(text).map(drop),
        }
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}").and_then(|()| self.input.flush())?)
    }

    pub(crate) fn end_of_input(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\x04").and_then(|()| self.input.flush())?)
    }

    /// Returns the output until the present command ends, and its exit status.
    pub(crate) fn finish(&mut self) -> Result<(i32, String)> {
        let mut printed = String::new();
        loop {
            let line = self.line()?;
            if let Some(status) = line.strip_prefix("GUEST status ") {
                return Ok((status.trim().parse()?, printed));
            }
            printed.push_str(&line);
            printed.push('\n');
        }
    }

    pub(crate) fn run(&mut self, command: &str) -> Result<(i32, String)> {
        self.send(command)?;
        self.finish()
    }

    pub(crate) fn guest(&mut self, command: &str) -> Result<String> {
        let (status, printed) = self.run(command)?;
        ensure!(status == 0, "`{command}` ended with {status}:\n{printed}");
        Ok(printed)
    }

    /// Stops the machine, injects occurrences in the meshes, raises due interrupts, and continues
    /// the machine.
    pub(crate) fn frozen(
        &mut self,
        work: impl FnOnce(&mut [Emulator<FileMemory>], &mut Qmp) -> Result<Vec<(usize, Wrap)>>,
    ) -> Result<()> {
        self.qmp.ask("stop", json!({}))?;
        let wraps = work(&mut self.meshes, &mut self.qmp);
        self.qmp.ask("cont", json!({}))?;
        for (mesh, wrap) in wraps? {
            self.qtest.pulse(spi(self.controllers[mesh] + wrap.dtc))?;
        }
        Ok(())
    }

    pub(crate) fn happen(&mut self, mesh: usize, all: &[Happening]) -> Result<()> {
        self.frozen(|meshes, _| {
            let wraps = all.iter().flat_map(|what| meshes[mesh].happen(*what));
            Ok(wraps.map(|wrap| (mesh, wrap)).collect())
        })
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.qmp.ask("quit", json!({}))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn initrd(name: &str, kernel: &Kernel, guest: &Guest) -> Result<PathBuf> {
    let mut files = vec![
        GuestFile::script("init", INIT),
        GuestFile::program("bin/busybox", &guest.busybox)?,
        GuestFile::program("bin/daqmeter", &guest.daqmeter)?,
    ];
    let mut names = Vec::new();
    for module in ["virtio", "virtio_ring", "virtio_mmio", "virtio_blk", "arm-cmn"] {
        // Built-in parts of the kernel are no files.
        if let Some(bytes) = kernel.module(module)? {
            names.push(format!("{module}.ko"));
            files.push(GuestFile::data(&format!("{module}.ko"), bytes));
        }
    }
    let driver = names.iter().any(|name| name == "arm-cmn.ko");
    ensure!(driver, "the kernel package has no arm-cmn");
    files.push(GuestFile::data("modules", names.join("\n").into_bytes()));
    for (path, place) in &guest.perf.files {
        files.push(GuestFile::program(place, path)?);
    }
    archive(&mesh_folder(), name, &files)
}
