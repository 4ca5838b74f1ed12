//! The machines, and the checks on machines other than the document's.

use anyhow::{Context, Result, ensure};
use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::mesh::topology::shipped;
use daqmeter_pmu::sysfs::Alias;
use daqmeter_record::Mesh;

use super::bench::{Bench, Counted, HNF, RNI, counted, happening, record};
use super::machine::{Guest, Machine};
use super::n1sdp::n1sdp;
use crate::debian::Kernel;

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) series: &'static [&'static str],
    meshes: &'static [&'static str],
    cpus: u32,
    /// File of the driver's events here, and the kernel that it was recorded on.
    events: Option<(&'static str, &'static str)>,
    run: fn(&mut Bench) -> Result<()>,
}

pub(super) const CASES: &[Case] = &[
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

/// Boots a case's machine and checks everything on it; with `record`, only writes down the driver's
/// events.
pub(super) fn run(case: &Case, kernel: &Kernel, guest: &Guest, record: bool) -> Result<()> {
    let mesh = |name: &&str| shipped(name).with_context(|| format!("no mesh {name}"));
    let meshes: Vec<Mesh> = case.meshes.iter().map(mesh).collect::<Result<_>>()?;
    let name = format!("{}-{}-{}", kernel.series, case.meshes[0], case.meshes.len());
    let machine = Machine::boot(&name, kernel, guest, &meshes, case.cpus)?;
    println!("booted in {:.1} s", machine.boot_s);
    let mut bench = Bench { machine, meshes, series: kernel.series.clone() };
    let there = "test -d /sys/bus/event_source/devices/arm_cmn_0 || { dmesg | tail -15; false; }";
    bench.machine.guest(there)?;
    if let Some((file, _)) = case.events.filter(|(_, series)| *series == kernel.series) {
        bench.events(file, record)?;
    }
    if !record {
        // The lists are part of the program: after recording, cases that use them need a new build.
        bench.map()?;
        (case.run)(&mut bench)?;
        no_complaint(&mut bench)?;
    }
    bench.machine.end()
}

fn no_complaint(bench: &mut Bench) -> Result<()> {
    let printed = bench.machine.guest(
        "dmesg -r | grep -E '^<[0-3]>|WARNING|BUG' | grep -v -i -E 'timer|efi|psci|rtc' | head -5; true",
    )?;
    let complained = printed.contains("WARNING") || printed.contains("BUG");
    ensure!(!complained, "the kernel complained:\n{printed}");
    Ok(())
}

/// Counts an event of each kind of node in the mesh exactly.
fn one_of_each(bench: &mut Bench) -> Result<()> {
    let mesh = &bench.meshes[0];
    let pmu = catalogue(mesh);
    // Linux 6.1.192 takes counter -1 for an event that is only in the domain of a second
    // controller. `arm_cmn_event_add` uses the index of domain 0, which the event is not in. All
    // beyond 16 bits is lost there. Linux 6.12 is right.
    let is_counted = |crosspoint: u32| {
        let crosspoint = mesh.crosspoints.get(crosspoint as usize);
        bench.series != "6.1" || crosspoint.is_some_and(|xp| xp.dtc != Some(1))
    };
    let mut events = Vec::new();
    for kind in ["HN-F", "HN-S", "RN-D", "SBSX", "HN-I", "CCRA"] {
        let mut nodes = mesh.nodes.iter().rev().filter(|node| node.kind == kind);
        let Some(node) = nodes.find(|node| is_counted(node.crosspoint)) else {
            continue;
        };
        let code = if node.type_code == 0xd { RNI } else { node.type_code };
        let Some(alias) = pmu.events.iter().find(|alias| is_plain(alias, code)) else {
            continue;
        };
        let id = alias.term("eventid").context("no eventid")?;
        let text = format!("arm_cmn_0/{},nodeid={:#x},bynodeid=1/", alias.name, node.node_id);
        events.push(counted(&text, &[(code, node.node_id, id)]));
    }
    let mut crosspoints = mesh.crosspoints.iter().rev();
    let xp = crosspoints.find(|xp| is_counted(u32::from(xp.logical_id)));
    let xp = xp.context("no crosspoints")?.node_id;
    let text = format!("arm_cmn_0/type=0x6,eventid=0x71,nodeid={xp:#x},bynodeid=1/");
    events.push(counted(&text, &[(0x6, xp, 0x71)]));
    ensure!(events.len() >= 4, "{} kinds only", events.len());
    bench.exact(&events, 50, 3, 3_000_000_000)
}

fn is_plain(alias: &Alias, code: u16) -> bool {
    alias.term("type") == Some(u64::from(code))
        && alias.term("occupid").is_none()
        && alias.term("eventid").is_some_and(|id| id < 0x100)
}

fn slices_of(mesh: &Mesh, dtc: u8) -> Vec<u16> {
    let nodes = mesh.nodes.iter().filter(|node| node.kind == "HN-F");
    nodes
        .filter(|node| mesh.crosspoint_of(node).is_some_and(|xp| xp.dtc == Some(dtc)))
        .map(|node| node.node_id)
        .collect()
}

fn four_each(nodes: &[u16]) -> Vec<Counted> {
    let names = ["cache_miss", "slc_sf_cache_access", "cache_fill", "pocq_retry"];
    let event = |node: u16, (name, id): (&str, u64)| {
        let text = format!("arm_cmn_0/hnf_{name},nodeid={node:#x},bynodeid=1/");
        counted(&text, &[(HNF, node, id)])
    };
    nodes
        .iter()
        .flat_map(|node| names.into_iter().zip(1..).map(move |name| event(*node, name)))
        .collect()
}

/// Checks that eight and eight over two domains all count, and that twelve of one domain take
/// turns.
fn two_controllers(bench: &mut Bench) -> Result<()> {
    one_of_each(bench)?;
    if bench.series == "6.1" {
        println!(
            "6.1's driver miscounts the domain of a second controller: both domains are checked on 6.12"
        );
        return Ok(());
    }
    let [first, second] = [0, 1].map(|dtc| slices_of(&bench.meshes[0], dtc));
    let sixteen = four_each(&[&first[..2], &second[..2]].concat());
    let texts = |events: &[Counted]| -> Vec<String> {
        events.iter().map(|event| event.text.clone()).collect()
    };
    bench.planned(&texts(&sixteen), 0.04)?;
    bench.exact(&sixteen, 50, 9, 1 << 47)?;
    bench.planned(&texts(&four_each(&first[..3])), 0.05)
}

/// Checks that two meshes are two PMUs, and that the family's name adds them up.
fn two_meshes(bench: &mut Bench) -> Result<()> {
    let events = ["arm_cmn/hnf_mc_reqs/", "arm_cmn_0/hnf_mc_reqs/", "arm_cmn_1/hnf_mc_reqs/"];
    bench.begin_steps(&events)?;
    let mut separate = [1_000_000, 3_000_000_000];
    for (mesh, count) in separate.into_iter().enumerate() {
        bench.machine.happen(mesh, &[happening((HNF, 0x24, 0xd), count)])?;
    }
    let found = bench.step(3)?;
    bench.end_steps()?;
    ensure!(found[0] == 3_001_000_000, "together {found:?}");
    // The driver finds the meshes in any order; from Linux 6.12 on sysfs has the address.
    let first = record(&bench.machine.guest("daqmeter pmu list --json arm_cmn_0")?)?;
    let is_second = match first["base"].as_u64() {
        Some(base) => base != 0x5000_0000,
        None => found[1] > found[2],
    };
    if is_second {
        separate.reverse();
    }
    let at = &first["base"];
    ensure!(found[1..] == separate, "separately {found:?}, arm_cmn_0 at {at}");
    println!("two meshes: counted separately and together; arm_cmn_0 is at {at}");
    Ok(())
}
