//! `daqmeter serve`: records in the browser, on loopback only. A request names no path of the file
//! system, but the number of a file among those of the command line.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::jsonl;
use daqmeter_record::units::{plural, show_bytes};
use daqmeter_report::index_page;
use daqmeter_sys::host::open_regular;

use crate::files::files_of;
use crate::http::{self, Answer};
use crate::interrupt;
use crate::output::{Ended, Failure, emit};

/// Longest file that a page is made of: its samples are held in memory meanwhile.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Show records in the browser.
///
/// Serves an index of the files, and a page of each, made at each request. Only this host can
/// connect. From another host, use ssh -L 8477:127.0.0.1:8477 HOST.
#[derive(Debug, Args)]
#[command(
    after_long_help = include_str!("../help/serve.txt")
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them, which are looked through at every request
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Port on loopback; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value = "8477")]
    port: u16,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if let Some(missing) = arguments.paths.iter().find(|path| !path.is_dir() && !path.is_file()) {
        let missing = missing.display();
        return Err(Failure::refused(format!(
            "{missing}: no such file or folder; name one that holds records"
        )));
    }
    let files = files_of(&arguments.paths)?;
    let stop = interrupt::flag();
    let paths = arguments.paths.clone();
    let loopback = SocketAddr::from(([127, 0, 0, 1], arguments.port));
    let address = http::start(loopback, move |path, host| answer(&paths, path, host))?;
    emit(&format!("serving {} at http://{address}/\n", plural(files.len() as u64, "file")))?;
    interrupt::wait_for(&stop);
    Ok(ExitCode::SUCCESS)
}

fn answer(paths: &[PathBuf], path: &str, host: &str) -> Answer {
    // A foreign page may resolve its own name to this host.
    if !names_this_host(host) {
        return Answer::text(403, "asked for by a name that is not this host's");
    }
    let files = match files_of(paths) {
        Ok(files) => files,
        Err(failure) => return Answer::text(404, &failure.line),
    };
    let wanted = path.strip_prefix("/report/");
    let file = files.iter().find(|file| wanted == Some(&*number(file)));
    match (path, file) {
        ("/", _) => Answer::html(index(&files)),
        (_, Some(file)) => page(file)
            .unwrap_or_else(|why| Answer::text(500, &format!("{}: {why}", file.display()))),
        (_, None) => Answer::text(404, "nothing here"),
    }
}

fn names_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    matches!(name, "" | "localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Number of a file, which stays when other files come.
fn number(file: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    file.hash(&mut hasher);
    hasher.finish().to_string()
}

fn page(file: &Path) -> Result<Answer, String> {
    let opened = open_regular(file).map_err(|error| error.to_string())?;
    let bytes = opened.metadata().map_err(|error| error.to_string())?.len();
    if bytes > MAX_FILE_BYTES {
        let (has, most) = (show_bytes(bytes), show_bytes(MAX_FILE_BYTES));
        return Err(format!(
            "is too large ({has}; the limit is {most}): make its page with daqmeter report"
        ));
    }
    // The file may grow meanwhile.
    let reader = BufReader::with_capacity(1 << 20, opened.take(MAX_FILE_BYTES));
    let contents = jsonl::read_printable(reader).map_err(|error| error.to_string())?;
    let page = daqmeter_report::page(&contents.records);
    Ok(Answer::html(page))
}

fn index(files: &[PathBuf]) -> String {
    let page = |file: &PathBuf| {
        let bytes = std::fs::metadata(file).map_or(0, |facts| facts.len());
        [number(file), file.display().to_string(), show_bytes(bytes)]
    };
    index_page(&files.iter().map(page).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_command_line_are_served_and_only_to_this_host() {
        let folder = tempfile::tempdir().unwrap();
        let (file, paths) = (folder.path().join("a<b>.jsonl"), [folder.path().to_owned()]);
        std::fs::write(&file, "").unwrap();
        let page = format!("/report/{}", number(&file));
        for (path, host, code) in [
            ("/", "localhost:8477", 200),
            ("/", "127.0.0.1", 200),
            ("/", "[::1]:8477", 200),
            (&*page, "", 200),
            ("/", "evil.example", 403),
            ("/", "localhost.evil.example", 403),
            (&*page, "192.0.2.1", 403),
            ("/report/1", "", 404),
            ("/report/../etc/passwd", "", 404),
            ("/etc/passwd", "", 404),
            ("//", "", 404),
        ] {
            assert_eq!(answer(&paths, path, host).code, code, "{path} {host}");
        }
        let index = answer(&paths, "/", "").body;
        assert!(index.contains("a&lt;b&gt;.jsonl") && !index.contains("a<b>"), "{index}");
        let long = std::fs::File::create(&file).unwrap();
        long.set_len(MAX_FILE_BYTES + 1).unwrap();
        let refused = answer(&paths, &page, "");
        assert!(
            refused.code == 500 && refused.body.contains("is too large (256 MiB"),
            "{}",
            refused.body
        );
    }
}
