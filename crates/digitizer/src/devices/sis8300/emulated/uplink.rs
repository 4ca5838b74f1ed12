//! The boards' shared uplink as a fluid: piecewise constant rates that change when a board comes or
//! goes.
//!
//! Time is a parameter: one code paces emulated boards in real time and computes the document's
//! tables at once.
//!
//! A transfer ends when its bytes have flowed at the modelled rate, and the waiting thread wakes up
//! some tens of microseconds later. A board stays on the uplink until its reader has woken up (for
//! at most `linger_us`) and `again_us` longer. A reader that asks again by then is credited with
//! the bytes that flowed meanwhile, so that delays do not add up. A later request begins anew. The
//! bytes delivered therefore never exceed those of the model.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkModel {
    pub limit_bytes_per_s: f64,
    /// Sharpness of the knee between "sum of the boards" and "limit".
    pub knee: f64,
    /// Exponent of a board's own rate in its share.
    pub share: f64,
    /// Extra time per byte and board at the start of a run.
    pub startup_ns_per_byte: f64,
    pub startup_ms: f64,
    /// Time for which a finished board stays on the uplink while its reader wakes up.
    pub linger_us: f64,
    /// Time for which it stays after the reader has its data.
    pub again_us: f64,
}

impl UplinkModel {
    /// Returns rates in bytes per second of simultaneously active boards, from their own rates.
    pub fn rates(&self, own: &[f64]) -> Vec<f64> {
        let sum: f64 = own.iter().sum();
        if sum <= 0.0 {
            return vec![0.0; own.len()];
        }
        let total =
            sum * (1.0 + (sum / self.limit_bytes_per_s).powf(self.knee)).powf(-1.0 / self.knee);
        share(total, own, self.share)
    }

    fn started(&self, rate: f64) -> f64 {
        1.0 / (1.0 / rate + self.startup_ns_per_byte * 1e-9)
    }
}

/// Shares `total` in proportion to `own^exponent`, none above its own; the excess goes to the
/// others.
fn share(total: f64, own: &[f64], exponent: f64) -> Vec<f64> {
    // The board with the largest share of its own rate is full first.
    let mut order: Vec<usize> = (0..own.len()).collect();
    let fullness = |board: usize| own[board].powf(exponent - 1.0);
    order.sort_by(|&a, &b| fullness(b).total_cmp(&fullness(a)));
    let weights: Vec<f64> = order.iter().map(|&board| own[board].powf(exponent)).collect();
    // Sums of a weight and all behind it.
    let mut rests = weights.clone();
    (1..rests.len()).rev().for_each(|at| rests[at - 1] += rests[at]);
    let (mut rates, mut left) = (vec![0.0; own.len()], total);
    for (at, board) in order.into_iter().enumerate() {
        rates[board] = own[board].min(left * weights[at] / rests[at]);
        left -= rates[board];
    }
    rates
}

/// Less than a byte is rounding: at 1e4 s of uptime a double resolves 2e-12 s, a few thousandths of
/// a byte at these rates.
const ROUNDING_BYTES: f64 = 1.0;
const ROUNDING_S: f64 = 1e-9;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slot {
    own: f64,
    /// Bytes still to flow; below zero while it lingers. `None` off the uplink.
    remaining: Option<f64>,
    done_at: f64,
    /// Time at which it leaves the uplink without a new request.
    stays_until: f64,
}

/// State of an uplink. Times are seconds on any monotonic clock.
#[derive(Clone, Debug)]
pub struct Uplink {
    model: UplinkModel,
    slots: Vec<Slot>,
    now: f64,
    run_began: f64,
}

impl Uplink {
    pub fn new(model: UplinkModel) -> Uplink {
        Uplink { model, slots: Vec::new(), now: 0.0, run_began: 0.0 }
    }

    pub fn plug(&mut self, own_bytes_per_s: f64) -> usize {
        self.slots.push(Slot { own: own_bytes_per_s, ..Slot::default() });
        self.slots.len() - 1
    }

    pub fn submit(&mut self, now: f64, board: usize, bytes: f64) {
        self.advance(now);
        if self.slots.iter().all(|slot| slot.remaining.is_none()) {
            self.run_began = self.now;
        }
        let slot = &mut self.slots[board];
        slot.remaining = Some(slot.remaining.unwrap_or(0.0) + bytes);
        slot.done_at = self.now;
    }

