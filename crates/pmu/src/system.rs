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
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Disk { device: Option<String>, field: usize, factor: u64 },
    Net { interface: Option<String>, field: String },
    Interrupt(String),
    Line { path: String, name: String },
    Pressure { path: String, kind: String },
    File(String),
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
const RESCTRL: &str = "sys/fs/resctrl/mon_data";

impl SystemCounter {
    pub fn find(files: &Files, name: &str) -> Option<SystemCounter> {
        let counter = SystemCounter { files: files.clone(), what: what(name)? };
        counter.value().map(|_| counter)
    }

    pub fn all(files: &Files) -> Vec<(&'static str, Vec<String>)> {
        let found = |names: Vec<String>| -> Vec<String> {
            let is_there = |name: &String| SystemCounter::find(files, name).is_some();
            names.into_iter().filter(is_there).collect()
        };
        vec![
            ("block devices (/proc/diskstats)", disk_names(files)),
            ("networks (/sys/class/net)", net_names(files)),
            ("interrupts (/proc/interrupts)", interrupt_names(files)),
            ("virtual memory (/proc/vmstat)", line_names(files, "proc/vmstat", "vmstat")),
            ("NUMA (numastat)", numa_names(files)),
            ("pressure (/proc/pressure)", found(pressure_names(files))),
            ("memory bandwidth monitoring (resctrl)", found(resctrl_names(files))),
        ]
    }

    pub fn unit(&self) -> &'static str {
        match &self.what {
            What::Disk { factor: 512, .. } => "B",
            What::Net { field, .. } if field.ends_with("bytes") => "B",
            What::File(_) => "B",
            What::Pressure { .. } => "us",
            _ => "",
        }
    }

    pub fn value(&self) -> Option<u64> {
        let files = &self.files;
        match &self.what {
            What::Disk { device, field, factor } => disk(files, device.as_deref(), *field, *factor),
            What::Net { interface, field } => net(files, interface.as_deref(), field),
            What::Interrupt(name) => interrupts(&files.text("proc/interrupts")?, name),
            What::Line { path, name } => line(&files.text(path)?, name),
            What::Pressure { path, kind } => pressure(&files.text(path)?, kind),
            What::File(path) => files.text(path)?.parse().ok(),
        }
    }
}

fn disk(files: &Files, device: Option<&str>, field: usize, factor: u64) -> Option<u64> {
    let text = files.text("proc/diskstats")?;
    let wanted = match device {
        Some(device) => vec![device.to_owned()],
        None => disks(files),
    };
    sum(text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next()?;
        let is_wanted = wanted.iter().any(|wanted| wanted == name);
        is_wanted.then(|| words.nth(field)?.parse::<u64>().ok()?.checked_mul(factor))?
    }))
}

fn net(files: &Files, interface: Option<&str>, field: &str) -> Option<u64> {
    let read = |name: &str| {
        let text = files.text(&format!("sys/class/net/{name}/statistics/{field}"))?;
        text.parse().ok()
    };
    match interface {
        Some(name) => read(name),
        None => sum(files.names("sys/class/net").iter().filter_map(|name| read(name))),
    }
}

fn interrupts(text: &str, name: &str) -> Option<u64> {
    let of_name = |line: &str| {
        let (head, counts) = line.split_once(':')?;
        (head.trim() == name).then(|| counts.to_owned())
    };
    let counts = text.lines().find_map(of_name)?;
    sum(counts.split_whitespace().map_while(|word| word.parse::<u64>().ok()))
}

fn line(text: &str, name: &str) -> Option<u64> {
    let of_name = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(of_name)
}

fn pressure(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(kind))?;
    line.split("total=").nth(1)?.trim().parse().ok()
}

fn disk_names(files: &Files) -> Vec<String> {
    let disks = disks(files);
    if disks.is_empty() {
        return Vec::new();
    }
    let of = |prefix: String| DISK.iter().map(move |(field, ..)| format!("{prefix}.{field}"));
    let each = disks.iter().flat_map(|disk| of(format!("disk.{disk}")));
    of("disk".to_owned()).chain(each).collect()
}

fn net_names(files: &Files) -> Vec<String> {
    let interfaces = files.names("sys/class/net");
    if interfaces.is_empty() {
        return Vec::new();
    }
    let of = |prefix: String| NET.iter().map(move |field| format!("{prefix}.{field}"));
    let each = interfaces.iter().flat_map(|name| of(format!("net.{name}")));
    of("net".to_owned()).chain(each).collect()
}

