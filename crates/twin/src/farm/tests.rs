use proptest::prelude::*;

use super::events::{Change, simulate_changed};
use super::*;
use crate::closed::{mg1_wait_s, mmc_wait_s};
use crate::model::Full;
use crate::model::SECOND_PS;

/// Senders, one switch, receivers; texts replace what the base says.
fn text(changes: &[(&str, &str)]) -> String {
    let base = r#"title = "a farm"
time = "20ms"

[[node]]
name = "sender"
count = 4

[[node]]
name = "receiver"
count = 1

[[switch]]
name = "switch"
count = 1
ports = 64
buffer = "1GiB"

[[link]]
from = "sender"
to = "switch"
rate = "1000GB/s"

[[link]]
from = "receiver"
to = "switch"
rate = "1GB/s"

[[flow]]
name = "data"
from = "sender"
to = "receiver"
bytes = "1000B"
rate = "200kHz"
arrivals = "trigger"
pattern = "turn"
"#;
    changes.iter().fold(base.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

fn farm(changes: &[(&str, &str)]) -> Farm {
    Farm::parse(&text(changes), "farm.toml").unwrap()
}

fn outcome(farm: &Farm, seed: u64) -> (Network, FarmOutcome) {
    let network = Network::new(farm);
    let outcome = simulate(farm, &network, seed).unwrap();
    (network, outcome)
}

fn layer<'a>(network: &Network, outcome: &'a FarmOutcome, name: &str) -> &'a LayerOutcome {
    let at = network.layers.iter().position(|layer| layer.name == name);
    &outcome.layers[at.unwrap()]
}

fn questions() -> Questions {
    Questions { seed: 1, replications: 3, threads: 1, slow: 4.0, spare: 0.2 }
}

#[test]
fn messages_of_a_trigger_wait_for_each_other_at_a_port_as_in_d_d_1() {
    let farm = farm(&[]);
    let (network, outcome) = outcome(&farm, 1);
    // Four messages of 1 us each, every 5 us: their times in the port are 1, 2, 3 and 4 us.
    let queue = layer(&network, &outcome, "switch -> receiver").mean_queue;
    assert!((queue / (10.0 / 5.0) - 1.0).abs() < 1e-3, "{queue}");
    let times = &outcome.latency_ps;
    assert!((times.quantile(1.0) as f64 / 4.0e6 - 1.0).abs() < 0.04);
}

#[test]
fn independent_senders_wait_at_a_port_as_in_m_d_1() {
    let farm = farm(&[("\"trigger\"", "\"poisson\""), ("20ms", "200ms")]);
    let queues: Vec<f64> = (0..6)
        .map(|seed| {
            let (network, outcome) = outcome(&farm, seed);
            layer(&network, &outcome, "switch -> receiver").mean_queue
        })
        .collect();
    let (mean, low, high) = daqmeter_stats::student_interval(&queues, 0.95).unwrap();
    let known = 0.8 + 0.8e6 * mg1_wait_s(0.8e6, 1e-6, 0.0);
    assert!((mean - known).abs() < high - low, "{mean} {known}");
    assert!(high - low < 0.12 * mean, "{low} {high}");
}

#[test]
fn servers_of_a_node_share_what_comes_as_in_m_m_c() {
    let changes = [
        ("\"trigger\"", "\"poisson\""),
        ("20ms", "200ms"),
        ("1GB/s", "1000GB/s"),
        (
            "name = \"receiver\"\ncount = 1",
            "name = \"receiver\"\ncount = 1\nservers = 3\nservice = { exponential = \"3us\" }",
        ),
    ];
    let farm = farm(&changes);
    let queues: Vec<f64> = (0..6)
        .map(|seed| {
            let (network, outcome) = outcome(&farm, seed);
            layer(&network, &outcome, "receiver receives").mean_queue
        })
        .collect();
    let (mean, low, high) = daqmeter_stats::student_interval(&queues, 0.95).unwrap();
    let known = 0.8e6 * (3e-6 + mmc_wait_s(0.8e6, 3e-6, 3));
    assert!((mean - known).abs() < high - low, "{mean} {known}");
    assert!(high - low < 0.15 * mean, "{low} {high}");
}

