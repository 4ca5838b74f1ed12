//! The speed targets as ratios in one run: `cargo bench -p daqmeter-copy`; `-- overhead`, `kernel`
//! or `memory` runs that group alone.
//!
//! Samples sides in turn, pinned to the last CPU allowed (and the first, if two copy). Compiles the
//! C peers from `peers.c` with the host's compiler. Prints results without a verdict.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use daqmeter_copy::{CopyPath, CopyRequest, Direction};
use daqmeter_harness::{NullRequest, Request as _, Session};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_stats::median;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, clock};

fn ns(work: impl FnOnce()) -> f64 {
    let begin = clock::monotonic_ns();
    work();
    (clock::monotonic_ns() - begin) as f64
}

fn session(request: &CopyRequest) -> Box<dyn Session> {
    let mut session = request.job().unwrap().open().unwrap().remove(0);
    session.prepare().unwrap();
    session.verify().unwrap();
    session
}

fn peers() -> Option<PathBuf> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/peers.c");
    let program = std::env::temp_dir().join(format!("daqmeter-peers-{}", std::process::id()));
    // No tree-loop-distribution: the compiler would call memcpy, which has its own row.
    let flags = ["-O3", "-march=native", "-fno-tree-loop-distribute-patterns", "-pthread", "-o"];
    let built = Command::new("cc").args(flags).arg(&program).arg(&source).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}

