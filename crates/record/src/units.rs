//! Numbers with units, as people write and read them. SI factors are powers of 1000 (`MB`), IEC
//! ones of 1024 (`MiB`).

use std::borrow::Borrow;
use std::ops::RangeInclusive;
use std::time::Duration;

fn wrong(input: &str, wanted: &str) -> String {
    format!("`{input}` is not {wanted}")
}

/// Reads a count: `300000`, `0x100000`, `3M`, `1.5M`, `1e6`, `64Ki`.
///
/// # Errors
/// Refuses text that is not a number, and numbers that are negative, not whole, or beyond 64 bits.
pub fn parse_count(input: &str) -> Result<u64, String> {
    scaled(input.trim(), |unit| factor(unit, 1000))
        .ok_or_else(|| wrong(input, "a count such as 300000, 0x100000, 3M, 1e6 or 64Ki"))
}

/// Reads a size in bytes: `4096`, `4k` (4096, as for fio), `64KiB`, `4MiB`, `6MB` (6,000,000),
/// `1e6`. A letter alone is a power of 1024, as in fio, dd and ls.
pub fn parse_bytes(input: &str) -> Result<u64, String> {
    let of_unit = |unit: &str| match unit.strip_suffix('B') {
        Some(prefix) => factor(prefix, 1000),
        None if unit.len() == 1 => factor(&unit.to_ascii_uppercase(), 1024),
        None => factor(unit, 1024),
    };
    scaled(input.trim(), of_unit)
        .ok_or_else(|| wrong(input, "a size such as 4096, 4k (4096), 64KiB, 6MB or 1e6"))
}

/// Returns the factor of a prefix: a power of `base`, or of 1024 with an `i`.
fn factor(prefix: &str, base: u64) -> Option<u64> {
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024),
        None => (prefix, base),
    };
    let power = match letter {
        "" if prefix.is_empty() => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    Some(base.pow(power))
}

/// Splits `1.5e3M` into number, power of ten and unit, and multiplies exactly: a fraction needs a
/// whole product.
fn scaled(text: &str, factor: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.' || c == '_';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (exponent, unit) = exponent(rest)?;
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let product = digits
        .checked_mul(10_u128.checked_pow(exponent)?)?
        .checked_mul(u128::from(factor(unit.trim_start())?))?;
    let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let is_exact = !whole.is_empty() && product % divisor == 0;
    u64::try_from(product / divisor).ok().filter(|_| is_exact)
}

/// Returns the power of ten of `e6`, else 0, and the rest of the text.
fn exponent(rest: &str) -> Option<(u32, &str)> {
    let Some(digits) = rest.strip_prefix(['e', 'E']) else {
        return Some((0, rest));
    };
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    Some((digits[..end].parse().ok()?, &digits[end..]))
}

const TIME_UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
];

/// Reads a time: `3s`, `100us`, `1.5ms`, `2m` (minutes), `1h`, `60` (seconds), `1m30`, `1m30s`,
/// `1h30` (minutes).
///
/// # Errors
/// Refuses text that is not a number, negative numbers, and parts that do not become smaller.
pub fn parse_duration(input: &str) -> Result<Duration, String> {
    let time = duration_s(input.trim()).and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.ok_or_else(|| wrong(input, "a time such as 60 (seconds), 3s, 10ms, 50us, 2m or 1m30"))
}

/// Sums the parts of a time, each of a smaller unit than the one before. A last number without a
/// unit is in the next smaller one of hours, minutes and seconds; alone it is in seconds.
fn duration_s(trimmed: &str) -> Option<f64> {
    let (mut rest, mut sum, mut last) = (trimmed, 0.0, f64::INFINITY);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        let after = rest[end..].trim_start();
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.' || c.is_whitespace())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let factor = match unit {
            "" if last.is_infinite() || last == 60.0 => 1.0,
            "" if last == 3600.0 => 60.0,
            unit => TIME_UNITS.iter().find(|(name, _)| *name == unit)?.1,
        };
        if factor >= last {
            return None;
        }
        sum += number * factor;
        (rest, last) = (next.trim_start(), factor);
    }
    last.is_finite().then_some(sum)
}

