//! Lines in batches, each parsed by one of several threads that take them in turn.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::known::{Known, lock};
use super::{Contents, LineError, MAX_LINE_BYTES};
use crate::RunRecord;
use crate::name::Seen;

/// Lines are parsed in batches of about this many bytes, so that other threads have something to do and memory stays small.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// How a line becomes a record.
pub(super) type Parse = fn(&[u8], usize, &Known) -> Result<RunRecord, LineError>;

/// Parses the lines of a source, by several threads where they are many, and hands over what they hold in their order. Breaking off ends the
/// reading.
///
/// # Errors
/// Those of the source; the parts before were taken.
pub(super) fn read_parts(
    source: impl BufRead + Send,
    parse: Parse,
    take: impl FnMut(Contents) -> ControlFlow<()>,
) -> io::Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    // Of each worker one batch that it parses, and one that waits for those before it.
    let under_way = 2 * workers;
    let (turns, turn) = sync_channel(under_way);
    let lines = Lines { source, line: 0, batches: 0, ended: false, turn };
    let lines = Mutex::new(lines);
    (0..under_way).for_each(|_| turns.send(()).expect("as many have space"));
    let known = Known::default();
    let mut first = Worker::new(&lines, parse, &known);
    // A short file needs no thread.
    let part = first.next();
    if lock(&lines).ended {
        return in_order(part.into_iter(), &turns, take);
    }
    std::thread::scope(|scope| {
        let (parsed, parts) = sync_channel(under_way);
        let others = (1..workers).map(|_| Worker::new(&lines, parse, &known));
        for worker in std::iter::once(first).chain(others) {
            let parsed = parsed.clone();
            scope.spawn(move || worker.send_all(&parsed));
        }
        drop(parsed);
        // Ends with the turns and the parts, for which workers may be waiting.
        let turns = turns;
        in_order(part.into_iter().chain(parts), &turns, take)
    })
}

/// Takes parts in the order of the file, and gives turns for those that follow.
fn in_order(
    parts: impl Iterator<Item = Parsed>,
    turns: &SyncSender<()>,
    mut take: impl FnMut(Contents) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for (number, part) in parts {
        waiting.insert(number, part);
        while let Some(part) = waiting.remove(&next) {
            next += 1;
            // Workers that have gone need no turn.
            let _ = turns.try_send(());
            let part = part.unwrap_or_else(|panic| resume_unwind(panic));
            if take(part?).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The lines of a source, from which workers take batches in turn.
struct Lines<S> {
    source: S,
    /// Lines that were taken.
    line: usize,
    /// Batches that were taken.
    batches: usize,
    /// There are no more lines, or they cannot be read.
    ended: bool,
    /// One for each batch that may be taken: as many as are under way at once.
    turn: Receiver<()>,
}

impl<S: BufRead> Lines<S> {
    /// Fills a batch with the next lines; its number. None at the end, and where nobody wants more.
    fn take(&mut self, batch: &mut Batch) -> Option<(usize, io::Result<()>)> {
        if self.ended || self.turn.recv().is_err() {
            return None;
        }
        let filled = batch.fill(&mut self.source, &mut self.line);
        self.ended = batch.last || filled.is_err();
        let number = self.batches;
        self.batches += 1;
        Some((number, filled))
    }
}

/// Takes batches and parses them.
struct Worker<'a, S> {
    lines: &'a Mutex<Lines<S>>,
    parse: Parse,
    known: &'a Known,
    seen: Seen,
    batch: Batch,
}

/// What became of a batch, by its number; the panic of its parser, which none should have.
type Parsed = (usize, std::thread::Result<io::Result<Contents>>);

impl<'a, S: BufRead> Worker<'a, S> {
    fn new(lines: &'a Mutex<Lines<S>>, parse: Parse, known: &'a Known) -> Worker<'a, S> {
        Worker { lines, parse, known, seen: Seen::default(), batch: Batch::default() }
    }

    /// The next batch, parsed.
    fn next(&mut self) -> Option<Parsed> {
        let (number, filled) = lock(self.lines).take(&mut self.batch)?;
        let mut parse = || self.seen.with(|| self.batch.parse(self.parse, self.known));
        let part = catch_unwind(AssertUnwindSafe(|| filled.map(|()| parse())));
        Some((number, part))
    }

    /// Sends all that it parses, until nobody takes it.
    fn send_all(mut self, parsed: &SyncSender<Parsed>) {
        while let Some(part) = self.next() {
            if parsed.send(part).is_err() {
                return;
            }
        }
    }
}

/// Consecutive lines.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Number in the file and place in `bytes` of each line, and whether it ended with a line feed.
    lines: Vec<(usize, std::ops::Range<usize>, bool)>,
    too_long: Vec<usize>,
    last: bool,
}

