//! Source `digitizer`: boards, one thread each.

use std::time::Duration;

use daqmeter_digitizer::daq::{self, Daq};
use daqmeter_digitizer::devices::board::Board;
use daqmeter_digitizer::devices::open;
use daqmeter_digitizer::devices::sis8300::emulated::{EmulatedCrate, Profile};
use daqmeter_digitizer::devices::sis8300::regs::CHANNELS;
use daqmeter_digitizer::function::Function;
use daqmeter_digitizer::request::{DigitizerRequest, TriggerCompletion, boards, is_emulated};
use daqmeter_harness::{Fault, Resolved, StopFlag};
use daqmeter_record::path::{LinkBy, PathLink};
use daqmeter_record::units::significant;
use daqmeter_record::written::{Hertz, Nanos};
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::clock::monotonic_ns;
use serde::Deserialize;
use toml::Table;

use crate::definition::Path;
use crate::definition::flow::{Flow, Numbers, Place, SAMPLES, unless, wrong};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::definition::layout::MAX_THREADS;
use crate::element::{Filled, Source};
use crate::elements::written::Keeping;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Digitizer {
    devices: Vec<String>,
    #[serde(default)]
    profile: Resolved<Profile>,
    #[serde(default)]
    unpaced: bool,
    trigger: Option<Hertz>,
    #[serde(default = "interrupt")]
    completion: TriggerCompletion,
    #[serde(default = "usual_poll")]
    poll_interval: Nanos,
}

fn interrupt() -> TriggerCompletion {
    TriggerCompletion::Interrupt
}

fn usual_poll() -> Nanos {
    Nanos(1000)
}

/// Triggers that a source may wait for at its end: its board gives up after as many.
const TRIGGERS: f64 = 3.0;

impl SourceElement for Digitizer {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let devices = boards(&self.devices, MAX_THREADS as u64);
        self.devices = devices.or_else(|problem| wrong("devices", problem))?;
        if let Some(hz) = self.trigger {
            daq::check_trigger_rate(hz.0).or_else(|fault| wrong("trigger", fault.0))?;
        }
        flow.unit = SAMPLES;
        let (channels, samples) = (usize::try_from(CHANNELS).unwrap_or(1), flow.bytes / 2);
        let shape = match self.trigger {
            Some(_) if samples.is_multiple_of(channels) => vec![channels, samples / channels],
            _ => vec![samples],
        };
        flow.numbers = Some(Numbers { dtype: "<u2", shape });
        let are_emulated = self.devices.iter().all(|device| is_emulated(device));
        let is_emulated = self.devices.iter().any(|device| is_emulated(device));
        let hz = self.trigger.map(|hz| format!(", {} Hz", significant(hz.0, 4)));
        let text = format!("digitizer {}{}", self.devices.join(" "), hz.unwrap_or_default());
        Ok(Facts {
            digest: self.profile.digest().to_owned(),
            is_emulated,
            is_outside: self.trigger.is_some() || !are_emulated,
            devices: self.devices.clone(),
            boards: self.devices.clone(),
            uplink: (is_emulated && !self.unpaced).then(|| PathLink {
                element: 0,
                name: format!("uplink of {}", self.profile.name),
                bytes_per_s: self.profile.uplink.limit_bytes_per_s,
                bytes_per_block: flow.bytes as f64,
                by: LinkBy::Profile,
            }),
            last_wait_s: self.trigger.map_or(0.0, |hz| TRIGGERS / hz.0),
            ..Facts::of(text)
        })
    }

    fn sources(&self, _name: &str, block_bytes: usize) -> Result<Vec<Named>, Fault> {
        let crate_ = EmulatedCrate::new(Profile::clone(&self.profile), !self.unpaced);
        let interval = Duration::from_nanos(self.poll_interval.0);
        let polls = (self.completion != TriggerCompletion::Interrupt).then_some(interval);
        let source = |board| {
            let source = Boards::new(board, block_bytes, self.trigger.map(|hz| hz.0), polls)?;
            let device = source.board.identity().device.clone();
            Ok((device, Box::new(source) as Box<dyn Source>))
        };
        open(&self.devices, &crate_)?.into_iter().map(source).collect()
    }
}

