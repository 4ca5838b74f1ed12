//! Counters for Prometheus and for our own monitor: a page of OpenMetrics 1.0 text behind a port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_record::sanitise;

use crate::http::{self, Answer, Handler, Reply, Request};
use crate::output::{Failure, tell};

/// The option of every verb that goes on for long.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Metrics {
    /// Serve OpenMetrics here, for Prometheus: 127.0.0.1:9477
    #[arg(
        id = "metrics",
        long = "metrics",
        value_name = "ADDR:PORT",
        help_heading = "Output"
    )]
    address: Option<String>,
}

impl Metrics {
    /// The page, served from now on, if one is asked for.
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

type Values = BTreeMap<(&'static str, String), f64>;

/// What the page is called in HTTP.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    (
        "daqmeter_vetoed_triggers_total",
        "Triggers that BUSY stopped",
    ),
    ("daqmeter_dead_seconds_total", "Time with BUSY"),
    ("daqmeter_busy", "BUSY now: 1 DMA, 2 FIFO, 3 both"),
    ("daqmeter_ring_bytes", "Bytes in the ring"),
    ("daqmeter_ring_size_bytes", "Bytes of the ring"),
    (
        "daqmeter_fifo_bytes",
        "Bytes in the FIFO of the card's channel",
    ),
    ("daqmeter_blocks_total", "Blocks read"),
    ("daqmeter_chunks_total", "Chunks read or received"),
    ("daqmeter_bytes_total", "Bytes read, received, or passed on"),
    (
        "daqmeter_errors_total",
        "Blocks, pages or fragments that were wrong or missing",
    ),
    (
        "daqmeter_lost_connections_total",
        "Subscribers or publishers that were lost",
    ),
    ("daqmeter_subscribers", "Subscribers now"),
    (
        "daqmeter_cpu_seconds_total",
        "CPU time of the instance's thread",
    ),
    (
        "daqmeter_points_planned",
        "Points that the run will measure",
    ),
    (
        "daqmeter_points_total",
        "Points measured so far, by outcome",
    ),
    (
        "daqmeter_median_seconds",
        "Median time of one operation of a stage, at its last point",
    ),
    (
        "daqmeter_rate_bytes_per_second",
        "Sustained rate of a stage at its last point: all bytes over all time",
    ),
    (
        "daqmeter_limit_fraction",
        "Rate of a stage over the limit measured beside it",
    ),
    ("daqmeter_events_total", "Events counted so far, by event"),
    (
        "daqmeter_event_share",
        "Share of the last interval for which an event was counted",
    ),
    (
        "daqmeter_event_rate",
        "Rate or ratio of a group in the last interval, with its unit",
    ),
    ("daqmeter_probes_total", "Etherbone probes answered"),
    ("daqmeter_cycles_total", "Etherbone cycles executed"),
    (
        "daqmeter_operations_total",
        "Operations on the bus, accesses to registers, or copies",
    ),
    (
        "daqmeter_refused_total",
        "Datagrams and streams that were not Etherbone",
    ),
    ("daqmeter_clients", "Clients that are connected now"),
    ("daqmeter_frames_total", "Frames passed on, by direction"),
    ("daqmeter_requests_total", "Requests answered, by status"),
    ("daqmeter_files", "Files of records that are served"),
    (
        "daqmeter_live_files",
        "Files of records that are being written",
    ),
    (
        "daqmeter_latency_p99_seconds",
        "From the oldest trigger of a page to its receipt",
    ),
];

impl Page {
    /// Sets a value.
    pub(crate) fn set(&self, name: &'static str, instance: &str, value: f64) {
        debug_assert!(
            HELP.iter().any(|(known, _)| *known == name),
            "{name} has no help"
        );
        self.values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((name, instance.to_owned()), value);
    }

    /// Adds to a value.
    pub(crate) fn add(&self, name: &'static str, instance: &str, more: f64) {
        debug_assert!(
            HELP.iter().any(|(known, _)| *known == name),
            "{name} has no help"
        );
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
            self.set(
                "daqmeter_rate_bytes_per_second",
                &stage,
                row.rate_bytes_per_s,
            );
            if let Some(fraction) = row.fraction.filter(|_| row.doubt.is_none()) {
                self.set("daqmeter_limit_fraction", &stage, fraction);
            }
        }
    }

    /// Calls this, which sets values, whenever somebody asks: for counts that others keep.
    pub(crate) fn ask(&self, source: impl Fn(&Page) + Send + 'static) {
        self.sources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(source));
    }

    /// The page.
    pub(crate) fn text(&self) -> String {
        for source in &*self.sources.lock().unwrap_or_else(PoisonError::into_inner) {
            source(self);
        }
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for (name, help) in HELP {
            let mut own = values
                .iter()
                .filter(|((known, _), _)| known == name)
                .peekable();
            if own.peek().is_none() {
                continue;
            }
            let family = name.strip_suffix("_total").unwrap_or(name);
            let kind = if family == *name { "gauge" } else { "counter" };
            let _ = writeln!(out, "# TYPE {family} {kind}\n# HELP {family} {help}");
            for ((_, instance), value) in own {
                let _ = writeln!(
                    out,
                    "{name}{{instance=\"{}\"}} {value}",
                    sanitise::label(instance)
                );
            }
        }
        out.push_str("# EOF\n");
        out
    }

    /// Serves the page from now on, until the process ends.
    pub(crate) fn serve(&self, address: &str) -> Result<String, Failure> {
        let server = http::start(address, Arc::new(self.clone())).map_err(|error| {
            Failure::refused(format!("cannot serve metrics on {address}: {error}"))
        })?;
        Ok(server.address.to_string())
    }

    /// The page as an answer.
    pub(crate) fn answer(&self) -> Answer {
        Answer {
            code: 200,
            kind: CONTENT_TYPE,
            body: self.text(),
        }
    }
}

