//! The published server in the simulator: readers that poll, the CPU that they share with others, the network behind them.
//!
//! Four costs are fits, each to one published figure: a look (idle readers), the work for a trigger in GBT mode (1 MHz is "just
//! possible" with 1 ms polling) and in FULL mode (45 % of a core), and the work of a receiver (that of 24 E-links at 800 kHz). What other
//! figures the same costs give is predicted.

use daqmeter_record::study::{Comparison, Derived, Published};
use daqmeter_twin::{Busy, Draw, Model, Outcome, Poll, Rest, Room, SECOND_PS, Station, Takes, run};
use daqmeter_wire::felix::payload::TTC_BYTES;

use super::super::twin::{Prediction, periodic, us_ps};
use super::Document;
use super::arithmetic::{block_share, format};

const GBT: &str = "FELIX, GBT mode";
const FULL: &str = "FELIX, FULL mode";

pub(super) fn predictions(published: &Document) -> Vec<Prediction> {
    let mut rows = idle(published);
    rows.extend(loads(published));
    rows.extend(largest_rates(published));
    rows.extend(largest_with_receivers(published));
    rows.extend(below_the_limit(published));
    rows.extend(above_the_limit(published));
    rows
}

/// A reader that polls, for items that each stand for so many triggers.
#[derive(Clone, Copy)]
struct Reader {
    look_us: f64,
    poll_us: f64,
    /// CPU time for one trigger.
    work_us: f64,
    khz: f64,
    /// Triggers of an item.
    triggers: u64,
}

impl Reader {
    fn gap_ps(self) -> u64 {
        us_ps(self.triggers as f64 * 1e3 / self.khz)
    }

    fn station(self) -> Station {
        let work_ps = us_ps(self.work_us * self.triggers as f64);
        Station {
            poll: Some(Poll {
                rest: Rest::Timer(us_ps(self.poll_us)),
                look_ps: us_ps(self.look_us),
                takes: Takes::Found,
            }),
            ..Station::new("reader", Draw::Constant(work_ps))
        }
    }

    /// For so long alone.
    fn alone(self, us: f64) -> Option<Outcome> {
        let model = Model {
            stations: vec![self.station()],
            sources: vec![periodic("trigger", self.gap_ps(), 1, vec![0])],
            time_ps: us_ps(us),
            warm_up_ps: 0,
            samples: 1,
        };
        run(&model, 1).ok()
    }

    /// CPU in per cent of a core.
    fn percent(self) -> Option<f64> {
        let outcome = self.alone(self.poll_us * 2000.0)?;
        Some(outcome.stations[0].work_s / outcome.seconds * 100.0)
    }

    /// Whether the ring does not grow: after 4000 looks, and at least 0.2 s, it holds what comes in 4 of them, or in 1 ms. What the
    /// reader cannot carry by half a per cent has grown beyond that.
    fn carries(self) -> bool {
        let us = (self.poll_us * 4000.0).max(200e3);
        let most = us_ps((self.poll_us * 4.0).max(1e3)) / self.gap_ps();
        self.alone(us).is_some_and(|outcome| outcome.stations[0].samples_bytes[0] <= most)
    }

    /// The largest rate that it carries, in kHz, by halving.
    fn largest_khz(self) -> f64 {
        let (mut carried, mut lost) = (100.0, 3000.0);
        while lost - carried > 1.0 {
            let khz = (carried + lost) / 2.0;
            match (Reader { khz, ..self }).carries() {
                true => carried = khz,
                false => lost = khz,
            }
        }
        carried
    }
}

/// One cost of a look for three intervals.
const IDLE_BAND: f64 = 0.15;
/// Why the rings hold more than looks each 100 us explain.
const LATE: &str = "looks came late, by how much is not published";

/// Where the same look is taken three times as often or as rarely.
fn idle(published: &Document) -> Vec<Prediction> {
    let of = |idle: &super::Idle| {
        let reader = Reader {
            look_us: published.input.poll_cost_us,
            poll_us: idle.poll_us,
            work_us: 0.0,
            khz: 1.0,
            triggers: 1,
        };
        let row = format!("CPU of an idle reader, polling every {} us", idle.poll_us);
        let formula = published.input.poll_cost_us / idle.poll_us * 100.0;
        let figure = Comparison::new(GBT, row, idle.cpu_percent.clone(), "%").model(formula);
        Prediction::new(figure, reader.percent()).fitted().within(IDLE_BAND)
    };
    published.idle.iter().map(of).collect()
}

/// The rate that is "just possible" with this polling, and the work for a trigger that follows from it.
const POSSIBLE: (f64, f64) = (1000.0, 1000.0);

