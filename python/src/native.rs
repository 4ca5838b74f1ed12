//! daqmeter as a Python module: records as columns, engines and plans, decoders, conversions on
//! numpy arrays.
//! This file only passes values between Python and the crates, which compute everything. Longer
//! work runs without the interpreter's lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use daqmeter_campaign::{Budget, Done, ENGINES, Plan, Runner, RunnerEvent};
use daqmeter_harness::Context;
use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out, Qmn};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::{RunRecord, Tool, jsonl};
use daqmeter_report::export::{Cell, DataFrame, counters, samples, series, stages};
use daqmeter_wire::etherbone::{EbHeader, EbRecord, RecordFlags};
use daqmeter_wire::felix::block::HEADER_BYTES;
use daqmeter_wire::felix::decoder::{ChunkPart, most_subchunks};
use daqmeter_wire::felix::{BlockFormat, FelixHeader, Reassembler, Subchunk, subchunks};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(what.to_string())
}

fn frame_of(records: &[RunRecord], what: &str) -> PyResult<DataFrame> {
    match what {
        "stages" => Ok(stages(records)),
        "samples" => Ok(samples(records)),
        "counters" => Ok(counters(records)),
        "series" => Ok(series(records)),
        other => Err(wrong(format!("`{other}`: stages, samples, counters or series is wanted"))),
    }
}

/// Columns of records, which are given as JSON texts. Numbers and flags without holes, and moments,
/// are numpy arrays; other columns are lists.
#[pyfunction]
fn columns<'py>(
    python: Python<'py>,
    lines: Vec<String>,
    what: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let frame = python.detach(|| {
        let read = jsonl::read(lines.join("\n").as_bytes());
        frame_of(&read.map_err(wrong)?.records, what)
    })?;
    let out = PyDict::new(python);
    for column in &frame.columns {
        let name = &column.name;
        let ints = || column.cells().map(Cell::int);
        match column.widest() {
            Cell::None | Cell::Text(_) => {
                // Equal texts are one object: names repeat in each row.
                let text = |cell: &Cell| PyString::intern(python, &cell.to_string());
                let object = |cell: &Cell| (*cell != Cell::None).then(|| text(cell));
                out.set_item(name, column.cells().map(object).collect::<Vec<_>>())?;
            }
            Cell::Float(_) => {
                let values = column.cells().map(|cell| cell.float().unwrap_or(f64::NAN));
                out.set_item(name, PyArray1::from_vec(python, values.collect()))?;
            }
            Cell::Int(_) => out.set_item(name, whole(python, ints().collect())?)?,
            Cell::Flag(_) => {
                let flags = ints().map(|flag| Some(flag? != 0));
                out.set_item(name, whole(python, flags.collect())?)?;
            }
            Cell::Time(_) => {
                // numpy's "not a time" is the least 64-bit number.
                let ms = ints().map(|ms| ms.unwrap_or(i64::MIN)).collect();
                let times =
                    PyArray1::from_vec(python, ms).call_method1("view", ("datetime64[ms]",))?;
                out.set_item(name, times)?;
            }
        }
    }
    Ok(out)
}

/// Returns an array, or a list if a value is missing.
fn whole<'py, T>(python: Python<'py>, values: Vec<Option<T>>) -> PyResult<Bound<'py, PyAny>>
where
    T: Element + Copy + IntoPyObject<'py>,
{
    Ok(match values.iter().copied().collect::<Option<Vec<T>>>() {
        Some(values) => PyArray1::from_vec(python, values).into_any(),
        None => PyList::new(python, values)?.into_any(),
    })
}

/// The records in files as JSON texts, and what could not be read of them.
#[pyfunction]
fn read(python: Python<'_>, paths: Vec<String>) -> PyResult<(Vec<String>, Vec<String>)> {
    python.detach(|| {
        let (mut lines, mut errors) = (Vec::new(), Vec::new());
        for path in &paths {
            let refused = |error| refused(path, &error);
            let file = BufReader::with_capacity(1 << 20, File::open(path).map_err(refused)?);
            let contents = jsonl::read(file).map_err(refused)?;
            lines.extend(contents.records.iter().map(line));
            errors.extend(contents.errors.iter().map(|error| format!("{path}: {error}")));
        }
        Ok((lines, errors))
    })
}

