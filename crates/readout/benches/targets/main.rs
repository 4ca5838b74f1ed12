//! The speed targets: `cargo bench -p daqmeter-readout [-- GROUP... SECONDS]`. Groups are `decode`,
//! `idle`, `rates` and `files`; the default is all.
//!
//! Both sides of each ratio are sampled in turn. The reader, and all single-threaded work, is on
//! the last CPU allowed; the receiver is on the first one. Chains of `rates` run for SECONDS [10].
//! Prints medians; judges nothing and fails nothing, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use daqmeter_copy::MemoryRequest;
use daqmeter_harness::{Request, Session};
use daqmeter_readout::card::ChannelId;
use daqmeter_readout::check::{self, CheckOptions};
use daqmeter_readout::scenario::ReaderCompletion;
use daqmeter_readout::{DecodeRequest, Scenario, recording};
use daqmeter_record::Workload;
use daqmeter_record::written::{Hertz, Nanos};
use daqmeter_stats::median;
use daqmeter_sys::{affinity, clock, cpu_time, wait};

use by_hand::{Done, Placement};

#[path = "../../tests/readout/by_hand.rs"]
#[allow(dead_code, reason = "tests look at more of it")]
mod by_hand;

fn seconds(work: &mut dyn FnMut()) -> f64 {
    let begin = clock::monotonic_ns();
    work();
    (clock::monotonic_ns() - begin) as f64 * 1e-9
}

fn in_turn(rounds: usize, mut sides: [&mut dyn FnMut(); 2]) -> [f64; 2] {
    let mut samples = [Vec::new(), Vec::new()];
    for round in 0..rounds + rounds / 10 + 1 {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            let took = seconds(side);
            if round > rounds / 10 {
                samples.push(took);
            }
        }
    }
    samples.map(|samples| median(&samples).unwrap())
}

fn prepared<R: Request>(workload: &Workload) -> Box<dyn Session> {
    let job = R::of(workload).unwrap().job().unwrap();
    let mut session = job.open().unwrap().remove(0);
    session.prepare().unwrap();
    session.verify().unwrap();
    session
}

fn decode(scenario: &str, bytes: u64) {
    let blocks = Workload::new("decode").with("scenario", scenario).with("bytes", bytes);
    let mut blocks = prepared::<DecodeRequest>(&blocks);
    let read = Workload::new("memory")
        .with("read_bytes", bytes)
        .with("read_lines", 1_u64)
        .with("write_lines", 0_u64);
    let mut memory = prepared::<MemoryRequest>(&read);
    let stages = memory.stages().len();
    blocks.step(0, 1).unwrap();
    let counters = blocks.tally().counters;
    let subchunks =
        counters.iter().find(|counter| counter.name == "subchunks per pass").unwrap().value;
    let best = (0..stages)
        .min_by(|a, b| {
            let mut of = |stage: usize| {
                let took = (0..9).map(|_| seconds(&mut || memory.step(stage, 1).unwrap()));
                median(&took.collect::<Vec<f64>>()).unwrap()
            };
            of(*a).total_cmp(&of(*b))
        })
        .unwrap();
    let [took, limit] =
        in_turn(60, [&mut || blocks.step(0, 1).unwrap(), &mut || memory.step(best, 1).unwrap()]);
    println!(
        "  decode {scenario}, {} MiB: {:.0} M subchunks/s, {:.2} ns each, {:.2} GB/s; memory read {:.2} GB/s; ratio {:.2}",
        bytes >> 20,
        subchunks / took / 1e6,
        took / subchunks * 1e9,
        bytes as f64 / took / 1e9,
        bytes as f64 / limit / 1e9,
        limit / took
    );
}

fn checker(scenario: &str, triggers: u64) {
    let mut file = tempfile::tempfile().unwrap();
    let scenario = Scenario::load(scenario).unwrap();
    let (first, never) = (ChannelId { device: 0, channel: 0 }, AtomicBool::new(false));
    let mut write = |part: &[u8]| std::io::Write::write_all(&mut file, part);
    recording::record(&scenario, first, triggers, &never, &mut write).unwrap();
    let bytes = file.metadata().unwrap().len() as f64;
    for level in [1, 2, 3] {
        let options = CheckOptions { level, ..CheckOptions::default() };
        let (mut checked, mut plain) = (file.try_clone().unwrap(), file.try_clone().unwrap());
        let mut buffer = vec![0; 512 << 10];
        let [took, limit] = in_turn(
            5,
            [
                &mut || {
                    checked.seek(SeekFrom::Start(0)).unwrap();
                    assert!(check::check(&checked, &options).unwrap().is_good());
                },
                &mut || {
                    plain.seek(SeekFrom::Start(0)).unwrap();
                    while plain.read(&mut buffer).unwrap() > 0 {}
                },
            ],
        );
        println!(
            "  check {}, level {level}, {:.1} GB from the page cache: {:.2} GB/s; reading alone {:.2} GB/s (target 2)",
            scenario.name,
            bytes / 1e9,
            bytes / took / 1e9,
            bytes / limit / 1e9
        );
    }
}

fn run(scenario: &Scenario, cpus: (u32, u32), time: Duration) -> Done {
    let placement =
        Placement { reader_cpus: vec![cpus.0], receiver_cpus: vec![cpus.1], receivers: 1 };
    by_hand::run(scenario, &placement, time, None, &AtomicBool::new(false)).unwrap()
}

