//! Links that the bytes of a path cross and whose capacity is known. Sysfs gives the PCIe link of a
//! board or a disk, and the network card towards a receiver. The profile of an emulated crate gives
//! its uplink. Bytes through the page cache cross their link at another time, and are left out.

use std::net::{ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use daqmeter_digitizer::devices::pcie::PcieLink;
use daqmeter_record::path::{LinkBy, PathLink};
use daqmeter_sys::host::{Files, device_directory};
use daqmeter_sys::routes::{bytes_per_s, device as route_device};

use crate::definition::Path;

/// Devices whose links blocks cross: their elements, their nodes or a file on them, and the bytes
/// of a block that cross each.
fn devices(path: &Path) -> Vec<(usize, &str, f64)> {
    let (source, sink) = (path.source_facts(), path.last());
    // Each board has its own link for its share of the blocks.
    let bytes = path.block_bytes as f64 / path.streams() as f64;
    let boards = source.devices.iter().map(|node| (0, node.as_str(), bytes));
    let last = (path.stages.len() + 1, path.sink_bytes() as f64);
    let folders = sink.facts.devices.iter().map(|node| (last.0, node.as_str(), last.1));
    boards.chain(folders).collect()
}

pub(crate) fn links(path: &Path, files: &Files) -> Vec<PathLink> {
    let devices = devices(path).into_iter();
    let pcie = devices.filter_map(|(element, node, bytes)| pcie(files, node, element, bytes));
    let uplink = path.source_facts().uplink.clone();
    let leaves = Leaves::of(path, files).and_then(|leaves| leaves.link(path));
    pcie.chain(uplink).chain(leaves).collect()
}

/// NUMA node of the device that a path's data comes from, or else of the disk or network card of
/// its sink. `None` if the kernel does not know it (`numa_node`, -1 if unknown:
/// Documentation/ABI/testing/sysfs-bus-pci).
pub(crate) fn device_node(path: &Path, files: &Files) -> Option<u32> {
    let mut devices = devices(path).into_iter().filter_map(|(_, node, _)| device(node));
    let near = devices.find_map(|device| node_below(files, &device));
    near.or_else(|| {
        let leaves = Leaves::of(path, files)?;
        node_below(files, &leaves.device())
    })
}

fn node_below(files: &Files, device: &str) -> Option<u32> {
    // The folder of the PCI device lies behind that of the controller if a bus of its own is
    // between (virtio).
    let ways = WAYS.iter().chain(&["device/..", "../device/.."]);
    let mut nodes = ways.filter_map(|way| files.text(&format!("{device}/{way}/numa_node")));
    nodes.find_map(|text| text.parse().ok())
}

fn pcie(files: &Files, node: &str, element: usize, bytes_per_block: f64) -> Option<PathLink> {
    let link = below(files, &device(node)?)?;
    Some(PathLink {
        element,
        name: format!("PCIe of {node}"),
        bytes_per_s: link.bytes_per_s(),
        bytes_per_block,
        by: LinkBy::Sysfs,
    })
}

/// Folder in sysfs of the device that a node is, or that a file is on.
fn device(node: &str) -> Option<String> {
    let data = std::fs::metadata(node).ok()?;
    let (kind, number) = match data.file_type() {
        kind if kind.is_char_device() => ("char", data.rdev()),
        kind if kind.is_block_device() => ("block", data.rdev()),
        _ => ("block", data.dev()),
    };
    Some(device_directory(kind, number))
}

/// A board's device, a disk's controller, and a partition's: a partition lies below its disk, which
/// lies below its controller.
const WAYS: [&str; 4] = ["device", "device/device", "../device", "../device/device"];

fn below(files: &Files, device: &str) -> Option<PcieLink> {
    WAYS.iter().find_map(|way| PcieLink::below(files, &format!("{device}/{way}")))
}

/// The network device by which blocks leave for a receiver on another host, and its speed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaves {
    device: String,
    bytes_per_s: Option<f64>,
    to: String,
}

impl Leaves {
    /// Device of a path that ends on another host, if there is a route to it.
    pub(crate) fn of(path: &Path, files: &Files) -> Option<Leaves> {
        let to = path.last().facts.to.as_ref()?;
        let address = to.to_socket_addrs().ok()?.next()?.ip();
        // Bytes to an address of this host stay in it, whatever the routes of its network say.
        if UdpSocket::bind((address, 0)).is_ok() {
            return None;
        }
        let device = route_device(files, address)?;
        Some(Leaves { bytes_per_s: bytes_per_s(files, &device), device, to: to.to_owned() })
    }

