//! Findings on a measured path: its capacity, its limit, the use of each resource, a change, and
//! the capacity of this host. Begin with [`said`].

use daqmeter_record::border::sum;
use daqmeter_record::path::{
    Brings, LimitFound, PathGain, PathLimit, PathMemory, PathRun, PathUsed, Served,
};
use daqmeter_record::resources::{Resource, What, bottleneck, resources};
use daqmeter_record::units::{show_mb_per_s, show_ns, significant};
use serde::Serialize;

use crate::families::path::{block_ns, rate_bytes_per_s};
use crate::trials;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Said {
    pub(crate) about: &'static str,
    pub(crate) text: String,
}

#[derive(Default)]
pub(crate) struct About {
    /// Number of runs of its path, of which it is the longest.
    pub(crate) runs: usize,
    pub(crate) asked: Option<String>,
    pub(crate) busy: Option<String>,
}

pub(crate) fn said(name: &str, run: &PathRun, is_emulated: bool, about: &About) -> Vec<Said> {
    let found = Found::of(run);
    let line = |about, text: Option<String>| text.map(|text| Said { about, text });
    [
        line("path", Some(run.line.clone())),
        line("carries", Some(carries(run, is_emulated, about))),
        line("BUSY", about.busy.clone()),
        line("limit", found.limit(name)),
        line("used", found.used()),
        line("room", found.room()),
        line("change", found.best().or_else(|| found.change())),
        line("tried", trials::others(run)),
        line("this host", this_host(run)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn carries(run: &PathRun, is_emulated: bool, about: &About) -> String {
    let emulated = if is_emulated { " from an emulated source" } else { "" };
    let events = match run.events {
        0 => String::new(),
        events => {
            let per_s = events as f64 / run.wall_ns.max(1) as f64 * 1e9;
            format!(", {} events/s", significant(per_s, 3))
        }
    };
    let latency = run
        .latency_ns(0.5)
        .map_or_else(String::new, |ns| format!("; median latency {}", show_ns(ns as f64)));
    let of_runs = match about.runs {
        0 | 1 => String::new(),
        runs => format!(", the longest of {runs} runs"),
    };
    let asked = about.asked.as_ref();
    let asked = asked.map_or_else(String::new, |asked| format!("; {asked}"));
    format!(
        "{} MB/s sustained over {}{of_runs}{emulated}{events}{asked}{latency}",
        show_mb_per_s(rate_bytes_per_s(run)),
        show_ns(run.wall_ns as f64)
    )
}

fn busy(used: Option<&PathUsed>) -> String {
    let used = used.map(|used| format!("it {}", used.text()));
    used.unwrap_or_else(|| "it is used up".to_owned())
}

struct Found<'a> {
    run: &'a PathRun,
    resources: Vec<Resource>,
}

/// Most resources in the line of their use.
const MOST_USED: usize = 6;
/// Share of its time below which a resource has time to spare.
const USED_UP: f64 = 0.85;
/// Least gain of a change that is worth a mention.
const WORTH_IT: f64 = 1.02;

impl Found<'_> {
    fn of(run: &PathRun) -> Found<'_> {
        Found { run, resources: resources(run) }
    }

    fn share(&self, resource: &Resource) -> f64 {
        resource.least_ns() / block_ns(self.run)
    }

    fn percent(&self, resource: &Resource) -> String {
        let percent = significant(self.share(resource) * 100.0, 2);
        format!("{} {percent} %", resource.what.text())
    }

    fn most_used(&self) -> Option<&Resource> {
        bottleneck(&self.resources).map(|(resource, _)| resource)
    }

    fn limit(&self, name: &str) -> Option<String> {
        let most = self.most_used()?;
        let is_used_up = self.share(most) >= USED_UP;
        let most = format!("most used in this run: {}", self.percent(most));
        let Some(PathLimit { found, runs, used, .. }) = &self.run.limit else {
            return Some(match self.run.is_paced {
                true => format!("not looked for: blocks came at a rate; {most}"),
                false if is_used_up => {
                    format!("not proved; {most}. `daqmeter path explain {name}` proves it")
                }
                false => format!(
                    "not found: nothing is used up; {most}. `daqmeter path explain {name}` looks for it"
                ),
            });
        };
        Some(match found {
            LimitFound::Limit(what @ What::Buffers) => format!(
                "{}: no resource is used up, and with eight times as many the path is faster ({runs} runs)",
                what.text()
            ),
            LimitFound::Limit(what @ What::Between { .. }) => format!(
                "{}: both ends wait for it, and the path follows no part (each slowed in turn, {runs} runs)",
                what.text()
            ),
            LimitFound::Limit(what) if what.follows_no_part() => format!(
                "{}: {}, and the path follows no part (each slowed in turn, {runs} runs)",
                what.text(),
                busy(used.as_ref())
            ),
            LimitFound::Limit(what) => format!(
                "{}: {}, and the path follows what uses it (each part slowed in turn, {runs} runs)",
                what.text(),
                busy(used.as_ref())
            ),
            LimitFound::NoSingleOne => format!(
                "no single one: no part moves the path one for one (each slowed in turn, {runs} runs); {most}"
            ),
            LimitFound::CannotTell => format!(
                "cannot tell from {runs} runs with each part slowed in turn; {most}. `daqmeter path explain {name}` takes more time"
            ),
        })
    }

    fn used(&self) -> Option<String> {
        let mut all: Vec<&Resource> = self.resources.iter().collect();
        all.sort_by(|a, b| b.least_ns().total_cmp(&a.least_ns()));
        let named: Vec<String> =
            all.iter().take(MOST_USED).map(|resource| self.percent(resource)).collect();
        // The limit's own share comes from the runs that searched for it.
        let of = match self.run.limit {
            Some(_) => "in this run ",
            None => "",
        };
        (!named.is_empty()).then(|| format!("{of}{}", named.join(", ")))
    }

    /// Tests if the buffers hold the data of a source that cannot wait.
    fn room(&self) -> Option<String> {
        let room = self.run.limit.as_ref()?.room?;
        let (buffers, watched) = (room.buffers, show_ns(room.watched_ns as f64));
        let bytes = self.run.payload_bytes as f64 / self.run.blocks.max(1) as f64;
        // The rate comes from the runs that searched for the limit, which may be others.
        let rate = format!("{} blocks/s of each stream", significant(room.rate_hz, 3));
        Some(match room.no_room_ns {
            0 => {
                format!("{buffers} buffers had room for each block at once, at {rate} in {watched}")
            }
            ns => format!(
                "{buffers} buffers are too few for a source that cannot wait: at {rate} blocks waited up to {} for room, in {watched}; \
                 {} buffers ({} MB) would have held them",
                show_ns(ns as f64),
                room.wanted,
                significant(bytes * room.wanted as f64 / 1e6, 3)
            ),
        })
    }

    fn best(&self) -> Option<String> {
        trials::best(self.run).map(trials::line)
    }

    fn change(&self) -> Option<String> {
        let (limit, condition) = match self.run.limit.as_ref().map(|limit| &limit.found) {
            Some(LimitFound::NoSingleOne) => {
                return Some("nothing that is known: no single part is the limit".to_owned());
            }
            Some(LimitFound::Limit(What::Buffers)) => {
                let PathGain { mean, low, high } = self.run.limit.as_ref()?.gain?;
                let [mean, low, high] = [mean, low, high].map(|times| significant(times, 3));
                return Some(format!(
                    "eight times as many buffers: {mean} times as fast ({low} to {high}, measured)"
                ));
            }
            Some(LimitFound::Limit(what)) => {
                let mut all = self.resources.iter();
                (all.find(|resource| resource.what == *what)?, String::new())
            }
            Some(LimitFound::CannotTell) | None => {
                if self.run.is_paced {
                    return None;
                }
                let most = self.most_used()?;
                if self.share(most) < USED_UP {
                    return None;
                }
                (most, format!("if {} is the limit, ", most.what.text()))
            }
        };
        let (what, then) = self.removed(limit);
        let gain = self.measured_gain();
        let gain = gain.unwrap_or_else(|| self.gain(&then));
        Some(format!("{condition}{what}: {gain}"))
    }

    fn measured_gain(&self) -> Option<String> {
        let PathGain { mean, low, high } = self.run.limit.as_ref()?.gain?;
        let [mean, low, high] = [mean, low, high].map(|times| significant(times, 3));
        Some(format!("at most {mean} times as fast ({low} to {high}, measured without its work)"))
    }

    fn removed(&self, limit: &Resource) -> (String, Vec<Resource>) {
        let without = |changed: Option<Resource>| -> Vec<Resource> {
            let others = self.resources.iter();
            let others = others.filter(|resource| resource.what != limit.what);
            others.cloned().chain(changed).collect()
        };
        match &limit.what {
            What::Threads { element, name } if self.shares_thread(*element) => {
                let what = format!("less work in {name}{}", self.most_work(limit));
                (what, without(None))
            }
            What::Threads { element, name } if self.may_have_more(*element) => {
                let more = Resource { capacity: limit.capacity + 1.0, ..limit.clone() };
                (format!("give {name} another thread"), without(Some(more)))
            }
            What::Threads { element: 0, name } if self.mostly_waits() => {
                (format!("a faster device for {name}"), without(None))
            }
            What::Threads { name, .. } => (format!("less work in {name}"), without(None)),
            What::Between { name, .. } => {
                let what = format!("another way than {name}, or larger blocks");
                (what, without(None))
            }
            What::Cpu(cpu) => {
                let what = format!("take a thread off CPU {cpu}{}", self.most_work(limit));
                (what, without(None))
            }
            What::AllCpus => {
                let what = format!("more CPUs, or less work{}", self.most_work(limit));
                (what, without(None))
            }
            What::Link { name, .. } => (format!("a faster link than {name}"), without(None)),
            What::Buffers if self.run.threads.iter().any(|one| !one.within.is_empty()) => {
                let what = "look at the card's ring more often, or make it larger";
                (what.to_owned(), without(None))
            }
            What::Buffers => ("more buffers".to_owned(), without(None)),
            What::Memory => {
                let what = "smaller blocks or fewer buffers, so that they stay in the cache";
                (what.to_owned(), without(None))
            }
        }
    }

    /// Tests if other elements work in the threads of an element: each thread reads a channel of a
    /// card, and their numbers are equal.
    fn shares_thread(&self, element: usize) -> bool {
        let mut threads = self.run.threads.iter();
        threads.any(|thread| thread.element == element && !thread.within.is_empty())
    }

    /// Tests if the source waits for its device instead of working on a CPU. A file in the page
    /// cache is work.
    fn mostly_waits(&self) -> bool {
        let source = self.run.threads.iter().filter(|thread| thread.element == 0);
        let (waits_ns, works_ns) = source.fold((0, 0), |(waits, works), thread| {
            (waits + thread.elsewhere_ns, works + thread.busy_ns)
        });
        waits_ns > works_ns
    }

    fn may_have_more(&self, element: usize) -> bool {
        let threads = &self.run.threads;
        let last = threads.iter().map(|thread| thread.element).max();
        let has_ends =
            threads.iter().any(|thread| thread.element == element && thread.end.is_some());
        // A change that was tried without a gain is no advice.
        let is_tried = self
            .run
            .trials
            .iter()
            .any(|trial| trial.threads_of == Some(element) && trial.found.decided().is_some());
        element > 0 && Some(element) != last && !has_ends && !is_tried
    }

    fn most_work(&self, cpus: &Resource) -> String {
        let most = cpus.uses.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let named = most.and_then(|(element, ns)| {
            let mut threads = self.run.threads.iter();
            let part = threads.find_map(|thread| thread.part_of(*element))?;
            let percent = significant(ns / cpus.uses.values().sum::<f64>() * 100.0, 2);
            Some(format!("; {part} takes most of their time, {percent} %"))
        });
        named.unwrap_or_default()
    }

    fn gain(&self, then: &[Resource]) -> String {
        let Some((next, next_ns)) = bottleneck(then) else {
            return "nothing else is known to limit it (not tried)".to_owned();
        };
        let times = block_ns(self.run) / next_ns.max(f64::MIN_POSITIVE);
        let next = next.what.text();
        if times < WORTH_IT {
            return format!("no gain by itself, {next} is used up as well (predicted, not tried)");
        }
        format!(
            "at most {} times as fast, then {next} is used up (predicted, not tried)",
            significant(times, 3)
        )
    }
}

