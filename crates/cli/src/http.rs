//! HTTP server of `serve` and of `--metrics`: hyper on one thread, with a limit for every choice of
//! a client.
//!
//! Requests are GET without a body; each connection carries one. The [`Handler`] makes the answers
//! and decides on access. Begin with [`start`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once. One more ends the oldest without a request, or else the oldest.
    connections: usize,
    head_bytes: usize,
    head_time: Duration,
    answer_time: Duration,
    send_time: Duration,
    workers: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // A process has 1,024 descriptors by default, far more than this.
            connections: 128,
            head_bytes: 16 << 10,
            head_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(120),
            send_time: Duration::from_secs(30),
            workers: 2,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) host: Option<String>,
    pub(crate) authorization: Option<String>,
}

#[derive(Debug)]
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

pub(crate) enum Reply {
    Now(Answer),
    /// Answer by slow work, such as reading files: in a thread of its own, a few at once.
    Later(Box<dyn FnOnce() -> Answer + Send>),
}

/// Answers requests and counts answers. It must not block.
pub(crate) trait Handler: Send + Sync + 'static {
    fn reply(self: Arc<Self>, request: Request) -> Reply;
    fn answered(&self, _code: u16) {}
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: VecDeque<Connection>,
}

struct Connection {
    number: u64,
    has_asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Connections {
    fn make_room(&mut self, limit: usize) {
        while self.open.len() >= limit {
            let silent = self
                .open
                .iter()
                .position(|connection| !connection.has_asked.load(Ordering::Relaxed));
            if let Some(ended) = self.open.remove(silent.unwrap_or(0)) {
                ended.task.abort();
            }
        }
    }
}

struct Shared {
    handler: Arc<dyn Handler>,
    limits: Limits,
    workers: Arc<Semaphore>,
    connections: Mutex<Connections>,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    #[cfg(test)]
    shared: Arc<Shared>,
}

pub(crate) fn start(
    address: impl std::net::ToSocketAddrs,
    handler: Arc<dyn Handler>,
) -> io::Result<Server> {
    start_with(address, handler, Limits::default())
}

fn start_with(
    address: impl std::net::ToSocketAddrs,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> io::Result<Server> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(limits.workers)
        .build()?;
    let workers = Arc::new(Semaphore::new(limits.workers));
    let shared = Arc::new(Shared { handler, limits, workers, connections: Mutex::default() });
    let served = shared.clone();
    std::thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || runtime.block_on(accept(listener, served)))?;
    Ok(Server {
        address,
        #[cfg(test)]
        shared,
    })
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    /// Pause without descriptors or memory for a connection, since others may end meanwhile.
    const PAUSE: Duration = Duration::from_millis(100);
    // The listener is ready and does not block, so that nothing can fail.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &shared),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Begins a connection. The table is locked meanwhile, so that the task cannot end before its
/// entry.
fn admit(stream: tokio::net::TcpStream, shared: &Arc<Shared>) {
    let has_asked = Arc::new(AtomicBool::new(false));
    let mut connections = shared.connections();
    connections.make_room(shared.limits.connections);
    let number = connections.next;
    connections.next += 1;
    let (open, asked) = (Open { shared: shared.clone(), number }, has_asked.clone());
    let task = tokio::spawn(async move { converse(stream, &open.shared, &asked).await });
    connections.open.push_back(Connection { number, has_asked, task: task.abort_handle() });
}

struct Open {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.connections().open.retain(|connection| connection.number != self.number);
    }
}

