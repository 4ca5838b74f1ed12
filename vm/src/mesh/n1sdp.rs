//! The document's machine: the document's counts, exactness, the planner, a closed loop, refusals
//! by the driver and the kernel.

use std::time::Duration;

use anyhow::{Result, ensure};
use daqmeter_record::RunRecord;

use super::count::{Counted, HNF, OFTEN, RNI, happening, json, node, node_event};
use super::machine::Machine;

/// NodeIDs of the HN-F, each with a slice of the system cache.
const SLICES: [u16; 4] = [0x24, 0x28, 0x44, 0x48];

pub(super) fn n1sdp(machine: &mut Machine) -> Result<()> {
    document(machine)?;
    trap(machine)?;
    exactness(machine)?;
    planner(machine)?;
    closed_loop(machine)?;
    hotplug(machine)?;
    printed(machine)
}

/// Checks C4 to C7, with perf beside us. The controller has 8 counters, which two programs share.
fn document(machine: &mut Machine) -> Result<()> {
    let requests = SLICES.map(|slice| node("hnf_mc_reqs", (HNF, slice, 0xd)));
    let beats =
        [node("rnid_s0_rdata_beats", (RNI, 0xc, 1)), node("rnid_s0_wdata_beats", (RNI, 0xc, 0xc))];
    for events in [&requests[..], &beats] {
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        machine.begin_perf(&texts)?;
        let ours = machine.exact(events, 20, OFTEN)?;
        let perfs = machine.end_perf()?;
        ensure!(perfs == ours, "perf counted {perfs:?} instead of {ours:?}");
    }
    println!("C4, C5, C6, C7: counted exactly, by perf too");
    Ok(())
}

/// Checks `nodeid` without `bynodeid`: perf adds up all nodes silently; our tool counts one and
/// warns.
fn trap(machine: &mut Machine) -> Result<()> {
    let event = "arm_cmn_0/hnf_mc_reqs,nodeid=0x24/";
    machine.begin_perf(&[event])?;
    machine.begin_steps(&[event])?;
    machine.happen(0, &SLICES.map(|slice| happening((HNF, slice, 0xd), 1000)))?;
    let ours = machine.step(1)?;
    machine.end_steps()?;
    let warning = machine.guest("cat /tmp/said")?;
    let perfs = machine.end_perf()?;
    ensure!((&ours[..], &perfs[..]) == (&[1000], &[4000]), "we {ours:?}, perf {perfs:?}");
    ensure!(warning.contains("bynodeid=1 was added"), "no warning: {warning}");
    println!("nodeid without bynodeid: perf counted 4 nodes, we the one, and said so");
    Ok(())
}

/// Makes a thousand injections, up to wraps of the 32-bit counters with their interrupts.
fn exactness(machine: &mut Machine) -> Result<()> {
    let events = [
        node("hnf_mc_reqs", (HNF, 0x24, 0xd)),
        node("hnf_cache_miss", (HNF, 0x48, 1)),
        node("rnid_s0_wdata_beats", (RNI, 0xc, 0xc)),
        node("rnid_txdat_flits", (RNI, 0x8, 5)),
        node("mxp_p0_dat_txflit_valid", (0x6, 0x28, 0x71)),
        // One event over all nodes of its type: several monitors on one counter of the controller.
        Counted {
            text: "arm_cmn_0/hnf_mc_retries/".to_owned(),
            of: SLICES.map(|slice| (HNF, slice, 0xc)).to_vec(),
        },
    ];
    machine.exact(&events, 1000, OFTEN)?;
    // Jumps of 2^47 and more wrap the controller's counter: without the interrupt 2^48 would be
    // lost each time.
    machine.exact(&events[..2], 50, 1 << 47).map(drop)
}

/// Returns five events of one monitor, which has four counters.
fn five() -> [String; 5] {
    ["s0_rdata_beats", "s1_rdata_beats", "s2_rdata_beats", "rxdat_flits", "txdat_flits"]
        .map(|name| node_event(&format!("rnid_{name}"), 0x8))
}

fn planner(machine: &mut Machine) -> Result<()> {
    let [a, b, c, d, e] = five();
    let three = |event: &str| [0x24, 0x28, 0x44].map(|slice| node_event(event, slice));
    let [x, y, z] = three("hnf_mc_reqs");
    let sixth = node_event("rnid_txreq_flits_total", 0x8);
    let groups = [
        format!("{{{a},{b},{c},{d},{x},{y},{z}}}"),
        format!("{{{e},{}}}", three("hnf_cache_miss").join(",")),
    ];
    // Turns of 4 ms would begin while a busy host still opens events, in another order.
    machine
        .guest("echo 50 > /sys/bus/event_source/devices/arm_cmn_0/perf_event_mux_interval_ms")?;
    // A5: four fit in mainline, five and six take turns.
    for list in [
        five()[..4].to_vec(),
        five().to_vec(),
        [&five()[..], &[sixth]].concat(),
        [&five()[..], &three("hnf_mc_reqs")].concat(),
        vec![a, x, b, c, y, d, z, e],
        groups.to_vec(),
    ] {
        machine.planned(&list, 0.04)?;
    }
    Ok(())
}

