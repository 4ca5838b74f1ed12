//! What a workload asks of the read-out engine, checked: nothing is opened or allocated before this.

use std::time::Duration;

use daqmeter_harness::{Availability, Fault, MAX_LANES};
use daqmeter_kernels::convert::{Decimation, Qmn};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::{Param, Workload};
use daqmeter_sys::memory::buffer_bytes;

use crate::daq::{Completion, check_trigger_rate};
use crate::devices;
use crate::devices::emulated::Profile;
use crate::engine::to_usize;
use crate::function::{ConversionParams, Function};

/// Samples that the original rounds up to: the 32 bytes that its library reads.
pub(crate) const SAMPLES_MULTIPLE: u64 = 16;
/// Samples of one DMA write of function 100, which writes nothing smaller.
const PATTERN_MULTIPLE: u64 = devices::WRITE_BYTES as u64 / 2;

/// What a workload asks for, checked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Device names, ranges expanded.
    pub(crate) devices: Vec<String>,
    /// Samples per read, rounded up to 16.
    pub(crate) samples: u64,
    /// Stages.
    pub(crate) functions: Vec<Function>,
    /// Conversion parameters.
    pub(crate) params: ConversionParams,
    /// Read through a mapped DMA buffer.
    pub(crate) mmap: bool,
    /// How to wait; none does not acquire at all.
    pub(crate) completion: Option<Completion>,
    /// Trigger.
    pub(crate) trigger_rate_hz: Option<f64>,
    /// Fused block in samples; none is unfused.
    pub(crate) block_samples: Option<usize>,
    /// Instruction set.
    pub(crate) isa: Isa,
    /// Kind of stores; none chooses by footprint.
    pub(crate) store: Option<Store>,
    /// Timing of emulated boards.
    pub(crate) paced: bool,
    /// Profile of emulated boards.
    pub(crate) profile: Profile,
}

fn int_or(workload: &Workload, name: &str, default: u64) -> Result<u64, Fault> {
    if workload.params.contains_key(name) {
        Ok(workload.int(name)?)
    } else {
        Ok(default)
    }
}

fn float_or(workload: &Workload, name: &str, default: f64) -> Result<f64, Fault> {
    if workload.params.contains_key(name) {
        Ok(workload.float(name)?)
    } else {
        Ok(default)
    }
}

fn text_or<'a>(workload: &'a Workload, name: &str, default: &'a str) -> Result<&'a str, Fault> {
    if workload.params.contains_key(name) {
        Ok(workload.text(name)?)
    } else {
        Ok(default)
    }
}

/// Parses `1.15` into m and n.
fn parse_qmn(workload: &Workload, name: &str, default: Qmn) -> Result<Qmn, Fault> {
    let Some(Param::Text(text)) = workload.params.get(name) else {
        return Ok(default);
    };
    let bits = || -> Option<Qmn> {
        let (m, n) = text.split_once('.')?;
        Qmn::new(m.parse().ok()?, n.parse().ok()?, default.is_signed())
    };
    let problem = format!(
        "is `{text}`; m.n with 1 to 63 bits in all is wanted, e.g. {}.{}",
        default.int_bits(),
        default.frac_bits()
    );
    bits().ok_or_else(|| workload.error(name, problem).into())
}

pub(crate) fn parse_isa(workload: &Workload) -> Result<Isa, Fault> {
    match text_or(workload, "isa", "best")? {
        "best" => Ok(Isa::best()),
        name => Isa::from_name(name)
            .filter(|isa| isa.is_available())
            .ok_or_else(|| {
                let here: Vec<&str> = Isa::available().map(Isa::name).collect();
                workload
                    .error(
                        "isa",
                        format!("is `{name}`; this CPU has {}", here.join(", ")),
                    )
                    .into()
            }),
    }
}

/// The stores that a workload asks for; none chooses by footprint.
pub(crate) fn parse_store(workload: &Workload, isa: Isa) -> Result<Option<Store>, Fault> {
    match text_or(workload, "store", "by-footprint")? {
        "by-footprint" => Ok(None),
        "cached" => Ok(Some(Store::Cached)),
        "non-temporal" if isa.has_non_temporal() => Ok(Some(Store::NonTemporal)),
        "non-temporal" => Err(workload
            .error(
                "store",
                format!(
                    "is `non-temporal`, which {} has not; use cached",
                    isa.name()
                ),
            )
            .into()),
        other => Err(workload
            .error(
                "store",
                format!("is `{other}`; by-footprint, cached or non-temporal is wanted"),
            )
            .into()),
    }
}

