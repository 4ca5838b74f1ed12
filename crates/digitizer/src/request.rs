//! Request of the read-out engine: its checked options. Nothing is opened or allocated here.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::time::Duration;

use clap::Args;
use clap::builder::{BoolValueParser, OsStringValueParser, TypedValueParser};
use daqmeter_harness::{MAX_LANES, Problem, Resolved};
use daqmeter_record::units::{parse_bytes, parse_count, parse_rate_hz, parse_us};
use daqmeter_sys::memory::buffer_bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conversion::{ConversionRequest, defaults};
use crate::daq::check_trigger_rate;
use crate::devices;
use crate::devices::board::{EMULATED_PREFIX, to_usize};
use crate::devices::sis8300::{emulated::Profile, regs};
use crate::function::Function;

/// Multiple to which the original rounds samples up: its library reads 32 bytes.
pub(crate) const SAMPLES_MULTIPLE: u64 = 16;
/// Multiple of function 100, which writes 64 bytes at a time, as the original does.
const PATTERN_MULTIPLE: u64 = 32;
/// Capacity of the largest card memory.
const MAX_SAMPLES: u64 = 1 << 30;

/// What is asked of the read-out engine.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DigitizerRequest {
    /// Boards: /dev/sis8300-6, emu:l0, emu:ku0, or a range emu:l0..4
    ///
    /// In records and plans they are one text with blanks between them; a blank within a name has a
    /// backslash before it.
    #[arg(value_name = "DEVICE", required = true, value_parser = device_name())]
    #[serde(with = "crate::names")]
    #[schemars(with = "String")]
    pub devices: Vec<String>,
    /// Samples to read per board
    ///
    /// They are rounded up to a multiple of 16, or of 320 with -l.
    #[arg(short = 'S', long, value_name = "N", value_parser = parse_count, default_value = "0x100000")]
    pub samples: u64,
    /// Number of reads
    #[arg(short = 'N', long, value_name = "N", value_parser = parse_count, default_value = "1", conflicts_with = "passes")]
    pub reads: u64,
    /// What to do with the samples, see below
    #[arg(short = 'A', long, value_name = "F", value_parser = function, default_value = "0")]
    pub function: Function,
    /// Access: 0 read(), 1 mmap() without a copy (at most 4 MiB)
    #[arg(short = 'B', long, value_name = "0|1", value_parser = parse_count, default_value = "0", hide_short_help = true)]
    pub access: u64,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs, reason = "clap would make it the text of the verb")]
    pub conversion: ConversionRequest,
    /// Read and convert in blocks of this size
    #[arg(
        long = "block",
        hide_short_help = true,
        value_name = "SIZE",
        value_parser = parse_bytes,
        default_value = "0",
        hide_default_value = true,
        help_heading = "Conversion"
    )]
    pub block_bytes: u64,
    /// Number of reads, one per external trigger (instead of -N)
    #[arg(short = 'l', long = "loop", value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true, help_heading = "Trigger")]
    pub passes: u64,
    /// Wait by interrupt instead of polling
    #[arg(
        short = 'i',
        long = "interrupt",
        action = clap::ArgAction::SetTrue,
        value_parser = BoolValueParser::new().map(TriggerCompletion::by_interrupt),
        requires = "passes",
        help_heading = "Trigger"
    )]
    #[serde(default)]
    pub completion: TriggerCompletion,
    /// Trigger rate of emulated boards
    ///
    /// For real boards it is needed to count missed triggers.
    #[arg(long = "rate", value_name = "RATE", value_parser = parse_rate_hz, requires = "passes", help_heading = "Trigger")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger_rate_hz: Option<f64>,
    /// Sleep between two reads of the status register
    #[arg(long = "poll-interval", value_name = "TIME", value_parser = parse_us, default_value = "1us", requires = "passes", hide_short_help = true, help_heading = "Trigger")]
    pub poll_interval_us: f64,
    /// Timing of emulated boards: a shipped name or a TOML file
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "ess-2017",
        hide_short_help = true,
        help_heading = "Emulated boards"
    )]
    pub profile: Resolved<Profile>,
    /// Run emulated boards as fast as memory
    #[arg(long, hide_short_help = true, help_heading = "Emulated boards")]
    pub unpaced: bool,
}

impl Default for DigitizerRequest {
    fn default() -> Self {
        static DEFAULTS: LazyLock<DigitizerRequest> = LazyLock::new(|| DigitizerRequest {
            completion: TriggerCompletion::None,
            ..defaults()
        });
        DEFAULTS.clone()
    }
}

