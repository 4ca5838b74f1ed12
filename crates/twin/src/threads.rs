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
    /// CPU time of falling asleep and waking up, where other threads had the CPU meanwhile. The first half of it passes before the
    /// thread leaves its CPU: what comes meanwhile is found, and nobody has to wake it.
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
    /// Whether a thread that is woken stays with its CPU though another is idle. Schedulers look for an idle one, but Linux takes an
    /// idle CPU of a virtual machine for one that the hypervisor has given to others (`vcpu_is_preempted`, kernel/sched/fair.c,
    /// `available_idle_cpu`): there threads that begin together stay together.
    pub keeps_cpu: bool,
    /// Blocks after which it ends, and of these the first that are not counted.
    pub blocks: u64,
    /// See `blocks`.
    pub warm_up: u64,
}

impl Threads {
    /// Threads on so many CPUs that sleep and wake up at no cost, as formulas have them: 4 buffers in each ring, nothing is lost.
    pub(crate) fn without_costs(rows: Vec<ThreadRow>, cpus: u32, blocks: u64) -> Threads {
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
            keeps_cpu: false,
            blocks,
            warm_up: blocks / 10,
        }
    }
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
    /// Whether it works in the block that it took, and wants room only to hand it on.
    pub in_place: bool,
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
    /// Found nothing, and has begun to fall asleep.
    is_waiting: bool,
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
        let together = numbers.iter().position(|cpu| *cpu == model.cpus[0]);
        let together = together.unwrap_or(0);
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
                    home: match model.keeps_cpu {
                        true => together,
                        false => (row + at) % numbers.len(),
                    },
                    ready_ns: 0,
                    left_ns: 0,
                    slice_end_ns: 0,
                    apart: 0,
                    is_waiting: false,
                    count: 0,
                    due_ns: 0,
                    used_ns: 0,
                }
            }));
        }
        let rings = model.rows.windows(2).zip(first.windows(2));
        let rings = rings.map(|(pair, first)| rings_between(model, pair, first)).collect();
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
        let next = times.filter_map(|(at, thread)| Some((time(thread)?, at))).min();
        let moves = (0..self.cpus.len()).filter_map(|cpu| Some((self.moves_at(cpu)?, cpu))).min();
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
        may.map(|&at| self.threads[at].ready_ns + self.model.stay_ns).min()
    }

    fn may_use(&self, at: usize, cpu: usize) -> bool {
        match self.threads[at].pinned {
            Some(pinned) => pinned == cpu,
            None => self.model.cpus.contains(&self.numbers[cpu]),
        }
    }

    fn free_cpu(&self, at: usize) -> Option<usize> {
        let thread = &self.threads[at];
        let home = thread.pinned.unwrap_or(thread.home);
        let others = match self.model.keeps_cpu {
            true => 0,
            false => self.cpus.len(),
        };
        let all = std::iter::once(home).chain(0..others);
        all.into_iter().find(|&cpu| self.cpus[cpu].is_none() && self.may_use(at, cpu))
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
        thread.due_ns =
            self.model.every_ns.map_or(self.now_ns, |every_ns| whole(turn * every_ns * streams));
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
            return self.waits(at);
        };
        self.waited(at);
        self.depth[row].0 += depth;
        self.depth[row].1 += 1;
        let thread = &mut self.threads[at];
        thread.apart += u32::from(thread.cpu != Some(from));
        thread.due_ns = due_ns;
        thread.count += 1;
        let is_last = row + 2 == self.model.rows.len();
        thread.step = match is_last || self.model.rows[row + 1].in_place {
            true => Step::Work,
            false => Step::Room,
        };
        true
    }

    /// Nothing is there. A thread looks once more when it has half fallen asleep, and leaves its CPU where there is still nothing.
    /// Waits in a system call are a part of its work.
    fn waits(&mut self, at: usize) -> bool {
        let half_ns = self.model.sleep_cpu_ns / 2;
        let is_first = !self.threads[at].is_waiting;
        if is_first && half_ns > 0 && !self.waits_at_work(at) {
            let thread = &mut self.threads[at];
            thread.is_waiting = true;
            thread.left_ns += half_ns;
            return true;
        }
        self.leave(at, Place::Asleep)
    }

    /// Something came. Where that was before the thread had left its CPU it only has to read its clocks again, which is about what
    /// it had done before.
    fn waited(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        if std::mem::take(&mut thread.is_waiting) {
            thread.left_ns += self.model.sleep_cpu_ns / 2;
        }
    }

    fn room(&mut self, at: usize) -> bool {
        let (row, ring) = (self.threads[at].row, self.outlet(at));
        if let Some(from) = self.rings[row][ring].empty.pop_front() {
            self.waited(at);
            let behind = self.behind_room(at);
            let thread = &mut self.threads[at];
            thread.apart += u32::from(from.is_some() && thread.cpu != from);
            thread.step = behind;
            return true;
        }
        let loses = row == 0 && self.model.every_ns.is_some() && !self.model.lossless;
        if loses {
            self.lost += 1;
            self.threads[at].step = Step::Take;
            return true;
        }
        self.waits(at)
    }

    /// What follows when there is room.
    fn behind_room(&self, at: usize) -> Step {
        let row = self.threads[at].row;
        match row > 0 && self.model.rows[row].in_place {
            true => Step::Send,
            false => Step::Work,
        }
    }

    fn rest(&mut self, at: usize) -> bool {
        let asleep_ns = whole(self.model.rows[self.threads[at].row].asleep_ns);
        let row = self.threads[at].row;
        let wants_room =
            self.model.rows[row].in_place && row > 0 && row + 1 < self.model.rows.len();
        self.threads[at].step = match wants_room {
            true => Step::Room,
            false => Step::Send,
        };
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
            Some(cpu) => {
                (self.far_wake_cpu_ns(self.now_ns - self.idle_ns[cpu]), self.model.far_sleep_cpu_ns)
            }
            None => (self.model.near_wake_cpu_ns, self.model.sleep_cpu_ns),
        };
        if !self.is_through_socket(by, at) {
            self.threads[by].left_ns += waking_ns;
        }
        if !self.waits_at_work(at) {
            // Half of a wait on a busy CPU was paid before, and half is paid when the thread finds what it waits for.
            self.threads[at].left_ns += sleep_ns.saturating_sub(self.model.sleep_cpu_ns / 2 * 2);
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
        inlet(thread.count, thread.at, rings, self.model.rows[thread.row].threads)
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
        let used: Vec<f64> =
            used.map(|(thread, before)| (thread.used_ns - before) as f64).collect();
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
            depth: depth.map(|(sum, n)| *sum as f64 / (*n).max(1) as f64).collect(),
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
mod tests;
