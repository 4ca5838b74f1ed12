use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use daqmeter_kernels::stream::{StreamRatio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_sys::host::{DIRECT, Files};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::process::terminate;

#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    pub bytes: u64,
    pub how: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

fn wrong(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> LoadError {
    move |error| LoadError(format!("{what}: {error}"))
}

fn repeated(
    time: Duration,
    stop: &AtomicBool,
    mut step: impl FnMut() -> Result<u64, LoadError>,
) -> Result<u64, LoadError> {
    let (began, mut bytes) = (Instant::now(), step()?);
    while began.elapsed() < time && !stop.load(Ordering::Relaxed) {
        bytes += step()?;
    }
    Ok(bytes)
}

/// Reads memory beyond the caches again and again, until the time is over or it must stop.
pub fn memory(
    time: Duration,
    last_level_bytes: u64,
    stop: &AtomicBool,
) -> Result<Moved, LoadError> {
    let bytes =
        usize::try_from((last_level_bytes * 8).clamp(64 << 20, 2 << 30)).unwrap_or(64 << 20);
    let buffer =
        Buffer::new(bytes, Pages::Transparent).map_err(|error| LoadError(error.to_string()))?;
    let source = buffer.slice::<u8>(bytes);
    let (isa, none) = (Isa::best(), &mut []);
    let read = || Ok(stream(isa, Store::Cached, StreamRatio::READ, source, none) as u64);
    let read_bytes = repeated(time, stop, read)?;
    Ok(Moved { bytes: read_bytes, how: format!("own reads of {} MiB, one thread", bytes >> 20) })
}

#[derive(Debug)]
pub struct BlockFile {
    path: PathBuf,
    bytes: u64,
    is_ours: bool,
    /// Name of the whole disk below /sys/block, if there is one.
    pub disk: Option<String>,
}

const BLOCK: usize = 1 << 20;

impl BlockFile {
    pub fn existing(path: &Path) -> Result<BlockFile, LoadError> {
        let shown = path.display();
        let about = path.metadata().map_err(wrong(&shown))?;
        let is_device = about.file_type().is_block_device();
        let number = if is_device { about.rdev() } else { about.dev() };
        let disk = disk_of(&Files::default(), number);
        let bytes = if is_device { device_bytes(&Files::default(), number) } else { about.len() };
        if bytes < BLOCK as u64 {
            return Err(LoadError(format!(
                "{shown}: {bytes} bytes are too few; 1 MiB at least is read"
            )));
        }
        Ok(BlockFile { path: path.to_owned(), bytes, is_ours: false, disk })
    }

    /// Makes a new file of the given size below a directory, written through; it is removed at the
    /// end.
    pub fn temporary(
        directory: &Path,
        bytes: u64,
        stop: &AtomicBool,
    ) -> Result<BlockFile, LoadError> {
        let path = directory.join(format!("daqmeter-verify-{}.tmp", std::process::id()));
        let shown = path.display().to_string();
        let mut file = File::create_new(&path).map_err(wrong(&shown))?;
        let mut block = vec![0_u8; BLOCK];
        let written = (0..bytes / BLOCK as u64).try_for_each(|number| {
            // No two blocks are equal: no layer below can deduplicate them.
            if stop.load(Ordering::Relaxed) {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            block
                .iter_mut()
                .zip(number.to_le_bytes().into_iter().cycle())
                .for_each(|(byte, new)| *byte = new ^ 0x5A);
            file.write_all(&block)
        });
        let made = written.and_then(|()| file.sync_all());
        // The file is removed even if filling it fails.
        let mut file = BlockFile { disk: None, bytes, is_ours: true, path };
        made.map_err(wrong(&shown))?;
        let about = file.path.metadata().map_err(wrong(&shown))?;
        file.disk = disk_of(&Files::default(), about.dev());
        Ok(file)
    }

    /// Reads the file past the page cache again and again, until the time is over or it must stop.
    pub fn read(&self, time: Duration, stop: &AtomicBool) -> Result<Moved, LoadError> {
        let shown = self.path.display();
        let opened = OpenOptions::new().read(true).custom_flags(DIRECT).open(&self.path);
        let file = opened.map_err(wrong(format!(
            "{shown}, past the page cache (a file system without direct I/O, such as tmpfs?)"
        )))?;
        let mut buffer =
            Buffer::new(BLOCK, Pages::Base).map_err(|error| LoadError(error.to_string()))?;
        let block = buffer.slice_mut::<u8>(BLOCK);
        let blocks = self.bytes / BLOCK as u64;
        let mut number = 0;
        let bytes = repeated(time, stop, || {
            file.read_exact_at(block, number % blocks * BLOCK as u64).map_err(wrong(&shown))?;
            number += 1;
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

/// Returns the name of the whole disk of a device number (glibc's `makedev` layout).
fn disk_of(files: &Files, number: u64) -> Option<String> {
    let place = std::fs::canonicalize(files.root().join(device_directory(number))).ok()?;
    let whole = if place.join("partition").exists() { place.parent()?.to_owned() } else { place };
    Some(whole.file_name()?.to_str()?.to_owned())
}

fn device_directory(number: u64) -> String {
    let major = number >> 8 & 0xFFF | number >> 32 & !0xFFF;
    let minor = number & 0xFF | number >> 12 & !0xFF;
    format!("sys/dev/block/{major}:{minor}")
}

fn device_bytes(files: &Files, number: u64) -> u64 {
    let sectors = files.text(&format!("{}/size", device_directory(number)));
    sectors.and_then(|text| text.parse::<u64>().ok()).map_or(0, |sectors| sectors * 512)
}

/// Sends bytes over TCP on the loopback interface until the time is over or it must stop.
pub fn loopback(time: Duration, stop: &AtomicBool) -> Result<Moved, LoadError> {
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
    let bytes = receiver.join().map_err(|_| LoadError("the receiver panicked".to_owned()))?;
    let bytes = bytes.map_err(wrong("receive over loopback"))?;
    Ok(Moved { bytes, how: "own TCP stream over loopback".to_owned() })
}

pub fn fio(file: &Path, time: Duration) -> Result<Moved, LoadError> {
    let seconds = time.as_secs().max(1);
    let options = "--ioengine=libaio --randrepeat=1 --direct=1 --gtod_reduce=1 --time_based \
        --readwrite=read --bs=64k --iodepth=64k --name=r0";
    let mut arguments: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    arguments.extend([
        format!("--filename={}", file.display()),
        "--numjobs=1".to_owned(),
        format!("--runtime={seconds}"),
        "--output-format=json".to_owned(),
    ]);
    let text = output("fio", &arguments)?;
    let bytes = fio_bytes(&text)
        .ok_or_else(|| LoadError("fio: its output has no jobs[0].read.io_bytes".to_owned()))?;
    Ok(Moved { bytes, how: format!("fio {}", arguments.join(" ")) })
}

pub fn warm(program: &str, argument: &str) -> Result<(), LoadError> {
    output(program, &[argument.to_owned()]).map(|_| ())
}

fn fio_bytes(text: &str) -> Option<u64> {
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    json["jobs"][0]["read"]["io_bytes"].as_u64()
}

/// Runs the document's netperf from a host, with an interim result every 10 s. It is ended after
/// the first result at or beyond the time. Shorter times have shorter intervals.
pub fn netperf(host: &str, time: Duration, stop: &AtomicBool) -> Result<Moved, LoadError> {
    interim_results(Command::new("netperf"), host, time, stop)
}

/// Most delay of an interim result.
const LATE: Duration = Duration::from_secs(5);

fn interim_results(
    mut netperf: Command,
    host: &str,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Moved, LoadError> {
    let every = time.as_secs().clamp(1, 10);
    let arguments = format!("-D {every} -H {host} -t TCP_MAERTS -l 0");
    netperf.args(arguments.split(' '));
    let failed = |why: &dyn std::fmt::Display| LoadError(format!("netperf: {why}"));
    let began = Instant::now();
    let child = netperf.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child =
        child.map_err(|error| failed(&format!("{error}; install it, or leave out --with")))?;
    let lines = lines_of(child.stdout.take());
    let (mut bytes, mut seconds) = (0.0, 0.0);
    let is_done = |seconds: f64| seconds >= time.as_secs_f64() - 0.05;
    let deadline = time.max(Duration::from_secs(every)) + Duration::from_secs(every) + LATE;
    while !is_done(seconds) && began.elapsed() < deadline && !stop.load(Ordering::Relaxed) {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                let (bits_per_s, passed) = interim(&line).unwrap_or_default();
                bytes += bits_per_s / 8.0 * passed;
                seconds += passed;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // A failed program has ended already and printed the reason.
    terminate(&mut child).map_err(|error| failed(&error))?;
    let said = child.wait_with_output().map_err(|error| failed(&error))?;
    if seconds == 0.0 {
        let said = String::from_utf8_lossy(&said.stderr);
        let why = said
            .lines()
            .last()
            .unwrap_or("it printed no interim results; it must have been built with --enable-demo");
        return Err(failed(&why));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes of a run, not negative"
    )]
    let bytes = bytes as u64;
    Ok(Moved { bytes, how: format!("netperf {arguments}") })
}

fn lines_of(from: Option<std::process::ChildStdout>) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let lines = from.into_iter().flat_map(|from| BufReader::new(from).lines());
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Reads bits per second and seconds of `Interim result: 941.52 10^6bits/s over 10.000 seconds
/// ending at ...`.
fn interim(line: &str) -> Option<(f64, f64)> {
    let mut words = line.split_once("Interim result:")?.1.split_whitespace();
    let megabits: f64 = words.next()?.parse().ok()?;
    let is_known = words.next() == Some("10^6bits/s") && words.next() == Some("over");
    let seconds: f64 = words.next()?.parse().ok()?;
    let is_sound = |value: f64| value.is_finite() && value >= 0.0;
    (is_known && is_sound(megabits) && is_sound(seconds)).then_some((megabits * 1e6, seconds))
}

fn output(program: &str, arguments: &[String]) -> Result<String, LoadError> {
    let done = Command::new(program).args(arguments).output();
    let done = done.map_err(|error| {
        LoadError(format!("{program}: {error}; install it, or leave out --with"))
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(LoadError(format!(
            "{program}: {}",
            said.lines().last().unwrap_or("it failed")
        )));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[derive(Clone, Debug, PartialEq)]
pub enum CounterVerdict {
    Pass,
    Fail,
    /// Not comparable here, for this reason.
    Waived(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    pub low: f64,
    pub high: f64,
}

impl Band {
    /// Accepts headers, descriptors and others' traffic on top of the payload.
    pub(crate) fn payload_and(more: f64) -> Band {
        Band { low: 1.0, high: 1.0 + more }
    }

    pub fn around(tolerance: f64) -> Band {
        Band { low: 1.0 - tolerance, high: 1.0 + tolerance }
    }

    pub fn judge(self, counted: f64, payload: u64) -> CounterVerdict {
        // A counter of single bytes must be exact.
        let ratio = counted / payload.max(1) as f64;
        if ratio >= self.low - 1e-9 && ratio <= self.high {
            CounterVerdict::Pass
        } else {
            CounterVerdict::Fail
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_hold_counters_to_the_payload_and_no_less() {
        let net = Band::payload_and(0.1);
        assert_eq!(
            net.judge(1030.144e6, 941_520_000),
            CounterVerdict::Pass,
            "the document's: 1.094"
        );
        assert_eq!(
            net.judge(941_519_000.0, 941_520_000),
            CounterVerdict::Fail,
            "less than the payload is a lost count"
        );
        assert_eq!(
            Band::around(0.02).judge(2711.3e6, 2_706_353_317),
            CounterVerdict::Pass,
            "the document's: 1.002"
        );
        assert_eq!(Band::around(0.02).judge(0.0, 5), CounterVerdict::Fail);
    }

    #[test]
    fn the_output_of_fio_is_read() {
        let fio = "note: both iodepth >= 1 and synchronous\n{\"jobs\":[{\"read\":{\"io_bytes\":13244891136}}]}";
        assert_eq!(fio_bytes(fio), Some(202_101 * 65_536));
        assert_eq!(fio_bytes("fio: nothing"), None);
    }

    #[test]
    fn interim_results_of_netperf_are_read() {
        let check = |line: &str, expected| assert_eq!(interim(line), expected, "{line}");
        let documents =
            "Interim result: 941.52 10^6bits/s over 10.000 seconds ending at 1576269135.608";
        check(documents, Some((941.52e6, 10.0)));
        check("Interim result: 9 10^9bits/s over 10.000 seconds", None);
        check("Interim result: -1 10^6bits/s over 10.000 seconds", None);
        check("Interim result: 941.52", None);
        check("131072  16384  16384    10.00    941.52", None);
    }

    /// Makes a program in place of netperf. It prints its arguments and netperf's output, and goes
    /// on until it is ended.
    fn stand_in(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "netperf"]);
        shell
    }

    #[test]
    fn netperf_is_called_as_in_the_document_and_ended_after_the_time() {
        let script = r#"
            [ "$*" = "-D 2 -H lab7 -t TCP_MAERTS -l 0" ] || { echo "$*" >&2; exit 1; }
            echo "Interim result: 8.00 10^6bits/s over 1.000 seconds ending at 1.0"
            echo "Interim result: 16.00 10^6bits/s over 1.500 seconds ending at 2.5"
            exec tail -f /dev/null"#;
        let time = Duration::from_secs(2);
        let moved = interim_results(stand_in(script), "lab7", time, &GOES_ON).unwrap();
        assert_eq!(moved.bytes, 1_000_000 + 3_000_000);
        assert_eq!(moved.how, "netperf -D 2 -H lab7 -t TCP_MAERTS -l 0");
    }

    #[test]
    fn a_netperf_that_fails_says_why() {
        let time = Duration::from_secs(1);
        let error = |script| interim_results(stand_in(script), "x", time, &GOES_ON).unwrap_err();
        let refused = "echo 'establish control: are you sure there is a netserver' >&2; exit 1";
        assert!(error(refused).0.contains("are you sure"));
        assert!(error("echo 941.52").0.contains("--enable-demo"));
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
        assert!(
            BlockFile::existing(Path::new("/nonexistent/file"))
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/file")
        );
    }

    #[test]
    fn device_numbers_are_split_as_the_kernel_does() {
        assert_eq!(device_directory(0xFE01), "sys/dev/block/254:1");
        // makedev(259, 0x12345): the minor's upper bits lie above the major's lower ones.
        assert_eq!(device_directory(0x1231_0345), format!("sys/dev/block/{}:{}", 259, 0x12345));
    }
}
