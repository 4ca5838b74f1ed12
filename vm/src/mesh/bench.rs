//! A machine with its meshes, and the comparisons of every case. All counted occurrences are
//! injected by us.

use std::time::Instant;

use crate::shell::{measured, root};
use anyhow::{Context, Result, bail, ensure};
use daqmeter_pmu::emulated::{Happening, catalogue};
use daqmeter_pmu::event::EventResolver;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;
use serde_json::Value;

use super::machine::Machine;

/// Node types in the mesh's registers.
pub(super) const HNF: u16 = 0x5;
pub(super) const RNI: u16 = 0xa;

pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) meshes: Vec<Mesh>,
    pub(super) series: String,
}

/// Random numbers of SplitMix64: runs repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn count(&mut self, max: u64) -> u64 {
        let bits = self.next() % (64 - u64::from(max.leading_zeros()));
        (self.next() % (1 << bits) + (1 << bits)).min(max)
    }
}

pub(super) type Source = (u16, u16, u64);

pub(super) fn happening((type_code, node_id, event_id): Source, count: u64) -> Happening {
    Happening { type_code, node_id, event_id, count }
}

/// Counted event of a step in the form of perf's `-e`, and the happenings that it adds up.
pub(super) struct Counted {
    pub(super) text: String,
    pub(super) of: Vec<Source>,
}

pub(super) fn counted(text: &str, of: &[Source]) -> Counted {
    Counted { text: text.to_owned(), of: of.to_vec() }
}

fn options<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    texts.into_iter().map(|text| format!("-e '{text}' ")).collect()
}

pub(super) fn record(printed: &str) -> Result<Value> {
    let line = printed.lines().find(|line| line.starts_with('{'));
    let parsed = serde_json::from_str(line.unwrap_or_default());
    parsed.with_context(|| format!("no record: {printed}"))
}

/// Returns an array of a record, which must be there.
pub(super) fn array<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    value[name].as_array().with_context(|| format!("no {name}: {value}"))
}

impl Bench {
    /// Compares the driver's events with the shipped ones, or writes them to their file.
    pub(super) fn events(&mut self, file: &str, record: bool) -> Result<()> {
        let printed = self.machine.guest(
            "cd /sys/bus/event_source/devices/arm_cmn_0/events && for name in *; do echo $name $(cat $name); done; cd /",
        )?;
        let mut lines: Vec<&str> = printed.lines().collect();
        lines.sort_unstable();
        let text = format!("{}\n", lines.join("\n"));
        let path = root().join("crates/pmu/src/emulated/events").join(file);
        println!("{} events in sysfs", lines.len());
        if record {
            std::fs::write(path, text)?;
            let map = self.machine.guest("cat /sys/kernel/debug/arm-cmn/map")?;
            let maps = root().join("crates/pmu/testdata/maps");
            std::fs::create_dir_all(&maps)?;
            return Ok(std::fs::write(maps.join(file), map)?);
        }
        let known = std::fs::read_to_string(&path)?;
        ensure!(known == text, "{file} is not what the driver shows: cargo xtask pmu-vm --record");
        Ok(())
    }

    /// Checks the driver's own map, as our tool reads it: every node with registers is in its
    /// place.
    pub(super) fn map(&mut self) -> Result<()> {
        let printed = self.machine.guest("daqmeter pmu map --json 2>/dev/null")?;
        let maps = printed.lines().count();
        ensure!(maps == self.meshes.len(), "{maps} maps");
        for (line, mesh) in printed.lines().zip(&self.meshes) {
            let found: Mesh = serde_json::from_str(line).with_context(|| line.to_owned())?;
            same_crosspoints(&found, mesh)?;
            same_nodes(&found, mesh)?;
        }
        Ok(())
    }

