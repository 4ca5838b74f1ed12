//! The table of `sis8300drv_threads`: same columns, same definitions, same order, so that scripts written for it go on.

use std::fmt::Write;

use daqmeter_record::{Param, RunRecord};

/// Name of the stage that the original does not time.
const WAIT_STAGE: &str = "wait_trigger";

/// The parameter block and the table. Rows come in the order of completion.
///
/// Definitions: `size` is the raw size, also for decimated output; `start` and `end` are relative to the release of all
/// threads and cover all repetitions; `dur = (end - start) / N`; `speed` counts raw bytes. With a trigger loop there is one
/// row per pass and stage.
pub fn classic(record: &RunRecord) -> String {
    let mut out = parameters(record);
    out.push_str(&table(record));
    out
}

fn int(record: &RunRecord, name: &str, default: u64) -> u64 {
    record.workload.int(name).unwrap_or(default)
}

fn float(record: &RunRecord, name: &str, default: f64) -> f64 {
    record.workload.float(name).unwrap_or(default)
}

fn parameters(record: &RunRecord) -> String {
    let loops = int(record, "passes", 0);
    // Triggered reads hold ten channels of whole pairs of blocks.
    let multiple = if loops > 0 { 320 } else { 16 };
    let samples = int(record, "samples", 0).next_multiple_of(multiple);
    let size = |bytes: u64| format!("{bytes} b ({:.1} MB)", bytes as f64 / 1e6);
    let mut out = String::from("Parameters:\n");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, " {name:<16}{value}");
    };
    line("function", int(record, "function", 0).to_string());
    line("access", int(record, "access", 0).to_string());
    line("nsamples", samples.to_string());
    line("nbytes_raw", size(2 * samples));
    line("nbytes", size(4 * samples));
    line("nreads", int(record, "reads", 1).to_string());
    line("dec_offset", int(record, "dec_offset", 0).to_string());
    line("dec_factor", int(record, "dec_factor", 1).to_string());
    line("scale_offset", format!("{:.6}", float(record, "scale_offset", 0.0)));
    line("scale_factor", format!("{:.6}", float(record, "scale_factor", 1.0)));
    if loops > 0 {
        line("loop", loops.to_string());
        if record.workload.params.get("completion") == Some(&Param::Text("interrupt".into())) {
            line("daq_intr", "1".to_owned());
        }
    }
    line("ndevices", record.lanes.len().to_string());
    out
}

struct ClassicRow {
    stage: String,
    device: String,
    bytes: u64,
    start_ns: u64,
    end_ns: u64,
    reads: u64,
}

fn table(record: &RunRecord) -> String {
    let by_pass = int(record, "passes", 0) > 0;
    let mut rows: Vec<ClassicRow> = Vec::new();
    for lane in &record.lanes {
        if by_pass {
            rows.extend(passes(lane));
            continue;
        }
        rows.extend(
            lane.stages
                .iter()
                .filter(|stage| stage.name != WAIT_STAGE && !stage.sample_ns.is_empty())
                .map(|stage| {
                    let reads = stage.ops_per_sample.saturating_mul(stage.sample_ns.len() as u64);
                    ClassicRow {
                        stage: stage.name.to_string(),
                        device: lane.device.to_string(),
                        bytes: stage.bytes_per_op,
                        start_ns: stage.start_ns,
                        end_ns: stage.end_ns,
                        reads,
                    }
                }),
        );
    }
    rows.sort_by_key(|row| row.end_ns);
    let mut out = format!(
        "{:>15}, {:>15}, {:>15}, {:>15}, {:>15}, {:>15}, {:>15}\n",
        "func", "dev", "size [MB]", "start [ms]", "end [ms]", "dur [ms]", "speed [MB/s]"
    );
    for row in rows {
        let span_ms = (row.end_ns - row.start_ns) as f64 / 1e6;
        let speed =
            if span_ms > 0.0 { (row.bytes * row.reads) as f64 / span_ms / 1e3 } else { 0.0 };
        let _ = writeln!(
            out,
            "{:>15}, {:>15}, {:>15.1}, {:>15.1}, {:>15.1}, {:>15.1}, {:>15.1}",
            row.stage,
            row.device,
            row.bytes as f64 / 1e6,
            row.start_ns as f64 / 1e6,
            row.end_ns as f64 / 1e6,
            span_ms / row.reads.max(1) as f64,
            speed
        );
    }
    out
}

/// One row per pass and stage. The record keeps the duration of every step; since the steps of a pass follow one another,
/// their start is the sum of what came before.
fn passes(lane: &daqmeter_record::Lane) -> Vec<ClassicRow> {
    let most = lane.stages.iter().map(|stage| stage.sample_ns.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    let mut now = lane.stages.first().map_or(0, |stage| stage.start_ns);
    for pass in 0..most {
        for stage in &lane.stages {
            let Some(&ns) = stage.sample_ns.get(pass) else {
                continue;
            };
            if stage.name != WAIT_STAGE {
                rows.push(ClassicRow {
                    stage: stage.name.to_string(),
                    device: lane.device.to_string(),
                    bytes: stage.bytes_per_op,
                    start_ns: now,
                    end_ns: now + ns,
                    reads: stage.ops_per_sample,
                });
            }
            now += ns;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

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
