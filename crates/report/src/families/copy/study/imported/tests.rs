use daqmeter_record::{EngineInfo, Workload};
use proptest::prelude::*;

use super::*;
use crate::families::copy::pollution::pollution_rows;
use crate::families::copy::rows::copy_rows;
use crate::families::copy::rows::tests::example;
use crate::families::copy::study::classic;

fn template(engine: &str) -> RunRecord {
    let info = EngineInfo { name: engine.into(), ..EngineInfo::default() };
    let workload = Workload::new(engine)
        .with("path", "unknown")
        .with("context", "cpu")
        .with("neighbour", "cpu")
        .with("direction", "from")
        .with("block_bytes", 224_u64);
    RunRecord::new(info, workload)
}

fn read(name: &str, text: &str) -> Result<Vec<RunRecord>, String> {
    let file = StudyFile::of(Path::new(name)).unwrap();
    let engine = if file == StudyFile::Pollution { "pollution" } else { "copy" };
    file.records(text, &template(engine))
}

#[test]
fn the_documents_sample_of_a_latency_is_a_record() {
    let text = "3\t64\t2740081346085\t2740081346193\t108\n";
    let records = read("x/micro-benchmark_from_nc_5.dat", text).unwrap();
    let row = &copy_rows(&records)[0];
    assert_eq!((row.times.median, row.block_bytes, row.n), (108.0, 64, 1));
    assert_eq!(row.operation(), "from_nc");
    assert_eq!(records[0].lanes[0].seen_cpus, [3]);
    assert_eq!(records[0].lanes[0].stages[0].name, "copy_from_user");
    assert_eq!((records[0].origin_ns, records[0].wall_ns), (2_740_081_346_085, 108));
    assert!(records[0].time_utc.is_empty(), "a clock since the start");
}

/// Section 3.4.1: the total is on a line of its own there, and behind the last channel in our
/// files.
const CHANNELS: &str = "\
0\t1024\t300\t1384270020290328601\t1384270020290437344\t108743\t2694.138933
1\t1024\t300\t1384270020290343080\t1384270020290437040\t93960\t3118.015645
2\t1024\t300\t1384270020290320607\t1384270020290426168\t105561\t2775.350271
3\t1024\t300\t1384270020290336009\t1384270020290431531\t95522\t3067.029061
total_band= 11654.533911
";

#[test]
fn the_documents_sample_of_a_bandwidth_has_its_rates_and_its_time() {
    let joined = CHANNELS.replace("\ntotal", "\ttotal");
    for text in [CHANNELS, &joined, &format!("\u{feff}{CHANNELS}").replace('\n', "\r\n")] {
        let records = read("measures_from.dat", text).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].time_utc, "2013-11-12T15:27:00.290Z");
        let row = &copy_rows(&records)[0];
        assert_eq!(row.lanes_bytes_per_s.len(), 4);
        assert!((row.total_bytes_per_s() / MIB - 11_654.533_911).abs() < 1e-5);
        assert_eq!(classic::bandwidth(&records)["measures_from.dat"], joined);
    }
}

#[test]
fn operations_that_went_both_ways_are_told_by_their_rate() {
    let line = |rate: &str| {
        format!("0\t1048576\t300\t0\t300000000\t300000000\t{rate}\ttotal_band= {rate}\n")
    };
    for (rate, operations) in [("1000.000000", 150), ("2000.000000", 300)] {
        let records = read("measures_from_to.dat", &line(rate)).unwrap();
        let stage = &records[0].lanes[0].stages[0];
        assert_eq!((stage.ops_per_sample, stage.bytes_per_op), (operations, 2 << 20), "{rate}");
        let bytes_per_s = rate.parse::<f64>().unwrap() * MIB;
        assert!((stage.rate_bytes_per_s() / bytes_per_s - 1.0).abs() < 1e-9);
    }
    assert!(read("measures_to.dat", &line("2000.000000")).is_err(), "one way only");
}

