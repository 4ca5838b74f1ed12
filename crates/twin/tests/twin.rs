//! The simulator against closed forms, within the confidence of its replications, and what any run must keep.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use daqmeter_twin::{
    Arrivals, Busy, Draw, Full, Model, Outcome, Poll, Rest, Room, SECOND_PS, SHIPPED, Scenario,
    Source, Station, Takes, forms, run, run_all,
};
use proptest::prelude::*;

const MS_PS: u64 = SECOND_PS / 1000;
const US_PS: u64 = MS_PS / 1000;

/// Items every 10 us on average at one station.
fn queue(arrivals: Draw, station: Station, time_ps: u64) -> Model {
    Model {
        stations: vec![station],
        sources: vec![Source::open(arrivals, 100, vec![0])],
        time_ps,
        warm_up_ps: time_ps / 10,
        samples: 0,
    }
}

const POISSON: Draw = Draw::Exponential(10 * US_PS);
#[test]
fn the_simulator_agrees_with_what_is_known_exactly() {
    let forms = forms(12, 2);
    assert_eq!(forms.len(), 21);
    for form in &forms {
        assert!(form.holds(), "{form:?}");
    }
}

/// 64 stations in a row with random links back, buffers, loss and a poller: everything at once.
fn everything() -> Model {
    let station = |at: usize| Station {
        per_byte_ps: 3.7,
        servers: [Some(1), Some(3), None][at % 3],
        room: Room { items: if at % 3 == 2 { u64::MAX } else { 20 }, ..Room::default() },
        full: if at % 2 == 1 { Full::Lose } else { Full::Wait },
        loss: if at == 5 { 0.1 } else { 0.0 },
        lost_to: (at == 5).then_some(2),
        to: if at < 15 { vec![at + 1] } else { vec![] },
        poll: (at == 9).then_some(Poll {
            rest: Rest::Timer(50 * US_PS),
            look_ps: US_PS,
            takes: Takes::Found,
        }),
        ..Station::new("server", Draw::Exponential((8 + at as u64 % 3) * US_PS))
    };
    Model {
        stations: (0..16).map(station).collect(),
        sources: vec![
            Source::open(POISSON, 100, vec![0]),
            Source::open(Draw::Uniform(0, 9 * MS_PS), 100, vec![4]),
        ],
        time_ps: 50 * MS_PS,
        warm_up_ps: 0,
        samples: 3,
    }
}

/// FNV-1a of what a run did.
fn digest(outcome: &Outcome) -> u64 {
    let text = format!("{outcome:?}");
    let byte = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, byte)
}

#[test]
fn a_seed_gives_the_same_bits_whoever_computes_them() {
    let model = everything();
    let alone: Vec<Outcome> = (1..=4).map(|seed| run(&model, seed).unwrap()).collect();
    let jobs: Vec<(&Model, u64)> = (1..=4).map(|seed| (&model, seed)).collect();
    assert_eq!(run_all(&jobs, 3).unwrap(), alone);
    assert_ne!(alone[0], alone[1]);
    // Written down once, on x86-64 with glibc: another host, compiler or C library gives the same.
    assert_eq!(digest(&alone[0]), 17_647_116_341_019_364_407, "{:?}", alone[0].stations);
}

#[test]
fn busy_holds_its_source_between_its_marks() {
    let reader = Station {
        busy: Some(Busy { above_bytes: 5_000, below_bytes: 1_000, stops: vec![0] }),
        ..Station::new("reader", Draw::Constant(11 * US_PS))
    };
    let mut model = queue(Draw::Constant(10 * US_PS), reader, SECOND_PS);
    model.warm_up_ps = SECOND_PS / 10;
    let outcome = run(&model, 1).unwrap();
    let source = &outcome.sources[0];
    // What comes is more than what is taken by 1 - 10/11, and so much is stopped.
    let stopped = source.stopped as f64 / source.offered as f64;
    assert!((stopped - 1.0 / 11.0).abs() < 2e-3, "{stopped}");
    assert!((source.busy_share - stopped).abs() < 2e-3, "{source:?}");
    assert_eq!(outcome.stations[0].max_bytes, 5_000);
    // 50 items more than were taken, at 1 of 11 each 10 us.
    let first_s = source.first_busy_s.unwrap();
    assert!((first_s - 5.5e-3).abs() < 3e-4, "{first_s}");
    assert_eq!(outcome.lost(), 0);
}

