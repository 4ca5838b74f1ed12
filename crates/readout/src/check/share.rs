//! Checks by several threads, each of the blocks of its own E-links, which do not depend on others.
//! All threads look at every block's header, so each knows its position and its E-links. The result
//! is that of one thread.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use daqmeter_sys::available;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};

use super::{CheckError, Checked, Checker, Options, Progress};

/// Threads that may check one file: each looks at every header, so more threads gain nothing.
pub const MAX_THREADS: usize = 16;

/// Bytes of one read: they stay in the second-level cache between the copy and the check.
const READ_BYTES: usize = 512 << 10;
const READ_AHEAD: usize = 4;

#[derive(Debug)]
pub(super) enum Share {
    Whole,
    Part {
        own: usize,
        of: usize,
        /// Share of each E-link by its number; `None` before its first block.
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
        Share::Part { own, of, shares: vec![None; 1 << 16].into(), seen: 0 }
    }

    /// True if the E-link of the block at hand is in this share. E-links are dealt in the order of
    /// their first blocks, which all threads see alike.
    pub(super) fn is_own(&mut self, elink: u16) -> bool {
        let Share::Part { own, of, shares, seen } = self else {
            return true;
        };
        let share = shares[usize::from(elink)].get_or_insert_with(|| {
            *seen += 1;
            u8::try_from((*seen - 1) % *of).expect("fewer than MAX_THREADS")
        });
        usize::from(*share) == *own
    }

    pub(super) fn may_be_own(&self, block: &[u8]) -> bool {
        let Share::Part { own, shares, .. } = self else {
            return true;
        };
        let Some(head) = block.first_chunk::<HEADER_BYTES>() else {
            return false;
        };
        let elink = FelixHeader::parse(*head).elink.number();
        shares[usize::from(elink)].is_none_or(|share| usize::from(share) == *own)
    }

    pub(super) fn has_what_is_no_block(&self) -> bool {
        matches!(self, Share::Whole | Share::Part { own: 0, .. })
    }
}

/// Checks all bytes of a reader by one thread. Fails if no block begins in its first MiB.
pub fn check(from: impl Read + Send, options: &Options) -> Result<Checked, CheckError> {
    check_watched(from, options, 1, |_| {})
}

/// Checks by `threads` threads, [`MAX_THREADS`] at most, with the result of one. Several threads
/// have one more that reads ahead; one thread reads itself if that is faster. `watch` gets the
/// progress after each part of about half a megabyte.
pub fn check_watched(
    from: impl Read + Send,
    options: &Options,
    threads: usize,
    mut watch: impl FnMut(Progress),
) -> Result<Checked, CheckError> {
    match threads.clamp(1, MAX_THREADS) {
        1 => {
            let checker = Checker::of_share(options.clone(), Share::Whole);
            let may_read_ahead = available::cpus() > 1.0;
            alone(from, checker, may_read_ahead.then_some(WINDOW), &mut watch)
        }
        threads => by_several(from, options, threads, watch),
    }
}

/// Parts of a window in which one way of reading is timed: some milliseconds, beside which starting
/// a thread counts little.
const WINDOW: usize = 16;
const TRIALS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// The checking thread: the bytes that it read are in its CPU's cache.
    Itself,
    /// Another thread on another CPU: both work at once, and the bytes go from cache to cache.
    Ahead,
}

/// Tries both ways in turn, and stays with the faster one, which depends on the host and on the
/// file.
struct Choice {
    /// Parts of a trial; `None` if there is no choice.
    window: Option<usize>,
    windows: usize,
    itself: Vec<Duration>,
    ahead: Vec<Duration>,
}

impl Choice {
    /// Next window: the reading thread, and the number of parts.
    fn next(&self) -> (Reads, usize) {
        let Some(window) = self.window else {
            return (Reads::Itself, usize::MAX);
        };
        match self.windows {
            // The first one warms up.
            0 => (Reads::Itself, window),
            at if at > 2 * TRIALS => (self.faster(), usize::MAX),
            at if at % 2 == 1 => (Reads::Ahead, window),
            _ => (Reads::Itself, window),
        }
    }

    fn took(&mut self, reads: Reads, time: Duration) {
        if self.windows > 0 {
            match reads {
                Reads::Itself => self.itself.push(time),
                Reads::Ahead => self.ahead.push(time),
            }
        }
        self.windows += 1;
    }

    fn faster(&self) -> Reads {
        let median_s = |times: &[Duration]| {
            let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
            daqmeter_stats::median(&times)
        };
        match median_s(&self.ahead) < median_s(&self.itself) {
            true => Reads::Ahead,
            false => Reads::Itself,
        }
    }
}

/// Checks by one thread; with a window, the faster way of reading is found and used.
fn alone(
    mut from: impl Read + Send,
    mut checker: Checker,
    window: Option<usize>,
    watch: &mut impl FnMut(Progress),
) -> Result<Checked, CheckError> {
    let mut choice = Choice { window, windows: 0, itself: Vec::new(), ahead: Vec::new() };
    let mut buffers = Buffers::new();
    loop {
        let (reads, parts) = choice.next();
        let began = Instant::now();
        let mut take = |bytes: &[u8]| {
            checker.take(bytes)?;
            watch(checker.progress());
            Ok(())
        };
        let is_over = match reads {
            Reads::Itself => itself(&mut from, &buffers, parts, &mut take)?,
            Reads::Ahead => ahead(&mut from, &mut buffers, parts, &mut take)?,
        };
        if is_over {
            return checker.finish();
        }
        choice.took(reads, began.elapsed());
    }
}

