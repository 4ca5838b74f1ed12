//! A setting of the host that has one value for A and another for B, and is put back.

use std::path::{Path, PathBuf};

use daqmeter_sys::host::bracketed;

/// A file of the host's settings and its two values.
#[derive(Clone, Debug)]
pub struct Switch {
    /// For example `/proc/sys/net/ipv4/tcp_congestion_control`.
    pub path: PathBuf,
    /// Value for A and for B.
    pub values: [String; 2],
}

impl Switch {
    /// Puts the setting to the value of a side, and looks whether it took it.
    pub(super) fn set(&self, side: usize) -> Result<(), String> {
        let value = &self.values[side];
        write(&self.path, value)?;
        let found = read(&self.path)?;
        if found == *value {
            return Ok(());
        }
        let path = self.path.display();
        Err(format!(
            "{path} has the value `{found}` after `{value}` was written to it"
        ))
    }
}

/// Puts a setting back to what it was, when it is dropped.
#[derive(Clone, Debug)]
pub struct Restored {
    path: PathBuf,
    value: String,
}

impl Restored {
    /// Remembers what the setting is, and makes sure that it can be put back.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn of(switch: &Switch) -> Result<Restored, String> {
        let (path, value) = (switch.path.clone(), read(&switch.path)?);
        write(&path, &value)?;
        Ok(Restored { path, value })
    }

    /// Puts it back now.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn restore(&self) -> Result<(), String> {
        write(&self.path, &self.value)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // It was written before; if that fails now, `restore` said so to whom it concerns.
        let _ = self.restore();
    }
}

/// The value at hand: of a list of values the one in brackets (`always [madvise] never`).
fn read(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let chosen = bracketed(&text).map(str::to_owned);
    Ok(chosen.unwrap_or_else(|| text.trim().to_owned()))
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    // Not created, where there is none.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| format!("cannot write `{value}` to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(path: &Path) -> Switch {
        Switch {
            path: path.to_owned(),
            values: ["cubic".to_owned(), "reno".to_owned()],
        }
    }

    #[test]
    fn a_setting_is_changed_and_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("congestion");
        std::fs::write(&path, "bbr\n").unwrap();
        let switch = switch(&path);
        let restored = Restored::of(&switch).unwrap();
        for side in [1, 0] {
            switch.set(side).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), switch.values[side]);
        }
        drop(restored);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "bbr");
    }

    #[test]
    fn of_a_list_the_chosen_value_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("enabled");
        std::fs::write(&path, "always [madvise] never\n").unwrap();
        assert_eq!(read(&path).unwrap(), "madvise");
        assert_eq!(Restored::of(&switch(&path)).unwrap().value, "madvise");
    }

    #[test]
    fn a_setting_that_is_not_there_is_refused_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none");
        assert!(
            Restored::of(&switch(&path))
                .unwrap_err()
                .starts_with("cannot read")
        );
        assert!(write(&path, "x").is_err() && !path.exists());
    }
}
