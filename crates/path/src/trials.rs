//! Changes that may make a path faster. [`changes`] lists those for this path on this host.
//! [`compare`] tries one in turns with the unchanged path until its effect is decided. A change
//! that needs root, or a pool that is empty, is named with its reason.

use daqmeter_harness::placement;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::scenario::{ReaderCompletion, ReaderMode};
use daqmeter_record::Host;
use daqmeter_record::path::{Decided, InTurns, PathRun, Trial, Tried};
use daqmeter_record::resources::{Resource, What, bottleneck, resources};
use daqmeter_record::units::show_bytes;
use daqmeter_stats::{Decision, MedianSequence};
use daqmeter_sys::host::Files;
use daqmeter_sys::memory::Pages;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::Path;
use crate::definition::{SinkKind, StageKind};
use crate::links::device_node;
use crate::remote::Over;
use crate::tcp::SendBy;

#[derive(Clone, Debug, PartialEq)]
pub struct PathChange {
    /// Fields of the path's file, as [`Path::load_with`] takes them; all that differ from the file.
    pub with: Vec<String>,
    /// CPUs for the threads in turn, from source to sink; empty where that does not change.
    pub cpus: Vec<u32>,
    pub text: String,
    /// Predicted factor on the speed of the path, by the use of its resources; `None` without a
    /// prediction.
    pub predicted: Option<f64>,
    /// Element that gets another number of threads; `None` for any other change.
    pub threads_of: Option<usize>,
    pub obstacle: Option<String>,
}

/// Differences up to this share are ignored: less is no advice.
pub const IGNORED: f64 = 0.02;
const ALPHA: f64 = 0.05;

/// Changes that fit this path, from a run of it as fast as it goes. Those with the largest
/// predicted gain come first, then those without a prediction. `limit` is its limit, if known;
/// `files` are those of the host.
pub fn changes(
    path: &Path,
    run: &PathRun,
    limit: Option<&What>,
    host: &Host,
    files: &Files,
) -> Vec<PathChange> {
    let known = Known { path, run, host };
    let mut all = known.threads(limit);
    all.extend(known.placement(files));
    all.extend(known.blocks());
    all.extend(known.copies());
    all.extend(known.sends());
    all.extend(known.card());
    all.extend(known.huge_pages());
    all.extend(known.congestion(files));
    all.sort_by(|a, b| {
        let gain = |change: &PathChange| change.predicted.unwrap_or(0.0);
        gain(b).total_cmp(&gain(a))
    });
    all
}

struct Known<'a> {
    path: &'a Path,
    run: &'a PathRun,
    host: &'a Host,
}

