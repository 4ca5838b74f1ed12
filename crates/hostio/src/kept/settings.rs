//! How a run is kept.

use std::path::PathBuf;
use std::time::Duration;

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
