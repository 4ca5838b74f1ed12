//! The machines, and the checks on machines other than the document's.

use anyhow::{Context, Result, ensure};
use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::mesh::topology::shipped;
use daqmeter_pmu::sysfs::Alias;
use daqmeter_record::Mesh;
use serde::Deserialize;
use serde_json::Value;

use super::count::{Counted, HNF, OFTEN, RNI, happening, json, node};
use super::machine::{MESH_BASE, Machine};
use super::n1sdp::n1sdp;
use crate::debian::Kernel;
use crate::files::rows;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) series: Vec<String>,
    meshes: Vec<String>,
    cpus: u32,
    /// File with the driver's events and map, and the kernel that they were recorded on.
    recorded: Option<(String, String)>,
    check: Check,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Check {
    N1sdp,
    OneOfEach,
    TwoControllers,
    TwoMeshes,
}

pub(super) fn all() -> Result<Vec<Case>> {
    rows(include_str!("cases.toml"), "case")
}

/// Prints the events in the order of the recorded files.
const EVENTS: &str = "cd /sys/bus/event_source/devices/arm_cmn_0/events && \
     for name in *; do echo $name $(cat $name); done | LC_ALL=C sort; cd /";

impl Case {
    /// Boots the machine and checks everything on it.
    pub(super) fn run(&self, kernel: &Kernel) -> Result<()> {
        let mesh = |name: &String| shipped(name).with_context(|| format!("no mesh {name}"));
        let meshes: Vec<Mesh> = self.meshes.iter().map(mesh).collect::<Result<_>>()?;
        // Machines of both kernels run at the same time.
        let name = format!("mesh-{}-{}-{}", kernel.series, self.meshes[0], meshes.len());
        let machine = &mut Machine::boot(&name, kernel, meshes, self.cpus)?;
        machine.guest("ls -d /sys/bus/event_source/devices/arm_cmn_0 || dmesg | tail -15")?;
        let recorded = self.recorded.as_ref().filter(|(_, series)| *series == kernel.series);
        if let Some((file, _)) = recorded {
            machine.shows(EVENTS, &format!("crates/pmu/src/emulated/events/{file}"))?;
            let map = "cat /sys/kernel/debug/arm-cmn/map";
            machine.shows(map, &format!("crates/pmu/testdata/maps/{file}"))?;
        }
        match self.check {
            Check::N1sdp => n1sdp(machine),
            Check::OneOfEach => one_of_each(machine),
            Check::TwoControllers => two_controllers(machine),
            Check::TwoMeshes => two_meshes(machine),
        }?;
        let complaints = machine.guest("dmesg | grep -E 'WARNING|BUG'; true")?;
        ensure!(complaints.is_empty(), "the kernel complained:\n{complaints}");
        Ok(())
    }
}

/// Counts an event of each kind of node in the mesh exactly.
fn one_of_each(machine: &mut Machine) -> Result<()> {
    let mesh = &machine.meshes[0];
    let pmu = catalogue(mesh);
    // Linux 6.1.192 takes counter -1 for an event that is only in the domain of a second
    // controller. `arm_cmn_event_add` uses the index of domain 0, which the event is not in. All
    // beyond 16 bits is lost there. Linux 6.12 is right.
    let is_counted = |crosspoint: u32| {
        let crosspoint = mesh.crosspoints.get(crosspoint as usize);
        machine.series != "6.1" || crosspoint.is_some_and(|xp| xp.dtc != Some(1))
    };
    let mut events = Vec::new();
    for kind in ["HN-F", "HN-S", "RN-D", "SBSX", "HN-I", "CCRA"] {
        let mut nodes = mesh.nodes.iter().rev().filter(|node| node.kind == kind);
        let Some(found) = nodes.find(|node| is_counted(node.crosspoint)) else {
            continue;
        };
        let code = if found.type_code == 0xd { RNI } else { found.type_code };
        let Some(alias) = pmu.events.iter().find(|alias| is_plain(alias, code)) else {
            continue;
        };
        let id = alias.term("eventid").context("no eventid")?;
        events.push(node(&alias.name, (code, found.node_id, id)));
    }
    let mut crosspoints = mesh.crosspoints.iter().rev();
    let xp = crosspoints.find(|xp| is_counted(u32::from(xp.logical_id)));
    let xp = xp.context("no crosspoints")?.node_id;
    events.push(node("type=0x6,eventid=0x71", (0x6, xp, 0x71)));
    ensure!(events.len() >= 4, "{} kinds only", events.len());
    machine.exact(&events, 50, OFTEN).map(drop)
}

