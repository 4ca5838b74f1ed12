//! What is simulated: sources, stations with queues, and how they are linked. Times are picoseconds, sizes bytes.

use crate::draw::Draw;

/// Picoseconds of a second.
pub const SECOND_PS: u64 = 1_000_000_000_000;

/// The longest simulated time: 2^62 ps, 53 days; sums of two times fit into 64 bits.
pub const MAX_TIME_PS: u64 = 1 << 62;
/// Stations, and sources.
pub const MAX_STATIONS: usize = 4096;
/// Servers of a station with a number of them.
pub const MAX_SERVERS: u32 = 65_536;

/// Items that a source may send at once, to all of its stations, and the largest population.
pub const MAX_AT_ONCE: u32 = 1_000_000;

/// A network of stations.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Where items wait and are served.
    pub stations: Vec<Station>,
    /// Where items come from.
    pub sources: Vec<Source>,
    /// Time that is simulated, from the start.
    pub time_ps: u64,
    /// Its first part, which is not counted.
    pub warm_up_ps: u64,
    /// How often each station's filling is written down, at equal distances over all of the time.
    pub samples: usize,
}

/// A queue and its servers.
#[derive(Clone, Debug)]
pub struct Station {
    /// Its name.
    pub name: String,
    /// How many items are served at once; none: all, so that nobody waits.
    pub servers: Option<u32>,
    /// Time that each item takes.
    pub service: Draw,
    /// Time that each byte takes on top, in ps.
    pub per_byte_ps: f64,
    /// Room for items that wait or are served.
    pub room: Room,
    /// What becomes of an item that finds no room.
    pub full: Full,
    /// Whether the server sleeps and looks.
    pub poll: Option<Poll>,
    /// Holds sources when it is full.
    pub busy: Option<Busy>,
    /// Share of the served items that get lost on the way behind it.
    pub loss: f64,
    /// Where lost items go, such as a delay that sends them again; none: they are gone.
    pub lost_to: Option<usize>,
    /// Where served items go, in turn; none: they leave.
    pub to: Vec<usize>,
}

impl Station {
    /// One server without limits, whose items leave.
    pub fn new(name: &str, service: Draw) -> Station {
        Station {
            name: name.to_owned(),
            servers: Some(1),
            service,
            per_byte_ps: 0.0,
            room: Room::default(),
            full: Full::Wait,
            poll: None,
            busy: None,
            loss: 0.0,
            lost_to: None,
            to: Vec::new(),
        }
    }

    /// The same, whose items go on.
    #[must_use]
    pub fn to(mut self, station: usize) -> Station {
        self.to.push(station);
        self
    }
}

/// The most that a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Items.
    pub items: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Default for Room {
    fn default() -> Self {
        Room { items: u64::MAX, bytes: u64::MAX }
    }
}

/// What a full buffer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Who delivers waits (back-pressure).
    Wait,
    /// The item is lost.
    Lose,
}

/// A server that looks from time to time.
#[derive(Clone, Debug, PartialEq)]
pub struct Poll {
    /// What it waits for.
    pub rest: Rest,
    /// Time of a look, whether there is something or not.
    pub look_ps: u64,
    /// How much it does before it rests.
    pub takes: Takes,
}

/// What a polling server does before it rests again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// What was there when it looked: a reader that reads the write pointer once.
    Found,
    /// All, with what comes meanwhile.
    All,
}

/// How a polling server waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Rest {
    /// A sleep of that time, begun when it has done its work (a vacation).
    Sleep(Draw),
    /// A timer that ticks at this distance: ticks during work are one, and are answered at once when it ends (`timerfd_create(2)`).
    Timer(u64),
}

/// BUSY with hysteresis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Bytes in the station from which it holds the source.
    pub above_bytes: u64,
    /// Bytes below which it lets it go.
    pub below_bytes: u64,
    /// The sources.
    pub stops: Vec<usize>,
}

/// Where items come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// When.
    pub arrivals: Arrivals,
    /// Bytes of each.
    pub bytes: Draw,
    /// The stations that get them.
    pub to: Vec<usize>,
    /// Whether each of these stations gets each item (as a trigger reaches all channels), or one after the other.
    pub each: bool,
}

