//! Expressions over records and formulas, records and their statistics.

use std::collections::BTreeMap;

use daqmeter_record::border::sum;
use daqmeter_record::study::{Basis, Measured};
use daqmeter_record::{Ledger, Param, RunRecord, Stage};
use daqmeter_report::findings::operations_ns;
use daqmeter_stats::{Summary, median};
use serde::Deserialize;

use super::formula::Formula;

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Expression {
    Number(f64),
    Name(String),
    Operation(Box<Operation>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Operation {
    Sum(Vec<Expression>),
    Product(Vec<Expression>),
    Mean(Vec<Expression>),
    Min(Vec<Expression>),
    Max(Vec<Expression>),
    Ratio([Expression; 2]),
    Difference([Expression; 2]),
    /// Work of this host's own processor, though an emulated device delivered the data.
    Processor(Expression),
    Of(String, Statistic),
    Formula(Formula),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Select {
    pub(super) study: Option<String>,
    engine: Option<String>,
    lanes: Option<usize>,
    /// Takes the record with the most lanes, and of these the longest.
    pub(super) largest: bool,
    parameters: BTreeMap<String, Param>,
    without: BTreeMap<String, Vec<Param>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Statistic {
    Counter(String),
    Parameter(String),
    Lanes,
    /// Operations that were lost on the way, by the ledgers.
    Lost,
    MeanNs,
    MedianNs,
    RateBytesPerS,
    CpuPercent,
    OthersPercent,
    /// Share of the samples of a profile in symbols that contain one of these texts.
    HotPercent(Vec<String>),
    Board(Board),
}

/// One lane in a stage, of the lanes from the fastest to the slowest; or the mean over the lanes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Board {
    column: Column,
    stage: usize,
    rank: Option<usize>,
    #[serde(default)]
    skip: usize,
    /// Reads that the column covers; a lane with another number has no value.
    reads: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Column {
    SpeedMbPerS,
    StartMs,
    EndMs,
    DurationMs,
}

/// A number and its source; constants and formulas have no basis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    pub(super) value: f64,
    pub(super) basis: Option<Basis>,
    pub(super) is_disturbed: bool,
}

impl Number {
    pub(super) fn plain(value: f64) -> Number {
        Number { value, basis: None, is_disturbed: false }
    }

    pub(super) fn with(self, other: Number, value: f64) -> Number {
        let is_disturbed = self.is_disturbed || other.is_disturbed;
        Number { value, basis: self.basis.max(other.basis), is_disturbed }
    }

    pub(super) fn measured(self) -> Option<Measured> {
        let basis = self.basis.filter(|_| self.value.is_finite())?;
        Some(Measured { value: self.value, basis, is_disturbed: self.is_disturbed })
    }
}

impl Select {
    pub(super) fn takes(&self, record: &RunRecord) -> bool {
        let recorded = |name: &String| record.workload.params.get(name);
        let is_without = |(name, values): (&String, &Vec<Param>)| {
            values.iter().all(|value| !is_equal(recorded(name), value))
        };
        record.outcome.is_ok()
            && self.study.as_ref().is_none_or(|study| record.study == study.as_str())
            && self.engine.as_ref().is_none_or(|engine| record.workload.kind == *engine)
            && self.lanes.is_none_or(|lanes| record.lanes.len() == lanes)
            && self.parameters.iter().all(|(name, wanted)| is_equal(recorded(name), wanted))
            && self.without.iter().all(is_without)
    }
}

impl Statistic {
    pub(super) fn of(&self, record: &RunRecord) -> Option<f64> {
        let of_wall = |ns: u64| ns as f64 / record.wall_ns.max(1) as f64 * 100.0;
        match self {
            Statistic::Counter(name) => record.counter(name),
            Statistic::Parameter(name) => record.workload.float(name).ok(),
            Statistic::Lanes => Some(record.lanes.len() as f64),
            Statistic::Lost => Some(sum(record.ledgers.iter().map(Ledger::lost_on_the_way)) as f64),
            Statistic::MeanNs => Some(Summary::of(&operations_ns(record))?.mean),
            Statistic::MedianNs => median(&operations_ns(record)),
            Statistic::RateBytesPerS => {
                Some(record.lanes.first()?.stages.first()?.rate_bytes_per_s())
            }
            Statistic::CpuPercent => Some(of_wall(record.process_cpu.total_ns())),
            Statistic::OthersPercent => {
                let host = &record.host_cpu;
                let busy = host.user_ns + host.system_ns + host.irq_ns + host.softirq_ns;
                Some(of_wall(busy.saturating_sub(record.process_cpu.total_ns())))
            }
            Statistic::HotPercent(parts) => {
                let is_hot = |symbol: &str| parts.iter().any(|part| symbol.contains(part));
                let hot = record.hotspots.iter().filter(|spot| is_hot(&spot.symbol));
                let percent = hot.fold(0.0, |sum, spot| sum + spot.share * 100.0);
                (!record.hotspots.is_empty()).then_some(percent)
            }
            Statistic::Board(board) => board.of(record),
        }
    }
}

impl Board {
    fn of(&self, record: &RunRecord) -> Option<f64> {
        let reads = |stage: &Stage| stage.ops_per_sample * stage.sample_ns.len() as u64;
        let stages = record.lanes.iter().filter_map(|lane| lane.stages.get(self.stage));
        let mut lanes: Vec<(f64, f64)> = stages
            .filter(|stage| self.reads.is_none_or(|wanted| wanted == reads(stage)))
            .map(|stage| {
                let ns = stage.end_ns.saturating_sub(stage.start_ns).max(1) as f64;
                let reads = reads(stage) as f64;
                let speed = stage.bytes_per_op as f64 * reads / ns * 1e3;
                let column = match self.column {
                    Column::SpeedMbPerS => speed,
                    Column::StartMs => stage.start_ns as f64 / 1e6,
                    Column::EndMs => stage.end_ns as f64 / 1e6,
                    Column::DurationMs => {
                        (stage.end_ns as f64 - stage.start_ns as f64) / 1e6 / reads.max(1.0)
                    }
                };
                (speed, column)
            })
            .collect();
        lanes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let columns: Vec<f64> = lanes.into_iter().map(|(_, column)| column).collect();
        match self.rank {
            Some(rank) => columns.get(rank).copied(),
            None => Some(Summary::of(columns.get(self.skip..)?)?.mean),
        }
    }
}

/// Returns true for equal parameters. A number may have a fraction or not, and an absent switch is
/// off.
fn is_equal(recorded: Option<&Param>, wanted: &Param) -> bool {
    match (recorded, wanted) {
        (None, Param::Flag(wanted)) => !wanted,
        (Some(Param::Int(recorded)), Param::Float(wanted)) => *recorded as f64 == *wanted,
        (Some(Param::Float(recorded)), Param::Int(wanted)) => *recorded == *wanted as f64,
        (recorded, wanted) => recorded == Some(wanted),
    }
}
