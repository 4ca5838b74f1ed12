//! The document's findings, judged by what was measured here.

use daqmeter_record::study::{Finding, Holds, Measured};

use super::here::{Here, mean, speeds};

/// Passes of a CPU measurement: a second and a half at 14 Hz.
pub(super) const CPU_PASSES: u64 = 21;
/// Factor and offset of two scalings that differ in nothing but their values.
const SCALES: [(f64, f64); 2] = [(1.0, 0.0), (0.123, -45.6)];

/// Every finding of the document.
pub(super) fn findings(here: &Here<'_>) -> Vec<Finding> {
    let mut findings = here.speed();
    findings.extend(here.size());
    findings.extend(here.conversion());
    findings.extend(here.cpu());
    findings
}

/// Whether a symbol of a profile copies bytes.
fn is_copy(symbol: &str) -> bool {
    ["copy", "memmove", "memcpy", "libc"].iter().any(|part| symbol.contains(part))
}

impl Here<'_> {
    /// Mean speed of the L boards beside the KU board, which is the fastest.
    fn beside_ku(&self) -> Option<Measured> {
        let table = self.table("ku1-l5-60mb")?;
        let record = self.record(&table.id)?;
        Measured::of(record, mean(speeds(record, table).get(1..)?))
    }

    /// Section "PCIe transfer speed".
    fn speed(&self) -> Vec<Finding> {
        let (l1, ku1, l5) = (self.mean("l1-60mb"), self.mean("ku1-60mb"), self.mean("l5-60mb"));
        vec![
            self.statement("l-speed").judged([l1], |[l1]| {
                (
                    (550.0..650.0).contains(&l1).into(),
                    format!("{l1:.0} MB/s alone; 550 to 650 counts as around 600"),
                )
            }),
            self.statement("ku-speed").judged([ku1], |[ku1]| {
                (
                    (1100.0..1300.0).contains(&ku1).into(),
                    format!("{ku1:.0} MB/s alone; 1100 to 1300 counts as around 1200"),
                )
            }),
            self.statement("parallel").judged([l1, l5], |[l1, l5]| {
                let all = l5 * 5.0;
                (
                    (all > 2.0 * l1).into(),
                    format!("5 boards move {all:.0} MB/s together, one {l1:.0}"),
                )
            }),
            self.statement("more-boards").judged([l1, l5], |[l1, l5]| {
                ((l5 < l1).into(), format!("{l1:.0} MB/s alone, {l5:.0} each of five"))
            }),
            self.statement("mixed").judged([l5, self.beside_ku()], |[without, with]| {
                let evidence = format!(
                    "each L board moves {without:.0} MB/s without the KU board, {with:.0} beside it"
                );
                ((with < without * 0.95).into(), evidence)
            }),
        ]
    }

    /// Section "PCIe transfer time vs. data size".
    fn size(&self) -> Vec<Finding> {
        let sizes = ["l5-0.6mb", "l5-1.7mb", "l5-6mb", "l5-60mb"].map(|id| self.mean(id));
        let linear = self.statement("linear").judged(sizes, |speeds| {
            let [small, middle, large, largest] = speeds;
            let alike = |one: f64, other: f64| (one / other - 1.0).abs() < 0.05;
            let holds = match (alike(small, largest) && alike(middle, largest), alike(large, largest)) {
                (true, true) => Holds::Yes,
                (false, true) => Holds::InPart,
                _ => Holds::No,
            };
            let evidence = format!(
                "5 boards: {small:.0} MB/s at 0.6 MB, {middle:.0} at 1.7 MB, {large:.0} at 6 MB, {largest:.0} at 60 MB each; \
                 within 5 % counts as linear"
            );
            (holds, evidence)
        });
        let twice = self.statement("ku-twice").judged(
            [self.mean("l1-60mb"), self.mean("ku1-60mb")],
            |[l1, ku1]| {
                let ratio = ku1 / l1;
                (
                    (1.8..2.2).contains(&ratio).into(),
                    format!("{ku1:.0} / {l1:.0} = {ratio:.2}; 1.8 to 2.2 counts as twice"),
                )
            },
        );
        let floats = "no device transfers floats, here or in the document; it follows where time is linear in the bytes";
        vec![linear, self.statement("float-transfer").cannot_tell(floats), twice]
    }

    /// Section "Data conversion".
    fn conversion(&self) -> Vec<Finding> {
        let rate = |(factor, offset): (f64, f64)| {
            let record = self.record(&format!("scale-{factor}-{offset}"))?;
            Measured::of(record, record.lanes.first()?.stages.first()?.rate_bytes_per_s() / 1e6)
        };
        vec![
            self.statement("operation").judged(
                [self.mean("cast"), self.mean("sca")],
                |[cast, scale]| {
                    let ratio = (cast / scale).max(scale / cast);
                    (
                        (ratio > 1.2).into(),
                        format!("cast {cast:.0} MB/s, scale {scale:.0}; a factor above 1.2 counts"),
                    )
                },
            ),
            self.statement("factor-values").judged(SCALES.map(rate), |[one, other]| {
                let ratio = other / one;
                let evidence = format!(
                    "x*1+0: {one:.0} MB/s, x*0.123-45.6: {other:.0} MB/s (ratio {ratio:.2})"
                );
                ((0.85..1.18).contains(&ratio).into(), evidence)
            }),
            self.statement("decimation").judged(
                [self.mean("dec1"), self.mean("dec10")],
                |[by_1, by_10]| {
                    (
                        (by_10 / by_1 > 1.5).into(),
                        format!("by 1 {by_1:.0} MB/s, by 10 {by_10:.0}; a factor above 1.5 counts"),
                    )
                },
            ),
        ]
    }

    /// Section "CPU utilization".
    fn cpu(&self) -> Vec<Finding> {
        let cpu = |at| self.cpu_percent(at);
        let reads = self.record("cpu-0").and_then(|record| {
            Measured::of(record, record.counter("register-reads")? / CPU_PASSES as f64)
        });
        vec![
            self.statement("cpu-samples").judged([cpu(0), cpu(4)], |[small, large]| {
                let evidence =
                    format!("polling, 1 board: {small:.1} % and {large:.1} %; within a fifth counts as the same");
                ((0.8..1.25).contains(&(large / small)).into(), evidence)
            }),
            self.copies(),
            self.statement("cpu-reads").judged([reads], |[reads]| {
                (
                    (reads > 10.0).into(),
                    format!("{reads:.0} reads of register 0x10 for each acquisition; above 10 counts"),
                )
            }),
            self.statement("cpu-interrupt").judged([cpu(0), cpu(1)], |[poll, interrupt]| {
                let holds = match (interrupt < poll, (3.0..5.0).contains(&interrupt)) {
                    (true, true) => Holds::Yes,
                    (true, false) => Holds::InPart,
                    _ => Holds::No,
                };
                (holds, format!("{poll:.1} % polling, {interrupt:.1} % by interrupt; 3 to 5 % counts as about 4 %"))
            }),
        ]
    }

    fn copies(&self) -> Finding {
        let statement = self.statement("cpu-copy");
        let Some(record) = self.record("cpu-1").filter(|record| !record.hotspots.is_empty()) else {
            return statement.cannot_tell("not sampled here");
        };
        let copies = record.hotspots.iter().filter(|spot| is_copy(&spot.symbol));
        let share = copies.map(|spot| spot.share).fold(0.0, |sum, share| sum + share) * 100.0;
        statement.judged([Measured::of(record, share)], |[share]| {
            (
                (share > 50.0).into(),
                format!("copies are {share:.0} % of the samples, 1 board by interrupt"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Lane, RunRecord, Stage};

    use crate::studies::Study;
    use crate::studies::ess_2017::Document;

    fn record(id: &str, mb_per_s: &[u64]) -> RunRecord {
        let mut record = RunRecord::default();
        record.study = format!("reproduce/digitizer/{id}").into();
        record.engine.emulated = true;
        let lane = |speed: &u64| {
            let (bytes_per_op, end_ns) = (speed * 1_000_000, 1_000_000_000);
            let stage = Stage {
                bytes_per_op,
                ops_per_sample: 1,
                sample_ns: vec![1],
                end_ns,
                ..Stage::default()
            };
            Lane { stages: vec![stage], ..Lane::default() }
        };
        record.lanes = mb_per_s.iter().map(lane).collect();
        record
    }

    fn verdict(records: &[RunRecord], text: &str) -> String {
        let findings = Document::default().findings(records);
        findings.iter().find(|finding| finding.text.contains(text)).unwrap().verdict.to_string()
    }

    #[test]
    fn without_records_no_finding_is_confirmed() {
        let findings = Document::default().findings(&[]);
        assert_eq!(findings.len(), 15);
        assert_eq!(findings.len(), Document::default().finding.len(), "each statement once");
        for finding in findings {
            assert_eq!(finding.verdict.to_string(), "cannot tell", "{}", finding.text);
            assert!(finding.place.contains("Findings, bullet "), "{}", finding.place);
        }
    }

    #[test]
    fn twice_as_fast_is_judged_by_what_was_measured() {
        let noisy = [record("l1-60mb", &[562]), record("ku1-60mb", &[895])];
        assert_eq!(verdict(&noisy, "~2 times faster"), "refuted (emulated)", "895 / 562 = 1.6");
        let quiet = [record("l1-60mb", &[622]), record("ku1-60mb", &[1249])];
        assert_eq!(verdict(&quiet, "~2 times faster"), "confirmed (emulated)");
    }

    #[test]
    fn boards_side_by_side_are_judged_by_what_was_measured() {
        let one_after_the_other = [record("l1-60mb", &[600]), record("l5-60mb", &[120; 5])];
        assert_eq!(verdict(&one_after_the_other, "in parallel"), "refuted (emulated)");
        assert_eq!(verdict(&one_after_the_other, "are lowering"), "confirmed (emulated)");
        let mixed = |slow: u64| {
            [
                record("l5-60mb", &[580; 5]),
                record("ku1-l5-60mb", &[1000, slow, slow, slow, slow, slow]),
            ]
        };
        assert_eq!(verdict(&mixed(510), "effect of SIS8300KU"), "confirmed (emulated)");
        assert_eq!(verdict(&mixed(579), "effect of SIS8300KU"), "refuted (emulated)");
    }

    #[test]
    fn a_failed_run_confirms_nothing() {
        let mut broken = record("l1-60mb", &[600]);
        broken.outcome = daqmeter_record::Outcome::Failed("wrong bytes".into());
        assert_eq!(verdict(&[broken], "around 600"), "cannot tell");
    }
}
