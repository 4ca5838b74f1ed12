//! Subscriptions, acknowledgements and departures, and the accounts of each subscriber.

use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

use super::dest::Dest;
use super::reader::{Ended, ToHost};
use crate::accounts::SubscriptionAccount;
use crate::transport::{OutletEvent, Subscription};

/// Accounts of ended subscriptions that are kept apart: those of further receivers are added up.
const MAX_ENDED: usize = 4096;

impl ToHost {
    pub(crate) fn serve(&mut self, now_ns: u64) {
        let mut events = std::mem::take(&mut self.events);
        let mut poll = || self.outlet.poll(&mut events);
        match &self.port.slowed {
            None => poll(),
            Some(slowed) => slowed.poll(poll),
        }
        for event in events.drain(..) {
            match event {
                OutletEvent::Subscribed { dest, subscription } => {
                    self.subscribe(dest, &subscription, now_ns)
                }
                OutletEvent::Acknowledged { dest, sequence } => {
                    if let Some(Some(dest)) = self.dests.get_mut(dest) {
                        dest.acknowledge(sequence, now_ns);
                    }
                }
                OutletEvent::Gone { dest, why } => self.depart(dest, &why),
            }
        }
        self.events = events;
        let dead_after_ns = self.dead_after_ns;
        for number in self.numbers(|dest| dest.is_silent(now_ns, dead_after_ns)) {
            self.outlet.close(number);
            let dead_after_s = dead_after_ns / 1_000_000_000;
            self.depart(number, &format!("a subscriber acknowledged nothing for {dead_after_s} s"));
        }
        self.stats.subscribers = self.dests.iter().flatten().count() as u64;
    }

    /// Numbers of the subscribers for which this holds.
    pub(super) fn numbers(&self, holds: impl Fn(&Dest) -> bool) -> Vec<usize> {
        let each = self.dests.iter().enumerate();
        each.filter(|(_, dest)| dest.as_ref().is_some_and(&holds)).map(|(at, _)| at).collect()
    }

    fn subscribe(&mut self, number: usize, subscription: &Subscription, now_ns: u64) {
        let wanted = |tag: u64| subscription.tags.is_empty() || subscription.tags.contains(&tag);
        if let Some(why) = self.unknown(subscription).or_else(|| self.no_room()) {
            return self.refuse(number, &why);
        }
        if self.dests.len() <= number {
            self.dests.resize_with(number + 1, || None);
        }
        let tags = self.elinks.iter().map(|elink| elink.spec.tag);
        self.dests[number] = Some(Dest::new(number, subscription, self.sizes, tags, now_ns));
        for elink in self.elinks.iter_mut().filter(|elink| wanted(elink.spec.tag)) {
            elink.subscribers.push(number);
        }
    }

    fn unknown(&self, subscription: &Subscription) -> Option<String> {
        let tags = &subscription.tags;
        let (wanted, published) = (tags.len(), self.elinks.len());
        if wanted > published {
            return Some(format!("{wanted} E-links are wanted, {published} are published here"));
        }
        let is_known = |tag: &u64| self.elinks.iter().any(|elink| elink.spec.tag == *tag);
        let unknown = tags.iter().find(|tag| !is_known(tag))?;
        Some(format!("no E-link {unknown:#x} is published here"))
    }

    fn no_room(&self) -> Option<String> {
        let there = self.dests.iter().flatten().count();
        if there >= self.max_subscribers {
            return Some(format!(
                "already {there} subscribers, the maximum (publish.max_subscribers)"
            ));
        }
        let all = there as u64 + 1;
        let needed = self.subscriber_bytes.saturating_mul(all);
        let free = daqmeter_sys::available::memory_bytes().filter(|free| *free < needed)?;
        Some(format!("{all} subscribers need {needed} bytes of memory, {free} are available"))
    }

    fn refuse(&mut self, number: usize, why: &str) {
        let frame = FelixFrame::control(FrameKind::Refused, u32::try_from(why.len()).unwrap_or(0));
        self.outlet.send(number, &frame, why.as_bytes());
        self.outlet.close(number);
        self.notes.push(format!("refused a subscriber: {why}"));
    }

    /// Ends a lost connection. Its unacknowledged pages are booked to the network.
    fn depart(&mut self, number: usize, why: &str) {
        let Some(mut dest) = self.dests.get_mut(number).and_then(Option::take) else { return };
        self.notes.push(format!("subscriber lost: {why}"));
        for elink in &mut self.elinks {
            elink.subscribers.retain(|subscriber| *subscriber != number);
        }
        dest.lose();
        end(&mut self.ended, &dest.accounts);
    }

    /// Ends connections that took no more; false if there was none.
    pub(super) fn give_up(&mut self) -> bool {
        let left = self.numbers(Dest::owes);
        left.iter().for_each(|number| self.depart(*number, "did not take the last data"));
        !left.is_empty()
    }

    pub(super) fn subscriptions(&self) -> Vec<SubscriptionAccount> {
        let mut all = self.ended.clone();
        self.dests.iter().flatten().for_each(|dest| end(&mut all, &dest.accounts));
        all.into_values().collect()
    }
}

fn end(ended: &mut Ended, accounts: &[SubscriptionAccount]) {
    for account in accounts.iter().filter(|account| account.offered > 0) {
        let own = (account.receiver, account.tag);
        let is_kept = ended.len() < MAX_ENDED || ended.contains_key(&own);
        let receiver = if is_kept { account.receiver } else { 0 };
        let empty = SubscriptionAccount { receiver, tag: account.tag, ..Default::default() };
        ended.entry((receiver, account.tag)).or_insert(empty).add(account);
    }
}
