//! What is checked on the machines. Everything that is counted was put there by us, to the last one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use daqmeter_pmu::emulated::{Happening, catalogue};
use daqmeter_pmu::event::Host;
use daqmeter_pmu::mesh::topology::shipped;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;

use super::Guest;
use super::machine::Machine;
use crate::shell::root;
use crate::vm::kernels::Kernel;

/// One machine and what is done on it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) series: &'static [&'static str],
    meshes: &'static [&'static str],
    cpus: u32,
    /// File of the events that the driver shows here, and the kernel that it was recorded on.
    events: Option<(&'static str, &'static str)>,
    run: fn(&mut Bench) -> Result<()>,
}

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "N1SDP: the document, exactness, planner, closed loop",
        series: &["6.1", "6.12"],
        meshes: &["n1sdp"],
        cpus: 2,
        events: Some(("cmn600.txt", "6.1")),
        run: n1sdp,
    },
    Case {
        name: "CMN-650",
        series: &["6.1"],
        meshes: &["cmn650"],
        cpus: 1,
        events: Some(("cmn650.txt", "6.1")),
        run: one_of_each,
    },
    Case {
        name: "CMN-700: two controllers, several monitors",
        series: &["6.1", "6.12"],
        meshes: &["cmn700"],
        cpus: 1,
        events: Some(("cmn700.txt", "6.1")),
        run: two_controllers,
    },
    Case {
        name: "S3",
        series: &["6.12"],
        meshes: &["s3"],
        cpus: 1,
        events: Some(("s3.txt", "6.12")),
        run: one_of_each,
    },
    Case {
        name: "two meshes",
        series: &["6.1", "6.12"],
        meshes: &["n1sdp", "n1sdp"],
        cpus: 1,
        events: None,
        run: two_meshes,
    },
];

/// A machine with the meshes that it was made of.
struct Bench {
    machine: Machine,
    meshes: Vec<Mesh>,
    series: String,
}

pub(crate) fn run(case: &Case, kernel: &Kernel, guest: &Guest, record: bool) -> Result<()> {
    let meshes: Result<Vec<Mesh>> = case
        .meshes
        .iter()
        .map(|name| shipped(name).with_context(|| format!("no mesh {name}")))
        .collect();
    let meshes = meshes?;
    let name = format!("{}-{}-{}", kernel.series, case.meshes[0], case.meshes.len());
    let machine = Machine::boot(&name, kernel, guest, &meshes, case.cpus)?;
    println!("booted in {:.1} s", machine.boot_s);
    let mut bench = Bench {
        machine,
        meshes,
        series: kernel.series.clone(),
    };
    bench
        .machine
        .guest("test -d /sys/bus/event_source/devices/arm_cmn_0 || { dmesg | tail -15; false; }")?;
    if let Some((file, _)) = case.events.filter(|(_, series)| *series == kernel.series) {
        bench.events(file, record)?;
    }
    if record {
        // The lists are part of the program: cases that use them are for the next build.
        return bench.machine.end();
    }
    bench.map()?;
    (case.run)(&mut bench)?;
    let said = bench
        .machine
        .guest("dmesg -r | grep -E '^<[0-3]>|WARNING|BUG' | grep -v -i -E 'timer|efi|psci|rtc' | head -5; true")?;
    ensure!(
        !said.contains("WARNING") && !said.contains("BUG"),
        "the kernel complained:\n{said}"
    );
    bench.machine.end()
}

/// A number that looks random (SplitMix64), so that runs repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
}

/// What is counted in a step: event as after `-e`, and the happenings that it adds up.
struct Counted {
    text: String,
    of: Vec<(u16, u16, u64)>,
}

fn counted(text: &str, of: &[(u16, u16, u64)]) -> Counted {
    Counted {
        text: text.to_owned(),
        of: of.to_vec(),
    }
}

impl Bench {
    /// The events that the driver shows, against those that ship.
    fn events(&mut self, file: &str, record: bool) -> Result<()> {
        let said = self.machine.guest(
            "cd /sys/bus/event_source/devices/arm_cmn_0/events && for name in *; do echo $name $(cat $name); done; cd /",
        )?;
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        let text = format!("{}\n", lines.join("\n"));
        let path = root().join("crates/pmu/src/emulated/events").join(file);
        println!("{} events in sysfs", lines.len());
        if record {
            std::fs::write(path, text)?;
            let map = self.machine.guest("cat /sys/kernel/debug/arm-cmn/map")?;
            let maps = root().join("crates/pmu/testdata/maps");
            std::fs::create_dir_all(&maps)?;
            return Ok(std::fs::write(maps.join(file), map)?);
        }
        let known = std::fs::read_to_string(&path)?;
        ensure!(
            known == text,
            "{file} is not what the driver shows: cargo xtask pmu-vm --record"
        );
        Ok(())
    }

