//! Events as people write them, and what they become: `arm_cmn/hnf_mc_reqs,nodeid=0x24/`, `page-faults`, `block:block_rq_issue`,
//! `disk.vda.read_bytes`. Groups are in braces, as in perf: `{a,b},c`.

use daqmeter_sys::counters::Attributes;
use daqmeter_sys::host::{Files, parse_cpu_list};

use crate::format::FormatError;
use crate::sysfs::{Pmu, parse_number, tracepoint};
use crate::system::SystemCounter;

/// What is counted, and where.
#[derive(Clone, Debug)]
pub struct Event {
    /// As it was asked for.
    pub name: String,
    /// PMU, or the family when several instances are added up.
    pub pmu: String,
    /// Where it is opened; the values are added up.
    pub sources: Vec<Source>,
    /// Unit after scaling, empty for a plain count.
    pub unit: String,
    /// Factor from count to unit.
    pub scale: f64,
    /// For a mesh: which node and what of it.
    pub on_mesh: Option<OnMesh>,
}

impl Event {
    /// Whether it is counted on the mesh of that name: by its own PMU, or as one of the family.
    pub fn is_on(&self, mesh: &str) -> bool {
        let instance = mesh.strip_prefix(self.pmu.as_str());
        self.on_mesh.is_some()
            && instance.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// One place where an event is counted.
#[derive(Clone, Debug)]
pub enum Source {
    /// By `perf_event_open(2)`, on each of the CPUs.
    Perf {
        /// What.
        attributes: Attributes,
        /// Where.
        cpus: Vec<u32>,
    },
    /// From a file of the kernel.
    System(SystemCounter),
}

/// Fields of an arm-cmn event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnMesh {
    /// Type of the nodes.
    pub type_code: u16,
    /// Event number; for a watchpoint its direction, 0 up and 2 down.
    pub event_id: u64,
    /// Filter of the node, or the combination of a watchpoint.
    pub occup_id: u64,
    /// The one node; none sums all of the type.
    pub node_id: Option<u16>,
    /// Device selected by a watchpoint.
    pub wp_device: u64,
    /// Group of a watchpoint, `wp_grp`.
    pub wp_group: u64,
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Braces or slashes that do not match.
    #[error("`{text}`: {problem}")]
    Syntax {
        /// The text.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No such PMU.
    #[error("`{text}`: this host has no PMU `{pmu}`; it has {there} (daqmeter pmu list)")]
    NoPmu {
        /// The event.
        text: String,
        /// The PMU.
        pmu: String,
        /// Those that exist.
        there: String,
    },
    /// No such named event or field.
    #[error("`{text}`: {pmu} has neither an event nor a field `{term}`{hint}")]
    NoTerm {
        /// The event.
        text: String,
        /// The PMU.
        pmu: String,
        /// The term.
        term: String,
        /// Names that are near, or the fields.
        hint: String,
    },
    /// A field that needs a value.
    #[error("`{text}`: {term} needs a value, {term}=NUMBER")]
    NoValue {
        /// The event.
        text: String,
        /// The field.
        term: String,
    },
    /// A value that does not fit.
    #[error("`{text}`: {error}")]
    Format {
        /// The event.
        text: String,
        /// Why not.
        error: FormatError,
    },
    /// A name without a PMU that is nothing we know.
    #[error(
        "`{text}` is no event: write PMU/EVENT/, SUBSYSTEM:TRACEPOINT, a software event or a counter of the system such as disk.read_bytes (daqmeter pmu list)"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// Modifiers are not taken.
    #[error(
        "`{text}`: modifiers (`:{modifier}`) are not taken: what is shared by all CPUs has no user and kernel mode"
    )]
    Modifier {
        /// The event.
        text: String,
        /// The modifier.
        modifier: String,
    },
}

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

/// Groups of events: those of one group are counted together or not at all.
#[derive(Clone, Debug, Default)]
pub struct EventSet {
    /// The groups, in order; an event by itself is a group of one.
    pub groups: Vec<Vec<Event>>,
    /// What the reader must know: `nodeid` without `bynodeid`.
    pub warnings: Vec<String>,
}

