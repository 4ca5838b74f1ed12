//! The reader's state, and its reports.

use std::collections::BTreeMap;

use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Elink, Subchunk};

use super::dest::{Dest, Sizes, subscriber_bytes};
use super::elink::ElinkState;
use crate::accounts::SubscriptionAccount;
use crate::card::{ChannelId, words};
use crate::port::Port;
use crate::receive::Receiver;
use crate::scenario::{ReaderSettings as Settings, Scenario};
use crate::transport::{OutletEvent, PageOutlet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub blocks: u64,
    pub bytes: u64,
    pub chunks: u64,
    pub polls: u64,
    pub busy_polls: u64,
    pub bad_blocks: u64,
    pub unknown_blocks: u64,
    pub duplicates: u64,
    pub missing_blocks: u64,
    pub stalls: u64,
    /// Sum of the bytes found in the ring, over the looks that found some.
    pub found_bytes: u64,
    pub subscribers: u64,
}

pub struct ToHost {
    pub port: Port,
    pub(super) outlet: Box<dyn PageOutlet>,
    /// Receiver that works in this thread, alternately with the reader, and its time in ns.
    pub(crate) fused: Option<(Receiver, u64)>,
    pub(super) settings: Settings,
    pub(super) dead_after_ns: u64,
    pub(super) max_subscribers: usize,
    pub(super) subscriber_bytes: u64,
    pub(super) format: BlockFormat,
    /// True after the card was started.
    pub begun: bool,
    pub(super) places: Vec<u16>,
    pub(super) elinks: Vec<ElinkState>,
    /// Subscribers by their numbers.
    pub(super) dests: Vec<Option<Dest>>,
    pub(super) ended: Ended,
    pub(super) room: Vec<Subchunk>,
    pub(super) sizes: Sizes,
    pub(super) serviced_ns: u64,
    pub(super) events: Vec<OutletEvent>,
    /// Messages for the user that nothing has taken yet.
    pub notes: Vec<String>,
    pub stats: Stats,
}

/// Accounts of subscriptions that have ended, by receiver and tag.
pub(super) type Ended = BTreeMap<(u64, u64), SubscriptionAccount>;

const NOWHERE: u16 = u16::MAX;

impl ToHost {
    pub fn new(port: Port, outlet: Box<dyn PageOutlet>, of: &Scenario, id: ChannelId) -> ToHost {
        let (settings, publish) = (of.reader, &of.publish);
        let format = of.format().expect("the scenario was checked");
        let elinks = of.elinks(id.device, id.channel);
        let mut places = vec![NOWHERE; usize::from(Elink::MAX) + 1];
        for (at, spec) in elinks.iter().enumerate() {
            places[usize::from(spec.elink.number())] =
                u16::try_from(at).expect("a channel has few E-links");
        }
        // A subscriber of a single E-link needs few pages.
        ToHost {
            port,
            outlet,
            fused: None,
            settings,
            dead_after_ns: publish.dead_after.0,
            max_subscribers: publish.max_subscribers,
            subscriber_bytes: subscriber_bytes(format, &settings, &elinks),
            format,
            begun: false,
            places,
            sizes: Sizes::new(format, &settings, &elinks),
            elinks: elinks.into_iter().map(ElinkState::new).collect(),
            dests: Vec::new(),
            ended: BTreeMap::new(),
            room: vec![Subchunk::default(); most_subchunks(format)],
            serviced_ns: 0,
            events: Vec::new(),
            notes: Vec::new(),
            stats: Stats::default(),
        }
    }

    pub fn address(&self) -> String {
        self.outlet.address()
    }

    pub fn facts(&self) -> String {
        self.outlet.facts()
    }

    pub fn filled_bytes(&self) -> usize {
        self.port.consumer().filled()
    }

    /// Bytes since the first that a subscriber has not acknowledged. They wait in the card's FIFO,
    /// in the ring, in pages and in the network.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        let dests = self.dests.iter().flatten();
        let oldest = dests.filter_map(Dest::acknowledged).min();
        let fifo = words::fifo_bytes(self.port.consumer());
        let came = self.stats.bytes + self.filled_bytes() as u64 + fifo;
        came.saturating_sub(oldest.unwrap_or(self.stats.bytes))
    }

    pub fn without_subscriber(&self) -> Vec<Elink> {
        let without = self.elinks.iter().filter(|elink| elink.subscribers.is_empty());
        without.map(|elink| elink.spec.elink).collect()
    }
}
