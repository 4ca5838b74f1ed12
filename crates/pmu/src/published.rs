//! The figures of "CMN-600 perf example on Neoverse N1 SDP" (Arm, 2019 to 2022), computed again from its own counts by our groups,
//! and its shares by our planner.

use daqmeter_record::Comparison;
use daqmeter_sys::host::Files;

use crate::emulated::catalogue;
use crate::event::Host;
use crate::groups::Group;
use crate::mesh::topology::shipped;
use crate::perf_format;
use crate::plan::{Driver, plan};

/// The document's second interval, memory load.
const MEMORY: &str = "\
2.000394365 121,713,206 arm_cmn/hnf_mc_reqs,nodeid=0x24/
2.000394365 121,715,680 arm_cmn/hnf_mc_reqs,nodeid=0x28/
2.000394365 121,712,781 arm_cmn/hnf_mc_reqs,nodeid=0x44/
2.000394365 121,715,432 arm_cmn/hnf_mc_reqs,nodeid=0x48/
";
/// Its intervals while fio reads an NVMe disk.
const DISK: &str = "\
4.000522271 248,199 arm_cmn/rnid_s0_rdata_beats,nodeid=0xc/
4.000522271 84,743,908 arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
";
/// And while netperf receives.
const NET: &str = "\
13.002047284 308,994 arm_cmn/rnid_s0_rdata_beats,nodeid=0xc/
13.002047284 4,024,287 arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
";
/// What fio itself said: 202101 reads of 64 KiB in 4.894 s.
const FIO_BYTES_PER_S: f64 = 202_101.0 * 65_536.0 / 4.894;
/// What netperf said.
const NETPERF_BITS_PER_S: f64 = 941.52e6;

/// Bytes that the events of a text stand for, by the factor that a shipped group has for its metric.
fn bytes(text: &str, event: &str, group: &str, metric: &str) -> Option<f64> {
    let observed = perf_format::parse(text).ok()?;
    let counts = observed.events.iter().filter(|found| found.name.contains(event));
    let count: f64 = counts.filter_map(|found| found.scaled(0)).sum();
    let group = Group::find(group).ok()?;
    let metric = group.metric.iter().find(|found| found.name.starts_with(metric))?;
    Some(count * metric.times)
}

/// The smallest share that the planner gives to events of that driver on the document's mesh, in percent.
fn share(driver: Driver, texts: &[String]) -> Option<f64> {
    let mut mesh = shipped("n1sdp")?;
    mesh.name = "arm_cmn_0".to_owned();
    let pmus = [catalogue(&mesh)];
    let set = Host { pmus: &pmus, files: &Files::below("/nonexistent") }.resolve(texts).ok()?;
    let shares = plan(&mesh, driver, &set.groups).ok()?.shares;
    Some(shares.into_iter().fold(1.0, f64::min) * 100.0)
}

/// The document's numbers beside ours.
pub fn compare() -> Vec<Comparison> {
    const MIB: f64 = 1_048_576.0;
    let memory = bytes(MEMORY, "hnf_mc_reqs", "memory", "memory");
    let disk = bytes(DISK, "wdata", "pcie", "in");
    let net = bytes(NET, "wdata", "pcie", "in").map(|bytes| bytes * 8.0);
    let row = |table: &str, row: &str, published: f64, model: Option<f64>, unit: &'static str| Comparison {
        table: table.to_owned(),
        row: row.to_owned(),
        published,
        model,
        measured: None,
        unit,
    };
    let rnd = |event: &str, node: u32| format!("arm_cmn/rnid_{event}_flits,nodeid={node}/");
    let four: Vec<String> =
        [("txdat", 8), ("txdat", 12), ("rxdat", 8), ("rxdat", 12)].map(|(event, node)| rnd(event, node)).into();
    let hnf = |event: &str| ["0x24", "0x28", "0x44", "0x48"].map(|node| format!("arm_cmn/hnf_{event},nodeid={node}/"));
    let eight = [hnf("mc_reqs"), hnf("mc_retries")].concat();
    vec![
        row("memory", "hnf_mc_reqs x 64; the document writes MB/sec", 29_715.0, memory.map(|bytes| bytes / MIB), "MiB"),
        row("NVMe read", "wdata beats x 32", 2711.0, disk.map(|bytes| bytes / 1e6), "MB"),
        row("NVMe read", "of what fio said", 100.2, disk.map(|bytes| bytes / FIO_BYTES_PER_S * 100.0), "%"),
        row("Ethernet", "wdata beats x 32 x 8", 1030.0, net.map(|bits| bits / 1e6), "Mbit"),
        row("Ethernet", "of what netperf said", 109.4, net.map(|bits| bits / NETPERF_BITS_PER_S * 100.0), "%"),
        row("shares", "4 RND events, its driver", 50.0, share(Driver::N1sdp, &four), "%"),
        row("shares", "8 HN-F events, its driver", 100.0, share(Driver::N1sdp, &eight), "%"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_numbers_come_out_of_its_own_counts() {
        for line in compare() {
            let off = line.model.unwrap() / line.published - 1.0;
            assert!(off.abs() < 0.001, "{line:?}");
        }
        // What the table leaves out: rounded rates hide that the first row is MiB, and not divided by its interval.
        assert_eq!(bytes(MEMORY, "hnf_mc_reqs", "memory", "memory"), Some(31_158_854_336.0));
    }
}
