//! Functions of the original's read-out and conversions, in the words of its help.

use daqmeter_record::Workload;

/// Names in the original's table and in its help, by the number of a function; then other stages.
const FUNCTIONS: [(&str, &str); 11] = [
    ("func_readout", "read-out"),
    ("func_decsca", "decimate+scale"),
    ("func_dec", "decimate"),
    ("func_sca", "scale"),
    ("func_no_decsca", "cast"),
    ("func_umn2double", "unsigned f64"),
    ("func_smn2double", "signed f64"),
    ("func_umn2float", "unsigned f32"),
    ("func_smn2float", "signed f32"),
    ("func_pattern", "write pattern"),
    ("wait_trigger", "wait for trigger"),
];

pub(crate) fn short(name: &str) -> String {
    if let Some(fused) = name.strip_prefix("readout+") {
        return format!("read-out + {}", short(fused));
    }
    let known = FUNCTIONS.iter().find(|(known, _)| *known == name);
    known.map_or(name, |(_, short)| short).to_owned()
}

/// Returns the name of a function by its number; the number if it has several stages.
pub(crate) fn of_number(number: u64) -> String {
    let known = FUNCTIONS.get(number as usize);
    known.map_or_else(|| number.to_string(), |(_, short)| (*short).to_owned())
}

pub(crate) const IN_LABEL: &[&str] = &["function", "dec_factor"];

/// Writes a stage in words; for an empty one the function of the request.
pub(crate) fn label(asked: &Workload, stage: &str) -> String {
    let factor = asked.int("dec_factor").unwrap_or(1);
    let name = match asked.int("function") {
        Ok(number) if stage.is_empty() => of_number(number),
        _ => short(stage),
    };
    if factor > 1 && name.contains("decimate") { format!("{name} 1:{factor}") } else { name }
}
