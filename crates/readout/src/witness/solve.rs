//! The judgement: which readings of the jumps of all counters agree with each other.
//!
//! 1. Of a stream's segments, those that follow each other at the lowest cost are its chain. A
//!    segment beside it came late, came again, or has wrong numbers.
//! 2. Between two segments of the chain, events are missing as their numbers say, or some turns of
//!    the counter more. What the other streams brought in that time bounds them, and so do the
//!    numbers of blocks.
//! 3. What a stream has less than the others of its link was missing at its begin or its end, or
//!    was never sent.

use std::ops::Range;

use super::{BLOCK_WRAP, Moment, SETTLED_BLOCKS, Segment, Track};

/// Segments beside the chain in a row, at most.
const REACH: usize = 8;
/// Costs of the steps of a chain. One segment beside it costs less than two jumps that it would
/// explain, and more than one.
const JUMP: u64 = 4;
const ODD_JUMP: u64 = 8;
const BESIDE: u64 = 4;
/// Cost of a long segment beside the chain, more than that of any two jumps.
const MAX_BESIDE: u64 = 64;
/// Chunks that are torn where blocks are missing or changed places: one on either side.
const TORN: u64 = 2;
/// Turns of a counter that are tried without another witness.
const MAX_TURNS: u64 = 128;
/// Events by which a block's may differ from the mean.
const SLACK: f64 = 3.0;
/// Largest turn of counters that begin anew without a message, and of the L1ID.
const MAX_FALL: u64 = 1 << 8;
const MAX_L1ID: u64 = 1 << 24;

/// A stream and what is known of it besides its counters.
pub(crate) struct Witness<'a> {
    pub(crate) track: &'a Track,
    pub(crate) is_trigger: bool,
    /// Streams of one link have the same number of events.
    pub(crate) link: u32,
    /// True if a timeout closed its last block: it ends there by itself.
    pub(crate) is_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapKind {
    Jump,
    /// The counter begins anew: a reset, or a loss.
    Fall,
    /// No event before, or after this place, though others came.
    Begin,
    End,
}

/// Events that are missing, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) kind: GapKind,
    pub(crate) at: Moment,
    /// Events of the stream before it, with those missing.
    pub(crate) from: u64,
    /// The fewest events that are missing, and another reading.
    pub(crate) missing: u64,
    pub(crate) or: Option<u64>,
    pub(crate) blocks: u64,
    /// Number of a block that was expected, and the one that came.
    pub(crate) sequence: Option<[u32; 2]>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    pub(crate) gaps: Vec<Gap>,
    /// Places, events and blocks that came late, or again.
    pub(crate) late: Vec<(Moment, u64, u64)>,
    /// Places of blocks or events whose numbers are wrong.
    pub(crate) wrong: Vec<Moment>,
    /// True if its first block has number 0.
    is_clean: bool,
    /// Events of the stream, with those missing.
    pub(crate) total: u64,
}

/// Segment beside the chain, and the link that it fills.
struct Beside {
    one: usize,
    hole: Option<usize>,
    /// Events between it and the first of the chain, if the begin of the stream came late.
    begin: Option<u64>,
    /// True if it came in its place: only its numbers are wrong.
    is_wrong: bool,
}

struct History {
    all: Vec<Segment>,
    /// Where they begin in the data.
    begins: Vec<Moment>,
    places: Vec<usize>,
    beside: Vec<Beside>,
    /// Events and blocks beside the chain that fill each link of it.
    filled: Vec<[u64; 2]>,
    wrap: u64,
    /// Events of a block, and how far that may be wrong.
    rate: [f64; 2],
    /// Place of its last block.
    last: u64,
}

impl History {
    fn of(track: &Track) -> History {
        let (all, wrap) = (track.all(), track.wrap);
        let longest = all.iter().max_by_key(|segment| segment.whole);
        let rate = longest.filter(|segment| segment.whole > 0).map_or([1.0, 1.0], |segment| {
            let (events, whole) = (segment.end.1.saturating_sub(segment.partial), segment.whole);
            [events as f64 / whole as f64, TORN as f64 / whole as f64]
        });
        let begins = all.iter().map(|segment| segment.begin).collect();
        let places = Vec::new();
        let (beside, filled) = (Vec::new(), Vec::new());
        let mut history =
            History { all, begins, places, beside, filled, wrap, rate, last: track.now.place };
        history.places = history.cheapest();
        history.assign();
        history.straighten();
        history
    }

