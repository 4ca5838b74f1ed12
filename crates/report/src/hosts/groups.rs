//! Groups of alike hosts: by their CPUs, then by facts and numbers by which their times differ.

use daqmeter_record::Host;
use daqmeter_record::units::{percent, plural, significant};
use daqmeter_stats::{
    Borders, MIN_SIDE, NEAR, Place, Spread, Standing, between, others, two_kinds,
};

use super::MIN_RUNS;
use super::farm::{Farm, FarmHost, FarmPoint};
use super::kinds::PointKind;
use crate::groups::in_groups;

/// Places of the hosts of a group at one point, or at all points of a kind.
pub(crate) struct HostColumn {
    pub(crate) kind: PointKind,
    /// Number of the point; `None` for a whole kind.
    pub(crate) point: Option<usize>,
    pub(crate) places: Vec<Option<Place>>,
    pub(crate) spreads: Vec<Option<Spread>>,
}

/// Quantile of the others that the spread of a single point reaches. On a virtual machine many
/// points had a second state in a twentieth of the runs.
const FAR: f64 = 0.98;

impl HostColumn {
    fn of(kind: PointKind, point: Option<usize>, places: Vec<Option<Place>>) -> HostColumn {
        let tail = if point.is_none() { NEAR } else { FAR };
        let spreads = others(&places, tail);
        HostColumn { kind, point, places, spreads }
    }

    /// Returns the standing of a host of the group.
    pub(crate) fn standing(&self, at: usize, borders: &Borders) -> Option<Standing> {
        Some(self.spreads[at]?.standing(self.places[at]?, borders))
    }

    /// Tests if its places may tell two kinds of hosts. Where runs differ by more than they show, a
    /// state of one run is no kind of host.
    fn shows_kinds(&self) -> bool {
        let repeated = self.places.iter().flatten().filter(|place| place.runs >= MIN_RUNS.0);
        self.kind.beyond() == 0.0 || repeated.count() * 2 > self.places.iter().flatten().count()
    }

    fn of_hosts(&self, wanted: impl Fn(usize) -> bool) -> Vec<Place> {
        let own = self.places.iter().enumerate().filter(|(at, _)| wanted(*at));
        own.filter_map(|(_, place)| *place).collect()
    }
}

/// Columns of a group of hosts: those of all kinds, and those of all points of the farm.
pub(crate) struct HostTable {
    /// Numbers of the hosts.
    pub(crate) hosts: Vec<usize>,
    pub(crate) kinds: Vec<HostColumn>,
    pub(crate) points: Vec<HostColumn>,
}

impl HostTable {
    pub(crate) fn of(farm: &Farm, hosts: &[usize]) -> HostTable {
        let column = |(at, point): (usize, &FarmPoint)| {
            HostColumn::of(point.kind, Some(at), farm.places(at, hosts))
        };
        let points: Vec<HostColumn> = farm.points.iter().enumerate().map(column).collect();
        let kinds = PointKind::ALL.into_iter().map(|(kind, _)| {
            let places: Vec<Option<Place>> = match kind {
                PointKind::Clock => farm.clocks(hosts),
                _ => (0..hosts.len()).map(|at| of_kind(farm, &points, kind, at)).collect(),
            };
            HostColumn::of(kind, None, places)
        });
        let kinds = kinds.collect();
        HostTable { hosts: hosts.to_vec(), kinds, points }
    }
}

fn of_kind(farm: &Farm, points: &[HostColumn], kind: PointKind, at: usize) -> Option<Place> {
    let own = points.iter().filter(|column| column.kind == kind);
    let all = own.clone().filter(|column| column.spreads.iter().any(Option::is_some)).count();
    let places = own.filter_map(|column| {
        let (place, spread) = (column.places[at]?, column.spreads[at]?);
        // A difference from before has its own zero.
        let centre = if farm.is_paired { 0.0 } else { spread.centre };
        Some((Place { log: place.log - centre, ..place }, spread.near.sqrt()))
    });
    let places: Vec<_> = places.collect();
    // A few points do not stand for a kind, such as those of a run that ended early.
    (places.len() * 4 > all).then(|| Place::of_kind(&places, kind.beyond()))?
}

