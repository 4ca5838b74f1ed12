//! Several subscribers of the same E-links, some of them slow: each has its own account, and loses
//! nothing because of another.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use daqmeter_readout::accounts::FinalAccount;
use daqmeter_readout::card::ChannelId;
use daqmeter_readout::port::Port;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::tohost::ToHost;
use daqmeter_readout::{Card, Scenario, chain};
use daqmeter_record::Ledger;
use daqmeter_record::written::Nanos;
use proptest::prelude::*;

use crate::memory::Memory;

struct Shared {
    account: FinalAccount,
    reports: Vec<Report>,
}

impl Shared {
    fn accepted(&self) -> u64 {
        let card = &self.account.card;
        card.issued - card.vetoed.iter().sum::<u64>()
    }
}

/// Runs receivers of all E-links, each with its delay at every page, with one page between the
/// reader and each.
fn shared(text: &str, triggers: u64, slow_us: &[u64]) -> Shared {
    let scenario = Scenario::parse(text, "test").unwrap();
    let (mut card, mut consumers) = Card::new(&scenario).unwrap();
    card.source.max_triggers = triggers;
    let mut scenario = card.scenario().clone();
    scenario.publish.dead_after = Nanos(10_000_000_000);
    let way = Memory::new(chain::hello(&scenario, 0), 1);
    let port = Port::here(Arc::new(Mutex::new(card)), consumers.remove(0)).unwrap();
    let outlet = Box::new(way.clone());
    let first = ChannelId { device: 0, channel: 0 };
    let mut reader = ToHost::new(port, outlet, &scenario, first);
    let receive = |slow_us: u64| {
        let publishers = [(Publish::default(), Vec::new())];
        let subscribe = |_: &_, wanted: &_| Ok(way.subscribe(wanted));
        let mut receiver = Receiver::connect_by(&publishers, subscribe).unwrap();
        let delay = Duration::from_micros(slow_us);
        receiver.slowed = Some(Arc::new(move |_| std::thread::sleep(delay)));
        receiver.run(&AtomicBool::new(false), |_| {})
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            slow_us.iter().map(|slow_us| scope.spawn(|| receive(*slow_us))).collect();
        let deadline = Instant::now() + Duration::from_secs(30);
        while reader.stats.subscribers < slow_us.len() as u64 {
            assert!(Instant::now() < deadline, "the receivers did not subscribe");
            reader.turn();
        }
        let account = reader.run(&AtomicBool::new(false), true, |_| {});
        let reports = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        Shared { account, reports }
    })
}

/// Checks that every receiver had every event, and that every account agrees.
fn none_is_missing(shared: &Shared, of: &str) {
    assert!(shared.account.closes(), "{of}: {:?}", shared.account.subscriptions);
    for (at, report) in shared.reports.iter().enumerate() {
        assert_eq!((report.faults(), report.bad_pages), Default::default(), "{of}: {at}");
        assert!(report.closes(), "{of}: {at}: {:?}", report.ledgers);
        assert_eq!(report.ledgers.len(), shared.account.card.elinks.len(), "{of}: {at}");
        for stream in &report.streams {
            assert_eq!(stream.chunks, shared.accepted(), "{of}: {at}, E-link {:#x}", stream.tag);
        }
    }
    for subscription in &shared.account.subscriptions {
        let found = [subscription.offered, subscription.outcomes.delivered];
        assert_eq!(found, [shared.accepted(); 2], "{of}");
    }
}

/// Small pages, so that most blocks end in another page than they began in.
fn text(rest: &str) -> String {
    format!(
        "[trigger]\nrate = \"100kHz\"\n[card]\nlinks = 1\nring = \"4MiB\"\n{rest}\n\
         [reader]\npages = 2\npage = \"4KiB\"\n"
    )
}

#[test]
fn one_slow_receiver_of_two_costs_neither_an_event() {
    for slow_us in [[0, 300], [300, 0]] {
        none_is_missing(&shared(&text(""), 4000, &slow_us), &format!("{slow_us:?}"));
    }
}

#[test]
fn what_a_slow_receiver_of_two_is_not_given_is_in_its_own_account() {
    for card in ["", "mode = \"full\"\npayload = \"3000B\"\n"] {
        let text = format!("{}on_slow = \"drop\"\n", text(card));
        let shared = shared(&text, 2000, &[0, 3000]);
        assert!(shared.account.closes(), "{card}: {:?}", shared.account.subscriptions);
        assert!(shared.reports.iter().all(Report::closes), "{card}");
        let losses = |(_, ledger): &(u64, Ledger)| ledger.losses["dropped by reader"];
        let of_report = |report: &Report| -> u64 { report.ledgers.iter().map(losses).sum() };
        let dropped: Vec<u64> = shared.reports.iter().map(of_report).collect();
        assert!(dropped[1] > 0, "{card}: {dropped:?}");
        let elinks = shared.account.card.elinks.len() as u64;
        for (report, dropped) in shared.reports.iter().zip(&dropped) {
            assert_eq!(report.chunks() + dropped, shared.accepted() * elinks, "{card}");
        }
        // Each event is due to both receivers, and each loss is one of either.
        let ledgers = shared.account.ledgers();
        let issued: u64 = ledgers.iter().map(|(_, ledger)| ledger.issued).sum();
        let vetoed = shared.account.card.issued - shared.accepted();
        assert_eq!(issued, (2 * shared.accepted() + vetoed) * elinks, "{card}");
        assert_eq!(ledgers.iter().map(losses).sum::<u64>(), dropped.iter().sum::<u64>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_the_pages_and_the_receivers_every_event_comes_to_all(
        full: bool,
        payload in 8..6000_usize,
        page in 4096..20_000_usize,
        pages in 2..5_usize,
        slow_us in prop::collection::vec(prop_oneof![Just(0), 0..400_u64], 1..4),
    ) {
        let card = if full { "mode = \"full\"\n" } else { "" };
        let payload = if full { payload } else { payload % 200 + 8 };
        let text = format!(
            "[trigger]\nrate = \"50kHz\"\n[card]\nlinks = 1\nring = \"4MiB\"\npayload = \"{payload}B\"\n{card}\
             [reader]\npages = {pages}\npage = \"{page}B\"\n"
        );
        none_is_missing(&shared(&text, 600, &slow_us), &text);
    }
}
