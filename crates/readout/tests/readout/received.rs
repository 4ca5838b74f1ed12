//! Missing and repeated events, by counters that wrap and by accounts.

use daqmeter_readout::accounts::{CardAccount, CardElink, FinalAccount, Outcomes, ReaderElink};
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::payload::{EmulatorHeader, Fid};

use crate::hostile::{page, received};

const LINKS: [u16; 2] = [8, 12];

fn tag(elink: u16) -> u64 {
    Fid::of_elink(0, 0, Elink::new(elink)).to_u64()
}

/// Pages for this many events, with the counters of both E-links; `None` where an event is missing.
fn pages(events: u32, counter: impl Fn(u16, u32) -> Option<u32>) -> Vec<u8> {
    let chunk = |elink: u16, counter: u32| {
        let mut chunk = [0; 24];
        let (event, elink_index) = (counter.to_le_bytes()[0], Elink::new(elink).index());
        EmulatorHeader { length: 24, event, elink_index, width: 8 }.fill(&mut chunk);
        (tag(elink), chunk)
    };
    let of = |event| {
        let chunks = LINKS.into_iter().filter_map(|elink| Some((elink, counter(elink, event)?)));
        page((event + 1).into(), chunks.map(|(elink, counter)| chunk(elink, counter)))
    };
    (0..events).flat_map(of).collect()
}

fn account(delivered: [u64; 2], dropped: [u64; 2]) -> FinalAccount {
    let issued = delivered[0] + dropped[0];
    let readers = delivered.iter().zip(dropped).map(|(delivered, dropped)| ReaderElink {
        left: 0,
        chunks: issued,
        offered: issued,
        outcomes: Outcomes { delivered: *delivered, dropped, ..Outcomes::default() },
    });
    FinalAccount {
        readers: readers.collect(),
        card: CardAccount {
            issued,
            elinks: LINKS
                .map(|elink| CardElink { tag: tag(elink), chunks: issued, ..CardElink::default() })
                .to_vec(),
            ..CardAccount::default()
        },
        subscriptions: Vec::new(),
        card_is_lost: false,
    }
}

/// Counts of all E-links: missing, twice, late, resets, and places where nobody can tell.
fn faults(elinks: &[u16], pages: Vec<u8>, account: Option<FinalAccount>) -> [u64; 5] {
    let wanted: Vec<u64> = elinks.iter().copied().map(tag).collect();
    let account = account.map(|account| serde_json::to_vec(&account).unwrap());
    let faults = received(&LINKS.map(tag), &wanted, pages, account).0.faults();
    [faults.missing, faults.duplicates, faults.out_of_order, faults.resets, faults.unclear]
}

#[test]
fn a_counter_that_falls_to_0_is_judged_by_the_account() {
    let since = |event: u32| if event < 100 { event } else { event - 100 };
    let reset = || pages(300, |_, event| Some(since(event)));
    let lossy =
        || pages(300, |elink, event| (elink == 8 || !(100..256).contains(&event)).then_some(event));
    let whole = account([300, 300], [0, 0]);
    for (pages, account, expected) in [
        (reset(), None, [0, 0, 0, 0, 1]),
        (lossy(), None, [0, 0, 0, 0, 1]),
        (reset(), Some(whole.clone()), [0, 0, 0, 1, 0]),
        (lossy(), Some(account([300, 144], [0, 156])), [156, 0, 0, 0, 0]),
        // An account that does not close says nothing.
        (lossy(), Some(whole), [0, 0, 0, 0, 1]),
    ] {
        assert_eq!(faults(&[12], pages, account), expected);
    }
}

#[test]
fn what_is_missing_is_what_the_account_says_and_not_what_a_wrapping_counter_says() {
    // By the counters none of the first and 208 of the second are missing, or 48 came twice.
    for lost in [10..1034, 10..1242] {
        let missing = u64::from(lost.end - lost.start);
        let events = 2000;
        let came = || {
            pages(events, |elink, event| (elink == 8 || !lost.contains(&event)).then_some(event))
        };
        let delivered = u64::from(events) - missing;
        let account = account([u64::from(events), delivered], [0, missing]);
        assert_eq!(faults(&LINKS, came(), Some(account)), [missing, 0, 0, 0, 0]);
    }
    let pages = pages(50, |elink, event| (elink == 8).then_some(event));
    let account = account([50, 0], [0, 50]);
    assert_eq!(faults(&LINKS, pages, Some(account)), [50, 0, 0, 0, 0]);
}
