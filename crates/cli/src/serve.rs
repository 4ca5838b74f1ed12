//! `daqmeter serve`: live runs and past records in the browser.
//!
//! Only what was named on the command line is served, by number; a request never names a path. Listens on loopback unless told
//! otherwise, and then only with a token.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use daqmeter_record::jsonl;
use daqmeter_report::page;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::history::files_of;
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};
use crate::run::on_ctrl_c;

/// A file that grew within so long is called live.
const LIVE: Duration = Duration::from_secs(15);

/// Show records in the browser, and runs while they are measured.
///
/// Serves an index of the files and a report page of each, made anew at every request. A page of a file that is being written
/// reloads itself. Without --bind only this host can connect; with it a token is asked for. /metrics counts requests and files for
/// Prometheus.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run long.toml --out lab7.jsonl &\n  $ daqmeter serve lab7.jsonl bench/record\n  serving 12 files at http://127.0.0.1:8477/\n\n  $ daqmeter serve bench/record --bind 0.0.0.0:8477 --token \"$(openssl rand -hex 16)\""
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
    /// Word that requests must carry: ?token=WORD, or Authorization: Bearer WORD; 16 characters or more
    #[arg(long, value_name = "WORD", env = "DAQMETER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// What answers are made from.
struct Site {
    paths: Vec<PathBuf>,
    token: Option<String>,
    /// Names that a browser on this host may have asked for: others are somebody else's page that resolves here.
    loopback: bool,
    /// What `/metrics` tells.
    metrics: Page,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    /// Shorter words can be guessed.
    const LEAST_TOKEN: usize = 16;
    let address = arguments.bind.unwrap_or(SocketAddr::from(([127, 0, 0, 1], arguments.port)));
    let loopback = is_loopback(address.ip());
    match &arguments.token {
        None if !loopback => {
            return Err(Failure::refused(format!(
                "{address} can be reached by others: give a --token of {LEAST_TOKEN} characters or more"
            )));
        }
        Some(token) if token.len() < LEAST_TOKEN => {
            return Err(Failure::refused(format!("the token is too short: {LEAST_TOKEN} characters or more")));
        }
        _ => {}
    }
    let (paths, token) = (arguments.paths.clone(), arguments.token.clone());
    let site = Site { paths, token, loopback, metrics: Page::default() };
    let files = files_of(&site.paths)?;
    let server =
        Server::http(address).map_err(|error| Failure::refused(format!("cannot listen on {address}: {error}")))?;
    let at = server.server_addr().to_ip().unwrap_or(address);
    emit(&format!("serving {} files at http://{at}/\n", files.len()))?;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let received = server.recv_timeout(Duration::from_millis(250));
        match received {
            Ok(Some(request)) => site.answer(request),
            Ok(None) => {}
            Err(error) => tell(&format!("daqmeter: serve: {error}")),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback()
}

/// What a request gets.
struct Answer {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn html(body: String) -> Answer {
        Answer { code: 200, kind: "text/html; charset=utf-8", body }
    }

    fn refused(code: u16, why: &str) -> Answer {
        Answer { code, kind: "text/plain; charset=utf-8", body: format!("{why}\n") }
    }
}

impl Site {
    fn answer(&self, request: Request) {
        let header = |name: &str| {
            let found =
                request.headers().iter().find(|header| header.field.as_str().as_str().eq_ignore_ascii_case(name));
            found.map(|header| header.value.as_str().to_owned())
        };
        let answer = if *request.method() == Method::Get {
            self.get(request.url(), header("host").as_deref(), header("authorization").as_deref())
        } else {
            Answer::refused(405, "only GET")
        };
        self.metrics.add("daqmeter_requests_total", &answer.code.to_string(), 1.0);
        let header = |name: &str, value: &str| Header::from_bytes(name, value).ok();
        let headers = [
            header("Content-Type", answer.kind),
            header("Cache-Control", "no-store"),
            header("X-Content-Type-Options", "nosniff"),
            header("Referrer-Policy", "no-referrer"),
        ];
        let response = headers
            .into_iter()
            .flatten()
            .fold(Response::from_string(answer.body).with_status_code(answer.code), Response::with_header);
        // A browser that went away has what it wanted.
        let _ = request.respond(response);
    }

    fn get(&self, url: &str, host: Option<&str>, authorization: Option<&str>) -> Answer {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let given = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        let given = given.or_else(|| authorization.and_then(|text| text.strip_prefix("Bearer ")));
        if self.loopback && !host.is_none_or(names_this_host) {
            return Answer::refused(403, "asked for by a name that is not this host's");
        }
        if let Some(token) = &self.token
            && !given.is_some_and(|given| equal(given.as_bytes(), token.as_bytes()))
        {
            return Answer::refused(401, "a token is wanted: ?token=WORD");
        }
        let files = match files_of(&self.paths) {
            Ok(files) => files,
            Err(failure) => return Answer::refused(404, failure.line()),
        };
        let carried = given.map_or(String::new(), |token| format!("?token={token}"));
        match path {
            "/" => Answer::html(index(&files, &carried)),
            "/metrics" => {
                self.metrics.set("daqmeter_files", "serve", files.len() as f64);
                self.metrics.set(
                    "daqmeter_live_files",
                    "serve",
                    files.iter().filter(|file| is_live(file)).count() as f64,
                );
                Answer { code: 200, kind: crate::metrics::CONTENT_TYPE, body: self.metrics.text() }
            }
            "/healthz" => Answer { code: 200, kind: "text/plain; charset=utf-8", body: "ok\n".to_owned() },
            _ => {
                let number = path.strip_prefix("/report/").and_then(|number| number.parse::<usize>().ok());
                match number.and_then(|number| files.get(number)) {
                    Some(file) => report(file),
                    None => Answer::refused(404, "nothing here"),
                }
            }
        }
    }
}

/// Whether a Host header names this machine's loopback.
fn names_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(is_loopback)
}

