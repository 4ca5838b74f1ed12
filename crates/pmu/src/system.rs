//! Counters that the kernel keeps in files: exact for block devices and networks, and present on
//! every host.
//! Sources: Documentation/admin-guide/iostats.rst,
//! Documentation/ABI/testing/sysfs-class-net-statistics, proc_interrupts(5),
//! Documentation/arch/x86/resctrl.rst, Documentation/accounting/psi.rst.

use std::iter;
use std::sync::LazyLock;

use daqmeter_sys::host::Files;

/// One counter: `disk.vda.read_bytes`, `disk.read_bytes` (all whole disks), `net.eth0.rx_bytes`,
/// `irq.24`, `vmstat.pgpgin`, `numa.node0.numa_hit`, `pressure.io.some`,
/// `resctrl.mon_L3_00.mbm_total_bytes`.
#[derive(Clone, Debug)]
pub struct SystemCounter {
    files: Files,
    pub unit: &'static str,
    place: CounterPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CounterPlace {
    /// Field after the name of each of these devices in /proc/diskstats.
    Disks { devices: Vec<String>, field: usize, factor: u64 },
    /// Numbers behind a name at the start of a line, added up over the files. An empty name is the
    /// first line's.
    Lines { paths: Vec<String>, name: String },
}

/// Fields of a line of /proc/diskstats after the name, from 0, with their unit in bytes (sectors
/// are 512).
const DISK: &[(&str, usize, u64)] =
    &[("reads", 0, 1), ("read_bytes", 2, 512), ("writes", 4, 1), ("write_bytes", 6, 512)];
const NET: &str =
    "rx_bytes tx_bytes rx_packets tx_packets rx_dropped tx_dropped rx_errors tx_errors";

/// Source of counters: begin of their names, description, folder of its instances, file of an
/// instance or folder of files, and unit.
type CounterSource = [&'static str; 5];
static SOURCES: LazyLock<Vec<CounterSource>> =
    LazyLock::new(|| serde_json::from_str(include_str!("system.json")).expect("tests read it"));

impl SystemCounter {
    pub fn find(files: &Files, name: &str) -> Option<SystemCounter> {
        let (unit, place) = place(files, name)?;
        let counter = SystemCounter { files: files.clone(), unit, place };
        counter.value().map(|_| counter)
    }

    /// Returns the sources, with the names of their counters here.
    pub fn all(files: &Files) -> Vec<(&'static str, Vec<String>)> {
        let firsts = |path: &str| -> Vec<String> {
            let text = files.text(path).unwrap_or_default();
            let words = text.lines().filter_map(|line| line.split_whitespace().next());
            words.map(|word| word.trim_end_matches(':').to_owned()).collect()
        };
        let counters = |[source, about, folder, file, _]: &CounterSource| {
            let fields = |of: &str| match *source {
                "disk" => DISK.iter().map(|(name, ..)| (*name).to_owned()).collect(),
                "net" => NET.split(' ').map(str::to_owned).collect(),
                "resctrl" => files.names(&file.replace("{}", of)),
                _ => firsts(&file.replace("{}", of)),
            };
            let instances = if folder.is_empty() { Vec::new() } else { files.names(folder) };
            let instances = instances.into_iter().map(|of| format!(".{of}"));
            let names = iter::once(String::new()).chain(instances).flat_map(|of| {
                let fields = fields(of.trim_start_matches('.'));
                fields.into_iter().map(move |field| format!("{source}{of}.{field}"))
            });
            (*about, names.filter(|name| SystemCounter::find(files, name).is_some()).collect())
        };
        SOURCES.iter().map(counters).collect()
    }

    pub fn value(&self) -> Option<u64> {
        match &self.place {
            CounterPlace::Disks { devices, field, factor } => {
                let text = self.files.text("proc/diskstats")?;
                sum(text.lines().filter_map(|line| {
                    let mut words = line.split_whitespace().skip(2);
                    let name = words.next()?;
                    let is_wanted = devices.iter().any(|wanted| wanted == name);
                    is_wanted
                        .then(|| words.nth(*field)?.parse::<u64>().ok()?.checked_mul(*factor))?
                }))
            }
            CounterPlace::Lines { paths, name } => {
                sum(paths.iter().filter_map(|path| line(&self.files.text(path)?, name)))
            }
        }
    }
}

/// Adds up the numbers behind a name: `24: 5 7 PCI-MSI`, `pgpgin 77`, `some avg10=0.00 total=55`.
fn line(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        (name.is_empty() || rest.starts_with([' ', ':'])).then_some(rest)
    })?;
    let words = rest.trim_start_matches(':').split_whitespace();
    let words = words.filter(|word| !word.starts_with("avg"));
    sum(words.map_while(|word| word.trim_start_matches("total=").parse().ok()))
}

fn sum(values: impl Iterator<Item = u64>) -> Option<u64> {
    values.fold(None, |total: Option<u64>, value| Some(total.unwrap_or(0).wrapping_add(value)))
}

/// Returns false for levels that rise and fall (free pages, cache occupancy): they have no count in
/// an interval.
fn is_counter(field: &str) -> bool {
    let is_level = field.starts_with("nr_")
        || field.ends_with("_threshold")
        || ["llc_occupancy", "workingset_nodes"].contains(&field);
    !is_level || ["nr_dirtied", "nr_written"].contains(&field)
}

