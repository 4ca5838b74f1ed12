//! What a block costs each kind of work, by running a path for each with blocks of several sizes.

use std::collections::BTreeMap;

use daqmeter_harness::ordered;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_record::path::{End, PathRun, PathThread};
use daqmeter_record::shape::PathShape;
use daqmeter_twin::{CostPoint, MIN_RUNS, WorkCost};

use super::paths::{FOLDER, Paths, threads_by_row};

/// Sizes of blocks at which costs are measured.
const BLOCK_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Blocks from this size on are measured with their neighbours on other CPUs, too. Below it what comes on top for that goes with the
/// size: there it would be lost in what waking the neighbours costs.
const MIN_APART_BYTES: u64 = 64 << 10;
/// Buffers of a path whose threads wait rarely.
pub(super) const SEVERAL: usize = 8;
/// Time of a run for a cost.
pub(super) const COST_S: f64 = 0.025;
/// Bytes that a source in memory has where its own cost is not looked at: made quickly.
const SHORT_SPAN: &str = "span = \"1MiB\"\n";

pub(super) fn path_text(
    block_bytes: usize,
    buffers: usize,
    source: &str,
    stage: &str,
    sink: &str,
) -> String {
    format!(
        "title = \"calibration\"\nblock = \"{block_bytes}\"\nbuffers = {buffers}\n[source]\n{source}{stage}[sink]\n{sink}"
    )
}

pub(super) const MEMORY: &str = "kind = \"memory\"\n";
pub(super) const READ: &str = "kind = \"read\"\n";

/// One path for each kind of work: source, stage, sink.
fn kinds(file: &str) -> Vec<(String, String, String)> {
    let short = format!("{MEMORY}{SHORT_SPAN}");
    let through = |stage: String| (short.clone(), format!("[[stage]]\n{stage}\n"), READ.to_owned());
    let copies = CopyKernel::available().into_iter();
    let copies = copies.map(|kernel| format!("kind = \"copy\"\nby = \"{}\"", kernel.name()));
    let converts = (1..=8).map(|function| format!("kind = \"convert\"\nfunction = {function}"));
    let plain = ["checksum", "unix", "tcp"].map(|kind| format!("kind = \"{kind}\""));
    let work = "kind = \"work\"\ntime = \"1ns\"".to_owned();
    let stages = copies.chain(converts).chain(plain).chain([work]);
    let felix = "kind = \"felix\"\nscenario = \"gbt\"\nspan = \"1MiB\"\n".to_owned();
    let replay = "kind = \"file\"\npath = \"/proc/self/exe\"\ncached = true\n".to_owned();
    let write = format!("kind = \"file\"\npath = \"{file}\"\nmax = \"16MiB\"\n");
    let others = [
        (MEMORY.to_owned(), String::new(), READ.to_owned()),
        (replay, String::new(), READ.to_owned()),
        (felix, "[[stage]]\nkind = \"decode\"\n".to_owned(), READ.to_owned()),
        (short.clone(), String::new(), write),
    ];
    stages.map(through).chain(others).collect()
}

/// CPU time of a block by kind of work and size.
type Costs = BTreeMap<(String, u64), Vec<f64>>;

/// A CPU for all threads, and two for neighbours in turn, where there are two: other ones in each round.
pub(super) fn placements(cpus: &[u32], round: u64) -> (Vec<u32>, Option<Vec<u32>>) {
    let turn = usize::try_from(round).unwrap_or(0);
    let cpu = |at: usize| cpus[(turn + at) % cpus.len().max(1)];
    (vec![cpu(0)], (cpus.len() > 1).then(|| vec![cpu(0), cpu(1)]))
}

/// What waiting and waking costs where all threads are on one CPU, and where neighbours are on two: it is in what they work, and does
/// not belong to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandOvers {
    pub(super) near: HandOver,
    /// On one CPU with eight buffers, which go round between two waits.
    pub(super) several: HandOver,
    pub(super) far: HandOver,
}

/// What each block costs two threads that hand over one buffer as fast as they can: each waits for each block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandOver {
    /// CPU time of a wait.
    pub(super) sleep_ns: f64,
    /// CPU time of waking the other thread.
    pub(super) wake_ns: f64,
    /// For how long a thread is off its CPU.
    pub(super) off_ns: f64,
}

pub(super) fn costs(
    paths: &mut Paths<'_>,
    cpus: &[u32],
    hands: &HandOvers,
) -> Result<Vec<WorkCost>, String> {
    let file = format!("{FOLDER}/written");
    let mut jobs = Vec::new();
    for kind in kinds(&file) {
        for bytes in BLOCK_BYTES {
            jobs.push((kind.clone(), bytes, false));
            if bytes as u64 >= MIN_APART_BYTES {
                jobs.push((kind.clone(), bytes, true));
            }
        }
    }
    let (mut together, mut apart) = (Costs::new(), Costs::new());
    for round in 0..u64::from(MIN_RUNS) {
        let (one, two) = placements(cpus, round);
        for (_, ((source, stage, sink), bytes, is_apart)) in ordered(jobs.clone(), round + 1) {
            let (pins, found, hand) = match (is_apart, &two) {
                (false, _) => (&one, &mut together, &hands.several),
                (true, Some(two)) => (two, &mut apart, &hands.far),
                (true, None) => continue,
            };
            let text = path_text(bytes, SEVERAL, &source, &stage, &sink);
            let (shape, run) = paths.run(&text, COST_S, None, pins)?;
            book(found, &shape, &run, hand, source.contains(SHORT_SPAN));
        }
    }
    Ok(works(&together, &apart))
}

