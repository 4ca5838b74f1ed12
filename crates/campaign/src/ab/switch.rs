//! A setting of the host that has one value for A and another for B, and is put back.
//!
//! The original setting is kept in a note until it is put back, so that a killed run loses nothing.
//! The next run puts it back first, or the user does with `cat NOTE > FILE`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use daqmeter_sys::host::bracketed;

#[derive(Clone, Debug)]
pub struct Switch {
    /// Path such as `/proc/sys/net/ipv4/tcp_congestion_control`.
    pub path: PathBuf,
    pub values: [String; 2],
}

impl Switch {
    pub(super) fn set(&self, side: usize) -> Result<(), String> {
        let value = &self.values[side];
        write(&self.path, value.as_bytes())?;
        let found = chosen(&read(&self.path)?);
        if found == *value {
            return Ok(());
        }
        let path = self.path.display();
        Err(format!("{path} has the value `{found}` after `{value}` was written to it"))
    }
}

#[derive(Clone, Debug)]
pub struct Setting {
    path: PathBuf,
    text: Vec<u8>,
    /// Text that puts the setting back: the whole content, or the value in brackets for the
    /// kernel's lists, since the kernel takes no list.
    value: Vec<u8>,
}

impl Setting {
    /// Puts the text back into a file, and finds out which form of it the file accepts.
    fn put_back(path: &Path, text: Vec<u8>) -> Result<Setting, String> {
        let whole = Setting { path: path.to_owned(), value: text.clone(), text };
        let Err(why) = whole.restore() else {
            return Ok(whole);
        };
        let value = chosen(&whole.text).into_bytes();
        let listed = Setting { value, ..whole };
        match listed.value != listed.text && listed.restore().is_ok() {
            true => Ok(listed),
            false => Err(why),
        }
    }

    /// Puts the setting back now.
    ///
    /// # Errors
    /// Fails also if the file does not hold the value afterwards.
    pub fn restore(&self) -> Result<(), String> {
        write(&self.path, &self.value)?;
        let found = read(&self.path)?;
        let is_back = match self.value == self.text {
            true => found == self.text,
            false => chosen(&found) == chosen(&self.text),
        };
        match is_back {
            true => Ok(()),
            false => Err(format!(
                "{} holds `{}` after `{}` was put back",
                self.path.display(),
                String::from_utf8_lossy(&found).trim_end(),
                String::from_utf8_lossy(&self.value).trim_end()
            )),
        }
    }
}

#[derive(Debug)]
pub struct Restored {
    setting: Setting,
    note: Note,
    pub said: Vec<String>,
}

impl Restored {
    /// Keeps the original setting, also in a note next to its file or in the user's state folder.
    /// Makes sure that it can be put back. Puts back the setting in the note of an earlier run
    /// first.
    ///
    /// # Errors
    /// Fails also if another run has the setting.
    pub fn of(switch: &Switch) -> Result<Restored, String> {
        Restored::noted_in(switch, state_folder().as_deref())
    }

    fn noted_in(switch: &Switch, state: Option<&Path>) -> Result<Restored, String> {
        let path = &switch.path;
        let text = read(path)?;
        let mut said = Vec::new();
        let (note, text) = match Note::found(path, state)? {
            Some((note, before)) => {
                said.push(format!(
                    "an earlier run was killed: {} is put back to what {} holds",
                    path.display(),
                    note.path.display()
                ));
                (note, before)
            }
            None => (Note::made(path, state, &text)?, text),
        };
        let setting = match Setting::put_back(path, text) {
            Ok(setting) => setting,
            Err(why) if said.is_empty() => {
                note.remove();
                return Err(why);
            }
            Err(why) => return Err(format!("{}, but {why}", said.concat())),
        };
        said.push(format!(
            "{} is put back at the end; until then {} holds its value",
            setting.path.display(),
            note.path.display()
        ));
        Ok(Restored { setting, note, said })
    }

    pub fn setting(&self) -> Setting {
        self.setting.clone()
    }

