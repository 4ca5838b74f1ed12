//! Opens plans by every engine's `open`: any text is a plan or is refused in one line, and any
//! workload opens or is refused.
//! An opened workload describes itself and has no more lanes than a host can run. The engines of
//! memory do their work once and check it.
//! Text is a plan. Bytes after a zero are the example of an engine with other values: the engine's
//! number, then for each value the parameter's number, a kind and eight bytes.
#![no_main]

use std::sync::LazyLock;

use daqmeter_campaign::{ENGINES, Plan, engine};
use daqmeter_harness::{Engine, MAX_LANES, Parameter};
use daqmeter_record::{Param, Workload};
use libfuzzer_sys::fuzz_target;

/// Most points of a plan that are opened: a plan has up to 100,000.
const OPENED: usize = 16;
const MAX_BYTES: u64 = 64 << 20;

static PARAMETERS: LazyLock<Vec<Vec<Parameter>>> =
    LazyLock::new(|| ENGINES.iter().map(Engine::parameters).collect());

/// Returns true for workloads with outside parameters: devices, files and modules of the host under
/// test stay untouched.
fn reaches_out(workload: &Workload) -> bool {
    let names = ["devices", "profile", "scenario", "link", "path"];
    let named = names.iter().filter_map(|name| workload.text(name).ok());
    let paths = ["tmpfs-huge", "hugetlb", "module"];
    named
        .into_iter()
        .any(|text| text.contains('/') || text.contains(".toml") || paths.contains(&text))
}

fn open(engine: &Engine, workload: &Workload) {
    let Ok(job) = engine.parse(workload) else {
        return;
    };
    let bytes = job.memory_bytes;
    let is_large = engine.name == "readout" && bytes.is_none_or(|bytes| bytes > MAX_BYTES);
    if reaches_out(workload) || is_large || job.waiver.is_some() {
        return;
    }
    let Ok(mut sessions) = job.open() else {
        return;
    };
    assert!(!sessions.is_empty() && sessions.len() as u64 <= MAX_LANES);
    for session in &sessions {
        assert!(!session.stages().is_empty() && !session.device().is_empty());
    }
    let works = ["memory", "convert"].contains(&engine.name)
        && bytes.is_some_and(|bytes| bytes <= MAX_BYTES);
    if let (true, Some(session)) = (works, sessions.first_mut())
        && session.prepare().is_ok()
    {
        session.verify().expect("what was opened does its work");
    }
}

fn plan(text: &str) {
    match Plan::parse(text, "fuzz") {
        Ok(plan) => {
            let every = plan.points.len().div_ceil(OPENED);
            for point in plan.points.iter().step_by(every) {
                let engine = engine(&point.engine).expect("a plan names engines that exist");
                open(engine, &point.workload);
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}

fn value(kind: u8, bytes: [u8; 8]) -> Param {
    let number = u64::from_le_bytes(bytes);
    match kind % 5 {
        0 => Param::Int(number),
        // Values around powers of two, at which products wrap.
        1 => Param::Int(
            (1_u64 << (bytes[0] % 64)).wrapping_add_signed(i64::from(bytes[1].cast_signed())),
        ),
        2 => Param::Int(number >> (bytes[0] % 64)),
        3 => Param::Float(f64::from_bits(number)),
        _ => Param::Flag(number % 2 == 1),
    }
}

fn workload(bytes: &[u8]) {
    let Some((number, values)) = bytes.split_first() else {
        return;
    };
    let number = usize::from(*number) % ENGINES.len();
    let (engine, parameters) = (&ENGINES[number], &PARAMETERS[number]);
    let mut workload = engine.example();
    for [name, kind, bytes @ ..] in values.as_chunks::<10>().0 {
        if let Some(parameter) = parameters.get(usize::from(*name) % parameters.len().max(1)) {
            workload.params.insert(parameter.name.clone(), value(*kind, *bytes));
        }
    }
    open(engine, &workload);
}

fuzz_target!(|bytes: &[u8]| {
    match bytes.strip_prefix(&[0]) {
        Some(bytes) => workload(bytes),
        None => plan(&String::from_utf8_lossy(bytes)),
    }
});
