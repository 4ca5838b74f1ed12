//! Whether the twin is right: simulations beside formulas, documents beside their models, and paths on this host that no fit has seen.
//!
//! Formulas and documents are the same on every host, and their bands are narrow. What is measured here depends on the hour: its bands
//! are wide, and each row says beside the error how far equal runs were apart.

use std::time::{Duration, Instant};

use daqmeter_record::prediction::{PartPrediction, Predicted, Prediction};
use daqmeter_record::units::significant;
use daqmeter_report::Figure;
use daqmeter_report::figures::{Series, by_rank};
use daqmeter_report::validation::{Line, Part, Verdict};
use daqmeter_stats::simulated::Random;
use daqmeter_stats::{quantile, sorted};
use daqmeter_twin::{Check, Form, Pair, Profile, forms, predict};

use crate::calibrate::{Again, Compared, Paths, check};
use crate::drawn::{DrawnPath, drawn_path};
use crate::studies::{self, studies};

/// Seeds of a closed form.
const SEEDS: usize = 12;
/// Seed of the paths that are held back: no calibration uses it.
pub const SEED: u64 = 77;

/// Simulations beside formulas that are exact.
pub fn closed_forms() -> Part {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Part {
        id: "forms",
        title: "Simulation beside formulas that are exact".to_owned(),
        about: format!(
            "The mean of {SEEDS} seeds has to lie within twice its interval (95 %) of the formula, and that interval within 6 % to each side. Without random numbers 0.1 to 1 % are allowed: what begins and ends within the time."
        ),
        headings: vec!["what", "formula", "simulated", "from", "to"],
        names: 1,
        rows: forms(SEEDS, threads).iter().map(form_line).collect(),
    }
}

fn form_line(form: &Form) -> Line {
    let show = |value: f64| significant(value, 4);
    let found = form.simulated;
    let cells = vec![
        format!("{} [{}]", form.name, form.unit),
        show(form.formula),
        show(found.mean),
        show(found.low),
        show(found.high),
    ];
    Line { cells, verdict: Verdict::of(form.holds()) }
}

/// Figures of documents beside models of their machines.
pub fn documents() -> Part {
    let predictions = studies().into_iter().flat_map(|study| study.predictions());
    Part {
        id: "documents",
        title: "Published figures beside models of their machines".to_owned(),
        about: "A row that is marked `fit` went into the model, or follows from one that did: that it agrees says nothing. A row that is known to lie outside of its band says why; one that is said to and does not counts as outside.".to_owned(),
        headings: vec!["table", "row", "known miss", "published", "predicted", "difference [%]", "band [%]"],
        names: 3,
        rows: predictions.map(|prediction| document_line(&prediction)).collect(),
    }
}

fn document_line(prediction: &studies::Prediction) -> Line {
    let figure = &prediction.figure;
    let published = figure.published.as_ref().map(ToString::to_string);
    let derived = figure.derived.as_ref().map(|derived| format!("({derived})"));
    let formula = figure.model.map(|model| model.value());
    let predicted = prediction.simulated.or(formula);
    let text = |text: Option<String>| text.unwrap_or("-".to_owned());
    let difference = prediction.difference().filter(|off| off.is_finite());
    let cells = vec![
        figure.table.clone(),
        format!("{} [{}]", figure.row, figure.unit),
        prediction.misses.unwrap_or("").to_owned(),
        text(published.or(derived)),
        text(predicted.map(|value| significant(value, 4))),
        text(difference.map(|off| format!("{:+.1}", off * 100.0))),
        significant(prediction.band * 100.0, 2),
    ];
    let verdict = match (prediction.is_within(), prediction.misses) {
        (None, _) => Verdict::Shown,
        (Some(false), Some(_)) => Verdict::Known,
        (Some(true), None) if prediction.fitted => Verdict::Fit,
        (Some(is_within), misses) => Verdict::of(is_within && misses.is_none()),
    };
    Line { cells, verdict }
}

/// A path that was held back: predicted, and measured several times.
struct Held {
    drawn: DrawnPath,
    compared: [Compared; 2],
    predicted: [Prediction; 2],
}

