//! One board under the harness: read-out and conversion stages.
//!
//! Stages follow the original: all read-outs, then all passes of the conversion (`-N`). With a
//! trigger loop (`-l`) each pass waits, reads out and converts. `block_bytes` fuses read-out and
//! conversion block by block through a buffer that stays in the second-level cache.

use std::ops::Range;
use std::sync::Arc;

use daqmeter_harness::{Fault, LimitSpec, Session, StageSpec, StopFlag, Tally};
use daqmeter_kernels::convert::Converter;
use daqmeter_record::{Ledger, Limit};
use daqmeter_sys::memory::{Buffer, Pages};

use crate::conversion::stage;
use crate::daq::Daq;
use crate::devices::board::{Board, to_usize};
use crate::devices::sis8300::regs::CHANNELS;
use crate::events::Events;
use crate::function::{self, Function};
use crate::oracle::{convert, differs};
use crate::request::{DigitizerRequest, SAMPLES_MULTIPLE};

const WAIT_STAGE: &str = "wait_trigger";

#[derive(Clone, Debug)]
enum Work {
    WaitTrigger,
    Readout,
    Convert(Arc<ConversionWork>),
    WritePattern,
}

/// A conversion of the whole read, or of its blocks while they are read. Shared, because copying a
/// prepared kernel would allocate while the clock runs.
#[derive(Debug)]
struct ConversionWork {
    function: Function,
    whole: Converter,
    /// Conversion of blocks after the first, and their samples; `None` without fusion.
    block: Option<(Converter, usize)>,
}

fn plan(request: &DigitizerRequest, last_level_bytes: u64) -> Result<Vec<Work>, Fault> {
    let (samples, block_samples) = (to_usize(request.samples_per_read()), request.block_samples());
    let functions = request.function.stages();
    let mut work = Vec::new();
    if request.is_triggered() {
        work.push(Work::WaitTrigger);
    }
    for &function in &functions {
        let converter = request.conversion.converter(function, samples, last_level_bytes)?;
        work.push(match converter {
            Some(whole) => {
                let block = block_samples.map(|samples| (whole.without_offset(), samples));
                Work::Convert(Arc::new(ConversionWork { function, whole, block }))
            }
            None if function == Function::WritePattern => Work::WritePattern,
            // A fused conversion reads out itself.
            None if block_samples.is_some() && functions.len() > 1 => continue,
            None => Work::Readout,
        });
    }
    Ok(work)
}

fn check_abilities(board: &mut dyn Board, request: &DigitizerRequest) -> Result<(), Fault> {
    let identity = board.identity();
    if let Some(memory_bytes) = identity.memory_bytes
        && request.raw_bytes() > memory_bytes
    {
        return Err(Fault::new(format!(
            "{}: {} samples need {} bytes of its {memory_bytes}",
            identity.device,
            request.samples_per_read(),
            request.raw_bytes()
        )));
    }
    if request.is_triggered() && board.commands().is_err() {
        return Err(board.cannot("be triggered: leave out -l"));
    }
    if request.writes() && board.commands().is_err() {
        return Err(board.cannot("be written: leave out -A 100"));
    }
    Ok(())
}

pub(crate) struct BoardSession {
    board: Box<dyn Board>,
    daq: Daq,
    events: Arc<Events>,
    request: DigitizerRequest,
    samples: usize,
    work: Vec<Work>,
    raw: Option<Buffer>,
    out: Option<Buffer>,
    bytes: Ledger,
    last_done: Option<usize>,
    last_block: Block,
    /// True compares each fused block when it is converted.
    compares_blocks: bool,
}

/// The last fused block: the board's sample that begins the raw buffer, the block's samples in the
/// buffer, and its results from an element on.
#[derive(Clone, Debug, Default)]
struct Block {
    begin: usize,
    samples: Range<usize>,
    at: usize,
}

