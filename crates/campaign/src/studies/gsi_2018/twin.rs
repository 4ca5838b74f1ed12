//! The bridges as stations in a circle: line out, flight, bus, line back, flight. One cycle goes round alone (blocking), or 90 behind
//! each other (pipelined), as many as the document's program sends.

use daqmeter_record::study::Comparison;
use daqmeter_twin::{Arrivals, Draw, Model as Network, SECOND_PS, Source, Station, run};

use super::super::twin::{Prediction, us_ps};
use super::claims::{MANY, PCIE};
use super::model::Model;
use super::{Document, TluRow};

/// Cycles under way in a pipeline.
const PIPELINED: u32 = 90;

pub(super) fn predictions(published: &Document) -> Vec<Prediction> {
    let mut rows: Vec<Prediction> = published.tlu.iter().filter_map(tlu).collect();
    rows.extend(pcie(published));
    rows
}

/// Mean time between two cycles, in us.
fn cycle_us(model: &Model, reads: u64, writes: u64, under_way: u32) -> Option<f64> {
    let parts = model.parts_us(reads, writes);
    let station = |name: &str, us: f64| Station::new(name, Draw::Constant(us_ps(us)));
    let flight = |name: &str, us: f64| Station { servers: None, ..station(name, us) };
    let stations = vec![
        station("line out", parts.line_out).to(1),
        flight("flight out", parts.flight_out).to(2),
        station("bus", parts.bus).to(3),
        station("line back", parts.line_back).to(4),
        flight("flight back", parts.flight_back),
    ];
    let source = Source {
        name: "client".to_owned(),
        arrivals: Arrivals::Closed(under_way),
        bytes: Draw::Constant(1),
        to: vec![0],
        each: false,
    };
    let network = Network {
        stations,
        sources: vec![source],
        time_ps: SECOND_PS / 10,
        warm_up_ps: SECOND_PS / 100,
        samples: 0,
    };
    let outcome = run(&network, 1).ok()?;
    Some(outcome.seconds * 1e6 / outcome.left as f64)
}

/// A row of the table of the timestamp latch unit: each bridge's parts are a fit to its own row.
fn tlu(row: &TluRow) -> Option<Prediction> {
    let model = Model::of(&row.bridge)?;
    let table = "Etherbone, TLU cycle: 3 reads, 1 write";
    let figure = Comparison::new(table, &row.row, row.cycle_us.clone(), "us");
    let figure = figure.model(model.blocking_us(3, 1));
    Some(Prediction::new(figure, cycle_us(&model, 3, 1, 1)).fitted())
}

/// The key data of PCIe: its bridge is fitted to one timestamp; eight and the pipeline are predicted.
fn pcie(published: &Document) -> Vec<Prediction> {
    let Some(model) = Model::of(PCIE) else {
        return Vec::new();
    };
    let pcie = &published.pcie;
    let table = "Etherbone, SCU over PCIe";
    let time = |row: &str, figure, count: u64| {
        let us = model.blocking_us(2 * count, 0) / count as f64;
        let figure = Comparison::new(table, row, Some(figure), "us").model(us);
        let each = |us| us / count as f64;
        Prediction::new(figure, cycle_us(&model, 2 * count, 0, 1).map(each))
    };
    let one = time("time of a timestamp, 1 per cycle", pcie.time_one_us.clone(), 1);
    let many = time("time of a timestamp, 8 per cycle", pcie.time_many_us.clone(), MANY);
    let gain = |blocking: f64, pipelined: f64| (blocking / pipelined - 1.0) * 100.0;
    let published = pcie.pipelining_gain_percent.clone();
    let formula = gain(model.blocking_us(2 * MANY, 0), model.pipelined_us(2 * MANY, 0));
    let figure = Comparison::new(table, "gain by pipelining, 8 per cycle", published, "%");
    let blocking = cycle_us(&model, 2 * MANY, 0, 1);
    let pipelined = cycle_us(&model, 2 * MANY, 0, PIPELINED);
    let simulated = blocking.zip(pipelined).map(|(one, other)| gain(one, other));
    vec![one.fitted(), many, Prediction::new(figure.model(formula), simulated)]
}
