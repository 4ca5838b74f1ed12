//! The document's machine: the document's results, exactness, the planner, a closed loop, bad
//! input.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::bench::{Bench, Counted, HNF, RNI, Source, array, counted, happening, record};

/// NodeIDs of the HN-F, each with a slice of the system cache.
const SLICES: [u16; 4] = [0x24, 0x28, 0x44, 0x48];

pub(super) fn n1sdp(bench: &mut Bench) -> Result<()> {
    driver_is_there(bench)?;
    document(bench)?;
    formulas(bench)?;
    trap(bench)?;
    exactness(bench)?;
    planner(bench)?;
    closed_loop(bench)?;
    tracepoints(bench)?;
    hotplug(bench)?;
    refused_events(bench)?;
    refused_by_the_driver(bench)?;
    refused_to_others(bench)
}

/// Checks that the output of a command has all of these words, which are separated by blanks.
fn lists(bench: &mut Bench, command: &str, words: &str, wrap: fn(&str) -> String) -> Result<()> {
    let printed = bench.machine.guest(command)?;
    for word in words.split_whitespace().map(wrap) {
        ensure!(printed.contains(&word), "`{command}` lacks `{word}`:\n{printed}");
    }
    Ok(())
}

/// Checks C1, C2, C3 and C10: the driver is loaded and shows its events, under any of perf's names.
fn driver_is_there(bench: &mut Bench) -> Result<()> {
    let hnf = "brd_snoops_sent cache_fill cache_miss cmp_adq_full dir_snoops_sent intv_dirty \
               ld_st_swp_adq_full mc_reqs mc_retries";
    lists(bench, "daqmeter pmu list --events arm_cmn_0/hnf_", hnf, |name| {
        format!("arm_cmn_0/hnf_{name}/")
    })?;
    let dn = "dvmop dvmop_vmid_filtered dvmsync retried trk_occupancy_all trk_occupancy_dvmop";
    lists(bench, "daqmeter pmu list --events arm_cmn_0/dn_", dn, |name| {
        format!("arm_cmn_0/dn_rxreq_{name}/")
    })?;
    let files = "cpumask events format perf_event_mux_interval_ms subsystem type uevent";
    lists(bench, "ls /sys/bus/event_source/devices/arm_cmn_0/", files, str::to_owned)?;
    let listed = bench.machine.guest("daqmeter pmu list arm_cmn")?;
    let address = listed.contains("0x50000000") || bench.series == "6.1";
    ensure!(address, "from 6.12 on sysfs has the address:\n{listed}");
    let doctor = bench.machine.guest("daqmeter doctor")?;
    let is_named =
        |line: &str| line.contains("interconnect counters") && line.contains("arm_cmn_0");
    ensure!(doctor.lines().any(is_named), "C10: {doctor}");
    let map = "0x24_0x28_0x44_0x48 XP_0x68 p1_RN-D_0x0c p1_SBSX_0x64";
    lists(bench, "daqmeter pmu map", map, |part| part.replace('_', " "))?;
    println!("C1, C2, C3, C10: the driver shows what the document shows");
    Ok(())
}

fn node_event(event: &str, node: u16) -> String {
    format!("arm_cmn_0/{event},nodeid={node:#x},bynodeid=1/")
}

fn node(event: &str, (type_code, node, id): Source) -> Counted {
    counted(&node_event(event, node), &[(type_code, node, id)])
}

/// Checks C4 to C7, with perf beside us.
fn document(bench: &mut Bench) -> Result<()> {
    let requests = SLICES.map(|slice| node("hnf_mc_reqs", (HNF, slice, 0xd)));
    let retries = SLICES.map(|slice| node("hnf_mc_retries", (HNF, slice, 0xc)));
    // The machine has 8 counters in its controller; two programs share them.
    bench.both(&requests[..1], 4)?;
    bench.both(&requests, 5)?;
    let eight: Vec<Counted> = requests.into_iter().chain(retries).collect();
    bench.exact(&eight, 20, 6, 3_000_000_000)?;
    let beats =
        [node("rnid_s0_rdata_beats", (RNI, 0xc, 1)), node("rnid_s0_wdata_beats", (RNI, 0xc, 0xc))];
    bench.both(&beats, 7)?;
    println!("C4, C5, C6, C7: counted exactly, by perf too");
    Ok(())
}

