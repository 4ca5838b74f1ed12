//! Names of the host's CPUs, from /proc/cpuinfo.
//!
//! x86 writes a `model name`. AArch64 writes numbers of the Main ID Register (MIDR_EL1):
//! implementer, part, variant and revision. Without names, all Arm hosts would look alike in
//! comparisons.

use daqmeter_record::groups::counted;
use daqmeter_record::units::parse_count;
use daqmeter_sys::host::Files;

/// Implementers (MIDR_EL1 bits 31:24) and parts of each (bits 15:4) with their names. An unknown
/// one is shown by its number, so that hosts stay distinct.
const ARM_PARTS: &str = include_str!("arm_parts.txt");

pub(crate) fn cpu_model(files: &Files) -> String {
    let text = files.text("proc/cpuinfo").unwrap_or_default();
    // POWER writes `cpu`, RISC-V `uarch`.
    let named = |key: &str| lines(&text).find(|(name, value)| *name == key && !value.is_empty());
    if let Some((_, model)) = named("model name") {
        return model.to_owned();
    }
    let arm = arm_model(&text);
    let other = || ["cpu", "uarch"].iter().find_map(|key| Some(named(key)?.1.to_owned()));
    arm.or_else(other).unwrap_or_else(|| "unknown".to_owned())
}

fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
}

/// Returns `Arm Neoverse-N1 r3p1`; for several kinds of cores, each with its number of CPUs.
fn arm_model(text: &str) -> Option<String> {
    let kinds = counted(text.split("\n\n").filter_map(arm_core));
    if let [(only, _)] = &kinds[..] {
        return Some(only.clone());
    }
    let each: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} x {kind}")).collect();
    (!each.is_empty()).then(|| each.join(" + "))
}

/// Returns the name of the core of a CPU.
fn arm_core(paragraph: &str) -> Option<String> {
    let number = |text| u32::try_from(parse_count(text).ok()?).ok();
    let field = |key| lines(paragraph).find(|(name, _)| *name == key).and_then(|of| number(of.1));
    let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
    let [variant, revision] = ["CPU variant", "CPU revision"].map(|key| field(key).unwrap_or(0));
    let named = |numbers: &str, otherwise: String| {
        let known = ARM_PARTS.lines().filter_map(|line| line.split_once(": "));
        let name = known.into_iter().find(|(of, _)| *of == numbers);
        name.map_or(otherwise, |(_, name)| name.to_owned())
    };
    let (maker, part) = (format!("{implementer:#04x}"), format!("{part:#05x}"));
    let core = named(&format!("{maker} {part}"), format!("part {part}"));
    let maker = named(&maker, format!("implementer {maker}"));
    Some(format!("{maker} {core} r{variant}p{revision}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Host with such CPUs: implementer, part, variant, revision.
    fn model(cpus: &[[&str; 4]]) -> String {
        let cpu = |[implementer, part, variant, revision]: &[&str; 4]| {
            format!(
                "Features\t: fp asimd\nCPU implementer\t: {implementer}\nCPU architecture: 8\n\
                 CPU variant\t: {variant}\nCPU part\t: {part}\nCPU revision\t: {revision}\n"
            )
        };
        said(&cpus.iter().map(cpu).collect::<Vec<_>>().join("\n"))
    }

    fn said(cpuinfo: &str) -> String {
        let root = crate::fixtures::root(&[("proc/cpuinfo", cpuinfo)]);
        cpu_model(&Files::below(root.path()))
    }

    #[test]
    fn arm_cpus_are_named_by_implementer_part_and_revision() {
        assert_eq!(model(&[["0x41", "0xd0c", "0x3", "1"]; 4]), "Arm Neoverse-N1 r3p1");
        assert_eq!(model(&[["0x41", "0xd4f", "0x0", "1"]]), "Arm Neoverse-V2 r0p1");
        assert_eq!(model(&[["0xc0", "0xac3", "0x0", "0"]]), "Ampere Ampere-1 r0p0");
        let mixed = [
            ["0x41", "0xd03", "0x0", "4"],
            ["0x41", "0xd03", "0x0", "4"],
            ["0x41", "0xd08", "0x0", "2"],
        ];
        assert_eq!(model(&mixed), "2 x Arm Cortex-A53 r0p4 + 1 x Arm Cortex-A72 r0p2");
    }

    #[test]
    fn arm_cpus_without_a_name_here_still_differ() {
        assert_eq!(model(&[["0x41", "0xfff", "0x1", "2"]]), "Arm part 0xfff r1p2");
        assert_eq!(model(&[["0x99", "0x001", "0x0", "0"]]), "implementer 0x99 part 0x001 r0p0");
        assert_ne!(
            model(&[["0x41", "0xd0c", "0x3", "1"]]),
            model(&[["0x41", "0xd49", "0x0", "0"]])
        );
    }

    #[test]
    fn other_architectures_use_their_own_names() {
        assert_eq!(said("processor : 0\nmodel name : Test CPU\nCPU part : 0xd0c\n"), "Test CPU");
        assert_eq!(
            said("processor : 0\ncpu : POWER9, altivec supported\n"),
            "POWER9, altivec supported"
        );
        assert_eq!(
            said("processor : 0\nisa : rv64imafdc\nuarch : sifive,u74-mc\n"),
            "sifive,u74-mc"
        );
        assert_eq!(said("processor : 0\n"), "unknown");
    }
}