/// Takes as long for a wrong word as for the right one.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn is_live(file: &Path) -> bool {
    let changed = std::fs::metadata(file).and_then(|facts| facts.modified()).ok();
    changed.and_then(|changed| SystemTime::now().duration_since(changed).ok()).is_some_and(|age| age < LIVE)
}

fn read(file: &Path) -> std::io::Result<jsonl::Contents> {
    jsonl::read(std::io::BufReader::with_capacity(1 << 20, std::fs::File::open(file)?))
}

fn report(file: &Path) -> Answer {
    let contents = match read(file) {
        Ok(contents) => contents,
        Err(error) => return Answer::refused(404, &format!("{}: {error}", file.display())),
    };
    match page(&contents.records) {
        Ok(page) if is_live(file) => {
            // The page has no request of its own: the browser asks again for the whole of it.
            Answer::html(page.replacen("<head>\n", "<head>\n<meta http-equiv=\"refresh\" content=\"5\">\n", 1))
        }
        Ok(page) => Answer::html(page),
        Err(error) => Answer::refused(500, &error.to_string()),
    }
}

fn index(files: &[PathBuf], carried: &str) -> String {
    let escaped =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"refresh\" content=\"10\"><title>daqmeter records</title>\n\
         <style>body{max-width:60rem;margin:2rem auto;padding:0 1.25rem;font:16px/1.5 system-ui,\"DejaVu Sans\",sans-serif}\
         table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #8885}\
         td.n{text-align:right;font-variant-numeric:tabular-nums}.live{font-weight:700}</style></head>\n<body><h1>Records</h1>\n",
    );
    if files.is_empty() {
        out.push_str("<p>No .jsonl file in the folders that are served. <code>daqmeter survey</code> makes one.</p>\n");
    }
    out.push_str("<table><thead><tr><th scope=\"col\">file</th><th scope=\"col\">size</th><th scope=\"col\">state</th></tr></thead><tbody>\n");
    for (number, file) in files.iter().enumerate() {
        let bytes = std::fs::metadata(file).map_or(0, |facts| facts.len());
        let state = if is_live(file) { "<span class=\"live\">being written</span>" } else { "" };
        let _ = writeln!(
            out,
            "<tr><td><a href=\"/report/{number}{}\">{}</a></td><td class=\"n\">{}</td><td>{state}</td></tr>",
            escaped(carried),
            escaped(&file.display().to_string()),
            daqmeter_record::units::show_bytes(bytes)
        );
    }
    out.push_str("</tbody></table>\n</body></html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(token: Option<&str>) -> (tempfile::TempDir, Site) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a<b>.jsonl"), "").unwrap();
        let (paths, token) = (vec![folder.path().to_owned()], token.map(str::to_owned));
        let site = Site { paths, token, loopback: true, metrics: Page::default() };
        (folder, site)
    }

    #[test]
    fn only_what_was_named_is_served_and_names_are_only_text() {
        let (_folder, site) = site(None);
        let code = |url: &str| site.get(url, Some("localhost:8477"), None).code;
        assert_eq!((code("/"), code("/report/0"), code("/healthz")), (200, 200, 200));
        assert!(site.get("/metrics", None, None).body.contains("daqmeter_files{instance=\"serve\"} 1\n"));
        for url in ["/report/1", "/report/../etc/passwd", "/etc/passwd", "/report/", "/report/-1", "//"] {
            assert_eq!(code(url), 404, "{url}");
        }
        let index = site.get("/", None, None).body;
        assert!(index.contains("a&lt;b&gt;.jsonl") && !index.contains("<b>"), "{index}");
    }

    #[test]
    fn a_token_is_wanted_where_there_is_one() {
        let (_folder, site) = site(Some("0123456789abcdef"));
        let code = |url: &str, bearer: Option<&str>| site.get(url, None, bearer).code;
        assert_eq!(code("/", None), 401);
        assert_eq!(code("/?token=0123456789abcdeX", None), 401);
        assert_eq!(code("/?token=0123456789abcdef", None), 200);
        assert_eq!(code("/report/0", Some("Bearer 0123456789abcdef")), 200);
        assert!(site.get("/?token=0123456789abcdef", None, None).body.contains("/report/0?token=0123456789abcdef"));
    }

    #[test]
    fn another_name_for_this_host_is_refused_on_loopback() {
        let (_folder, site) = site(None);
        for (host, wanted) in
            [("evil.example:8477", 403), ("127.0.0.1:8477", 200), ("[::1]:8477", 200), ("10.0.0.1", 403)]
        {
            assert_eq!(site.get("/", Some(host), None).code, wanted, "{host}");
        }
    }
}
