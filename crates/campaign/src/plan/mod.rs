//! Plans: TOML in, points out. The format is described in `docs/book/src/formats/plans.md`.
//!
//! `file.rs` defines the content of a file, `read.rs` makes points of it. This file puts them in
//! order.

mod file;
mod read;

use daqmeter_harness::{Shipped, TomlText};
use daqmeter_record::Order as Place;
use daqmeter_stats::Random;

use crate::budget::Budget;
use crate::point::PlannedPoint;
use crate::site::Site;

use file::PlanFile;
use file::PlanOrder;
pub use file::json_schema;
pub(crate) use read::param;
use read::{Reader, duration};

/// Plans that ship: one file in `plans/`, one line here.
pub const SHIPPED_PLANS: Shipped = Shipped {
    kind: "plan",
    files: &[
        ("memory", include_str!("../../../../plans/memory.toml")),
        ("quick", include_str!("../../../../plans/quick.toml")),
        ("conversion", include_str!("../../../../plans/conversion.toml")),
        ("digitizer-2017", include_str!("../../../../plans/digitizer-2017.toml")),
        ("etherbone-2018", include_str!("../../../../plans/etherbone-2018.toml")),
        ("felix-2019", include_str!("../../../../plans/felix-2019.toml")),
        ("felix-hour", include_str!("../../../../plans/felix-hour.toml")),
        ("felix-placement", include_str!("../../../../plans/felix-placement.toml")),
        ("ioat-2013", include_str!("../../../../plans/ioat-2013.toml")),
        ("copies", include_str!("../../../../plans/copies.toml")),
        ("survey", include_str!("../../../../plans/survey.toml")),
        ("survey-short", include_str!("../../../../plans/survey-short.toml")),
    ],
};

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
    pub fn load(name_or_path: &str) -> Result<Plan, String> {
        Plan::load_for(name_or_path, &Site::here())
    }

    pub fn load_for(name_or_path: &str, site: &Site) -> Result<Plan, String> {
        Plan::of(&SHIPPED_PLANS.get(name_or_path)?, site)
    }

    /// Parses a text for this host; messages use `name`.
    pub fn parse(text: &str, name: &str) -> Result<Plan, String> {
        Plan::of(&TomlText::new(name, text), &Site::here())
    }

    /// Parses a text for a host. Includes are sought beside the file of its name.
    pub fn of(source: &TomlText, site: &Site) -> Result<Plan, String> {
        let mut reader = Reader::new(site);
        let file: PlanFile = source.parse()?;
        let sweeps = reader.sweeps(source, &file)?;
        let budget = file.budget.as_ref();
        let time = budget.map(|text| duration(source, "budget", text)).transpose()?;
        if sweeps.iter().all(|(repetitions, _)| *repetitions == 0) {
            return Err(format!(
                "{}: the plan has no points: add a [[sweep]] or an include",
                source.name
            ));
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

/// Orders the points in rounds. The repetitions of each are spread evenly over all rounds; the
/// first round has every point.
fn in_order(sweeps: &[(u64, PlannedPoint)], order: PlanOrder, seed: u64) -> Vec<PlannedPoint> {
    let rounds = sweeps.iter().map(|(repetitions, _)| *repetitions).max().unwrap_or(0);
    let mut points = Vec::new();
    for round in 0..rounds {
        let is_due = |repetitions: u64| {
            let place = u128::from(round) * u128::from(repetitions) % u128::from(rounds);
            place < u128::from(repetitions)
        };
        let due = sweeps.iter().filter(|(repetitions, _)| is_due(*repetitions));
        let mut in_round: Vec<PlannedPoint> = due.map(|(_, point)| point.clone()).collect();
        if order == PlanOrder::Random {
            Random::new(seed.wrapping_add(round)).shuffle(&mut in_round);
        }
        points.extend(in_round);
    }
    let of = points.len() as u64;
    for (position, point) in (0_u64..).zip(&mut points) {
        point.place = Place { seed, position, of };
    }
    points
}

#[cfg(test)]
mod tests;