    /// Finds the links that the segments beside the chain fill: the nearest whose missing numbers
    /// they have, or that at their place if as many are missing there.
    fn assign(&mut self) {
        self.filled = vec![[0, 0]; self.places.len()];
        let all = (0..self.all.len()).filter(|one| self.places.binary_search(one).is_err());
        let fitting = |one: usize| {
            let around = self.places.partition_point(|place| *place < one);
            let links = self
                .links()
                .enumerate()
                .take(around + REACH)
                .skip(around.saturating_sub(4 * REACH));
            let links = links.filter(|(_, link)| self.fits(one, *link));
            let nearest = links.map(|(hole, (from, _))| (from.abs_diff(one), hole)).min();
            let begin = self.torn_before_first(one);
            let hole = nearest.filter(|_| begin.is_none()).map(|(_, hole)| hole);
            Beside { one, hole, begin, is_wrong: false }
        };
        let mut beside: Vec<Beside> = all.map(fitting).collect();
        for is_wrong in [false, true] {
            for at in beside.iter_mut().filter(|at| at.hole.is_none() == is_wrong) {
                let own = &self.all[at.one];
                if is_wrong && at.begin.is_none() {
                    let before =
                        self.places.partition_point(|place| *place < at.one).checked_sub(1);
                    at.hole = before.filter(|link| self.holds_place_of(own, *link));
                    at.is_wrong = at.hole.is_some();
                }
                if let Some(hole) = at.hole {
                    let [events, blocks] = self.filled[hole];
                    self.filled[hole] = [events + own.events, blocks + own.blocks];
                }
            }
        }
        self.beside = beside;
    }

    fn torn_before_first(&self, one: usize) -> Option<u64> {
        match self.all[one].to(&self.all[self.places[0]], self.wrap) {
            [Some(0), Some(torn @ 0..=TORN)] => Some(torn),
            _ => None,
        }
    }

    /// Events beside the chain that came between two places and fill other links than this one.
    fn filling_others(&self, link: usize, places: Range<u64>) -> u64 {
        let others = self.beside.iter().filter(|at| at.hole.is_some_and(|hole| hole != link));
        let came = others.filter(|at| places.contains(&self.begins[at.one].place));
        came.map(|at| self.all[at.one].events).sum()
    }

    /// True if the numbers go on from a segment to another, and segments beside the chain lie
    /// between them.
    fn is_joined(&self, (from, to): (usize, usize)) -> bool {
        let [blocks, events] = self.all[from].to(&self.all[to], self.wrap);
        to > from + 1 && blocks.unwrap_or(0) == 0 && events.is_some_and(|events| events <= TORN)
    }

    /// Moves short segments to the long ones that they join: blocks that changed places came at
    /// the time of each other.
    fn straighten(&mut self) {
        let is_short = |segment: &Segment| segment.blocks <= SETTLED_BLOCKS;
        let joined: Vec<(usize, usize)> =
            self.links().filter(|link| self.is_joined(*link)).collect();
        for link in joined.iter().rev() {
            let [from, to] = [self.all[link.0], self.all[link.1]];
            let (begin, settled) = (to.begin, to.settled.unwrap_or(to.end));
            let moved = Segment {
                begin,
                end: (begin, 0),
                settled: Some((settled.0, settled.1 + from.events)),
                ..from
            };
            if is_short(&from) {
                self.all[link.0] = moved;
            }
        }
        for link in joined {
            let [from, to] = [self.all[link.0], self.all[link.1]];
            let (end, settled) = ((from.end.0, 0), Some((from.end.0, to.events)));
            if is_short(&to) && !is_short(&from) {
                self.all[link.1] = Segment { begin: end.0, end, settled, ..to };
            }
        }
    }

    fn links(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places.windows(2).map(|pair| (pair[0], pair[1]))
    }

