//! Values with units, as clap reads them.

use std::time::Duration;

pub(crate) use daqmeter_record::units::{
    parse_bytes as bytes, parse_count as count, parse_duration as duration, parse_rate_hz as rate,
};

pub(crate) fn budget(text: &str) -> Result<Duration, String> {
    match duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("the time is 0: use a time such as 20s or 1m30".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_some_time() {
        assert_eq!(budget("1m30"), Ok(Duration::from_secs(90)));
        assert_eq!(budget("60"), Ok(Duration::from_secs(60)));
        assert!(budget("0s").unwrap_err().contains("20s"));
    }
}
