//! Steps found in the Turing Change Point Dataset (van den Burg and Williams, arXiv 2003.06222). The
//! score is the paper's own F1 with a margin of 5.
//!
//! The series are not part of the project: `DAQMETER_TCPD` names the folder of their JSON files
//! with `annotations.json`.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test stops where its data are not as expected"
)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

const MARGIN: usize = 5;

type Marks = BTreeMap<String, Vec<usize>>;
/// Best mean F1 of our own programs after three published methods, on the same series: that of
/// Perfherder's t-test. Hunter and E-divisive had less (docs/book/src/verbs/history.md).
const PUBLISHED: f64 = 0.683;

/// Our steps need positive values and use their logarithms: here these are the values in units of
/// ten standard deviations.
fn ours(values: &[f64]) -> Vec<usize> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let times: Vec<f64> = values.iter().map(|x| (0.1 * (x - mean) / deviation).exp()).collect();
    let steps = daqmeter_stats::change_points(&times, 0.0, 1);
    steps.into_iter().map(|step| step.at).collect()
}

fn hits(marks: &[usize], places: &[usize]) -> usize {
    let mut left = places.to_vec();
    let mut count = 0;
    for mark in marks {
        let near = left.iter().enumerate().filter(|(_, place)| place.abs_diff(*mark) <= MARGIN);
        let Some((at, _)) = near.min_by_key(|(_, place)| place.abs_diff(*mark)) else {
            continue;
        };
        left.remove(at);
        count += 1;
    }
    count
}

/// Returns F1 of the paper (section 5.1.1): precision against all annotators' marks together,
/// recall as the mean over the annotators. The beginning of the series is a mark and a place.
fn f1(annotators: &Marks, places: &[usize]) -> f64 {
    let with_begin = |places: &[usize]| {
        let mut all: Vec<usize> = places.iter().copied().chain([0]).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let places = with_begin(places);
    let together: Vec<usize> = annotators.values().flatten().copied().collect();
    let precision = hits(&with_begin(&together), &places) as f64 / places.len() as f64;
    let recalls = annotators.values().map(|marks| {
        let marks = with_begin(marks);
        hits(&marks, &places) as f64 / marks.len() as f64
    });
    let recall = recalls.sum::<f64>() / annotators.len() as f64;
    2.0 * precision * recall / (precision + recall)
}

fn series(path: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let parsed: Value = serde_json::from_str(&text).unwrap();
    let raw = parsed["series"][0]["raw"].as_array().unwrap();
    let mut last = raw.iter().find_map(Value::as_f64).unwrap();
    let value = |value: &Value| {
        last = value.as_f64().unwrap_or(last);
        last
    };
    raw.iter().map(value).collect()
}

#[test]
fn f1_is_that_of_the_paper() {
    let marks = |each: &[&[usize]]| -> Marks {
        let numbered = each.iter().enumerate();
        numbered.map(|(at, marks)| (at.to_string(), marks.to_vec())).collect()
    };
    let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-12, "{found}");
    close(f1(&marks(&[&[10, 20], &[11, 20], &[10], &[0, 5]]), &[10, 20]), 1.0);
    close(f1(&marks(&[&[], &[10], &[50]]), &[10]), 10.0 / 11.0);
    close(f1(&marks(&[&[], &[10], &[50]]), &[]), 0.8);
}

#[test]
#[ignore = "needs the Turing Change Point Dataset, see above"]
fn our_steps_score_above_published_ways_on_annotated_series() {
    let folder = std::env::var_os("DAQMETER_TCPD").expect("the folder of the dataset");
    let folder = Path::new(&folder);
    let text = std::fs::read_to_string(folder.join("annotations.json")).unwrap();
    let annotations: BTreeMap<String, Marks> = serde_json::from_str(&text).unwrap();
    let known = annotations.iter().filter_map(|(name, marks)| {
        let path = folder.join(format!("{name}.json"));
        path.exists().then(|| (name, marks, series(&path)))
    });
    let known: Vec<(&String, &Marks, Vec<f64>)> = known.collect();
    assert!(known.len() >= 25, "{} series", known.len());
    let scores = known.iter().map(|(_, marks, values)| f1(marks, &ours(values)));
    let mean = scores.sum::<f64>() / known.len() as f64;
    assert!(mean > PUBLISHED, "F1 {mean:.3} over {} series", known.len());
}
