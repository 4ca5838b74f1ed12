//! One machine with meshes; their registers are a file of ours. It runs our commands, a line at a
//! time.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_pmu::emulated::{Emulator, Happening, Image, RegisterMemory};
use daqmeter_record::Mesh;
use serde_json::{Value, json};

use super::{arm_ldd, built, perf};
use crate::boot::device_tree;
use crate::debian::{Kernel, arm_busybox};
use crate::files::{Initrd, folder, tail};
use crate::shell::{Background, line, renew, until};

/// RAM of QEMU's `virt`. The first mesh is behind its 256 MiB, at the N1SDP's own address.
const RAM_MIB: u64 = 256;
pub(super) const MESH_BASE: u64 = 0x5000_0000;
const MESH_BYTES: u64 = 0x400_0000;

/// Longest silence of a command's output, and of QEMU.
const PATIENCE: Duration = Duration::from_secs(120);

/// Announces the system, and then runs the host's commands.
const SCRIPT: &str = "\
dmesg -n 3; ip link set lo up
for module in virtio virtio_ring virtio_mmio virtio_blk arm-cmn; do
    test ! -e /$module.ko || insmod /$module.ko || echo GUEST cannot load $module
done
stty -echo -onlcr
echo GUEST ready
while read -r line; do eval \"$line\"; echo \"GUEST status $?\"; done
";

/// Returns the shared interrupt of the n-th controller: the N1SDP's own 46, then those behind
/// virtio-mmio, of which the disk's is last.
fn spi(number: usize) -> usize {
    if number == 0 { 46 } else { 47 + number }
}

/// Registers in a file that the machine maps.
struct FileMemory {
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

/// A socket of QEMU: control by QMP with a JSON object per line, or by qtest.
struct Control(BufReader<UnixStream>);

impl Control {
    fn connect(path: &Path) -> Result<Control> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Sends a request and returns the line with its answer; lines about other events are skipped.
    fn ask(&mut self, request: &str, good: &str, bad: &str) -> Result<String> {
        self.0.get_mut().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut answer = String::new();
            let read = self.0.read_line(&mut answer).with_context(|| format!("QEMU: {request}"))?;
            ensure!(read > 0, "QEMU ended");
            ensure!(!answer.starts_with(bad), "QEMU: {request}: {answer}");
            if answer.starts_with(good) {
                return Ok(answer);
            }
        }
    }

    fn qmp(&mut self, what: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": what, "arguments": arguments });
        let answer = self.ask(&request.to_string(), "{\"return\"", "{\"error\"")?;
        Ok(serde_json::from_str::<Value>(&answer)?["return"].take())
    }
}

fn connect(path: &Path) -> Result<UnixStream> {
    let mut stream = None;
    until(&path.display().to_string(), Duration::from_secs(30), || {
        stream = Some(UnixStream::connect(path)?);
        Ok(true)
    })?;
    stream.context("no stream")
}

/// Returns the lines that the machine prints. They are read at once: a machine whose console is
/// full stops, and QEMU then answers nothing.
fn lines(console: UnixStream) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let all = BufReader::new(console).split(b'\n').map_while(Result::ok);
    let text = |line: Vec<u8>| String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
    std::thread::spawn(move || all.map(text).try_for_each(|line| sender.send(line)));
    lines
}

pub(super) struct Machine {
    _qemu: Background,
    console: UnixStream,
    lines: Receiver<String>,
    pub(super) log: String,
    qmp: Control,
    qtest: Control,
    /// QEMU's path of the interrupt controller.
    gic: String,
    pub(super) series: String,
    pub(super) meshes: Vec<Mesh>,
    emulators: Vec<Emulator<FileMemory>>,
}

