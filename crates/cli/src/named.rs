//! Files that the command line names for writing. Their types say what happens to an existing file.
//! A [`Replaced`] file is written whole, an [`Appended`] one grows by lines, and an
//! [`OutputFolder`] holds files with names of their own. Writers take only these types, and
//! [`check`] finds them in the options of every verb. So no verb can write over its input, its
//! other output, or records, and none measures first what it then cannot write.

use std::any::TypeId;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Arg, ArgMatches, Command};
use daqmeter_record::file::{Replacement, is_descriptor};
use daqmeter_record::sanitise;
use daqmeter_sys::{host, mounts};

use crate::failure::Failure;

#[derive(Clone, Debug)]
pub(crate) struct Named<const GROWS: bool>(PathBuf);

/// A file that is replaced whole: a page, a table, a profile. It never replaces records.
pub(crate) type Replaced = Named<false>;

/// A file of records, which grows by lines.
pub(crate) type Appended = Named<true>;

impl<const GROWS: bool> Named<GROWS> {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Named(path.into())
    }

    /// Reads an option whose value may be `-`, standard output.
    pub(crate) fn or_stdout(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Named::at("-")),
            name => name.parse(),
        }
    }
}

impl<const GROWS: bool> Deref for Named<GROWS> {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

const TAKEN: &str = "standard output is taken: name a file (records go to standard output with --json, a page with daqmeter report -o -)";

impl<const GROWS: bool> FromStr for Named<GROWS> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a file is wanted".to_owned()),
            "-" => Err(TAKEN.to_owned()),
            name => Ok(Named::at(name)),
        }
    }
}

/// A file that is replaced whole, or a folder of such files.
#[derive(Clone, Debug)]
pub(crate) struct FileOrFolder(pub(crate) Replaced);

impl Appended {
    /// Returns the file to append to. In a folder, which is made, it has the name of the host.
    pub(crate) fn file(&self, label: Option<&str>) -> Result<Appended, Failure> {
        if !is_folder(self) {
            return Ok(self.clone());
        }
        let file = self.join(file_of_host(label)?);
        match std::fs::create_dir(&self.0) {
            Err(error) if !self.is_dir() => {
                Err(Failure::refused(format!("cannot make {}: {error}", self.display())))
            }
            _ => Ok(Named(file)),
        }
    }
}

/// Tests if a path names a folder, there or not.
pub(crate) fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Names the file of a host in a folder of many.
fn file_of_host(label: Option<&str>) -> Result<String, Failure> {
    let name = label.map_or_else(host::name, str::to_owned);
    // Names of hosts that were given none.
    if label.is_none() && ["", "(none)", "localhost"].contains(&name.as_str()) {
        let why = format!("this host has no name of its own (`{name}`): name it with --label");
        return Err(Failure::refused(why));
    }
    Ok(sanitise::text(&name).replace('/', "_") + ".jsonl")
}

/// A folder for files that are replaced. It is made if the one that it lies in is there.
#[derive(Clone, Debug)]
pub(crate) struct OutputFolder(pub(crate) PathBuf);