fn is_plain(alias: &Alias, code: u16) -> bool {
    alias.term("type") == Some(u64::from(code))
        && alias.term("occupid").is_none()
        && alias.term("eventid").is_some_and(|id| id < 0x100)
}

/// Returns four events of each of the first slices of a controller's domain.
fn four_each(mesh: &Mesh, dtc: u8, slices: usize) -> Vec<Counted> {
    let names = ["cache_miss", "slc_sf_cache_access", "cache_fill", "pocq_retry"];
    let is_own = |xp: &daqmeter_record::mesh::Crosspoint| xp.dtc == Some(dtc);
    let nodes = mesh.nodes.iter().filter(|node| node.kind == "HN-F");
    let nodes = nodes.filter(|node| mesh.crosspoint_of(node).is_some_and(is_own));
    let events = |of: &daqmeter_record::mesh::Node| {
        let id = of.node_id;
        let event =
            move |(name, event): (&str, u64)| node(&format!("hnf_{name}"), (HNF, id, event));
        names.into_iter().zip(1..).map(event)
    };
    nodes.take(slices).flat_map(events).collect()
}

/// Checks that eight and eight over two domains all count, and that twelve of one domain take
/// turns.
fn two_controllers(machine: &mut Machine) -> Result<()> {
    one_of_each(machine)?;
    let mesh = machine.meshes[0].clone();
    let mut sixteen = four_each(&mesh, 0, 2);
    sixteen.extend(four_each(&mesh, 1, 2));
    let texts = |events: &[Counted]| -> Vec<String> {
        events.iter().map(|event| event.text.clone()).collect()
    };
    machine.planned(&texts(&sixteen), 0.04)?;
    machine.exact(&sixteen, 50, 1 << 47)?;
    machine.planned(&texts(&four_each(&mesh, 0, 3)), 0.05)
}

/// Checks that two meshes are two PMUs, and that the family's name adds them up.
fn two_meshes(machine: &mut Machine) -> Result<()> {
    machine.begin_steps(&[
        "arm_cmn/hnf_mc_reqs/",
        "arm_cmn_0/hnf_mc_reqs/",
        "arm_cmn_1/hnf_mc_reqs/",
    ])?;
    machine.happen(0, &[happening((HNF, 0x24, 0xd), 1_000_000)])?;
    machine.happen(1, &[happening((HNF, 0x24, 0xd), OFTEN)])?;
    let found = machine.step(3)?;
    machine.end_steps()?;
    // The driver finds the meshes in any order.
    let list = machine.guest("daqmeter pmu list --json arm_cmn_0")?;
    let base = &serde_json::from_str::<Value>(json(&list)?)?["base"];
    let (first, second) = if *base == MESH_BASE { (1_000_000, OFTEN) } else { (OFTEN, 1_000_000) };
    let wanted = [first + second, first, second];
    ensure!(found == wanted, "{found:?} instead of {wanted:?}, arm_cmn_0 at {base}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_shipped_meshes_and_recorded_files() {
        let cases = all().unwrap();
        assert_eq!(cases.len(), 6);
        for Case { name, series, meshes, recorded, .. } in cases {
            assert!(meshes.iter().all(|mesh| shipped(mesh).is_some()), "{name}");
            let Some((file, on)) = recorded else { continue };
            let events = crate::shell::root().join("crates/pmu/src/emulated/events").join(file);
            assert!(events.exists() && series.contains(&on), "{name}");
        }
    }
}