/// What was found on this host.
pub struct Live {
    /// A row for each figure and group.
    pub part: Part,
    /// Predicted beside measured.
    pub figures: Vec<Figure>,
    /// Each path with its largest rate and the CPU time of its threads, the worst prediction first.
    pub paths: String,
}

/// Fewest paths for a verdict.
const MIN_PATHS: usize = 20;
/// By how much the rates of paths that are run again may differ from those of the calibration, in the median: where it is more, a
/// prediction from that calibration can be wrong and no model is at fault.
const MAX_CHANGE: f64 = 0.15;

/// How the host changed since the calibration.
struct Change {
    /// How far what a path did then is from what it does now, as shares of this; sorted.
    errors: Vec<f64>,
    /// Median of how much faster paths are, as a share.
    faster: f64,
}

impl Change {
    /// From how much faster each path is, as logarithms.
    fn of(changes: &[f64]) -> Option<Change> {
        let errors: Vec<f64> = changes.iter().map(|change| (-change).exp_m1().abs()).collect();
        (!changes.is_empty()).then(|| Change {
            errors: sorted(&errors),
            faster: daqmeter_stats::median(changes).exp_m1(),
        })
    }

    fn is_too_much(&self) -> bool {
        quantile(&self.errors, 0.5) > MAX_CHANGE
    }

    /// What a prediction would be off that repeats what was measured.
    fn line(&self) -> Line {
        let show = |share: f64| significant(quantile(&self.errors, share) * 100.0, 3);
        let mut cells = vec![
            QUANTITIES[0].name.to_owned(),
            "of the calibration, run again".to_owned(),
            self.errors.len().to_string(),
            show(0.5),
            show(0.9),
        ];
        cells.resize(HEADINGS.len(), String::new());
        Line { cells, verdict: Verdict::Shown }
    }

    fn text(&self) -> String {
        let verdict = match self.is_too_much() {
            true => format!(
                ", more than {} %: the host is not as it was, and rows outside of their bands say nothing about the model. Calibrate again, on a quieter host",
                significant(MAX_CHANGE * 100.0, 2)
            ),
            false => String::new(),
        };
        format!(
            " {} times one of the paths that the calibration checked was run again, and what was measured then is {} % off now, in the median ({:+.1} % with the sign){verdict}.",
            self.errors.len(),
            significant(quantile(&self.errors, 0.5) * 100.0, 2),
            self.faster * 100.0
        )
    }
}

/// Measures paths drawn by a seed that no calibration uses, until the budget is over, and compares them with what the profile says.
/// Of runs that come from a file it takes all. After each path one of those that the calibration checked is run again.
///
/// # Errors
/// When a path cannot be run or predicted, or a signal came.
pub fn live(
    paths: &mut Paths<'_>,
    profile: &Profile,
    seed: u64,
    budget: Duration,
    step: &mut dyn FnMut(&str),
) -> Result<Live, String> {
    let began = Instant::now();
    let mut random = Random::new(seed);
    let mut held = Vec::new();
    let here = paths.measured.host.allowed_cpus.clone();
    let is_of_these = profile.host.allowed_cpus == here;
    let profile = &profile.clone().on(&here);
    let mut again = is_of_these.then(|| Again::new(profile));
    let mut changes = Vec::new();
    step("paths that no fit has seen");
    while held.len() < MIN_PATHS || paths.is_file() || began.elapsed() < budget {
        let drawn = drawn_path(&mut random, &profile.host.allowed_cpus);
        if !paths.has(&drawn.text) {
            break;
        }
        let compared = check(paths, profile, &drawn)?;
        let predicted = |compared: &Compared| {
            predict(&compared.shape, profile, 1).map_err(|error| error.to_string())
        };
        held.push(Held {
            predicted: [predicted(&compared[0])?, predicted(&compared[1])?],
            compared,
            drawn,
        });
        if let Some(again) = &mut again {
            changes.extend(again.next(paths)?);
        }
    }
    if held.is_empty() {
        return Err(format!("there are no runs of paths of seed {seed}"));
    }
    Ok(Live {
        part: live_part(&held, profile, &Change::of(&changes), &disturbed(paths)),
        figures: figures(&held),
        paths: each_path(&held),
    })
}

