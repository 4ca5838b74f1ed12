//! Node types, device types and parts: the meaning of numbers in the registers.
//! Sources: CMN-600, CMN-650, CMN-700 and CMN S3 TRMs (por_*_node_info,
//! por_mxp_device_port_connect_info, por_cfgm_periph_id_*); Linux drivers/perf/arm-cmn.c.

const TYPES: &[(u16, &str)] = &[
    (0x1, "DVM"),
    (0x2, "CFG"),
    (0x3, "DTC"),
    (0x4, "HN-I"),
    (0x5, "HN-F"),
    (0x6, "XP"),
    (0x7, "SBSX"),
    (0x8, "MPAM-S"),
    (0x9, "MPAM-NS"),
    (0xa, "RN-I"),
    (0xd, "RN-D"),
    (0xf, "RN-SAM"),
    (0x10, "MTSX"),
    (0x11, "HN-P"),
    (0x100, "CXRA"),
    (0x101, "CXHA"),
    (0x102, "CXLA"),
    (0x103, "CCRA"),
    (0x104, "CCHA"),
    (0x105, "CCLA"),
    (0x106, "CCLA-RNI"),
    (0x200, "HN-S"),
    (0x201, "HN-S-MPAM-S"),
    (0x202, "HN-S-MPAM-NS"),
    (0x1000, "APB"),
];

/// Comparators of a crosspoint's monitor; not a node.
pub(crate) const WATCHPOINT: u16 = 0x7770;
pub const XP: u16 = 0x6;
pub const DTC: u16 = 0x3;
pub(crate) const CFG: u16 = 0x2;
/// RN-I, to which the driver counts RN-D, too.
pub const RNI: u16 = 0xa;
pub(crate) const RND: u16 = 0xd;

pub(crate) const HNI: u16 = 0x4;
/// HN-P, which the driver splits into an HN-P and an HN-I.
pub(crate) const HNP: u16 = 0x11;
const CCLA: u16 = 0x105;
/// CCLA with an RN-I, which the driver splits into both.
const CCLA_RNI: u16 = 0x106;

pub fn counts_as(node: u16, event: u16) -> bool {
    match node {
        RND => event == RNI,
        HNP => event == HNP || event == HNI,
        CCLA_RNI => event == CCLA || event == RNI,
        _ => node == event,
    }
}

pub(crate) fn name_of(code: u16) -> Option<&'static str> {
    TYPES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

pub const DEVICES: &[(u8, &str, &[u16])] = &[
    (0x01, "RN-I", &[0xa]),
    (0x02, "RN-D", &[0xd]),
    (0x04, "RN-F_B", &[]),
    (0x05, "RN-F_B_E", &[]),
    (0x06, "RN-F_A", &[]),
    (0x07, "RN-F_A_E", &[]),
    (0x08, "HN-T", &[0x3, 0x4]),
    (0x09, "HN-I", &[0x4]),
    (0x0a, "HN-D", &[0x3, 0x1, 0x4]),
    (0x0b, "HN-P", &[0x11]),
    (0x0c, "SN-F", &[]),
    (0x0d, "SBSX", &[0x7]),
    (0x0e, "HN-F", &[0x5]),
    (0x0f, "SN-F_E", &[]),
    (0x10, "SN-F_D", &[]),
    (0x11, "CXHA", &[0x101]),
    (0x12, "CXRA", &[0x100]),
    (0x13, "CXRH", &[0x100, 0x101]),
    (0x14, "RN-F_D", &[]),
    (0x15, "RN-F_D_E", &[]),
    (0x16, "RN-F_C", &[]),
    (0x17, "RN-F_C_E", &[]),
    (0x18, "RN-F_E", &[]),
    (0x19, "RN-F_E_E", &[]),
    (0x1a, "HN-S", &[0x200]),
    (0x1c, "MTSX", &[0x10]),
    (0x1d, "HN-V", &[0x3, 0x1, 0x4]),
    (0x1e, "CCG", &[0x103, 0x104, 0x105]),
    (0x20, "RN-F_F", &[]),
    (0x22, "SN-F_F", &[]),
];

/// Finds the device of that name; `RN-F` alone is any of the kind.
pub(crate) fn device_of_name(name: &str) -> Option<(u8, &'static [u16])> {
    let wanted = if name == "RN-F" { "RN-F_A" } else { name };
    DEVICES.iter().find(|(_, known, _)| *known == wanted).map(|(code, _, nodes)| (*code, *nodes))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshPart {
    /// Number in the peripheral identification.
    pub code: u16,
    pub name: &'static str,
    pub revisions: &'static [&'static str],
    pub node_bytes: u64,
    pub domain_at: Option<u64>,
    pub pmu_at: u64,
}

pub const PARTS: &[MeshPart] = &[
    MeshPart {
        code: 0x434,
        name: "CMN-600",
        revisions: &["r1p0", "r1p1", "r1p2", "r1p3", "r2p0", "r3p0", "r3p1"],
        node_bytes: 0x4000,
        domain_at: None,
        pmu_at: 0x2000,
    },
    MeshPart {
        code: 0x436,
        name: "CMN-650",
        revisions: &["r0p0", "r1p0", "r1p1", "r2p0", "r1p2"],
        node_bytes: 0x1_0000,
        domain_at: Some(0x910),
        pmu_at: 0x2000,
    },
    MeshPart {
        code: 0x43c,
        name: "CMN-700",
        revisions: &["r0p0", "r1p0", "r2p0", "r3p0"],
        node_bytes: 0x1_0000,
        domain_at: Some(0x960),
        pmu_at: 0x2000,
    },
    MeshPart {
        code: 0x43e,
        name: "CMN-S3",
        revisions: &["r0p0", "r0p1", "r1p0"],
        node_bytes: 0x1_0000,
        domain_at: Some(0x960),
        pmu_at: 0xd900,
    },
    MeshPart {
        code: 0x43a,
        name: "CI-700",
        revisions: &["r0p0", "r1p0", "r2p0"],
        node_bytes: 0x1_0000,
        domain_at: Some(0x910),
        pmu_at: 0x2000,
    },
];

pub(crate) fn part_of_name(name: &str) -> Option<&'static MeshPart> {
    PARTS.iter().find(|part| part.name.eq_ignore_ascii_case(name))
}

/// Reads part and revision from the driver's `identifier`: `43402` is part 0x434, revision 2.
pub(crate) fn of_identifier(text: &str) -> Option<(String, String)> {
    let code = u16::from_str_radix(text.get(..3)?, 16).ok()?;
    let part = PARTS.iter().find(|part| part.code == code)?;
    let revision = usize::from_str_radix(text.get(3..)?, 16).ok()?;
    Some((part.name.to_owned(), part.revisions.get(revision).copied().unwrap_or("").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_name_part_and_revision() {
        assert_eq!(of_identifier("43402"), Some(("CMN-600".into(), "r1p2".into())));
        assert_eq!(of_identifier("43c03"), Some(("CMN-700".into(), "r3p0".into())));
        for wrong in ["", "4", "zzz00", "99900", "43"] {
            assert_eq!(of_identifier(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn types_and_devices_are_unique() {
        for (at, (code, name)) in TYPES.iter().enumerate() {
            assert!(TYPES[at + 1..].iter().all(|(other, label)| other != code && label != name));
        }
        for (at, (code, name, nodes)) in DEVICES.iter().enumerate() {
            assert!(
                DEVICES[at + 1..].iter().all(|(other, label, _)| other != code && label != name)
            );
            assert!(nodes.iter().all(|node| name_of(*node).is_some()));
        }
    }
}
