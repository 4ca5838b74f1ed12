//! One file that describes a read-out: triggers, card, BUSY, faults, reader, network.
//!
//! Every field has a default; `daqmeter list scenarios` names those that ship.
//!
//! ```toml
//! [trigger]
//! source = "fixed"            # fixed, poisson, times
//! rate = "1MHz"
//! [card]
//! mode = "gbt"                # gbt, full
//! links = 3                   # per DMA channel
//! payload = "24B"
//! ring = "64MiB"
//! [[link]]                    # what is different about one link of every channel
//! link = 2
//! deficit = 0.0126
//! [busy]
//! assert_below = "14MiB"
//! [reader]
//! poll = "100us"
//! ```

mod check;
mod derived;
mod load;
mod place;
mod replay;
mod spec;

pub(crate) use self::check::MAX_PAYLOAD_BYTES;
pub use self::check::check_congestion;
pub use self::load::SHIPPED;
pub(crate) use self::load::read_text;
pub(crate) use self::place::Wrong;
pub use self::spec::{
    BlockSource, BusySettings, ByteSize, CardSettings, ElinkSpec, FaultKind, FaultSpec, Generation,
    Hertz, LinkSettings, Mode, Nanos, OnSlow, PartCounts, Publish, ReaderCompletion, ReaderMode,
    ReaderSettings, Scenario, ScenarioError, TriggerKind, TriggerSettings,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_valid_and_an_empty_file_too() {
        for (name, text) in SHIPPED {
            assert_eq!(Scenario::parse(text, name).unwrap().name, *name);
        }
        let scenario = Scenario::parse("", "empty").unwrap();
        let elinks = scenario.elinks(0, 0);
        let numbers: Vec<u16> = elinks.iter().map(|elink| elink.elink.number()).collect();
        assert_eq!(
            (numbers.len(), numbers[0], numbers[7], numbers[8], numbers[23]),
            (24, 0x008, 0x024, 0x048, 0x0a4)
        );
    }

    #[test]
    fn thresholds_follow_the_ring_as_in_the_published_set_up() {
        let scenario = Scenario::parse("[card]\nring = \"1GiB\"\n", "").unwrap();
        assert_eq!(scenario.dma_thresholds(), (224 << 20, 256 << 20));
    }

    #[test]
    fn events_weigh_what_the_published_packings_say() {
        // 24 bytes: 3 blocks for 109 chunks.
        let bytes = Scenario::load("gbt").unwrap().event_bytes();
        assert!((bytes - 24.0 * 1024.0 * 3.0 / 109.0).abs() < 0.01);
    }
}
