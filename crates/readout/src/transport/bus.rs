//! The bus directory: publishers leave a file with their tags and address, receivers look tags up.
//!
//! A file whose publisher is gone is stale: it is reported, never followed silently. A tag of a
//! living publisher is not published again.

use std::fs;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daqmeter_harness::text_file;
use daqmeter_record::file::replace;
use serde::{Deserialize, Serialize};

use crate::peer::from_peer;

/// Longest file of a publisher: every E-link of a device with 20 digits is below 45 KB.
const MAX_ENTRY_BYTES: u64 = 64 << 10;
const MAX_ENTRIES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusEntry {
    pub address: String,
    pub stream: u64,
    pub tags: Vec<u64>,
}

/// File in the directory, which is removed on drop.
#[derive(Debug)]
pub struct Announcement {
    path: PathBuf,
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Lists all entries with their files. The error names files that are no entries.
pub fn entries(directory: &Path) -> Result<Vec<(PathBuf, BusEntry)>, String> {
    let shown = directory.display();
    let listed =
        fs::read_dir(directory).map_err(|error| format!("bus directory {shown}: {error}"))?;
    let mut entries = Vec::new();
    // Pipes and devices are not entries: reading them may never end.
    let is_file = |file: &fs::DirEntry| file.file_type().is_ok_and(|kind| kind.is_file());
    let files = listed.flatten().filter(is_file).map(|file| file.path());
    for file in files.filter(|path| path.extension().is_some_and(|x| x == "bus")) {
        if entries.len() == MAX_ENTRIES {
            return Err(format!(
                "bus directory {shown}: more than {MAX_ENTRIES} entries; remove stale ones"
            ));
        }
        let wrong = |why: String| format!("{}: {why}", file.display());
        let text = match text_file(&file, MAX_ENTRY_BYTES) {
            // A file that went away meanwhile is no entry.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            text => text.map_err(|error| wrong(error.to_string()))?,
        };
        let entry = from_peer(text.as_bytes());
        let entry =
            entry.map_err(|why| wrong(format!("not an entry of a bus directory: {why}")))?;
        entries.push((file, entry));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

fn is_alive(entry: &BusEntry) -> bool {
    let address = entry.address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    address.is_some_and(|address| {
        TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
    })
}

/// Writes a publisher's file. Fails if another living publisher has one of the tags.
pub fn announce(directory: &Path, entry: &BusEntry) -> Result<Announcement, String> {
    fs::create_dir_all(directory)
        .map_err(|error| format!("bus directory {}: {error}", directory.display()))?;
    for (path, known) in entries(directory)? {
        let Some(tag) = known.tags.iter().find(|tag| entry.tags.contains(tag)) else {
            continue;
        };
        if is_alive(&known) {
            let (address, path) = (&known.address, path.display());
            return Err(format!(
                "E-link {tag:#x} is published already, by {address} ({path}); end that publisher or take other devices"
            ));
        }
        // Its publisher is dead: its tags are taken over.
        let _ = fs::remove_file(&path);
    }
    let path = directory.join(format!("{:016x}.bus", entry.stream));
    let text = serde_json::to_string(entry).expect("plain data");
    // The file is replaced at once: others read the folder meanwhile.
    replace(&path, text.as_bytes())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(Announcement { path })
}

pub fn find(directory: &Path, wanted: &[u64]) -> Result<Vec<(String, Vec<u64>)>, String> {
    let entries = entries(directory)?;
    let is_there = |tag: &&u64| entries.iter().any(|(_, entry)| entry.tags.contains(tag));
    if let Some(missing) = wanted.iter().find(|tag| !is_there(tag)) {
        return Err(format!("no publisher has E-link {missing:#x} in {}", directory.display()));
    }
    let mut found = Vec::new();
    for (path, entry) in &entries {
        let mut tags = entry.tags.clone();
        tags.retain(|tag| wanted.is_empty() || wanted.contains(tag));
        if tags.is_empty() {
            continue;
        }
        if !is_alive(entry) {
            let (file, address) = (path.display(), &entry.address);
            return Err(format!(
                "{file} is out of date: no program listens at {address}; remove it"
            ));
        }
        found.push((entry.address.clone(), tags));
    }
    if found.is_empty() {
        return Err(format!("no publisher is named in {}", directory.display()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn living_publishers_are_found_stale_ones_named_and_tags_have_one_publisher() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(find(path, &[]).unwrap_err().to_string().contains("no publisher is named in"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let entry = BusEntry { address: address.clone(), stream: 1, tags: vec![5, 6] };
        let kept = announce(path, &entry).unwrap();
        assert_eq!(find(path, &[6]).unwrap(), [(address.clone(), vec![6])]);
        assert!(find(path, &[7]).unwrap_err().to_string().contains("no publisher has E-link 0x7"));
        let second = BusEntry { stream: 2, ..entry.clone() };
        assert!(announce(path, &second).unwrap_err().to_string().contains("published already"));
        drop(listener);
        assert!(find(path, &[]).unwrap_err().to_string().contains("is out of date"));
        let over = announce(path, &second).unwrap();
        assert_eq!(entries(path).unwrap().len(), 1, "the stale entry is taken over");
        drop((kept, over));
        assert!(entries(path).unwrap().is_empty());
        std::os::unix::fs::symlink("/dev/zero", path.join("endless.bus")).unwrap();
        assert!(entries(path).unwrap().is_empty(), "only files are entries");
        fs::write(path.join("long.bus"), vec![b' '; 1 << 20]).unwrap();
        assert!(entries(path).unwrap_err().to_string().contains("longer than 65536 bytes"));
        fs::remove_file(path.join("long.bus")).unwrap();
        fs::write(path.join("x.bus"), "{").unwrap();
        assert!(entries(path).unwrap_err().to_string().contains("not an entry"));
        assert!(find(&path.join("none"), &[]).unwrap_err().to_string().contains("bus directory"));
    }
}
