//! The output of `perf stat`, read (text, `-x`, `-j`) and written (`-x`).
//! Three states are kept apart: counted (which may be zero), not counted (never scheduled), not
//! supported (never opened).
//! CSV and JSON give the share as an integer division, and times as sums over CPUs and instances.
//! Rates therefore come from the time steps alone.

mod line;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_record::Observations;
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::observed::{EventStatus, ObservedEvent};
use daqmeter_record::units::{plural, whole};

use line::{Line, LineReader, Row};

fn ns(seconds: f64) -> u64 {
    whole((seconds.max(0.0) * 1e9).round()).min(MAX_WHOLE)
}

/// Most counts that are kept: events times intervals.
const MAX_COUNTS: usize = 1 << 25;

/// Runs in the output of perf, and what the user should know of it.
#[derive(Clone, Debug, Default)]
pub struct PerfOutput {
    pub runs: Vec<Observations>,
    pub warnings: Vec<String>,
}

/// Rows of one run.
#[derive(Debug, Default)]
struct Output {
    rows: Vec<Row>,
    elapsed_s: Option<f64>,
    has_title: bool,
}

impl Output {
    /// Returns the time of a whole run: perf's own line, or its event.
    fn whole_s(&self) -> Option<f64> {
        let is_time = |row: &&Row| row.event == "duration_time" && row.unit == "ns";
        let event = self.rows.iter().find(is_time).and_then(|row| row.value);
        self.elapsed_s.or(event.map(|value| value.with(value.decimals) as f64 * 1e-9))
    }

    /// Splits whole runs of -x and -j, which have no mark at their ends: events repeat in order.
    fn apart(self) -> Vec<Output> {
        let rows = &self.rows;
        let is_marked = self.elapsed_s.is_some() || rows.iter().any(|row| row.time.is_some());
        let is_repeated = |length: &usize| {
            let mut pairs = rows.iter().zip(&rows[*length..]);
            rows.len().is_multiple_of(*length) && pairs.all(|(one, next)| one.key() == next.key())
        };
        let part = |rows: &[Row]| Output { rows: rows.to_vec(), ..Output::default() };
        match (1..rows.len()).find(is_repeated).filter(|_| !is_marked) {
            Some(length) => rows.chunks(length).map(part).collect(),
            None => vec![self],
        }
    }
}

impl Row {
    /// Returns the identity of a count, within its interval.
    fn key(&self) -> (&str, &str, &str) {
        (&self.event, &self.place, &self.cgroup)
    }

    /// Returns the times for which it was enabled and counted in an interval of this length. perf
    /// adds up the times of CPUs and instances; -x and -j cut the share to whole percents.
    fn times_ns(&self, passed_ns: u64) -> (u64, u64) {
        let share = self.share.map_or(1.0, |percent| percent / 100.0);
        match self.running_ns {
            Some(running) if share > 0.0 => (ns(running as f64 / share * 1e-9), running),
            Some(running) => (running.max(passed_ns), running),
            None => (passed_ns, ns(passed_ns as f64 * share * 1e-9)),
        }
    }

    /// Leaves out a count or a running time that no run reaches; returns true if there was one.
    fn leave_out_large(&mut self) -> bool {
        let count = self.value.map_or(0, |value| value.digits);
        let is_large = count.max(self.running_ns.unwrap_or(0)) > MAX_WHOLE;
        if is_large {
            (self.value, self.running_ns) = (None, None);
        }
        is_large
    }
}

/// Returns the outputs in a text, and the numbers of the lines that are not perf's and of those
/// with a count that is too large.
fn outputs_of(text: &str) -> Result<(Vec<Output>, [Vec<usize>; 2]), Fault> {
    let (mut outputs, mut foreign, mut large) = (vec![Output::default()], Vec::new(), Vec::new());
    let (mut reader, lines) = (LineReader::default(), text.lines().count());
    for (number, raw) in (1..).zip(text.lines()) {
        let output = outputs.last_mut().expect("begins with one");
        output.has_title |= raw.trim_start().starts_with('#') && raw.trim_end().ends_with("events");
        // The last line of an output may be cut.
        let is_cut = number == lines && !text.ends_with('\n') && !output.rows.is_empty();
        let mut line = match reader.read(raw) {
            Err(_) if is_cut => Line::Foreign,
            read => read.map_err(|problem| Fault::new(shown(text, number, &problem)))?,
        };
        if let Line::Row(row) = &mut line
            && row.leave_out_large()
        {
            large.push(number);
        }
        let before = output.rows.last().map(|before| before.time);
        match line {
            Line::Plain => {}
            Line::Foreign => foreign.push(number),
            Line::Start | Line::End(_) if before.is_none() => {}
            Line::Start => outputs.push(Output::default()),
            Line::End(seconds) => {
                output.elapsed_s = seconds;
                outputs.push(Output::default());
            }
            // After intervals, --summary prints the whole run again, without a stamp.
            Line::Row(row) if row.time.is_none() && before.flatten().is_some() => {}
            Line::Row(row)
                if before.is_some_and(|time| {
                    time.is_none() != row.time.is_none() || row.time < time
                }) =>
            {
                outputs.push(Output { rows: vec![row], ..Output::default() });
            }
            Line::Row(row) => output.rows.push(row),
        }
    }
    let outputs = outputs.into_iter().filter(|output| !output.rows.is_empty());
    Ok((outputs.flat_map(Output::apart).collect(), [foreign, large]))
}

