//! CPUs of the receivers: `--receiver-pin`.

use crate::output::Failure;
use crate::run::{CpuList, Runner};

/// CPUs as a workload writes them.
pub(crate) fn cpus(list: Option<&CpuList>) -> Option<String> {
    list.map(|list| {
        list.0
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",")
    })
}

/// CPUs of receivers must exist as those of readers must.
pub(crate) fn check_pins(list: Option<&CpuList>, runner: &Runner) -> Result<(), Failure> {
    let allowed = &runner.context.host.allowed_cpus;
    match list.and_then(|list| list.0.iter().find(|cpu| !allowed.contains(cpu))) {
        None => Ok(()),
        Some(cpu) => Err(Failure::refused(format!(
            "--receiver-pin: CPU {cpu} does not exist or is not allowed here"
        ))),
    }
}
