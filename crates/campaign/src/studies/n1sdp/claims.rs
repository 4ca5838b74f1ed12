//! The document's figures, computed again from its own counts by our groups, and its shares by our planner.

use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::mesh::topology;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_pmu::{EventResolver, MetricGroup, perf_format};
use daqmeter_record::Observations;
use daqmeter_record::study::{Comparison, Derived, Published};
use daqmeter_sys::host::Files;

use super::Document;

const MIB: f64 = 1_048_576.0;

/// The document's numbers beside ours.
pub(super) fn compare(document: &Document) -> Vec<Comparison> {
    let mut rows = rates(document);
    rows.extend(by_interval(document));
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
    let [memory, disk, net] = used(document).map(|(rows, interval)| rows.bytes(interval));
    let memory = memory.map(|bytes| bytes / MIB);
    let disk = disk.map(|bytes| bytes / 1e6);
    let net = net.map(|bytes| bytes * 8.0 / 1e6);
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
        row("Ethernet", &netperf, &document.netperf_mbit_per_s, net, "Mbit"),
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
        together("of the devices at one crosspoint", &document.events_of_crosspoint, &crosspoint),
        together("of one debug domain", &document.events_of_domain, &domain),
    ]
}

/// Rows as perf printed them, and the metric of a shipped group that they are for.
struct Printed<'a> {
    what: &'static str,
    text: &'a str,
    group: &'static str,
    metric: &'static str,
    /// Unit of the rate, and how many of the metric's B/s it is.
    unit: (&'static str, f64),
}

/// The document's outputs, each with the interval that its formula uses.
fn used(document: &Document) -> [(Printed<'_>, usize); 3] {
    let counts = &document.counts;
    let printed = |what, text, group, metric, unit| Printed { what, text, group, metric, unit };
    let pcie = |what, text, unit| printed(what, text, "pcie", "in: from devices to memory", unit);
    let memory = ("MiB/s", MIB);
    let memory = printed("memory", &counts.memory, "memory", "memory", memory);
    [
        (memory, 0),
        (pcie("NVMe read", &counts.disk, ("MB/s", 1e6)), 1),
        (pcie("Ethernet", &counts.net, ("Mbit/s", 1e6 / 8.0)), 1),
    ]
}

impl Printed<'_> {
    /// The rows, and what the group makes of them in each interval.
    fn observed(&self) -> Option<(Observations, Vec<Option<f64>>)> {
        let observed = perf_format::parse(self.text).ok()?;
        let metrics = MetricGroup::find(self.group).ok()?.metrics_of(&observed.events);
        let metrics = metrics.ok()?;
        let metric = metrics.iter().find(|found| found.name == self.metric)?;
        let values = metric.observe(&observed).values;
        Some((observed, values))
    }

    /// Bytes that the counts of an interval stand for, whatever its length: as the document computes.
    fn bytes(&self, interval: usize) -> Option<f64> {
        let (observed, values) = self.observed()?;
        let seconds = observed.seconds_of(observed.events.first()?, interval)?;
        values.get(interval).copied()?.map(|rate| rate * seconds)
    }

    /// The rate in each interval, by its own length.
    fn rows(&self) -> Vec<Comparison> {
        let Some((observed, values)) = self.observed() else {
            return Vec::new();
        };
        let row = |(at, rate): (usize, &Option<f64>)| {
            let seconds = observed.seconds_of(observed.events.first()?, at)?;
            let end = observed.end_ns[at] as f64 * 1e-9;
            let from = if at == 0 { ", the step of the others" } else { "" };
            let how = format!("counts x bytes / {seconds:.9} s{from}");
            let name = format!("{}, to {end:.9} s", self.what);
            let (unit, per_unit) = self.unit;
            let table = "rows by their own time steps";
            let row = Comparison::new(table, name, None, unit);
            Some(row.derived(Derived::computed((*rate)? / per_unit, how)))
        };
        values.iter().enumerate().filter_map(row).collect()
    }
}

/// Every interval that the document prints.
fn by_interval(document: &Document) -> Vec<Comparison> {
    let all = used(document);
    all.iter().flat_map(|(printed, _)| printed.rows()).collect()
}

/// The smallest share that the planner gives to events of the document's driver on its mesh, in percent.
fn share_percent(texts: &[String]) -> Option<f64> {
    let mut mesh = topology::shipped("n1sdp")?;
    mesh.name = "arm_cmn_0".to_owned();
    let pmus = [catalogue(&mesh)];
    let files = Files::below("/nonexistent");
    let host = EventResolver { pmus: &pmus, files: &files };
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
        let document = Document::default();
        let published = compare(&document);
        let published = published.iter().filter(|line| line.published.is_some());
        for line in published {
            let off = line.published.as_ref().unwrap().difference(line.model.unwrap().value());
            // Packets are larger than what netperf calls data: 9 %.
            let band = if line.row.contains("netperf") { 0.10 } else { 0.003 };
            assert!(off.abs() < band, "{line:?}");
            assert!(line.verdict().to_string().ends_with("(model)"), "{line:?}");
        }
        // What the table leaves out: rounded rates hide that the first row is MiB, and not divided by its interval.
        let [(memory, interval), ..] = used(&document);
        let bytes = memory.bytes(interval).unwrap();
        assert!((bytes - 31_158_854_336.0).abs() < 1.0, "{bytes}");
    }

    /// The rates were computed by hand from the document's rows: count x bytes / difference of the time stamps.
    #[test]
    fn every_printed_interval_is_divided_by_its_own_length() {
        let rows = compare(&Document::default());
        let rows: Vec<&Comparison> =
            rows.iter().filter(|row| row.table == "rows by their own time steps").collect();
        assert_eq!(rows.len(), 2 + 4 + 4);
        for (row, expected) in [
            ("memory, to 3.000644408 s", 29_700.71),
            ("NVMe read, to 4.000522271 s", 2711.43),
            ("NVMe read, to 5.000680779 s", 2711.47),
            ("NVMe read, to 6.000835927 s", 2700.93),
            ("Ethernet, to 13.002047284 s", 1030.07),
            ("Ethernet, to 14.002233364 s", 1030.07),
        ] {
            let found = rows.iter().find(|found| found.row == row);
            let derived = found.and_then(|found| found.derived.as_ref()).unwrap();
            assert!(derived.difference(expected).abs() < 1e-5, "{row}: {derived}");
            assert!(found.unwrap().published.is_none());
        }
    }
}