impl Batch {
    /// Takes the next lines in the place of those that it had.
    fn fill(&mut self, source: &mut impl BufRead, line: &mut usize) -> io::Result<()> {
        self.bytes.clear();
        // One long line must not hold its memory to the end of the file.
        self.bytes.shrink_to(2 * BATCH_BYTES);
        self.lines.clear();
        self.too_long.clear();
        while self.bytes.len() < BATCH_BYTES {
            let from = self.bytes.len();
            *line += 1;
            match read_line(source, &mut self.bytes)? {
                LineRead::End => {
                    self.last = true;
                    break;
                }
                LineRead::TooLong => self.too_long.push(*line),
                LineRead::Line { ended } => self.lines.push((*line, from..self.bytes.len(), ended)),
            }
        }
        Ok(())
    }

    fn parse(&self, parse: Parse, known: &Known) -> Contents {
        let errors = self.too_long.iter().map(|&line| LineError::TooLong { line }).collect();
        let mut contents = Contents { records: Vec::with_capacity(self.lines.len()), errors };
        for (line, range, ended) in &self.lines {
            let bytes = without_mark(&self.bytes[range.clone()], *line);
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parse(bytes, *line, known) {
                Ok(record) => contents.records.push(record),
                Err(LineError::Malformed { .. }) if !ended => {
                    contents.errors.push(LineError::Truncated { line: *line })
                }
                Err(error) => contents.errors.push(error),
            }
        }
        contents.errors.sort_by_key(LineError::line);
        contents
    }
}

/// A line without the byte-order mark that some editors put before the first.
fn without_mark(bytes: &[u8], line: usize) -> &[u8] {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    match line {
        1 => bytes.strip_prefix(MARK).unwrap_or(bytes),
        _ => bytes,
    }
}

enum LineRead {
    End,
    TooLong,
    Line { ended: bool },
}

/// Appends the next line to the bytes, without its line feed. A line that is too long leaves nothing there.
fn read_line(source: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<LineRead> {
    let from = bytes.len();
    let mut too_long = false;
    loop {
        let chunk = source.fill_buf()?;
        if chunk.is_empty() {
            return Ok(match (too_long, bytes.len() == from) {
                (true, _) => LineRead::TooLong,
                (false, true) => LineRead::End,
                (false, false) => LineRead::Line { ended: false },
            });
        }
        let (taken, ended) = match memchr::memchr(b'\n', chunk) {
            Some(at) => (at + 1, true),
            None => (chunk.len(), false),
        };
        if !too_long {
            bytes.extend_from_slice(&chunk[..taken]);
        }
        source.consume(taken);
        if bytes.len() - from > MAX_LINE_BYTES {
            too_long = true;
            bytes.truncate(from);
        }
        if ended {
            return Ok(if too_long { LineRead::TooLong } else { LineRead::Line { ended: true } });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{parse_line, to_line};
    use super::*;

    fn parse(bytes: &[u8], line: usize, _: &Known) -> Result<RunRecord, LineError> {
        parse_line(bytes, line)
    }

    /// Lines of about a kilobyte, numbered from 0.
    fn lines(count: u64) -> Vec<u8> {
        let line = |at: u64| {
            to_line(&RunRecord {
                wall_ns: at,
                command: "x".repeat(1000).into(),
                ..RunRecord::default()
            })
        };
        (0..count).flat_map(line).collect()
    }

    /// What it is asked for, then an error.
    struct Broken<'a>(&'a [u8]);

    impl io::Read for Broken<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(io::Error::other("the disk is gone")),
                bytes => Ok(bytes),
            }
        }
    }

    #[test]
    fn what_was_read_before_an_error_is_taken_in_its_order() {
        for count in [0, 10, 5000] {
            let bytes = lines(count);
            let mut seen = Vec::new();
            let source = io::BufReader::new(Broken(&bytes));
            let read = read_parts(source, parse, |part| {
                seen.extend(part.records.iter().map(|record| record.wall_ns));
                ControlFlow::Continue(())
            });
            assert_eq!(read.unwrap_err().to_string(), "the disk is gone");
            let all: Vec<u64> = (0..count).collect();
            assert!(all.starts_with(&seen) && (count < 5000 || seen.len() > 3000));
        }
    }

    #[test]
    #[should_panic(expected = "a line that is not meant to be")]
    fn a_panic_of_the_parser_is_one_of_the_reader() {
        let panics = |_: &[u8], line: usize, _: &Known| {
            assert!(line < 3000, "a line that is not meant to be");
            Ok(RunRecord::default())
        };
        let _ = read_parts(&lines(20_000)[..], panics, |_| ControlFlow::Continue(()));
    }
}