    /// Puts the setting back now, and removes the note.
    ///
    /// # Errors
    /// An error keeps the note.
    pub fn restore(&self) -> Result<(), String> {
        let note = self.note.path.display();
        self.setting.restore().map_err(|why| format!("{why}; {note} holds what it was"))?;
        self.note.remove();
        Ok(())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // `restore` has reported an earlier failure.
        let _ = self.restore();
    }
}

/// File with an original setting. The run that made it holds a lock on it.
#[derive(Debug)]
struct Note {
    path: PathBuf,
    file: File,
}

impl Note {
    /// Names of the note of a setting: next to its file, else in the user's state folder.
    fn places(setting: &Path, state: Option<&Path>) -> Vec<PathBuf> {
        let with = |mut name: std::ffi::OsString| {
            name.push(".before-ab");
            PathBuf::from(name)
        };
        let whole = setting.canonicalize().unwrap_or(setting.to_owned());
        let flat = whole.to_string_lossy().replace('/', "-");
        let in_state = state.map(|state| state.join(with(flat.trim_start_matches('-').into())));
        std::iter::once(with(whole.into_os_string())).chain(in_state).collect()
    }

    fn found(setting: &Path, state: Option<&Path>) -> Result<Option<(Note, Vec<u8>)>, String> {
        for path in Note::places(setting, state) {
            let Ok(known) = path.symlink_metadata() else {
                continue;
            };
            let shown = path.display();
            let own = fs::metadata("/proc/self").map(|own| own.uid());
            if !known.is_file() || own.is_ok_and(|own| own != known.uid()) {
                return Err(format!(
                    "{shown} is not a note of a run of yours: look at it, and remove it"
                ));
            }
            let wrong = |error| format!("cannot open {shown}: {error}");
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let note = Note { file: file.map_err(wrong)?, path: path.clone() };
            note.lock(setting)?;
            let value = read(&note.path)?;
            return Ok(Some((note, value)));
        }
        Ok(None)
    }

    fn made(setting: &Path, state: Option<&Path>, value: &[u8]) -> Result<Note, String> {
        let mut why = Vec::new();
        for path in Note::places(setting, state) {
            // The folder of the setting exists; only the user's folder may be missing.
            let folder = path.parent().filter(|folder| Some(*folder) == state);
            let _ = folder.map(fs::create_dir_all);
            match Note::made_at(&path, value) {
                Ok(note) => return Ok(note),
                Err(error) => why.push(format!("{}: {error}", path.display())),
            }
        }
        Err(format!(
            "cannot keep what {} was, so that it could be put back after a kill ({}): set XDG_STATE_HOME to a folder",
            setting.display(),
            why.join("; ")
        ))
    }

    fn made_at(path: &Path, value: &[u8]) -> io::Result<Note> {
        let mut begun = path.as_os_str().to_owned();
        begun.push(format!(".{}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&begun)?;
        let whole = file.write_all(value).and_then(|()| file.sync_all());
        // Some network file systems have no locks.
        let _ = file.try_lock();
        let named = whole.and_then(|()| fs::hard_link(&begun, path));
        let _ = fs::remove_file(&begun);
        let path = path.to_owned();
        named.map(|()| Note { path, file })
    }

    fn lock(&self, setting: &Path) -> Result<(), String> {
        match self.file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                Err(format!("another run switches {}: wait for its end", setting.display()))
            }
        }
    }

    fn remove(&self) {
        // A note that is left makes the next run put the setting back once more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the user's folder for the state of programs (XDG Base Directory Specification 0.8).
fn state_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?);
        folder.is_absolute().then_some(folder)
    };
    let home = || Some(absolute("HOME")?.join(".local/state"));
    Some(absolute("XDG_STATE_HOME").or_else(home)?.join("daqmeter"))
}

/// Longest setting. Those of the kernel have at most one page.
const MAX_SETTING_BYTES: u64 = 64 << 10;

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let wrong = |error: io::Error| format!("cannot read {shown}: {error}");
    let known = fs::metadata(path).map_err(wrong)?;
    if !known.is_file() {
        return Err(format!("cannot read {shown}: it is not a regular file"));
    }
    let (file, mut text) = (File::open(path).map_err(wrong)?, Vec::new());
    file.take(MAX_SETTING_BYTES + 1).read_to_end(&mut text).map_err(wrong)?;
    if text.len() as u64 > MAX_SETTING_BYTES {
        return Err(format!(
            "{shown} is longer than {MAX_SETTING_BYTES} bytes: a setting is a short text"
        ));
    }
    Ok(text)
}

