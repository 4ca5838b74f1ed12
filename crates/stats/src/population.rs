//! Places of hosts among their population: which of many alike ones lies apart, by how much, and
//! how small a difference would show.
//!
//! The yardstick is the spread of the other hosts. It has two parts: hosts differ, and runs of one
//! host differ. Further runs of a host reduce the second part only.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::compare::{FALSE_ALARM, KNOWN_FREEDOM, MIN_SEEN, SEEN_FREEDOM};
use crate::level::{FLOOR, Level, Located, Unit};
use crate::{MAD_TO_SIGMA, median, quantile, sorted, student};

/// Deviation of alike hosts that is assumed, not measured. It weighs as much as two hosts where the
/// others show their own.
const ALIKE: f64 = 0.01;
/// Deviations from the middle beyond which another host is left out.
const OUTLIER: f64 = 5.0;
/// Deviations at which a normal distribution has its 90th percentile.
const TAIL: f64 = 1.645;
/// Quantile that a spread reaches where nine tenths of the hosts tell.
pub const NEAR: f64 = 0.9;
/// More hosts than this hardly notice one of their own.
const MANY: usize = 64;
/// Suspects that a population without a difference has.
const SUSPECTS: f64 = 0.5;

/// Time of a host at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Logarithm of the time.
    pub log: f64,
    /// Variance of it that its runs may show, by their instances and by the kind of the point.
    pub noise: f64,
    /// Variance of it by the scatter of its runs; 0 of one run.
    pub scatter: f64,
    pub runs: usize,
    /// Logarithm of the factor by which others may have slowed it, or for a difference from before
    /// what was slowed then, so that it seems faster.
    pub slowed: f64,
    pub hastened: f64,
}

impl Place {
    /// Returns the place of a host by the levels of its runs, without those that were shared.
    /// `beyond` is the deviation between runs that their instances do not show.
    pub fn of(levels: &[&Level], unit: Unit, beyond: f64, slowed: f64) -> Option<Place> {
        let clean = levels.iter().filter(|level| !level.is_shared);
        let found: Vec<Located> = clean.filter_map(|level| level.located(unit)).collect();
        let logs: Vec<f64> = found.iter().map(|own| own.log).collect();
        let (log, runs) = (median(&logs)?, logs.len());
        let own = found.iter().map(|own| own.error.powi(2)).sum::<f64>() / runs as f64;
        let squares = logs.iter().map(|own| (own - log).powi(2)).sum::<f64>();
        let scatter = squares / (runs * (runs - 1).max(1)) as f64;
        Some(Place {
            log,
            noise: (own + noise(beyond)) / runs as f64,
            scatter,
            runs,
            slowed,
            hastened: 0.0,
        })
    }

    /// Returns the place of a host by its places at points of one kind: logarithms over the centre
    /// of each, with the deviation of the others there. It is their weighted middle, in which the
    /// errors of single points cancel.
    pub fn of_kind(points: &[(Place, f64)], beyond: f64) -> Option<Place> {
        let mut sorted = points.to_vec();
        sorted.sort_by(|a, b| a.0.log.total_cmp(&b.0.log));
        let weight = |deviation: f64| 1.0 / deviation.max(FLOOR);
        let half = sorted.iter().map(|(_, deviation)| weight(*deviation)).sum::<f64>() / 2.0;
        let mut sum = 0.0;
        let middle = sorted.iter().find(|(_, deviation)| {
            sum += weight(*deviation);
            sum >= half
        })?;
        let runs = points.iter().map(|(place, _)| place.runs).max()?;
        let middle_of = |of: fn(&Place) -> f64| {
            median(&points.iter().map(|(place, _)| of(place)).collect::<Vec<_>>())
        };
        let (scatter, slowed) = (middle_of(|it| it.scatter)?, middle_of(|it| it.slowed)?);
        let hastened = middle_of(|it| it.hastened)?;
        Some(Place {
            log: middle.0.log,
            noise: noise(beyond) / runs as f64,
            scatter,
            runs,
            slowed,
            hastened,
        })
    }

    /// Returns the place of the clock: the time of its chain during a number of runs.
    pub fn of_clock(levels: &[&Level], runs: usize) -> Option<Place> {
        let chains: Vec<f64> = levels.iter().filter_map(|level| level.chain).collect();
        let log = median(&chains)?;
        Some(Place { log, noise: noise(0.0), scatter: 0.0, runs, slowed: 0.0, hastened: 0.0 })
    }
}