/// Reads a time in microseconds.
pub fn parse_us(input: &str) -> Result<f64, String> {
    parse_duration(input).map(|time| time.as_nanos() as f64 / 1e3)
}

/// Reads a time as whole nanoseconds, as [`parse_duration`] does.
pub fn parse_ns(input: &str) -> Result<u64, String> {
    u64::try_from(parse_duration(input)?.as_nanos()).map_err(|_| format!("`{input}` is too long"))
}

/// Accepted rates of triggers and of blocks. One in three hours is the slowest with a countable
/// wait; the fastest is ten times a digitizer's limit. An emulated source steps through its
/// triggers, so an unlimited rate would never reach the present.
pub const TRIGGER_RATES_HZ: RangeInclusive<f64> = 1e-4..=1e7;

/// Reads a rate in hertz: `14Hz`, `1.2kHz`, `1MHz`, `1GHz`, `14`.
pub fn parse_rate_hz(input: &str) -> Result<f64, String> {
    let trimmed = input.trim();
    let bare = trimmed.strip_suffix("Hz").unwrap_or(trimmed).trim_end();
    let factors = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let scaled =
        factors.iter().find_map(|(unit, factor)| Some((bare.strip_suffix(*unit)?, *factor)));
    let (number, factor) = scaled.unwrap_or((bare, 1.0));
    let rate = number.trim_end().parse::<f64>().ok().map(|number| number * factor);
    rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
        .ok_or_else(|| wrong(input, "a rate such as 14Hz, 1.2kHz or 1MHz"))
}

/// Writes a count with its noun: `1 file`, `2 files`, `0 files`.
pub fn plural(count: u64, noun: &str) -> String {
    let plural = match noun.strip_suffix('y') {
        _ if count == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") => format!("{noun}es"),
        _ => format!("{noun}s"),
    };
    format!("{count} {plural}")
}

/// Writes a share in per cent, with significant digits and without a sign.
pub fn percent(share: f64, digits: i32) -> String {
    significant(share * 100.0, digits)
}

/// Joins texts with a mark between them; `None` without any.
pub fn joined<T: Borrow<str>>(texts: impl IntoIterator<Item = T>, between: &str) -> Option<String> {
    let texts: Vec<T> = texts.into_iter().collect();
    (!texts.is_empty()).then(|| texts.join(between))
}

/// Writes a size for people, in IEC units, exact if possible: `64 KiB`, `1.5 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", significant(value, 4), units[unit])
}

/// Writes a time for people, with 3 to 4 significant digits: `12.3 us`.
pub fn show_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns.abs() < 1e3 => (ns, "ns"),
        ns if ns.abs() < 1e6 => (ns / 1e3, "us"),
        ns if ns.abs() < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", significant(value, 4))
}

/// Returns the whole part of a number; 0 of a negative one, and of one that is none.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the conversion is limited to the range of the result"
)]
pub fn whole(number: f64) -> u64 {
    number as u64
}

/// Returns the whole periods up to a time; the n-th ends at `whole(n * period)`.
pub fn periods(ns: u64, period_ns: f64) -> u64 {
    let end_ns = |nth: u64| whole(nth as f64 * period_ns);
    // The division's rounding must agree with the product's.
    let mut count = whole(ns as f64 / period_ns);
    while end_ns(count + 1) <= ns {
        count += 1;
    }
    while count > 0 && end_ns(count) > ns {
        count -= 1;
    }
    count
}

/// Writes a rate in MB/s (1e6 bytes), with 4 significant digits.
pub fn show_mb_per_s(rate_bytes_per_s: f64) -> String {
    significant(rate_bytes_per_s / 1e6, 4)
}

