//! Speed targets: `cargo bench -p daqmeter-pmu`. Figures of whole processes (list, an hour of
//! counting, the live heat map) are in `bench/record/`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::event::{EventResolver, PmuEvent};
use daqmeter_pmu::mesh::topology::shipped;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_pmu::source::KernelOpener;
use daqmeter_pmu::{Count, Selection};
use daqmeter_sys::counters::{Attributes, CounterGroup};
use daqmeter_sys::host::Files;
use daqmeter_sys::perf::Reading;
use daqmeter_sys::{affinity, clock, cpu_time};

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

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
    let (ours, bare) = (median(ours), median(bare));
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
    for (name, texts) in
        [("8 events, half from files", &texts[..]), ("4 software events", &texts[..1])]
    {
        let host = EventResolver { pmus: &[], files: &files };
        let set =
            host.resolve(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap();
        let selection = Selection { set, ..Selection::default() };
        let mut count = match Count::open(&selection, &mut KernelOpener { files: files.clone() }) {
            Ok(count) => count,
            Err(refused) => return println!("{name}: not measured: {refused}"),
        };
        count.begin(0);
        let before = cpu_time::of_thread();
        let intervals = 3000_u32;
        (0..intervals).for_each(|_| count.interval());
        let after = cpu_time::of_thread();
        let spent = (after.user_ns + after.system_ns - before.user_ns - before.system_ns) as f64
            / f64::from(intervals);
        println!(
            "{name}: {:.1} us of CPU an interval, {:.5} % of a core at 1 Hz (target 1 %)",
            spent / 1e3,
            spent / 1e7
        );
    }
}

fn plans() {
    for name in ["n1sdp", "cmn700"] {
        let mut mesh = shipped(name).unwrap();
        mesh.name = "arm_cmn_0".to_owned();
        let pmus = [catalogue(&mesh)];
        let nodes: Vec<u16> =
            mesh.nodes.iter().filter(|node| node.kind == "HN-F").map(|node| node.node_id).collect();
        let aliases: Vec<&str> = pmus[0]
            .events
            .iter()
            .filter(|alias| alias.name.starts_with("hnf_") && alias.term("occupid").is_none())
            .map(|alias| alias.name.as_str())
            .collect();
        let text = |at: usize| {
            let (alias, node) = (aliases[at % aliases.len()], nodes[at / 3 % nodes.len()]);
            format!("arm_cmn_0/{alias},bynodeid=1,nodeid={node:#x}/")
        };
        let texts: Vec<String> = (0..64).map(text).collect();
        let set = EventResolver { pmus: &pmus, files: &Files::default() }.resolve(&texts).unwrap();
        let groups: Vec<Vec<PmuEvent>> = set.groups;
        let samples = (0..31)
            .map(|_| ns_of(1, || drop(plan(&mesh, Driver::Mainline, &groups).unwrap())))
            .collect();
        let found = plan(&mesh, Driver::Mainline, &groups).unwrap();
        let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "plan of 64 events on {name}: {:.2} ms (target 10); smallest share {:.3}, in the better order {:.3}",
            median(samples) / 1e6,
            least(&found.shares),
            found.better.map_or(least(&found.shares), |(_, shares)| least(&shares))
        );
    }
}

fn main() {
    let cpu = affinity::allowed_cpus().unwrap().into_iter().next_back().unwrap();
    affinity::pin_to(cpu).unwrap();
    println!("on CPU {cpu}, one thread");
    group(cpu);
    intervals();
    plans();
}