#[test]
fn layers_that_are_fluid_give_what_their_events_give() {
    let changes = [("\"trigger\"", "\"periodic\""), ("1000GB/s", "2GB/s")];
    let farm = farm(&changes);
    let network = Network::new(&farm);
    assert!(network.layers[0].is_fluid && network.layers[0].load > 0.05);
    let fluid = simulate(&farm, &network, 3).unwrap();
    let all = simulate(&farm, &network.clone().without_fluid(), 3).unwrap();
    let (fluid_n, all_n) = (fluid.totals().received, all.totals().received);
    assert!(fluid_n.abs_diff(all_n) <= 4, "{fluid_n} {all_n}");
    let medians = [&fluid, &all].map(|run| run.latency_ps.quantile(0.5) as f64);
    assert!((medians[0] / medians[1] - 1.0).abs() < 0.04, "{medians:?}");
    assert!(fluid.events < all.events);
}

#[test]
fn a_slow_receiver_holds_up_only_its_own_senders_or_all() {
    let receivers = [
        ("count = 1\n\n[[switch", "count = 4\nbuffer = \"8kB\"\n\n[[switch"),
        ("1GiB", "8kB"),
        ("count = 4", "count = 4\nbuffer = \"8kB\""),
    ];
    let with = |pattern: &str| {
        let mut changes = receivers.to_vec();
        changes.push(("\"turn\"", pattern));
        let farm = farm(&changes);
        answer(&farm, &questions()).unwrap().slow
    };
    // 0.8 MB/s of 1 MB/s: at a quarter of the speed 1.25 of what comes to one is too much.
    let own = with("\"fixed\"");
    assert!((own.own.mean - 1.0).abs() < 0.02, "{own:?}");
    let slow = Questions { slow: 10.0, ..questions() };
    let of = |pattern: &str| {
        let mut changes = receivers.to_vec();
        changes.push(("\"turn\"", pattern));
        answer(&farm(&changes), &slow).unwrap().slow
    };
    let (fixed, turn) = (of("\"fixed\""), of("\"turn\""));
    assert!((fixed.own.mean - 0.5).abs() < 0.02, "{fixed:?}");
    assert!((fixed.others.unwrap().mean - 1.0).abs() < 0.02, "{fixed:?}");
    // Every sender waits for it in its turn.
    assert!(turn.others.unwrap().mean < 0.75, "{turn:?}");
    assert!(turn.lost.mean > 0.3, "{turn:?}");
}

#[test]
fn a_full_buffer_behind_a_fluid_layer_holds_up_its_sender() {
    // Triggers of four messages at a port with room for two: links that are hardly used have to hold the others.
    let waits = farm(&[("1GiB", "2kB"), ("20ms", "2ms")]);
    let network = Network::new(&waits);
    assert!(network.layers[0].is_fluid);
    let found = simulate(&waits, &network, 1).unwrap();
    let all = simulate(&waits, &network.clone().without_fluid(), 1).unwrap();
    assert!(found.layers[0].held > 0);
    assert_eq!(found, all);
    // Where it loses instead, the same are lost with and without events in the links.
    let lossy = farm(&[("1GiB\"", "2kB\"\nfull = \"lose\""), ("20ms", "2ms")]);
    let network = Network::new(&lossy);
    let found = simulate(&lossy, &network, 1).unwrap().totals();
    let all = simulate(&lossy, &network.without_fluid(), 1).unwrap().totals();
    assert!(found.lost > 0 && found.refused == 0, "{found:?}");
    assert!(found.lost.abs_diff(all.lost) <= 4, "{found:?} {all:?}");
}

#[test]
fn the_limit_is_that_of_arithmetic_or_of_the_buffer() {
    // 0.8 of the port is used: it works all the time at 1.25.
    let found = answer(&farm(&[]), &questions()).unwrap().begins;
    assert!((found.at.mean / 1.25 - 1.0).abs() < 0.011, "{found:?}");
    assert!(!found.is_loss);
    assert_eq!(found.layer, "switch -> receiver");
    // A buffer of three messages cannot hold the four of a trigger at any rate.
    let small = [("1GiB\"", "3kB\"\nfull = \"lose\"")];
    let found = answer(&farm(&small), &questions()).unwrap().begins;
    assert!(found.is_loss && found.at.mean < 0.05, "{found:?}");
}