impl EventSet {
    /// All events in order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.groups.iter().flatten()
    }
}

/// The host as events are understood on it.
#[derive(Debug)]
pub struct Host<'a> {
    /// Its PMUs.
    pub pmus: &'a [Pmu],
    /// Its files.
    pub files: &'a Files,
}

impl Host<'_> {
    /// Understands texts such as those after `-e`.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn resolve(&self, texts: &[String]) -> Result<EventSet, EventError> {
        let mut set = EventSet::default();
        for text in texts {
            for group in split_groups(text)? {
                let events: Result<Vec<_>, _> = group
                    .iter()
                    .map(|event| self.event(event, &mut set.warnings))
                    .collect();
                set.groups.push(events?);
            }
        }
        if set.warnings.len() > 1 {
            // One trap, told once.
            let others = set.warnings.len() - 1;
            set.warnings.truncate(1);
            set.warnings[0].push_str(&format!("; the same for {others} more"));
        }
        Ok(set)
    }

    fn event(&self, text: &str, warnings: &mut Vec<String>) -> Result<Event, EventError> {
        match text.split_once('/') {
            Some((pmu, rest)) => self.pmu_event(text, pmu, rest, warnings),
            None => self.plain(text),
        }
    }

    fn plain(&self, text: &str) -> Result<Event, EventError> {
        let perf = |pmu: &str, kind, config, unit: &str| Event {
            name: text.to_owned(),
            pmu: pmu.to_owned(),
            sources: vec![Source::Perf {
                attributes: Attributes {
                    kind,
                    config,
                    ..Attributes::default()
                },
                cpus: self.online(),
            }],
            unit: unit.to_owned(),
            scale: 1.0,
            on_mesh: None,
        };
        if let Some((_, config, unit)) = SOFTWARE.iter().find(|(name, ..)| *name == text) {
            return Ok(perf("software", TYPE_SOFTWARE, *config, unit));
        }
        if let Some((_, config)) = HARDWARE.iter().find(|(name, _)| *name == text) {
            return Ok(perf("cpu", TYPE_HARDWARE, *config, ""));
        }
        if let Some((subsystem, event)) = text.split_once(':') {
            return match tracepoint(self.files, subsystem, event) {
                Some(config) => Ok(perf("tracepoint", TYPE_TRACEPOINT, config, "")),
                None => Err(EventError::Unknown {
                    text: text.to_owned(),
                }),
            };
        }
        let counter = SystemCounter::find(self.files, text).ok_or(EventError::Unknown {
            text: text.to_owned(),
        })?;
        Ok(Event {
            name: text.to_owned(),
            pmu: "system".to_owned(),
            unit: counter.unit().to_owned(),
            scale: 1.0,
            sources: vec![Source::System(counter)],
            on_mesh: None,
        })
    }

    fn online(&self) -> Vec<u32> {
        let online = self
            .files
            .text("sys/devices/system/cpu/online")
            .map(|text| parse_cpu_list(&text));
        online
            .filter(|cpus| !cpus.is_empty())
            .unwrap_or_else(|| vec![0])
    }

    fn pmu_event(
        &self,
        text: &str,
        wanted: &str,
        rest: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Event, EventError> {
        let unclosed = EventError::Syntax {
            text: text.to_owned(),
            problem: "the second slash is missing: PMU/EVENT/",
        };
        let (terms, modifier) = rest.split_once('/').ok_or(unclosed)?;
        if !modifier.is_empty() {
            let modifier = modifier.trim_start_matches(':').to_owned();
            return Err(EventError::Modifier {
                text: text.to_owned(),
                modifier,
            });
        }
        let instances = self.instances(wanted);
        if instances.is_empty() {
            let mut there: Vec<&str> = self.pmus.iter().map(|pmu| pmu.name.as_str()).collect();
            there.dedup();
            let there = if there.is_empty() {
                "none".to_owned()
            } else {
                there.join(", ")
            };
            return Err(EventError::NoPmu {
                text: text.to_owned(),
                pmu: wanted.to_owned(),
                there,
            });
        }
        let mut event = Event {
            name: text.to_owned(),
            pmu: wanted.to_owned(),
            sources: Vec::new(),
            unit: String::new(),
            scale: 1.0,
            on_mesh: None,
        };
        for pmu in instances {
            let mut words = [0_u64; 3];
            Terms {
                text,
                pmu,
                event: &mut event,
            }
            .apply(terms, &mut words, true)?;
            event.on_mesh = on_mesh(text, pmu, &mut words, warnings);
            event.sources.push(Source::Perf {
                attributes: Attributes {
                    kind: pmu.kind,
                    config: words[0],
                    config1: words[1],
                    config2: words[2],
                },
                cpus: if pmu.cpus.is_empty() {
                    self.online()
                } else {
                    pmu.cpus.clone()
                },
            });
        }
        Ok(event)
    }

    /// The PMU of that name, or all instances of that family.
    fn instances(&self, wanted: &str) -> Vec<&Pmu> {
        match self.pmus.iter().find(|pmu| pmu.name == wanted) {
            Some(pmu) => vec![pmu],
            None => self
                .pmus
                .iter()
                .filter(|pmu| pmu.family() == wanted)
                .collect(),
        }
    }
}

