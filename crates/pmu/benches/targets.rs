//! Speed targets: `cargo bench -p daqmeter-pmu`. Figures of whole processes (list, an hour of
//! counting, the live heat map) are in `bench/record/`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use daqmeter_pmu::event::EventResolver;
use daqmeter_pmu::source::KernelOpener;
use daqmeter_pmu::{Count, Selection};
use daqmeter_stats::median;
use daqmeter_sys::counters::{Attributes, CounterGroup};
use daqmeter_sys::host::Files;
use daqmeter_sys::perf::Reading;
use daqmeter_sys::{affinity, clock, cpu_time};

fn ns_of(times: u32, mut work: impl FnMut()) -> f64 {
    let begin = clock::monotonic_ns();
    (0..times).for_each(|_| work());
    (clock::monotonic_ns() - begin) as f64 / f64::from(times)
}

fn group(cpu: u32) {
    const SOFTWARE: u32 = 1;
    let events: Vec<Attributes> = [0, 1, 2, 3, 4, 5, 6, 7]
        .map(|config| Attributes { kind: SOFTWARE, config, ..Attributes::default() })
        .into();
    let mut group = match CounterGroup::open(&events, cpu) {
        Ok(group) => group,
        Err(refused) => return println!("group of 8: not measured: {}", refused.error),
    };
    let mut readings = [Reading::default(); 8];
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        ours.push(ns_of(2000, || group.read(&mut readings)));
        bare.push(ns_of(2000, || {
            std::hint::black_box(group.read_bare());
        }));
    }
    let (ours, bare) = (median(&ours).unwrap(), median(&bare).unwrap());
    println!(
        "read of a group of 8: {ours:.0} ns, bare system call {bare:.0} ns; ratio {:.3} (target 1.2)",
        ours / bare
    );
}

fn intervals() {
    let files = Files::default();
    let texts = [
        "cpu-clock,page-faults,context-switches,cpu-migrations",
        "disk.read_bytes,disk.write_bytes,net.rx_bytes,net.tx_bytes",
    ];
    let host = EventResolver { pmus: &[], files: &files };
    let set = host.resolve(&texts.map(str::to_owned)).unwrap();
    let selection = Selection { set, ..Selection::default() };
    let mut count = match Count::open(&selection, &mut KernelOpener { files: files.clone() }) {
        Ok(count) => count,
        Err(refused) => return println!("8 events: not measured: {refused}"),
    };
    count.begin(0);
    let before = cpu_time::of_thread();
    let intervals = 3000_u32;
    (0..intervals).for_each(|_| count.interval());
    let after = cpu_time::of_thread();
    let spent = (after.user_ns + after.system_ns - before.user_ns - before.system_ns) as f64
        / f64::from(intervals);
    println!(
        "8 events, half from files: {:.1} us of CPU an interval, {:.5} % of a core at 1 Hz (target 1 %)",
        spent / 1e3,
        spent / 1e7
    );
}

fn main() {
    let cpu = affinity::allowed_cpus().unwrap().into_iter().next_back().unwrap();
    affinity::pin_to(cpu).unwrap();
    println!("on CPU {cpu}, one thread");
    group(cpu);
    intervals();
}
