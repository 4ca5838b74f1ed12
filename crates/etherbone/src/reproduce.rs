//! The study of 2018 beside the model of its bridges and what emulating them gives on this host.
//!
//! Works on records alone, fresh or read back from a file. Prints nothing.

use std::collections::BTreeMap;

use daqmeter_record::study::{Comparison, Finding, Measured, Published, Statement};
use daqmeter_record::{RunRecord, Workload};
use daqmeter_wire::etherbone::Layout;
use daqmeter_wire::etherbone::cycle::{Check, Op, encode};
use serde::Deserialize;

use crate::Method;
use crate::transport::Bridge;

/// Prefix of the studies of all records here.
pub const STUDY: &str = "reproduce/etherbone";
/// Timestamps per cycle of the study.
pub const TIMESTAMPS: std::ops::RangeInclusive<u64> = 1..=8;
/// Cycles of a series of the study.
pub const CYCLES: u64 = 90;
/// The bridge of the study's SCU.
const PCIE: &str = "scu-pcie-2018";
/// Its bridge over Gigabit Ethernet.
const GIGE: &str = "gige";
/// Its bridge over USB.
const USB: &str = "usb-t5810-2018";
/// The bridges whose curves the study draws.
pub const DRAWN: [&str; 3] = [PCIE, GIGE, USB];

/// The published figures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Key data of PCIe.
    pub pcie: Pcie,
    /// Key data of Gigabit Ethernet.
    pub gige: Gige,
    /// The table of the timestamp latch unit.
    pub tlu: Vec<TluRow>,
    /// What it says in words.
    pub finding: BTreeMap<String, Statement>,
}

/// Key data of the SCU over PCIe; times per 64-bit timestamp.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "the names are those of the quantities, with their units"
)]
pub struct Pcie {
    pub time_one_us: Published,
    pub time_many_us: Published,
    pub rate_one_khz: Published,
    pub rate_many_khz: Published,
    pub throughput_one_mbit_per_s: Published,
    pub throughput_many_mbit_per_s: Published,
    pub pipelining_gain_percent: Published,
    pub gap_ns: Published,
}

/// Key data of Gigabit Ethernet.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gige {
    /// Between two timestamps of one cycle.
    pub gap_ns: Published,
}

/// One row of the table of the timestamp latch unit.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TluRow {
    /// Bridge, host, system and year.
    pub row: String,
    /// The emulated bridge that stands for it.
    pub bridge: String,
    /// Time of a cycle of 3 reads and 1 write.
    pub cycle_us: Published,
    /// Its rate.
    pub rate_khz: Published,
}

impl Default for Document {
    fn default() -> Self {
        toml::from_str(include_str!("../data/gsi-2018.toml"))
            .expect("ships with the binary and is tested")
    }
}

/// One point to run: its study, its workload, and how many cycles.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Study of its record.
    pub study: String,
    /// What to ask the engine `etherbone`.
    pub workload: Workload,
    /// Cycles.
    pub cycles: u64,
}

/// A workload of the study.
pub fn workload(address: &str, method: Method, payload: &str, count: u64) -> Workload {
    Workload::new("etherbone")
        .with("address", address)
        .with("method", method.name())
        .with("payload", payload)
        .with("count", count)
        .with("cycles", CYCLES)
}

/// Everything that the reproduction runs.
pub fn plan(published: &Document) -> Vec<Planned> {
    let drawn = DRAWN.iter().flat_map(|bridge| {
        [Method::Blocking, Method::Pipelined]
            .into_iter()
            .flat_map(move |method| {
                TIMESTAMPS.map(move |count| Planned {
                    study: STUDY.to_owned(),
                    workload: workload(&format!("emu/{bridge}"), method, "timestamps", count),
                    // Enough series for a median; blocking cycles are all alike.
                    cycles: if method == Method::Pipelined {
                        11 * CYCLES
                    } else {
                        3 * CYCLES
                    },
                })
            })
    });
    let tlu = published.tlu.iter().map(|row| Planned {
        study: STUDY.to_owned(),
        workload: workload(&format!("emu/{}", row.bridge), Method::Blocking, "tlu", 1),
        cycles: 3 * CYCLES,
    });
    drawn.chain(tlu).collect()
}

/// Times of the model, in us, from the bridge's profile alone.
struct Model {
    bridge: Bridge,
}

impl Model {
    fn of(bridge: &str) -> Option<Model> {
        Bridge::named(bridge).ok().map(|bridge| Model { bridge })
    }

