//! Measured paths in sentences: capacity, limit, use of each resource, a change, and the capacity
//! of this host. Begin with [`said`].

use daqmeter_record::border::sum;
use daqmeter_record::path::{
    Brings, Interval, LimitFound, PathCost, PathLimit, PathRun, PathThread, PathUsed, Served,
    TriedLayout,
};
use daqmeter_record::resources::{Resource, What, bottleneck, resources};
use daqmeter_record::sanitise::shell_word;
use daqmeter_record::units::{
    self, joined, plural, show_bytes, show_mb_per_s, show_ns, significant,
};
use daqmeter_record::{Ledger, RunRecord, sanitise};
use serde::Serialize;

use crate::aligned::{time, wrapped};
use crate::families::felix::asserted_by;
use crate::families::path::kept::{falls, kept_files};
use crate::family::{WORTH_A_CHANGE, all_cpus, prefixed};
use crate::groups::in_groups;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Said {
    about: &'static str,
    text: String,
}

pub(super) fn lines(said: &[Said]) -> String {
    let line = |Said { about, text }: &Said| {
        wrapped(&format!("  {about:<10} {}", sanitise::text(text)), 13) + "\n"
    };
    said.iter().map(line).collect()
}

/// Describes a path by the longest of a number of its runs.
pub(super) fn said(name: &str, run: &PathRun, record: &RunRecord, runs: usize) -> Vec<Said> {
    let resources = resources(record);
    let all = [
        ("path", Some(run.line.clone())),
        ("carries", Some(carries(run, record, runs))),
        ("layouts", layouts(run)),
        ("latency", Some(latency(record, run))),
        ("checked", Some(checked(record, run))),
        ("BUSY", busy(record)),
        ("UDP", network(record)),
        ("pause", pause(run)),
        ("kept", run.kept.as_ref().map(kept_files)),
        ("disk", run.kept.as_ref().and_then(|kept| falls(run, kept))),
        ("rate", own_rate(run)),
        ("limit", limit(run, &resources, name)),
        ("used", run.limit.is_none().then(|| used(run, &resources)).flatten()),
        ("work", run.limit.as_ref().and_then(work)),
        ("change", run.limit.as_ref().and_then(change)),
        ("this host", this_host(run, &resources)),
    ];
    all.into_iter().filter_map(|(about, text)| Some(Said { about, text: text? })).collect()
}

/// Answers with the limit if it was searched for, else with the rate.
pub(super) fn headline(name: &str, run: &PathRun, record: &RunRecord) -> String {
    let name = sanitise::text(name);
    match &run.limit {
        Some(found) => {
            let limit = limit(run, &resources(record), &name);
            let rate = show_mb_per_s(found.carries_bytes_per_s);
            format!("{name} carries {rate} MB/s; its limit is {}", limit.unwrap_or_default())
        }
        None => format!("{name} carries {}", carries(run, record, 1)),
    }
}

/// Leaves out the facts that the first sentence has told.
pub(super) fn behind(mut said: Vec<Said>) -> Vec<Said> {
    said.retain(|said| said.about != "carries");
    said
}

/// Facts behind the sentence of a search, in their order.
const EXPLAINED: [&str; 6] = ["work", "change", "rate", "pause", "path", "checked"];

/// Leaves out what a search does not answer.
pub(super) fn explained(said: Vec<Said>) -> Vec<Said> {
    let named = |about: &&str| said.iter().find(|said| said.about == *about).cloned();
    EXPLAINED.iter().filter_map(named).collect()
}

fn carries(run: &PathRun, record: &RunRecord, runs: usize) -> String {
    let emulated = if record.engine.emulated { " from an emulated source" } else { "" };
    let events = match run.events {
        0 => String::new(),
        events => format!(", {} events/s", significant(run.per_s(events), 3)),
    };
    let of_runs = if runs > 1 { format!(", longest of {runs} runs") } else { String::new() };
    let asked = asked(record, run).map_or(String::new(), |asked| format!("; {asked}"));
    format!(
        "{} MB/s sustained over {}{of_runs}{emulated}, layout {}: {} in {} blocks{events}{asked}",
        show_mb_per_s(run.per_s(run.payload_bytes)),
        show_ns(run.time_ns() as f64),
        run.layout,
        show_bytes(run.payload_bytes),
        run.blocks,
    )
}

