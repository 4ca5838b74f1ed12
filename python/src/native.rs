//! daqmeter as a Python module: records as columns, engines and plans, decoders, conversions on
//! numpy arrays.
//! This file only passes values between Python and the crates, which compute everything. Longer
//! work runs without the interpreter's lock.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Write};
use std::time::Duration;

use daqmeter_campaign::{
    Budget, Done, ENGINES, Options, Plan, PlannedPoint, Runner, Watch, engine,
};
use daqmeter_harness::{Context, Engine, Fault, StepPlan};
use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out, Qmn};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::{Param, RunRecord, Tool, Workload, jsonl};
use daqmeter_report::export::{
    Cell, CellType, DataColumn, DataFrame, counters, samples, series, stages,
};
use daqmeter_wire::etherbone::{EbMessage, EbRecord, RecordFlags};
use daqmeter_wire::felix::block::HEADER_BYTES;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Reassembler, Subchunk, subchunks};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(what.to_string())
}

fn read(paths: &[String]) -> PyResult<(Vec<RunRecord>, Vec<String>)> {
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        let refused = |error: std::io::Error| PyOSError::new_err(format!("{path}: {error}"));
        let contents =
            jsonl::read(BufReader::with_capacity(1 << 20, File::open(path).map_err(refused)?))
                .map_err(refused)?;
        records.extend(contents.records);
        errors.extend(contents.errors.iter().map(|error| format!("{path}: {error}")));
    }
    Ok((records, errors))
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

fn texts<'py>(python: Python<'py>, column: &DataColumn) -> Vec<Option<Bound<'py, PyString>>> {
    let mut known: HashMap<String, Bound<'py, PyString>> = HashMap::new();
    let mut object = |cell: &Cell| {
        let text = (*cell != Cell::None).then(|| cell.to_string())?;
        let new = || PyString::new(python, &text);
        Some(known.entry(text.clone()).or_insert_with(new).clone())
    };
    column.cells().map(&mut object).collect()
}

/// Converts numbers and flags without holes, and moments, to numpy arrays; other columns become
/// lists.
fn columns<'py>(python: Python<'py>, frame: &DataFrame) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(python);
    for column in &frame.columns {
        let name = &column.name;
        let ints = || column.cells().map(Cell::int);
        match column.cell_type() {
            CellType::Text => out.set_item(name, texts(python, column))?,
            CellType::Float => {
                let values = column.cells().map(|cell| cell.float().unwrap_or(f64::NAN));
                out.set_item(name, PyArray1::from_vec(python, values.collect()))?;
            }
            CellType::Int => match ints().collect::<Option<Vec<i64>>>() {
                Some(values) => out.set_item(name, PyArray1::from_vec(python, values))?,
                None => out.set_item(name, ints().collect::<Vec<_>>())?,
            },
            CellType::Flag => {
                let flags = || ints().map(|flag| Some(flag? != 0));
                match flags().collect::<Option<Vec<bool>>>() {
                    Some(values) => out.set_item(name, PyArray1::from_vec(python, values))?,
                    None => out.set_item(name, flags().collect::<Vec<_>>())?,
                }
            }
            CellType::Time => {
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

/// Columns of the records in files, and what could not be read of them.
#[pyfunction]
fn read_columns<'py>(
    python: Python<'py>,
    paths: Vec<String>,
    what: &str,
) -> PyResult<(Bound<'py, PyDict>, Vec<String>)> {
    let (frame, errors) = python.detach(|| -> PyResult<_> {
        let (records, errors) = read(&paths)?;
        Ok((frame_of(&records, what)?, errors))
    })?;
    Ok((columns(python, &frame)?, errors))
}

/// The records in files as JSON texts.
#[pyfunction]
fn read_json(python: Python<'_>, paths: Vec<String>) -> PyResult<(Vec<String>, Vec<String>)> {
    python.detach(|| {
        let (records, errors) = read(&paths)?;
        Ok((records.iter().map(line).collect(), errors))
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
    Context::gather(
        tool,
        "python".into(),
        Isa::available().map(|isa| isa.name().to_owned()).collect(),
    )
    .with_cards(&daqmeter_campaign::card_families())
}

fn param(value: &Bound<'_, PyAny>) -> PyResult<Param> {
    // bool comes before int, because it is a subclass of int in Python.
    if let Ok(flag) = value.cast::<pyo3::types::PyBool>() {
        return Ok(Param::Flag(flag.is_true()));
    }
    if let Ok(number) = value.extract::<u64>() {
        return Ok(Param::Int(number));
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(Param::Float(number));
    }
    value
        .extract::<String>()
        .map(Param::Text)
        .map_err(|_| wrong("a parameter is a number, a name, True or False"))
}

/// Measures one point and returns its record as JSON text.
#[pyfunction]
#[pyo3(signature = (engine, workload, seconds, pin, study))]
fn run_engine(
    python: Python<'_>,
    engine: &str,
    workload: &Bound<'_, PyDict>,
    seconds: f64,
    pin: Vec<u32>,
    study: &str,
) -> PyResult<String> {
    if !(seconds > 0.0 && seconds <= 86_400.0) {
        return Err(wrong("seconds: above 0 and at most a day"));
    }
    let mut asked = Workload::new(engine);
    for (name, value) in workload.iter() {
        asked.params.insert(name.extract()?, param(&value)?);
    }
    python.detach(|| {
        check_parameters(&asked)?;
        let runner = Runner::new(context());
        let steps = StepPlan::Timed(Duration::from_secs_f64(seconds));
        let settings = runner.settings(steps, study, &pin);
        let record = runner.measured(engine, &asked, &settings).map_err(wrong)?;
        Ok(line(&record))
    })
}

/// Refuses parameters that the engine does not have. The runner refuses unknown engines.
fn check_parameters(asked: &Workload) -> PyResult<()> {
    let Ok(engine) = engine(&asked.kind) else {
        return Ok(());
    };
    let parameters = engine.parameters();
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    match asked.params.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(wrong(format!(
            "`{name}` is not a parameter of {}; there are: {}",
            engine.name,
            names.join(", ")
        ))),
    }
}

struct Kept {
    file: Option<File>,
    lines: Vec<String>,
    errors: Vec<String>,
}

impl Watch for Kept {
    type Error = PyErr;

    /// Checks for Ctrl-C between points.
    fn begins(&mut self, _point: &PlannedPoint) -> PyResult<()> {
        Python::attach(|python| python.check_signals())
    }

    fn record(&mut self, record: RunRecord) -> PyResult<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&jsonl::to_line(&record))
                .map_err(|error| PyOSError::new_err(error.to_string()))?;
        }
        self.lines.push(line(&record));
        Ok(())
    }

    fn refused(&mut self, point: &PlannedPoint, fault: Fault) -> PyResult<()> {
        self.errors.push(format!("{}: {fault}", point.workload));
        Ok(())
    }
}

