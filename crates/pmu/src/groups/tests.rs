use daqmeter_sys::host::Files;

use super::*;
use crate::emulated::catalogue;
use crate::mesh::topology::shipped;

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

/// Regression: the events of Zen 3 were counted under their numbers on Zen 4, which has others.
#[test]
fn a_group_is_refused_on_a_pmu_with_other_fields() {
    let pmu = |umask: &str| {
        let fields = [("event", "config:0-7,32-35,59-60"), ("umask", umask)];
        let formats = fields.iter().filter_map(|(name, text)| FormatField::parse(name, text));
        [Pmu { name: "amd_df".to_owned(), formats: formats.collect(), ..Pmu::default() }]
    };
    let group = MetricGroup::find("df").unwrap();
    assert_eq!(group.expand(&pmu("config:8-15"), &[]).unwrap().0.len(), 8);
    let refused = group.expand(&pmu("config:8-15,24-27"), &[]).unwrap_err().to_string();
    assert!(refused.contains("numbers its events otherwise"), "{refused}");
}

/// Regression: `pmu verify` asked S3 for an event of its predecessors, and was refused.
#[test]
fn a_load_is_checked_by_the_events_that_the_part_has() {
    for (mesh, event) in
        [("n1sdp", "arm_cmn/hnf_mc_reqs/"), ("s3", "arm_cmn/hns_mc_reqs_local_all/")]
    {
        let checked = MetricGroup::find("memory").unwrap().checked_by("memory", &host(mesh).0);
        assert_eq!(checked, [(event.to_owned(), 64.0)], "{mesh}");
    }
    let named = |load| {
        let groups =
            SHIPPED_GROUPS.names().into_iter().map(|name| MetricGroup::find(name).unwrap());
        groups.filter(|group| !group.checked_by(load, &[]).is_empty()).count()
    };
    assert_eq!((named("memory"), named("device"), named("disk")), (7, 1, 0));
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
        let mut observed = crate::perf_format::parse(text, None).unwrap().runs.remove(0);
        MetricGroup::find(group).unwrap().measure(&mut observed).unwrap();
        observed.metrics
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
    let mut other = crate::perf_format::parse("1.000000000 5 page-faults\n", None).unwrap();
    let error = MetricGroup::find("memory").unwrap().measure(&mut other.runs[0]).unwrap_err();
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

#[test]
fn places_have_rates_of_their_own_and_one_together() {
    let csv = "1.000000000;S0;1;100;MiB;uncore_imc/cas_count_read/;1000000000;100.00;;
1.000000000;S1;1;50;MiB;uncore_imc/cas_count_read/;1000000000;100.00;;\n";
    let of = |text: &str| -> Vec<(String, Option<f64>)> {
        let mut observed = crate::perf_format::parse(text, None).unwrap().runs.remove(0);
        MetricGroup::find("imc").unwrap().measure(&mut observed).unwrap();
        let rate = |metric: &ObservedMetric| {
            let value = observed.metric_over(metric, 0..1).value;
            (metric.name.clone(), value.map(|rate| rate / 1_048_576.0))
        };
        observed.metrics.iter().map(rate).collect()
    };
    let expected = |rates: &[(&str, f64)]| -> Vec<(String, Option<f64>)> {
        rates.iter().map(|(name, rate)| ((*name).to_owned(), Some(*rate))).collect()
    };
    let rates = [("read", 150.0), ("S0 read", 100.0), ("S1 read", 50.0)];
    assert_eq!(of(csv), expected(&rates));
    // One cgroup may hold another: they have no sum.
    let cgroups = csv.replace("S0;1;", "").replace("S1;1;", "").replace("_read/;", "_read/;a;");
    let cgroups = cgroups.replacen("_read/;a;", "_read/;a/b;", 1);
    assert_eq!(of(&cgroups), expected(&[("a read", 50.0), ("a/b read", 100.0)]));
}

/// Bytes of each maker's memory counters, as perf prints their events, and on PMUs of their names.
#[test]
fn memory_of_every_maker_is_counted_in_bytes() {
    let channels: Vec<String> =
        (0..8).map(|n| format!("dram_channel_data_controller_{n}")).collect();
    let channels: Vec<&str> = channels.iter().map(String::as_str).collect();
    let cases: [(&str, &[&str], &[f64]); 8] = [
        ("memory", &["arm_cmn_1/hnf_mc_reqs/"], &[64.0]),
        ("imc", &["uncore_imc_0/cas_count_read/"], &[1_048_576.0]),
        ("umc", &["umc_cas_cmd.rd", "umc_cas_cmd.wr"], &[64.0, 64.0]),
        ("umc", &["amd_umc/event=0x0a,rdwrmask=0x2/"], &[64.0]),
        ("df", &channels, &[512.0]),
        ("ddrc", &["hisi_sccl1_ddrc0/flux_rd/", "hisi_sccl3_ddrc2/flux_wr/"], &[32.0, 32.0]),
        ("dmc620", &["arm_dmc620_10008c000/clkdiv2_rdwr,mask=0x1,match=0x1/"], &[64.0]),
        (
            "scf",
            &["nvidia_scf_pmu_0/cmem_rd_data/", "nvidia_scf_pmu_0/cmem_wr_total_bytes/"],
            &[32.0, 1.0],
        ),
    ];
    for (group, events, bytes) in cases {
        let row = |event: &&str| format!("1.000000000;1;;{event};1000000000;100.00;;\n");
        let text: String = events.iter().map(row).collect();
        let mut observed = crate::perf_format::parse(&text, None).unwrap().runs.remove(0);
        MetricGroup::find(group).unwrap().measure(&mut observed).unwrap();
        let rates: Vec<f64> = observed.metrics.iter().filter_map(|found| found.values[0]).collect();
        assert_eq!(rates, bytes, "{group}: {:?}", observed.metrics);
    }
    let other = "1.000000000 1 uncore_imc_free_running_0/cas_count_read/\n";
    let mut other = crate::perf_format::parse(other, None).unwrap().runs.remove(0);
    assert!(MetricGroup::find("imc").unwrap().measure(&mut other).is_err());
}
