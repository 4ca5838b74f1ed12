//! Event texts and their meaning: `arm_cmn/hnf_mc_reqs,nodeid=0x24/`, `page-faults`,
//! `block:block_rq_issue`, `disk.vda.read_bytes`. Braces make groups, as in perf: `{a,b},c`.

mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use daqmeter_harness::{Fault, TomlText};
use daqmeter_record::units::joined;
use daqmeter_sys::counters::Attributes;
use daqmeter_sys::host::{Files, parse_cpu_list};

use terms::{Terms, on_mesh};

use crate::sysfs::{Pmu, is_of, tracepoint};
use crate::system::SystemCounter;

/// Name, number and unit of an event.
type NumberedEvent = (String, u64, String);

/// Software events of the kernel and generic ones of the CPU, from `events.toml`, by their PMU.
pub static NUMBERED: LazyLock<BTreeMap<String, Vec<NumberedEvent>>> = LazyLock::new(|| {
    let text = TomlText::new("events.toml", include_str!("../../events.toml"));
    text.parse().expect("ships with the binary and is tested")
});

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const TYPE_RAW: u32 = 4;

#[derive(Clone, Debug, Default)]
pub struct PmuEvent {
    pub name: String,
    /// PMU, or the family when several instances are added up.
    pub pmu: String,
    pub sources: Vec<EventCounter>,
    /// Unit after scaling, empty for a plain count.
    pub unit: String,
    /// Factor from count to unit.
    pub scale: f64,
    pub on_mesh: Option<OnMesh>,
    /// Part of the machine that it is counted in; empty for all of it.
    pub place: String,
}

#[derive(Clone, Debug)]
pub enum EventCounter {
    /// A counter of `perf_event_open(2)`, on each of the CPUs.
    Perf { attributes: Attributes, cpus: Vec<u32> },
    /// A file of the kernel.
    System(SystemCounter),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnMesh {
    pub type_code: u16,
    /// Event number; for a watchpoint its direction, 0 up and 2 down.
    pub event_id: u64,
    /// Filter of the node, or the combination of a watchpoint.
    pub occup_id: u64,
    /// The only node; `None` sums all of the type.
    pub node_id: Option<u16>,
    pub wp_device: u64,
    pub wp_group: u64,
}

#[derive(Clone, Debug, Default)]
pub struct EventSet {
    pub groups: Vec<Vec<PmuEvent>>,
    pub warnings: Vec<String>,
}

impl EventSet {
    pub fn events(&self) -> impl Iterator<Item = &PmuEvent> {
        self.groups.iter().flatten()
    }
}

impl PmuEvent {
    pub fn new(name: &str, pmu: &str) -> PmuEvent {
        PmuEvent { name: name.into(), pmu: pmu.into(), scale: 1.0, ..PmuEvent::default() }
    }

    pub fn is_on(&self, mesh: &str) -> bool {
        let instance = mesh.strip_prefix(self.pmu.as_str());
        self.on_mesh.is_some()
            && instance.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }

    /// Returns the number of counters (CPUs, instances) in its sum.
    pub(crate) fn places(&self) -> u32 {
        let counters = |source: &EventCounter| match source {
            EventCounter::Perf { cpus, .. } => cpus.len(),
            EventCounter::System(_) => 1,
        };
        u32::try_from(self.sources.iter().map(counters).sum::<usize>()).unwrap_or(u32::MAX)
    }
}

/// Appends the problem to the text, mostly after a colon.
pub(crate) fn wrong(text: &str, problem: &str) -> Fault {
    Fault::new(format!("`{text}`{problem}"))
}

/// Splits `{a/x,y/,b},c` into groups of texts: commas within slashes belong to the event.
fn split_groups(text: &str) -> Result<Vec<Vec<String>>, Fault> {
    let wrong = |problem: &str| wrong(text, &format!(": {problem}"));
    let (mut groups, mut group, mut event) = (Vec::new(), None::<Vec<String>>, String::new());
    let mut in_slashes = false;
    for letter in text.chars().chain([',']) {
        if in_slashes || !['{', '}', ','].contains(&letter) {
            in_slashes ^= letter == '/';
            event.push(letter);
            continue;
        }
        if letter == '{' {
            if group.replace(Vec::new()).is_some() {
                return Err(wrong("groups do not nest"));
            }
            continue;
        }
        let ended = std::mem::take(&mut event).trim().to_owned();
        match &mut group {
            _ if ended.is_empty() => {}
            Some(group) => group.push(ended),
            None => groups.push(vec![ended]),
        }
        if letter == '}' {
            groups
                .push(group.take().ok_or_else(|| wrong("a brace is closed that was not opened"))?);
        }
    }
    groups.retain(|group| !group.is_empty());
    match () {
        () if in_slashes => Err(wrong("the second slash is missing: PMU/EVENT/")),
        () if group.is_some() => Err(wrong("a brace is not closed")),
        () if groups.is_empty() => Err(wrong("no event is named")),
        () => Ok(groups),
    }
}

/// Most names in a message.
const MAX_NAMED: usize = 6;

/// Returns the names of a PMU's events that have the beginning of a text in them.
fn named_like<'a>(pmu: &'a Pmu, text: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let start: String = text.chars().take(5).collect();
    pmu.events.iter().map(|alias| &*alias.name).filter(move |name| name.contains(&start))
}

#[derive(Debug)]
pub struct EventResolver<'a> {
    pub pmus: &'a [Pmu],
    pub files: &'a Files,
}

