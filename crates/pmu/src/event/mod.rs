//! Event texts and their meaning: `arm_cmn/hnf_mc_reqs,nodeid=0x24/`, `page-faults`,
//! `block:block_rq_issue`, `disk.vda.read_bytes`. Braces make groups, as in perf: `{a,b},c`.

mod error;
mod split;
mod terms;
mod types;

use daqmeter_sys::counters::{Attributes, Excluded};
use daqmeter_sys::host::{Files, parse_cpu_list};

pub use error::EventError;
use split::split_groups;
use terms::{Terms, on_mesh};
pub use types::{EventCounter, EventSet, OnMesh, PmuEvent};

use crate::sysfs::{Pmu, has_tracefs, tracepoint};
use crate::system::SystemCounter;

/// Software events of the kernel: `include/uapi/linux/perf_event.h`, `enum perf_sw_ids`.
pub const SOFTWARE: &[(&str, u64, &str)] = &[
    ("cpu-clock", 0, "ns"),
    ("task-clock", 1, "ns"),
    ("page-faults", 2, ""),
    ("faults", 2, ""),
    ("context-switches", 3, ""),
    ("cs", 3, ""),
    ("cpu-migrations", 4, ""),
    ("migrations", 4, ""),
    ("minor-faults", 5, ""),
    ("major-faults", 6, ""),
    ("alignment-faults", 7, ""),
    ("emulation-faults", 8, ""),
    ("bpf-output", 10, ""),
    ("cgroup-switches", 11, ""),
];

/// Generic hardware events, `enum perf_hw_id`.
pub const HARDWARE: &[(&str, u64)] = &[
    ("cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branches", 4),
    ("branch-misses", 5),
    ("bus-cycles", 6),
    ("stalled-cycles-frontend", 7),
    ("stalled-cycles-backend", 8),
    ("ref-cycles", 9),
];

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const TYPE_RAW: u32 = 4;

/// Returns the code of a raw event of the CPUs, `r1a2`.
fn raw_code(text: &str) -> Option<u64> {
    let code = text.strip_prefix('r')?;
    let is_hex = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(code, 16).ok())?
}

/// Returns the modes that a modifier leaves out.
fn excluded(modifier: &str) -> Option<Excluded> {
    let is_known = !modifier.is_empty() && modifier.bytes().all(|letter| b"ukh".contains(&letter));
    is_known.then(|| Excluded {
        user: !modifier.contains('u'),
        kernel: !modifier.contains('k'),
        hypervisor: !modifier.contains('h'),
    })
}

#[derive(Debug)]
pub struct EventResolver<'a> {
    pub pmus: &'a [Pmu],
    pub files: &'a Files,
}

