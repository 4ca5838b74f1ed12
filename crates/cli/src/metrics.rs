//! Values for Prometheus: a page in OpenMetrics 1.0 behind a port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::locked;
use daqmeter_record::{Ledger, Outcome, RunRecord, sanitise};

use crate::http::{self, Answer};
use crate::output::{Failure, tell};

/// The option of every verb that goes on for long.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Metrics {
    /// Serve metrics for Prometheus at this address: 127.0.0.1:9477
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Output", hide_short_help = true)]
    metrics: Option<String>,
}

impl Metrics {
    pub(crate) fn is_served(&self) -> bool {
        self.metrics.is_some()
    }

    /// Serves a page that `read` completes at each request, from the counts of a server.
    pub(crate) fn served(
        &self,
        read: impl Fn(&Page) + Send + Sync + 'static,
    ) -> Result<Option<Page>, Failure> {
        let Some(address) = &self.metrics else { return Ok(None) };
        let page = Page::default();
        let served = page.clone();
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let at = http::start(address, move |_, _| {
            read(&served);
            Answer { code: 200, kind, body: served.text() }
        })?;
        tell(&format!("metrics at http://{at}/metrics"));
        Ok(Some(page))
    }
}

/// Tests if it is time again, for a page or a line, and remembers that.
pub(crate) fn is_due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= interval);
    *last = if is_due { Some(Instant::now()) } else { *last };
    is_due
}

/// Interval at which those who count by themselves set their values.
pub(crate) const SHOW: Duration = Duration::from_millis(250);

/// Labels as they are written, by the name of the metric.
type Values = BTreeMap<(&'static str, String), f64>;

#[derive(Clone, Default)]
pub(crate) struct Page {
    values: Arc<Mutex<Values>>,
}

/// Names with their labels and meaning; names that end in `_total` are counters. Prometheus owns
/// the labels `instance` and `job`.
static METRICS: LazyLock<Vec<(&str, Vec<&str>, &str)>> =
    LazyLock::new(|| serde_json::from_str(include_str!("metrics.json")).expect("tests read it"));

fn written(name: &str, values: &[&str]) -> String {
    let known = METRICS.iter().find(|(known, ..)| *known == name);
    let labels = known.map_or(&[][..], |(_, labels, _)| labels);
    debug_assert!(known.is_some() && labels.len() == values.len(), "{name} {values:?}");
    let pairs = labels.iter().zip(values);
    let pairs = pairs.map(|(label, value)| format!("{label}=\"{}\"", sanitise::label(value)));
    pairs.collect::<Vec<_>>().join(",")
}

impl Page {
    pub(crate) fn set(&self, name: &'static str, labels: &[&str], value: f64) {
        locked(&self.values).insert((name, written(name, labels)), value);
    }

    pub(crate) fn add(&self, name: &'static str, labels: &[&str], more: f64) {
        *locked(&self.values).entry((name, written(name, labels))).or_default() += more;
    }

    /// Sets the counters of a ledger, with one for each of its rows.
    pub(crate) fn ledger(&self, device: &str, ledger: &Ledger) {
        self.set("daqmeter_issued_total", &[device], ledger.issued as f64);
        self.set("daqmeter_delivered_total", &[device], ledger.delivered as f64);
        for (cause, count) in &ledger.losses {
            self.set("daqmeter_lost_total", &[device, cause], *count as f64);
        }
    }

    /// Sets the counters of a server: those of what it did by kind, then of what it lost by cause.
    pub(crate) fn server(&self, name: &str, kinds: &[&str], causes: &[&str], all: &[AtomicU64]) {
        let served = kinds.iter().map(|kind| ("daqmeter_served_total", kind));
        let lost = causes.iter().map(|cause| ("daqmeter_lost_total", cause));
        for ((metric, of), count) in served.chain(lost).zip(all) {
            self.set(metric, &[name, of], count.load(Ordering::Relaxed) as f64);
        }
    }

    pub(crate) fn point(&self, record: &RunRecord) {
        let outcome = match record.outcome {
            Outcome::Ok => "ok",
            Outcome::Waived(_) => "waived",
            Outcome::Failed(_) => "failed",
        };
        self.add("daqmeter_points_total", &[outcome], 1.0);
        // A failure is not a value: a dashboard cannot show its reason beside it.
        if record.outcome != Outcome::Ok {
            return;
        }
        for row in daqmeter_report::rows(std::slice::from_ref(record)) {
            let Some(stage) = row.stage else { continue };
            let put =
                |name, value| self.set(name, &[&record.study, row.device, &stage.name], value);
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
        let values = locked(&self.values);
        let mut out = String::new();
        for (name, _, help) in METRICS.iter() {
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
        page.set("daqmeter_ring_bytes", &["gbt:0.1"], 1024.0);
        page.set("daqmeter_bytes_total", &["gbt:0.0"], 5.0);
        page.set("daqmeter_bytes_total", &["a\"} 7\n# EOF\u{1b}[2J\u{202e}\\"], 7.0);
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
    fn each_row_of_a_ledger_and_each_count_of_a_server_is_a_counter_by_cause() {
        let (page, mut ledger) = (Page::default(), Ledger { issued: 9, ..Ledger::new("triggers") });
        ledger.lose("network", 4);
        page.ledger("gbt", &ledger);
        ledger.lose("dropped by reader", 2);
        page.ledger("gbt", &ledger);
        page.server("tunnel", &["requests"], &["refused"], &[7, 8].map(AtomicU64::new));
        insta::assert_snapshot!(page.text(), @r#"
        # HELP daqmeter_issued Items of the ledger, such as triggers x E-links
        # TYPE daqmeter_issued counter
        daqmeter_issued_total{device="gbt"} 9
        # HELP daqmeter_delivered Items of the ledger that were delivered
        # TYPE daqmeter_delivered counter
        daqmeter_delivered_total{device="gbt"} 0
        # HELP daqmeter_lost Items that were not delivered, by cause
        # TYPE daqmeter_lost counter
        daqmeter_lost_total{device="gbt",cause="dropped by reader"} 2
        daqmeter_lost_total{device="gbt",cause="network"} 4
        daqmeter_lost_total{device="tunnel",cause="refused"} 8
        # HELP daqmeter_served Items that a server took or gave, by kind
        # TYPE daqmeter_served counter
        daqmeter_served_total{device="tunnel",kind="requests"} 7
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
        assert!(names.iter().all(|name| is_name(name)));
        let mut labels = METRICS.iter().flat_map(|(_, labels, _)| labels);
        assert!(labels.all(|label| is_name(label) && !["instance", "job"].contains(label)));
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
