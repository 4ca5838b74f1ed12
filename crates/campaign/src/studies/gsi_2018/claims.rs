//! The document's figures and sentences beside the model of its bridges and what was measured behind emulated ones.

use daqmeter_etherbone::Method;
use daqmeter_record::RunRecord;
use daqmeter_record::study::{Comparison, Finding, Measured, Published};

use super::super::named;
use super::model::Model;
use super::{Document, Pcie, TluRow};

/// The bridge of the study's SCU.
pub(super) const PCIE: &str = "scu-pcie-2018";
/// Its bridge over Gigabit Ethernet.
const GIGE: &str = "gige";
/// Its bridge over USB.
const USB: &str = "usb-t5810-2018";
/// The most timestamps that the study reads in a cycle.
pub(super) const MANY: u64 = 8;

/// What a cycle does.
#[derive(Clone, Copy)]
struct Cycle {
    method: Method,
    payload: &'static str,
    count: u64,
}

const TLU: Cycle = Cycle { method: Method::Blocking, payload: "tlu", count: 1 };

fn timestamps(method: Method, count: u64) -> Cycle {
    Cycle { method, payload: "timestamps", count }
}

struct Here<'a>(&'a [RunRecord]);

impl Here<'_> {
    /// The latest record of such cycles over an emulated bridge.
    fn record(&self, bridge: &str, cycle: Cycle) -> Option<&RunRecord> {
        let address = format!("emu/{bridge}");
        self.0.iter().rev().find(|record| {
            let workload = &record.workload;
            workload.kind == "etherbone"
                && record.outcome.is_ok()
                && workload.text("address") == Ok(&address)
                && workload.text("method") == Ok(cycle.method.name())
                && workload.text("payload") == Ok(cycle.payload)
                && workload.int("count") == Ok(cycle.count)
        })
    }

    /// A value of the median cycle's time in us.
    fn of(&self, bridge: &str, cycle: Cycle, value: impl Fn(f64) -> f64) -> Option<Measured> {
        let record = self.record(bridge, cycle)?;
        Measured::of(record, value(cycle_us(record)?))
    }

    fn gap_ns(&self, bridge: &str) -> Option<Measured> {
        let record = self.record(bridge, timestamps(Method::Pipelined, MANY))?;
        Measured::of(record, record.counter("eca-in-cycle-gap")?)
    }

    /// What pipelining gains over blocking cycles, in per cent.
    fn gain_percent(&self, bridge: &str) -> Option<Measured> {
        let of = |method| self.record(bridge, timestamps(method, MANY));
        let (blocking, pipelined) = (of(Method::Blocking)?, of(Method::Pipelined)?);
        let gain = cycle_us(blocking)? / cycle_us(pipelined)? - 1.0;
        Measured::over([blocking, pipelined], gain * 100.0)
    }

    /// Time of each of the most timestamps in a pipelined cycle, in us.
    fn pipelined<const N: usize>(&self, bridges: [&str; N]) -> [Option<Measured>; N] {
        let cycle = timestamps(Method::Pipelined, MANY);
        bridges.map(|bridge| self.of(bridge, cycle, |us| us / MANY as f64))
    }
}

/// Median time of a cycle, in us.
fn cycle_us(record: &RunRecord) -> Option<f64> {
    let stage = record.lanes.first()?.stages.first()?;
    let mut samples = stage.sample_ns.clone();
    samples.sort_unstable();
    Some(*samples.get(samples.len() / 2)? as f64 / stage.ops_per_sample as f64 / 1e3)
}

/// Every published figure beside model and measurement.
pub(super) fn compare(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let here = Here(records);
    let mut lines = key_data(&published.pcie, &here);
    lines.push(gap(PCIE, &published.pcie.gap_ns, &here));
    lines.push(gap(GIGE, &published.gige.gap_ns, &here));
    lines.extend(published.tlu.iter().flat_map(|row| tlu(row, &here)));
    lines
}

