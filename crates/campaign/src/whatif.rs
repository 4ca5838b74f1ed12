//! The values of a sweep over a field of a path.

/// Most points of a sweep.
const MAX_POINTS: usize = 100_000;

/// The values of a sweep: `1,2,4`, or `FROM..TO/N` at equal distances with one unit.
///
/// # Errors
/// When it is neither, or has too many points.
pub fn sweep_values(text: &str) -> Result<Vec<String>, String> {
    let Some((from, rest)) = text.split_once("..") else {
        let values: Vec<String> = text.split(',').map(|value| value.trim().to_owned()).collect();
        return match values.iter().any(String::is_empty) {
            true => Err(format!("`{text}`: a value is empty; 1,2,4 or 1kHz..9kHz/5 is wanted")),
            false => Ok(values),
        };
    };
    let wrong = || format!("`{text}`: FROM..TO/N with one unit is wanted, such as 1kHz..9kHz/5");
    let (to, count) = rest.rsplit_once('/').ok_or_else(wrong)?;
    let count: usize = count.parse().map_err(|_| wrong())?;
    let ((from, unit), (to, other)) =
        (number(from).ok_or_else(wrong)?, number(to).ok_or_else(wrong)?);
    if unit != other || !(2..=MAX_POINTS).contains(&count) {
        return Err(format!("{}; N is 2 to {MAX_POINTS}", wrong()));
    }
    // In thousandths: bytes of a rate are whole.
    let value = |at: usize| {
        let exact = from + (to - from) * at as f64 / (count - 1) as f64;
        (exact * 1e3).round() / 1e3
    };
    Ok((0..count).map(|at| format!("{}{unit}", value(at))).collect())
}

/// A number and its unit.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use daqmeter_path::Path;

    use super::*;

    const TEXT: &str = "title = \"x\"\nblock = \"64KiB\"\n[source]\nkind = \"memory\"\n[[stage]]\nkind = \"copy\"\n[sink]\nkind = \"read\"\n";

    #[test]
    fn sweeps_are_lists_or_ranges_with_one_unit() {
        assert_eq!(sweep_values("1,2").unwrap(), ["1", "2"]);
        assert_eq!(sweep_values("1kHz..3kHz/3").unwrap(), ["1kHz", "2kHz", "3kHz"]);
        let path = Path::parse(TEXT, "x").unwrap();
        let rates = sweep_values("100MB/s..900MB/s/1000").unwrap();
        assert!(rates.iter().all(|rate| path.parse_rate(rate).is_ok()), "{rates:?}");
        for wrong in ["1,,2", "1kHz..3MHz/3", "1..3", "1..3/1", "a..b/3"] {
            assert!(sweep_values(wrong).is_err(), "{wrong}");
        }
    }
}
