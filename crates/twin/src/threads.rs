//! A path as threads on CPUs: rows of threads with bounded rings between them, which sleep, are woken, and share the CPUs.
//!
//! Stations have servers of their own; threads do not. Here a thread runs only on a CPU that is free or when another's slice is over, and
//! each sleep costs a wake-up. Blocks go to the threads of a row in turn, as in a path. Times are nanoseconds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use daqmeter_stats::LogHistogram;

use crate::draw::{Draw, Stream};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Threads {
    /// From source to sink.
    pub rows: Vec<ThreadRow>,
    /// CPUs by number that threads which are not pinned may use.
    pub cpus: Vec<u32>,
    /// Blocks of each ring.
    pub buffers: u64,
    /// Time between the blocks that are due, all streams together; none as fast as it goes.
    pub every_ns: Option<f64>,
    /// Whether the source waits for room.
    pub lossless: bool,
    /// From the moment at which a thread is woken to that at which it runs, where a CPU is free.
    pub wake_ns: Arc<[u64]>,
    /// CPU time of falling asleep and waking up, where other threads had the CPU meanwhile.
    pub sleep_cpu_ns: u64,
    /// The same where the CPU was idle.
    pub far_sleep_cpu_ns: u64,
    /// The same where a timer wakes the thread.
    pub timer_cpu_ns: u64,
    /// CPU time of waking another thread where no idle CPU has to be woken for it.
    pub near_wake_cpu_ns: u64,
    /// The same where another CPU was idle for so long: idle time and CPU time, shortest first. Between them it goes with the
    /// logarithm of the idle time, outside of them it is that of the nearest.
    pub far_wakes: Arc<[(u64, u64)]>,
    /// Time after which a thread leaves its CPU to another that is ready.
    pub slice_ns: u64,
    /// Time for which a thread that is ready stays with the CPU that it ran on last, though another is idle: schedulers keep threads
    /// where their caches are (`sched_migration_cost_ns` of Linux) and move them at ticks.
    pub stay_ns: u64,
    /// Blocks after which it ends, and of these the first that are not counted.
    pub blocks: u64,
    /// See `blocks`.
    pub warm_up: u64,
}

/// Threads that do the same.
#[derive(Clone, Debug, Default)]
pub struct ThreadRow {
    /// How many.
    pub threads: usize,
    /// CPUs that they are pinned to in turn; empty leaves them free.
    pub cpus: Vec<u32>,
    /// CPU time of a block where its neighbours run on the same CPU.
    pub work_ns: f64,
    /// CPU time on top where they run on others: bytes come from other caches.
    pub apart_ns: f64,
    /// Time for which it sleeps with a block.
    pub asleep_ns: f64,
    /// Blocks that fit between it and the row behind it, where these are not the buffers of a ring.
    pub room: Option<u64>,
}

/// What happened after the warm-up.
#[derive(Clone, Debug, Default)]
pub struct ThreadsOutcome {
    /// Time that was counted.
    pub seconds: f64,
    /// Blocks that came to the end.
    pub blocks: u64,
    /// Blocks that were due when there was no room.
    pub lost: u64,
    /// CPU time of a thread of each row, as a share of the time.
    pub cpu: Vec<f64>,
    /// Mean number of blocks in the rings before each row but the first, when the next is wanted.
    pub depth: Vec<f64>,
    /// From the time at which a block was due to the end of its work in the sink.
    pub latency_ns: LogHistogram,
}

/// A ring between two rows.
#[derive(Debug, Default)]
struct Ring {
    /// When the blocks in it were due, and the CPU that they were sent from.
    full: VecDeque<(u64, usize)>,
    /// Blocks that are empty, by the CPU that gave them back; none before the first time.
    empty: VecDeque<Option<usize>>,
    producer: usize,
    consumer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A block is wanted: of the ring before it, or the next that is due.
    Take,
    /// Room is wanted.
    Room,
    /// CPU time is used.
    Work,
    /// Work is done; a thread that sleeps with its blocks does so now.
    Rest,
    /// The block goes on.
    Send,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// For a neighbour.
    Asleep,
    /// Until that time, by a timer.
    Timer(u64),
    /// Woken; runs on that CPU from that time on.
    Waking(u64),
    /// Ready, without a CPU.
    Ready,
    /// Runs until that time.
    Running(u64),
}