impl Machine {
    /// Boots with the meshes, `cpus` CPUs and a disk of 64 MiB.
    pub(super) fn boot(
        name: &str,
        kernel: &Kernel,
        meshes: Vec<Mesh>,
        cpus: u32,
    ) -> Result<Machine> {
        let place = folder().join(name);
        renew(&place)?;
        let file = |name: &str| place.join(name).display().to_string();
        let mut options = File::options();
        let registers = options.read(true).write(true).create_new(true).open(file("registers"))?;
        for (mesh, at) in meshes.iter().zip(0..) {
            Image::of(mesh).write_to(&registers, MESH_BYTES, at * MESH_BYTES)?;
        }
        File::create(file("disk"))?.set_len(64 << 20)?;
        let qemu = qemu(&place, cpus, (meshes.len() as u64 * MESH_BYTES) >> 20);
        device_tree(&qemu, &place.join("tree"))?;
        let mut controllers = 0;
        for (mesh, at) in meshes.iter().zip(0..) {
            add_mesh(&place.join("tree"), mesh, MESH_BASE + at * MESH_BYTES, controllers)?;
            controllers += mesh.dtcs();
        }
        let child = line(&qemu)
            .words("-no-reboot -serial unix:console,server=on -qtest-log none -dtb tree")
            .words("-qmp unix:qmp,server=on,wait=off -qtest unix:qtest,server=on,wait=off")
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initrd(name, kernel)?)
            // The kernel's default root file system of half the memory is too small for the program
            // beside its archive. The memory is too small, too, if a part is kept for devices.
            .arg("-append")
            .arg(format!(
                "console=ttyAMA0 quiet panic=-1 oops=panic rdinit=/init rootfstype=ramfs cma=0 mem={RAM_MIB}M"
            ))
            .within(&place)
            .command()
            .spawn()
            .context("cannot start QEMU")?;
        let _qemu = Background(child);
        // QEMU waits for the reader of the console.
        let console = connect(&place.join("console"))?;
        let lines = lines(console.try_clone()?);
        let mut qmp = Control::connect(&place.join("qmp"))?;
        qmp.qmp("qmp_capabilities", json!({}))?;
        let gic = interrupt_controller(&mut qmp)?;
        let qtest = Control::connect(&place.join("qtest"))?;
        let emulator = |(mesh, at): (&Mesh, u64)| {
            let memory = FileMemory { file: registers.try_clone()?, at: at * MESH_BYTES };
            Ok(Emulator::new(mesh, memory))
        };
        let emulators = meshes.iter().zip(0..).map(emulator).collect::<Result<_>>()?;
        let (log, series) = (String::new(), kernel.series.clone());
        let mut machine =
            Machine { _qemu, console, lines, log, qmp, qtest, gic, series, meshes, emulators };
        machine.until("GUEST ready")?;
        ensure!(!machine.log.contains("GUEST cannot load"), "{}", machine.log);
        Ok(machine)
    }

    /// Returns the next line, or `None` if none comes in that time.
    pub(super) fn line_within(&mut self, wait: Duration) -> Result<Option<String>> {
        let line = match self.lines.recv_timeout(wait) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the machine ended; last lines:\n{}", tail(&self.log))
            }
        };
        self.log.push_str(&line);
        self.log.push('\n');
        Ok(Some(line))
    }

    pub(super) fn line(&mut self) -> Result<String> {
        let line = self.line_within(PATIENCE)?;
        line.with_context(|| format!("the machine is silent; last lines:\n{}", tail(&self.log)))
    }

    /// Waits for a line that holds `text`.
    pub(super) fn until(&mut self, text: &str) -> Result<()> {
        while !self.line()?.contains(text) {}
        Ok(())
    }

    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        Ok(self.console.write_all(format!("{line}\n").as_bytes())?)
    }

    pub(super) fn end_of_input(&mut self) -> Result<()> {
        Ok(self.console.write_all(b"\x04")?)
    }

    /// Returns the output until the present command ends, and its exit status.
    pub(super) fn finish(&mut self) -> Result<(i32, String)> {
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

    pub(super) fn run(&mut self, command: &str) -> Result<(i32, String)> {
        self.send(command)?;
        self.finish()
    }

    pub(super) fn guest(&mut self, command: &str) -> Result<String> {
        let (status, printed) = self.run(command)?;
        ensure!(status == 0, "`{command}` ended with {status}:\n{printed}");
        Ok(printed)
    }

    /// Stops the machine, injects occurrences in a mesh, continues the machine, and raises due
    /// interrupts.
    pub(super) fn happen(&mut self, mesh: usize, all: &[Happening]) -> Result<()> {
        self.qmp.qmp("stop", json!({}))?;
        let emulator = &mut self.emulators[mesh];
        let wrapped: Vec<usize> = all.iter().flat_map(|what| emulator.happen(*what)).collect();
        self.qmp.qmp("cont", json!({}))?;
        let first: usize = self.meshes[..mesh].iter().map(Mesh::dtcs).sum();
        for dtc in wrapped {
            for level in [1, 0] {
                let (gic, line) = (&self.gic, spi(first + dtc));
                let request = format!("set_irq_in {gic} unnamed-gpio-in {line} {level}");
                self.qtest.ask(&request, "OK", "FAIL")?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that the machine has read from its disk.
    pub(super) fn bytes_read(&mut self) -> Result<u64> {
        let all = self.qmp.qmp("query-blockstats", json!({}))?;
        all[0]["stats"]["rd_bytes"].as_u64().context("no rd_bytes")
    }
}

fn qemu(place: &Path, cpus: u32, window_mib: u64) -> String {
    let place = place.display();
    format!(
        "qemu-system-aarch64 -machine virt,gic-version=3 -accel tcg,thread=single -cpu neoverse-n1 \
         -smp {cpus} -m {}M -nodefaults -display none \
         -object memory-backend-ram,id=r0,size={RAM_MIB}M \
         -object memory-backend-file,id=r1,size={window_mib}M,mem-path={place}/registers,share=on \
         -numa node,nodeid=0,cpus=0-{},memdev=r0 -numa node,nodeid=1,memdev=r1 \
         -drive file={place}/disk,if=none,id=d0,format=raw,cache=writeback \
         -device virtio-blk-device,drive=d0",
        RAM_MIB + window_mib,
        cpus - 1
    )
}

/// Adds a mesh to the device tree; its first controller has that number in the machine.
fn add_mesh(tree: &Path, mesh: &Mesh, base: u64, first: usize) -> Result<()> {
    let node = format!("/pmu@{base:x}");
    line("fdtput -c").arg(tree).arg(&node).run()?;
    let interrupt = |dtc: usize| format!("0 {:x} 1 ", spi(first + dtc));
    let mut properties = vec![
        ("s", "compatible", format!("arm,{}", mesh.part.to_lowercase())),
        ("x", "reg", format!("{:x} {base:x} 0 {MESH_BYTES:x}", base >> 32)),
        ("x", "interrupts", (0..mesh.dtcs()).map(interrupt).collect()),
    ];
    if mesh.part == "CMN-600" {
        properties.push(("x", "arm,root-node", format!("{:x}", Image::of(mesh).root())));
    }
    for (kind, name, value) in properties {
        let put = line("fdtput -t").arg(kind).arg(tree).arg(&node).arg(name);
        put.words(&value).run()?;
    }
    Ok(())
}

fn interrupt_controller(qmp: &mut Control) -> Result<String> {
    let all = qmp.qmp("qom-list", json!({ "path": "/machine/unattached" }))?;
    let mut objects = all.as_array().context("no objects")?.iter();
    let found = objects.find(|object| object["type"] == "child<arm-gicv3>");
    let name = found.and_then(|object| object["name"].as_str()).context("no arm-gicv3")?;
    Ok(format!("/machine/unattached/{name}"))
}

fn initrd(name: &str, kernel: &Kernel) -> Result<std::path::PathBuf> {
    let initrd = Initrd::new(name, &arm_busybox()?, SCRIPT)?;
    initrd.take("bin/daqmeter", &built().join("daqmeter"))?;
    initrd.take("bin/perf", &perf()?)?;
    initrd.take_libraries(arm_ldd(&perf()?), &folder().join("perf"))?;
    for module in ["virtio", "virtio_ring", "virtio_mmio", "virtio_blk", "arm-cmn"] {
        // Built-in parts of the kernel are no files.
        if let Some(path) = kernel.module(module)? {
            initrd.take(&format!("{module}.ko"), &path)?;
        }
    }
    initrd.pack()
}
