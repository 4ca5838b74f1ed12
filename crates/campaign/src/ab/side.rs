//! The process of one side: opens the requested work, and works a slice at each request.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Duration;

use daqmeter_harness::{Fault, SlicedWork, StopFlag, next_line};
use daqmeter_sys::affinity;

use super::protocol::{Ask, Reply, SideRequest, VERSION};

/// Serves one side until its input ends.
///
/// # Errors
/// Fails for an invalid request. Errors of the work go to the other end.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<(), String> {
    let mut say = |reply: Reply| {
        let line = serde_json::to_string(&reply).map_err(|error| error.to_string())?;
        let written = writeln!(output, "{line}").and_then(|()| output.flush());
        written.map_err(|error| error.to_string())
    };
    let mut line = Vec::new();
    let mut next =
        |line: &mut Vec<u8>| next_line(&mut input, line).map_err(|error| error.to_string());
    next(&mut line)?;
    let request = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
    let (mut slices, stages) = match begin(&request) {
        Ok(begun) => begun,
        Err(why) => return say(Reply::Refused(why)),
    };
    say(Reply::Ready { version: VERSION, stages: stages.clone() })?;
    while next(&mut line)? {
        let asked = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
        let done = match asked {
            Ask::Slice { stage, operations } if stage < stages.len() && operations > 0 => {
                slices.slice(stage, operations).map(Reply::Slice)
            }
            Ask::Slice { .. } => Err(Fault::new("there is no such stage")),
            Ask::Verify => slices.verify().map(|()| Reply::Verified {}),
        };
        say(done.unwrap_or_else(|fault| Reply::Refused(fault.to_string())))?;
    }
    Ok(())
}

fn begin(request: &SideRequest) -> Result<(SlicedWork, Vec<(String, u64)>), String> {
    if request.version != VERSION {
        return Err(format!(
            "this binary speaks version {VERSION} of the protocol of sides, not {}",
            request.version
        ));
    }
    // Keeps the memory until the process ends.
    black_box(Vec::<u8>::with_capacity(request.shift_bytes.min(1 << 20))).leak();
    if let Some(cpu) = request.cpu {
        affinity::pin_to(cpu).map_err(|error| error.to_string())?;
    }
    let kind = &request.workload.kind;
    let engine = crate::engine(kind).map_err(|_| format!("no engine is named `{kind}`"))?;
    let open = || {
        let job = engine.parse(&request.workload)?;
        let mut slices = SlicedWork::open(&job, &StopFlag::default())?;
        let stages = warm(&mut slices, request)?;
        Ok((slices, stages))
    };
    open().map_err(|fault: Fault| fault.to_string())
}

fn warm(slices: &mut SlicedWork, request: &SideRequest) -> Result<Vec<(String, u64)>, Fault> {
    let time = Duration::from_micros(request.slice_us);
    let mut stages = Vec::new();
    for (at, name) in slices.stages().into_iter().enumerate() {
        let operations = match request.operations.get(&name) {
            Some(operations) => slices.slice(at, *operations).map(|_| *operations)?,
            None => slices.operations(at, time)?,
        };
        stages.push((name, operations));
    }
    Ok(stages)
}
