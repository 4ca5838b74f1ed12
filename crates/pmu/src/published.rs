//! The figures of "CMN-600 perf example on Neoverse N1 SDP" (Arm, 2019 to 2022), computed again from its own counts by our groups,
//! and its shares by our planner.

use daqmeter_record::study::{Comparison, Published};
use daqmeter_sys::host::Files;
use serde::Deserialize;

use crate::emulated::catalogue;
use crate::event::Host;
use crate::groups::Group;
use crate::mesh::topology::shipped;
use crate::perf_format;
use crate::plan::{Driver, plan};

/// What the document states.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    memory_mb_per_s: Published,
    nvme_mb_per_s: Published,
    fio_mb_per_s: Published,
    ethernet_mbit_per_s: Published,
    netperf_mbit_per_s: Published,
    share_percent: Published,
    events_of_crosspoint: Published,
    events_of_domain: Published,
}

impl Default for Document {
    fn default() -> Self {
        toml::from_str(include_str!("../data/n1sdp-published.toml"))
            .expect("ships with the binary and is tested")
    }
}

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
/// Bytes that the events of a text stand for, by the factor that a shipped group has for its metric.
fn bytes(text: &str, event: &str, group: &str, metric: &str) -> Option<f64> {
    let observed = perf_format::parse(text).ok()?;
    let counts = observed
        .events
        .iter()
        .filter(|found| found.name.contains(event));
    let count: f64 = counts.filter_map(|found| found.scaled(0)).sum();
    let group = Group::find(group).ok()?;
    let metric = group
        .metric
        .iter()
        .find(|found| found.name.starts_with(metric))?;
    Some(count * metric.times)
}

/// The smallest share that the planner gives to events of that driver on the document's mesh, in percent.
fn share(driver: Driver, texts: &[String]) -> Option<f64> {
    let mut mesh = shipped("n1sdp")?;
    mesh.name = "arm_cmn_0".to_owned();
    let pmus = [catalogue(&mesh)];
    let set = Host {
        pmus: &pmus,
        files: &Files::below("/nonexistent"),
    }
    .resolve(texts)
    .ok()?;
    let shares = plan(&mesh, driver, &set.groups).ok()?.shares;
    Some(shares.into_iter().fold(1.0, f64::min) * 100.0)
}

/// How many of those events count all the time when they are asked for together, from the first on.
fn at_once(driver: Driver, texts: &[String]) -> Option<f64> {
    let all_the_time =
        |count: &usize| share(driver, &texts[..*count]).is_some_and(|percent| percent >= 100.0);
    let count = (1..=texts.len()).take_while(all_the_time).last()?;
    Some(count as f64)
}

/// Events of the requests nodes at crosspoint (0, 1), which the document counts.
fn of_crosspoint() -> Vec<String> {
    let rnd = |event: &str, node: u32| format!("arm_cmn/rnid_{event}_flits,nodeid={node}/");
    [("txdat", 8), ("txdat", 12), ("rxdat", 8), ("rxdat", 12)]
        .map(|(event, node)| rnd(event, node))
        .into()
}

/// Events of the four cache slices, two each, and further ones at a crosspoint of their own.
fn of_domain() -> Vec<String> {
    let hnf = |event: &str| {
        ["0x24", "0x28", "0x44", "0x48"].map(|node| format!("arm_cmn/hnf_{event},nodeid={node}/"))
    };
    [
        hnf("mc_reqs").to_vec(),
        hnf("mc_retries").to_vec(),
        of_crosspoint()[..2].to_vec(),
    ]
    .concat()
}

/// The document's numbers beside ours.
pub fn compare() -> Vec<Comparison> {
    const MIB: f64 = 1_048_576.0;
    let document = Document::default();
    let memory = bytes(MEMORY, "hnf_mc_reqs", "memory", "memory").map(|bytes| bytes / MIB);
    let disk = bytes(DISK, "wdata", "pcie", "in").map(|bytes| bytes / 1e6);
    let net = bytes(NET, "wdata", "pcie", "in").map(|bytes| bytes * 8.0 / 1e6);
    let row = |table: &str, row: &str, published: Published, model: Option<f64>, unit| {
        Comparison::new(table, row, published, unit).model(model)
    };
    let (crosspoint, domain) = (of_crosspoint(), of_domain());
    let memory_row = "hnf_mc_reqs x 64; the document writes MB/sec";
    vec![
        row(
            "memory",
            memory_row,
            document.memory_mb_per_s,
            memory,
            "MiB",
        ),
        row(
            "NVMe read",
            "wdata beats x 32",
            document.nvme_mb_per_s,
            disk,
            "MB",
        ),
        row(
            "NVMe read",
            "wdata beats x 32, beside what fio reports",
            document.fio_mb_per_s,
            disk,
            "MB",
        ),
        row(
            "Ethernet",
            "wdata beats x 32 x 8",
            document.ethernet_mbit_per_s,
            net,
            "Mbit",
        ),
        row(
            "Ethernet",
            "wdata beats x 32 x 8, beside what netperf reports",
            document.netperf_mbit_per_s,
            net,
            "Mbit",
        ),
        row(
            "shares",
            "4 RND events, its driver",
            document.share_percent,
            share(Driver::N1sdp, &crosspoint),
            "%",
        ),
        row(
            "events at once",
            "of the devices at one crosspoint",
            document.events_of_crosspoint,
            at_once(Driver::N1sdp, &crosspoint),
            "events",
        ),
        row(
            "events at once",
            "of one debug domain",
            document.events_of_domain,
            at_once(Driver::N1sdp, &domain),
            "events",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_numbers_come_out_of_its_own_counts() {
        for line in compare() {
            let off = line
                .published
                .as_ref()
                .unwrap()
                .difference(line.model.unwrap().value());
            // Packets are larger than what netperf calls data: 9 %.
            let band = if line.row.contains("netperf") {
                0.10
            } else {
                0.003
            };
            assert!(off.abs() < band, "{line:?}");
            assert!(line.verdict().to_string().ends_with("(model)"), "{line:?}");
        }
        // What the table leaves out: rounded rates hide that the first row is MiB, and not divided by its interval.
        assert_eq!(
            bytes(MEMORY, "hnf_mc_reqs", "memory", "memory"),
            Some(31_158_854_336.0)
        );
    }
}
