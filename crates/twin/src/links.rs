//! How many links a host carries: a prediction from a few short probes, and the probes that confirm it, instead of a run for each number.
//!
//! What each resource (a thread, a CPU, a bus) is used by so many links is taken as a line through what the probes saw; where the first
//! line reaches its limit is the next probe. Two neighbouring numbers, one carried and one not, end the search, so the answer is what was
//! seen and not what was predicted. Begin with [`most_links`].

/// A resource at some number of links.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Its name.
    pub resource: String,
    /// Share of what it has that is used; 1 is all of it.
    pub share: f64,
}

/// What was seen with so many links.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProbe {
    /// The links.
    pub links: u32,
    /// What was predicted of it, as the largest share of a resource; none before there is anything to predict from.
    pub predicted: Option<f64>,
    /// Whether everything arrived and nothing piled up.
    pub is_carried: bool,
    /// The resources that were watched, in the same order in each probe.
    pub uses: Vec<Use>,
}

/// A host that can be tried, real or simulated.
pub trait LinkHost {
    /// Why it could not be tried.
    type Error;

    /// Whether it carries so many links, and what they use.
    ///
    /// # Errors
    /// When it cannot be tried.
    fn probe(&mut self, links: u32) -> Result<(bool, Vec<Use>), Self::Error>;
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct MostLinks {
    /// The largest number that was carried; 0 where not even one is.
    pub links: u32,
    /// The resource that is used most at the first number that is not carried, or at the largest that is; none where nothing was watched.
    pub limiting: Option<String>,
    /// All probes in their order.
    pub probes: Vec<LinkProbe>,
}

/// Finds the largest number of links up to `max` that a host carries, if it carries all smaller numbers.
///
/// # Errors
/// When the host cannot be tried.
pub fn most_links<H: LinkHost>(host: &mut H, max: u32) -> Result<MostLinks, H::Error> {
    let mut probes: Vec<LinkProbe> = Vec::new();
    // Carried, and not carried: 0 and one above the largest need no probe.
    let (mut carried, mut refused) = (0, max.saturating_add(1));
    while refused - carried > 1 {
        let links = next(&probes, carried, refused);
        let predicted = predicted(&probes, links);
        let (is_carried, uses) = host.probe(links)?;
        match is_carried {
            true => carried = links,
            false => refused = links,
        }
        probes.push(LinkProbe { links, predicted, is_carried, uses });
    }
    Ok(MostLinks { links: carried, limiting: limiting(&probes, carried), probes })
}

/// The next number to try, between one that is carried and one that is not.
fn next(probes: &[LinkProbe], carried: u32, refused: u32) -> u32 {
    let (first, last) = (carried + 1, refused - 1);
    let Some(before) = probes.last() else {
        return first;
    };
    // The limit is none of what is watched: halve.
    if !before.is_carried && before.predicted.is_some_and(|share| share <= 1.0) {
        return carried + (refused - carried) / 2;
    }
    let fits = |links: &u32| predicted(probes, *links).is_some_and(|share| share <= 1.0);
    let known = predicted(probes, last).is_some();
    match known {
        true => (first..=last).rev().find(fits).unwrap_or(first),
        // One probe makes no line: a few links more.
        false => first.max(last.min(carried * 3)),
    }
}

/// The largest share of any resource, each by the line through its two probes nearest to this number of links.
fn predicted(probes: &[LinkProbe], links: u32) -> Option<f64> {
    let mut nearest: Vec<&LinkProbe> = probes.iter().collect();
    nearest.sort_by_key(|probe| probe.links.abs_diff(links));
    let [one, other, ..] = nearest.as_slice() else {
        return None;
    };
    let line = |(near, far): (&Use, &Use)| {
        let slope = (far.share - near.share) / (f64::from(other.links) - f64::from(one.links));
        near.share + slope * (f64::from(links) - f64::from(one.links))
    };
    one.uses.iter().zip(&other.uses).map(line).reduce(f64::max)
}

fn limiting(probes: &[LinkProbe], carried: u32) -> Option<String> {
    let beyond = probes.iter().find(|probe| probe.links == carried + 1);
    let at = beyond.or(probes.iter().find(|probe| probe.links == carried))?;
    let largest = at.uses.iter().max_by(|one, other| one.share.total_cmp(&other.share));
    largest.map(|used| used.resource.clone())
}

/// A thread that is placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Its name.
    pub thread: String,
    /// Share of a CPU that it uses.
    pub share: f64,
    /// The CPU.
    pub cpu: u32,
}