    pub(crate) fn device(&self) -> String {
        format!("sys/class/net/{}", self.device)
    }

    pub(crate) fn link(&self, path: &Path) -> Option<PathLink> {
        Some(PathLink {
            element: path.stages.len() + 1,
            name: format!("network by {}", self.device),
            bytes_per_s: self.bytes_per_s?,
            bytes_per_block: path.sink_bytes() as f64,
            by: LinkBy::Sysfs,
        })
    }

    pub(crate) fn unknown(&self) -> Option<String> {
        self.bytes_per_s.is_none().then(|| {
            format!(
                "the speed of {}, by which blocks leave for {}, is not known: its driver states none, so that it cannot be named as the limit",
                self.device, self.to
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these files.
    fn host(all: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let files = Files::below(root.path());
        (root, files)
    }

    /// Two cards, of which one states its speed and its node.
    const CARDS: [(&str, &str); 4] = [
        (
            "proc/net/route",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n\
             eth1\t00020A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
        ),
        ("sys/class/net/eth0/speed", "-1\n"),
        ("sys/class/net/eth1/speed", "25000\n"),
        ("sys/class/net/eth1/device/numa_node", "1\n"),
    ];

    fn path(source: &str, sink: &str) -> Path {
        let text =
            format!("title = \"a test\"\nblock = \"1MiB\"\n[source]\n{source}\n[sink]\n{sink}\n");
        Path::parse(&text, "test").unwrap()
    }

    fn to(address: &str) -> Path {
        path("kind = \"memory\"", &format!("kind = \"tcp\"\nto = \"{address}:5010\""))
    }

    #[test]
    fn the_link_of_a_disk_is_that_of_its_controller() {
        let (_root, files) = host(&[
            ("sys/dev/block/259:0/device/device/current_link_speed", "16.0 GT/s PCIe\n"),
            ("sys/dev/block/259:0/device/device/current_link_width", "4\n"),
        ]);
        let link = below(&files, "sys/dev/block/259:0").unwrap();
        assert_eq!(link.bytes_per_s().round(), 7_876_923_077.0);
        assert_eq!(below(&files, "sys/dev/block/8:0"), None);
    }

    #[test]
    fn a_device_is_on_the_node_that_its_controller_names_where_that_is_known() {
        let (_root, files) = host(&[
            ("sys/dev/char/250:0/device/numa_node", "1\n"),
            ("sys/dev/block/259:0/device/device/numa_node", "0\n"),
            ("sys/dev/block/8:0/device/numa_node", "-1\n"),
        ]);
        for (device, node) in [
            ("char/250:0", Some(1)),
            ("block/259:0", Some(0)),
            ("block/8:0", None),
            ("block/9:0", None),
        ] {
            assert_eq!(node_below(&files, &format!("sys/dev/{device}")), node, "{device}");
        }
    }

    #[test]
    fn emulated_boards_with_the_timing_of_a_crate_share_its_uplink_and_faster_ones_none() {
        let of = |unpaced: bool| {
            let boards =
                format!("kind = \"digitizer\"\ndevices = [\"emu:l0..1\"]\nunpaced = {unpaced}");
            links(&path(&boards, "kind = \"read\""), &Files::below("/nonexistent"))
        };
        assert_eq!(of(true), []);
        let shared = of(false);
        assert_eq!(shared.len(), 1);
        assert_eq!((shared[0].by, shared[0].bytes_per_s), (LinkBy::Profile, 3295.7e6));
    }

    #[test]
    fn a_path_is_near_its_card_whose_speed_is_a_link_if_it_is_stated() {
        let (_root, files) = host(&CARDS);
        let fast = to("10.10.2.7");
        assert_eq!(device_node(&fast, &files), Some(1));
        assert_eq!(device_node(&path("kind = \"memory\"", "kind = \"read\""), &files), None);
        let leaves = Leaves::of(&fast, &files).unwrap();
        let link = leaves.link(&fast).unwrap();
        assert_eq!((link.element, link.bytes_per_s), (1, 3.125e9));
        assert_eq!((link.bytes_per_block, leaves.unknown()), (f64::from(1 << 20), None));
        let unknown = to("10.10.3.7");
        let leaves = Leaves::of(&unknown, &files).unwrap();
        assert_eq!(leaves.link(&unknown), None);
        let said = leaves.unknown().unwrap();
        let wanted = "the speed of eth0, by which blocks leave for 10.10.3.7:5010";
        assert!(said.starts_with(wanted), "{said}");
        assert_eq!(Leaves::of(&to("127.0.0.1"), &files), None);
    }
}
