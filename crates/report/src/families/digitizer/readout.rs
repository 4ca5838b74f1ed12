//! Boards read in parallel: rate of each, beside its rate alone.

use daqmeter_record::units::significant;
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Rate;

use super::{all, fusion, is_triggered};
use crate::family::PlainAnswer;
use crate::figures::{Axis, Figure, Plot, Series};
use crate::rate;

const READOUT: Plot = Plot {
    id: "readout",
    title: "Boards read in parallel",
    caption: "Raw bytes read per second from each board, over all its reads, while the others are read too; and what each board moves \
              alone. What is missing is the uplink that they share.",
    x: Axis::linear(""),
    y: Axis::linear("MB/s"),
};

struct Boards<'a> {
    record: &'a RunRecord,
    lanes: Vec<(&'a str, &'a Stage)>,
}

impl<'a> Boards<'a> {
    fn of(record: &'a RunRecord) -> Option<Boards<'a>> {
        let lanes = record.lanes.iter().filter_map(|lane| {
            let stage = lane.stages.iter().find(|stage| stage.name == "func_readout")?;
            Some((lane.device.as_str(), stage))
        });
        let lanes: Vec<_> = lanes.collect();
        (!lanes.is_empty()).then_some(Boards { record, lanes })
    }

    /// Returns the run with the most boards, without triggered runs, whose rate is that of the
    /// triggers, and without runs whose time includes a conversion.
    fn most(records: &'a [RunRecord]) -> Option<Boards<'a>> {
        let fusions = fusion::records(records);
        let is_fusion = |record: &RunRecord| fusions.iter().any(|own| std::ptr::eq(*own, record));
        all(records)
            .filter(|record| !is_triggered(record) && !is_fusion(record))
            .filter_map(Boards::of)
            .max_by_key(|boards| boards.record.lanes.len())
    }

    fn alone(&self) -> Vec<Option<f64>> {
        let limit = |stage| Some(rate::limit_of(self.record, stage)?.rate_bytes_per_s / 1e6);
        self.lanes.iter().map(|(_, stage)| limit(stage)).collect()
    }

    /// Returns all bytes over the whole time of the run, because averages do not give the joint
    /// rate before the first board finishes. Its interval is as wide, by ratio, as that of the
    /// boards' mean.
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
    let together = boards.lanes.iter().map(|(_, stage)| Some(stage.rate_bytes_per_s() / 1e6));
    let names = boards.lanes.iter().map(|(device, _)| (*device).to_owned()).collect();
    let series = vec![
        Series::new("together", together.collect()),
        Series::new("alone", boards.alone()).into_limit(),
    ];
    READOUT.bars(names, series, [boards.record])
}

pub(super) fn answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let boards = Boards::most(records)?;
    let lanes = boards.record.lanes.iter();
    let emulated = lanes.filter(|lane| lane.is_emulated(boards.record)).count();
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
            significant(boards.alone().iter().flatten().sum(), 4)
        ),
    };
    Some(PlainAnswer { question: "How fast is read-out?", answer, figure: Some("readout") })
}
