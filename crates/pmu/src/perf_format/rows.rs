use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PerfError {
    #[error("line {line}: {problem}: `{text}`")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        problem: String,
        text: String,
    },
    #[error("line {line}: more than {max} counts: count fewer events, or in longer intervals")]
    TooMany {
        /// Number of the line, from 1.
        line: usize,
        max: usize,
    },
    #[error("it holds no counts of perf stat (text, -x or -j)")]
    Empty,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Time stamp in seconds; `None` without -I.
    pub(super) time: Option<f64>,
    pub(super) value: Option<Printed>,
    pub(super) is_supported: bool,
    pub(super) unit: String,
    pub(super) event: String,
    pub(super) running_ns: Option<u64>,
    pub(super) share: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Printed {
    pub(super) digits: u64,
    pub(super) decimals: usize,
}

/// Returns true for marks of decimals and of thousands: perf prints both as the locale has them.
fn is_mark(letter: char) -> bool {
    matches!(letter, '.' | ',' | '\'' | '\u{2019}' | '\u{a0}' | '\u{202f}')
}

/// Returns true if digits are grouped: up to three first, two or three (India) after each mark, and
/// three at the end.
fn are_groups(parts: &[&str]) -> bool {
    let [first, .., last] = parts else {
        return true;
    };
    let middle = &parts[1..parts.len() - 1];
    (1..=3).contains(&first.len())
        && *first != "0"
        && last.len() == 3
        && middle.iter().all(|part| (2..=3).contains(&part.len()))
}

/// Splits a number at its decimal mark. Only text groups thousands, and its values have no decimals
/// or two (`abs_printout` and `nsec_printout` of stat-display.c). Three digits after the only mark
/// are thousands.
fn parts_of(text: &str, may_group: bool) -> Option<(String, &str)> {
    let parts: Vec<&str> = text.split(is_mark).collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !parts.iter().all(is_number) {
        return None;
    }
    let marks: Vec<char> = text.chars().filter(|letter| is_mark(*letter)).collect();
    let Some((last, before)) = marks.split_last() else {
        return Some((text.to_owned(), ""));
    };
    let is_one_kind = marks.iter().all(|mark| mark == last);
    if may_group && is_one_kind && are_groups(&parts) {
        return Some((parts.concat(), ""));
    }
    let (fraction, whole) = parts.split_last()?;
    let is_grouped = may_group
        && are_groups(whole)
        && before.iter().all(|mark| *mark == before[0] && mark != last);
    let has_decimals = matches!(last, '.' | ',') && (before.is_empty() || is_grouped);
    has_decimals.then(|| (whole.concat(), *fraction))
}

fn value_of(text: &str, may_group: bool) -> Option<Printed> {
    let (whole, fraction) = parts_of(text, may_group)?;
    // perf's JSON has six decimals, all zero for a count.
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some(Printed { digits, decimals: fraction.len() })
}

fn printed(text: &str) -> Option<Printed> {
    value_of(text, true)
}

fn plain(text: &str) -> Option<Printed> {
    value_of(text, false)
}

fn number(text: &str) -> Option<f64> {
    let (whole, fraction) = parts_of(text, false)?;
    format!("{whole}.{fraction}").parse().ok()
}

pub(super) const NOT_COUNTED: &str = "<not counted>";
pub(super) const NOT_SUPPORTED: &str = "<not supported>";

const BESIDE: &[&str] = &[
    "#",
    "Performance counter stats",
    "Using CPUID",
    "Control descriptor",
    "Warning:",
    "WARNING:",
    "Weak group",
    "Some events weren't counted",
    "The events in group",
    "Try '",
    "echo ",
    "perf stat ",
];

fn is_beside(line: &str) -> bool {
    line.is_empty()
        || BESIDE.iter().any(|begin| line.starts_with(begin))
        || line.ends_with("seconds user")
        || line.ends_with("seconds sys")
        || line.contains(" -> ")
        || is_verbose(line)
}

