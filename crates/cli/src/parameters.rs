//! Parameters of workloads: which of them differ between records, and how they are shown.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::workload::NOT_IN_KEY;
use daqmeter_record::{Param, RunRecord, Workload};

/// Some parameters of one record, by name.
pub(crate) type Parameters<'a> = Vec<(&'a str, &'a Param)>;

/// Of each record the parameters that are not the same in all records of its group.
pub(crate) fn differing<'a, K: Hash + Eq>(
    records: &[&'a RunRecord],
    group: impl Fn(&'a RunRecord) -> K,
) -> Vec<Parameters<'a>> {
    let mut groups: HashMap<K, (&RunRecord, BTreeSet<&str>)> = HashMap::new();
    // Records that were asked the same share it: it is compared once for each group.
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

/// Records by a key of their requests, in the order of keys.
pub(crate) fn grouped<'a>(
    records: impl Iterator<Item = &'a RunRecord>,
    key: impl Fn(&Workload) -> String,
) -> Vec<Vec<&'a RunRecord>> {
    let mut groups: BTreeMap<String, Vec<&RunRecord>> = BTreeMap::new();
    for record in records {
        groups.entry(key(&record.workload)).or_default().push(record);
    }
    groups.into_values().collect()
}

/// Pairs of records with the same request except for parameters of these names, so that one thing
/// alone differs. Each group gives the newest record of either side, in the order of groups. A
/// record belongs to the first side that takes it.
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

/// Parameters in words, but for those of these names.
pub(crate) fn words(parameters: &Parameters<'_>, but: &[&str]) -> String {
    let wanted = parameters.iter().filter(|(name, _)| !but.contains(name));
    wanted.map(|(name, value)| shown(name, value)).collect::<Vec<_>>().join(", ")
}

/// The names of records, each with what tells its record from others of that name, but for parameters of these names: so that
/// two points with one name cannot hide each other.
pub(crate) fn distinguished(records: &[&RunRecord], names: &[String], but: &[&str]) -> Vec<String> {
    let places: HashMap<*const RunRecord, &String> =
        records.iter().map(|record| std::ptr::from_ref(*record)).zip(names).collect();
    let all = differing(records, |record| places.get(&std::ptr::from_ref(record)));
    let label = |(name, parameters): (&String, &Parameters<'_>)| match words(parameters, but) {
        distinction if distinction.is_empty() => name.clone(),
        distinction => format!("{name}, {distinction}"),
    };
    names.iter().zip(&all).map(label).collect()
}

/// Numbers by their size, names by their letters.
pub(crate) fn by_values(a: &Parameters<'_>, b: &Parameters<'_>) -> Ordering {
    let number = |param: &Param| match param {
        Param::Flag(flag) => Some(f64::from(u8::from(*flag))),
        Param::Int(count) => Some(*count as f64),
        Param::Float(value) => Some(*value),
        Param::Text(_) => None,
    };
    let pairs = a.iter().zip(b).map(|((name_a, a), (name_b, b))| {
        name_a.cmp(name_b).then_with(|| match (number(a), number(b)) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (None, None) => a.to_string().cmp(&b.to_string()),
            (a, b) => a.is_none().cmp(&b.is_none()),
        })
    });
    pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
}

/// A parameter for people, with its unit where its name ends with one.
fn shown(name: &str, value: &Param) -> String {
    match (value, name.strip_suffix("_bytes")) {
        (Param::Int(bytes), Some(name)) => format!("{name} {}", show_bytes(*bytes)),
        _ => match (value, name.strip_suffix("_hz")) {
            (Param::Float(hz), Some(name)) => format!("{name} {} Hz", significant(*hz, 6)),
            _ => format!("{name} {value}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_shown_where_the_name_ends_with_one() {
        assert_eq!(shown("read_bytes", &Param::Int(4096)), "read 4 KiB");
        assert_eq!(shown("rate_hz", &Param::Float(1e6)), "rate 1000000 Hz");
    }

    #[test]
    fn records_are_grouped_by_key_whether_they_share_their_request_or_not() {
        let asked = |samples: u64, block: u64| {
            let workload = Workload::new("convert").with("samples", samples);
            RunRecord::new(Default::default(), workload.with("block_bytes", block))
        };
        let mut records = vec![asked(2, 0), asked(1, 0), asked(2, 5), asked(2, 0)];
        records.push(records[0].clone());
        let groups = grouped(records.iter(), |asked| asked.key_without(&["block_bytes"]));
        let place = |record: &&RunRecord| records.iter().position(|own| std::ptr::eq(own, *record));
        let places: Vec<Vec<usize>> =
            groups.iter().map(|group| group.iter().filter_map(place).collect()).collect();
        assert_eq!(places, [vec![1], vec![0, 2, 3, 4]]);
    }

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
        let named = |names: [&str; 2]| {
            let names = names.map(str::to_owned);
            distinguished(&[&a, &b], &names, &["samples"])
        };
        assert_eq!(named(["cast", "cast"]), ["cast, store cached", "cast, store non-temporal"]);
        assert_eq!(named(["cast", "scale"]), ["cast", "scale"]);
    }
}
