//! Stages that were measured by themselves, each beside its limit: a table. Which of them would limit a path does not follow from it,
//! because they never stand in one line and share CPUs and memory there: that is what whole paths are run for (`chains`).

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

use crate::aligned::numbers_from;
use crate::families::FAMILIES;
use crate::family::Segment;
use crate::rate::{self, shown_interval};

/// The stages that were measured, in the order in which data comes to them. What failed, and rates above their limit, are left out.
pub(crate) fn stages(records: &[RunRecord]) -> Vec<Segment> {
    let records = &*rate::usable(records);
    let parts = FAMILIES.iter().flat_map(|family| family.segments);
    let mut segments: Vec<Segment> = parts.filter_map(|part| part(records)).collect();
    segments.sort_by_key(|segment| segment.into);
    segments
}

/// Whether the records are of a host, and not of one thing that was measured.
pub(crate) fn are_of_a_host(records: &[RunRecord]) -> bool {
    stages(records).len() > 1
}

/// Headings of [`lines`]; from the fourth on they are of numbers.
pub(crate) const HEADINGS: [&str; 7] =
    ["into", "by", "", "MB/s", "95 % MB/s", "limit MB/s", "of limit"];

/// A line for each stage; none where fewer than two were measured.
pub(crate) fn lines(records: &[RunRecord]) -> Vec<Vec<String>> {
    let all = stages(records);
    match all.len() {
        0 | 1 => Vec::new(),
        _ => all.iter().map(line).collect(),
    }
}

fn line(segment: &Segment) -> Vec<String> {
    let mb = |rate: f64| significant(rate / 1e6, 4);
    let emulated = if segment.emulated { "emulated" } else { "" };
    let limit = segment.limit_bytes_per_s;
    let share = segment.fraction;
    vec![
        segment.into.name().to_owned(),
        segment.by.clone(),
        emulated.to_owned(),
        mb(segment.rate_bytes_per_s),
        shown_interval(segment.rate_interval_bytes_per_s),
        limit.map_or("-".to_owned(), mb),
        share.map_or("-".to_owned(), |share| format!("{share:.2}")),
    ]
}

/// The table for the terminal; empty where fewer than two stages were measured.
pub fn stages_text(records: &[RunRecord]) -> String {
    let lines = lines(records);
    if lines.is_empty() {
        return String::new();
    }
    format!("Stages, each measured by itself\n{}", numbers_from(3, &HEADINGS, lines))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use super::*;
    use crate::examples::record;

    fn host() -> Vec<RunRecord> {
        let with = |kind: &str| Workload::new(kind);
        let mut boards =
            record("digitizer", with("digitizer"), "survey/readout", "func_readout", 1_600_000);
        boards.engine.emulated = true;
        let function = with("convert").with("function", 3_u64);
        let stream = |bytes: u64| with("stream").with("message_bytes", bytes);
        vec![
            boards,
            record("convert", function, "survey/conversion", "func_sca", 110_000),
            record("stream", stream(65_536), "survey/network", "receive", 400_000),
            record("stream", stream(4096), "survey/network", "receive", 900_000),
        ]
    }

    #[test]
    fn stages_are_listed_in_the_order_of_the_data_and_none_is_called_the_limit() {
        insta::assert_snapshot!(stages_text(&host()));
        assert_eq!(stages_text(&host()[..1]), "", "one stage is not a host");
    }

    #[test]
    fn what_failed_or_is_above_its_limit_is_left_out() {
        let mut records = host();
        records[2].outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        // 1 MB in 30 us beside a limit of 10 GB/s.
        records[1].lanes[0].stages[0].sample_ns = vec![30_000; 9];
        let by: Vec<String> = stages(&records).into_iter().map(|found| found.by).collect();
        assert_eq!(
            by,
            ["read-out of 1 board (emulated)", "TCP stream, 4 KiB messages"],
            "the other size is left"
        );
    }
}