/// What a workload names that this CPU has not: an instruction set, or a kind of stores in it.
pub(crate) fn missing_here(workload: &Workload) -> Availability {
    let named = workload.text("isa").ok().and_then(Isa::from_name);
    let isa = named.unwrap_or_else(Isa::best);
    if !isa.is_available() {
        return Availability::Waived(format!("this CPU has no {}", isa.name()));
    }
    if workload.text("store") == Ok("non-temporal") && !isa.has_non_temporal() {
        return Availability::Waived(format!("{} has no non-temporal stores", isa.name()));
    }
    Availability::Ready
}

pub(crate) fn parse_conversions(
    workload: &Workload,
    samples: u64,
) -> Result<ConversionParams, Fault> {
    let offset = int_or(workload, "dec_offset", 0)?;
    let factor = int_or(workload, "dec_factor", 1)?;
    if factor == 0 {
        return Err(workload
            .error(
                "dec_factor",
                "is 0; decimation keeps every first, second, ... sample: 1 or more",
            )
            .into());
    }
    if offset >= samples || factor > samples {
        let name = if offset >= samples {
            "dec_offset"
        } else {
            "dec_factor"
        };
        let found = if offset >= samples { offset } else { factor };
        return Err(workload
            .error(
                name,
                format!("is {found}, past the {samples} samples of a read"),
            )
            .into());
    }
    // As in the original, a sample is kept only where a whole group of `factor` follows the offset.
    if (samples - offset) / factor == 0 {
        let left = samples - offset;
        let problem = format!(
            "is {factor}, but only {left} of the {samples} samples of a read follow dec_offset {offset}: none is kept; \
             lower dec_offset to {} or less",
            samples - factor
        );
        return Err(workload.error("dec_factor", problem).into());
    }
    let finite = |name: &str, default: f64| -> Result<f64, Fault> {
        let value = float_or(workload, name, default)?;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(workload
                .error(name, format!("is {value}; a finite number is wanted"))
                .into())
        }
    };
    let to_usize = |value: u64| usize::try_from(value).expect("below the number of samples");
    Ok(ConversionParams {
        decimation: Decimation {
            offset: to_usize(offset),
            factor: to_usize(factor),
        },
        scale_factor: finite("scale_factor", 1.0)?,
        scale_offset: finite("scale_offset", 0.0)?,
        fast: workload.flag("fast"),
        unsigned_format: parse_qmn(workload, "unsigned_q", Qmn::MAGNITUDE)?,
        signed_format: parse_qmn(workload, "signed_q", Qmn::PHASE)?,
    })
}

impl Request {
    /// Checks a workload.
    ///
    /// # Errors
    /// Names the parameter, what it is and what is wanted.
    pub(crate) fn parse(workload: &Workload) -> Result<Request, Fault> {
        let mut devices = Vec::new();
        for name in workload
            .text("devices")?
            .split(' ')
            .filter(|name| !name.is_empty())
        {
            devices.extend(devices::expand(name)?);
            if devices.len() as u64 > MAX_LANES {
                return Err(workload
                    .error("devices", format!("names more than {MAX_LANES} boards"))
                    .into());
            }
        }
        if let Some((at, twice)) = devices
            .iter()
            .enumerate()
            .find(|(at, name)| devices[..*at].contains(name))
        {
            return Err(Fault::new(format!(
                "`{twice}` is named twice (place {}): one thread drives a board",
                at + 1
            )));
        }
        let samples = workload.int("samples")?;
        if samples == 0 || samples > 1 << 30 {
            let problem = format!("is {samples}; 1 to {} fit the card's memory", 1 << 30);
            return Err(workload.error("samples", problem).into());
        }
        let number = int_or(workload, "function", 0)?;
        let writes = number == Function::WritePattern.number();
        let samples = samples.next_multiple_of(if writes {
            PATTERN_MULTIPLE
        } else {
            SAMPLES_MULTIPLE
        });
        let functions = Function::stages(number).ok_or_else(|| {
            Fault::from(workload.error(
                "function",
                format!("is {number}; 0 to 8, 99 or 100 is wanted"),
            ))
        })?;
        let block_bytes = int_or(workload, "block_bytes", 0)?;
        let mmap = parse_access(workload)?;
        if mmap && block_bytes > 0 {
            return Err(workload
                .error(
                    "block_bytes",
                    "cannot be used with access 1: a mapped buffer is read whole",
                )
                .into());
        }
        if mmap && writes {
            let problem = "cannot be 1 with function 100: the mapped buffer is for reading only; use access 0";
            return Err(workload.error("access", problem).into());
        }
        let trigger_rate_hz = float_or(workload, "trigger_rate_hz", 0.0)?;
        if trigger_rate_hz != 0.0 {
            check_trigger_rate(trigger_rate_hz)
                .map_err(|fault| fault.context("`trigger_rate_hz`"))?;
        }
        let isa = parse_isa(workload)?;
        Ok(Request {
            devices,
            samples,
            functions,
            params: parse_conversions(workload, samples)?,
            mmap,
            completion: parse_completion(workload)?,
            trigger_rate_hz: (trigger_rate_hz > 0.0).then_some(trigger_rate_hz),
            block_samples: parse_block(workload, block_bytes, samples)?,
            isa,
            store: parse_store(workload, isa)?,
            paced: !workload.flag("unpaced"),
            profile: Profile::load(text_or(workload, "profile", "ess-2017")?)
                .map_err(|error| Fault::new(error.to_string()))?,
        })
    }