/// Checks F1, F2 and F3 by the groups: the published counts of an interval give the published
/// rates.
fn formulas(bench: &mut Bench) -> Result<()> {
    let requests = [121_713_206, 121_715_680, 121_712_781, 121_715_432];
    let requests: Vec<(Source, u64)> =
        SLICES.into_iter().zip(requests).map(|(slice, count)| ((HNF, slice, 0xd), count)).collect();
    let written = [((RNI, 0xc, 0xc), 84_743_908)];
    let read = [((RNI, 0xc, 1), 308_994)];
    formula(bench, "memory", &requests, "memory", 31_158_854_336.0)?;
    formula(bench, "pcie", &written, "in: from devices to memory", 2_711_805_056.0)?;
    formula(bench, "pcie", &read, "out: from memory to devices", 9_887_808.0)?;
    println!("F1, F2, F3: the published counts give the published bytes");
    Ok(())
}

fn formula(
    bench: &mut Bench,
    group: &str,
    counts: &[(Source, u64)],
    metric: &str,
    expected_bytes: f64,
) -> Result<()> {
    bench.machine.send(&format!("daqmeter pmu stat --step --json --group {group} 2>&1"))?;
    bench.machine.until("counting: ")?;
    for (source, count) in counts {
        bench.machine.happen(0, &[happening(*source, *count)])?;
    }
    bench.machine.send("")?;
    bench.machine.end_of_input()?;
    let (status, printed) = bench.machine.finish()?;
    ensure!(status == 0, "{printed}");
    let record = record(&printed)?;
    let observed = &record["observed"];
    let found = array(observed, "metrics")?.iter().find(|found| found["name"] == metric);
    let rate = found.and_then(|found| found["values"][0].as_f64());
    let rate = rate.with_context(|| format!("{group}: {observed}"))?;
    // The rate is per second of the counters' own time.
    let has_counted = |event: &&Value| event["count"][0].as_u64().unwrap_or(0) > 0;
    let event = array(observed, "events")?.iter().find(has_counted).context("nothing counted")?;
    let bytes = rate * event["enabled_ns"][0].as_f64().unwrap_or(0.0) * 1e-9;
    let off = bytes / expected_bytes - 1.0;
    ensure!(off.abs() < 1e-9, "{group}, {metric}: {bytes} bytes instead of {expected_bytes}");
    Ok(())
}

/// Checks `nodeid` without `bynodeid`: perf adds up all nodes silently; our tool counts one and
/// warns.
fn trap(bench: &mut Bench) -> Result<()> {
    let event = "arm_cmn_0/hnf_mc_reqs,nodeid=0x24/";
    bench.begin_perf(&[event])?;
    bench.begin_steps(&[event])?;
    let all = SLICES.map(|slice| happening((HNF, slice, 0xd), 1000));
    bench.machine.happen(0, &all)?;
    let ours = bench.step(1)?;
    bench.end_steps()?;
    let warning = bench.machine.guest("cat /tmp/said")?;
    let perfs = bench.end_perf()?;
    ensure!((&ours[..], &perfs[..]) == (&[1000], &[4000]), "we {ours:?}, perf {perfs:?}");
    ensure!(warning.contains("bynodeid=1 was added"), "no warning: {warning}");
    println!("nodeid without bynodeid: perf counted 4 nodes, we the one, and said so");
    Ok(())
}

/// Makes a thousand random injections, up to wraps of the 32-bit counters with their interrupts.
fn exactness(bench: &mut Bench) -> Result<()> {
    let events = [
        node("hnf_mc_reqs", (HNF, 0x24, 0xd)),
        node("hnf_cache_miss", (HNF, 0x48, 1)),
        node("rnid_s0_wdata_beats", (RNI, 0xc, 0xc)),
        node("rnid_txdat_flits", (RNI, 0x8, 5)),
        node("mxp_p0_dat_txflit_valid", (0x6, 0x28, 0x71)),
        // One event over all nodes of its type: several monitors on one counter of the controller.
        counted("arm_cmn_0/hnf_mc_retries/", &SLICES.map(|slice| (HNF, slice, 0xc))),
    ];
    bench.exact(&events, 1000, 1, 3_000_000_000)?;
    // Jumps of 2^47 and more wrap the controller's counter: without the interrupt 2^48 would be
    // lost each time.
    bench.exact(&events[..2], 50, 2, 1 << 47)
}

