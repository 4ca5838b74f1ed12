//! Read-out and conversion of one or many boards, one thread each, as an engine of the harness.
//!
//! Stages follow the original: all read-outs, then all passes of the conversion (`-N`); with a trigger loop (`-l`) each pass
//! waits, reads out and converts. With `block_bytes`, read-out and conversion are fused block by block through a buffer that
//! stays in the second-level cache.

use std::sync::Arc;

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, StopFlag, Tally,
    parameters,
};
use daqmeter_kernels::Store;
use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out, oracle};
use daqmeter_record::{Counter, Ledger, Limit, Workload};
use daqmeter_sys::memory::{Buffer, Pages};

use crate::daq::{Completion, Daq};
use crate::devices::emulated::EmulatedCrate;
use crate::devices::sis8300::regs;
use crate::devices::{self, Board, EMULATED_PREFIX};
use crate::function::{self, Function};
use crate::request::{Request, SAMPLES_MULTIPLE, missing_here};

/// Name of the stage that waits for the trigger.
pub const WAIT_STAGE: &str = "wait_trigger";

/// The engine. Boards are opened by name for each workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct DigitizerEngine {
    /// Size of the last-level cache, for the choice of stores; zero when unknown.
    pub last_level_bytes: u64,
}

impl Engine for DigitizerEngine {
    fn name(&self) -> &'static str {
        "digitizer"
    }

    fn description(&self) -> &'static str {
        "reads digitizer boards in parallel and converts their samples"
    }

    fn probe(&self) -> Availability {
        // Emulated boards are always there; a real one that is not is refused by name when it is opened.
        Availability::Ready
    }

    fn probe_for(&self, workload: &Workload) -> Availability {
        missing_here(workload)
    }

    fn target(&self, workload: &Workload) -> String {
        workload.text("devices").unwrap_or("none").to_owned()
    }

    fn is_emulated(&self, workload: &Workload) -> bool {
        workload.text("devices").is_ok_and(|devices| {
            devices
                .split(' ')
                .any(|name| name.starts_with(EMULATED_PREFIX))
        })
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "devices": "boards, parted by blanks: emu:l0, emu:ku0, emu:l0..4, /dev/...",
            "samples": "samples of one read-out",
            "function": "what follows the read-out: 0 to 8, 99 all, 100 a pattern",
            "dec_factor": "keeps each n-th sample; 1",
            "dec_offset": "first sample that is kept; 0",
            "scale_factor": "factor of scaling; 1",
            "scale_offset": "offset of scaling; 0",
            "unsigned_q": "fixed-point format of magnitudes, bits before and after the point, as 16.16",
            "signed_q": "fixed-point format of phases",
            "fast": "true scales in single precision: product and sum are each rounded to f32",
            "isa": "instruction set; best",
            "store": "by-footprint, cached or non-temporal",
            "block_bytes": "converts in blocks while reading; 0 reads all first",
            "access": "0 reads, 1 maps the board's buffer",
            "completion": "none, poll or interrupt: how the trigger is waited for",
            "poll_interval_us": "time between two looks",
            "trigger_rate_hz": "rate of the trigger; 0 for none",
            "unpaced": "true lets emulated boards move as fast as memory",
            "profile": "model of the emulated boards; ess-2017",
            "reads": "read-outs of the run, for the reader of the record",
            "passes": "passes of the run, for the reader of the record",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        Some(Request::parse(workload).ok()?.memory_bytes())
    }

    fn example(&self) -> Workload {
        Workload::new("digitizer")
            .with("devices", "emu:l0 emu:ku0")
            .with("samples", 3200_u64)
            .with("function", 99_u64)
            .with("unpaced", true)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let request = Request::parse(workload)?;
        let crate_ = EmulatedCrate::new(request.profile.clone(), request.paced);
        let open = |device: &String| -> Result<Box<dyn Session>, Fault> {
            Ok(Box::new(BoardSession::new(
                device,
                &request,
                &crate_,
                self.last_level_bytes,
            )?))
        };
        request.devices.iter().map(open).collect()
    }
}