fn line(record: &RunRecord) -> String {
    String::from_utf8_lossy(&jsonl::to_line(record)).trim_end().to_owned()
}

fn context() -> Context {
    let tool = Tool {
        name: "daqmeter-python".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        git_revision: "unknown".into(),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
    };
    daqmeter_campaign::context(tool, "python".into())
}

/// Error of its own class: FileNotFoundError, PermissionError.
fn refused(path: &str, error: &io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{path}: {error}")).into()
}

fn append_to(path: String) -> PyResult<File> {
    jsonl::append_to(path.as_ref()).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            PyOSError::new_err(format!("{path} is being written by another run"))
        }
        _ => refused(&path, &error),
    })
}

/// Time between two looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(5);

/// Measures the points of a plan, given by its text or by its name; returns their records as JSON
/// texts, each appended to a file first if one is named, and what was not measured, with the
/// reason: a point that is refused costs no other.
#[pyfunction]
#[pyo3(signature = (name, text, out, budget_s))]
fn run_plan(
    python: Python<'_>,
    name: &str,
    text: Option<&str>,
    out: Option<String>,
    budget_s: Option<f64>,
) -> PyResult<(Vec<String>, Vec<String>)> {
    let plan = text.map_or_else(|| Plan::load(name), |text| Plan::parse(text, name));
    let plan = plan.map_err(|why| match text.is_none() && !Path::new(name).exists() {
        true => PyFileNotFoundError::new_err(why),
        false => wrong(why),
    })?;
    let time = budget_s.map(Duration::try_from_secs_f64);
    let budget =
        Budget { time: time.transpose().map_err(wrong)?.or(plan.budget.time), ..plan.budget };
    let mut file = out.map(append_to).transpose()?;
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    let take = |event: RunnerEvent<'_>| match event {
        RunnerEvent::Planned { .. } | RunnerEvent::Begins(_) => Ok(()),
        RunnerEvent::Measured(record) => {
            lines.push(line(&record));
            file.as_mut().map_or(Ok(()), |file| file.write_all(&jsonl::to_line(&record)))
        }
        RunnerEvent::Refused(point, fault) => {
            errors.push(format!("{}: {fault}", point.workload));
            Ok(())
        }
    };
    let mut runner = Runner::new(context());
    let (stop, mut signal) = (runner.stop.clone(), Ok(()));
    // Python handles signals in this thread only.
    let done = python.detach(|| {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| runner.run(plan.points, budget, &[], take));
            while !run.is_finished() {
                std::thread::sleep(LOOK);
                if signal.is_ok() {
                    signal = Python::attach(|python| python.check_signals());
                }
                if signal.is_err() {
                    stop.set();
                }
            }
            run.join()
        })
    });
    signal?;
    let done = done.map_err(|_| wrong("a bug in daqmeter ended the run"))??;
    let Done { begun, points, .. } = done;
    if !done.is_complete() {
        errors.push(format!("the time is over: {begun} of {points} points were begun"));
    }
    Ok((lines, errors))
}

/// Engines with their parameters and the meanings of these.
#[pyfunction]
fn engine_list() -> Vec<(&'static str, Vec<(String, String)>)> {
    let about = |engine: &daqmeter_harness::Engine| {
        engine.parameters().into_iter().map(|found| (found.name, found.about)).collect()
    };
    ENGINES.iter().map(|engine| (engine.name, about(engine))).collect()
}

/// One conversion, prepared once.
#[pyclass(frozen)]
struct NativeConverter {
    converter: Converter,
    /// True when it writes doubles.
    #[pyo3(get)]
    doubles: bool,
}

