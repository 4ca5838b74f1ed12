//! Lines of perf's output: a count, a known line without one, or a line of another program.
//! Grammar: Linux tools/perf/util/stat-display.c of 6.1, 6.12 and 7.2. CSV does not quote event
//! names, which contain commas.

use daqmeter_record::units::whole;
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Time stamp in seconds; `None` without -I.
    pub(super) time: Option<f64>,
    pub(super) value: Option<Printed>,
    pub(super) is_supported: bool,
    pub(super) unit: String,
    /// Event, with its PMU if perf printed one behind it: `uncore_imc_0/cas_count_read/`.
    pub(super) event: String,
    /// CPU, socket, node, cache, thread, such as `S0` or `bash-217`; empty for all together.
    pub(super) place: String,
    pub(super) cgroup: String,
    pub(super) running_ns: Option<u64>,
    /// Share in percent.
    pub(super) share: Option<f64>,
    /// Standard deviation of the mean of the runs of -r, in percent.
    pub(super) deviation: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    Row(Row),
    /// Title, metric, or another line of perf without a count.
    Plain,
    /// First line of an output with -o.
    Start,
    /// End of the output of a whole run, and its time in seconds.
    End(Option<f64>),
    /// Line of another program, or a warning.
    Foreign,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Printed {
    pub(super) digits: u64,
    pub(super) decimals: u32,
}

impl Printed {
    /// Returns the digits with this number of decimals.
    pub(super) fn with(self, decimals: u32) -> u64 {
        let tens = 10_u64.checked_pow(decimals.saturating_sub(self.decimals));
        self.digits.saturating_mul(tens.unwrap_or(u64::MAX))
    }
}

/// Returns true for marks of thousands: perf prints them as the locale has them.
fn is_mark(letter: char) -> bool {
    matches!(letter, '.' | ',' | '\'' | '\u{2019}' | '\u{a0}' | '\u{202f}')
}

/// Reads a value. perf writes two decimals or six, never three (`abs_printout` and `nsec_printout`
/// of stat-display.c), so that three digits after a mark are thousands. Inner groups have three
/// digits, or two in India: `8,00,235`.
pub(super) fn printed(text: &str) -> Option<Printed> {
    let (whole, decimals) = match text.rsplit_once(['.', ',']) {
        Some((whole, decimals)) if decimals.len() != 3 => (whole, decimals),
        _ => (text, ""),
    };
    let groups: Vec<usize> = whole.split(is_mark).skip(1).map(str::len).collect();
    if let [inner @ .., last] = groups.as_slice()
        && (*last != 3 || !([2, 3].iter().any(|length| inner.iter().all(|group| group == length))))
    {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    let digits: String = whole.split(is_mark).chain([decimals]).collect();
    let is_number = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = u32::try_from(decimals.len()).ok()?;
    is_number.then(|| Some(Printed { digits: digits.parse().ok()?, decimals }))?
}

fn number(text: &str) -> Option<f64> {
    let value: f64 = text.replace(',', ".").parse().ok()?;
    value.is_finite().then_some(value)
}

/// Beginning of both marks as one word: they hold a blank, which splits lines.
const MARK: &str = "<not-";

fn is_value(field: &str) -> bool {
    field.starts_with(MARK) || printed(field).is_some()
}

fn is_supported(field: &str) -> bool {
    field != "<not-supported>"
}

/// Returns true for a stamp, which has nine decimals.
fn is_stamp(word: &str) -> bool {
    word.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 9)
}

/// Returns true for `CPU0`, `S0-D0-C1`, `S0-D0-L3-ID0`, `N0`, and for a thread, `bash-217`.
fn is_place(text: &str) -> bool {
    let is_part = |part: &str| {
        let bare = part.trim_start_matches(|c: char| c.is_ascii_uppercase());
        bare.len() < part.len() && bare.parse::<u32>().is_ok()
    };
    let thread = text.rsplit_once('-').is_some_and(|(name, id)| {
        !name.is_empty() && printed(name).is_none() && id.parse::<u32>().is_ok()
    });
    thread || text.split('-').all(is_part)
}