/// Returns the capacity of all CPUs of the process by the need of a block, and the limits of memory
/// and links. The unit is the served thing if the path names one.
fn this_host(run: &PathRun) -> Option<String> {
    let cpu_ns = sum(run.threads.iter().map(|thread| thread.cpu_ns));
    if run.cpus <= 0.0 || cpu_ns == 0 || run.payload_bytes == 0 {
        return None;
    }
    let cpus = match run.cpus {
        1.0 => "1 CPU".to_owned(),
        cpus => format!("{} CPUs", significant(cpus, 3)),
    };
    // Available CPU time over the used one is the possible multiple of the run's load.
    let by_cpus = run.cpus * run.wall_ns as f64 / cpu_ns as f64;
    let served = run.served.as_ref();
    let served = served.and_then(|served| Some((&served.name, how_many(run, served)?)));
    let Some((name, now)) = served else {
        let shown = |times: f64| {
            let rate = show_mb_per_s(rate_bytes_per_s(run) * times);
            format!("{rate} MB/s")
        };
        let (all, beside) = (shown(by_cpus), beside_cpus(run, shown));
        return Some(format!("its {cpus} would carry {all} of it by CPU time; {beside}"));
    };
    let shown = |times: f64| match (now * times).floor() {
        0.0 => "not one".to_owned(),
        count => format!("{count:.0}"),
    };
    let as_it_is = match run.is_paced {
        true => String::new(),
        false => format!("this path as it is {}; ", shown(1.0)),
    };
    let (all, beside) = (shown(by_cpus), beside_cpus(run, shown));
    Some(format!("{name}: {as_it_is}its {cpus} {all} by CPU time; {beside}"))
}

