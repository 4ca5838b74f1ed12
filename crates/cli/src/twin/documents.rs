//! `daqmeter twin documents`: published figures beside a formula and a simulation of the document's machine.

use std::process::ExitCode;

use clap::Args;
use daqmeter_campaign::studies::{self, Prediction, Study};
use daqmeter_record::units::significant;
use daqmeter_report::table::{numbers_from, wrapped};

use crate::output::{Failure, emit};

/// Set what documents published beside what the twin predicts for their machines. Takes some seconds; nothing is measured.
#[derive(Debug, Args)]
#[command(
    after_long_help = "A row that is marked `fit` went into the model, or follows from one that did: that it agrees says nothing. The difference\nis that of the simulation, or of the formula where nothing is simulated, and 0 within a published range.\n\nExample:\n\n  $ daqmeter twin documents readout --places"
)]
pub(crate) struct Arguments {
    /// Documents; all without it
    #[arg(value_name = "STUDY", value_parser = names())]
    studies: Vec<String>,
    /// Say where each figure is published
    #[arg(long, help_heading = "Output")]
    places: bool,
}

/// Studies whose machine has a model.
const MODELLED: [&str; 4] = ["copy", "digitizer", "etherbone", "readout"];

fn names() -> clap::builder::PossibleValuesParser {
    MODELLED.into()
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chosen: Vec<&str> = match arguments.studies.is_empty() {
        true => MODELLED.to_vec(),
        false => arguments.studies.iter().map(String::as_str).collect(),
    };
    let studies = chosen.into_iter().filter_map(studies::study);
    let tables: Vec<String> =
        studies.map(|study| document(study.as_ref(), arguments.places)).collect();
    emit(&tables.join("\n"))
}

fn document(study: &dyn Study, places: bool) -> String {
    let predictions = study.predictions();
    let mut headings = vec!["", ""];
    if places {
        headings.push("place");
    }
    let first = headings.len();
    headings.extend(["published", "formula", "simulated", "difference", ""]);
    let rows = predictions.iter().map(|prediction| row(prediction, places));
    let table = numbers_from(first, &headings, rows);
    format!("{}\n\n{table}{}\n", study.about().title, summary(&predictions))
}

fn row(prediction: &Prediction, places: bool) -> Vec<String> {
    let figure = &prediction.figure;
    let with_unit = |text: String| format!("{text} {}", figure.unit);
    let published = figure.published.as_ref().map(ToString::to_string);
    let derived = figure.derived.as_ref().map(|derived| format!("({derived})"));
    let text = |text: Option<String>| text.map_or("-".to_owned(), with_unit);
    let difference = prediction.difference();
    let percent = difference.filter(|difference| difference.is_finite());
    let mut cells = vec![figure.table.clone(), figure.row.clone()];
    if places {
        let place = figure.published.as_ref().map(|published| published.place().to_owned());
        let how = figure.derived.as_ref().map(|derived| derived.how().to_owned());
        cells.push(place.or(how).unwrap_or_default());
    }
    cells.extend([
        text(published.or(derived)),
        text(figure.model.map(|model| model.to_string())),
        text(prediction.simulated.map(|value| significant(value, 4))),
        percent.map_or("-".to_owned(), |difference| format!("{:+.1} %", difference * 100.0)),
        if prediction.fitted { "fit" } else { "" }.to_owned(),
    ]);
    cells
}

/// How far off what was not fitted is.
fn summary(predictions: &[Prediction]) -> String {
    let fitted = predictions.iter().filter(|prediction| prediction.fitted).count();
    let free: Vec<f64> = predictions
        .iter()
        .filter(|prediction| !prediction.fitted)
        .filter_map(|prediction| Some(prediction.difference()?.abs() * 100.0))
        .collect();
    let within = free.iter().filter(|percent| **percent <= 5.0).count();
    let largest = free.iter().copied().fold(0.0, f64::max);
    let line = match free.len() {
        0 => format!(
            " all {fitted} rows went into the model: it describes the document and predicts nothing of it"
        ),
        n => format!(
            " {n} rows that were not fitted: {within} within 5 %, the largest difference {} %; {fitted} fitted; in parentheses: derived, not published",
            significant(largest, 3)
        ),
    };
    format!("{}\n", wrapped(&line, 3))
}