    /// Returns the segments that follow each other at the lowest cost.
    fn cheapest(&self) -> Vec<usize> {
        let all = &self.all;
        let beside =
            |segment: &Segment| BESIDE + segment.blocks.max(segment.events / 32).min(MAX_BESIDE);
        let mut best: Vec<(u64, usize)> = vec![(0, 0)];
        for to in 1..all.len() {
            let mut between = 0;
            let mut cheapest = (u64::MAX, 0);
            for from in (to.saturating_sub(REACH)..to).rev() {
                let cost = best[from].0 + between + self.step_cost(&all[from], &all[to]);
                if cost < cheapest.0 {
                    cheapest = (cost, from);
                }
                between += beside(&all[from]);
            }
            if to == 1 && all.len() > 2 && self.fits(0, (1, 2)) {
                cheapest = cheapest.min((beside(&all[0]), 1));
            }
            best.push(cheapest);
        }
        let chain = |mut at: usize| {
            let mut places = vec![at];
            while best[at].1 < at {
                at = best[at].1;
                places.push(at);
            }
            places.reverse();
            places
        };
        let last = all.len().saturating_sub(1);
        if last > 0 && best[last - 1].0 + beside(&all[last]) < best[last].0 {
            // Nothing returns behind it, so it must fill a hole.
            let shorter = chain(last - 1);
            if shorter.windows(2).any(|pair| self.fits(last, (pair[0], pair[1]))) {
                return shorter;
            }
        }
        if all.is_empty() { Vec::new() } else { chain(last) }
    }

    /// True if the numbers of a segment are among those that are missing between two others.
    fn fits(&self, one: usize, (from, to): (usize, usize)) -> bool {
        let [one, from, to] = [one, from, to].map(|at| &self.all[at]);
        let (gap, before, behind) =
            (from.to(to, self.wrap), from.to(one, self.wrap), one.to(to, self.wrap));
        let is_within = |at: usize, length: u64| {
            let pair = gap[at].zip(before[at]);
            pair.is_none_or(|(gap, place)| gap > 0 && place + length <= gap)
        };
        if gap[0].is_none_or(|gap| gap == 0) {
            return is_within(1, one.events);
        }
        let agrees = |[blocks, events]: [Option<u64>; 2]| {
            blocks.zip(events).is_none_or(|(blocks, events)| self.may_agree(blocks, events))
        };
        is_within(0, one.blocks) && (is_within(1, one.events) || agrees(before) || agrees(behind))
    }

    /// True if this many events, or some turns of their counter more, are those of whole blocks.
    fn may_agree(&self, rest: u64, events: u64) -> bool {
        const TURNS: u64 = 16;
        let turns = 0..if self.wrap > MAX_FALL { 1 } else { TURNS };
        turns.into_iter().any(|turn| self.agrees(rest, events + turn * self.wrap))
    }

    fn step_cost(&self, from: &Segment, to: &Segment) -> u64 {
        let [blocks, events] = from.to(to, self.wrap);
        match (blocks.unwrap_or(0), events) {
            (0, None) => 0,
            (0, Some(events)) if events <= TORN => events.min(1),
            // Blocks are missing, and no events: their numbers are wrong.
            (1.., Some(events)) if events <= TORN && self.wrap > BLOCK_WRAP => ODD_JUMP,
            (_, None) => JUMP,
            (0, Some(events)) if events > self.wrap / 2 => ODD_JUMP,
            (rest, Some(events)) if self.may_agree(rest, events) => JUMP,
            _ => ODD_JUMP,
        }
    }

    /// Places at which the block before the first and the one behind the last would have come.
    fn ends(&self) -> [u64; 2] {
        let first = self.all.first().map_or(0, |segment| segment.begin.place);
        let blocks: u64 = self.all.iter().map(|segment| segment.blocks).sum();
        let step = self.last.saturating_sub(first) / blocks.max(1) + 1;
        [first.saturating_sub(step), self.last + step]
    }

    /// Events that are missing by its numbers between two moments.
    fn missing_between(&self, from: Moment, to: Moment) -> u64 {
        let first = self.places.partition_point(|at| self.begins[*at].place < from.place).max(1);
        let links = self.places.windows(2).skip(first - 1).map(|pair| [pair[0], pair[1]]);
        let links = links.take_while(|[_, at]| self.begins[*at].place < to.place);
        let gaps = links.filter_map(|link| {
            let [from, to] = link.map(|at| &self.all[at]);
            let goes_on = self.wrap > MAX_L1ID || from.resets[1] == to.resets[0];
            from.to(to, self.wrap)[1].filter(|_| goes_on)
        });
        gaps.sum()
    }

