//! The network device by which blocks leave for a receiver on another host, and its speed.

use std::net::{ToSocketAddrs, UdpSocket};

use daqmeter_record::path::{LinkBy, PathLink};
use daqmeter_sys::host::Files;
use daqmeter_sys::routes::{bytes_per_s, device};

use crate::definition::{Path, SinkKind};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaves {
    device: String,
    bytes_per_s: Option<f64>,
    to: String,
}

impl Leaves {
    /// Device of a path that ends on another host, if there is a route to it.
    pub(crate) fn of(path: &Path, files: &Files) -> Option<Leaves> {
        let SinkKind::Remote { to, .. } = &path.sink.kind else {
            return None;
        };
        let address = to.to_socket_addrs().ok()?.next()?.ip();
        // Bytes to an address of this host stay in it, whatever the routes of its network say.
        if UdpSocket::bind((address, 0)).is_ok() {
            return None;
        }
        let device = device(files, address)?;
        Some(Leaves { bytes_per_s: bytes_per_s(files, &device), device, to: to.clone() })
    }

    pub(crate) fn device(&self) -> String {
        format!("sys/class/net/{}", self.device)
    }

    pub(crate) fn link(&self, path: &Path) -> Option<PathLink> {
        let last = path.stages.last();
        let bytes = last.map_or(path.source.out_bytes, |stage| stage.out_bytes);
        Some(PathLink {
            element: path.stages.len() + 1,
            name: format!("network by {}", self.device),
            bytes_per_s: self.bytes_per_s?,
            bytes_per_block: bytes as f64,
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

    /// A host with two cards, of which one states its speed.
    fn host() -> (tempfile::TempDir, Files) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n\
            eth1\t00020A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
        write("proc/net/route", routes);
        write("sys/class/net/eth0/speed", "-1\n");
        write("sys/class/net/eth1/speed", "25000\n");
        let files = Files::below(root.path());
        (root, files)
    }

    #[test]
    fn a_speed_that_is_stated_is_a_link_and_another_is_not_known() {
        let (_root, files) = host();
        let path = |to: &str| {
            let text = format!(
                "title = \"a test\"\nblock = \"1MiB\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"tcp\"\nto = \"{to}:5010\"\n"
            );
            Path::parse(&text, "test").unwrap()
        };
        let fast = path("10.10.2.7");
        let leaves = Leaves::of(&fast, &files).unwrap();
        let link = leaves.link(&fast).unwrap();
        assert_eq!((link.element, link.bytes_per_s), (1, 3.125e9));
        assert_eq!(link.bytes_per_block, f64::from(1 << 20));
        assert_eq!(leaves.unknown(), None);
        let unknown = path("10.10.3.7");
        let leaves = Leaves::of(&unknown, &files).unwrap();
        assert_eq!(leaves.link(&unknown), None);
        assert!(
            leaves
                .unknown()
                .unwrap()
                .starts_with("the speed of eth0, by which blocks leave for 10.10.3.7:5010")
        );
        assert_eq!(Leaves::of(&path("127.0.0.1"), &files), None);
    }
}