/// Returns true for the raw counts that `-v` prints, too: `page-faults: 76 765368 765368`.
fn is_verbose(line: &str) -> bool {
    let Some((_, counts)) = line.rsplit_once(": ") else {
        return false;
    };
    let counts: Vec<&str> = counts.split_ascii_whitespace().collect();
    counts.len() == 3 && counts.iter().all(|count| count.parse::<u64>().is_ok())
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Text,
    Csv(char),
    Json,
}

impl Format {
    fn of(line: &str) -> Format {
        match csv_separator(line) {
            _ if line.trim().starts_with('{') => Format::Json,
            Some(separator) => Format::Csv(separator),
            None => Format::Text,
        }
    }
}

/// Reader of lines as rows, in the format of the first line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    format: Option<Format>,
    pub(super) number: usize,
    pub(super) elapsed_s: Option<f64>,
    pub(super) has_title: bool,
}

impl Lines {
    pub(super) fn row(&mut self, line: &str) -> Result<Option<Row>, PerfError> {
        self.number += 1;
        let trimmed = line.trim();
        // `0.000984 +- 0.000186 seconds time elapsed  ( +- 18.94% )` with -r.
        if trimmed.contains("seconds time elapsed") {
            self.elapsed_s = trimmed.split_ascii_whitespace().next().and_then(number);
            return Ok(None);
        }
        self.has_title |= trimmed.starts_with('#') && trimmed.ends_with("events");
        if is_beside(trimmed) {
            return Ok(None);
        }
        let row = match *self.format.get_or_insert_with(|| Format::of(line)) {
            Format::Json => parse_json(line),
            Format::Csv(separator) => parse_csv(line, separator).map(Some),
            Format::Text => parse_text(line).map(Some),
        };
        row.map_err(|problem| self.wrong(problem, line))
    }

    pub(super) fn wrong(&self, problem: String, line: &str) -> PerfError {
        PerfError::Line { line: self.number, problem, text: line.chars().take(60).collect() }
    }
}

/// Returns true for a stamp, which has nine decimals.
fn is_stamp(word: &str) -> bool {
    word.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 9)
}

/// Parses ` 1.000089438    0   unit arm_cmn/x,nodeid=8/   #  metric   ( +- 1.00% )  (50.00%)`.
fn parse_text(line: &str) -> Result<Row, String> {
    let (rest, share) = without_share(line.trim())?;
    let rest = rest.split("( +-").next().unwrap_or("");
    let rest = rest.split('#').next().unwrap_or("").trim();
    // The marks hold a blank: they become one word each while the line is split.
    let marked =
        rest.replace(NOT_COUNTED, "<not-counted>").replace(NOT_SUPPORTED, "<not-supported>");
    let mut words: Vec<&str> = marked.split_ascii_whitespace().collect();
    let mut time = None;
    if words.len() > 2 && is_stamp(words[0]) {
        time = words.remove(0).parse().ok();
    }
    let place = take_place(&mut words);
    if words.first().is_none_or(|word| !is_text_value(word)) {
        return Err("no count at the beginning".to_owned());
    }
    let shown = words.remove(0);
    let (unit, event) = match words.as_slice() {
        [] => return Err("no event".to_owned()),
        [event] => ("", event),
        // Linux 6.12 appends the PMU to an event that several could have.
        [event, pmu] if pmu.starts_with('[') => ("", event),
        [unit, event, ..] => (*unit, event),
    };
    Ok(Row {
        time,
        value: printed(shown),
        is_supported: shown != "<not-supported>",
        unit: unit.to_owned(),
        event: format!("{place}{event}"),
        running_ns: None,
        share,
    })
}

/// Splits off the share, the last parentheses without plus-minus.
fn without_share(line: &str) -> Result<(&str, Option<f64>), String> {
    match line.rsplit_once('(') {
        Some((head, tail)) if tail.ends_with("%)") && !tail.contains("+-") => {
            let percent = tail.trim_end_matches("%)").trim();
            let share = number(percent).ok_or("a share that is not a number")?;
            Ok((head.trim_end(), Some(share)))
        }
        _ => Ok((line, None)),
    }
}

