//! The page about many hosts: a row a host, and how the times of each column are distributed.

use daqmeter_record::units::percent;
use daqmeter_stats::Standing;
use minijinja::{Value, context};

use super::{HostVerdict, JudgedFarm, JudgedHost, PointKind};
use crate::html::STYLE;
use crate::template::{rendered, serde};

/// Most hosts in the table, and most columns of points.
const MAX_ROWS: usize = 1000;
const MAX_POINTS: usize = 20;
/// Most hosts that are named in a distribution.
const MAX_NAMED: usize = 3;

impl JudgedFarm {
    pub fn page(&self) -> String {
        let columns = self.columns_shown();
        let mut hosts: Vec<&JudgedHost> = self.hosts.iter().collect();
        hosts.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(a.group.cmp(&b.group)));
        let row = |host: &&JudgedHost| {
            let cells: Vec<Value> =
                columns.iter().map(|at| cell(host.standings[*at], self.ignore)).collect();
            let said: Vec<String> = host.findings.iter().map(super::HostFinding::said).collect();
            context! { host => serde(host), cells, said, verdict => host.verdict.word() }
        };
        let rows: Vec<Value> = hosts.iter().take(MAX_ROWS).map(row).collect();
        let values = context! {
            style => STYLE,
            answer => self.answer(),
            groups => serde(&self.groups),
            headings => columns.iter().map(|at| self.columns[*at].clone()).collect::<Vec<_>>(),
            rows,
            left => self.hosts.len().saturating_sub(MAX_ROWS),
            strips => columns.iter().filter_map(|at| self.strip(*at)).collect::<Vec<_>>(),
            notes => self.notes(),
            is_paired => self.is_paired,
        };
        rendered("hosts.html", include_str!("../../assets/hosts.html"), values)
    }

    /// Returns the numbers of the columns: kinds, then points with the farthest hosts.
    fn columns_shown(&self) -> Vec<usize> {
        let kinds = PointKind::ALL.len();
        let z = |at: usize| {
            let all = self.hosts.iter().filter_map(|host| host.standings[at]);
            all.map(|standing| standing.z).fold(0.0, f64::max)
        };
        let is_there = |at: &usize| self.hosts.iter().any(|host| host.standings[*at].is_some());
        let mut points: Vec<(usize, f64)> =
            (kinds..self.columns.len()).filter(is_there).map(|at| (at, z(at))).collect();
        points.sort_by(|a, b| b.1.total_cmp(&a.1));
        points.truncate(MAX_POINTS);
        (0..kinds).filter(is_there).chain(points.into_iter().map(|(at, _)| at)).collect()
    }

    /// Draws the distribution of a column, over the centre of each host's group.
    fn strip(&self, at: usize) -> Option<Value> {
        const WIDTH: f64 = 600.0;
        let all = self.hosts.iter().filter_map(|host| Some((host, host.standings[at]?)));
        let mut all: Vec<(&JudgedHost, Standing)> = all.collect();
        let most = all.iter().map(|(_, own)| own.log.abs()).fold(0.005, f64::max);
        let place = |log: f64| WIDTH * (0.5 + 0.48 * log / most);
        let tick = |(_, own): &(&JudgedHost, Standing)| format!("M{:.1} 4v14", place(own.log));
        let is_out = |own: &Standing| own.is_apart || own.is_suspect;
        let ticks: String = all.iter().filter(|(_, own)| !is_out(own)).map(tick).collect();
        all.retain(|(_, own)| is_out(own));
        all.sort_by(|a, b| b.1.z.total_cmp(&a.1.z));
        let outer: String = all.iter().map(tick).collect();
        let named = all.iter().take(MAX_NAMED).enumerate().map(|(row, (host, own))| {
            let x = place(own.log);
            let anchor = if x > WIDTH / 2.0 { "end" } else { "start" };
            context! { name => &host.name, x => format!("{x:.0}"), y => 31 + 12 * row, anchor }
        });
        let named: Vec<Value> = named.collect();
        (!self.hosts.is_empty()).then(|| {
            context! {
                name => &self.columns[at],
                ticks, outer, named,
                height => 36 + 12 * all.len().min(MAX_NAMED),
                faster => percent(-(-most).exp_m1(), 2),
                slower => percent(most.exp_m1(), 2),
            }
        })
    }
}

impl HostVerdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            HostVerdict::Alike => "alike",
            HostVerdict::NotSeen => "no group",
            HostVerdict::Suspect => "suspect",
            HostVerdict::Unconfirmed => "far off, too few runs",
            HostVerdict::Different => "differs",
        }
    }
}

/// Returns the text of a cell, and its class.
fn cell(standing: Option<Standing>, ignore: f64) -> Value {
    let Some(own) = standing else { return context! { text => "", class => "none" } };
    let class = match own {
        Standing { is_apart: true, .. } => "apart",
        Standing { is_suspect: true, .. } => "suspect",
        _ if own.log.abs() <= ignore => "same",
        _ => "",
    };
    context! { text => format!("{:+.1}", own.log.exp_m1() * 100.0), class }
}
