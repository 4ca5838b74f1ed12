//! Parameters of workloads: pairs of records, and what tells requests apart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use daqmeter_record::workload::NOT_IN_KEY;
use daqmeter_record::{Param, RunRecord, Workload};

use crate::groups::in_groups;
use crate::words::words;

/// Property that may tell points apart, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Property<'a> {
    Parameter(&'a str),
    Study,
    Lane,
    Number,
}

/// Words of the properties of a point.
pub(crate) type Properties<'a> = BTreeMap<Property<'a>, String>;

/// Returns the parameters that identify a point, in the order of their names.
pub(crate) fn in_key(record: &RunRecord) -> impl Iterator<Item = (&str, &Param)> {
    let params = record.workload.params.iter().map(|(name, value)| (name.as_str(), value));
    params.filter(|(name, _)| !NOT_IN_KEY.contains(name))
}

/// Returns the words of a record's parameters, except those of these names.
pub(crate) fn properties<'a>(record: &'a RunRecord, but: &[&str]) -> Properties<'a> {
    let wanted = in_key(record).filter(|(name, _)| !but.contains(name));
    let own = wanted.map(|(name, value)| (Property::Parameter(name), words(name, value)));
    own.filter(|(_, words)| !words.is_empty()).collect()
}

/// Returns the names of points, which differ if their properties do: behind equal names stand the
/// words of the parameter that has the most values there, then of another one, and so on.
pub(crate) fn told_apart(points: &[(String, Properties<'_>)]) -> Vec<String> {
    let mut names: Vec<String> = points.iter().map(|(name, _)| name.clone()).collect();
    // A name with words behind it may be the name of another point.
    for _ in 0..2 {
        for (_, own) in in_groups(names.clone().into_iter().zip(0..)) {
            tell_apart(points, &own, &mut names);
        }
    }
    names
}

fn tell_apart(points: &[(String, Properties<'_>)], own: &[usize], names: &mut [String]) {
    let Some(property) = most_telling(points, own) else { return };
    let words = |at: usize| points[at].1.get(&property).map_or("", String::as_str);
    for (words, own) in in_groups(own.iter().map(|at| (words(*at), *at))) {
        let comma = if words.is_empty() { "" } else { ", " };
        own.iter().for_each(|at| names[*at] += &format!("{comma}{words}"));
        tell_apart(points, &own, names);
    }
}

/// Returns the parameter with the most values among points, or the first other property in which
/// they differ.
fn most_telling<'a>(points: &[(String, Properties<'a>)], own: &[usize]) -> Option<Property<'a>> {
    let all: BTreeSet<_> = own.iter().flat_map(|at| points[*at].1.keys().copied()).collect();
    let values = |property: &Property<'_>| {
        let values = own.iter().map(|at| points[*at].1.get(property));
        values.collect::<BTreeSet<_>>().len()
    };
    // Of equals the first is taken.
    all.into_iter().filter(|property| values(property) > 1).min_by_key(|property| match property {
        Property::Parameter(_) => Reverse(values(property)),
        _ => Reverse(0),
    })
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

/// Returns records with their names, and with the parameters that distinguish equal names except
/// the given ones. So two points with one name cannot hide each other.
pub(crate) fn labelled<'a>(
    records: Vec<&'a RunRecord>,
    name: impl Fn(&RunRecord) -> String,
    but: &[&str],
) -> Vec<(&'a RunRecord, String)> {
    // Records of one request share it, so each is described once.
    let key = |record: &&RunRecord| (name(record), Arc::as_ptr(&record.workload));
    let keys: Vec<_> = records.iter().map(key).collect();
    let groups = in_groups(keys.iter().zip(&records));
    let described = groups.iter().map(|(key, own)| (key.0.clone(), properties(own[0], but)));
    let labels = told_apart(&described.collect::<Vec<_>>());
    let labels: HashMap<_, _> = groups.iter().map(|(key, _)| *key).zip(labels).collect();
    records.iter().zip(&keys).map(|(record, key)| (*record, labels[key].clone())).collect()
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
        assert_eq!(named(["cast", "cast"]), ["cast, cached stores", "cast, non-temporal stores"]);
        assert_eq!(named(["cast", "scale"]), ["cast", "scale"]);
    }
}