    /// Returns the permitted sleep until a board's next look; `None` when its bytes have flowed.
    /// Its reader then has them, and the board leaves unless it asks again soon. A sleep is at most
    /// half of the time at the present rate, because boards that leave make the others faster.
    pub fn left_s(&mut self, now: f64, board: usize) -> Option<f64> {
        self.advance(now);
        let Some(remaining) = self.slots[board].remaining.filter(|bytes| *bytes > 0.0) else {
            let slot = &mut self.slots[board];
            slot.stays_until = slot.stays_until.min(now + self.model.again_us * 1e-6);
            return None;
        };
        let rate = self.rates()[board].max(1.0);
        Some((remaining / self.slots[board].own).max(remaining / rate / 2.0))
    }

    /// Removes a board at once, without credit for bytes while lingering.
    pub fn leave(&mut self, now: f64, board: usize) {
        self.advance(now);
        self.slots[board].remaining = None;
    }

    /// Advances the time. A clock that goes back counts as standing still.
    pub fn advance(&mut self, now: f64) {
        while self.now < now {
            let rates = self.rates();
            let until = self.next_change(&rates).min(now);
            self.flow(until, &rates);
        }
    }

    fn starting(&self) -> bool {
        self.now < self.run_began + self.model.startup_ms * 1e-3
    }

    fn rates(&self) -> Vec<f64> {
        let active: Vec<usize> =
            (0..self.slots.len()).filter(|&i| self.slots[i].remaining.is_some()).collect();
        let own: Vec<f64> = active.iter().map(|&i| self.slots[i].own).collect();
        let mut rates = vec![0.0; self.slots.len()];
        for (&i, rate) in active.iter().zip(self.model.rates(&own)) {
            rates[i] = if self.starting() { self.model.started(rate) } else { rate };
        }
        rates
    }

    fn next_change(&self, rates: &[f64]) -> f64 {
        let start_ends = self.run_began + self.model.startup_ms * 1e-3;
        let slot_changes =
            self.slots.iter().zip(rates).filter_map(|(slot, &rate)| match slot.remaining? {
                remaining if remaining > 0.0 => Some(self.now + remaining / rate),
                _ => Some(slot.stays_until),
            });
        let start_ends = self.starting().then_some(start_ends);
        slot_changes.chain(start_ends).fold(f64::INFINITY, f64::min)
    }

    fn flow(&mut self, until: f64, rates: &[f64]) {
        let step = (until - self.now).max(0.0);
        self.now = until;
        for (slot, &rate) in self.slots.iter_mut().zip(rates) {
            let Some(remaining) = slot.remaining else {
                continue;
            };
            let after = remaining - rate * step;
            if remaining > 0.0 && after <= ROUNDING_BYTES {
                slot.done_at = until;
                slot.stays_until = until + self.model.linger_us * 1e-6;
            }
            let lingered = until + ROUNDING_S >= slot.stays_until;
            let after = if after <= ROUNDING_BYTES { after.min(0.0) } else { after };
            slot.remaining = if after <= 0.0 && lingered { None } else { Some(after) };
        }
    }
}