    /// Begins a program that counts by steps; it is ready when this returns.
    pub(super) fn begin_steps(&mut self, events: &[&str]) -> Result<()> {
        let list = options(events.iter().copied());
        self.machine.send(&format!("daqmeter pmu stat --step -x ';' {list} 2>/tmp/said"))?;
        self.step(events.len()).map(drop)
    }

    pub(super) fn step(&mut self, rows: usize) -> Result<Vec<u64>> {
        self.machine.send("")?;
        let mut counts = Vec::new();
        while counts.len() < rows {
            let line = self.machine.line()?;
            if let Some(status) = line.strip_prefix("GUEST status") {
                let why = self.machine.guest("cat /tmp/said")?;
                bail!("the tool ended with{status}: {why}");
            }
            if line.starts_with("GUEST ") {
                continue;
            }
            let value = line.split(';').nth(1).with_context(|| format!("no row: `{line}`"))?;
            counts.push(value.parse().with_context(|| format!("no count: `{line}`"))?);
        }
        Ok(counts)
    }

    pub(super) fn end_steps(&mut self) -> Result<()> {
        self.machine.end_of_input()?;
        let (status, printed) = self.machine.finish()?;
        ensure!(status == 0, "stat ended with {status}: {printed}");
        Ok(())
    }

    /// Counts by steps: each injects occurrences for each event, and the tool must count them
    /// exactly.
    pub(super) fn exact(
        &mut self,
        events: &[Counted],
        steps: u64,
        seed: u64,
        max: u64,
    ) -> Result<()> {
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        self.begin_steps(&texts)?;
        let mut random = Random(seed);
        let began = Instant::now();
        let mut sum = 0_u128;
        for step in 0..steps {
            let sources = events.iter().flat_map(|event| &event.of);
            let all: Vec<Happening> =
                sources.map(|source| happening(*source, random.count(max))).collect();
            sum += all.iter().map(|what| u128::from(what.count)).sum::<u128>();
            self.machine.happen(0, &all)?;
            let found = self.step(events.len())?;
            let expected = expected(events, &all);
            ensure!(found == expected, "step {step}: counted {found:?} instead of {expected:?}");
        }
        self.end_steps()?;
        println!(
            "exact: {steps} steps, {} events, {sum} in all, {:.1} s",
            events.len(),
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Begins to count with perf; it counts when this returns.
    pub(super) fn begin_perf(&mut self, events: &[&str]) -> Result<()> {
        let list = options(events.iter().copied());
        let command = "sh -c 'echo > /tmp/began; cat /tmp/go'";
        let wait = "until test -e /tmp/began; do sleep 0.1; done";
        self.machine.guest("rm -f /tmp/go /tmp/began; mkfifo /tmp/go")?;
        let perf = format!("perf stat -x';' -o /tmp/perf {list} -- {command} & {wait}");
        self.machine.guest(&perf).map(drop)
    }

    pub(super) fn end_perf(&mut self) -> Result<Vec<u64>> {
        perf_values(&self.machine.guest("echo > /tmp/go; wait; cat /tmp/perf")?)
    }

    pub(super) fn both(&mut self, events: &[Counted], seed: u64) -> Result<()> {
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        self.begin_perf(&texts)?;
        self.begin_steps(&texts)?;
        let mut random = Random(seed);
        let (mut happened, mut ours) = (vec![0; events.len()], vec![0; events.len()]);
        for _ in 0..20 {
            let sources = events.iter().flat_map(|event| &event.of);
            let all: Vec<Happening> = sources
                .map(|source| happening(*source, random.next() % 3_000_000_000 + 1))
                .collect();
            for what in &all {
                self.machine.happen(0, std::slice::from_ref(what))?;
            }
            add(&mut happened, &expected(events, &all));
            add(&mut ours, &self.step(events.len())?);
        }
        self.end_steps()?;
        let perfs = self.end_perf()?;
        ensure!(ours == happened, "the tool counted {ours:?} instead of {happened:?}");
        ensure!(perfs == happened, "perf counted {perfs:?} instead of {happened:?}");
        println!("perf and daqmeter agree to the count: {} events", events.len());
        Ok(())
    }

    /// Compares the shares that the planner predicts with perf's and our own, with the events in
    /// this order.
    /// On a busy host the guest's clock ticks during the opening of the events, which then take
    /// turns in another order. So wrong shares are measured again. A wrong prediction fails each
    /// time.
    pub(super) fn planned(&mut self, groups: &[String], tolerance: f64) -> Result<()> {
        let predicted = self.predicted(groups)?;
        let list = options(groups.iter().map(String::as_str));
        measured(
            || Ok((self.shares_of_perf(&list)?, self.shares_of_ours(&list)?)),
            |(perfs, ours)| {
                println!(
                    "shares [%]: planned {}; perf {}; daqmeter {}",
                    percents(&predicted),
                    percents(perfs),
                    percents(ours)
                );
                near("perf", perfs, &predicted, tolerance)?;
                near("daqmeter", ours, &predicted, tolerance)
            },
        )
    }

    fn predicted(&self, groups: &[String]) -> Result<Vec<f64>> {
        let mut mesh = self.meshes[0].clone();
        mesh.name = "arm_cmn_0".to_owned();
        let pmus = [catalogue(&mesh)];
        let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
        let set = host.resolve(groups)?;
        let shares = plan(&mesh, Driver::Mainline, &set.groups)?.shares;
        let of = |(share, group): (&f64, &Vec<_>)| std::iter::repeat_n(*share, group.len());
        Ok(shares.iter().zip(&set.groups).flat_map(of).collect())
    }

    fn shares_of_perf(&mut self, list: &str) -> Result<Vec<f64>> {
        let printed =
            self.machine.guest(&format!("perf stat -o /tmp/perf {list} sleep 3; cat /tmp/perf"))?;
        Ok(printed.lines().filter(|line| line.contains("arm_cmn")).map(share_of).collect())
    }

    fn shares_of_ours(&mut self, list: &str) -> Result<Vec<f64>> {
        let printed = self
            .machine
            .guest(&format!("daqmeter pmu stat {list} -I 3s --count 1 --json 2>/dev/null"))?;
        let record = record(&printed)?;
        let first = |event: &Value, name: &str| event[name][0].as_u64().unwrap_or(0) as f64;
        let share = |event| first(event, "running_ns") / first(event, "enabled_ns").max(1.0);
        Ok(array(&record["observed"], "events")?.iter().map(share).collect())
    }

    /// Runs a command that must be refused, with that text in its line.
    pub(super) fn refused(&mut self, arguments: &str, part: &str) -> Result<()> {
        let (status, printed) = self.machine.run(&format!("daqmeter pmu {arguments} 2>&1"))?;
        ensure!(status == 2, "`{arguments}` ended with {status} instead of 2:\n{printed}");
        ensure!(printed.contains(part), "`{arguments}` printed instead of `{part}`:\n{printed}");
        Ok(())
    }
}

fn expected(events: &[Counted], all: &[Happening]) -> Vec<u64> {
    let source = |what: &Happening| (what.type_code, what.node_id, what.event_id);
    let sum = |event: &Counted| {
        all.iter().filter(|what| event.of.contains(&source(what))).map(|what| what.count).sum()
    };
    events.iter().map(sum).collect()
}

fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

fn same_crosspoints(found: &Mesh, made: &Mesh) -> Result<()> {
    ensure!(
        (found.width, found.height) == (made.width, made.height),
        "{} x {}",
        found.width,
        found.height
    );
    for (seen, made) in found.crosspoints.iter().zip(&made.crosspoints) {
        ensure!(
            (seen.x, seen.y, seen.node_id, seen.logical_id)
                == (made.x, made.y, made.node_id, made.logical_id),
            "{seen:?} is not {made:?}"
        );
        // The map has names for fewer devices than exist: later ones are shown as unknown.
        let same = |(port, name): (usize, &String)| {
            let found = seen.ports.get(port);
            name.is_empty() || found.is_some_and(|found| found == name || found.contains('?'))
        };
        let (seen, made) = (&seen.ports, &made.ports);
        ensure!(made.iter().enumerate().all(same), "ports {seen:?} instead of {made:?}");
    }
    Ok(())
}

fn same_nodes(found: &Mesh, made: &Mesh) -> Result<()> {
    // The driver prints false numbers for meshes that mix crosspoints of two and of more ports.
    if made.crosspoints.iter().any(|xp| xp.ports.len() > 2) {
        return Ok(());
    }
    let known = ["HN-F", "RN-D", "SBSX", "DTC"];
    for node in made.nodes.iter().filter(|node| known.contains(&node.kind.as_str())) {
        let mut seen = found.nodes.iter();
        let is_there = seen.any(|seen| seen.kind == node.kind && seen.node_id == node.node_id);
        ensure!(is_there, "{} {:#x} is not on the map", node.kind, node.node_id);
    }
    Ok(())
}

fn percents(shares: &[f64]) -> String {
    let percents: Vec<String> =
        shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
    percents.join(" ")
}

fn near(name: &str, found: &[f64], predicted: &[f64], tolerance: f64) -> Result<()> {
    ensure!(found.len() == predicted.len(), "{name} has {} rows", found.len());
    let off = found.iter().zip(predicted).map(|(found, planned)| (found - planned).abs());
    let off = off.fold(0.0, f64::max);
    ensure!(off < tolerance, "{name} is off by {:.1} points", off * 100.0);
    Ok(())
}

/// Reads the share at the end of a line of perf's table.
fn share_of(line: &str) -> f64 {
    if line.contains("<not") {
        return 0.0;
    }
    let percent = line.rsplit_once('(').and_then(|(_, tail)| tail.trim().strip_suffix("%)"));
    let percent = percent.and_then(|text| text.trim().parse::<f64>().ok());
    percent.map_or(1.0, |percent| percent / 100.0)
}

fn perf_values(text: &str) -> Result<Vec<u64>> {
    let rows = text.lines().filter(|line| line.contains("arm_cmn"));
    let value = |line: &str| line.split(';').next().unwrap_or("").trim().parse();
    rows.map(|line| value(line).with_context(|| line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_look_random_repeat_and_stay_in_their_range() {
        let counts = |max| -> Vec<u64> {
            let mut random = Random(7);
            (0..500).map(|_| random.count(max)).collect()
        };
        assert_eq!(counts(1000), counts(1000));
        for max in [1, 1000, 1 << 47] {
            assert!(counts(max).iter().all(|count| (1..=max).contains(count)));
        }
        assert!(counts(1 << 47).iter().any(|count| *count < 1 << 16));
    }

    #[test]
    fn an_event_adds_up_what_happened_to_its_nodes() {
        let events = [counted("one", &[(5, 1, 2)]), counted("all", &[(5, 1, 2), (5, 4, 2)])];
        let all = [happening((5, 1, 2), 10), happening((5, 4, 2), 3), happening((5, 1, 9), 77)];
        assert_eq!(expected(&events, &all), [10, 13]);
    }

    #[test]
    fn shares_and_values_are_read_from_perfs_lines() {
        assert_eq!(share_of("  1,234  arm_cmn_0/hnf_mc_reqs/   (62.50%)"), 0.625);
        assert_eq!(share_of("  1,234  arm_cmn_0/hnf_mc_reqs/"), 1.0);
        assert_eq!(share_of("  <not counted>  arm_cmn_0/hnf_mc_reqs/   (0.00%)"), 0.0);
        assert_eq!(perf_values("# x\n42;;arm_cmn_0/a/;1;100.00;;\n").unwrap(), [42]);
        assert!(perf_values("<not counted>;;arm_cmn_0/a/;1;0.00;;\n").is_err());
    }
}