fn stream_rate(program: &PathBuf, bytes: usize, cpus: &[u32]) -> f64 {
    let sizes = ["stream".to_owned(), bytes.to_string(), "0.15".to_owned()];
    let pinned = cpus.iter().map(u32::to_string);
    let output = Command::new(program).args(sizes).args(pinned).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

/// The bare loop in C, which waits between its slices and inherits our CPU.
struct BareLoop {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl BareLoop {
    fn start(program: &PathBuf) -> BareLoop {
        let mut child = Command::new(program)
            .arg("pread")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BareLoop {
            ask: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn slice(&mut self, calls: u64) -> f64 {
        writeln!(self.ask, "{calls}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    fn end(self) {
        let BareLoop { mut child, ask, .. } = self;
        drop(ask);
        child.wait().unwrap();
    }
}

/// Compares our `pread` of 1 B with the bare loop, in slices in turn on one CPU. The interval
/// bounds the error of the ratio.
fn small_reads(program: &PathBuf) {
    // Short slices: one in twenty is then undisturbed also on a busy host.
    const CALLS: u64 = 20_000;
    const SLICES: usize = 401;
    let mut session = session(&CopyRequest::new(CopyPath::Pread, Direction::To, 1));
    let mut ours = || {
        session.step(0, CALLS / 10).unwrap();
        ns(|| session.step(0, CALLS).unwrap()) / CALLS as f64
    };
    let mut bare_loop = BareLoop::start(program);
    let (mut tool, mut bare) = (Vec::new(), Vec::new());
    for slice in 0..SLICES {
        // The order alternates, because the first of a pair leaves its lines in the caches.
        if slice % 2 == 0 {
            tool.push(ours());
            bare.push(bare_loop.slice(CALLS));
        } else {
            bare.push(bare_loop.slice(CALLS));
            tool.push(ours());
        }
    }
    bare_loop.end();
    println!("pread at 1 B: {SLICES} slices of {CALLS} calls each, in turn with a bare C loop");
    for (what, q) in [("5th percentile", 0.05), ("median", 0.5)] {
        let level = |row: &[f64]| {
            daqmeter_stats::quantile(&daqmeter_stats::sorted(row), q).unwrap_or_default()
        };
        println!("  {what}: {:.1} ns, bare {:.1} ns", level(&tool), level(&bare));
    }
    println!("  ratio {} (target 1.10)", ratio(&tool, &bare));
}

/// Returns the ratio of samples that were taken alternately, with its 95 % interval.
fn ratio(ours: &[f64], other: &[f64]) -> String {
    let ratios: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| ours / other).collect();
    let (ratio, low, high) = daqmeter_stats::trimmed_interval(&ratios, 0.95).unwrap();
    format!("{ratio:.3} ({low:.3} - {high:.3})")
}

fn overhead(peers: Option<&PathBuf>) {
    let mut null = NullRequest::session();
    let per_op = (0..51).map(|_| ns(|| null.step(0, 1_000_000).unwrap()) / 1e6);
    let per_op = median(&per_op.collect::<Vec<f64>>()).unwrap();
    println!("null engine: {per_op:.2} ns an operation (target 1)");
    match peers {
        Some(program) => small_reads(program),
        None => println!("pread at 1 B: not compared, no C compiler (cc)"),
    }
}

/// Best GB/s of a kernel, summed over threads that start together.
fn rate(kernel: CopyKernel, bytes: usize, cpus: &[u32]) -> f64 {
    let barrier = std::sync::Barrier::new(cpus.len());
    let lane = |cpu: u32| {
        let barrier = &barrier;
        move || {
            affinity::pin_to(cpu).unwrap();
            let mut from = Buffer::new(bytes, Pages::Transparent).unwrap();
            from.slice_mut::<u8>(bytes).fill(3);
            let mut to = Buffer::new(bytes, Pages::Transparent).unwrap();
            let passes = ((1 << 20) / bytes).max(1);
            barrier.wait();
            let end = clock::monotonic_ns() + 150_000_000;
            let mut best = f64::INFINITY;
            while clock::monotonic_ns() < end {
                let (from, to) = (from.slice::<u8>(bytes), to.slice_mut::<u8>(bytes));
                best = best.min(ns(|| {
                    (0..passes).for_each(|_| {
                        kernel.copy(from, to);
                        std::hint::black_box(&mut *to);
                    })
                }));
            }
            (bytes * passes) as f64 / best
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = cpus.iter().map(|cpu| scope.spawn(lane(*cpu))).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
    })
}

fn memory(peers: Option<&PathBuf>, cpus: &[u32]) {
    println!(
        "copies in memory, GB/s one way, transparent huge pages, best of 3 x 0.15 s (targets: best >= STREAM, glibc)"
    );
    for threads in [1, cpus.len().min(2)] {
        let cpus = &cpus[..threads];
        for bytes in [8 << 10, 128 << 10, 4 << 20, 64 << 20] {
            let mut best: Vec<(CopyKernel, f64)> =
                CopyKernel::available().into_iter().map(|kernel| (kernel, 0.0)).collect();
            let mut stream: f64 = 0.0;
            for _ in 0..3 {
                for (kernel, rate_so_far) in &mut best {
                    *rate_so_far = rate_so_far.max(rate(*kernel, bytes, cpus));
                }
                if let Some(peers) = peers {
                    stream = stream.max(stream_rate(peers, bytes, cpus));
                }
            }
            let is_glibc = |(kernel, _): &&(CopyKernel, f64)| *kernel == CopyKernel::Memcpy;
            let glibc = best.iter().find(is_glibc).map_or(0.0, |(_, rate)| *rate);
            let (kernel, fastest) = *best.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            let peer = stream.max(glibc);
            println!(
                "  {threads} thread(s), {:>9} B each way: best {fastest:.1} ({}); STREAM {stream:.1}, glibc {glibc:.1}; ratio {:.2}",
                bytes,
                kernel.name(),
                fastest / peer
            );
        }
    }
}

/// Copies as the kernel does: `rep movsb` of all bytes at once, and page by page.
struct ByHand {
    from: Buffer,
    to: Buffer,
    bytes: usize,
}

impl ByHand {
    fn new(bytes: usize) -> ByHand {
        let [from, to] = [(); 2].map(|()| Buffer::new(bytes, Pages::Transparent).unwrap());
        ByHand { from, to, bytes }
    }

    fn copy(&mut self, piece: usize) {
        let from = self.from.slice::<u8>(self.bytes).chunks(piece);
        let to = self.to.slice_mut::<u8>(self.bytes).chunks_mut(piece);
        for (from, to) in from.zip(to) {
            CopyKernel::RepMovsb.copy(from, to);
        }
        std::hint::black_box(&mut self.to);
    }
}

/// Compares a read or write of huge pages with memcpy and with the kernel's copy instruction.
fn huge_copies(path: CopyPath, direction: Direction) {
    const MIB: usize = 1 << 20;
    const COPIES: u64 = 8;
    let request = CopyRequest::new(path, direction, MIB);
    if request.job().unwrap().open().is_err() {
        println!("{path}, copy {direction} user: not measured here: see `daqmeter copy -h`");
        return;
    }
    let mut kernel = session(&request);
    let mut memcpy = session(&CopyRequest::new(CopyPath::Memcpy, direction, MIB));
    let mut by_hand = ByHand::new(MIB);
    let mut rows = [(); 4].map(|()| Vec::new());
    for _ in 0..201 {
        rows[0].push(ns(|| kernel.step(0, COPIES).unwrap()));
        rows[1].push(ns(|| memcpy.step(0, COPIES).unwrap()));
        for (row, piece) in rows[2..].iter_mut().zip([MIB, 4096]) {
            row.push(ns(|| (0..COPIES).for_each(|_| by_hand.copy(piece))));
        }
    }
    let us = |row: &Vec<f64>| median(row).unwrap() / COPIES as f64 / 1e3;
    let over = |row: usize| ratio(&rows[0], &rows[row]);
    println!(
        "{path}, copy {direction} user, 1 MiB, huge pages: {:.1} us; over memcpy ({:.1} us) {} (target 1.15)\n  \
         over rep movsb of all ({:.1} us) {}, of 4 KiB at a time ({:.1} us) {}",
        us(&rows[0]),
        us(&rows[1]),
        over(1),
        us(&rows[2]),
        over(2),
        us(&rows[3]),
        over(3),
    );
}

fn kernel_copies() {
    for direction in [Direction::To, Direction::From] {
        huge_copies(CopyPath::TmpfsHuge, direction);
    }
}

fn main() {
    let mut cpus = affinity::allowed_cpus().unwrap();
    cpus.reverse();
    if cpus.len() > 1 {
        cpus = vec![cpus[0], cpus[cpus.len() - 1]];
    }
    affinity::pin_to(cpus[0]).unwrap();
    println!(
        "placement: CPU {}{}",
        cpus[0],
        if cpus.len() > 1 { format!(", second thread CPU {}", cpus[1]) } else { String::new() }
    );
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |group: &str| wanted.is_empty() || wanted.iter().any(|word| word == group);
    let peers = peers();
    if is_wanted("overhead") {
        overhead(peers.as_ref());
    }
    if is_wanted("kernel") {
        kernel_copies();
    }
    if is_wanted("memory") {
        memory(peers.as_ref(), &cpus);
    }
    if let Some(program) = peers {
        let _ = std::fs::remove_file(program);
    }
}