fn gap(bridge: &str, published: &Published, here: &Here) -> Comparison {
    let table = "gap between timestamps of one cycle";
    Comparison::new(table, bridge, published.clone(), "ns")
        .model(Model::of(bridge).map(|model| 2.0 * model.bridge.timing.read_ns as f64))
        .measured(here.gap_ns(bridge))
}

/// Time and rate of a row of the table.
fn tlu(row: &TluRow, here: &Here) -> [Comparison; 2] {
    let model_us = Model::of(&row.bridge).map(|model| model.blocking_us(3, 1));
    let line = |published: &Published, value: fn(f64) -> f64, unit| {
        let table = "TLU cycle: 3 reads, 1 write";
        Comparison::new(table, &row.row, published.clone(), unit)
            .model(model_us.map(value))
            .measured(here.of(&row.bridge, TLU, value))
    };
    [line(&row.cycle_us, |us| us, "us"), line(&row.rate_khz, |us| 1e3 / us, "kHz")]
}

/// The key data of PCIe: one and eight timestamps per cycle, and what pipelining gains.
fn key_data(pcie: &Pcie, here: &Here) -> Vec<Comparison> {
    let model = Model::of(PCIE);
    let line = |row: &str, published: &Published, count: u64, value: fn(f64) -> f64, unit| {
        let row = format!("{row}, {count} per cycle");
        let model_us = model.as_ref().map(|model| model.blocking_us(2 * count, 0));
        let of_one = |us: f64| value(us / count as f64);
        Comparison::new("SCU over PCIe, blocking", row, published.clone(), unit)
            .model(model_us.map(of_one))
            .measured(here.of(PCIE, timestamps(Method::Blocking, count), of_one))
    };
    let time = |row: &Published, count| line("time per timestamp", row, count, |us| us, "us");
    let rate = |row: &Published, count| line("rate", row, count, |us| 1e3 / us, "kHz");
    let throughput =
        |row: &Published, count| line("throughput", row, count, |us| 64.0 / us, "Mbit/s");
    vec![
        time(&pcie.time_one_us, 1),
        time(&pcie.time_many_us, MANY),
        rate(&pcie.rate_one_khz, 1),
        rate(&pcie.rate_many_khz, MANY),
        throughput(&pcie.throughput_one_mbit_per_s, 1),
        throughput(&pcie.throughput_many_mbit_per_s, MANY),
        gain(pcie, model.as_ref(), here),
    ]
}

fn gain(pcie: &Pcie, model: Option<&Model>, here: &Here) -> Comparison {
    let of_model = |model: &Model| {
        (model.blocking_us(2 * MANY, 0) / model.pipelined_us(2 * MANY, 0) - 1.0) * 100.0
    };
    let (row, published) =
        (format!("gain by pipelining, {MANY} per cycle"), pcie.pipelining_gain_percent.clone());
    Comparison::new("SCU over PCIe", row, published, "%")
        .model(model.map(of_model))
        .measured(here.gain_percent(PCIE))
}

/// What the document says in words, judged by what was measured behind the emulated bridges.
pub(super) fn findings(published: &Document, records: &[RunRecord]) -> Vec<Finding> {
    let here = Here(records);
    let statement = |name: &str| named(&published.finding, name);
    let gains = [PCIE, GIGE, USB].map(|bridge| here.gain_percent(bridge));
    vec![
        constant(published, &here),
        statement("gain").judged(gains, |[pcie, gige, usb]| {
            let evidence = format!(
                "pipelining gains {pcie:.0} % over PCIe, {gige:.0} % over GigE, {usb:.0} % over USB"
            );
            ((pcie < gige && pcie < usb).into(), evidence)
        }),
        statement("usb").judged(here.pipelined([PCIE, USB]), |[pcie, usb]| {
            let evidence = format!("PCIe {pcie:.3} us, USB {usb:.3} us");
            ((usb < pcie).into(), pipelined_each(&evidence))
        }),
        statement("gige").judged(here.pipelined([PCIE, USB, GIGE]), |[pcie, usb, gige]| {
            let evidence = format!("GigE {gige:.3} us, USB {usb:.3} us, PCIe {pcie:.3} us");
            ((gige < usb && gige < pcie).into(), pipelined_each(&evidence))
        }),
    ]
}

