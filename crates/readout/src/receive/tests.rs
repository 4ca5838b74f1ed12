//! The receiver over publishers made by hand.

use daqmeter_wire::felix::page::{PageWriter, Status};
use daqmeter_wire::felix::payload::EmulatorHeader;

use super::*;
use crate::accounts::{CardAccount, CardElink, Outcomes, ReaderElink};
use crate::transport::PublisherHello;

const LINKS: [u16; 2] = [8, 12];

fn tag(elink: u16) -> u64 {
    Fid::of_elink(0, 0, Elink::new(elink)).to_u64()
}

/// A publisher of two E-links that sends pages, and its account if it has one, or breaks.
struct Scripted {
    pages: Vec<Vec<u8>>,
    account: Option<FinalAccount>,
}

struct ScriptedInlet {
    pages: std::vec::IntoIter<Vec<u8>>,
    body: Vec<u8>,
    account: Option<Vec<u8>>,
    sequence: u64,
}

impl PageInlet for ScriptedInlet {
    fn receive(&mut self, _wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        let broke = || TransportError::Other("the connection broke".to_owned());
        let kind = match self.pages.next() {
            Some(page) => {
                self.body = page;
                FrameKind::Messages
            }
            None => {
                self.body = self.account.clone().ok_or_else(broke)?;
                FrameKind::Account
            }
        };
        self.sequence += 1;
        let frame =
            FelixFrame { kind, body_bytes: 0, count: 0, sequence: self.sequence, birth_ns: 0 };
        Ok(Some((frame, &self.body)))
    }

    fn acknowledge(&mut self, _sequence: u64) -> Result<(), TransportError> {
        Ok(())
    }
}

impl Scripted {
    fn subscribe(&self) -> Subscribed {
        let inlet = ScriptedInlet {
            pages: self.pages.clone().into_iter(),
            body: Vec::new(),
            account: self.account.as_ref().map(|account| serde_json::to_vec(account).unwrap()),
            sequence: 0,
        };
        (Box::new(inlet), PublisherHello { stream: 1, tags: LINKS.map(tag).to_vec() })
    }
}

/// Pages for this many events, with the counters of both E-links; `None` where an event is missing.
fn pages(events: u32, counter: impl Fn(u16, u32) -> Option<u32>) -> Vec<Vec<u8>> {
    let page = |event: u32| {
        let (mut page, mut writer) = (vec![0; 200], PageWriter::default());
        for elink in LINKS {
            let Some(counter) = counter(elink, event) else {
                continue;
            };
            let mut chunk = [0; 24];
            EmulatorHeader {
                length: 24,
                event: counter.to_le_bytes()[0],
                elink_index: Elink::new(elink).index(),
                width: 8,
            }
            .fill(&mut chunk);
            assert!(writer.push(&mut page, tag(elink), Status::default(), &chunk, 0, 24));
        }
        page.truncate(writer.used());
        page
    };
    (0..events).map(page).collect()
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

/// Counts of all E-links: missing, twice, late, resets, and falls that may be resets or losses.
fn received(way: Scripted, elinks: &[u16]) -> [u64; 5] {
    let tags = elinks.iter().copied().map(tag).collect();
    let publishers = [(Publish::default(), tags)];
    let mut receiver = Receiver::connect_by(&publishers, |_, _| Ok(way.subscribe())).unwrap();
    let report = receiver.run(&AtomicBool::new(false), |_| {});
    let faults = report.faults();
    [faults.missing, faults.duplicates, faults.out_of_order, faults.resets, faults.falls]
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
        assert_eq!(received(Scripted { pages, account }, &[12]), expected);
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
        let way = Scripted { pages: came(), account: Some(account) };
        assert_eq!(received(way, &LINKS), [missing, 0, 0, 0, 0]);
    }
    let way = Scripted {
        pages: pages(50, |elink, event| (elink == 8).then_some(event)),
        account: Some(account([50, 0], [0, 50])),
    };
    assert_eq!(received(way, &LINKS), [50, 0, 0, 0, 0]);
}
