//! Measures two sides in turns, in processes of their own, until their difference is decided.
//!
//! Two files of records differ mostly by the minutes in which they were made. Here both sides are
//! prepared, and work in slices of a fraction of a millisecond. Their order is A B B A or B A A B,
//! so that a disturbance of the host meets both. A group of four with a slice that lost its CPU is
//! left out on both sides, and counted. One value is the logarithm of B's time over A's in a group.
//! A pair of processes gives the median over a block of groups. Each block has fresh processes,
//! begun in random order with random shifts of stack and heap, since the layout of memory causes
//! differences too. The blocks' medians go to a [`daqmeter_stats::MedianSequence`], which may be
//! looked at after each.
//!
//! Begin with [`ask`]. `turns.rs` is a pair of prepared processes, `command.rs` a command that is
//! run as a whole; `side.rs` runs in a side's process.

mod answer;
mod block;
mod command;
mod process;
mod protocol;
mod question;
mod side;
mod switch;
mod turns;

use std::path::Path;
use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_sys::cpu_time;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;

pub use answer::{AbVerdict, Answer};
pub use block::Block;
pub use protocol::SideRequest;
pub use question::{AbSide, PATIENCE, Question};
pub use side::serve;
pub use switch::{Restored, Setting, Switch};

use answer::Tracked;
use block::Pair;
use turns::Operations;

/// Least time of a block for each stage without the start of its processes: a dozen groups. Longer
/// blocks tell little more, since the differences between processes remain.
const MIN_BLOCK: Duration = Duration::from_millis(10);
/// Least number of blocks in the budget: more blocks show more differences between processes.
const MIN_BLOCKS: u32 = 25;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    pub answers: Vec<Answer>,
    pub notes: Vec<String>,
    pub took_s: f64,
    /// Share of the time for which a hypervisor took the CPU of the sides, if it is one CPU and the
    /// kernel reports it.
    pub stolen: Option<f64>,
}

/// Measures until every stage is decided, the budget is over, or `stop` is set. Calls the callback
/// with the elapsed time after each block.
///
/// # Errors
/// Names the side with the error in one line.
pub fn ask(
    question: &Question,
    stop: &StopFlag,
    mut progress: impl FnMut(Duration),
) -> Result<Found, String> {
    let (began, stolen) = (Instant::now(), stolen_ns(question));
    let mut random = Xoshiro256PlusPlus::seed_from_u64(question.seed);
    let mut asked = Asked::default();
    while !asked.is_decided() && (asked.blocks == 0 || began.elapsed() < question.budget) {
        let left = question.budget.saturating_sub(began.elapsed());
        match asked.block(question, left, &mut random, stop) {
            // The signal ends the sides, too.
            Err(_) if stop.is_set() => break,
            done => done?,
        }
        progress(began.elapsed());
        if stop.is_set() {
            break;
        }
    }
    let took = began.elapsed();
    let stolen = stolen.zip(stolen_ns(question)).map(|(before, after)| {
        after.saturating_sub(before) as f64 / (took.as_nanos() as f64).max(1.0)
    });
    Ok(asked.found(took.as_secs_f64(), stolen))
}

fn stolen_ns(question: &Question) -> Option<u64> {
    let [a, b] = &question.sides;
    let cpu = a.cpu().filter(|cpu| b.cpu() == Some(*cpu))?;
    let times = cpu_time::by_cpu(Path::new("/"));
    times.get(&cpu).map(|times| times.steal_ns)
}

#[derive(Default)]
struct Asked {
    stages: Vec<Tracked>,
    operations: Operations,
    notes: Vec<String>,
    blocks: usize,
    groups: u64,
    measuring: Duration,
}

fn seconds(time_s: f64) -> Duration {
    Duration::try_from_secs_f64(time_s).unwrap_or(Duration::MAX)
}

impl Asked {
    fn is_decided(&self) -> bool {
        self.blocks > 0 && self.stages.iter().all(Tracked::is_decided)
    }

    fn block(
        &mut self,
        question: &Question,
        left: Duration,
        random: &mut Xoshiro256PlusPlus,
        stop: &StopFlag,
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut pair = Pair::start(question, &self.operations, random)?;
        let start = began.elapsed();
        if self.blocks == 0 {
            self.begin(question, &pair);
        }
        let open: Vec<usize> =
            (0..self.stages.len()).filter(|stage| !self.stages[*stage].is_decided()).collect();
        let time = self.time(&open, start);
        let time = time.min(question.budget / MIN_BLOCKS).min(left);
        let measuring = Instant::now();
        let blocks = pair.measure(&open, time, random, stop)?;
        for (stage, block) in open.iter().zip(blocks) {
            self.groups += block.groups + block.left_out;
            self.stages[*stage].add(block);
        }
        self.measuring += measuring.elapsed();
        self.blocks += 1;
        Ok(())
    }

    /// Returns the time of a block, given the start time of its processes: that time again, until
    /// the variances are known.
    fn time(&self, open: &[usize], start: Duration) -> Duration {
        let many = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let min = MIN_BLOCK.saturating_mul(many);
        let group_s = self.measuring.as_secs_f64() / self.groups.max(1) as f64;
        let start_groups = start.as_secs_f64() / group_s.max(1e-9) / f64::from(many.max(1));
        let wanted = open.iter().map(|stage| self.stages[*stage].wanted_groups(start_groups));
        let wanted = wanted.map(|groups| groups.map_or(start, |groups| seconds(groups * group_s)));
        wanted.max().unwrap_or(start).saturating_mul(many).clamp(min, min.max(start))
    }

    fn begin(&mut self, question: &Question, pair: &Pair<'_>) {
        let stages = pair.stages();
        let alpha = question.alpha / stages.len() as f64;
        self.operations = stages.iter().cloned().collect();
        let tracked = |(name, operations)| Tracked::new(name, operations, question.ignore, alpha);
        self.stages = stages.into_iter().map(tracked).collect();
        let [a, b] = pair.schemas();
        if a != b {
            self.notes.push(format!(
                "A writes records of schema {a}, B of schema {b}: a parameter may mean something else"
            ));
        }
    }

    fn found(self, took_s: f64, stolen: Option<f64>) -> Found {
        let block_s = took_s / self.blocks.max(1) as f64;
        let answers = self.stages.into_iter().map(|stage| stage.answer(block_s)).collect();
        Found { answers, notes: self.notes, took_s, stolen }
    }
}

#[cfg(test)]
mod tests;
