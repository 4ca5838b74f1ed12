//! Counting on a machine, by our tool and by perf. All counted occurrences are injected by us.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_pmu::emulated::{Happening, catalogue};
use daqmeter_pmu::event::EventResolver;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_record::RunRecord;
use daqmeter_record::observed::ObservedEvent;
use daqmeter_sys::host::Files;

use super::machine::Machine;
use crate::files::folder;
use crate::shell::{root, tried};

/// Node types in the mesh's registers.
pub(super) const HNF: u16 = 0x5;
pub(super) const RNI: u16 = 0xa;

/// Type and NodeID of a node, and an event of it.
pub(super) type Source = (u16, u16, u64);

pub(super) fn happening((type_code, node_id, event_id): Source, count: u64) -> Happening {
    Happening { type_code, node_id, event_id, count }
}

/// Counted event in the form of perf's `-e`, and the happenings that it adds up.
pub(super) struct Counted {
    pub(super) text: String,
    pub(super) of: Vec<Source>,
}

/// Returns an event of one node.
pub(super) fn node(event: &str, source: Source) -> Counted {
    Counted { text: node_event(event, source.1), of: vec![source] }
}

pub(super) fn node_event(event: &str, node: u16) -> String {
    format!("arm_cmn_0/{event},nodeid={node:#x},bynodeid=1/")
}

/// Counts of each step are 1 to this, of all magnitudes; the 32-bit counters wrap.
pub(super) const OFTEN: u64 = 3_000_000_000;

/// Returns the n-th of counts of all magnitudes up to `max` that look random.
fn count(n: u64, max: u64) -> u64 {
    let noise = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (noise >> (noise % 61)) % max + 1
}

fn options<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    texts.into_iter().map(|text| format!("-e '{text}' ")).collect()
}

/// Returns the line of JSON in what a command printed.
pub(super) fn json(printed: &str) -> Result<&str> {
    let line = printed.lines().find(|line| line.starts_with('{'));
    line.with_context(|| format!("no record: {printed}"))
}

impl Machine {
    /// Compares what the driver shows with the file in the sources that was recorded from it.
    pub(super) fn shows(&mut self, command: &str, recorded: &str) -> Result<()> {
        let printed = self.guest(command)?;
        let known = root().join(recorded);
        if fs::read_to_string(&known).is_ok_and(|known| known == printed) {
            return Ok(());
        }
        let found = folder().join(Path::new(recorded).file_name().unwrap_or_default());
        fs::write(&found, printed)?;
        bail!("{} is not what the driver shows: cp {}", known.display(), found.display())
    }

    /// Begins a program that counts by steps; it is ready when this returns.
    pub(super) fn begin_steps(&mut self, events: &[&str]) -> Result<()> {
        let list = options(events.iter().copied());
        self.send(&format!("daqmeter pmu stat --step -x ';' {list} 2>/tmp/said"))?;
        self.step(events.len()).map(drop)
    }

    pub(super) fn step(&mut self, rows: usize) -> Result<Vec<u64>> {
        self.send("")?;
        let mut counts = Vec::new();
        while counts.len() < rows {
            let line = self.line()?;
            if let Some(status) = line.strip_prefix("GUEST status") {
                bail!("the tool ended with{status}: {}", self.guest("cat /tmp/said")?);
            }
            if line.starts_with("GUEST ") {
                continue;
            }
            let value = line.split(';').nth(1).and_then(|value| value.parse().ok());
            counts.push(value.with_context(|| format!("no row with a count: `{line}`"))?);
        }
        Ok(counts)
    }

    pub(super) fn end_steps(&mut self) -> Result<()> {
        self.end_of_input()?;
        let (status, printed) = self.finish()?;
        ensure!(status == 0, "stat ended with {status}: {printed}");
        Ok(())
    }

    /// Begins to count with perf; it counts when this returns.
    pub(super) fn begin_perf(&mut self, events: &[&str]) -> Result<()> {
        let list = options(events.iter().copied());
        let command = "sh -c 'echo > /tmp/began; cat /tmp/go'";
        let wait = "until test -e /tmp/began; do sleep 0.1; done";
        self.guest("rm -f /tmp/go /tmp/began; mkfifo /tmp/go")?;
        let perf = format!("perf stat -x';' -o /tmp/perf {list} -- {command} & {wait}");
        self.guest(&perf).map(drop)
    }