impl Known<'_> {
    fn set(&self, setting: &str) -> Option<PathChange> {
        let with = self.path.and_with(setting);
        Path::parse_with(&self.path.text, &self.path.name, &with).ok()?;
        Some(PathChange {
            with,
            cpus: Vec::new(),
            text: format!("--set {setting}"),
            predicted: None,
            threads_of: None,
            obstacle: None,
        })
    }

    /// One thread more or less for the limiting stage; less if the limit is all CPUs.
    fn threads(&self, limit: Option<&What>) -> Vec<PathChange> {
        let all = resources(self.run);
        let limit = limit.or_else(|| bottleneck(&all).map(|(resource, _)| &resource.what));
        let number_of =
            |element: usize| Some((element, self.path.stages.get(element.checked_sub(1)?)?));
        let wanted: Vec<(usize, usize)> = match limit {
            Some(What::Threads { element, .. }) => {
                let stage = number_of(*element).filter(|(_, stage)| !stage.kind.has_two_ends());
                let near = |(at, stage): (usize, &crate::definition::Element<StageKind>)| {
                    [(at, stage.threads + 1), (at, stage.threads - 1)]
                };
                stage.map(near).into_iter().flatten().collect()
            }
            Some(What::AllCpus | What::Cpu(_)) => {
                let stages = self.path.stages.iter().enumerate();
                stages.map(|(at, stage)| (at + 1, stage.threads - 1)).collect()
            }
            Some(What::Between { .. } | What::Link { .. } | What::Memory | What::Buffers)
            | None => Vec::new(),
        };
        let change = |(element, threads): (usize, usize)| {
            let change = self.set(&format!("stage.{element}.threads={threads}"))?;
            Some(PathChange {
                predicted: with_threads(self.run, &all, element, threads),
                threads_of: Some(element),
                ..change
            })
        };
        wanted.into_iter().filter(|(_, threads)| *threads > 0).filter_map(change).collect()
    }

    /// Threads on CPUs by shared hardware, if the path leaves them free.
    fn placement(&self, files: &Files) -> Option<PathChange> {
        // Threads of libraries, which come behind them, are not placed.
        let own = self.run.threads.len().min(self.path.thread_count());
        let threads = &self.run.threads[..own];
        if threads.iter().any(|thread| thread.cpu.is_some()) || self.host.allowed_cpus.len() < 2 {
            return None;
        }
        let busy_ns: Vec<f64> = threads.iter().map(|thread| thread.busy_ns as f64).collect();
        let near = device_node(self.path, files);
        let cpus = placement::spread(self.host, near, &busy_ns);
        let named: Vec<String> = cpus.iter().map(u32::to_string).collect();
        Some(PathChange {
            with: self.path.with.clone(),
            text: format!("--pin {}", named.join(",")),
            cpus,
            predicted: None,
            threads_of: None,
            obstacle: None,
        })
    }

    fn blocks(&self) -> Vec<PathChange> {
        let bytes = self.path.block_bytes;
        let sizes = [bytes.saturating_mul(2), bytes / 2].into_iter();
        let change = |bytes: usize| {
            let text = show_bytes(bytes as u64).replace(' ', "");
            // A size that its text rounds is written out.
            let exact = daqmeter_record::units::parse_bytes(&text) == Ok(bytes as u64);
            let text = if exact { text } else { bytes.to_string() };
            self.set(&format!("block={text}"))
        };
        sizes.filter_map(change).collect()
    }

    /// Stores around the caches for a copy that uses others, and the reverse.
    fn copies(&self) -> Vec<PathChange> {
        let stages = self.path.stages.iter().enumerate();
        let copies = stages.filter_map(|(at, stage)| match stage.kind {
            StageKind::Copy(kernel) => Some((at + 1, kernel)),
            _ => None,
        });
        let change = |(element, kernel): (usize, CopyKernel)| {
            let other = other_stores(kernel)?;
            self.set(&format!("stage.{element}.by={}", other.name()))
        };
        copies.filter_map(change).collect()
    }

    /// Every other way to hand bytes to TCP that the kernel has.
    fn sends(&self) -> Vec<PathChange> {
        let stages = self.path.stages.iter().enumerate();
        let stages = stages.filter_map(|(at, stage)| match stage.kind {
            StageKind::Tcp { send, .. } => Some((format!("stage.{}", at + 1), send)),
            _ => None,
        });
        let sink = match &self.path.sink.kind {
            SinkKind::Remote { over: Over::Tcp { send, .. }, .. } => {
                Some(("sink".to_owned(), *send))
            }
            _ => None,
        };
        let change = |(element, own): (String, SendBy)| {
            let others = SendBy::ALL.into_iter().filter(move |by| *by != own);
            others.filter_map(move |by| self.set(&format!("{element}.send={}", by.name())))
        };
        stages.chain(sink).flat_map(change).collect()
    }

    /// Changes of a card that is read out: completion, sending of chunks, and number of receiving
    /// threads.
    fn card(&self) -> Vec<PathChange> {
        let Some(scenario) = self.path.live() else {
            return Vec::new();
        };
        let poll_us = scenario.reader.poll.0 as f64 / 1e3;
        let looks = scenario.reader.completion == ReaderCompletion::Poll && poll_us > 0.0;
        let polls = looks.then(|| [poll_us / 2.0, poll_us * 2.0].map(|us| format!("poll_us={us}")));
        let mode = match scenario.reader.mode {
            ReaderMode::Buffered => "mode=zero-copy",
            ReaderMode::ZeroCopy => "mode=buffered",
        };
        let others = looks.then(|| "completion=interrupt".to_owned());
        let of_card = polls.into_iter().flatten().chain(others);
        let of_card = of_card.chain([mode.to_owned()]);
        let receivers = self.path.sink.threads + 1;
        of_card
            .map(|setting| format!("source.{setting}"))
            .chain([format!("sink.threads={receivers}")])
            .filter_map(|setting| self.set(&setting))
            .collect()
    }

    fn huge_pages(&self) -> Option<PathChange> {
        // A card that is read out has its ring instead of blocks.
        if self.path.pages == Pages::HugeTlb || self.path.is_live() {
            return None;
        }
        let free: u64 = self.host.huge_pages.iter().map(|pool| pool.free * pool.page_bytes).sum();
        let obstacle = (free < self.path.memory_bytes()).then(|| {
            format!(
                "needs root: {} of huge pages are free and its blocks take {}: set vm.nr_hugepages",
                show_bytes(free),
                show_bytes(self.path.memory_bytes())
            )
        });
        let change = self.set("pages=huge")?;
        Some(PathChange { obstacle, ..change })
    }

    /// Every congestion control that needs no root, if the path has TCP.
    fn congestion(&self, files: &Files) -> Vec<PathChange> {
        let stages = self.path.stages.iter().enumerate();
        let mut found = stages.filter(|(_, stage)| matches!(stage.kind, StageKind::Tcp { .. }));
        let Some((at, stage)) = found.next() else {
            return Vec::new();
        };
        let own = match &stage.kind {
            StageKind::Tcp { congestion: Some(name), .. } => name.as_str(),
            _ => self.host.congestion_control.as_str(),
        };
        let read = |what: &str| {
            let names = files.text(&format!("proc/sys/net/ipv4/tcp_{what}_congestion_control"));
            let names = names.unwrap_or_default();
            names.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let allowed = read("allowed");
        let others = read("available").into_iter().filter(|name| name != own);
        let change = |name: String| {
            let setting = format!("stage.{}.congestion={name}", at + 1);
            if allowed.contains(&name) {
                return self.set(&setting);
            }
            Some(PathChange {
                with: Vec::new(),
                cpus: Vec::new(),
                text: format!("--set {setting}"),
                predicted: None,
                threads_of: None,
                obstacle: Some(
                    "needs root: it is not in net.ipv4.tcp_allowed_congestion_control".to_owned(),
                ),
            })
        };
        others.filter_map(change).collect()
    }
}

