//! Idle readers: what they cost, what that consists of, and what else the host does meanwhile.

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Comparison, Derived, Measured};

use super::records::{find, reader_percent};
use super::{Document, Idle};

/// Rows for each published polling interval.
pub(super) fn rows(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let of = |idle: &Idle| of_interval(idle, published.input.poll_cost_us, records);
    published.idle.iter().flat_map(of).collect()
}

fn of_interval(idle: &Idle, poll_cost_us: f64, records: &[RunRecord]) -> [Comparison; 4] {
    let record = find(records, "gbt", idle.poll_us, true);
    let every = format!("polling every {} us", idle.poll_us);
    let row = |table: &str, name: String, figure, unit| {
        Comparison::new(table, name, figure, unit).of_this_host()
    };
    let cost = idle
        .cpu_percent
        .derived(format!("{} % of {} us", idle.cpu_percent, idle.poll_us), |percent| {
            percent / 100.0 * idle.poll_us
        });
    let asked = Derived::computed(idle.poll_us, "as it is asked for");
    let parts = "looks of an idle reader";
    [
        // One cost of a poll explains all three intervals.
        row(
            "CPU of one core",
            format!("idle reader, {every}"),
            Some(idle.cpu_percent.clone()),
            "%",
        )
        .model(poll_cost_us / idle.poll_us * 100.0)
        .measured(record.and_then(reader_percent)),
        row(parts, format!("time between two looks, {every}"), None, "us")
            .derived(asked)
            .measured(record.and_then(between_looks_us)),
        row(parts, format!("CPU time of a look, {every}"), None, "us")
            .derived(cost)
            .measured(record.and_then(cost_of_a_look_us)),
        row(
            "what else runs beside idle readers",
            format!("{every} (document: rngd beside 16 readers; here: all others beside one)"),
            Some(idle.rngd_percent.clone()),
            "%",
        )
        .measured(record.and_then(others_percent)),
    ]
}

/// Time for which triggers came.
fn seconds(record: &RunRecord) -> Option<f64> {
    record.workload.float("seconds").ok().filter(|seconds| *seconds > 0.0)
}

fn between_looks_us(record: &RunRecord) -> Option<Measured> {
    let polls = record.counter("polls").filter(|polls| *polls > 0.0)?;
    Measured::of_processor(record, seconds(record)? * 1e6 / polls)
}

fn cost_of_a_look_us(record: &RunRecord) -> Option<Measured> {
    let polls = record.counter("polls").filter(|polls| *polls > 0.0)?;
    let share = record.counter("reader-cpu-ppm")? * 1e-6;
    Measured::of_processor(record, share * seconds(record)? * 1e6 / polls)
}

/// CPU of everything but this program, in percent of one core.
fn others_percent(record: &RunRecord) -> Option<Measured> {
    let host = &record.host_cpu;
    let busy = host.user_ns + host.system_ns + host.irq_ns + host.softirq_ns;
    let others = busy.saturating_sub(record.process_cpu.total_ns());
    let percent = others as f64 / record.wall_ns as f64 * 100.0;
    Measured::of_processor(record, percent).filter(|_| record.wall_ns > 0)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, EngineInfo, Workload};

    use super::*;

    #[test]
    fn an_idle_readers_load_is_its_looks_and_what_one_costs() {
        let workload = Workload::new("readout")
            .with("scenario", "gbt")
            .with("rate_hz", 1.0)
            .with("poll_us", 10.0)
            .with("seconds", 2.0);
        let mut record = RunRecord::new(EngineInfo::default(), workload);
        // 20,000 looks in 2 s, 100 us each, take 0.12 s of CPU time.
        record.counters =
            vec![Counter::count("polls", 20_000), Counter::count("reader-cpu-ppm", 60_000)];
        record.wall_ns = 2_000_000_000;
        record.host_cpu.user_ns = 200_000_000;
        record.process_cpu.user_ns = 120_000_000;
        let rows = rows(&Document::default(), &[record]);
        let measured = |name: &str| {
            let row = rows.iter().find(|row| row.row.contains(name));
            row.unwrap().measured.unwrap().value()
        };
        for (name, expected) in [
            ("idle reader, polling every 10 us", 6.0),
            ("time between two looks, polling every 10 us", 100.0),
            ("CPU time of a look, polling every 10 us", 6.0),
            ("polling every 10 us (document", 4.0),
        ] {
            assert!((measured(name) - expected).abs() < 1e-9, "{name}");
        }
        let cost =
            rows.iter().find(|row| row.row.starts_with("CPU time of a look, polling every 10 us"));
        assert_eq!(cost.unwrap().derived.as_ref().unwrap().to_string(), "5.5");
        assert_eq!(rows.len(), 12);
    }
}