impl From<std::ffi::OsString> for OutputFolder {
    fn from(path: std::ffi::OsString) -> Self {
        OutputFolder(path.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Replaced,
    Appended,
    Folder,
    Either,
}

struct Mentioned {
    option: String,
    path: PathBuf,
    place: Option<PathBuf>,
    use_: Use,
}

impl Mentioned {
    fn new(option: &str, path: &Path, use_: Use) -> Mentioned {
        let (option, place) = (option.to_owned(), place_of(path));
        Mentioned { option, path: path.to_owned(), place, use_ }
    }
}

/// Refuses a command line that would write over a file that it names twice, or over records, or
/// that cannot write a file.
pub(crate) fn check(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    let mut mentioned = Vec::new();
    let (mut verb, mut label) = (Some((command, matches)), None);
    while let Some((command, matches)) = verb {
        label = matches.try_get_one::<String>("label").ok().flatten().or(label);
        command.get_arguments().for_each(|option| collect(option, matches, &mut mentioned));
        let below = matches.subcommand();
        verb = below.and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
    }
    refuse_same(&mentioned)?;
    mentioned.iter().try_for_each(|file| match file.use_ {
        Use::Read => Ok(()),
        Use::Either if file.path.is_dir() => refuse_unwritable(&file.path.join("file"), false),
        Use::Appended => {
            refuse_unwritable(&file.path, true)?;
            refuse_shared(&file.path, label.map(String::as_str))
        }
        Use::Folder if file.path.exists() => refuse_unwritable(&file.path.join("file"), false),
        Use::Folder => refuse_unwritable(&file.path, false),
        _ => refuse_records(&file.path).and(refuse_unwritable(&file.path, false)),
    })
}

/// Refuses a file that cannot be written or made, before anything is measured. It is left as it is.
pub(crate) fn refuse_unwritable(path: &Path, grows: bool) -> Result<(), Failure> {
    let known = path.metadata();
    let tried = match &known {
        _ if path.as_os_str() == "-" => Ok(()),
        Ok(_) if is_descriptor(path) => Ok(()),
        // Only an end that reads can say if a pipe takes anything.
        Ok(known) if known.file_type().is_fifo() => Ok(()),
        Ok(known) if grows || !known.is_file() => {
            OpenOptions::new().append(true).open(path).map(drop)
        }
        _ => Replacement::begin(path).map(drop),
    };
    tried.map_err(|error| Failure::refused(format!("cannot write {}: {error}", path.display())))
}

/// Refuses a file of records that several hosts may write at once: it has not the name of this one,
/// and its file system has no locks, or such as stay on a host.
fn refuse_shared(path: &Path, label: Option<&str>) -> Result<(), Failure> {
    let Some(place) = place_of(path) else { return Ok(()) };
    let is_own = file_of_host(label).is_ok_and(|own| place.ends_with(own));
    let Some(mount) = place.parent().filter(|_| !is_own).and_then(mounts::network) else {
        return Ok(());
    };
    let tried = Replacement::begin(&place).map(|new| new.sink.get_ref().try_lock());
    if !mount.has_local_locks && !matches!(tried, Ok(Err(TryLockError::Error(_)))) {
        return Ok(());
    }
    let (path, kind) = (path.display(), mount.kind);
    Err(Failure::refused(format!(
        "{path} is on {kind}, where a lock does not keep other hosts out: name a folder, in which each host has a file, such as --records farm/"
    )))
}

fn collect(option: &Arg, matches: &ArgMatches, mentioned: &mut Vec<Mentioned>) {
    let names = option.get_value_names().unwrap_or_default();
    // A command to run has options of its own; free text names no file.
    let is_text = names.iter().any(|name| name == "TEXT");
    if !option.get_action().takes_values() || option.is_last_set() || is_text {
        return;
    }
    let Ok(Some(values)) = matches.try_get_raw(option.get_id().as_str()) else { return };
    let value_type = option.get_value_parser().type_id();
    let written = [
        (TypeId::of::<Replaced>(), Use::Replaced),
        (TypeId::of::<Appended>(), Use::Appended),
        (TypeId::of::<OutputFolder>(), Use::Folder),
        (TypeId::of::<FileOrFolder>(), Use::Either),
    ];
    let own = written.into_iter().find(|(written, _)| value_type == *written);
    let use_ = own.map_or(Use::Read, |(_, use_)| use_);
    let name = match (option.get_long(), names) {
        (Some(long), _) => format!("--{long}"),
        (None, [name, ..]) => name.to_string(),
        (None, []) => option.get_id().to_string(),
    };
    for value in values {
        let is_folder = use_ == Use::Appended && is_folder(Path::new(value));
        let use_ = if is_folder { Use::Folder } else { use_ };
        // An example is `--set source.file=data.bin`.
        let assigned = value.to_str().and_then(|text| text.split_once('='));
        let assigned = assigned.filter(|_| use_ == Use::Read).map(|(_, file)| Path::new(file));
        let paths = [Some(Path::new(value)), assigned].into_iter().flatten();
        mentioned.extend(paths.map(|path| Mentioned::new(&name, path, use_)));
    }
}

/// Returns the canonical path of a regular file, or of one that will be made; `None` for standard
/// output, devices, pipes and folders.
fn place_of(path: &Path) -> Option<PathBuf> {
    if path.as_os_str() == "-" || path.as_os_str().is_empty() || is_descriptor(path) {
        return None;
    }
    if let Ok(known) = path.canonicalize() {
        return known.is_file().then_some(known);
    }
    // A link to a missing file is followed.
    let folder = path.parent().unwrap_or(Path::new(""));
    let path = path.read_link().map_or(path.to_owned(), |target| folder.join(target));
    let absolute = std::path::absolute(&path).ok()?;
    Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?))
}