/// Writes a number with `digits` significant digits, without an exponent, and without trailing
/// zeros after the point.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the decimal exponent of a finite f64 lies within +-324"
    )]
    let places = (digits - 1 - magnitude as i32).max(0);
    let places = usize::try_from(places).expect("not negative after max(0)");
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_and_sizes_read_as_typed() {
        for (input, expected) in [
            ("300000", 300_000),
            ("0x100000", 1 << 20),
            ("3M", 3_000_000),
            ("64Ki", 65_536),
            ("1e6", 1_000_000),
            ("1.5e3", 1500),
            ("2e3k", 2_000_000),
        ] {
            assert_eq!(parse_count(input), Ok(expected), "{input}");
        }
        for (input, expected) in [
            ("4MiB", 4 << 20),
            ("6MB", 6_000_000),
            ("4k", 4096),
            ("64K", 65_536),
            ("1M", 1 << 20),
            ("2m", 2 << 20),
            ("1e6", 1_000_000),
            ("1.5KiB", 1536),
            ("0x1B", 27),
            ("10 kB", 10_000),
            ("3KB", 3000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_bytes(input), Ok(expected), "{input}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for input in [
            "",
            "x",
            "-1",
            "1.5",
            "4QiB",
            "99999999999999999999",
            "M",
            "1..2",
            "0x",
            "1e",
            "1e99",
            "1e-3",
            "1e19k",
            "3i",
            "3m",
            ".5",
        ] {
            let error = parse_count(input).unwrap_err();
            assert!(error.contains("300000"), "{input}: {error}");
        }
        for input in ["", "-3s", "3x", "1s2m", "1m1m", "1.2.3s", "s", "3s5", "nan", "inf", "1e400s"]
        {
            let error = parse_duration(input).unwrap_err();
            assert!(error.contains("1m30"), "{input}: {error}");
        }
        assert!(parse_rate_hz("-1Hz").is_err());
        assert!(parse_rate_hz("NaN").is_err());
    }

    #[test]
    fn times_and_rates_read_as_typed() {
        assert_eq!(parse_duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        for (input, seconds) in
            [("60", 60), ("1m30", 90), ("1m30s", 90), ("1h 2m 3s", 3723), ("1h30", 5400)]
        {
            assert_eq!(parse_duration(input), Ok(Duration::from_secs(seconds)), "{input}");
        }
        assert_eq!(parse_rate_hz("1.2kHz"), Ok(1200.0));
        assert_eq!(parse_rate_hz("14 Hz"), Ok(14.0));
        assert_eq!(parse_rate_hz("1GHz"), Ok(1e9));
    }

    #[test]
    fn one_is_not_many() {
        let shown = [(1, "file"), (0, "file"), (2, "entry"), (2, "day"), (3, "box"), (2, "pass")];
        assert_eq!(
            shown.map(|(count, noun)| plural(count, noun)),
            ["1 file", "0 files", "2 entries", "2 days", "3 boxes", "2 passes"]
        );
    }

    #[test]
    fn numbers_show_few_digits() {
        assert_eq!(show_bytes(65_536), "64 KiB");
        assert_eq!(show_ns(12_345.0), "12.35 us");
        assert_eq!(significant(0.000_123_456, 3), "0.000123");
        assert_eq!(significant(6037.2, 4), "6037");
        assert_eq!(significant(-0.5, 3), "-0.5");
        assert_eq!(significant(f64::NAN, 3), "NaN");
    }

    proptest! {
        #[test]
        fn parsers_never_panic(input in ".{0,24}") {
            let _ = (parse_count(&input), parse_bytes(&input), parse_duration(&input), parse_rate_hz(&input));
        }

        #[test]
        fn plain_numbers_read_back(value in any::<u64>()) {
            prop_assert_eq!(parse_count(&value.to_string()), Ok(value));
            prop_assert_eq!(parse_bytes(&format!("{value:#x}")), Ok(value));
        }
    }
}
