//! Subscriptions, acknowledgements and departures, and the accounts of each subscriber.

use std::collections::VecDeque;
use std::io::IoSlice;

use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

use super::dest::{Dest, MAX_PENDING, Page};
use super::elink::{ElinkState, Missed, Subscriber, deliver, lose};
use super::reader::ToHost;
use super::sizes::spare_pages;
use crate::accounts::SubscriptionAccount;
use crate::scenario::ReaderMode;
use crate::transport::{OutletEvent, Subscription};

/// Accounts of ended subscriptions that are kept apart: those of further receivers are added up.
const MAX_ENDED: usize = 4096;

impl ToHost {
    pub(super) fn serve(&mut self, now_ns: u64) {
        let mut events = std::mem::take(&mut self.events);
        let mut poll = || self.outlet.poll(&mut events);
        match &self.port.watch {
            None => poll(),
            Some(watch) => watch.poll(poll),
        }
        for event in events.drain(..) {
            match event {
                OutletEvent::Subscribed { dest, subscription } => {
                    self.subscribe(dest, &subscription, now_ns)
                }
                OutletEvent::Acknowledged { dest, sequence } => {
                    self.acknowledge(dest, sequence, now_ns)
                }
                OutletEvent::Gone { dest, why } => self.depart(dest, why),
            }
        }
        self.events = events;
        self.part_from_silent(now_ns);
        self.stats.subscribers = self.dests.iter().flatten().count() as u64;
    }

    fn part_from_silent(&mut self, now_ns: u64) {
        let dead_after_ns = self.dead_after_ns;
        let dead = |dest: &&Dest| {
            !dest.pending.is_empty() && now_ns.saturating_sub(dest.heard_ns) > dead_after_ns
        };
        let silent: Vec<usize> =
            self.dests.iter().flatten().filter(dead).map(|dest| dest.number).collect();
        for number in silent {
            self.outlet.close(number);
            self.depart(
                number,
                format!(
                    "a subscriber acknowledged nothing for {} s",
                    dead_after_ns / 1_000_000_000
                ),
            );
        }
    }

    fn subscribe(&mut self, number: usize, subscription: &Subscription, now_ns: u64) {
        let wanted = |tag: u64| subscription.tags.is_empty() || subscription.tags.contains(&tag);
        if let Some(why) = self.unknown(subscription).or_else(|| self.no_room()) {
            return self.refuse(number, &why);
        }
        let dest = self.dest(number, subscription, now_ns);
        let at = self.dests.iter().position(Option::is_none).unwrap_or(self.dests.len());
        if at == self.dests.len() {
            self.dests.push(None);
        }
        self.dests[at] = Some(dest);
        for elink in self.elinks.iter_mut().filter(|elink| wanted(elink.spec.tag)) {
            let missed = if elink.reassembler.is_open() { Missed::Before } else { Missed::Nothing };
            elink.subscribers.push(Subscriber::new(at, missed));
        }
    }

    fn dest(&self, number: usize, subscription: &Subscription, now_ns: u64) -> Dest {
        // Pages of blocks need no memory of their own.
        let page_bytes = match self.settings.mode {
            ReaderMode::Buffered => self.sizes.page_bytes,
            ReaderMode::ZeroCopy => 0,
        };
        let page = || Page::new(page_bytes, self.elinks.len());
        let spare_pages = spare_pages(self.outlet.as_ref(), &self.settings);
        let account = |elink: &ElinkState| SubscriptionAccount {
            receiver: subscription.receiver,
            tag: elink.spec.tag,
            ..Default::default()
        };
        Dest {
            number,
            receiver: subscription.receiver,
            page: page(),
            queue: VecDeque::with_capacity(self.settings.pages + 4),
            pool: (0..spare_pages.max(self.sizes.max_pages()) + 2).map(|_| page()).collect(),
            pending: VecDeque::with_capacity(MAX_PENDING),
            spare: Vec::with_capacity(MAX_PENDING),
            sequence: subscription.last_page,
            heard_ns: now_ns,
            accounts: self.elinks.iter().map(account).collect(),
        }
    }