/// Most layouts in the line of those that were tried.
const MAX_LAYOUTS: usize = 4;

/// Writes what the path carried in other layouts, in short runs before this one; always the
/// pipeline.
fn layouts(run: &PathRun) -> Option<String> {
    let shown = |(at, tried): (usize, &TriedLayout)| {
        let is_shown = at < MAX_LAYOUTS || tried.layout == "pipeline";
        is_shown.then(|| format!("{} MB/s {}", show_mb_per_s(tried.bytes_per_s), tried.layout))
    };
    let all = joined(run.tried.iter().enumerate().filter_map(shown), "; ")?;
    Some(format!("in short runs: {all}"))
}

pub(super) fn block_ns(run: &PathRun) -> f64 {
    run.time_ns() as f64 / run.blocks.max(1) as f64
}

/// Fate of a rate that was asked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kept {
    Yes,
    Lost(u64),
    /// Nanoseconds by which the run took longer.
    Late(f64),
    /// Triggers or blocks that the source did not give.
    NotGiven(u64),
    TooShort,
}

/// Fewest blocks in which a fault of every tenth block shows with 95 %: those that support the 90th
/// percentile, see [`daqmeter_stats::supports`].
const FEWEST_BLOCKS: u64 = 29;

/// Returns the fate of the requested rate. `None` for a run at full speed, and for one that failed.
pub(super) fn kept(record: &RunRecord, run: &PathRun) -> Option<Kept> {
    let is_asked = |asked: &f64| *asked > 0.0 && record.outcome.is_ok();
    run.asked_bytes_per_s.filter(is_asked)?;
    let not_given: u64 = record.ledgers.iter().map(Ledger::not_given).sum();
    let lost = record.ledgers.iter().map(Ledger::lost).sum::<u64>() - not_given;
    // The rate of a card is that of its triggers, whose losses are in the ledgers.
    let behind_ns = if is_live(record) { 0.0 } else { run.behind_ns()? };
    Some(match (lost, behind_ns > 0.0, not_given) {
        (1.., ..) => Kept::Lost(lost),
        (0, true, _) => Kept::Late(behind_ns),
        (0, false, 1..) => Kept::NotGiven(not_given),
        (0, false, 0) if run.blocks < FEWEST_BLOCKS => Kept::TooShort,
        (0, false, 0) => Kept::Yes,
    })
}

/// Writes the requested rate, and if it was kept.
fn asked(record: &RunRecord, run: &PathRun) -> Option<String> {
    let (what, of) = if is_live(record) { ("trigger", " of triggers") } else { ("block", "") };
    let kept = match kept(record, run)? {
        Kept::Yes => "kept".to_owned(),
        Kept::Lost(lost) => format!("not kept, {} lost", plural(lost, what)),
        Kept::Late(ns) => format!("not kept, it took {} longer", show_ns(ns)),
        Kept::NotGiven(count) => {
            format!("not tested, the source did not send {}", plural(count, what))
        }
        Kept::TooShort => {
            format!("not tested, the run is too short: {FEWEST_BLOCKS} blocks or more are wanted")
        }
    };
    Some(format!("asked {} MB/s{of}: {kept}", show_mb_per_s(run.asked_bytes_per_s?)))
}

fn checked(record: &RunRecord, run: &PathRun) -> String {
    let how = match is_live(record) {
        true => "compared with what the card makes",
        false => "verified by checksum",
    };
    let closed = record.ledgers.iter().filter(|ledger| ledger.closes()).count();
    let (blocks, verified, all) = (run.blocks, run.verified_blocks, record.ledgers.len());
    format!("{verified} of {blocks} blocks {how}; all accounted for in {closed} of {all} streams")
}

/// Writes the buffers and losses of sockets, if the record counts them.
fn network(record: &RunRecord) -> Option<String> {
    let strays = record.counter("udp-datagrams-without-a-block").unwrap_or(0.0);
    let (asked, granted) =
        (record.counter("udp-buffer-asked")?, record.counter("udp-buffer-granted")?);
    let why = if granted < asked { " (net.core.rmem_max allows no more)" } else { "" };
    Some(format!(
        "socket buffer: {} requested, {} granted{why}; {strays} datagrams belonged to no block",
        show_bytes(asked as u64),
        show_bytes(granted as u64)
    ))
}

