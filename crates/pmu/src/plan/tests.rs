use super::*;
use crate::event::OnMesh;
use crate::mesh::nodes::{DTC, RNI, WATCHPOINT};
use crate::mesh::topology::shipped;
use proptest::prelude::*;

fn event(type_code: u16, event_id: u64, node_id: Option<u16>) -> PmuEvent {
    let on = OnMesh { type_code, event_id, occup_id: 0, node_id, wp_device: 0, wp_group: 0 };
    let name = format!("{type_code:#x}/{event_id:#x}@{node_id:?}");
    PmuEvent { on_mesh: Some(on), ..PmuEvent::new(&name, "arm_cmn_0") }
}

fn alone(events: &[PmuEvent]) -> Vec<Vec<PmuEvent>> {
    events.iter().map(|event| vec![event.clone()]).collect()
}

fn shares(driver: Driver, groups: &[Vec<PmuEvent>]) -> Vec<f64> {
    plan(&shipped("n1sdp").unwrap(), driver, groups).unwrap().shares
}

fn rnd(number: u64, node: u16) -> PmuEvent {
    event(RNI, number, Some(node))
}

fn hnf(number: u64, node: u16) -> PmuEvent {
    event(0x5, number, Some(node))
}

#[test]
fn the_documents_four_rnd_events_get_half_the_time_and_all_of_it_in_mainline() {
    let four = alone(&[rnd(5, 0x8), rnd(5, 0xc), rnd(4, 0x8), rnd(4, 0xc)]);
    assert_eq!(shares(Driver::N1sdp, &four), [0.5; 4]);
    assert_eq!(shares(Driver::Mainline, &four), [1.0; 4]);
    let more = |count: u64| alone(&(1..=count).map(|number| rnd(number, 0x8)).collect::<Vec<_>>());
    assert_eq!(shares(Driver::Mainline, &more(5)), [0.8; 5]);
    assert!(
        shares(Driver::Mainline, &more(6)).iter().all(|share| (share - 4.0 / 6.0).abs() < 1e-12)
    );
}

#[test]
fn the_documents_eight_events_fit_under_both_drivers() {
    let nodes = [0x24, 0x28, 0x44, 0x48];
    let eight: Vec<PmuEvent> =
        [0xd, 0xc].into_iter().flat_map(|number| nodes.map(|node| hnf(number, node))).collect();
    assert_eq!(shares(Driver::Mainline, &alone(&eight)), [1.0; 8]);
    assert_eq!(shares(Driver::N1sdp, &alone(&eight)), [1.0; 8]);
}

#[test]
fn percentages_that_perf_showed_are_predicted() {
    // Measured with perf on the emulated N1SDP: 87,87,87,87,49,62,74,87; interleaved 74,75,75,86-87
    // five times.
    let mut events: Vec<PmuEvent> = (1..=5).map(|number| rnd(number, 0x8)).collect();
    events.extend([hnf(0xd, 0x24), hnf(0xd, 0x28), hnf(0xd, 0x44)]);
    assert_eq!(
        shares(Driver::Mainline, &alone(&events)),
        [0.875, 0.875, 0.875, 0.875, 0.5, 0.625, 0.75, 0.875]
    );
    let [first, second] = [&events[..5], &events[5..]].map(<[PmuEvent]>::to_vec);
    let groups = vec![
        [&first[..4], &second[..]].concat(),
        [&first[4..], &[hnf(1, 0x24), hnf(1, 0x28), hnf(1, 0x44)]].concat(),
    ];
    assert_eq!(shares(Driver::Mainline, &groups), [0.5, 0.5]);
    // Five events over all home nodes: each takes a counter in every monitor.
    let all: Vec<PmuEvent> = (1..=5).map(|number| event(0x5, number, None)).collect();
    assert_eq!(shares(Driver::Mainline, &alone(&all)), [0.8; 5]);
}

#[test]
fn a_better_order_is_found_and_keeps_what_it_promises() {
    let mut events: Vec<PmuEvent> = (1..=5).map(|number| rnd(number, 0x8)).collect();
    events.extend([hnf(0xd, 0x24), hnf(0xd, 0x28), hnf(0xd, 0x44)]);
    let plan = plan(&shipped("n1sdp").unwrap(), Driver::Mainline, &alone(&events)).unwrap();
    let (order, promised) = plan.better.unwrap();
    assert!(promised.iter().all(|share| *share >= 0.75), "{promised:?}");
    let ordered: Vec<Vec<PmuEvent>> = order.iter().map(|at| vec![events[*at].clone()]).collect();
    let kept = shares(Driver::Mainline, &ordered);
    assert!(order.iter().zip(&kept).all(|(at, share)| promised[*at] == *share));
    assert!(
        plan.binding.iter().any(|(_, limit)| *limit == CounterLimit::Monitor(0x8)),
        "{:?}",
        plan.binding
    );
}

#[test]
fn what_can_never_be_opened_is_refused_with_the_reason() {
    let mesh = shipped("n1sdp").unwrap();
    let cycles = event(DTC, 0, None);
    let filter = |value| {
        let mut event = hnf(0xf, 0x24);
        event.on_mesh.as_mut().unwrap().occup_id = value;
        event
    };
    let watch = event(WATCHPOINT, 0, Some(0x8));
    let five: Vec<PmuEvent> = (1..=5).map(|number| rnd(number, 0x8)).collect();
    for (group, part) in [
        (
            five,
            "group of 5: `0xa/0x5@Some(8)` does not fit beside those before it: the counters of the monitor at XP 0x8",
        ),
        (vec![cycles.clone(), cycles], "one cycle counter in each DTC"),
        (vec![hnf(1, 0x99)], "no HN-F with NodeID 0x99; those of the type are 0x24"),
        (vec![hnf(1, 0x8)], "0x8 is a RN-D"),
        (vec![event(0x200, 1, None)], "has no node of type HN-S"),
        (vec![filter(1), filter(2)], "the one filter of node 0x24"),
        (vec![watch.clone(), watch.clone(), watch], "the watchpoints of XP 0x8"),
    ] {
        let error = plan(&mesh, Driver::Mainline, &[group]).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nobody_starves_and_a_better_order_is_better(
        picks in proptest::collection::vec((0_u64..16, any::<prop::sample::Index>(), any::<bool>()), 1..24)
    ) {
        let mesh = shipped("cmn700").unwrap();
        let events: Vec<PmuEvent> = picks.iter().map(|(number, node, rnd_wanted)| {
            let kind = if *rnd_wanted { "RN-D" } else { "HN-F" };
            let ids: Vec<u16> = mesh.nodes.iter().filter(|node| node.kind == kind).map(|node| node.node_id).collect();
            event(if *rnd_wanted { RNI } else { 0x5 }, *number, Some(ids[node.index(ids.len())]))
        }).filter(|event| event.on_mesh.as_ref().is_some_and(|on| on.event_id != 0xf)).collect();
        prop_assume!(!events.is_empty());
        let found = plan(&mesh, Driver::Mainline, &alone(&events)).unwrap();
        prop_assert!(found.shares.iter().all(|share| *share > 0.0));
        let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
        if let Some((_, shares)) = found.better {
            prop_assert!(least(&shares) > least(&found.shares));
        }
    }
}
