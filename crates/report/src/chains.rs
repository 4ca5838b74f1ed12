//! Whole paths that were run, by what is said of them and as pictures: parts from source to sink, how far each is used, the rate that it allows, and how full the
//! queues between them were.

use daqmeter_record::border::sum;
use std::collections::BTreeMap;
use std::fmt::Write;

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

/// One row of a picture.
struct Row {
    name: String,
    /// Threads or CPUs.
    capacity: String,
    /// Share of its time in which it works.
    used: f64,
    /// MB/s.
    allows: String,
    is_most_used: bool,
    /// Queue behind it, in words.
    queue: Option<String>,
}

/// Distance of two rows.
const ROW: usize = 52;
/// Where bars begin; the whole is 460 wide, so that it is legible on a telephone.
const LEFT: usize = 172;
/// Width of a bar of what is used all the time.
const BAR: f64 = 270.0;

/// None for a run that does not say what its resources are.
fn svg(run: &PathRun) -> Option<String> {
    let rows = rows(run);
    if rows.is_empty() {
        return None;
    }
    let height = rows.len() * ROW + 6;
    let spoken: Vec<String> = rows.iter().map(spoken).collect();
    let mut out = format!(
        "<svg class=\"path\" viewBox=\"0 0 460 {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(&spoken.join(". "))
    );
    for (at, row) in rows.iter().enumerate() {
        write_row(&mut out, at * ROW + 4, row);
    }
    out.push_str("</svg>");
    Some(out)
}

fn rows(run: &PathRun) -> Vec<Row> {
    let all = resources(run);
    let most_used = bottleneck(&all).map(|(resource, _)| resource.what.clone());
    let is_part = |resource: &&Resource| matches!(resource.what, What::Threads { .. });
    let parts = all.iter().filter(is_part);
    let others = all.iter().filter(|resource| !is_part(resource));
    let row = |resource: &Resource| row(run, resource, most_used.as_ref());
    parts.chain(others).map(row).collect()
}

fn row(run: &PathRun, resource: &Resource, most_used: Option<&What>) -> Row {
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
    let capacity = match resource.capacity {
        1.0 => format!("1 {noun}"),
        n => format!("{} {noun}s", significant(n, 3)),
    };
    Row {
        name: resource.what.text(),
        capacity,
        used: least_ns * blocks / run.wall_ns.max(1) as f64,
        allows: match least_ns > 0.0 {
            true => format!("allows {} MB/s", significant(allows / 1e6, 3)),
            false => "hardly works".to_owned(),
        },
        is_most_used: most_used == Some(&resource.what),
        queue,
    }
}

/// How full the queues behind a part's threads were.
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

fn spoken(row: &Row) -> String {
    let most = if row.is_most_used { ", most used" } else { "" };
    let Row { name, capacity, allows, .. } = row;
    format!("{name}, {capacity}: used {}{most}, {allows}", percent(row.used))
}

fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 3))
}

fn write_row(out: &mut String, y: usize, row: &Row) {
    let class = if row.is_most_used { " most" } else { "" };
    let mark = if row.is_most_used { " ◀ most" } else { "" };
    let width = row.used.min(1.0) * BAR;
    // Strings take all that is written.
    let _ = write!(
        out,
        "<rect class=\"node\" x=\"4\" y=\"{y}\" width=\"156\" height=\"30\" rx=\"5\"/><text class=\"place\" x=\"82\" y=\"{}\">{}</text>",
        y + 20,
        escaped(&boxed(row))
    );
    let _ = write!(
        out,
        "<rect class=\"limit\" x=\"{LEFT}\" y=\"{}\" width=\"{BAR}\" height=\"9\"/><rect class=\"rate{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"9\"/>",
        y + 20,
        y + 20
    );
    let _ = write!(
        out,
        "<text class=\"number\" x=\"{LEFT}\" y=\"{}\"><tspan class=\"strong\">used {}</tspan> · {}<tspan class=\"first\">{mark}</tspan></text>",
        y + 13,
        percent(row.used),
        row.allows
    );
    let Some(queue) = &row.queue else { return };
    let _ = write!(
        out,
        "<path class=\"edge\" d=\"M82 {} V{}\"/><text class=\"number\" x=\"96\" y=\"{}\">{}</text>",
        y + 30,
        y + ROW,
        y + 45,
        escaped(queue)
    );
}

/// The name, as much of it as fits into a box, and how many there are.
fn boxed(row: &Row) -> String {
    const MAX: usize = 17;
    let name = match row.name.chars().count() {
        0..=MAX => row.name.clone(),
        _ => row.name.chars().take(MAX - 1).chain(['…']).collect(),
    };
    match row.capacity.split_once(' ') {
        Some((count, _)) if count != "1" => format!("{name} ×{count}"),
        _ => name,
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
