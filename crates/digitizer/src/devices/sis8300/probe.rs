//! Identification of a device without changing it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use daqmeter_harness::Fault;
use daqmeter_sys::host::device_directory;

use super::commands;
use super::regs::{self, Model};

#[derive(Debug)]
pub enum ProbedDriver {
    Ess {
        file: File,
        id: u32,
        model: Model,
    },
    /// Struck's vendor driver, or slac-epics: equal register ioctls, different waits and reads.
    Struck,
    /// A driver of the upciedev family, by the name that sysfs gives.
    Upciedev {
        driver: String,
    },
}

/// Probes a path.
pub fn probe(device: &str) -> Result<ProbedDriver, Fault> {
    let refuse = |why: String| Fault::new(format!("{device}: {why}"));
    let metadata = fs::metadata(device)
        .map_err(|error| refuse(format!("{error}; see `daqmeter list` for what is there")))?;
    let kind = metadata.file_type();
    // Opening a FIFO would wait for its other end.
    let not_a_device = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_block_device(), "a block device"),
    ];
    if let Some((_, what)) = not_a_device.iter().find(|(is, _)| *is) {
        return Err(refuse(format!("is {what}, not a digitizer")));
    }
    if let Some(driver) = upciedev_driver(device, metadata.rdev()) {
        return Ok(ProbedDriver::Upciedev { driver });
    }
    let file = OpenOptions::new().read(true).write(true).open(device).map_err(|error| {
        let is_denied = error.raw_os_error() == Some(13);
        let hint = if is_denied { " (are you in the device's group?)" } else { "" };
        refuse(format!("{error}{hint}"))
    })?;
    let id = commands::read_register(&file, regs::ID).map_err(|error| {
        refuse(format!("not a digitizer: it does not answer a register read ({})", error.source))
    })?;
    let model = Model::from_id(id).ok_or_else(|| {
        let hint = if id == regs::OFF_THE_BUS { ": the card is off the bus" } else { "" };
        refuse(format!(
            "answers, but its identification register is {id:#010x}, not 0x8300xxxx to 0x8303xxxx{hint}"
        ))
    })?;
    // A release without waiters has no effect. The command's size (12 bytes) is the ESS driver's
    // own.
    match commands::release_irq(&file) {
        Ok(()) => Ok(ProbedDriver::Ess { file, id, model }),
        Err(error) if matches!(error.errno(), Some(22 | 25)) => Ok(ProbedDriver::Struck),
        Err(error) => Err(refuse(format!("{error}"))),
    }
}

/// Finds an upciedev driver: its nodes are `sis8300s<N>`, and sysfs names it. No ioctl is tried:
/// their numbers mean different things in each fork.
fn upciedev_driver(device: &str, rdev: u64) -> Option<String> {
    let link = fs::read_link(format!("/{}/device/driver", device_directory("char", rdev))).ok();
    let by_sysfs = link.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    if let Some(driver) = by_sysfs
        && driver.contains("pciedev")
    {
        return Some(driver);
    }
    let name = device.rsplit('/').next()?;
    let number = name.strip_prefix("sis8300s")?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        .then(|| format!("{name} (by its name)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str) -> String {
        probe(path).err().map(|fault| fault.0).unwrap_or_default()
    }

    #[test]
    fn what_is_no_device_is_refused_by_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refusal(dir.path().to_str().unwrap()).contains("is a directory"));
        let file = dir.path().join("plain");
        fs::write(&file, "hello").unwrap();
        assert!(refusal(file.to_str().unwrap()).contains("does not answer a register read"));
        assert!(refusal("/dev/null").contains("does not answer a register read"));
        assert!(refusal("/nonexistent/sis8300-4").contains("daqmeter list"));
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_for_its_other_end() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        assert!(refusal(fifo.to_str().unwrap()).contains("is a FIFO"));
    }

    #[test]
    fn upciedev_nodes_are_known_by_name() {
        assert!(upciedev_driver("/dev/sis8300s4", 0).is_some());
        assert!(upciedev_driver("/dev/sis8300-4", 0).is_none());
        assert!(upciedev_driver("/dev/sis8300s", 0).is_none());
    }
}