fn is_text_value(word: &str) -> bool {
    word.starts_with("<not-") || printed(word).is_some()
}

/// Returns the place of a row and its event, both from the name of the event.
pub(super) fn place_and_event(name: &str) -> (&str, &str) {
    name.rsplit_once(' ').unwrap_or(("", name))
}

/// Takes the place of a row, with -A, --per-* and --per-thread, from its beginning. The place is
/// empty or ends with a blank.
fn take_place(words: &mut Vec<&str>) -> String {
    let Some(count) = words.iter().position(|word| is_text_value(word)) else {
        return String::new();
    };
    // The name of a thread may hold blanks; its number is at the end.
    let is_thread =
        |word: &str| word.rsplit_once('-').is_some_and(|(_, tid)| tid.parse::<u32>().is_ok());
    let is_known = match &words[..count] {
        [] => false,
        [place] => is_place(place) || is_thread(place),
        [.., last] => is_thread(last),
    };
    if !is_known {
        return String::new();
    }
    let place: Vec<&str> = words.drain(..count).collect();
    if words.len() > 2 && is_text_value(words[1]) {
        words.remove(0);
    }
    format!("{} ", place.join(" "))
}

/// Returns true for `CPU0`, `S0-D0-C1`, `N0`.
pub(super) fn is_place(word: &str) -> bool {
    let part = |part: &str| {
        let bare = part.trim_start_matches(|c: char| c.is_ascii_uppercase());
        bare.len() < part.len() && bare.parse::<u32>().is_ok()
    };
    word.split('-').all(part)
}

/// Usual separators of `-x`; a blank is last, because text is full of them.
pub(super) const SEPARATORS: [char; 9] = [';', '\t', '|', ',', ':', '@', '^', '~', ' '];

/// Message for fields before the value that are numbers: the value itself is cut in two.
const AMBIGUOUS: &str = "fields before the value that are no place: a decimal comma and -x, cannot be told apart; \
                         write it with -x';' or with LC_ALL=C perf stat";

/// Returns the separator of `-x`, when the line is of that kind.
fn csv_separator(line: &str) -> Option<char> {
    SEPARATORS.into_iter().find(|separator| {
        line.matches(*separator).count() >= 4
            && parse_csv(line, *separator).map_or_else(|wrong| wrong == AMBIGUOUS, |_| true)
    })
}

