//! Checks by several threads, each of the blocks of its own E-links, which do not depend on others.
//! All threads look at every block's header, so each knows its position and its E-links. The result
//! is that of one thread.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use daqmeter_wire::felix::Elink;

use super::{CheckError, CheckOptions, Checked, Checker, Progress};

/// Threads that may check one file: each looks at every header, so more threads gain nothing.
pub const MAX_THREADS: usize = 16;

/// Bytes of one read: they stay in the second-level cache between the copy and the check.
const READ_BYTES: usize = 512 << 10;
const READ_AHEAD: usize = 4;

/// A part of the E-links, dealt in the order of their first blocks, which all threads see alike.
#[derive(Debug)]
pub(super) struct Share {
    own: usize,
    of: usize,
    /// Share of each E-link by its number; `None` before its first block.
    shares: Box<[Option<usize>]>,
    seen: usize,
}

impl Share {
    pub(super) fn part(own: usize, of: usize) -> Share {
        Share { own, of, shares: vec![None; usize::from(Elink::MOST) + 1].into(), seen: 0 }
    }

    /// True if the E-link of the block at hand is in this share.
    #[inline]
    pub(super) fn is_own(&mut self, elink: Elink) -> bool {
        let Share { own, of, shares, seen } = self;
        let share = shares[usize::from(elink.number())].get_or_insert_with(|| {
            *seen += 1;
            (*seen - 1) % *of
        });
        share == own
    }

    /// True if a block that comes later may be in this share.
    #[inline]
    pub(super) fn may_be_own(&self, elink: Elink) -> bool {
        self.shares[usize::from(elink.number())].is_none_or(|share| share == self.own)
    }

    pub(super) fn has_what_is_no_block(&self) -> bool {
        self.own == 0
    }
}

/// Checks all bytes of a reader by one thread. Fails if no block begins in its first MiB.
pub fn check(from: impl Read + Send, options: &CheckOptions) -> Result<Checked, CheckError> {
    check_watched(from, options, 1, |_| {})
}

/// Checks by `threads` threads, [`MAX_THREADS`] at most, with the result of one; another one reads
/// ahead. `watch` gets the progress after each part of about half a megabyte.
pub fn check_watched(
    from: impl Read + Send,
    options: &CheckOptions,
    threads: usize,
    mut watch: impl FnMut(Progress),
) -> Result<Checked, CheckError> {
    let threads = threads.clamp(1, MAX_THREADS);
    let (back, empty) = channel();
    let faults = AtomicU64::new(0);
    let work = |own: usize, parts: Receiver<Part>, back: Sender<Vec<u8>>| Work {
        checker: Checker::of_share(options.clone(), Share::part(own, threads)),
        parts,
        back,
        faults: &faults,
    };
    std::thread::scope(|scope| {
        let (outs, ins): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(READ_AHEAD)).unzip();
        let mut works =
            ins.into_iter().enumerate().map(|(own, parts)| work(own, parts, back.clone()));
        let first = works.next().expect("one thread at least");
        let others: Vec<_> =
            works.map(|work| scope.spawn(move || work.done(&mut |_| {}))).collect();
        let reading = scope.spawn(move || read_ahead(from, &outs, &empty));
        let first = first.done(&mut watch);
        let join = "checking does not panic";
        let others = others.into_iter().map(|thread| thread.join().expect(join));
        let done: Result<Vec<Checker>, CheckError> = std::iter::once(first).chain(others).collect();
        reading.join().expect("reading does not panic")?;
        Checker::joined(done?)
    })
}

/// Bytes for all threads, and their number; the last one gives the buffer back.
type Part = Arc<(Vec<u8>, usize)>;

struct Work<'a> {
    checker: Checker,
    parts: Receiver<Part>,
    back: Sender<Vec<u8>>,
    /// Faults that all threads found so far.
    faults: &'a AtomicU64,
}

impl Work<'_> {
    fn done(mut self, watch: &mut dyn FnMut(Progress)) -> Result<Checker, CheckError> {
        let mut known = 0;
        for part in self.parts {
            self.checker.take(&part.0[..part.1])?;
            let own = self.checker.progress();
            let before = self.faults.fetch_add(own.faults - known, Ordering::Relaxed);
            let faults = before + own.faults - known;
            known = own.faults;
            watch(Progress { faults, ..own });
            if let Some((buffer, _)) = Arc::into_inner(part) {
                // At the end the reading thread is gone.
                let _ = self.back.send(buffer);
            }
        }
        Ok(self.checker)
    }
}

/// Reads until the end, or until the other side is gone.
fn read_ahead(
    mut from: impl Read,
    outs: &[SyncSender<Part>],
    empty: &Receiver<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let mut buffer = empty.try_recv().unwrap_or_else(|_| vec![0; READ_BYTES]);
        let filled = fill(&mut from, &mut buffer)?;
        if filled == 0 {
            return Ok(());
        }
        let part = Arc::new((buffer, filled));
        if outs.iter().any(|out| out.send(part.clone()).is_err()) {
            return Ok(());
        }
    }
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