/// What the threads of a run worked for each block, without what it cost them to wake others. A source that was made short has no
/// costs of its own.
fn book(found: &mut Costs, shape: &PathShape, run: &PathRun, hand: &HandOver, is_short: bool) {
    let rows: Vec<&[PathThread]> = threads_by_row(shape, run).collect();
    for (at, (row, threads)) in shape.rows.iter().zip(&rows).enumerate() {
        let is_felix = shape.line.contains("felix");
        if row.work == "memory" && (is_short || is_felix) {
            continue;
        }
        let busy_ns: u64 = threads.iter().map(|thread| thread.busy_ns).sum();
        let waking_ns = wakes_per_block(shape, &rows, at, hand, run.blocks) * hand.wake_ns;
        let each_ns = busy_ns as f64 / run.blocks as f64 - row.added_ns - waking_ns;
        let all = found.entry((row.work.clone(), row.bytes)).or_default();
        all.push(each_ns.max(0.0));
    }
}

/// How often the threads of a row woke others for a block, from the CPU time of the waits of these. What waits at a socket is woken as a
/// part of the work.
fn wakes_per_block(
    shape: &PathShape,
    rows: &[&[PathThread]],
    at: usize,
    hand: &HandOver,
    blocks: u64,
) -> f64 {
    let is_ring = |first: usize| shape.rows[first].end != Some(End::Out);
    let waits = |row: usize, side: fn(&PathThread) -> u64| -> f64 {
        let each = rows[row].iter().map(|thread| {
            let waits_ns = thread.cpu_ns.saturating_sub(thread.busy_ns) as f64;
            let both_ns = (thread.input_ns + thread.output_ns).max(1) as f64;
            waits_ns * side(thread) as f64 / both_ns
        });
        let waits = each.sum::<f64>() / hand.sleep_ns.max(1.0) / blocks as f64;
        waits.min(1.0)
    };
    let behind = (at + 1 < rows.len() && is_ring(at)).then(|| waits(at + 1, |own| own.input_ns));
    let before = (at > 0 && is_ring(at - 1)).then(|| waits(at - 1, |own| own.output_ns));
    behind.unwrap_or(0.0) + before.unwrap_or(0.0)
}

/// The costs of each kind of work; sizes with fewer runs than a median needs are left out.
fn works(together: &Costs, apart: &Costs) -> Vec<WorkCost> {
    let mut works: Vec<WorkCost> = Vec::new();
    for ((work, block_bytes), all) in together {
        let sorted = daqmeter_stats::sorted(all);
        let runs = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if runs < MIN_RUNS {
            continue;
        }
        if works.last().is_none_or(|last| last.work != *work) {
            works.push(WorkCost {
                work: work.clone(),
                how: "CPU time per block outside of waits and without waking others, in paths that go as fast as they can: all threads on one CPU, and what comes on top on two in turn".to_owned(),
                points: Vec::new(),
            });
        }
        let cpu_ns = daqmeter_stats::quantile(&sorted, 0.5);
        let points = &mut works.last_mut().expect("it was pushed").points;
        points.push(CostPoint {
            block_bytes: *block_bytes,
            cpu_ns,
            low_ns: sorted[0],
            high_ns: sorted[sorted.len() - 1],
            apart_ns: on_top(together, apart, work, *block_bytes),
            runs,
        });
    }
    works
}

/// What comes on top where neighbours are on other CPUs. Of small blocks it goes with the size.
fn on_top(together: &Costs, apart: &Costs, work: &str, block_bytes: u64) -> f64 {
    let sizes = apart.keys().filter(|(known, _)| known == work);
    let measured = sizes.map(|(_, bytes)| *bytes).find(|bytes| *bytes >= block_bytes);
    let Some(bytes) = measured else {
        return 0.0;
    };
    let key = (work.to_owned(), bytes);
    let (Some(one), Some(two)) = (together.get(&key), apart.get(&key)) else {
        return 0.0;
    };
    let more = daqmeter_stats::median(two) - daqmeter_stats::median(one);
    more.max(0.0) * block_bytes as f64 / bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_cpus_cost_is_measured_for_large_blocks_and_goes_with_the_size_of_small_ones() {
        let costs = |all: &[(u64, f64)]| -> Costs {
            let point = |(bytes, ns): &(u64, f64)| (("read".to_owned(), *bytes), vec![*ns; 3]);
            all.iter().map(point).collect()
        };
        let together = costs(&[(4096, 600.0), (65_536, 4000.0), (1 << 20, 60_000.0)]);
        let apart = costs(&[(65_536, 8000.0), (1 << 20, 50_000.0)]);
        let works = works(&together, &apart);
        let found: Vec<(f64, f64)> =
            works[0].points.iter().map(|point| (point.cpu_ns, point.apart_ns)).collect();
        // Never negative: it was noise.
        assert_eq!(found, [(600.0, 250.0), (4000.0, 4000.0), (60_000.0, 0.0)]);
    }
}