fn append_to(path: &str) -> PyResult<File> {
    jsonl::append_to(path.as_ref()).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            PyOSError::new_err(format!("{path} is being written by another run"))
        }
        _ => PyOSError::new_err(format!("{path}: {error}")),
    })
}

/// Measures the points of a plan; returns their records as JSON texts, each appended to a file
/// first if one is named, and what was not measured, with the reason: a point that is refused costs
/// no other.
#[pyfunction]
#[pyo3(signature = (plan, out, budget_s))]
fn run_plan(
    python: Python<'_>,
    plan: &str,
    out: Option<String>,
    budget_s: Option<f64>,
) -> PyResult<(Vec<String>, Vec<String>)> {
    let plan = Plan::load(plan).map_err(wrong)?;
    let time = budget_s.map(Duration::try_from_secs_f64);
    let budget =
        Budget { time: time.transpose().map_err(wrong)?.or(plan.budget.time), ..plan.budget };
    let mut kept = Kept {
        file: out.as_deref().map(append_to).transpose()?,
        lines: Vec::new(),
        errors: Vec::new(),
    };
    let options = Options { budget, ..Options::default() };
    let done = python.detach(|| {
        let mut runner = Runner::new(context());
        runner.run(plan.points, options, &mut kept)
    })?;
    let Done { begun, points, .. } = done;
    if !done.is_complete() {
        kept.errors.push(format!("the time is over: {begun} of {points} points were begun"));
    }
    Ok((kept.lines, kept.errors))
}

/// An engine: name, description, [(parameter, meaning)].
type EngineRow = (String, String, Vec<(String, String)>);

/// Engines with their parameters.
#[pyfunction]
fn engine_list() -> Vec<EngineRow> {
    let engine = |engine: &Engine| {
        let parameters =
            engine.parameters().into_iter().map(|found| (found.name, found.about)).collect();
        (engine.name.to_owned(), engine.description.to_owned(), parameters)
    };
    ENGINES.iter().map(engine).collect()
}

/// One conversion, prepared once.
#[pyclass(frozen)]
struct NativeConverter {
    converter: Converter,
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

    /// True when it writes doubles.
    #[getter]
    fn doubles(&self) -> bool {
        self.doubles
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
        if self.doubles {
            self.write::<f64>(python, raw, out, |converter, raw, out| {
                converter.convert(raw, Out::F64(out))
            })
        } else {
            self.write::<f32>(python, raw, out, |converter, raw, out| {
                converter.convert(raw, Out::F32(out))
            })
        }
    }
}

