//! Accounts of every trigger and E-link, from the source to the receiver.
//!
//! The card counts at its own place, the reader at its, each acknowledgement at the receiver's: the
//! ledger closes only when they agree.

use daqmeter_record::Ledger;
use daqmeter_record::ledger::{NOT_GIVEN, NOT_LOST, STOPPED};
use serde::{Deserialize, Serialize};

/// Lends the counts of a type in this order, and adds those of another.
macro_rules! counts {
    ($of:ident: $($count:ident),+) => {
        impl $of {
            pub(crate) fn counts(&mut self) -> [&mut u64; [$(stringify!($count)),+].len()] {
                [$(&mut self.$count),+]
            }
        }

        impl std::ops::AddAssign for $of {
            fn add_assign(&mut self, mut other: $of) {
                for (count, other) in self.counts().into_iter().zip(other.counts()) {
                    *count += *other;
                }
            }
        }
    };
}
pub(crate) use counts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardElink {
    pub tag: u64,
    /// Triggers for which the emulator made no fragment.
    pub deficit: u64,
    /// Triggers for which the link sent nothing, as XOFF told it.
    pub xoff: u64,
    /// Fragments that found no room in the FIFO at all.
    pub fifo_lost: u64,
    pub truncated: u64,
    /// Whole chunks that were made unreadable by injected faults.
    pub fault_lost: u64,
    /// Chunks that injected faults marked as cut off, or with an error or CRC flag.
    pub fault_flagged: u64,
    /// Chunks handed to the ring: with those cut off, without those made unreadable.
    pub chunks: u64,
}

counts! { CardElink: deficit, xoff, fifo_lost, truncated, fault_lost, fault_flagged, chunks }

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardAccount {
    pub issued: u64,
    /// Triggers that BUSY stopped, by its causes in the order of [`STOPPED`].
    pub vetoed: [u64; 3],
    pub elinks: Vec<CardElink>,
}

impl CardAccount {
    /// Ledger of all E-links up to the ring.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new("triggers");
        for elink in &self.elinks {
            ledger.issued += self.issued;
            ledger.delivered += elink.chunks - elink.truncated;
            self.losses(elink).for_each(|(name, count)| ledger.lose(name, count));
            ledger.lose(FIFO, elink.truncated);
        }
        ledger
    }

    /// Losses up to the ring. Those by BUSY from outside and by XOFF are rare.
    fn losses(&self, at: &CardElink) -> impl Iterator<Item = (&'static str, u64)> {
        let [dma, fifo, outside] = self.vetoed;
        let own = [(NOT_GIVEN, at.deficit), (FIFO, at.fifo_lost), (INJECTED, at.fault_lost)];
        let stopped = STOPPED.into_iter().zip([dma, fifo, outside, at.xoff]);
        let is_named = |(name, count): &(&str, u64)| *count > 0 || STOPPED[..2].contains(name);
        stopped.filter(is_named).chain(own)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    pub unsubscribed: u64,
    /// Chunks dropped because the subscriber was slow.
    pub dropped: u64,
    /// Chunks lost with a connection and never acknowledged.
    pub network_lost: u64,
    pub delivered: u64,
    pub delivered_truncated: u64,
    pub delivered_flagged: u64,
}

counts! {
    Outcomes: delivered, delivered_truncated, delivered_flagged, unsubscribed, dropped, network_lost
}

