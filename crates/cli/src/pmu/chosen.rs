//! Events and groups of the command line, resolved on the PMUs and meshes of this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daqmeter_harness::{Observer, text_input};
use daqmeter_pmu::mesh::{self, topology};
use daqmeter_pmu::source::KernelOpener;
use daqmeter_pmu::{Count, CountedHost, MachinePart, MetricGroup, PmuObserver, Selection};
use daqmeter_report::pmu::tables::RateUnit;
use daqmeter_sys::host::Files;

use crate::arguments::duration;
use crate::output::{Failure, tell};

/// Events to count, and their mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Wanted {
    /// Events, as for perf: a,b or {a,b} to count them together
    #[arg(short, long = "event", value_name = "EVENTS", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// Groups: memory, pcie, slc, block, net, ... or a TOML file
    #[arg(short, long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// Event for a heat map, counted at each node: hnf_mc_reqs
    #[arg(long, value_name = "EVENT")]
    pub(crate) heat: Option<String>,
    /// Count each socket, node or PMU (mesh, channel) by itself, and all together
    #[arg(long, value_name = "PART", hide_short_help = true)]
    pub(crate) by: Option<MachinePart>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Source of the map of the mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Place {
    /// Map of the mesh: from pmu list --mesh --json, the driver, or a TOML file
    #[arg(long, value_name = "FILE", help_heading = "Mesh")]
    pub(crate) map: Vec<PathBuf>,
    /// Part of the mesh, which the driver's map does not tell: CMN-700
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Mesh",
        hide_short_help = true,
        requires = "map",
        conflicts_with = "emulated"
    )]
    pub(crate) part: Option<String>,
    /// Emulated mesh: n1sdp, cmn650, cmn700, s3
    #[arg(long, value_name = "MESH", help_heading = "Mesh", conflicts_with = "map")]
    pub(crate) emulated: Option<String>,
}

/// Longest text of a map, of perf's output, or of records, in bytes: perf writes about 70 for each
/// count.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Reads a file, or stdin for `-`.
pub(super) fn text_of(path: &Path) -> Result<String, Failure> {
    let place = if path.as_os_str() == "-" { "/dev/stdin".as_ref() } else { path };
    text_input(place, MAX_TEXT_BYTES)
        .map_err(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))
}

impl Place {
    pub(crate) fn host(&self) -> Result<CountedHost, Failure> {
        if let Some(name) = &self.emulated {
            return CountedHost::emulated(name).ok_or_else(|| {
                let names = topology::SHIPPED_MESHES.names().join(", ");
                Failure::refused(format!("there is no emulated mesh `{name}`; there are {names}"))
            });
        }
        let map = |path: &PathBuf| {
            let (text, name) = (text_of(path)?, path.display().to_string());
            let mut mesh = mesh::from_text(&text, &name)?;
            if let Some(part) = &self.part {
                topology::check_part(part)?;
                mesh.part = part.to_uppercase();
            }
            Ok::<_, Failure>(mesh)
        };
        let maps = self.map.iter().map(map).collect::<Result<_, _>>()?;
        Ok(CountedHost::new(Files::default(), maps))
    }
}

impl Wanted {
    /// Resolves events and groups, and refuses impossible ones before anything is opened.
    pub(crate) fn choose(&self, host: &CountedHost) -> Result<Selection, Failure> {
        let mut selection = host.choose(&self.groups, self.heat.as_deref(), &self.events)?;
        let has_mesh = selection.set.events().any(|event| event.on_mesh.is_some());
        if !self.place.map.is_empty() && !has_mesh {
            return Err(Failure::refused("--map: no event of this count is on a mesh"));
        }
        if let Some(part) = self.by {
            selection = host.by(part, selection);
            if selection.set.events().all(|event| event.place.is_empty()) {
                tell("daqmeter: --by: each of these events is counted in one place only");
            }
        }
        for warning in &selection.set.warnings {
            tell(&format!("daqmeter: warning: {warning}"));
        }
        Ok(selection)
    }
}

pub(crate) struct Observed {
    selection: Selection,
    interval: Duration,
}

impl Observed {
    /// Reads `GROUP`, `EVENTS`, or either with `@TIME`.
    pub(crate) fn understand(text: &str) -> Result<Observed, Failure> {
        let (what, interval) = text.rsplit_once('@').unwrap_or((text, "100ms"));
        let interval = duration(interval).map_err(|error| format!("--observe {text}: {error}"))?;
        if interval < Duration::from_millis(1) {
            return Err(format!("--observe {text}: an interval is 1ms or longer").into());
        }
        let is_group = !what.contains(['/', ':', '{', ',']) && MetricGroup::find(what).is_ok();
        let mut wanted = Wanted::default();
        let list = if is_group { &mut wanted.groups } else { &mut wanted.events };
        list.push(what.to_owned());
        let host = wanted.place.host()?;
        let selection = wanted.choose(&host)?;
        // Reports an error before anything is measured.
        Count::open(&selection, &mut KernelOpener { files: host.files })?;
        Ok(Observed { selection, interval })
    }

    pub(crate) fn observer(&self) -> Box<dyn Observer> {
        let kernel = KernelOpener { files: Files::default() };
        Box::new(PmuObserver::new(self.selection.clone(), self.interval, kernel))
    }
}

/// Parser of the unit of bytes.
pub(super) fn byte_unit() -> impl TypedValueParser<Value = RateUnit> {
    PossibleValuesParser::new(["mb", "mib", "both"]).map(|name| match name.as_str() {
        "mib" => RateUnit::Mib,
        "both" => RateUnit::Both,
        _ => RateUnit::Mb,
    })
}
