//! The process of one side: opens what it is asked for, and works a slice whenever it is its turn.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Duration;

use daqmeter_harness::{Slices, StopFlag};
use daqmeter_sys::affinity;

use super::protocol::{Ready, Reply, Request, VERSION};

/// Serves one side over these pipes until the other end closes them. A line with a stage's number asks for a slice of it, `verify` for
/// a comparison of bytes.
///
/// # Errors
/// When the pipes break. What is wrong with the work goes to the other end.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let (mut slices, operations) = match begin(&line) {
        Ok((slices, ready)) => {
            writeln!(output, "{}", serde_json::to_string(&ready)?)?;
            output.flush()?;
            (slices, ready.stages)
        }
        Err(why) => {
            output.write_all(Reply::Refused(why).line().as_bytes())?;
            return output.flush();
        }
    };
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = match line.trim_end() {
            "verify" => slices.verify().map(|()| Reply::Verified),
            stage => match stage
                .parse()
                .ok()
                .and_then(|at: usize| Some((at, operations.get(at)?)))
            {
                Some((at, (_, operations))) => slices.slice(at, *operations).map(Reply::Slice),
                None => return Ok(()),
            },
        };
        let reply = reply.unwrap_or_else(|fault| Reply::Refused(fault.to_string()));
        output.write_all(reply.line().as_bytes())?;
        output.flush()?;
    }
}

fn begin(line: &str) -> Result<(Slices, Ready), String> {
    let request: Request = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if request.version != VERSION {
        return Err(format!(
            "this binary speaks version {VERSION} of the protocol of sides, not {}",
            request.version
        ));
    }
    // Kept for as long as the process lives.
    black_box(Vec::<u8>::with_capacity(request.shift_bytes)).leak();
    if let Some(cpu) = request.cpu {
        affinity::pin_to(cpu).map_err(|error| error.to_string())?;
    }
    let engines = crate::engines(0);
    let engine = engines
        .iter()
        .find(|engine| engine.name() == request.workload.kind);
    let engine = engine.ok_or_else(|| format!("no engine is named `{}`", request.workload.kind))?;
    let mut slices = Slices::open(engine.as_ref(), &request.workload, &StopFlag::default())
        .map_err(|fault| fault.to_string())?;
    let time = Duration::from_micros(request.slice_us);
    let mut stages = Vec::new();
    for (at, name) in slices.stages().into_iter().enumerate() {
        let operations = slices
            .operations(at, time)
            .map_err(|fault| fault.to_string())?;
        stages.push((name, operations));
    }
    Ok((
        slices,
        Ready {
            version: VERSION,
            stages,
        },
    ))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use super::*;

    fn said(lines: &str) -> Vec<String> {
        let mut output = Vec::new();
        serve(lines.as_bytes(), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_side_says_what_it_is_ready_for_works_slices_and_verifies() {
        let mut request = Request::new(Workload::new("null"), None);
        request.slice_us = 50;
        let request = serde_json::to_string(&request).unwrap();
        let said = said(&format!("{request}\n0\n0\nverify\n"));
        let ready: Ready = serde_json::from_str(&said[0]).unwrap();
        assert_eq!(ready.stages[0].0, "null");
        assert!(
            matches!(Reply::parse(&said[1]), Some(Reply::Slice(_))),
            "{said:?}"
        );
        assert_eq!(said[3], "verified");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_its_reason() {
        for (workload, wanted) in [
            (Workload::new("nothing"), "no engine is named `nothing`"),
            (Workload::new("convert").with("samples", "x"), "samples"),
        ] {
            let request = serde_json::to_string(&Request::new(workload, None)).unwrap();
            let said = said(&format!("{request}\n"));
            assert!(
                said[0].starts_with("refused ") && said[0].contains(wanted),
                "{said:?}"
            );
        }
        assert!(said("garbage\n")[0].starts_with("refused "));
    }
}