/// One step of a lane.
#[derive(Clone, Debug)]
enum Work {
    WaitTrigger,
    Readout,
    Convert(Function, Arc<Converter>),
    /// Read-out and conversion block by block.
    Fused(Function, Fusion),
    WritePattern,
}

/// A conversion of the whole read, and the same for blocks after the first. Shared, because a step must not copy what a
/// kernel prepared: that would allocate while the clock runs.
#[derive(Clone, Debug)]
struct Fusion {
    whole: Arc<Converter>,
    block: Arc<Converter>,
}

struct BoardSession {
    board: Box<dyn Board>,
    daq: Daq,
    request: Request,
    work: Vec<Work>,
    raw: Option<Buffer>,
    out: Option<Buffer>,
    bytes: Ledger,
    last_done: Option<usize>,
}

impl BoardSession {
    fn new(
        device: &str,
        request: &Request,
        crate_: &Arc<EmulatedCrate>,
        last_level_bytes: u64,
    ) -> Result<Self, Fault> {
        let mut board = devices::open(device, crate_)?;
        let memory_bytes = board.identity().memory_bytes;
        if request.raw_bytes() > memory_bytes {
            return Err(Fault::new(format!(
                "{device}: {} samples need {} bytes of its {memory_bytes}",
                request.samples,
                request.raw_bytes()
            )));
        }
        if request.mmap {
            board.map_dma(to_usize(request.raw_bytes()))?;
        }
        let work = plan(request, last_level_bytes)?;
        let daq = Daq::new(
            request.completion.unwrap_or(Completion::Interrupt),
            request.trigger_rate_hz,
        );
        let (request, bytes) = (request.clone(), Ledger::new("bytes"));
        Ok(BoardSession {
            board,
            daq,
            request,
            work,
            raw: None,
            out: None,
            bytes,
            last_done: None,
        })
    }

    fn samples(&self) -> usize {
        to_usize(self.request.samples)
    }

    /// One read of the whole acquisition.
    fn read_out(&mut self) -> Result<(), Fault> {
        let bytes = to_usize(self.request.raw_bytes());
        let delivered = if self.request.mmap {
            self.board.read_mapped(0, bytes)?
        } else {
            let raw = self.raw.as_mut().expect("prepared");
            self.board.read(0, raw.slice_mut::<u8>(bytes))?
        };
        self.book(bytes, delivered)
    }

    fn book(&mut self, asked: usize, delivered: usize) -> Result<(), Fault> {
        self.bytes.issued += asked as u64;
        self.bytes.delivered += delivered as u64;
        self.bytes
            .lose("short read", (asked - delivered.min(asked)) as u64);
        if delivered == asked {
            return Ok(());
        }
        Err(Fault::new(format!(
            "short read: {delivered} of {asked} bytes"
        )))
    }

    fn convert(&mut self, converter: &Converter) {
        let samples = self.samples();
        let kept = converter.decimation().kept(samples);
        let raw = match self.request.mmap {
            true => self.board.mapped(samples),
            false => self.raw.as_ref().expect("prepared").slice::<u16>(samples),
        };
        convert_into(
            converter,
            raw,
            self.out.as_mut().expect("prepared"),
            0,
            kept,
        );
    }

    /// Reads and converts block by block. The raw buffer holds one block and stays in the cache.
    fn fused(&mut self, fusion: &Fusion) -> Result<(), Fault> {
        let unit = to_usize(SAMPLES_MULTIPLE);
        let (samples, block) = (
            self.samples(),
            self.request.block_samples.expect("fused only with a block"),
        );
        let decimation = fusion.whole.decimation();
        let mut first = 0;
        let mut written = 0;
        while first < samples {
            // The decimation offset shifts the blocks, so that each begins with a sample that is kept.
            let skip = if first == 0 { decimation.offset } else { 0 };
            let end = (first + skip + block).min(samples);
            // The driver reads whole units: a shifted block is read with what surrounds it.
            let begin = first - first % unit;
            let len = end.next_multiple_of(unit) - begin;
            let raw = self.raw.as_mut().expect("prepared");
            let delivered = self
                .board
                .read(begin as u64 * 2, raw.slice_mut::<u8>(len * 2))?;
            self.book(len * 2, delivered)?;
            let read = self.raw.as_ref().expect("prepared").slice::<u16>(len);
            let block_samples = &read[first - begin + skip..end - begin];
            let kept = Decimation {
                offset: 0,
                ..decimation
            }
            .kept(block_samples.len());
            convert_into(
                &fusion.block,
                block_samples,
                self.out.as_mut().expect("prepared"),
                written,
                kept,
            );
            written += kept;
            first = end;
        }
        Ok(())
    }

