//! Settings of a run that is kept.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use daqmeter_record::units::{parse_bytes, parse_duration};
use daqmeter_sys::memory::Pages;
use serde::{Deserialize, Serialize};

/// Way of the bytes to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBy {
    /// Whichever carried more in a trial at the start.
    #[default]
    Auto,
    /// Past the page cache, several blocks at once.
    Direct,
    /// Through the page cache.
    Cached,
}

/// Size or age at which a file ends and the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    Bytes(u64),
    Time(Duration),
}

impl FromStr for Rotation {
    type Err = String;

    fn from_str(text: &str) -> Result<Rotation, String> {
        let bytes = parse_bytes(text).map(Rotation::Bytes);
        let rotation = bytes.or_else(|_| parse_duration(text).map(Rotation::Time));
        let is_sound = |rotation: &Rotation| match rotation {
            Rotation::Bytes(bytes) => *bytes >= 1 << 20,
            Rotation::Time(time) => *time >= Duration::from_secs(1),
        };
        rotation.ok().filter(is_sound).ok_or_else(|| {
            format!("is `{text}`; a size from 1MiB on or a time from 1s on is wanted")
        })
    }
}

#[derive(Clone, Debug)]
pub struct KeepSettings {
    /// Folder that is made; one that holds something is refused.
    pub folder: PathBuf,
    pub write: WriteBy,
    pub rotation: Option<Rotation>,
    /// True reads the blocks back and compares them.
    pub compares: bool,
    /// True removes the folder at the end: a trial of the disk.
    pub is_trial: bool,
    pub block_bytes: usize,
    pub pages: Pages,
}
