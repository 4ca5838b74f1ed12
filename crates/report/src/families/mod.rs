//! Families of measurements, each in its own file. A new family is a file here and a line in
//! [`FAMILIES`]. A new figure, answer or piece of advice is a function and a line in its family.

mod conversion;
pub mod copy;
pub(crate) mod digitizer;
pub mod etherbone;
pub mod felix;
pub(crate) mod functions;
pub mod path;
pub mod pmu;
mod sweeps;
pub(crate) mod tool;
pub mod watched;

use daqmeter_record::{RunRecord, Stage};

use crate::family::{Brief, Family, Work};
use crate::figures::Figure;
use crate::rate;

pub(crate) const FAMILIES: &[Family] = &[
    digitizer::FAMILY,
    conversion::FAMILY,
    sweeps::MEMORY,
    sweeps::HOSTIO,
    path::FAMILY,
    etherbone::FAMILY,
    felix::FAMILY,
    copy::FAMILY,
    pmu::FAMILY,
    watched::FAMILY,
    tool::FAMILY,
];

/// Returns every figure that the records can fill, without failed records. Those of all hosts stand
/// side by side.
pub fn figures(records: &[RunRecord]) -> Vec<Figure> {
    let drawn = rate::side_by_side(records, |host, own| {
        let own = &*rate::done(own);
        let plots = FAMILIES.iter().flat_map(|family| family.plots);
        let drawn = plots.filter_map(|plot| plot.draw(own)).chain(pmu::over_time(own));
        let named = |own: Figure| {
            (own.id.clone(), Figure { title: rate::on_host(host, &own.title), ..own })
        };
        drawn.map(named).collect()
    });
    let all = drawn.into_iter().flat_map(|(_, mut own)| {
        // An answer links to the first one.
        let others = own.iter_mut().enumerate().skip(1);
        others.for_each(|(at, figure)| figure.id += &format!("-{at}"));
        own
    });
    all.collect()
}

/// Returns what this host does, and the changes that pay with their gains.
pub(crate) fn briefs(records: &[RunRecord]) -> (Vec<String>, Vec<(String, String)>) {
    let usable = rate::usable(records);
    let (mut host, mut changes) = (Vec::new(), Vec::new());
    let all = FAMILIES.iter().flat_map(|family| family.briefs);
    for brief in all.filter_map(|brief| brief(&usable)) {
        match brief {
            Brief::Host(line) => host.push(line),
            Brief::Change { what, gain } => changes.push((what, gain)),
        }
    }
    (host, changes)
}

pub(crate) fn work(record: &RunRecord) -> Work {
    let mut engines = FAMILIES.iter().flat_map(|family| family.engines);
    let own = engines.find(|(name, _)| *name == record.engine.name);
    own.map_or(Work::Threads, |(_, work)| *work)
}

/// Tests if the stores of a stage pass the caches.
pub(crate) fn is_uncached(record: &RunRecord, stage: &Stage) -> bool {
    const PAST: &str = "non-temporal";
    stage.name.ends_with(PAST) || record.workload.text("store") == Ok(PAST)
}

/// Tests if work waits for triggers: its times are those of the triggers.
pub(crate) fn is_idle(record: &RunRecord) -> bool {
    let asked = |name| record.workload.float(name).is_ok_and(|hz| hz > 0.0);
    ["rate_hz", "trigger_rate_hz"].into_iter().any(asked) && !record.workload.flag("unpaced")
}

pub(crate) fn footnotes(record: &RunRecord) -> impl Iterator<Item = String> {
    FAMILIES.iter().filter_map(|family| (family.footnote)(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_belongs_to_one_family() {
        let mut engines = FAMILIES.iter().flat_map(|family| family.engines);
        let mut names = std::collections::BTreeSet::new();
        assert!(engines.all(|(name, _)| names.insert(name)));
    }
}
