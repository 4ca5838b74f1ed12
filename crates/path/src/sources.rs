//! Sources: memory, files, boards and the blocks of a card, each by the engine that has them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_digitizer::daq::{Daq, Wait};
use daqmeter_digitizer::devices::board::{Board, Emulation};
use daqmeter_digitizer::devices::open;
use daqmeter_etherbone::{EtherboneRequest, Times};
use daqmeter_harness::{Fault, StopFlag};
use daqmeter_hostio::{BlockReader, BlockRequest};
use daqmeter_readout::decode::blocks_of_card;
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::{Buffer, Pages};

use crate::definition::Path;
use crate::element::{Filled, Source, most_keys, of_card};
use crate::kinds::SourceKind;
use crate::shared::Share;

pub(crate) type Named = (String, Box<dyn Source>);

/// The result that was made last, with its key, kept for the next run that needs the same.
pub(crate) type Last<T> = Mutex<Option<(String, T)>>;

/// Makes a result, unless the last one had the same key.
pub(crate) fn made<T: Clone>(
    last: &Last<T>,
    key: String,
    make: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, made)) = last.as_ref().filter(|(known, _)| *known == key) {
        return Ok(made.clone());
    }
    // The next one may need its memory.
    *last = None;
    Ok(last.insert((key, make()?)).1.clone())
}

static BLOCKS: Last<Arc<Buffer>> = Mutex::new(None);
/// Most bytes of blocks that stay in memory for the next run.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Bytes before the first block. The blocks that they are copied into begin a page: copies of 1 KiB
/// between places that are whole pages apart took 1.4 to 1.7 times as long on a Zen 4.
const APART_BYTES: usize = 512;