/// Refuses a written file that is named twice, since only the last output would remain.
fn refuse_same(mentioned: &[Mentioned]) -> Result<(), Failure> {
    for (at, file) in mentioned.iter().enumerate() {
        let is_same = |other: &&Mentioned| {
            let is_written = file.use_ != Use::Read || other.use_ != Use::Read;
            is_written && file.place.is_some() && other.place == file.place
        };
        if let Some(Mentioned { option, path, .. }) = mentioned[..at].iter().find(is_same) {
            let (path, other) = (path.display(), &file.option);
            let why = format!("{option} and {other} name the same file, {path}: name two files");
            return Err(Failure::refused(why));
        }
    }
    Ok(())
}

/// Refuses two equal files of one verb, where one has a name by default.
pub(crate) fn refuse_same_files(files: [(&str, &Path); 2]) -> Result<(), Failure> {
    refuse_same(&files.map(|(option, path)| Mentioned::new(option, path, Use::Replaced)))
}

/// Refuses to replace a file of records, even if its first record is damaged.
pub(crate) fn refuse_records(path: &Path) -> Result<(), Failure> {
    const SCHEMA: &[u8] = b"\"schema\"";
    // These are lines of runs, and those of `ab`.
    let is_record = |line: &[u8]| {
        let mut words = line.windows(SCHEMA.len());
        line.starts_with(b"{\"ab\"") || (line.starts_with(b"{") && words.any(|word| word == SCHEMA))
    };
    if !beginning(path).split(|byte| *byte == b'\n').any(is_record) {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "{} holds records and is not overwritten: name another file, or remove it first",
        path.display()
    )))
}

fn beginning(path: &Path) -> Vec<u8> {
    const LOOKED_AT: u64 = 4096;
    let mut bytes = Vec::new();
    let is_file = !is_descriptor(path) && path.is_file();
    // A pipe without a writer would not open.
    if is_file && let Ok(file) = File::open(path) {
        // The code that writes an unreadable file refuses it later.
        let _ = file.take(LOOKED_AT).read_to_end(&mut bytes);
    }
    // Editors write a byte order mark.
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_every_name_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let refused = |a: &Path, b: &Path| refuse_same_files([("-o", a), ("-r", b)]).is_err();
        std::os::unix::fs::symlink(place("same"), place("early")).unwrap();
        assert!(refused(&place("same"), &place("./same")), "not there yet");
        assert!(refused(&place("same"), &place("early")), "not there yet");
        assert!(!refused(&place("same"), &place("another")));
        std::fs::write(place("same"), "").unwrap();
        assert!(refused(&place("same"), &place("early")));
        assert!(refused(Path::new("same"), Path::new("./same")));
        for free in ["/dev/null", "/dev/stdout", "-"] {
            assert!(!refused(Path::new(free), Path::new(free)), "{free}");
        }
    }

    #[test]
    fn a_folder_of_records_has_a_file_for_each_host() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| Appended::at(folder.path().join(name));
        let (plain, farm) = (place("lab7.jsonl"), place("farm/"));
        assert_eq!(&*plain.file(Some("n1")).unwrap(), &*plain, "a file stays");
        assert!(!plain.exists() && !farm.exists());
        for label in ["n1", "rack 3"] {
            let file = farm.file(Some(label)).unwrap();
            assert_eq!(&*file, farm.join(format!("{label}.jsonl")), "made, then there");
        }
        assert!(farm.is_dir() && is_folder(&place("farm")) && !is_folder(&plain));
        let refused = place("no/farm/").file(Some("n1")).unwrap_err();
        assert!(refused.line.starts_with("cannot make "), "{}", refused.line);
    }

    #[test]
    fn records_are_known_with_a_mark_before_them_and_behind_a_damaged_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (text, is_kept, may_grow) in [
            ("{\"schema\":1}\n", true, true),
            ("\u{feff}{ \"schema\": 1}\n", true, true),
            ("cut off\n{\"schema\":1}\n", true, false),
            ("{\"ab\":1}\n", true, true),
            ("{\n  \"format\": \"a profile\"\n}", false, true),
            ("<!doctype html>", false, false),
            ("", false, true),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(refuse_records(&path).is_err(), is_kept, "{text}");
            assert_eq!(daqmeter_record::jsonl::append_to(&path).is_ok(), may_grow, "{text}");
        }
    }
}