impl Source {
    /// Items of so many bytes, one after each gap, to these stations in turn.
    pub fn open(gap: Draw, bytes: u64, to: Vec<usize>) -> Source {
        Source {
            name: "source".to_owned(),
            arrivals: Arrivals::Open { first_ps: None, gap, burst: 1 },
            bytes: Draw::Constant(bytes),
            to,
            each: false,
        }
    }
}

/// When items come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// After gaps, so many at once. What may not come because of BUSY is counted as stopped; a source whose item waits for room goes on
    /// when it has been delivered.
    Open {
        /// Before the first; a gap where there is none.
        first_ps: Option<u64>,
        /// Between two.
        gap: Draw,
        /// Items that come at once.
        burst: u32,
    },
    /// So many that come again as soon as they leave.
    Closed(u32),
}

/// A model that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct ModelError {
    /// The station or source.
    pub what: String,
    /// What is wrong with it.
    pub problem: String,
}

fn wrong<T>(what: &str, problem: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError { what: what.to_owned(), problem: problem.into() })
}

impl Model {
    /// Whether it can run.
    ///
    /// # Errors
    /// Names the first station or source that cannot be, and why.
    pub fn check(&self) -> Result<(), ModelError> {
        if self.stations.is_empty() || self.stations.len() > MAX_STATIONS {
            return wrong("stations", format!("1 to {MAX_STATIONS} are wanted"));
        }
        if self.sources.is_empty() || self.sources.len() > MAX_STATIONS {
            return wrong("sources", format!("1 to {MAX_STATIONS} are wanted"));
        }
        if self.time_ps == 0 || self.time_ps > MAX_TIME_PS || self.warm_up_ps >= self.time_ps {
            return wrong("time", "must be above the warm-up and at most 53 days");
        }
        self.stations.iter().try_for_each(|station| self.check_station(station))?;
        self.sources.iter().try_for_each(|source| self.check_source(source))
    }

    fn check_station(&self, station: &Station) -> Result<(), ModelError> {
        let is_there = |at: &usize| *at < self.stations.len();
        let name = &station.name;
        if !station.to.iter().chain(&station.lost_to).all(is_there) {
            return wrong(name, "goes to a station that does not exist");
        }
        if station.servers.is_some_and(|n| n == 0 || n > MAX_SERVERS) {
            return wrong(name, format!("1 to {MAX_SERVERS} servers are wanted"));
        }
        if !station.service.is_sound() {
            return wrong(name, "its service has no values");
        }
        if !(0.0..=1e15).contains(&station.per_byte_ps) {
            return wrong(name, "its time per byte is not a time");
        }
        if !(0.0..=1.0).contains(&station.loss) {
            return wrong(name, "a loss is a share from 0 to 1");
        }
        if station.lost_to.is_some() && station.loss >= 1.0 {
            return wrong(name, "items that are always lost and sent again never arrive");
        }
        if station.room.items == 0 || station.room.bytes == 0 {
            return wrong(name, "a buffer without room serves nothing");
        }
        let largest = self.sources.iter().map(|source| source.bytes.largest()).max();
        let largest = largest.unwrap_or(0);
        if largest > station.room.bytes {
            return wrong(name, format!("an item of {largest} B never fits into its buffer"));
        }
        check_poll(station)?;
        station.busy.as_ref().map_or(Ok(()), |busy| self.check_busy(station, busy))
    }

    fn check_busy(&self, station: &Station, busy: &Busy) -> Result<(), ModelError> {
        let name = &station.name;
        let is_open = |at: &usize| {
            let source = self.sources.get(*at);
            source.is_some_and(|source| matches!(source.arrivals, Arrivals::Open { .. }))
        };
        if busy.stops.is_empty() || !busy.stops.iter().all(is_open) {
            return wrong(name, "its BUSY stops sources that exist and are no population");
        }
        if busy.below_bytes > busy.above_bytes || busy.above_bytes > station.room.bytes {
            return wrong(name, "BUSY needs below <= above <= the room of the buffer");
        }
        Ok(())
    }