#[test]
fn the_documents_sample_of_a_program_has_its_misses() {
    let text = "qsort_small\t55698518635\t55702757592\t4238957\t157283\t982\t0.624352\n";
    let records = read("measure_run7.dat", text).unwrap();
    let row = &pollution_rows(&records)[0];
    assert_eq!((row.times.mean, row.references), (4_238_957.0, Some(157_283.0)));
    assert!((row.miss_percent.unwrap() - 0.624_352).abs() < 1e-6);
    assert_eq!((row.test, &*row.copies()), ("qsort_small", "from 224"));
    assert_eq!(row.copied_bytes_per_s(), None, "the file does not say");
    let written = classic::pollution(&records, "run7");
    assert_eq!(written["cpu_from_224/measure_run7.dat"], text);
    let none = "qsort_small\t5\t9\t4\tn/a\tn/a\tn/a\n";
    let records = read("measure_x.dat", none).unwrap();
    assert_eq!(pollution_rows(&records)[0].references, None);
}

#[test]
fn each_run_keeps_its_own_references_and_misses() {
    let text = "\
a\t10\t20\t10\t100\t1\t1.000000
a\t30\t35\t5\t900\t450\t50.000000
b\t40\t45\t5\t10\t1\t10.000000
b\t50\t55\t5\tn/a\tn/a\tn/a
";
    let records = read("measure_x.dat", text).unwrap();
    assert_eq!(pollution_rows(&records)[0].miss_percent, Some(25.5));
    let sums = [0, 1].map(|at| records[at].counter("victim-cache-misses"));
    assert_eq!(sums, [Some(451.0), None], "only where all runs were counted");
    let written = classic::pollution(&records, "x");
    assert_eq!(written["cpu_from_224/measure_x.dat"], text);
    // Section 3.5.1: the percentage of a synthesis is the mean of those of the runs.
    let synthesis = &written["cpu_from_224/synthesis_x.dat"];
    assert!(synthesis.contains("\t500.0000\t25.500000\n"), "{synthesis}");
}

#[test]
fn files_are_known_by_their_names() {
    let of = |name: &str| StudyFile::of(Path::new(name));
    let operation = |direction, cold| StudyCopy { direction, cold };
    for (name, file) in [
        ("a/micro-benchmark_to_1.dat", StudyFile::Latency(operation("to", false))),
        ("micro-benchmark_to_nc_10.dat", StudyFile::Latency(operation("to", true))),
        ("micro-benchmark_from_to_2.dat", StudyFile::Latency(operation("both", false))),
        ("measures_from_to.dat", StudyFile::Bandwidth(operation("both", false))),
        ("measures_to_nc.dat", StudyFile::Bandwidth(operation("to", true))),
        ("measure_to.dat", StudyFile::Pollution),
    ] {
        assert_eq!(of(name), Some(file), "{name}");
    }
    let others = "micro-benchmark_to.dat micro-benchmark_up_1.dat measures_sideways.dat \
                  measure_x.txt mem_trace_to.dat micro-benchmark_to_1_synth.dat synthesis_x.dat";
    assert!(others.split(' ').all(|name| of(name).is_none()) && of("").is_none());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let (latency, bandwidth, pollution) =
        ("micro-benchmark_to_1.dat", "measures_to.dat", "measure_x.dat");
    let channel = "0 1048576 1 0 1000000 1000000 1000.000000";
    let points: String = (1..=MAX_POINTS + 1).map(|bytes| format!("0 {bytes} 5 9 4\n")).collect();
    for (file, text, wanted) in [
        (latency, "", "holds no measurement"),
        (latency, "1 2 3", "line 1: 3 fields; 5 are wanted: CPU, bytes"),
        (latency, "1 2 3 4 1 6", "line 1: 6 fields"),
        (latency, "0 64 5 9 4\n\n 0  0 5 9 4", "line 3: `0` is no value of `bytes`"),
        (latency, "0 64 \u{e9} 9 4", "line 1: `\u{e9}` is no value of `ns before`"),
        (latency, "-1 64 5 9 4", "line 1: `-1` is no value of `CPU`"),
        (latency, "0 64 9 5 4", "line 1: `5` is no value of `ns after`"),
        (latency, "0 64 5 9 5", "line 1: `5` is no value of `ns`"),
        (latency, &points, "holds more than 10000 points"),
        (bandwidth, channel, "ends without the total_band="),
        (bandwidth, "total_band= 0", "line 1: total_band= of no channel"),
        (bandwidth, "0 64 1 5 9 0 1", "line 1: the rate is not bytes"),
        (bandwidth, "0 1024 1 5 9 4 1", "line 1: the rate is not bytes x operations / time"),
        (bandwidth, "0 18446744073709551615 2 5 9 4 1", "line 1: `18446744073709551615` is no"),
        (pollution, "a 5 9 4 x 1 1", "line 1: `x` is no value of `cache references`"),
    ] {
        let problem = read(file, text).unwrap_err();
        assert!(problem.starts_with(wanted), "{text}: {problem}");
    }
}

