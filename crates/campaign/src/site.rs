//! The host of a plan: properties of the host in the plan become numbers here.

use daqmeter_copy::CopyPath;
use daqmeter_harness::facts::host_facts;
use daqmeter_record::units::parse_bytes;
use daqmeter_record::{Host, Param};
use daqmeter_sys::host::Files;
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Clone, Debug, Default)]
pub struct Site {
    pub host: Host,
    pub pin: Option<Vec<u32>>,
    pub seed: Option<u64>,
}

impl Site {
    pub fn here() -> Site {
        Site { host: host_facts(&Files::default(), Vec::new()), ..Site::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfHost {
    host: Property,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Property {
    /// First disk that can be read past the page cache, else this program's file.
    SystemDisk,
    /// Second CPU of the pinned ones, or the only one: for the other side of a connection.
    PeerCpu,
    /// Number of the pinned CPUs.
    Cpus,
    /// Copies through the kernel: by the module where it is loaded, else by `pread`.
    CopyPath,
    /// Channels of an engine: the module's where it has any, else the emulated engine's.
    CopyEngine,
    CopyLanes,
}

impl OfHost {
    /// Returns the value of a parameter, for threads on those CPUs; `None` if the host says
    /// nothing.
    pub(crate) fn param(self, pin: &[u32]) -> Option<Param> {
        match self.host {
            Property::SystemDisk => disk().map(Param::Text),
            Property::PeerCpu => pin.get(1).or(pin.first()).map(|cpu| Param::Int((*cpu).into())),
            Property::Cpus => Some(Param::Int(pin.len().max(1) as u64)),
            Property::CopyPath => Some(Param::Text(CopyPath::of_cpu().to_string())),
            Property::CopyEngine => Some(Param::Text(CopyPath::of_engine().to_string())),
            Property::CopyLanes => Some(Param::Int(pin.len().clamp(2, 4) as u64)),
        }
    }
}

fn disk() -> Option<String> {
    let own = std::env::current_exe().ok();
    let own = own.map(|path| path.display().to_string());
    let disks = daqmeter_hostio::system_disk(&Files::default()).into_iter();
    disks.chain(own).find(|path| daqmeter_hostio::reads_directly(path).is_ok())
}

/// A size, as a number of bytes or by what this host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub(crate) enum Size {
    Bytes(u64),
    /// So many times the last-level cache, or 8 MiB where it is smaller or not known.
    LastLevelCache(u64),
    /// Memory divided by so much.
    Memory(u64),
}

/// Least assumed last-level cache: the host may not report it, or a virtual machine may hide it.
const MIN_LAST_LEVEL_BYTES: u64 = 8 << 20;

impl Size {
    fn bytes(self, host: &Host) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::LastLevelCache(times) => {
                host.last_level_cache_bytes().max(MIN_LAST_LEVEL_BYTES).saturating_mul(times)
            }
            Size::Memory(part) => host.memory_bytes / part.max(1),
        }
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        let wrong = |_| {
            format!("`{text}` is not a size: use 64MiB, \"4x last-level-cache\" or \"1/8 memory\"")
        };
        if let Some(times) = text.strip_suffix("x last-level-cache") {
            return times.parse().map(Size::LastLevelCache).map_err(wrong);
        }
        let part = text.strip_suffix(" memory");
        if let Some(part) = part.and_then(|part| part.strip_prefix("1/")) {
            return part.parse().map(Size::Memory).map_err(wrong);
        }
        parse_bytes(&text).map(Size::Bytes)
    }
}

/// Sizes, each a multiple of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    /// Smallest size: `16KiB`.
    from: Size,
    /// Sizes up to this: `64MiB`, `4x last-level-cache`, `1/8 memory`.
    to: Size,
    /// `to` is at least this.
    at_least: Option<Size>,
    /// `to` is at most this, whatever else it is.
    at_most: Option<Size>,
    /// Each size is so many times the one before.
    factor: u64,
    /// The parameter is this part of each size: 3 for a third.
    #[serde(default = "daqmeter_harness::one::<u64>")]
    divide: u64,
}

impl Range {
    /// Returns the values on that host: at most 64, because each is at least twice the one before.
    pub(crate) fn values(&self, host: &Host) -> Result<Vec<u64>, String> {
        let bytes = |size: Option<Size>| size.map(|size| size.bytes(host));
        let to = self.to.bytes(host).max(bytes(self.at_least).unwrap_or(0));
        let to = to.min(bytes(self.at_most).unwrap_or(u64::MAX));
        let from = self.from.bytes(host);
        if self.factor < 2 || self.divide == 0 || from == 0 || from > to {
            return Err(format!(
                "no size: from {from} to {to} bytes on this host; `factor` is 2 or more, `divide` 1 or more"
            ));
        }
        let sizes = std::iter::successors(Some(from), |size| size.checked_mul(self.factor));
        Ok(sizes.take_while(|size| *size <= to).map(|size| size / self.divide).collect())
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::host::Cache;

    use super::*;

    fn host(cache_bytes: u64, memory_bytes: u64) -> Host {
        Host {
            caches: vec![Cache { level: 3, bytes: cache_bytes, ..Cache::default() }],
            memory_bytes,
            ..Host::default()
        }
    }

    fn values(text: &str, host: &Host) -> Vec<u64> {
        let range: Range = toml::from_str(text).unwrap();
        range.values(host).unwrap_or_default()
    }

    #[test]
    fn ranges_end_where_the_host_does() {
        let text = "from = '1MiB'\nto = '4x last-level-cache'\nat_least = '64MiB'\nat_most = '1/8 memory'\nfactor = 4";
        let mib =
            |host: &Host| -> Vec<u64> { values(text, host).iter().map(|v| v >> 20).collect() };
        assert_eq!(mib(&host(105 << 20, 64 << 30)), [1, 4, 16, 64, 256]);
        assert_eq!(mib(&host(0, 64 << 30)), [1, 4, 16, 64]);
        // The size of memory bounds the range, even below its least value.
        assert_eq!(mib(&host(105 << 20, 160 << 20)), [1, 4, 16]);
        assert_eq!(values("from = '9'\nto = '8'\nfactor = 2", &host(0, 0)), Vec::<u64>::new());
        assert_eq!(
            values("from = '16'\nto = '64'\nfactor = 2\ndivide = 3", &host(0, 0)),
            [5, 10, 21]
        );
        assert_eq!(values("from = '16'\nto = '64'\nfactor = 1", &host(0, 0)), Vec::<u64>::new());
    }

    #[test]
    fn sizes_are_bytes_or_of_the_host() {
        let size = |text: &str| Size::try_from(text.to_owned());
        assert_eq!(size("64MiB"), Ok(Size::Bytes(64 << 20)));
        assert_eq!(size("4x last-level-cache"), Ok(Size::LastLevelCache(4)));
        assert_eq!(size("1/8 memory"), Ok(Size::Memory(8)));
        for wrong in ["fourx last-level-cache", "1/x memory", "8 moons"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_other_side_of_a_connection_gets_a_cpu_of_its_own() {
        let peer: OfHost = toml::from_str("host = 'peer-cpu'").unwrap();
        assert_eq!(peer.param(&[3, 1]), Some(Param::Int(1)));
        assert_eq!(peer.param(&[3]), Some(Param::Int(3)));
        assert_eq!(peer.param(&[]), None);
    }
}
