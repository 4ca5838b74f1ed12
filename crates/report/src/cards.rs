//! Points over time for the page: a small picture each, those with a finding first, the others folded.

use std::fmt::Write;

use daqmeter_record::units::{plural, show_ns};
use daqmeter_stats::median;
use serde::Serialize;

use crate::dates::{seconds, ticks};
use crate::history::{Trend, found_text, lines_of};
use crate::svg::escaped;

/// Pictures that are not folded: a dozen rows of two.
const MAX_OPEN: usize = 24;
/// As many pictures as a page holds for a host.
const MAX_CARDS: usize = 2000;
/// More runs are drawn as a line alone.
const MAX_DOTS: usize = 60;

/// A host with its points.
#[derive(Serialize)]
pub(crate) struct HostView {
    name: String,
    summary: String,
    found: Vec<Card>,
    more: Vec<Card>,
    quiet: Vec<Card>,
    left_out: usize,
}

/// A point.
#[derive(Serialize)]
pub(crate) struct Card {
    point: String,
    svg: String,
    about: String,
    found: String,
    lines: Vec<String>,
}

/// All hosts, each with its points, the largest step first.
pub(crate) fn hosts(trends: &[Trend]) -> Vec<HostView> {
    let of_host = |trends: &[Trend]| host(&trends[0].host, trends.iter().collect());
    let same = |a: &Trend, b: &Trend| a.host == b.host;
    trends.chunk_by(same).map(of_host).collect()
}

fn host(name: &str, mut trends: Vec<&Trend>) -> HostView {
    let all = trends.len();
    // Stable: what has no finding keeps the order of its study.
    trends.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let findings = trends.iter().filter(|trend| weight(trend) > 0.0).count();
    let mut cards: Vec<Card> = trends.iter().take(MAX_CARDS).map(|trend| card(trend)).collect();
    let quiet = cards.split_off(findings.min(cards.len()));
    let more = cards.split_off(MAX_OPEN.min(cards.len()));
    HostView {
        name: name.to_owned(),
        summary: format!(
            "{}, {findings} with a finding. Each picture is a point over time (UTC): higher is slower. A dashed line is where a step begins, a bar the level between steps.",
            plural(all as u64, "point")
        ),
        found: cards,
        more,
        quiet,
        left_out: all.saturating_sub(MAX_CARDS),
    }
}

/// Steps before all else, by their size; then what is none; 0 without a finding.
fn weight(trend: &Trend) -> f64 {
    let step = |ratio: f64| 10.0 + ratio.ln().abs();
    let steps = trend.steps.iter().map(|found| step(found.ratio));
    let others =
        [(trend.drifts, 3.0), (trend.has_two_modes, 2.0), (!trend.bad_hours.is_empty(), 1.0)];
    let others = others.iter().filter(|(is, _)| *is).map(|(_, weight)| *weight);
    steps.chain(others).fold(0.0, f64::max)
}

fn card(trend: &Trend) -> Card {
    let time = |run: usize| show_ns(trend.runs[run].time_ns);
    let last = trend.runs.len() - 1;
    let found = found_text(trend);
    Card {
        point: trend.point.clone(),
        svg: svg(trend),
        about: format!(
            "{} from {} to {} ({})",
            plural(trend.runs.len() as u64, "run"),
            time(0),
            time(last),
            trend.level
        ),
        found: if found == "-" { String::new() } else { found },
        lines: lines_of(trend),
    }
}

/// Size of a picture, and of its margins, in its own units: pixels where a card is 320 wide.
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 128.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 24.0;
/// Room for a date, `2026-11-21`, at 10 pixels a letter's height.
const DATE_WIDTH: f64 = 68.0;

/// Where values are drawn.
struct Frame {
    from: f64,
    to: f64,
    least: f64,
    most: f64,
}

impl Frame {
    fn x(&self, at: f64) -> f64 {
        LEFT + (at - self.from) / (self.to - self.from) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.least) / (self.most - self.least) * (HEIGHT - TOP - BOTTOM)
    }
}

/// The runs of a point at their times; one after the other where a time cannot be read.
fn svg(trend: &Trend) -> String {
    let times: Option<Vec<f64>> = trend.runs.iter().map(|run| seconds(&run.time_utc)).collect();
    let are_dates = times.is_some();
    let numbers = || (0..trend.runs.len()).map(|at| at as f64).collect();
    let places: Vec<f64> = times.unwrap_or_else(numbers);
    let values: Vec<f64> = trend.runs.iter().map(|run| run.time_ns).collect();
    let frame = frame(&places, &values);
    let mut out = format!(
        "<svg class=\"trend\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(&in_words(trend))
    );
    axes(&mut out, &frame, &values, are_dates);
    bad_hours(&mut out, &frame, trend, &places);
    levels(&mut out, &frame, trend, &places, &values);
    runs(&mut out, &frame, trend, &places);
    out + "</svg>"
}

