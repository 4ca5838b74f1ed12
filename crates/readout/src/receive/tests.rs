//! The receiver over publishers made by hand.

use std::sync::Mutex;

use super::*;
use crate::transport::{Hello, Outlet};

/// A publisher whose first connection breaks after some pages; a later one ends at once.
#[derive(Clone, Default)]
struct Breaking {
    pages: u64,
    /// The last page that each connection was told of.
    told: Arc<Mutex<Vec<u64>>>,
}

const STREAM: u64 = 7;

struct BreakingInlet {
    hello: Hello,
    left: u64,
    sequence: u64,
    /// What it says when nothing is left: a broken connection, or its account.
    account: Option<Vec<u8>>,
}

impl Inlet for BreakingInlet {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn receive(&mut self, _wait: Duration) -> Result<Received<'_>, TransportError> {
        let frame = Frame {
            kind: FrameKind::Messages,
            body_bytes: 0,
            count: 0,
            sequence: self.sequence + 1,
            birth_ns: 0,
        };
        if self.left > 0 {
            (self.left, self.sequence) = (self.left - 1, self.sequence + 1);
            return Ok(Received::Frame(frame, &[]));
        }
        match &self.account {
            None => Err(TransportError::Other("the connection broke".to_owned())),
            Some(account) => Ok(Received::Frame(
                Frame {
                    kind: FrameKind::Account,
                    ..frame
                },
                account,
            )),
        }
    }

    fn acknowledge(&mut self, _sequence: u64) -> Result<(), TransportError> {
        Ok(())
    }
}

impl Transport for Breaking {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn publish(
        &self,
        _settings: &Publish,
        _hello: &Hello,
    ) -> Result<Box<dyn Outlet>, TransportError> {
        Err(TransportError::Other("it only receives".to_owned()))
    }

    fn subscribe(
        &self,
        _settings: &Publish,
        _subscription: &Subscription,
        last_page_of: &dyn Fn(u64) -> u64,
        _quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Inlet>, TransportError> {
        let mut told = self.told.lock().unwrap();
        let is_first = told.is_empty();
        told.push(last_page_of(STREAM));
        Ok(Box::new(BreakingInlet {
            hello: Hello {
                stream: STREAM,
                ..Hello::default()
            },
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
        let way = Breaking {
            pages,
            ..Breaking::default()
        };
        let publishers = [(Publish::default(), Vec::new())];
        let mut receiver = Receiver::connect(Box::new(way.clone()), &publishers).unwrap();
        let report = receiver.run(&AtomicBool::new(false), Duration::from_secs(10), |_| {});
        assert_eq!((report.pages, report.lost), (pages, 1));
        assert_eq!(*way.told.lock().unwrap(), [0, pages], "{pages} pages");
    }
}
