use daqmeter_harness::Fault;

use super::*;
use crate::emulated::catalogue;
use crate::mesh::topology::shipped;

fn cmn(name: &str) -> Pmu {
    let mut pmu = catalogue(&shipped("n1sdp").unwrap());
    pmu.name = name.to_owned();
    pmu
}

fn resolve(text: &str) -> Result<EventSet, Fault> {
    let pmus = [cmn("arm_cmn_0"), cmn("arm_cmn_1")];
    EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") }.resolve(&[text.to_owned()])
}

fn config(event: &PmuEvent, at: usize) -> u64 {
    match &event.sources[at] {
        EventCounter::Perf { attributes, .. } => attributes.config,
        EventCounter::System(_) => panic!("a PMU's event"),
    }
}

#[test]
fn nodeid_without_bynodeid_is_done_as_meant_and_reported() {
    let set = resolve("arm_cmn_0/hnf_mc_reqs,nodeid=0x24/").unwrap();
    assert_eq!(config(&set.groups[0][0], 0), 0x24_800d_0005);
    assert!(set.warnings[0].contains("bynodeid=1 was added"), "{:?}", set.warnings);
    let set = resolve("arm_cmn_0/hnf_mc_reqs,bynodeid,nodeid=0x24/").unwrap();
    assert_eq!((config(&set.groups[0][0], 0), set.warnings.len()), (0x24_800d_0005, 0));
    let set = resolve("arm_cmn_0/hnf_mc_reqs/").unwrap();
    assert_eq!((config(&set.groups[0][0], 0), set.warnings.len()), (0xd_0005, 0));
}

#[test]
fn a_family_adds_up_its_instances_and_a_name_picks_one() {
    assert_eq!(resolve("arm_cmn/hnf_mc_reqs/").unwrap().groups[0][0].sources.len(), 2);
    assert_eq!(resolve("arm_cmn_1/hnf_mc_reqs/").unwrap().groups[0][0].sources.len(), 1);
}

#[test]
fn braces_group_and_commas_in_slashes_belong_to_the_event() {
    let set =
        resolve("{arm_cmn_0/hnf_mc_reqs,nodeid=8,bynodeid=1/,arm_cmn_0/type=0x3/},page-faults")
            .unwrap();
    assert_eq!(set.groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(set.groups[0][0].on_mesh.as_ref().and_then(|on| on.node_id), Some(8));
    assert_eq!(set.groups[1][0].pmu, "software");
}

#[test]
fn wrong_events_are_refused_with_what_to_do() {
    for (text, part) in [
        ("arm_cnm/hnf_mc_reqs/", "no PMU `arm_cnm`; it has arm_cmn (daqmeter"),
        ("arm_cmn/hnf_mc_req/", "near are hnf_mc_reqs"),
        ("arm_cmn/nonsense/", "its fields are type, eventid"),
        ("arm_cmn/hnf_mc_reqs,nodeid=0x12345/", "nodeid=0x12345 does not fit"),
        ("arm_cmn/hnf_mc_reqs,nodeid/", "nodeid needs a value"),
        ("arm_cmn/watchpoint_up,wp_dev_sel=0,wp_chn_sel=0,wp_grp=0/", "wp_val needs a value"),
        ("arm_cmn/hnf_mc_reqs/u", "ends with its second slash"),
        ("arm_cmn/hnf_mc_reqs", "second slash"),
        ("{page-faults", "not closed"),
        ("page-faults}", "not opened"),
        ("{{page-faults}}", "nest"),
        ("", "no event"),
        ("pagefaults", "is not an event"),
        ("page-faults:u", "without a modifier"),
        ("hnf_mc_req", "near are arm_cmn/hnf_mc_reqs/"),
        ("block:nothing", "mount -t tracefs none /sys/kernel/tracing"),
    ] {
        let error = resolve(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn names_of_perf_are_taken_and_a_long_list_of_pmus_is_not_printed() {
    let named =
        resolve("hnf_mc_reqs,arm_cmn/hnf_mc_reqs,name=reads/,arm_*/hnf_mc_reqs/,r1a8").unwrap();
    let name = |group: &Vec<PmuEvent>| (group[0].name.clone(), group[0].sources.len());
    let names: Vec<(String, usize)> = named.groups.iter().map(name).collect();
    let expected = [("hnf_mc_reqs", 2), ("reads", 2), ("arm_*/hnf_mc_reqs/", 2), ("r1a8", 1)];
    assert_eq!(names, expected.map(|(name, sources)| (name.to_owned(), sources)));
    assert_eq!(config(&named.groups[0][0], 1), 0xd_0005);
    assert_eq!(config(&named.groups[3][0], 0), 0x1a8);
    let pmu = |at| Pmu { name: format!("uncore_{at}x"), ..cmn("") };
    let pmus: Vec<Pmu> = (0..49).map(pmu).collect();
    let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
    let error = |text: &str| host.resolve(&[text.to_owned()]).unwrap_err().to_string();
    assert!(error("arm_cmn/x/").contains("uncore_14x and 43 more (daqmeter"));
    assert!(
        error("hnf_mc_reqs").contains("write uncore_0x/hnf_mc_reqs/ or uncore_1x/hnf_mc_reqs/")
    );
}

/// `cpu_core/instructions/` was opened on every CPU, and refused as missing.
#[test]
fn events_of_a_hybrid_cpu_are_opened_on_its_own_cpus() {
    let devices = "sys/bus/event_source/devices";
    let file = |pmu: &str, name: &str| format!("{devices}/{pmu}/{name}");
    let (_root, files) = crate::sysfs::tests::tree(&[
        ("sys/devices/system/cpu/online", "0-2\n"),
        (&file("cpu_core", "type"), "4\n"),
        (&file("cpu_core", "cpus"), "0-1,3\n"),
        (&file("cpu_core", "events/instructions"), "event=0xc0\n"),
        (&file("cpu_core", "format/event"), "config:0-7\n"),
    ]);
    let pmus = crate::sysfs::discover(&files);
    let host = EventResolver { pmus: &pmus, files: &files };
    let set = host.resolve(&["cpu_core/instructions/".to_owned()]).unwrap();
    let EventCounter::Perf { cpus, .. } = &set.groups[0][0].sources[0] else { panic!("a PMU") };
    assert_eq!(cpus, &[0, 1]);
}

#[test]
fn a_tracepoint_that_is_not_there_is_told_from_a_tracefs_that_is_not() {
    let id = "sys/kernel/tracing/events/block/block_rq_issue/id";
    let (_root, files) = crate::sysfs::tests::tree(&[(id, "42\n")]);
    let host = EventResolver { pmus: &[], files: &files };
    let resolve = |text: &str| host.resolve(&[text.to_owned()]);
    assert!(resolve("block:nothing").unwrap_err().to_string().contains("is not an event"));
    let event = resolve("block:block_rq_issue").unwrap().groups.remove(0).remove(0);
    assert_eq!((config(&event, 0), event.name.as_str()), (42, "block:block_rq_issue"));
}