/// Returns five events of one monitor, which has four counters.
fn five() -> [String; 5] {
    ["s0_rdata_beats", "s1_rdata_beats", "s2_rdata_beats", "rxdat_flits", "txdat_flits"]
        .map(|name| node_event(&format!("rnid_{name}"), 0x8))
}

fn planner(bench: &mut Bench) -> Result<()> {
    let [a, b, c, d, e] = five();
    let three = |event: &str| [0x24, 0x28, 0x44].map(|slice| node_event(event, slice));
    let [x, y, z] = three("hnf_mc_reqs");
    let sixth = node_event("rnid_txreq_flits_total", 0x8);
    let groups = [
        format!("{{{a},{b},{c},{d},{x},{y},{z}}}"),
        format!("{{{e},{}}}", three("hnf_cache_miss").join(",")),
    ];
    // A5: four fit in mainline, five and six take turns.
    for list in [
        five()[..4].to_vec(),
        five().to_vec(),
        [&five()[..], &[sixth]].concat(),
        [&five()[..], &three("hnf_mc_reqs")].concat(),
        vec![a, x, b, c, y, d, z, e],
        groups.to_vec(),
    ] {
        bench.planned(&list, 0.04)?;
    }
    Ok(())
}

/// Repeats the document's fio step: a device reads a disk, and every byte is in a beat of 32 that
/// passes the bridge.
fn closed_loop(bench: &mut Bench) -> Result<()> {
    let mut done = 0;
    bench.machine.frozen(|_, qmp| {
        done = qmp.bytes_read()?;
        Ok(Vec::new())
    })?;
    bench.machine.send(&format!(
        "daqmeter pmu verify block --file /dev/vda --time 3s --settle 3s -e {} --bytes-per-event 32 --json 2>/tmp/said",
        node_event("rnid_s0_wdata_beats", 0xc)
    ))?;
    // Reads of the machine's disk become beats, until the tool has ended.
    let (mut stops, mut printed) = (0_u32, String::new());
    loop {
        bench.machine.frozen(|meshes, qmp| {
            let beats = (qmp.bytes_read()? - done) / 32;
            done += beats * 32;
            let happened = (beats > 0).then(|| meshes[0].happen(happening((RNI, 0xc, 0xc), beats)));
            Ok(happened.into_iter().flatten().map(|wrap| (0, wrap)).collect())
        })?;
        stops += 1;
        if bench.machine.is_silent_for(Duration::from_millis(5)) {
            continue;
        }
        let line = bench.machine.line()?;
        if line.starts_with("GUEST status ") {
            break;
        }
        printed.push_str(&line);
        printed.push('\n');
    }
    let record = record(&printed)?;
    let is_beats = |counter: &&Value| counter["name"].as_str().unwrap_or("").contains("wdata");
    let beats = array(&record, "counters")?.iter().filter(is_beats);
    let beats: Vec<f64> = beats.filter_map(|counter| counter["value"].as_f64()).collect();
    ensure!(beats.len() >= 2 && beats[0] > 0.0, "nothing was counted: {printed}");
    let same = beats.iter().all(|bytes| *bytes == beats[0]);
    ensure!(same, "bytes read and beats x 32 differ: {beats:?} ({stops} stops)");
    ensure!(record["outcome"]["status"] == "ok", "{printed}");
    println!("closed loop: {} bytes read = beats x 32, exactly ({stops} stops)", beats[0]);
    Ok(())
}