/// Tests if its source was a card that was read out live: only such a one counts triggers.
fn is_live(record: &RunRecord) -> bool {
    record.counter("trigger-rate").is_some()
}

/// Writes the BUSY time and the ring's filling of a card that was read out live; `None` for other
/// paths.
fn busy(record: &RunRecord) -> Option<String> {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let percent = |name: &str| significant(value(name) * 100.0, 3);
    is_live(record).then(|| {
        format!(
            "{} % of the time ({} % by DMA, {} % by FIFO{}): it stopped {} of {} triggers at {} per s; the ring held at most {} of {}",
            percent("dead-time"),
            percent("dead-time BUSY-by-DMA"),
            percent("dead-time BUSY-by-FIFO"),
            asserted_by(&record.counters),
            value("stopped-triggers"),
            value("triggers"),
            significant(value("trigger-rate"), 4),
            show_bytes(value("ring peak") as u64),
            show_bytes(value("ring") as u64)
        )
    })
}

/// Writes the latency of blocks, and its beginning.
pub(super) fn latency(record: &RunRecord, run: &PathRun) -> String {
    let ns = |share| time(run.latency_ns(share).map(|ns| ns as f64));
    let from = match run.is_paced {
        _ if is_live(record) => "from the oldest trigger of a page to the receiver",
        true => "from the time at which a block was due",
        false => "from the begin of a block at the source to its end at the sink",
    };
    // Percentiles need a minimum of values.
    let n = sum(run.latency.iter().map(|bucket| bucket.count));
    let has_p99 = daqmeter_stats::supports(usize::try_from(n).unwrap_or(usize::MAX), 0.99);
    let p99 = if has_p99 { format!(", p99 {}", ns(0.99)) } else { String::new() };
    format!("median {}{p99}, longest {}, {from}", ns(0.5), show_ns(run.latency_max_ns as f64))
}

/// Most resources in the line of their use.
const MAX_USED: usize = 6;

fn percent(run: &PathRun, resource: &Resource) -> String {
    let share = resource.least_ns() / block_ns(run);
    format!("{} {} %", resource.what.text(), significant(share * 100.0, 2))
}

fn limit(run: &PathRun, resources: &[Resource], name: &str) -> Option<String> {
    let name = shell_word(name);
    let most = format!("busiest in this run: {}", percent(run, bottleneck(resources)?.0));
    let Some(limit) = &run.limit else {
        return Some(match run.is_paced {
            true => format!("not searched: blocks came at a rate; {most}"),
            // Its folder is taken now.
            false if run.kept.is_some() => format!("not searched; {most}"),
            false => format!("not searched; {most}. `daqmeter path explain {name}` searches"),
        });
    };
    let used = limit.used.as_ref().map_or(String::new(), |used| at_work(used, run, &limit.found));
    let (found, runs) = (who(run, &limit.found), limit.runs);
    let proof = match &limit.found {
        LimitFound::NoSingleOne => {
            let less = "slowing one slows the path less";
            return Some(format!("{found}: {less} ({runs} runs); {most}"));
        }
        LimitFound::CannotTell => {
            return Some(format!(
                "{found} after {runs} runs; {most}. Use `daqmeter path explain {name}` for longer runs"
            ));
        }
        LimitFound::Limit(What::Buffers) => "eight times as many make the path faster".to_owned(),
        LimitFound::Limit(What::Between { .. }) => "both ends wait for it".to_owned(),
        LimitFound::Limit(What::HandOver) => hand_over(limit),
        LimitFound::Limit(What::Placement) => limit.other.as_ref().map_or(String::new(), |it| {
            format!("{} waits for its CPU {} % of the time", it.waits, percent_of(it.waits_for_cpu))
        }),
        LimitFound::Limit(What::OtherPrograms) => {
            let share = percent_of(limit.others);
            format!("they use {share} % of the CPUs, and threads of the path wait for one")
        }
        LimitFound::Limit(what) if what.follows_no_part() => {
            format!("{used}; slowing a part changes nothing")
        }
        LimitFound::Limit(_) => format!("{used}; slowing it slows the path"),
    };
    Some(format!("{found}: {proof} ({runs} runs, in which each part was slowed)"))
}

