//! Values with units, as clap reads them.

use std::time::Duration;

use daqmeter_record::units;
use daqmeter_sys::host::parse_cpu_list;

/// CPUs in the order in which threads get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

pub(crate) fn count(text: &str) -> Result<u64, String> {
    units::parse_count(text).map_err(|error| error.to_string())
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    units::parse_bytes(text).map_err(|error| error.to_string())
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).map_err(|error| error.to_string())
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    units::parse_rate_hz(text).map_err(|error| error.to_string())
}

/// `0,1` or `0-3`: every part must be a CPU number or a range.
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
    fn cpu_lists_are_taken_whole_or_not_at_all() {
        assert_eq!(cpu_list("1,0").unwrap().0, [1, 0]);
        assert_eq!(cpu_list("0-2").unwrap().0, [0, 1, 2]);
        for wrong in ["", "x", "0,,1", "3-1", "0;1"] {
            assert!(cpu_list(wrong).is_err(), "{wrong}");
        }
    }
}