    /// Whole blocks of its longest segment, and their distance.
    fn step(&self) -> Option<(u64, f64)> {
        let longest = self.all.iter().max_by_key(|segment| segment.whole)?;
        let length = longest.end.0.place - longest.begin.place;
        let blocks = longest.whole.checked_sub(1).filter(|blocks| *blocks > 1)?;
        Some((blocks, length as f64 / blocks as f64))
    }

    /// Places between which the stream was not whole, its begin and end included, and the share of
    /// it that is missing there. A step is the distance of its blocks.
    fn holes(&self, step: Option<f64>) -> impl Iterator<Item = Hole> {
        let between = self.links().map(|(from, to)| (&self.all[from], &self.all[to]));
        let holes = between.filter_map(move |(from, to)| {
            let is_next = is_next(from, to, self.wrap);
            let length = to.begin.place.saturating_sub(from.end.0.place) as f64;
            let missing = from.to(to, self.wrap)[0].filter(|missing| *missing > 0);
            let blocks = missing.map_or(f64::INFINITY, |missing| missing as f64 + 1.0);
            let share = 1.0 - 1.0 / step.map_or(blocks, |step| (length / step).max(1.0));
            // If its numbers go on, so many must have come of others that blocks are missing.
            let is_real = !is_next || to.is_unusual && share > 0.5;
            is_real.then_some(Hole { from: from.end.0.place, to: to.begin.place, share })
        });
        let [begin, end] = self.ends();
        let [begin, end] =
            [[0, begin], [end, u64::MAX]].map(|[from, to]| Hole { from, to, share: 1.0 });
        holes.chain([begin, end]).filter(|hole| hole.from < hole.to)
    }

    /// True if as many events and blocks are missing where a segment lies: only its numbers are
    /// wrong.
    fn holds_place_of(&self, segment: &Segment, link: usize) -> bool {
        let Some((from, to)) = self.links().nth(link) else {
            return false;
        };
        let [blocks, events] = self.all[from].to(&self.all[to], self.wrap);
        let [filled_events, filled_blocks] = self.filled[link];
        let blocks = blocks.unwrap_or(0).saturating_sub(filled_blocks);
        let own = segment.events..=segment.events + TORN;
        (blocks == segment.blocks || blocks == 0)
            && events.is_some_and(|gap| own.contains(&gap.saturating_sub(filled_events)))
    }

    /// True if this many events are those of whole blocks: of one size, with this rest of their
    /// numbers.
    fn agrees(&self, rest: u64, events: u64) -> bool {
        let [rate, error] = self.rate;
        let blocks = nearest(rest, events as f64 / rate) as f64;
        (blocks * rate - events as f64).abs() <= TORN as f64 + 1.0 + error * blocks
    }

    /// Adds the chunk that is made of two, over a place where whole turns of blocks are missing.
    fn without_glue(&self, from: &Segment, gap: Gap) -> Gap {
        let is_glued = from.events == from.end.1 + 1
            && gap.sequence.is_none()
            && gap.blocks >= BLOCK_WRAP
            && self.wrap == MAX_FALL;
        let [glued, or] = [u64::from(is_glued), gap.or.unwrap_or(0) + u64::from(is_glued)];
        let or = gap.or.map(|_| or);
        Gap { missing: gap.missing + glued, or, from: gap.from - glued, ..gap }
    }
}

fn is_next(from: &Segment, to: &Segment, wrap: u64) -> bool {
    from.to(to, wrap).iter().all(|gap| gap.is_none_or(|gap| gap == 0))
}

struct Hole {
    from: u64,
    to: u64,
    share: f64,
}

/// The streams besides the trigger system's that are whole, by places.
#[derive(Default)]
struct Presence {
    /// Places, the length up to there divided by the number of streams, and that number behind.
    edges: Vec<(u64, f64, f64)>,
    /// Stretches in which each stream has a hole.
    dark: Vec<[u64; 2]>,
}