impl Outcomes {
    pub(crate) fn deliver(&mut self, chunks: [u32; 3]) {
        for (count, chunks) in self.counts().into_iter().zip(chunks) {
            *count += u64::from(chunks);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderElink {
    pub chunks: u64,
    /// Chunks offered to subscribers, once to each of them, and chunks without a subscriber.
    pub offered: u64,
    /// Chunks of the card that were not read, because the reader was stopped before.
    pub left: u64,
    #[serde(flatten)]
    pub outcomes: Outcomes,
}

impl ReaderElink {
    /// Adds up the subscriptions of an E-link. Some of its chunks had no subscriber.
    pub(crate) fn of<'a>(
        chunks: u64,
        unsubscribed: u64,
        subscriptions: impl Iterator<Item = &'a SubscriptionAccount>,
    ) -> ReaderElink {
        let outcomes = Outcomes { unsubscribed, ..Outcomes::default() };
        let mut all = ReaderElink { chunks, offered: unsubscribed, left: 0, outcomes };
        for one in subscriptions {
            all.offered += one.offered;
            all.outcomes += one.outcomes;
        }
        all
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionAccount {
    /// Number of the receiver. 0 stands for many that have gone.
    pub receiver: u64,
    pub tag: u64,
    /// Chunks that the decoder found in the ring while it was subscribed.
    pub offered: u64,
    #[serde(flatten)]
    pub outcomes: Outcomes,
}

impl SubscriptionAccount {
    pub fn gap(&self) -> i128 {
        let mut outcomes = self.outcomes;
        let known = outcomes.counts().map(|count| i128::from(*count));
        i128::from(self.offered) - known.iter().sum::<i128>()
    }

    pub(crate) fn add(&mut self, other: &SubscriptionAccount) {
        self.offered += other.offered;
        self.outcomes += other.outcomes;
    }

    /// Account of the E-link as this subscriber saw it: chunks not offered to it came before or
    /// after it.
    fn seen(&self, reader: &ReaderElink) -> ReaderElink {
        let elsewhere = reader.chunks.saturating_sub(self.offered);
        let unsubscribed = elsewhere + self.outcomes.unsubscribed;
        let outcomes = Outcomes { unsubscribed, ..self.outcomes };
        ReaderElink { offered: reader.chunks, outcomes, ..*reader }
    }
}

/// Last frame to a subscriber, with the accounts at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalAccount {
    pub card: CardAccount,
    pub readers: Vec<ReaderElink>,
    pub subscriptions: Vec<SubscriptionAccount>,
    /// True if the card's process ended before its triggers did, or did not end them when the
    /// reader was stopped: its last counts are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub card_is_lost: bool,
}

impl FinalAccount {
    pub fn ledgers(&self) -> Vec<(u64, Ledger)> {
        self.elinks().map(|(at, reader)| (at.tag, ledger(&self.card, at, reader))).collect()
    }

    fn elinks(&self) -> impl Iterator<Item = (&CardElink, &ReaderElink)> {
        self.card.elinks.iter().zip(&self.readers)
    }

    /// Ledger of each subscription, with the tag of its E-link.
    pub(crate) fn subscription_ledgers(&self) -> impl Iterator<Item = (u64, Ledger)> {
        self.subscriptions.iter().filter_map(|own| {
            let (at, reader) = self.elinks().find(|(at, _)| at.tag == own.tag)?;
            Some((own.tag, ledger(&self.card, at, &own.seen(reader))))
        })
    }

    /// Ledger of an E-link for one receiver, or that of the E-link if the reader does not know its
    /// receivers.
    pub(crate) fn ledger_for(&self, receiver: u64, tag: u64) -> Option<Ledger> {
        let (at, reader) = self.elinks().find(|(at, _)| at.tag == tag)?;
        let mut own = self.subscriptions.iter();
        let own = own.find(|own| (own.receiver, own.tag) == (receiver, tag));
        let seen = own.map_or(*reader, |own| own.seen(reader));
        Some(ledger(&self.card, at, &seen))
    }

    pub fn closes(&self) -> bool {
        self.ledgers().iter().all(|(_, ledger)| ledger.closes()) && self.open_subscriptions() == 0
    }

    /// Number of subscriptions that do not close.
    pub fn open_subscriptions(&self) -> u64 {
        self.subscriptions.iter().filter(|subscription| subscription.gap() != 0).count() as u64
    }
}

/// Ledger of all E-links together.
pub fn of_all(ledgers: &[(u64, Ledger)]) -> Ledger {
    let mut all = Ledger::new("triggers x E-links");
    for (_, ledger) in ledgers {
        all.add(&Ledger { unit: all.unit.clone(), ..ledger.clone() });
    }
    all
}

pub const FLAGGED: &str = NOT_LOST[1];
/// Chunks that injected faults flagged.
const FLAGGED_AT_SOURCE: &str = NOT_LOST[2];
const FIFO: &str = "FIFO truncation";
const INJECTED: &str = NOT_LOST[0];
const FIFO_OR_INJECTED: &str = "FIFO truncation or injected faults";
const LEFT: &str = NOT_LOST[3];
pub const NOT_SUBSCRIBED: &str = "not subscribed";

/// Losses of an E-link's own: not of all E-links together, as by BUSY.
pub(crate) fn own_losses(ledger: &Ledger) -> impl Iterator<Item = (&str, u64)> {
    let losses = ledger.losses.iter().map(|(kind, count)| (kind.as_str(), *count));
    losses.filter(|(kind, count)| *count > 0 && !STOPPED.contains(kind))
}

/// Triggers that a receiver should have had whole and had not, injected faults included. Without
/// those that BUSY stopped, that the source did not give, that came before it subscribed, or that
/// arrived with an error or CRC flag.
pub(crate) fn not_received(ledger: &Ledger) -> u64 {
    let of = |name: &str| ledger.losses.get(name).copied().unwrap_or(0);
    ledger.lost_on_the_way() + of(INJECTED) - of(NOT_SUBSCRIBED)
}

/// Ledger of one E-link in triggers: the card's counts against the reader's. It does not close if
/// the two disagree about the chunks that passed the ring. A chunk is due once to each subscriber.
///
/// Chunks that arrived with a mark are booked to the cause that made such marks. If the FIFO and
/// injected faults both cut chunks off, the bytes do not show which one it was.
pub fn ledger(card: &CardAccount, at: &CardElink, reader: &ReaderElink) -> Ledger {
    let issued = card.issued + reader.offered.saturating_sub(reader.chunks);
    let (left, reader) = (reader.left, reader.outcomes);
    let mut ledger = Ledger { issued, delivered: reader.delivered, ..Ledger::new("triggers") };
    let (cut, flagged) = match (at.truncated, at.fault_flagged) {
        (_, 0) => (FIFO, FLAGGED),
        (0, _) => (INJECTED, FLAGGED_AT_SOURCE),
        _ => (FIFO_OR_INJECTED, FLAGGED_AT_SOURCE),
    };
    let of_reader = [
        (FLAGGED, 0),
        (NOT_SUBSCRIBED, reader.unsubscribed),
        ("dropped by reader", reader.dropped),
        ("network", reader.network_lost),
    ];
    let (truncated, marked) = (reader.delivered_truncated, reader.delivered_flagged);
    let rare = [(cut, truncated), (flagged, marked), (LEFT, left)];
    let rare = rare.into_iter().filter(|(_, count)| *count > 0);
    for (name, count) in card.losses(at).chain(of_reader).chain(rare) {
        ledger.lose(name, count);
    }
    ledger
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_with_an_open_subscription_does_not_close_though_its_e_links_do() {
        let at = CardElink { tag: 7, chunks: 100, ..CardElink::default() };
        let outcomes = Outcomes { delivered: 100, ..Outcomes::default() };
        let first = SubscriptionAccount { receiver: 1, tag: 7, offered: 100, outcomes };
        let late = SubscriptionAccount {
            receiver: 2,
            offered: 60,
            outcomes: Outcomes { delivered: 50, dropped: 10, ..Outcomes::default() },
            ..first
        };
        let mut account = FinalAccount {
            card: CardAccount { issued: 100, elinks: vec![at], ..CardAccount::default() },
            readers: vec![ReaderElink::of(100, 0, [first, late].iter())],
            subscriptions: vec![first, late],
            card_is_lost: false,
        };
        assert!(account.closes());
        let own = account.ledger_for(2, 7).unwrap();
        assert_eq!((own.closes(), own.losses["not subscribed"], own.delivered), (true, 40, 50));
        // Each of several subscribers is due all that it was offered.
        let (_, all) = &account.ledgers()[0];
        assert_eq!((all.issued, all.delivered, all.lost_on_the_way()), (160, 150, 10));
        account.subscriptions[1].outcomes.delivered -= 1;
        assert!(!account.closes());
        let open = account.subscription_ledgers().map(|(_, ledger)| ledger.gap());
        assert_eq!(open.collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn it_closes_when_card_and_reader_agree_and_not_when_one_chunk_is_missing() {
        let at = CardElink {
            deficit: 5,
            fifo_lost: 2,
            truncated: 1,
            fault_lost: 3,
            chunks: 85,
            ..CardElink::default()
        };
        let card = CardAccount { issued: 100, vetoed: [4, 1, 0], elinks: vec![at] };
        let reader = ReaderElink {
            chunks: 80,
            offered: 80,
            left: 5,
            outcomes: Outcomes {
                unsubscribed: 10,
                dropped: 6,
                network_lost: 7,
                delivered: 54,
                delivered_truncated: 1,
                delivered_flagged: 2,
            },
        };
        let closed = ledger(&card, &at, &reader);
        assert!(closed.closes(), "{closed}");
        assert_eq!((closed.losses["FIFO truncation"], closed.losses["network"]), (3, 7));
        assert_eq!((closed.losses["injected faults"], closed.losses[FLAGGED]), (3, 2));
        assert_eq!((closed.losses[LEFT], closed.lost_on_the_way()), (5, 26));
        let mut one_missing = reader;
        one_missing.outcomes.delivered = 53;
        assert_eq!(ledger(&card, &at, &one_missing).gap(), 1);
    }

    /// Two subscribers, of which the second came for the last half: the FIFO cut 10 chunks before
    /// it, and a fault 5 after it. An estimate by the number of subscribers booked all 20 that
    /// arrived to the FIFO.
    #[test]
    fn a_cut_is_booked_to_its_cause_where_the_source_has_only_one() {
        let mut outcomes = Outcomes { delivered: 128, ..Outcomes::default() };
        (outcomes.delivered_truncated, outcomes.delivered_flagged) = (20, 2);
        let reader = ReaderElink { chunks: 100, offered: 150, left: 0, outcomes };
        for (truncated, fault_flagged, [cut, flagged]) in [
            (10, 0, ["FIFO truncation", "flagged error or CRC"]),
            (0, 15, ["injected faults", "flagged at the source"]),
            (10, 6, ["FIFO truncation or injected faults", "flagged at the source"]),
        ] {
            let at = CardElink { truncated, fault_flagged, chunks: 100, ..CardElink::default() };
            let card = CardAccount { issued: 100, ..CardAccount::default() };
            let ledger = ledger(&card, &at, &reader);
            assert!(ledger.closes(), "{ledger}");
            assert_eq!((ledger.losses[cut], ledger.losses[flagged]), (20, 2), "{ledger}");
            assert_eq!(ledger.lost(), 22, "{ledger}");
        }
    }
}
