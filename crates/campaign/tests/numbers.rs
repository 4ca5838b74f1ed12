//! Numbers that no run reaches, in each numeric field of each kind of TOML file that a user may
//! write: plans with their sweeps, paths, scenarios, profiles of crates, bridges and buses, groups
//! of counters, meshes. The fields are those of the shipped files. Studies ship with the binary.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::catch_unwind;
use std::path::Path as Folder;

use daqmeter_campaign::{Plan, Site, engine};
use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_harness::{Loaded, TomlText};
use daqmeter_path::Path;
use daqmeter_pmu::MetricGroup;
use daqmeter_pmu::mesh::topology;
use daqmeter_readout::scenario::Scenario;
use serde_json::Value;

type Reader = fn(&TomlText) -> Result<(), String>;

fn said<T>(read: Result<T, impl Display>) -> Result<(), String> {
    read.map(drop).map_err(|why| why.to_string())
}

/// Folder of the shipped files of a kind, and its reader.
const KINDS: [(&str, Reader); 8] = [
    ("../../plans", |text| {
        // The engines check the parameters of their points.
        Plan::of(text, &Site::here())?
            .points
            .iter()
            .try_for_each(|point| said(engine(&point.engine)?.parse(&point.workload)))
    }),
    ("../path/paths", |text| said(Path::parse(&text.text, "x"))),
    ("../readout/scenarios", |text| said(Scenario::parse(&text.text, "x"))),
    ("../digitizer/profiles", |text| said(Profile::read(text))),
    ("../etherbone/profiles", |text| said(Description::parse(text))),
    ("../etherbone/profiles/bridges", |text| said(Bridge::read(text))),
    ("../pmu/groups", |text| said(MetricGroup::parse(text))),
    ("../pmu/meshes", |text| said(topology::parse(text))),
];

/// Fields that take whole numbers of any size: identities and addresses, factors, numbers of passes
/// that a signal ends, and a block of which a read is shorter.
const ANY_SIZE: &str =
    "seed sdb first last address vendor reads passes 0 scale_factor scale_offset";

/// Adds the places of all numbers.
fn numbers(value: &Value, place: &str, found: &mut Vec<String>) {
    let fields = value.as_object().into_iter().flatten();
    fields.for_each(|(name, field)| numbers(field, &format!("{place}/{name}"), found));
    let items = value.as_array().into_iter().flatten().enumerate();
    items.for_each(|(at, item)| numbers(item, &format!("{place}/{at}"), found));
    found.extend(value.is_number().then(|| place.to_owned()));
}

#[test]
fn a_number_that_no_run_reaches_is_refused_in_one_line_by_each_reader() {
    let mut read = Vec::new();
    for (folder, reader) in KINDS {
        let mut seen = BTreeSet::new();
        let folder = Folder::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            // A folder has the files of another kind.
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let values: Value = toml::from_str(&text).unwrap();
            let mut places = Vec::new();
            numbers(&values, "", &mut places);
            places.retain(|place| seen.insert(place.replace(|c: char| c.is_ascii_digit(), "")));
            for place in places {
                let mut marked = values.clone();
                *marked.pointer_mut(&place).unwrap() = "@".into();
                let marked = toml::to_string(&marked).unwrap();
                let field = place.rsplit('/').next().unwrap();
                for number in ["-1", "9007199254740992", "18446744073709551616", "1e400", "nan"] {
                    // A factor may have either sign.
                    let is_free = match number {
                        "-1" => field == "scale_factor",
                        "9007199254740992" => ANY_SIZE.split(' ').any(|free| free == field),
                        _ => false,
                    };
                    let text = TomlText::new("x.toml", &marked.replace("\"@\"", number));
                    match catch_unwind(|| reader(&text)) {
                        Ok(Err(why)) if !why.contains('\n') => {}
                        Ok(Ok(())) if is_free => {}
                        other => read.push(format!("{path:?} {place} = {number}: {other:?}")),
                    }
                }
            }
        }
    }
    assert!(read.is_empty(), "{}", read.join("\n"));
}
