//! Host beside a chain: processes, load, mitigations, and each channel's ring.

use std::collections::BTreeMap;

use daqmeter_record::border::sum;
use daqmeter_record::units::{joined, plural, significant};
use daqmeter_record::{ProcessPart, ProcessUse, RunRecord};

use crate::aligned::{TextColumn, table_without};
use crate::groups::in_groups;

const SHOWN: usize = 24;

/// Columns that a narrow table leaves out, the least important first.
const SPARE: [&str; 9] = ["SHR", "VIRT", "NI", "PRI", "USER", "MEM%", "S", "TIME+", "RES"];

pub(super) fn load(record: &RunRecord) -> String {
    let host = &record.host_cpu;
    let cpus = |ns: u64| ns as f64 / record.wall_ns.max(1) as f64;
    let own_ns = record.process_cpu.total_ns();
    // The kernel counts the time of the host by ticks, and may miss that of short runs.
    let host_ns = sum([host.user_ns, host.system_ns, host.irq_ns, host.softirq_ns]).max(own_ns);
    let active = record.host.mitigations.iter().filter_map(|state| {
        let (name, state) = state.split_once(": ")?;
        state.starts_with("Mitigation").then_some(name)
    });
    let active = joined(active, ", ").map(|active| format!("mitigations: {active}"));
    format!(
        "host: {} of {} CPUs busy, {} of them by this program; steal {} %; {}{}",
        significant(cpus(host_ns), 3),
        record.host.logical_cpus,
        significant(cpus(own_ns), 3),
        significant(cpus(host.steal_ns) * 100.0, 2),
        active.unwrap_or("no CPU mitigation is active".to_owned()),
        record.counter("rings without huge pages").map_or(String::new(), |rings| {
            let rings = plural(rings as u64, "ring");
            format!("; {rings} in base pages, since too few huge pages are reserved")
        })
    )
}

pub(super) fn occupancy(record: &RunRecord) -> Vec<String> {
    let filled = record.series.iter().filter_map(|series| {
        let place = series.name.strip_prefix("ring filling, device ")?;
        let (device, channel) = place.split_once(", channel ")?;
        let place: (u32, u32) = (device.parse().ok()?, channel.parse().ok()?);
        Some((place, series.values.iter().rev().find_map(|value| *value)?))
    });
    let filled = filled.collect::<BTreeMap<_, _>>().into_iter();
    let by_device = in_groups(filled.map(|((device, _), bytes)| (device, format!("{bytes:.0}"))));
    let line = |(device, bytes): (u32, Vec<String>)| {
        format!("bytes in the ring of device {device}, by channel: {}", bytes.join("  "))
    };
    by_device.into_iter().map(line).collect()
}

/// Writes the processes as `top` does: threads of this program (`chain`), its other processes
/// (`peer`), the kernel's, others. Empty without a look at them.
pub(super) fn processes(record: &RunRecord) -> String {
    fn short(bytes: u64) -> String {
        let kib = bytes >> 10;
        if kib < 100_000 { format!("{kib}K") } else { format!("{}M", bytes >> 20) }
    }
    fn part(part: ProcessPart) -> &'static str {
        match part {
            ProcessPart::Own => "chain",
            ProcessPart::Chain => "peer",
            ProcessPart::Kernel => "kernel",
            ProcessPart::Other => "other",
        }
    }
    fn percent(part: u64, whole: u64) -> String {
        format!("{:.1}", part as f64 / whole.max(1) as f64 * 100.0)
    }
    type Process<'a> = (&'a ProcessUse, &'a RunRecord);
    let columns: [TextColumn<Process<'_>>; 13] = [
        ("PID", |(process, _)| process.pid.to_string()),
        ("of", |(process, _)| part(process.part).to_owned()),
        ("name", |(process, _)| process.name.clone()),
        ("USER", |(process, _)| process.user.to_string()),
        ("PRI", |(process, _)| process.priority.to_string()),
        ("NI", |(process, _)| process.nice.to_string()),
        ("VIRT", |(process, _)| short(process.virtual_bytes)),
        ("RES", |(process, _)| short(process.resident_bytes)),
        ("SHR", |(process, _)| short(process.shared_bytes)),
        ("S", |(process, _)| process.state.to_string()),
        ("CPU%", |(process, record)| percent(process.cpu_ns, record.wall_ns)),
        ("MEM%", |(process, record)| percent(process.resident_bytes, record.host.memory_bytes)),
        ("TIME+", |(process, _)| {
            let seconds = process.total_cpu_ns as f64 * 1e-9;
            format!("{}:{:05.2}", (seconds / 60.0) as u64, seconds % 60.0)
        }),
    ];
    let all = record.host_cpu.processes.iter().take(SHOWN).map(|process| (process, record));
    let all: Vec<Process<'_>> = all.collect();
    table_without(3, &columns, &SPARE, &all)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, Host, TimeSeries};

    use super::super::chains::tests::example;
    use super::*;

    fn process(pid: u32, name: &str, part: ProcessPart, cpu_ns: u64) -> ProcessUse {
        ProcessUse {
            pid,
            name: name.to_owned(),
            part,
            priority: 20,
            state: 'R',
            virtual_bytes: 3196 << 20,
            resident_bytes: 3083 << 20,
            shared_bytes: 1026 << 20,
            cpu_ns,
            total_cpu_ns: 934_570_000_000,
            ..ProcessUse::default()
        }
    }

    #[test]
    fn what_ran_stands_beside_a_chain() {
        let mut record = example(10.0, 800e3, 0.0);
        record.wall_ns = 1_000_000_000;
        record.host_cpu.user_ns = 1_200_000_000;
        record.process_cpu.user_ns = 1_000_000_000;
        record.counters.push(Counter::count("rings without huge pages", 2));
        record.host_cpu.processes = vec![
            process(24392, "lane-0", ProcessPart::Own, 998_000_000),
            process(1469, "rngd", ProcessPart::Other, 188_000_000),
        ];
        record.host = Host {
            logical_cpus: 16,
            memory_bytes: 126 << 30,
            mitigations: vec!["meltdown: Mitigation: PTI".into(), "mds: Vulnerable".into()],
            ..Host::default()
        }
        .into();
        let ring = |channel: u32, bytes: f64| TimeSeries {
            name: format!("ring filling, device 1, channel {channel}"),
            unit: "B".into(),
            times_ns: vec![1],
            values: vec![Some(bytes)],
        };
        record.series = vec![ring(0, 1_513_472.0), ring(1, 1_003_520.0)];
        insta::assert_snapshot!(format!(
            "{}\n{}\n{}",
            load(&record),
            occupancy(&record).join("\n"),
            processes(&record)
        ));
    }
}