fn point() -> impl Strategy<Value = RunRecord> {
    let direction = prop::sample::select(vec!["from", "to", "both"]);
    let samples = prop::collection::vec(1..1_000_000_000_u64, 1..20);
    let point = (direction, 1..1_u64 << 40, any::<bool>(), samples, 0..50_u64);
    point.prop_map(|(direction, bytes, cold, samples, pause)| {
        let mut record = example("cpu", direction, bytes, &samples);
        if cold {
            record.set_param("cold", true);
        }
        let stage = &mut record.lanes[0].stages[0];
        if direction == "both" {
            stage.bytes_per_op *= 2;
        }
        // Caches are emptied between samples.
        let mut at = stage.start_ns;
        for ns in &stage.sample_ns {
            stage.sample_start_ns.push(at);
            stage.end_ns = at + ns;
            at += ns + pause;
        }
        record
    })
}

fn raw(files: &classic::StudyFiles) -> Vec<(&String, &String)> {
    files.iter().filter(|(name, _)| name.ends_with(".dat") && !name.contains("_synth")).collect()
}

fn reread(files: &classic::StudyFiles) -> Vec<RunRecord> {
    raw(files).into_iter().flat_map(|(name, text)| read(name, text).unwrap()).collect()
}

proptest! {
    #[test]
    fn what_classic_writes_of_latencies_is_read_back(points in prop::collection::vec(point(), 1..6)) {
        let files = classic::latency(&points);
        // Points of one size share a line's key, and merge to one point.
        let again = classic::latency(&reread(&files));
        prop_assert_eq!(raw(&again), raw(&files));
    }

    #[test]
    fn what_classic_writes_of_bandwidths_is_read_back(
        mut point in point(),
        lanes in 1..6_usize,
        operations in 1..10_000_u64,
    ) {
        let mut lane = point.lanes[0].clone();
        lane.stages[0].ops_per_sample = operations;
        point.lanes = vec![lane; lanes];
        let files = classic::bandwidth(&[point]);
        let again = classic::bandwidth(&reread(&files));
        prop_assert!(files.keys().eq(again.keys()));
        let fields = |files: &classic::StudyFiles| -> Vec<String> {
            let texts = raw(files).into_iter();
            texts.flat_map(|(_, text)| text.split_whitespace()).map(str::to_owned).collect()
        };
        let (fields, again) = (fields(&files), fields(&again));
        prop_assert_eq!(fields.len(), again.len());
        for (field, again) in fields.iter().zip(&again) {
            // Such a file has only one time for all samples. Rates of any size differ in their last
            // digits.
            let is_near = || {
                let (rate, again): (f64, f64) = (field.parse().unwrap(), again.parse().unwrap());
                (rate - again).abs() <= 1e-6 + 1e-9 * rate
            };
            prop_assert!(field == again || field.contains('.') && is_near(), "{} {}", field, again);
        }
    }
}