/// A paragraph for each path: the rates that were predicted, with what was not corrected by checks, and measured; then the same of the
/// CPU time of each thread, as fast as it goes.
fn each_path(held: &[Held]) -> String {
    let off = |held: &Held| {
        let measured = held.compared[0].check.rate.measured;
        (measured / held.predicted[0].largest_hz.value).ln().abs()
    };
    let mut sorted: Vec<&Held> = held.iter().collect();
    sorted.sort_by(|one, other| off(other).total_cmp(&off(one)));
    let mut out = String::new();
    for held in sorted {
        let (check, predicted) = (&held.compared[0].check, &held.predicted[0]);
        let rate = predicted.largest_hz;
        out.push_str(&format!(
            "{}, {} buffers, {}\n  blocks/s: predicted {} ({} to {}, {} uncorrected), measured {}; limit: {}\n",
            check.line,
            held.compared[0].shape.buffers,
            if held.drawn.is_pinned { "pinned" } else { "not pinned" },
            significant(rate.value, 3),
            significant(rate.low, 3),
            significant(rate.high, 3),
            significant(check.rate.predicted, 3),
            significant(check.rate.measured, 3),
            predicted.limit,
        ));
        for ((part, pair), row) in
            predicted.parts.iter().zip(&check.cpu).zip(&held.compared[0].shape.rows)
        {
            out.push_str(&format!(
                "  {}{:?}: CPU predicted {} ({} uncorrected), measured {}\n",
                part.name,
                row.cpus,
                significant(part.cpu.value, 3),
                significant(pair.predicted, 3),
                significant(pair.measured, 3)
            ));
        }
    }
    out
}

/// One value of a path: predicted with its interval, measured, and how far each run was from the median of the others.
struct Value {
    predicted: Predicted,
    measured: f64,
    apart: Vec<f64>,
}

/// A figure that is validated.
struct Quantity {
    name: &'static str,
    /// Largest error in the median, in per cent or points.
    max_median: f64,
    /// Whether errors are differences, in points, and not ratios.
    is_points: bool,
    values: fn(&Held) -> Vec<Value>,
}

/// Smallest share of the values that intervals of 90 % have to hold, once in a thousand excepted. Threads of one path are not
/// independent: their values count as one.
fn fewest_held(held: &[Held], profile: &Profile) -> f64 {
    let checks = [false, true].map(|is_pinned| profile.checks_like(false, is_pinned).len());
    let checks = checks[0].min(checks[1]);
    daqmeter_stats::fewest_held(checks, held.len()) as f64 / held.len().max(1) as f64
}

const QUANTITIES: [Quantity; 5] = [
    Quantity {
        name: "largest rate [%]",
        max_median: 40.0,
        is_points: false,
        values: |held| {
            vec![ratio(&held.compared[0], held.predicted[0].largest_hz, |check| check.rate)]
        },
    },
    Quantity {
        name: "latency, median [%]",
        max_median: 100.0,
        is_points: false,
        values: |held| {
            vec![ratio(&held.compared[1], held.predicted[1].p50_ns, |check| check.p50_ns)]
        },
    },
    Quantity {
        name: "latency, p99 [%]",
        max_median: 200.0,
        is_points: false,
        values: |held| {
            vec![ratio(&held.compared[1], held.predicted[1].p99_ns, |check| check.p99_ns)]
        },
    },
    Quantity {
        name: "CPU of a thread, as fast as it goes [points]",
        max_median: 10.0,
        is_points: true,
        values: |held| cpus(held, 0),
    },
    Quantity {
        name: "CPU of a thread, at a rate [points]",
        max_median: 10.0,
        is_points: true,
        values: |held| cpus(held, 1),
    },
];

fn ratio(compared: &Compared, predicted: Predicted, of: fn(&Check) -> Pair) -> Value {
    Value {
        predicted,
        measured: of(&compared.check).measured,
        apart: compared.apart(|check| of(check).measured, |one, other| (one / other).ln().abs()),
    }
}