/// Frees the blocks of a path that ended, if they are many: the next run may need their memory.
pub(crate) fn ended(path: &Path) {
    if path.source.kind.span_bytes() > MAX_KEPT_BYTES {
        *BLOCKS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

pub(crate) fn sources(path: &Path) -> Result<Vec<Named>, Fault> {
    let (block_bytes, name) = (path.block_bytes, path.source.name.clone());
    Ok(match &path.source.kind {
        kind @ (SourceKind::Memory { .. } | SourceKind::Felix { .. }) => {
            let bytes = kind.span_bytes();
            let blocks = made(&BLOCKS, format!("{kind:?}"), || {
                let mut blocks = Buffer::new(APART_BYTES + bytes, Pages::Transparent)?;
                let into = &mut blocks.slice_mut(APART_BYTES + bytes)[APART_BYTES..];
                match kind {
                    SourceKind::Felix { scenario, .. } => {
                        blocks_of_card(scenario, into)?;
                    }
                    _ => pattern(into),
                }
                Ok(Arc::new(blocks))
            })?;
            let all = bytes / block_bytes;
            let bank = Bank { blocks, all, block_bytes, next: 0, run: 1, others: 0, left: 1 };
            vec![(name, Box::new(bank))]
        }
        SourceKind::Card { .. } => return Err(of_card()),
        SourceKind::File { path, cached } => {
            let request =
                BlockRequest { path: path.clone(), block_bytes, cached: *cached, span_bytes: None };
            vec![(name, Box::new(Replay::new(request)?))]
        }
        SourceKind::Etherbone { address, count } => {
            let request = Times::request(address, *count);
            vec![(name, Box::new(Registers(request, None)))]
        }
        SourceKind::Digitizer { devices, profile, unpaced, trigger, completion, poll_interval } => {
            let emulation = Emulation { profile: profile.clone(), paced: !unpaced };
            let boards = open(devices, &emulation)?;
            let interval = Duration::from_nanos(poll_interval.0);
            let wait = completion.wait(interval).unwrap_or(Wait::Poll { interval });
            let sources = boards.into_iter().map(|board| {
                let source = Boards::new(board, block_bytes, trigger.map(|hz| hz.0), wait)?;
                let device = source.board.identity().device.clone();
                Ok((device, Box::new(source) as Box<dyn Source>))
            });
            sources.collect::<Result<_, Fault>>()?
        }
    })
}

/// Sources of one worker, and its share of their blocks.
type Dealt = Vec<(Share, Box<dyn Source>)>;

/// Shares the blocks of a source among workers, and boards one each until there is none left.
pub(crate) fn deal(all: Vec<Named>, workers: usize, run: usize) -> Result<Vec<Dealt>, Fault> {
    let mut dealt: Vec<Dealt> = (0..workers).map(|_| Vec::new()).collect();
    let whole = |source| Share { source, at: 0, of: 1, run: 1 };
    if let ([(_, source)], 2..) = (&all[..], workers)
        && let Some(parts) = source.divided(workers, run)?
    {
        let (of, run) = (workers as u64, run as u64);
        for ((at, source), own) in (0..).zip(parts).zip(&mut dealt) {
            own.push((Share { source: 0, at, of, run }, source));
        }
        return Ok(dealt);
    }
    if all.len() < workers {
        return Err(Fault::new(format!(
            "{workers} threads cannot share {}: name a layout with fewer for it",
            all[0].0
        )));
    }
    for (at, (_, source)) in all.into_iter().enumerate() {
        dealt[at % workers].push((whole(at), source));
    }
    Ok(dealt)
}

/// Blocks in memory, copied one after the other and again from the first. In cache lines that no
/// other thread writes to.
#[repr(align(128))]
struct Bank {
    blocks: Arc<Buffer>,
    /// Number of the blocks.
    all: usize,
    block_bytes: usize,
    next: usize,
    /// Blocks of a run, and those of others after it.
    run: usize,
    others: usize,
    /// Blocks that are left of this run.
    left: usize,
}

impl Bank {
    fn bytes(&self) -> &[u8] {
        &self.blocks.slice(APART_BYTES + self.all * self.block_bytes)[APART_BYTES..]
    }
}

/// Makes a pattern in which no two words of a run are alike: the words of a counter, mixed.
fn pattern(out: &mut [u8]) {
    let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let (words, rest) = out.as_chunks_mut::<8>();
    let last = mixed(words.len() as u64);
    for (n, word) in (0..).zip(words) {
        *word = mixed(n);
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

impl Source for Bank {
    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let key = self.next;
        let at = key * self.block_bytes;
        into.copy_from_slice(&self.bytes()[at..at + self.block_bytes]);
        (self.next, self.left) = (key + 1, self.left - 1);
        if self.left == 0 {
            (self.next, self.left) = (self.next + self.others, self.run);
        }
        if self.next >= self.all {
            self.next %= self.all;
        }
        Ok(Filled { key: (key < most_keys(self.block_bytes)).then_some(key), ..Filled::default() })
    }

    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let blocks = self.bytes().chunks_exact(self.block_bytes);
        let blocks = blocks.take(most_keys(self.block_bytes));
        Ok(blocks.map(<[u8]>::to_vec).collect())
    }

    fn divided(&self, workers: usize, run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |at| -> Box<dyn Source> {
            let (blocks, others) = (self.blocks.clone(), (workers - 1) * run);
            Box::new(Bank { blocks, next: at * run % self.all, run, others, left: run, ..*self })
        };
        Ok(Some((0..workers).map(part).collect()))
    }
}

#[repr(align(128))]
struct Replay {
    request: BlockRequest,
    reader: BlockReader,
    /// Blocks of a run, those of others after it, and those that are left of it.
    run: u64,
    others: u64,
    left: u64,
}

impl Replay {
    fn new(request: BlockRequest) -> Result<Replay, Fault> {
        let reader = BlockReader::open(&request)?;
        Ok(Replay { request, reader, run: 1, others: 0, left: 1 })
    }
}

impl Source for Replay {
    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let key = self.reader.at / self.request.block_bytes as u64;
        self.reader.read(into)?;
        self.left -= 1;
        if self.left == 0 {
            self.left = self.run;
            self.reader.skip(self.others, into.len());
        }
        let key = usize::try_from(key).ok().filter(|key| *key < most_keys(into.len()));
        Ok(Filled { key, ..Filled::default() })
    }

    /// Read through the page cache, by another way than the run's where that is direct.
    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let request = BlockRequest { cached: true, ..self.request.clone() };
        let mut reader = BlockReader::open(&request)?;
        let bytes = self.request.block_bytes as u64;
        let span = reader.span_bytes.min(self.reader.span_bytes);
        let most = most_keys(self.request.block_bytes) as u64;
        let blocks = (span / bytes).min(most);
        let block = |_| {
            let mut block = vec![0; self.request.block_bytes];
            reader.read(&mut block)?;
            Ok(block)
        };
        (0..blocks).map(block).collect()
    }

    fn divided(&self, workers: usize, run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |at| -> Result<Box<dyn Source>, Fault> {
            let mut part = Replay::new(self.request.clone())?;
            (part.run, part.left) = (run as u64, run as u64);
            part.others = (workers as u64 - 1) * part.run;
            part.reader.skip(at * part.run, self.request.block_bytes);
            Ok(Box::new(part))
        };
        (0..workers as u64).map(part).collect::<Result<_, Fault>>().map(Some)
    }
}

/// A timing receiver's clock, whose times are the events of its blocks. They are unknown
/// beforehand; their order is checked as they come.
struct Registers(EtherboneRequest, Option<Times>);

impl Source for Registers {
    fn prepare(&mut self) -> Result<(), Fault> {
        self.1 = Some(Times::open(&self.0)?);
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let times = self.1.as_mut();
        let times = times.ok_or_else(|| Fault::new("the conversation is not open"))?;
        Ok(Filled { events: times.read(into)?, ..Filled::default() })
    }

