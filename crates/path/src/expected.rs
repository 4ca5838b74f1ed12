//! Expected sums at the sink, computed once for all runs of a path in this process: the plainest
//! code for each stage takes longer than a short run. Only sums are kept, a few hundred bytes for
//! each path.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use daqmeter_harness::Fault;

use crate::cancel::Cuts;
use crate::definition::{Path, SourceKind};
use crate::element::{StageWork, Work};
use crate::sources::Named;
use crate::stages::work;
use crate::sum::sum;

/// Sums that the blocks of each stream must have at the sink. Empty if a stage makes bytes that
/// only it knows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) all: Vec<u64>,
    pub(crate) first: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Arc<Mutex<BTreeMap<String, Arc<Sums>>>>);

/// Paths that are remembered; at this number all are forgotten, which only costs time.
const MAX_PATHS: usize = 64;

impl Known {
    pub(crate) fn sums(&self, path: &Path, sources: &mut [Named]) -> Result<Arc<Sums>, Fault> {
        let Some(key) = key(path) else {
            return Ok(Arc::new(expected(path, sources)?));
        };
        if let Some(sums) = self.lock().get(&key) {
            return Ok(sums.clone());
        }
        let sums = Arc::new(expected(path, sources)?);
        let mut known = self.lock();
        if known.len() >= MAX_PATHS {
            known.clear();
        }
        known.insert(key, sums.clone());
        Ok(sums)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Sums>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Text of everything that the sums depend on: the checked path, and the state of its files. `None`
/// if they may change unseen: a device, which has no time of its last change, and real boards.
fn key(path: &Path) -> Option<String> {
    let mut key = format!("{} {:?}", path.block_bytes, path.source.kind);
    for stage in &path.stages {
        // Writing to a string cannot fail.
        let _ = write!(key, " {:?}", stage.kind);
    }
    let named: &str = match &path.source.kind {
        SourceKind::Memory { .. } | SourceKind::Etherbone { .. } => return Some(key),
        // It gives no blocks of known content.
        SourceKind::Card { .. } => return None,
        SourceKind::File { path, .. } => path,
        SourceKind::Felix { scenario, .. } => scenario,
        SourceKind::Digitizer { devices, profile, .. } => {
            let is_emulated = devices.iter().all(|device| device.starts_with("emu:"));
            is_emulated.then_some(profile)?
        }
    };
    Some(key + &state(named)?)
}

/// Identity, length and modification time of a file; empty for a shipped name, `None` for any other
/// kind of file.
fn state(name: &str) -> Option<String> {
    let Ok(file) = std::fs::metadata(name) else {
        return Some(String::new());
    };
    file.is_file().then(|| {
        let (device, inode, bytes) = (file.dev(), file.ino(), file.size());
        let changed = (file.ctime(), file.ctime_nsec());
        format!(" {device} {inode} {bytes} {changed:?}")
    })
}

fn expected(path: &Path, sources: &mut [Named]) -> Result<Sums, Fault> {
    let mut turns = Vec::new();
    let mut bytes = path.source.out_bytes;
    for stage in &path.stages {
        if stage.kind.changes_unknown() {
            let first = vec![0; sources.len()];
            return Ok(Sums { first, ..Sums::default() });
        }
        // The plainest code stores through the cache, for any size.
        if !stage.kind.has_two_ends()
            && let Work::Stage(StageWork::Transform(turn)) =
                work(&stage.kind, bytes, 0, &Cuts::default())?
        {
            turns.push(turn);
        }
        bytes = stage.out_bytes;
    }
    let mut sums = Sums::default();
    for (_, source) in sources {
        sums.first.push(sums.all.len());
        for content in source.contents()? {
            let turned = turns.iter();
            let last = turned.fold(content, |content, turn| turn.reference(&content));
            sums.all.push(sum(&last));
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::sources;

    fn path(text: &str) -> Path {
        let head = "title = \"a test\"\nblock = \"4KiB\"\n";
        Path::parse(&format!("{head}{text}[sink]\nkind = \"read\"\n"), "test").unwrap()
    }

    fn sums(known: &Known, path: &Path) -> Arc<Sums> {
        known.sums(path, &mut sources(path).unwrap()).unwrap()
    }

    #[test]
    fn a_path_that_was_run_is_not_computed_again_and_another_is() {
        let known = Known::default();
        let memory = path("[source]\nkind = \"memory\"\nspan = \"16KiB\"\n");
        let first = sums(&known, &memory);
        assert_eq!(first.all.len(), 4);
        assert!(Arc::ptr_eq(&first, &sums(&known, &memory)));
        let text = "[source]\nkind = \"memory\"\nspan = \"16KiB\"\n[[stage]]\nkind = \"convert\"\nfunction = 1\n";
        assert_ne!(*sums(&known, &path(text)), *first);
    }

    #[test]
    fn a_file_that_was_changed_is_computed_again_and_a_device_always() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        let source =
            format!("[source]\nkind = \"file\"\npath = \"{}\"\ncached = true\n", file.display());
        let bytes =
            |first: u8, count: usize| -> Vec<u8> { (first..=250).cycle().take(count).collect() };
        std::fs::write(&file, bytes(0, 4096)).unwrap();
        let known = Known::default();
        let replay = path(&source);
        let before = sums(&known, &replay);
        std::fs::write(&file, bytes(1, 8192)).unwrap();
        let after = sums(&known, &replay);
        assert_eq!((before.all.len(), after.all.len()), (1, 2));
        assert_ne!(before.all[0], after.all[0]);
        assert_eq!(state("/dev/zero"), None);
    }
}
