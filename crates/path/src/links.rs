//! Links that the bytes of a path cross, where somebody says what they carry: the PCIe link of a board or a disk and the network card
//! towards a receiver by sysfs, the uplink of an emulated crate by its profile. What goes through the page cache crosses its link at another time, and is left out.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use daqmeter_digitizer::devices::pcie::{Link, device_numbers};
use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_record::path::{LinkBy, PathLink};
use daqmeter_sys::host::Files;

use crate::definition::{Path, SinkKind, SourceKind};
use crate::network::Leaves;

/// Those of a path on a host with these files.
pub(crate) fn links(path: &Path, files: &Files) -> Vec<PathLink> {
    let block_bytes = path.block_bytes as f64;
    let mut all: Vec<PathLink> = match &path.source.kind {
        SourceKind::Digitizer {
            devices,
            profile,
            paced,
            ..
        } => {
            // Each board has its own link for its share of the blocks.
            let bytes = block_bytes / path.streams() as f64;
            let boards = devices
                .iter()
                .filter_map(|node| pcie(files, node, 0, bytes));
            let emulated = devices.iter().any(|device| device.starts_with("emu:"));
            let uplink = (emulated && *paced).then(|| uplink(profile, block_bytes));
            boards.chain(uplink.flatten()).collect()
        }
        SourceKind::File {
            path,
            cached: false,
        } => pcie(files, path, 0, block_bytes).into_iter().collect(),
        _ => Vec::new(),
    };
    if let SinkKind::File {
        path: file,
        direct: true,
        ..
    } = &path.sink.kind
    {
        let last = path.stages.last();
        let bytes = last.map_or(path.source.out_bytes, |stage| stage.out_bytes);
        // The file is not there before the run; its folder is.
        let folder = std::path::Path::new(file).parent();
        let folder = folder.and_then(std::path::Path::to_str).unwrap_or_default();
        let folder = if folder.is_empty() { "." } else { folder };
        all.extend(pcie(files, folder, path.stages.len() + 1, bytes as f64));
    }
    all.extend(Leaves::of(path, files).and_then(|leaves| leaves.link(path)));
    all
}

fn uplink(profile: &str, bytes_per_block: f64) -> Option<PathLink> {
    let profile = Profile::load(profile).ok()?;
    Some(PathLink {
        element: 0,
        name: format!("uplink of {}", profile.name),
        bytes_per_s: profile.uplink.limit_bytes_per_s,
        bytes_per_block,
        by: LinkBy::Profile,
    })
}

/// The link of the device that a node is, or that a file is on.
fn pcie(files: &Files, node: &str, element: usize, bytes_per_block: f64) -> Option<PathLink> {
    let data = std::fs::metadata(node).ok()?;
    let (kind, number) = match data.file_type() {
        kind if kind.is_char_device() => ("char", data.rdev()),
        kind if kind.is_block_device() => ("block", data.rdev()),
        _ => ("block", data.dev()),
    };
    let (major, minor) = device_numbers(number);
    let link = below(files, &format!("sys/dev/{kind}/{major}:{minor}"))?;
    Some(PathLink {
        element,
        name: format!("PCIe of {node}"),
        bytes_per_s: link.bytes_per_s(),
        bytes_per_block,
        by: LinkBy::Sysfs,
    })
}

/// A board's device, a disk's controller, and a partition's: a partition lies below its disk, which lies below its controller.
fn below(files: &Files, device: &str) -> Option<Link> {
    let ways = ["device", "device/device", "../device", "../device/device"];
    ways.iter()
        .find_map(|way| Link::below(files, &format!("{device}/{way}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_a_disk_is_that_of_its_controller() {
        let root = tempfile::tempdir().unwrap();
        let controller = root.path().join("sys/dev/block/259:0/device/device");
        std::fs::create_dir_all(&controller).unwrap();
        std::fs::write(controller.join("current_link_speed"), "16.0 GT/s PCIe\n").unwrap();
        std::fs::write(controller.join("current_link_width"), "4\n").unwrap();
        let files = Files::below(root.path());
        let link = below(&files, "sys/dev/block/259:0").unwrap();
        assert_eq!(link.bytes_per_s().round(), 7_876_923_077.0);
        assert_eq!(below(&files, "sys/dev/block/8:0"), None);
    }

    #[test]
    fn emulated_boards_with_the_timing_of_a_crate_share_its_uplink_and_faster_ones_none() {
        let of = |unpaced: bool| {
            let text = format!(
                "title = \"a test\"\nblock = \"1MiB\"\n[source]\nkind = \"digitizer\"\ndevices = [\"emu:l0..1\"]\nunpaced = {unpaced}\n[sink]\nkind = \"read\"\n"
            );
            let path = Path::parse(&text, "test").unwrap();
            links(&path, &Files::below("/nonexistent"))
        };
        assert_eq!(of(true), []);
        let shared = of(false);
        assert_eq!(shared.len(), 1);
        assert_eq!(shared[0].by, LinkBy::Profile);
        assert_eq!(shared[0].bytes_per_s, 3295.7e6);
    }
}
