//! The discrete-event simulation: the next event of any station or source, again and again, until the time is over.
//!
//! Each station and each source has at most one event ahead, so a tournament finds the next one ([`Tournament`]). An item is 16 bytes and
//! may stand for a batch (a block, a burst of triggers). Nothing depends on the host: time is an integer, each station has its own stream
//! of random numbers, and equal times are ordered by station. Begin with [`run`].

use std::collections::VecDeque;

use daqmeter_stats::LogHistogram;

use crate::draw::{Draw, Stream, whole};
use crate::model::{Arrivals, Full, Model, ModelError, Rest, Room, SECOND_PS, Station, Takes};
use crate::outcome::{Outcome, SourceOutcome, StationOutcome};
use crate::tree::{NEVER, Tournament};

/// What a run may take: some minutes.
const MAX_EVENTS: u64 = 4_000_000_000;
/// Items that may wait at once, over all stations: 80 MB for each of the runs that go at the same time.
const MAX_WAITING: u64 = 5_000_000;
/// Events at one moment: more than items that were sent at once pass in any row of stations.
const MAX_AT_A_MOMENT: u64 = 20_000_000;

/// What flows.
#[derive(Clone, Copy, Debug)]
struct Item {
    born_ps: u64,
    bytes: u32,
    source: u32,
}

/// Items that were served and found no room behind; each keeps its server, or its source.
type Held = VecDeque<(Item, u32)>;

/// A station while it runs.
struct Live {
    waiting: VecDeque<Item>,
    /// In service, the first to end last.
    working: Vec<(u64, Item)>,
    held: Held,
    /// Stations and sources that hold an item for this one, in the order in which they came.
    wanting: VecDeque<u32>,
    /// When a polling server looks next, while it has nothing to do.
    looks_at_ps: Option<u64>,
    last_tick_ps: u64,
    /// Items that may be begun before the server rests.
    gate: usize,
    bytes: u64,
    is_busy: bool,
    turn: usize,
    trace_at: usize,
    rest_at: usize,
    stream: Stream,
    work_ps: u64,
    look_ps: u64,
    counted: StationOutcome,
    counted_until_ps: u64,
}

impl Live {
    fn new(seed: u64, at: usize) -> Live {
        Live {
            waiting: VecDeque::new(),
            working: Vec::new(),
            held: Held::new(),
            wanting: VecDeque::new(),
            looks_at_ps: None,
            last_tick_ps: 0,
            gate: usize::MAX,
            bytes: 0,
            is_busy: false,
            turn: 0,
            trace_at: 0,
            rest_at: 0,
            stream: Stream::new(seed, at),
            work_ps: 0,
            look_ps: 0,
            counted: StationOutcome::default(),
            counted_until_ps: 0,
        }
    }

    fn items(&self) -> u64 {
        (self.waiting.len() + self.working.len() + self.held.len()) as u64
    }

    /// Adds the time since the last change to the means, in item-picoseconds.
    fn count_until(&mut self, now_ps: u64) {
        let passed = (now_ps - self.counted_until_ps) as f64;
        self.counted_until_ps = now_ps;
        self.counted.mean_items += self.items() as f64 * passed;
        self.counted.mean_bytes += self.bytes as f64 * passed;
    }

    /// When its next event is.
    fn next_ps(&self) -> u64 {
        match self.looks_at_ps {
            Some(at) => at,
            None => self.working.last().map_or(NEVER, |(end, _)| *end),
        }
    }
}

/// A source while it runs.
struct Origin {
    next_ps: u64,
    held: Held,
    /// Items of this burst that still have to come.
    burst_left: u32,
    busy_by: u32,
    busy_since_ps: u64,
    busy_ps: u64,
    turn: usize,
    gap_at: usize,
    size_at: usize,
    stream: Stream,
    counted: SourceOutcome,
}