#[test]
fn what_to_add_is_the_layer_without_enough_to_spare() {
    let answer = answer(&farm(&[]), &questions()).unwrap();
    assert!(answer.needs.is_empty());
    let more = Questions { spare: 0.5, ..questions() };
    let answer = super::answer(&farm(&[]), &more).unwrap();
    let [need] = answer.needs.as_slice() else { panic!("{:?}", answer.needs) };
    assert_eq!((need.has, need.needs, need.added), (1, 2, 1));
    // One link more for the one receiver: from 1 GB/s to 2 GB/s; for the senders it brings nothing.
    let gains: Vec<f64> = answer.gains.iter().map(|gain| gain.bytes_per_s).collect();
    assert_eq!(gains[0], 0.0);
    assert!((gains[1] / 1e9 - 1.0).abs() < 1e-6, "{gains:?}");
}

/// Two leaves below a spine; senders and receivers on both.
fn tree(pattern: &str) -> Farm {
    farm(&[
        ("count = 1\n\n[[switch", "count = 4\n\n[[switch"),
        ("name = \"switch\"\ncount = 1", "name = \"switch\"\ncount = 2"),
        (
            "[[link]]",
            "[[switch]]\nname = \"spine\"\ncount = 1\nports = 64\nbuffer = \"1MiB\"\n\n[[link]]\nfrom = \"switch\"\nto = \"spine\"\nrate = \"1GB/s\"\n\n[[link]]",
        ),
        ("\"turn\"", pattern),
    ])
}

#[test]
fn messages_turn_at_the_lowest_switch_that_both_are_below() {
    let load = |farm: &Farm, name: &str| {
        let network = Network::new(farm);
        let layer = network.layers.iter().find(|layer| layer.name == name);
        layer.unwrap().load
    };
    let (fixed, turn) = (tree("\"fixed\""), tree("\"turn\""));
    assert_eq!(load(&fixed, "switch -> spine"), 0.0);
    // Two senders of 0.2 GB/s, half of whose messages go to the other leaf.
    assert!((load(&turn, "switch -> spine") - 0.2).abs() < 1e-9);
    assert!((load(&turn, "spine -> switch") - 0.2).abs() < 1e-9);
    assert!((load(&turn, "switch -> receiver") - 0.2).abs() < 1e-9);
    let (network, outcome) = outcome(&turn, 1);
    let counted = layer(&network, &outcome, "switch -> spine");
    let used = counted.work_s / outcome.seconds / 2.0;
    assert!((used - 0.2).abs() < 0.01, "{used}");
}