impl EventResolver<'_> {
    /// Resolves texts in the form of perf's `-e`.
    pub fn resolve(&self, texts: &[String]) -> Result<EventSet, EventError> {
        let mut set = EventSet::default();
        for text in texts {
            for group in split_groups(text)? {
                let events: Result<Vec<_>, _> =
                    group.iter().map(|event| self.event(event, &mut set.warnings)).collect();
                set.groups.push(events?);
            }
        }
        if set.warnings.len() > 1 {
            let others = set.warnings.len() - 1;
            set.warnings.truncate(1);
            set.warnings[0].push_str(&format!("; the same for {others} more"));
        }
        Ok(set)
    }

    fn event(&self, text: &str, warnings: &mut Vec<String>) -> Result<PmuEvent, EventError> {
        match text.split_once('/') {
            Some((pmu, rest)) => self.pmu_event(text, pmu, rest, warnings),
            None => self.plain(text),
        }
    }

    fn plain(&self, text: &str) -> Result<PmuEvent, EventError> {
        let Some((event, modifier)) = text.rsplit_once(':') else {
            return self.named(text);
        };
        // A tracepoint contains a colon itself.
        let is_event = event.contains(':')
            || raw_code(event).is_some()
            || SOFTWARE.iter().any(|(name, ..)| *name == event)
            || HARDWARE.iter().any(|(name, _)| *name == event);
        if !is_event {
            return self.named(text);
        }
        let excluded =
            excluded(modifier).ok_or_else(|| EventError::unknown_modifier(text, modifier))?;
        let mut event = self.named(event)?;
        text.clone_into(&mut event.name);
        event.exclude(excluded);
        Ok(event)
    }

    fn named(&self, text: &str) -> Result<PmuEvent, EventError> {
        let perf = |pmu: &str, kind, config, unit: &str| {
            let attributes = Attributes { kind, config, ..Attributes::default() };
            let sources = vec![EventCounter::Perf { attributes, cpus: self.online() }];
            PmuEvent { sources, unit: unit.to_owned(), ..PmuEvent::new(text, pmu) }
        };
        if let Some((_, config, unit)) = SOFTWARE.iter().find(|(name, ..)| *name == text) {
            return Ok(perf("software", TYPE_SOFTWARE, *config, unit));
        }
        if let Some((_, config)) = HARDWARE.iter().find(|(name, _)| *name == text) {
            return Ok(perf("cpu", TYPE_HARDWARE, *config, ""));
        }
        if let Some(config) = raw_code(text) {
            return Ok(perf("cpu", TYPE_RAW, config, ""));
        }
        if let Some((subsystem, event)) = text.split_once(':') {
            return match tracepoint(self.files, subsystem, event) {
                Some(config) => Ok(perf("tracepoint", TYPE_TRACEPOINT, config, "")),
                None if has_tracefs(self.files) => Err(EventError::unknown(text)),
                None => Err(EventError::new(
                    text,
                    ": no tracepoint can be seen: tracefs is not mounted, or needs root; as root: mount -t tracefs none /sys/kernel/tracing",
                )),
            };
        }
        let counter =
            SystemCounter::find(self.files, text).ok_or_else(|| EventError::unknown(text))?;
        let unit = counter.unit().to_owned();
        let sources = vec![EventCounter::System(counter)];
        Ok(PmuEvent { sources, unit, ..PmuEvent::new(text, "system") })
    }

    fn online(&self) -> Vec<u32> {
        let online =
            self.files.text("sys/devices/system/cpu/online").map(|text| parse_cpu_list(&text));
        online.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| vec![0])
    }

    fn pmu_event(
        &self,
        text: &str,
        wanted: &str,
        rest: &str,
        warnings: &mut Vec<String>,
    ) -> Result<PmuEvent, EventError> {
        let unclosed = || EventError::new(text, ": the second slash is missing: PMU/EVENT/");
        let (terms, modifier) = rest.split_once('/').ok_or_else(unclosed)?;
        let modifier = modifier.trim_start_matches(':');
        let excluded = match excluded(modifier) {
            None if !modifier.is_empty() => {
                return Err(EventError::unknown_modifier(text, modifier));
            }
            excluded => excluded.unwrap_or_default(),
        };
        let mut event = PmuEvent::new(text, wanted);
        for pmu in self.instances(text, wanted)? {
            let Terms { mut words, alias, .. } = Terms::of(text, pmu, terms)?;
            if let Some(alias) = alias {
                event.unit.clone_from(&alias.unit);
                event.scale = alias.scale;
            }
            event.on_mesh = on_mesh(text, pmu, &mut words, warnings);
            let [config, config1, config2] = words;
            let is_of_cpus = pmu.cpus.is_empty();
            if !is_of_cpus && !modifier.is_empty() {
                let why = "what is shared by all CPUs has no user and kernel mode";
                let problem = format!(": the modifier `:{modifier}` is not taken here: {why}");
                return Err(EventError::new(text, problem));
            }
            event.sources.push(EventCounter::Perf {
                attributes: Attributes { kind: pmu.kind, config, config1, config2, excluded },
                cpus: if is_of_cpus { self.online() } else { pmu.cpus.clone() },
            });
        }
        Ok(event)
    }

    fn instances(&self, text: &str, wanted: &str) -> Result<Vec<&Pmu>, EventError> {
        if let Some(pmu) = self.pmus.iter().find(|pmu| pmu.name == wanted) {
            return Ok(vec![pmu]);
        }
        let found: Vec<&Pmu> = self.pmus.iter().filter(|pmu| pmu.family() == wanted).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let there: Vec<&str> = self.pmus.iter().map(|pmu| pmu.name.as_str()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let problem =
            format!(": this host has no PMU `{wanted}`; it has {there} (daqmeter pmu list)");
        Err(EventError::new(text, problem))
    }
}

#[cfg(test)]
mod tests;