fn gbt(published: &Document) -> Reader {
    let (khz, poll_us) = POSSIBLE;
    let look_us = published.input.poll_cost_us;
    Reader { look_us, poll_us, work_us: (1.0 - look_us / poll_us) * 1e3 / khz, khz, triggers: 10 }
}

/// The load that the work for a trigger in FULL mode is fitted to.
const FULL_SHARE: f64 = 0.45;

fn full(published: &Document) -> Reader {
    let input = &published.input;
    let looks = input.poll_cost_us / input.full_poll_us;
    Reader {
        look_us: input.poll_cost_us,
        poll_us: input.full_poll_us,
        work_us: (FULL_SHARE - looks) * 1e3 / input.full_khz,
        khz: input.full_khz,
        triggers: 1,
    }
}

/// Looks and work, and never more than a core.
fn formula_percent(reader: Reader) -> f64 {
    let looks = reader.look_us / reader.poll_us;
    (looks + reader.work_us * reader.khz * 1e-3).min(1.0) * 100.0
}

/// A receiver of 48 E-links on turano by what half as many cost it at 800 kHz; it takes what comes and does not poll.
fn receiver(published: &Document) -> Option<Reader> {
    let half = published.output.receiver_half_percent.value()? / 100.0;
    Some(Reader {
        look_us: 0.0,
        poll_us: 10.0,
        work_us: 2.0 * half * 1e3 / GBT_KHZ,
        khz: GBT_KHZ,
        triggers: 1,
    })
}

/// The rate of the table with the loads of readers and receivers.
const GBT_KHZ: f64 = 800.0;

fn loads(published: &Document) -> Vec<Prediction> {
    let output = &published.output;
    let of = |table: &str, row: &str, figure: &Published, reader: Reader| {
        let figure = Comparison::new(table, row, figure.clone(), "%");
        Prediction::new(figure.model(formula_percent(reader)), reader.percent())
    };
    let at_800 = Reader { khz: GBT_KHZ, poll_us: 10.0, triggers: 1, ..gbt(published) };
    let full = full(published);
    let often = Reader { poll_us: 10.0, ..full };
    let percent = &output.full_reader_percent;
    let receiver = receiver(published).map(|receiver| {
        of(
            GBT,
            "CPU of a receiver of 48 E-links at 800 kHz",
            &output.receiver_turano_percent,
            receiver,
        )
    });
    let readers = vec![
        of(
            GBT,
            "CPU of a reader at 800 kHz, polling every 10 us",
            &output.reader_800_percent,
            at_800,
        ),
        of(FULL, "CPU of a reader at 1050 kHz, polling every 100 us", percent, full).fitted(),
        of(
            FULL,
            "CPU of a reader at 1050 kHz, polling every 10 us",
            &output.full_reader_10us_percent,
            often,
        ),
    ];
    readers.into_iter().chain(receiver).collect()
}

/// What one reader carries, by its core: core 0 has the load of the bystander (rngd), which grows with the number of looks.
fn largest_rates(published: &Document) -> Vec<Prediction> {
    let output = &published.output;
    let of = |row: &str, figure: &Published, poll_us: f64, others: f64| {
        let gbt = gbt(published);
        let reader = Reader {
            poll_us,
            // Others take their share of the core from work and looks alike.
            work_us: gbt.work_us / (1.0 - others),
            look_us: gbt.look_us / (1.0 - others),
            triggers: if poll_us < 100.0 { 1 } else { 10 },
            ..gbt
        };
        // Where looks are cut down to what the work leaves, only the work counts; else both.
        let looks = if poll_us < 100.0 { 0.0 } else { reader.look_us / poll_us };
        let formula = (1.0 - looks) * 1e3 / reader.work_us;
        let figure = Comparison::new(GBT, row, figure.clone(), "kHz").model(formula);
        Prediction::new(figure, reader.largest_khz())
    };
    let others = |poll_us: f64| {
        let mut idle = published.idle.iter();
        let idle = idle.find(|idle| idle.poll_us == poll_us);
        idle.and_then(|idle| idle.rngd_percent.value()).unwrap_or(0.0) / 100.0
    };
    let possible = &output.largest_1ms_khz;
    vec![
        of("largest rate of a reader, polling every 1 ms", possible, 1000.0, 0.0).fitted(),
        of("largest rate on core 0, polling every 1 ms", possible, 1000.0, others(1000.0)),
        of(
            "largest rate on core 0, polling every 10 us",
            &output.core_0_10us_khz,
            10.0,
            others(10.0),
        ),
    ]
}