fn rate(
    name: &str,
    rate_hz: f64,
    change: impl Fn(&mut Scenario),
    cpus: (u32, u32),
    time: Duration,
    target: &str,
) {
    let mut scenario = Scenario::load(name).unwrap();
    scenario.trigger.rate = Hertz(rate_hz);
    // Half of the published ring: it must hold the data of the host's occasional stops.
    scenario.card.ring.0 = 512 << 20;
    change(&mut scenario);
    let done = run(&scenario, cpus, time);
    let report = &done.receivers[0];
    println!(
        "  {name}, page {} KiB, look every {} us: {:.0} kHz for {:.0} s: {:.1} M chunks/s, {:.2} GB/s of pages; lost {}, BUSY {:.3} %, closes {}, \
         ring peak {:.1} MB; reader {:.0} %, receiver {:.0} % of a core; p99 {:.2} ms (target {target})",
        scenario.reader.page.0 >> 10,
        scenario.reader.poll.0 / 1000,
        done.trigger_rate_hz() / 1e3,
        time.as_secs_f64(),
        report.chunks() as f64 / (report.span_ns as f64 * 1e-9) / 1e6,
        report.bytes as f64 / report.span_ns as f64,
        done.lost(),
        done.dead_share() * 100.0,
        done.closes(),
        done.peak_bytes() as f64 / 1e6,
        done.readers[0].cpu * 100.0,
        report.cpu * 100.0,
        report.latency_ns.quantile(0.99) as f64 / 1e6,
    );
}

/// CPU load of a thread that only sleeps for an interval.
fn bare_sleep(poll_ns: u64, time: Duration) -> f64 {
    wait::without_timer_slack();
    let used = || {
        let usage = cpu_time::of_thread();
        (usage.user_ns + usage.system_ns) as f64
    };
    let (begin, before) = (clock::monotonic_ns(), used());
    let end = begin + u64::try_from(time.as_nanos()).unwrap();
    let mut now = begin;
    while now < end {
        wait::sleep_until(now + poll_ns);
        now = clock::monotonic_ns();
    }
    (used() - before) / (now - begin) as f64
}

fn idle(cpus: (u32, u32)) {
    // The time is long against the one-time cost of a subscriber's pages.
    let time = Duration::from_secs(15);
    let reader = |poll: Nanos, completion: ReaderCompletion| {
        let mut scenario = Scenario::load("gbt").unwrap();
        scenario.trigger.rate = Hertz(0.1);
        (scenario.reader.poll, scenario.reader.completion) = (poll, completion);
        run(&scenario, cpus, time).readers[0].cpu * 100.0
    };
    for (poll, target) in [(Nanos(100_000), "2 %"), (Nanos(1_000_000), "0.3 %")] {
        let (ours, bare) = (reader(poll, ReaderCompletion::Poll), bare_sleep(poll.0, time) * 100.0);
        println!(
            "  idle reader, polling every {} us: {ours:.2} % of a core; a thread that only sleeps {bare:.2} % (target {target})",
            poll.0 / 1000
        );
    }
    println!(
        "  idle reader, interrupt: {:.2} % of a core (target 0.2 %)",
        reader(Nanos(0), ReaderCompletion::Interrupt)
    );
}

fn rates(cpus: (u32, u32), time: Duration) {
    // A look at the ring every millisecond: waking up costs 20 us on a virtual machine.
    let slow_poll = |scenario: &mut Scenario| scenario.reader.poll = Nanos(1_000_000);
    rate("gbt", 2.0e6, slow_poll, cpus, time, "2000 kHz, lost 0, BUSY 0");
    // 1.09 kB of blocks per trigger.
    rate("full", 2.8e6, slow_poll, cpus, time, "3 GB/s");
}

fn files(cpu: u32) {
    // Two threads: the one that reads ahead may be anywhere.
    affinity::unpin();
    checker("gbt", 3_000_000);
    checker("full", 2_000_000);
    affinity::pin_to(cpu).unwrap();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let time = words.iter().find_map(|word| word.parse().ok()).unwrap_or(10);
    let time = Duration::from_secs(time);
    let is_group = |word: &&String| !word.starts_with('-') && word.parse::<u64>().is_err();
    let named: Vec<&String> = words.iter().filter(is_group).collect();
    let is_wanted = |group: &str| named.is_empty() || named.iter().any(|name| *name == group);
    let allowed = affinity::allowed_cpus().unwrap();
    let cpus = (*allowed.last().unwrap(), allowed[0]);
    affinity::pin_to(cpus.0).unwrap();
    println!("reader on CPU {}, receiver on CPU {}", cpus.0, cpus.1);
    let group = |name: &str, work: &mut dyn FnMut()| {
        if is_wanted(name) {
            println!("{name}");
            work();
        }
    };
    group("decode", &mut || {
        decode("gbt", 256 << 10);
        decode("gbt", 64 << 20);
        decode("full", 64 << 20);
        decode("full", 512 << 20);
    });
    group("idle", &mut || idle(cpus));
    group("rates", &mut || rates(cpus, time));
    group("files", &mut || files(cpus.0));
}