/// Names a limit in a few words.
pub(super) fn named(found: &LimitFound) -> String {
    match found {
        LimitFound::Limit(what) => what.text(),
        LimitFound::NoSingleOne => "no single part".to_owned(),
        LimitFound::CannotTell => "not clear".to_owned(),
    }
}

/// Names a limit; threads of which each CPU has one are the CPUs.
fn who(run: &PathRun, found: &LimitFound) -> String {
    if has_each_cpu(run, found) { all_cpus(run.cpus) } else { named(found) }
}

/// Tests if the limit is the work of threads of which each CPU has one.
pub(super) fn has_each_cpu(run: &PathRun, found: &LimitFound) -> bool {
    let threads: Vec<&PathThread> = threads_of(run, found).collect();
    !threads.is_empty()
        && threads.len() as f64 >= run.cpus
        && !threads.into_iter().any(waits_in_calls)
}

/// Tests if a thread waits for a device or in system calls for half as long as it works.
pub(super) fn waits_in_calls(thread: &PathThread) -> bool {
    thread.end.is_none() && thread.elsewhere_ns > thread.busy_ns / 2
}

/// Threads that are the limit.
fn threads_of<'a>(run: &'a PathRun, found: &'a LimitFound) -> impl Iterator<Item = &'a PathThread> {
    let name = match found {
        LimitFound::Limit(What::Threads { name, .. }) => Some(name),
        _ => None,
    };
    run.threads.iter().filter(move |thread| name == Some(&thread.part))
}

fn percent_of(share: f64) -> String {
    units::percent(share.min(1.0), 2)
}

/// Share of the time in wait for a CPU that is worth a mention.
const WORTH_A_WORD: f64 = 0.05;

/// Says how a limit spends its time: `at work 78 %, waiting for a CPU 20 % of the time`.
fn at_work(used: &PathUsed, run: &PathRun, found: &LimitFound) -> String {
    let waits = threads_of(run, found).any(waits_in_calls);
    let works = if waits { "waiting in calls" } else { "at work" };
    let all = [(works, used.works.mean), ("waiting for a CPU", used.waits_for_cpu)];
    let shown = all.into_iter().filter(|(_, share)| *share > WORTH_A_WORD);
    let shown = shown.map(|(what, share)| format!("{what} {} %", percent_of(share)));
    joined(shown, ", ").map_or(String::new(), |shown| shown + " of the time")
}

/// Least share of the work that is worth a mention.
const WORTH_A_PART: f64 = 0.01;

/// Names the parts of a limit's work, the largest first, with what this host can do instead.
fn work(limit: &PathLimit) -> Option<String> {
    let part = |cost: &PathCost| {
        let beside = cost.limit_bytes_per_s.map_or(String::new(), |most| {
            let [own, most] = [cost.bytes_per_s, most].map(|rate| prefixed(rate, "B/s"));
            format!(" ({own} a CPU, where memory and caches give {most})")
        });
        format!("{} {} %{beside}", cost.name, percent_of(cost.share))
    };
    joined(limit.costs.iter().filter(|cost| cost.share >= WORTH_A_PART).map(part), "; ")
}

/// Returns the change with the largest gain that was measured, if it pays.
pub(super) fn measured_change(limit: &PathLimit) -> Option<(String, Interval)> {
    let layout = limit.other.as_ref().map(|it| (format!("layout {}", it.layout), it.gain));
    let buffers = limit.gain.map(|gain| ("8x buffers".to_owned(), gain));
    let field = limit.change.as_ref().map(|it| (it.what.clone(), it.gain));
    let all = [layout, buffers, field].into_iter().flatten();
    let pays = all.filter(|(_, gain)| gain.mean >= WORTH_A_CHANGE && gain.low > 1.0);
    pays.max_by(|(_, a), (_, b)| a.mean.total_cmp(&b.mean))
}

/// Writes what a hand-over costs. The work of the parts alone leaves time.
fn hand_over(limit: &PathLimit) -> String {
    let Some(cost) = &limit.other else { return String::new() };
    let cycles =
        cost.cycles.map_or(String::new(), |it| format!(" ({} cycles)", significant(it, 3)));
    format!(
        "the threads spend {}{cycles} on each block besides the work of the parts: {} % to sleep and wake up, {} % to move the block between caches",
        show_ns(cost.ns),
        percent_of(cost.wake_up),
        percent_of(1.0 - cost.wake_up)
    )
}