fn beside_cpus(run: &PathRun, shown: impl Fn(f64) -> String) -> String {
    let all = resources(run);
    let allows = |resource: &Resource| {
        let times = block_ns(run) / resource.least_ns();
        format!("{} {}", resource.what.text(), shown(times))
    };
    let of = |is: fn(&What) -> bool| -> Vec<String> {
        let some = all.iter().filter(|resource| is(&resource.what));
        some.map(allows).collect()
    };
    let memory = of(|what| *what == What::Memory);
    let memory = memory.into_iter().next().unwrap_or_else(|| {
        let is_cached = |memory: &PathMemory| memory.bytes_per_block.iter().all(|at| *at == 0.0);
        let text = match &run.memory {
            Some(memory) if is_cached(memory) => "its blocks stay in the cache",
            Some(memory) if memory.ceiling_bytes_per_s.is_some() => {
                "memory not known, part of its blocks stay in the cache"
            }
            _ => "memory not measured",
        };
        text.to_owned()
    });
    let mut links = of(|what| matches!(what, What::Link { .. }));
    if links.is_empty() {
        links.push("no link known".to_owned());
    }
    format!("{memory}, {}", links.join(", "))
}

/// Returns the number of served things that the run carried; `None` without a count of one's data.
fn how_many(run: &PathRun, served: &Served) -> Option<f64> {
    let (amount, each) = match served.each {
        Brings::BytesPerS(rate) => (run.payload_bytes as f64, rate),
        Brings::EventsPerS(rate) => (run.events as f64, rate),
    };
    let now = amount / run.wall_ns.max(1) as f64 * 1e9;
    (amount > 0.0 && each > 0.0).then(|| now / each)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::{
        Decided, End, InTurns, LinkBy, PathLink, PathRoom, PathThread, Trial, Tried,
    };

    use super::*;

    /// A second of 1000 blocks of 1 MB on `cpus` CPUs: a source, a stage and a sink.
    fn run(cpus: f64, busy_ms: [u64; 3]) -> PathRun {
        let thread = |(element, name): (usize, &str)| PathThread {
            name: name.to_owned(),
            part: name.to_owned(),
            element,
            wall_ns: 1_000_000_000,
            busy_ns: busy_ms[element] * 1_000_000,
            cpu_ns: busy_ms[element] * 1_000_000,
            ..PathThread::default()
        };
        PathRun {
            line: "1 MB -> board -> convert -> read".to_owned(),
            wall_ns: 1_000_000_000,
            payload_bytes: 1_000_000_000,
            blocks: 1000,
            cpus,
            threads: ["board", "convert", "read"].into_iter().enumerate().map(thread).collect(),
            ..PathRun::default()
        }
    }

    fn of(run: &PathRun, about: &str) -> String {
        let all = said("crate", run, false, &About::default());
        let found = all.into_iter().find(|said| said.about == about);
        found.map_or_else(String::new, |said| said.text)
    }

    fn found(found: LimitFound) -> Option<PathLimit> {
        Some(PathLimit { found, runs: 94, used: None, gain: None, room: None })
    }

    #[test]
    fn buffers_that_are_too_few_for_a_source_that_cannot_wait_are_named_with_how_many_would_do() {
        let mut run = run(4.0, [300, 990, 400]);
        run.limit = found(LimitFound::CannotTell);
        assert!(
            said("crate", &run, true, &About::default()).iter().all(|said| said.about != "room")
        );
        let room = |no_room_ns, wanted| PathRoom {
            rate_hz: 500.0,
            watched_ns: 400_000_000,
            no_room_ns,
            buffers: 8,
            wanted,
        };
        let mut with = |room| {
            if let Some(limit) = &mut run.limit {
                limit.room = Some(room);
            }
            of(&run, "room")
        };
        assert_eq!(
            with(room(0, 8)),
            "8 buffers had room for each block at once, at 500 blocks/s of each stream in 400 ms"
        );
        assert_eq!(
            with(room(2_900_000, 64)),
            "8 buffers are too few for a source that cannot wait: at 500 blocks/s of each stream blocks waited up to 2.9 ms for room, in 400 ms; \
             64 buffers (64 MB) would have held them"
        );
    }

    #[test]
    fn a_path_is_said_in_at_most_ten_lines_and_most_important_first() {
        let all = said("crate", &run(4.0, [300, 990, 400]), true, &About::default());
        let about: Vec<&str> = all.iter().map(|said| said.about).collect();
        assert_eq!(about, ["path", "carries", "limit", "used", "change", "this host"]);
        let carries = "1000 MB/s sustained over 1 s from an emulated source";
        assert_eq!(all[1].text, carries);
    }

    #[test]
    fn what_one_run_shows_is_not_called_the_limit_and_what_was_proved_is() {
        let mut run = run(4.0, [300, 990, 400]);
        assert_eq!(
            of(&run, "limit"),
            "not proved; most used in this run: convert 99 %. `daqmeter path explain crate` proves it"
        );
        // Another thread halves it; then the four CPUs' 1.69 s in 4 s are used up.
        assert_eq!(
            of(&run, "change"),
            "if convert is the limit, give convert another thread: at most 2.02 times as fast, then convert is used up (predicted, not tried)"
        );
        run.limit = found(LimitFound::Limit(convert()));
        assert!(
            of(&run, "limit").starts_with("convert: it is used up, and the path follows"),
            "{}",
            of(&run, "limit")
        );
        let mut used = |mean, waits_for_cpu| {
            if let Some(limit) = &mut run.limit {
                let (low, high) = (mean - 0.01, mean + 0.01);
                let works = PathGain { mean, low, high };
                limit.used = Some(PathUsed { works, waits_for_cpu });
            }
            of(&run, "limit")
        };
        assert!(used(0.98, 0.01).starts_with("convert: it works 98 % of the time, and the path"));
        assert!(used(0.78, 0.2).contains("works 78 % and waits for a CPU 20 % of the time, and"));
        assert!(of(&run, "change").starts_with("give convert another thread"));
        if let Some(limit) = &mut run.limit {
            limit.gain = Some(PathGain { mean: 1.9, low: 1.8, high: 2.0 });
        }
        assert_eq!(
            of(&run, "change"),
            "give convert another thread: at most 1.9 times as fast (1.8 to 2, measured without its work)"
        );
        run.limit = found(LimitFound::NoSingleOne);
        assert!(of(&run, "limit").starts_with("no single one"));
        run.limit = found(LimitFound::CannotTell);
        assert!(of(&run, "limit").starts_with("cannot tell from 94 runs"));
        run.limit = None;
        // Disturbed, or too short: no resource is used up.
        run.wall_ns = 2_000_000_000;
        assert_eq!(
            of(&run, "limit"),
            "not found: nothing is used up; most used in this run: convert 50 %. `daqmeter path explain crate` looks for it"
        );
        assert_eq!(of(&run, "change"), "");
        run.is_paced = true;
        assert!(of(&run, "limit").starts_with("not looked for"));
        assert_eq!(of(&run, "change"), "");
    }

    fn convert() -> What {
        What::Threads { element: 1, name: "convert".to_owned() }
    }

    #[test]
    fn a_limit_is_chosen_by_what_it_is_and_not_by_its_name() {
        // A stage with the name of a CPU.
        let mut run = run(4.0, [300, 990, 400]);
        run.threads[1].part = "CPU 3".to_owned();
        run.limit =
            found(LimitFound::Limit(What::Threads { element: 1, name: "CPU 3".to_owned() }));
        assert!(of(&run, "change").starts_with("give CPU 3 another thread"));
        run.limit = found(LimitFound::Limit(What::Memory));
        assert!(of(&run, "limit").contains("the path follows no part"));
        run.limit = found(LimitFound::Limit(What::Buffers));
        assert!(of(&run, "limit").starts_with("too few buffers: no resource is used up"));
        if let Some(limit) = &mut run.limit {
            limit.gain = Some(PathGain { mean: 1.4, low: 1.3, high: 1.5 });
        }
        assert_eq!(
            of(&run, "change"),
            "eight times as many buffers: 1.4 times as fast (1.3 to 1.5, measured)"
        );
    }

    #[test]
    fn a_source_that_works_is_given_less_work_and_one_that_waits_a_faster_device() {
        let mut run = run(4.0, [990, 300, 400]);
        assert!(of(&run, "change").contains("less work in board: at most"));
        run.threads[0].elsewhere_ns = 900_000_000;
        run.threads[0].busy_ns = 90_000_000;
        assert!(of(&run, "change").contains("a faster device for board: at most"));
    }

    #[test]
    fn a_change_that_was_tried_comes_before_one_that_is_predicted_and_is_no_advice_without_a_gain()
    {
        let mut run = run(4.0, [300, 990, 400]);
        run.limit = found(LimitFound::Limit(convert()));
        let trial = |change: &str, threads_of, decided| Trial {
            change: change.to_owned(),
            predicted: None,
            threads_of,
            found: Tried::InTurns(InTurns {
                decided,
                times: 1.2,
                interval: Some((1.1, 1.3)),
                pairs: 12,
                ignored: 0.02,
            }),
        };
        run.trials = vec![
            trial("--set block=2MiB", None, Decided::Faster),
            trial("--set stage.1.threads=2", Some(1), Decided::Same),
        ];
        let best = of(&run, "change");
        assert!(
            best.starts_with("--set block=2MiB: 20 % faster (95 %: 10 to 30), tried"),
            "{best}"
        );
        assert_eq!(of(&run, "tried"), "no difference: --set stage.1.threads=2");
        run.trials.remove(0);
        assert!(of(&run, "change").starts_with("less work in convert"), "{}", of(&run, "change"));
    }

    #[test]
    fn more_threads_gain_nothing_where_the_cpus_are_used_up_as_well() {
        let two = run(1.7, [300, 1000, 400]);
        assert_eq!(
            of(&two, "change"),
            "if all CPUs together is the limit, more CPUs, or less work; convert takes most of their time, 59 %: no gain by itself, convert is used up as well (predicted, not tried)"
        );
        let mut ends = run(8.0, [300, 1000, 400]);
        ends.threads[1].end = Some(End::Out);
        assert!(
            of(&ends, "change").contains("less work in convert"),
            "threads at two ends are not shared: {}",
            of(&ends, "change")
        );
    }

    #[test]
    fn a_host_carries_as_many_as_the_cpus_that_it_may_use_have_time_for() {
        // 1.5 s of CPU time for 1 GB; a quota of 3 CPUs.
        let mut run = run(3.0, [300, 800, 400]);
        assert_eq!(
            of(&run, "this host"),
            "its 3 CPUs would carry 2000 MB/s of it by CPU time; memory not measured, no link known"
        );
        let serves = |each| Some(Served { name: "boards".to_owned(), each });
        run.served = serves(Brings::BytesPerS(84e6));
        assert_eq!(
            of(&run, "this host"),
            "boards: this path as it is 11; its 3 CPUs 23 by CPU time; memory not measured, no link known"
        );
        // 2 GB of traffic for 1 GB at a ceiling of 10 GB/s, and a link of 3 GB/s.
        run.memory = Some(PathMemory {
            bytes_per_block: vec![0.0, 2e6, 0.0],
            ceiling_bytes_per_s: Some(10e9),
        });
        run.links = vec![PathLink {
            element: 0,
            name: "uplink of a crate".to_owned(),
            bytes_per_s: 3e9,
            bytes_per_block: 1e6,
            by: LinkBy::Profile,
        }];
        assert_eq!(
            of(&run, "this host"),
            "boards: this path as it is 11; its 3 CPUs 23 by CPU time; memory, by footprint 59, uplink of a crate, by profile 35"
        );
        // More than memory carries: a part of the count did not pass through it.
        run.memory = Some(PathMemory {
            bytes_per_block: vec![0.0, 20e6, 0.0],
            ceiling_bytes_per_s: Some(10e9),
        });
        assert!(of(&run, "this host").contains("23 by CPU time; memory not known, part of"));
        assert!(!of(&run, "used").contains("memory"));
        run.memory = Some(PathMemory { bytes_per_block: vec![0.0; 3], ceiling_bytes_per_s: None });
        assert!(of(&run, "this host").contains("its blocks stay in the cache"));
        run.served = serves(Brings::EventsPerS(100e3));
        assert!(of(&run, "this host").starts_with("its 3 CPUs would carry"));
        run.events = 250_000;
        assert!(of(&run, "this host").starts_with("boards: this path as it is 2; its 3 CPUs 5"));
        run.cpus = 0.0;
        assert_eq!(of(&run, "this host"), "", "older records do not say");
    }
}