    /// The driver's own map, as our tool reads it: every node that has registers is found in its place.
    fn map(&mut self) -> Result<()> {
        let said = self.machine.guest("daqmeter pmu map --format json")?;
        for (line, mesh) in said.lines().zip(&self.meshes) {
            let found: Mesh = serde_json::from_str(line).with_context(|| line.to_owned())?;
            ensure!(
                (found.width, found.height) == (mesh.width, mesh.height),
                "{} x {}",
                found.width,
                found.height
            );
            for (seen, made) in found.crosspoints.iter().zip(&mesh.crosspoints) {
                ensure!(
                    (seen.x, seen.y, seen.node_id, seen.logical_id)
                        == (made.x, made.y, made.node_id, made.logical_id),
                    "{seen:?} is not {made:?}"
                );
                // The map has names for fewer devices than exist: later ones are shown as unknown.
                let differs = |(port, name): (usize, &String)| {
                    seen.ports
                        .get(port)
                        .is_none_or(|found| found != name && !found.contains('?'))
                };
                let wrong = made
                    .ports
                    .iter()
                    .enumerate()
                    .find(|(port, name)| !name.is_empty() && differs((*port, name)));
                ensure!(
                    wrong.is_none(),
                    "ports {:?} instead of {:?}",
                    seen.ports,
                    made.ports
                );
            }
            let is_plain = mesh.crosspoints.iter().all(|xp| xp.ports.len() <= 2);
            for node in mesh
                .nodes
                .iter()
                .filter(|node| ["HN-F", "RN-D", "SBSX", "DTC"].contains(&node.kind.as_str()))
            {
                // The driver prints false numbers for meshes that mix crosspoints of two and of more ports.
                let is_there = found
                    .nodes
                    .iter()
                    .any(|other| other.kind == node.kind && other.node_id == node.node_id);
                ensure!(
                    is_there || !is_plain,
                    "{} {:#x} is not on the map",
                    node.kind,
                    node.node_id
                );
            }
        }
        ensure!(
            said.lines().count() == self.meshes.len(),
            "{} maps",
            said.lines().count()
        );
        Ok(())
    }

