//! Functions of the original's read-out and conversions, in the words of its help.

use daqmeter_record::{RunRecord, Stage};

pub(crate) fn short(name: &str) -> String {
    if let Some(fused) = name.strip_prefix("readout+") {
        return format!("read-out + {}", short(fused));
    }
    match name {
        "func_no_decsca" => "cast",
        "func_sca" => "scale",
        "func_dec" => "decimate",
        "func_decsca" => "decimate+scale",
        "func_umn2double" => "unsigned f64",
        "func_smn2double" => "signed f64",
        "func_umn2float" => "unsigned f32",
        "func_smn2float" => "signed f32",
        "func_readout" => "read-out",
        "func_pattern" => "write pattern",
        "wait_trigger" => "wait for trigger",
        other => other,
    }
    .to_owned()
}

pub(crate) const IN_LABEL: &[&str] = &["function", "dec_factor"];

pub(crate) fn label(record: &RunRecord, stage: &Stage) -> String {
    let factor = record.workload.int("dec_factor").unwrap_or(1);
    let name = short(&stage.name);
    if factor > 1 && name.contains("decimate") { format!("{name} 1:{factor}") } else { name }
}
