//! One machine with meshes whose registers are a file of ours.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use daqmeter_pmu::emulated::{Emulator, Happening, Image, Memory, Wrap};
use daqmeter_pmu::mesh::registers::Registers;
use daqmeter_record::Mesh;
use serde_json::{Value, json};

use super::{Guest, folder};
use crate::shell::{output, run};
use crate::vm::kernels::Kernel;

/// RAM begins here on QEMU's `virt`; behind 256 MiB of it is the first mesh, at the N1SDP's own address.
const RAM_MIB: u64 = 256;
const MESH_BASE: u64 = 0x5000_0000;
const MESH_BYTES: u64 = 0x400_0000;

/// Shared interrupt of the n-th controller: the N1SDP's own 46, then those behind virtio-mmio, whose last is the disk's.
fn spi(number: usize) -> usize {
    if number == 0 { 46 } else { 47 + number }
}

/// Registers in a file that the machine maps.
#[derive(Debug)]
pub(crate) struct FileMemory {
    file: File,
    at: u64,
}

impl Registers for FileMemory {
    fn read(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.at + offset).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl Memory for FileMemory {
    fn write(&mut self, offset: u64, value: u64) {
        let done = self
            .file
            .write_all_at(&value.to_le_bytes(), self.at + offset);
        done.expect("the file was made as large as the meshes");
    }
}

/// A running machine.
pub(crate) struct Machine {
    child: Child,
    input: ChildStdin,
    console: BufReader<Box<dyn Read + Send>>,
    log: String,
    qmp: Qmp,
    qtest: BufReader<UnixStream>,
    gic: String,
    /// Number of each mesh's first controller.
    controllers: Vec<usize>,
    pub(crate) meshes: Vec<Emulator<FileMemory>>,
    pub(crate) boot_s: f64,
}

/// The tree in which the machine's controllers are found: QEMU's own with a node for each mesh.
fn tree(machine: &[String], meshes: &[Mesh], place: &Path) -> Result<PathBuf> {
    let path = place.join("machine.dtb");
    let shown = path.display().to_string();
    let mut arguments: Vec<String> = machine.to_vec();
    arguments[1] = format!("{},dumpdtb={shown}", arguments[1]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    output("qemu-system-aarch64", &arguments)?;
    for (at, mesh) in meshes.iter().enumerate() {
        let base = MESH_BASE + at as u64 * MESH_BYTES;
        let node = format!("/pmu@{base:x}");
        let compatible = match mesh.part.as_str() {
            "CMN-600" => "arm,cmn-600",
            "CMN-650" => "arm,cmn-650",
            "CMN-700" => "arm,cmn-700",
            _ => "arm,cmn-s3",
        };
        let first = first_controller(meshes, at);
        // Shared, number, rising edge: one for each controller.
        let interrupts: Vec<String> = (0..mesh.dtcs())
            .flat_map(|dtc| {
                [
                    "0".to_owned(),
                    format!("{:x}", spi(first + dtc)),
                    "1".to_owned(),
                ]
            })
            .collect();
        let interrupts: Vec<&str> = interrupts.iter().map(String::as_str).collect();
        let (high, low) = (format!("{:x}", base >> 32), format!("{base:x}"));
        run("fdtput", &["-c", &shown, &node])?;
        run(
            "fdtput",
            &["-t", "s", &shown, &node, "compatible", compatible],
        )?;
        run(
            "fdtput",
            &[
                "-t",
                "x",
                &shown,
                &node,
                "reg",
                &high,
                &low,
                "0",
                &format!("{MESH_BYTES:x}"),
            ],
        )?;
        run(
            "fdtput",
            &[&["-t", "x", &shown, &node, "interrupts"][..], &interrupts].concat(),
        )?;
        if mesh.part == "CMN-600" {
            run(
                "fdtput",
                &[
                    "-t",
                    "x",
                    &shown,
                    &node,
                    "arm,root-node",
                    &format!("{:x}", Image::of(mesh).root()),
                ],
            )?;
        }
    }
    Ok(path)
}

/// Controllers are numbered through all meshes.
fn first_controller(meshes: &[Mesh], at: usize) -> usize {
    meshes[..at].iter().map(Mesh::dtcs).sum()
}

/// Prepares the system, says so, and then does what the host says, a line at a time.
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

impl Machine {
    /// Boots with the meshes, `cpus` CPUs and a disk of 64 MiB.
    pub(crate) fn boot(
        name: &str,
        kernel: &Kernel,
        guest: &Guest,
        meshes: &[Mesh],
        cpus: u32,
    ) -> Result<Machine> {
        let place = folder().join(name);
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        let shown = |file: &str| place.join(file).display().to_string();
        let window = meshes.len() as u64 * MESH_BYTES;
        let registers = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(shown("registers"))?;
        for (at, mesh) in meshes.iter().enumerate() {
            Image::of(mesh).write_to(&registers, MESH_BYTES, at as u64 * MESH_BYTES)?;
        }
        let disk = File::create(shown("disk"))?;
        disk.set_len(64 << 20)?;
        let machine: Vec<String> = [
            "-M",
            "virt,gic-version=3",
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "neoverse-n1",
            "-smp",
            &cpus.to_string(),
            "-m",
            &format!("{}M", RAM_MIB + (window >> 20)),
            "-nodefaults",
            "-display",
            "none",
            "-object",
            &format!("memory-backend-ram,id=r0,size={RAM_MIB}M"),
            "-object",
            &format!(
                "memory-backend-file,id=r1,size={}M,mem-path={},share=on",
                window >> 20,
                shown("registers")
            ),
            "-numa",
            &format!("node,nodeid=0,cpus=0-{},memdev=r0", cpus - 1),
            "-numa",
            "node,nodeid=1,memdev=r1",
            "-drive",
            &format!(
                "file={},if=none,id=d0,format=raw,cache=writeback",
                shown("disk")
            ),
            "-device",
            "virtio-blk-device,drive=d0",
        ]
        .map(str::to_owned)
        .into();
        let dtb = tree(&machine, meshes, &place)?;
        let initrd = initrd(name, kernel, guest)?;
        let began = Instant::now();
        let mut command = Command::new("qemu-system-aarch64");
        command
            .args(&machine)
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initrd)
            .arg("-dtb")
            .arg(dtb);
        // A root file system of half the memory, as the kernel makes it otherwise, does not hold the program beside its archive.
        command.arg("-append").arg(format!(
            "console=ttyAMA0 quiet panic=-1 oops=panic rdinit=/init rootfstype=ramfs mem={RAM_MIB}M"
        ));
        command.args(["-serial", "stdio", "-no-reboot"]);
        command
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", shown("qmp")));
        command
            .arg("-qtest")
            .arg(format!("unix:{},server=on,wait=off", shown("qtest")))
            .arg("-qtest-log")
            .arg("none");
        let log = File::create(shown("qemu.log"))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let input = child.stdin.take().context("no console")?;
        let console: Box<dyn Read + Send> = Box::new(child.stdout.take().context("no console")?);
        let qmp = Qmp::connect(&place.join("qmp"));
        let qmp = qmp.with_context(|| fs::read_to_string(shown("qemu.log")).unwrap_or_default())?;
        let qtest = BufReader::new(connect(&place.join("qtest"))?);
        let memory = |at: usize| -> Result<FileMemory> {
            Ok(FileMemory {
                file: registers.try_clone()?,
                at: at as u64 * MESH_BYTES,
            })
        };
        let emulators: Result<Vec<_>> = meshes
            .iter()
            .enumerate()
            .map(|(at, mesh)| Ok(Emulator::new(mesh, memory(at)?)))
            .collect();
        let mut machine = Machine {
            child,
            input,
            console: BufReader::new(console),
            log: String::new(),
            qmp,
            qtest,
            gic: String::new(),
            controllers: (0..meshes.len())
                .map(|at| first_controller(meshes, at))
                .collect(),
            meshes: emulators?,
            boot_s: 0.0,
        };
        machine.gic = machine.qmp.find("arm-gicv3")?;
        machine.until("GUEST ready")?;
        machine.boot_s = began.elapsed().as_secs_f64();
        ensure!(
            !machine.log.contains("GUEST cannot load"),
            "a module cannot be loaded:\n{}",
            machine.log
        );
        Ok(machine)
    }

    /// The next line of the console.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let got = self.console.read_line(&mut line)?;
        ensure!(got > 0, "the machine ended; it said last:\n{}", self.tail());
        let line = line.trim_end_matches(['\n', '\r']).to_owned();
        self.log.push_str(&line);
        self.log.push('\n');
        Ok(line)
    }