fn place(files: &Files, name: &str) -> Option<(&'static str, CounterPlace)> {
    let (source, rest) = name.split_once('.')?;
    let [.., folder, file, unit] = *SOURCES.iter().find(|[known, ..]| *known == source)?;
    let (of, field) = rest.rsplit_once('.').map_or((None, rest), |(of, field)| (Some(of), field));
    let lines = |unit, paths, name: &str| {
        let name = name.to_owned();
        Some((unit, CounterPlace::Lines { paths, name }))
    };
    // Names come from the command line and become parts of paths.
    let is_plain = |part: &str| !part.is_empty() && !part.contains('/') && part != "..";
    let path = |of: &str| file.replace("{}", of);
    match (source, of) {
        ("disk", _) => {
            let (_, field, factor) = *DISK.iter().find(|(known, ..)| *known == field)?;
            let devices = of.map_or_else(|| disks(files), |device| vec![device.to_owned()]);
            let unit = if factor == 1 { "" } else { "B" };
            Some((unit, CounterPlace::Disks { devices, field, factor }))
        }
        ("irq" | "vmstat", _) if is_counter(rest) => lines(unit, vec![file.to_owned()], rest),
        _ if !of.is_none_or(is_plain) => None,
        ("net", _) if NET.split(' ').any(|known| known == field) => {
            let names = of.map_or_else(|| files.names(folder), |name| vec![name.to_owned()]);
            let paths = names.iter().map(|name| format!("{}/{field}", path(name))).collect();
            lines(if field.ends_with("bytes") { "B" } else { unit }, paths, "")
        }
        ("numa" | "pressure", Some(of)) => lines(unit, vec![path(of)], field),
        ("resctrl", Some(domain)) if is_plain(field) && is_counter(field) => {
            lines(unit, vec![format!("{}/{field}", path(domain))], "")
        }
        _ => None,
    }
}

/// Lists whole disks: those of /sys/block that have a size and are backed by no other counted disk.
fn disks(files: &Files) -> Vec<String> {
    let is_whole = |name: &String| {
        let size = files.text(&format!("sys/block/{name}/size"));
        size.is_some_and(|size| size != "0")
            && files.names(&format!("sys/block/{name}/slaves")).is_empty()
            && !name.starts_with("loop")
            && !name.starts_with("ram")
    };
    files.names("sys/block").into_iter().filter(is_whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::tree;

    #[test]
    fn bytes_of_disks_and_networks_are_exact() {
        let (_root, files) = tree(&[
            (
                "proc/diskstats",
                " 254 0 vda 10 2 2048 5 7 1 4096 9 0 1 2\n 254 1 vda1 9 2 1024 5 7 1 8 9 0 1 2\n 7 0 loop0 1 0 8 0 0 0 0 0\n",
            ),
            ("sys/block/vda/size", "100"),
            ("sys/block/loop0/size", "100"),
            ("sys/class/net/lo/statistics/rx_bytes", "123\n"),
            ("sys/class/net/eth0/statistics/rx_bytes", "1000\n"),
            (
                "proc/interrupts",
                "           CPU0       CPU1\n  24:        5          7  PCI-MSI 1-edge virtio0\nNMI:   1  2  Non-maskable\n",
            ),
            ("proc/vmstat", "nr_free_pages 5\npgpgin 77\npgpginx 1\n"),
            (
                "proc/pressure/io",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=55\nfull avg10=0.00 total=44\n",
            ),
            ("sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", "640\n"),
            ("sys/fs/resctrl/mon_data/mon_L3_01/mbm_total_bytes", "Unavailable\n"),
        ]);
        let value =
            |name: &str| SystemCounter::find(&files, name).and_then(|counter| counter.value());
        assert_eq!(value("disk.vda.read_bytes"), Some(2048 * 512));
        assert_eq!(
            value("disk.read_bytes"),
            Some(2048 * 512),
            "partitions and loops are not counted twice"
        );
        assert_eq!(value("disk.vda1.read_bytes"), Some(1024 * 512));
        assert_eq!(
            (value("disk.vda.writes"), value("disk.vda.write_bytes")),
            (Some(7), Some(4096 * 512))
        );
        assert_eq!((value("net.eth0.rx_bytes"), value("net.rx_bytes")), (Some(1000), Some(1123)));
        assert_eq!((value("irq.24"), value("irq.NMI")), (Some(12), Some(3)));
        assert_eq!(value("vmstat.pgpgin"), Some(77));
        assert_eq!(
            value("vmstat.nr_free_pages"),
            None,
            "a level that rises and falls is not a counter"
        );
        assert_eq!((value("pressure.io.some"), value("pressure.io.full")), (Some(55), Some(44)));
        assert_eq!(
            (
                value("resctrl.mon_L3_00.mbm_total_bytes"),
                value("resctrl.mon_L3_01.mbm_total_bytes")
            ),
            (Some(640), None)
        );
        let sources = SystemCounter::all(&files);
        assert!(
            sources
                .iter()
                .any(|(_, names)| names.contains(&"resctrl.mon_L3_00.mbm_total_bytes".to_owned()))
        );
    }

    #[test]
    fn names_that_would_leave_their_directory_are_none() {
        let (_root, files) =
            tree(&[("sys/class/net/lo/statistics/rx_bytes", "1"), ("secret", "5")]);
        for name in [
            "net.../../../secret",
            "net.a/b.rx_bytes",
            "resctrl.../../../../secret.x",
            "disk.x",
            "irq",
            "",
            "numa...x",
            "pressure.../some",
        ] {
            assert!(SystemCounter::find(&files, name).is_none(), "{name}");
        }
    }
}