fn function(text: &str) -> Result<Function, String> {
    Function::try_from(parse_count(text)?)
}

/// How the trigger is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TriggerCompletion {
    /// No trigger is waited for.
    #[default]
    None,
    /// By looking at the status.
    Poll,
    /// By the interrupt.
    Interrupt,
}

impl TriggerCompletion {
    fn by_interrupt(interrupt: bool) -> TriggerCompletion {
        if interrupt { TriggerCompletion::Interrupt } else { TriggerCompletion::Poll }
    }
}

fn device_name() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|name| {
        name.into_string().map_err(|name| {
            format!(
                "`{}` is not UTF-8, as names in records are: make a link to it with another name",
                name.display()
            )
        })
    })
}

/// Returns what all names of a board have in common: of an emulated one the model and the number,
/// of a device its number.
fn board_of(name: &str) -> String {
    if let Some(own) = name.strip_prefix(EMULATED_PREFIX) {
        // Faults are behind a colon.
        let own = own.split(':').next().unwrap_or_default();
        let (model, number) =
            own.split_at(own.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        return format!("{EMULATED_PREFIX}{model}{}", number.trim_start_matches('0'));
    }
    let numbered = fs::metadata(name).ok().map(|node| node.rdev()).filter(|rdev| *rdev != 0);
    numbered.map_or_else(|| name.to_owned(), |rdev| format!("device {rdev}"))
}

pub fn is_emulated(device: &str) -> bool {
    device.starts_with(EMULATED_PREFIX)
}

/// Expands the names of boards: one at least, at most this number, and each once.
///
/// # Errors
/// The problem, which follows the name of a parameter.
pub fn boards(devices: &[String], most: u64) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for device in devices {
        names.extend(devices::expand(device)?);
        if names.len() as u64 > most {
            return Err(format!("names more than {most} boards"));
        }
    }
    if names.is_empty() || names.iter().any(|name| name.trim().is_empty()) {
        return Err("names no board; write e.g. /dev/sis8300-6 or emu:l0".to_owned());
    }
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(board_of(name))) {
        Some(twice) => Err(format!("has `{twice}` named twice: one thread drives a board")),
        None => Ok(names),
    }
}

impl DigitizerRequest {
    /// Returns the request of a command line, which uses `-i` and `--rate` only with `-l`. Emulated
    /// boards are triggered at the document's 14 Hz unless another rate is given. Beside a real
    /// board, whose rate may differ, they keep the rate of their profile.
    #[must_use]
    pub fn as_typed(mut self) -> DigitizerRequest {
        if self.passes == 0 {
            self.completion = TriggerCompletion::None;
        } else if self.devices.iter().all(|name| is_emulated(name)) {
            self.trigger_rate_hz = self.trigger_rate_hz.or(Some(14.0));
        }
        self
    }

    /// # Errors
    /// The parameter, its value and its range.
    pub(crate) fn check_options(&self) -> Result<(), Problem> {
        self.devices()?;
        Problem::unless_within("samples", self.samples, 1..=MAX_SAMPLES)?;
        self.check_access()?;
        Problem::unless_within("poll_interval_us", self.poll_interval_us, 0.0..=1e9)?;
        self.conversion.check(self.samples_per_read())?;
        if let Some(rate) = self.trigger_rate_hz {
            check_trigger_rate(rate)
                .map_err(|fault| Problem::new("trigger_rate_hz", format!("is wrong: {fault}")))?;
        }
        Ok(())
    }

    pub fn is_emulated(&self) -> bool {
        self.devices.iter().any(|name| is_emulated(name))
    }

    fn check_access(&self) -> Result<(), Problem> {
        let (maps, writes, block_bytes) = (self.maps(), self.writes(), self.block_bytes);
        let text = format!("is {block_bytes}; at least 64 is wanted");
        Problem::when((1..64).contains(&block_bytes), "block_bytes", text)?;
        let text = "is 100, which writes without a trigger: leave out -l (completion)";
        Problem::when(writes && self.is_triggered(), "function", text)?;
        Problem::unless_within("access", self.access, 0..=1)?;
        let text = "cannot be used with access 1: a mapped buffer is read whole";
        Problem::when(maps && block_bytes > 0, "block_bytes", text)?;
        let text =
            "cannot be 1 with function 100: the mapped buffer is for reading only; use access 0";
        Problem::when(maps && writes, "access", text)
    }