    /// Bytes of the request and of the answer of one checked cycle, as this client encodes it.
    fn bytes(&self, reads: u64, writes: u64) -> (f64, f64) {
        let write = |_| Op::write(0, 0, Layout::L32.data);
        let read = |_| Op::read(0, Layout::L32.data);
        let ops: Vec<Op> = (0..writes).map(write).chain((0..reads).map(read)).collect();
        let mut room = vec![0; 64 + 32 * ops.len()];
        let encoded =
            encode(&ops, Layout::L32, 0x8000, Check::Status, &mut room).unwrap_or_default();
        let header = if self.bridge.stream {
            0
        } else {
            Layout::L32.header_bytes()
        };
        // Of each record with reads: its header, the return address, the values.
        let records = if reads > 0 { 2 } else { 1 };
        let answer = header + records * 8 + 4 * (encoded.values + encoded.statuses);
        ((encoded.bytes + header) as f64, answer as f64)
    }

    fn line_us(bytes: f64, link: &crate::link::LinkProfile) -> f64 {
        if link.bytes_per_s > 0.0 {
            (bytes + link.overhead_bytes as f64) / link.bytes_per_s * 1e6
        } else {
            0.0
        }
    }

    fn bus_us(&self, reads: u64, writes: u64) -> f64 {
        let timing = self.bridge.timing;
        (timing.cycle_ns + reads * timing.read_ns + writes * timing.write_ns) as f64 / 1e3
    }

    fn blocking_us(&self, reads: u64, writes: u64) -> f64 {
        let (request, reply) = (&self.bridge.request, &self.bridge.reply);
        let (out, back) = self.bytes(reads, writes);
        (request.latency_ns + reply.latency_ns) as f64 / 1e3
            + Model::line_us(out, request)
            + Model::line_us(back, reply)
            + self.bus_us(reads, writes)
    }

    /// Per cycle of a long series: the slowest of what the cycles pass one after the other.
    fn pipelined_us(&self, reads: u64, writes: u64) -> f64 {
        let (out, back) = self.bytes(reads, writes);
        let request_us = Model::line_us(out, &self.bridge.request);
        let reply_us = Model::line_us(back, &self.bridge.reply);
        self.bus_us(reads, writes).max(request_us).max(reply_us)
    }
}

fn find<'a>(records: &'a [RunRecord], workload: &Workload) -> Option<&'a RunRecord> {
    let same = |record: &&RunRecord| {
        ["address", "method", "payload", "count"]
            .iter()
            .all(|name| record.workload.params.get(*name) == workload.params.get(*name))
    };
    records
        .iter()
        .rev()
        .filter(|record| record.workload.kind == "etherbone" && record.outcome.is_ok())
        .find(same)
}

/// Median time of a cycle, in us.
fn cycle_us(record: &RunRecord) -> Option<f64> {
    let stage = record.lanes.first()?.stages.first()?;
    let mut samples = stage.sample_ns.clone();
    samples.sort_unstable();
    Some(*samples.get(samples.len() / 2)? as f64 / stage.ops_per_sample as f64 / 1e3)
}

/// What was measured behind a bridge: a value of the median cycle, in us.
fn measured(
    records: &[RunRecord],
    bridge: &str,
    method: Method,
    payload: &str,
    count: u64,
    value: impl Fn(f64) -> f64,
) -> Option<Measured> {
    let record = find(
        records,
        &workload(&format!("emu/{bridge}"), method, payload, count),
    )?;
    Measured::of(record, value(cycle_us(record)?))
}

/// Time of each of so many timestamps in a cycle, in us.
fn timestamp_us(
    records: &[RunRecord],
    bridge: &str,
    method: Method,
    count: u64,
) -> Option<Measured> {
    measured(records, bridge, method, "timestamps", count, |us| {
        us / count as f64
    })
}

fn gap_ns(records: &[RunRecord], bridge: &str) -> Option<Measured> {
    let most = *TIMESTAMPS.end();
    let record = find(
        records,
        &workload(
            &format!("emu/{bridge}"),
            Method::Pipelined,
            "timestamps",
            most,
        ),
    )?;
    Measured::of(record, record.counter("eca-in-cycle-gap")?)
}

/// Every published figure beside model and measurement.
pub fn compare(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let mut lines = key_data(&published.pcie, records);
    let gap = |bridge: &str, published: &Published| {
        Comparison::new(
            "gap between timestamps of one cycle",
            bridge,
            published.clone(),
            "ns",
        )
        .model(Model::of(bridge).map(|model| 2.0 * model.bridge.timing.read_ns as f64))
        .measured(gap_ns(records, bridge))
    };
    lines.push(gap(PCIE, &published.pcie.gap_ns));
    lines.push(gap(GIGE, &published.gige.gap_ns));
    lines.extend(published.tlu.iter().flat_map(|row| tlu(row, records)));
    lines
}