fn cpus(held: &Held, at: usize) -> Vec<Value> {
    let (compared, predicted) = (&held.compared[at], &held.predicted[at]);
    let rows = predicted.parts.iter().zip(&compared.check.cpu).enumerate();
    let value = |(row, (predicted, pair)): (usize, (&PartPrediction, &Pair))| Value {
        predicted: predicted.cpu,
        measured: pair.measured,
        apart: compared.apart(|check| check.cpu[row].measured, |one, other| (one - other).abs()),
    };
    rows.map(value).collect()
}

/// Groups by which errors are shown; the first is all paths, and the one that is judged.
fn groups(held: &[Held]) -> Vec<(&'static str, Vec<&Held>)> {
    let of = |is_in: &dyn Fn(&Held) -> bool| -> Vec<&Held> {
        held.iter().filter(|held| is_in(held)).collect()
    };
    let threads = |held: &Held| held.compared[0].shape.threads();
    let bytes = |held: &Held| held.compared[0].shape.block_bytes;
    let all = [
        ("all", of(&|_| true)),
        ("pinned", of(&|held| held.drawn.is_pinned)),
        ("not pinned", of(&|held| !held.drawn.is_pinned)),
        ("2 to 3 threads", of(&|held| threads(held) <= 3)),
        ("4 and more threads", of(&|held| threads(held) > 3)),
        ("blocks below 32 KiB", of(&|held| bytes(held) < 32 << 10)),
        ("blocks of 32 KiB and more", of(&|held| bytes(held) >= 32 << 10)),
    ];
    all.into_iter().filter(|(_, own)| !own.is_empty()).collect()
}

/// Runs that count though others took their CPU time; nothing where there are none.
fn disturbed(paths: &Paths<'_>) -> String {
    match &paths.disturbed {
        (runs, Some(why)) => format!(" {runs} runs were disturbed each time: {why}."),
        (_, None) => String::new(),
    }
}

const HEADINGS: [&str; 9] = [
    "figure",
    "paths",
    "n",
    "error, median",
    "p90",
    "equal runs, median",
    "p90",
    "in 90 % [%]",
    "band",
];

fn live_part(held: &[Held], profile: &Profile, change: &Option<Change>, disturbed: &str) -> Part {
    let groups = groups(held);
    let fewest_held = fewest_held(held, profile);
    let is_changed = change.as_ref().is_some_and(Change::is_too_much);
    let change_text = change.as_ref().map_or(String::new(), Change::text);
    let rows = QUANTITIES.iter().flat_map(|quantity| {
        let line = |(name, own): &(&str, Vec<&Held>)| {
            let mut line = live_line(quantity, name, own, fewest_held);
            if is_changed && line.verdict == Verdict::Outside {
                line.verdict = Verdict::CannotTell;
            }
            line
        };
        groups.iter().map(line).collect::<Vec<Line>>()
    });
    let rows = rows.chain(change.as_ref().map(Change::line));
    Part {
        id: "live",
        title: "Paths on this host that no fit has seen".to_owned(),
        about: format!(
            "{} paths drawn at random, each {} times as fast as it goes and at a share of that; medians of these runs beside what the profile of {} predicts. `equal runs` is how far one run is from the median of the others: no prediction of a single run can be better. All paths together are judged: the error in the median within its band, and {} % of the values within their intervals of 90 %, of which fewer are held once in a thousand times where paths are as those of the calibration were.{change_text}{disturbed}",
            held.len(),
            crate::calibrate::REPEATS,
            profile.time_utc,
            significant(fewest_held * 100.0, 2)
        ),
        headings: HEADINGS.to_vec(),
        names: 2,
        rows: rows.collect(),
    }
}

