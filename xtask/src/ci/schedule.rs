//! Choice of the next step, as a pure function of the steps and their states.
//! Builds use all CPUs and share cargo's locks, so one runs at a time; emulators and other programs
//! of one thread run beside it. Steps that mostly wait for a network or a clock take no CPU from
//! them. Steps that measure time run alone, after all others.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// Compiles: one at a time, beside steps of one thread.
    Build,
    #[default]
    OneCpu,
    /// Waits most of its time, for a network or a clock: beside builds and steps of one CPU.
    Waits,
    /// Measures time, or uses all CPUs by itself: it runs alone.
    Alone,
}

#[derive(Debug, Deserialize)]
pub(super) struct Order {
    pub(super) name: String,
    #[serde(default)]
    pub(super) load: Load,
    #[serde(default)]
    pub(super) after: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    /// Passed, or could not run on this host.
    Done,
    /// Failed, or did not run because a step before it failed.
    Failed,
}

impl State {
    fn has_ended(self) -> bool {
        matches!(self, State::Done | State::Failed)
    }
}

/// Most waiting steps that run side by side: they use some CPU time, too.
const WAITING: usize = 2;

/// Returns the first step that may start on a host with this number of CPUs. Steps in `after`
/// outside of this run count as done.
pub(super) fn next(steps: &[&Order], states: &[State], cpus: usize) -> Option<usize> {
    let running = |load: Load| {
        (0..steps.len())
            .filter(|&at| states[at] == State::Running && steps[at].load == load)
            .count()
    };
    if running(Load::Alone) > 0 {
        return None;
    }
    let (builds, singles) = (running(Load::Build), running(Load::OneCpu));
    let unfinished =
        |load: Load| (0..steps.len()).any(|at| !states[at].has_ended() && steps[at].load == load);
    let ready = |at: usize| {
        let is_done = |before| states[before] == State::Done;
        states[at] == State::Waiting && before(steps, at).all(is_done)
    };
    let fits = |load: Load| match load {
        Load::Build => builds == 0 && singles < cpus.max(2),
        Load::OneCpu => builds + singles < cpus.max(2),
        Load::Waits => running(Load::Waits) < WAITING,
        Load::Alone => ![Load::Build, Load::OneCpu, Load::Waits].map(unfinished).contains(&true),
    };
    // Fetches and waiting builds open the way for others: they go first.
    let of =
        |load: Load| (0..steps.len()).find(|&at| steps[at].load == load && ready(at) && fits(load));
    [Load::Waits, Load::Build, Load::OneCpu, Load::Alone].into_iter().find_map(of)
}

/// Returns the first waiting step, and the step before it that failed: the output of that one is
/// missing, or of an earlier run.
pub(super) fn blocked(steps: &[&Order], states: &[State]) -> Option<(usize, usize)> {
    let mut waiting = (0..steps.len()).filter(|&at| states[at] == State::Waiting);
    waiting.find_map(|at| {
        let failed = before(steps, at).find(|&before| states[before] == State::Failed)?;
        Some((at, failed))
    })
}

fn before(steps: &[&Order], at: usize) -> impl Iterator<Item = usize> {
    (0..steps.len()).filter(move |&other| steps[at].after.contains(&steps[other].name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [(&str, Load, &str); 10] = [
        ("measure", Load::Alone, "program"),
        ("program", Load::Build, ""),
        ("docs", Load::Build, ""),
        ("machine", Load::OneCpu, "program"),
        ("fuzz", Load::OneCpu, "docs"),
        ("checker", Load::OneCpu, "not part of this run"),
        ("packages", Load::Waits, ""),
        ("kernels", Load::Waits, "packages"),
        ("server", Load::Waits, "program"),
        ("page", Load::Waits, "program"),
    ];
    const LOADS: [Load; 4] = [Load::Alone, Load::Build, Load::OneCpu, Load::Waits];

    fn orders() -> Vec<Order> {
        let order = |(name, load, after): (&str, Load, &str)| Order {
            name: name.to_owned(),
            load,
            after: (!after.is_empty()).then(|| after.to_owned()).into_iter().collect(),
        };
        STEPS.map(order).into()
    }

    /// Runs all steps, each for its number of ticks; returns the steps that ran together.
    fn play(ticks: [u32; STEPS.len()]) -> Vec<Vec<&'static str>> {
        let orders = orders();
        let orders: Vec<&Order> = orders.iter().collect();
        let mut states = [State::Waiting; STEPS.len()];
        let mut left = ticks;
        let mut seen = Vec::new();
        while !states.iter().all(|state| state.has_ended()) {
            while let Some(at) = next(&orders, &states, 2) {
                states[at] = State::Running;
            }
            let running: Vec<usize> =
                (0..STEPS.len()).filter(|&at| states[at] == State::Running).collect();
            assert!(!running.is_empty(), "nothing runs, and not all is done: {states:?}");
            seen.push(running.iter().map(|&at| STEPS[at].0).collect());
            for at in running {
                left[at] -= 1;
                if left[at] == 0 {
                    states[at] = State::Done;
                }
            }
        }
        seen
    }

    #[test]
    fn builds_go_one_at_a_time_beside_one_emulator_and_measurements_are_alone_at_the_end() {
        let seen = play([1, 2, 2, 2, 1, 1, 1, 9, 2, 2]);
        assert_eq!(seen[0], ["program", "checker", "packages"]);
        assert_eq!(seen.last().unwrap(), &["measure"]);
        for together in &seen {
            let count = |load: Load| {
                let of = STEPS.iter().filter(|step| step.1 == load);
                of.filter(|step| together.contains(&step.0)).count()
            };
            let [alone, builds, singles, waiting] = LOADS.map(count);
            assert!(alone == 0 || together.len() == 1, "{together:?}");
            assert!(builds <= 1 && builds + singles <= 2, "{together:?}");
            assert!(waiting <= WAITING, "{together:?}");
        }
    }

    #[test]
    fn what_waits_takes_no_place_from_builds_and_emulators() {
        let seen = play([1, 2, 2, 9, 1, 1, 1, 9, 2, 2]);
        let both = ["docs", "machine", "kernels", "server"];
        assert!(seen.iter().any(|together| together[..] == both), "{seen:?}");
    }

    #[test]
    fn a_host_with_one_cpu_still_runs_everything() {
        let orders = orders();
        let orders: Vec<&Order> = orders.iter().collect();
        let mut states = [State::Waiting; STEPS.len()];
        for _ in STEPS {
            let at = next(&orders, &states, 1).expect("a step may start");
            states[at] = State::Done;
        }
        assert_eq!(next(&orders, &states, 1), None);
    }

    #[test]
    fn steps_after_a_failed_one_do_not_run() {
        let orders = orders();
        let orders: Vec<&Order> = orders.iter().collect();
        let mut states = [State::Waiting; STEPS.len()];
        states[6] = State::Failed;
        let mut skipped = Vec::new();
        while let Some((at, failed)) = blocked(&orders, &states) {
            states[at] = State::Failed;
            skipped.push((STEPS[at].0, STEPS[failed].0));
        }
        assert_eq!(skipped, [("kernels", "packages")]);
        states[1] = State::Failed;
        assert_eq!(blocked(&orders, &states), Some((0, 1)), "measure after program");
        states[1] = State::Done;
        assert_eq!(next(&orders, &states, 2), Some(8), "others run");
    }
}
