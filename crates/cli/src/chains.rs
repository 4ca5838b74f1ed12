//! Whole paths that were run, in sentences and as pictures: parts from source to sink, the use of each, the rate that it allows, and the
//! filling of the queues between them.

use daqmeter_record::border::sum;
use std::collections::BTreeMap;

use daqmeter_record::conditions::Conditions;
use daqmeter_record::path::{PathQueue, PathRun};
use daqmeter_record::resources::{Resource, What, bottleneck, resources};
use daqmeter_record::units::{plural, significant};
use daqmeter_record::{RunRecord, sanitise};
use serde::Serialize;

use crate::aligned::wrapped;
use crate::families::path::{Longest, asked, busy, longest, name};
use crate::findings::{About, Said, said};
use crate::rate;
use crate::svg::escaped;

/// A path, what is said of it, and its picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Chain {
    name: String,
    is_unsound: bool,
    said: Vec<Said>,
    /// None of a run that does not say what its resources are.
    svg: Option<String>,
}

/// Every path of the records, by its longest run; runs that failed are left out.
pub(crate) fn chains(all: &[RunRecord]) -> Vec<Chain> {
    if all.iter().all(|record| record.path.is_none()) {
        return Vec::new();
    }
    let is_unsound = Conditions::of(all).are_unsound();
    let usable = rate::usable(all);
    let newest = proved(&usable);
    let chain = |(name, Longest { record, run, of }): (String, Longest<'_>)| {
        let proved = newest.get(&name);
        let run = PathRun {
            limit: proved.and_then(|run| run.limit.clone()),
            trials: proved.map_or_else(Vec::new, |run| run.trials.clone()),
            // What memory carries is measured beside the runs that prove the limit.
            memory: proved.and_then(|run| run.memory.clone()).or_else(|| run.memory.clone()),
            ..run.clone()
        };
        let about = About { runs: of, asked: asked(record, &run), busy: busy(record) };
        Chain {
            is_unsound,
            said: said(&name, &run, record.engine.emulated, &about),
            name,
            svg: svg(&run),
        }
    };
    longest(&usable).into_iter().map(chain).collect()
}

/// The newest run of each path that says what limits it.
fn proved(records: &[RunRecord]) -> BTreeMap<String, &PathRun> {
    let runs = records.iter().filter_map(|record| {
        let run = record.path.as_deref().filter(|run| run.limit.is_some())?;
        Some((name(record)?, run))
    });
    runs.collect()
}

/// Every path for the terminal: its name, and a line for each answer.
pub(crate) fn texts(records: &[RunRecord]) -> Vec<String> {
    chains(records).iter().map(Chain::text).collect()
}

impl Chain {
    fn text(&self) -> String {
        let stamp = if self.is_unsound { " (UNSOUND)" } else { "" };
        let mut out = wrapped(&format!("{}{stamp}", sanitise::text(&self.name)), 0) + "\n";
        for Said { about, text } in &self.said {
            let line = format!("  {about:<10} {}", sanitise::text(text));
            out.push_str(&wrapped(&line, 13));
            out.push('\n');
        }
        out
    }
}

/// One row of a picture: a resource, and the queue behind it in words.
struct PartRow {
    name: String,
    /// Threads or CPUs.
    capacity: String,
    /// Share of its time in which it works, in per cent.
    percent: f64,
    /// Rate that it allows.
    allows: String,
    is_most_used: bool,
    queue: Option<String>,
}

/// None for a run that does not say what its resources are. The whole is 460 wide, so that it is legible on a telephone; a row is 52
/// high, a bar of full use 270 wide.
fn svg(run: &PathRun) -> Option<String> {
    let all = resources(run);
    let most_used = bottleneck(&all).map(|(resource, _)| &resource.what);
    let is_thread = |resource: &&Resource| matches!(resource.what, What::Threads { .. });
    let (parts, others): (Vec<&Resource>, Vec<&Resource>) = all.iter().partition(is_thread);
    let row = |resource| PartRow::of(run, resource, most_used);
    let rows: Vec<PartRow> = parts.into_iter().chain(others).map(row).collect();
    let spoken: Vec<String> = rows.iter().map(PartRow::spoken).collect();
    let pictures = rows.iter().enumerate().map(|(at, row)| row.svg(at * 52 + 4));
    (!rows.is_empty()).then(|| {
        format!(
            "<svg class=\"path\" viewBox=\"0 0 460 {}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            rows.len() * 52 + 6,
            escaped(&spoken.join(". ")),
            pictures.collect::<String>()
        )
    })
}

/// Filling of the queues behind a part's threads.
fn queue_behind(run: &PathRun, part: &str) -> Option<String> {
    let of_part = |queue: &&PathQueue| {
        let mut threads = run.threads.iter();
        threads.any(|thread| thread.part == part && thread.name == queue.from)
    };
    let queues: Vec<&PathQueue> = run.queues.iter().filter(of_part).collect();
    let room = queues.first()?.seen.len().saturating_sub(1);
    let looks = sum(queues.iter().flat_map(|queue| &queue.seen));
    let share = |count: u64| significant(count as f64 / looks.max(1) as f64 * 100.0, 2);
    let at =
        |of: fn(&[u64]) -> Option<&u64>| sum(queues.iter().filter_map(|queue| of(&queue.seen)));
    Some(format!(
        "queue of {}: empty {} %, full {} %",
        plural(room as u64, "block"),
        share(at(<[u64]>::first)),
        share(at(<[u64]>::last))
    ))
}

