//! What the waits of a thread cost in all, from the length of each and the cost of some.
//!
//! Reading the CPU time and the run-queue delay of a thread takes 0.5 to 1.5 us each, twice for each wait: as much as handing over a
//! small block. So the cost is read of waits that are drawn at random, about one in [`EVERY_NS`]; where waits are rarer, of all. Those
//! of about the same length (a factor of two) are taken together: as many waits cost as much more CPU time, and as long ones as much
//! more delay. Lengths are known of all of them, so that a few long waits do not depend on whether one of them was drawn.

/// Mean time between two waits whose cost is read: both readings take about 1 % of it.
const EVERY_NS: u64 = 250_000;
/// Waits at the beginning, of which each is read: what comes later is drawn by how often they come.
const FIRST: u64 = 16;
/// Classes of length: the last one holds all from 9 minutes on.
const CLASSES: usize = 40;

/// What waits cost beside their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// On a CPU: going to sleep, and waking up.
    pub(crate) cpu_ns: u64,
    /// On the run queue.
    pub(crate) delay_ns: u64,
}

/// Waits of about the same length.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    count: u64,
    wall_ns: u64,
    /// Those whose cost was read.
    read_count: u64,
    read_wall_ns: u64,
    read: Cost,
}

/// All waits of one kind.
#[derive(Debug)]
pub(crate) struct Waits {
    classes: [Class; CLASSES],
    count: u64,
    /// Waits until the next one whose cost is read.
    left: u64,
    random: u64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            classes: [Class::default(); CLASSES],
            count: 0,
            left: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Waits {
    /// Whether the cost of the next wait is to be read.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.left == 0
    }

    /// Books a wait, with its cost where that was read; `elapsed_ns` is all the time of the thread so far.
    pub(crate) fn book(&mut self, wall_ns: u64, cost: Option<Cost>, elapsed_ns: u64) {
        self.count += 1;
        let class = &mut self.classes[class_of(wall_ns)];
        class.count += 1;
        class.wall_ns += wall_ns;
        let Some(cost) = cost else {
            self.left -= 1;
            return;
        };
        class.read_count += 1;
        class.read_wall_ns += wall_ns;
        class.read.cpu_ns += cost.cpu_ns;
        class.read.delay_ns += cost.delay_ns;
        self.left = self.skipped(elapsed_ns);
    }

    /// Waits up to the next one that is read, drawn at random from 0 up to twice the mean.
    fn skipped(&mut self, elapsed_ns: u64) -> u64 {
        if self.count < FIRST {
            return 0;
        }
        let mean = (self.count.saturating_mul(EVERY_NS) / elapsed_ns.max(1)).saturating_sub(1);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (2 * mean + 1)
    }

    /// Time of all of them.
    pub(crate) fn wall_ns(&self) -> u64 {
        self.classes.iter().map(|class| class.wall_ns).sum()
    }

    /// What all of them cost.
    pub(crate) fn cost(&self) -> Cost {
        let used = self.classes.iter().enumerate();
        let used = used.filter(|(_, class)| class.count > 0);
        let costs = used.map(|(at, class)| class.cost_as(self.nearest_read(at)));
        costs.fold(Cost::default(), |sum, cost| Cost {
            cpu_ns: sum.cpu_ns + cost.cpu_ns,
            delay_ns: sum.delay_ns + cost.delay_ns,
        })
    }

    /// The class of the nearest length of which a wait was read.
    fn nearest_read(&self, at: usize) -> Class {
        let read = (0..CLASSES).filter(|&other| self.classes[other].read_count > 0);
        let nearest = read.min_by_key(|&other| other.abs_diff(at));
        nearest.map_or_else(Class::default, |nearest| self.classes[nearest])
    }
}

impl Class {
    /// What these waits cost if each is as those that were read.
    fn cost_as(&self, other: Class) -> Cost {
        let cpu_ns = share(other.read.cpu_ns, self.count, other.read_count);
        Cost {
            cpu_ns: cpu_ns.min(self.wall_ns),
            delay_ns: share(other.read.delay_ns, self.wall_ns, other.read_wall_ns),
        }
    }
}

/// `value * part / of`, which does not overflow; 0 of nothing.
fn share(value: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(value) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn class_of(wall_ns: u64) -> usize {
    let log = u64::BITS - wall_ns.leading_zeros();
    (log as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use daqmeter_stats::simulated::Random;

    use super::*;

    /// Waits of a thread, short and long ones, each with its cost: the sum of all costs, and what the account says.
    fn both(waits: u64, work_ns: u64, seed: u64) -> (Cost, Cost, u64, Waits) {
        let mut random = Random::new(seed);
        let mut ns = |mean: f64| (-mean * random.uniform().max(1e-12).ln()) as u64;
        let (mut account, mut all, mut elapsed_ns, mut read) =
            (Waits::default(), Cost::default(), 0, 0);
        for at in 0..waits {
            // One in fifty waits until a neighbour's turn on the CPU ends.
            let delay_ns = if at % 50 == 7 { ns(1e6) } else { ns(500.0) };
            let cpu_ns = 800 + ns(300.0);
            let wall_ns = cpu_ns + delay_ns + ns(3000.0);
            elapsed_ns += work_ns + wall_ns;
            all.cpu_ns += cpu_ns;
            all.delay_ns += delay_ns;
            let is_read = account.is_looked_at();
            read += u64::from(is_read);
            account.book(
                wall_ns,
                is_read.then_some(Cost { cpu_ns, delay_ns }),
                elapsed_ns,
            );
        }
        (all, account.cost(), read, account)
    }

    fn off(found: u64, wanted: u64) -> f64 {
        found as f64 / wanted as f64 - 1.0
    }

    #[test]
    fn the_cost_of_all_waits_follows_from_that_of_a_few() {
        let (mut cpu, mut delay) = (0.0, 0.0);
        for seed in 0..20 {
            let (all, found, read, _) = both(20_000, 2000, seed);
            assert!(read < 4000, "{read}");
            assert!(
                off(found.cpu_ns, all.cpu_ns).abs() < 0.05,
                "{found:?} {all:?}"
            );
            assert!(
                off(found.delay_ns, all.delay_ns).abs() < 0.1,
                "{found:?} {all:?}"
            );
            cpu += off(found.cpu_ns, all.cpu_ns) / 20.0;
            delay += off(found.delay_ns, all.delay_ns) / 20.0;
        }
        assert!(cpu.abs() < 0.01 && delay.abs() < 0.02, "{cpu} {delay}");
    }

    #[test]
    fn rare_waits_are_all_read_and_their_cost_is_exact() {
        let (all, found, read, account) = both(500, 10 * EVERY_NS, 1);
        assert_eq!((found, read), (all, 500));
        assert!(account.wall_ns() > all.cpu_ns + all.delay_ns);
    }

    #[test]
    fn a_length_of_which_none_was_read_is_taken_as_the_nearest() {
        let mut account = Waits::default();
        let cost = Cost {
            cpu_ns: 1000,
            delay_ns: 4000,
        };
        account.book(8000, Some(cost), 1);
        account.left = 1;
        account.book(80_000, None, 1);
        let all = account.cost();
        assert_eq!((all.cpu_ns, all.delay_ns), (2000, 44_000));
        assert_eq!(Waits::default().cost(), Cost::default());
    }
}