struct Terms<'a> {
    text: &'a str,
    pmu: &'a Pmu,
    event: &'a mut Event,
}

impl Terms<'_> {
    /// Sets fields from terms; a bare name is an event of the PMU (once) or a field of one bit.
    fn apply(&mut self, terms: &str, words: &mut [u64; 3], names: bool) -> Result<(), EventError> {
        // Names first: what is written beside them is more special, whatever the order.
        for term in terms
            .split(',')
            .map(str::trim)
            .filter(|term| names && !term.contains('='))
        {
            if let Some(alias) = self.pmu.event(term).cloned() {
                self.event.unit = alias.unit;
                self.event.scale = alias.scale;
                // `?` stands for what the user must say.
                let known: Vec<&str> = alias
                    .terms
                    .split(',')
                    .filter(|term| !term.ends_with("=?"))
                    .collect();
                self.apply(&known.join(","), words, false)?;
                let open = alias
                    .terms
                    .split(',')
                    .filter_map(|term| term.trim().strip_suffix("=?"));
                for field in open {
                    let given = |term: &str| {
                        term.trim()
                            .split_once('=')
                            .is_some_and(|(name, _)| name == field)
                    };
                    if !terms.split(',').any(given) {
                        return Err(EventError::NoValue {
                            text: self.text.to_owned(),
                            term: field.to_owned(),
                        });
                    }
                }
            }
        }
        for term in terms
            .split(',')
            .map(str::trim)
            .filter(|term| !term.is_empty())
        {
            match term.split_once('=') {
                Some((field, value)) => self.set(field, value, words)?,
                None if names && self.pmu.event(term).is_some() => {}
                None => match self.pmu.format(term) {
                    Some(format) if format.bits() == 1 => self.set(term, "1", words)?,
                    Some(_) => {
                        return Err(EventError::NoValue {
                            text: self.text.to_owned(),
                            term: term.to_owned(),
                        });
                    }
                    None => return Err(self.no_term(term)),
                },
            }
        }
        Ok(())
    }

    fn set(&self, field: &str, value: &str, words: &mut [u64; 3]) -> Result<(), EventError> {
        let value = parse_number(value).ok_or_else(|| EventError::NoValue {
            text: self.text.to_owned(),
            term: field.to_owned(),
        })?;
        if let Some(word) = ["config", "config1", "config2"]
            .iter()
            .position(|name| *name == field)
        {
            words[word] = value;
            return Ok(());
        }
        let format = self.pmu.format(field).ok_or_else(|| self.no_term(field))?;
        format
            .place(value, words)
            .map_err(|error| EventError::Format {
                text: self.text.to_owned(),
                error,
            })
    }

    fn no_term(&self, term: &str) -> EventError {
        let start: String = term.chars().take(5).collect();
        let is_near =
            |name: &&str| name.contains(term) || (term.len() > 4 && name.contains(&start));
        let names = self.pmu.events().iter().map(|alias| alias.name.as_str());
        let near: Vec<&str> = names.filter(is_near).take(6).collect();
        let hint = if near.is_empty() {
            let fields: Vec<&str> = self
                .pmu
                .formats()
                .iter()
                .map(|format| format.name.as_str())
                .collect();
            format!("; its fields are {}", fields.join(", "))
        } else {
            format!("; near are {}", near.join(", "))
        };
        EventError::NoTerm {
            text: self.text.to_owned(),
            pmu: self.pmu.name.clone(),
            term: term.to_owned(),
            hint,
        }
    }
}