/// Time and rate of a row of the table.
fn tlu(row: &TluRow, records: &[RunRecord]) -> [Comparison; 2] {
    let model_us = Model::of(&row.bridge).map(|model| model.blocking_us(3, 1));
    let line = |published: &Published, value: fn(f64) -> f64, unit| {
        Comparison::new(
            "TLU cycle: 3 reads, 1 write",
            &row.row,
            published.clone(),
            unit,
        )
        .model(model_us.map(value))
        .measured(measured(
            records,
            &row.bridge,
            Method::Blocking,
            "tlu",
            1,
            value,
        ))
    };
    [
        line(&row.cycle_us, |us| us, "us"),
        line(&row.rate_khz, |us| 1e3 / us, "kHz"),
    ]
}

/// The key data of PCIe: one and eight timestamps per cycle, and what pipelining gains.
fn key_data(pcie: &Pcie, records: &[RunRecord]) -> Vec<Comparison> {
    let model = Model::of(PCIE);
    let line = |row: &str, published: &Published, count: u64, value: fn(f64) -> f64, unit| {
        Comparison::new(
            "SCU over PCIe, blocking",
            format!("{row}, {count} per cycle"),
            published.clone(),
            unit,
        )
        .model(
            model
                .as_ref()
                .map(|model| value(model.blocking_us(2 * count, 0) / count as f64)),
        )
        .measured(measured(
            records,
            PCIE,
            Method::Blocking,
            "timestamps",
            count,
            |us| value(us / count as f64),
        ))
    };
    let (one, many) = (*TIMESTAMPS.start(), *TIMESTAMPS.end());
    let (time, rate, throughput) = (|us: f64| us, |us: f64| 1e3 / us, |us: f64| 64.0 / us);
    let mut lines = vec![
        line("time per timestamp", &pcie.time_one_us, one, time, "us"),
        line("time per timestamp", &pcie.time_many_us, many, time, "us"),
        line("rate", &pcie.rate_one_khz, one, rate, "kHz"),
        line("rate", &pcie.rate_many_khz, many, rate, "kHz"),
        line(
            "throughput",
            &pcie.throughput_one_mbit_per_s,
            one,
            throughput,
            "Mbit/s",
        ),
        line(
            "throughput",
            &pcie.throughput_many_mbit_per_s,
            many,
            throughput,
            "Mbit/s",
        ),
    ];
    let row = format!("gain by pipelining, {many} per cycle");
    let of_model = |model: &Model| {
        (model.blocking_us(2 * many, 0) / model.pipelined_us(2 * many, 0) - 1.0) * 100.0
    };
    lines.push(
        Comparison::new(
            "SCU over PCIe",
            row,
            pcie.pipelining_gain_percent.clone(),
            "%",
        )
        .model(model.as_ref().map(of_model))
        .measured(gain_percent(records, PCIE, many)),
    );
    lines
}

/// What pipelining gains over blocking cycles, in per cent.
fn gain_percent(records: &[RunRecord], bridge: &str, count: u64) -> Option<Measured> {
    let of = |method| {
        find(
            records,
            &workload(&format!("emu/{bridge}"), method, "timestamps", count),
        )
    };
    let (blocking, pipelined) = (of(Method::Blocking)?, of(Method::Pipelined)?);
    Measured::over(
        [blocking, pipelined],
        (cycle_us(blocking)? / cycle_us(pipelined)? - 1.0) * 100.0,
    )
}