#[pymethods]
impl NativeConverter {
    #[new]
    #[pyo3(signature = (kind, factor, offset, int_bits, frac_bits, signed, decimation, first, non_temporal))]
    #[allow(clippy::too_many_arguments, reason = "the Python side gives them names and defaults")]
    fn new(
        kind: &str,
        factor: f64,
        offset: f64,
        int_bits: u32,
        frac_bits: u32,
        signed: bool,
        decimation: usize,
        first: usize,
        non_temporal: bool,
    ) -> PyResult<NativeConverter> {
        let qmn = || {
            Qmn::new(int_bits, frac_bits, signed)
                .ok_or_else(|| wrong("a fixed-point format has 1 to 63 bits"))
        };
        let conversion = match kind {
            "cast" => Conversion::CastF32,
            "scale" => Conversion::ScaleF32 { factor, offset },
            "fixed-f32" => Conversion::QmnF32(qmn()?),
            "fixed-f64" => Conversion::QmnF64(qmn()?),
            other => {
                return Err(wrong(format!(
                    "`{other}`: cast, scale, fixed-f32 or fixed-f64 is wanted"
                )));
            }
        };
        let store = if non_temporal { Store::NonTemporal } else { Store::Cached };
        let decimation = Decimation { offset: first, factor: decimation };
        let converter = Converter::new(conversion, decimation, Isa::best(), store)
            .ok_or_else(|| wrong("decimation is 1 or more"))?;
        Ok(NativeConverter { converter, doubles: conversion.out_bytes() == 8 })
    }

    /// Number of samples kept.
    fn kept(&self, samples: usize) -> usize {
        self.converter.decimation().kept(samples)
    }

    /// Converts into an array that is there; neither array is copied, and the interpreter's lock is
    /// not held.
    fn into(
        &self,
        python: Python<'_>,
        raw: PyReadonlyArray1<'_, u16>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let raw = raw.as_slice().map_err(|_| wrong("samples: a contiguous array is wanted"))?;
        match self.doubles {
            true => self.write(python, raw, out, "float64", |out| Out::F64(out)),
            false => self.write(python, raw, out, "float32", |out| Out::F32(out)),
        }
    }
}

impl NativeConverter {
    fn write<T: Element + Send>(
        &self,
        python: Python<'_>,
        raw: &[u16],
        out: &Bound<'_, PyAny>,
        kind: &str,
        typed: fn(&mut [T]) -> Out<'_>,
    ) -> PyResult<()> {
        let array = out.cast::<PyArray1<T>>();
        let array = array.map_err(|_| wrong(format!("out: an array of {kind} is wanted")))?;
        let mut array = array.try_readwrite().map_err(|error| wrong(format!("out: {error}")))?;
        let out = array.as_slice_mut().map_err(|_| wrong("out: a contiguous array is wanted"))?;
        let kept = self.converter.decimation().kept(raw.len());
        if out.len() < kept {
            return Err(wrong(format!("out: {kept} places are wanted, it has {}", out.len())));
        }
        python.detach(|| self.converter.convert(raw, typed(out)));
        Ok(())
    }
}