/// Writes a problem with the beginning of its line.
fn shown(text: &str, number: usize, problem: &str) -> String {
    let line = text.lines().nth(number - 1).unwrap_or("").trim();
    format!("line {number}: {problem}: `{}`", line.chars().take(60).collect::<String>())
}

/// Reads a file with one output or several. `length` is that of an interval, 1 s by default, if the
/// output does not give it: for one stamp that does not begin at 0, and for a run without stamps
/// and without a time.
///
/// # Errors
/// Refuses a file without counts, and a line that begins like a row and is none.
pub fn parse(text: &str, length: Option<Duration>) -> Result<PerfOutput, Fault> {
    let (outputs, [foreign, large]) = outputs_of(text)?;
    let first = foreign.first().map(|number| shown(text, *number, "no count of perf"));
    if outputs.is_empty() {
        let problem = "it holds no counts of perf stat (text, -x or -j; --metric-only prints none)";
        return Err(Fault::new(
            first.map_or(problem.into(), |first| format!("{problem}; {first}")),
        ));
    }
    let mut repeated = BTreeSet::new();
    let runs = outputs.iter().map(|output| observed(output, length, &mut repeated));
    let runs = runs.collect::<Result<_, _>>()?;
    let skipped = |first| format!("{} skipped; {first}", plural(foreign.len() as u64, "line"));
    let mut warnings: Vec<String> = first.map(skipped).into_iter().collect();
    if let Some(name) = repeated.first() {
        let events = plural(repeated.len() as u64, "event");
        let what = "with several readings in an interval, as in two groups: their mean is taken";
        warnings.push(format!("{events} such as `{name}` {what}"));
    }
    let problem = "above 2^53 - 1, left out (a counter that went backwards?)";
    warnings.extend(large.iter().map(|number| shown(text, *number, problem)));
    Ok(PerfOutput { runs, warnings })
}

/// A row, and the numbers of its event and its interval.
type PlacedRow<'a> = (usize, usize, &'a Row);

fn observed(
    output: &Output,
    length: Option<Duration>,
    repeated: &mut BTreeSet<String>,
) -> Result<Observations, Fault> {
    let length_s = length.map(|length| length.as_secs_f64());
    let mut numbers: HashMap<(&str, &str, &str), usize> = HashMap::new();
    let mut ends: Vec<f64> = Vec::new();
    let mut placed: Vec<PlacedRow<'_>> = Vec::new();
    for row in &output.rows {
        ends.extend(row.time.filter(|time| ends.last() != Some(time)));
        let next = numbers.len();
        let number = *numbers.entry(row.key()).or_insert(next);
        placed.push((number, ends.len().saturating_sub(1), row));
    }
    let begin_s = begin_of(&ends, output.has_title, length_s.unwrap_or(1.0));
    if ends.is_empty() {
        ends.push(output.whole_s().or(length_s).unwrap_or(0.0));
    }
    if numbers.len().saturating_mul(ends.len()) > MAX_COUNTS {
        let what = "count fewer events, or in longer intervals";
        return Err(Fault::new(format!("more than {MAX_COUNTS} counts: {what}")));
    }
    let mut observed = Observations {
        what: "perf stat".to_owned(),
        begin_ns: ns(begin_s),
        end_ns: ends.iter().map(|end| ns(*end)).collect(),
        ..Observations::default()
    };
    placed.sort_by_key(|(number, at, _)| (*number, *at));
    for rows in placed.chunk_by(|one, next| one.0 == next.0) {
        let event = event_of(rows, &observed);
        if rows.windows(2).any(|pair| pair[0].1 == pair[1].1) {
            repeated.insert(event.name.clone());
        }
        observed.events.push(event);
    }
    Ok(observed)
}