fn used(run: &PathRun, resources: &[Resource]) -> Option<String> {
    let mut all: Vec<&Resource> = resources.iter().collect();
    all.sort_by(|a, b| b.least_ns().total_cmp(&a.least_ns()));
    joined(all.iter().take(MAX_USED).map(|one| percent(run, one)), ", ")
}

/// Names the change that pays with its measured gain, or those that were tried and do not.
fn change(limit: &PathLimit) -> Option<String> {
    if let Some((what, gain)) = measured_change(limit) {
        let [mean, low, high] = [gain.mean, gain.low, gain.high].map(|it| significant(it, 3));
        let how = match what.contains("layout fused") {
            true => " (each block from end to end in one thread)",
            false => "",
        };
        return Some(format!(
            "{what}{how}: {mean} times as fast ({low} to {high}, measured alternately)"
        ));
    }
    let what = match &limit.found {
        LimitFound::Limit(What::Between { name, .. }) => {
            Some(format!("another transport than {name}, or larger blocks"))
        }
        LimitFound::Limit(What::Cpu(cpu)) => Some(format!("take a thread off CPU {cpu}")),
        LimitFound::Limit(What::Link { name, .. }) => Some(format!("a faster link than {name}")),
        LimitFound::Limit(What::OtherPrograms) => Some("run it without them".to_owned()),
        _ => None,
    };
    joined(what.into_iter().chain(tried(limit)), "; ")
}

/// Writes the changes that were tried: `none of 3 that were tried pays: block=16KiB, 256KiB; ...`.
fn tried(limit: &PathLimit) -> Option<String> {
    let fields = in_groups(limit.tried.iter().filter_map(|one| one.split_once('=')));
    let field = |(field, values): &(&str, Vec<&str>)| format!("{field}={}", values.join(", "));
    let all = joined(fields.iter().map(field), "; ")?;
    Some(format!("none of {} that were tried pays: {all}", limit.tried.len()))
}

/// Names the longest time without a block, and the buffers that a source that cannot wait needs for
/// it; `None` for cards that are read out.
fn pause(run: &PathRun) -> Option<String> {
    let in_search_ns = run.limit.as_ref().map_or(0, |limit| limit.longest_gap_ns);
    let gap_ns = run.longest_gap_ns.max(in_search_ns);
    let ring = run.queues.first().filter(|_| gap_ns > 0)?;
    let block_bytes = run.payload_bytes as f64 / run.blocks.max(1) as f64;
    let has = block_bytes * ring.seen.len().saturating_sub(1) as f64;
    let needs = run.per_s(run.payload_bytes) * gap_ns as f64 / 1e9;
    let [needs_text, has_text] = [needs, has].map(|bytes| show_bytes(bytes as u64));
    let buffers = match needs > has {
        true => {
            format!("a source that cannot wait needs {needs_text} of buffers; it has {has_text}")
        }
        false => format!("its buffers of {has_text} hold that"),
    };
    Some(format!("at most {} between two blocks: {buffers}", show_ns(gap_ns as f64)))
}

/// Compares the path's own rate with what it carries as fast as it goes.
fn own_rate(run: &PathRun) -> Option<String> {
    let limit = run.limit.as_ref()?;
    let (own, carries) = (limit.rate_bytes_per_s?, limit.carries_bytes_per_s);
    let share = significant(own / carries * 100.0, 2);
    let [own_text, carries_text] = [own, carries].map(show_mb_per_s);
    let not_kept = if own > carries { ": it cannot be kept" } else { "" };
    Some(format!(
        "{own_text} MB/s, {share} % of the {carries_text} MB/s that the path carries{not_kept}"
    ))
}

