//! Counters for Prometheus and for our own monitor: a page of OpenMetrics text behind a port.
//!
//! One request per connection, whatever is asked: there is one page. Format: OpenMetrics 1.0.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;

use crate::output::{Failure, tell};

/// The option of every verb that goes on for long.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Metrics {
    /// Serve OpenMetrics here, for Prometheus: 127.0.0.1:9477
    #[arg(id = "metrics", long = "metrics", value_name = "ADDR:PORT", help_heading = "Output")]
    address: Option<String>,
}

impl Metrics {
    /// The page, served from now on, if one is asked for.
    pub(crate) fn served(&self) -> Result<Option<Page>, Failure> {
        let Some(address) = &self.address else { return Ok(None) };
        let page = Page::default();
        let at = page.serve(address)?;
        tell(&format!("metrics at http://{at}/metrics"));
        Ok(Some(page))
    }
}

type Values = BTreeMap<(&'static str, String), f64>;

/// What the page is called in HTTP.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is looked at when somebody asks for the page.
type Source = Box<dyn Fn(&Page) + Send>;

/// Values by name and instance.
#[derive(Clone, Default)]
pub(crate) struct Page {
    values: Arc<Mutex<Values>>,
    sources: Arc<Mutex<Vec<Source>>>,
}

/// What the names mean; names that end in `_total` are counters.
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
    ("daqmeter_median_seconds", "Median time of one operation of a stage, at its last point"),
    ("daqmeter_rate_bytes_per_second", "Sustained rate of a stage at its last point: all bytes over all time"),
    ("daqmeter_limit_fraction", "Rate of a stage over the limit measured beside it"),
    ("daqmeter_events_total", "Events counted so far, by event"),
    ("daqmeter_probes_total", "Etherbone probes answered"),
    ("daqmeter_cycles_total", "Etherbone cycles executed"),
    ("daqmeter_operations_total", "Operations on the bus, accesses to registers, or copies"),
    ("daqmeter_refused_total", "Datagrams and streams that were not Etherbone"),
    ("daqmeter_clients", "Clients that are connected now"),
    ("daqmeter_frames_total", "Frames passed on, by direction"),
    ("daqmeter_requests_total", "Requests answered, by status"),
    ("daqmeter_files", "Files of records that are served"),
    ("daqmeter_live_files", "Files of records that are being written"),
    ("daqmeter_latency_p99_seconds", "From the oldest trigger of a page to its receipt"),
];

impl Page {
    /// Sets a value.
    pub(crate) fn set(&self, name: &'static str, instance: &str, value: f64) {
        debug_assert!(HELP.iter().any(|(known, _)| *known == name), "{name} has no help");
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert((name, instance.to_owned()), value);
    }

    /// Adds to a value.
    pub(crate) fn add(&self, name: &'static str, instance: &str, more: f64) {
        debug_assert!(HELP.iter().any(|(known, _)| *known == name), "{name} has no help");
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        *values.entry((name, instance.to_owned())).or_default() += more;
    }

    /// What a measured point tells.
    pub(crate) fn point(&self, record: &daqmeter_record::RunRecord) {
        use daqmeter_record::Outcome;
        let outcome = match record.outcome {
            Outcome::Ok => "ok",
            Outcome::Waived(_) => "waived",
            Outcome::Failed(_) => "failed",
        };
        self.add("daqmeter_points_total", outcome, 1.0);
        // What failed is no value: a dashboard cannot show its reason beside it.
        let rows = daqmeter_report::rows(std::slice::from_ref(record));
        for row in rows.into_iter().filter(|row| row.undone().is_none()) {
            let stage = format!("{} {} {}", row.study, row.device, row.stage);
            self.set("daqmeter_median_seconds", &stage, row.median_ns * 1e-9);
            self.set("daqmeter_rate_bytes_per_second", &stage, row.rate_bytes_per_s);
            if let Some(fraction) = row.fraction.filter(|_| row.doubt.is_none()) {
                self.set("daqmeter_limit_fraction", &stage, fraction);
            }
        }
    }

