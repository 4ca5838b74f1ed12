//! Values with units, as clap reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgMatches, Command};
use daqmeter_harness::request::Problem;
use daqmeter_record::sanitise;

pub(crate) use daqmeter_record::units::{
    parse_bytes as bytes, parse_count as count, parse_duration as duration, parse_rate_hz as rate,
};

pub(crate) fn budget(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("the time is 0: use a time such as 20s or 1m30".to_owned()),
        time => Ok(time),
    }
}

/// Reads a share: `5%` or `0.05`. A number from 1 on needs its sign, since 5 could be both.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, factor, end) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 0.01, 1000.0),
        None => (text.trim(), 1.0, 0.999_999),
    };
    let number = number.parse().ok().filter(|number| (0.0..=end).contains(number));
    let wrong = || format!("`{text}`: write a share such as 5% or 0.05, at most 1000%");
    number.map(|number: f64| number * factor).ok_or_else(wrong)
}

/// Reads what the user calls a host.
pub(crate) fn label(text: &str) -> Result<String, String> {
    // As long as a host's own name may be (HOST_NAME_MAX).
    const MAX_BYTES: usize = 64;
    let is_name = !text.contains('/') && sanitise::text(text) == text;
    match is_name && (1..=MAX_BYTES).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 64 bytes without / and control characters, such as rack3-n7".into()),
    }
}

/// Refuses CPUs that this host does not have, under the name that the user gave them by.
pub(crate) fn check_cpus(name: &str, cpus: &[u32]) -> Result<(), String> {
    let checked = Problem::unless_cpus_exist("", cpus);
    checked.map_err(|problem| format!("{name} {}", problem.text))
}

/// Options whose parameter in requests has another name.
const PARAMETERS: [(&str, &str); 5] = [
    ("time", "seconds"),
    ("rate", "rate_hz"),
    ("pin", "cpus"),
    ("sizes", "block_bytes"),
    ("server_pin", "peer_cpu"),
];

/// Returns the options of a command line as they were typed, by the name of their parameter.
pub(crate) fn typed(command: &Command, matches: &ArgMatches) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    if let Some((name, below)) = matches.subcommand() {
        options = command.find_subcommand(name).map_or(options, |verb| typed(verb, below));
    }
    let is_given =
        |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    for option in command.get_arguments().filter(|option| is_given(option.get_id().as_str())) {
        let (id, Some(long)) = (option.get_id().as_str(), option.get_long()) else { continue };
        let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy());
        let takes = option.get_action().takes_values();
        let words = [format!("--{long}").into()].into_iter().chain(values.filter(|_| takes));
        let text = words.collect::<Vec<_>>().join(" ");
        let other = PARAMETERS.iter().find(|(of, _)| *of == id).map(|(_, parameter)| *parameter);
        options.extend(
            [Some(id), other].into_iter().flatten().map(|of| (of.to_owned(), text.clone())),
        );
    }
    options
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
    fn a_label_fits_into_the_name_of_a_file() {
        for good in ["rack3-n7", "é 1", ".", &"x".repeat(64)] {
            assert_eq!(label(good), Ok(good.to_owned()));
        }
        for wrong in ["", "a/b", "a\nb", "\u{1b}[2J", "a\u{202e}b", &"x".repeat(65)] {
            assert!(label(wrong).unwrap_err().contains("rack3-n7"), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_a_percentage_or_a_number_below_one() {
        for (text, expected) in [("2%", 0.02), ("0.02", 0.02), ("2 %", 0.02), ("150%", 1.5)] {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for wrong in ["2", "1001%", "-1%", "nan", "nan%", ""] {
            assert!(share(wrong).unwrap_err().contains("5% or 0.05"), "{wrong}");
        }
    }
}