/// What 15 readers that poll every 10 us and their receivers carry: "felix-test-swrod runs on turano at 100% CPU at 800 kHz".
fn largest_with_receivers(published: &Document) -> Option<Prediction> {
    let reader = Reader { poll_us: 10.0, triggers: 1, ..gbt(published) };
    let receiver = receiver(published)?;
    // Where looks are cut down to what the work leaves, only the work counts.
    let formula = 1e3 / reader.work_us.max(receiver.work_us);
    let simulated = reader.largest_khz().min(receiver.largest_khz());
    let row = "largest rate of readers, polling every 10 us, and their receivers";
    let figure = Comparison::new(GBT, row, published.output.largest_10us_khz.clone(), "kHz");
    Some(Prediction::new(figure.model(formula), simulated))
}

/// All channels behind one trigger, and the network that all of them share, which carries so many triggers.
struct Server {
    khz: f64,
    network_khz: f64,
    /// Looks come late by up to so many intervals.
    late_polls: f64,
    triggers: u64,
    seconds: u64,
}

/// Channels of each device; the first has the trigger system's E-link.
const CHANNELS: usize = 4;

impl Server {
    fn run(&self, published: &Document) -> Option<Outcome> {
        let channels = published.input.channels;
        let mut stations: Vec<Station> = (0..channels).map(|_| self.reader(published)).collect();
        let network_us = self.triggers as f64 * 1e3 / self.network_khz / channels as f64;
        stations.push(Station {
            // Pages of a few polling intervals; how many there are is not published, and more only fill later.
            room: Room { items: 1000, ..Room::default() },
            ..Station::new("network", Draw::Constant(us_ps(network_us)))
        });
        let (event, ttc) = bytes_per_trigger(published);
        let gap_ps = us_ps(self.triggers as f64 * 1e3 / self.khz);
        let bytes = |each: f64| (each * self.triggers as f64).round();
        let (first, others): (Vec<usize>, Vec<usize>) =
            (0..channels).partition(|at| at.is_multiple_of(CHANNELS));
        let source = |bytes: f64, to| periodic("trigger", gap_ps, to_bytes(bytes), to);
        let model = Model {
            stations,
            sources: vec![source(bytes(event + ttc), first), source(bytes(event), others)],
            time_ps: self.seconds * SECOND_PS,
            warm_up_ps: 0,
            samples: 30,
        };
        run(&model, 1).ok()
    }

    fn reader(&self, published: &Document) -> Station {
        let input = &published.input;
        let reader = Reader { triggers: self.triggers, ..full(published) };
        let poll_ps = us_ps(input.full_poll_us);
        let station = reader.station();
        let rest = match self.late_polls > 0.0 {
            true => Rest::Sleep(Draw::Uniform(
                poll_ps,
                poll_ps + us_ps(self.late_polls * input.full_poll_us),
            )),
            false => Rest::Timer(poll_ps),
        };
        Station {
            room: Room { bytes: to_bytes(input.ring_bytes), ..Room::default() },
            poll: station.poll.map(|poll| Poll { rest, ..poll }),
            busy: Some(Busy {
                above_bytes: to_bytes(input.busy_used_bytes),
                below_bytes: to_bytes(input.busy_release_bytes),
                stops: vec![0, 1],
            }),
            to: vec![input.channels],
            ..station
        }
    }
}

