//! Node types, device types and parts: the meaning of numbers in the registers, from `parts.toml`.

use std::sync::LazyLock;

use daqmeter_harness::TomlText;
use daqmeter_record::Mesh;
use serde::Deserialize;

/// Content of `parts.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Catalogue {
    types: Vec<(u16, String)>,
    devices: Vec<(u8, String, Vec<u16>)>,
    /// Fields of the configuration of an event, with their bits.
    pub(crate) formats: Vec<(String, String)>,
    shares: Vec<(u16, u64, f64)>,
    parts: Vec<MeshPart>,
}

pub(crate) static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let text = TomlText::new("parts.toml", include_str!("../../parts.toml"));
    text.parse().expect("ships with the binary and is tested")
});

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

/// NodeIDs of a mesh that count events of a type.
pub(crate) fn counting(mesh: &Mesh, event: u16) -> impl Iterator<Item = u16> {
    let xps = mesh.crosspoints.iter().map(|xp| (XP, xp.node_id));
    let all = xps.chain(mesh.nodes.iter().map(|node| (node.type_code, node.node_id)));
    all.filter(move |(node, _)| counts_as(*node, event)).map(|(_, id)| id)
}

pub(crate) fn name_of(code: u16) -> Option<&'static str> {
    CATALOGUE.types.iter().find(|(known, _)| *known == code).map(|(_, name)| &**name)
}

/// Returns an event's share of the emulated traffic of its node, by the type of that.
pub(crate) fn share_of(type_code: u16, event_id: u64) -> Option<f64> {
    let mut shares = CATALOGUE.shares.iter();
    shares.find(|(code, event, _)| (*code, *event) == (type_code, event_id)).map(|share| share.2)
}

pub(crate) fn device_names() -> Vec<&'static str> {
    CATALOGUE.devices.iter().map(|(_, name, _)| &**name).collect()
}

/// Finds the device of that name; `RN-F` alone is any of the kind.
pub(crate) fn device_of_name(name: &str) -> Option<(u8, &'static [u16])> {
    let wanted = if name == "RN-F" { "RN-F_A" } else { name };
    let found = CATALOGUE.devices.iter().find(|(_, known, _)| known == wanted);
    found.map(|(code, _, nodes)| (*code, &**nodes))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshPart {
    /// Number in the peripheral identification.
    pub code: u16,
    pub name: String,
    pub revisions: Vec<String>,
    pub node_bytes: u64,
    pub domain_at: Option<u64>,
    pub pmu_at: u64,
}

pub(crate) fn parts() -> &'static [MeshPart] {
    &CATALOGUE.parts
}

pub(crate) fn part_of_name(name: &str) -> Option<&'static MeshPart> {
    parts().iter().find(|part| part.name.eq_ignore_ascii_case(name))
}

/// Reads part and revision from the driver's `identifier`: `43402` is part 0x434, revision 2.
pub(crate) fn of_identifier(text: &str) -> Option<(String, String)> {
    let code = u16::from_str_radix(text.get(..3)?, 16).ok()?;
    let part = parts().iter().find(|part| part.code == code)?;
    let revision = usize::from_str_radix(text.get(3..)?, 16).ok()?;
    Some((part.name.clone(), part.revisions.get(revision).cloned().unwrap_or_default()))
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
        let Catalogue { types, devices, parts, .. } = &*CATALOGUE;
        assert_eq!((types.len(), devices.len(), parts.len()), (25, 30, 5));
        for (at, (code, name)) in types.iter().enumerate() {
            assert!(types[at + 1..].iter().all(|(other, label)| other != code && label != name));
        }
        for (at, (code, name, nodes)) in devices.iter().enumerate() {
            assert!(
                devices[at + 1..].iter().all(|(other, label, _)| other != code && label != name)
            );
            assert!(nodes.iter().all(|node| name_of(*node).is_some()));
        }
    }
}