/// Returns the capacity of all CPUs of the process in the best layout that was tried, or else by
/// the need of a block, and the limits of links. The unit is the served thing if the path names
/// one.
fn this_host(run: &PathRun, resources: &[Resource]) -> Option<String> {
    let cpu_ns = sum(run.threads.iter().map(|thread| thread.cpu_ns));
    if cpu_ns == 0 || run.payload_bytes == 0 {
        return None;
    }
    let served = run.served.as_ref().and_then(|it| Some((it.name.as_str(), how_many(run, it)?)));
    let shown = |times: f64| match served {
        None => format!("{} MB/s", show_mb_per_s(run.per_s(run.payload_bytes) * times)),
        Some((_, now)) => format!("{:.0}", (now * times).floor()),
    };
    let links = resources.iter().filter(|one| matches!(one.what, What::Link { .. }));
    let links =
        links.map(|one| format!("; {} {}", one.what.text(), shown(block_ns(run) / one.least_ns())));
    let links: String = links.collect();
    // The run itself in the best layout, the short run in that layout, or else available CPU time
    // over the used one, is the possible multiple of the run's load.
    let rate = run.per_s(run.payload_bytes);
    let (by_cpus, how) = match run.tried.first() {
        Some(best) if !run.is_paced && best.layout == run.layout => {
            (shown(1.0), format!("in the layout {}", best.layout))
        }
        Some(best) => {
            let times = (best.bytes_per_s / rate).max(1.0);
            (shown(times), format!("in a short run in the layout {}", best.layout))
        }
        None => (shown(run.cpus * run.wall_ns as f64 / cpu_ns as f64), "by CPU time".to_owned()),
    };
    let name = served.map_or(String::new(), |(name, _)| format!("{name}: "));
    let s = if run.cpus == 1.0 { "" } else { "s" };
    let cpus = significant(run.cpus, 3);
    Some(format!("{name}{cpus} CPU{s} carry {by_cpus} {how}{links}"))
}