struct Thread {
    row: usize,
    at: usize,
    /// The CPU that it is pinned to.
    pinned: Option<usize>,
    step: Step,
    place: Place,
    cpu: Option<usize>,
    /// The CPU that it ran on last.
    home: usize,
    /// Since when it is ready.
    ready_ns: u64,
    /// CPU time until the end of its present work.
    left_ns: u64,
    slice_end_ns: u64,
    /// Neighbours of the present block that were on other CPUs.
    apart: u32,
    /// Blocks that it has begun.
    count: u64,
    due_ns: u64,
    used_ns: u64,
}

/// Most blocks of a ring that are told apart.
const MAX_ROOM: u64 = 1 << 16;

/// Blocks behind which a source without end is cut off, in events for each.
const MAX_EVENTS_PER_BLOCK: u64 = 200;

/// Simulates it with the random numbers of a seed. A model without rows, CPUs or blocks gives an empty outcome.
pub fn run_threads(model: &Threads, seed: u64) -> ThreadsOutcome {
    if model.rows.len() < 2 || model.cpus.is_empty() || model.blocks <= model.warm_up {
        return ThreadsOutcome::default();
    }
    let mut live = Live::new(model, seed);
    let mut events = 0;
    while live.done < model.blocks && events < model.blocks.saturating_mul(MAX_EVENTS_PER_BLOCK) {
        if !live.next() {
            break;
        }
        events += 1;
    }
    live.outcome()
}

struct Live<'a> {
    model: &'a Threads,
    threads: Vec<Thread>,
    /// First thread of each row.
    first: Vec<usize>,
    /// Rings before each row but the first.
    rings: Vec<Vec<Ring>>,
    /// Which thread has each CPU.
    cpus: Vec<Option<usize>>,
    /// Since when each CPU is idle, where it is.
    idle_ns: Vec<u64>,
    numbers: Vec<u32>,
    ready: VecDeque<usize>,
    now_ns: u64,
    stream: Stream,
    wake: Draw,
    done: u64,
    lost: u64,
    begin: Option<Begin>,
    depth: Vec<(u64, u64)>,
    latency_ns: LogHistogram,
}

/// What had happened at the end of the warm-up.
struct Begin {
    now_ns: u64,
    lost: u64,
    used_ns: Vec<u64>,
}

