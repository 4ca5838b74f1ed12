//! One host among a population: is each of its numbers normal?

use daqmeter_record::units::{percent, plural};
use daqmeter_stats::{Borders, Standing, share_interval};
use serde::Serialize;

use super::groups::{HostColumn, divided};
use super::{Farm, HostFinding, HostVerdict, Judge, MIN_HOSTS, PointKind, SHARES};
use crate::aligned::{asks_all, numbers_from};
use crate::frame::Frame;
use crate::points::StagePoint;

/// Place of a host among others of its kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedHost {
    pub name: String,
    /// Kind of its group, the number of the others in it, and that of all hosts.
    pub kind: String,
    pub others: usize,
    pub all: usize,
    pub verdict: HostVerdict,
    pub findings: Vec<HostFinding>,
    /// Whole kinds of points, then points.
    pub ranks: Vec<HostRank>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostRank {
    pub kind: PointKind,
    /// Name of the point; `None` for all points of a kind.
    pub point: Option<String>,
    #[serde(flatten)]
    pub identity: Option<StagePoint>,
    /// Time over the middle of the others, with its 95 % interval.
    pub ratio: f64,
    pub interval: (f64, f64),
    /// Share of the others that are faster, with its 95 % interval.
    pub slower_than: f64,
    pub slower_than_interval: (f64, f64),
    /// Smallest slowdown that would be called one, as a fraction.
    pub visible: f64,
    z: f64,
}

/// Ranks the last host of a farm among the others. Differences up to `ignore` are none.
pub fn ranked(farm: &Farm, ignore: f64) -> Option<RankedHost> {
    let names = farm.names();
    let own = farm.hosts.len().checked_sub(1)?;
    let group = divided(farm).into_iter().find(|group| group.table.hosts.contains(&own))?;
    let table = &group.table;
    let at = table.hosts.iter().position(|host| *host == own)?;
    let count = |columns: &[HostColumn]| {
        SHARES * columns.iter().filter(|column| column.places[at].is_some()).count().max(1) as f64
    };
    let tests = [count(&table.kinds), count(&table.points)];
    let borders = tests.map(|tests| Borders::of(tests, ignore));
    let judge = Judge { farm, names: &names, table, borders: &borders, at };
    let judged = judge.host("", &[]);
    let columns = table.kinds.iter().chain(&table.points).zip(&judged.standings);
    let rank = |(column, standing): (&HostColumn, &Option<Standing>)| {
        let (own, standing) = (column.places[at]?, (*standing)?);
        let others = column.places.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<f64> = others.filter_map(|(_, place)| Some((*place)?.log)).collect();
        let faster = others.iter().filter(|log| **log < own.log).count();
        Some(HostRank {
            kind: column.kind,
            point: column.point.map(|point| names[point].clone()),
            identity: column.point.map(|point| farm.points[point].identity.clone()),
            ratio: standing.log.exp(),
            interval: standing.interval,
            slower_than: faster as f64 / others.len() as f64,
            slower_than_interval: share_interval(faster as u64, others.len() as u64),
            visible: standing.visible,
            z: standing.z,
        })
    };
    Some(RankedHost {
        ranks: columns.filter_map(rank).collect(),
        name: judged.name,
        kind: group.name,
        others: table.hosts.len() - 1,
        all: own,
        verdict: judged.verdict,
        findings: judged.findings,
    })
}

/// Rows of points on the screen: the farthest.
const MAX_POINTS: usize = 8;
const HEADINGS: [&str; 5] = ["part", "over the middle", "95 %", "slower than", "shows from"];

impl RankedHost {
    /// Tests if the host has enough others of its kind.
    pub fn is_seen(&self) -> bool {
        self.others + 1 >= MIN_HOSTS && !self.ranks.is_empty()
    }

    pub fn frame(&self) -> Frame {
        let mut points: Vec<&HostRank> =
            self.ranks.iter().filter(|rank| rank.point.is_some()).collect();
        if !asks_all() {
            points.sort_by(|a, b| b.z.total_cmp(&a.z));
            points.truncate(MAX_POINTS);
        }
        let kinds = self.ranks.iter().filter(|rank| rank.point.is_none());
        let rows: Vec<Vec<String>> = kinds.chain(points).map(HostRank::row).collect();
        let tables = if rows.is_empty() { String::new() } else { numbers_from(1, &HEADINGS, rows) };
        Frame { answer: vec![self.answer()], tables: format!("\n{tables}"), notes: Vec::new() }
    }

    fn answer(&self) -> String {
        let RankedHost { name, kind, others, all, .. } = self;
        let hosts = plural(*others as u64, "other host");
        if !self.is_seen() {
            return format!("{name} has {hosts} of its kind among {all}, too few: {kind}");
        }
        let found: Vec<String> = self.findings.iter().take(3).map(HostFinding::said).collect();
        let found = found.join("; ");
        match self.verdict {
            HostVerdict::Different => format!("{name} differs from {hosts} of its kind: {found}"),
            HostVerdict::Unconfirmed => format!(
                "{name} is far off among {hosts} of its kind, in too few runs; measure it again: {found}"
            ),
            HostVerdict::Suspect => {
                format!("{name} is at the edge of {hosts} of its kind: {found}")
            }
            _ => format!("{name} is normal among {hosts} of its kind: {kind}"),
        }
    }
}

impl HostRank {
    fn row(&self) -> Vec<String> {
        let by = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
        let share = |share: f64| percent(share, 2);
        let (low, high) = self.slower_than_interval;
        vec![
            self.point.clone().unwrap_or_else(|| self.kind.name().to_owned()),
            format!("{} %", by(self.ratio)),
            format!("{} to {}", by(self.interval.0), by(self.interval.1)),
            format!("{} % ({} to {})", share(self.slower_than), share(low), share(high)),
            format!("{} %", percent(self.visible, 2)),
        ]
    }
}