/// Units of perf's own counts and of the drivers' `events/*.unit` (Linux tools/perf/builtin-stat.c,
/// drivers/perf, arch/x86/events).
const UNITS: [&str; 21] = [
    "msec", "ns", "us", "ms", "sec", "Joules", "Watts", "mWatts", "B", "Bytes", "bytes", "KB",
    "KiB", "MB", "MiB", "GB", "GiB", "Hz", "MHz", "GHz", "C",
];

/// Writes `NAME [PMU]` as `PMU/NAME/`: Linux 6.12 appends the PMU to an event that several could
/// have, and all versions do with --no-merge.
fn named(text: &str) -> String {
    let Some((name, pmu)) = text.split_once(" [") else { return text.to_owned() };
    let pmu = pmu.trim_end_matches(']');
    if matches!(pmu, "software" | "cpu" | "tracepoint" | "tool") {
        return name.to_owned();
    }
    let terms = name.split_once('/').map_or(name, |(_, terms)| terms.trim_end_matches('/'));
    format!("{pmu}/{terms}/")
}

/// Reader of the lines of one file.
#[derive(Debug, Default)]
pub(super) struct LineReader {
    /// Separator of -x, once a row had it.
    separator: Option<char>,
    /// True between the title of a whole run and its time, where no other program writes.
    is_whole: bool,
}

impl LineReader {
    /// Reads a line.
    ///
    /// # Errors
    /// Refuses a line that begins like a row and is none.
    pub(super) fn read(&mut self, raw: &str) -> Result<Line, String> {
        let raw = &raw.replace("<not ", MARK);
        let line = raw.trim();
        if line.starts_with("# started on") {
            return Ok(Line::Start);
        }
        // `0.000984 +- 0.000186 seconds time elapsed  ( +- 18.94% )` with -r.
        if line.contains("seconds time elapsed") {
            self.is_whole = false;
            return Ok(Line::End(line.split_ascii_whitespace().next().and_then(number)));
        }
        let is_end = ["seconds user", "seconds sys"].iter().any(|end| line.ends_with(end));
        let is_title = line.starts_with("Performance counter stats for");
        self.is_whole |= is_title;
        if line.is_empty() || is_end || is_title || line.starts_with('#') {
            return Ok(Line::Plain);
        }
        let keys = ["\"counter-value\"", "\"metric-", "\"event\"", "\"interval\""];
        if line.starts_with('{') && keys.iter().any(|key| line.contains(key)) {
            return json(line);
        }
        let has_fields = |separator: &char| {
            let first = line.split(*separator).next();
            line.matches(*separator).count() >= 4 || first.is_some_and(is_stamp)
        };
        match self.separator.filter(has_fields).or_else(|| separator_of(line)) {
            Some(separator) => {
                let read = csv(line, separator);
                if matches!(read, Ok(Line::Row(_))) {
                    self.separator = Some(separator);
                }
                read
            }
            None => text(raw, self.is_whole),
        }
    }
}

