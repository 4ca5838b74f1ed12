//! Boards by name. Every family is a folder with its registers, driver, probing, numbers on buses
//! and emulated members, and a line in [`FAMILIES`].

pub mod board;
pub mod family;
pub mod pcie;
pub mod sis8300;
mod xdma;

use std::sync::Arc;

use daqmeter_harness::Fault;
use daqmeter_sys::host::Files;

use board::{Board, EMULATED_PREFIX};
use family::BoardFamily;
use sis8300::emulated::EmulatedCrate;

/// Every family. The last one takes the devices that no other claims, and reports its findings.
pub static FAMILIES: [BoardFamily; 2] = [xdma::FAMILY, sis8300::FAMILY];

/// Opens boards by name, in the order of the names; emulated ones share a crate.
pub fn open(devices: &[String], crate_: &Arc<EmulatedCrate>) -> Result<Vec<Box<dyn Board>>, Fault> {
    let open = |device: &String| {
        let claiming = FAMILIES.iter().find(|family| (family.claims)(device));
        (claiming.unwrap_or(&FAMILIES[FAMILIES.len() - 1]).open)(device, crate_)
    };
    devices.iter().map(open).collect()
}

pub fn nodes(files: &Files) -> impl Iterator<Item = (&'static BoardFamily, String)> {
    let of = |family: &'static BoardFamily| {
        let nodes = family.cards.nodes(files);
        nodes.into_iter().map(move |node| (family, node))
    };
    FAMILIES.iter().flat_map(of)
}

/// Expands `emu:l0..4` to `emu:l0` ... `emu:l4`; keeps other names.
///
/// # Errors
/// An invalid range; the problem follows the name of a parameter.
pub fn expand(device: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) =
        device.strip_prefix(EMULATED_PREFIX).and_then(|name| name.split_once(".."))
    else {
        return Ok(vec![device.to_owned()]);
    };
    let digits = first.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, first) = first.split_at(digits);
    let range = || -> Option<std::ops::RangeInclusive<u32>> {
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    match range().filter(|range| !range.is_empty() && range.end() - range.start() < 1000) {
        Some(range) => Ok(range.map(|n| format!("{EMULATED_PREFIX}{stem}{n}")).collect()),
        None => Err(format!("has `{device}`; a range of emulated boards is written emu:l0..4")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_emulated_boards_expand() {
        assert_eq!(expand("emu:l0..2").unwrap(), ["emu:l0", "emu:l1", "emu:l2"]);
        assert_eq!(expand("emu:l2-0..1").unwrap(), ["emu:l2-0", "emu:l2-1"]);
        assert_eq!(expand("/dev/sis8300-6").unwrap(), ["/dev/sis8300-6"]);
        for wrong in ["emu:l4..0", "emu:l..", "emu:l0..x", "emu:l0..4000"] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