/// Reads `parts` parts and has each taken; returns true at the end of the bytes.
fn itself(
    from: &mut impl Read,
    buffers: &Buffers,
    parts: usize,
    take: &mut impl FnMut(&[u8]) -> Result<(), CheckError>,
) -> Result<bool, CheckError> {
    let mut buffer = buffers.one();
    let mut read = || -> Result<bool, CheckError> {
        for _ in 0..parts {
            let filled = fill(from, &mut buffer)?;
            if filled == 0 {
                return Ok(true);
            }
            take(&buffer[..filled])?;
        }
        Ok(false)
    };
    let is_over = read();
    buffers.give_back(buffer);
    is_over
}

fn ahead(
    from: &mut (impl Read + Send),
    buffers: &mut Buffers,
    parts: usize,
    take: &mut impl FnMut(&[u8]) -> Result<(), CheckError>,
) -> Result<bool, CheckError> {
    std::thread::scope(|scope| {
        let (out, came) = sync_channel(READ_AHEAD);
        let reading = scope.spawn(move || read_ahead(from, buffers, &[out], parts));
        for part in came {
            take(&part.bytes[..part.filled])?;
        }
        Ok(joined(reading)?)
    })
}

fn by_several(
    from: impl Read + Send,
    options: &Options,
    threads: usize,
    mut watch: impl FnMut(Progress),
) -> Result<Checked, CheckError> {
    let faults: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (outs, ins): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(READ_AHEAD)).unzip();
        let reading = scope.spawn(move || read_ahead(from, &mut Buffers::new(), &outs, usize::MAX));
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
            let of_others = faults[1..].iter().map(|faults| faults.load(Ordering::Relaxed));
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

/// Bytes for all threads; the last one to drop them gives the buffer back.
struct Part {
    bytes: Vec<u8>,
    filled: usize,
    back: Sender<Vec<u8>>,
}

impl Drop for Part {
    fn drop(&mut self) {
        // At the end the other side of the channel is gone.
        let _ = self.back.send(std::mem::take(&mut self.bytes));
    }
}

struct Buffers {
    back: Sender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

impl Buffers {
    fn new() -> Buffers {
        let (back, empty) = channel();
        let buffers = Buffers { back, empty };
        for _ in 0..READ_AHEAD {
            buffers.give_back(vec![0; READ_BYTES]);
        }
        buffers
    }

    fn one(&self) -> Vec<u8> {
        self.empty.recv().expect("its other end is in the same struct")
    }

    fn give_back(&self, buffer: Vec<u8>) {
        // The receiver is in the same struct: it has not gone away.
        let _ = self.back.send(buffer);
    }
}

/// Reads `parts` parts, until the end, or until the other side is gone; returns true at the end.
fn read_ahead(
    mut from: impl Read,
    buffers: &mut Buffers,
    outs: &[SyncSender<Arc<Part>>],
    parts: usize,
) -> io::Result<bool> {
    for _ in 0..parts {
        let mut bytes = buffers.one();
        let filled = fill(&mut from, &mut bytes)?;
        if filled == 0 {
            return Ok(true);
        }
        let part = Arc::new(Part { bytes, filled, back: buffers.back.clone() });
        if outs.iter().any(|out| out.send(Arc::clone(&part)).is_err()) {
            break;
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread::ThreadId;

    use super::*;
    use crate::Scenario;

    struct Seen<'a> {
        bytes: &'a [u8],
        by: &'a mut BTreeSet<String>,
    }

    impl Read for Seen<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let id: ThreadId = std::thread::current().id();
            self.by.insert(format!("{id:?}"));
            self.bytes.read(room)
        }
    }

    fn recorded() -> Vec<u8> {
        let scenario = Scenario::parse("[card]\nlinks = 24\nring = \"4MiB\"\n", "").unwrap();
        let mut bytes = Vec::new();
        crate::recording::record(&scenario, 10_000, |_, part| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        bytes
    }

    #[test]
    fn whoever_reads_the_result_is_the_same_and_both_ways_are_tried() {
        let bytes = recorded();
        assert!(bytes.len() > 9 * READ_BYTES, "{}", bytes.len());
        let result = |window: Option<usize>| {
            let mut by = BTreeSet::new();
            let from = Seen { bytes: &bytes, by: &mut by };
            let checker = Checker::new(Options::default());
            let mut seen = Vec::new();
            let checked = alone(from, checker, window, &mut |progress: Progress| {
                seen.push(progress.bytes);
            });
            (checked.unwrap(), seen, by.len())
        };
        let (wanted, parts, readers) = result(None);
        assert_eq!(readers, 1);
        let (checked, seen, readers) = result(Some(1));
        assert!(checked == wanted && seen == parts);
        // Each trial of reading ahead had a thread of its own.
        assert!(readers > TRIALS, "{readers}");
    }

    #[test]
    fn the_faster_way_is_taken_after_the_trials_and_the_first_window_does_not_count() {
        let mut choice =
            Choice { window: Some(4), windows: 0, itself: Vec::new(), ahead: Vec::new() };
        // Itself: 9 ms while it warms up, then 3; ahead: 4, and 1 once.
        let mut ahead_ms = [4, 1, 4].into_iter();
        let mut itself_ms = [9, 3, 3, 3].into_iter();
        for _ in 0..=2 * TRIALS {
            let (reads, parts) = choice.next();
            assert_eq!(parts, 4);
            let ms = match reads {
                Reads::Itself => itself_ms.next(),
                Reads::Ahead => ahead_ms.next(),
            };
            choice.took(reads, Duration::from_millis(ms.unwrap()));
        }
        assert_eq!(choice.next(), (Reads::Itself, usize::MAX));
        choice.itself.fill(Duration::from_millis(5));
        assert_eq!(choice.next(), (Reads::Ahead, usize::MAX));
    }
}