/// Reads the fields of an arm-cmn event back, and does what `nodeid` without `bynodeid` means: the driver would ignore the
/// node and count all of the type (arm-cmn.rst; the published commands relied on an older driver).
fn on_mesh(
    text: &str,
    pmu: &Pmu,
    words: &mut [u64; 3],
    warnings: &mut Vec<String>,
) -> Option<OnMesh> {
    let field = |name: &str, words: &[u64; 3]| pmu.format(name).map(|format| format.value(words));
    let bynodeid = pmu.format("bynodeid")?;
    let node_id = field("nodeid", words)?;
    if node_id != 0 && bynodeid.value(words) == 0 {
        warnings.push(format!(
            "`{text}`: {} ignores nodeid without bynodeid=1 and would add up all nodes of the type; bynodeid=1 was added",
            pmu.name
        ));
        bynodeid.place(1, words).ok()?;
    }
    let single = bynodeid.value(words) == 1;
    let narrow = |value: u64| u16::try_from(value).ok();
    Some(OnMesh {
        type_code: narrow(field("type", words)?)?,
        event_id: field("eventid", words)?,
        occup_id: field("occupid", words).unwrap_or(0),
        node_id: if single { narrow(node_id) } else { None },
        wp_device: field("wp_dev_sel", words).unwrap_or(0),
        wp_group: field("wp_grp", words).unwrap_or(0),
    })
}