/// Name of a fact, and its value.
type Fact = (&'static str, fn(&FarmHost) -> String);

/// Facts by which alike hosts may differ, in the order in which they are tried.
const FACTS: [Fact; 8] = [
    ("memory", |host| format!("{} GiB", significant(host.facts.memory_bytes as f64 / GIB, 2))),
    ("kernel", |host| kernel(&host.facts)),
    ("governor", |host| host.facts.governor.clone().unwrap_or_default()),
    ("hypervisor", |host| host.facts.hypervisor.clone().unwrap_or_default()),
    ("mitigations", |host| host.facts.mitigations.join("; ")),
    ("transparent huge pages", |host| host.facts.transparent_huge_pages.clone()),
    ("clock source", |host| host.facts.clocksource.clone()),
    ("daqmeter", |host| host.program.clone()),
];
const GIB: f64 = (1_u64 << 30) as f64;

fn kernel(host: &Host) -> String {
    host.kernel.split(' ').next().unwrap_or_default().to_owned()
}

/// Hosts that are compared with each other.
pub(crate) struct HostGroup {
    pub(crate) table: HostTable,
    /// CPU, and how the group differs from others with this CPU.
    pub(crate) name: String,
}

/// Divides the hosts into groups, the largest first.
pub(crate) fn divided(farm: &Farm) -> Vec<HostGroup> {
    let cpu = |at: usize| {
        let facts = &farm.hosts[at].facts;
        let cpus = plural(u64::from(facts.logical_cpus), "CPU");
        let sockets =
            if facts.sockets > 1 { format!(", {} sockets", facts.sockets) } else { String::new() };
        format!("{}, {cpus}{sockets}", facts.cpu_model)
    };
    let alike = in_groups((0..farm.hosts.len()).map(|at| (cpu(at), at)));
    let mut groups: Vec<HostGroup> = Vec::new();
    for (name, hosts) in alike {
        split(farm, name, &hosts, &mut groups);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.table.hosts.len()));
    groups
}

/// Splits hosts as long as a fact or the numbers separate some of them.
fn split(farm: &Farm, name: String, hosts: &[usize], found: &mut Vec<HostGroup>) {
    let table = HostTable::of(farm, hosts);
    let sides = if hosts.len() < 2 * MIN_SIDE { None } else { sides(farm, &table) };
    let Some((is_other, names)) = sides else { return found.push(HostGroup { table, name }) };
    for (side, own) in [false, true].into_iter().zip(names) {
        let of_side = hosts.iter().zip(&is_other).filter(|(_, is)| **is == side);
        let of_side: Vec<usize> = of_side.map(|(host, _)| *host).collect();
        split(farm, format!("{name}, {own}"), &of_side, found);
    }
}

/// Returns which hosts are of another kind than the most, and how both are called.
fn sides(farm: &Farm, table: &HostTable) -> Option<(Vec<bool>, [String; 2])> {
    let by_fact = FACTS.iter().find_map(|(fact, value)| {
        let hosts = table.hosts.iter().map(|host| &farm.hosts[*host]);
        let values: Vec<String> = hosts.map(value).collect();
        let mut counts = crate::groups::counted(values.iter().cloned());
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.retain(|(_, count)| *count >= MIN_SIDE);
        let (most, others) = counts.split_first()?;
        let is = |other: &str| values.iter().map(|value| value == other).collect::<Vec<bool>>();
        let differs = |(other, _): &&(String, usize)| {
            let (own, other) = (is(&most.0), is(other));
            let tests = (FACTS.len() * table.kinds.len()) as f64;
            table.kinds.iter().any(|kind| {
                let sides = [kind.of_hosts(|at| other[at]), kind.of_hosts(|at| own[at])];
                let found = between(&sides[0], &sides[1], tests);
                found.is_some_and(|(log, half)| log.abs() > half && log.abs() > DIFFERS.ln_1p())
            })
        };
        let (other, _) = others.iter().find(differs)?;
        Some((is(other), [&most.0, other].map(|value| format!("{fact} {value}"))))
    });
    by_fact.or_else(|| {
        table.kinds.iter().filter(|kind| kind.shows_kinds()).find_map(|kind| {
            let border = two_kinds(&kind.of_hosts(|_| true))?;
            let is_slow: Vec<bool> =
                kind.places.iter().map(|place| place.is_some_and(|it| it.log > border)).collect();
            let [fast, slow] = [false, true].map(|side| kind.of_hosts(|at| is_slow[at] == side));
            let by = Spread::of(&slow, NEAR)?.centre - Spread::of(&fast, NEAR)?.centre;
            let (name, by) = (kind.kind.name(), percent(by.exp_m1(), 2));
            Some((is_slow, [format!("{name} faster"), format!("{name} {by} % slower")]))
        })
    })
}

/// Least difference that makes hosts a kind of their own.
const DIFFERS: f64 = 0.02;
