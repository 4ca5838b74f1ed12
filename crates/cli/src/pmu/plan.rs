//! `daqmeter pmu stat --plan`: shares of the time that events will get.

use daqmeter_pmu::PmuEvent;
use daqmeter_pmu::plan::{CountPlan, plan};
use daqmeter_record::Mesh;
use daqmeter_record::units::joined;
use daqmeter_report::table::plain;
use serde_json::json;

use super::stat::Arguments;
use crate::output::{Ended, Failure, emit, tell};

/// Prints the plan of each mesh. Nothing is opened.
pub(super) fn run(arguments: &Arguments) -> Ended {
    let wanted = &arguments.wanted;
    let mut host = wanted.place.host()?.offline();
    host.driver = arguments.driver.unwrap_or(host.driver);
    if host.meshes.is_empty() {
        return Err(Failure::refused(
            "a plan needs the map of a mesh: root and debugfs on the machine itself, --map FILE, or --emulated n1sdp",
        ));
    }
    let groups = wanted.choose(&host)?.set.groups;
    let is_on =
        |group: &&Vec<PmuEvent>, mesh: &Mesh| group.iter().all(|event| event.is_on(&mesh.name));
    let mut texts = Vec::new();
    for mesh in &host.meshes {
        let is_of_mesh = |group: &&Vec<PmuEvent>| is_on(group, mesh);
        let groups: Vec<_> = groups.iter().filter(is_of_mesh).cloned().collect();
        if !groups.is_empty() {
            let found = plan(mesh, host.driver, &groups)?;
            let driver = host.driver.to_string();
            texts.push(match arguments.recording.json {
                true => line(&mesh.name, &driver, &groups, &found),
                false => text(&format!("{}, {driver} driver", mesh.name), &groups, &found),
            });
        }
    }
    if texts.is_empty() {
        return Err(Failure::refused("a plan needs a group whose events are all on one mesh"));
    }
    for group in &groups {
        if !host.meshes.iter().any(|mesh| is_on(&group, mesh)) {
            tell(&format!("daqmeter: not in the plan, since no mesh counts it: {}", name(group)));
        }
    }
    emit(&texts.join(if arguments.recording.json { "" } else { "\n" }))
}

/// Writes a plan as a line of JSON.
fn line(mesh: &str, driver: &str, groups: &[Vec<PmuEvent>], plan: &CountPlan) -> String {
    let limits = |at: usize| plan.binding.iter().filter(move |(group, _)| *group == at);
    let events = groups.iter().zip(&plan.shares).enumerate().map(|(at, (group, share))| {
        let limits: Vec<String> = limits(at).map(|(_, limit)| limit.to_string()).collect();
        json!({ "event": name(group), "share": share, "waits_for": limits })
    });
    let better = plan.better.as_ref().map(|(order, shares)| {
        let event = |at: &usize| json!({ "event": name(&groups[*at]), "share": shares[*at] });
        order.iter().map(event).collect::<Vec<_>>()
    });
    let events: Vec<_> = events.collect();
    json!({ "mesh": mesh, "driver": driver, "events": events, "better_order": better }).to_string()
        + "\n"
}

fn name(group: &[PmuEvent]) -> String {
    let names: Vec<&str> = group.iter().map(|event| event.name.as_str()).collect();
    if names.len() == 1 { names[0].to_owned() } else { format!("{{{}}}", names.join(",")) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn text(head: &str, groups: &[Vec<PmuEvent>], plan: &CountPlan) -> String {
    let least = |shares: &[f64]| percent(shares.iter().copied().fold(f64::INFINITY, f64::min));
    let rows = groups.iter().zip(&plan.shares).enumerate().map(|(at, (group, share))| {
        let limits = plan.binding.iter().filter(|(group, _)| *group == at);
        let limits = joined(limits.map(|(_, limit)| limit.to_string()), "; ");
        let before = if *share < 1.0 { "the events before it in the list" } else { "" };
        vec![name(group), percent(*share), limits.unwrap_or(before.to_owned())]
    });
    let table = plain(&["event", "share", "waits for"], rows);
    let state = match plan.shares.iter().all(|share| *share >= 1.0) {
        true => "all events count all the time".to_owned(),
        false => {
            format!("not all events fit: the least counts {} of the time", least(&plan.shares))
        }
    };
    let mut out = format!("{head}: {state}\n{table}");
    if let Some((order, shares)) = &plan.better {
        let row = |at: &usize| vec![format!("-e {}", name(&groups[*at])), percent(shares[*at])];
        let table = plain(&["event", "share"], order.iter().map(row));
        let least = least(shares);
        out.push_str(&format!("\na better order, the least counts {least}:\n{table}"));
    }
    out
}