/// A point for those who do not see its picture.
fn in_words(trend: &Trend) -> String {
    let (first, last) = (&trend.runs[0], &trend.runs[trend.runs.len() - 1]);
    format!(
        "{}: {} on {}, {} on {}; found: {}",
        trend.point,
        show_ns(first.time_ns),
        first.time_utc,
        show_ns(last.time_ns),
        last.time_utc,
        found_text(trend)
    )
}

/// Bounds of the axes: runs of one moment still have a width, and scatter of less than 2 % does not fill the height.
fn frame(places: &[f64], values: &[f64]) -> Frame {
    let bounds = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((from, to), (least, most)) = (bounds(places), bounds(values));
    let spare_s = if to > from { 0.0 } else { 60.0 };
    let spare_ns = (most * 0.02 - (most - least)).max(0.0) / 2.0;
    Frame { from: from - spare_s, to: to + spare_s, least: least - spare_ns, most: most + spare_ns }
}

fn axes(out: &mut String, frame: &Frame, values: &[f64], are_dates: bool) {
    let floor = HEIGHT - BOTTOM;
    let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{floor}H{}\"/>", WIDTH - RIGHT);
    let sorted = daqmeter_stats::sorted(values);
    let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
    // Two figures need two lines of text.
    let are_apart = frame.y(least) - frame.y(most) > 12.0;
    for value in [Some(most), are_apart.then_some(least)].into_iter().flatten() {
        let (x, y) = (LEFT - 4.0, frame.y(value) + 3.5);
        let _ =
            write!(out, "<text x=\"{x}\" y=\"{y:.1}\" class=\"value\">{}</text>", show_ns(value));
    }
    if are_dates {
        dates(out, frame);
    }
}

fn dates(out: &mut String, frame: &Frame) {
    let most = (WIDTH - LEFT - RIGHT) / DATE_WIDTH;
    let floor = HEIGHT - BOTTOM;
    for tick in ticks(frame.from, frame.to, most as usize) {
        let x = frame.x(tick.at_s);
        // At the right edge the text is moved inwards.
        let middle = x.min(WIDTH - DATE_WIDTH / 2.0 + 4.0);
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{x:.1} {floor}v4\"/><text x=\"{middle:.1}\" y=\"{}\" class=\"date\">{}</text>",
            HEIGHT - 6.0,
            tick.label
        );
    }
}

fn bad_hours(out: &mut String, frame: &Frame, trend: &Trend, places: &[f64]) {
    for hour in &trend.bad_hours {
        let (x, end) = (frame.x(places[hour.runs.0]), frame.x(places[hour.runs.1]));
        let _ = write!(
            out,
            "<rect class=\"bad\" x=\"{:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"/>",
            x - 2.0,
            end - x + 4.0,
            HEIGHT - TOP - BOTTOM
        );
    }
}