fn pipelined_each(evidence: &str) -> String {
    format!("per timestamp, pipelined: {evidence}")
}

/// Whether a cycle of one timestamp takes as long as one of many.
fn constant(published: &Document, here: &Here) -> Finding {
    let cycle = |bridge, count| here.of(bridge, timestamps(Method::Blocking, count), |us| us);
    let cycles = [cycle(GIGE, 1), cycle(GIGE, MANY), cycle(USB, 1), cycle(USB, MANY)];
    named(&published.finding, "constant").judged(cycles, |[g1, g8, u1, u8]| {
        let evidence = format!(
            "cycle of 1 and of 8: GigE {g1:.1} and {g8:.1} us, USB {u1:.1} and {u8:.1} us; within 10 % counts"
        );
        ((g8 / g1 < 1.1 && u8 / u1 < 1.1).into(), evidence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlannedPoint;
    use crate::studies::{Study, Wanted};

    #[test]
    fn the_model_meets_the_published_figures() {
        for line in compare(&Document::default(), &[]) {
            let off = line.published.as_ref().unwrap().difference(line.model.unwrap().value());
            // The study states 10 % for PCIe and USB; its own 35 kHz contradicts its 25 us by 14 %.
            let wide = ["rate, 1", "throughput", "gain"].iter().any(|word| line.row.contains(word));
            let band = if wide { 0.16 } else { 0.05 };
            assert!(off.abs() < band, "{line:?}");
            assert!(line.verdict().to_string().ends_with("(model)"), "{line:?}");
        }
    }

    #[test]
    fn findings_come_only_from_records() {
        let published = Document::default();
        let findings = findings(&published, &[]);
        assert_eq!(findings.len(), published.finding.len());
        assert!(findings.iter().all(|finding| finding.verdict.to_string() == "cannot tell"));
    }

    #[test]
    fn every_row_of_the_table_has_its_bridge_and_its_point() {
        let published = Document::default();
        assert_eq!(published.tlu.len(), 9);
        let points = published.points(&Wanted::default());
        assert_eq!(points.len(), 3 * 2 * 8 + 9);
        for row in &published.tlu {
            let address = format!("emu/{}", row.bridge);
            let is_of_row = |point: &PlannedPoint| {
                point.workload.text("address") == Ok(&address)
                    && point.workload.text("payload") == Ok("tlu")
            };
            assert!(points.iter().any(is_of_row), "{}", row.row);
            // Rate and time of the table say the same, as far as they are rounded.
            let rate_khz = row.cycle_us.derived("1 / time", |us| 1e3 / us);
            let text: f64 = rate_khz.to_string().parse().unwrap();
            assert!(row.rate_khz.difference(text).abs() < 0.02, "{}", row.row);
        }
    }

    #[test]
    fn measured_figures_come_from_the_records() {
        let published = Document::default();
        assert!(compare(&published, &[]).iter().all(|line| line.measured.is_none()));
        let emulated = daqmeter_record::EngineInfo { emulated: true, ..Default::default() };
        let workload = daqmeter_record::Workload::new("etherbone")
            .with("address", "emu/gige")
            .with("method", "blocking")
            .with("payload", "tlu")
            .with("count", 1_u64);
        let mut record = RunRecord::new(emulated, workload);
        let stage = daqmeter_record::Stage {
            ops_per_sample: 1,
            sample_ns: vec![50_400; 3],
            ..Default::default()
        };
        record.lanes = vec![daqmeter_record::Lane { stages: vec![stage], ..Default::default() }];
        let lines = compare(&published, &[record]);
        let found: Vec<f64> = lines.iter().filter_map(Comparison::difference).collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|off| off.abs() < 0.01));
        let here = lines.iter().find(|line| line.measured.is_some()).unwrap();
        assert_eq!(here.verdict().to_string(), "reproduced (emulated)");
    }
}