impl Handler for Page {
    /// There is one page, whatever is asked for.
    fn reply(self: Arc<Self>, _request: Request) -> Reply {
        Reply::Now(self.answer())
    }
}

/// A page is read within this time, from the connection to its end.
const SCRAPE_WITHIN: Duration = Duration::from_secs(2);
/// The longest page that is taken.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// Reads another's page: name, instance, value. One that comes byte by byte is given up when the time is over.
pub(crate) fn scrape(address: &str) -> std::io::Result<Vec<(String, String, f64)>> {
    use std::io::ErrorKind;
    use std::net::ToSocketAddrs;
    let begun = Instant::now();
    let left = || {
        SCRAPE_WITHIN
            .checked_sub(begun.elapsed())
            .filter(|left| !left.is_zero())
    };
    let late = || std::io::Error::new(ErrorKind::TimedOut, "its page did not come within 2 s");
    let at = address
        .to_socket_addrs()?
        .next()
        .ok_or(ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&at, left().ok_or_else(late)?)?;
    stream.set_write_timeout(Some(left().ok_or_else(late)?))?;
    stream.write_all(
        format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let (mut page, mut room) = (Vec::new(), [0; 16 << 10]);
    loop {
        stream.set_read_timeout(Some(left().ok_or_else(late)?))?;
        match stream.read(&mut room) {
            Ok(0) => return Ok(parse(&String::from_utf8_lossy(&page))),
            Ok(got) => page.extend_from_slice(&room[..got]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) => return Err(error),
        }
        if page.len() > MAX_PAGE_BYTES {
            return Err(std::io::Error::new(
                ErrorKind::FileTooLarge,
                "its page is longer than 4 MiB",
            ));
        }
    }
}

fn parse(text: &str) -> Vec<(String, String, f64)> {
    let line = |line: &str| {
        let (name, rest) = line.split_once("{instance=\"")?;
        let (instance, rest) = label(rest)?;
        let value = rest.strip_prefix("} ")?;
        Some((
            name.to_owned(),
            sanitise::text(&instance).into_owned(),
            value.trim().parse().ok()?,
        ))
    };
    text.lines()
        .filter(|text| text.starts_with("daqmeter_"))
        .filter_map(line)
        .collect()
}

/// The value of a label and what follows its quote: `sanitise::label` the other way.
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Issue 14: the monitor hung on a target that gave a byte now and then.
    #[test]
    fn a_page_that_comes_byte_by_byte_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let dripping = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) && stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let begun = Instant::now();
        assert_eq!(
            scrape(&address).unwrap_err().kind(),
            std::io::ErrorKind::TimedOut
        );
        assert!(begun.elapsed() < Duration::from_secs(20));
        dripping.join().unwrap();
    }

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
        assert_eq!(
            found[2],
            (
                "daqmeter_blocks_total".to_owned(),
                "gbt:0.1".to_owned(),
                7.0
            )
        );
    }

    #[test]
    fn a_hostile_name_stays_one_label_and_is_shown_as_text() {
        let page = Page::default();
        page.set("daqmeter_busy", "a\"} 7\n# EOF\u{1b}[2J\u{202e}\\", 1.0);
        let text = page.text();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        let shown = r#"a"} 7\n# EOF\u001b[2J\u202e\"#.to_owned();
        assert_eq!(parse(&text), [("daqmeter_busy".to_owned(), shown, 1.0)]);
        let raw = parse("daqmeter_busy{instance=\"x\u{1b}[2J\u{202e}\\ny\"} 2\n");
        assert_eq!(
            raw,
            [(
                "daqmeter_busy".to_owned(),
                r"x\u001b[2J\u202e\ny".to_owned(),
                2.0
            )]
        );
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
        record.lanes = vec![Lane {
            stages: vec![stage],
            ..Lane::default()
        }];
        record.outcome = Outcome::Failed("bytes differ".into());
        let page = Page::default();
        page.point(&record);
        assert!(
            !page.text().contains("daqmeter_rate_bytes_per_second"),
            "{}",
            page.text()
        );
        record.outcome = Outcome::Ok;
        page.point(&record);
        let text = page.text();
        assert!(
            text.contains("daqmeter_rate_bytes_per_second{instance=\"  read\"} 1000000000"),
            "{text}"
        );
        assert!(
            text.contains("daqmeter_points_total{instance=\"failed\"} 1"),
            "{text}"
        );
    }
}