impl EventResolver<'_> {
    /// Resolves texts in the form of perf's `-e`.
    pub fn resolve(&self, texts: &[String]) -> Result<EventSet, Fault> {
        let mut set = EventSet::default();
        let groups = texts.iter().map(|text| split_groups(text)).collect::<Result<Vec<_>, _>>()?;
        for group in groups.concat() {
            let events = group.iter().map(|event| self.event(event, &mut set.warnings));
            let events = events.collect::<Result<_, _>>()?;
            set.groups.push(events);
        }
        if set.warnings.len() > 1 {
            let others = set.warnings.len() - 1;
            set.warnings.truncate(1);
            set.warnings[0].push_str(&format!("; the same for {others} more"));
        }
        Ok(set)
    }

    fn event(&self, text: &str, warnings: &mut Vec<String>) -> Result<PmuEvent, Fault> {
        if let Some((pmu, rest)) = text.split_once('/') {
            return self.pmu_event(text, pmu, rest, warnings);
        }
        let perf = |pmu: &str, kind, config, unit: &str| {
            let attributes = Attributes { kind, config, ..Attributes::default() };
            let sources = vec![EventCounter::Perf { attributes, cpus: self.online() }];
            Ok(PmuEvent { sources, unit: unit.to_owned(), ..PmuEvent::new(text, pmu) })
        };
        for (pmu, kind) in [("software", TYPE_SOFTWARE), ("cpu", TYPE_HARDWARE)] {
            if let Some((_, config, unit)) = NUMBERED[pmu].iter().find(|(name, ..)| name == text) {
                return perf(pmu, kind, *config, unit);
            }
        }
        // Codes of the CPU's own events, as for perf: r1a8.
        let code = text.strip_prefix('r').map(|code| u64::from_str_radix(code, 16));
        if let Some(Ok(config)) = code {
            return perf("cpu", TYPE_RAW, config, "");
        }
        if let Some((subsystem, event)) = text.split_once(':') {
            return match tracepoint(self.files, subsystem, event) {
                Some(config) => perf("tracepoint", TYPE_TRACEPOINT, config, ""),
                None if self.event(subsystem, warnings).is_ok() => Err(self.unknown(text)),
                None if self.files.tracefs().is_some() => Err(self.unknown(text)),
                None => Err(wrong(
                    text,
                    ": no tracepoint can be seen: tracefs is not mounted, or needs root; as root: mount -t tracefs none /sys/kernel/tracing",
                )),
            };
        }
        let Some(counter) = SystemCounter::find(self.files, text) else {
            // A bare name, as perf list shows it.
            let mut owners = self.pmus.iter().filter(|pmu| pmu.event(text).is_some());
            let family = owners.next().ok_or_else(|| self.unknown(text))?.family();
            return match owners.find(|pmu| pmu.family() != family) {
                Some(other) => {
                    let other = other.family();
                    Err(wrong(text, &format!(": write {family}/{text}/ or {other}/{text}/")))
                }
                None => self.pmu_event(text, family, &format!("{text}/"), warnings),
            };
        };
        let unit = counter.unit.to_owned();
        let sources = vec![EventCounter::System(counter)];
        Ok(PmuEvent { sources, unit, ..PmuEvent::new(text, "system") })
    }

    fn unknown(&self, text: &str) -> Fault {
        let named = |pmu| named_like(pmu, text).map(|name| format!("{}/{name}/", Pmu::family(pmu)));
        let near: BTreeSet<String> = self.pmus.iter().flat_map(named).collect();
        let near = joined(near.into_iter().take(MAX_NAMED), ", ");
        let near = near.map_or(String::new(), |near| format!("; near are {near}"));
        let what = "write PMU/EVENT/, SUBSYSTEM:TRACEPOINT, a software event or a counter of the system such as disk.read_bytes, without a modifier (daqmeter pmu list)";
        wrong(text, &format!(" is not an event: {what}{near}"))
    }

    fn online(&self) -> Vec<u32> {
        let online =
            self.files.text("sys/devices/system/cpu/online").map(|text| parse_cpu_list(&text));
        online.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| vec![0])
    }

    /// Returns the CPUs of a PMU. Those of a hybrid CPU list the ones that are offline, too.
    fn online_of(&self, pmu: &Pmu) -> Vec<u32> {
        let online = self.online();
        let own: Vec<u32> = online.iter().copied().filter(|cpu| pmu.cpus.contains(cpu)).collect();
        match pmu.cpus.as_slice() {
            [] => online,
            cpus if own.is_empty() => cpus.to_vec(),
            _ => own,
        }
    }

    fn pmu_event(
        &self,
        text: &str,
        wanted: &str,
        rest: &str,
        warnings: &mut Vec<String>,
    ) -> Result<PmuEvent, Fault> {
        let Some((terms, "")) = rest.split_once('/') else {
            return Err(wrong(text, ": an event ends with its second slash, PMU/EVENT/"));
        };
        let (named, terms): (Vec<&str>, Vec<&str>) =
            terms.split(',').partition(|term| term.trim().starts_with("name="));
        let name = named.last().map_or(text, |term| &term.trim()["name=".len()..]);
        let terms = terms.join(",");
        let mut event = PmuEvent::new(name, wanted);
        for pmu in self.instances(text, wanted)? {
            let Terms { mut words, alias, .. } = Terms::of(text, pmu, &terms)?;
            if let Some(alias) = alias {
                event.unit.clone_from(&alias.unit);
                event.scale = alias.scale;
            }
            event.on_mesh = on_mesh(text, pmu, &mut words, warnings);
            let [config, config1, config2] = words;
            let kind = pmu.kind;
            event.sources.push(EventCounter::Perf {
                attributes: Attributes { kind, config, config1, config2 },
                cpus: self.online_of(pmu),
            });
        }
        Ok(event)
    }

    fn instances(&self, text: &str, wanted: &str) -> Result<Vec<&Pmu>, Fault> {
        if let Some(pmu) = self.pmus.iter().find(|pmu| pmu.name == wanted) {
            return Ok(vec![pmu]);
        }
        let found: Vec<&Pmu> = self.pmus.iter().filter(|pmu| is_of(&pmu.name, wanted)).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let there: BTreeSet<&str> = self.pmus.iter().map(Pmu::family).collect();
        // A server has fifty: the nearest first.
        let is_far = |name: &&str| name.get(..3) != wanted.get(..3);
        let mut names: Vec<&str> = there.into_iter().collect();
        names.sort_by_key(is_far);
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        let mut there = joined(names, ", ").unwrap_or("none".to_owned());
        if more > 0 {
            there += &format!(" and {more} more");
        }
        let problem =
            format!(": this host has no PMU `{wanted}`; it has {there} (daqmeter pmu list)");
        Err(wrong(text, &problem))
    }
}

#[cfg(test)]
mod tests;
