//! Capacity of a board's PCIe link, from sysfs.

use daqmeter_sys::host::{Files, device_directory};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PcieLink {
    gigatransfers_per_s: f64,
    lanes: u32,
}

impl PcieLink {
    pub(crate) fn of(files: &Files, rdev: u64) -> Option<PcieLink> {
        PcieLink::below(files, &format!("{}/device", device_directory("char", rdev)))
    }

    /// Reads the link from a PCI device's folder in sysfs; `None` for other devices and untrained
    /// links.
    pub fn below(files: &Files, device: &str) -> Option<PcieLink> {
        let speed = files.text(&format!("{device}/current_link_speed"))?;
        let lanes = files.text(&format!("{device}/current_link_width"))?.parse().ok()?;
        // "8.0 GT/s PCIe"
        let gigatransfers_per_s = speed.split_whitespace().next()?.parse().ok()?;
        (lanes > 0).then_some(PcieLink { gigatransfers_per_s, lanes })
    }

    /// Returns bytes per second after line coding: 8b/10b up to 5 GT/s (PCIe 1 and 2), 128b/130b
    /// above. Packet headers are not subtracted.
    pub fn bytes_per_s(self) -> f64 {
        let coding = if self.gigatransfers_per_s > 5.0 { 128.0 / 130.0 } else { 0.8 };
        self.gigatransfers_per_s * 1e9 * coding * f64::from(self.lanes) / 8.0
    }
}

impl std::fmt::Display for PcieLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PCIe x{} at {} GT/s after line coding, packet headers included",
            self.lanes, self.gigatransfers_per_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(speed: &str, width: &str) -> Option<PcieLink> {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/dev/char/250:0/device");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("current_link_speed"), speed).unwrap();
        std::fs::write(device.join("current_link_width"), width).unwrap();
        PcieLink::of(&Files::below(root.path()), 250 << 8)
    }

    #[test]
    fn coding_takes_a_fifth_of_older_links_and_what_sysfs_does_not_tell_is_no_limit() {
        let rate = link("8.0 GT/s PCIe\n", "4\n").unwrap().bytes_per_s();
        assert!((rate / 1e6 - 3938.0).abs() < 1.0, "{rate}");
        assert_eq!(link("2.5 GT/s PCIe", "4").unwrap().bytes_per_s(), 1e9);
        assert_eq!(link("Unknown", "4"), None);
        assert_eq!(link("8.0 GT/s", "0"), None);
        assert_eq!(PcieLink::of(&Files::below("/nonexistent"), 0x102), None);
    }
}