    fn write_pattern(&mut self) -> Result<(), Fault> {
        let bytes = to_usize(self.request.raw_bytes());
        let raw = self.raw.as_ref().expect("prepared").slice::<u8>(bytes);
        self.board.write_register(regs::MEMORY_WRITE_ENABLE, 1)?;
        let written = devices::write_memory(&mut *self.board, 0, raw);
        // Whatever became of the writes: the memory is protected again.
        let protected = self.board.write_register(regs::MEMORY_WRITE_ENABLE, 0);
        let taken = written?;
        protected?;
        self.book(bytes, taken)
    }

    /// Compares the raw samples with what the board must hold, where anybody knows that.
    fn check_raw(&self) -> Result<(), Fault> {
        let samples = self.samples();
        let raw = match self.request.mmap {
            true => self.board.mapped(samples),
            false => self.raw.as_ref().expect("prepared").slice::<u16>(samples),
        };
        for (index, &found) in raw.iter().enumerate() {
            match self.board.expected_sample(index as u64) {
                None => return Ok(()),
                Some(expected) if expected == found => {}
                Some(expected) => {
                    return Err(Fault::new(format!(
                        "sample {index} is {found:#06x}, the board holds {expected:#06x}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Compares converted samples with the scalar oracle on the raw samples behind them.
    fn check_converted(&mut self, converter: &Converter, fused: bool) -> Result<(), Fault> {
        let samples = self.samples();
        let whole: Vec<u16>;
        let raw: &[u16] = if fused {
            // The raw buffer holds the last block only: fetch the whole once more.
            let mut bytes = vec![0; samples * 2];
            self.board.read(0, &mut bytes)?;
            whole = bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|pair| u16::from_le_bytes(*pair))
                .collect();
            &whole
        } else if self.request.mmap {
            self.board.mapped(samples)
        } else {
            self.raw.as_ref().expect("prepared").slice::<u16>(samples)
        };
        let kept = converter.decimation().kept(samples);
        let out = self.out.as_mut().expect("prepared");
        let converted = match converter.conversion() {
            Conversion::QmnF64(_) => Out::F64(out.slice_mut(kept)),
            _ => Out::F32(out.slice_mut(kept)),
        };
        differs(converter, raw, &converted)
    }

    fn check_pattern(&mut self) -> Result<(), Fault> {
        let mut back = vec![0; to_usize(self.request.raw_bytes())];
        self.board.read(0, &mut back)?;
        match back
            .iter()
            .enumerate()
            .find(|&(at, &byte)| byte != function::pattern_byte(at))
        {
            None => Ok(()),
            Some((at, byte)) => {
                let expected = function::pattern_byte(at);
                Err(Fault::new(format!(
                    "byte {at} reads back as {byte}, {expected} was written"
                )))
            }
        }
    }

    fn check(&mut self, stage: usize) -> Result<(), Fault> {
        match self.work[stage].clone() {
            Work::WaitTrigger => Ok(()),
            Work::Readout => self.check_raw(),
            Work::Convert(_, converter) => self.check_converted(&converter, false),
            Work::Fused(_, fusion) => self.check_converted(&fusion.whole, true),
            Work::WritePattern => self.check_pattern(),
        }
    }

    fn out_bytes(&self) -> usize {
        let bytes = |work: &Work| match work {
            Work::Convert(_, converter)
            | Work::Fused(
                _,
                Fusion {
                    whole: converter, ..
                },
            ) => converter.decimation().kept(self.samples()) * converter.conversion().out_bytes(),
            _ => 0,
        };
        self.work.iter().map(bytes).max().unwrap_or(0)
    }

    fn conversion_stage(&self, name: String, converter: &Converter) -> StageSpec {
        let kept = converter.decimation().kept(self.samples()) as u64;
        let out_bytes = converter.conversion().out_bytes() as u64;
        let raw_bytes = self.request.raw_bytes();
        let stride_bytes = 2 * converter.decimation().factor as u64;
        StageSpec {
            limit: Some(LimitSpec::memory(raw_bytes, stride_bytes, out_bytes)),
            ..StageSpec::new(name, raw_bytes, raw_bytes + kept * out_bytes)
        }
    }

    fn readout_limit(&self) -> Option<LimitSpec> {
        match self.board.known_limit() {
            Some((rate_bytes_per_s, how)) => {
                let name = format!("link of {}", self.board.identity().model.name());
                Some(LimitSpec::Given(Limit::given(name, rate_bytes_per_s, how)))
            }
            // An unpaced emulated board is memory; what a real one could do is its link, which the host does not tell here.
            None if self.board.identity().emulated => {
                Some(LimitSpec::memory(self.request.raw_bytes(), 1, 1))
            }
            None => None,
        }
    }
}

/// The stages of a request.
fn plan(request: &Request, last_level_bytes: u64) -> Result<Vec<Work>, Fault> {
    let converter = |function: Function| -> Result<Option<Converter>, Fault> {
        let Some((conversion, decimation)) = request.params.of(function) else {
            return Ok(None);
        };
        let footprint = request.raw_bytes()
            + (decimation.kept(to_usize(request.samples)) * conversion.out_bytes()) as u64;
        let store = request
            .store
            .unwrap_or_else(|| Store::for_footprint(request.isa, footprint, last_level_bytes));
        let made = Converter::new(conversion, decimation, request.isa, store);
        made.map(Some).ok_or_else(|| {
            Fault::new(format!(
                "no {} kernel for {conversion:?} here",
                request.isa.name()
            ))
        })
    };
    let mut work = Vec::new();
    if request.completion.is_some() {
        work.push(Work::WaitTrigger);
    }
    for &function in &request.functions {
        match (function, request.block_samples, converter(function)?) {
            (Function::WritePattern, ..) => work.push(Work::WritePattern),
            (_, Some(_), Some(converter)) => {
                let block = Arc::new(converter.without_offset());
                work.push(Work::Fused(
                    function,
                    Fusion {
                        whole: Arc::new(converter),
                        block,
                    },
                ));
            }
            (_, None, Some(converter)) => work.push(Work::Convert(function, Arc::new(converter))),
            (_, Some(_), None) if request.functions.len() > 1 => {}
            (_, _, None) => work.push(Work::Readout),
        }
    }
    Ok(work)
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("at most 2^31 bytes, checked with the request")
}

/// A fault that names the first converted sample that is not the oracle's.
pub(crate) fn differs(
    converter: &Converter,
    raw: &[u16],
    converted: &Out<'_>,
) -> Result<(), Fault> {
    match oracle::first_difference(
        converter.conversion(),
        converter.decimation(),
        raw,
        converted,
    ) {
        None => Ok(()),
        Some((index, found, expected)) => Err(Fault::new(format!(
            "converted sample {index} has bits {found:#x}, the oracle says {expected:#x}"
        ))),
    }
}

/// Converts into `out` from element `at` on.
fn convert_into(converter: &Converter, raw: &[u16], out: &mut Buffer, at: usize, kept: usize) {
    match converter.conversion() {
        Conversion::QmnF64(_) => {
            converter.convert(raw, Out::F64(&mut out.slice_mut::<f64>(at + kept)[at..]))
        }
        _ => converter.convert(raw, Out::F32(&mut out.slice_mut::<f32>(at + kept)[at..])),
    }
}

impl Session for BoardSession {
    fn device(&self) -> String {
        self.board.identity().device.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let raw_bytes = self.request.raw_bytes();
        let stage = |work: &Work| match work {
            Work::WaitTrigger => StageSpec::new(WAIT_STAGE, 0, 0),
            Work::Readout => StageSpec {
                limit: self.readout_limit(),
                ..StageSpec::new(Function::Readout.classic_name(), raw_bytes, 2 * raw_bytes)
            },
            Work::Convert(function, converter) => {
                self.conversion_stage(function.classic_name().to_owned(), converter)
            }
            Work::Fused(function, fusion) => self.conversion_stage(
                format!("readout+{}", function.classic_name()),
                &fusion.whole,
            ),
            Work::WritePattern => StageSpec {
                once: true,
                ..StageSpec::new(
                    Function::WritePattern.classic_name(),
                    raw_bytes,
                    2 * raw_bytes,
                )
            },
        };
        self.work.iter().map(stage).collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let fused_only = self
            .work
            .iter()
            .all(|work| matches!(work, Work::Fused(..) | Work::WaitTrigger));
        let raw_samples = match self.request.block_samples {
            Some(block) if fused_only => {
                // A shifted block is read with what surrounds it in its first and last unit.
                let shifted =
                    block + self.request.params.decimation.offset + 2 * to_usize(SAMPLES_MULTIPLE);
                shifted.min(self.samples())
            }
            _ => self.samples(),
        };
        let mut raw = Buffer::new(raw_samples * 2, Pages::Transparent)?;
        if self
            .work
            .iter()
            .any(|work| matches!(work, Work::WritePattern))
        {
            for (at, byte) in raw.slice_mut::<u8>(raw_samples * 2).iter_mut().enumerate() {
                *byte = function::pattern_byte(at);
            }
        }
        self.raw = Some(raw);
        self.out = Some(Buffer::new(self.out_bytes(), Pages::Transparent)?);
        if self.request.completion.is_some() {
            if let Some(rate_hz) = self.request.trigger_rate_hz {
                self.board.set_trigger_rate(rate_hz);
            }
            self.daq.set_up(&mut *self.board, self.request.samples)?;
        }
        Ok(())
    }

    fn heed(&mut self, stop: &StopFlag) {
        self.board.heed(stop);
        self.daq.stop = stop.clone();
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            match &self.work[stage] {
                Work::WaitTrigger => self.daq.acquire(&mut *self.board)?,
                Work::Readout => {
                    self.read_out()?;
                    self.daq.counts.read_out += 1;
                }
                Work::Convert(_, converter) => self.convert(&Arc::clone(converter)),
                Work::Fused(_, fusion) => {
                    self.fused(&fusion.clone())?;
                    self.daq.counts.read_out += 1;
                }
                Work::WritePattern => self.write_pattern()?,
            }
            std::hint::black_box(&mut self.out);
        }
        self.last_done = Some(stage);
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        // After the run only what the last stage left can be compared; before it, each stage works once and is compared.
        if let Some(stage) = self.last_done.take() {
            return self.check(stage);
        }
        for stage in 0..self.work.len() {
            self.step(stage, 1)?;
            self.check(stage)?;
        }
        self.last_done = None;
        Ok(())
    }

    fn begin(&mut self) {
        self.bytes = Ledger::new("bytes");
        self.daq.begin_account(&mut *self.board);
    }

    fn tally(&mut self) -> Tally {
        let mut tally = Tally {
            ledgers: vec![self.bytes.clone()],
            ..Tally::default()
        };
        if self.request.completion.is_some() {
            let counts = self.daq.counts;
            tally.ledgers.push(self.daq.ledger(&mut *self.board));
            tally.counters = vec![
                Counter::count("register-reads", counts.register_reads),
                Counter::count("interrupts", counts.interrupts),
                Counter::count("lost-interrupts", counts.lost_interrupts),
            ];
        }
        let (pages, node) = match &self.raw {
            Some(raw) => (raw.pages(), raw.numa_node()),
            None => return tally,
        };
        tally.numa_node = node;
        if pages == Pages::Base {
            tally
                .warnings
                .push("buffers are on base pages: TLB misses lower the rates; allow transparent huge pages".to_owned());
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Param;

    use super::*;

    fn workload() -> Workload {
        DigitizerEngine::default().example()
    }

    fn refusal(workload: Workload) -> String {
        DigitizerEngine::default()
            .open(&workload)
            .err()
            .map(|fault| fault.0)
            .unwrap_or_default()
    }

    #[test]
    fn digitizer_conforms() {
        daqmeter_harness::conformance::run(&DigitizerEngine::default());
    }

    #[test]
    fn fused_digitizer_conforms_with_any_decimation() {
        struct Fused(Workload);
        impl Engine for Fused {
            fn name(&self) -> &'static str {
                "fused"
            }
            fn description(&self) -> &'static str {
                "the digitizer engine with fused blocks"
            }
            fn probe(&self) -> Availability {
                Availability::Ready
            }
            fn target(&self, _: &Workload) -> String {
                "test".into()
            }
            fn example(&self) -> Workload {
                self.0.clone()
            }
            fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
                DigitizerEngine::default().open(workload)
            }
        }
        for (offset, factor) in [(0_u64, 1_u64), (7, 1), (0, 10), (13, 3)] {
            let workload = workload()
                .with("block_bytes", 1000_u64)
                .with("dec_offset", offset)
                .with("dec_factor", factor);
            daqmeter_harness::conformance::run(&Fused(workload));
        }
    }

    #[test]
    fn bad_requests_name_the_parameter_and_what_is_wanted() {
        for (name, value, says) in [
            ("samples", Param::Int(0), "1 to 1073741824"),
            ("samples", Param::Int(1 << 31), "1 to 1073741824"),
            ("dec_factor", Param::Int(0), "1 or more"),
            ("dec_offset", Param::Int(4000), "past the 3200 samples"),
            ("dec_factor", Param::Int(4000), "past the 3200 samples"),
            ("function", Param::Int(9), "0 to 8, 99 or 100"),
            ("access", Param::Int(2), "0 (read) or 1 (mmap)"),
            ("scale_factor", Param::Float(f64::NAN), "finite"),
            (
                "completion",
                Param::Text("telepathy".into()),
                "poll or interrupt",
            ),
            ("isa", Param::Text("mmx".into()), "this CPU has"),
            ("store", Param::Text("heap".into()), "by-footprint"),
            ("unsigned_q", Param::Text("9".into()), "m.n"),
            ("unsigned_q", Param::Text("40.40".into()), "1 to 63 bits"),
            ("block_bytes", Param::Int(3), "at least 64"),
            ("access", Param::Int(1), "read whole"),
            ("profile", Param::Text("/nonexistent".into()), "ess-2017"),
            (
                "devices",
                Param::Text("emu:l0 emu:l0".into()),
                "named twice",
            ),
            ("devices", Param::Text("emu:zz".into()), "emu:l0"),
        ] {
            let mut asked = workload().with(name, value.clone());
            if name == "access" {
                asked = asked.with("block_bytes", 4096_u64);
            }
            let found = refusal(asked);
            assert!(found.contains(says), "{name}={value}: {found}");
        }
    }

    /// It kept no sample and printed 746 MB/s (issue 14, A10).
    #[test]
    fn a_decimation_that_keeps_nothing_is_refused_with_what_would_keep_something() {
        let asked = |samples: u64, offset: u64, factor: u64| {
            let asked = workload()
                .with("samples", samples)
                .with("dec_offset", offset);
            asked.with("dec_factor", factor).with("function", 2_u64)
        };
        let said = refusal(asked(112, 111, 2));
        assert!(
            said.contains("`dec_factor` is 2") && said.contains("none is kept"),
            "{said}"
        );
        assert!(said.contains("lower dec_offset to 110"), "{said}");
        assert_eq!(refusal(asked(112, 110, 2)), "");
        assert_eq!(refusal(asked(112, 0, 112)), "");
        assert!(refusal(asked(112, 1, 112)).contains("none is kept"));
        let convert = Workload {
            kind: "convert".to_owned(),
            ..asked(112, 111, 2)
        };
        let mut convert = convert;
        convert.params.remove("devices");
        let said = crate::ConvertEngine::default()
            .open(&convert)
            .err()
            .map(|fault| fault.0)
            .unwrap_or_default();
        assert!(said.contains("none is kept"), "{said}");
    }

    /// The portable kernel stores through the caches whatever is asked, and its figure was one of non-temporal stores.
    #[test]
    fn stores_that_an_instruction_set_has_not_are_refused_and_waived_in_plans() {
        let asked = workload()
            .with("isa", "portable")
            .with("store", "non-temporal");
        let said = refusal(asked.clone());
        assert!(
            said.contains("`non-temporal`, which portable has not"),
            "{said}"
        );
        let probed = DigitizerEngine::default().probe_for(&asked);
        assert_eq!(
            probed,
            Availability::Waived("portable has no non-temporal stores".to_owned())
        );
        assert_eq!(
            DigitizerEngine::default().probe_for(&workload()),
            Availability::Ready
        );
    }

    #[test]
    fn samples_round_up_to_sixteen_and_to_a_whole_dma_write_of_the_pattern() {
        let samples = |workload: Workload| Request::parse(&workload).unwrap().samples;
        assert_eq!(samples(workload().with("samples", 17_u64)), 32);
        assert_eq!(samples(workload().with("samples", 33_u64)), 48);
        assert_eq!(
            samples(workload().with("samples", 33_u64).with("function", 100_u64)),
            64
        );
    }

    fn session(device: &str, workload: Workload) -> BoardSession {
        let request = Request::parse(&workload.with("devices", device)).unwrap();
        let crate_ = EmulatedCrate::new(request.profile.clone(), false);
        let mut session = BoardSession::new(device, &request, &crate_, 0).unwrap();
        session.prepare().unwrap();
        session
    }

    #[test]
    fn a_pattern_is_written_in_dma_writes_that_the_board_can_do_and_reads_back() {
        let mut session = session(
            "emu:l0",
            workload()
                .with("samples", 3_000_u64)
                .with("function", 100_u64),
        );
        session.verify().unwrap();
    }

    /// After an error register 0x230 stayed 1 (issue 14, A12).
    #[test]
    fn card_memory_is_protected_again_after_a_write_that_failed() {
        let asked = workload()
            .with("samples", 3_200_u64)
            .with("function", 100_u64);
        let mut session = session("emu:l0:write-error-at=7", asked);
        assert!(
            session
                .step(0, 1)
                .unwrap_err()
                .0
                .contains("DMA write 7 failed")
        );
        assert_eq!(
            session
                .board
                .read_register(regs::MEMORY_WRITE_ENABLE)
                .unwrap(),
            0
        );
    }

    #[test]
    fn a_pattern_cannot_be_written_through_a_mapped_buffer() {
        let said = refusal(workload().with("function", 100_u64).with("access", 1_u64));
        assert!(
            said.contains("`access`") && said.contains("use access 0"),
            "{said}"
        );
    }

    #[test]
    fn every_option_of_the_original_reaches_the_stages() {
        let names = |workload: Workload| -> Vec<String> {
            let sessions = DigitizerEngine::default().open(&workload).unwrap();
            sessions[0]
                .stages()
                .into_iter()
                .map(|stage| stage.name)
                .collect()
        };
        let one = || workload().with("devices", "emu:l0");
        assert_eq!(names(one().with("function", 0_u64)), ["func_readout"]);
        assert_eq!(
            names(one().with("function", 5_u64)),
            ["func_readout", "func_umn2double"]
        );
        assert_eq!(names(one().with("function", 100_u64)), ["func_pattern"]);
        let looped = one().with("function", 4_u64).with("completion", "poll");
        assert_eq!(
            names(looped),
            ["wait_trigger", "func_readout", "func_no_decsca"]
        );
        let fused = one()
            .with("function", 4_u64)
            .with("block_bytes", 65_536_u64);
        assert_eq!(names(fused), ["readout+func_no_decsca"]);
    }
}
