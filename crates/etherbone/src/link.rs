//! A link model: delay, jitter, bandwidth, loss, duplication and reordering.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkProfile {
    pub latency_ns: u64,
    pub jitter_ns: u64,
    /// Rate at which bytes go onto the link; 0 means no limit. The next message waits for the one
    /// before.
    pub bytes_per_s: f64,
    /// Extra bytes of each message: headers, preamble and gap on the line.
    pub overhead_bytes: u64,
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub reorder_ns: u64,
}

impl LinkProfile {
    pub(crate) fn is_unreliable(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0
    }

    pub fn check(&self) -> Result<(), String> {
        for (name, share) in
            [("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder)]
        {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{name} = {share} is not a share from 0 to 1"));
            }
        }
        if !(self.bytes_per_s >= 0.0 && self.bytes_per_s.is_finite()) {
            return Err(format!("bytes_per_s = {} is not a rate", self.bytes_per_s));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lost,
    Arrives(u64),
    Twice(u64, u64),
}

impl Fate {
    pub(crate) fn arrivals(self) -> impl Iterator<Item = u64> {
        let times_ns = match self {
            Fate::Lost => [None, None],
            Fate::Arrives(at_ns) => [Some(at_ns), None],
            Fate::Twice(first_ns, second_ns) => [Some(first_ns), Some(second_ns)],
        };
        times_ns.into_iter().flatten()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    pub sent: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
}

#[derive(Clone, Debug)]
pub struct EmulatedLink {
    profile: LinkProfile,
    generator: Xoshiro256PlusPlus,
    free_at_ns: u64,
    /// Last arrival: messages do not overtake each other by jitter alone.
    last_arrival_ns: u64,
    pub counts: LinkCounts,
}

impl EmulatedLink {
    pub fn new(profile: LinkProfile, seed: u64) -> EmulatedLink {
        let generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        EmulatedLink {
            profile,
            generator,
            free_at_ns: 0,
            last_arrival_ns: 0,
            counts: LinkCounts::default(),
        }
    }

    /// Returns true with the given chance; draws only when the chance is not 0.
    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.unit() < chance
    }

    /// Draws a number in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn carry(&mut self, now_ns: u64, bytes: usize) -> Fate {
        let profile = self.profile;
        self.counts.sent += 1;
        let begins_ns = self.free_at_ns.max(now_ns);
        let line_bytes = (bytes as u64 + profile.overhead_bytes) as f64;
        let on_line_ns =
            if profile.bytes_per_s > 0.0 { line_bytes / profile.bytes_per_s * 1e9 } else { 0.0 };
        self.free_at_ns = begins_ns + whole_ns(on_line_ns);
        if self.happens(profile.loss) {
            self.counts.lost += 1;
            return Fate::Lost;
        }
        let jitter_ns = if profile.jitter_ns > 0 {
            whole_ns(self.unit() * profile.jitter_ns as f64)
        } else {
            0
        };
        let in_order_ns =
            (self.free_at_ns + profile.latency_ns + jitter_ns).max(self.last_arrival_ns);
        let arrives_ns = if self.happens(profile.reorder) {
            self.counts.reordered += 1;
            in_order_ns + profile.reorder_ns
        } else {
            self.last_arrival_ns = in_order_ns;
            in_order_ns
        };
        if self.happens(profile.duplicate) {
            self.counts.duplicated += 1;
            return Fate::Twice(arrives_ns, arrives_ns + profile.latency_ns / 2);
        }
        Fate::Arrives(arrives_ns)
    }
}

fn whole_ns(ns: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time of seconds at most, not negative"
    )]
    let whole = ns.round() as u64;
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arrivals(profile: LinkProfile, sent: &[(u64, usize)]) -> Vec<Fate> {
        let mut link = EmulatedLink::new(profile, 1);
        sent.iter().map(|&(now_ns, bytes)| link.carry(now_ns, bytes)).collect()
    }

    #[test]
    fn a_gigabit_line_is_occupied_for_the_time_of_its_bytes() {
        let profile = LinkProfile {
            latency_ns: 1000,
            bytes_per_s: 125e6,
            overhead_bytes: 66,
            ..LinkProfile::default()
        };
        assert_eq!(
            arrivals(profile, &[(0, 1434), (0, 1434), (100_000, 34)]),
            [Fate::Arrives(13_000), Fate::Arrives(25_000), Fate::Arrives(101_800)]
        );
    }

    #[test]
    fn a_transparent_link_delivers_at_once() {
        assert_eq!(
            arrivals(LinkProfile::default(), &[(5, 100), (7, 1)]),
            [Fate::Arrives(5), Fate::Arrives(7)]
        );
    }

    #[test]
    fn shares_come_out_as_asked_and_are_counted() {
        let profile = LinkProfile {
            loss: 0.1,
            duplicate: 0.2,
            reorder: 0.3,
            reorder_ns: 50,
            ..LinkProfile::default()
        };
        let mut link = EmulatedLink::new(profile, 7);
        let fates: Vec<Fate> = (0..10_000).map(|now| link.carry(now * 100, 64)).collect();
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count() as u64;
        assert_eq!(lost, link.counts.lost);
        let near = |count: u64, share: f64| (count as f64 / 10_000.0 - share).abs() < 0.02;
        assert!(
            near(link.counts.lost, 0.1)
                && near(link.counts.duplicated, 0.18)
                && near(link.counts.reordered, 0.27)
        );
    }

    #[test]
    fn numbers_that_cannot_be_meant_are_named() {
        let wrong = LinkProfile { loss: 1.5, ..LinkProfile::default() };
        assert!(wrong.check().unwrap_err().contains("loss = 1.5"));
        let wrong = LinkProfile { bytes_per_s: f64::NAN, ..LinkProfile::default() };
        assert!(wrong.check().unwrap_err().contains("bytes_per_s"));
    }

    proptest! {
        #[test]
        fn without_reordering_messages_keep_their_order(jitter_ns in 0..10_000_u64, sent in prop::collection::vec((0..1000_u64, 1..1500_usize), 1..50)) {
            let profile = LinkProfile { latency_ns: 500, jitter_ns, bytes_per_s: 1e9, ..LinkProfile::default() };
            let mut link = EmulatedLink::new(profile, 3);
            let mut now = 0;
            let mut last = 0;
            for (gap, bytes) in sent {
                now += gap;
                let Fate::Arrives(at) = link.carry(now, bytes) else { panic!("neither lost nor doubled") };
                prop_assert!(at >= last && at >= now + 500);
                last = at;
            }
        }
    }
}
