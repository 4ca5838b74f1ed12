//! Boards read in parallel: rate of each, beside the rate that it has alone.

use daqmeter_record::units::{plural, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Rate;

use super::fusion;
use super::records::{all, is_triggered};
use crate::family::{Answer, Found, Measured, Place, Segment};
use crate::figures::{Figure, Series, bars};
use crate::rate;

/// The stage that moves data from the board.
const READOUT: &str = "func_readout";

/// Boards that were read at the same time.
struct Boards<'a> {
    record: &'a RunRecord,
    /// Device and read-out of each.
    lanes: Vec<(&'a str, &'a Stage)>,
}

impl<'a> Boards<'a> {
    fn of(record: &'a RunRecord) -> Option<Boards<'a>> {
        let lanes = record.lanes.iter().filter_map(|lane| {
            let stage = lane.stages.iter().find(|stage| stage.name == READOUT)?;
            Some((lane.device.as_str(), stage))
        });
        let lanes: Vec<_> = lanes.collect();
        (!lanes.is_empty()).then_some(Boards { record, lanes })
    }

    /// Run with the most boards. Triggered runs are left out, as they show how often triggers came,
    /// and runs in blocks, whose time includes a conversion.
    fn most(records: &'a [RunRecord]) -> Option<Boards<'a>> {
        let fusions = fusion::records(records);
        let is_fused = |record: &RunRecord| fusion::block_bytes(record) > 0;
        let is_fusion = |record: &RunRecord| fusions.contains(&std::ptr::from_ref(record));
        all(records)
            .filter(|record| !is_fusion(record) && !is_fused(record) && !is_triggered(record))
            .filter_map(Boards::of)
            .max_by_key(|boards| boards.record.lanes.len())
    }

    /// What each moves alone.
    fn alone(&self) -> Vec<Option<f64>> {
        let limit = |stage: &Stage| Some(rate::limit_of(self.record, stage)?.rate_bytes_per_s);
        self.lanes.iter().map(|(_, stage)| limit(stage)).collect()
    }

    /// All bytes over the whole time of the run: the sum of the rates while none has finished cannot be had from averages. Its interval is
    /// as wide, by ratio, as that of the boards' mean.
    fn together(&self) -> Option<Rate> {
        let bytes: f64 = self.lanes.iter().map(|(_, stage)| stage.bytes()).sum();
        let end_ns = self.lanes.iter().map(|(_, stage)| stage.end_ns).max()?;
        let per_s = bytes / (end_ns as f64 * 1e-9);
        let of_each: Option<Vec<Rate>> =
            self.lanes.iter().map(|(_, stage)| rate::of(stage)).collect();
        let mean = Rate::mean_of(&of_each.unwrap_or_default());
        (end_ns > 0).then(|| Rate {
            per_s,
            interval: mean.and_then(|mean| mean.times(per_s / mean.per_s).interval),
        })
    }
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let boards = Boards::most(records)?;
    let mb = |rate: f64| rate / 1e6;
    let together = boards.lanes.iter();
    let together = together.map(|(_, stage)| Some(mb(stage.rate_bytes_per_s())));
    let alone = boards.alone().into_iter().map(|rate| rate.map(mb));
    let figure = bars(
        "readout",
        "Boards read in parallel",
        "Raw bytes read per second from each board, over all its reads, while the others are read too; and what each board moves \
         alone. What is missing is the uplink that they share.",
        "MB/s",
        boards.lanes.iter().map(|(device, _)| (*device).to_owned()).collect(),
        vec![
            Series::new("together", together.collect()),
            Series::new("alone", alone.collect()).into_limit(),
        ],
    );
    Some(figure.drawn_from([boards.record]))
}

pub(super) fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let boards = Boards::most(measured.usable)?;
    let mb = |rate: f64| significant(rate / 1e6, 4);
    let record = boards.record;
    let lanes = record.lanes.iter();
    let emulated = lanes.filter(|lane| lane.is_emulated(record)).count();
    let total = rate::spoken(boards.together()?);
    let named = match (boards.lanes.len(), emulated) {
        (1, 0) => "one board".to_owned(),
        (1, _) => "one emulated board".to_owned(),
        (count, 0) => format!("{count} boards"),
        (count, emulated) if emulated >= count => format!("{count} emulated boards"),
        (count, emulated) => format!("{count} boards, {emulated} of them emulated,"),
    };
    let answer = match boards.lanes.len() {
        1 => format!("{named} moves {total}"),
        _ => format!(
            "{named} move {total} together; alone they would move {} MB/s in all",
            mb(boards.alone().iter().flatten().sum())
        ),
    };
    Some(Answer { question: "How fast is read-out?", answer, figure: Some("readout") })
}

/// The most boards at once, all lanes together; one thread a board.
pub(super) fn segment(records: &[RunRecord]) -> Option<Segment> {
    let boards = Boards::most(records)?;
    let emulated = boards.record.engine.emulated;
    let count = plural(boards.lanes.len() as u64, "board");
    let model = if emulated { " (emulated)" } else { "" };
    let by = format!("read-out of {count}{model}");
    let limit = boards.alone().into_iter().sum();
    let together = boards.together()?;
    let found = Found { interval: together.interval, ..Found::new(together.per_s, limit) };
    (found.rate > 0.0).then(|| Segment { emulated, ..Segment::new(Place::HostBuffer, by, found) })
}