/// Places threads on CPUs, the busiest first, each where least is used. The system's own work is mostly on the first CPU, so that one comes
/// last among equals.
pub fn place(threads: &[(String, f64)], cpus: &[u32]) -> Vec<Placed> {
    let mut order: Vec<usize> = (0..threads.len()).collect();
    order.sort_by(|one, other| threads[*other].1.total_cmp(&threads[*one].1));
    let mut used: Vec<(u32, f64)> = cpus.iter().rev().map(|cpu| (*cpu, 0.0)).collect();
    let mut placed: Vec<(usize, Placed)> = Vec::new();
    for at in order {
        let (thread, share) = threads[at].clone();
        let least = used.iter_mut().min_by(|one, other| one.1.total_cmp(&other.1));
        let Some((cpu, sum)) = least else {
            return Vec::new();
        };
        *sum += share;
        let cpu = *cpu;
        placed.push((at, Placed { thread, share, cpu }));
    }
    placed.sort_by_key(|(at, _)| *at);
    placed.into_iter().map(|(_, placed)| placed).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Arrivals, Busy, Draw, Model, Poll, Rest, Room, SECOND_PS, Source, Station, Takes, run,
    };

    /// Resources with what they use without links, with each, and how much more each takes the more there are.
    #[derive(Clone, Debug)]
    struct Simulated {
        resources: Vec<(f64, f64, f64)>,
    }

    impl Simulated {
        fn shares(&self, links: u32) -> impl Iterator<Item = f64> {
            let n = f64::from(links);
            let of = move |(base, each, more): &(f64, f64, f64)| base + n * each * (1.0 + more * n);
            self.resources.iter().map(of)
        }

        fn carries(&self, links: u32) -> bool {
            self.shares(links).all(|share| share <= 1.0)
        }
    }

    impl LinkHost for Simulated {
        type Error = Infallible;

        /// A resource that is full shows as full, however much more would be wanted.
        fn probe(&mut self, links: u32) -> Result<(bool, Vec<Use>), Infallible> {
            let uses = self
                .shares(links)
                .enumerate()
                .map(|(at, share)| Use { resource: format!("r{at}"), share: share.min(1.0) });
            Ok((self.carries(links), uses.collect()))
        }
    }

    proptest! {
        #[test]
        fn the_answer_is_that_of_trying_every_number(
            resources in proptest::collection::vec((0.0..0.9_f64, 0.001..0.6_f64, 0.0..0.05_f64), 1..6),
            max in 1..48_u32,
        ) {
            let mut host = Simulated { resources };
            let found = most_links(&mut host, max).unwrap();
            let all = (1..=max).take_while(|links| host.carries(*links)).count();
            prop_assert_eq!(found.links as usize, all);
            prop_assert!(found.probes.len() <= 12, "{}", found.probes.len());
        }
    }

    #[test]
    fn few_probes_find_the_maximum_of_24_and_the_resource() {
        let mut probes = 0;
        for each in 1..100 {
            let mut host = Simulated {
                resources: vec![(0.05, f64::from(each) * 0.003, 0.002), (0.1, 0.02, 0.0)],
            };
            let found = most_links(&mut host, 24).unwrap();
            probes += found.probes.len();
            if each > 20 {
                assert_eq!(found.limiting.as_deref(), Some("r0"));
            }
        }
        // A run for each number would be 24; halving takes 5.
        assert!(probes <= 99 * 5, "{probes}");
    }

    /// A limit that no watched resource shows.
    struct Blind(u32);

    impl LinkHost for Blind {
        type Error = Infallible;

        fn probe(&mut self, links: u32) -> Result<(bool, Vec<Use>), Infallible> {
            let resource = "idle".to_owned();
            Ok((links <= self.0, vec![Use { resource, share: 0.1 }]))
        }
    }

    #[test]
    fn a_limit_that_nobody_watches_is_found_by_halving() {
        for limit in 0..=100 {
            let found = most_links(&mut Blind(limit), 100).unwrap();
            assert_eq!(found.links, limit);
            assert!(found.probes.len() <= 14, "{limit}: {}", found.probes.len());
        }
    }

    #[test]
    fn threads_are_spread_over_cpus_and_the_first_is_used_last() {
        let thread = |name: &str, share| (name.to_owned(), share);
        let threads = [thread("a", 0.5), thread("b", 0.9), thread("c", 0.3)];
        let placed = place(&threads, &[0, 1, 2]);
        let cpus: Vec<u32> = placed.iter().map(|placed| placed.cpu).collect();
        assert_eq!(cpus, [1, 2, 0]);
        let cpus: Vec<u32> = place(&threads, &[0, 1]).iter().map(|placed| placed.cpu).collect();
        assert_eq!(cpus, [0, 1, 0]);
        assert_eq!(place(&threads, &[]), []);
    }

    /// Readers that poll, with rings, behind one network: simulated event by event.
    struct Server;

    impl LinkHost for Server {
        type Error = crate::ModelError;

        fn probe(&mut self, links: u32) -> Result<(bool, Vec<Use>), crate::ModelError> {
            let n = links as usize;
            let poll =
                Poll { rest: Rest::Timer(100_000_000), look_ps: 6_300_000, takes: Takes::Found };
            let reader = |_| Station {
                poll: Some(poll.clone()),
                room: Room { bytes: 1 << 20, ..Room::default() },
                busy: Some(Busy { above_bytes: 1 << 19, below_bytes: 1 << 18, stops: vec![0] }),
                to: vec![n],
                ..Station::new("reader", Draw::Constant(4_000_000))
            };
            let mut stations: Vec<Station> = (0..n).map(reader).collect();
            stations.push(Station {
                room: Room { items: 1000, ..Room::default() },
                ..Station::new("network", Draw::Constant(700_000))
            });
            let model = Model {
                stations,
                sources: vec![Source {
                    name: "trigger".to_owned(),
                    arrivals: Arrivals::Open {
                        first_ps: None,
                        gap: Draw::Constant(10_000_000),
                        burst: 1,
                    },
                    bytes: Draw::Constant(10_000),
                    to: (0..n).collect(),
                    each: true,
                }],
                time_ps: SECOND_PS / 10,
                warm_up_ps: 0,
                samples: 0,
            };
            let outcome = run(&model, 1)?;
            let share = |at: usize| outcome.stations[at].work_s / outcome.seconds;
            let uses = [("reader", share(0)), ("network", share(n))];
            let uses = uses.map(|(resource, share)| Use { resource: resource.to_owned(), share });
            Ok((outcome.sources[0].stopped == 0, uses.to_vec()))
        }
    }

    #[test]
    fn the_simulated_server_gives_its_network_as_the_limit() {
        let found = most_links(&mut Server, 24).unwrap();
        // 10 us between triggers, 0.7 us each in the network.
        assert_eq!(found.links, 14);
        assert_eq!(found.limiting.as_deref(), Some("network"));
        let all = (1..=24).take_while(|links| Server.probe(*links).unwrap().0).count();
        assert_eq!(all, 14);
        assert!(found.probes.len() <= 5, "{:?}", found.probes);
    }
}
