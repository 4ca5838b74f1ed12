//! Table of `sis8300drv_threads` with its columns, definitions and order, for scripts that read it.

use std::fmt::Write;

use daqmeter_record::{Lane, RunRecord, Stage};

/// Stage that the original does not time.
const WAIT_STAGE: &str = "wait_trigger";

/// Writes the parameter block and the table. Rows are in the order of completion.
///
/// Definitions: `size` is the raw size, also for decimated output. `start` and `end` are relative
/// to the release of all threads and cover all repetitions; `dur = (end - start) / N`. `speed`
/// counts raw bytes. With a trigger loop there is one row per pass and stage.
pub fn classic(record: &RunRecord) -> String {
    let lines = parameters(record);
    let lines = lines.iter().map(|(name, value)| format!(" {name:<16}{value}\n"));
    format!("Parameters:\n{}{}", lines.collect::<String>(), table(record))
}

fn int(record: &RunRecord, name: &str) -> u64 {
    record.workload.int(name).unwrap_or(0)
}

fn parameters(record: &RunRecord) -> Vec<(&'static str, String)> {
    let loops = int(record, "passes");
    // Triggered reads hold ten channels of whole pairs of blocks.
    let multiple = if loops > 0 { 320 } else { 16 };
    let samples = int(record, "samples").next_multiple_of(multiple);
    let size = |bytes: u64| format!("{bytes} b ({:.1} MB)", bytes as f64 / 1e6);
    let whole = |name| (name, int(record, name).to_string());
    let real = |name| (name, format!("{:.6}", record.workload.float(name).unwrap_or(0.0)));
    let mut lines = vec![
        whole("function"),
        whole("access"),
        ("nsamples", samples.to_string()),
        ("nbytes_raw", size(2 * samples)),
        ("nbytes", size(4 * samples)),
        ("nreads", int(record, "reads").to_string()),
        whole("dec_offset"),
        whole("dec_factor"),
        real("scale_offset"),
        real("scale_factor"),
    ];
    if loops > 0 {
        lines.push(("loop", loops.to_string()));
        let is_interrupt = record.workload.text("completion") == Ok("interrupt");
        lines.extend(is_interrupt.then(|| ("daq_intr", "1".to_owned())));
    }
    lines.push(("ndevices", record.lanes.len().to_string()));
    lines
}

struct ClassicRow<'a> {
    stage: &'a Stage,
    device: &'a str,
    start_ns: u64,
    end_ns: u64,
    reads: u64,
}

fn table(record: &RunRecord) -> String {
    let by_pass = int(record, "passes") > 0;
    let rows = if by_pass { passes } else { whole };
    let mut rows: Vec<ClassicRow<'_>> = record.lanes.iter().flat_map(rows).collect();
    rows.retain(|row| row.stage.name != WAIT_STAGE);
    rows.sort_by_key(|row| row.end_ns);
    let mut out = format!(
        "{:>15}, {:>15}, {:>15}, {:>15}, {:>15}, {:>15}, {:>15}\n",
        "func", "dev", "size [MB]", "start [ms]", "end [ms]", "dur [ms]", "speed [MB/s]"
    );
    for ClassicRow { stage, device, start_ns, end_ns, reads } in rows {
        let span_ms = (end_ns - start_ns) as f64 / 1e6;
        let bytes = stage.bytes_per_op;
        let speed = if span_ms > 0.0 { (bytes * reads) as f64 / span_ms / 1e3 } else { 0.0 };
        let (megabytes, start_ms, end_ms) =
            (bytes as f64 / 1e6, start_ns as f64 / 1e6, end_ns as f64 / 1e6);
        let _ = writeln!(
            out,
            "{:>15}, {device:>15}, {megabytes:>15.1}, {start_ms:>15.1}, {end_ms:>15.1}, {:>15.1}, {speed:>15.1}",
            stage.name.as_str(),
            span_ms / reads.max(1) as f64,
        );
    }
    out
}

fn whole(lane: &Lane) -> Vec<ClassicRow<'_>> {
    let stages = lane.stages.iter().filter(|stage| !stage.sample_ns.is_empty());
    let rows = stages.map(|stage| ClassicRow {
        stage,
        device: &lane.device,
        start_ns: stage.start_ns,
        end_ns: stage.end_ns,
        reads: stage.ops_per_sample.saturating_mul(stage.sample_ns.len() as u64),
    });
    rows.collect()
}

/// Returns one row per pass and stage. The record has the duration of every step. Steps of a pass
/// follow one another, so their start is a sum of durations.
fn passes(lane: &Lane) -> Vec<ClassicRow<'_>> {
    let most = lane.stages.iter().map(|stage| stage.sample_ns.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    let mut now = lane.stages.first().map_or(0, |stage| stage.start_ns);
    for pass in 0..most {
        for stage in &lane.stages {
            let Some(&ns) = stage.sample_ns.get(pass) else {
                continue;
            };
            let (start_ns, reads) = (now, stage.ops_per_sample);
            now += ns;
            rows.push(ClassicRow { stage, device: &lane.device, start_ns, end_ns: now, reads });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    fn example() -> RunRecord {
        let mut record = examples::example();
        record.set_param("reads", 1_u64);
        record.set_param("scale_factor", 1.0);
        record
    }

    #[test]
    fn the_originals_table() {
        insta::assert_snapshot!(classic(&example()));
    }

    #[test]
    fn a_trigger_loop_gives_a_row_per_pass() {
        let mut record = example();
        record.set_param("passes", 3_u64);
        record.set_param("completion", "interrupt");
        insta::assert_snapshot!(classic(&record));
    }

    #[test]
    fn the_documents_own_row_comes_out_as_printed() {
        let mut record = example();
        record.lanes.truncate(1);
        let stage = &mut record.lanes[0].stages[0];
        (stage.start_ns, stage.end_ns, stage.bytes_per_op) = (300_000, 2_895_600_000, 60_000_000);
        stage.sample_ns = vec![1; 30];
        record.lanes[0].stages.truncate(1);
        record.lanes[0].device = "/dev/sis8300-6".into();
        let last = classic(&record).lines().last().unwrap().to_owned();
        let published = "   func_readout,  /dev/sis8300-6,            60.0,             0.3,          2895.6,            96.5,           621.7";
        assert_eq!(last, published);
    }
}
