//! `daqmeter serve`: records in the browser.
//!
//! Only files of the command line are served, by number; a request never names a path. It listens
//! on loopback by default, and elsewhere only with a token.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use daqmeter_record::jsonl;
use daqmeter_record::units::{plural, show_bytes};
use daqmeter_report::html::PageError;
use daqmeter_report::page;
use daqmeter_sys::host::open_regular;
use subtle::ConstantTimeEq;

use crate::files::{Links, listed};
use crate::http::{self, Answer, Handler, Reply, Request};
use crate::metrics::Page;
use crate::output::{Failure, INTERRUPTED, emit};
use crate::runner::on_ctrl_c;

/// Longest file that a page is made of: its samples are held in memory meanwhile.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Show records in the browser.
///
/// Serves an index of the files and a report page of each, made anew at every request. Without
/// --bind only this host can connect; with it a token is asked for. /metrics counts requests and
/// files for Prometheus.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run long.toml --records lab7.jsonl &\n  $ daqmeter serve lab7.jsonl bench/record\n  serving 12 files at http://127.0.0.1:8477/\n\n  $ daqmeter serve bench/record --bind 0.0.0.0:8477 --token \"$(openssl rand -hex 16)\""
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them, which are looked through at every request
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Port on loopback; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value = "8477", conflicts_with = "bind")]
    port: u16,
    /// Listen here instead of on loopback; anything but loopback needs --token
    #[arg(long, value_name = "ADDR:PORT")]
    bind: Option<SocketAddr>,
    /// Word that requests must carry: ?token=WORD, or Authorization: Bearer WORD; 16 characters or
    /// more
    #[arg(long, value_name = "WORD", env = "DAQMETER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

struct Site {
    paths: Vec<PathBuf>,
    token: Option<String>,
    /// Restricts the Host header to names of loopback, since a foreign page may resolve to this
    /// host.
    loopback: bool,
    metrics: Page,
    /// Files that were listed so far. The index of a file is its number, which stays when others
    /// come.
    known: Mutex<Vec<PathBuf>>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    const LOOK: Duration = Duration::from_millis(100);
    let address = arguments.bind.unwrap_or(SocketAddr::from(([127, 0, 0, 1], arguments.port)));
    let site = Site::understand(arguments, address)?;
    let files = site.files()?;
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let server = http::start(address, Arc::new(site))
        .map_err(|error| Failure::refused(format!("cannot listen on {address}: {error}")))?;
    emit(&format!(
        "serving {} at http://{}/\n",
        plural(files.len() as u64, "file"),
        server.address
    ))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK);
    }
    Ok(ExitCode::from(INTERRUPTED))
}

impl Site {
    fn understand(arguments: &Arguments, address: SocketAddr) -> Result<Site, Failure> {
        /// Shorter words can be guessed.
        const MIN_TOKEN: usize = 16;
        let loopback = address.ip().is_loopback();
        match &arguments.token {
            None if !loopback => {
                return Err(Failure::refused(format!(
                    "{address} can be reached by others: give a --token of {MIN_TOKEN} characters or more"
                )));
            }
            Some(token) if token.len() < MIN_TOKEN => {
                return Err(Failure::refused(format!(
                    "the token is too short: {MIN_TOKEN} characters or more"
                )));
            }
            _ => {}
        }
        let is_missing = |path: &&PathBuf| !path.exists();
        if let Some(missing) = arguments.paths.iter().find(is_missing) {
            return Err(Failure::refused(format!(
                "{}: no such file or folder; name one that holds records",
                missing.display()
            )));
        }
        let special =
            arguments.paths.iter().find(|path| path.exists() && !path.is_dir() && !path.is_file());
        if let Some(special) = special {
            let shown = special.display();
            return Err(Failure::refused(format!(
                "{shown} is neither a folder nor a regular file: copy the records into a file and serve that"
            )));
        }
        let (paths, token) = (arguments.paths.clone(), arguments.token.clone());
        Ok(Site { paths, token, loopback, metrics: Page::default(), known: Mutex::default() })
    }