    pub(crate) fn raw_bytes(&self) -> u64 {
        self.samples * 2
    }

    /// Bytes of the longest conversion.
    pub(crate) fn out_bytes(&self) -> u64 {
        let samples = to_usize(self.samples);
        let out = |function: &Function| {
            let (conversion, decimation) = self.params.of(*function)?;
            Some(decimation.kept(samples) * conversion.out_bytes())
        };
        self.functions.iter().filter_map(out).max().unwrap_or(0) as u64
    }

    /// Samples, conversion, what an emulated board holds of them, and a copy while they are compared.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let raw = self.raw_bytes();
        let mapped = if self.mmap { buffer_bytes(raw) } else { 0 };
        let board = buffer_bytes(raw) + buffer_bytes(self.out_bytes()) + mapped + 2 * raw;
        board.saturating_mul(self.devices.len() as u64)
    }
}

fn parse_access(workload: &Workload) -> Result<bool, Fault> {
    match int_or(workload, "access", 0)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(workload
            .error(
                "access",
                format!("is {other}; 0 (read) or 1 (mmap) is wanted"),
            )
            .into()),
    }
}

fn parse_completion(workload: &Workload) -> Result<Option<Completion>, Fault> {
    match text_or(workload, "completion", "none")? {
        "none" => Ok(None),
        "interrupt" => Ok(Some(Completion::Interrupt)),
        "poll" => {
            let interval = float_or(workload, "poll_interval_us", 1.0)?;
            if !(0.0..=1e9).contains(&interval) {
                return Err(workload
                    .error(
                        "poll_interval_us",
                        format!("is {interval}; 0 to 1e9 is wanted"),
                    )
                    .into());
            }
            Ok(Some(Completion::Poll {
                interval: Duration::from_secs_f64(interval * 1e-6),
            }))
        }
        other => Err(workload
            .error(
                "completion",
                format!("is `{other}`; none, poll or interrupt is wanted"),
            )
            .into()),
    }
}

/// Blocks are whole card blocks, and whole multiples of the decimation factor so that each converts on its own.
fn parse_block(
    workload: &Workload,
    block_bytes: u64,
    samples: u64,
) -> Result<Option<usize>, Fault> {
    if block_bytes == 0 {
        return Ok(None);
    }
    if block_bytes < 64 {
        return Err(workload
            .error(
                "block_bytes",
                format!("is {block_bytes}; at least 64 is wanted"),
            )
            .into());
    }
    let decimates =
        int_or(workload, "dec_factor", 1)? > 1 || int_or(workload, "dec_offset", 0)? > 0;
    let unit = if decimates {
        int_or(workload, "dec_factor", 1)?.max(1) * SAMPLES_MULTIPLE
    } else {
        SAMPLES_MULTIPLE
    };
    let block_samples = (block_bytes / 2 / unit).max(1) * unit;
    Ok(Some(
        usize::try_from(block_samples.min(samples)).expect("at most the samples of a read"),
    ))
}