/// What the document says in words, judged by what was measured behind the emulated bridges.
pub fn findings(published: &Document, records: &[RunRecord]) -> Vec<Finding> {
    let statement = |name: &str| {
        published
            .finding
            .get(name)
            .expect("the shipped findings are tested")
    };
    let many = *TIMESTAMPS.end();
    let gain = |bridge| gain_percent(records, bridge, many);
    let pipelined = |bridge| timestamp_us(records, bridge, Method::Pipelined, many);
    let us = |value: f64| format!("{value:.3} us");
    let constant = |bridge: &'static str| {
        [1, many].map(|count| {
            measured(
                records,
                bridge,
                Method::Blocking,
                "timestamps",
                count,
                |us| us,
            )
        })
    };
    let [gige_one, gige_many] = constant(GIGE);
    let [usb_one, usb_many] = constant(USB);
    vec![
        statement("constant").judged([gige_one, gige_many, usb_one, usb_many], |[g1, g8, u1, u8]| {
            let evidence = format!(
                "cycle of 1 and of 8: GigE {g1:.1} and {g8:.1} us, USB {u1:.1} and {u8:.1} us; within 10 % counts"
            );
            ((g8 / g1 < 1.1 && u8 / u1 < 1.1).into(), evidence)
        }),
        statement("gain").judged([gain(PCIE), gain(GIGE), gain(USB)], |[pcie, gige, usb]| {
            let evidence =
                format!("pipelining gains {pcie:.0} % over PCIe, {gige:.0} % over GigE, {usb:.0} % over USB");
            ((pcie < gige && pcie < usb).into(), evidence)
        }),
        statement("usb").judged([pipelined(PCIE), pipelined(USB)], |[pcie, usb]| {
            ((usb < pcie).into(), format!("per timestamp, pipelined: PCIe {}, USB {}", us(pcie), us(usb)))
        }),
        statement("gige").judged([pipelined(PCIE), pipelined(USB), pipelined(GIGE)], |[pcie, usb, gige]| {
            let evidence = format!("per timestamp, pipelined: GigE {}, USB {}, PCIe {}", us(gige), us(usb), us(pcie));
            ((gige < usb && gige < pcie).into(), evidence)
        }),
    ]
}

/// What the document says that its own numbers contradict, or that this reproduction cannot show.
pub const REMARKS: [&str; 4] = [
    "25 us for one timestamp is 40 kHz, yet the rate is given as about 35 kHz: the emulated bridge follows the 25 us",
    "two measuring windows differ little only for slow links: on fast ones, in a pipeline, by a factor (see eb perf)",
    "GigE and USB curves are published as figures only: their bridges are fitted to the TLU table, pipelined rates are not targets",
    "each bridge's shares of latency, line and bus are a fit, of which the sums are published (profiles/bridges.toml)",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_meets_the_published_figures() {
        for line in compare(&Document::default(), &[]) {
            let off = line
                .published
                .as_ref()
                .unwrap()
                .difference(line.model.unwrap().value());
            // The study states 10 % for PCIe and USB; its own 35 kHz contradicts its 25 us by 14 %.
            let wide = ["rate, 1", "throughput", "gain"]
                .iter()
                .any(|word| line.row.contains(word));
            let band = if wide { 0.16 } else { 0.05 };
            assert!(off.abs() < band, "{line:?}");
            assert!(line.verdict().to_string().ends_with("(model)"), "{line:?}");
        }
    }

    #[test]
    fn findings_are_told_only_from_records() {
        let published = Document::default();
        let findings = findings(&published, &[]);
        assert_eq!(findings.len(), published.finding.len());
        assert!(
            findings
                .iter()
                .all(|finding| finding.verdict.to_string() == "cannot tell")
        );
    }

    #[test]
    fn every_row_of_the_table_has_its_bridge_and_its_point() {
        let published = Document::default();
        assert_eq!(published.tlu.len(), 9);
        let plan = plan(&published);
        assert_eq!(plan.len(), 3 * 2 * 8 + 9);
        for row in &published.tlu {
            // Rate and time of the table say the same, as far as they are rounded.
            let rate_khz = row.cycle_us.derived("1 / time", |us| 1e3 / us);
            let text: f64 = rate_khz.to_string().parse().unwrap();
            assert!(row.rate_khz.difference(text).abs() < 0.02, "{}", row.row);
        }
    }

    #[test]
    fn measured_figures_come_from_the_records() {
        let published = Document::default();
        assert!(
            compare(&published, &[])
                .iter()
                .all(|line| line.measured.is_none())
        );
        let emulated = daqmeter_record::EngineInfo {
            emulated: true,
            ..Default::default()
        };
        let mut record = RunRecord::new(emulated, workload("emu/gige", Method::Blocking, "tlu", 1));
        let stage = daqmeter_record::Stage {
            ops_per_sample: 1,
            sample_ns: vec![50_400; 3],
            ..Default::default()
        };
        record.lanes = vec![daqmeter_record::Lane {
            stages: vec![stage],
            ..Default::default()
        }];
        let lines = compare(&published, &[record]);
        let found: Vec<f64> = lines.iter().filter_map(Comparison::difference).collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|off| off.abs() < 0.01));
        let here = lines.iter().find(|line| line.measured.is_some()).unwrap();
        assert_eq!(here.verdict().to_string(), "reproduced (emulated)");
    }
}