fn noise(beyond: f64) -> f64 {
    FLOOR.powi(2) + beyond.powi(2)
}

/// Place of a host among the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Logarithm of its time over that of the others.
    pub log: f64,
    /// 95 % interval of this ratio.
    pub interval: (f64, f64),
    /// True if it lies apart: all of a population hold together with 99 %.
    pub is_apart: bool,
    /// True if it lies farther out than all but a half of a host of such a population.
    pub is_suspect: bool,
    /// Smallest slowdown that would lie apart, as a fraction.
    pub visible: f64,
    /// Runs of this host that would tell, if it is as far out; `None` if none do.
    pub runs_wanted: Option<usize>,
    /// Distance in standard deviations.
    pub z: f64,
}

/// Spread of the values of other hosts.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub centre: f64,
    /// Variance of the hosts that tell.
    pub near: f64,
    /// Variance of a host with the usual noise, and the freedom of its estimate.
    variance: f64,
    freedom: f64,
    noise: f64,
    slowed: f64,
    hosts: usize,
}

/// Borders of a judgement: a number of places share the chance of a false alarm, and differences up
/// to a fraction are none.
#[derive(Debug)]
pub struct Borders {
    tests: f64,
    ignore: f64,
    /// Factors of Student's distribution by its freedom: apart, suspect, and 95 %.
    known: RefCell<HashMap<u64, [f64; 3]>>,
}

impl Borders {
    pub fn of(tests: f64, ignore: f64) -> Borders {
        Borders { tests, ignore: ignore.ln_1p(), known: RefCell::default() }
    }

    fn at(&self, freedom: f64) -> [f64; 3] {
        let factors = || {
            let shared = |chance: f64| (chance / self.tests).min(0.05);
            [shared(FALSE_ALARM), shared(SUSPECTS), 0.05].map(|it| student(freedom, 1.0 - it))
        };
        *self.known.borrow_mut().entry(freedom.to_bits()).or_insert_with(factors)
    }
}

impl Spread {
    /// Returns the spread of places. It reaches their quantile `tail`: some points have two states,
    /// and the middle of the others shows one of them. `None` below two hosts, which say nothing
    /// about a third.
    pub fn of(places: &[Place], tail: f64) -> Option<Spread> {
        let logs: Vec<f64> = places.iter().map(|place| place.log).collect();
        let middle = |of: fn(&Place) -> f64| median(&places.iter().map(of).collect::<Vec<_>>());
        let (noise, slowed) = (middle(|it| it.noise)?, middle(|it| it.slowed)?);
        if logs.len() < 2 {
            return None;
        }
        // Hosts that are far off themselves do not tell how the others differ.
        let usual = middle(|it| it.log)?;
        let off = |log: f64| (log - usual).abs();
        let offs = sorted(&logs.iter().map(|log| off(*log)).collect::<Vec<_>>());
        let far = OUTLIER * MAD_TO_SIGMA * quantile(&offs, 0.5)?.max(FLOOR);
        let near: Vec<f64> = logs.iter().copied().filter(|log| off(*log) <= far).collect();
        let centre = near.iter().sum::<f64>() / near.len() as f64;
        let squares = near.iter().map(|log| (log - centre).powi(2)).sum::<f64>();
        let seen = (near.len() - 1) as f64;
        // A few hosts show their spread only roughly.
        let known = if seen >= MIN_SEEN { SEEN_FREEDOM } else { KNOWN_FREEDOM.sqrt() };
        let near_variance = (squares + known * (noise + ALIKE.powi(2))) / (seen + known);
        let variance = near_variance.max((quantile(&offs, tail)? / TAIL).powi(2));
        let (freedom, hosts) = (seen + known, near.len());
        Some(Spread { centre, near: near_variance, variance, freedom, noise, slowed, hosts })
    }

    /// Returns the centre with half of its interval: all of a number of such intervals hold
    /// together with 99 %.
    pub fn centre_interval(&self, tests: f64) -> (f64, f64) {
        let error = (self.variance / self.hosts as f64).sqrt();
        (self.centre, student(self.freedom, 1.0 - FALSE_ALARM / tests) * error)
    }

    /// Returns the standard deviation of a place with that noise and scatter.
    fn deviation(&self, noise: f64, scatter: f64) -> f64 {
        let (shared, own) = ((self.variance - self.noise).max(0.0), self.variance.min(self.noise));
        let own = own * noise / self.noise.max(f64::MIN_POSITIVE);
        (shared + own.max(scatter) + self.variance / self.hosts as f64).sqrt()
    }