    /// Counts by steps: at each, something happens to each event, and the tool must have counted it exactly.
    fn exact(&mut self, events: &[Counted], steps: u64, seed: u64, most: u64) -> Result<()> {
        let list: Vec<String> = events
            .iter()
            .map(|event| format!("-e '{}'", event.text))
            .collect();
        self.machine.send(&format!(
            "daqmeter pmu stat --step --format csv {} 2>/tmp/said",
            list.join(" ")
        ))?;
        // The first answer tells that everything is open.
        self.step(events.len())?;
        let mut random = Random(seed);
        let began = Instant::now();
        let mut sum = 0_u128;
        for step in 0..steps {
            let mut expected = vec![0_u64; events.len()];
            let mut happenings = Vec::new();
            for event in events {
                for (type_code, node_id, event_id) in &event.of {
                    // From 1 to most, on a scale on which small and large ones are alike.
                    let bits = random.next() % (64 - u64::from(most.leading_zeros()));
                    let count = (random.next() % (1 << bits) + (1 << bits)).min(most);
                    happenings.push(Happening {
                        type_code: *type_code,
                        node_id: *node_id,
                        event_id: *event_id,
                        count,
                    });
                    for (other, wanted) in events.iter().zip(&mut expected) {
                        if other.of.contains(&(*type_code, *node_id, *event_id)) {
                            *wanted += count;
                        }
                    }
                    sum += u128::from(count);
                }
            }
            self.machine.frozen(|meshes, _| {
                Ok(happenings
                    .iter()
                    .flat_map(|what| meshes[0].happen(*what))
                    .map(|wrap| (0, wrap))
                    .collect())
            })?;
            let found = self.step(events.len())?;
            ensure!(
                found == expected,
                "step {step}: counted {found:?} instead of {expected:?}"
            );
        }
        self.machine.end_of_input()?;
        let (status, said) = self.machine.finish()?;
        ensure!(status == 0, "stat ended with {status}: {said}");
        println!(
            "exact: {steps} steps, {} events, {sum} in all, {:.1} s",
            events.len(),
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// One interval of a program that waits for lines: the counts of its rows.
    fn step(&mut self, rows: usize) -> Result<Vec<u64>> {
        self.machine.send("")?;
        let mut counts = Vec::new();
        while counts.len() < rows {
            let line = self.machine.line()?;
            if let Some(status) = line.strip_prefix("GUEST status") {
                bail!(
                    "the tool ended with{status}: {}",
                    self.machine.guest("cat /tmp/said")?
                );
            }
            let value = line
                .split(';')
                .nth(1)
                .with_context(|| format!("no row: `{line}`"))?;
            counts.push(
                value
                    .parse()
                    .with_context(|| format!("no count: `{line}`"))?,
            );
        }
        Ok(counts)
    }

    /// Counts with perf and with our tool at the same time; both must have what happened.
    fn both(&mut self, events: &[Counted], seed: u64) -> Result<()> {
        let list: Vec<String> = events
            .iter()
            .map(|event| format!("-e '{}'", event.text))
            .collect();
        let list = list.join(" ");
        self.machine.guest("rm -f /tmp/go; mkfifo /tmp/go")?;
        self.machine.guest(&format!(
            "perf stat -x';' -o /tmp/perf {list} -- cat /tmp/go & sleep 1"
        ))?;
        self.machine.send(&format!(
            "daqmeter pmu stat --step --format csv {list} 2>/tmp/said"
        ))?;
        self.step(events.len())?;
        let mut random = Random(seed);
        let mut expected = vec![0_u64; events.len()];
        let mut ours = vec![0_u64; events.len()];
        for _ in 0..20 {
            for (at, event) in events.iter().enumerate() {
                for (type_code, node_id, event_id) in &event.of {
                    let count = random.next() % 3_000_000_000 + 1;
                    expected[at] += count;
                    let what = Happening {
                        type_code: *type_code,
                        node_id: *node_id,
                        event_id: *event_id,
                        count,
                    };
                    self.machine.happen(0, what)?;
                }
            }
            let step = self.step(events.len())?;
            ours.iter_mut()
                .zip(step)
                .for_each(|(sum, count)| *sum += count);
        }
        self.machine.end_of_input()?;
        self.machine.finish()?;
        let said = self.machine.guest("echo > /tmp/go; wait; cat /tmp/perf")?;
        let perfs = perf_values(&said)?;
        ensure!(
            ours == expected,
            "the tool counted {ours:?} instead of {expected:?}"
        );
        ensure!(
            perfs == expected,
            "perf counted {perfs:?} instead of {expected:?}"
        );
        println!(
            "perf and daqmeter agree to the count: {} events, {} in all",
            events.len(),
            expected.iter().sum::<u64>()
        );
        Ok(())
    }

    /// Shares that the planner predicts, against perf's and our own, with the events in this order.
    ///
    /// On a busy host the guest's clock ticks while the events are still being opened, and they then take turns in another order: a
    /// prediction that is wrong is wrong each time, so three measurements are made before it is called so.
    fn planned(&mut self, groups: &[&str], tolerance: f64) -> Result<()> {
        const TRIES: u32 = 3;
        for attempt in 1..TRIES {
            match self.planned_once(groups, tolerance) {
                Ok(()) => return Ok(()),
                Err(error) => println!("try {attempt} of {TRIES} did not pass: {error:#}"),
            }
        }
        self.planned_once(groups, tolerance)
    }

    fn planned_once(&mut self, groups: &[&str], tolerance: f64) -> Result<()> {
        let mut mesh = self.meshes[0].clone();
        mesh.name = "arm_cmn_0".to_owned();
        let pmus = [catalogue(&mesh)];
        let texts: Vec<String> = groups.iter().map(|text| (*text).to_owned()).collect();
        let set = Host {
            pmus: &pmus,
            files: &Files::below("/nonexistent"),
        }
        .resolve(&texts)?;
        let sizes: Vec<usize> = set.groups.iter().map(Vec::len).collect();
        let shares = plan(&mesh, Driver::Mainline, &set.groups)?.shares;
        let predicted: Vec<f64> = shares
            .iter()
            .zip(&sizes)
            .flat_map(|(share, size)| std::iter::repeat_n(*share, *size))
            .collect();
        let list: Vec<String> = groups.iter().map(|text| format!("-e '{text}'")).collect();
        let list = list.join(" ");
        // The text has the share with decimals, where there is one.
        let said = self.machine.guest(&format!(
            "perf stat -o /tmp/perf {list} sleep 3; cat /tmp/perf"
        ))?;
        let perfs: Vec<f64> = said
            .lines()
            .filter(|line| line.contains("arm_cmn"))
            .map(share_of)
            .collect();
        let said = self.machine.guest(&format!(
            "daqmeter pmu stat {list} -I 3s --count 1 --json 2>/dev/null"
        ))?;
        let record: serde_json::Value =
            serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        let number = |value: &serde_json::Value| value[0].as_u64().unwrap_or(0) as f64;
        let ours: Vec<f64> = record["observed"]["events"]
            .as_array()
            .context("no events")?
            .iter()
            .map(|event| number(&event["running_ns"]) / number(&event["enabled_ns"]).max(1.0))
            .collect();
        let shown = |shares: &[f64]| {
            shares
                .iter()
                .map(|share| format!("{:.0}", share * 100.0))
                .collect::<Vec<_>>()
                .join(" ")
        };
        println!(
            "shares [%]: planned {}; perf {}; daqmeter {}",
            shown(&predicted),
            shown(&perfs),
            shown(&ours)
        );
        for (name, found) in [("perf", &perfs), ("daqmeter", &ours)] {
            ensure!(
                found.len() == predicted.len(),
                "{name} has {} rows: {said}",
                found.len()
            );
            let off = found
                .iter()
                .zip(&predicted)
                .map(|(found, planned)| (found - planned).abs())
                .fold(0.0, f64::max);
            ensure!(
                off < tolerance,
                "{name} is off by {:.1} points",
                off * 100.0
            );
        }
        Ok(())
    }

    /// A command that must be refused, with that in its line.
    fn refused(&mut self, arguments: &str, part: &str) -> Result<()> {
        let (status, said) = self
            .machine
            .tell(&format!("daqmeter pmu {arguments} 2>&1"))?;
        ensure!(
            status == 2,
            "`{arguments}` ended with {status} instead of 2:\n{said}"
        );
        ensure!(
            said.contains(part),
            "`{arguments}` said instead of `{part}`:\n{said}"
        );
        Ok(())
    }
}

fn share_of(line: &str) -> f64 {
    let percent = line
        .rsplit_once('(')
        .and_then(|(_, tail)| tail.trim().strip_suffix("%)")?.trim().parse::<f64>().ok());
    if line.contains("<not") {
        0.0
    } else {
        percent.map_or(1.0, |percent| percent / 100.0)
    }
}

/// Values of perf's `-x;` lines.
fn perf_values(text: &str) -> Result<Vec<u64>> {
    let rows = text.lines().filter(|line| line.contains("arm_cmn"));
    rows.map(|line| {
        line.split(';')
            .next()
            .unwrap_or("")
            .trim()
            .parse()
            .with_context(|| line.to_owned())
    })
    .collect()
}

const HNF: u16 = 0x5;
const RNI: u16 = 0xa;
const SLICES: [u16; 4] = [0x24, 0x28, 0x44, 0x48];

fn n1sdp(bench: &mut Bench) -> Result<()> {
    driver_is_there(bench)?;
    document(bench)?;
    trap(bench)?;
    exactness(bench)?;
    planner(bench)?;
    closed_loop(bench)?;
    tracepoints(bench)?;
    hotplug(bench)?;
    bad_input(bench)
}

/// C1, C2, C3, C10: the driver is loaded and shows its events, whatever perf calls them.
fn driver_is_there(bench: &mut Bench) -> Result<()> {
    let said = bench
        .machine
        .guest("daqmeter pmu list --events arm_cmn_0/hnf_")?;
    for name in [
        "brd_snoops_sent",
        "cache_fill",
        "cache_miss",
        "cmp_adq_full",
        "dir_snoops_sent",
        "intv_dirty",
        "ld_st_swp_adq_full",
        "mc_reqs",
        "mc_retries",
    ] {
        ensure!(
            said.contains(&format!("arm_cmn_0/hnf_{name}/")),
            "C1: no hnf_{name}:\n{said}"
        );
    }
    let said = bench
        .machine
        .guest("daqmeter pmu list --events arm_cmn_0/dn_")?;
    for name in [
        "dvmop",
        "dvmop_vmid_filtered",
        "dvmsync",
        "retried",
        "trk_occupancy_all",
        "trk_occupancy_dvmop",
    ] {
        ensure!(
            said.contains(&format!("arm_cmn_0/dn_rxreq_{name}/")),
            "C2: no dn_rxreq_{name}:\n{said}"
        );
    }
    let said = bench
        .machine
        .guest("ls /sys/bus/event_source/devices/arm_cmn_0/; daqmeter pmu list arm_cmn")?;
    for name in [
        "cpumask",
        "events",
        "format",
        "perf_event_mux_interval_ms",
        "subsystem",
        "type",
        "uevent",
    ] {
        ensure!(said.contains(name), "C3: no {name}:\n{said}");
    }
    let registers = said.contains("0x50000000");
    ensure!(
        registers || bench.series == "6.1",
        "from 6.12 on sysfs tells the address:\n{said}"
    );
    let said = bench.machine.guest("daqmeter doctor")?;
    ensure!(
        said.lines()
            .any(|line| line.contains("interconnect counters") && line.contains("arm_cmn_0")),
        "C10: {said}"
    );
    let said = bench.machine.guest("daqmeter pmu map")?;
    for part in [
        "0x24 0x28 0x44 0x48",
        "XP 0x68",
        "p1 RN-D 0x0c",
        "p1 SBSX 0x64",
    ] {
        ensure!(said.contains(part), "the map lacks `{part}`:\n{said}");
    }
    println!("C1, C2, C3, C10: the driver shows what the document shows");
    Ok(())
}

/// C4 to C7, with perf beside us, and the documents' formulas on what was counted.
fn document(bench: &mut Bench) -> Result<()> {
    let mc = |event: &str, id: u64, node: u16| {
        counted(
            &format!("arm_cmn_0/{event},nodeid={node:#x},bynodeid=1/"),
            &[(HNF, node, id)],
        )
    };
    // The machine has 8 counters in its controller; two programs share them.
    bench.both(&[mc("hnf_mc_reqs", 0xd, 0x24)], 4)?;
    bench.both(&SLICES.map(|node| mc("hnf_mc_reqs", 0xd, node)), 5)?;
    let eight: Vec<Counted> = SLICES
        .iter()
        .map(|node| mc("hnf_mc_reqs", 0xd, *node))
        .chain(SLICES.iter().map(|node| mc("hnf_mc_retries", 0xc, *node)))
        .collect();
    bench.exact(&eight, 20, 6, 3_000_000_000)?;
    let beats = ["rnid_s0_rdata_beats", "rnid_s0_wdata_beats"];
    let beats: Vec<Counted> = beats
        .iter()
        .zip([1, 0xc])
        .map(|(name, id)| {
            counted(
                &format!("arm_cmn_0/{name},nodeid=0xc,bynodeid=1/"),
                &[(RNI, 0xc, id)],
            )
        })
        .collect();
    bench.both(&beats, 7)?;
    println!("C4, C5, C6, C7: counted exactly, by perf too");
    formulas(bench)
}

/// F1, F2, F3 through the groups: the published counts of an interval become the published rates.
fn formulas(bench: &mut Bench) -> Result<()> {
    for (group, happenings, metric, expected) in [
        (
            "memory",
            vec![
                (HNF, 0x24, 0xd, 121_713_206),
                (HNF, 0x28, 0xd, 121_715_680),
                (HNF, 0x44, 0xd, 121_712_781),
                (HNF, 0x48, 0xd, 121_715_432),
            ],
            "memory",
            31_158_854_336.0,
        ),
        (
            "pcie",
            vec![(RNI, 0xc, 0xc, 84_743_908)],
            "in: from devices to memory",
            2_711_805_056.0,
        ),
        (
            "pcie",
            vec![(RNI, 0xc, 1, 308_994)],
            "out: from memory to devices",
            9_887_808.0,
        ),
    ] {
        bench.machine.send(&format!(
            "daqmeter pmu stat --step --json --group {group} 2>&1"
        ))?;
        bench.machine.until("counting: ")?;
        for (type_code, node_id, event_id, count) in happenings {
            bench.machine.happen(
                0,
                Happening {
                    type_code,
                    node_id,
                    event_id,
                    count,
                },
            )?;
        }
        bench.machine.send("")?;
        bench.machine.end_of_input()?;
        let (status, said) = bench.machine.finish()?;
        ensure!(status == 0, "{said}");
        let line = said
            .lines()
            .find(|line| line.starts_with('{'))
            .with_context(|| said.clone())?;
        let record: serde_json::Value = serde_json::from_str(line).with_context(|| said.clone())?;
        let observed = &record["observed"];
        let found = observed["metrics"]
            .as_array()
            .context("no metrics")?
            .iter()
            .find(|found| found["name"] == metric);
        let rate = found
            .and_then(|found| found["values"][0].as_f64())
            .with_context(|| format!("{group}: {observed}"))?;
        // The rate is per second of the counters' own time.
        let events = observed["events"].as_array().context("no events")?;
        let event = events
            .iter()
            .find(|event| event["count"][0].as_u64().unwrap_or(0) > 0)
            .context("nothing counted")?;
        let seconds = event["enabled_ns"][0].as_f64().unwrap_or(0.0) * 1e-9;
        let off = rate * seconds / expected - 1.0;
        ensure!(
            off.abs() < 1e-9,
            "{group}, {metric}: {} bytes instead of {expected}",
            rate * seconds
        );
    }
    println!("F1, F2, F3: the published counts give the published bytes");
    Ok(())
}

/// `nodeid` without `bynodeid`: perf adds up all nodes without a word; we count the one and say so.
fn trap(bench: &mut Bench) -> Result<()> {
    let event = "arm_cmn_0/hnf_mc_reqs,nodeid=0x24/";
    bench.machine.guest("rm -f /tmp/go; mkfifo /tmp/go")?;
    bench.machine.guest(&format!(
        "perf stat -x';' -o /tmp/perf -e {event} -- cat /tmp/go & sleep 1"
    ))?;
    bench.machine.send(&format!(
        "daqmeter pmu stat --step --format csv -e {event} 2>/tmp/said"
    ))?;
    bench.step(1)?;
    for node in SLICES {
        bench.machine.happen(
            0,
            Happening {
                type_code: HNF,
                node_id: node,
                event_id: 0xd,
                count: 1000,
            },
        )?;
    }
    let ours = bench.step(1)?;
    bench.machine.end_of_input()?;
    bench.machine.finish()?;
    let said = bench.machine.guest("cat /tmp/said")?;
    let perfs = perf_values(&bench.machine.guest("echo > /tmp/go; wait; cat /tmp/perf")?)?;
    ensure!(
        (ours.as_slice(), perfs.as_slice()) == (&[1000][..], &[4000][..]),
        "we {ours:?}, perf {perfs:?}"
    );
    ensure!(said.contains("bynodeid=1 was added"), "no warning: {said}");
    println!("nodeid without bynodeid: perf counted 4 nodes, we the one, and said so");
    Ok(())
}

/// A thousand random injections, up to wraps of the 32-bit counters, whose interrupts must come through.
fn exactness(bench: &mut Bench) -> Result<()> {
    let node = |event: &str, id: u64, type_code: u16, node: u16| {
        counted(
            &format!("arm_cmn_0/{event},nodeid={node:#x},bynodeid=1/"),
            &[(type_code, node, id)],
        )
    };
    let mut events = vec![
        node("hnf_mc_reqs", 0xd, HNF, 0x24),
        node("hnf_cache_miss", 1, HNF, 0x48),
        node("rnid_s0_wdata_beats", 0xc, RNI, 0xc),
        node("rnid_txdat_flits", 5, RNI, 0x8),
        node("mxp_p0_dat_txflit_valid", 0x71, 0x6, 0x28),
    ];
    // One event over all nodes of its type: several monitors on one counter of the controller.
    events.push(counted(
        "arm_cmn_0/hnf_mc_retries/",
        &SLICES.map(|node| (HNF, node, 0xc)),
    ));
    bench.exact(&events, 1000, 1, 3_000_000_000)?;
    // Jumps of 2^47 and more wrap the controller's counter: without the interrupt 2^48 would be lost each time.
    bench.exact(&events[..2], 50, 2, 1 << 47)
}

fn planner(bench: &mut Bench) -> Result<()> {
    let rnd = |name: &str| format!("arm_cmn_0/rnid_{name},nodeid=8,bynodeid=1/");
    let hnf = |event: &str, node: &str| format!("arm_cmn_0/hnf_{event},nodeid={node},bynodeid=1/");
    let five = [
        "s0_rdata_beats",
        "s1_rdata_beats",
        "s2_rdata_beats",
        "rxdat_flits",
        "txdat_flits",
    ]
    .map(rnd);
    let three = ["0x24", "0x28", "0x44"].map(|node| hnf("mc_reqs", node));
    let texts = |list: &[String]| list.to_vec();
    let check = |bench: &mut Bench, list: Vec<String>| {
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        bench.planned(&list, 0.04)
    };
    // A5: four fit in mainline, five and six take turns.
    let [a, b, c, d, e] = five.clone();
    check(bench, texts(&five[..4]))?;
    check(bench, texts(&five))?;
    check(bench, [&five[..], &[rnd("txreq_flits_total")]].concat())?;
    check(bench, [&five[..], &three[..]].concat())?;
    let [x, y, z] = three.clone();
    check(
        bench,
        vec![
            a.clone(),
            x.clone(),
            b.clone(),
            c.clone(),
            y.clone(),
            d.clone(),
            z.clone(),
            e.clone(),
        ],
    )?;
    let more = ["0x24", "0x28", "0x44"].map(|node| hnf("cache_miss", node));
    check(
        bench,
        vec![
            format!("{{{a},{b},{c},{d},{x},{y},{z}}}"),
            format!("{{{e},{}}}", more.join(",")),
        ],
    )
}

/// The document's fio step: a device reads a disk, and every byte is a beat of 32 that passes the bridge.
fn closed_loop(bench: &mut Bench) -> Result<()> {
    let before = {
        let mut bytes = 0;
        bench.machine.frozen(|_, qmp| {
            bytes = qmp.bytes_read()?;
            Ok(Vec::new())
        })?;
        bytes
    };
    bench.machine.send(
        "daqmeter pmu verify block --file /dev/vda --time 3s --settle 1s -e arm_cmn_0/rnid_s0_wdata_beats,nodeid=0xc,bynodeid=1/ --bytes-per-event 32 --json 2>/tmp/said; echo GUEST done",
    )?;
    // What the machine reads from its disk becomes beats, as long as the tool runs; the console is read behind it.
    let (mut done, mut pairs) = (before, 0_u32);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        bench.machine.frozen(|meshes, qmp| {
            let now = qmp.bytes_read()?;
            let beats = (now - done) / 32;
            done += beats * 32;
            let what = Happening {
                type_code: RNI,
                node_id: 0xc,
                event_id: 0xc,
                count: beats,
            };
            Ok(if beats > 0 {
                meshes[0].happen(what)
            } else {
                Vec::new()
            }
            .into_iter()
            .map(|wrap| (0, wrap))
            .collect())
        })?;
        pairs += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_, said) = bench.machine.finish()?;
    let line = said.lines().next().unwrap_or("");
    let record: serde_json::Value = serde_json::from_str(line).with_context(|| said.clone())?;
    let counters: BTreeMap<String, f64> = record["counters"]
        .as_array()
        .context("no counters")?
        .iter()
        .map(|counter| {
            (
                counter["name"].as_str().unwrap_or("").to_owned(),
                counter["value"].as_f64().unwrap_or(0.0),
            )
        })
        .collect();
    let beats: Vec<&f64> = counters
        .iter()
        .filter(|(name, _)| name.contains("wdata"))
        .map(|(_, value)| value)
        .collect();
    ensure!(beats.len() >= 2, "{counters:?}");
    ensure!(
        beats
            .iter()
            .all(|bytes| *bytes == beats[0] && **bytes > 0.0),
        "bytes read and beats x 32 differ: {counters:?}"
    );
    ensure!(record["outcome"]["status"] == "ok", "{said}");
    println!(
        "closed loop: {} bytes read = beats x 32, exactly ({pairs} stops of the machine)",
        beats[0]
    );
    Ok(())
}

/// What every host has: a tracepoint counts requests, the disk's own counters requests and bytes, while a command runs.
fn tracepoints(bench: &mut Bench) -> Result<()> {
    let said = bench.machine.guest(
        "daqmeter pmu stat --json -e block:block_rq_complete,disk.vda.reads,disk.vda.read_bytes,page-faults -- dd if=/dev/vda of=/dev/null bs=64k count=32 iflag=direct 2>/dev/null",
    )?;
    let record: serde_json::Value =
        serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let events = record["observed"]["events"]
        .as_array()
        .context("no events")?;
    let totals: Vec<u64> = events
        .iter()
        .map(|event| {
            event["count"].as_array().map_or(0, |counts| {
                counts.iter().filter_map(serde_json::Value::as_u64).sum()
            })
        })
        .collect();
    ensure!(
        totals[..3] == [32, 32, 32 << 16] && totals[3] > 0,
        "{totals:?}"
    );
    println!(
        "tracepoint and disk agree: {} requests, {} bytes",
        totals[0], totals[2]
    );
    Ok(())
}

/// The CPU that counts goes away: the driver moves the counters, and nothing is counted twice.
fn hotplug(bench: &mut Bench) -> Result<()> {
    let event = "arm_cmn_0/hnf_mc_reqs,nodeid=0x24,bynodeid=1/";
    let happen = |bench: &mut Bench, count| {
        bench.machine.happen(
            0,
            Happening {
                type_code: HNF,
                node_id: 0x24,
                event_id: 0xd,
                count,
            },
        )
    };
    bench
        .machine
        .guest("(sleep 3; echo 0 > /sys/devices/system/cpu/cpu0/online) & true")?;
    bench.machine.send(&format!(
        "daqmeter pmu stat --step --format csv -e {event} 2>/tmp/said"
    ))?;
    bench.step(1)?;
    happen(bench, 70_000)?;
    let first = bench.step(1)?;
    std::thread::sleep(Duration::from_secs(8));
    happen(bench, 80_000)?;
    let second = bench.step(1)?;
    happen(bench, 5)?;
    let third = bench.step(1)?;
    bench.machine.end_of_input()?;
    bench.machine.finish()?;
    let mask = bench
        .machine
        .guest("cat /sys/bus/event_source/devices/arm_cmn_0/cpumask")?;
    ensure!(mask.trim() == "1", "the driver counts on CPU {mask}");
    ensure!(
        (first[0], second[0], third[0]) == (70_000, 80_000, 5),
        "{first:?} {second:?} {third:?}"
    );
    bench
        .machine
        .guest("echo 1 > /sys/devices/system/cpu/cpu0/online")?;
    println!("CPU 0 went away while it counted: exact before and after");
    Ok(())
}

fn bad_input(bench: &mut Bench) -> Result<()> {
    let node = |event: &str, node: &str| format!("arm_cmn_0/{event},nodeid={node},bynodeid=1/");
    bench.refused(
        &format!("stat --count 1 -e {}", node("hnf_mc_reqs", "0x99")),
        "no HN-F with NodeID 0x99",
    )?;
    bench.refused(
        &format!("stat --count 1 -e {}", node("hnf_mc_reqs", "0x8")),
        "0x8 is a RN-D",
    )?;
    let five: Vec<String> = [
        "s0_rdata_beats",
        "s1_rdata_beats",
        "s2_rdata_beats",
        "rxdat_flits",
        "txdat_flits",
    ]
    .iter()
    .map(|name| node(&format!("rnid_{name}"), "8"))
    .collect();
    bench.refused(
        &format!("stat --count 1 -e '{{{}}}'", five.join(",")),
        "the counters of the monitor at XP 0x8",
    )?;
    bench.refused(
        "stat --count 1 -e '{arm_cmn_0/dtc_cycles/,arm_cmn_0/dtc_cycles/}'",
        "one cycle counter",
    )?;
    let filters =
        ["read", "write"].map(|kind| node(&format!("hnf_qos_pocq_occupancy_{kind}"), "0x24"));
    bench.refused(
        &format!("stat --count 1 -e '{{{}}}'", filters.join(",")),
        "the one filter of node 0x24",
    )?;
    // Without the map, the driver refuses, and we say what it means.
    bench.machine.guest("umount /sys/kernel/debug")?;
    bench.refused(
        &format!("stat --count 1 -e {}", node("hnf_mc_reqs", "0x99")),
        "no node of this type and NodeID",
    )?;
    bench.refused(
        &format!("stat --count 1 -e '{{{}}}'", five.join(",")),
        "does not fit beside the 4 before it",
    )?;
    bench.refused("map", "debugfs mounted")?;
    bench.machine.guest(
        "mount -t debugfs debug /sys/kernel/debug; echo 3 > /proc/sys/kernel/perf_event_paranoid",
    )?;
    let said = bench.machine.tell(
        "su nobody -c 'PATH=/bin daqmeter pmu stat --count 1 -e arm_cmn_0/hnf_mc_reqs/' 2>&1",
    )?;
    ensure!(
        said.0 == 2 && said.1.contains("perf_event_paranoid is 3; run as root"),
        "{said:?}"
    );
    bench.refused("stat --count 1 -e cycles:k", "is no event")?;
    println!("bad input: refused before anything is opened, with the reason");
    Ok(())
}

/// An event of each kind of node that the mesh has, counted exactly.
fn one_of_each(bench: &mut Bench) -> Result<()> {
    let mesh = bench.meshes[0].clone();
    let pmu = catalogue(&mesh);
    let mut events = Vec::new();
    // 6.1.192 takes counter -1 for an event that is only in the domain of a second controller (`arm_cmn_event_add`: the index of
    // domain 0 is used, which the event is not in): all beyond 16 bits is lost there. 6.12 is right.
    let is_counted = |crosspoint: u32| {
        bench.series != "6.1"
            || mesh
                .crosspoints
                .get(crosspoint as usize)
                .is_some_and(|xp| xp.dtc != Some(1))
    };
    for kind in ["HN-F", "HN-S", "RN-D", "SBSX", "HN-I", "CCRA"] {
        let Some(node) = mesh
            .nodes
            .iter()
            .rfind(|node| node.kind == kind && is_counted(node.crosspoint))
        else {
            continue;
        };
        let code = if node.type_code == 0xd {
            RNI
        } else {
            node.type_code
        };
        // The plainest event of the type: no filter.
        let plain = |alias: &&daqmeter_pmu::sysfs::Alias| {
            alias.term("type") == Some(u64::from(code))
                && alias.term("occupid").is_none()
                && alias.term("eventid").is_some_and(|id| id < 0x100)
        };
        let Some(alias) = pmu.events().iter().find(plain) else {
            continue;
        };
        let id = alias.term("eventid").context("no eventid")?;
        let text = format!(
            "arm_cmn_0/{},nodeid={:#x},bynodeid=1/",
            alias.name, node.node_id
        );
        events.push(counted(&text, &[(code, node.node_id, id)]));
    }
    let xp = mesh
        .crosspoints
        .iter()
        .rfind(|xp| is_counted(u32::from(xp.logical_id)));
    let xp = xp.context("no crosspoints")?.node_id;
    events.push(counted(
        &format!("arm_cmn_0/type=0x6,eventid=0x71,nodeid={xp:#x},bynodeid=1/"),
        &[(0x6, xp, 0x71)],
    ));
    ensure!(events.len() >= 4, "{} kinds only", events.len());
    bench.exact(&events, 50, 3, 3_000_000_000)
}

/// Eight and eight over two domains all count; twelve of one domain take turns.
fn two_controllers(bench: &mut Bench) -> Result<()> {
    one_of_each(bench)?;
    if bench.series == "6.1" {
        println!(
            "6.1's driver miscounts the domain of a second controller: both domains are checked on 6.12"
        );
        return Ok(());
    }
    let mesh = bench.meshes[0].clone();
    let of = |dtc: u8| -> Vec<u16> {
        let nodes = mesh.nodes.iter().filter(|node| node.kind == "HN-F");
        nodes
            .filter(|node| {
                mesh.crosspoint_of(node)
                    .is_some_and(|xp| xp.dtc == Some(dtc))
            })
            .map(|node| node.node_id)
            .collect()
    };
    let event =
        |name: &str, node: u16| format!("arm_cmn_0/hnf_{name},nodeid={node:#x},bynodeid=1/");
    let names = [
        "cache_miss",
        "slc_sf_cache_access",
        "cache_fill",
        "pocq_retry",
    ];
    let eight = |dtc: u8| -> Vec<String> {
        of(dtc)[..2]
            .iter()
            .flat_map(|node| names.map(|name| event(name, *node)))
            .collect()
    };
    let all = [eight(0), eight(1)].concat();
    bench.planned(&all.iter().map(String::as_str).collect::<Vec<_>>(), 0.04)?;
    let counted: Vec<Counted> = [0, 1]
        .into_iter()
        .flat_map(|dtc| {
            of(dtc)[..2]
                .iter()
                .flat_map(|node| (0..4).map(|at| (at, *node)))
                .collect::<Vec<_>>()
        })
        .map(|(at, node)| counted(&event(names[at], node), &[(HNF, node, at as u64 + 1)]))
        .collect();
    bench.exact(&counted, 50, 9, 1 << 47)?;
    let twelve: Vec<String> = of(0)[..3]
        .iter()
        .flat_map(|node| names.map(|name| event(name, *node)))
        .collect();
    bench.planned(&twelve.iter().map(String::as_str).collect::<Vec<_>>(), 0.05)
}

/// Two meshes are two PMUs; the family's name adds them up.
fn two_meshes(bench: &mut Bench) -> Result<()> {
    let texts = [
        "arm_cmn/hnf_mc_reqs/",
        "arm_cmn_0/hnf_mc_reqs/",
        "arm_cmn_1/hnf_mc_reqs/",
    ];
    let list: Vec<String> = texts.iter().map(|text| format!("-e {text}")).collect();
    bench.machine.send(&format!(
        "daqmeter pmu stat --step --format csv {} 2>/tmp/said",
        list.join(" ")
    ))?;
    bench.step(3)?;
    let what = |count| Happening {
        type_code: HNF,
        node_id: 0x24,
        event_id: 0xd,
        count,
    };
    bench.machine.happen(0, what(1_000_000))?;
    bench.machine.happen(1, what(3_000_000_000))?;
    let found = bench.step(3)?;
    bench.machine.end_of_input()?;
    bench.machine.finish()?;
    ensure!(found[0] == 3_001_000_000, "together {found:?}");
    // Which PMU is which mesh depends on the order in which the driver meets them; from 6.12 on sysfs tells the address.
    let mut apart = vec![1_000_000, 3_000_000_000];
    let said = bench.machine.guest("daqmeter pmu list --json arm_cmn_0")?;
    let first: serde_json::Value =
        serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let is_second = match first["base"].as_u64() {
        Some(base) => base != 0x5000_0000,
        None => found[1] > found[2],
    };
    if is_second {
        apart.reverse();
    }
    ensure!(
        found[1..] == apart,
        "apart {found:?}, arm_cmn_0 at {}",
        first["base"]
    );
    println!(
        "two meshes: counted apart and together; arm_cmn_0 is at {}",
        first["base"]
    );
    Ok(())
}