/// Kernel of equal width with stores around the caches, or through them; of the widest vectors for
/// the C library's.
fn other_stores(kernel: CopyKernel) -> Option<CopyKernel> {
    let names = match kernel.name().strip_suffix("-nt") {
        Some(cached) => vec![cached.to_owned()],
        None => vec![format!("{}-nt", kernel.name()), "avx512-nt".to_owned(), "avx2-nt".to_owned()],
    };
    names.iter().find_map(|name| CopyKernel::from_name(name))
}

/// Factor on the speed of a path if an element had this many threads and nothing else changed.
fn with_threads(run: &PathRun, all: &[Resource], element: usize, threads: usize) -> Option<f64> {
    let changed = |resource: &Resource| match resource.what {
        What::Threads { element: own, .. } if own == element => {
            Resource { capacity: threads as f64, ..resource.clone() }
        }
        _ => resource.clone(),
    };
    let then: Vec<Resource> = all.iter().map(changed).collect();
    let (_, next_ns) = bottleneck(&then)?;
    let block_ns = run.wall_ns as f64 / run.blocks.max(1) as f64;
    (next_ns > 0.0).then(|| block_ns / next_ns.max(f64::MIN_POSITIVE))
}

/// Runs the path unchanged and with a change in turns, each pair in an order drawn by lot. It ends
/// when that is decided or the caller wants no more pairs; one pair is run in any case. `run` is
/// given true for the changed path, and returns nanoseconds per byte of payload. `of` changes share
/// the chance of a wrong answer.
pub fn compare<E>(
    mut run: impl FnMut(bool) -> Result<f64, E>,
    of: usize,
    seed: u64,
    mut wants_more: impl FnMut() -> bool,
) -> Result<InTurns, E> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut sequence = MedianSequence::new(ALPHA / of.max(1) as f64);
    loop {
        let changed_first = random.next_u64() & 1 == 1;
        let first_ns = run(changed_first)?;
        let second_ns = run(!changed_first)?;
        let log_ratio = (second_ns / first_ns).ln();
        sequence.push(if changed_first { -log_ratio } else { log_ratio });
        if sequence.decision(IGNORED) != Decision::Undecided || !wants_more() {
            return Ok(in_turns(&sequence));
        }
    }
}

fn in_turns(sequence: &MedianSequence) -> InTurns {
    let (low, high) = sequence.interval();
    let is_interval = low.is_finite() && high.is_finite() && low <= high;
    InTurns {
        decided: match sequence.decision(IGNORED) {
            Decision::Faster => Decided::Faster,
            Decision::Slower => Decided::Slower,
            Decision::Same => Decided::Same,
            Decision::Undecided => Decided::Undecided,
        },
        times: (-sequence.median().unwrap_or(0.0)).exp(),
        interval: is_interval.then(|| ((-high).exp(), (-low).exp())),
        pairs: sequence.len() as u64,
        ignored: IGNORED,
    }
}