/// Fillings of all rings in all snapshots.
fn fillings(outcome: &Outcome, channels: usize) -> Vec<f64> {
    let rings = outcome.stations[..channels].iter();
    rings.flat_map(|ring| &ring.samples_bytes).map(|bytes| *bytes as f64).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// At the largest rate without BUSY: how much the rings hold.
fn below_the_limit(published: &Document) -> Vec<Prediction> {
    let (input, output) = (&published.input, &published.output);
    let server = Server {
        khz: input.full_khz,
        network_khz: input.full_khz * (1.0 + input.reserve),
        late_polls: 0.0,
        triggers: 10,
        seconds: 1,
    };
    let late = Server { late_polls: input.late_polls, ..server };
    let (event, _) = bytes_per_trigger(published);
    // Work is begun by a look: half of what comes between two looks, and what comes while half of it is worked on.
    let load = full(published).work_us * input.full_khz * 1e-3;
    let formula = |between_us: f64| event * input.full_khz * 1e-3 * between_us * (1.0 + load) / 2.0;
    let seen = &output.occupancy_1050_bytes;
    let row = |row: &str, outcome: Option<&Outcome>, between_us: f64| {
        let place =
            "FULL mode tests, usage in bytes @ 1050 KHz, smallest and largest of both snapshots";
        let figure = Comparison::new(FULL, row, Published::span(seen, place), "B");
        let filling = outcome.map(|outcome| mean(&fillings(outcome, input.channels)));
        Prediction::new(figure.model(formula(between_us)), filling)
    };
    let (server, late) = (server.run(published), late.run(published));
    let busy = server.as_ref().map(|outcome| outcome.sources[0].busy_share * 100.0);
    let figure =
        Comparison::new(FULL, "1050 kHz: time with BUSY", output.busy_1050_percent.clone(), "%");
    // Looks that come late by up to so many intervals, evenly: the mean square over the mean.
    let (first, width) = (input.full_poll_us, input.late_polls * input.full_poll_us);
    let between = first + width / 2.0;
    let late_us = between + width * width / 12.0 / between;
    vec![
        row("1050 kHz: filling of a ring, looks each 100 us", server.as_ref(), first).misses(LATE),
        row(
            "1050 kHz: filling of a ring, looks late by up to 14 intervals",
            late.as_ref(),
            late_us / (1.0 - load),
        )
        .fitted(),
        Prediction::new(figure.model(0.0), busy),
    ]
}

/// A rate above the limit, and the time after which the rings were read.
const ABOVE_KHZ: f64 = 1100.0;
const SECONDS: u64 = 30;

/// Bytes of blocks that a trigger brings to a channel, and that the trigger system's E-link adds.
fn bytes_per_trigger(published: &Document) -> (f64, f64) {
    let (input, format) = (&published.input, format(published));
    let event = input.links_per_channel as f64 * block_share(format, input.full_payload);
    (event, block_share(format, TTC_BYTES))
}

/// Above it: rings fill until BUSY.
fn above_the_limit(published: &Document) -> Vec<Prediction> {
    let input = &published.input;
    let server = Server {
        khz: ABOVE_KHZ,
        network_khz: input.full_khz,
        late_polls: 0.0,
        triggers: 100,
        seconds: SECONDS,
    };
    let Some(outcome) = server.run(published) else {
        return Vec::new();
    };
    let (event, ttc) = bytes_per_trigger(published);
    let others = input.busy_used_bytes * event / (event + ttc);
    let is_first = |at: usize| at.is_multiple_of(CHANNELS);
    let mut rows = busy(published, &outcome, event + ttc);
    rows.push(rings(
        published,
        &outcome,
        "1100 kHz after 30 s: channel 0 of each device",
        input.busy_used_bytes,
        is_first,
    ));
    rows.push(rings(published, &outcome, "1100 kHz after 30 s: other channels", others, |at| {
        !is_first(at)
    }));
    rows
}

/// When BUSY comes and how much of the time there is from then on.
fn busy(published: &Document, outcome: &Outcome, bytes: f64) -> Vec<Prediction> {
    let (input, source) = (&published.input, &outcome.sources[0]);
    let seconds = SECONDS as f64;
    let formula_s = input.busy_used_bytes / (bytes * (ABOVE_KHZ - input.full_khz) * 1e3);
    let after_s = published.output.busy_1100_after_s.clone();
    let until = Comparison::new(FULL, "1100 kHz: time until BUSY", after_s, "s");
    let dead = (1.0 - input.full_khz / ABOVE_KHZ) * 100.0;
    let share = Comparison::new(FULL, "1100 kHz: time with BUSY, once it came", None, "%")
        .derived(Derived::computed(dead, "1 - 1050 kHz / 1100 kHz"));
    let simulated = source
        .first_busy_s
        .map(|first_s| source.busy_share * seconds / (seconds - first_s) * 100.0);
    vec![
        Prediction::new(until.model(formula_s), source.first_busy_s),
        Prediction::new(share.model(dead), simulated),
    ]
}

/// Mean filling of some channels in the last snapshot.
fn rings(
    published: &Document,
    outcome: &Outcome,
    row: &str,
    formula: f64,
    is_chosen: impl Fn(usize) -> bool,
) -> Prediction {
    let seen = published.output.occupancy_1100_bytes.iter().enumerate();
    let (figures, values): (Vec<Published>, Vec<f64>) = seen
        .filter(|(at, _)| is_chosen(*at))
        .filter_map(|(at, seen)| {
            let last = outcome.stations[at].samples_bytes.last()?;
            Some((seen.clone(), *last as f64))
        })
        .unzip();
    let place = "FULL mode tests, usage in bytes @ 1100 KHz after 30 s, smallest and largest of these channels";
    let figure = Comparison::new(FULL, row, Published::span(&figures, place), "B");
    Prediction::new(figure.model(formula), mean(&values))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a ring")]
fn to_bytes(bytes: f64) -> u64 {
    bytes as u64
}