    pub(crate) fn devices(&self) -> Result<Vec<String>, Problem> {
        boards(&self.devices, MAX_LANES).map_err(|text| Problem::new("devices", text))
    }

    pub(crate) fn maps(&self) -> bool {
        self.access == 1
    }

    pub(crate) fn writes(&self) -> bool {
        self.function == Function::WritePattern
    }

    pub(crate) fn samples_per_read(&self) -> u64 {
        let multiple = match (self.is_triggered(), self.writes()) {
            (true, _) => regs::ACQUISITION_SAMPLES,
            (false, true) => PATTERN_MULTIPLE,
            (false, false) => SAMPLES_MULTIPLE,
        };
        self.samples.next_multiple_of(multiple)
    }

    /// Bytes of one read.
    pub fn raw_bytes(&self) -> u64 {
        self.samples_per_read() * 2
    }

    pub(crate) fn is_triggered(&self) -> bool {
        self.completion != TriggerCompletion::None
    }

    /// Returns the sleep between two looks at the status; `None` waits for the interrupt.
    pub(crate) fn polls(&self) -> Option<Duration> {
        let interval = Duration::from_secs_f64(self.poll_interval_us * 1e-6);
        (self.completion != TriggerCompletion::Interrupt).then_some(interval)
    }

    /// Returns samples of a fused block; `None` without fusion. A block has whole card blocks and
    /// whole multiples of the decimation factor, so that it converts alone.
    pub(crate) fn block_samples(&self) -> Option<usize> {
        let decimates = self.conversion.dec_factor > 1 || self.conversion.dec_offset > 0;
        let groups = if decimates { self.conversion.dec_factor } else { 1 };
        let unit = groups * SAMPLES_MULTIPLE;
        let samples = (self.block_bytes / 2 / unit).max(1) * unit;
        (self.block_bytes > 0).then(|| to_usize(samples.min(self.samples_per_read())))
    }

    /// Memory of samples, conversion, the emulated board's contents, and a copy for the comparison.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        let raw = self.raw_bytes();
        let mapped = if self.maps() { buffer_bytes(raw) } else { 0 };
        let samples = to_usize(self.samples_per_read());
        let out = |function: Function| self.conversion.out_bytes(function, samples);
        let out_bytes = self.function.stages().into_iter().map(out).max().unwrap_or(0);
        let board = buffer_bytes(raw) + buffer_bytes(out_bytes as u64) + mapped + 2 * raw;
        Some(board.saturating_mul(self.devices().ok()?.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};
    use daqmeter_harness::Request as _;

    use super::*;

    fn typed(line: &str) -> DigitizerRequest {
        let command = DigitizerRequest::augment_args(Command::new("digitizer"));
        let words = std::iter::once("digitizer").chain(line.split(' '));
        let given = command.try_get_matches_from(words).unwrap();
        DigitizerRequest::from_arg_matches(&given).unwrap().as_typed()
    }

    #[test]
    fn a_command_line_is_the_request_that_its_record_holds() {
        let request = typed(
            "emu:l0 /dev/x -S 3k -O -1e-5 -F -7e-05 -l 3 -i --poll-interval 1ms --block 64KiB --isa portable",
        );
        assert_eq!(request.devices, ["emu:l0", "/dev/x"]);
        assert_eq!(request.conversion.scale_offset, -1e-5);
        assert_eq!(request.conversion.scale_factor, -7e-5);
        assert_eq!(request.completion, TriggerCompletion::Interrupt);
        assert_eq!((request.poll_interval_us, request.block_bytes), (1000.0, 65_536));
        let workload = request.workload();
        assert_eq!(workload.text("isa"), Ok("portable"));
        assert_eq!(DigitizerRequest::of(&workload).unwrap(), request);
        // The emulated board does not determine the real one's rate.
        assert_eq!(request.trigger_rate_hz, None);
        assert_eq!(typed("emu:l0 -l 3").trigger_rate_hz, Some(14.0));
        assert_eq!(typed("emu:l0 -l 3").completion, TriggerCompletion::Poll);
        assert_eq!(typed("emu:l0").completion, TriggerCompletion::None);
    }

    #[test]
    fn a_plan_that_leaves_something_out_means_what_the_command_line_does() {
        let plan = daqmeter_record::Workload::new("digitizer").with("devices", "emu:l0");
        assert_eq!(DigitizerRequest::of(&plan).unwrap(), typed("emu:l0"));
    }
}
