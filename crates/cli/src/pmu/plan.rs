//! `daqmeter pmu plan`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daqmeter_pmu::PmuEvent;
use daqmeter_pmu::plan::{CountPlan, Driver, plan};
use daqmeter_report::table::plain;

use super::chosen::Wanted;
use crate::output::{Failure, emit};

/// Tell which events fit at once, what share of the time each will get, and a better order if there
/// is one.
///
/// Nothing is opened. The rules are those of the kernel's scheduler and of the driver. The map of
/// the mesh is needed: that of this host, or with --map that of any other.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu plan --emulated n1sdp --driver n1sdp -e arm_cmn/rnid_txdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=12/\n  $ daqmeter pmu plan --map lab7.dump --driver 6.1 -g memory -g slc    # for another machine's mesh\n\nA group that does not fit keeps those behind it waiting: order alone changes the shares."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,
    /// Whose rules: Linux since that version (mainline: 6.18), or the N1SDP's software release
    /// [default: this kernel for its own mesh, otherwise mainline]
    #[arg(long, value_name = "DRIVER", value_parser = drivers())]
    driver: Option<Driver>,
    /// Lines of JSON
    #[arg(long)]
    json: bool,
}

fn drivers() -> impl TypedValueParser<Value = Driver> {
    let named = |name: String| Driver::ALL.into_iter().find(|(_, known)| *known == name);
    PossibleValuesParser::new(Driver::ALL.map(|(_, name)| name))
        .map(move |name| named(name).map_or(Driver::Mainline, |(driver, _)| driver))
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut setting = arguments.wanted.place.setting()?.offline();
    setting.driver = arguments.driver.unwrap_or(setting.driver);
    if setting.meshes.is_empty() {
        return Err(Failure::refused(
            "a plan needs the map of a mesh: root and debugfs on the machine itself, --map FILE, or --emulated n1sdp",
        ));
    }
    let chosen = arguments.wanted.choose(&setting)?;
    let driver = setting.driver;
    let mut out = String::new();
    for mesh in &setting.meshes {
        let of_mesh = |event: &PmuEvent| event.is_on(&mesh.name);
        let groups: Vec<Vec<PmuEvent>> =
            chosen.set.groups.iter().filter(|group| group.iter().all(of_mesh)).cloned().collect();
        if groups.is_empty() {
            continue;
        }
        let found = plan(mesh, driver, &groups).map_err(Failure::refused)?;
        if arguments.json {
            out.push_str(&json(&mesh.name, &groups, &found));
        } else {
            let _ = write!(
                out,
                "{}{}",
                if out.is_empty() { "" } else { "\n" },
                text(&mesh.name, driver, &groups, &found)
            );
        }
    }
    if out.is_empty() {
        return Err(Failure::refused(
            "no group of events is on a known mesh as a whole: a plan is for one mesh's events",
        ));
    }
    emit(&out)
}

fn name(group: &[PmuEvent]) -> String {
    let names: Vec<&str> = group.iter().map(|event| event.name.as_str()).collect();
    if names.len() == 1 { names[0].to_owned() } else { format!("{{{}}}", names.join(",")) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn limits(plan: &CountPlan, at: usize) -> Vec<String> {
    plan.binding
        .iter()
        .filter(|(group, _)| *group == at)
        .map(|(_, limit)| limit.to_string())
        .collect()
}

fn text(mesh: &str, driver: Driver, groups: &[Vec<PmuEvent>], plan: &CountPlan) -> String {
    let least = plan.shares.iter().copied().fold(f64::INFINITY, f64::min);
    let mut out = if least >= 1.0 {
        format!("{mesh}, {} driver: everything counts all the time\n", driver.name())
    } else {
        format!(
            "{mesh}, {} driver: events take turns, the least counts {} of the time\n",
            driver.name(),
            percent(least)
        )
    };
    let rows = groups.iter().enumerate().map(|(at, group)| {
        let mut waits = limits(plan, at).join("; ");
        if waits.is_empty() && plan.shares[at] < 1.0 {
            waits = "those before it in the list".to_owned();
        }
        vec![name(group), percent(plan.shares[at]), waits]
    });
    out.push_str(&plain(&["event", "share", "waits for"], rows));
    if let Some((order, shares)) = &plan.better {
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let _ = writeln!(out, "\na better order, the least counts {}:", percent(least));
        let rows =
            order.iter().map(|at| vec![format!("-e {}", name(&groups[*at])), percent(shares[*at])]);
        out.push_str(&plain(&["event", "share"], rows));
    }
    out
}

fn json(mesh: &str, groups: &[Vec<PmuEvent>], plan: &CountPlan) -> String {
    let rows: Vec<serde_json::Value> = groups
        .iter()
        .zip(&plan.shares)
        .enumerate()
        .map(|(at, (group, share))| {
            serde_json::json!({ "group": name(group), "share": share, "waits_for": limits(plan, at) })
        })
        .collect();
    let better = plan.better.as_ref().map(|(order, shares)| {
        order
            .iter()
            .map(|at| serde_json::json!({ "group": name(&groups[*at]), "share": shares[*at] }))
            .collect::<Vec<_>>()
    });
    format!("{}\n", serde_json::json!({ "mesh": mesh, "groups": rows, "better": better }))
}
