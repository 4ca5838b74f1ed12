//! Predictions as records, so that a page can show them beside runs of the same path.

use std::collections::BTreeSet;
use std::sync::Arc;

use daqmeter_harness::facts::utc_now;
use daqmeter_harness::{Context, Request};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::shape::PathShape;
use daqmeter_record::{EngineInfo, Prediction, Role, RunRecord};
use daqmeter_sys::host::parse_cpu_list;
use daqmeter_twin::{Profile, predict};

use crate::calibrate::pin;

/// Study of the records of predictions.
const STUDY: &str = "twin/predict";

/// What a model must know of the run that is asked.
///
/// # Errors
/// When the path cannot be predicted, or a part of it was changed for the run.
pub fn shape_of(path: &Path, request: &PathRequest) -> Result<PathShape, String> {
    if request.slow_element.is_some() || request.left_out.is_some() {
        return Err("a part is slowed or left out".to_owned());
    }
    let mut shape = path.shape()?;
    if request.unpaced || request.rate_hz.is_some() {
        shape.rate_hz = request.rate_hz;
    }
    let lossless = path.lossless && !request.lossy;
    shape.lossless = lossless || shape.rate_hz.is_none();
    pin(&mut shape, &parse_cpu_list(&request.cpus));
    Ok(shape)
}

/// The record of a prediction. Its host is the one that the profile is of.
pub fn record_of(
    context: &Context,
    path: &Path,
    request: &PathRequest,
    profile: &Profile,
    prediction: Prediction,
) -> RunRecord {
    let engine = EngineInfo {
        name: PathRequest::KIND.into(),
        target: path.line().into(),
        emulated: path.is_emulated(),
    };
    let mut record = RunRecord::new(engine, request.workload());
    record.tool = context.tool.clone();
    record.time_utc = utc_now();
    record.run_id = (&context.run_id).into();
    record.study = STUDY.into();
    record.role = Role::Prediction;
    record.command = (&context.command).into();
    record.prediction = Some(Box::new(prediction));
    record.clock = context.clock.clone();
    record.host = Arc::new(profile.host.clone());
    record
}

/// A prediction for each path and load that was run, or why there is none: the path, and the reason.
pub fn predictions_of(
    context: &Context,
    records: &[RunRecord],
    profile: &Profile,
) -> Vec<Result<RunRecord, (String, String)>> {
    // A card that is read out has a run of a path, too, but asks in other words.
    let is_path = |record: &&RunRecord| record.engine.name.as_str() == PathRequest::KIND;
    let runs = records.iter().filter(|record| record.role.is_point());
    let runs = runs.filter(is_path);
    let mut seen = BTreeSet::new();
    let runs = runs.filter(|record| record.path.is_some() && seen.insert(record.workload.key()));
    let runs: Vec<&RunRecord> = runs.collect();
    let one = |record: &&RunRecord| {
        let found = predicted_of(context, record, profile);
        found.map_err(|why| (record.engine.target.to_string(), why))
    };
    runs.iter().map(one).collect()
}

fn predicted_of(
    context: &Context,
    record: &RunRecord,
    profile: &Profile,
) -> Result<RunRecord, String> {
    let request = PathRequest::of(&record.workload).map_err(|fault| fault.to_string())?;
    let path = Path::load_with(&request.path, &request.with).map_err(|error| error.to_string())?;
    let shape = shape_of(&path, &request)?;
    let prediction = predict(&shape, profile, 1).map_err(|error| error.to_string())?;
    Ok(record_of(context, &path, &request, profile, prediction))
}
