//! The receiver over publishers made by hand.

use std::sync::Mutex;

use daqmeter_wire::felix::page::{PageWriter, Status};
use daqmeter_wire::felix::payload::EmulatorHeader;

use super::*;
use crate::accounts::{CardAccount, CardElink, Outcomes, ReaderElink};
use crate::transport::{PageOutlet, PublisherHello};

/// A publisher whose first connection breaks after some pages; a later one ends at once.
#[derive(Clone, Default)]
struct Breaking {
    pages: u64,
    told: Arc<Mutex<Vec<u64>>>,
}

const STREAM: u64 = 7;

struct BreakingInlet {
    hello: PublisherHello,
    left: u64,
    sequence: u64,
    account: Option<Vec<u8>>,
}

impl PageInlet for BreakingInlet {
    fn hello(&self) -> &PublisherHello {
        &self.hello
    }

    fn receive(&mut self, _wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        let frame = FelixFrame {
            kind: FrameKind::Messages,
            body_bytes: 0,
            count: 0,
            sequence: self.sequence + 1,
            birth_ns: 0,
        };
        if self.left > 0 {
            (self.left, self.sequence) = (self.left - 1, self.sequence + 1);
            return Ok(Some((frame, &[])));
        }
        match &self.account {
            None => Err(TransportError::Other("the connection broke".to_owned())),
            Some(account) => Ok(Some((FelixFrame { kind: FrameKind::Account, ..frame }, account))),
        }
    }

    fn acknowledge(&mut self, _sequence: u64) -> Result<(), TransportError> {
        Ok(())
    }
}

impl PageTransport for Breaking {
    fn publish(
        &self,
        _settings: &Publish,
        _hello: &PublisherHello,
    ) -> Result<Box<dyn PageOutlet>, TransportError> {
        Err(TransportError::Other("it only receives".to_owned()))
    }

    fn subscribe(
        &self,
        _settings: &Publish,
        subscription: &Subscription,
        _quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PageInlet>, TransportError> {
        let mut told = self.told.lock().unwrap();
        let is_first = told.is_empty();
        told.push(subscription.last_page);
        Ok(Box::new(BreakingInlet {
            hello: PublisherHello { stream: STREAM, ..PublisherHello::default() },
            left: if is_first { self.pages } else { 0 },
            sequence: 0,
            account: (!is_first).then(|| b"{}".to_vec()),
        }))
    }
}

#[test]
fn pages_before_a_break_in_the_middle_of_a_batch_are_told_when_the_publisher_is_back() {
    // In the middle of the first batch, and of the second.
    for pages in [3, ACKNOWLEDGE_EACH + 2] {
        let way = Breaking { pages, ..Breaking::default() };
        let publishers = [(Publish::default(), Vec::new())];
        let mut receiver =
            Receiver::connect(Box::new(way.clone()), &publishers, &|| false).unwrap();
        let report = receiver.run(&AtomicBool::new(false), Duration::from_secs(10), |_| {});
        assert_eq!((report.pages, report.lost), (pages, 1));
        assert_eq!(*way.told.lock().unwrap(), [0, pages], "{pages} pages");
    }
}

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
    hello: PublisherHello,
    pages: std::vec::IntoIter<Vec<u8>>,
    body: Vec<u8>,
    account: Option<Vec<u8>>,
    sequence: u64,
}

impl PageInlet for ScriptedInlet {
    fn hello(&self) -> &PublisherHello {
        &self.hello
    }

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

impl PageTransport for Scripted {
    fn publish(
        &self,
        _settings: &Publish,
        _hello: &PublisherHello,
    ) -> Result<Box<dyn PageOutlet>, TransportError> {
        Err(TransportError::Other("it only receives".to_owned()))
    }

    fn subscribe(
        &self,
        _settings: &Publish,
        subscription: &Subscription,
        _quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PageInlet>, TransportError> {
        if subscription.last_page > 0 {
            return Err(TransportError::Other("it does not come back".to_owned()));
        }
        Ok(Box::new(ScriptedInlet {
            hello: PublisherHello {
                stream: STREAM,
                tags: LINKS.map(tag).to_vec(),
                ..PublisherHello::default()
            },
            pages: self.pages.clone().into_iter(),
            body: Vec::new(),
            account: self.account.as_ref().map(|account| serde_json::to_vec(account).unwrap()),
            sequence: 0,
        }))
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
        before: 0,
        chunks: issued,
        outcomes: Outcomes { delivered: *delivered, dropped, ..Outcomes::default() },
    });
    FinalAccount {
        readers: readers.collect(),
        card: CardAccount {
            issued,
            elinks: LINKS
                .map(|elink| CardElink {
                    tag: tag(elink),
                    elink,
                    chunks: issued,
                    ..CardElink::default()
                })
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
    let mut receiver = Receiver::connect(Box::new(way), &publishers, &|| false).unwrap();
    let report = receiver.run(&AtomicBool::new(false), Duration::ZERO, |_| {});
    let faults = report.faults();
    [faults.missing, faults.duplicates, faults.out_of_order, faults.resets, faults.falls]
}

#[test]
fn a_counter_that_falls_to_0_is_judged_by_the_account_or_the_other_e_links() {
    let since = |event: u32| if event < 100 { event } else { event - 100 };
    let both = || pages(300, |_, event| Some(since(event)));
    let one =
        || pages(300, |elink, event| (elink == 8 || !(100..256).contains(&event)).then_some(event));
    let broken = |pages| Scripted { pages, account: None };
    assert_eq!(received(broken(both()), &LINKS), [0, 0, 0, 2, 0]);
    assert_eq!(received(broken(both()), &[]), [0, 0, 0, 2, 0]);
    assert_eq!(received(broken(both()), &[12]), [0, 0, 0, 0, 1]);
    assert_eq!(received(broken(one()), &LINKS), [156, 0, 0, 0, 0]);
    assert_eq!(received(broken(one()), &[12]), [0, 0, 0, 0, 1]);
    let told = |pages, account| Scripted { pages, account: Some(account) };
    let whole = account([300, 300], [0, 0]);
    assert_eq!(received(told(both(), whole.clone()), &[12]), [0, 0, 0, 1, 0]);
    let lossy = account([300, 144], [0, 156]);
    assert_eq!(received(told(one(), lossy), &[12]), [156, 0, 0, 0, 0]);
    // An account that does not close says nothing.
    assert_eq!(received(told(one(), whole), &[12]), [0, 0, 0, 0, 1]);
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
