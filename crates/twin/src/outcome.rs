//! What a simulated run did.

use daqmeter_stats::LogHistogram;

/// What happened after the warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Time that was counted, in seconds.
    pub seconds: f64,
    /// Events of the whole run, the warm-up included.
    pub events: u64,
    /// Items that left, and their bytes.
    pub left: u64,
    /// Bytes of these.
    pub left_bytes: u64,
    /// Time of each item that left, from its source, in ps, to about 3 %.
    pub latency_ps: LogHistogram,
    /// Sum of these times, in seconds.
    pub latency_sum_s: f64,
    /// When nothing could move any more, in seconds: buffers in a circle that are all full.
    pub stuck_at_s: Option<f64>,
    /// In the model's order.
    pub stations: Vec<StationOutcome>,
    /// In the model's order.
    pub sources: Vec<SourceOutcome>,
}

impl Outcome {
    /// Mean time of an item, from its source until it left; none where none left.
    pub fn latency_mean_s(&self) -> Option<f64> {
        (self.left > 0).then(|| self.latency_sum_s / self.left as f64)
    }

    /// Items that were lost in stations, at full buffers and on the way.
    pub fn lost(&self) -> u64 {
        let lost = |station: &StationOutcome| station.lost_full + station.lost_on_way;
        self.stations.iter().map(lost).sum()
    }
}

/// One station.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StationOutcome {
    /// Items that were served.
    pub done: u64,
    /// Items that found no room.
    pub lost_full: u64,
    /// Items that were lost behind it.
    pub lost_on_way: u64,
    /// Items that were lost behind it and sent again.
    pub sent_again: u64,
    /// Server time that was used, looks included, in seconds.
    pub work_s: f64,
    /// Of which looks.
    pub look_s: f64,
    /// Items that wait or are served, mean over the time.
    pub mean_items: f64,
    /// Bytes of these, mean over the time.
    pub mean_bytes: f64,
    /// Most items.
    pub max_items: u64,
    /// Most bytes.
    pub max_bytes: u64,
    /// Bytes at equal distances over all of the time, the warm-up included.
    pub samples_bytes: Vec<u64>,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceOutcome {
    /// Items that came or would have come.
    pub offered: u64,
    /// Of which BUSY stopped.
    pub stopped: u64,
    /// Share of the time with BUSY.
    pub busy_share: f64,
    /// When BUSY came first, in seconds from the start of the run.
    pub first_busy_s: Option<f64>,
}
