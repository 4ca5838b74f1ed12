//! The read-out tables by the model of the crate's uplink (`uplink::predict`), which is fitted to these very rows.

use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_record::study::Comparison;

use super::super::twin::Prediction;
use super::here::mean;
use super::{Document, Kind, Row, Table, claims, model};

/// Of the mean of a table.
const MEAN_BAND: f64 = 0.03;

pub(super) fn predictions(published: &Document) -> Vec<Prediction> {
    let profile = Profile::default();
    let tables = published.table.iter();
    let readout = tables.filter(|table| table.kind == Kind::Readout);
    readout.flat_map(|table| rows(table, &profile)).collect()
}

/// Each board in order of speed, and the mean of the table.
fn rows(table: &Table, profile: &Profile) -> Vec<Prediction> {
    let mut speeds = model::speeds_mb_per_s(table, profile);
    speeds.sort_by(|one, other| other.total_cmp(one));
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by(|one, other| other.speed_mb_per_s.order(&one.speed_mb_per_s));
    let title = format!("Digitizers, {}", table.title);
    let board = |(row, speed): (&&Row, &f64)| {
        let name = format!("sis8300-{}", row.board);
        let published = row.speed_mb_per_s.within(&table.place);
        let figure = Comparison::new(&title, name, published, "MB/s").model(*speed);
        Prediction::new(figure, None).fitted()
    };
    let mut lines: Vec<Prediction> = rows.iter().zip(&speeds).map(board).collect();
    let figure = Comparison::new(&title, "mean", None, "MB/s")
        .derived(claims::published_mean(table))
        .model(mean(&speeds));
    lines.push(Prediction::new(figure, None).fitted().within(MEAN_BAND));
    lines
}
