//! Streams of fragments, checked: pages become accounts of each E-link.

use std::collections::{HashMap, HashSet};

use daqmeter_record::Ledger;
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_wire::felix::page::{Messages, Status};

use super::{StreamReport, elink_of};
use crate::accounts::{FinalAccount, not_received};
use crate::fragment::{FragmentCheck, FragmentFaults};
use crate::similar::{MAX_ALIKE_BYTES, SimilarByStride};
use crate::witness::{self, Judged, Moment, solve};

/// Bytes between the payloads of messages that are alike: the length.
const MESSAGE_WORD: usize = 4;
/// Messages that are taken as one at most: the number in a block.
const MAX_ALIKE: usize = 256;

#[derive(Debug)]
pub(super) struct Stream {
    check: FragmentCheck,
    /// Counts so far, without the faults.
    pub(super) report: StreamReport,
}

/// E-links that came, and those that may come: a publisher may only send tags that it offers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) all: Vec<Stream>,
    pub(super) places: HashMap<u64, usize>,
    offered: HashSet<u64>,
    /// True takes all tags: nobody offered any.
    pub(super) takes_all: bool,
    strides: SimilarByStride,
    /// Messages of all streams so far; a place is a row of messages of one stream.
    moment: Moment,
}

impl Streams {
    pub(super) fn offer(&mut self, tags: &[u64]) {
        self.offered.extend(tags);
    }

    /// Takes a page; returns true if it was good to its end, and held only offered tags.
    pub(super) fn page(&mut self, body: &[u8]) -> bool {
        let mut messages = Messages::new(body);
        let (mut good, mut tag, mut place) = (true, None, None);
        while let Some(message) = messages.next() {
            let Ok(message) = message else { return false };
            // Messages of one tag come in a row: a block's worth.
            if tag.replace(message.tag) != Some(message.tag) {
                place = self.place_of(message.tag);
                self.moment.place += 1;
                if let Some(place) = place {
                    self.all[place].check.track.arrive(self.moment);
                }
            }
            let Some(place) = place else {
                good = false;
                continue;
            };
            let stream = &mut self.all[place];
            let before = stream.report.chunks;
            stream.take(message.payload, message.status);
            if message.status.is_clean() {
                let length = message.payload.len();
                let stride = length + MESSAGE_WORD;
                let most = (MAX_ALIKE_BYTES / stride).saturating_sub(1);
                let (count, bytes) = messages.take_alike(most.min(MAX_ALIKE));
                stream.report.chunks += count as u64;
                stream.report.bytes += (count * length) as u64;
                let strides = &mut self.strides;
                stream.check.check_alike(bytes, length, stride, count, strides, |_, _| {});
            }
            match stream.check.is_ttc {
                true => self.moment.triggers = stream.check.triggers(),
                false => self.moment.chunks += stream.report.chunks - before,
            }
        }
        good
    }

    /// Place of a tag's stream. `None` for a tag that was not offered.
    fn place_of(&mut self, tag: u64) -> Option<usize> {
        let is_offered = self.takes_all || self.offered.contains(&tag);
        if !self.places.contains_key(&tag) && is_offered {
            let report = StreamReport { tag, ..StreamReport::default() };
            self.places.insert(tag, self.all.len());
            self.all.push(Stream { check: FragmentCheck::new(elink_of(tag)), report });
        }
        self.places.get(&tag).copied()
    }

    /// Reports of all streams. An account that closes gives the number of missing chunks.
    pub(super) fn reports<'a>(
        &self,
        ledger: impl Fn(u64) -> Option<&'a Ledger>,
    ) -> Vec<StreamReport> {
        let streams: Vec<_> = self.all.iter().map(Stream::witness).collect();
        let judged = solve(&streams, self.moment);
        let both = self.all.iter().zip(&judged);
        both.map(|(stream, judged)| stream.report(judged, ledger(stream.report.tag))).collect()
    }

    /// Ledgers of an account for this receiver, with its own counts of what came.
    pub(super) fn own_ledgers(
        &self,
        account: &FinalAccount,
        receiver: u64,
        tags: &[u64],
    ) -> Vec<(u64, Ledger)> {
        let own = |tag: &u64| {
            let mut ledger = account.ledger_for(receiver, *tag)?;
            ledger.delivered = self.places.get(tag).map_or(0, |at| self.all[*at].report.clean());
            Some((*tag, ledger))
        };
        tags.iter().filter_map(own).collect()
    }
}

/// Refuses ledgers whose sums no run reaches: all sums of them have 64 bits.
pub(super) fn refuse_large_sum<'a>(
    ledgers: impl Iterator<Item = &'a (u64, Ledger)>,
) -> Result<(), String> {
    const MAX_SUM: u64 = MAX_WHOLE << 10;
    let counts = ledgers.flat_map(|(_, ledger)| [ledger.issued, ledger.delivered, ledger.lost()]);
    let sum = counts.map(u128::from).sum::<u128>();
    match sum <= u128::from(MAX_SUM) {
        true => Ok(()),
        false => Err(format!(
            "the numbers of its E-links add up to {sum}; the largest sum taken is {MAX_SUM}"
        )),
    }
}

impl Stream {
    fn witness(&self) -> witness::Witness<'_> {
        // A receiver may come and go at any time: begins and ends say nothing.
        let link = elink_of(self.report.tag).map_or(0, |elink| elink.link().into());
        let (track, is_trigger) = (&self.check.track, self.check.is_ttc);
        witness::Witness { track, is_trigger, link, is_closed: false }
    }

    /// Faults of the stream. An account that closes states what did not come, and that nothing came
    /// twice. Without a loss, a counter that fell was reset by the source.
    fn faults(&self, judged: &Judged, ledger: Option<&Ledger>) -> FragmentFaults {
        let counted = self.check.judged(judged);
        let Some(ledger) = ledger.filter(|ledger| ledger.closes()) else {
            return counted;
        };
        let lost = not_received(ledger);
        let missing = lost.saturating_sub(self.report.truncated);
        let known = FragmentFaults { missing, unclear: 0, unclear_missing: 0, ..counted };
        match lost {
            0 => FragmentFaults { resets: counted.resets + counted.unclear, ..known },
            _ => FragmentFaults { duplicates: 0, out_of_order: 0, resets: 0, ..known },
        }
    }

    /// Report of the stream. An account that closes gives the number of missing chunks.
    fn report(&self, judged: &Judged, ledger: Option<&Ledger>) -> StreamReport {
        StreamReport { faults: self.faults(judged, ledger), ..self.report }
    }

    #[inline]
    fn take(&mut self, payload: &[u8], status: Status) {
        self.report.chunks += 1;
        self.report.bytes += payload.len() as u64;
        if status.is_clean() {
            self.check.check(payload);
        } else if status.0 & Status::CARD_TRUNCATED != 0 {
            self.report.truncated += 1;
            // Its bytes are those that were left: only the counter is compared.
            self.check.cut(payload);
        } else {
            self.report.flagged += 1;
            self.check.check(payload);
        }
    }
}