async fn converse(stream: tokio::net::TcpStream, shared: &Arc<Shared>, has_asked: &AtomicBool) {
    let limits = shared.limits;
    let (until, deadline) = watch::channel(Instant::now() + limits.head_time);
    let until = &Arc::new(until);
    let service = service_fn(|request| async move {
        has_asked.store(true, Ordering::Relaxed);
        until.send_replace(Instant::now() + limits.answer_time);
        let answer = answer(shared, request).await;
        until.send_replace(Instant::now() + limits.send_time);
        shared.handler.answered(answer.code);
        Ok::<_, Infallible>(response(answer))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that left needs nothing; hyper has reported a wrong request.
        _ = connection => {}
        () = passed(deadline) => {}
    }
}

async fn passed(mut deadline: watch::Receiver<Instant>) {
    loop {
        let until = *deadline.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(until) => return,
            Ok(()) = deadline.changed() => {}
        }
    }
}

async fn answer(shared: &Arc<Shared>, request: hyper::Request<Incoming>) -> Answer {
    if request.method() != Method::GET {
        return Answer::text(405, "only GET");
    }
    if !request.body().is_end_stream() {
        return Answer::text(413, "a request has no body here");
    }
    match shared.handler.clone().reply(asked(&request)) {
        Reply::Now(answer) => answer,
        Reply::Later(work) => made(&shared.workers, work).await.unwrap_or_else(|| {
            Answer::text(500, "the answer could not be made: a fault of daqmeter")
        }),
    }
}

async fn made(
    workers: &Arc<Semaphore>,
    work: impl FnOnce() -> Answer + Send + 'static,
) -> Option<Answer> {
    let turn = workers.clone().acquire_owned().await.ok()?;
    let worker = tokio::task::spawn_blocking(move || {
        // Keeps the turn until the work is done, even when the client has gone.
        let _turn = turn;
        work()
    });
    worker.await.ok()
}

fn asked(request: &hyper::Request<Incoming>) -> Request {
    let header = |name: HeaderName| request.headers().get(name)?.to_str().ok().map(str::to_owned);
    Request {
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or("").to_owned(),
        host: header(header::HOST),
        authorization: header(header::AUTHORIZATION),
    }
}