/// Reads ` 1.000089438    0   unit arm_cmn/x,nodeid=8/   #  metric   ( +- 1.00% )  (50.00%)`. A row
/// that may be of another program has columns: blanks before the count, unless it has a place, and
/// after it.
fn text(raw: &str, is_whole: bool) -> Result<Line, String> {
    let (rest, share) = match raw.trim_end().rsplit_once('(') {
        Some((rest, share)) if share.ends_with("%)") && !share.contains("+-") => {
            (rest, Some(number(share.trim_end_matches("%)").trim())))
        }
        _ => (raw, None),
    };
    let deviation =
        raw.split("( +-").nth(1).and_then(|rest| number(rest.split('%').next()?.trim()));
    let rest = rest.split("( +-").next().unwrap_or("").split('#').next().unwrap_or("");
    let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let is_value = |word: &&str| is_value(word);
    let time = words.first().filter(|word| is_stamp(word)).and_then(|word| number(word));
    let foreign = |problem: &str| match time {
        Some(_) => Err(problem.to_owned()),
        None => Ok(Line::Foreign),
    };
    words.drain(..usize::from(time.is_some()));
    if words.is_empty() {
        return Ok(Line::Plain);
    }
    let found = words.iter().position(is_value);
    let Some(mut at) = found.filter(|at| *at == 0 || is_place(&words[..*at].join(" "))) else {
        return foreign("no count at the beginning");
    };
    let place = words[..at].join(" ");
    // The number of CPUs at the place.
    at += usize::from(!place.is_empty() && words.get(at + 1).is_some_and(is_value));
    let shown = words[at];
    let (pmu, names): (Vec<&str>, Vec<&str>) =
        words[at + 1..].iter().partition(|word| word.starts_with('['));
    let (unit, event, cgroup) = match names.as_slice() {
        [unit, event] if UNITS.contains(unit) => (*unit, *event, ""),
        [unit, event, cgroup] if UNITS.contains(unit) => (*unit, *event, *cgroup),
        [event] => ("", *event, ""),
        [event, cgroup] => ("", *event, *cgroup),
        [] if raw.contains('#') => return Ok(Line::Plain),
        [] => return foreign("no event; perf stat --metric-only prints no counts"),
        _ => return foreign("more words than a unit, an event and a cgroup"),
    };
    let begins = |letter: char| letter.is_ascii_alphanumeric() || "_{%".contains(letter);
    let has_columns = is_whole
        || time.is_some()
        || event.ends_with('/')
        || (!place.is_empty() || raw.starts_with([' ', '\t']))
            && (!unit.is_empty() || shown.starts_with('<') || rest.contains(&format!("{shown}  ")));
    if !has_columns || !event.starts_with(begins) || printed(event).is_some() {
        return foreign("no event; perf stat --metric-only prints no counts");
    }
    Ok(Line::Row(Row {
        time,
        value: printed(shown),
        is_supported: is_supported(shown),
        unit: unit.to_owned(),
        event: named(format!("{event} {}", pmu.concat()).trim_end()),
        place,
        cgroup: cgroup.to_owned(),
        running_ns: None,
        share: match share {
            Some(None) => return foreign("a share that is not a number"),
            share => share.flatten(),
        },
        deviation,
    }))
}

/// Usual separators of `-x`.
pub(super) const SEPARATORS: [char; 5] = [';', '\t', '|', ',', ' '];

/// Message for fields before the value that are numbers: the value itself is cut in two.
const AMBIGUOUS: &str = "fields before the value that are no place: a decimal comma and -x, cannot be told apart; \
                         write it with -x';' or with LC_ALL=C perf stat";

/// Returns the separator of `-x`, when the line is of that kind.
fn separator_of(line: &str) -> Option<char> {
    SEPARATORS.into_iter().find(|separator| {
        line.matches(*separator).count() >= 4
            && match csv(line, *separator) {
                Ok(Line::Row(_)) => true,
                Ok(line) => line == Line::Plain && *separator != ' ',
                Err(wrong) => wrong == AMBIGUOUS,
            }
    })
}