fn live_line(quantity: &Quantity, group: &str, held: &[&Held], fewest_held: f64) -> Line {
    let values: Vec<Value> = held.iter().flat_map(|held| (quantity.values)(held)).collect();
    let off = |value: &Value| match quantity.is_points {
        true => (value.predicted.value - value.measured).abs() * 100.0,
        false => (value.predicted.value / value.measured - 1.0).abs() * 100.0,
    };
    let errors = sorted(&values.iter().map(off).collect::<Vec<f64>>());
    let apart = values.iter().flat_map(|value| &value.apart);
    let apart = sorted(&apart.map(|share| share * 100.0).collect::<Vec<f64>>());
    let inside = values.iter().filter(|value| value.predicted.holds(value.measured));
    let inside = inside.count() as f64 / values.len().max(1) as f64;
    let show = |value: f64| significant(value, 3);
    let is_judged = group == "all";
    let cells = vec![
        quantity.name.to_owned(),
        group.to_owned(),
        values.len().to_string(),
        show(quantile(&errors, 0.5)),
        show(quantile(&errors, 0.9)),
        show(quantile(&apart, 0.5)),
        show(quantile(&apart, 0.9)),
        show(inside * 100.0),
        if is_judged { show(quantity.max_median) } else { String::new() },
    ];
    let is_within = quantile(&errors, 0.5) <= quantity.max_median && inside >= fewest_held;
    let verdict = match is_judged {
        true => Verdict::of(is_within),
        false => Verdict::Shown,
    };
    Line { cells, verdict }
}

fn figures(held: &[Held]) -> Vec<Figure> {
    let figure = |id, title: &str, unit: &str, scale: f64, at: usize| {
        let quantity = &QUANTITIES[at];
        let mut values: Vec<Value> = held.iter().flat_map(quantity.values).collect();
        values.sort_by(|one, other| one.measured.total_cmp(&other.measured));
        let of = |value: fn(&Value) -> f64| -> Vec<Option<f64>> {
            values.iter().map(|own| Some(value(own) * scale)).collect()
        };
        let band = values
            .iter()
            .map(|value| Some((value.predicted.low * scale, value.predicted.high * scale)));
        let predicted = Series {
            band: band.collect(),
            ..Series::new("predicted, 90 %", of(|value| value.predicted.value))
        };
        let caption = "Paths in the order of what was measured; the band is the interval that holds the measured value with 90 %.";
        by_rank(
            id,
            title,
            caption,
            unit,
            vec![predicted, Series::new("measured", of(|value| value.measured))],
        )
    };
    vec![
        figure("live-rate", "Largest rate: predicted beside measured", "blocks/s", 1.0, 0),
        figure("live-p50", "Median latency: predicted beside measured", "us", 1e-3, 1),
        figure("live-p99", "p99 of the latency: predicted beside measured", "us", 1e-3, 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_and_documents_are_within_their_bands_but_for_what_is_known() {
        for part in [closed_forms(), documents()] {
            let outside = part.rows.iter().filter(|row| row.verdict == Verdict::Outside);
            assert_eq!(outside.count(), 0, "{part:?}");
            assert!(part.count(Verdict::Within) > 10, "{}", part.summary());
        }
        assert_eq!(documents().count(Verdict::Known), 4);
    }

    #[test]
    fn a_host_that_changed_is_known_by_the_median_of_what_was_run_again() {
        assert!(Change::of(&[]).is_none());
        // Two are as they were, one is twice as fast: what was measured then is half of what it is now.
        let little = Change::of(&[0.02, -0.01, 2_f64.ln()]).unwrap();
        assert!(!little.is_too_much(), "{}", little.text());
        assert_eq!(little.line().cells[2..4], ["3", "1.98"]);
        let much = Change::of(&[0.02, -0.2, 2_f64.ln()]).unwrap();
        assert!(much.is_too_much() && much.text().contains("22 % off now"));
        assert!(much.text().contains("Calibrate again"));
    }

    #[test]
    fn a_row_is_outside_where_it_leaves_its_band_or_keeps_it_though_it_is_said_to_miss() {
        let rows = studies::study("etherbone").unwrap().predictions();
        let row = rows.iter().find(|row| !row.fitted).unwrap();
        let verdict = |band: f64, misses: Option<&'static str>, fitted: bool| {
            let row = studies::Prediction { band, misses, fitted, ..row.clone() };
            document_line(&row).verdict
        };
        assert_eq!(verdict(1.0, None, false), Verdict::Within);
        assert_eq!(verdict(1.0, None, true), Verdict::Fit);
        assert_eq!(verdict(1.0, Some("why"), false), Verdict::Outside);
        assert_eq!(verdict(-1.0, None, false), Verdict::Outside);
        assert_eq!(verdict(-1.0, None, true), Verdict::Outside);
        assert_eq!(verdict(-1.0, Some("why"), false), Verdict::Known);
    }
}