impl NativeConverter {
    fn write<T: Element + Send>(
        &self,
        python: Python<'_>,
        raw: &[u16],
        out: &Bound<'_, PyAny>,
        convert: impl FnOnce(&Converter, &[u16], &mut [T]) + Send,
    ) -> PyResult<()> {
        let kind = if self.doubles { "float64" } else { "float32" };
        let array = out
            .cast::<PyArray1<T>>()
            .map_err(|_| wrong(format!("out: an array of {kind} is wanted")))?;
        let mut array = array.try_readwrite().map_err(|error| wrong(format!("out: {error}")))?;
        let out = array.as_slice_mut().map_err(|_| wrong("out: a contiguous array is wanted"))?;
        let kept = self.converter.decimation().kept(raw.len());
        if out.len() < kept {
            return Err(wrong(format!("out: {kept} places are wanted, it has {}", out.len())));
        }
        python.detach(|| convert(&self.converter, raw, out));
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
    let (mut readers, mut open) = (
        std::collections::BTreeMap::<u16, Reassembler>::new(),
        std::collections::BTreeMap::<u16, (Vec<u8>, Vec<&str>)>::new(),
    );
    let (mut bad_blocks, mut at) = (0_u64, 0);
    while at + HEADER_BYTES <= data.len() {
        let magic = u16::from_le_bytes([data[at + 2], data[at + 3]]);
        let format = BlockFormat::of_magic(magic, abce_kib).ok_or_else(|| {
            wrong(format!("byte {at}: no block begins here (magic {magic:#06x})"))
        })?;
        let Some(block) = data.get(at..at + format.block_bytes) else {
            return Err(wrong(format!(
                "byte {at}: the last block is cut off: {} of {} bytes",
                data.len() - at,
                format.block_bytes
            )));
        };
        at += format.block_bytes;
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        let (header, found) = match subchunks(format, block, &mut room) {
            Ok(found) => found,
            Err(_) => {
                bad_blocks += 1;
                continue;
            }
        };
        let elink = header.elink.number();
        let reader = readers.entry(elink).or_insert_with(Reassembler::new);
        let broken_before = reader.counts.chunks_broken;
        let mut parts = Vec::new();
        reader.block(header, found, |part| parts.push(part));
        if reader.counts.chunks_broken > broken_before
            && parts.first().is_none_or(|part| part.begins)
        {
            open.remove(&elink);
        }
        for part in parts {
            if part.begins {
                open.insert(elink, Default::default());
            }
            let Some((payload, flags)) = open.get_mut(&elink) else {
                continue;
            };
            payload.extend_from_slice(&block[part.begin..part.begin + part.length]);
            let set = [
                (part.flags.truncated, "truncated"),
                (part.flags.error, "error"),
                (part.flags.crc, "crc"),
                (part.flags.busy, "busy"),
            ];
            flags.extend(set.iter().filter(|(on, _)| *on).map(|(_, name)| *name));
            if part.ends
                && let Some((payload, flags)) = open.remove(&elink)
            {
                chunks.append((elink, PyBytes::new(python, &payload), flags))?;
            }
        }
    }
    if at < data.len() {
        return Err(wrong(format!(
            "byte {at}: {} bytes are left that hold no block",
            data.len() - at
        )));
    }
    let counts = PyDict::new(python);
    let sum = |of: fn(&Reassembler) -> u64| readers.values().map(of).sum::<u64>();
    counts.set_item("bad_blocks", bad_blocks)?;
    counts.set_item("blocks", sum(|reader| reader.counts.blocks))?;
    counts.set_item("blocks_missing", sum(|reader| reader.counts.blocks_missing))?;
    counts.set_item("chunks_broken", sum(|reader| reader.counts.chunks_broken))?;
    counts.set_item("chunks_open", open.len())?;
    Ok((chunks, counts))
}

/// The records of one Etherbone message as dictionaries.
#[pyfunction]
fn decode_etherbone<'py>(python: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let message = EbMessage::parse(data).map_err(wrong)?;
    let out = PyDict::new(python);
    out.set_item("no_reads", message.header.no_reads)?;
    out.set_item("probe_request", message.header.probe_request)?;
    out.set_item("probe_response", message.header.probe_response)?;
    let records = PyList::empty(python);
    let mut rest = message.records;
    while !rest.is_empty() {
        let (record, left) = EbRecord::split(message.layout, rest).map_err(wrong)?;
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
        entry.set_item(
            "write",
            record.write_block().map(|(base, values)| (base, values.collect::<Vec<u64>>())),
        )?;
        entry.set_item(
            "read",
            record.read_block().map(|(base, values)| (base, values.collect::<Vec<u64>>())),
        )?;
        records.append(entry)?;
    }
    out.set_item("records", records)?;
    Ok(out)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<NativeConverter>()?;
    module.add_function(wrap_pyfunction!(read_columns, module)?)?;
    module.add_function(wrap_pyfunction!(read_json, module)?)?;
    module.add_function(wrap_pyfunction!(run_engine, module)?)?;
    module.add_function(wrap_pyfunction!(run_plan, module)?)?;
    module.add_function(wrap_pyfunction!(engine_list, module)?)?;
    module.add_function(wrap_pyfunction!(decode_felix, module)?)?;
    module.add_function(wrap_pyfunction!(decode_etherbone, module)?)?;
    Ok(())
}