/// Reads `[TS SEP] [place SEP [CPUs SEP]] value SEP unit SEP event SEP [cgroup SEP] [variance% SEP]
/// run_ns SEP pct SEP metric SEP unit`. A metric by itself has no value, unit and event.
fn csv(line: &str, separator: char) -> Result<Line, String> {
    // Separators within the slashes of an event belong to it.
    let mut in_slashes = false;
    let is_end = |letter: char| {
        in_slashes ^= letter == '/' && separator == ',';
        letter == separator && !in_slashes
    };
    let fields: Vec<&str> = line.split(is_end).map(str::trim).collect();
    let begin = usize::from(is_stamp(fields[0]));
    let field = |at: usize| fields.get(at).copied().unwrap_or("");
    // Place of the running time behind an event: with a cgroup, a variance, or both before it.
    let time_at = |value_at: usize| {
        let is_time =
            |at: &usize| field(*at).parse::<u64>().is_ok() && number(field(at + 1)).is_some();
        let before = |at: &usize| (value_at + 3..*at).skip(1).all(|at| field(at).ends_with('%'));
        (value_at + 3..value_at + 6).find(is_time).filter(before)
    };
    // The event's name is the first field behind a value and a unit that is neither empty nor a
    // number.
    let is_row = |at: &usize| {
        is_value(field(*at))
            && !field(at + 2).is_empty()
            && [at + 1, at + 2].iter().all(|at| number(field(*at)).is_none())
            && time_at(*at).is_some()
    };
    let Some(value_at) = (begin..fields.len().saturating_sub(3)).find(is_row) else {
        let no_count = |field: &&str| field.is_empty() || is_place(field);
        let empty = fields[begin..].iter().take_while(|field| no_count(field)).count();
        return match () {
            () if empty >= 3 && fields.len() >= 5 => Ok(Line::Plain),
            () if begin == 1 || is_value(fields[0]) => {
                Err("no value, unit, event and time".to_owned())
            }
            () => Ok(Line::Foreign),
        };
    };
    let places = fields[begin..value_at].iter().filter(|place| **place != "summary");
    let place = match places.copied().collect::<Vec<&str>>().as_slice() {
        [] | [""] => "",
        [place] if is_place(place) => place,
        [place, cpus] if is_place(place) && cpus.parse::<u32>().is_ok() => place,
        _ => return Err(AMBIGUOUS.to_owned()),
    };
    let time_at = time_at(value_at).unwrap_or(value_at + 3);
    let cgroup =
        Some(field(value_at + 3)).filter(|name| time_at > value_at + 3 && !name.ends_with('%'));
    Ok(Line::Row(Row {
        time: number(fields[0]).filter(|_| begin == 1),
        value: printed(fields[value_at]),
        is_supported: is_supported(fields[value_at]),
        unit: fields[value_at + 1].to_owned(),
        event: named(fields[value_at + 2]),
        place: place.to_owned(),
        cgroup: cgroup.unwrap_or("").to_owned(),
        running_ns: field(time_at).parse().ok(),
        share: number(field(time_at + 1)),
        deviation: (value_at + 3..time_at).find_map(|at| number(field(at).strip_suffix('%')?)),
    }))
}

/// Reads an object of `-j`.
fn json(line: &str) -> Result<Line, String> {
    // perf writes `nan` for metrics without a value, which is not JSON.
    let line = line.trim_end_matches(',').replace(": nan", ": null").replace(": -nan", ": null");
    let object: Value =
        serde_json::from_str(&line.replace(": inf", ": null")).map_err(|error| {
            if error.is_eof() {
                return "the object is cut short".to_owned();
            }
            format!("{error} (a decimal comma? LC_ALL=C perf stat)")
        })?;
    let text = |name: &str| match &object[name] {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let Some(event) = text("event") else {
        return Ok(Line::Plain);
    };
    let places = ["cpu", "socket", "die", "cluster", "cache", "core", "node", "thread"];
    let place = places.into_iter().find_map(text).unwrap_or_default();
    let value = text("counter-value").filter(|value| is_value(value));
    let value = value.ok_or("no counter-value, or one that is not a number")?;
    let running_ns = text("event-runtime").and_then(|text| number(&text));
    Ok(Line::Row(Row {
        time: text("interval").and_then(|text| number(&text)),
        value: printed(&value),
        is_supported: is_supported(&value),
        unit: text("unit").unwrap_or_default(),
        event: named(&event),
        place: if place.parse::<u32>().is_ok() { format!("CPU{place}") } else { place },
        cgroup: text("cgroup").unwrap_or_default(),
        running_ns: running_ns.map(|ns| whole(ns.max(0.0))),
        share: text("pcnt-running").and_then(|text| number(&text)),
        deviation: text("variance").and_then(|text| number(&text)),
    }))
}
