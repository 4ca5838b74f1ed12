//! Etherbone: cycles and round trips, the figures of the study of 2018, the cost of reading a
//! register.

mod cycles;
mod figures;

use daqmeter_record::units::significant;

use cycles::{Cycles, cycles};
pub use cycles::{cycles_text, round_trips_text};

use crate::family::{Family, PlainAnswer, Work};
use crate::rate::{interval_or_none, of_several};

pub(super) const FAMILY: Family = Family {
    engines: &[(cycles::ENGINE, Work::Path), ("pingpong", Work::Path)],
    figures: &[figures::time, figures::rate, figures::throughput, figures::words],
    answers: &[answer],
    ..Family::EMPTY
};

fn answer(records: &[daqmeter_record::RunRecord]) -> Option<PlainAnswer> {
    let mut all = cycles(records);
    all.retain(|point| point.address == "loop/udp" && point.payload == "timestamps");
    let by = |method: &'static str| all.iter().filter(move |point| point.method == method);
    let blocking = by("blocking").min_by_key(|point| point.count)?;
    let best = by("pipelined").max_by(|a, b| b.item_us().total_cmp(&a.item_us()))?;
    let limit = blocking.limit_us().map(|us| format!(" (a raw ping-pong {})", significant(us, 3)));
    let time = |point: &Cycles<'_>| {
        let interval = point.rate.interval.map(|(low, high)| (point.us(high), point.us(low)));
        format!("{} us ({})", significant(point.item_us(), 3), interval_or_none(interval, 3))
    };
    Some(PlainAnswer {
        question: "What does reading registers over Etherbone cost?",
        answer: format!(
            "over UDP on loopback one 64-bit timestamp takes {}{}; {} at a time in a pipeline of cycles take {} each{}",
            time(blocking),
            limit.unwrap_or_default(),
            best.count,
            time(best),
            of_several("fastest", by("pipelined").count())
        ),
        figure: Some("eb-time"),
    })
}