impl BoardSession {
    pub(crate) fn new(
        mut board: Box<dyn Board>,
        request: &DigitizerRequest,
        events: Arc<Events>,
        last_level_bytes: u64,
    ) -> Result<Self, Fault> {
        check_abilities(&mut *board, request)?;
        if request.maps() {
            board.map(to_usize(request.raw_bytes()))?;
        }
        Ok(BoardSession {
            board,
            daq: Daq::new(request.polls(), request.trigger_rate_hz),
            events,
            request: request.clone(),
            samples: to_usize(request.samples_per_read()),
            work: plan(request, last_level_bytes)?,
            raw: None,
            out: None,
            bytes: Ledger::new("bytes"),
            last_done: None,
            last_block: Block::default(),
            compares_blocks: false,
        })
    }

    fn read_out(&mut self) -> Result<(), Fault> {
        let bytes = self.samples * 2;
        let delivered = if self.request.maps() {
            self.board.read_mapped(0, bytes)
        } else {
            let raw = self.raw.as_mut().expect("prepared");
            self.board.read(0, raw.slice_mut::<u8>(bytes))
        };
        self.book(bytes, delivered)
    }

    /// Books a transfer. One that failed counts as issued, too.
    fn book(&mut self, asked: usize, delivered: Result<usize, Fault>) -> Result<(), Fault> {
        self.bytes.issued += asked as u64;
        let delivered =
            delivered.inspect_err(|_| self.bytes.lose("not transferred", asked as u64))?;
        self.bytes.delivered += delivered as u64;
        self.bytes.lose("short read", (asked - delivered.min(asked)) as u64);
        if delivered == asked {
            return Ok(());
        }
        Err(Fault::new(format!("short read: {delivered} of {asked} bytes")))
    }

    fn raw_samples(&self) -> &[u16] {
        match self.request.maps() {
            true => self.board.mapped(self.samples),
            false => self.raw.as_ref().expect("prepared").slice(self.samples),
        }
    }

    /// Works on all samples and the buffer for their results.
    fn with_out<T>(&mut self, work: impl FnOnce(&[u16], &mut Buffer) -> T) -> T {
        let mut out = self.out.take().expect("prepared");
        let done = work(self.raw_samples(), &mut out);
        self.out = Some(out);
        done
    }

    /// Reads and converts block by block. The raw buffer holds one block and stays in the cache.
    fn fused(&mut self, converter: &Converter, offset: usize, of: usize) -> Result<(), Fault> {
        let (mut first, mut written) = (0, 0);
        while first < self.samples {
            // The decimation offset shifts the blocks, so that each begins with a kept sample.
            let skip = if first == 0 { offset } else { 0 };
            let end = (first + skip + of).min(self.samples);
            written += self.fused_block(converter, first, first + skip..end, written)?;
            if self.compares_blocks {
                self.check_last_block(converter)?;
            }
            first = end;
        }
        Ok(())
    }

    /// Reads from `first` on and converts the samples of `block`; returns the number written from
    /// element `at` on.
    fn fused_block(
        &mut self,
        converter: &Converter,
        first: usize,
        block: Range<usize>,
        at: usize,
    ) -> Result<usize, Fault> {
        // The driver reads whole units, so the read covers the units around a shifted block.
        let unit = to_usize(SAMPLES_MULTIPLE);
        let begin = first - first % unit;
        let len = block.end.next_multiple_of(unit) - begin;
        let raw = self.raw.as_mut().expect("prepared");
        let delivered = self.board.read(begin as u64 * 2, raw.slice_mut::<u8>(len * 2));
        self.book(len * 2, delivered)?;
        let read = self.raw.as_ref().expect("prepared").slice::<u16>(len);
        let samples = block.start - begin..block.end - begin;
        let out = self.out.as_mut().expect("prepared");
        let kept = convert(converter, &read[samples.clone()], out, at);
        self.last_block = Block { begin, samples, at };
        Ok(kept)
    }

    fn write_pattern(&mut self) -> Result<(), Fault> {
        let bytes = self.samples * 2;
        let raw = self.raw.as_ref().expect("prepared").slice::<u8>(bytes);
        let taken = self.board.commands()?.write(0, raw);
        self.book(bytes, taken)
    }

