//! Variations of a path: fields of its file that are set to something else, and the values of a sweep.

use toml::{Table, Value};

/// Most points of a sweep.
const MAX_POINTS: usize = 100_000;

/// The text of a path with a field set: `buffers`, `rate`, `stage.0.threads`.
///
/// # Errors
/// When there is no such place in the file.
pub fn with_field(text: &str, name: &str, value: &str) -> Result<String, String> {
    let mut file: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut keys: Vec<&str> = name.split('.').collect();
    let last = keys.pop().unwrap_or("");
    let mut part = None;
    for key in keys {
        let inner = match part {
            // People count stages in the plural.
            None if key == "stages" => file.get_mut("stage"),
            None => file.get_mut(key),
            Some(value) => within(value, key),
        };
        part = Some(inner.ok_or_else(|| format!("{name}: there is no `{key}` in the path"))?);
    }
    let table = match part {
        None => &mut file,
        Some(Value::Table(table)) => table,
        Some(_) => {
            return Err(format!(
                "{name}: a field of a part is wanted, such as stage.0.threads"
            ));
        }
    };
    let value = typed(table.get(last), value);
    table.insert(last.to_owned(), value);
    toml::to_string(&file).map_err(|error| error.to_string())
}

fn within<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    match value {
        Value::Table(table) => table.get_mut(key),
        Value::Array(parts) => parts.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    }
}

/// A number where one stood, or where nothing stood and it is one; else a text.
fn typed(before: Option<&Value>, value: &str) -> Value {
    let text = Value::String(value.to_owned());
    if matches!(before, Some(Value::String(_))) {
        return text;
    }
    let number = value.parse().map(Value::Integer);
    let float = value.parse().map(Value::Float);
    let truth = value.parse().map(Value::Boolean);
    number.ok().or(float.ok()).or(truth.ok()).unwrap_or(text)
}

/// The values of a sweep: `1,2,4`, or `FROM..TO/N` at equal distances with one unit.
///
/// # Errors
/// When it is neither, or has too many points.
pub fn sweep_values(text: &str) -> Result<Vec<String>, String> {
    let Some((from, rest)) = text.split_once("..") else {
        let values: Vec<String> = text
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        return match values.iter().any(String::is_empty) {
            true => Err(format!(
                "`{text}`: a value is empty; 1,2,4 or 1kHz..9kHz/5 is wanted"
            )),
            false => Ok(values),
        };
    };
    let wrong = || format!("`{text}`: FROM..TO/N with one unit is wanted, such as 1kHz..9kHz/5");
    let (to, count) = rest.rsplit_once('/').ok_or_else(wrong)?;
    let count: usize = count.parse().map_err(|_| wrong())?;
    let ((from, unit), (to, other)) = (
        number(from).ok_or_else(wrong)?,
        number(to).ok_or_else(wrong)?,
    );
    if unit != other || !(2..=MAX_POINTS).contains(&count) {
        return Err(format!("{}; N is 2 to {MAX_POINTS}", wrong()));
    }
    // In thousandths: bytes of a rate are whole.
    let value = |at: usize| {
        let exact = from + (to - from) * at as f64 / (count - 1) as f64;
        (exact * 1e3).round() / 1e3
    };
    Ok((0..count)
        .map(|at| format!("{}{unit}", value(at)))
        .collect())
}

/// A number and its unit.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use daqmeter_path::Path;

    use super::*;

    const TEXT: &str = "title = \"x\"\nblock = \"64KiB\"\n[source]\nkind = \"memory\"\n[[stage]]\nkind = \"copy\"\n[sink]\nkind = \"read\"\n";

    #[test]
    fn fields_of_the_path_and_of_its_parts_are_set() {
        let text = with_field(TEXT, "stages.0.threads", "2").unwrap();
        let text = with_field(&text, "block", "4096").unwrap();
        let text = with_field(&text, "rate", "2kHz").unwrap();
        let path = Path::parse(&text, "x").unwrap();
        assert_eq!((path.block_bytes, path.rate_hz), (4096, Some(2000.0)));
        assert_eq!(path.shape().unwrap().rows[1].threads, 2);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let error = with_field(TEXT, "stage.3.threads", "2").unwrap_err();
        assert!(error.contains("no `3`"), "{error}");
        let error = with_field(TEXT, "title.x", "2").unwrap_err();
        assert!(error.contains("a field of a part"), "{error}");
        let text = with_field(TEXT, "bufers", "2").unwrap();
        assert!(Path::parse(&text, "x").is_err());
    }

    #[test]
    fn sweeps_are_lists_or_ranges_with_one_unit() {
        assert_eq!(sweep_values("1,2").unwrap(), ["1", "2"]);
        assert_eq!(
            sweep_values("1kHz..3kHz/3").unwrap(),
            ["1kHz", "2kHz", "3kHz"]
        );
        let path = Path::parse(TEXT, "x").unwrap();
        let rates = sweep_values("100MB/s..900MB/s/1000").unwrap();
        assert!(
            rates.iter().all(|rate| path.parse_rate(rate).is_ok()),
            "{rates:?}"
        );
        for wrong in ["1,,2", "1kHz..3MHz/3", "1..3", "1..3/1", "a..b/3"] {
            assert!(sweep_values(wrong).is_err(), "{wrong}");
        }
    }
}