    fn tail(&self) -> String {
        let lines: Vec<&str> = self.log.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Reads the console up to a line that holds `start`; that line from there on.
    pub(crate) fn until(&mut self, start: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if let Some(at) = line.find(start) {
                return Ok(line[at..].to_owned());
            }
        }
    }

    /// Sends a line to whoever reads the console.
    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}").and_then(|()| self.input.flush())?)
    }

    /// Ends the input of the program that reads the console.
    pub(crate) fn end_of_input(&mut self) -> Result<()> {
        Ok(self
            .input
            .write_all(b"\x04")
            .and_then(|()| self.input.flush())?)
    }

    /// What is printed until the command at hand ends, and its exit status.
    pub(crate) fn finish(&mut self) -> Result<(i32, String)> {
        let mut said = String::new();
        loop {
            let line = self.line()?;
            if let Some(status) = line.strip_prefix("GUEST status ") {
                return Ok((status.trim().parse()?, said));
            }
            said.push_str(&line);
            said.push('\n');
        }
    }

    /// Runs a command in the guest; its exit status and what it printed.
    pub(crate) fn tell(&mut self, command: &str) -> Result<(i32, String)> {
        self.send(command)?;
        self.finish()
    }

    /// Runs a command that must succeed.
    pub(crate) fn guest(&mut self, command: &str) -> Result<String> {
        let (status, said) = self.tell(command)?;
        ensure!(status == 0, "`{command}` ended with {status}:\n{said}");
        Ok(said)
    }

    /// Stops the machine, lets things happen in the mesh, raises what interrupts are due, and lets the machine go on.
    pub(crate) fn frozen(
        &mut self,
        work: impl FnOnce(&mut [Emulator<FileMemory>], &mut Qmp) -> Result<Vec<(usize, Wrap)>>,
    ) -> Result<()> {
        self.qmp.ask("stop", json!({}))?;
        let wraps = work(&mut self.meshes, &mut self.qmp);
        self.qmp.ask("cont", json!({}))?;
        for (mesh, wrap) in wraps? {
            self.pulse(spi(self.controllers[mesh] + wrap.dtc))?;
        }
        Ok(())
    }

    /// Lets one thing happen in one mesh.
    pub(crate) fn happen(&mut self, mesh: usize, what: Happening) -> Result<()> {
        self.frozen(|meshes, _| {
            Ok(meshes[mesh]
                .happen(what)
                .into_iter()
                .map(|wrap| (mesh, wrap))
                .collect())
        })
    }

    fn pulse(&mut self, line: usize) -> Result<()> {
        for level in [1, 0] {
            let ask = format!("set_irq_in {} unnamed-gpio-in {line} {level}\n", self.gic);
            self.qtest.get_mut().write_all(ask.as_bytes())?;
            let mut answer = String::new();
            // Lines about interrupts of its own may come before the answer.
            while !answer.starts_with("OK") && !answer.starts_with("FAIL") {
                answer.clear();
                ensure!(self.qtest.read_line(&mut answer)? > 0, "qtest ended");
            }
            ensure!(answer.starts_with("OK"), "qtest: {answer}");
        }
        Ok(())
    }

    /// Ends the machine.
    pub(crate) fn end(mut self) -> Result<()> {
        self.qmp.ask("quit", json!({}))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file system that the machine begins with.
fn initrd(name: &str, kernel: &Kernel, guest: &Guest) -> Result<PathBuf> {
    let modules = [
        "virtio",
        "virtio_ring",
        "virtio_mmio",
        "virtio_blk",
        "arm-cmn",
    ];
    let mut files = vec![
        ("init".to_owned(), INIT.as_bytes().to_vec(), 0o755),
        ("bin/busybox".to_owned(), fs::read(&guest.busybox)?, 0o755),
        ("bin/daqmeter".to_owned(), fs::read(&guest.daqmeter)?, 0o755),
    ];
    let mut names = Vec::new();
    for module in modules {
        // What is built into the kernel is no file.
        if let Some(bytes) = kernel.module(module)? {
            names.push(format!("{module}.ko"));
            files.push((format!("{module}.ko"), bytes, 0o644));
        }
    }
    ensure!(
        names.iter().any(|name| name == "arm-cmn.ko"),
        "the kernel package has no arm-cmn"
    );
    files.push(("modules".to_owned(), names.join("\n").into_bytes(), 0o644));
    for (path, place) in &guest.perf.files {
        files.push((place.clone(), fs::read(path)?, 0o755));
    }
    crate::vm::archive_in(&folder(), name, &files)
}

fn connect(path: &Path) -> Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > Duration::from_secs(10) => {
                bail!("{}: {error}", path.display())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// QEMU's control protocol: a JSON object per line.
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    fn connect(path: &Path) -> Result<Qmp> {
        let mut qmp = Qmp {
            stream: BufReader::new(connect(path)?),
        };
        qmp.read()?;
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "QEMU ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// Asks, and waits for the answer; events before it are passed over.
    pub(crate) fn ask(&mut self, what: &str, arguments: Value) -> Result<Value> {
        let line = format!("{}\n", json!({ "execute": what, "arguments": arguments }));
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU: {what}: {error}");
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    /// Path of the first object of that type below the machine.
    fn find(&mut self, kind: &str) -> Result<String> {
        let all = self.ask("qom-list", json!({ "path": "/machine/unattached" }))?;
        let wanted = format!("child<{kind}>");
        let found = all
            .as_array()
            .context("no objects")?
            .iter()
            .find(|object| object["type"] == wanted.as_str());
        let name = found
            .and_then(|object| object["name"].as_str())
            .with_context(|| format!("no {kind}"))?;
        Ok(format!("/machine/unattached/{name}"))
    }

    /// Bytes that the guest has read from its first disk.
    pub(crate) fn bytes_read(&mut self) -> Result<u64> {
        let all = self.ask("query-blockstats", json!({}))?;
        all[0]["stats"]["rd_bytes"].as_u64().context("no rd_bytes")
    }
}