/// Repeats the document's fio step: a device reads a disk, and every byte is in a beat of 32 that
/// passes the bridge.
fn closed_loop(machine: &mut Machine) -> Result<()> {
    let mut done = machine.bytes_read()?;
    machine.send(&format!(
        "daqmeter pmu verify block --file /dev/vda --time 3s --settle 3s -e {} --bytes-per-event 32 --json 2>/tmp/said",
        node_event("rnid_s0_wdata_beats", 0xc)
    ))?;
    // Reads of the machine's disk become beats, until the tool has ended.
    let mut printed = String::new();
    while !printed.contains("GUEST status ") {
        let beats = (machine.bytes_read()? - done) / 32;
        done += beats * 32;
        machine.happen(0, &[happening((RNI, 0xc, 0xc), beats)])?;
        if let Some(line) = machine.line_within(Duration::from_millis(5))? {
            printed += &(line + "\n");
        }
    }
    let record: RunRecord = serde_json::from_str(json(&printed)?)?;
    let beats = record.counters.iter().filter(|counter| counter.name.contains("wdata"));
    let beats: Vec<f64> = beats.map(|counter| counter.value).collect();
    let same = beats.len() >= 2 && beats[0] > 0.0 && beats.iter().all(|bytes| *bytes == beats[0]);
    ensure!(same, "bytes read and beats x 32 differ: {beats:?}: {printed}");
    ensure!(record.outcome.is_ok(), "{printed}");
    println!("closed loop: {} bytes read = beats x 32, exactly", beats[0]);
    Ok(())
}

/// Removes the CPU that counts: the driver moves the counters, and no count is doubled.
fn hotplug(machine: &mut Machine) -> Result<()> {
    let event = node_event("hnf_mc_reqs", 0x24);
    let cpu = "/sys/devices/system/cpu/cpu0/online";
    machine.guest(&format!("(sleep 3; echo 0 > {cpu}; echo GUEST without it) & true"))?;
    machine.begin_steps(&[&event])?;
    let mut found = Vec::new();
    for count in [70_000, 80_000, 5] {
        machine.happen(0, &[happening((HNF, 0x24, 0xd), count)])?;
        found.extend(machine.step(1)?);
        if !machine.log.contains("GUEST without it") {
            machine.until("GUEST without it")?;
        }
    }
    machine.end_steps()?;
    let mask = machine.guest("cat /sys/bus/event_source/devices/arm_cmn_0/cpumask")?;
    ensure!(mask.trim() == "1", "the driver counts on CPU {mask}");
    ensure!(found == [70_000, 80_000, 5], "{found:?}");
    machine.guest(&format!("echo 1 > {cpu}"))?;
    println!("CPU 0 went away while it counted: exact before and after");
    Ok(())
}

/// Checks what commands print: the counters of every host, of which a tracepoint counts requests
/// and the disk's own counters requests and bytes; refusals by the driver, of which the map is
/// hidden, and by the kernel.
fn printed(machine: &mut Machine) -> Result<()> {
    let (unknown, five) = (node_event("hnf_mc_reqs", 0x99), five().join(","));
    for (status, command, part) in [
        (0, "daqmeter pmu stat -x ';' -e block:block_rq_complete,disk.vda.reads,disk.vda.read_bytes -- dd if=/dev/vda of=/dev/null bs=64k count=32 iflag=direct 2>/dev/null | cut -d ';' -f 2 | xargs".to_owned(), "32 32 2097152"),
        (0, "umount /sys/kernel/debug; echo 3 > /proc/sys/kernel/perf_event_paranoid".to_owned(), ""),
        (2, format!("daqmeter pmu stat --count 1 -e {unknown}"), "no node of this type and NodeID"),
        (2, format!("daqmeter pmu stat --count 1 -e '{{{five}}}'"), "does not fit beside the 4 before it"),
        (2, "daqmeter pmu list --mesh".to_owned(), "debugfs mounted"),
        (2, "su nobody -c 'PATH=/bin daqmeter pmu stat --count 1 -e arm_cmn_0/hnf_mc_reqs/'".to_owned(), "perf_event_paranoid is 3; run as root"),
    ] {
        machine.says(status, &command, part)?;
    }
    Ok(())
}
