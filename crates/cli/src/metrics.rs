//! Counters for Prometheus: a page in OpenMetrics 1.0 behind a port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use daqmeter_record::sanitise;

use crate::http::{self, Answer, Handler, Reply, Request};
use crate::output::{Failure, tell};

/// The option of every verb that goes on for long.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Metrics {
    /// Serve OpenMetrics here, for Prometheus: 127.0.0.1:9477
    #[arg(id = "metrics", long = "metrics", value_name = "ADDR:PORT", help_heading = "Output")]
    address: Option<String>,
}

impl Metrics {
    pub(crate) fn served(&self) -> Result<Option<Page>, Failure> {
        let Some(address) = &self.address else {
            return Ok(None);
        };
        let page = Page::default();
        let at = page.serve(address)?;
        tell(&format!("metrics at http://{at}/metrics"));
        Ok(Some(page))
    }
}

type Labels = Vec<(&'static str, String)>;

type Values = BTreeMap<(&'static str, Labels), f64>;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Source = Box<dyn Fn(&Page) + Send>;

#[derive(Clone, Default)]
pub(crate) struct Page {
    values: Arc<Mutex<Values>>,
    sources: Arc<Mutex<Vec<Source>>>,
}

/// Meanings of the names; names that end in `_total` are counters.
const HELP: &[(&str, &str)] = &[
    ("daqmeter_triggers_total", "Triggers that the source issued"),
    ("daqmeter_vetoed_triggers_total", "Triggers that BUSY stopped"),
    ("daqmeter_dead_seconds_total", "Time with BUSY"),
    ("daqmeter_busy", "BUSY now: 1 DMA, 2 FIFO, 3 both"),
    ("daqmeter_ring_bytes", "Bytes in the ring"),
    ("daqmeter_ring_size_bytes", "Bytes of the ring"),
    ("daqmeter_fifo_bytes", "Bytes in the FIFO of the card's channel"),
    ("daqmeter_blocks_total", "Blocks read"),
    ("daqmeter_chunks_total", "Chunks read or received"),
    ("daqmeter_bytes_total", "Bytes read, received, or passed on"),
    ("daqmeter_errors_total", "Blocks, pages or fragments that were wrong or missing"),
    ("daqmeter_lost_connections_total", "Subscribers or publishers that were lost"),
    ("daqmeter_subscribers", "Subscribers now"),
    ("daqmeter_cpu_seconds_total", "CPU time of the instance's thread"),
    ("daqmeter_points_planned", "Points that the run will measure"),
    ("daqmeter_points_total", "Points measured so far, by outcome"),
    (
        "daqmeter_stage_operations",
        "Operations of a stage at its last point, so far where that goes on",
    ),
    ("daqmeter_median_seconds", "Median time of one operation of a stage, at its last point"),
    (
        "daqmeter_rate_bytes_per_second",
        "Sustained rate of a stage at its last point: all bytes over all time",
    ),
    ("daqmeter_limit_fraction", "Rate of a stage over the limit measured beside it"),
    ("daqmeter_events_total", "Events counted so far, by event"),
    ("daqmeter_event_share", "Share of the last interval for which an event was counted"),
    ("daqmeter_event_rate", "Rate or ratio of a group in the last interval, with its unit"),
    ("daqmeter_probes_total", "Etherbone probes answered"),
    ("daqmeter_cycles_total", "Etherbone cycles executed"),
    ("daqmeter_operations_total", "Operations on the bus, accesses to registers, or copies"),
    ("daqmeter_refused_total", "Datagrams and streams that were not Etherbone"),
    ("daqmeter_clients", "Clients that are connected now"),
    ("daqmeter_frames_total", "Frames passed on, by direction"),
    ("daqmeter_requests_total", "Requests answered, by status"),
    ("daqmeter_files", "Files of records that are served"),
    ("daqmeter_latency_p99_seconds", "From the oldest trigger of a page to its receipt"),
];

/// Returns the name of a metric's only label, if it has one. Prometheus owns `instance` and `job`.
fn label_of(name: &str) -> Option<&'static str> {
    match name {
        "daqmeter_points_planned" | "daqmeter_files" => None,
        "daqmeter_points_total" => Some("outcome"),
        "daqmeter_events_total" | "daqmeter_event_share" => Some("event"),
        "daqmeter_event_rate" => Some("metric"),
        "daqmeter_frames_total" => Some("direction"),
        "daqmeter_requests_total" => Some("code"),
        _ => Some("device"),
    }
}

fn labels_of(name: &str, value: &str) -> Labels {
    let label = label_of(name).map(|label| (label, value.to_owned()));
    label.into_iter().collect()
}

impl Page {
    pub(crate) fn set(&self, name: &'static str, label: &str, value: f64) {
        self.put(name, labels_of(name, label), value);
    }

    fn put(&self, name: &'static str, labels: Labels, value: f64) {
        debug_assert!(HELP.iter().any(|(known, _)| *known == name), "{name} has no help");
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert((name, labels), value);
    }

    pub(crate) fn add(&self, name: &'static str, label: &str, more: f64) {
        debug_assert!(HELP.iter().any(|(known, _)| *known == name), "{name} has no help");
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        *values.entry((name, labels_of(name, label))).or_default() += more;
    }

    pub(crate) fn point(&self, record: &daqmeter_record::RunRecord) {
        use daqmeter_record::Outcome;
        let outcome = match record.outcome {
            Outcome::Ok => "ok",
            Outcome::Waived(_) => "waived",
            Outcome::Failed(_) => "failed",
        };
        self.add("daqmeter_points_total", outcome, 1.0);
        // A failure is not a value: a dashboard cannot show its reason beside it.
        let rows = daqmeter_report::rows(std::slice::from_ref(record));
        let done = rows.into_iter().filter(|row| row.undone().is_none());
        done.for_each(|row| self.row(row));
    }

    pub(crate) fn so_far(&self, record: &daqmeter_record::RunRecord) {
        let rows = daqmeter_report::rows(std::slice::from_ref(record));
        let measured = rows.into_iter().filter(|row| row.n > 0);
        measured.for_each(|row| self.row(row));
    }

    fn row(&self, row: daqmeter_report::StageRow) {
        let operations = row.n as f64 * row.ops_per_sample as f64;
        let labels: Labels =
            vec![("study", row.study), ("device", row.device), ("stage", row.stage)];
        let rate = row.rate_bytes_per_s;
        self.put("daqmeter_stage_operations", labels.clone(), operations);
        self.put("daqmeter_median_seconds", labels.clone(), row.median_ns * 1e-9);
        self.put("daqmeter_rate_bytes_per_second", labels.clone(), rate);
        if let Some(fraction) = row.fraction.filter(|_| !row.is_above_limit) {
            self.put("daqmeter_limit_fraction", labels, fraction);
        }
    }

    /// Calls `source` at each request, to set values from other counts.
    pub(crate) fn ask(&self, source: impl Fn(&Page) + Send + 'static) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }

    pub(crate) fn text(&self) -> String {
        for source in &*self.sources.lock().unwrap_or_else(PoisonError::into_inner) {
            source(self);
        }
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for (name, help) in HELP {
            let mut own = values.iter().filter(|((known, _), _)| known == name).peekable();
            if own.peek().is_none() {
                continue;
            }
            let family = name.strip_suffix("_total").unwrap_or(name);
            let kind = if family == *name { "gauge" } else { "counter" };
            let _ = writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}");
            for ((_, labels), value) in own {
                let _ = writeln!(out, "{name}{} {value}", written(labels));
            }
        }
        out.push_str("# EOF\n");
        out
    }

    pub(crate) fn serve(&self, address: &str) -> Result<String, Failure> {
        let server = http::start(address, Arc::new(self.clone())).map_err(|error| {
            Failure::refused(format!("cannot serve metrics on {address}: {error}"))
        })?;
        Ok(server.address.to_string())
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer { code: 200, kind: CONTENT_TYPE, body: self.text() }
    }
}

fn written(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", sanitise::label(value)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

impl Handler for Page {
    fn reply(self: Arc<Self>, _: Request) -> Reply {
        Reply::Now(self.answer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_openmetrics() {
        let page = Page::default();
        page.set("daqmeter_ring_bytes", "gbt:0.1", 1024.0);
        page.set("daqmeter_blocks_total", "gbt:0.0", 5.0);
        page.set("daqmeter_blocks_total", "gbt:0.1", 7.0);
        page.set("daqmeter_points_planned", "run", 4.0);
        insta::assert_snapshot!(page.text(), @r#"
        # HELP daqmeter_ring_bytes Bytes in the ring
        # TYPE daqmeter_ring_bytes gauge
        daqmeter_ring_bytes{device="gbt:0.1"} 1024
        # HELP daqmeter_blocks Blocks read
        # TYPE daqmeter_blocks counter
        daqmeter_blocks_total{device="gbt:0.0"} 5
        daqmeter_blocks_total{device="gbt:0.1"} 7
        # HELP daqmeter_points_planned Points that the run will measure
        # TYPE daqmeter_points_planned gauge
        daqmeter_points_planned 4
        # EOF
        "#);
    }

    #[test]
    fn a_hostile_name_stays_one_label_and_is_shown_as_text() {
        let page = Page::default();
        page.set("daqmeter_busy", "a\"} 7\n# EOF\u{1b}[2J\u{202e}\\", 1.0);
        let text = page.text();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        let line = text.lines().nth(2).unwrap();
        let shown = r#"a"} 7\n# EOF\u001b[2J\u202e\"#.to_owned();
        let sample = ("daqmeter_busy".to_owned(), vec![("device".to_owned(), shown)]);
        assert_eq!(check_sample(line), Ok(sample));
    }

    #[test]
    fn a_point_that_failed_is_counted_and_sets_no_rate() {
        use daqmeter_record::{EngineInfo, Lane, Outcome, RunRecord, Stage, Workload};
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
        let text = page.text();
        assert!(!text.contains("daqmeter_rate_bytes_per_second"), "{text}");
        record.outcome = Outcome::Ok;
        page.point(&record);
        let text = page.text();
        assert!(
            text.contains(
                "daqmeter_rate_bytes_per_second{study=\"\",device=\"\",stage=\"read\"} 1000000000"
            ),
            "{text}"
        );
        assert!(text.contains("daqmeter_points_total{outcome=\"failed\"} 1"), "{text}");
    }

    /// Checks the demands of OpenMetrics and `promtool check metrics` by the format's own grammar.
    /// Names and labels have allowed characters, and HELP and TYPE are once before the samples. All
    /// samples of a metric are together and different, and samples of counters end in `_total`.
    /// Labels of Prometheus are absent, and the end is marked.
    fn check_text(text: &str) -> Result<usize, String> {
        let mut typed: BTreeMap<String, String> = BTreeMap::new();
        let (mut helped, mut seen, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        let mut order: Vec<String> = Vec::new();
        for line in text.strip_suffix("# EOF\n").ok_or("no end")?.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default().to_owned();
                if helped.contains(&name) {
                    return Err(format!("HELP twice: {name}"));
                }
                helped.push(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or(line)?;
                if typed.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Err(format!("TYPE twice: {name}"));
                }
            } else {
                let (name, labels) = check_sample(line)?;
                let family = name.strip_suffix("_total").unwrap_or(&name).to_owned();
                let kind = if family == name { "gauge" } else { "counter" };
                if typed.get(&family).is_none_or(|typed| typed != kind) || !helped.contains(&family)
                {
                    return Err(format!("{name} has no TYPE or HELP before it"));
                }
                if order.last() != Some(&name) {
                    if order.contains(&name) {
                        return Err(format!("samples of {name} stand apart"));
                    }
                    order.push(name.clone());
                }
                if seen.contains(&(name.clone(), labels.clone())) {
                    return Err(format!("twice: {line}"));
                }
                seen.push((name, labels));
                samples.push(line);
            }
        }
        Ok(samples.len())
    }

    fn label(text: &str) -> Option<(String, &str)> {
        let mut value = String::new();
        let mut characters = text.char_indices();
        loop {
            match characters.next()? {
                (at, '"') => return Some((value, &text[at + 1..])),
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        }
    }

    fn check_sample(line: &str) -> Result<(String, Vec<(String, String)>), String> {
        let is_name = |text: &str| {
            !text.is_empty()
                && !text.starts_with(|c: char| c.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let end = line.find(['{', ' ']).ok_or(line)?;
        let (name, mut rest) = line.split_at(end);
        let mut labels: Vec<(String, String)> = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label_name, after) = rest.split_once("=\"").ok_or(line)?;
                let (value, after) = label(after).ok_or(line)?;
                if !is_name(label_name) || ["instance", "job"].contains(&label_name) {
                    return Err(format!("label {label_name}"));
                }
                labels.push((label_name.to_owned(), value));
                match after.split_at_checked(1) {
                    Some((",", more)) => rest = more,
                    Some(("}", more)) => {
                        rest = more;
                        break;
                    }
                    _ => return Err(line.to_owned()),
                }
            }
        }
        let number = rest.strip_prefix(' ').ok_or(line)?;
        if !is_name(name) || number.parse::<f64>().is_err() {
            return Err(line.to_owned());
        }
        Ok((name.to_owned(), labels))
    }

    #[test]
    fn every_metric_is_clean_by_the_rules_of_promtool() {
        let page = Page::default();
        for (name, _) in HELP {
            page.set(name, "a \"quoted\\ name\n", 1.5);
            page.set(name, "another", f64::INFINITY);
        }
        let text = page.text();
        assert!(check_text(&text).unwrap() >= HELP.len(), "{text}");
        for wrong in [
            "a 1\n# EOF\n",
            "# HELP a b\n# TYPE a gauge\na 1\n",
            "# HELP a b\n# TYPE a counter\na 1\n# EOF\n",
            "# HELP a b\n# TYPE a gauge\na{instance=\"x\"} 1\n# EOF\n",
            "# HELP a b\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"1\"} 2\n# EOF\n",
            "# HELP a b\n# TYPE a gauge\na x\n# EOF\n",
        ] {
            assert!(check_text(wrong).is_err(), "{wrong}");
        }
    }

    /// The dashboard asks for existing metrics and labels, and its panels lie beside one another.
    #[test]
    fn the_dashboard_shows_what_is_served() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../docs/grafana/daqmeter.json")).unwrap();
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
        assert!(dashboard["title"].is_string() && dashboard["uid"].is_string());
        let panels = dashboard["panels"].as_array().unwrap();
        let mut places: Vec<[u64; 4]> = Vec::new();
        for panel in panels {
            let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(place[0] + place[2] <= 24, "{panel}");
            let overlaps = |other: &[u64; 4]| {
                let apart = |at: usize| {
                    place[at] + place[at + 2] <= other[at] || other[at] + other[at + 2] <= place[at]
                };
                !apart(0) && !apart(1)
            };
            assert!(!places.iter().any(overlaps), "{} covers another", panel["title"]);
            places.push(place);
            assert!(panel["type"].is_string() && panel["datasource"]["uid"] == "${datasource}");
            for target in panel["targets"].as_array().unwrap() {
                check_target(target);
            }
        }
        assert!(panels.len() > 8);
    }

    fn check_target(target: &serde_json::Value) {
        let expression = target["expr"].as_str().unwrap();
        let names = expression
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.starts_with("daqmeter_"));
        let mut labels = Vec::new();
        for name in names {
            assert!(HELP.iter().any(|(known, _)| *known == name), "{name}");
            labels.extend(label_of(name));
            if ["median_seconds", "rate_bytes_per_second", "limit_fraction"].contains(&&name[9..]) {
                labels.extend(["study", "device", "stage"]);
            }
        }
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        for shown in legend.split("{{").skip(1) {
            let label = shown.split("}}").next().unwrap();
            assert!(labels.contains(&label), "{expression}: {label}");
        }
    }
}