impl PartRow {
    fn of(run: &PathRun, resource: &Resource, most_used: Option<&What>) -> PartRow {
        let blocks = run.blocks.max(1) as f64;
        let least_ns = resource.least_ns();
        let allows = run.payload_bytes as f64 / blocks / least_ns * 1e9;
        let (noun, queue) = match &resource.what {
            What::Threads { name, .. } => ("thread", queue_behind(run, name)),
            What::Between { .. } | What::Link { .. } => ("link", None),
            What::Memory => ("memory", None),
            What::Buffers => ("ring", None),
            What::Cpu(_) | What::AllCpus => ("CPU", None),
        };
        PartRow {
            name: resource.what.text(),
            capacity: match resource.capacity {
                1.0 => format!("1 {noun}"),
                n => format!("{} {noun}s", significant(n, 3)),
            },
            percent: least_ns * blocks / run.wall_ns.max(1) as f64 * 100.0,
            allows: if least_ns > 0.0 {
                format!("allows {} MB/s", significant(allows / 1e6, 3))
            } else {
                "hardly works".to_owned()
            },
            is_most_used: most_used == Some(&resource.what),
            queue,
        }
    }

    fn spoken(&self) -> String {
        let PartRow { name, capacity, percent, allows, .. } = self;
        let most = if self.is_most_used { ", most used" } else { "" };
        format!("{name}, {capacity}: used {} %{most}, {allows}", significant(*percent, 3))
    }

    fn svg(&self, y: usize) -> String {
        let (class, mark) = if self.is_most_used { (" most", " ◀ most") } else { ("", "") };
        let (width, used) = (self.percent.min(100.0) * 2.7, significant(self.percent, 3));
        let (first, second, third) = (y + 13, y + 20, y + 45);
        let (name, allows) = (escaped(&self.boxed()), &self.allows);
        let queue = self.queue.as_deref().map(|queue| {
            format!(
                "<path class=\"edge\" d=\"M82 {} V{}\"/><text class=\"number\" x=\"96\" y=\"{third}\">{}</text>",
                y + 30,
                y + 52,
                escaped(queue)
            )
        });
        format!(
            "<rect class=\"node\" x=\"4\" y=\"{y}\" width=\"156\" height=\"30\" rx=\"5\"/><text class=\"place\" x=\"82\" y=\"{second}\">{name}</text>\
             <rect class=\"limit\" x=\"172\" y=\"{second}\" width=\"270\" height=\"9\"/><rect class=\"rate{class}\" x=\"172\" y=\"{second}\" width=\"{width:.1}\" height=\"9\"/>\
             <text class=\"number\" x=\"172\" y=\"{first}\"><tspan class=\"strong\">used {used} %</tspan> · {allows}<tspan class=\"first\">{mark}</tspan></text>{}",
            queue.unwrap_or_default()
        )
    }

    /// The name, as much of it as fits into a box, and the count.
    fn boxed(&self) -> String {
        const MAX: usize = 17;
        let name = match self.name.chars().count() {
            0..=MAX => self.name.clone(),
            _ => self.name.chars().take(MAX - 1).chain(['…']).collect(),
        };
        match self.capacity.split_once(' ') {
            Some((count, _)) if count != "1" => format!("{name} ×{count}"),
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::PathThread;

    use super::*;

    fn run() -> PathRun {
        let thread = |element, part: &str, name: &str, busy_ns| PathThread {
            name: name.to_owned(),
            part: part.to_owned(),
            element,
            wall_ns: 1_000_000,
            busy_ns,
            cpu_ns: busy_ns,
            ..PathThread::default()
        };
        let queue = |from: &str, to: &str, seen: &[u64]| PathQueue {
            from: from.to_owned(),
            to: to.to_owned(),
            seen: seen.to_vec(),
        };
        PathRun {
            line: "memory -> work -> read".to_owned(),
            wall_ns: 1_000_000,
            payload_bytes: 100 * 4096,
            blocks: 100,
            cpus: 4.0,
            threads: vec![
                thread(0, "<b>", "<b>", 100_000),
                thread(1, "work", "work.0", 900_000),
                thread(1, "work", "work.1", 1_000_000),
                thread(2, "read", "read", 200_000),
            ],
            queues: vec![
                queue("<b>", "work.0", &[0, 20, 30]),
                queue("<b>", "work.1", &[10, 20, 20]),
                queue("work.0", "read", &[50, 0, 0]),
            ],
            ..PathRun::default()
        }
    }

    #[test]
    fn every_resource_has_a_bar_and_the_one_that_is_used_most_is_marked() {
        let picture = svg(&run()).unwrap();
        assert_eq!(picture.matches("◀ most<").count(), 1, "{picture}");
        // Two threads, 1.9 of 2 ms: 95 %, and twice their own rate.
        assert!(picture.contains("work, 2 threads: used 95 %, most used, allows 431 MB/s"));
        assert!(picture.contains("width=\"256.5\""), "{picture}");
        assert!(picture.contains("all CPUs together, 4 CPUs: used 55 %"));
        assert!(picture.contains(">work ×2</text>"), "{picture}");
        assert!(!picture.contains("<b>"), "{picture}");
        assert!(picture.contains("queue of 2 blocks: empty 10 %, full 50 %"));
    }

    #[test]
    fn a_run_that_names_no_parts_has_no_picture() {
        let mut old = run();
        old.threads.iter_mut().for_each(|thread| thread.part.clear());
        assert_eq!(svg(&old), None);
    }
}
