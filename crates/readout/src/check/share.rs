//! Checking by several threads: each checks the blocks of its own E-links, which nothing of the others' depends on. All of them look
//! at every block's header, so each knows where it is and which E-links are its own. The result is that of one thread.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::ScopedJoinHandle;

use daqmeter_wire::felix::block::{HEADER_BYTES, Header};

use super::{CheckError, Checked, Checker, Options, Progress};

/// Threads that may check one file: each looks at every header, so more gain nothing.
pub const MAX_THREADS: usize = 16;

/// Read at a time: stays in the second-level cache between the copy and the check.
const READ_BYTES: usize = 512 << 10;
/// Buffers that are read ahead.
const READ_AHEAD: usize = 4;

/// Which blocks a checker checks.
#[derive(Debug)]
pub(super) enum Share {
    /// All of them.
    Whole,
    /// Those of its E-links.
    Part {
        own: usize,
        of: usize,
        /// The share of each E-link by its number; none of those that did not come yet.
        shares: Box<[Option<u8>]>,
        /// E-links that came: the next one is the next share's.
        seen: usize,
    },
}

impl Share {
    fn part(own: usize, of: usize) -> Share {
        if of == 1 {
            return Share::Whole;
        }
        Share::Part {
            own,
            of,
            shares: vec![None; 1 << 16].into(),
            seen: 0,
        }
    }

    /// Whether an E-link whose block is at hand is its own. E-links are dealt in the order in which their first blocks come, which
    /// is the same for all.
    pub(super) fn is_own(&mut self, elink: u16) -> bool {
        let Share::Part {
            own,
            of,
            shares,
            seen,
        } = self
        else {
            return true;
        };
        let share = shares[usize::from(elink)].get_or_insert_with(|| {
            *seen += 1;
            u8::try_from((*seen - 1) % *of).expect("fewer than MAX_THREADS")
        });
        usize::from(*share) == *own
    }

    /// Whether a block further on is worth fetching.
    pub(super) fn may_be_own(&self, block: &[u8]) -> bool {
        let Share::Part { own, shares, .. } = self else {
            return true;
        };
        let Some(head) = block.first_chunk::<HEADER_BYTES>() else {
            return false;
        };
        let elink = Header::parse(*head).elink.number();
        shares[usize::from(elink)].is_none_or(|share| usize::from(share) == *own)
    }

    /// Whether bytes of no block are its own to report.
    pub(super) fn has_what_is_no_block(&self) -> bool {
        matches!(self, Share::Whole | Share::Part { own: 0, .. })
    }
}

/// Checks all that a reader gives, by one thread; another one reads ahead.
///
/// # Errors
/// When it cannot be read, or no block begins in its first MiB.
pub fn check(from: impl Read + Send, options: &Options) -> Result<Checked, CheckError> {
    check_watched(from, options, 1, |_| {})
}

/// The same by so many threads, [`MAX_THREADS`] at most, with the same result; one more reads ahead. `watch` gets how far it is
/// after each part of about half a megabyte.
///
/// # Errors
/// As [`check`].
pub fn check_watched(
    from: impl Read + Send,
    options: &Options,
    threads: usize,
    mut watch: impl FnMut(Progress),
) -> Result<Checked, CheckError> {
    let threads = threads.clamp(1, MAX_THREADS);
    let faults: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (outs, ins): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(READ_AHEAD)).unzip();
        let reading = scope.spawn(move || read_ahead(from, &outs));
        let mut shares = ins.into_iter().enumerate().map(|(own, parts)| {
            let checker = Checker::of_share(options.clone(), Share::part(own, threads));
            (checker, parts)
        });
        let (first, first_parts) = shares.next().expect("one thread at least");
        let others: Vec<_> = shares
            .zip(&faults[1..])
            .map(|((checker, parts), faults)| {
                scope.spawn(move || {
                    take_all(checker, parts, |checker| {
                        faults.store(checker.progress().faults, Ordering::Relaxed);
                    })
                })
            })
            .collect();
        let first = take_all(first, first_parts, |checker| {
            let own = checker.progress();
            let of_others = faults[1..]
                .iter()
                .map(|faults| faults.load(Ordering::Relaxed));
            let faults = own.faults + of_others.sum::<u64>();
            watch(Progress { faults, ..own });
        });
        let taken = std::iter::once(first).chain(others.into_iter().map(joined));
        let taken: Result<Vec<Checker>, CheckError> = taken.collect();
        joined(reading)?;
        Checker::joined(taken?)
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().expect("checking does not panic")
}

/// Bytes that were read, for all threads; the buffer goes back when none needs it any more.
struct Part {
    bytes: Vec<u8>,
    filled: usize,
    back: Sender<Vec<u8>>,
}

impl Drop for Part {
    fn drop(&mut self) {
        // At the end nobody wants it back.
        let _ = self.back.send(std::mem::take(&mut self.bytes));
    }
}

/// Reads until the end, or until nobody takes it any more.
fn read_ahead(mut from: impl Read, outs: &[SyncSender<Arc<Part>>]) -> io::Result<()> {
    let (back, empty) = channel();
    for _ in 0..READ_AHEAD {
        // The receiver is in this function: nobody has gone away.
        let _ = back.send(vec![0; READ_BYTES]);
    }
    while let Ok(mut bytes) = empty.recv() {
        let filled = fill(&mut from, &mut bytes)?;
        if filled == 0 {
            break;
        }
        let part = Arc::new(Part {
            bytes,
            filled,
            back: back.clone(),
        });
        if outs.iter().any(|out| out.send(Arc::clone(&part)).is_err()) {
            break;
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the end is reached.
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

/// Checks the parts that come, `watch` after each.
fn take_all(
    mut checker: Checker,
    parts: Receiver<Arc<Part>>,
    mut watch: impl FnMut(&Checker),
) -> Result<Checker, CheckError> {
    for part in parts {
        checker.take(&part.bytes[..part.filled])?;
        watch(&checker);
    }
    Ok(checker)
}