    /// Each has a conversation of its own.
    fn divided(&self, workers: usize, _run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |_| -> Box<dyn Source> { Box::new(Registers(self.0.clone(), None)) };
        Ok(Some((0..workers).map(part).collect()))
    }
}

struct Boards {
    board: Box<dyn Board>,
    daq: Option<Daq>,
    trigger_hz: Option<f64>,
    samples: usize,
}

/// Boards read whole units of that many bytes.
const UNIT_BYTES: usize = 32;

impl Boards {
    fn new(
        mut board: Box<dyn Board>,
        block_bytes: usize,
        trigger_hz: Option<f64>,
        wait: Wait,
    ) -> Result<Boards, Fault> {
        let identity = board.identity();
        if !block_bytes.is_multiple_of(UNIT_BYTES)
            || identity.memory_bytes.is_some_and(|bytes| (block_bytes as u64) > bytes)
        {
            let device = &identity.device;
            return Err(Fault::new(format!(
                "{device} cannot deliver blocks of {block_bytes} bytes: whole units of {UNIT_BYTES} within its memory are wanted"
            )));
        }
        if trigger_hz.is_some() && board.commands().is_err() {
            return Err(board.cannot("be triggered: leave out `trigger`"));
        }
        Ok(Boards {
            board,
            daq: trigger_hz.map(|hz| Daq::new(wait, Some(hz))),
            trigger_hz,
            samples: block_bytes / 2,
        })
    }
}

impl Source for Boards {
    fn prepare(&mut self) -> Result<(), Fault> {
        if let Some(hz) = self.trigger_hz {
            self.board.set_trigger_rate(hz);
            self.board.commands()?.configure(self.samples as u64)?;
        }
        Ok(())
    }

    fn heed(&mut self, stop: &StopFlag) {
        self.board.heed(stop);
        if let Some(daq) = &mut self.daq {
            daq.heed(stop);
        }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let mut filled = Filled::default();
        if let Some(daq) = &mut self.daq {
            if daq.counts.acquisitions == 0 {
                // Other threads may prepare for longer than a period.
                daq.begin_account(&mut *self.board);
            }
            daq.acquire(&mut *self.board)?;
            filled.ready_ns = Some(monotonic_ns());
            filled.events = 1;
        }
        let delivered = self.board.read(0, into)?;
        if delivered != into.len() {
            let device = &self.board.identity().device;
            let asked = into.len();
            return Err(Fault::new(format!("{device}: short read: {delivered} of {asked} bytes")));
        }
        if let Some(daq) = &mut self.daq {
            daq.counts.read_out += 1;
        }
        // Without triggers a board holds the same all the time.
        let is_known = self.daq.is_none() && self.board.expected_sample(0).is_some();
        filled.key = is_known.then_some(0);
        Ok(filled)
    }

    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        if self.daq.is_some() {
            return Ok(Vec::new());
        }
        let samples = 0..self.samples as u64;
        let samples: Option<Vec<u16>> =
            samples.map(|index| self.board.expected_sample(index)).collect();
        let bytes = samples.map(|samples| {
            let bytes = samples.iter().flat_map(|sample| sample.to_le_bytes());
            bytes.collect()
        });
        Ok(bytes.into_iter().collect())
    }

    fn ledger(&mut self) -> Option<Ledger> {
        let of = self.board.identity().device.clone();
        Some(Ledger { of, ..self.daq.as_ref()?.ledger() })
    }

    fn counters(&mut self) -> Vec<Counter> {
        self.daq.as_ref().map_or_else(Vec::new, Daq::counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;

    /// The last channel of a triggered board was cut, and nothing said so.
    #[test]
    fn a_triggered_block_has_whole_channels() {
        let prepared = |with: &[&str]| {
            let with: Vec<Setting> = with.iter().map(|one| one.parse().unwrap()).collect();
            let path = Path::load_with("digitizer-crate", &with).unwrap();
            sources(&path).unwrap().remove(0).1.prepare().map_err(|fault| fault.0)
        };
        assert_eq!(prepared(&["source.trigger=14Hz"]), Ok(()));
        for block in ["block=1MiB", "block=96256B"] {
            let said = prepared(&["source.trigger=14Hz", block]).unwrap_err();
            assert!(said.contains("stride") && said.contains("multiple of 640 bytes"), "{said}");
        }
        assert_eq!(prepared(&["block=1MiB"]), Ok(()));
    }

    #[test]
    fn a_pattern_is_the_words_of_a_counter_mixed() {
        let words = (0_u64..4).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        for bytes in [0, 8, 24, 27] {
            let mut made = vec![0; bytes];
            pattern(&mut made);
            assert_eq!(made, all[..bytes]);
        }
    }
}
