//! Threads and queues of a path.

use daqmeter_record::border::sum;
use daqmeter_record::path::{PathQueue, PathRun, PathThread};
use daqmeter_record::units::{joined, show_ns, significant};

use crate::aligned::{NO_BREAK, TextColumn, number, table, table_without, wrapped};
use crate::groups::in_groups;

type ThreadOf<'a> = (&'a PathRun, &'a PathThread);

/// Writes the share of the thread's time in per cent.
fn percent((_, thread): &ThreadOf<'_>, ns: u64) -> String {
    significant(ns as f64 / thread.wall_ns.max(1) as f64 * 100.0, 3)
}

fn cpu_per((_, thread): &ThreadOf<'_>, count: u64, shown: fn(f64) -> String) -> String {
    if count == 0 { "-".to_owned() } else { shown(thread.cpu_ns as f64 / count as f64) }
}

pub(super) fn threads(run: &PathRun) -> String {
    let columns: [TextColumn<ThreadOf<'_>>; 11] = [
        ("thread", |(_, thread)| thread.name.replace(' ', NO_BREAK)),
        ("CPU", |(_, thread)| thread.cpu.map_or("any".to_owned(), |cpu| cpu.to_string())),
        ("blocks", |(_, thread)| thread.blocks.to_string()),
        ("busy [%]", |of| percent(of, of.1.busy_ns)),
        ("no data [%]", |of| percent(of, of.1.input_ns)),
        ("output full [%]", |of| percent(of, of.1.output_ns)),
        ("idle [%]", |of| percent(of, of.1.due_ns)),
        ("preempted [%]", |of| of.1.preempted_ns.map_or("-".to_owned(), |ns| percent(of, ns))),
        ("in calls [%]", |of| percent(of, of.1.elsewhere_ns)),
        ("CPU ns/B", |of| cpu_per(of, of.0.payload_bytes, |ns| significant(ns, 3))),
        ("CPU/event", |of| cpu_per(of, of.0.events, show_ns)),
    ];
    let all: Vec<ThreadOf<'_>> = run.threads.iter().map(|thread| (run, thread)).collect();
    const SPARE: [&str; 4] = ["CPU/event", "idle [%]", "in calls [%]", "CPU ns/B"];
    let same = in_groups(run.threads.iter().map(|thread| (thread.part.as_str(), thread)));
    let shared = same.iter().filter_map(|(part, threads)| within(part, threads));
    shared.fold(table_without(1, &columns, &SPARE, &all), |table, line| {
        table + &wrapped(&line, 3) + "\n"
    })
}

/// Says for which elements threads that do the same work; `None` for only their own.
fn within(part: &str, threads: &[&PathThread]) -> Option<String> {
    let parts = in_groups(
        threads
            .iter()
            .flat_map(|thread| thread.within.iter().map(|other| (other.name.as_str(), other.ns))),
    );
    let busy_ns = sum(threads.iter().map(|thread| thread.busy_ns));
    let share = |(name, ns): &(&str, Vec<u64>)| {
        let ns = sum(ns);
        let percent = 100.0 * ns as f64 / busy_ns.max(ns).max(1) as f64;
        format!("{name} {} %", significant(percent, 2))
    };
    let others = joined(parts.iter().map(share), ", ")?;
    Some(format!(" {part} works for: {others}"))
}

pub(super) fn queues(run: &PathRun) -> String {
    fn share(queue: &PathQueue, count: Option<&u64>) -> String {
        let looks = sum(&queue.seen);
        let count = count.filter(|_| looks > 0);
        number(count.map(|count| *count as f64 / looks as f64 * 100.0), 3)
    }
    let columns: [TextColumn<PathQueue>; 5] = [
        ("queue", |queue| format!("{} -> {}", queue.from, queue.to)),
        ("buffers", |queue| queue.seen.len().saturating_sub(1).to_string()),
        ("mean", |queue| number(queue.mean(), 3)),
        ("empty [%]", |queue| share(queue, queue.seen.first())),
        ("full [%]", |queue| share(queue, queue.seen.last())),
    ];
    table(1, &columns, &run.queues)
}
