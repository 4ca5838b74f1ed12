//! Counters that the kernel keeps in files: exact for block devices and networks, and present on
//! every host.
//! Sources: Documentation/admin-guide/iostats.rst,
//! Documentation/ABI/testing/sysfs-class-net-statistics, proc_interrupts(5),
//! Documentation/arch/x86/resctrl.rst, Documentation/accounting/psi.rst.

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
const NET: &[&str] = &[
    "rx_bytes",
    "tx_bytes",
    "rx_packets",
    "tx_packets",
    "rx_dropped",
    "tx_dropped",
    "rx_errors",
    "tx_errors",
];
const NETS: &str = "sys/class/net";
const NODES: &str = "sys/devices/system/node";
const PRESSURE: &str = "proc/pressure";
const RESCTRL: &str = "sys/fs/resctrl/mon_data";

impl SystemCounter {
    pub fn find(files: &Files, name: &str) -> Option<SystemCounter> {
        let (unit, place) = place(files, name)?;
        let counter = SystemCounter { files: files.clone(), unit, place };
        counter.value().map(|_| counter)
    }

    /// Returns the sources, with the names of their counters here.
    pub fn all(files: &Files) -> Vec<(&'static str, Vec<String>)> {
        let prefixed = |prefix: &str, names: Vec<String>| -> Vec<String> {
            names.iter().map(|name| format!("{prefix}.{name}")).collect()
        };
        let below = |prefix: &str, folder: &str, fields: &dyn Fn(&str) -> Vec<String>| {
            let names = files.names(folder).into_iter();
            let of = |name: String| prefixed(&format!("{prefix}.{name}"), fields(&name));
            names.flat_map(of).collect::<Vec<String>>()
        };
        let firsts = |path: &str| -> Vec<String> {
            let text = files.text(path).unwrap_or_default();
            let words = text.lines().filter_map(|line| line.split_whitespace().next());
            words.map(|word| word.trim_end_matches(':').to_owned()).collect()
        };
        let disk = || DISK.iter().map(|(name, ..)| (*name).to_owned()).collect::<Vec<_>>();
        let net = || NET.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let pressure = |_: &str| ["some", "full"].map(str::to_owned).to_vec();
        let numa = |node: &str| firsts(&format!("{NODES}/{node}/numastat"));
        let resctrl = |domain: &str| files.names(&format!("{RESCTRL}/{domain}"));
        let disks = [prefixed("disk", disk()), below("disk", "sys/block", &|_| disk())];
        let nets = [prefixed("net", net()), below("net", NETS, &|_| net())];
        let mut all = vec![
            ("block devices (/proc/diskstats)", disks.concat()),
            ("networks (/sys/class/net)", nets.concat()),
            ("interrupts (/proc/interrupts)", prefixed("irq", firsts("proc/interrupts"))),
            ("virtual memory (/proc/vmstat)", prefixed("vmstat", firsts("proc/vmstat"))),
            ("NUMA (numastat)", below("numa", NODES, &numa)),
            ("pressure (/proc/pressure)", below("pressure", PRESSURE, &pressure)),
            ("memory bandwidth monitoring (resctrl)", below("resctrl", RESCTRL, &resctrl)),
        ];
        for (_, names) in &mut all {
            names.retain(|name| SystemCounter::find(files, name).is_some());
        }
        all
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
    let lines = |unit, path: String, name: &str| {
        let name = name.to_owned();
        Some((unit, CounterPlace::Lines { paths: vec![path], name }))
    };
    let (of, field) = rest.rsplit_once('.').map_or((None, rest), |(of, field)| (Some(of), field));
    // Names come from the command line and become parts of paths.
    let is_plain = |part: &str| !part.is_empty() && !part.contains('/') && part != "..";
    match (source, of) {
        ("disk", _) => {
            let (_, field, factor) = *DISK.iter().find(|(known, ..)| *known == field)?;
            let devices = of.map_or_else(|| disks(files), |device| vec![device.to_owned()]);
            let unit = if factor == 1 { "" } else { "B" };
            Some((unit, CounterPlace::Disks { devices, field, factor }))
        }
        ("irq", _) => lines("", "proc/interrupts".to_owned(), rest),
        ("vmstat", None) if is_counter(field) => lines("", "proc/vmstat".to_owned(), field),
        _ if !of.is_none_or(is_plain) => None,
        ("net", _) if NET.contains(&field) => {
            let names = of.map_or_else(|| files.names(NETS), |name| vec![name.to_owned()]);
            let path = |name: &String| format!("{NETS}/{name}/statistics/{field}");
            let paths = names.iter().map(path).collect();
            let unit = if field.ends_with("bytes") { "B" } else { "" };
            Some((unit, CounterPlace::Lines { paths, name: String::new() }))
        }
        ("numa", Some(node)) => lines("", format!("{NODES}/{node}/numastat"), field),
        ("pressure", Some(of)) => lines("us", format!("{PRESSURE}/{of}"), field),
        ("resctrl", Some(domain)) if is_plain(field) && is_counter(field) => {
            lines("B", format!("{RESCTRL}/{domain}/{field}"), "")
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