fn response(Answer { code, kind, body }: Answer) -> hyper::Response<String> {
    let mut response = hyper::Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    response
        .headers_mut()
        .extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    /// Exceeds any wait here on a busy host.
    const PATIENCE: Duration = Duration::from_secs(20);
    const LARGE: usize = 64 << 20;

    /// Answers `/` at once, `/large` with more than sockets hold, `/work` when a pipe says so, and
    /// panics at `/panic`.
    #[derive(Default)]
    struct Site {
        answers: AtomicUsize,
        gate: Option<Mutex<std::sync::mpsc::Receiver<()>>>,
    }

    impl Handler for Site {
        fn reply(self: Arc<Self>, request: Request) -> Reply {
            match request.path.as_str() {
                "/large" => Reply::Now(Answer::html("x".repeat(LARGE))),
                "/work" => Reply::Later(Box::new(move || {
                    let gate = self.gate.as_ref().expect("a gate").lock().unwrap();
                    gate.recv_timeout(PATIENCE).unwrap();
                    Answer::text(200, "worked")
                })),
                "/panic" => Reply::Later(Box::new(|| panic!("a fault of the work"))),
                _ => Reply::Now(Answer::text(200, "hello")),
            }
        }

        fn answered(&self, _code: u16) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn started(limits: Limits) -> (Server, Arc<Site>) {
        let site = Arc::new(Site::default());
        (start_with("127.0.0.1:0", site.clone(), limits).unwrap(), site)
    }

    fn said(server: &Server, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn rest(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            // The peer ended it with bytes of ours unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error}"),
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn get(server: &Server, path: &str) -> String {
        rest(said(server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")))
    }

    fn is_served(server: &Server) -> bool {
        get(server, "/").ends_with("\r\n\r\nhello\n")
    }

    fn wait_for_open(server: &Server, wanted: impl Fn(usize) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(server.shared.connections().open.len()) {
            assert!(Instant::now() < until, "{} are open", server.shared.connections().open.len());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_get_gets_its_answer_and_the_connection_ends() {
        let (server, site) = started(Limits::default());
        let answer = get(&server, "/");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello\n"),
            "{answer}"
        );
        assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
        let posted =
            rest(said(&server, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"));
        assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
        assert_eq!(site.answers.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_body_is_refused_however_long_it_says_it_is() {
        let (server, _) = started(Limits::default());
        for length in ["18446744073709551615", "18446744073709551616", "100000000000", "-1", "5"] {
            let head =
                format!("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
            let answer = rest(said(&server, &head));
            assert!(answer.starts_with("HTTP/1.1 4"), "{length}: {answer}");
            assert!(is_served(&server), "{length}");
        }
        let chunked = "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(rest(said(&server, chunked)).starts_with("HTTP/1.1 4"));
        assert!(is_served(&server));
    }

    #[test]
    fn a_long_request_line_and_long_headers_are_cut_off() {
        let (server, site) = started(Limits::default());
        for begin in ["GET /", "GET / HTTP/1.1\r\nX: "] {
            let mut stream = said(&server, begin);
            let piece = [b'a'; 64 << 10];
            // A held connection would take all of this.
            let sent = (0..4096).take_while(|_| stream.write_all(&piece).is_ok()).count();
            assert!(sent < 4096, "{begin}: the server took {sent} pieces of 64 KiB");
        }
        let many = "A: b\r\n".repeat(1000);
        assert!(
            rest(said(&server, &format!("GET / HTTP/1.1\r\n{many}\r\n")))
                .starts_with("HTTP/1.1 431")
        );
        assert_eq!(site.answers.load(Ordering::Relaxed), 0);
        assert!(is_served(&server));
    }

    #[test]
    fn who_asks_nothing_is_cut_off_in_time() {
        let (server, _) =
            started(Limits { head_time: Duration::from_millis(100), ..Limits::default() });
        for begin in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\nX:"] {
            let answer = rest(said(&server, begin));
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{begin}: {answer}");
        }
        wait_for_open(&server, |open| open == 0);
    }

    #[test]
    fn who_reads_nothing_stops_nobody_and_is_cut_off_in_time() {
        let (server, site) =
            started(Limits { send_time: Duration::from_millis(100), ..Limits::default() });
        let stalled: Vec<TcpStream> = (0..3)
            .map(|_| said(&server, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .collect();
        let until = Instant::now() + PATIENCE;
        while site.answers.load(Ordering::Relaxed) < 3 {
            assert!(Instant::now() < until, "the answers are never sent");
            std::thread::yield_now();
        }
        assert!(is_served(&server));
        wait_for_open(&server, |open| open == 0);
        for stream in stalled {
            assert!(rest(stream).len() < LARGE, "only what the sockets held");
        }
    }

    #[test]
    fn silent_connections_keep_nobody_out_and_take_no_threads() {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let limits = Limits { connections: 16, head_time: PATIENCE, ..Limits::default() };
        let (server, site) = started(limits);
        let before = threads();
        let silent: Vec<TcpStream> = (0..300).map(|_| said(&server, "")).collect();
        assert!(is_served(&server));
        assert!(server.shared.connections().open.len() <= 16);
        // Other tests run meanwhile, each with some threads.
        assert!(threads() < before + 150, "{before} threads, then {}", threads());
        assert_eq!(site.answers.load(Ordering::Relaxed), 1);
        // The oldest were ended to make room.
        assert_eq!(rest(silent.into_iter().next().unwrap()), "");
    }

    #[test]
    fn work_delays_nobody_else_and_its_panic_is_an_answer() {
        let (open, gate) = std::sync::mpsc::channel();
        let site = Arc::new(Site { gate: Some(Mutex::new(gate)), ..Site::default() });
        let server = start_with("127.0.0.1:0", site, Limits::default()).unwrap();
        let slow = said(&server, "GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(is_served(&server));
        assert!(get(&server, "/panic").starts_with("HTTP/1.1 500"));
        open.send(()).unwrap();
        assert!(rest(slow).ends_with("worked\n"));
    }
}
