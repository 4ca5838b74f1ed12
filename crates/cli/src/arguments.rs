//! Values with units, as clap reads them.

use std::time::Duration;

pub(crate) use daqmeter_record::units::{
    parse_bytes as bytes, parse_count as count, parse_duration as duration, parse_rate_hz as rate,
};
use daqmeter_sys::host::parse_cpu_list;

/// CPUs in the order in which threads get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

pub(crate) fn budget(text: &str) -> Result<Duration, String> {
    match duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("no time to measure in: give some, such as 20s or 1m30".to_owned()),
        time => Ok(time),
    }
}

/// Reads `5%` or `5` as a fraction.
pub(crate) fn per_cent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .trim()
        .parse()
        .map_err(|_| "a percentage such as 5% is wanted".to_owned())?;
    if (0.0..=1000.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err("0% to 1000% is wanted".to_owned())
    }
}

/// Reads `0,1` or `0-3`: every part must be a CPU number or a range.
pub(crate) fn cpu_list(text: &str) -> Result<CpuList, String> {
    let cpus = parse_cpu_list(text);
    let whole = text.split(',').all(|part| !parse_cpu_list(part).is_empty());
    if whole {
        Ok(CpuList(cpus))
    } else {
        Err(format!("`{text}` is not a list of CPUs such as 0,1 or 0-3"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_some_time() {
        assert_eq!(budget("1m30"), Ok(Duration::from_secs(90)));
        assert_eq!(budget("60"), Ok(Duration::from_secs(60)));
        assert!(budget("0s").unwrap_err().contains("20s"));
    }

    #[test]
    fn cpu_lists_are_taken_whole_or_not_at_all() {
        assert_eq!(cpu_list("1,0").unwrap().0, [1, 0]);
        assert_eq!(cpu_list("0-2").unwrap().0, [0, 1, 2]);
        for wrong in ["", "x", "0,,1", "3-1", "0;1"] {
            assert!(cpu_list(wrong).is_err(), "{wrong}");
        }
    }
}
