//! Reads any text as a scenario: it is refused in one line, or has consistent and bounded sizes.
#![no_main]

use daqmeter_readout::Scenario;
use daqmeter_readout::scenario::Mode;
use libfuzzer_sys::fuzz_target;

/// Most memory of a run: 512 channels with the largest rings and the most pages.
const MAX_RUN_BYTES: u64 = 1 << 52;

fn is_bounded(scenario: &Scenario) {
    let (card, reader, publish) = (&scenario.card, &scenario.reader, &scenario.publish);
    assert!(card.ring.0 <= 64 << 30 && card.fifo.0 <= 1 << 30 && card.payload.0 <= 1 << 20);
    assert!(card.dma_rate.is_none_or(|rate| (card.fifo.0 / rate.0) < 60));
    assert!(card.mode == Mode::Gbt || scenario.link_elinks().len() == 1);
    assert!(card.deficits.len() <= usize::from(card.links));
    assert!(reader.poll.0 <= 1_000_000_000 && (2..=4096).contains(&reader.pages));
    assert!(publish.dead_after.0 >= 100_000_000 && (1..=256).contains(&publish.max_subscribers));
    assert!((1e-3..=1e9).contains(&scenario.trigger.rate.0));
    assert!(scenario.memory_bytes() < MAX_RUN_BYTES);
}

fuzz_target!(|text: &str| {
    match Scenario::parse(text, "fuzz") {
        Ok(scenario) => {
            assert!(
                scenario.format().is_some() && scenario.pointer_gap() < scenario.card.ring.0 / 2
            );
            assert!(!scenario.elinks(0, 0).is_empty());
            is_bounded(&scenario);
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