/// The level between steps, and a line where each begins.
fn levels(out: &mut String, frame: &Frame, trend: &Trend, places: &[f64], values: &[f64]) {
    let begins = trend.steps.iter().map(|step| step.at);
    let mut borders: Vec<usize> = std::iter::once(0).chain(begins).collect();
    if borders.len() == 1 {
        return;
    }
    borders.push(values.len());
    for pair in borders.windows(2).filter(|pair| pair[0] < pair[1]) {
        let (from, to) = (frame.x(places[pair[0]]), frame.x(places[pair[1] - 1]));
        let y = frame.y(median(&values[pair[0]..pair[1]]));
        let _ = write!(out, "<path class=\"level\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
    }
    for step in &trend.steps {
        let x = frame.x(places[step.at]);
        let _ = write!(out, "<path class=\"step\" d=\"M{x:.1} {TOP}V{}\"/>", HEIGHT - BOTTOM);
    }
}

fn runs(out: &mut String, frame: &Frame, trend: &Trend, places: &[f64]) {
    let with_place = || trend.runs.iter().zip(places);
    let point = |(run, at): (&crate::history::Run, &f64)| {
        format!("{:.1},{:.1}", frame.x(*at), frame.y(run.time_ns))
    };
    let points: Vec<String> = with_place().map(point).collect();
    let _ = write!(out, "<polyline points=\"{}\"/>", points.join(" "));
    if trend.runs.len() > MAX_DOTS {
        return;
    }
    for (run, at) in with_place() {
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\"><title>{}</title></circle>",
            frame.x(*at),
            frame.y(run.time_ns),
            escaped(&format!("{} {} {}", run.time_utc, show_ns(run.time_ns), run.revision))
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{BadHour, Run, Step};

    /// A run a day, of these times in milliseconds.
    fn trend(point: &str, times_ms: &[f64]) -> Trend {
        let run = |(at, time_ms): (usize, &f64)| Run {
            time_utc: format!("2026-11-{:02}T03:00:00.000Z", at + 1),
            run_id: format!("run-{at}"),
            revision: "aaaa".into(),
            time_ns: time_ms * 1e6,
        };
        Trend {
            confirmation: None,
            host: "Test CPU, 2 CPUs".into(),
            point: point.into(),
            study: "digitizer".into(),
            level: "mean",
            runs: times_ms.iter().enumerate().map(run).collect(),
            controls: Vec::new(),
            control_share: None,
            steps: Vec::new(),
            bad_hours: Vec::new(),
            has_two_modes: false,
            drifts: false,
        }
    }

    fn with_step(point: &str, ratio: f64) -> Trend {
        let step = Step {
            at: 3,
            between: (3, 3),
            ratio,
            z: 9.0,
            revisions: ("aaaa".into(), "bbbb".into()),
        };
        Trend {
            steps: vec![step],
            ..trend(point, &[5.0, 5.01, 5.0, 5.0 * ratio, 5.02 * ratio, 5.0 * ratio])
        }
    }

    fn with_bad_hour(point: &str) -> Trend {
        let hour = BadHour { runs: (1, 2), ratio: 2.0 };
        Trend { bad_hours: vec![hour], ..trend(point, &[5.0, 10.0, 10.0, 5.0]) }
    }

    #[test]
    fn the_largest_step_comes_first_and_what_has_no_finding_is_folded() {
        let all = [
            trend("quiet", &[5.0, 5.0]),
            with_bad_hour("bad hour"),
            with_step("small", 1.1),
            with_step("large", 0.5),
        ];
        let view = &hosts(&all)[0];
        let names = |cards: &[Card]| -> Vec<String> {
            cards.iter().map(|card| card.point.clone()).collect()
        };
        assert_eq!(names(&view.found), ["large", "small", "bad hour"]);
        assert_eq!(names(&view.quiet), ["quiet"]);
        assert!(view.summary.starts_with("4 points, 3 with a finding."));
    }

    #[test]
    fn every_point_is_on_the_page_however_many_have_a_finding() {
        let many: Vec<Trend> = (0..40).map(|at| with_step(&format!("p{at}"), 1.5)).collect();
        let view = &hosts(&many)[0];
        assert_eq!((view.found.len(), view.more.len(), view.left_out), (MAX_OPEN, 16, 0));
        let more: Vec<Trend> = (0..MAX_CARDS + 5).map(|_| trend("p", &[5.0, 5.0])).collect();
        assert_eq!(hosts(&more)[0].left_out, 5);
    }

    #[test]
    fn a_point_has_dates_below_it_and_its_step_marked() {
        insta::assert_snapshot!(svg(&with_step("digitizer <read-out>", 1.1)).replace("><", ">\n<"));
    }

    #[test]
    fn dates_do_not_overlap_whatever_the_span() {
        for (from, to) in [
            ("2026-11-01T03:00:00Z", "2026-11-01T03:00:00Z"),
            ("2026-11-01T03:00:00Z", "2026-11-01T03:07:00Z"),
            ("2026-11-01T03:00:00Z", "2026-11-22T16:00:00Z"),
            ("2024-02-29T23:59:00Z", "2026-11-22T16:00:00Z"),
            ("1999-01-01T00:00:00Z", "2026-11-22T16:00:00Z"),
        ] {
            let mut two = trend("p", &[5.0, 6.0]);
            two.runs[0].time_utc = from.into();
            two.runs[1].time_utc = to.into();
            let svg = svg(&two);
            let dates = svg.split("class=\"date\"").count() - 1;
            assert!(dates > 0, "{from} to {to}: {svg}");
            let place =
                |text: &str| text.rsplit("x=\"").next()?.split('"').next()?.parse::<f64>().ok();
            let pieces: Vec<&str> = svg.split("class=\"date\"").collect();
            let places: Vec<f64> = pieces[..dates].iter().filter_map(|text| place(text)).collect();
            assert!(
                places.windows(2).all(|pair| pair[1] - pair[0] > 52.0),
                "{from} to {to}: {places:?}"
            );
        }
    }

    #[test]
    fn runs_without_a_readable_time_stand_one_after_the_other() {
        let mut odd = trend("p", &[5.0, 6.0, 7.0]);
        odd.runs[1].time_utc = "yesterday".into();
        let svg = svg(&odd);
        assert!(!svg.contains("class=\"date\""), "{svg}");
        assert!(svg.contains("points=\"58.0,104.0 184.0,58.0 310.0,12.0\""), "{svg}");
    }
}
