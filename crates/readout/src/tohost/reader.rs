//! The reader's state, and what it says of itself.

use std::collections::{BTreeMap, VecDeque};

use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Elink, Subchunk};
use serde::{Deserialize, Serialize};

use super::dest::{Dest, Pending};
use super::elink::ElinkState;
use super::sizes::{Sizes, spare_pages, subscriber_bytes};
use crate::accounts::{CardAccount, SubscriptionAccount};
use crate::card::words::{CardState, CardView};
use crate::port::Port;
use crate::scenario::{ElinkSpec, Publish, ReaderSettings as Settings};
use crate::transport::{OutletEvent, PageOutlet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Blocks read.
    pub blocks: u64,
    /// Bytes of the ring read.
    pub bytes: u64,
    /// Chunks read.
    pub chunks: u64,
    /// Times that it looked.
    pub polls: u64,
    /// Of which found something.
    pub busy_polls: u64,
    /// Blocks that could not be read.
    pub bad_blocks: u64,
    /// Blocks of E-links that the scenario does not have.
    pub unknown_blocks: u64,
    /// Blocks that came twice.
    pub duplicates: u64,
    /// Blocks missing by their numbers.
    pub missing_blocks: u64,
    /// Times that a slow subscriber stopped it.
    pub stalls: u64,
    /// Pages sent.
    pub pages: u64,
    /// Bytes of pages sent.
    pub page_bytes: u64,
    /// Most bytes that it found in the ring.
    pub peak_bytes: u64,
    /// Sum of what it found in the ring, over the polls that found something.
    pub found_bytes: u64,
    /// Subscribers now.
    pub subscribers: u64,
}

/// A reader of one DMA channel.
pub struct ToHost {
    pub(crate) port: Port,
    pub(super) outlet: Box<dyn PageOutlet>,
    pub(super) settings: Settings,
    pub(super) dead_after_ns: u64,
    pub(super) max_subscribers: usize,
    pub(super) subscriber_bytes: u64,
    pub(super) format: BlockFormat,
    /// The card was told that this reader is ready.
    pub(super) begun: bool,
    /// Counts of the card before this reader began. If the card runs, an earlier reader took the
    /// first chunks.
    pub(super) found: CardAccount,
    /// E-link number to place in `elinks`.
    pub(super) places: Vec<u16>,
    pub(super) elinks: Vec<ElinkState>,
    pub(super) dests: Vec<Option<Dest>>,
    /// Lost connections, by receiver, until it comes back or the end.
    pub(super) departed: BTreeMap<u64, Departed>,
    /// Accounts of subscriptions that have ended, by receiver and place of the E-link.
    pub(super) ended: BTreeMap<(u64, usize), SubscriptionAccount>,
    pub(super) room: Vec<Subchunk>,
    pub(super) sizes: Sizes,
    /// Bytes of the ring read, and given back, since the start.
    pub(super) read: u64,
    pub(super) released: u64,
    pub(super) serviced_ns: u64,
    pub(super) events: Vec<OutletEvent>,
    /// Trouble, for people.
    pub(super) notes: Vec<String>,
    pub(super) stats: Stats,
}

/// A connection that was lost.
#[derive(Default)]
pub(super) struct Departed {
    /// Pages that it had not acknowledged.
    pub(super) pending: VecDeque<Pending>,
    pub(super) accounts: Vec<SubscriptionAccount>,
}

const NOWHERE: u16 = u16::MAX;

impl ToHost {
    /// A reader for a channel with these E-links.
    pub fn new(
        port: Port,
        outlet: Box<dyn PageOutlet>,
        settings: Settings,
        publish: &Publish,
        format: BlockFormat,
        elinks: &[ElinkSpec],
    ) -> ToHost {
        let mut places = vec![NOWHERE; usize::from(Elink::MOST) + 1];
        for (at, spec) in elinks.iter().enumerate() {
            places[usize::from(spec.elink.number())] =
                u16::try_from(at).expect("a channel has few E-links");
        }
        let longest = elinks.iter().map(|elink| elink.payload_bytes).max();
        let longest = longest.unwrap_or(0);
        let state = |spec: &ElinkSpec| ElinkState::new(*spec, longest);
        let with_spare = Settings { pages: spare_pages(outlet.as_ref(), &settings), ..settings };
        let found = match port.state() {
            CardState::Idle => CardAccount::default(),
            CardState::Running | CardState::Finished => port.view().account,
        };
        ToHost {
            found,
            port,
            outlet,
            settings,
            dead_after_ns: publish.dead_after.0,
            max_subscribers: publish.max_subscribers,
            subscriber_bytes: subscriber_bytes(format, &with_spare, elinks),
            format,
            begun: false,
            places,
            elinks: elinks.iter().map(state).collect(),
            dests: Vec::new(),
            departed: BTreeMap::new(),
            ended: BTreeMap::new(),
            room: vec![Subchunk::default(); most_subchunks(format)],
            sizes: Sizes::new(format, &settings, longest),
            read: 0,
            released: 0,
            serviced_ns: 0,
            events: Vec::new(),
            notes: Vec::new(),
            stats: Stats::default(),
        }
    }

    pub fn address(&self) -> String {
        self.outlet.address()
    }

    /// Names and values of the transport, for records.
    pub fn facts(&self) -> Vec<(String, String)> {
        self.outlet.facts()
    }

    pub fn stats(&self) -> Stats {
        self.stats
    }

    pub fn card(&self) -> CardView {
        self.port.view()
    }

    /// Bytes in the ring now.
    pub fn filled_bytes(&self) -> usize {
        self.port.consumer().filled()
    }

    /// Bytes of the ring since the first that a subscriber has not acknowledged. They wait in the
    /// ring, in pages and in the network.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        let dests = self.dests.iter().flatten();
        let oldest = dests.filter_map(Dest::acknowledged).min();
        let came = self.released + self.filled_bytes() as u64;
        came.saturating_sub(oldest.unwrap_or(self.read))
    }

    pub fn ring_bytes(&self) -> usize {
        self.port.consumer().ring_bytes()
    }

    /// Takes the trouble that there was since the last time, for people.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// True when every E-link has a subscriber.
    pub fn is_subscribed(&self) -> bool {
        self.elinks.iter().all(|elink| !elink.subscribers.is_empty())
    }

    /// The E-links that nobody has subscribed to.
    pub fn without_subscriber(&self) -> Vec<Elink> {
        self.elinks
            .iter()
            .filter(|elink| elink.subscribers.is_empty())
            .map(|elink| elink.spec.elink)
            .collect()
    }

    pub fn has_begun(&self) -> bool {
        self.begun
    }

    pub fn card_is_lost(&self) -> bool {
        self.port.is_lost()
    }
}
