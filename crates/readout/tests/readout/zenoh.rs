//! The chain over Zenoh, if it is built in.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use daqmeter_readout::Scenario;
use daqmeter_readout::receive::Receiver;
use daqmeter_readout::scenario::Publish;

use crate::by_hand::{self, Placement};

const SMALL: &str = "[trigger]\nrate = \"20kHz\"\n[card]\nlinks = 1\nring = \"32MiB\"\n[publish]\ntransport = \"zenoh\"\n";

#[test]
fn nothing_is_lost_and_every_account_closes() {
    let scenario = Scenario::parse(SMALL, "test").unwrap();
    let (minute, stop) = (Duration::from_secs(60), AtomicBool::new(false));
    let done = by_hand::run(&scenario, &Placement::default(), minute, Some(3000), &stop).unwrap();
    for (tag, ledger) in &done.ledgers {
        assert!(ledger.closes(), "{tag:#x}: {ledger}");
    }
    assert_eq!((done.issued(), done.lost()), (3000, 0), "{}", done.ledger());
}

#[test]
fn a_receiver_of_nobody_says_so() {
    let publish = Publish {
        transport: "zenoh".to_owned(),
        address: "127.0.0.1:9".to_owned(),
        ..Publish::default()
    };
    let error = Receiver::connect(&[(publish, vec![])], &|| false).err().unwrap();
    assert!(error.to_string().starts_with("zenoh: "), "{error}");
}