/// Sorts by gain, the largest first; then trials without a difference, undecided ones, slower ones,
/// and those not tried.
pub fn ranked(mut trials: Vec<Trial>) -> Vec<Trial> {
    let place = |trial: &Trial| match &trial.found {
        Tried::InTurns(found) => match found.decided {
            Decided::Faster => (0, -found.times),
            Decided::Same => (1, -found.times),
            Decided::Undecided => (2, -found.times),
            Decided::Slower => (3, -found.times),
        },
        Tried::Not(_) => (4, -trial.predicted.unwrap_or(0.0)),
    };
    trials.sort_by(|a, b| {
        let ((a, a_times), (b, b_times)) = (place(a), place(b));
        a.cmp(&b).then(a_times.total_cmp(&b_times))
    });
    trials
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use daqmeter_record::path::PathThread;
    use daqmeter_stats::Random;

    use super::*;

    fn run(cpus: f64, threads: &[(usize, &str, u64)]) -> PathRun {
        let thread = |(element, part, busy_ms): &(usize, &str, u64)| PathThread {
            element: *element,
            part: (*part).to_owned(),
            busy_ns: busy_ms * 1_000_000,
            cpu_ns: busy_ms * 1_000_000,
            ..PathThread::default()
        };
        PathRun {
            wall_ns: 1_000_000_000,
            blocks: 1000,
            cpus,
            threads: threads.iter().map(thread).collect(),
            ..PathRun::default()
        }
    }

    fn host(cpus: u32) -> Host {
        Host {
            allowed_cpus: (0..cpus).collect(),
            congestion_control: "cubic".to_owned(),
            ..Host::default()
        }
    }

    fn files() -> (tempfile::TempDir, Files) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/net/ipv4");
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("tcp_available_congestion_control", "reno cubic vegas\n");
        write("tcp_allowed_congestion_control", "reno cubic\n");
        let files = Files::below(root.path());
        (root, files)
    }

    fn texts(changes: &[PathChange]) -> Vec<&str> {
        changes.iter().map(|change| change.text.as_str()).collect()
    }

    #[test]
    fn the_changes_are_those_that_fit_the_path_and_its_limit_best_prediction_first() {
        let path = Path::load("felix-card").unwrap();
        let run = run(
            4.0,
            &[
                (0, "felix", 200),
                (1, "decode", 1000),
                (2, "tcp out", 300),
                (2, "tcp in", 300),
                (3, "read", 100),
            ],
        );
        let (_root, files) = files();
        let found = changes(&path, &run, None, &host(4), &files);
        let wanted = [
            "--set stage.1.threads=2",
            "--pin 0,3,2,1,0",
            "--set block=128KiB",
            "--set block=32KiB",
            "--set stage.2.send=zerocopy",
            "--set stage.2.send=io-uring",
            "--set pages=huge",
            "--set stage.2.congestion=reno",
            "--set stage.2.congestion=vegas",
        ];
        // A sandbox may have no io_uring, and an old kernel no sends without a copy.
        let is_here = |change: &&str| {
            let by =
                SendBy::ALL.into_iter().find(|by| change.ends_with(&format!("send={}", by.name())));
            by.is_none_or(|by| by.check().is_ok())
        };
        let wanted: Vec<&str> = wanted.into_iter().filter(is_here).collect();
        assert_eq!(texts(&found), wanted);
        // Twice the threads: half of the decoder's time, then all four CPUs' 1.9 s of work in 4 s
        // are next.
        let predicted = found[0].predicted.unwrap();
        assert!((predicted - 2.0).abs() < 1e-9, "{predicted}");
        let obstacles = found.iter().filter(|change| change.obstacle.is_some());
        let obstacles: Vec<&str> = obstacles.map(|change| change.text.as_str()).collect();
        assert_eq!(obstacles, ["--set pages=huge", "--set stage.2.congestion=vegas"]);
        let reason = found.iter().find_map(|change| change.obstacle.as_ref());
        assert!(reason.unwrap().starts_with("needs root: 0 B"));
    }

    #[test]
    fn a_copy_gets_other_stores_and_what_the_path_has_already_is_no_change() {
        let path =
            Path::load_with("pattern", &["stage.1.threads=2", "pages=huge"].map(str::to_owned))
                .unwrap();
        let run =
            run(1.0, &[(0, "memory", 300), (1, "copy", 300), (1, "copy", 300), (2, "read", 300)]);
        let (_root, files) = files();
        let found = changes(&path, &run, None, &host(1), &files);
        // All CPUs are the limit: fewer threads. One CPU: nothing to pin.
        assert_eq!(found[0].with.join(";"), "stage.1.threads=2;pages=huge;stage.1.threads=1");
        let all = texts(&found);
        assert!(
            !all.iter().any(|text| text.contains("--pin") || text.contains("pages")),
            "{all:?}"
        );
        if CopyKernel::from_name("avx2-nt").is_some() {
            assert!(all.iter().any(|text| text.ends_with("-nt")), "{all:?}");
        }
    }

    #[test]
    fn a_card_is_looked_at_and_sent_in_other_ways_and_keeps_what_it_has_no_blocks_for() {
        let path = Path::load("felix-readout").unwrap();
        let run = run(2.0, &[(1, "to-host", 900), (3, "receiver", 500)]);
        let (_root, files) = files();
        let found = changes(&path, &run, None, &host(2), &files);
        let wanted = [
            "--pin 1,0",
            "--set source.poll_us=50",
            "--set source.poll_us=200",
            "--set source.completion=interrupt",
            "--set source.mode=zero-copy",
        ];
        assert_eq!(texts(&found), wanted);
    }

    #[test]
    fn other_stores_are_those_of_the_same_vectors() {
        for kernel in CopyKernel::available() {
            let Some(other) = other_stores(kernel) else {
                continue;
            };
            assert_ne!(kernel.name().ends_with("-nt"), other.name().ends_with("-nt"));
            if kernel != CopyKernel::Memcpy && kernel != CopyKernel::RepMovsb {
                assert_eq!(other_stores(other), Some(kernel));
            }
        }
    }

    /// Makes a path that takes longer per byte by `ratio` with a change. The host has 3 % of noise
    /// and slows down all the time.
    fn tried(ratio: f64, seed: u64) -> InTurns {
        let mut random = Random::new(seed);
        let (mut runs, mut pairs) = (0.0, 0);
        let run = |changed: bool| {
            runs += 1.0;
            let ns = if changed { ratio } else { 1.0 };
            Ok::<f64, Infallible>(ns * (1.0 + 0.002 * runs) * (1.0 + 0.03 * random.normal()))
        };
        compare(run, 6, seed, || {
            pairs += 1;
            pairs < 300
        })
        .unwrap()
    }

    #[test]
    fn a_gain_is_found_with_its_size_and_a_change_without_effect_has_none() {
        for seed in 1..20 {
            let faster = tried(0.9, seed);
            assert_eq!(faster.decided, Decided::Faster, "{faster:?}");
            let (low, high) = faster.interval.unwrap();
            assert!(low < 1.0 / 0.9 && 1.0 / 0.9 < high && low > 1.0, "{faster:?}");
            assert_eq!(tried(1.2, seed).decided, Decided::Slower);
            assert!(!matches!(tried(1.0, seed).decided, Decided::Faster | Decided::Slower));
        }
    }

    #[test]
    fn too_few_pairs_decide_nothing_and_have_no_interval() {
        let found = compare(
            |changed| Ok::<f64, Infallible>(if changed { 1.0 } else { 2.0 }),
            1,
            1,
            || false,
        )
        .unwrap();
        assert_eq!((found.decided, found.pairs, found.interval), (Decided::Undecided, 1, None));
        assert!((found.times - 2.0).abs() < 1e-9);
    }

    #[test]
    fn trials_are_in_the_order_of_what_they_gain() {
        let in_turns = |decided, times| {
            Tried::InTurns(InTurns { decided, times, interval: None, pairs: 9, ignored: IGNORED })
        };
        let trial = |(name, found): (&str, Tried)| Trial {
            change: name.to_owned(),
            predicted: None,
            threads_of: None,
            found,
        };
        let all = [
            ("not", Tried::Not("needs root".to_owned())),
            ("slower", in_turns(Decided::Slower, 0.8)),
            ("good", in_turns(Decided::Faster, 1.1)),
            ("same", in_turns(Decided::Same, 1.0)),
            ("best", in_turns(Decided::Faster, 1.4)),
        ];
        let names = ranked(all.map(trial).into()).into_iter().map(|trial| trial.change);
        assert_eq!(names.collect::<Vec<_>>(), ["best", "good", "same", "slower", "not"]);
    }
}
