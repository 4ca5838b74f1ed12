//! Plans: TOML in, points out. The format is described in `docs/book/src/formats/plans.md`.
//!
//! `file.rs` defines the content of a file, `source.rs` names its lines, `read.rs` makes points of
//! it. This file puts them in order.

mod file;
mod read;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use daqmeter_harness::{TomlText, ordered};
use daqmeter_record::Order as Place;

use crate::budget::Budget;
use crate::point::PlannedPoint;
use crate::site::Site;

pub use file::{PlanOrder, json_schema};
use read::Reader;
pub use source::PlanError;
use source::Source;

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub title: String,
    pub about: String,
    pub budget: Budget,
    pub points: Vec<PlannedPoint>,
}

impl Plan {
    /// Loads a plan by the name of a shipped one, or from a file, for this host.
    ///
    /// # Errors
    /// An error is one line with file, line and field.
    pub fn load(name_or_path: &str) -> Result<Plan, PlanError> {
        Plan::load_for(name_or_path, &Site::here())
    }

    pub fn load_for(name_or_path: &str, site: &Site) -> Result<Plan, PlanError> {
        let source = Source::find(name_or_path, None).map_err(PlanError)?;
        Plan::of(&source, site)
    }

    /// Parses the text of a plan for this host; messages use `name`. Includes are sought beside the
    /// working directory.
    pub fn parse(text: &str, name: &str) -> Result<Plan, PlanError> {
        Plan::parse_for(text, name, &Site::here())
    }

    pub fn parse_for(text: &str, name: &str, site: &Site) -> Result<Plan, PlanError> {
        let source = Source {
            toml: TomlText { name: name.to_owned(), text: text.to_owned() },
            folder: None,
        };
        Plan::of(&source, site)
    }

    fn of(source: &Source, site: &Site) -> Result<Plan, PlanError> {
        let reader = Reader::new(site);
        let file = source.file()?;
        let mut above = BTreeSet::from([source.toml.name.clone()]);
        let sweeps = reader.sweeps(source, &file, &mut above)?;
        let budget = file.budget.as_ref();
        let time = budget.map(|text| source.duration("budget", text)).transpose()?;
        if sweeps.iter().all(|(repetitions, _)| *repetitions == 0) {
            return Err(PlanError(format!(
                "{}: no point is left: give it a [[sweep]] or an include",
                source.toml.name
            )));
        }
        let points = in_order(&sweeps, file.order, site.seed.unwrap_or(file.seed));
        Ok(Plan {
            title: file.title,
            about: file.about.trim().to_owned(),
            budget: Budget { time, spend: file.spend },
            points,
        })
    }
}

fn in_order(sweeps: &[(u64, PlannedPoint)], order: PlanOrder, seed: u64) -> Vec<PlannedPoint> {
    let mut points = Vec::new();
    let mut left: Vec<&(u64, PlannedPoint)> = sweeps.iter().collect();
    for round in 0.. {
        left.retain(|(repetitions, _)| round < *repetitions);
        if left.is_empty() {
            break;
        }
        let in_round: Vec<PlannedPoint> = left.iter().map(|(_, point)| point.clone()).collect();
        match order {
            PlanOrder::Given => points.extend(in_round),
            PlanOrder::Random => points.extend(
                ordered(in_round, seed.wrapping_add(round)).into_iter().map(|(_, point)| point),
            ),
        }
    }
    let of = points.len() as u64;
    for (position, point) in (0_u64..).zip(&mut points) {
        point.place = Place { seed, position, of };
    }
    points
}