    pub fn standing(&self, place: Place, borders: &Borders) -> Standing {
        let log = place.log - self.centre;
        let [apart, suspect, usual] = borders.at(self.freedom);
        let error = self.deviation(place.noise, place.scatter);
        // Others that slowed a host make no slowdown of it; those that slowed the rest no speed-up.
        let slowed = if log > 0.0 { place.slowed } else { self.slowed + place.hastened };
        let own = (log.abs() - slowed).max(0.0);
        let is_beyond = |far: f64| own > far && own > borders.ignore;
        let half = usual * error;
        let one = [place.noise, place.scatter].map(|of_all| of_all * place.runs as f64);
        let with = |runs: usize| self.deviation(one[0] / runs as f64, one[1] / runs as f64);
        let mut more = (place.runs + 1)..=MAX_RUNS;
        Standing {
            log,
            interval: ((log - half).exp(), (log + half).exp()),
            is_apart: is_beyond(apart * error),
            is_suspect: is_beyond(suspect * error),
            visible: (apart * error).max(borders.ignore).exp_m1(),
            runs_wanted: more.find(|runs| own > apart * with(*runs)),
            z: own / error,
        }
    }
}

/// Most runs of a host that are asked for.
const MAX_RUNS: usize = 9;

/// Returns the logarithm of the time of some hosts over that of others, with half of its interval:
/// all of a number of comparisons hold together with 99 %. `None` if either are too few.
pub fn between(hosts: &[Place], others: &[Place], tests: f64) -> Option<(f64, f64)> {
    let [own, others] = [Spread::of(hosts, NEAR)?, Spread::of(others, NEAR)?];
    let error = (own.variance / own.hosts as f64 + others.variance / others.hosts as f64).sqrt();
    let bound = student(own.freedom.min(others.freedom), 1.0 - FALSE_ALARM / tests);
    Some((own.centre - others.centre, bound * error))
}

/// Fewest hosts of a side, and their least share of all.
pub const MIN_SIDE: usize = 4;
const MIN_SHARE: f64 = 0.1;
/// Standard deviations between the sides, and across the gap between them. A normal distribution
/// cut in the middle has 2.7, and no gap.
const CUT: (f64, f64) = (6.0, 2.0);

/// Finds two kinds of hosts by their numbers: returns the border between them, a logarithm.
pub fn two_kinds(places: &[Place]) -> Option<f64> {
    let mut all = places.to_vec();
    all.sort_by(|a, b| a.log.total_cmp(&b.log));
    let least = MIN_SIDE.max((all.len() as f64 * MIN_SHARE).ceil() as usize);
    let gap = |at: &usize| all[*at].log - all[at - 1].log;
    let at =
        (least..(all.len() + 1).saturating_sub(least)).max_by(|a, b| gap(a).total_cmp(&gap(b)))?;
    let [low, high] = [Spread::of(&all[..at], NEAR)?, Spread::of(&all[at..], NEAR)?];
    let error = low.variance.max(high.variance).sqrt();
    let is_cut = high.centre - low.centre > CUT.0 * error && gap(&at) > CUT.1 * error;
    is_cut.then(|| (all[at].log + all[at - 1].log) / 2.0)
}

