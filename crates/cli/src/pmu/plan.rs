//! `daqmeter pmu plan`.

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
    after_long_help = "Examples:\n\n  $ daqmeter pmu plan --emulated n1sdp --driver n1sdp -e arm_cmn/rnid_txdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=12/\n  $ daqmeter pmu plan --map lab7.json --driver 6.1 -g memory -g slc    # for another machine's mesh\n\nA group that does not fit keeps those behind it waiting: order alone changes the shares."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,
    /// Whose rules: Linux since that version (mainline: 6.18), or the N1SDP's software release
    /// [default: this kernel for its own mesh, otherwise mainline]
    #[arg(long, value_name = "DRIVER", value_parser = drivers())]
    driver: Option<Driver>,
}

fn drivers() -> impl TypedValueParser<Value = Driver> {
    let named = |name: String| Driver::ALL.into_iter().find(|(_, known)| *known == name);
    PossibleValuesParser::new(Driver::ALL.map(|(_, name)| name))
        .map(move |name| named(name).map_or(Driver::Mainline, |(driver, _)| driver))
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut host = arguments.wanted.place.host()?.offline();
    host.driver = arguments.driver.unwrap_or(host.driver);
    if host.meshes.is_empty() {
        return Err(Failure::refused(
            "a plan needs the map of a mesh: root and debugfs on the machine itself, --map FILE, or --emulated n1sdp",
        ));
    }
    let groups = arguments.wanted.choose(&host)?.set.groups;
    let mut texts = Vec::new();
    for mesh in &host.meshes {
        let is_of_mesh = |group: &&Vec<PmuEvent>| group.iter().all(|event| event.is_on(&mesh.name));
        let groups: Vec<_> = groups.iter().filter(is_of_mesh).cloned().collect();
        if !groups.is_empty() {
            let found = plan(mesh, host.driver, &groups).map_err(Failure::refused)?;
            let head = format!("{}, {} driver", mesh.name, host.driver.name());
            texts.push(text(&head, &groups, &found));
        }
    }
    if texts.is_empty() {
        return Err(Failure::refused(
            "no group of events is on a known mesh as a whole: a plan is for one mesh's events",
        ));
    }
    emit(&texts.join("\n"))
}

fn name(group: &[PmuEvent]) -> String {
    let names: Vec<&str> = group.iter().map(|event| event.name.as_str()).collect();
    if names.len() == 1 { names[0].to_owned() } else { format!("{{{}}}", names.join(",")) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn text(head: &str, groups: &[Vec<PmuEvent>], plan: &CountPlan) -> String {
    let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
    let rows = groups.iter().zip(&plan.shares).enumerate().map(|(at, (group, share))| {
        let limits = plan.binding.iter().filter(|(group, _)| *group == at);
        let limits: Vec<String> = limits.map(|(_, limit)| limit.to_string()).collect();
        let waits = match limits.as_slice() {
            [] if *share < 1.0 => "those before it in the list".to_owned(),
            limits => limits.join("; "),
        };
        vec![name(group), percent(*share), waits]
    });
    let table = plain(&["event", "share", "waits for"], rows);
    let least_share = least(&plan.shares);
    let mut out = match least_share >= 1.0 {
        true => format!("{head}: everything counts all the time\n{table}"),
        false => format!(
            "{head}: events take turns, the least counts {} of the time\n{table}",
            percent(least_share)
        ),
    };
    if let Some((order, shares)) = &plan.better {
        let rows =
            order.iter().map(|at| vec![format!("-e {}", name(&groups[*at])), percent(shares[*at])]);
        let table = plain(&["event", "share"], rows);
        let least = percent(least(shares));
        out.push_str(&format!("\na better order, the least counts {least}:\n{table}"));
    }
    out
}