struct Simulation<'a> {
    model: &'a Model,
    stations: Vec<Live>,
    origins: Vec<Origin>,
    tree: Tournament,
    now_ps: u64,
    in_system: u64,
    /// Stations that got room in this event, to be offered to who wants it.
    freed: Vec<usize>,
    left: u64,
    left_bytes: u64,
    latency_ps: LogHistogram,
    latency_sum_ps: f64,
}

/// Runs a model with the random numbers of a seed.
///
/// # Errors
/// When the model contradicts itself, has too many events, or more items wait than fit into memory.
pub fn run(model: &Model, seed: u64) -> Result<Outcome, ModelError> {
    model.check()?;
    let mut simulation = Simulation::new(model, seed);
    simulation.begin();
    simulation.go()
}

impl Simulation<'_> {
    fn new(model: &Model, seed: u64) -> Simulation<'_> {
        let stations = model.stations.len();
        let origin = |at: usize| Origin {
            next_ps: NEVER,
            held: Held::new(),
            burst_left: 0,
            busy_by: 0,
            busy_since_ps: 0,
            busy_ps: 0,
            turn: 0,
            gap_at: 0,
            size_at: 0,
            stream: Stream::new(seed, stations + at),
            counted: SourceOutcome::default(),
        };
        Simulation {
            model,
            stations: (0..stations).map(|at| Live::new(seed, at)).collect(),
            origins: (0..model.sources.len()).map(origin).collect(),
            tree: Tournament::new(stations + model.sources.len()),
            now_ps: 0,
            in_system: 0,
            freed: Vec::new(),
            left: 0,
            left_bytes: 0,
            latency_ps: LogHistogram::default(),
            latency_sum_ps: 0.0,
        }
    }

    /// Servers that poll fall asleep, sources draw their first gap, populations come.
    fn begin(&mut self) {
        for at in 0..self.stations.len() {
            if self.model.stations[at].poll.is_some() {
                self.rest(at);
                self.plan(at);
            }
        }
        for at in 0..self.origins.len() {
            match self.model.sources[at].arrivals {
                Arrivals::Open { first_ps, burst, .. } => {
                    let gap = self.gap(at);
                    self.origins[at].burst_left = burst;
                    self.origins[at].next_ps = first_ps.unwrap_or(gap);
                    self.plan_source(at);
                }
                Arrivals::Closed(items) => (0..items).for_each(|_| self.emit(at)),
            }
        }
    }

    /// The events in their order. Times of warm-up and samples are looked for between two events.
    fn go(mut self) -> Result<Outcome, ModelError> {
        let end_ps = self.model.time_ps;
        let (mut events, mut moment_began) = (0, 0);
        let mut sampled = 0;
        let mut warm_up_ps = Some(self.model.warm_up_ps).filter(|time| *time > 0);
        let mut stuck_at_s = None;
        let mut mark_ps = self.mark(sampled, warm_up_ps);
        loop {
            let (time_ps, leaf) = self.tree.first();
            while mark_ps <= time_ps && mark_ps <= end_ps {
                if warm_up_ps == Some(mark_ps) {
                    self.now_ps = mark_ps;
                    self.forget();
                    warm_up_ps = None;
                }
                while self.sample_ps(sampled) <= mark_ps {
                    self.sample();
                    sampled += 1;
                }
                mark_ps = self.mark(sampled, warm_up_ps);
            }
            if time_ps > end_ps {
                if time_ps == NEVER && self.in_system > 0 {
                    stuck_at_s = Some(seconds(self.now_ps));
                }
                self.now_ps = end_ps;
                return Ok(self.end(events, stuck_at_s));
            }
            events += 1;
            if time_ps > self.now_ps {
                (self.now_ps, moment_began) = (time_ps, events);
            }
            let at_a_moment = events - moment_began;
            if events > MAX_EVENTS || at_a_moment > MAX_AT_A_MOMENT || self.in_system > MAX_WAITING
            {
                return Err(self.too_much(events, at_a_moment));
            }
            match leaf.checked_sub(self.stations.len()) {
                None => self.at_station(leaf),
                Some(source) => self.at_source(source),
            }
        }
    }

    /// The next time at which something is looked at from outside.
    fn mark(&self, sampled: usize, warm_up_ps: Option<u64>) -> u64 {
        self.sample_ps(sampled).min(warm_up_ps.unwrap_or(NEVER))
    }

    fn sample_ps(&self, sampled: usize) -> u64 {
        if sampled >= self.model.samples {
            return NEVER;
        }
        let share = (sampled as u128 + 1) * u128::from(self.model.time_ps);
        u64::try_from(share / self.model.samples as u128).unwrap_or(NEVER)
    }

    fn sample(&mut self) {
        for station in &mut self.stations {
            station.counted.samples_bytes.push(station.bytes);
        }
    }

    /// The warm-up is over: counting begins, with the samples that there are.
    fn forget(&mut self) {
        let now_ps = self.now_ps;
        for station in &mut self.stations {
            station.counted = StationOutcome {
                samples_bytes: std::mem::take(&mut station.counted.samples_bytes),
                max_items: station.items(),
                max_bytes: station.bytes,
                ..StationOutcome::default()
            };
            station.counted_until_ps = now_ps;
            // What began before counts from here on.
            let ahead = |(end, _): &(u64, Item)| end - now_ps;
            station.work_ps = station.working.iter().map(ahead).sum();
            station.look_ps = 0;
        }
        for origin in &mut self.origins {
            origin.counted = SourceOutcome {
                first_busy_s: origin.counted.first_busy_s,
                ..SourceOutcome::default()
            };
            (origin.busy_ps, origin.busy_since_ps) = (0, now_ps);
        }
        (self.left, self.left_bytes, self.latency_sum_ps) = (0, 0, 0.0);
        self.latency_ps = LogHistogram::default();
    }

    fn too_much(&self, events: u64, at_a_moment: u64) -> ModelError {
        let longest = (0..self.stations.len()).max_by_key(|at| self.stations[*at].items());
        let name = longest.map_or("", |at| &self.model.stations[at].name);
        let at_s = seconds(self.now_ps);
        let problem = if at_a_moment > MAX_AT_A_MOMENT {
            format!("time stands still at {at_s} s: items go round without taking any")
        } else if events > MAX_EVENTS {
            format!("more than {MAX_EVENTS} events, at {at_s} s: simulate a shorter time")
        } else {
            format!(
                "more than {MAX_WAITING} items wait at {at_s} s, most of them here: it cannot keep up; give it a buffer, or simulate a shorter time"
            )
        };
        ModelError { what: name.to_owned(), problem }
    }

    /// An item was served, or a polling server looks.
    fn at_station(&mut self, at: usize) {
        let live = &mut self.stations[at];
        match live.looks_at_ps.take() {
            Some(_) => self.look(at),
            None => {
                live.count_until(self.now_ps);
                let (_, item) = live.working.pop().expect("it had an event");
                live.counted.done += 1;
                self.pass_on(at, item);
                self.start(at);
            }
        }
        self.settle();
        self.plan(at);
    }

    /// A polling server looks: it works if there is something, and rests again if not.
    fn look(&mut self, at: usize) {
        let poll = self.model.stations[at].poll.as_ref().expect("only these look");
        let live = &mut self.stations[at];
        if let Rest::Timer(every_ps) = poll.rest {
            live.last_tick_ps = self.now_ps / every_ps * every_ps;
        }
        if poll.takes == Takes::Found {
            live.gate = live.waiting.len();
        }
        live.work_ps += poll.look_ps;
        live.look_ps += poll.look_ps;
        if live.waiting.is_empty() {
            self.rest_after(at, poll.look_ps);
        } else {
            self.serve(at, poll.look_ps);
        }
    }

    fn rest(&mut self, at: usize) {
        self.rest_after(at, 0);
    }

    /// Rests once it has done something for so long.
    fn rest_after(&mut self, at: usize, used_ps: u64) {
        let poll = self.model.stations[at].poll.as_ref().expect("only these rest");
        let live = &mut self.stations[at];
        let free_ps = self.now_ps + used_ps;
        let until_ps = match &poll.rest {
            Rest::Sleep(draw) => {
                free_ps.saturating_add(draw.next(&mut live.rest_at, &mut live.stream))
            }
            Rest::Timer(every_ps) => free_ps.max(live.last_tick_ps + every_ps),
        };
        live.looks_at_ps = Some(until_ps);
    }

    /// Servers that are free take items that wait; a polling server that is done rests.
    fn start(&mut self, at: usize) {
        let live = &self.stations[at];
        if live.looks_at_ps.is_some() {
            return;
        }
        if live.gate > 0 && !live.waiting.is_empty() {
            self.serve(at, 0);
        } else if self.model.stations[at].poll.is_some()
            && live.working.is_empty()
            && live.held.is_empty()
        {
            self.rest(at);
        }
    }

    /// As many items as there are servers for, each begun after `delay_ps`.
    fn serve(&mut self, at: usize, delay_ps: u64) {
        while self.has_server(at) {
            let (station, live) = (&self.model.stations[at], &mut self.stations[at]);
            let Some(item) = live.waiting.pop_front() else {
                return;
            };
            let service_ps = service_ps(station, live, item.bytes);
            live.work_ps += service_ps;
            if live.gate != usize::MAX {
                live.gate -= 1;
            }
            let end_ps = self.now_ps.saturating_add(delay_ps).saturating_add(service_ps);
            // Of items that end together, the older one is nearer to the end of the list.
            let place = live.working.partition_point(|(other, _)| *other > end_ps);
            live.working.insert(place, (end_ps, item));
        }
    }

    /// A served item goes on, gets lost, or leaves.
    fn pass_on(&mut self, at: usize, item: Item) {
        let station = &self.model.stations[at];
        let live = &mut self.stations[at];
        let mut to = station.to.get(live.turn).copied();
        if station.to.len() > 1 {
            live.turn = (live.turn + 1) % station.to.len();
        }
        let is_lost = station.loss > 0.0 && live.stream.uniform() < station.loss;
        if is_lost {
            to = station.lost_to;
            match to {
                Some(_) => live.counted.sent_again += 1,
                None => live.counted.lost_on_way += 1,
            }
        }
        match to {
            Some(to) if self.has_room(to, item) => {
                self.release(at, item);
                self.accept(to, item);
            }
            Some(to) if self.model.stations[to].full == Full::Lose => {
                self.release(at, item);
                self.lose(to, item);
            }
            Some(to) => {
                self.stations[at].held.push_back((item, leaf(to)));
                self.stations[to].wanting.push_back(leaf(at));
            }
            None => {
                self.release(at, item);
                self.leave(item, is_lost);
            }
        }
    }

    fn has_room(&self, at: usize, item: Item) -> bool {
        let (room, live) = (self.model.stations[at].room, &self.stations[at]);
        room == Room::default()
            || live.items() < room.items && live.bytes + u64::from(item.bytes) <= room.bytes
    }

    fn lose(&mut self, at: usize, item: Item) {
        self.stations[at].counted.lost_full += 1;
        self.end_of(item);
    }

    /// An item is no longer in a station.
    fn release(&mut self, at: usize, item: Item) {
        let live = &mut self.stations[at];
        live.bytes -= u64::from(item.bytes);
        if !live.wanting.is_empty() {
            self.freed.push(at);
        }
        if live.is_busy
            && let Some(busy) = &self.model.stations[at].busy
            && live.bytes < busy.below_bytes
        {
            live.is_busy = false;
            busy.stops.iter().for_each(|source| self.let_go(*source));
        }
    }

    /// An item comes to a station that has room.
    fn accept(&mut self, at: usize, item: Item) {
        let live = &mut self.stations[at];
        live.count_until(self.now_ps);
        live.bytes += u64::from(item.bytes);
        live.waiting.push_back(item);
        live.counted.max_items = live.counted.max_items.max(live.items());
        live.counted.max_bytes = live.counted.max_bytes.max(live.bytes);
        if let Some(busy) = &self.model.stations[at].busy
            && !live.is_busy
            && live.bytes >= busy.above_bytes
        {
            live.is_busy = true;
            busy.stops.iter().for_each(|source| self.hold(*source));
        }
        let live = &self.stations[at];
        if live.looks_at_ps.is_none() && self.has_server(at) {
            self.serve(at, 0);
            self.plan(at);
        }
    }

    /// Whether a server may begin an item now.
    fn has_server(&self, at: usize) -> bool {
        let live = &self.stations[at];
        let used = live.working.len() + live.held.len();
        live.gate > 0
            && self.model.stations[at].servers.is_none_or(|servers| used < servers as usize)
    }

    fn hold(&mut self, source: usize) {
        let origin = &mut self.origins[source];
        if origin.busy_by == 0 {
            origin.busy_since_ps = self.now_ps;
            let at_s = seconds(self.now_ps);
            origin.counted.first_busy_s.get_or_insert(at_s);
        }
        origin.busy_by += 1;
    }

    fn let_go(&mut self, source: usize) {
        let origin = &mut self.origins[source];
        origin.busy_by -= 1;
        if origin.busy_by == 0 {
            origin.busy_ps += self.now_ps - origin.busy_since_ps;
        }
    }

    /// An item leaves the network.
    fn leave(&mut self, item: Item, is_lost: bool) {
        if !is_lost {
            let latency_ps = self.now_ps - item.born_ps;
            self.left += 1;
            self.left_bytes += u64::from(item.bytes);
            self.latency_ps.add(latency_ps);
            self.latency_sum_ps += latency_ps as f64;
        }
        self.end_of(item);
    }

    /// An item is gone; one of a population comes again.
    fn end_of(&mut self, item: Item) {
        self.in_system -= 1;
        let source = item.source as usize;
        if let Arrivals::Closed(_) = self.model.sources[source].arrivals {
            self.emit(source);
        }
    }

    /// Who waits for room that was freed delivers, which may free more.
    fn settle(&mut self) {
        while let Some(at) = self.freed.pop() {
            while let Some(from) = self.stations[at].wanting.front().copied() {
                let from = from as usize;
                let held = self.held(from);
                let place = held.iter().position(|(_, to)| *to == leaf(at));
                let place = place.expect("who wants room holds an item for it");
                let item = held[place].0;
                if !self.has_room(at, item) {
                    break;
                }
                self.stations[at].wanting.pop_front();
                self.deliver_held(from, place, item);
                self.accept(at, item);
            }
        }
    }

    fn held(&mut self, leaf: usize) -> &mut Held {
        match leaf.checked_sub(self.stations.len()) {
            None => &mut self.stations[leaf].held,
            Some(source) => &mut self.origins[source].held,
        }
    }

    /// Takes a held item away from a station, whose server is then free, or from a source, which then goes on.
    fn deliver_held(&mut self, from: usize, place: usize, item: Item) {
        match from.checked_sub(self.stations.len()) {
            None => {
                let live = &mut self.stations[from];
                live.count_until(self.now_ps);
                live.held.remove(place);
                self.release(from, item);
                self.start(from);
                self.plan(from);
            }
            Some(source) => {
                self.origins[source].held.remove(place);
                let arrivals = &self.model.sources[source].arrivals;
                if matches!(arrivals, Arrivals::Open { .. }) && self.origins[source].held.is_empty()
                {
                    self.origins[source].next_ps = self.now_ps;
                    self.plan_source(source);
                }
            }
        }
    }

    /// Items of a source are due.
    fn at_source(&mut self, at: usize) {
        let Arrivals::Open { burst, .. } = self.model.sources[at].arrivals else {
            return;
        };
        while self.origins[at].burst_left > 0 && self.origins[at].held.is_empty() {
            self.origins[at].burst_left -= 1;
            self.origins[at].counted.offered += 1;
            if self.origins[at].busy_by > 0 {
                self.origins[at].counted.stopped += 1;
            } else {
                self.emit(at);
            }
        }
        self.origins[at].next_ps = NEVER;
        if self.origins[at].held.is_empty() {
            let gap = self.gap(at);
            self.origins[at].burst_left = burst;
            self.origins[at].next_ps = self.now_ps.saturating_add(gap);
        }
        self.settle();
        self.plan_source(at);
    }

    fn gap(&mut self, at: usize) -> u64 {
        match &self.model.sources[at].arrivals {
            Arrivals::Open { gap, .. } => {
                let origin = &mut self.origins[at];
                gap.next(&mut origin.gap_at, &mut origin.stream)
            }
            Arrivals::Closed(_) => NEVER,
        }
    }

    /// One item, or one for each of its stations.
    fn emit(&mut self, at: usize) {
        let source = &self.model.sources[at];
        let origin = &mut self.origins[at];
        let bytes = source.bytes.next(&mut origin.size_at, &mut origin.stream);
        let item = Item {
            born_ps: self.now_ps,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            source: leaf(at),
        };
        if source.each {
            for &to in &source.to {
                self.put(at, to, item);
            }
            return;
        }
        let to = source.to[origin.turn];
        origin.turn = (origin.turn + 1) % source.to.len();
        self.put(at, to, item);
    }

    fn put(&mut self, source: usize, to: usize, item: Item) {
        self.in_system += 1;
        if self.has_room(to, item) {
            self.accept(to, item);
        } else if self.model.stations[to].full == Full::Lose {
            self.lose(to, item);
        } else {
            self.origins[source].held.push_back((item, leaf(to)));
            let own = leaf(self.stations.len() + source);
            self.stations[to].wanting.push_back(own);
        }
    }

    fn plan(&mut self, at: usize) {
        self.tree.set(at, self.stations[at].next_ps());
    }

    fn plan_source(&mut self, at: usize) {
        self.tree.set(self.stations.len() + at, self.origins[at].next_ps);
    }

    fn end(mut self, events: u64, stuck_at_s: Option<f64>) -> Outcome {
        let now_ps = self.now_ps;
        let counted_ps = (now_ps - self.model.warm_up_ps) as f64;
        let station = |live: &mut Live| {
            live.count_until(now_ps);
            // What is still in service was counted whole when it began.
            let ahead: u64 = live.working.iter().map(|(end, _)| end - now_ps).sum();
            let counted = std::mem::take(&mut live.counted);
            StationOutcome {
                work_s: seconds(live.work_ps.saturating_sub(ahead)),
                look_s: seconds(live.look_ps),
                mean_items: counted.mean_items / counted_ps,
                mean_bytes: counted.mean_bytes / counted_ps,
                ..counted
            }
        };
        let source = |origin: &mut Origin| {
            if origin.busy_by > 0 {
                origin.busy_ps += now_ps - origin.busy_since_ps;
            }
            SourceOutcome {
                busy_share: origin.busy_ps as f64 / counted_ps,
                ..std::mem::take(&mut origin.counted)
            }
        };
        Outcome {
            seconds: counted_ps / SECOND_PS as f64,
            events,
            left: self.left,
            left_bytes: self.left_bytes,
            latency_ps: self.latency_ps,
            latency_sum_s: self.latency_sum_ps / SECOND_PS as f64,
            stuck_at_s,
            stations: self.stations.iter_mut().map(station).collect(),
            sources: self.origins.iter_mut().map(source).collect(),
        }
    }
}

fn service_ps(station: &Station, live: &mut Live, bytes: u32) -> u64 {
    let own = match &station.service {
        Draw::Constant(time) => *time,
        draw => draw.next(&mut live.trace_at, &mut live.stream),
    };
    if station.per_byte_ps > 0.0 {
        return own.saturating_add(whole(station.per_byte_ps * f64::from(bytes)));
    }
    own
}

fn seconds(ps: u64) -> f64 {
    ps as f64 / SECOND_PS as f64
}

/// Leaves and stations are few: [`crate::model::MAX_STATIONS`].
#[allow(clippy::cast_possible_truncation, reason = "at most 8192")]
fn leaf(at: usize) -> u32 {
    at as u32
}
