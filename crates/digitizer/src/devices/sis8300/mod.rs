//! Real boards. Three kernel interfaces share the name `sis8300`; a device is probed before anything is driven, and one that
//! is not understood is refused with what was found.

mod device;
mod link;
mod probe;
pub mod regs;

use daqmeter_harness::Fault;

use super::Board;

pub use device::EssBoard;
pub use probe::{Found, probe};

/// Opens a real board.
///
/// # Errors
/// When the path is no digitizer, or one whose driver daqmeter does not drive.
pub fn open(device: &str) -> Result<Box<dyn Board>, Fault> {
    match probe(device)? {
        Found::Ess { file, id } => Ok(Box::new(EssBoard::new(device, file, id)?)),
        Found::Struck => Err(Fault::new(format!(
            "{device}: driven by Struck's own driver (it answers REG_READ but not the ESS driver's RELEASE_IRQ); daqmeter \
             drives the ESS driver: load sis8300drv instead"
        ))),
        Found::Upciedev { driver } => Err(Fault::new(format!(
            "{device}: driven by `{driver}` of the DESY upciedev family; daqmeter drives the ESS driver: load sis8300drv instead"
        ))),
    }
}