/// Chunks of FELIX blocks: `(elink, payload, flags)` of each whole chunk, and counts of what was
/// wrong.
#[pyfunction]
#[pyo3(signature = (data, abce_kib))]
fn decode_felix<'py>(
    python: Python<'py>,
    data: &[u8],
    abce_kib: u8,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyDict>)> {
    let chunks = PyList::empty(python);
    let mut elinks = BTreeMap::<u16, OpenChunk>::new();
    let (mut bad_blocks, mut at) = (0_u64, 0);
    while at < data.len() {
        let left = &data[at..];
        let Some(header) = left.first_chunk::<HEADER_BYTES>() else {
            return Err(wrong(format!("byte {at}: {} bytes hold no block", left.len())));
        };
        let magic = FelixHeader::parse(*header).magic;
        let format = BlockFormat::of_magic(magic, abce_kib).ok_or_else(|| {
            wrong(format!("byte {at}: no block begins here (magic {magic:#06x})"))
        })?;
        let block = left.get(..format.block_bytes).ok_or_else(|| {
            let (found, wanted) = (left.len(), format.block_bytes);
            wrong(format!("byte {at}: the last block is cut off: {found} of {wanted} bytes"))
        })?;
        at += format.block_bytes;
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        let Ok((header, found)) = subchunks(format, block, &mut room) else {
            bad_blocks += 1;
            continue;
        };
        let elink = header.elink.number();
        let open = elinks.entry(elink).or_insert_with(OpenChunk::new);
        open.reader.begin(header);
        for (at, subchunk) in found.iter().enumerate() {
            let Some(part) = open.reader.part(subchunk, at == 0) else { continue };
            open.take(&part, block);
            if part.ends {
                let payload = PyBytes::new(python, &open.payload);
                chunks.append((elink, payload, open.flags.clone()))?;
            }
        }
    }
    let counts = PyDict::new(python);
    let sum = |of: fn(&Reassembler) -> u64| elinks.values().map(|open| of(&open.reader)).sum();
    for (name, count) in [
        ("bad_blocks", bad_blocks),
        ("blocks", sum(|reader| reader.counts.blocks)),
        ("blocks_missing", sum(|reader| reader.counts.blocks_missing)),
        ("chunks_broken", sum(|reader| reader.counts.chunks_broken)),
        ("chunks_open", sum(|reader| reader.is_open().into())),
    ] {
        counts.set_item(name, count)?;
    }
    Ok((chunks, counts))
}

/// An E-link, and the present chunk of it.
struct OpenChunk {
    reader: Reassembler,
    payload: Vec<u8>,
    flags: Vec<&'static str>,
}

impl OpenChunk {
    fn new() -> OpenChunk {
        OpenChunk { reader: Reassembler::new(), payload: Vec::new(), flags: Vec::new() }
    }

    fn take(&mut self, part: &ChunkPart, block: &[u8]) {
        if part.begins {
            self.payload.clear();
            self.flags.clear();
        }
        self.payload.extend_from_slice(&block[part.begin..][..part.length]);
        let set = [
            (part.flags.truncated, "truncated"),
            (part.flags.error, "error"),
            (part.flags.crc, "crc"),
            (part.flags.busy, "busy"),
        ];
        self.flags.extend(set.iter().filter(|(on, _)| *on).map(|(_, name)| *name));
    }
}

/// The records of one Etherbone message as dictionaries.
#[pyfunction]
fn decode_etherbone<'py>(python: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let header = EbHeader::parse(data).map_err(wrong)?;
    let layout = header.layout().map_err(wrong)?;
    let short = || wrong("the message ends in its header");
    let mut rest = data.get(layout.header_bytes()..).ok_or_else(short)?;
    let out = PyDict::new(python);
    out.set_item("no_reads", header.no_reads)?;
    out.set_item("probe_request", header.probe_request)?;
    out.set_item("probe_response", header.probe_response)?;
    let records = PyList::empty(python);
    while !rest.is_empty() {
        let (record, left) = EbRecord::split(layout, rest).map_err(wrong)?;
        rest = left;
        let flags = [
            (RecordFlags::BCA, "BCA"),
            (RecordFlags::RCA, "RCA"),
            (RecordFlags::RFF, "RFF"),
            (RecordFlags::CYC, "CYC"),
            (RecordFlags::WCA, "WCA"),
            (RecordFlags::WFF, "WFF"),
        ];
        let entry = PyDict::new(python);
        let set: Vec<&str> = flags
            .iter()
            .filter(|(flag, _)| record.header.flags.has(*flag))
            .map(|(_, name)| *name)
            .collect();
        entry.set_item("flags", set)?;
        entry.set_item("select", record.header.select)?;
        for (name, block) in [("write", record.write_block()), ("read", record.read_block())] {
            let block = block.map(|(base, values)| (base, values.collect::<Vec<u64>>()));
            entry.set_item(name, block)?;
        }
        records.append(entry)?;
    }
    out.set_item("records", records)?;
    Ok(out)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        NativeConverter, columns, decode_etherbone, decode_felix, engine_list, read, run_plan,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name of a version")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