    /// Compares samples that were read from sample `begin` on, if the board's are known.
    fn check_raw(&self, begin: usize, read: &[u16]) -> Result<(), Fault> {
        for (index, &found) in (begin..).zip(read) {
            let Some(expected) = self.board.expected_sample(index as u64) else { return Ok(()) };
            if expected != found {
                return Err(Fault::new(format!(
                    "sample {index} is {found:#06x}, the board holds {expected:#06x}"
                )));
            }
        }
        Ok(())
    }

    /// Compares the last fused block; the raw buffer no longer holds the earlier ones.
    fn check_last_block(&mut self, converter: &Converter) -> Result<(), Fault> {
        let Block { begin, samples, at } = self.last_block.clone();
        let read = self.raw.as_ref().expect("prepared").slice::<u16>(samples.end);
        self.check_raw(begin, read)?;
        differs(converter, &read[samples], self.out.as_mut().expect("prepared"), at)
    }

    fn unverified(&self) -> Option<String> {
        let device = &self.board.identity().device;
        let is_known = self.request.writes() || self.board.expected_sample(0).is_some();
        let is_one = |sample: &u16| *sample == u16::MAX;
        let is_whole = self.raw.is_some() && self.request.block_samples().is_none();
        if is_whole && !is_known && self.raw_samples().iter().all(is_one) {
            return Some(format!("all samples of {device} are 0xffff: is the card off the bus?"));
        }
        (!is_known).then(|| {
            format!("the samples of {device} were not compared: only the device knows them")
        })
    }

    /// States the length of a channel, if it is not the requested one.
    fn rounded(&self) -> Option<String> {
        let (asked, read) = (self.request.samples, self.samples as u64);
        (self.request.is_triggered() && asked != read).then(|| {
            let (channels, of_each) = (CHANNELS, read / u64::from(CHANNELS));
            format!(
                "-S {asked} was rounded up to {read}: {channels} channels of {of_each} samples, one after the other"
            )
        })
    }

    fn check_pattern(&mut self) -> Result<(), Fault> {
        let mut back = vec![0; self.samples * 2];
        self.board.read(0, &mut back)?;
        let mut wrong = back.iter().enumerate();
        match wrong.find(|&(at, &byte)| byte != function::pattern_byte(at)) {
            None => Ok(()),
            Some((at, byte)) => {
                let expected = function::pattern_byte(at);
                Err(Fault::new(format!("byte {at} reads back as {byte}, {expected} was written")))
            }
        }
    }

    fn check(&mut self, stage: usize) -> Result<(), Fault> {
        match self.work[stage].clone() {
            Work::WaitTrigger => Ok(()),
            Work::Readout => self.check_raw(0, self.raw_samples()),
            Work::Convert(conversion) => match &conversion.block {
                None => self.with_out(|raw, out| differs(&conversion.whole, raw, out, 0)),
                Some((converter, _)) => self.check_last_block(converter),
            },
            Work::WritePattern => self.check_pattern(),
        }
    }

    fn stage(&self, work: &Work) -> StageSpec {
        let raw_bytes = self.request.raw_bytes();
        match work {
            Work::WaitTrigger => StageSpec::new(WAIT_STAGE, 0, 0),
            Work::Readout => StageSpec {
                limit: self.readout_limit(),
                ..StageSpec::new(Function::Readout.classic_name(), raw_bytes, 2 * raw_bytes)
            },
            Work::Convert(conversion) => {
                let fused = if conversion.block.is_some() { "readout+" } else { "" };
                let name = format!("{fused}{}", conversion.function.classic_name());
                stage(name, Some(&conversion.whole), self.samples)
            }
            Work::WritePattern => StageSpec {
                once: true,
                ..StageSpec::new(Function::WritePattern.classic_name(), raw_bytes, 2 * raw_bytes)
            },
        }
    }

    fn readout_limit(&self) -> Option<LimitSpec> {
        match self.board.known_limit() {
            Some((rate_bytes_per_s, how)) => {
                let name = format!("link of {}", self.board.identity().model);
                Some(LimitSpec::Given(Limit::given(name, rate_bytes_per_s, how)))
            }
            // An unpaced emulated board is memory; the host cannot report a real board's link.
            None if self.board.identity().emulated => {
                Some(LimitSpec::memory(self.request.raw_bytes(), 1, 1))
            }
            None => None,
        }
    }

