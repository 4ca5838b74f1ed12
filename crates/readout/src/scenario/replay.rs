//! A scenario whose data come from a recorded file.

use std::sync::Arc;

use super::spec::{BlockSource, ByteSize, Generation, Scenario, ScenarioError};
use crate::card::words::MAX_ELINKS;
use crate::recorded::{MAX_CHUNK_BYTES, Playback, Recorded};

impl Scenario {
    /// Makes a card of one channel that gives the blocks of a file. The scenario's links, trigger
    /// E-link and timeouts describe the making of blocks, and are not used. Fails if the file holds
    /// no blocks, or the scenario wants faults in them.
    pub(crate) fn replay(
        &mut self,
        path: &str,
        is_paced: bool,
        loops: bool,
    ) -> Result<(), ScenarioError> {
        let wrong = |what: String| ScenarioError(format!("replay: {path}: {what}"));
        if !self.fault.is_empty() {
            return Err(wrong(
                "faults are made with the blocks, not in recorded ones: take a scenario without [[fault]]".to_owned(),
            ));
        }
        let kib = u8::try_from(self.card.block.0 / 1024).unwrap_or(1);
        let file = Recorded::read(path, kib.clamp(1, 16)).map_err(wrong)?;
        if file.elinks.len() > MAX_ELINKS {
            let count = file.elinks.len();
            return Err(wrong(format!("{count} E-links; a channel has {MAX_ELINKS} at the most")));
        }
        if let Some(long) = file.elinks.iter().find(|elink| elink.longest > MAX_CHUNK_BYTES) {
            return Err(wrong(format!(
                "E-link {:#05x} has a chunk of {} bytes; {MAX_CHUNK_BYTES} at the most",
                long.elink.number(),
                long.longest
            )));
        }
        self.link.clear();
        let card = &mut self.card;
        (card.devices, card.channels, card.links) = (1, 1, 1);
        (card.ttc, card.blocks) = (false, BlockSource::Auto);
        card.timeout = None;
        card.block = ByteSize(file.format.block_bytes);
        card.format = match file.format.magic {
            0xABCD => Generation::Phase1,
            0xABCE => Generation::Phase1Wide,
            _ => Generation::Phase2,
        };
        self.recorded = Some(Playback { file: Arc::new(file), is_paced, loops });
        Ok(())
    }
}
