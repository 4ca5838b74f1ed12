//! Parameters of workloads: differences between records, and texts for people.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::workload::NOT_IN_KEY;
use daqmeter_record::{Param, RunRecord, Workload};

pub(crate) type Parameters<'a> = Vec<(&'a str, &'a Param)>;

pub(crate) fn differing<'a, K: Hash + Eq>(
    records: &[&'a RunRecord],
    group: impl Fn(&'a RunRecord) -> K,
) -> Vec<Parameters<'a>> {
    let mut groups: HashMap<K, (&RunRecord, BTreeSet<&str>)> = HashMap::new();
    // Records of one request share it, so it is compared once for each group.
    let mut compared: HashSet<(*const RunRecord, *const Workload)> = HashSet::new();
    for &record in records {
        let (first, names) = groups.entry(group(record)).or_insert((record, BTreeSet::new()));
        if !compared.insert((std::ptr::from_ref(*first), Arc::as_ptr(&record.workload))) {
            continue;
        }
        let (known, own) = (&first.workload.params, &record.workload.params);
        let all = known.keys().chain(own.keys());
        names.extend(all.filter(|name| known.get(*name) != own.get(*name)).map(String::as_str));
    }
    let of = |record: &'a RunRecord| {
        let names = groups.get(&group(record)).map(|(_, names)| names);
        let differs = |name: &str| {
            !NOT_IN_KEY.contains(&name) && names.is_some_and(|names| names.contains(name))
        };
        let own = record.workload.params.iter();
        own.filter(|(name, _)| differs(name)).map(|(name, value)| (name.as_str(), value)).collect()
    };
    records.iter().map(|record| of(record)).collect()
}

pub(crate) fn grouped<'a>(
    records: impl Iterator<Item = &'a RunRecord>,
    key: impl Fn(&Workload) -> String,
) -> Vec<Vec<&'a RunRecord>> {
    let mut groups: BTreeMap<String, Vec<&RunRecord>> = BTreeMap::new();
    records.for_each(|record| groups.entry(key(&record.workload)).or_default().push(record));
    groups.into_values().collect()
}

/// Returns pairs of records whose requests differ only in parameters of these names. Each group
/// gives the newest record of either side, in the order of groups. A record belongs to the first
/// side that takes it.
pub(crate) fn pairs<'a>(
    records: impl Iterator<Item = &'a RunRecord>,
    but: &[&str],
    sides: [&dyn Fn(&RunRecord) -> bool; 2],
) -> Vec<[&'a RunRecord; 2]> {
    let taken = records.filter(|record| sides.iter().any(|takes| takes(record)));
    let groups = grouped(taken, |asked| asked.key_without(but));
    let pair = |group: &Vec<&'a RunRecord>| -> Option<[&'a RunRecord; 2]> {
        let newest = |is_first| group.iter().rev().find(|record| sides[0](record) == is_first);
        Some([*newest(true)?, *newest(false)?])
    };
    groups.iter().filter_map(pair).collect()
}

/// Writes parameters except those of these names.
pub(crate) fn words(parameters: &Parameters<'_>, but: &[&str]) -> String {
    let wanted = parameters.iter().filter(|(name, _)| !but.contains(name));
    wanted.map(|(name, value)| shown(name, value)).collect::<Vec<_>>().join(", ")
}

/// Returns records with their names, and with the parameters that distinguish equal names except
/// the given ones. So two points with one name cannot hide each other.
pub(crate) fn labelled<'a>(
    records: Vec<&'a RunRecord>,
    name: impl Fn(&RunRecord) -> String,
    but: &[&str],
) -> Vec<(&'a RunRecord, String)> {
    let all = differing(&records, &name);
    let label = |(record, parameters): (&&'a RunRecord, &Parameters<'_>)| {
        let words = words(parameters, but);
        let comma = if words.is_empty() { "" } else { ", " };
        (*record, format!("{}{comma}{words}", name(record)))
    };
    records.iter().zip(&all).map(label).collect()
}

fn shown(name: &str, value: &Param) -> String {
    match (value, name.rsplit_once('_')) {
        (Param::Int(bytes), Some((name, "bytes"))) => format!("{name} {}", show_bytes(*bytes)),
        (Param::Float(hz), Some((name, "hz"))) => format!("{name} {} Hz", significant(*hz, 6)),
        _ => format!("{name} {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_differs_in_the_named_parameter_alone() {
        let asked = |boards: u64, by: &str| {
            let workload = Workload::new("digitizer").with("boards", boards);
            RunRecord::new(Default::default(), workload.with("completion", by))
        };
        let is = |by: &'static str| {
            move |record: &RunRecord| record.workload.text("completion") == Ok(by)
        };
        let found = |records: &[RunRecord]| -> Vec<[usize; 2]> {
            let place = |own: &RunRecord| records.iter().position(|one| std::ptr::eq(one, own));
            let sides: [&dyn Fn(&RunRecord) -> bool; 2] = [&is("poll"), &is("interrupt")];
            let pairs = pairs(records.iter(), &["completion"], sides);
            let places = pairs.iter().map(|pair| pair.map(|own| place(own).unwrap()));
            places.collect()
        };
        let other = [asked(1, "poll"), asked(5, "interrupt"), asked(5, "none")];
        assert!(found(&other).is_empty());
        let same = [asked(5, "interrupt"), asked(1, "poll"), asked(5, "poll"), asked(5, "poll")];
        assert_eq!(found(&same), [[3, 0]]);
    }

    #[test]
    fn what_tells_records_apart_is_said_without_what_a_figure_shows_already() {
        let with = |store: &str, samples: u64| {
            let workload = Workload::new("convert").with("samples", samples);
            RunRecord::new(Default::default(), workload.with("store", store))
        };
        let (a, b) = (with("cached", 1), with("non-temporal", 2));
        let named = |names: [&'static str; 2]| -> Vec<String> {
            let name = |record: &RunRecord| names[usize::from(std::ptr::eq(record, &b))].to_owned();
            labelled(vec![&a, &b], name, &["samples"]).into_iter().map(|of| of.1).collect()
        };
        assert_eq!(named(["cast", "cast"]), ["cast, store cached", "cast, store non-temporal"]);
        assert_eq!(named(["cast", "scale"]), ["cast", "scale"]);
    }
}