impl<'a> Live<'a> {
    fn new(model: &'a Threads, seed: u64) -> Live<'a> {
        let pins = model.rows.iter().flat_map(|row| &row.cpus);
        let numbers: BTreeSet<u32> = model.cpus.iter().chain(pins).copied().collect();
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let mut threads = Vec::new();
        let mut first = Vec::new();
        for (row, what) in model.rows.iter().enumerate() {
            first.push(threads.len());
            threads.extend((0..what.threads).map(|at| {
                let pin = what.cpus.get(at % what.cpus.len().max(1));
                Thread {
                    row,
                    at,
                    pinned: pin.and_then(|cpu| numbers.iter().position(|own| own == cpu)),
                    step: Step::Take,
                    place: Place::Ready,
                    cpu: None,
                    home: (row + at) % numbers.len(),
                    ready_ns: 0,
                    left_ns: 0,
                    slice_end_ns: 0,
                    apart: 0,
                    count: 0,
                    due_ns: 0,
                    used_ns: 0,
                }
            }));
        }
        let rings = model.rows.windows(2).zip(first.windows(2));
        let rings = rings
            .map(|(pair, first)| rings_between(model, pair, first))
            .collect();
        let wake = match model.wake_ns.is_empty() {
            true => Draw::Constant(0),
            false => Draw::Sampled(model.wake_ns.clone()),
        };
        let mut live = Live {
            ready: (0..threads.len()).collect(),
            depth: vec![(0, 0); first.len() - 1],
            threads,
            first,
            rings,
            cpus: vec![None; numbers.len()],
            idle_ns: vec![0; numbers.len()],
            numbers,
            model,
            now_ns: 0,
            stream: Stream::new(seed, 0),
            wake,
            done: 0,
            lost: 0,
            begin: None,
            latency_ns: LogHistogram::default(),
        };
        (0..live.cpus.len()).for_each(|cpu| live.fill(cpu));
        live
    }

    /// The next event; false where there is none.
    fn next(&mut self) -> bool {
        let time = |thread: &Thread| match thread.place {
            Place::Timer(at) | Place::Waking(at) | Place::Running(at) => Some(at),
            Place::Asleep | Place::Ready => None,
        };
        let times = self.threads.iter().enumerate();
        let next = times
            .filter_map(|(at, thread)| Some((time(thread)?, at)))
            .min();
        let moves = (0..self.cpus.len())
            .filter_map(|cpu| Some((self.moves_at(cpu)?, cpu)))
            .min();
        if let Some((now_ns, cpu)) = moves
            && next.is_none_or(|(at_ns, _)| now_ns <= at_ns)
        {
            self.now_ns = self.now_ns.max(now_ns);
            self.fill(cpu);
            return true;
        }
        let Some((now_ns, at)) = next else {
            return false;
        };
        self.now_ns = now_ns;
        match self.threads[at].place {
            Place::Timer(_) => {
                self.woken(at);
            }
            Place::Waking(_) => self.runs(at),
            _ => self.worked(at),
        }
        true
    }

    /// A thread that slept may run. The CPU that was idle and is to run it.
    fn woken(&mut self, at: usize) -> Option<usize> {
        let cpu = self.free_cpu(at);
        match cpu {
            Some(cpu) => {
                self.give(cpu, at);
                let late_ns = self.wake.next(&mut 0, &mut self.stream);
                self.threads[at].place = Place::Waking(self.now_ns + late_ns);
            }
            None => self.queue(at),
        }
        cpu
    }

    fn give(&mut self, cpu: usize, at: usize) {
        self.cpus[cpu] = Some(at);
        self.threads[at].cpu = Some(cpu);
        self.threads[at].home = cpu;
    }

    fn queue(&mut self, at: usize) {
        self.threads[at].place = Place::Ready;
        self.threads[at].ready_ns = self.now_ns;
        self.ready.push_back(at);
    }

    /// Whether a CPU would take a thread that is ready: its own at once, another's when that has waited.
    fn would_take(&self, cpu: usize, at: usize) -> bool {
        let thread = &self.threads[at];
        let is_moved = thread.home != cpu && thread.pinned.is_none();
        self.may_use(at, cpu) && (!is_moved || self.now_ns >= thread.ready_ns + self.model.stay_ns)
    }

    /// When an idle CPU takes a thread of another.
    fn moves_at(&self, cpu: usize) -> Option<u64> {
        if self.cpus[cpu].is_some() {
            return None;
        }
        let may = self.ready.iter().filter(|&&at| self.may_use(at, cpu));
        may.map(|&at| self.threads[at].ready_ns + self.model.stay_ns)
            .min()
    }

    fn may_use(&self, at: usize, cpu: usize) -> bool {
        match self.threads[at].pinned {
            Some(pinned) => pinned == cpu,
            None => self.model.cpus.contains(&self.numbers[cpu]),
        }
    }

    fn free_cpu(&self, at: usize) -> Option<usize> {
        let home = self.threads[at].home;
        let all = std::iter::once(home).chain(0..self.cpus.len());
        all.into_iter()
            .find(|&cpu| self.cpus[cpu].is_none() && self.may_use(at, cpu))
    }

    /// Gives a CPU that is free to the thread that has been ready longest.
    fn fill(&mut self, cpu: usize) {
        let Some(place) = self.ready.iter().position(|&at| self.would_take(cpu, at)) else {
            return;
        };
        let at = self.ready.remove(place).expect("it is there");
        self.give(cpu, at);
        self.runs(at);
    }

    /// A thread has a CPU from now on.
    fn runs(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        thread.slice_end_ns = self.now_ns + self.model.slice_ns;
        self.go_on(at);
    }

    /// The present work of a thread, as far as its slice goes.
    fn go_on(&mut self, at: usize) {
        loop {
            let thread = &mut self.threads[at];
            if thread.left_ns > 0 {
                // At the end of its slice others may have its CPU.
                let until_ns = thread.slice_end_ns.max(self.now_ns + 1);
                let piece_ns = thread.left_ns.min(until_ns - self.now_ns);
                thread.left_ns -= piece_ns;
                thread.used_ns += piece_ns;
                thread.place = Place::Running(self.now_ns + piece_ns);
                return;
            }
            if !self.step(at) {
                return;
            }
        }
    }

    /// A piece of work is over.
    fn worked(&mut self, at: usize) {
        let is_over = self.now_ns >= self.threads[at].slice_end_ns;
        if is_over {
            let cpu = self.threads[at].cpu.expect("it runs");
            if self.ready.iter().any(|&other| self.would_take(cpu, other)) {
                self.threads[at].cpu = None;
                self.cpus[cpu] = None;
                self.queue(at);
                self.fill(cpu);
                return;
            }
            self.threads[at].slice_end_ns = self.now_ns + self.model.slice_ns;
        }
        self.go_on(at);
    }

    /// One step; false where the thread has left its CPU.
    fn step(&mut self, at: usize) -> bool {
        match self.threads[at].step {
            Step::Take if self.threads[at].row == 0 => self.due(at),
            Step::Take => self.take(at),
            Step::Room => self.room(at),
            Step::Work => {
                self.work(at);
                true
            }
            Step::Rest => self.rest(at),
            Step::Send => {
                self.send(at);
                true
            }
        }
    }

    /// The work of a block, dearer by the share of its neighbours that are on other CPUs.
    fn work(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        let row = &self.model.rows[thread.row];
        let is_end = thread.row == 0 || thread.row + 1 == self.model.rows.len();
        let sides = if is_end { 1.0 } else { 2.0 };
        let apart = f64::from(std::mem::take(&mut thread.apart)) / sides;
        thread.left_ns = whole(row.work_ns + row.apart_ns * apart);
        thread.step = Step::Rest;
    }

    /// Leaves the CPU; falling asleep and waking up are paid for when it runs again.
    fn leave(&mut self, at: usize, place: Place) -> bool {
        let thread = &mut self.threads[at];
        thread.place = place;
        thread.left_ns = match place {
            Place::Timer(_) => self.model.timer_cpu_ns,
            // By where it wakes up.
            _ => 0,
        };
        let cpu = thread.cpu.take().expect("it runs");
        self.cpus[cpu] = None;
        self.idle_ns[cpu] = self.now_ns;
        self.fill(cpu);
        false
    }

    /// The next block of a source.
    fn due(&mut self, at: usize) -> bool {
        let streams = self.model.rows[0].threads as f64;
        let thread = &mut self.threads[at];
        let turn = thread.count as f64 + thread.at as f64 / streams;
        thread.due_ns = self
            .model
            .every_ns
            .map_or(self.now_ns, |every_ns| whole(turn * every_ns * streams));
        if thread.due_ns > self.now_ns {
            let due_ns = thread.due_ns;
            return self.leave(at, Place::Timer(due_ns));
        }
        thread.count += 1;
        thread.step = Step::Room;
        true
    }

    fn take(&mut self, at: usize) -> bool {
        let (row, ring) = (self.threads[at].row - 1, self.inlet(at));
        let depth = self.rings[row][ring].full.len() as u64;
        let Some((due_ns, from)) = self.rings[row][ring].full.pop_front() else {
            return self.leave(at, Place::Asleep);
        };
        self.depth[row].0 += depth;
        self.depth[row].1 += 1;
        let thread = &mut self.threads[at];
        thread.apart += u32::from(thread.cpu != Some(from));
        thread.due_ns = due_ns;
        thread.count += 1;
        thread.step = match row + 2 == self.model.rows.len() {
            true => Step::Work,
            false => Step::Room,
        };
        true
    }

    fn room(&mut self, at: usize) -> bool {
        let (row, ring) = (self.threads[at].row, self.outlet(at));
        if let Some(from) = self.rings[row][ring].empty.pop_front() {
            let thread = &mut self.threads[at];
            thread.apart += u32::from(from.is_some() && thread.cpu != from);
            thread.step = Step::Work;
            return true;
        }
        let loses = row == 0 && self.model.every_ns.is_some() && !self.model.lossless;
        if loses {
            self.lost += 1;
            self.threads[at].step = Step::Take;
            return true;
        }
        self.leave(at, Place::Asleep)
    }

    fn rest(&mut self, at: usize) -> bool {
        let asleep_ns = whole(self.model.rows[self.threads[at].row].asleep_ns);
        self.threads[at].step = Step::Send;
        match asleep_ns {
            0 => true,
            ns => self.leave(at, Place::Timer(self.now_ns + ns)),
        }
    }

    fn send(&mut self, at: usize) {
        let (row, due_ns) = (self.threads[at].row, self.threads[at].due_ns);
        self.threads[at].step = Step::Take;
        let cpu = self.threads[at].cpu.expect("it runs");
        if row + 1 < self.model.rows.len() {
            let ring = self.outlet(at);
            let found = &mut self.rings[row][ring];
            found.full.push_back((due_ns, cpu));
            let consumer = found.consumer;
            let wanted = self.inlet(consumer);
            if wanted == ring && self.threads[consumer].step == Step::Take {
                self.wake(consumer, at);
            }
        } else {
            self.arrive(due_ns);
        }
        if row > 0 {
            // The block that it took goes back. It has begun one more than it took before.
            let rings = &mut self.rings[row - 1];
            let ring = inlet(
                self.threads[at].count - 1,
                self.threads[at].at,
                rings.len(),
                self.model.rows[row].threads,
            );
            rings[ring].empty.push_back(Some(cpu));
            let producer = rings[ring].producer;
            let wanted = self.outlet(producer);
            if wanted == ring && self.threads[producer].step == Step::Room {
                self.wake(producer, at);
            }
        }
    }

    fn wake(&mut self, at: usize, by: usize) {
        if self.threads[at].place != Place::Asleep {
            return;
        }
        let (waking_ns, sleep_ns) = match self.woken(at) {
            Some(cpu) => (
                self.far_wake_cpu_ns(self.now_ns - self.idle_ns[cpu]),
                self.model.far_sleep_cpu_ns,
            ),
            None => (self.model.near_wake_cpu_ns, self.model.sleep_cpu_ns),
        };
        if !self.is_through_socket(by, at) {
            self.threads[by].left_ns += waking_ns;
        }
        if !self.waits_at_work(at) {
            self.threads[at].left_ns += sleep_ns;
        }
    }

    /// Whether a socket lies between two threads: what waking costs is in the work of its ends.
    fn is_through_socket(&self, one: usize, other: usize) -> bool {
        let first = self.threads[one].row.min(self.threads[other].row);
        self.model.rows[first].room.is_some()
    }

    /// Whether a thread sleeps for room in a socket: that is a part of its work.
    fn waits_at_work(&self, at: usize) -> bool {
        let thread = &self.threads[at];
        thread.step == Step::Room && self.model.rows[thread.row].room.is_some()
    }

    /// What it costs to wake a thread for a CPU that was idle for so long.
    fn far_wake_cpu_ns(&self, idle_ns: u64) -> u64 {
        let all = &self.model.far_wakes;
        let at = all.partition_point(|(known_ns, _)| *known_ns < idle_ns);
        match (at.checked_sub(1).map(|below| all[below]), all.get(at)) {
            (Some((from_ns, from)), Some(&(to_ns, to))) => {
                let ln = |ns: u64| libm::log(ns.max(1) as f64);
                let share = (ln(idle_ns) - ln(from_ns)) / (ln(to_ns) - ln(from_ns));
                whole(from as f64 + share * (to as f64 - from as f64))
            }
            (Some((_, cpu_ns)), None) | (None, Some(&(_, cpu_ns))) => cpu_ns,
            (None, None) => self.model.near_wake_cpu_ns,
        }
    }

    fn arrive(&mut self, due_ns: u64) {
        self.done += 1;
        if self.done == self.model.warm_up.max(1) {
            self.begin = Some(Begin {
                now_ns: self.now_ns,
                lost: self.lost,
                used_ns: self.threads.iter().map(|thread| thread.used_ns).collect(),
            });
        } else if self.begin.is_some() {
            self.latency_ns.add(self.now_ns.saturating_sub(due_ns));
        }
    }

    /// The ring from which a thread takes its next block.
    fn inlet(&self, at: usize) -> usize {
        let thread = &self.threads[at];
        let rings = self.rings[thread.row - 1].len();
        inlet(
            thread.count,
            thread.at,
            rings,
            self.model.rows[thread.row].threads,
        )
    }

    /// The ring into which the block goes that a thread has begun.
    fn outlet(&self, at: usize) -> usize {
        let thread = &self.threads[at];
        let rings = self.rings[thread.row].len();
        let count = thread.count.saturating_sub(1);
        inlet(count, thread.at, rings, self.model.rows[thread.row].threads)
    }

    fn outcome(self) -> ThreadsOutcome {
        let Some(begin) = self.begin else {
            return ThreadsOutcome::default();
        };
        let passed_ns = (self.now_ns - begin.now_ns).max(1) as f64;
        let used = self.threads.iter().zip(&begin.used_ns);
        let used: Vec<f64> = used
            .map(|(thread, before)| (thread.used_ns - before) as f64)
            .collect();
        let row = |(at, row): (usize, &ThreadRow)| {
            let own = &used[self.first[at]..self.first[at] + row.threads];
            own.iter().sum::<f64>() / row.threads as f64 / passed_ns
        };
        let depth = self.depth.iter();
        ThreadsOutcome {
            seconds: passed_ns * 1e-9,
            blocks: self.done - self.model.warm_up.max(1),
            lost: self.lost - begin.lost,
            cpu: self.model.rows.iter().enumerate().map(row).collect(),
            depth: depth
                .map(|(sum, n)| *sum as f64 / (*n).max(1) as f64)
                .collect(),
            latency_ns: self.latency_ns,
        }
    }
}

fn rings_between(model: &Threads, pair: &[ThreadRow], first: &[usize]) -> Vec<Ring> {
    let (producers, consumers) = (pair[0].threads, pair[1].threads);
    let room = pair[0].room.unwrap_or(model.buffers).clamp(1, MAX_ROOM);
    let room = usize::try_from(room).expect("it is at most MAX_ROOM");
    let ring = |at: usize| Ring {
        full: VecDeque::new(),
        empty: vec![None; room].into(),
        producer: first[0] + at % producers,
        consumer: first[1] + at % consumers,
    };
    (0..producers.max(consumers)).map(ring).collect()
}

/// Which of the rings the block has that a thread handles as its `count`th: each thread goes round those that are its own.
fn inlet(count: u64, at: usize, rings: usize, threads: usize) -> usize {
    let own = (rings / threads).max(1) as u64;
    at + usize::try_from(count % own).expect("below the number of rings") * threads
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of a simulation; what is too long ends at the largest value"
)]
fn whole(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(threads: usize, work_ns: f64) -> ThreadRow {
        ThreadRow {
            threads,
            cpus: Vec::new(),
            work_ns,
            ..ThreadRow::default()
        }
    }

    /// Without any cost of sleeping.
    fn chain(rows: Vec<ThreadRow>, cpus: u32) -> Threads {
        Threads {
            rows,
            cpus: (0..cpus).collect(),
            buffers: 4,
            every_ns: None,
            lossless: true,
            wake_ns: Vec::new().into(),
            sleep_cpu_ns: 0,
            timer_cpu_ns: 0,
            near_wake_cpu_ns: 0,
            far_wakes: Vec::new().into(),
            slice_ns: 3_000_000,
            stay_ns: 0,
            far_sleep_cpu_ns: 0,
            blocks: 2000,
            warm_up: 200,
        }
    }

    fn block_ns(model: &Threads) -> f64 {
        let outcome = run_threads(model, 1);
        outcome.seconds * 1e9 / outcome.blocks as f64
    }

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.01, "{found}, {wanted}");
    }

    #[test]
    fn with_a_cpu_each_the_slowest_row_gives_the_rate_and_threads_share_it() {
        let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
        let model = chain(rows, 8);
        near(block_ns(&model), 5000.0);
        let outcome = run_threads(&model, 1);
        near(outcome.cpu[0], 0.2);
        near(outcome.cpu[1], 1.0);
        let shared = chain(vec![row(1, 1000.0), row(2, 5000.0), row(1, 2000.0)], 8);
        near(block_ns(&shared), 2500.0);
    }

    #[test]
    fn on_one_cpu_the_works_add_up() {
        let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
        near(block_ns(&chain(rows.clone(), 1)), 8000.0);
        // Pinned threads cannot go elsewhere.
        let mut pinned = chain(rows, 4);
        pinned.rows[0].cpus = vec![2];
        pinned.rows[1].cpus = vec![2];
        near(block_ns(&pinned), 6000.0);
    }

    #[test]
    fn blocks_at_a_rate_take_the_sum_of_the_works_and_are_lost_above_the_largest() {
        let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
        let mut model = chain(rows, 8);
        model.every_ns = Some(20_000.0);
        let outcome = run_threads(&model, 1);
        // The middle of a bucket of the histogram, which is 3 % wide.
        let p99_ns = outcome.latency_ns.quantile(0.99) as f64;
        assert!((p99_ns / 8000.0 - 1.0).abs() < 0.03, "{p99_ns}");
        assert_eq!(outcome.lost, 0);
        (model.every_ns, model.lossless) = (Some(2500.0), false);
        let outcome = run_threads(&model, 1);
        let share = outcome.lost as f64 / (outcome.lost + outcome.blocks) as f64;
        near(share, 0.5);
    }

    #[test]
    fn a_row_that_sleeps_uses_no_cpu_and_wake_ups_delay_each_block() {
        let mut model = chain(vec![row(1, 1000.0), row(1, 1000.0)], 4);
        model.rows[1].asleep_ns = 9000.0;
        near(block_ns(&model), 10_000.0);
        near(run_threads(&model, 1).cpu[1], 0.1);
        let mut idle = chain(vec![row(1, 1000.0), row(1, 1000.0)], 4);
        idle.every_ns = Some(100_000.0);
        idle.wake_ns = Arc::new([20_000]);
        let p50_ns = run_threads(&idle, 1).latency_ns.quantile(0.5) as f64;
        assert!((p50_ns / 42_000.0 - 1.0).abs() < 0.03, "{p50_ns}");
    }

    #[test]
    fn neighbours_on_other_cpus_make_work_dearer_and_wakes_cost_the_one_that_wakes() {
        let mut rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
        rows[1].apart_ns = 3000.0;
        let apart = chain(rows.clone(), 8);
        near(block_ns(&apart), 8000.0);
        near(block_ns(&chain(rows.clone(), 1)), 8000.0);
        // One neighbour of two.
        let mut half = chain(rows, 4);
        (half.rows[0].cpus, half.rows[1].cpus, half.rows[2].cpus) = (vec![0], vec![0], vec![1]);
        near(block_ns(&half), 7500.0);
        let mut idle = chain(vec![row(1, 1000.0), row(1, 1000.0)], 2);
        idle.every_ns = Some(100_000.0);
        (idle.timer_cpu_ns, idle.far_sleep_cpu_ns) = (20_000, 5_000);
        idle.far_wakes = Arc::new([(10_000, 3_000), (90_000, 9_000)]);
        (idle.rows[0].cpus, idle.rows[1].cpus) = (vec![0], vec![1]);
        let outcome = run_threads(&idle, 1);
        // A timer, work, and a CPU woken that was idle for more than 90 us; a sleep and work.
        near(outcome.cpu[0], 0.3);
        near(outcome.cpu[1], 0.06);
    }

    #[test]
    fn a_sleep_costs_by_where_the_thread_wakes_up_and_nothing_on_top_at_a_socket() {
        let block_ns_of = |cpus: u32, room: Option<u64>| {
            let mut model = chain(vec![row(1, 1000.0), row(1, 1000.0)], cpus);
            model.buffers = 1;
            (model.sleep_cpu_ns, model.far_sleep_cpu_ns) = (300, 5000);
            model.near_wake_cpu_ns = 100;
            model.rows[0].room = room;
            block_ns(&model)
        };
        // Both work, sleep and wake the other for each block.
        near(block_ns_of(1, None), 2800.0);
        // The consumer still pays for its wait; that of the source is in its work.
        near(block_ns_of(1, Some(1)), 2300.0);
        assert!(block_ns_of(2, None) > 10_000.0);
    }

    #[test]
    fn what_cannot_run_gives_nothing() {
        let outcome = run_threads(&chain(Vec::new(), 1), 1);
        assert_eq!((outcome.blocks, outcome.latency_ns.count()), (0, 0));
    }

    prop_compose! {
        fn chains()(
            works in proptest::collection::vec((1..3_usize, 100..50_000_u32), 2..5),
            cpus in 1..4_u32,
            buffers in 1..6_u64,
            stay_ns in 0..300_000_u64,
            sleep_cpu_ns in 0..4000_u64,
        ) -> Threads {
            // Rows of two on either side of rows of one.
            let rows = works.iter().enumerate();
            let rows = rows.map(|(at, (threads, ns))| row(if at % 2 == 1 { *threads } else { 1 }, f64::from(*ns)));
            Threads { buffers, stay_ns, sleep_cpu_ns, far_sleep_cpu_ns: 2 * sleep_cpu_ns, near_wake_cpu_ns: sleep_cpu_ns / 2, wake_ns: Arc::new([5000, 30_000]), ..chain(rows.collect(), cpus) }
        }
    }

    proptest! {
        /// Operational laws: no rate is above what each row and all CPUs together allow, and nobody works more than all the time.
        #[test]
        fn no_chain_is_faster_than_its_resources(model in chains()) {
            let outcome = run_threads(&model, 3);
            prop_assert_eq!(outcome.blocks, model.blocks - model.warm_up);
            let block_ns = outcome.seconds * 1e9 / outcome.blocks as f64;
            let rows = model.rows.iter().map(|row| row.work_ns / row.threads as f64);
            let all: f64 = model.rows.iter().map(|row| row.work_ns).sum();
            let least_ns = rows.fold(all / model.cpus.len() as f64, f64::max);
            // Blocks that were half done at the end of the warm-up.
            prop_assert!(block_ns > 0.95 * least_ns, "{block_ns} {least_ns}");
            prop_assert!(outcome.cpu.iter().all(|cpu| *cpu <= 1.01));
            let again = run_threads(&model, 3);
            prop_assert_eq!(again.seconds.to_bits(), outcome.seconds.to_bits());
        }
    }
}