    fn files(&self) -> Result<Vec<(usize, PathBuf)>, Failure> {
        const MAX_KNOWN: usize = 1_000_000;
        let files = listed(&self.paths, Links::KeptBelow)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > MAX_KNOWN {
            known.clear();
        }
        let numbers: HashMap<PathBuf, usize> = known.iter().cloned().zip(0..).collect();
        let numbered = files.into_iter().map(|file| {
            let number = numbers.get(&file).copied().unwrap_or_else(|| {
                known.push(file.clone());
                known.len() - 1
            });
            (number, file)
        });
        Ok(numbered.collect())
    }

    fn admitted(&self, request: &Request) -> Result<(), Answer> {
        if self.loopback && !request.host.as_deref().is_none_or(names_this_host) {
            return Err(Answer::text(403, "asked for by a name that is not this host's"));
        }
        let Some(token) = &self.token else {
            return Ok(());
        };
        match request.token() {
            Some(given) if bool::from(given.as_bytes().ct_eq(token.as_bytes())) => Ok(()),
            _ => Err(Answer::text(401, "a token is wanted: ?token=WORD")),
        }
    }

    fn get(&self, request: &Request) -> Answer {
        let files = match self.files() {
            Ok(files) => files,
            Err(failure) => return Answer::text(404, failure.line()),
        };
        let carried = request.token().map_or(String::new(), |token| format!("?token={token}"));
        match request.path.as_str() {
            "/" => Answer::html(index(&files, &carried)),
            "/metrics" => {
                self.metrics.set("daqmeter_files", "serve", files.len() as f64);
                self.metrics.answer()
            }
            path => match numbered(&files, path.strip_prefix("/report/")) {
                Some(file) => report(file).unwrap_or_else(|unread| unread.answer(file)),
                None => Answer::text(404, "nothing here"),
            },
        }
    }
}

fn numbered<'a>(files: &'a [(usize, PathBuf)], number: Option<&str>) -> Option<&'a PathBuf> {
    let wanted: usize = number?.parse().ok()?;
    let (_, file) = files.iter().find(|(number, _)| *number == wanted)?;
    Some(file)
}

impl Handler for Site {
    fn reply(self: Arc<Self>, request: Request) -> Reply {
        match self.admitted(&request) {
            Err(refused) => Reply::Now(refused),
            Ok(()) if request.path == "/healthz" => Reply::Now(Answer::text(200, "ok")),
            Ok(()) => Reply::Later(Box::new(move || self.get(&request))),
        }
    }

    fn answered(&self, code: u16) {
        self.metrics.add("daqmeter_requests_total", &code.to_string(), 1.0);
    }
}

impl Request {
    fn value(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    fn token(&self) -> Option<&str> {
        let asked = self.value("token");
        asked.or_else(|| self.authorization.as_deref()?.strip_prefix("Bearer "))
    }
}

fn names_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[derive(Debug)]
enum Unread {
    Long(u64),
    Io(std::io::Error),
    Page(PageError),
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Unread {
        Unread::Io(error)
    }
}

impl Unread {
    fn answer(&self, file: &Path) -> Answer {
        match self {
            Unread::Io(error) => Answer::text(404, &format!("{}: {error}", file.display())),
            Unread::Page(error) => Answer::text(500, &error.to_string()),
            Unread::Long(bytes) => Answer::text(
                413,
                &format!(
                    "{0} has {1}; pages are served of files up to {2}. Make its page with: daqmeter report {0}",
                    file.display(),
                    show_bytes(*bytes),
                    show_bytes(MAX_FILE_BYTES)
                ),
            ),
        }
    }
}

fn report(file: &Path) -> Result<Answer, Unread> {
    let file = open_regular(file)?;
    let bytes = file.metadata()?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(Unread::Long(bytes));
    }
    // The file may grow meanwhile.
    let file = BufReader::with_capacity(1 << 20, file.take(MAX_FILE_BYTES));
    let records = jsonl::read_printable(file)?.records;
    page(&records).map(Answer::html).map_err(Unread::Page)
}

