//! Names of points for people: their words, then what tells points of one set apart. Names for
//! programs are the fields of [`StagePoint`].

use std::collections::HashMap;

use daqmeter_record::RunRecord;

use crate::groups::in_groups;
use crate::parameters::{Properties, Property, properties, told_apart};
use crate::points::{StagePoint, points_of};
use crate::words::{label, plain};

/// Names of the points of a set of records, each of its own, without digests, `_` and `=`.
pub(crate) struct Names(HashMap<StagePoint, String>);

impl Names {
    pub(crate) fn of<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> Names {
        let points =
            records.into_iter().flat_map(|record| points(record).map(move |point| (point, record)));
        let groups = in_groups(points).into_iter();
        let (requests, stages): (Vec<_>, Vec<_>) =
            groups.partition(|(point, _)| point.stage.is_empty());
        Names([requests, stages].into_iter().flat_map(named).collect())
    }

    /// Returns the name of a point of the set, whatever its host.
    pub(crate) fn of_stage(&self, point: &StagePoint) -> &str {
        let point = anywhere(point);
        let whole = || StagePoint { stage: String::new(), lane: 0, ..point.clone() };
        let name = self.0.get(&point).or_else(|| self.0.get(&whole()));
        name.map_or("", String::as_str)
    }

    /// Returns the name of a record of the set with all its stages.
    pub(crate) fn of_record(&self, record: &RunRecord) -> &str {
        self.of_stage(&whole(record))
    }
}

/// Returns the points of a record that have a name, whatever its host.
pub(crate) fn points(record: &RunRecord) -> impl Iterator<Item = StagePoint> {
    let stages = points_of(record).into_iter().map(|(point, _)| anywhere(&point));
    stages.chain([whole(record)])
}

fn anywhere(point: &StagePoint) -> StagePoint {
    StagePoint { host: String::new(), ..point.clone() }
}

/// Returns the point of a record without a stage: it has a name before it is measured, too.
fn whole(record: &RunRecord) -> StagePoint {
    anywhere(&StagePoint::of(record, 0, ""))
}