impl Presence {
    fn of(holes: impl Iterator<Item = Hole>, streams: usize, end: u64) -> Presence {
        let ends = holes.flat_map(|Hole { from, to, share }| {
            [(from.min(end), 1, share), (to.min(end), -1, -share)]
        });
        let mut ends: Vec<(u64, isize, f64)> = ends.collect();
        ends.sort_unstable_by_key(|(place, ..)| *place);
        let mut presence = Presence { edges: vec![(0, 0.0, streams as f64)], dark: Vec::new() };
        let mut whole = streams;
        for (place, holes, share) in ends {
            let sum = presence.up_to(place);
            let (before, _, present) = presence.edges.last().copied().unwrap_or_default();
            if whole == 0 && place > before {
                presence.dark.push([before, place]);
            }
            whole = whole.saturating_add_signed(-holes);
            presence.edges.push((place, sum, present - share));
        }
        presence
    }

    fn up_to(&self, place: u64) -> f64 {
        let behind = self.edges.partition_point(|(edge, ..)| *edge <= place);
        let last = behind.checked_sub(1).map(|at| self.edges[at]);
        let length = |edge: u64, streams: f64| (place - edge) as f64 / streams.max(1.0);
        last.map_or(0.0, |(edge, sum, streams)| sum + length(edge, streams))
    }

    /// Events of a stream between two moments: the mean of those that were whole.
    fn mean(&self, from: Moment, to: Moment) -> f64 {
        let chunks = to.chunks.saturating_sub(from.chunks);
        let length = to.place.saturating_sub(from.place);
        let shares = self.up_to(to.place) - self.up_to(from.place);
        chunks as f64 / length.max(1) as f64 * shares
    }

    fn is_dark(&self, [from, to]: [u64; 2]) -> bool {
        let at = self.dark.partition_point(|[_, end]| *end <= from);
        self.dark.get(at).is_some_and(|[begin, _]| *begin < to)
    }
}

struct Field<'a> {
    streams: &'a [Witness<'a>],
    chains: Vec<History>,
    now: Moment,
    /// Witness of the trigger system, and the number of others.
    trigger: Option<usize>,
    others: usize,
    presence: Presence,
    /// Events of the largest block of those others.
    rate: f64,
}

