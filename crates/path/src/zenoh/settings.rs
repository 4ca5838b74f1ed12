//! Settings of blocks over Zenoh.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZenohWay {
    pub(crate) when_full: WhenFull,
    pub(crate) shared_memory: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenFull {
    /// The publisher waits.
    #[default]
    Block,
    /// The publisher drops the block after a millisecond, and within 50 ms if the block is sent in
    /// several parts.
    Drop,
}

impl ZenohWay {
    pub(crate) fn text(self) -> String {
        let when_full = match self.when_full {
            WhenFull::Block => "",
            WhenFull::Drop => ", drops when full",
        };
        let by = if self.shared_memory { "through shared memory" } else { "on loopback" };
        format!("zenoh {by}{when_full}")
    }
}