impl Path {
    /// Makes the path from the boards of a request to a folder; `None` if nothing is kept.
    ///
    /// # Errors
    /// Access by `mmap`, fused blocks, and functions that convert nothing: no path has them.
    pub fn of_boards(request: &DigitizerRequest, keeping: &Keeping) -> Result<Option<Path>, Fault> {
        let Some(sink) = keeping.sink() else { return Ok(None) };
        let DigitizerRequest { function, completion, conversion, .. } = request;
        let is_plain = request.access == 0 && request.block_bytes == 0;
        unless(is_plain, "--keep", "goes without -B and --block")?;
        let is_kept =
            *function == Function::Readout || Function::conversions().any(|one| one == *function);
        unless(is_kept, "--keep", "goes with -A 0 to 8")?;
        let fault = |error: toml::ser::Error| Fault::new(error.to_string());
        let mut source = Table::new();
        let mut set = |key: &str, value: toml::Value| drop(source.insert(key.to_owned(), value));
        set("kind", "digitizer".into());
        set("devices", request.devices.clone().into());
        set("profile", toml::Value::try_from(&request.profile).map_err(fault)?);
        set("unpaced", request.unpaced.into());
        if *completion != TriggerCompletion::None {
            let hz = request.trigger_rate_hz;
            let hz =
                hz.ok_or_else(|| Fault::new("--keep: give the rate of the trigger: --rate 14Hz"))?;
            set("trigger", hz.into());
            set("completion", toml::Value::try_from(completion).map_err(fault)?);
            set("poll_interval", format!("{}us", request.poll_interval_us).into());
        }
        let mut table = Table::new();
        let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
        set("title", "boards that are read out into files".into());
        set(
            "block",
            i64::try_from(request.raw_bytes().next_multiple_of(64)).unwrap_or(i64::MAX).into(),
        );
        set("source", source.into());
        if *function != Function::Readout {
            let mut stage = Table::try_from(conversion).map_err(fault)?;
            stage.insert("kind".to_owned(), "convert".into());
            let number = i64::try_from(function.number()).unwrap_or(0);
            stage.insert("function".to_owned(), number.into());
            set("stage", vec![stage].into());
        }
        set("sink", sink.into());
        Path::parse(&toml::to_string(&table).map_err(fault)?, "digitizer").map(Some)
    }
}

struct Boards {
    board: Box<dyn Board>,
    daq: Option<Daq>,
    trigger_hz: Option<f64>,
    samples: usize,
    /// Number of the last trigger.
    number: u64,
}

/// Boards read whole units of that many bytes.
const UNIT_BYTES: usize = 32;

impl Boards {
    fn new(
        mut board: Box<dyn Board>,
        block_bytes: usize,
        trigger_hz: Option<f64>,
        polls: Option<Duration>,
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
            daq: trigger_hz.map(|hz| Daq::new(polls, Some(hz))),
            trigger_hz,
            samples: block_bytes / 2,
            number: 0,
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

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.board.set_stop_flag(stop);
        if let Some(daq) = &mut self.daq {
            daq.set_stop_flag(stop);
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
            self.number = daq.number().unwrap_or(self.number + 1);
            filled.number = Some(self.number);
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
    use crate::{Path, Setting};

    /// The last channel of a triggered board was cut, and nothing said so.
    #[test]
    fn a_triggered_block_has_whole_channels() {
        let prepared = |with: &[&str]| {
            let with: Vec<Setting> = with.iter().map(|one| one.parse().unwrap()).collect();
            let path = Path::load_with("digitizer-crate", &with).unwrap();
            path.sources().unwrap().remove(0).1.prepare().map_err(|fault| fault.0)
        };
        assert_eq!(prepared(&["source.trigger=14Hz"]), Ok(()));
        for block in ["block=1MiB", "block=96256B"] {
            let said = prepared(&["source.trigger=14Hz", block]).unwrap_err();
            assert!(said.contains("stride") && said.contains("multiple of 640 bytes"), "{said}");
        }
        assert_eq!(prepared(&["block=1MiB"]), Ok(()));
    }
}