/// Predicts one run of the model: all boards begin at zero and read `bytes` each; returns their
/// times in seconds.
pub fn predict(model: &UplinkModel, own: &[f64], bytes: f64) -> Vec<f64> {
    let mut uplink = Uplink::new(*model);
    for &own in own {
        let board = uplink.plug(own);
        uplink.submit(0.0, board, bytes);
    }
    uplink.advance(f64::INFINITY);
    uplink.slots.iter().map(|slot| slot.done_at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::sis8300::emulated::Profile;
    use proptest::prelude::*;

    fn model() -> UplinkModel {
        Profile::default().uplink
    }

    #[test]
    fn no_board_gets_more_than_its_own_and_all_no_more_than_the_limit() {
        for boards in 1..20 {
            let own: Vec<f64> =
                (0..boards).map(|i| if i % 3 == 0 { 1278e6 } else { 625.9e6 }).collect();
            let rates = model().rates(&own);
            assert!(rates.iter().zip(&own).all(|(rate, own)| rate <= own));
            assert!(rates.iter().sum::<f64>() <= model().limit_bytes_per_s * (1.0 + 1e-12));
        }
    }

    #[test]
    fn water_fills_the_boards_that_still_have_room() {
        let rates = share(10.0, &[1.0, 100.0], 0.0);
        assert_eq!(rates, [1.0, 9.0]);
    }

    #[test]
    fn the_model_predicts_known_rates_of_one_board() {
        // Document: one L 621.7, one KU 1249.2 MB/s over 30 reads of 60 MB.
        for (own, expected) in [(625.9e6, 621.7), (1278.0e6, 1249.2)] {
            let seconds = predict(&model(), &[own], 30.0 * 60e6)[0];
            let rate = 30.0 * 60.0 / seconds;
            assert!((rate / expected - 1.0).abs() < 0.01, "{rate} against {expected}");
        }
    }

    #[test]
    fn a_board_that_leaves_gives_its_share_to_the_others() {
        let all = predict(&model(), &[1278e6, 625.9e6, 625.9e6, 625.9e6, 625.9e6, 625.9e6], 1.8e9);
        assert!(all[0] < all[1], "the KU is done first");
        assert!((all[1] - all[5]).abs() < 1e-9, "equal boards are done together");
        let without = predict(&model(), &[625.9e6; 5], 1.8e9);
        assert!(all[1] > without[0], "and the KU slowed the others down");
    }

    fn done_at(uplink: &Uplink, board: usize) -> f64 {
        let mut future = uplink.clone();
        while future.left_s(future.now, board).is_some() {
            future.advance(future.next_change(&future.rates()));
        }
        future.slots[board].done_at
    }

    #[test]
    fn a_board_looks_a_few_times_and_does_not_oversleep() {
        for boards in [1, 6, 1000] {
            let mut uplink = Uplink::new(model());
            for board in 0..boards {
                uplink.plug(625.9e6);
                uplink.submit(0.0, board, 6e6);
            }
            let (done_at, mut now, mut looks) = (done_at(&uplink, 0), 0.0, 0);
            while let Some(left_s) = uplink.left_s(now, 0) {
                now += left_s.max(1e-6);
                looks += 1;
            }
            assert!(now <= done_at + 2e-6, "{boards} boards: {now} of {done_at}");
            assert!(looks <= 40, "{looks}");
        }
    }

    /// An uplink with one board that starts at once, and the board's rate.
    fn one_board() -> (Uplink, usize, f64) {
        let mut uplink = Uplink::new(UplinkModel { startup_ns_per_byte: 0.0, ..model() });
        let (board, rate) = (uplink.plug(625.9e6), uplink.model.rates(&[625.9e6])[0]);
        (uplink, board, rate)
    }

    #[test]
    fn asking_again_in_time_costs_nothing_and_asking_late_starts_anew() {
        let ((mut uplink, board, rate), mut now) = (one_board(), 0.0);
        for read in 1..=10 {
            uplink.submit(now, board, 6e6);
            let done = done_at(&uplink, board);
            assert!(
                (done - f64::from(read) * 6e6 / rate).abs() < 1e-7,
                "read {read} is done at {done}"
            );
            now = done + 0.0005; // half a millisecond late, every time
            uplink.advance(now);
        }
        uplink.advance(now + 1.0);
        assert!(uplink.slots[board].remaining.is_none(), "it left the uplink");
        uplink.submit(now + 1.0, board, 6e6);
        assert!((done_at(&uplink, board) - (now + 1.0 + 6e6 / rate)).abs() < 1e-7);
    }

    #[test]
    fn time_between_triggers_is_no_credit() {
        let ((mut uplink, board, rate), mut now) = (one_board(), 0.0);
        for _ in 0..5 {
            uplink.submit(now, board, 0.6e6);
            let done = done_at(&uplink, board);
            assert!((done - (now + 0.6e6 / rate)).abs() < 1e-7, "a read takes its time");
            assert_eq!(uplink.left_s(done + 5e-5, board), None);
            now += 2.5e-3; // the next trigger
        }
    }

    proptest! {
        #[test]
        fn whatever_is_asked_never_more_flows_than_the_limit_allows(
            asks in proptest::collection::vec((0..6_usize, 1.0..1e8_f64, 0.0..0.05_f64), 1..60)
        ) {
            let mut uplink = Uplink::new(model());
            for board in 0..6 {
                uplink.plug(if board == 0 { 1278e6 } else { 625.9e6 });
            }
            let left = |uplink: &Uplink| -> f64 {
                uplink.slots.iter().map(|slot| slot.remaining.unwrap_or(0.0).max(0.0)).sum()
            };
            let (mut now, mut asked) = (0.0, 0.0);
            for (board, bytes, pause) in asks {
                uplink.submit(now, board, bytes);
                asked += bytes;
                now += pause;
                uplink.advance(now);
                prop_assert!(asked - left(&uplink) <= model().limit_bytes_per_s * now + 1.0);
            }
            uplink.advance(now + 1e3);
            prop_assert!(left(&uplink) < 100.0, "all that was asked flows in the end");
        }
    }
}