    fn unknown(&self, subscription: &Subscription) -> Option<String> {
        let tags = &subscription.tags;
        if tags.len() > self.elinks.len() {
            return Some(format!(
                "{} E-links are wanted, {} are published here",
                tags.len(),
                self.elinks.len()
            ));
        }
        let is_known = |tag: &u64| self.elinks.iter().any(|elink| elink.spec.tag == *tag);
        let unknown = tags.iter().find(|tag| !is_known(tag))?;
        Some(format!("no E-link {unknown:#x} is published here"))
    }

    fn no_room(&self) -> Option<String> {
        let there = self.dests.iter().flatten().count();
        if !self.outlet.is_per_elink() && there >= self.max_subscribers {
            return Some(format!(
                "there are {there} subscribers already (publish.max_subscribers)"
            ));
        }
        let needed = self.subscriber_bytes.saturating_mul(there as u64 + 1);
        let free = daqmeter_sys::available::memory_bytes().filter(|free| *free < needed)?;
        Some(format!(
            "{} subscribers need {needed} bytes of memory, {free} are available",
            there + 1
        ))
    }

    fn refuse(&mut self, number: usize, why: &str) {
        let frame = FelixFrame::control(FrameKind::Refused, u32::try_from(why.len()).unwrap_or(0));
        self.outlet.send(number, &frame, &[IoSlice::new(why.as_bytes())]);
        self.outlet.close(number);
        self.notes.push(format!("refused a subscriber: {why}"));
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.dests.iter().position(|dest| dest.as_ref().is_some_and(|dest| dest.number == number))
    }

    fn acknowledge(&mut self, number: usize, sequence: u64, now_ns: u64) {
        let Some(at) = self.place(number) else { return };
        let Some(dest) = &mut self.dests[at] else {
            return;
        };
        while let Some(mut page) = dest.pending.pop_front_if(|page| page.sequence <= sequence) {
            // A repeated acknowledgement does not count as a sign of life.
            dest.heard_ns = now_ns;
            deliver(&mut self.elinks, &mut dest.accounts, &page.booked);
            page.booked.clear();
            dest.spare.push(page.booked);
        }
    }

    /// Ends a lost connection. Its unacknowledged pages are booked to the network.
    pub(super) fn depart(&mut self, number: usize, why: String) {
        let Some(at) = self.place(number) else { return };
        let Some(mut dest) = self.dests[at].take() else {
            return;
        };
        self.notes.push(format!("subscriber lost: {why}"));
        for elink in &mut self.elinks {
            elink.subscribers.retain(|subscriber| subscriber.place != at);
        }
        if !dest.page.is_empty() {
            dest.queue.push_back(dest.page);
        }
        // The first of the queue may have gone in part; none has arrived whole.
        let pending = dest.pending.into_iter().map(|page| page.booked);
        for booked in pending.chain(dest.queue.into_iter().map(|page| page.booked)) {
            lose(&mut self.elinks, &mut dest.accounts, &booked);
        }
        self.end(dest.receiver, &dest.accounts);
    }

    fn end(&mut self, receiver: u64, accounts: &[SubscriptionAccount]) {
        for (at, account) in accounts.iter().enumerate().filter(|(_, account)| account.offered > 0)
        {
            let is_kept = self.ended.len() < MAX_ENDED || self.ended.contains_key(&(receiver, at));
            let receiver = if is_kept { receiver } else { 0 };
            let empty = SubscriptionAccount { receiver, tag: account.tag, ..Default::default() };
            self.ended.entry((receiver, at)).or_insert(empty).add(account);
        }
    }

    pub(super) fn give_up(&mut self) -> bool {
        let left: Vec<usize> = self
            .dests
            .iter()
            .flatten()
            .filter(|dest| dest.owes())
            .map(|dest| dest.number)
            .collect();
        for number in &left {
            self.depart(*number, "took no more at the end".to_owned());
        }
        !left.is_empty()
    }

    pub(super) fn close_subscriptions(&mut self) -> Vec<SubscriptionAccount> {
        let dests = std::mem::take(&mut self.dests);
        dests.iter().flatten().for_each(|dest| self.end(dest.receiver, &dest.accounts));
        self.dests = dests;
        std::mem::take(&mut self.ended).into_values().collect()
    }
}
