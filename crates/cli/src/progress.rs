//! Progress on stderr of a verb that measures: a forecast before it begins, if it takes long; then
//! a bar on a terminal, and elsewhere a line every 10 s.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use daqmeter_campaign::ab;
use daqmeter_record::units::plural;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::failure::tell;

/// Work and time of a verb, as they are known beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Forecast {
    /// 0 if the number is open.
    pub(crate) points: u64,
    /// `None` if only the first points can say it.
    pub(crate) time: Option<Duration>,
    /// Time after which the verb ends, whatever its points take.
    pub(crate) most: Option<Duration>,
}

impl Forecast {
    pub(crate) fn points(points: usize, time: Option<Duration>) -> Forecast {
        Forecast { points: points as u64, time, most: None }
    }

    /// A number of points that is open, within a time.
    pub(crate) fn budget(time: Duration) -> Forecast {
        Forecast { points: 0, time: Some(time), most: Some(time) }
    }

    fn text(&self, time: Duration) -> String {
        let points =
            if self.points > 1 { format!("{} points, ", self.points) } else { String::new() };
        format!("daqmeter: {points}about {} s", time.as_secs_f64().round())
    }

    /// Time of all points by those that are done; `None` before the first.
    fn by_points(&self, done: u64, elapsed: Duration) -> Option<Duration> {
        let is_known = (1..self.points).contains(&done);
        let whole = is_known.then(|| elapsed.mul_f64(self.points as f64 / done as f64));
        whole.map(|whole| whole.min(self.most.unwrap_or(whole)))
    }

    fn state(&self, done: u64, elapsed: Duration) -> String {
        let whole = self.by_points(done, elapsed).or(self.time);
        let left_s = whole.map_or(0.0, |whole| whole.saturating_sub(elapsed).as_secs_f64().round());
        let done = match (self.points, done) {
            (2.., _) => format!("{done} of {} points, ", self.points),
            (0, 1..) => plural(done, "point") + ", ",
            _ => String::new(),
        };
        let left = if left_s > 0.0 { format!("; about {left_s} s left") } else { String::new() };
        format!("{done}{} s{left}", elapsed.as_secs())
    }
}

/// Longest time that passes without a forecast.
const SHORT: Duration = Duration::from_secs(5);
/// Time after which points tell how long the others take.
const FIRST: Duration = Duration::from_secs(1);
const LINES_EVERY: u64 = 10;

/// Progress of one verb, until it is dropped or ended.
pub(crate) struct Progress(Arc<Shown>);

struct Shown {
    is_quiet: bool,
    bar: ProgressBar,
    forecast: OnceLock<Forecast>,
    said: OnceLock<()>,
}

impl Progress {
    /// Begins. Records on standard output leave no room for a bar.
    pub(crate) fn begin(is_quiet: bool, is_json: bool) -> Progress {
        let is_quiet = is_quiet || ab::is_side();
        let has_bar = !is_quiet && !is_json && io::stderr().is_terminal();
        let bar = if has_bar { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let bar = bar.with_style(style(Forecast::default()));
        let (forecast, said) = (OnceLock::new(), OnceLock::new());
        let shown = Arc::new(Shown { is_quiet, bar, forecast, said });
        let weak = Arc::downgrade(&shown);
        // Without a thread for it there is a forecast and no progress.
        let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(|| watch(weak));
        Progress(shown)
    }

    /// Takes the forecast of the whole verb, which is the first one, and says it if it is long.
    /// Returns false for further ones.
    pub(crate) fn expect(&self, forecast: Forecast) -> bool {
        let is_first = self.0.forecast.set(forecast).is_ok();
        if is_first {
            self.0.bar.set_length(forecast.points);
            self.0.bar.set_style(style(forecast));
            forecast.time.iter().for_each(|time| self.0.say(forecast, *time));
        }
        is_first
    }

    pub(crate) fn begin_point(&self, name: String) {
        self.0.bar.set_message(name);
    }

    /// Counts a point. The first ones say how long the others take.
    pub(crate) fn took_point(&self) {
        self.0.bar.inc(1);
        let (forecast, elapsed) = (self.0.forecast(), self.0.bar.elapsed());
        let whole = forecast.by_points(self.0.bar.position(), elapsed);
        whole.filter(|_| elapsed > FIRST).iter().for_each(|whole| self.0.say(forecast, *whole));
    }

    /// Ends before results are printed.
    pub(crate) fn end(&self) {
        self.0.bar.finish_and_clear();
    }
}

impl Shown {
    fn forecast(&self) -> Forecast {
        self.forecast.get().copied().unwrap_or_default()
    }

    /// Says a forecast that is long, once.
    fn say(&self, forecast: Forecast, time: Duration) {
        if !self.is_quiet && time > SHORT && self.said.set(()).is_ok() {
            self.bar.suspend(|| tell(&forecast.text(time)));
        }
    }
}

fn watch(shown: Weak<Shown>) {
    for second in 1_u64.. {
        std::thread::sleep(Duration::from_secs(1));
        let Some(shown) = shown.upgrade().filter(|shown| !shown.bar.is_finished()) else { return };
        // The time goes on, too, while a point lasts.
        shown.bar.tick();
        if second.is_multiple_of(LINES_EVERY) && shown.bar.is_hidden() && !shown.is_quiet {
            let state = shown.forecast().state(shown.bar.position(), shown.bar.elapsed());
            tell(&format!("daqmeter: {state}"));
        }
    }
}

/// All that is printed is ASCII, whatever the locale.
fn style(forecast: Forecast) -> ProgressStyle {
    let bar = if forecast.points > 1 { "{bar:24} " } else { "" };
    let state = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = out.write_str(&forecast.state(state.pos(), state.elapsed()));
    };
    let style = ProgressStyle::with_template(&format!("{bar}{{state}}  {{wide_msg}}"));
    style.expect("a constant template").progress_chars("=> ").with_key("state", state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_points_so_far_within_the_budget() {
        const S: Duration = Duration::from_secs(1);
        let said = |forecast: Forecast, done, seconds| forecast.state(done, seconds * S);
        let points = Forecast::points(28, Some(42 * S));
        for (forecast, done, seconds, text) in [
            (points, 12, 21, "12 of 28 points, 21 s; about 28 s left"),
            (points, 0, 10, "0 of 28 points, 10 s; about 32 s left"),
            (points, 28, 60, "28 of 28 points, 60 s"),
            (
                Forecast { most: Some(30 * S), ..points },
                1,
                20,
                "1 of 28 points, 20 s; about 10 s left",
            ),
            (Forecast::budget(60 * S), 2, 10, "2 points, 10 s; about 50 s left"),
            (Forecast::points(1, Some(60 * S)), 0, 20, "20 s; about 40 s left"),
            (Forecast::default(), 0, 30, "30 s"),
        ] {
            assert_eq!(said(forecast, done, seconds), text);
        }
        assert_eq!(points.text(42 * S), "daqmeter: 28 points, about 42 s");
        assert_eq!(Forecast::budget(S).text(60 * S), "daqmeter: about 60 s");
    }
}
