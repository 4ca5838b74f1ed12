//! Etherbone: cycles and round trips, the figures of the study of 2018, what reading a register costs.

mod cycles;
mod figures;

use daqmeter_record::units::significant;

use cycles::{CycleRow, cycle_rows};
pub use cycles::{cycles_text, round_trips_text};

use crate::family::{Answer, Family, Measured, Work};
use crate::rate::{interval_or_none, of_several};

pub(super) const FAMILY: Family = Family {
    engines: &[(cycles::ENGINE, Work::Path), ("pingpong", Work::Path)],
    figures: &[figures::time, figures::rate, figures::throughput, figures::words],
    answers: &[answer],
    ..Family::EMPTY
};

fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let rows = cycle_rows(measured.usable);
    let rows = rows.iter().filter(|row| row.address == "loop/udp" && row.payload == "timestamps");
    let blocking =
        rows.clone().filter(|row| row.method == "blocking").min_by_key(|row| row.count)?;
    let pipelined: Vec<_> = rows.filter(|row| row.method == "pipelined").collect();
    let best = pipelined.iter().max_by(|a, b| a.rate_khz.total_cmp(&b.rate_khz))?;
    let limit = blocking
        .limit_us
        .map(|us| format!(" (a raw ping-pong {})", significant(us, 3)))
        .unwrap_or_default();
    let time = |row: &CycleRow| {
        let interval = interval_or_none(row.item_interval_us, 3);
        format!("{} us ({interval})", significant(row.item_us, 3))
    };
    Some(Answer {
        question: "What does reading registers over Etherbone cost?",
        answer: format!(
            "over UDP on loopback one 64-bit timestamp takes {}{limit}; {} at a time in a pipeline of cycles take {} each{}",
            time(blocking),
            best.count,
            time(best),
            of_several("fastest", pipelined.len())
        ),
        figure: Some("eb-time"),
    })
}
