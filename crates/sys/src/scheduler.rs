//! Settings of the kernel's scheduler that root may change for the time of a measurement.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::host::Files;
use crate::{SysError, failed};

const PLACES: [&str; 2] =
    ["proc/sys/kernel/sched_migration_cost_ns", "sys/kernel/debug/sched/migration_cost_ns"];

/// Time since its last run for which the scheduler treats a task as cache hot and does not move it.
/// Drop restores the value; a killed process leaves it changed.
#[derive(Debug)]
pub struct MigrationCost {
    place: PathBuf,
    before: String,
}

impl MigrationCost {
    /// # Errors
    /// This kernel does not have the setting, or the process may not write it.
    pub fn set(files: &Files, ns: u64) -> Result<MigrationCost, SysError> {
        let (place, call) = place(files)?;
        let before = fs::read_to_string(&place).map_err(failed(&*call))?;
        fs::write(&place, ns.to_string()).map_err(failed(call))?;
        let before = before.trim().to_owned();
        Ok(MigrationCost { place, before })
    }

    /// # Errors
    /// The reason why it cannot be set.
    pub fn check(files: &Files) -> Result<(), SysError> {
        let (place, call) = place(files)?;
        fs::OpenOptions::new().write(true).open(place).map(drop).map_err(failed(call))
    }

    pub fn before_ns(&self) -> Option<u64> {
        self.before.parse().ok()
    }
}

impl Drop for MigrationCost {
    fn drop(&mut self) {
        // Drop cannot report an error; the file was writable before.
        let _ = fs::write(&self.place, &self.before);
    }
}

/// Returns the file, and its name in errors.
fn place(files: &Files) -> Result<(PathBuf, String), SysError> {
    let mut places = PLACES.iter().map(|place| files.root().join(place));
    let place = places.find(|place| place.exists()).ok_or_else(|| {
        let call = "sched_migration_cost_ns (root, debugfs mounted at /sys/kernel/debug)";
        failed(call)(io::Error::from(io::ErrorKind::NotFound))
    })?;
    let call = format!("{} (root's)", place.display());
    Ok((place, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_put_back() {
        for place in PLACES {
            let (root, files) = crate::host::root_with(&[(place, "500000\n")]);
            let path = root.path().join(place);
            assert!(MigrationCost::check(&files).is_ok());
            let set = MigrationCost::set(&files, 1000).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "1000");
            assert_eq!(set.before_ns(), Some(500_000));
            drop(set);
            assert_eq!(fs::read_to_string(&path).unwrap(), "500000");
        }
    }

    #[test]
    fn a_kernel_without_it_is_told() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        let why = MigrationCost::set(&files, 1000).unwrap_err().to_string();
        assert!(why.contains("debugfs"), "{why}");
        assert!(MigrationCost::check(&files).is_err());
    }
}