    pub(super) fn end_perf(&mut self) -> Result<Vec<u64>> {
        perf_values(&self.guest("echo > /tmp/go; wait; cat /tmp/perf")?)
    }

    /// Counts by steps: each injects occurrences for each event, and the tool must count them
    /// exactly.
    pub(super) fn exact(&mut self, events: &[Counted], steps: u64, max: u64) -> Result<Vec<u64>> {
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        self.begin_steps(&texts)?;
        let mut sums = vec![0_u64; events.len()];
        let mut counts = (0..).map(|n| count(n, max));
        for step in 0..steps {
            let sources = events.iter().flat_map(|event| &event.of).zip(&mut counts);
            let all: Vec<Happening> =
                sources.map(|(source, count)| happening(*source, count)).collect();
            self.happen(0, &all)?;
            let (found, expected) = (self.step(events.len())?, expected(events, &all));
            ensure!(found == expected, "step {step}: counted {found:?} instead of {expected:?}");
            sums.iter_mut().zip(expected).for_each(|(sum, count)| *sum += count);
        }
        self.end_steps()?;
        println!("exact: {steps} steps, {} events", events.len());
        Ok(sums)
    }

    /// Compares the shares of the time that the planner predicts with those that the events got, in
    /// this order.
    /// On a busy host turns may begin during the opening of the events, which then stand in another
    /// order. So wrong shares are measured again. A wrong prediction fails each time.
    pub(super) fn planned(&mut self, groups: &[String], tolerance: f64) -> Result<()> {
        let predicted = self.predicted(groups)?;
        let list = options(groups.iter().map(String::as_str));
        let stat = format!("daqmeter pmu stat {list} -I 6s --count 1 --json 2>/dev/null");
        tried(|| {
            let record: RunRecord = serde_json::from_str(json(&self.guest(&stat)?)?)?;
            let first = |times_ns: &[u64]| times_ns.first().copied().unwrap_or(0) as f64;
            let share = |event: &ObservedEvent| {
                first(&event.running_ns) / first(&event.enabled_ns).max(1.0)
            };
            let observed = record.sections.observed.context("nothing was observed")?;
            let found: Vec<f64> = observed.events.iter().map(share).collect();
            println!("shares planned {predicted:.2?}, found {found:.2?}");
            let is_near = |(found, planned): (&f64, &f64)| (found - planned).abs() < tolerance;
            let all = found.len() == predicted.len() && found.iter().zip(&predicted).all(is_near);
            ensure!(all, "the shares are not the planned ones");
            Ok(())
        })
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

    /// Runs a command that must end with this status and print this text.
    pub(super) fn says(&mut self, status: i32, command: &str, part: &str) -> Result<()> {
        let (found, printed) = self.run(&format!("{command} 2>&1"))?;
        let is_expected = found == status && printed.contains(part);
        ensure!(
            is_expected,
            "`{command}` ended with {found}, not {status} and `{part}`: {printed}"
        );
        println!("{command}: {printed}");
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

fn perf_values(text: &str) -> Result<Vec<u64>> {
    let rows = text.lines().filter(|line| line.contains("arm_cmn"));
    let value = |line: &str| line.split(';').next().unwrap_or("").trim().parse();
    rows.map(|line| value(line).with_context(|| line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_adds_up_what_happened_to_its_nodes() {
        let both = Counted { text: "all".to_owned(), of: vec![(5, 1, 2), (5, 4, 2)] };
        let all = [happening((5, 1, 2), 10), happening((5, 4, 2), 3), happening((5, 1, 9), 77)];
        assert_eq!(expected(&[node("one", (5, 1, 2)), both], &all), [10, 13]);
    }

    #[test]
    fn counts_are_of_all_magnitudes() {
        let counts: Vec<u64> = (0..500).map(|n| count(n, 1 << 47)).collect();
        assert!(counts.iter().all(|count| (1..=1 << 47).contains(count)));
        assert!(counts.iter().any(|count| *count < 1 << 16));
        assert!(counts.iter().any(|count| *count > 1 << 46));
    }

    #[test]
    fn values_are_read_from_perfs_lines() {
        assert_eq!(perf_values("# x\n42;;arm_cmn_0/a/;1;100.00;;\n").unwrap(), [42]);
        assert!(perf_values("<not counted>;;arm_cmn_0/a/;1;0.00;;\n").is_err());
    }
}