/// Returns the number of served things that the run carried; `None` without a count of one's data.
fn how_many(run: &PathRun, served: &Served) -> Option<f64> {
    let (amount, each) = match served.each {
        Brings::BytesPerS(rate) => (run.payload_bytes, rate),
        Brings::EventsPerS(rate) => (run.events, rate),
    };
    (amount > 0 && each > 0.0).then(|| run.per_s(amount) / each)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::{
        Interval, LinkBy, PathChange, PathLimit, PathLink, PathQueue, PathUsed,
    };

    use super::super::tests::{self, record};
    use super::*;

    /// A second of 1000 blocks of 1 MB on `cpus` CPUs: a source, a stage and a sink.
    fn run(cpus: f64, busy_ms: [u64; 3]) -> PathRun {
        let mut run = *record().sections.path.unwrap();
        (run.payload_bytes, run.events, run.cpus) = (1_000_000_000, 0, cpus);
        let names = ["board", "convert", "read"].map(str::to_owned);
        for (thread, (name, ms)) in run.threads.iter_mut().zip(names.into_iter().zip(busy_ms)) {
            (thread.part, thread.elsewhere_ns) = (name, 0);
            (thread.busy_ns, thread.cpu_ns) = (ms * 1_000_000, ms * 1_000_000);
        }
        run
    }

    fn of(run: &PathRun, about: &str) -> String {
        let mut record = record();
        record.sections.path = Some(Box::new(run.clone()));
        let found = said("crate", run, &record, 1).into_iter().find(|said| said.about == about);
        found.map_or_else(String::new, |said| said.text)
    }

    fn found(found: LimitFound) -> Option<PathLimit> {
        Some(PathLimit { runs: 94, carries_bytes_per_s: 2e9, ..tests::limit(found) })
    }

    fn convert() -> What {
        What::Threads { element: 1, name: "convert".to_owned() }
    }

    fn link() -> What {
        What::Link { element: 0, name: "PCIe".to_owned(), by: LinkBy::Sysfs }
    }

    #[test]
    fn what_one_run_shows_is_not_called_the_limit_and_what_was_proved_is() {
        let mut run = run(4.0, [300, 990, 400]);
        assert_eq!(
            of(&run, "limit"),
            "not searched; busiest in this run: convert 99 %. `daqmeter path explain crate` searches"
        );
        assert_eq!(of(&run, "used"), "convert 99 %, all CPUs together 42 %, read 40 %, board 30 %");
        assert_eq!(of(&run, "change"), "");
        run.is_paced = true;
        assert!(of(&run, "limit").starts_with("not searched: blocks"));
        let gain = |mean: f64| Interval { mean, low: mean - 0.1, high: mean + 0.1 };
        let works = "convert: at work 78 %, waiting for a CPU 20 % of the time; slowing it slows";
        let buffers = "8x buffers: 1.9 times as fast (1.8 to 2, measured alternately)";
        for (what, gained, limit, change) in [
            (convert(), None, works, ""),
            (link(), None, "slowing a part changes nothing", "a faster link than PCIe"),
            (What::Buffers, Some(1.9), "too few buffers: eight times as many make", buffers),
        ] {
            run.limit = found(LimitFound::Limit(what));
            let proof = run.limit.as_mut().unwrap();
            proof.used = Some(PathUsed { works: gain(0.78), waits_for_cpu: 0.2 });
            proof.gain = gained.map(gain);
            let said = of(&run, "limit");
            assert!(said.contains(limit) && said.contains("94 runs"), "{said}");
            assert_eq!(of(&run, "change"), change);
        }
        run.limit = found(LimitFound::NoSingleOne);
        assert!(of(&run, "limit").starts_with("no single part: "));
        run.limit = found(LimitFound::CannotTell);
        assert!(of(&run, "limit").starts_with("not clear after 94 runs"));
    }

    #[test]
    fn work_has_its_parts_and_a_change_is_one_that_pays_or_those_that_were_tried() {
        let mut run = run(2.0, [100, 990, 990]);
        run.limit = found(LimitFound::Limit(What::AllCpus));
        let limit = run.limit.as_mut().unwrap();
        let cost = |name: &str, share, limit_bytes_per_s| PathCost {
            name: name.to_owned(),
            share,
            bytes_per_s: 8.4e9,
            limit_bytes_per_s,
        };
        limit.costs = vec![cost("tcp", 0.52, None), cost("read", 0.47, Some(45e9))];
        let tried = ["block=16KiB", "block=1MiB", "stage.1.by=avx2"];
        limit.tried = tried.map(str::to_owned).to_vec();
        assert_eq!(
            of(&run, "work"),
            "tcp 52 %; read 47 % (8.4 GB/s a CPU, where memory and caches give 45 GB/s)"
        );
        let none = "none of 3 that were tried pays: block=16KiB, 1MiB; stage.1.by=avx2";
        assert_eq!(of(&run, "change"), none);
        for (mean, low, wanted) in [(1.3, 1.2, "block=1MiB: 1.3 times"), (1.04, 1.01, none)] {
            let gain = Interval { mean, low, high: 1.4 };
            let change = Some(PathChange { what: "block=1MiB".to_owned(), gain });
            run.limit.as_mut().unwrap().change = change;
            assert!(of(&run, "change").starts_with(wanted), "{}", of(&run, "change"));
        }
    }

    #[test]
    fn threads_that_wait_in_calls_and_other_programs_are_not_the_work_of_the_path() {
        let mut run = run(2.0, [20, 990, 10]);
        let works = Interval { mean: 0.98, low: 0.9, high: 1.0 };
        for (busy_ns, wanted) in [
            (990_000_000, "convert: at work 98 % of the time"),
            (90_000_000, "convert: waiting in calls 98 % of the time"),
        ] {
            let thread = &mut run.threads[1];
            (thread.busy_ns, thread.elsewhere_ns) = (busy_ns, 1_000_000_000 - busy_ns);
            run.limit = found(LimitFound::Limit(convert()));
            run.limit.as_mut().unwrap().used = Some(PathUsed { works, waits_for_cpu: 0.0 });
            assert!(of(&run, "limit").starts_with(wanted), "{}", of(&run, "limit"));
        }
        run.limit = found(LimitFound::Limit(What::OtherPrograms));
        run.limit.as_mut().unwrap().others = 0.48;
        let limit = of(&run, "limit");
        assert!(limit.starts_with("other programs: they use 48 % of the CPUs"), "{limit}");
    }

    #[test]
    fn a_path_with_a_rate_is_told_how_much_of_what_it_carries_that_is() {
        let mut run = run(4.0, [300, 990, 400]);
        run.limit = found(LimitFound::Limit(convert()));
        assert_eq!(of(&run, "rate"), "");
        run.limit.as_mut().unwrap().rate_bytes_per_s = Some(60e6);
        assert_eq!(of(&run, "rate"), "60 MB/s, 3 % of the 2000 MB/s that the path carries");
        run.limit.as_mut().unwrap().rate_bytes_per_s = Some(3e9);
        assert!(
            of(&run, "rate")
                .ends_with("150 % of the 2000 MB/s that the path carries: it cannot be kept")
        );
    }

    #[test]
    fn the_longest_pause_is_told_with_the_buffers_that_a_source_needs_for_it() {
        let mut run = run(4.0, [300, 990, 400]);
        run.queues = vec![PathQueue { seen: vec![0; 9], ..PathQueue::default() }];
        assert_eq!(of(&run, "pause"), "", "one block came");
        run.longest_gap_ns = 4_000_000;
        let wanted = "at most 4 ms between two blocks: its buffers of 7.629 MiB hold that";
        assert_eq!(of(&run, "pause"), wanted);
        run.limit = found(LimitFound::NoSingleOne);
        run.limit.as_mut().unwrap().longest_gap_ns = 104_000_000;
        assert_eq!(
            of(&run, "pause"),
            "at most 104 ms between two blocks: a source that cannot wait needs 99.18 MiB of buffers; it has 7.629 MiB"
        );
    }

    #[test]
    fn a_host_carries_as_many_as_the_cpus_that_it_may_use_have_time_for() {
        // 1.5 s of CPU time for 1 GB; a quota of 3 CPUs.
        let mut run = run(3.0, [300, 800, 400]);
        let host = |run: &PathRun| of(run, "this host");
        assert_eq!(host(&run), "3 CPUs carry 2000 MB/s by CPU time");
        let serves = |each| Some(Served { name: "boards".to_owned(), each });
        run.served = serves(Brings::BytesPerS(84e6));
        run.links = vec![PathLink {
            element: 0,
            name: "uplink of a crate".to_owned(),
            bytes_per_s: 3e9,
            bytes_per_block: 1e6,
            by: LinkBy::Profile,
        }];
        assert_eq!(
            host(&run),
            "boards: 3 CPUs carry 23 by CPU time; uplink of a crate, by profile 35"
        );
        run.served = serves(Brings::EventsPerS(100e3));
        assert!(host(&run).starts_with("3 CPUs carry"), "no event was counted");
        run.events = 250_000;
        assert!(host(&run).starts_with("boards: 3 CPUs carry 5 by"));
        (run.served, run.layout) = (None, "fused".to_owned());
        run.tried = vec![TriedLayout { layout: "fused".to_owned(), bytes_per_s: 8e9 }];
        assert!(host(&run).starts_with("3 CPUs carry 1000 MB/s in the layout fused;"));
        run.is_paced = true;
        assert!(host(&run).starts_with("3 CPUs carry 8000 MB/s in a short run in the layout"));
    }

    #[test]
    fn a_rate_that_was_asked_for_is_kept_or_it_is_said_why_not() {
        let said = |change: fn(&mut RunRecord, &mut PathRun)| {
            let mut record = record();
            let mut run = *record.sections.path.take().unwrap();
            // 65.536 MB in 1 s.
            (run.asked_bytes_per_s, run.next_due_ns) = (Some(65.536e6), Some(1_000_000_000));
            change(&mut record, &mut run);
            asked(&record, &run)
        };
        let kept = said(|_, _| {});
        assert_eq!(kept.as_deref(), Some("asked 65.54 MB/s: kept"));
        let late = said(|_, run| run.wall_ns += 20_000_000);
        assert_eq!(late.as_deref(), Some("asked 65.54 MB/s: not kept, it took 20 ms longer"));
        let lossy = said(|record, _| {
            let mut ledger = Ledger::new("blocks of memory");
            ledger.lose("due when there was no room", 3);
            record.ledgers.push(ledger);
        });
        assert_eq!(lossy.as_deref(), Some("asked 65.54 MB/s: not kept, 3 blocks lost"));
        // Two blocks of 0.5 Hz were said to be 1 Hz, and kept.
        let short = said(|_, run| (run.blocks, run.wall_ns) = (28, 900_000_000));
        assert!(
            short
                .unwrap()
                .ends_with("not tested, the run is too short: 29 blocks or more are wanted")
        );
        assert!(daqmeter_stats::supports(29, 0.9) && !daqmeter_stats::supports(28, 0.9));
        assert_eq!(said(|_, run| run.asked_bytes_per_s = None), None);
        assert_eq!(said(|_, run| run.next_due_ns = None), None, "the record was edited");
        assert_eq!(
            said(|record, _| record.outcome = daqmeter_record::Outcome::Failed("bytes".into())),
            None
        );
    }
}
