//! The document's figures, computed again from its own counts by our groups, and its shares by our planner.

use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::mesh::topology;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_pmu::{Group, Host, perf_format};
use daqmeter_record::study::{Comparison, Published};
use daqmeter_sys::host::Files;

use super::Document;

const MIB: f64 = 1_048_576.0;

/// The document's numbers beside ours.
pub(super) fn compare(document: &Document) -> Vec<Comparison> {
    let mut rows = rates(document);
    rows.extend(shares(document));
    rows
}

fn row(
    table: &str,
    row: &str,
    published: &Published,
    model: Option<f64>,
    unit: &'static str,
) -> Comparison {
    Comparison::new(table, row, published.clone(), unit).model(model)
}

/// Rates by the document's own counts.
fn rates(document: &Document) -> Vec<Comparison> {
    let counts = &document.counts;
    let memory = bytes(&counts.memory, "hnf_mc_reqs", "memory", "memory").map(|bytes| bytes / MIB);
    let disk = bytes(&counts.disk, "wdata", "pcie", "in").map(|bytes| bytes / 1e6);
    let net = bytes(&counts.net, "wdata", "pcie", "in").map(|bytes| bytes * 8.0 / 1e6);
    let reqs = "hnf_mc_reqs x 64; the document writes MB/sec";
    let (beats, bits) = ("wdata beats x 32", "wdata beats x 32 x 8");
    let (fio, netperf) = (
        format!("{beats}, beside what fio reports"),
        format!("{bits}, beside what netperf reports"),
    );
    vec![
        row("memory", reqs, &document.memory_mb_per_s, memory, "MiB"),
        row("NVMe read", beats, &document.nvme_mb_per_s, disk, "MB"),
        row("NVMe read", &fio, &document.fio_mb_per_s, disk, "MB"),
        row("Ethernet", bits, &document.ethernet_mbit_per_s, net, "Mbit"),
        row(
            "Ethernet",
            &netperf,
            &document.netperf_mbit_per_s,
            net,
            "Mbit",
        ),
    ]
}

/// Which of the document's events fit their counters, by our planner.
fn shares(document: &Document) -> Vec<Comparison> {
    let (crosspoint, domain) = (of_crosspoint(), of_domain());
    let together = |name: &str, published: &Published, events: &[String]| {
        row("events at once", name, published, at_once(events), "events")
    };
    vec![
        row(
            "shares",
            "4 RND events, its driver",
            &document.share_percent,
            share_percent(&crosspoint),
            "%",
        ),
        together(
            "of the devices at one crosspoint",
            &document.events_of_crosspoint,
            &crosspoint,
        ),
        together("of one debug domain", &document.events_of_domain, &domain),
    ]
}

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

/// The smallest share that the planner gives to events of the document's driver on its mesh, in percent.
fn share_percent(texts: &[String]) -> Option<f64> {
    let mut mesh = topology::shipped("n1sdp")?;
    mesh.name = "arm_cmn_0".to_owned();
    let pmus = [catalogue(&mesh)];
    let files = Files::below("/nonexistent");
    let host = Host {
        pmus: &pmus,
        files: &files,
    };
    let set = host.resolve(texts).ok()?;
    let shares = plan(&mesh, Driver::N1sdp, &set.groups).ok()?.shares;
    Some(shares.into_iter().fold(1.0, f64::min) * 100.0)
}

/// How many of those events count all the time when they are asked for together, from the first on.
fn at_once(texts: &[String]) -> Option<f64> {
    let all_the_time =
        |count: &usize| share_percent(&texts[..*count]).is_some_and(|percent| percent >= 100.0);
    let count = (1..=texts.len()).take_while(all_the_time).last()?;
    Some(count as f64)
}

/// Events of the request nodes at crosspoint (0, 1), which the document counts.
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
    let mut events = [hnf("mc_reqs"), hnf("mc_retries")].concat();
    events.extend_from_slice(&of_crosspoint()[..2]);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_numbers_come_out_of_its_own_counts() {
        for line in compare(&Document::default()) {
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
            bytes(
                &Document::default().counts.memory,
                "hnf_mc_reqs",
                "memory",
                "memory"
            ),
            Some(31_158_854_336.0)
        );
    }
}
