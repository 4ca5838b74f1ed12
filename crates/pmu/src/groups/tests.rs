use daqmeter_sys::host::Files;

use super::*;
use crate::emulated::catalogue;
use crate::mesh::topology::shipped;

fn counted(count: u64, seconds: f64) -> ObservedEvent {
    let ns = u64::try_from(std::time::Duration::from_secs_f64(seconds).as_nanos()).unwrap();
    ObservedEvent {
        count: vec![count],
        enabled_ns: vec![ns],
        running_ns: vec![ns],
        scale: 1.0,
        places: 1,
        ..Default::default()
    }
}

fn metric(text: &str, events: &[ObservedEvent]) -> Option<f64> {
    let ids: Vec<String> = (0..events.len())
        .map(|at| format!("[[events]]\nid='e{at}'\nevent='page-faults'\n"))
        .collect();
    let text =
        format!("name='x'\nabout='x'\n{}[[metric]]\nname='m'\nsource='x'\n{text}", ids.concat());
    let (_, metrics) =
        MetricGroup::parse(&TomlText::new("test", &text)).unwrap().expand(&[], &[]).unwrap();
    let observed = Observations { events: events.to_vec(), ..Observations::default() };
    metrics[0].value(&observed, 0)
}

#[test]
fn ratios_need_something_below_the_line_and_nothing_is_invented() {
    let ratio = "unit=''\nsum=['e0']\nover=['e1']";
    assert_eq!(metric(ratio, &[counted(1, 1.0), counted(4, 1.0)]), Some(0.25));
    assert_eq!(metric(ratio, &[counted(1, 1.0), counted(0, 1.0)]), None);
    let never = ObservedEvent {
        count: vec![0],
        enabled_ns: vec![5],
        running_ns: vec![0],
        ..Default::default()
    };
    assert_eq!(metric(ratio, &[counted(1, 1.0), never]), None);
}

fn host(name: &str) -> (Vec<Pmu>, Vec<Mesh>) {
    let mut mesh = shipped(name).unwrap();
    mesh.name = "arm_cmn_0".to_owned();
    (vec![catalogue(&mesh)], vec![mesh])
}

#[test]
fn a_group_is_there_when_its_events_are() {
    let files = Files::below("/nonexistent");
    let missing = |group: &str, pmus: &[Pmu], meshes: &[Mesh]| {
        MetricGroup::find(group).unwrap().missing(&EventResolver { pmus, files: &files }, meshes)
    };
    for name in ["n1sdp", "cmn650", "cmn700", "s3"] {
        let (pmus, meshes) = host(name);
        for group in ["memory", "memory-nodes", "slc", "pcie", "rni"] {
            assert_eq!(missing(group, &pmus, &meshes), None, "{name}: {group}");
        }
    }
    // Issue 16: a PMU without the events, and missing files, were `here`.
    let bare = [Pmu { name: "arm_cmn_0".to_owned(), ..Pmu::default() }];
    assert!(missing("memory", &bare, &[]).is_some_and(|why| why.contains("hnf_mc_reqs")));
    assert!(missing("block", &[], &[]).is_some());
    assert!(missing("cpu", &[], &[]).is_some_and(|why| why.contains("no PMU of its CPUs")));
    assert!(missing("memory", &[], &[]).is_some_and(|why| why.contains("needs the PMU arm_cmn")));
}

#[test]
fn the_documents_formulas_are_computed_from_perfs_output() {
    let row = |at: &str, count: u64, event: &str| format!("{at} {count} arm_cmn/{event}/\n");
    let mut memory = String::new();
    for (at, counts) in [
        ("2.000394365", [121_713_206, 121_715_680, 121_712_781, 121_715_432]),
        ("3.000644408", [121_683_890, 121_685_839, 121_682_684, 121_685_669]),
    ] {
        for (count, node) in counts.into_iter().zip(["0x24", "0x28", "0x44", "0x48"]) {
            memory.push_str(&row(at, count, &format!("hnf_mc_reqs,nodeid={node}")));
        }
    }
    let of = |group: &str, text: &str| -> Vec<ObservedMetric> {
        let observed = crate::perf_format::parse(text, None).unwrap();
        let metrics = MetricGroup::find(group).unwrap().metrics_of(&observed.events).unwrap();
        metrics.iter().map(|metric| metric.observe(&observed)).collect()
    };
    let rates = of("memory", &memory);
    // The retries are not in the output: their ratio is left out.
    assert_eq!(rates.len(), 1);
    assert_eq!(format!("{:.2}", rates[0].values[1].unwrap() / 1e6), "31143.45");
    let disk = [
        row("4.000522271", 84_743_908, "rnid_s0_wdata_beats,nodeid=0xc,bynodeid=1"),
        row("5.000680754", 84_746_976, "rnid_s0_wdata_beats,nodeid=0xc,bynodeid=1"),
    ];
    // 32 bytes a beat; the study's file has the other published rates.
    let rates = of("pcie", &disk.concat());
    assert_eq!(format!("{:.2}", rates[0].values[1].unwrap() / 1e6), "2711.47");
    let both = row("1.000000000", 100, "hnf_mc_reqs")
        + &row("1.000000000", 25, "hnf_mc_reqs,nodeid=0x24,bynodeid=1");
    assert_eq!(of("memory", &both)[0].values, [Some(6400.0)]);
    let observed = crate::perf_format::parse("1.000000000 5 page-faults\n", None).unwrap();
    let error = MetricGroup::find("memory").unwrap().metrics_of(&observed.events).unwrap_err();
    assert!(error.to_string().contains("there is no arm_cmn/hnf_mc_reqs/"), "{error}");
}

#[test]
fn shipped_groups_have_sources_and_a_wrong_file_is_refused_with_its_line() {
    for name in SHIPPED_GROUPS.names() {
        let group = MetricGroup::find(name).unwrap();
        assert!(group.metric.iter().all(|metric| metric.source.len() > 10), "{name}");
        assert_eq!(group.name, name);
    }
    let metric =
        "[[events]]\nid='a'\nevent='faults'\n[[metric]]\nname='m'\nunit=''\nsource='s'\nsum=['b']";
    for (text, part) in [
        ("surprise=1\nevents=[]", "mine.toml:3: unknown field"),
        ("events=[]", "mine.toml: it has no events"),
        (metric, "uses `b`"),
    ] {
        let text = format!("name='x'\nabout='x'\n{text}");
        let error = MetricGroup::parse(&TomlText::new("mine.toml", &text)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