/// Judges all streams, of which `now` is the end.
pub(crate) fn solve(streams: &[Witness<'_>], now: Moment) -> Vec<Judged> {
    let chains = streams.iter().map(|stream| History::of(stream.track));
    let chains: Vec<History> = chains.collect();
    let others = || chains.iter().zip(streams).filter(|(_, stream)| !stream.is_trigger);
    let steps = others().filter_map(|(chain, _)| chain.step());
    let step = steps.max_by_key(|(blocks, _)| *blocks).map(|(_, step)| step);
    let holes = others().flat_map(|(chain, _)| chain.holes(step));
    let count = others().count();
    let presence = Presence::of(holes, count, now.place);
    let rate = others().map(|(chain, _)| chain.rate[0]).fold(0.0, f64::max);
    let trigger = streams.iter().position(|stream| stream.is_trigger);
    let field = Field { streams, chains, now, trigger, others: count, presence, rate };
    let mut judged: Vec<Judged> = (0..streams.len()).map(|at| field.judge(at)).collect();
    field.ends(&mut judged);
    judged
}

impl Field<'_> {
    fn judge(&self, at: usize) -> Judged {
        let (chain, all) = (&self.chains[at], &self.chains[at].all);
        let mut judged = Judged::default();
        let Some(first) = chain.places.first().map(|first| &all[*first]) else {
            return judged;
        };
        judged.is_clean = first.sequence.is_none_or(|first| first == 0);
        let mut total = 0;
        for Beside { one, hole, begin, is_wrong } in &chain.beside {
            let segment = &all[*one];
            if let Some(torn) = *begin {
                judged.is_clean = segment.sequence == Some(0);
                total += segment.events + torn;
                let gap = Gap { missing: torn, ..Gap::at(segment.begin, segment.events) };
                judged.gaps.extend((torn > 0).then_some(gap));
            }
            match is_wrong {
                true => judged.wrong.push(segment.begin),
                // Else a block that names another E-link, or nothing.
                false if segment.events > 0 || hole.is_some() => {
                    judged.late.push((segment.begin, segment.events, segment.blocks));
                }
                false => {}
            }
        }
        for (link, (from, to)) in chain.links().enumerate() {
            total += all[from].events;
            let gap = self.gap(at, link, (from, to));
            let gap = gap.map(|gap| chain.without_glue(&all[from], Gap { from: total, ..gap }));
            total = gap.map_or(total, |gap| gap.from + gap.missing) + chain.filled[link][0];
            judged.gaps.extend(gap);
        }
        judged.total = total + chain.places.last().map_or(0, |last| all[*last].events);
        judged
    }

    /// Returns what is missing between two segments, less the events and blocks that came
    /// elsewhere.
    fn gap(&self, at: usize, nth: usize, link: (usize, usize)) -> Option<Gap> {
        let chain = &self.chains[at];
        let filled = chain.filled[nth];
        let [from, to] = [&chain.all[link.0], &chain.all[link.1]];
        let [blocks, events] = from.to(to, chain.wrap);
        let has_jumped = blocks.is_some_and(|blocks| blocks > 0);
        let blocks = blocks.unwrap_or(0);
        let came = to.settled.unwrap_or(to.end);
        let bounds = match chain.is_joined(link) {
            true => [0.0, TORN as f64],
            false => {
                let between = chain.filling_others(nth, from.end.0.place..came.0.place);
                self.lost(at, from, (came.0, came.1 + between), Some(to.begin.place))
            }
        };
        let numbers = from.next_sequence().zip(to.sequence).filter(|_| has_jumped);
        let sequence = numbers.map(|(expected, seen)| [expected, seen]);
        let gap = Gap { sequence, ..Gap::at(chain.begins[link.1], 0) };
        let Some(events) = events else {
            // No event came since: the others say how many it may be.
            let [missing, most] = bounds.map(|bound| whole(bound - filled[0] as f64));
            let or = Some(most).filter(|most| *most > missing);
            let blocks = blocks.saturating_sub(filled[1]);
            return Some(Gap { missing, or, blocks, ..gap }).filter(|_| blocks > 0);
        };
        let is_reset = self.streams[at].is_trigger && from.resets[1] != to.resets[0];
        if is_reset && (events > chain.wrap / 2 || chain.wrap <= MAX_L1ID) {
            // Counting begins anew. What came just before is known to others only.
            let missing = to.first.unwrap_or(0).saturating_sub(u64::from(chain.wrap > MAX_L1ID));
            let or = Some(missing + whole(bounds[1]).max(1));
            return Some(Gap { kind: GapKind::Fall, missing, or, ..gap });
        }
        let may_be_none = bounds[0] <= filled[0] as f64 && blocks == 0;
        if may_be_none && events <= filled[0] {
            return None;
        }
        let readings = readings(chain, [blocks, events], bounds);
        let came = |events: &u64| events.saturating_sub(filled[0]);
        let least = readings.first().map_or(events, |least| *least);
        let missing = came(&least);
        let all_blocks = match has_jumped || chain.agrees(0, least) {
            true => nearest(blocks, least as f64 / chain.rate[0]),
            false => 0,
        };
        let gap = Gap { blocks: all_blocks.saturating_sub(filled[1]), missing, ..gap };
        let fell = to.first == Some(0) && chain.wrap <= MAX_FALL;
        let goes_back = readings.is_empty() || readings.len() > 1 && events > chain.wrap / 2;
        let gap = match may_be_none {
            true if fell => Gap { kind: GapKind::Fall, missing: 0, or: Some(missing), ..gap },
            true if goes_back => Gap { missing: 0, or: Some(missing), ..gap },
            // Others went on, and the counters show nothing: a pause, or a loss.
            false if readings.is_empty() && events + blocks == 0 => {
                Gap { or: Some(whole(bounds[0].midpoint(bounds[1]))), ..gap }
            }
            _ => Gap { or: readings.get(1).map(came), ..gap },
        };
        Some(gap).filter(|gap| gap.missing + gap.blocks + gap.or.unwrap_or(0) > 0)
    }

    /// Returns the fewest and the most events that a stream lost after a segment, by the events of
    /// the others up to a moment, at which some of its own had come since. The hole ends at a
    /// place, or with the data.
    fn lost(&self, at: usize, from: &Segment, to: (Moment, u64), end: Option<u64>) -> [f64; 2] {
        let (start, to, own) = (from.end.0, to.0, from.events - from.end.1 + to.1);
        let mut bounds = [0.0, f64::INFINITY];
        if let Some(trigger) = self.trigger.filter(|trigger| *trigger != at) {
            let trigger = &self.chains[trigger];
            let triggers = |moment: Moment| moment.triggers as f64;
            let passed = |from: Moment, to: Moment| triggers(to) - triggers(from);
            let grain = 2.0 * trigger.rate[0] + SLACK;
            bounds = self.bounds(at, own, passed(start, to), grain, &passed);
            let has_ended = end.is_some() && to.place > trigger.ends()[1];
            if trigger.missing_between(Moment::default(), self.now) == 0 && !has_ended {
                return bounds;
            }
            // Triggers that only the trigger system's own E-link lost may have come here.
            bounds[0] -= trigger.missing_between(start, to) as f64;
            if has_ended {
                bounds[1] = f64::INFINITY;
            }
        }
        if self.others == usize::from(!self.streams[at].is_trigger) {
            return bounds;
        }
        let hole = [start.place + 1, end.unwrap_or(to.place).max(start.place + 2)];
        let passed = |from: Moment, to: Moment| self.presence.mean(from, to);
        let grain = 2.0 * self.rate + SLACK;
        let mut mean = self.bounds(at, own, passed(start, to), grain, &passed);
        // What all lost at one place is in no count.
        if end.is_some() && self.presence.is_dark(hole) {
            mean[1] = f64::INFINITY;
        }
        let both = [bounds[0].max(mean[0]), bounds[1].min(mean[1])];
        if both[0] <= both[1] { both } else { mean }
    }

    /// Bounds of what was lost while `passed` events of another stream came.
    fn bounds(
        &self,
        at: usize,
        own: u64,
        passed: f64,
        grain: f64,
        between: &dyn Fn(Moment, Moment) -> f64,
    ) -> [f64; 2] {
        let chain = &self.chains[at];
        // Streams may have fewer events than there are triggers: the longest segment shows it.
        let longest = chain.all.iter().max_by_key(|segment| segment.events);
        let [share, error] = longest.map_or([1.0, 0.0], |segment| {
            let came = (segment.end.1 as f64 - chain.rate[0]).max(0.0);
            let theirs = between(segment.begin, segment.end.0);
            let is_alike = (came - theirs).abs() <= 2.0 * grain || theirs < 1.0;
            if is_alike { [1.0, 0.0] } else { [came / theirs, grain / theirs] }
        });
        let (lost, wide) = (share * passed - own as f64, grain + error * passed);
        [lost - wide, lost + wide]
    }

    /// Adds what is missing at the begins and ends of streams, by the events of their neighbours.
    fn ends(&self, judged: &mut [Judged]) {
        let ends = || self.streams.iter().zip(&*judged);
        let half = self.streams.len().div_ceil(2).max(2);
        let all_begin = ends().filter(|(_, judged)| judged.is_clean).count() >= half;
        let all_end = ends().filter(|(stream, _)| stream.is_closed).count() >= half;
        let is_exact = |judged: &Judged| judged.gaps.iter().all(|gap| gap.or.is_none());
        let is_whole = |(stream, own): &(&Witness<'_>, &Judged)| {
            let counts_alike = !stream.is_trigger || own.gaps.is_empty();
            own.is_clean && stream.is_closed && is_exact(own) && counts_alike
        };
        let whole_ones = ends().enumerate().filter(|(_, both)| is_whole(both));
        let counts: Vec<(usize, u64)> = whole_ones.map(|(at, (_, own))| (at, own.total)).collect();
        for (at, own) in judged.iter_mut().enumerate() {
            let (Some(first), Some(last)) =
                (self.chains[at].all.first(), self.chains[at].all.last())
            else {
                continue;
            };
            let stream = &self.streams[at];
            let in_link = self.streams.iter().filter(|other| other.link == stream.link).count();
            let peers = counts.iter().filter(|(other, _)| {
                *other != at && (in_link < 3 || self.streams[*other].link == stream.link)
            });
            let peers: Vec<u64> = peers.map(|(_, total)| *total).collect();
            // Streams that begin and end together have as many events, if they are of one kind.
            let alike = peers.iter().max().copied();
            let alike = alike.filter(|most| all_begin && peers.iter().all(|total| total == most));
            let most = alike.filter(|_| all_end);
            let short = alike.and_then(|most| most.checked_sub(own.total));
            let short = short.filter(|short| *short > 0);
            if own.is_clean
                && stream.is_closed
                && let Some(most) = most
            {
                own.close(most);
                continue;
            }
            let before = self.lost(
                at,
                &Segment::default(),
                first.settled.unwrap_or(first.end),
                Some(first.begin.place),
            );
            let after = self.lost(at, last, (self.now, 0), None);
            let begin = Gap { kind: GapKind::Begin, ..Gap::at(first.begin, 0) };
            let end = Gap { kind: GapKind::End, ..Gap::at(last.end.0, own.total) };
            let estimate = |[least, most]: [f64; 2]| {
                let is_within = |short: &u64| (least..=most).contains(&(*short as f64));
                let mean = whole(least.midpoint(most.min(1e15)));
                (least > 0.0).then(|| short.filter(is_within).unwrap_or(mean))
            };
            let found = match (
                short.filter(|_| all_end),
                all_begin && !own.is_clean,
                all_end && !stream.is_closed,
            ) {
                (Some(short), true, false) => [Some((begin, short)), None],
                (Some(short), false, true) => [None, Some((end, short))],
                _ => [
                    estimate(before).map(|count| (begin, count)),
                    estimate(after).map(|count| (end, count)),
                ],
            };
            let found = found.into_iter().flatten();
            own.gaps.extend(found.map(|(gap, count)| Gap { or: Some(count), ..gap }));
        }
    }
}