fn index(files: &[(usize, PathBuf)], carried: &str) -> String {
    let escaped = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"refresh\" content=\"10\"><title>daqmeter records</title>\n\
         <style>body{max-width:60rem;margin:2rem auto;padding:0 1.25rem;font:16px/1.5 system-ui,\"DejaVu Sans\",sans-serif}\
         table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #8885}\
         td.n{text-align:right;font-variant-numeric:tabular-nums}</style></head>\n<body><h1>Records</h1>\n",
    );
    if files.is_empty() {
        out.push_str("<p>No .jsonl file in the folders that are served. <code>daqmeter survey</code> makes one.</p>\n");
    }
    out.push_str("<table><thead><tr><th scope=\"col\">file</th><th scope=\"col\">size</th></tr></thead><tbody>\n");
    for (number, file) in files {
        let bytes = std::fs::metadata(file).map_or(0, |facts| facts.len());
        let _ = writeln!(
            out,
            "<tr><td><a href=\"/report/{number}{}\">{}</a></td><td class=\"n\">{}</td></tr>",
            escaped(carried),
            escaped(&file.display().to_string()),
            show_bytes(bytes)
        );
    }
    out.push_str("</tbody></table>\n</body></html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(token: Option<&str>) -> (tempfile::TempDir, Arc<Site>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a<b>.jsonl"), "").unwrap();
        let (paths, token) = (vec![folder.path().to_owned()], token.map(str::to_owned));
        let site = Site {
            paths,
            token,
            loopback: true,
            metrics: Page::default(),
            known: Mutex::default(),
        };
        (folder, Arc::new(site))
    }

    fn get(site: &Arc<Site>, url: &str, host: Option<&str>, authorization: Option<&str>) -> Answer {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let owned = |text: &str| text.to_owned();
        let (host, authorization) = (host.map(owned), authorization.map(owned));
        let reply = site.clone().reply(Request {
            path: owned(path),
            query: owned(query),
            host,
            authorization,
        });
        match reply {
            Reply::Now(answer) => answer,
            Reply::Later(work) => work(),
        }
    }

    #[test]
    fn only_what_was_named_is_served_and_names_are_only_text() {
        let (_folder, site) = site(None);
        let code = |url: &str| get(&site, url, Some("localhost:8477"), None).code;
        assert_eq!((code("/"), code("/report/0"), code("/healthz")), (200, 200, 200));
        assert!(get(&site, "/metrics", None, None).body.contains("daqmeter_files 1\n"));
        for url in
            ["/report/1", "/report/../etc/passwd", "/etc/passwd", "/report/", "/report/-1", "//"]
        {
            assert_eq!(code(url), 404, "{url}");
        }
        let index = get(&site, "/", None, None).body;
        assert!(index.contains("a&lt;b&gt;.jsonl") && !index.contains("<b>"), "{index}");
    }

    #[test]
    fn a_token_is_wanted_where_there_is_one() {
        let (_folder, site) = site(Some("0123456789abcdef"));
        let code = |url: &str, bearer: Option<&str>| get(&site, url, None, bearer).code;
        assert_eq!(code("/", None), 401);
        assert_eq!(code("/?token=0123456789abcdeX", None), 401);
        assert_eq!(code("/?token=", None), 401);
        assert_eq!(code("/?token=0123456789abcdef", None), 200);
        assert_eq!(code("/report/0", Some("Bearer 0123456789abcdef")), 200);
        let index = get(&site, "/?token=0123456789abcdef", None, None).body;
        assert!(index.contains("/report/0?token=0123456789abcdef"));
    }

    #[test]
    fn another_name_for_this_host_is_refused_on_loopback() {
        let (_folder, site) = site(None);
        for (host, wanted) in [
            ("evil.example:8477", 403),
            ("127.0.0.1:8477", 200),
            ("[::1]:8477", 200),
            ("10.0.0.1", 403),
        ] {
            assert_eq!(get(&site, "/", Some(host), None).code, wanted, "{host}");
        }
    }

    #[test]
    fn a_file_keeps_its_number_when_others_come() {
        let (folder, site) = site(None);
        let link = "<a href=\"/report/0\">";
        assert!(get(&site, "/", None, None).body.contains(link));
        std::fs::write(folder.path().join("a.jsonl"), "").unwrap();
        let index = get(&site, "/", None, None).body;
        let row = index.lines().find(|line| line.contains(link)).unwrap();
        assert!(
            row.contains("a&lt;b&gt;.jsonl") && index.contains("<a href=\"/report/1\">"),
            "{index}"
        );
    }

    #[test]
    fn a_page_of_a_very_long_file_is_refused() {
        let (folder, site) = site(None);
        let path = folder.path().join("a<b>.jsonl");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let answer = get(&site, "/report/0", None, None);
        assert!(answer.code == 413 && answer.body.contains("daqmeter report"), "{}", answer.body);
    }
}
