//! Plain HTTP/1.1 for pages of this program: GET only, one request for each connection, a thread
//! for each of a few connections. Not for the open internet: `serve` listens on loopback.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::output::Failure;

/// Longest head of a request; browsers send some hundred bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_CONNECTIONS: usize = 32;
/// Time for the head of a request, and for each part of an answer to leave.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time of an answer on its way.
const LONGEST: Duration = Duration::from_secs(60);
const PART_BYTES: usize = 64 << 10;

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn html(body: String) -> Answer {
        Answer { code: 200, kind: "text/html; charset=utf-8", body }
    }

    pub(crate) fn text(code: u16, line: &str) -> Answer {
        Answer { code, kind: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

/// Serves answers to requests, which have a path and a Host header, until the program ends. Returns
/// the address, whose port is a free one for port 0.
pub(crate) fn start(
    address: impl ToSocketAddrs + std::fmt::Display,
    answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static,
) -> Result<SocketAddr, Failure> {
    let refused = |error| Failure::refused(format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(&address).map_err(refused)?;
    let local = listener.local_addr().map_err(refused)?;
    let answer = Arc::new(answer);
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Descriptors or memory may be free again later.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            // Every connection holds the answer once; a further one is closed unread.
            if Arc::strong_count(&answer) <= MAX_CONNECTIONS {
                let answer = answer.clone();
                let work = move || converse(stream, &*answer);
                // Without a thread the connection is closed.
                let _ = std::thread::Builder::new().name("http-client".to_owned()).spawn(work);
            }
        }
    };
    std::thread::Builder::new().name("http".to_owned()).spawn(accept).map_err(refused)?;
    Ok(local)
}

fn converse(mut stream: TcpStream, answer: &dyn Fn(&str, &str) -> Answer) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let Answer { code, kind, body } = match head(&mut stream)? {
        None => Answer::text(431, "the head of a request is at most 8 KiB"),
        Some(head) => match head.split_once(' ') {
            Some(("GET", rest)) => {
                let path = rest.split(' ').next().unwrap_or("");
                let name = |line: &str| line.split_once(':').map(|(name, _)| name.to_lowercase());
                let host = head.lines().find(|line| name(line).as_deref() == Some("host"));
                answer(path, host.map_or("", |line| line[5..].trim()))
            }
            _ => Answer::text(405, "only GET"),
        },
    };
    let begin = Instant::now();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {code} -\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )?;
    let mut parts = body.as_bytes().chunks(PART_BYTES).take_while(|_| begin.elapsed() < LONGEST);
    parts.try_for_each(|part| stream.write_all(part))
}

/// Reads the head of a request; `None` for one that is too long.
fn head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut bytes, mut part) = (Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&part[..read]),
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        // A connection that ends with bytes unread is reset.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn only_a_get_is_answered_and_every_other_request_is_refused_or_cut_off() {
        let answer = |path: &str, host: &str| match path {
            "/panic" => panic!("a fault of the work"),
            path => Answer::text(200, &format!("{path} of {host}")),
        };
        let address = start("127.0.0.1:0", answer).unwrap();
        let long = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(MAX_HEAD_BYTES));
        for (request, begin, end) in [
            (
                "GET /a?b=1 HTTP/1.1\r\nhost: here\r\n\r\n",
                "HTTP/1.1 200",
                "\r\n\r\n/a?b=1 of here\n",
            ),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 405", "only GET\n"),
            ("\r\n\r\n", "HTTP/1.1 405", "only GET\n"),
            ("GET /panic HTTP/1.1\r\n\r\n", "", ""),
            (&long, "HTTP/1.1 431", ""),
        ] {
            let answer = asked(address, request);
            assert!(answer.starts_with(begin) && answer.ends_with(end), "{request}: {answer}");
        }
    }

    #[test]
    fn silent_connections_end_in_time_and_take_a_bounded_number_of_threads() {
        let address = start("127.0.0.1:0", |_, _| Answer::text(200, "hello")).unwrap();
        let silent: Vec<TcpStream> =
            (0..3 * MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let until = Instant::now() + 4 * PATIENCE;
        while !asked(address, "GET / HTTP/1.1\r\n\r\n").ends_with("hello\n") {
            assert!(Instant::now() < until, "the silent ones are never cut off");
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(silent);
    }
}