fn interrupt_names(files: &Files) -> Vec<String> {
    let text = files.text("proc/interrupts").unwrap_or_default();
    let name = |line: &str| Some(format!("irq.{}", line.split_once(':')?.0.trim()));
    text.lines().skip(1).filter_map(name).collect()
}

fn line_names(files: &Files, path: &str, prefix: &str) -> Vec<String> {
    let text = files.text(path).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| is_counter(name));
    names.map(|name| format!("{prefix}.{name}")).collect()
}

fn numa_names(files: &Files) -> Vec<String> {
    const NODES: &str = "sys/devices/system/node";
    let nodes = files.names(NODES).into_iter().filter(|name| name.starts_with("node"));
    let names = |node: String| {
        line_names(files, &format!("{NODES}/{node}/numastat"), &format!("numa.{node}"))
    };
    nodes.flat_map(names).collect()
}

fn pressure_names(files: &Files) -> Vec<String> {
    let kinds = |name: String| ["some", "full"].map(|kind| format!("pressure.{name}.{kind}"));
    files.names("proc/pressure").into_iter().flat_map(kinds).collect()
}

fn resctrl_names(files: &Files) -> Vec<String> {
    let of_domain = |domain: String| {
        let names = files.names(&format!("{RESCTRL}/{domain}")).into_iter();
        names.map(move |name| format!("resctrl.{domain}.{name}"))
    };
    files.names(RESCTRL).into_iter().flat_map(of_domain).collect()
}

fn sum(values: impl Iterator<Item = u64>) -> Option<u64> {
    values.fold(None, |total: Option<u64>, value| Some(total.unwrap_or(0).wrapping_add(value)))
}

/// Returns false for levels that rise and fall (free pages, cache occupancy): they have no count in
/// an interval.
fn is_counter(field: &str) -> bool {
    let grows = ["nr_dirtied", "nr_written"].contains(&field);
    grows
        || (!field.starts_with("nr_")
            && !field.ends_with("_threshold")
            && !["llc_occupancy", "workingset_nodes"].contains(&field))
}

fn what(name: &str) -> Option<What> {
    let (source, rest) = name.split_once('.')?;
    match source {
        "disk" => {
            let (device, field) = last_field(rest);
            let (_, field, factor) = DISK.iter().find(|(known, ..)| *known == field)?;
            Some(What::Disk { device, field: *field, factor: *factor })
        }
        "net" => {
            let (interface, field) = last_field(rest);
            let is_sound = interface.as_deref().is_none_or(is_plain) && NET.contains(&field);
            is_sound.then(|| What::Net { interface, field: field.to_owned() })
        }
        "irq" => Some(What::Interrupt(rest.to_owned())),
        "vmstat" => is_counter(rest)
            .then(|| What::Line { path: "proc/vmstat".to_owned(), name: rest.to_owned() }),
        _ => what_of_directory(source, rest),
    }
}

fn what_of_directory(source: &str, rest: &str) -> Option<What> {
    let (directory, field) = rest.split_once('.').filter(|(name, _)| is_plain(name))?;
    match source {
        "numa" => Some(What::Line {
            path: format!("sys/devices/system/node/{directory}/numastat"),
            name: field.to_owned(),
        }),
        "pressure" => Some(What::Pressure {
            path: format!("proc/pressure/{directory}"),
            kind: field.to_owned(),
        }),
        "resctrl" if is_plain(field) && is_counter(field) => {
            Some(What::File(format!("{RESCTRL}/{directory}/{field}")))
        }
        _ => None,
    }
}

/// Splits the text at its last dot into the device, if there is one, and the field.
fn last_field(text: &str) -> (Option<String>, &str) {
    match text.rsplit_once('.') {
        Some((device, field)) => (Some(device.to_owned()), field),
        None => (None, text),
    }
}

/// Refuses separators: names come from the command line and become parts of paths.
fn is_plain(part: &str) -> bool {
    !part.is_empty() && !part.contains('/') && part != ".."
}

/// Lists whole disks: those of /sys/block that have a size and are backed by no other counted disk.
fn disks(files: &Files) -> Vec<String> {
    let there = |name: &String| {
        let size = files.text(&format!("sys/block/{name}/size"));
        let slaves = files.names(&format!("sys/block/{name}/slaves"));
        size.is_some_and(|size| size != "0")
            && slaves.is_empty()
            && !name.starts_with("loop")
            && !name.starts_with("ram")
    };
    files.names("sys/block").into_iter().filter(there).collect()
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
