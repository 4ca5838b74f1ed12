//! A way between reader and receivers without a network: a few pages per receiver lie between them,
//! so that a slow one is felt at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use daqmeter_readout::transport::{
    OutletEvent, PageInlet, PageOutlet, PublisherHello, Sent, Subscribed, Subscription,
    TransportError,
};
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

/// The transport. Clones are ends of one transport.
#[derive(Clone)]
pub(crate) struct Memory {
    hello: PublisherHello,
    room: usize,
    lanes: Arc<(Mutex<Vec<Lane>>, Condvar)>,
}

#[derive(Default)]
struct Lane {
    frames: VecDeque<(FelixFrame, Vec<u8>)>,
    news: VecDeque<News>,
    closed: bool,
}

enum News {
    Subscribed(Subscription),
    Acknowledged(u64),
    Gone,
}

impl Memory {
    pub(crate) fn new(hello: PublisherHello, room: usize) -> Memory {
        Memory { hello, room, lanes: Arc::default() }
    }

    pub(crate) fn subscribe(&self, subscription: &Subscription) -> Subscribed {
        let mut lanes = self.lanes.0.lock().unwrap();
        let news = VecDeque::from([News::Subscribed(subscription.clone())]);
        lanes.push(Lane { news, ..Lane::default() });
        let inlet = MemoryInlet { way: self.clone(), lane: lanes.len() - 1, body: Vec::new() };
        (Box::new(inlet), self.hello.clone())
    }
}

impl PageOutlet for Memory {
    fn address(&self) -> String {
        "memory".to_owned()
    }

    fn facts(&self) -> String {
        String::new()
    }

    fn poll(&mut self, events: &mut Vec<OutletEvent>) {
        for (dest, lane) in self.lanes.0.lock().unwrap().iter_mut().enumerate() {
            events.extend(lane.news.drain(..).map(|news| match news {
                News::Subscribed(subscription) => OutletEvent::Subscribed { dest, subscription },
                News::Acknowledged(sequence) => OutletEvent::Acknowledged { dest, sequence },
                News::Gone => OutletEvent::Gone { dest, why: "closed by the receiver".to_owned() },
            }));
        }
    }

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[u8]) -> Sent {
        let lane = &mut self.lanes.0.lock().unwrap()[dest];
        if lane.closed {
            return Sent::Gone;
        }
        if lane.frames.len() >= self.room && frame.kind != FrameKind::Account {
            return Sent::Blocked;
        }
        lane.frames.push_back((*frame, body.to_vec()));
        self.lanes.1.notify_all();
        Sent::Done
    }

    fn close(&mut self, dest: usize) {
        self.lanes.0.lock().unwrap()[dest].closed = true;
        self.lanes.1.notify_all();
    }
}

struct MemoryInlet {
    way: Memory,
    lane: usize,
    body: Vec<u8>,
}

impl MemoryInlet {
    fn say(&self, news: News) {
        self.way.lanes.0.lock().unwrap()[self.lane].news.push_back(news);
    }
}

impl Drop for MemoryInlet {
    fn drop(&mut self) {
        self.say(News::Gone);
        self.way.lanes.0.lock().unwrap()[self.lane].closed = true;
    }
}

impl PageInlet for MemoryInlet {
    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError> {
        let lanes = self.way.lanes.0.lock().unwrap();
        let empty =
            |lanes: &mut Vec<Lane>| lanes[self.lane].frames.is_empty() && !lanes[self.lane].closed;
        let (mut lanes, _) = self.way.lanes.1.wait_timeout_while(lanes, wait, empty).unwrap();
        let lane = &mut lanes[self.lane];
        let Some((frame, body)) = lane.frames.pop_front() else {
            return if lane.closed {
                Err(TransportError::Other("closed".to_owned()))
            } else {
                Ok(None)
            };
        };
        self.body = body;
        Ok(Some((frame, &self.body)))
    }

    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError> {
        self.say(News::Acknowledged(sequence));
        Ok(())
    }
}