fn named(points: Vec<(StagePoint, Vec<&RunRecord>)>) -> Vec<(StagePoint, String)> {
    let described = points.iter().enumerate().map(|(at, (point, records))| {
        let record = records[0];
        let own = [
            (Property::Study, plain(&record.study)),
            (Property::Lane, lane(record, point.lane)),
            (Property::Number, format!("point {}", at + 1)),
        ];
        let properties = properties(record, &[]);
        (label(&record.workload, &point.stage), properties.into_iter().chain(own).collect())
    });
    let described: Vec<(String, Properties<'_>)> = described.collect();
    let names = told_apart(&described);
    points.into_iter().map(|(point, _)| point).zip(names).collect()
}

/// Returns the device of a lane, without what stands before its last comma; the lane's number if
/// others have that name, too.
fn lane(record: &RunRecord, at: usize) -> String {
    let last = |device: &str| device.rsplit(", ").next().map_or(String::new(), plain);
    let devices: Vec<String> = record.lanes.iter().map(|lane| last(&lane.device)).collect();
    let own = devices.get(at).filter(|own| devices.iter().filter(|one| one == own).count() == 1);
    own.cloned().unwrap_or_else(|| format!("lane {at}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use daqmeter_record::{EngineInfo, Lane, Stage, Workload, jsonl};
    use proptest::prelude::*;

    use super::*;
    use crate::examples::{example, waived};

    fn record(study: &str, workload: Workload, stages: &[&str]) -> RunRecord {
        let engine = EngineInfo { name: workload.kind.clone(), ..EngineInfo::default() };
        let mut record = RunRecord::new(engine, workload);
        record.study = study.into();
        let stage = |name: &&str| Stage { name: (*name).into(), ..Stage::default() };
        let stages = stages.iter().map(stage).collect();
        record.lanes = vec![Lane { stages, ..Lane::default() }];
        record
    }

    fn names(records: &[RunRecord]) -> Vec<String> {
        let names = Names::of(records);
        let points = records.iter().flat_map(points_of);
        points.map(|(point, _)| names.of_stage(&point).to_owned()).collect()
    }

    #[test]
    fn points_have_the_names_that_people_use() {
        let copy = |path: &str| {
            let copy = Workload::new("copy").with("block_bytes", 65_536_u64).with("path", path);
            copy.with("context", "cpu").with("direction", "to").with("lanes", 1_u64)
        };
        let memory = |lines: u64| {
            let memory = Workload::new("memory").with("read_bytes", 64_u64 << 20);
            memory.with("read_lines", 1_u64).with("write_lines", lines)
        };
        let convert = |factor: u64| {
            Workload::new("convert").with("function", 2_u64).with("dec_factor", factor)
        };
        let eb = |address: &str, method: &str| {
            Workload::new("etherbone").with("address", address).with("method", method)
        };
        for (workload, stage, wanted) in [
            (Workload::new("null"), "null", "the tool's own loop"),
            (memory(1), "memcpy", "copy 64 MiB, memcpy"),
            (memory(0), "avx2 cached", "read 64 MiB, avx2 cached"),
            (memory(2), "", "1 read : 2 written, 64 MiB"),
            (memory(1).with("lanes", 2_u64), "memcpy", "copy 64 MiB, memcpy, 2 lanes"),
            (convert(1), "func_dec", "conversion, decimate"),
            (convert(10), "", "conversion, decimate 1:10"),
            (copy("pread"), "copy_to_user", "kernel copy 64 KiB to user"),
            (copy("pread"), "null_call", "system call"),
            (copy("memcpy"), "copy_to_user", "plain copy 64 KiB, memcpy"),
            (
                copy("module").with("context", "shared").with("direction", "both"),
                "",
                "DMA copy 64 KiB from and to user, shared",
            ),
            (eb("loop/udp", "blocking"), "blocking", "round trip over UDP, blocking"),
            (eb("emu/a_b#12ab", "pipelined"), "pipelined", "reads over emu/a b, pipelined"),
            (Workload::new("path").with("path", "pattern"), "path", "path pattern"),
            (
                Workload::new("path").with("path", "p").with("with", "copy.n=1;x=2"),
                "path",
                "path p, copy.n 1, x 2",
            ),
            (
                Workload::new("readout").with("scenario", "gbt").with("rate_hz", 1e6),
                "read-out",
                "chain gbt at 1 MHz",
            ),
            (
                Workload::new("block").with("block_bytes", 4096_u64).with("cached", true),
                "read, page cache",
                "storage read 4 KiB, page cache",
            ),
            (
                Workload::new("stream").with("message_bytes", 4096_u64),
                "receive",
                "stream of 4 KiB messages over TCP",
            ),
            (
                Workload::new("pollution").with("test", "susan[e]_large").with("neighbour", "dma"),
                "susan[e]_large",
                "susan[e] large, neighbour dma",
            ),
            (Workload::new("new_one"), "", "new one"),
        ] {
            assert_eq!(label(&workload, stage), wanted);
        }
    }

    #[test]
    fn a_parameter_is_named_only_where_points_of_one_name_differ() {
        let copy = |block_bytes: u64, direction: &str| {
            let copy = Workload::new("copy").with("path", "pread").with("context", "cpu");
            let copy = copy.with("block_bytes", block_bytes).with("direction", direction);
            record("s", copy, &["copy", "null_call"])
        };
        let alone = ["kernel copy 1 KiB to user", "system call"];
        assert_eq!(names(&[copy(1024, "to")]), alone);
        let all = [copy(1024, "to"), copy(4096, "to"), copy(4096, "from")];
        assert_eq!(
            names(&all).into_iter().skip(1).step_by(2).collect::<Vec<_>>(),
            [
                "system call, blocks of 1 KiB",
                "system call, blocks of 4 KiB, to user",
                "system call, blocks of 4 KiB, from user"
            ]
        );
        let path = || Workload::new("path").with("path", "pattern");
        let both = record("s", path().with("layout", "fused x 2"), &["path"]);
        let found = names(&[record("s", path(), &["path"]), both]);
        assert_eq!(found, ["path pattern", "path pattern, on 2 CPUs"]);
    }

    #[test]
    fn lanes_have_their_devices_and_only_equal_points_their_studies() {
        let mut other = example();
        other.study = "other_one".into();
        let found = names(&[example(), other.clone()]);
        assert_eq!(found[0], "read-out, digitizer, emu:ku0");
        assert_eq!(found[7], "cast, other one, emu:l0");
        other.set_param("samples", 5_u64);
        let found = names(&[example(), other]);
        assert_eq!(found[0], "read-out, 3000000 samples, emu:ku0");
        let mut alike = example();
        alike.lanes.iter_mut().for_each(|lane| lane.device = "memory".into());
        assert_eq!(names(&[alike])[3], "cast, lane 1");
    }

    #[test]
    fn a_record_without_a_stage_has_a_name() {
        let records = [example(), waived()];
        let names = Names::of(&records);
        assert_eq!(names.of_record(&records[0]), "cast");
        assert_eq!(names.of_record(&records[1]), "digitizer");
        let never = StagePoint::of(&records[0], 7, "never");
        assert_eq!(names.of_stage(&never), "cast");
    }

    fn are_unique_and_plain(records: &[RunRecord]) {
        let names = Names::of(records).0;
        for is_whole in [true, false] {
            let own = names.iter().filter(|(point, _)| point.stage.is_empty() == is_whole);
            let own: Vec<&str> = own.map(|(_, name)| name.as_str()).collect();
            let distinct: HashSet<&str> = own.iter().copied().collect();
            assert_eq!(distinct.len(), own.len(), "{own:?}");
            assert!(own.iter().all(|name| !name.contains(['_', '=', '#'])), "{own:?}");
        }
    }

    #[test]
    fn names_of_real_records_are_unique() {
        let files = [
            include_str!("../../record/testdata/v1/digitizer.jsonl"),
            include_str!("../../record/testdata/v1/counters.jsonl"),
            include_str!("../../../bench/record/genoa-vm-2cpu/2026-11-21.jsonl"),
        ];
        let read = |text: &str| jsonl::read(text.as_bytes()).unwrap().records;
        are_unique_and_plain(&files.map(read).concat());
    }

    proptest! {
        #[test]
        fn names_of_any_records_are_unique(
            points in prop::collection::vec((0..3_usize, 0..3_u64, 0..3_usize, 0..2_usize), 1..20)
        ) {
            // Values that are one when shown, and the words of one that are the name of another.
            let texts = ["a#1", "a#2", "a, b"];
            let record = |(kind, bytes, text, study): (usize, u64, usize, usize)| {
                let workload = Workload::new(["new", "path", "copy"][kind]).with("b", texts[text]);
                let workload = workload.with("block_bytes", bytes).with("path", texts[text]);
                record(["a", "b"][study], workload, &["one", "null_call", "two_"])
            };
            are_unique_and_plain(&points.into_iter().map(record).collect::<Vec<_>>());
        }
    }
}
