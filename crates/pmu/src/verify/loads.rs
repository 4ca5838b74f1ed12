//! Loads whose bytes are known.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daqmeter_harness::Fault;
use daqmeter_kernels::stream::{StreamRatio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::units::whole;
use daqmeter_sys::host::{DIRECT, Files, data_ranges, device_directory};
use daqmeter_sys::memory::{Buffer, Pages};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    pub(super) how: String,
}

fn wrong(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Fault {
    move |error| Fault::new(format!("{what}: {error}"))
}

fn repeated(
    time: Duration,
    stop: &AtomicBool,
    mut step: impl FnMut() -> Result<u64, Fault>,
) -> Result<u64, Fault> {
    let (began, mut bytes) = (Instant::now(), step()?);
    while began.elapsed() < time && !stop.load(Ordering::Relaxed) {
        bytes += step()?;
    }
    Ok(bytes)
}

/// Reads memory beyond the caches again and again, until the time is over or it must stop.
pub(super) fn memory(
    time: Duration,
    last_level_bytes: u64,
    stop: &AtomicBool,
) -> Result<Moved, Fault> {
    let bytes =
        usize::try_from((last_level_bytes * 8).clamp(64 << 20, 2 << 30)).unwrap_or(64 << 20);
    let buffer = Buffer::new(bytes, Pages::Transparent)?;
    let source = buffer.slice::<u8>(bytes);
    let (isa, none) = (Isa::best(), &mut []);
    let read = || Ok(stream(isa, Store::Cached, StreamRatio::READ, source, none) as u64);
    let read_bytes = repeated(time, stop, read)?;
    Ok(Moved { bytes: read_bytes, how: format!("own reads of {} MiB, one thread", bytes >> 20) })
}

#[derive(Debug)]
pub(super) struct BlockFile {
    path: PathBuf,
    /// Numbers of the blocks whose bytes are on the disk.
    blocks: Vec<Range<u64>>,
    is_ours: bool,
    /// Part of the file without bytes on the disk.
    pub(super) has_holes: bool,
    /// Name of the whole disk below /sys/block, if there is one.
    pub(super) disk: Option<String>,
}

const BLOCK: usize = 1 << 20;

impl BlockFile {
    pub(super) fn existing(path: &Path) -> Result<BlockFile, Fault> {
        let shown = path.display();
        let about = path.metadata().map_err(wrong(&shown))?;
        let is_device = about.file_type().is_block_device();
        let number = if is_device { about.rdev() } else { about.dev() };
        let disk = disk_of(&Files::default(), number);
        let bytes = if is_device { device_bytes(&Files::default(), number) } else { about.len() };
        let mut ranges: Vec<Range<u64>> = iter::once(0..bytes).collect();
        if !is_device {
            let file = File::open(path).map_err(wrong(&shown))?;
            ranges = data_ranges(&file).map_err(wrong(&shown))?;
        }
        let has_holes = ranges.iter().map(|range| range.end - range.start).sum::<u64>() < bytes;
        let whole =
            |range: Range<u64>| range.start.div_ceil(BLOCK as u64)..range.end / BLOCK as u64;
        let blocks = ranges.into_iter().map(whole).filter(|blocks| !blocks.is_empty());
        let blocks: Vec<Range<u64>> = blocks.collect();
        if blocks.is_empty() {
            return Err(Fault::new(format!(
                "{shown}: less than 1 MiB of its {bytes} bytes is on the disk; give a file that was written, and is not sparse"
            )));
        }
        Ok(BlockFile { path: path.to_owned(), blocks, is_ours: false, has_holes, disk })
    }

    /// Makes a new file of the given size below a directory, written through; it is removed at the
    /// end, also if filling it fails.
    pub(super) fn temporary(
        directory: &Path,
        bytes: u64,
        stop: &AtomicBool,
    ) -> Result<BlockFile, Fault> {
        let path = directory.join(format!("daqmeter-verify-{}.tmp", std::process::id()));
        let shown = path.display().to_string();
        let mut file = File::create_new(&path).map_err(wrong(&shown))?;
        let blocks = 0..bytes / BLOCK as u64;
        let mut made = BlockFile {
            disk: None,
            blocks: iter::once(blocks.clone()).collect(),
            is_ours: true,
            has_holes: false,
            path,
        };
        let fill = || -> std::io::Result<u64> {
            let mut block = vec![0x5A_u8; BLOCK];
            for number in blocks {
                // No two blocks are equal: no layer below can deduplicate them.
                block[..8].copy_from_slice(&number.to_le_bytes());
                if stop.load(Ordering::Relaxed) {
                    return Err(std::io::ErrorKind::Interrupted.into());
                }
                file.write_all(&block)?;
            }
            file.sync_all()?;
            Ok(file.metadata()?.dev())
        };
        made.disk = disk_of(&Files::default(), fill().map_err(wrong(&shown))?);
        Ok(made)
    }

    /// Reads what is on the disk past the page cache again and again, until the time is over or it
    /// must stop.
    pub(super) fn read(&self, time: Duration, stop: &AtomicBool) -> Result<Moved, Fault> {
        let shown = self.path.display();
        let opened = OpenOptions::new().read(true).custom_flags(DIRECT).open(&self.path);
        let file = opened.map_err(wrong(format!(
            "{shown}, past the page cache (a file system without direct I/O, such as tmpfs?)"
        )))?;
        let mut buffer = Buffer::new(BLOCK, Pages::Base)?;
        let block = buffer.slice_mut::<u8>(BLOCK);
        let mut numbers = self.blocks.iter().cloned().flatten().cycle();
        let bytes = repeated(time, stop, || {
            let at = numbers.next().unwrap_or(0) * BLOCK as u64;
            file.read_exact_at(block, at).map_err(wrong(&shown))?;
            Ok(BLOCK as u64)
        })?;
        Ok(Moved { bytes, how: format!("own O_DIRECT reads of 1 MiB from {shown}") })
    }
}

impl Drop for BlockFile {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the name of the whole disk of a device number.
fn disk_of(files: &Files, number: u64) -> Option<String> {
    let place = std::fs::canonicalize(files.root().join(device_directory("block", number))).ok()?;
    let whole = if place.join("partition").exists() { place.parent()?.to_owned() } else { place };
    Some(whole.file_name()?.to_str()?.to_owned())
}

fn device_bytes(files: &Files, number: u64) -> u64 {
    let sectors = files.text(&format!("{}/size", device_directory("block", number)));
    sectors.and_then(|text| text.parse::<u64>().ok()).map_or(0, |sectors| sectors * 512)
}

/// Sends bytes over TCP on the loopback interface until the time is over or it must stop.
pub(super) fn loopback(time: Duration, stop: &AtomicBool) -> Result<Moved, Fault> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(wrong("listen on loopback"))?;
    let address = listener.local_addr().map_err(wrong("listen on loopback"))?;
    let receive = move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let (mut buffer, mut bytes) = (vec![0_u8; BLOCK], 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes),
                got => bytes += got as u64,
            }
        }
    };
    let receiver = std::thread::Builder::new().name("receiver".to_owned()).spawn(receive);
    let receiver = receiver.map_err(wrong("start a thread"))?;
    let mut sender = TcpStream::connect(address).map_err(wrong("connect to loopback"))?;
    let block = vec![0xA5_u8; BLOCK];
    let send = || {
        sender.write_all(&block).map_err(wrong("send over loopback"))?;
        Ok(BLOCK as u64)
    };
    repeated(time, stop, send)?;
    drop(sender);
    let bytes = receiver.join().map_err(|_| Fault::new("the receiver panicked"))?;
    let bytes = bytes.map_err(wrong("receive over loopback"))?;
    Ok(Moved { bytes, how: "own TCP stream over loopback".to_owned() })
}