#[test]
fn a_farm_that_contradicts_itself_is_refused_with_line_and_field() {
    for (change, wanted) in [
        (("from = \"sender\"\nto = \"rec", "from = \"snder\"\nto = \"rec"), "`snder`"),
        (("rate = \"1GB/s\"\n", ""), "missing field `rate`"),
        (("count = 4", "count = 0"), "farm.toml:4: sender: a count of 1"),
        (("1GB/s", "1GB"), "link from `receiver`: rate"),
        (("200kHz", "200"), "flow `data`: rate: `200` has no unit"),
        (("1000B", "1000"), "has no unit"),
        (("1GiB", "1"), "switch `switch`: buffer"),
        (("ports = 64", "ports = 3"), "5 links come to each, and each has 3 ports"),
        (("1GiB", "999B"), "never fit into the buffer of `switch`"),
        (("to = \"receiver\"", "to = \"switch\""), "flows go between nodes"),
        (("to = \"switch\"", "to = \"receiver\""), "links lead to switches"),
        (
            ("from = \"receiver\"\nto = \"switch\"", "from = \"sender\"\nto = \"switch\""),
            "links to two kinds",
        ),
        (
            ("from = \"receiver\"\nto = \"switch\"", "from = \"switch\"\nto = \"switch\""),
            "in a circle",
        ),
        (("name = \"receiver\"", "name = \"sender\""), "name of another one, in line 4"),
        (("count = 4", "count = 4\nservers = 2"), "a message takes no time here"),
        (("count = 4", "count = 4\nfull = \"lose\""), "is never full"),
        (("count = 4", "count = 4\nknown = { speed = \"x\" }"), "`speed` is not given here"),
        (("20ms", "0s"), "above the warm-up"),
        (
            ("[[flow]]", "[[node]]\nname = \"idle\"\ncount = 1\n\n[[flow]]"),
            "neither sends nor receives",
        ),
    ] {
        let error = Farm::parse(&text(&[change]), "farm.toml").unwrap_err().to_string();
        assert!(error.starts_with("farm.toml:"), "{error}");
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_flow_needs_a_way() {
    let cut = [("[[link]]\nfrom = \"receiver\"\nto = \"switch\"\nrate = \"1GB/s\"\n", "")];
    let error = Farm::parse(&text(&cut), "farm.toml").unwrap_err().to_string();
    assert!(error.contains("no way from `sender` to `receiver`"), "{error}");
}

#[test]
fn shipped_farms_can_run() {
    for (name, text) in SHIPPED_FARMS {
        let mut farm = Farm::parse(text, name).unwrap();
        farm.time_ps = SECOND_PS / 10_000;
        farm.warm_up_ps = 0;
        assert!(outcome(&farm, 1).1.totals().received > 0, "{name}");
    }
}

#[test]
fn every_number_of_felix_phase_2_is_known_or_assumed() {
    let farm = Farm::load("felix-phase-2").unwrap();
    let (_, text) = SHIPPED_FARMS.iter().find(|(name, _)| *name == "felix-phase-2").unwrap();
    let file: toml::Table = toml::from_str(text).unwrap();
    let mut numbers = 0;
    for section in ["node", "switch", "link", "flow"] {
        for part in file[section].as_array().unwrap() {
            let names = ["name", "from", "to", "known", "assumed"];
            let fields = part.as_table().unwrap().keys();
            numbers += fields.filter(|key| !names.contains(&key.as_str())).count();
        }
    }
    assert_eq!(farm.basis.len(), numbers);
    assert!((farm.offered_bytes_per_s() / 4.6e12 - 1.0).abs() < 1e-3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn messages_are_neither_made_nor_lost_uncounted(
        senders in 1..6_u32,
        receivers in 1..6_u32,
        switches in 1..4_u32,
        pattern in prop_oneof![Just("fixed"), Just("turn"), Just("event"), Just("random")],
        arrivals in prop_oneof![Just("trigger"), Just("periodic"), Just("poisson")],
        full in prop_oneof![Just("wait"), Just("lose")],
        buffer_kb in 2..20_u32,
        burst in 1..3_u32,
        rate in prop_oneof![Just(0.3), Just(1.0), Just(4.0)],
        seed in 0..1000_u64,
    ) {
        let mut farm = tree(&format!("\"{pattern}\""));
        farm.time_ps = SECOND_PS / 1000;
        farm.warm_up_ps = 0;
        for (at, kind) in farm.kinds.iter_mut().enumerate() {
            kind.count = [senders, receivers, switches, 1][at];
            kind.buffer_bytes = u64::from(buffer_kb) * 1000;
            kind.full = if full == "lose" { Full::Lose } else { Full::Wait };
        }
        farm.flows[0].burst = burst;
        farm.flows[0].timing = match arrivals {
            "trigger" => Timing::Trigger,
            "periodic" => Timing::Periodic,
            _ => Timing::Poisson,
        };
        prop_assert_eq!(farm.check(), Ok(()));
        let network = Network::new(&farm);
        let change = Change { rate, slow: 2.0 };
        for network in [network.clone(), network.without_fluid()] {
            let run = simulate_changed(&farm, &network, seed, change).unwrap();
            let totals = run.totals();
            prop_assert_eq!(
                totals.offered,
                totals.received + totals.lost + totals.refused + run.under_way.1
            );
            let lost: u64 = run.layers.iter().map(|layer| layer.lost).sum();
            prop_assert_eq!(lost, totals.lost);
            prop_assert!(totals.offered > 0 && (full == "lose" || totals.lost == 0));
            prop_assert_eq!(run.by_receiver.iter().sum::<u64>(), totals.received);
            for (of, layer) in run.layers.iter().zip(&network.layers) {
                prop_assert!(of.max_bytes <= layer.room_bytes);
            }
            prop_assert_eq!(&run, &simulate_changed(&farm, &network, seed, change).unwrap());
        }
    }

    #[test]
    fn any_text_is_a_farm_or_refused_in_one_line(cut in 0..900_usize, other in ".{0,20}") {
        let whole = text(&[]);
        let at = whole.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(whole.len());
        let changed = format!("{}{other}{}", &whole[..at], &whole[at..]);
        match Farm::parse(&changed, "farm.toml") {
            Ok(farm) => prop_assert_eq!(farm.check(), Ok(())),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
