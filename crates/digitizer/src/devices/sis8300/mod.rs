//! Struck SIS8300 boards: the real ones behind the ESS driver, and emulated ones. Three kernel
//! interfaces share the name `sis8300`. A device is probed before any access, and an unknown one is
//! refused with the finding.

mod commands;
#[cfg(feature = "fuse")]
mod driver_file;
pub mod emulated;
mod ess;
mod probe;
mod registers;
pub mod regs;

use daqmeter_harness::{CardFamily, Fault};

use crate::devices::board::EMULATED_PREFIX;
use crate::devices::family::BoardFamily;
use emulated::Profile;

#[cfg(feature = "fuse")]
pub use driver_file::{Dialect, ServedBoard, serve, serve_emulated};
pub use ess::EssBoard;
pub use probe::{ProbedDriver, probe};
pub use registers::BoardRegisters;

const UNDRIVEN: &str = "not driven: load sis8300drv";

pub(super) const FAMILY: BoardFamily = BoardFamily {
    name: "SIS8300",
    cards: CardFamily {
        kind: "digitizer",
        maker: "Struck",
        // Struck Innovative Systeme (pci.ids).
        vendor: "0x1796",
        is_node,
    },
    remedy: "load sis8300drv; emulated boards (emu:l0) need nothing",
    claims: |device| {
        let node = device.rsplit('/').next().unwrap_or(device);
        is_node(node) || device.strip_prefix(EMULATED_PREFIX).is_some_and(is_emulated)
    },
    open: |device, crate_| match device.strip_prefix(EMULATED_PREFIX) {
        Some(name) => Ok(Box::new(crate_.board(device, name)?)),
        None => Ok(Box::new(open_ess(device)?)),
    },
    describe: |node| match probe(node) {
        Ok(ProbedDriver::Ess { id, .. }) => {
            ("sis8300drv (ESS)".to_owned(), format!("identification {id:#010x}"))
        }
        Ok(ProbedDriver::Struck) => ("Struck's driver".to_owned(), UNDRIVEN.to_owned()),
        Ok(ProbedDriver::Upciedev { driver }) => (driver, UNDRIVEN.to_owned()),
        Err(fault) => ("not understood".to_owned(), fault.0),
    },
    emulated,
};

fn emulated() -> Vec<(String, String)> {
    let profile = Profile::default();
    let row = |board: &emulated::BoardRate| {
        let stem = &board.model;
        let dash = if stem == "l2" { "-" } else { "" };
        let megabytes = board.own_bytes_per_s / 1e6;
        (
            format!("emu:{stem}{dash}0, emu:{stem}{dash}1, ..."),
            format!("{megabytes:.0} MB/s alone (profile {})", profile.name),
        )
    };
    profile.board.iter().map(row).collect()
}

fn is_node(name: &str) -> bool {
    name.starts_with("sis8300")
}

fn is_emulated(name: &str) -> bool {
    emulated::parse_name(name.split(':').next().unwrap_or(name)).is_some()
}

/// Opens a real board.
pub fn open_ess(device: &str) -> Result<EssBoard, Fault> {
    match probe(device)? {
        ProbedDriver::Ess { file, model, .. } => EssBoard::new(device, file, model),
        ProbedDriver::Struck => Err(Fault::new(format!(
            "{device}: driven by Struck's own driver (it answers REG_READ but not the ESS driver's RELEASE_IRQ); daqmeter \
             drives the ESS driver: load sis8300drv instead"
        ))),
        ProbedDriver::Upciedev { driver } => Err(Fault::new(format!(
            "{device}: driven by `{driver}` of the DESY upciedev family; daqmeter drives the ESS driver: load sis8300drv instead"
        ))),
    }
}
