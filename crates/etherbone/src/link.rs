//! A link model: delay, bandwidth, loss, duplication and reordering.

use daqmeter_record::units::whole;
use daqmeter_stats::Random;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkProfile {
    pub latency_ns: u64,
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

    pub(crate) fn check(&self) -> Result<(), String> {
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

pub(crate) struct EmulatedLink {
    profile: LinkProfile,
    random: Random,
    free_at_ns: u64,
}

impl EmulatedLink {
    pub(crate) fn new(profile: LinkProfile, seed: u64) -> EmulatedLink {
        EmulatedLink { profile, random: Random::new(seed), free_at_ns: 0 }
    }

    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.random.uniform() < chance
    }

    /// Returns the times of arrival of a message: none if it is lost, two if it is doubled.
    pub(crate) fn carry(&mut self, now_ns: u64, bytes: usize) -> impl Iterator<Item = u64> + use<> {
        let profile = self.profile;
        let line_bytes = (bytes as u64 + profile.overhead_bytes) as f64;
        let on_line_ns =
            if profile.bytes_per_s > 0.0 { line_bytes / profile.bytes_per_s * 1e9 } else { 0.0 };
        self.free_at_ns = self.free_at_ns.max(now_ns) + whole((on_line_ns).round());
        let is_lost = self.happens(profile.loss);
        let late_ns = if self.happens(profile.reorder) { profile.reorder_ns } else { 0 };
        let is_doubled = self.happens(profile.duplicate);
        let arrives_ns = self.free_at_ns + profile.latency_ns + late_ns;
        let again_ns = arrives_ns + profile.latency_ns / 2;
        let times =
            [(!is_lost).then_some(arrives_ns), (!is_lost && is_doubled).then_some(again_ns)];
        times.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(profile: LinkProfile, sent: &[(u64, usize)]) -> Vec<u64> {
        let mut link = EmulatedLink::new(profile, 1);
        sent.iter().flat_map(|&(now_ns, bytes)| link.carry(now_ns, bytes)).collect()
    }

    #[test]
    fn a_gigabit_line_is_occupied_for_the_time_of_its_bytes() {
        let line = LinkProfile {
            latency_ns: 1000,
            bytes_per_s: 125e6,
            overhead_bytes: 66,
            ..LinkProfile::default()
        };
        let sent = [(0, 1434), (0, 1434), (100_000, 34)];
        assert_eq!(arrivals(line, &sent), [13_000, 25_000, 101_800]);
        assert_eq!(arrivals(LinkProfile::default(), &[(5, 100), (7, 1)]), [5, 7]);
    }

    #[test]
    fn shares_come_out_as_asked_and_wrong_ones_are_named() {
        let profile = LinkProfile {
            loss: 0.1,
            duplicate: 0.2,
            reorder: 0.3,
            reorder_ns: 50,
            ..LinkProfile::default()
        };
        let sent: Vec<(u64, usize)> = (0..10_000).map(|at| (at * 100, 64)).collect();
        let times = arrivals(profile, &sent);
        let near = |count: usize, share: f64| (count as f64 / 10_000.0 - share).abs() < 0.02;
        // Of the messages that are not lost a fifth is doubled, and 3 of 10 are late.
        let late = times.iter().filter(|time_ns| *time_ns % 100 == 50).count();
        assert!(near(times.len(), 0.9 * 1.2) && near(late, 0.9 * 1.2 * 0.3), "{late}");
        let wrong = LinkProfile { loss: 1.5, ..profile }.check().unwrap_err();
        assert!(wrong.contains("loss = 1.5"));
        let wrong = LinkProfile { bytes_per_s: f64::NAN, ..profile }.check().unwrap_err();
        assert!(wrong.contains("bytes_per_s"));
    }
}
