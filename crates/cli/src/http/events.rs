//! Streams of server-sent events (HTML standard, 9.2): an answer that goes on as long as something happens and somebody listens.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::{Shared, made, response_of};

/// Without an event for so long a comment is sent, so that a listener who went away is noticed.
const QUIET: Duration = Duration::from_secs(15);
/// A line that listeners leave out.
const COMMENT: &str = ":\n\n";

/// What happens, for one listener.
pub(crate) trait Events: Send + 'static {
    /// What happened since the last look. It may read files.
    fn next(&mut self) -> Next;
}

/// What a look finds. Texts are whole events, with the empty line behind them.
pub(crate) enum Next {
    /// Nothing happened.
    None,
    /// This.
    Event(String),
    /// This, and nothing will happen any more.
    Last(String),
}

/// The body of an answer.
pub(crate) enum Sent {
    /// All of it; taken when it was sent.
    Whole(Option<Bytes>),
    /// What comes.
    Stream(mpsc::Receiver<Bytes>),
}

impl Sent {
    pub(super) fn whole(text: String) -> Sent {
        Sent::Whole(Some(Bytes::from(text)).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |bytes: Option<Bytes>| bytes.map(|bytes| Ok(Frame::data(bytes)));
        match self.get_mut() {
            Sent::Whole(bytes) => Poll::Ready(frame(bytes.take())),
            Sent::Stream(events) => events.poll_recv(context).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Sent::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Sent::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Sent::Stream(_) => SizeHint::default(),
        }
    }
}

/// The answer that carries the events. `until` is the connection's deadline: it is over for who does not read.
pub(super) fn stream(
    shared: &Arc<Shared>,
    events: Box<dyn Events>,
    until: Arc<watch::Sender<Instant>>,
) -> hyper::Response<Sent> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(send(shared.clone(), events, sender, until));
    response_of(200, "text/event-stream", Sent::Stream(receiver))
}

/// Looks for events and sends them.
async fn send(
    shared: Arc<Shared>,
    mut events: Box<dyn Events>,
    sender: mpsc::Sender<Bytes>,
    until: Arc<watch::Sender<Instant>>,
) {
    let limits = shared.limits;
    let mut last = Instant::now();
    loop {
        let look = move || {
            let next = events.next();
            (events, next)
        };
        let Some((back, next)) = made(&shared.workers, look).await else {
            return;
        };
        events = back;
        let (text, is_last) = match next {
            Next::None if last.elapsed() < QUIET => (String::new(), false),
            Next::None => (COMMENT.to_owned(), false),
            Next::Event(text) => (text, false),
            Next::Last(text) => (text, true),
        };
        if !text.is_empty() {
            last = Instant::now();
            if timeout(limits.send_time, sender.send(Bytes::from(text))).await.is_err() {
                until.send_replace(Instant::now());
                return;
            }
        }
        if is_last {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(limits.event_time) => {}
            () = sender.closed() => return,
        }
    }
}