#[test]
fn a_full_buffer_holds_back_whoever_delivers() {
    let slow = Station {
        room: Room { items: 3, ..Room::default() },
        ..Station::new("slow", Draw::Constant(20 * US_PS))
    };
    let quick = Station { room: slow.room, ..Station::new("quick", Draw::Constant(US_PS)).to(1) };
    let model = Model {
        stations: vec![quick, slow],
        ..queue(Draw::Constant(10 * US_PS), Station::new("", Draw::Constant(1)), 100 * MS_PS)
    };
    let outcome = run(&model, 1).unwrap();
    assert_eq!(outcome.lost(), 0);
    let rate = outcome.left as f64 / outcome.seconds;
    assert!((rate / 5e4 - 1.0).abs() < 1e-3, "{rate}");
    // The source waits, too: it offers what is taken.
    assert!(outcome.sources[0].offered.abs_diff(outcome.left) <= 2);
    assert_eq!(outcome.stations[0].max_items, 3);
}

#[test]
fn a_timer_that_ticked_during_work_is_answered_at_once() {
    let station = |every_us: u64| Station {
        poll: Some(Poll {
            rest: Rest::Timer(every_us * US_PS),
            look_ps: 6 * US_PS,
            takes: Takes::Found,
        }),
        ..Station::new("reader", Draw::Constant(8 * US_PS))
    };
    let load = |every_us| {
        let model = queue(Draw::Constant(10 * US_PS), station(every_us), 100 * MS_PS);
        let outcome = run(&model, 1).unwrap();
        outcome.stations[0].work_s / outcome.seconds
    };
    // 80 % of work: with looks every 10 us there is no rest, with one each 100 us most of the looks are.
    assert!((load(10) - 1.0).abs() < 1e-3, "{}", load(10));
    assert!((load(100) - 0.86).abs() < 1e-2, "{}", load(100));
}

#[test]
fn what_is_lost_and_sent_again_comes_later_but_comes() {
    let link =
        Station { loss: 0.25, lost_to: Some(1), ..Station::new("link", Draw::Constant(US_PS)) };
    let again = Station { servers: None, ..Station::new("time-out", Draw::Constant(MS_PS)).to(0) };
    let mut model = queue(POISSON, link, SECOND_PS);
    model.stations.push(again);
    let outcome = run(&model, 1).unwrap();
    assert_eq!(outcome.lost(), 0);
    let sent = outcome.stations[0].done as f64 / outcome.left as f64;
    assert!((sent * 0.75 - 1.0).abs() < 1e-2, "{sent}");
    assert!(outcome.latency_ps.quantile(0.5) < 10 * US_PS);
    assert!(outcome.latency_ps.quantile(0.9) > MS_PS / 100 * 95);
}

#[test]
fn buffers_in_a_circle_that_are_all_full_are_found() {
    let room = Room { items: 1, ..Room::default() };
    let station =
        |to: usize| Station { room, ..Station::new("station", Draw::Constant(US_PS)).to(to) };
    let model =
        Model { stations: vec![station(1), station(0)], ..queue(POISSON, station(0), MS_PS) };
    assert!(run(&model, 1).unwrap().stuck_at_s.is_some());
}

#[test]
fn a_queue_that_grows_without_end_is_refused_before_memory_is_gone() {
    let mut model = queue(Draw::Constant(1), Station::new("slow", Draw::Constant(MS_PS)), MS_PS);
    model.sources[0].arrivals =
        Arrivals::Open { first_ps: None, gap: Draw::Constant(1), burst: 600_000 };
    let error = run(&model, 1).unwrap_err().to_string();
    assert!(error.contains("slow") && error.contains("cannot keep up"), "{error}");
}

