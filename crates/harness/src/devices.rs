//! Devices of the machine that data could pass, from /sys and /proc.

use daqmeter_record::host::HostDevice;
use daqmeter_record::units::show_bytes;
use daqmeter_sys::host::Files;

#[derive(Clone, Copy, Debug)]
pub struct CardFamily {
    /// `digitizer` or `readout`.
    pub kind: &'static str,
    pub maker: &'static str,
    /// PCI vendor as in sysfs: `0x1796`.
    pub vendor: &'static str,
    pub is_node: fn(&str) -> bool,
}

impl CardFamily {
    pub fn nodes(&self, files: &Files) -> Vec<String> {
        let names = files.names("dev").into_iter();
        let path = |name| files.root().join("dev").join(name).display().to_string();
        names.filter(|name| (self.is_node)(name)).map(path).collect()
    }

    pub(crate) fn found(&self, files: &Files) -> Vec<HostDevice> {
        const FOLDER: &str = "sys/bus/pci/devices";
        let mut found = class(files, self.kind, FOLDER, |address, text| {
            let driver = driver(files, &format!("{FOLDER}/{address}"));
            let driver = if driver.is_empty() { "no driver".to_owned() } else { driver };
            (text("vendor") == self.vendor).then(|| vec![self.maker.to_owned(), driver])
        });
        found.extend(self.nodes(files).iter().map(|node| device(self.kind, node, Vec::new())));
        found
    }
}

/// Returns block devices, network interfaces, PMUs and DMA channels, in this order.
pub(crate) fn devices(files: &Files) -> Vec<HostDevice> {
    let all = [blocks(files), networks(files), pmus(files), dma(files)];
    all.into_iter().flatten().collect()
}

fn device(kind: &str, name: &str, about: Vec<String>) -> HostDevice {
    let about = about.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
    HostDevice { kind: kind.to_owned(), name: name.to_owned(), about }
}

fn driver(files: &Files, folder: &str) -> String {
    let link = std::fs::read_link(files.root().join(folder).join("driver")).ok();
    link.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())).unwrap_or_default()
}

/// Returns the devices in a folder of /sys with what is said of each; `None` leaves one out.
fn class(
    files: &Files,
    kind: &str,
    folder: &str,
    about: impl Fn(&str, &dyn Fn(&str) -> String) -> Option<Vec<String>>,
) -> Vec<HostDevice> {
    let found = |name: String| {
        let text = |what: &str| files.text(&format!("{folder}/{name}/{what}")).unwrap_or_default();
        Some(device(kind, &name, about(&name, &text)?))
    };
    files.names(folder).into_iter().filter_map(found).collect()
}

fn blocks(files: &Files) -> Vec<HostDevice> {
    class(files, "block", "sys/block", |name, text| {
        let sectors: u64 = text("size").parse().ok().filter(|&sectors| sectors > 0)?;
        if ["loop", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let kind = if text("queue/rotational") == "1" { "rotating" } else { "" };
        let driver = driver(files, &format!("sys/block/{name}/device"));
        let size = show_bytes(sectors.saturating_mul(512));
        Some(vec![size, text("device/model"), kind.to_owned(), driver])
    })
}

fn networks(files: &Files) -> Vec<HostDevice> {
    class(files, "network", "sys/class/net", |name, text| {
        let device = format!("sys/class/net/{name}/device");
        // Interfaces of hardware have a device; the survey measures on the loopback.
        if name != "lo" && !files.root().join(&device).exists() {
            return None;
        }
        let speed = text("speed").parse::<i64>().ok().filter(|&speed| speed > 0);
        let speed = speed.map_or(String::new(), |speed| format!("{speed} Mb/s"));
        let mtu = format!("MTU {}", text("mtu"));
        Some(vec![speed, mtu, text("operstate"), driver(files, &device)])
    })
}

fn pmus(files: &Files) -> Vec<HostDevice> {
    class(files, "pmu", "sys/bus/event_source/devices", |_, _| Some(Vec::new()))
}

fn dma(files: &Files) -> Vec<HostDevice> {
    class(files, "dma", "sys/class/dma", |name, text| {
        let copies = Some(text("memcpy_count")).filter(|copies| !copies.is_empty());
        let copies = copies.map_or(String::new(), |copies| format!("{copies} copies so far"));
        Some(vec![driver(files, &format!("sys/class/dma/{name}/device")), copies])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_found_and_what_is_only_software_is_not() {
        let root = crate::fixtures::root(&[
            ("sys/block/nvme0n1/size", "2000000"),
            ("sys/block/nvme0n1/device/model", "Fast Disk"),
            ("sys/block/loop0/size", "8"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/eth0/mtu", "9000"),
            ("sys/class/net/eth0/speed", "100000"),
            ("sys/class/net/eth0/device/vendor", "x"),
            ("sys/class/net/ifb0/mtu", "1500"),
            ("sys/bus/event_source/devices/arm_cmn_0/type", "12"),
            ("sys/class/dma/dma0chan0/memcpy_count", "7"),
            ("sys/bus/pci/devices/0000:05:00.0/vendor", "0x1796\n"),
            ("dev/sis8300-5", ""),
        ]);
        let family = CardFamily {
            kind: "digitizer",
            maker: "Struck",
            vendor: "0x1796",
            is_node: |name| name.starts_with("sis8300"),
        };
        let node = root.path().join("dev/sis8300-5");
        let found: Vec<String> = devices(&Files::below(root.path()))
            .iter()
            .chain(&family.found(&Files::below(root.path())))
            .map(|found| format!("{} {} ({})", found.kind, found.name, found.about))
            .collect();
        assert_eq!(
            found,
            [
                "block nvme0n1 (976.6 MiB, Fast Disk)",
                "network eth0 (100000 Mb/s, MTU 9000)",
                "network lo (MTU 65536)",
                "pmu arm_cmn_0 ()",
                "dma dma0chan0 (7 copies so far)",
                "digitizer 0000:05:00.0 (Struck, no driver)",
                &format!("digitizer {} ()", node.display()),
            ]
        );
        assert!(devices(&Files::below("/nonexistent")).is_empty());
    }
}