/// Splits a line into fields. Events of a PMU, `<not counted>` and `[software]` are one token each:
/// their separators are hidden while the line is split.
fn split_csv(line: &str, separator: char) -> Vec<String> {
    const HIDDEN: char = '\u{1}';
    let (mut in_slashes, mut depth) = (false, 0_u32);
    let mask = |letter: char| {
        in_slashes ^= letter == '/';
        match letter {
            '<' | '[' => depth += 1,
            '>' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_hidden = letter == separator && (in_slashes || depth > 0);
        if is_hidden { HIDDEN } else { letter }
    };
    // 6.1 pads the stamp; a blank stands before `[software]`.
    let line = line.trim_start_matches(' ').replace(" [", &format!("{HIDDEN}["));
    let masked: String = line.chars().map(mask).collect();
    let shown = |field: &str| {
        let field = field.replace(&format!("{HIDDEN}["), " [");
        field.trim().replace(HIDDEN, &separator.to_string())
    };
    masked.split(separator).map(shown).collect()
}

/// Parses `[TS SEP] [aggregation SEP] value SEP unit SEP event SEP [variance% SEP] run_ns SEP pct
/// SEP metric SEP unit`.
fn parse_csv(line: &str, separator: char) -> Result<Row, String> {
    let fields = split_csv(line, separator);
    let stamp = fields.first().filter(|field| is_stamp(field));
    let begin = usize::from(stamp.is_some());
    let is_value =
        |field: &str| field == NOT_COUNTED || field == NOT_SUPPORTED || plain(field).is_some();
    let time_at = |value_at: usize| {
        let has_variance = fields.get(value_at + 3).is_some_and(|field| field.ends_with('%'));
        value_at + 3 + usize::from(has_variance)
    };
    let time = |value_at: usize| fields.get(time_at(value_at))?.parse::<u64>().ok();
    // The event's name is the first field behind a value and a unit that is neither empty, nor a
    // number, nor a mark.
    let is_row = |at: &usize| {
        let event = &fields[at + 2];
        is_value(&fields[*at])
            && !event.is_empty()
            && number(event).is_none()
            && time(*at).is_some()
    };
    let value_at = (begin..fields.len().saturating_sub(3))
        .find(is_row)
        .ok_or("no value, unit, event and time")?;
    let places = fields[begin..value_at].iter();
    let places = places.filter(|place| !place.is_empty() && *place != "summary");
    let places: Vec<&str> = places.map(String::as_str).collect();
    let is_count = |field: &str| field.parse::<u32>().is_ok();
    let place = match places.as_slice() {
        [] => String::new(),
        [place] if number(place).is_none() => format!("{place} "),
        [place, cpus] if number(place).is_none() && !place.starts_with("CPU") && is_count(cpus) => {
            format!("{place} ")
        }
        _ => return Err(AMBIGUOUS.to_owned()),
    };
    let event = fields[value_at + 2].split(" [").next().unwrap_or("");
    let share = fields.get(time_at(value_at) + 1);
    Ok(Row {
        time: stamp.and_then(|stamp| stamp.parse().ok()),
        value: plain(&fields[value_at]),
        is_supported: fields[value_at] != NOT_SUPPORTED,
        unit: fields[value_at + 1].clone(),
        event: format!("{place}{event}"),
        running_ns: time(value_at),
        share: share.and_then(|share| number(share)),
    })
}

const PLACES: [&str; 8] = ["cpu", "thread", "socket", "die", "cluster", "cache", "core", "node"];

/// Returns the line with decimal points: in some locales perf writes decimal commas, which is not
/// JSON. The comma between two fields is followed by a blank.
fn with_points(line: &str) -> String {
    let mut in_string = false;
    let letters = line.char_indices().map(|(at, letter)| {
        in_string ^= letter == '"' && !line[..at].ends_with('\\');
        let is_digit = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_digit());
        let is_within =
            is_digit(line[..at].chars().next_back()) && is_digit(line[at..].chars().nth(1));
        if letter == ',' && !in_string && is_within { '.' } else { letter }
    });
    letters.collect()
}

fn parse_json(line: &str) -> Result<Option<Row>, String> {
    // perf writes `nan` for metrics without a value, which is not JSON.
    let line = line
        .trim()
        .trim_end_matches(',')
        .replace(": nan", ": null")
        .replace(": -nan", ": null")
        .replace(": inf", ": null");
    let object: Value =
        serde_json::from_str(&with_points(&line)).map_err(|error| error.to_string())?;
    let text = |name: &str| match &object[name] {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let Some(event) = text("event") else {
        return Ok(None);
    };
    let place = PLACES.iter().find_map(|name| text(name));
    let place = place.map_or(String::new(), |place| {
        let is_bare = place.starts_with(|c: char| c.is_ascii_digit());
        format!("{}{place} ", if is_bare { "CPU" } else { "" })
    });
    let value = text("counter-value").ok_or("no counter-value")?;
    if value != NOT_COUNTED && value != NOT_SUPPORTED && plain(&value).is_none() {
        return Err("a counter-value that is not a number".to_owned());
    }
    let running_ns = text("event-runtime").and_then(|text| number(&text));
    Ok(Some(Row {
        time: text("interval").and_then(|text| text.parse().ok()),
        value: plain(&value),
        is_supported: value != NOT_SUPPORTED,
        unit: text("unit").unwrap_or_default(),
        event: format!("{place}{event}"),
        running_ns: running_ns.and_then(|ns| format!("{:.0}", ns.max(0.0)).parse().ok()),
        share: text("pcnt-running").and_then(|text| number(&text)),
    }))
}