    fn raw_buffer_samples(&self) -> usize {
        let unfused = |work: &Work| !matches!(work, Work::Convert(_) | Work::WaitTrigger);
        match self.request.block_samples() {
            Some(block) if !self.work.iter().any(unfused) => {
                // A shifted block needs its whole first and last unit.
                let offset = self.request.conversion.decimation().offset;
                let shifted = block + offset + 2 * to_usize(SAMPLES_MULTIPLE);
                shifted.min(self.samples)
            }
            _ => self.samples,
        }
    }

    fn out_buffer_bytes(&self) -> usize {
        let bytes = |work: &Work| match work {
            Work::Convert(conversion) => {
                let converter = &conversion.whole;
                converter.decimation().kept(self.samples) * converter.conversion().out_bytes()
            }
            _ => 0,
        };
        self.work.iter().map(bytes).max().unwrap_or(0)
    }
}

impl Session for BoardSession {
    fn device(&self) -> String {
        self.board.identity().device.clone()
    }

    fn is_emulated(&self) -> Option<bool> {
        Some(self.board.identity().emulated)
    }

    fn stages(&self) -> Vec<StageSpec> {
        self.work.iter().map(|work| self.stage(work)).collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let samples = self.raw_buffer_samples();
        let mut raw = Buffer::new(samples * 2, Pages::Transparent)?;
        if self.request.writes() {
            for (at, byte) in raw.slice_mut::<u8>(samples * 2).iter_mut().enumerate() {
                *byte = function::pattern_byte(at);
            }
        }
        self.raw = Some(raw);
        self.out = Some(Buffer::new(self.out_buffer_bytes(), Pages::Transparent)?);
        if self.request.is_triggered() {
            if let Some(rate_hz) = self.request.trigger_rate_hz {
                self.board.set_trigger_rate(rate_hz);
            }
            self.board.commands()?.configure(self.request.samples_per_read())?;
        }
        Ok(())
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.board.set_stop_flag(stop);
        self.daq.set_stop_flag(stop);
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            match &self.work[stage] {
                Work::WaitTrigger => self.daq.acquire(&mut *self.board)?,
                Work::Readout => {
                    self.read_out()?;
                    self.daq.counts.read_out += 1;
                }
                Work::Convert(conversion) => match &*Arc::clone(conversion) {
                    ConversionWork { whole, block: None, .. } => {
                        self.with_out(|raw, out| convert(whole, raw, out, 0));
                    }
                    ConversionWork { whole, block: Some((converter, samples)), .. } => {
                        self.fused(converter, whole.decimation().offset, *samples)?;
                        self.daq.counts.read_out += 1;
                    }
                },
                Work::WritePattern => self.write_pattern()?,
            }
            std::hint::black_box(&mut self.out);
        }
        self.last_done = Some(stage);
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        // Only the last stage's output exists after the run; before it, each stage works once and
        // is compared.
        if let Some(stage) = self.last_done.take() {
            return self.check(stage);
        }
        self.compares_blocks = true;
        for stage in 0..self.work.len() {
            self.step(stage, 1)?;
            self.check(stage)?;
        }
        (self.compares_blocks, self.last_done) = (false, None);
        Ok(())
    }

    fn begin(&mut self) {
        self.bytes = Ledger::new("bytes");
        self.daq.begin_account(&mut *self.board);
    }

    fn tally(&mut self) -> Tally {
        let mut tally = Tally { ledgers: vec![self.bytes.clone()], ..Tally::default() };
        if self.request.is_triggered() {
            tally.ledgers.push(Ledger { of: self.device(), ..self.daq.ledger() });
            if let Some((ledger, note)) = self.events.add(self.daq.taken(&*self.board)) {
                tally.ledgers.push(ledger);
                tally.warnings.push(note);
            }
            tally.warnings.extend(self.daq.warnings(&*self.board));
            tally.counters = self.daq.counters();
        }
        tally.warnings.extend(self.unverified());
        tally.warnings.extend(self.rounded());
        let Some(raw) = &self.raw else { return tally };
        tally.numa_node = raw.numa_node();
        if raw.pages() == Pages::Base {
            let warning = "buffers are on base pages: TLB misses lower the rates; allow transparent huge pages";
            tally.warnings.push(warning.to_owned());
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::Request as _;
    use daqmeter_record::Workload;

    use super::*;
    use crate::devices;
    use crate::devices::sis8300::emulated::{EmulatedCrate, Profile};

    fn worked_once(function: u64, options: &[(&str, u64)]) -> BoardSession {
        let asked = Workload::new("digitizer").with("devices", "emu:l0");
        let asked = asked.with("function", function).with("samples", 3200_u64);
        work_once(options.iter().fold(asked, |asked, &(name, value)| asked.with(name, value)))
    }

    fn work_once(asked: Workload) -> BoardSession {
        let device = asked.text("devices").unwrap();
        let request = DigitizerRequest::of(&asked).unwrap();
        let crate_ = EmulatedCrate::new(Profile::default(), false);
        let board = devices::open(&[device.to_owned()], &crate_).unwrap().remove(0);
        let mut session = BoardSession::new(board, &request, Events::of(1).into(), 0).unwrap();
        session.prepare().unwrap();
        (0..session.work.len()).for_each(|stage| session.step(stage, 1).unwrap());
        session
    }

    #[test]
    fn fused_blocks_give_the_bytes_of_the_whole() {
        let converted = |block_bytes: u64| -> Vec<u8> {
            let options = [("block_bytes", block_bytes), ("dec_offset", 7), ("dec_factor", 3)];
            worked_once(2, &options).out.unwrap().slice::<u8>(4 * ((3200 - 7) / 3)).to_vec()
        };
        let whole = converted(0);
        for block_bytes in [64, 1000, 4096] {
            assert_eq!(converted(block_bytes), whole, "{block_bytes}");
        }
    }

    #[test]
    fn a_read_that_fails_is_issued_and_lost() {
        for (fault, lost, why) in
            [("gone-after=1", 6400, "not transferred"), ("short-read-at=2", 3200, "short read")]
        {
            let asked = Workload::new("digitizer").with("devices", format!("emu:l0:{fault}"));
            let mut session = work_once(asked.with("samples", 3200_u64));
            session.step(0, 1).unwrap_err();
            let ledger = &session.tally().ledgers[0];
            assert!(ledger.closes() && ledger.issued == 12_800, "{ledger}");
            assert_eq!(ledger.losses[why], lost, "{ledger}");
        }
    }

    #[test]
    fn a_pattern_is_written_in_dma_writes_that_the_board_can_do_and_reads_back() {
        worked_once(100, &[("samples", 3000)]).verify().unwrap();
    }

    /// Regression: channel 10 of 300,000 samples was cut by 144, and no text stated the channels'
    /// length of 30,016.
    #[test]
    fn a_triggered_read_holds_all_channels_whole_and_says_their_length() {
        let asked = Workload::new("digitizer").with("devices", "emu:l0").with("completion", "poll");
        let mut session = work_once(asked.with("samples", 3000_u64));
        session.verify().unwrap();
        assert_eq!(session.stages()[1].bytes_per_op, 2 * 3200);
        let said = session.tally().warnings.join(" ");
        assert!(said.contains("-S 3000 was rounded up to 3200"), "{said}");
        assert!(said.contains("10 channels of 320 samples"), "{said}");
    }

    #[test]
    fn a_sample_that_the_board_does_not_hold_fails_the_verification() {
        for (function, says) in
            [(0, "sample 5 is"), (2, "converted sample 5 has bits"), (100, "byte 10 reads back as")]
        {
            let mut session = worked_once(function, &[]);
            session.raw.as_mut().unwrap().slice_mut::<u16>(3200)[5] ^= 1;
            if function == 100 {
                session.write_pattern().unwrap();
            }
            let error = session.verify().unwrap_err();
            assert!(error.0.contains(says), "{function}: {}", error.0);
        }
    }
}