impl Judged {
    /// Closes what the counters leave open: the stream has this number of events.
    fn close(&mut self, total: u64) {
        let mut open = self.gaps.iter_mut().filter(|gap| gap.or.is_some());
        if let (Some(gap), None) = (open.next(), open.next())
            && let Some(missing) = (total + gap.missing).checked_sub(self.total)
            && (gap.missing..=gap.or.unwrap_or(0)).contains(&missing)
        {
            self.total = total;
            (gap.missing, gap.or) = (missing, None);
        }
        self.gaps.retain(|gap| gap.missing + gap.blocks > 0 || gap.or.is_some());
    }
}

impl Gap {
    fn at(at: Moment, from: u64) -> Gap {
        let (missing, or, blocks, sequence) = (0, None, 0, None);
        Gap { kind: GapKind::Jump, at, from, missing, or, blocks, sequence }
    }
}

/// Rounds to a count; negative numbers are 0.
fn whole(value: f64) -> u64 {
    daqmeter_record::units::whole(value.clamp(0.0, 1e15).round())
}

/// Returns the number nearest to a value that equals `rest` modulo 32.
fn nearest(rest: u64, value: f64) -> u64 {
    rest + BLOCK_WRAP * whole((value - rest as f64) / BLOCK_WRAP as f64)
}

/// Returns the two smallest numbers of missing events that all witnesses allow.
fn readings(chain: &History, [blocks, events]: [u64; 2], bounds: [f64; 2]) -> Vec<u64> {
    if chain.wrap > MAX_FALL {
        return vec![events];
    }
    let turn = |bound: f64| (bound - events as f64) / chain.wrap as f64;
    let (first, last) = (whole(turn(bounds[0]).ceil()), turn(bounds[1]).floor());
    if last < 0.0 {
        return Vec::new();
    }
    let turns = first..=whole(last).min(first + MAX_TURNS);
    let all: Vec<u64> = turns.map(|turn| events + turn * chain.wrap).collect();
    let agreed: Vec<u64> =
        all.iter().copied().filter(|lost| blocks > 0 && chain.agrees(blocks, *lost)).collect();
    let mut kept = if agreed.is_empty() { all } else { agreed };
    kept.truncate(2);
    kept
}