/// Returns the spread that each host has beside it: that of all others.
pub fn others(places: &[Option<Place>], tail: f64) -> Vec<Option<Spread>> {
    let all = || places.iter().copied().flatten().collect::<Vec<Place>>();
    if places.iter().flatten().count() > MANY {
        return vec![Spread::of(&all(), tail); places.len()];
    }
    let without = |at: usize| {
        let others = places.iter().enumerate().filter(|(other, _)| *other != at);
        Spread::of(&others.filter_map(|(_, place)| *place).collect::<Vec<_>>(), tail)
    };
    (0..places.len()).map(without).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    const QUIET: f64 = 0.005;

    fn place(log: f64) -> Place {
        Place { log, noise: FLOOR.powi(2), scatter: 0.0, runs: 1, slowed: 0.0, hastened: 0.0 }
    }

    fn healthy(random: &mut Random, hosts: usize) -> Vec<Option<Place>> {
        (0..hosts).map(|_| Some(place(QUIET * random.normal()))).collect()
    }

    /// Numbers of the hosts that lie apart, among as many columns as `tests` has.
    fn apart(places: &[Option<Place>], tests: f64) -> Vec<usize> {
        let spreads = others(places, NEAR);
        let is_apart = |at: &usize| {
            spreads[*at].unwrap().standing(places[*at].unwrap(), &Borders::of(tests, 0.0)).is_apart
        };
        (0..places.len()).filter(is_apart).collect()
    }

    #[test]
    fn healthy_populations_seldom_have_an_alarm_and_slow_hosts_are_found() {
        let mut random = Random::new(3);
        for (hosts, populations, slower) in [(5, 400, 0.1), (16, 400, 0.06), (100, 100, 0.05)] {
            let (mut alarms, mut found) = (0, 0);
            for _ in 0..populations {
                let mut places = healthy(&mut random, hosts);
                alarms += usize::from(!apart(&places, hosts as f64).is_empty());
                places[2].as_mut().unwrap().log += slower;
                found += usize::from(apart(&places, hosts as f64).contains(&2));
            }
            assert!(alarms * 50 <= populations, "{alarms} of {populations} of {hosts} hosts");
            assert!(found * 20 >= populations * 19, "{found} of {populations} of {hosts} hosts");
        }
    }

    #[test]
    fn several_slow_hosts_hide_neither_each_other_nor_a_fast_one() {
        let mut places = healthy(&mut Random::new(5), 32);
        let far = [(3, 0.1), (7, 0.1), (11, -0.1)];
        far.iter().for_each(|(at, log)| places[*at].as_mut().unwrap().log += log);
        assert_eq!(apart(&places, 32.0), [3, 7, 11]);
    }

    #[test]
    fn more_runs_of_a_host_reduce_what_its_runs_differ_by_and_no_more() {
        let runs =
            |runs: usize| Place { noise: 0.04_f64.powi(2) / runs as f64, runs, ..place(0.12) };
        let mut random = Random::new(7);
        let noisy = |_| Some(Place { log: 0.04 * random.normal(), ..runs(1) });
        let spread = Spread::of(&(0..40).filter_map(noisy).collect::<Vec<_>>(), NEAR).unwrap();
        let [one, nine] = [1, 9].map(|count| spread.standing(runs(count), &Borders::of(40.0, 0.0)));
        assert!(!one.is_apart && nine.is_apart, "{one:?} {nine:?}");
        assert!((2..=9).contains(&one.runs_wanted.unwrap()), "{one:?}");
        // Hosts that differ themselves are not averaged away.
        let own = |_| Some(place(0.04 * random.normal()));
        let spread = Spread::of(&(0..40).filter_map(own).collect::<Vec<_>>(), NEAR).unwrap();
        let many = Place { noise: FLOOR.powi(2) / 9.0, runs: 9, ..place(0.1) };
        assert!(!spread.standing(many, &Borders::of(40.0, 0.0)).is_apart);
    }

    #[test]
    fn others_that_slowed_a_host_are_no_difference_of_it() {
        let spread = Spread::of(&[place(0.0); 20], NEAR).unwrap();
        let borders = Borders::of(20.0, 0.02);
        let standing = |log, slowed| spread.standing(Place { slowed, ..place(log) }, &borders);
        assert!(standing(0.2, 0.0).is_apart && standing(-0.2, 0.2).is_apart);
        assert!(!standing(0.2, 0.19).is_suspect);
        assert!(!standing(0.015, 0.0).is_suspect, "it is ignored");
        let after = Place { hastened: 0.19, ..place(-0.2) };
        assert!(!spread.standing(after, &borders).is_suspect, "it was slowed before");
    }

    #[test]
    fn two_kinds_are_found_by_the_gap_between_them_and_one_kind_has_none() {
        let mut random = Random::new(9);
        for _ in 0..200 {
            let mut places: Vec<Place> = healthy(&mut random, 40).into_iter().flatten().collect();
            assert_eq!(two_kinds(&places), None);
            places[..6].iter_mut().for_each(|place| place.log += 0.1);
            let border = two_kinds(&places).unwrap();
            assert!((0.02..0.08).contains(&border), "{border}");
        }
        assert_eq!(two_kinds(&[place(0.0); 3]), None);
    }

    #[test]
    fn nothing_is_said_of_a_host_beside_one_other() {
        assert_eq!(
            others(&[Some(place(0.0)), Some(place(1.0)), None], NEAR).iter().flatten().count(),
            1
        );
        assert!(others(&[Some(place(0.0)), Some(place(1.0))], NEAR).iter().all(Option::is_none));
        assert!(Spread::of(&[], NEAR).is_none());
    }
}