/// Checks the counters of every host during a command: a tracepoint counts requests, the disk's own
/// counters requests and bytes.
fn tracepoints(bench: &mut Bench) -> Result<()> {
    let printed = bench.machine.guest(
        "daqmeter pmu stat --json -e block:block_rq_complete,disk.vda.reads,disk.vda.read_bytes,page-faults -- dd if=/dev/vda of=/dev/null bs=64k count=32 iflag=direct 2>/dev/null",
    )?;
    let record = record(&printed)?;
    let total = |event: &Value| -> u64 {
        let counts = event["count"].as_array();
        counts.map_or(0, |counts| counts.iter().filter_map(Value::as_u64).sum())
    };
    let totals: Vec<u64> = array(&record["observed"], "events")?.iter().map(total).collect();
    ensure!(totals[..3] == [32, 32, 32 << 16] && totals[3] > 0, "{totals:?}");
    println!("tracepoint and disk agree: {} requests, {} bytes", totals[0], totals[2]);
    Ok(())
}

/// Removes the CPU that counts: the driver moves the counters, and no count is doubled.
fn hotplug(bench: &mut Bench) -> Result<()> {
    let event = node_event("hnf_mc_reqs", 0x24);
    let cpu = "/sys/devices/system/cpu/cpu0/online";
    bench.machine.guest(&format!("(sleep 3; echo 0 > {cpu}; echo GUEST without it) & true"))?;
    bench.begin_steps(&[&event])?;
    let mut found = Vec::new();
    for count in [70_000, 80_000, 5] {
        bench.machine.happen(0, &[happening((HNF, 0x24, 0xd), count)])?;
        found.extend(bench.step(1)?);
        bench.machine.until_heard("GUEST without it")?;
    }
    bench.end_steps()?;
    let mask = bench.machine.guest("cat /sys/bus/event_source/devices/arm_cmn_0/cpumask")?;
    ensure!(mask.trim() == "1", "the driver counts on CPU {mask}");
    ensure!(found == [70_000, 80_000, 5], "{found:?}");
    bench.machine.guest(&format!("echo 1 > {cpu}"))?;
    println!("CPU 0 went away while it counted: exact before and after");
    Ok(())
}

/// Checks that invalid events are refused before anything is opened.
fn refused_events(bench: &mut Bench) -> Result<()> {
    let filters =
        ["read", "write"].map(|kind| node_event(&format!("hnf_qos_pocq_occupancy_{kind}"), 0x24));
    for (events, part) in [
        (node_event("hnf_mc_reqs", 0x99), "no HN-F with NodeID 0x99"),
        (node_event("hnf_mc_reqs", 0x8), "0x8 is a RN-D"),
        (group(&five()), "the counters of the monitor at XP 0x8"),
        (group(&["arm_cmn_0/dtc_cycles/"; 2].map(str::to_owned)), "one cycle counter"),
        (group(&filters), "the one filter of node 0x24"),
    ] {
        bench.refused(&format!("stat --count 1 -e {events}"), part)?;
    }
    Ok(())
}

fn group(events: &[String]) -> String {
    format!("'{{{}}}'", events.join(","))
}

/// Checks the message for a refusal by the driver without the map.
fn refused_by_the_driver(bench: &mut Bench) -> Result<()> {
    bench.machine.guest("umount /sys/kernel/debug")?;
    let unknown = node_event("hnf_mc_reqs", 0x99);
    bench.refused(&format!("stat --count 1 -e {unknown}"), "no node of this type and NodeID")?;
    let five = format!("stat --count 1 -e {}", group(&five()));
    bench.refused(&five, "does not fit beside the 4 before it")?;
    bench.refused("map", "debugfs mounted")?;
    bench.machine.guest("mount -t debugfs debug /sys/kernel/debug").map(drop)
}

fn refused_to_others(bench: &mut Bench) -> Result<()> {
    bench.machine.guest("echo 3 > /proc/sys/kernel/perf_event_paranoid")?;
    let (status, printed) = bench.machine.run(
        "su nobody -c 'PATH=/bin daqmeter pmu stat --count 1 -e arm_cmn_0/hnf_mc_reqs/' 2>&1",
    )?;
    let reason = printed.contains("perf_event_paranoid is 3; run as root");
    ensure!(status == 2 && reason, "{status}: {printed}");
    bench.refused("stat --count 1 -e cycles:pp", "is not an event")?;
    println!("bad input: refused before anything is opened, with the reason");
    Ok(())
}