/// Load of another program.
pub(super) struct ProgramLoad {
    name: &'static str,
    /// Its arguments, with the file or the host for `{on}` and whole seconds for `{seconds}`.
    arguments: &'static str,
    /// Reads the moved bytes from its output.
    bytes: fn(&str) -> Option<u64>,
}

pub(super) const FIO: ProgramLoad = ProgramLoad {
    name: "fio",
    arguments: "--ioengine=libaio --randrepeat=1 --direct=1 --gtod_reduce=1 --time_based \
        --readwrite=read --bs=64k --iodepth=64k --name=r0 --filename={on} --numjobs=1 \
        --runtime={seconds} --output-format=json",
    bytes: fio_bytes,
};

/// The document's netperf, for the given time instead of without end.
pub(super) const NETPERF: ProgramLoad = ProgramLoad {
    name: "netperf",
    arguments: "-H {on} -t TCP_MAERTS -P 0 -l {seconds}",
    bytes: netperf_bytes,
};

impl ProgramLoad {
    pub(super) fn run(&self, on: &str, time: Duration) -> Result<Moved, Fault> {
        let name = self.name;
        let seconds = time.as_secs().max(1).to_string();
        let filled = |word: &str| word.replace("{on}", on).replace("{seconds}", &seconds);
        let arguments: Vec<String> = self.arguments.split_whitespace().map(filled).collect();
        let done = Command::new(name).args(&arguments).output();
        let remedy = "install it, or choose another load";
        let done = done.map_err(|error| Fault::new(format!("{name}: {error}; {remedy}")))?;
        let [out, said] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
        if !done.status.success() {
            let last = said.lines().last().unwrap_or("it failed");
            return Err(Fault::new(format!("{name}: {last}")));
        }
        let bytes = (self.bytes)(&out);
        let bytes =
            bytes.ok_or_else(|| Fault::new(format!("{name}: it printed no bytes moved")))?;
        Ok(Moved { bytes, how: format!("{name} {}", arguments.join(" ")) })
    }
}