/// Splits `{a/x,y/,b},c` into groups of texts: commas within slashes belong to the event.
fn split_groups(text: &str) -> Result<Vec<Vec<String>>, EventError> {
    let wrong = |problem| EventError::Syntax {
        text: text.to_owned(),
        problem,
    };
    let (mut groups, mut current): (Vec<Vec<String>>, String) = (Vec::new(), String::new());
    let (mut in_slashes, mut in_braces) = (false, false);
    let mut group: Vec<String> = Vec::new();
    let end = |current: &mut String, group: &mut Vec<String>| {
        let event = std::mem::take(current).trim().to_owned();
        if !event.is_empty() {
            group.push(event);
        }
    };
    for letter in text.chars() {
        match letter {
            '/' => {
                in_slashes = !in_slashes;
                current.push(letter);
            }
            '{' if !in_slashes && in_braces => return Err(wrong("groups do not nest")),
            '{' if !in_slashes => in_braces = true,
            '}' if !in_slashes && !in_braces => {
                return Err(wrong("a brace is closed that was not opened"));
            }
            '}' if !in_slashes => {
                end(&mut current, &mut group);
                groups.push(std::mem::take(&mut group));
                in_braces = false;
            }
            ',' if !in_slashes => {
                end(&mut current, &mut group);
                if !in_braces {
                    groups.extend(
                        std::mem::take(&mut group)
                            .into_iter()
                            .map(|event| vec![event]),
                    );
                }
            }
            _ => current.push(letter),
        }
    }
    if in_braces {
        return Err(wrong("a brace is not closed"));
    }
    if in_slashes {
        return Err(wrong("the second slash is missing: PMU/EVENT/"));
    }
    end(&mut current, &mut group);
    groups.extend(group.into_iter().map(|event| vec![event]));
    groups.retain(|group| !group.is_empty());
    if groups.is_empty() {
        Err(wrong("no event is named"))
    } else {
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::catalogue;
    use crate::mesh::topology::shipped;
    use proptest::prelude::*;

    fn cmn(name: &str) -> Pmu {
        let mut pmu = catalogue(&shipped("n1sdp").unwrap());
        pmu.name = name.to_owned();
        pmu
    }

    fn resolve(text: &str) -> Result<EventSet, EventError> {
        let pmus = [cmn("arm_cmn_0"), cmn("arm_cmn_1")];
        Host {
            pmus: &pmus,
            files: &Files::below("/nonexistent"),
        }
        .resolve(&[text.to_owned()])
    }

    fn config(event: &Event, at: usize) -> u64 {
        match &event.sources[at] {
            Source::Perf { attributes, .. } => attributes.config,
            Source::System(_) => panic!("a PMU's event"),
        }
    }

    #[test]
    fn nodeid_without_bynodeid_is_done_as_meant_and_said() {
        let set = resolve("arm_cmn_0/hnf_mc_reqs,nodeid=0x24/").unwrap();
        assert_eq!(config(&set.groups[0][0], 0), 0x24_800d_0005);
        assert!(
            set.warnings[0].contains("bynodeid=1 was added"),
            "{:?}",
            set.warnings
        );
        let set = resolve("arm_cmn_0/hnf_mc_reqs,bynodeid,nodeid=0x24/").unwrap();
        assert_eq!(
            (config(&set.groups[0][0], 0), set.warnings.len()),
            (0x24_800d_0005, 0)
        );
        let set = resolve("arm_cmn_0/hnf_mc_reqs/").unwrap();
        assert_eq!(
            (config(&set.groups[0][0], 0), set.warnings.len()),
            (0xd_0005, 0)
        );
    }

    #[test]
    fn a_family_adds_up_its_instances_and_a_name_picks_one() {
        assert_eq!(
            resolve("arm_cmn/hnf_mc_reqs/").unwrap().groups[0][0]
                .sources
                .len(),
            2
        );
        assert_eq!(
            resolve("arm_cmn_1/hnf_mc_reqs/").unwrap().groups[0][0]
                .sources
                .len(),
            1
        );
    }

    #[test]
    fn braces_group_and_commas_in_slashes_belong_to_the_event() {
        let set =
            resolve("{arm_cmn_0/hnf_mc_reqs,nodeid=8,bynodeid=1/,arm_cmn_0/type=0x3/},page-faults")
                .unwrap();
        assert_eq!(set.groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(
            set.groups[0][0].on_mesh.as_ref().and_then(|on| on.node_id),
            Some(8)
        );
        assert_eq!(set.groups[1][0].pmu, "software");
    }

    #[test]
    fn a_filter_of_the_name_is_kept_beside_a_node() {
        let set = resolve("arm_cmn_0/hnf_qos_pocq_occupancy_read,bynodeid=1,nodeid=0x28/").unwrap();
        let on = set.groups[0][0].on_mesh.clone().unwrap();
        assert_eq!(
            (on.type_code, on.event_id, on.occup_id, on.node_id),
            (5, 0xf, 1, Some(0x28))
        );
    }

    #[test]
    fn wrong_events_are_refused_with_what_to_do() {
        for (text, part) in [
            (
                "arm_cnm/hnf_mc_reqs/",
                "no PMU `arm_cnm`; it has arm_cmn_0, arm_cmn_1",
            ),
            ("arm_cmn/hnf_mc_req/", "near are hnf_mc_reqs"),
            ("arm_cmn/nonsense/", "its fields are type, eventid"),
            (
                "arm_cmn/hnf_mc_reqs,nodeid=0x12345/",
                "nodeid=0x12345 does not fit",
            ),
            ("arm_cmn/hnf_mc_reqs,nodeid/", "nodeid needs a value"),
            (
                "arm_cmn/watchpoint_up,wp_dev_sel=0,wp_chn_sel=0,wp_grp=0/",
                "wp_val needs a value",
            ),
            ("arm_cmn/hnf_mc_reqs/u", "modifiers"),
            ("arm_cmn/hnf_mc_reqs", "second slash"),
            ("{page-faults", "not closed"),
            ("page-faults}", "not opened"),
            ("{{page-faults}}", "nest"),
            ("", "no event"),
            ("pagefaults", "is no event"),
            ("block:nothing", "is no event"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z_/{},=:0-9x.]{0,40}") {
            let _ = resolve(&text);
        }
    }
}