    /// Calls this, which sets values, whenever somebody asks: for counts that others keep.
    pub(crate) fn ask(&self, source: impl Fn(&Page) + Send + 'static) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }

    /// The page.
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
            let _ = writeln!(out, "# TYPE {family} {kind}\n# HELP {family} {help}");
            for ((_, instance), value) in own {
                let _ = writeln!(out, "{name}{{instance=\"{}\"}} {value}", instance.replace(['"', '\\', '\n'], "_"));
            }
        }
        out.push_str("# EOF\n");
        out
    }

    /// Serves the page from now on, in a thread that ends with the process.
    pub(crate) fn serve(&self, address: &str) -> Result<String, Failure> {
        let listener = TcpListener::bind(address)
            .map_err(|error| Failure::refused(format!("cannot serve metrics on {address}: {error}")))?;
        let at = listener.local_addr().map_or_else(|_| address.to_owned(), |at| at.to_string());
        let page = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away has what it wanted.
                let _ = page.answer(stream);
            }
        });
        Ok(at)
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        // The request's first bytes are enough to know that there is one.
        let _ = stream.read(&mut [0; 2048])?;
        let body = self.text();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())
    }
}

/// Reads another's page: name, instance, value.
pub(crate) fn scrape(address: &str) -> std::io::Result<Vec<(String, String, f64)>> {
    use std::net::ToSocketAddrs;
    let at = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.take(4 << 20).read_to_string(&mut text)?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<(String, String, f64)> {
    let line = |line: &str| {
        let (name, rest) = line.split_once("{instance=\"")?;
        let (instance, value) = rest.split_once("\"} ")?;
        Some((name.to_owned(), instance.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter(|text| text.starts_with("daqmeter_")).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_openmetrics_and_is_read_back() {
        let page = Page::default();
        page.set("daqmeter_ring_bytes", "gbt:0.1", 1024.0);
        page.set("daqmeter_blocks_total", "gbt:0.0", 5.0);
        page.set("daqmeter_blocks_total", "gbt:0.1", 7.0);
        insta::assert_snapshot!(page.text(), @r#"
        # TYPE daqmeter_ring_bytes gauge
        # HELP daqmeter_ring_bytes Bytes in the ring
        daqmeter_ring_bytes{instance="gbt:0.1"} 1024
        # TYPE daqmeter_blocks counter
        # HELP daqmeter_blocks Blocks read
        daqmeter_blocks_total{instance="gbt:0.0"} 5
        daqmeter_blocks_total{instance="gbt:0.1"} 7
        # EOF
        "#);
        let address = page.serve("127.0.0.1:0").map_err(|_| ()).unwrap();
        let found = scrape(&address).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[2], ("daqmeter_blocks_total".to_owned(), "gbt:0.1".to_owned(), 7.0));
    }

    #[test]
    fn a_point_that_failed_is_counted_and_sets_no_rate() {
        use daqmeter_record::{EngineInfo, Lane, Outcome, RunRecord, Stage, Workload};
        let stage =
            Stage { name: "read".into(), ops_per_sample: 1, bytes_per_op: 8, sample_ns: vec![8], ..Stage::default() };
        let mut record = RunRecord::new(EngineInfo::default(), Workload::default());
        record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
        record.outcome = Outcome::Failed("bytes differ".into());
        let page = Page::default();
        page.point(&record);
        assert!(!page.text().contains("daqmeter_rate_bytes_per_second"), "{}", page.text());
        record.outcome = Outcome::Ok;
        page.point(&record);
        let text = page.text();
        assert!(text.contains("daqmeter_rate_bytes_per_second{instance=\"  read\"} 1000000000"), "{text}");
        assert!(text.contains("daqmeter_points_total{instance=\"failed\"} 1"), "{text}");
    }
}