fn fio_bytes(text: &str) -> Option<u64> {
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    json["jobs"][0]["read"]["io_bytes"].as_u64().filter(|bytes| *bytes <= MAX_WHOLE)
}

/// Reads elapsed seconds and 10^6 bits per second, the last of `131072 16384 16384 10.00 941.52`.
fn netperf_bytes(text: &str) -> Option<u64> {
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    let mut words = line.split_whitespace().rev();
    let megabits: f64 = words.next()?.parse().ok()?;
    let seconds: f64 = words.next()?.parse().ok()?;
    let bytes = megabits * 1e6 / 8.0 * seconds;
    (bytes.is_finite() && bytes >= 0.0).then_some(whole(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_fio_is_read() {
        let fio = "note: both iodepth >= 1 and synchronous\n{\"jobs\":[{\"read\":{\"io_bytes\":13244891136}}]}";
        assert_eq!(fio_bytes(fio), Some(202_101 * 65_536));
        assert_eq!(fio_bytes("fio: nothing"), None);
    }

    #[test]
    fn the_output_of_netperf_is_read() {
        let documents = "131072  16384  16384    10.00    941.52\n";
        assert_eq!(netperf_bytes(documents), Some(1_176_900_000));
        for wrong in ["", "941.52", "a b", "10.00 -1"] {
            assert_eq!(netperf_bytes(wrong), None, "{wrong}");
        }
    }

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_loads_move_what_they_say() {
        let net = loopback(Duration::from_millis(5), &GOES_ON).unwrap();
        assert!(net.bytes >= BLOCK as u64 && net.bytes.is_multiple_of(BLOCK as u64));
        let memory = memory(Duration::from_millis(1), 1 << 20, &GOES_ON).unwrap();
        assert!(memory.bytes >= 64 << 20);
    }

    #[test]
    fn loads_end_when_they_are_to_stop_and_leave_no_file() {
        static STOPS: AtomicBool = AtomicBool::new(true);
        let long = Duration::from_secs(36_000);
        loopback(long, &STOPS).unwrap();
        memory(long, 1 << 20, &STOPS).unwrap();
        let directory = tempfile::tempdir().unwrap();
        assert!(BlockFile::temporary(directory.path(), 1 << 40, &STOPS).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_temporary_file_is_read_whole_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = BlockFile::temporary(directory.path(), 4 << 20, &GOES_ON).unwrap();
        match file.read(Duration::ZERO, &GOES_ON) {
            Ok(moved) => assert!(moved.bytes >= BLOCK as u64),
            Err(error) => assert!(error.to_string().contains("past the page cache"), "{error}"),
        }
        drop(file);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let error = BlockFile::existing(Path::new("/nonexistent/file")).unwrap_err();
        assert!(error.0.contains("/nonexistent/file"));
    }

    #[test]
    fn holes_of_a_file_are_not_read_and_a_file_of_holes_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let refused = BlockFile::existing(&path).unwrap_err().to_string();
        assert!(refused.contains("is on the disk"), "{refused}");
        let place = (5 << 19) as u64;
        file.write_all_at(&vec![1; 3 << 20], place).unwrap();
        let part = BlockFile::existing(&path).unwrap();
        assert_eq!(
            (part.blocks.as_slice(), part.has_holes),
            ([Range { start: 3, end: 5 }].as_slice(), true)
        );
    }
}