/// Returns an event from its rows, in the order of time. Several readings in an interval, as in two
/// groups, are one: their mean.
fn event_of(rows: &[PlacedRow<'_>], observed: &Observations) -> ObservedEvent {
    let (.., first) = rows[0];
    let decimals = rows.iter().filter_map(|(.., row)| Some(row.value?.decimals)).max().unwrap_or(0);
    let none = vec![0; observed.end_ns.len()];
    let mut event = ObservedEvent {
        name: first.event.clone(),
        pmu: first.event.split_once('/').map_or("", |(pmu, _)| pmu).to_owned(),
        unit: first.unit.clone(),
        scale: 10_f64.powi(-i32::try_from(decimals).unwrap_or(0)),
        places: 1,
        is_scaled: true,
        deviation_percent: first.deviation,
        count: none.clone(),
        enabled_ns: none.clone(),
        running_ns: none,
        ..ObservedEvent::default()
    }
    .at(&first.place, &first.cgroup);
    if rows.iter().any(|(.., row)| !row.is_supported) {
        event.status = EventStatus::NotSupported("perf could not open it".to_owned());
    }
    for readings in rows.chunk_by(|one, next| one.1 == next.1) {
        let at = readings[0].1;
        let passed_ns = ns(observed.seconds(at));
        let counted = |(.., row): &PlacedRow<'_>| {
            let (enabled, running) = row.times_ns(passed_ns);
            Some([row.value?.with(decimals), enabled.max(1), running.max(1)])
        };
        let counted: Vec<[u64; 3]> = readings.iter().filter_map(counted).collect();
        let mean = |part: usize| {
            let sum: u128 = counted.iter().map(|one| u128::from(one[part])).sum();
            u64::try_from(sum / counted.len().max(1) as u128).unwrap_or(u64::MAX)
        };
        (event.count[at], event.enabled_ns[at], event.running_ns[at]) = (mean(0), mean(1), mean(2));
        if counted.is_empty() {
            event.enabled_ns[at] = readings[0].2.times_ns(passed_ns).0;
        }
    }
    event
}

/// Returns the start of the first interval, from the length of the others.
fn begin_of(ends: &[f64], has_title: bool, interval_s: f64) -> f64 {
    let Some(first) = ends.first() else {
        return 0.0;
    };
    let mut lengths: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if lengths.len() > 1 {
        lengths.pop();
    }
    lengths.sort_by(f64::total_cmp);
    let length = match lengths.as_slice() {
        [] => interval_s,
        // A short last interval hardly divides the first.
        [second] if ends.len() == 2 => {
            let times = first / second;
            if has_title || (times - times.round()).abs() > 0.02 {
                return 0.0;
            }
            *second
        }
        sorted => sorted[sorted.len() / 2],
    };
    // Stamps are late by up to some milliseconds, never by half an interval.
    if length <= 0.0 || *first <= 1.5 * length { 0.0 } else { first - length }
}

/// Writes an interval as perf does with `-x`; the share is an integer division, as in perf.
pub fn csv_interval(observed: &Observations, interval: usize, separator: char) -> String {
    let end_ns = observed.end_ns.get(interval).copied().unwrap_or(0);
    let stamp = format!("{}.{:09}", end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    let line = |event: &ObservedEvent| {
        let decimals = if event.scale == 1.0 { 0 } else { 2 };
        let value = match (&event.status, event.scaled(interval)) {
            (EventStatus::NotSupported(_), _) => "<not supported>".to_owned(),
            (EventStatus::Counted, None) => "<not counted>".to_owned(),
            (EventStatus::Counted, Some(value)) => format!("{value:.decimals$}"),
        };
        let running = event.running_ns.get(interval).copied().unwrap_or(0).to_string();
        let share = event.share(interval).map_or(100.0, |share| (100.0 * share).floor());
        let share = format!("{share:.2}");
        let named = [&value, &event.unit, event.bare_name()];
        let places = [stamp.as_str(), &event.place].into_iter().filter(|field| !field.is_empty());
        let cgroup = Some(event.cgroup.as_str()).filter(|name| !name.is_empty());
        let fields = places.chain(named).chain(cgroup).chain([&*running, &*share, "", ""]);
        fields.collect::<Vec<&str>>().join(&separator.to_string()) + "\n"
    };
    observed.events.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
