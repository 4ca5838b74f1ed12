//! Numbers of a scenario: every one that has a unit must say it.

use daqmeter_record::units::{parse_bytes, parse_rate_hz, parse_seconds};

use crate::draw::whole;
use crate::model::{MAX_TIME_PS, SECOND_PS};

fn with_unit<'a>(text: &'a str, examples: &str) -> Result<&'a str, String> {
    match text.trim().ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        true => Err(format!("`{text}` has no unit: write {examples}")),
        false => Ok(text.trim()),
    }
}

/// A time in ps: `41.7ns`.
pub(crate) fn time_ps(text: &str) -> Result<u64, String> {
    let seconds = parse_seconds(with_unit(text, "10ns, 1.5us, 3ms or 2s")?);
    let ps = seconds.map_err(|error| error.to_string())? * SECOND_PS as f64;
    match ps <= MAX_TIME_PS as f64 {
        true => Ok(whole(ps)),
        false => Err(format!("`{text}` is longer than 53 days")),
    }
}

/// A size in bytes: `64KiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(with_unit(text, "100B, 4KiB or 6MB")?).map_err(|error| error.to_string())
}

/// The bytes of an item.
pub(crate) fn item_bytes(text: &str) -> Result<u64, String> {
    let found = bytes(text)?;
    match found <= u64::from(u32::MAX) {
        true => Ok(found),
        false => Err(format!("`{text}` is more than the 4 GiB of one item")),
    }
}

/// The time of a byte at a speed, in ps: `1.2GB/s`.
pub(crate) fn per_byte_ps(text: &str) -> Result<f64, String> {
    let Some(bytes_text) = text.trim().strip_suffix("/s") else {
        return Err(format!("`{text}` is not a speed such as 1.2GB/s"));
    };
    match bytes(bytes_text)? {
        0 => Err(format!("`{text}` moves nothing")),
        bytes => Ok(SECOND_PS as f64 / bytes as f64),
    }
}

/// The same for a link, whose rate is usually given in bits: `200Gbit/s`.
pub(crate) fn link_per_byte_ps(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let Some(bits) = trimmed.strip_suffix("bit/s") else {
        let known = per_byte_ps(trimmed);
        return known.map_err(|_| format!("`{text}` is not a rate such as 200Gbit/s or 25GB/s"));
    };
    let bits = bytes(&format!("{bits}B"))
        .map_err(|_| format!("`{text}` is not a rate such as 200Gbit/s or 25GB/s"))?;
    match bits {
        0 => Err(format!("`{text}` moves nothing")),
        bits => Ok(8.0 * SECOND_PS as f64 / bits as f64),
    }
}

/// The time between two at a rate, in ps: `1MHz`.
pub(crate) fn gap_ps(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    if !trimmed.ends_with("Hz") {
        return Err(format!("`{text}` has no unit: write 14Hz, 1.2kHz or 1MHz"));
    }
    let hz = parse_rate_hz(trimmed).map_err(|error| error.to_string())?;
    let gap = SECOND_PS as f64 / hz;
    match (1.0..=MAX_TIME_PS as f64).contains(&gap) {
        true => Ok(whole(gap)),
        false => Err(format!("`{text}` is not between once in 53 days and 1 THz")),
    }
}

/// A share: `0.5%`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').map(str::trim_end);
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
        Some(percent) => Ok(percent / 100.0),
        None => Err(format!("`{text}` is not a share such as 0.5%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_typed() {
        assert_eq!(time_ps("41.7ns"), Ok(41_700));
        assert_eq!(time_ps("1s"), Ok(SECOND_PS));
        assert_eq!(bytes("64 KiB"), Ok(65_536));
        assert_eq!(per_byte_ps("1GB/s"), Ok(1000.0));
        assert_eq!(gap_ps("1.25MHz"), Ok(800_000));
        assert_eq!(link_per_byte_ps("200Gbit/s"), Ok(40.0));
        assert_eq!(link_per_byte_ps("25GB/s"), Ok(40.0));
        assert_eq!(share("0.5 %"), Ok(0.005));
    }

    #[test]
    fn a_number_without_its_unit_is_refused_with_an_example() {
        for (found, wanted) in [
            (time_ps("100").map(|_| ()), "write 10ns"),
            (bytes("4096").map(|_| ()), "write 100B"),
            (gap_ps("1000").map(|_| ()), "write 14Hz"),
            (gap_ps("1M").map(|_| ()), "write 14Hz"),
            (share("0.01").map(|_| ()), "0.5%"),
            (per_byte_ps("1GB").map(|_| ()), "1.2GB/s"),
            (per_byte_ps("0B/s").map(|_| ()), "moves nothing"),
            (link_per_byte_ps("200").map(|_| ()), "200Gbit/s"),
            (link_per_byte_ps("0Gbit/s").map(|_| ()), "moves nothing"),
            (time_ps("90000h").map(|_| ()), "53 days"),
            (item_bytes("5GiB").map(|_| ()), "4 GiB"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