    fn check_source(&self, source: &Source) -> Result<(), ModelError> {
        let is_there = |at: &usize| *at < self.stations.len();
        let name = &source.name;
        let is_bounded = (1..=MAX_STATIONS).contains(&source.to.len());
        if !is_bounded || !source.to.iter().all(is_there) {
            return wrong(name, format!("needs 1 to {MAX_STATIONS} stations that exist"));
        }
        if !source.bytes.is_sound() {
            return wrong(name, "its sizes have no values");
        }
        match &source.arrivals {
            Arrivals::Open { gap, burst, .. } => {
                if !gap.is_sound() || gap.moments().0 < 1.0 {
                    return wrong(name, "the mean gap between items must be above 0");
                }
                let copies = if source.each { source.to.len() } else { 1 };
                let at_once = u64::from(*burst) * copies as u64;
                match (1..=u64::from(MAX_AT_ONCE)).contains(&at_once) {
                    true => Ok(()),
                    false => wrong(name, format!("1 to {MAX_AT_ONCE} items at once are wanted")),
                }
            }
            Arrivals::Closed(items) if !(1..=MAX_AT_ONCE).contains(items) => {
                wrong(name, format!("a population of 1 to {MAX_AT_ONCE} is wanted"))
            }
            Arrivals::Closed(_) if source.each && source.to.len() > 1 => {
                wrong(name, "a population cannot be at several stations at once")
            }
            Arrivals::Closed(_) => {
                let loses = |at: &usize| {
                    let station = &self.stations[*at];
                    station.full == Full::Lose && station.room != Room::default()
                };
                match source.to.iter().any(loses) {
                    // It would come again at once, find no room, and so on without end.
                    true => wrong(name, "a population needs a first station that loses nothing"),
                    false => Ok(()),
                }
            }
        }
    }
}

fn check_poll(station: &Station) -> Result<(), ModelError> {
    let Some(poll) = &station.poll else {
        return Ok(());
    };
    if station.servers.is_none() {
        return wrong(&station.name, "a station that nobody waits at does not poll");
    }
    let mean = match &poll.rest {
        Rest::Sleep(draw) if !draw.is_sound() => 0.0,
        Rest::Sleep(draw) => draw.moments().0,
        Rest::Timer(every_ps) => *every_ps as f64,
    };
    match mean < 1.0 {
        true => wrong(&station.name, "the time between two looks must be above 0"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simple() -> Model {
        Model {
            stations: vec![Station::new("server", Draw::Constant(10))],
            sources: vec![Source {
                name: "source".to_owned(),
                arrivals: Arrivals::Open { first_ps: None, gap: Draw::Constant(20), burst: 1 },
                bytes: Draw::Constant(1),
                to: vec![0],
                each: false,
            }],
            time_ps: 1000,
            ..Model::default()
        }
    }

    #[test]
    fn contradictions_are_refused_and_name_the_part() {
        assert_eq!(simple().check(), Ok(()));
        type Change = fn(&mut Model);
        let changes: [(Change, &str); 9] = [
            (|m| m.stations[0].to = vec![7], "does not exist"),
            (|m| m.stations[0].servers = Some(0), "servers"),
            (|m| m.stations[0].loss = 1.5, "share"),
            (|m| m.stations[0].room.items = 0, "without room"),
            (|m| m.stations[0].service = Draw::Uniform(2, 1), "no values"),
            (|m| m.sources[0].to.clear(), "stations that exist"),
            (|m| m.sources[0].arrivals = Arrivals::Closed(0), "population of 1"),
            (|m| m.warm_up_ps = 1000, "above the warm-up"),
            (
                |m| {
                    m.stations[0].busy =
                        Some(Busy { above_bytes: 1, below_bytes: 2, stops: vec![0] });
                },
                "below <= above",
            ),
        ];
        for (change, wanted) in changes {
            let mut model = simple();
            change(&mut model);
            let error = model.check().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