#[test]
fn a_population_larger_than_the_first_buffer_waits_outside() {
    let first = Station {
        room: Room { items: 2, ..Room::default() },
        ..Station::new("first", Draw::Constant(10 * US_PS))
    };
    let mut model = queue(POISSON, first, 100 * MS_PS);
    model.sources[0].arrivals = Arrivals::Closed(9);
    let outcome = run(&model, 1).unwrap();
    assert!(outcome.left.abs_diff(9000) <= 1, "{}", outcome.left);
    assert_eq!((outcome.stations[0].max_items, outcome.stuck_at_s), (2, None));
    assert!(outcome.events < 11_000, "{}", outcome.events);
}

#[test]
fn items_that_go_round_without_taking_time_are_refused() {
    let mut model = queue(POISSON, Station::new("wheel", Draw::Constant(0)), MS_PS);
    model.sources[0].arrivals = Arrivals::Closed(1);
    let error = run(&model, 1).unwrap_err().to_string();
    assert!(error.contains("time stands still"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn nothing_appears_and_nothing_disappears(
        seed in 0..1000_u64,
        services in proptest::collection::vec((1..40_u64, 1..4_u32, 1..30_u64, any::<bool>(), 0..3_u8), 1..7),
        gap in 1..30_u64
    ) {
        let last = services.len() - 1;
        let stations: Vec<Station> = services.iter().enumerate().map(|(at, &(us, servers, items, loses, kind))| Station {
            servers: Some(servers),
            room: Room { items, ..Room::default() },
            full: if loses { Full::Lose } else { Full::Wait },
            poll: (kind == 1).then_some(Poll { rest: Rest::Timer(30 * US_PS), look_ps: US_PS, takes: if seed % 2 == 0 { Takes::All } else { Takes::Found } }),
            loss: if kind == 2 { 0.2 } else { 0.0 },
            to: if at < last { vec![at + 1] } else { vec![] },
            ..Station::new("station", Draw::Exponential(us * US_PS))
        }).collect();
        let model = Model {
            stations,
            sources: vec![Source::open(Draw::Exponential(gap * US_PS), 100, vec![0])],
            time_ps: 5 * MS_PS,
            warm_up_ps: 0,
            samples: 1,
        };
        let outcome = run(&model, seed).unwrap();
        prop_assert_eq!(outcome.stuck_at_s, None);
        let gone = outcome.left + outcome.lost();
        let inside: u64 = outcome.stations.iter().map(|at| at.samples_bytes[0]).sum::<u64>() / 100;
        // One item may wait at the source.
        prop_assert!(outcome.sources[0].offered - gone - inside <= 1);
        for (station, known) in outcome.stations.iter().zip(&model.stations) {
            prop_assert!(station.max_items <= known.room.items);
            let servers = f64::from(known.servers.unwrap());
            prop_assert!(station.work_s <= outcome.seconds * servers * (1.0 + 1e-9) + 2e-6);
        }
        // Little's law over the whole run holds for what left: no item is inside longer than the run.
        prop_assert!(outcome.latency_sum_s <= outcome.seconds * outcome.left as f64);
    }
}

/// A scenario with one value put into it.
fn text(field: &str, value: &str, in_source: bool) -> String {
    let more = format!("{field} = {value}\n");
    let (source, station) = match in_source {
        true => (more.as_str(), ""),
        false => ("", more.as_str()),
    };
    format!(
        "title = \"x\"\ntime = \"1ms\"\n[[source]]\nname = \"s\"\nto = \"q\"\nrate = \"1kHz\"\nbytes = \"1B\"\n{source}[[station]]\nname = \"q\"\nspeed = \"1MB/s\"\n{station}"
    )
}

const FIELDS: [&str; 14] = [
    "every",
    "population",
    "burst",
    "first",
    "arrivals",
    "each",
    "servers",
    "service",
    "buffer",
    "full",
    "busy",
    "poll",
    "loss",
    "lost_to",
];

proptest! {
    #[test]
    fn any_text_is_a_scenario_that_can_run_or_is_refused_in_one_line(
        field in 0..FIELDS.len(),
        value in "(\"[ -!#-~]{0,10}\"|[0-9]{1,9}|\\{ ?[a-z]{2,11} = \"[0-9]{1,4}[a-z%]{0,2}\" ?\\}|\\[\"[0-9]{1,3}us\"\\]|[ -~]{0,12})",
        in_source in any::<bool>()
    ) {
        match Scenario::parse(&text(FIELDS[field], &value, in_source), "a.toml") {
            Ok(scenario) => prop_assert_eq!(scenario.model.check(), Ok(())),
            Err(error) => {
                let line = error.to_string();
                prop_assert!(line.starts_with("a.toml:") && !line.contains('\n'), "{}", line);
            }
        }
    }
}

#[test]
fn what_ships_runs() {
    for (name, _) in SHIPPED {
        let mut scenario = Scenario::load(name).unwrap();
        scenario.model.time_ps /= 20;
        scenario.model.warm_up_ps = 0;
        assert!(run(&scenario.model, 1).unwrap().left > 0, "{name}");
    }
}

#[test]
fn every_field_of_a_scenario_becomes_its_part_of_the_model() {
    let file = "title = \"all\"\ntime = \"2s\"\nwarm_up = \"5ms\"\n\
        [[source]]\nname = \"s\"\nevery = { uniform = [\"1us\", \"3us\"] }\nfirst = \"4us\"\nburst = 7\nbytes = [\"1B\", \"2KiB\"]\nto = [\"a\", \"b\"]\neach = true\n\
        [[source]]\nname = \"p\"\npopulation = 3\nbytes = \"9B\"\nto = \"b\"\n\
        [[station]]\nname = \"a\"\nservers = 2\nservice = { erlang = 3, mean = \"6us\" }\nspeed = \"1GB/s\"\nbuffer = \"1MiB\"\nfull = \"lose\"\nbusy = { above = \"8KiB\", below = \"4KiB\", stops = \"s\" }\npoll = { sleep = { exponential = \"1us\" }, look = \"2ns\", takes = \"all\" }\nloss = \"2%\"\nlost_to = \"b\"\nto = [\"b\"]\n\
        [[station]]\nname = \"b\"\nservers = \"all\"\nservice = { trace = [\"1us\", \"2us\"] }\n";
    let model = Scenario::parse(file, "all.toml").unwrap().model;
    assert_eq!((model.time_ps, model.warm_up_ps), (2 * SECOND_PS, 5 * MS_PS));
    let [s, p] = &model.sources[..] else { panic!("two sources") };
    let open = Arrivals::Open {
        first_ps: Some(4 * US_PS),
        gap: Draw::Uniform(US_PS, 3 * US_PS),
        burst: 7,
    };
    assert_eq!((&s.arrivals, &s.to[..], s.each), (&open, &[0, 1][..], true));
    assert_eq!(s.bytes, Draw::Trace([1, 2048].into()));
    assert_eq!(p.arrivals, Arrivals::Closed(3));
    let a = &model.stations[0];
    assert_eq!((a.servers, a.per_byte_ps, a.full), (Some(2), 1000.0, Full::Lose));
    assert_eq!(a.service, Draw::Erlang(3, 6 * US_PS));
    assert_eq!((a.loss, a.lost_to, &a.to[..]), (0.02, Some(1), &[1][..]));
    assert_eq!(a.room.bytes, 1 << 20);
    let busy = a.busy.as_ref().unwrap();
    assert_eq!((busy.above_bytes, busy.below_bytes, &busy.stops[..]), (8192, 4096, &[0][..]));
    let poll = a.poll.as_ref().unwrap();
    assert_eq!(poll.rest, Rest::Sleep(Draw::Exponential(US_PS)));
    assert_eq!((poll.look_ps, poll.takes), (2000, Takes::All));
    assert_eq!(model.stations[1].servers, None);
}