/// Returns the current value: the one in brackets for a list (`always [madvise] never`).
fn chosen(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let chosen = bracketed(&text).map(str::to_owned);
    chosen.unwrap_or_else(|| text.trim().to_owned())
}

fn write(path: &Path, value: &[u8]) -> Result<(), String> {
    // A missing file is not created.
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    file.and_then(|mut file| file.write_all(value)).map_err(|error| {
        let value = String::from_utf8_lossy(value);
        let value = value.trim_end();
        format!("cannot write `{value}` to {}: {error}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(path: &Path) -> Switch {
        Switch { path: path.to_owned(), values: ["cubic".to_owned(), "reno".to_owned()] }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_setting_is_changed_and_put_back_byte_for_byte() {
        for before in ["bbr\n", " bbr\n\n", "a [b] c", "", "\u{0}\n"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("congestion");
            fs::write(&path, before).unwrap();
            let switch = switch(&path);
            let restored = Restored::noted_in(&switch, None).unwrap();
            for side in [1, 0] {
                switch.set(side).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), switch.values[side]);
            }
            let note = folder.path().join("congestion.before-ab");
            assert_eq!(fs::read_to_string(note).unwrap(), before);
            drop(restored);
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
            assert_eq!(names(folder.path()), ["congestion"]);
        }
    }

    /// Kill -9 runs no destructor.
    #[test]
    fn what_a_killed_run_left_is_put_back_by_the_next_one_and_a_live_run_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("congestion");
        fs::write(&path, " bbr\n").unwrap();
        let switch = switch(&path);
        let live = Restored::noted_in(&switch, None).unwrap();
        let other = Restored::noted_in(&switch, None).unwrap_err();
        assert!(other.starts_with("another run switches"), "{other}");
        switch.set(1).unwrap();
        drop(live);
        fs::write(&path, "reno").unwrap();
        fs::write(folder.path().join("congestion.before-ab"), " bbr\n").unwrap();
        let next = Restored::noted_in(&switch, None).unwrap();
        assert!(next.said[0].starts_with("an earlier run was killed"));
        assert_eq!(fs::read(&path).unwrap(), b" bbr\n");
        switch.set(1).unwrap();
        drop(next);
        assert_eq!(fs::read(&path).unwrap(), b" bbr\n");
        assert_eq!(names(folder.path()), ["congestion"]);
    }

    #[test]
    fn where_no_file_can_be_made_beside_it_the_note_is_in_the_state_folder() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state/daqmeter");
        let setting = Path::new("/proc/sys/kernel/none");
        let note = Note::made(setting, Some(&state), b"1\n").unwrap();
        assert_eq!(names(&state), ["proc-sys-kernel-none.before-ab"]);
        let busy = Note::found(setting, Some(&state)).unwrap_err();
        assert!(busy.starts_with("another run"), "{busy}");
        drop(note);
        let (_, value) = Note::found(setting, Some(&state)).unwrap().unwrap();
        assert_eq!(value, b"1\n");
        let refused = Note::made(setting, None, b"1").unwrap_err();
        assert!(refused.contains("XDG_STATE_HOME"), "{refused}");
    }

    #[test]
    fn of_a_list_the_chosen_value_counts() {
        assert_eq!(chosen(b"always [madvise] never\n"), "madvise");
        assert_eq!(chosen(b" bbr\n"), "bbr");
    }

    #[test]
    fn what_is_no_setting_is_refused_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none");
        let refused = |path: &Path| Restored::noted_in(&switch(path), None).unwrap_err();
        assert!(refused(&path).starts_with("cannot read"));
        assert!(write(&path, b"x").is_err() && !path.exists());
        assert!(refused(Path::new("/dev/zero")).contains("not a regular file"));
        fs::write(&path, vec![b' '; 65_537]).unwrap();
        assert!(refused(&path).contains("longer than 65536 bytes"));
        assert_eq!(names(folder.path()), ["none"]);
    }
}
