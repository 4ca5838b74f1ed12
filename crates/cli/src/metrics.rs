//! Values for Prometheus: a page in OpenMetrics 1.0 behind a port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use daqmeter_record::{Outcome, RunRecord, sanitise};

use crate::http::{self, Answer};
use crate::output::{Failure, tell};

/// The option of every verb that goes on for long.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Metrics {
    /// Serve metrics for Prometheus at this address: 127.0.0.1:9477
    #[arg(
        id = "metrics",
        long = "metrics",
        value_name = "ADDR:PORT",
        help_heading = "Output",
        hide_short_help = true
    )]
    address: Option<String>,
}

impl Metrics {
    pub(crate) fn served(&self) -> Result<Option<Page>, Failure> {
        let Some(address) = &self.address else { return Ok(None) };
        let page = Page::default();
        let served = page.clone();
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let at = http::start(address, move |_, _| Answer { code: 200, kind, body: served.text() })?;
        tell(&format!("metrics at http://{at}/metrics"));
        Ok(Some(page))
    }
}

/// Labels as they are written, by the name of the metric.
type Values = BTreeMap<(&'static str, String), f64>;

#[derive(Clone, Default)]
pub(crate) struct Page {
    values: Arc<Mutex<Values>>,
}

/// Names with their label and meaning; names that end in `_total` are counters. Prometheus owns the
/// labels `instance` and `job`.
const METRICS: &[(&str, &str, &str)] = &[
    ("daqmeter_triggers_total", "device", "Triggers that the source issued"),
    ("daqmeter_vetoed_triggers_total", "device", "Triggers that BUSY stopped"),
    ("daqmeter_dead_seconds_total", "device", "Time with BUSY"),
    ("daqmeter_ring_bytes", "device", "Bytes in the ring"),
    ("daqmeter_ring_size_bytes", "device", "Bytes of the ring"),
    ("daqmeter_bytes_total", "device", "Bytes read"),
    ("daqmeter_errors_total", "device", "Blocks that were wrong or missing"),
    ("daqmeter_points_planned", "run", "Points that the run will measure"),
    ("daqmeter_points_total", "outcome", "Points measured so far, by outcome"),
    ("daqmeter_stage_operations", "stage", "Operations of a stage at its last point, so far"),
    ("daqmeter_median_seconds", "stage", "Median time of one operation at the last point"),
    ("daqmeter_rate_bytes_per_second", "stage", "Sustained rate: all bytes over all time"),
    ("daqmeter_limit_fraction", "stage", "Rate of a stage over its limit"),
    ("daqmeter_events_total", "event", "Events counted so far, by event"),
    ("daqmeter_event_share", "event", "Share of the last interval for which it was counted"),
    ("daqmeter_event_rate", "metric", "Rate or ratio of a group in the last interval"),
];

fn label_of(name: &str) -> &'static str {
    let known = METRICS.iter().find(|(known, ..)| *known == name);
    debug_assert!(known.is_some(), "{name} has no meaning");
    known.map_or("device", |(_, label, _)| label)
}

fn written(labels: &[(&str, &str)]) -> String {
    let pairs = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", sanitise::label(value)));
    pairs.collect::<Vec<_>>().join(",")
}

impl Page {
    fn values(&self) -> std::sync::MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, name: &'static str, label: &str, value: f64) {
        self.values().insert((name, written(&[(label_of(name), label)])), value);
    }

    pub(crate) fn add(&self, name: &'static str, label: &str, more: f64) {
        let labels = written(&[(label_of(name), label)]);
        *self.values().entry((name, labels)).or_default() += more;
    }

    pub(crate) fn point(&self, record: &RunRecord) {
        let outcome = match record.outcome {
            Outcome::Ok => "ok",
            Outcome::Waived(_) => "waived",
            Outcome::Failed(_) => "failed",
        };
        self.add("daqmeter_points_total", outcome, 1.0);
        // A failure is not a value: a dashboard cannot show its reason beside it.
        if record.outcome != Outcome::Ok {
            return;
        }
        for row in daqmeter_report::rows(std::slice::from_ref(record)) {
            let Some(stage) = row.stage else { continue };
            let labels =
                [("study", &*record.study), ("device", row.device), ("stage", &*stage.name)];
            let put = |name, value| self.values().insert((name, written(&labels)), value);
            if row.summary.n > 0 {
                let operations = row.summary.n as f64 * stage.ops_per_sample as f64;
                put("daqmeter_stage_operations", operations);
                put("daqmeter_median_seconds", row.summary.median * 1e-9);
                put("daqmeter_rate_bytes_per_second", row.rate.per_s);
            }
            if let Some(share) = row.share.filter(|share| !share.is_above) {
                put("daqmeter_limit_fraction", share.fraction);
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        let values = self.values();
        let mut out = String::new();
        for (name, _, help) in METRICS {
            let family = name.strip_suffix("_total").unwrap_or(name);
            let kind = if family == *name { "gauge" } else { "counter" };
            let mut own = values.iter().filter(|((known, _), _)| known == name).peekable();
            if own.peek().is_some() {
                let _ = writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}");
            }
            for ((_, labels), value) in own {
                let _ = writeln!(out, "{name}{{{labels}}} {value}");
            }
        }
        out.push_str("# EOF\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Lane, Stage, Workload};

    use super::*;

    #[test]
    fn a_page_is_openmetrics_and_a_hostile_name_stays_one_label() {
        let page = Page::default();
        page.set("daqmeter_ring_bytes", "gbt:0.1", 1024.0);
        page.set("daqmeter_bytes_total", "gbt:0.0", 5.0);
        page.set("daqmeter_bytes_total", "a\"} 7\n# EOF\u{1b}[2J\u{202e}\\", 7.0);
        insta::assert_snapshot!(page.text(), @r#"
        # HELP daqmeter_ring_bytes Bytes in the ring
        # TYPE daqmeter_ring_bytes gauge
        daqmeter_ring_bytes{device="gbt:0.1"} 1024
        # HELP daqmeter_bytes Bytes read
        # TYPE daqmeter_bytes counter
        daqmeter_bytes_total{device="a\"} 7\\n# EOF\\u001b[2J\\u202e\\"} 7
        daqmeter_bytes_total{device="gbt:0.0"} 5
        # EOF
        "#);
    }

    #[test]
    fn names_and_labels_are_those_that_prometheus_accepts_and_are_there_once() {
        let is_name =
            |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
        let mut names: Vec<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        assert!(METRICS.iter().all(|(name, label, _)| is_name(name) && is_name(label)));
        assert!(METRICS.iter().all(|(_, label, _)| !["instance", "job"].contains(label)));
    }

    #[test]
    fn a_point_that_failed_is_counted_and_sets_no_rate() {
        let stage = Stage {
            name: "read".into(),
            ops_per_sample: 1,
            bytes_per_op: 8,
            sample_ns: vec![8],
            ..Stage::default()
        };
        let mut record = RunRecord::new(EngineInfo::default(), Workload::default());
        record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
        record.outcome = Outcome::Failed("bytes differ".into());
        let page = Page::default();
        page.point(&record);
        assert!(!page.text().contains("daqmeter_rate_bytes_per_second"), "{}", page.text());
        record.outcome = Outcome::Ok;
        page.point(&record);
        let rate = "per_second{study=\"\",device=\"\",stage=\"read\"} 1000000000\n";
        assert!(page.text().contains(rate), "{}", page.text());
        assert!(page.text().contains("points_total{outcome=\"failed\"} 1\n"), "{}", page.text());
    }
}
