use daqmeter_record::observed::{EventStatus, ObservedEvent};
use proptest::prelude::*;

use super::*;

const DOCUMENT: &str = "\
#           time             counts unit events
 1.000089438                  0      arm_cmn/rnid_txdat_flits,nodeid=8/                                     (50.00%)
 1.000089438                  0      arm_cmn/rnid_txdat_flits,nodeid=12/                                     (50.00%)
 2.000231897                 79      arm_cmn/rnid_txdat_flits,nodeid=8/                                     (50.01%)
 2.000231897      <not counted>      arm_cmn/rnid_txdat_flits,nodeid=12/
";

fn values(observed: &Observations, event: usize) -> Vec<Option<f64>> {
    (0..observed.end_ns.len()).map(|at| observed.events[event].scaled(at).map(f64::round)).collect()
}

#[test]
fn the_documents_output_is_read_with_shares_and_gaps() {
    let observed = parse(DOCUMENT).unwrap();
    assert_eq!(observed.end_ns, [1_000_089_438, 2_000_231_897]);
    assert_eq!(values(&observed, 0), [Some(0.0), Some(79.0)]);
    assert_eq!(values(&observed, 1), [Some(0.0), None], "zero is not `not counted`");
    assert!((observed.events[0].share(1).unwrap() - 0.5001).abs() < 1e-4);
    assert!((observed.seconds_of(&observed.events[0], 1).unwrap() - 1.000_142_459).abs() < 1e-6);
}

#[test]
fn thousands_are_read_whatever_the_locale() {
    let text = "     2.000394365        121,713,206      arm_cmn/hnf_mc_reqs,nodeid=0x24/\n     2.000394365   121\u{202f}715\u{202f}680      arm_cmn/hnf_mc_reqs,nodeid=0x28/\n";
    let observed = parse(text).unwrap();
    assert_eq!(
        (values(&observed, 0), values(&observed, 1)),
        (vec![Some(121_713_206.0)], vec![Some(121_715_680.0)])
    );
}

#[test]
fn csv_of_every_version_is_read_though_names_hold_commas() {
    for text in [
        // 6.1 pads the stamp.
        "     1.000089438;79;;arm_cmn/rnid_txdat_flits,nodeid=8,bynodeid=1/;1000089438;79.00;;\n",
        "1.000089438,79,,arm_cmn/rnid_txdat_flits,nodeid=8,bynodeid=1/,1000089438,100.00,,\n",
        "1.000089438;S0;1;79;;arm_cmn/rnid_txdat_flits/;1000089438;100.00;;\n",
        "79;;arm_cmn/rnid_txdat_flits/;1000089438;100.00;;\n",
    ] {
        let observed = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(observed.events[0].name.contains("arm_cmn/rnid_txdat_flits"), "{text}");
        let value = observed.events[0].scaled(0).unwrap();
        assert!((value - 79.0).abs() < 1.0, "{text}: {value}");
    }
    let text = "1.0;<not supported>;;arm_cmn/x/;0;100.00;;\n".replace("1.0;", "1.000000000;");
    let observed = parse(&text).unwrap();
    assert!(matches!(observed.events[0].status, EventStatus::NotSupported(_)));
    let observed = parse("1.000000000;<not counted>;;arm_cmn/x/;0;0.00;;\n").unwrap();
    assert_eq!(
        (observed.events[0].scaled(0), &observed.events[0].status),
        (None, &EventStatus::Counted)
    );
}

#[test]
fn json_of_every_version_is_read() {
    for tail in [
        // 6.1, 6.12, 7.2.
        ", \"metric-value\" : 0.000000, \"metric-unit\" : \"(null)\"}",
        ", \"metric-value\" : \"0.000000\", \"metric-unit\" : \"x\"}",
        "}",
        ", \"metric-value\" : nan, \"metric-unit\" : \"x\"}",
    ] {
        let line = format!(
            "{{\"interval\" : 1.000089438, \"counter-value\" : \"79.000000\", \"unit\" : \"\", \"event\" : \"arm_cmn/x,nodeid=8/\", \"event-runtime\" : 500044719, \"pcnt-running\" : 50.00{tail}\n"
        );
        let observed = parse(&line).unwrap();
        assert!((observed.events[0].scaled(0).unwrap() - 79.0).abs() <= 1.0);
        assert_eq!(observed.events[0].running_ns, [500_044_719]);
    }
}

/// One run of perf 6.1 on two CPUs in each locale: 8,934 faults in 0.300 s, which perf shows as 0.6
/// s of both.
#[test]
fn text_csv_and_json_of_one_count_give_one_rate_in_every_locale() {
    const TEXT: &str = "#           time             counts unit events
     0.300144436               8934      page-faults                      #   14.859 K/sec
     0.300144436             600.62 msec cpu-clock                        #    2.002 CPUs utilized    (50.00%)
";
    const CSV: &str = "     0.300144436;8934;;page-faults;600601436;100.00;14.859;K/sec
     0.300144436;600.62;msec;cpu-clock;300315000;50.00;2.002;CPUs utilized
";
    const JSON: &str = r#"{"interval" : 0.300144436, "counter-value" : "8934.000000", "unit" : "", "event" : "page-faults", "event-runtime" : 600601436, "pcnt-running" : 100.00, "metric-value" : 14.859000, "metric-unit" : "K/sec"}
{"interval" : 0.300144436, "counter-value" : "600.620000", "unit" : "msec", "event" : "cpu-clock", "event-runtime" : 300315000, "pcnt-running" : 50.00, "metric-value" : 2.002000, "metric-unit" : "CPUs utilized"}
"#;
    // The stamp has a point in every locale; the rest has the locale's mark.
    let commas = |text: &str| -> String {
        let stamp = "0.300144436";
        let is_digit = |c: char| c.is_ascii_digit();
        let lines = text.lines().map(|line| {
            let mut out: Vec<char> = line.replace(stamp, "STAMP").chars().collect();
            for at in 1..out.len() - 1 {
                if out[at] == '.' && is_digit(out[at - 1]) && is_digit(out[at + 1]) {
                    out[at] = ',';
                }
            }
            out.into_iter().collect::<String>().replace("STAMP", stamp) + "\n"
        });
        lines.collect()
    };
    let grouped = |text: &str, mark: &str| text.replace("8934 ", &format!("8{mark}934 "));
    let cases = [
        ("C", TEXT.to_owned(), CSV.to_owned(), JSON.to_owned()),
        ("en_US", grouped(TEXT, ","), CSV.to_owned(), JSON.to_owned()),
        ("de_DE", grouped(&commas(TEXT), "."), commas(CSV), commas(JSON)),
        ("fr_FR", grouped(&commas(TEXT), "\u{202f}"), commas(CSV), commas(JSON)),
    ];
    for (locale, text, csv, json) in cases {
        for output in [&text, &csv, &json] {
            let observed =
                parse(output).unwrap_or_else(|error| panic!("{locale}: {error}\n{output}"));
            let rate = |at: usize| observed.rate_of(&observed.events[at]).unwrap();
            assert!((rate(0) / (8934.0 / 0.300_144_436) - 1.0).abs() < 1e-9, "{locale}: {output}");
            assert!((rate(1) / (600.62 / 0.300_144_436) - 1.0).abs() < 1e-9, "{locale}: {output}");
            let share = observed.events[1].share(0).unwrap();
            assert!((share - 0.5).abs() < 1e-6, "{locale}: {share}");
        }
    }
}

#[test]
fn a_share_that_perf_cut_changes_no_rate() {
    // Two sockets of six controllers, each read for 1.9 % of a second: perf writes 1.00 %.
    let csv = "1.000000000;10368000;;uncore_imc/cas_count_read/;228000000;1.00;;\n";
    let observed = parse(csv).unwrap();
    assert_eq!(observed.rate_of(&observed.events[0]), Some(10_368_000.0));
    let observed = parse(&csv.replace("1.00;;", "0.00;;")).unwrap();
    assert_eq!(observed.rate_of(&observed.events[0]), Some(10_368_000.0));
    assert_eq!(observed.events[0].running_ns, [228_000_000]);
}

#[test]
fn what_a_locale_makes_ambiguous_is_refused() {
    for (text, part) in [
        ("403,96,msec,cpu-clock,402962274,100,00,2,CPUs utilized\n", "LC_ALL=C"),
        ("1.000000000,S0,2,403,96,msec,cpu-clock,402962274,100,00,2,CPUs utilized\n", "LC_ALL=C"),
        ("1.000000000 1.23,45 x/y/\n", "no count"),
        ("1.000000000;1.234,56;;x;1;100,00;;\n", "line 1"),
        ("2.000000000 5 x/y/\n1.000000000 5 x/y/\n", "line 2: the time goes back"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
    let value = |text: &str| {
        let observed = parse(&format!("1.000000000 {text} x/y/\n")).unwrap();
        observed.events[0].scaled(0).unwrap()
    };
    for (text, expected) in [
        ("12,17,13,206", 121_713_206.0),
        ("1'002.45", 1002.45),
        ("1.002,45", 1002.45),
        ("0.123", 0.123),
        ("4.879", 4879.0),
    ] {
        assert!((value(text) - expected).abs() < 1e-9, "{text}: {}", value(text));
    }
    // An older encoding: the blank between thousands is one byte.
    let mut reader = PerfReader::new(None);
    reader.line(b"1.000000000 4\xa0879 page-faults").unwrap();
    reader.end().unwrap();
    assert_eq!(reader.observed().events[0].scaled(0), Some(4879.0));
}

#[test]
fn intervals_are_there_as_soon_as_they_are_whole() {
    let row = |time: &str, event: &str| format!("{time}000000000;5;;{event};1;100.00;;");
    let mut reader = PerfReader::new(None);
    let mut states = Vec::new();
    for line in [row("1.", "a"), row("1.", "b"), row("2.", "a"), row("2.", "b"), row("3.", "a")] {
        reader.line(line.as_bytes()).unwrap();
        reader.pause().unwrap();
        states.push((reader.complete(), reader.observed().end_ns.len()));
    }
    assert_eq!(states, [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3)]);
    reader.end().unwrap();
    assert_eq!(
        (reader.complete(), values(reader.observed(), 1)),
        (3, vec![Some(5.0), Some(5.0), None])
    );
    // Without a pause the reader waits for the second stamp, also if the first stamp may be in the
    // middle of an output.
    let mut reader = PerfReader::new(None);
    reader.line(row("7.", "a").as_bytes()).unwrap();
    reader.pause().unwrap();
    assert_eq!(reader.observed().end_ns.len(), 0);
    reader.line(row("8.", "a").as_bytes()).unwrap();
    reader.pause().unwrap();
    assert_eq!((reader.observed().begin_ns, reader.complete()), (6_000_000_000, 1));
}

#[test]
fn a_run_without_a_time_has_no_rate_unless_its_length_is_given() {
    let csv = "87;;page-faults;403902767;100.00;215;/sec\n";
    let observed = parse(csv).unwrap();
    assert_eq!(observed.rate_of(&observed.events[0]), None);
    let observed = parse_with(csv, Some(Duration::from_millis(200))).unwrap();
    assert_eq!(observed.rate_of(&observed.events[0]), Some(435.0));
}

#[test]
fn rows_of_cpus_are_written_as_perf_prints_them() {
    let csv = "1.000000000;CPU0;57;;page-faults:u;200394916;100.00;;\n";
    let observed = parse(csv).unwrap();
    assert_eq!(observed.events[0].name, "CPU0 page-faults:u");
    for (format, expected) in [
        (PerfFormat::Csv(';'), csv),
        (
            PerfFormat::Text,
            "#           time             counts unit events\n     1.000000000 CPU0                 57      page-faults:u\n",
        ),
        (
            PerfFormat::Json,
            "{\"interval\" : 1.000000000, \"cpu\" : \"0\", \"counter-value\" : \"57.000000\", \"unit\" : \"\", \"event\" : \"page-faults:u\", \"event-runtime\" : 200394916, \"pcnt-running\" : 100.00}\n",
        ),
    ] {
        let text = emit_interval(&observed, 0, format);
        assert_eq!(text, expected);
        assert_eq!(parse(&text).unwrap().events[0].name, "CPU0 page-faults:u");
    }
}

#[test]
fn rows_from_the_middle_of_an_output_have_their_own_length() {
    // Issue 16: the document's rows; their first interval was taken to begin at 0, which gave 1.07
    // and 81 M/s.
    let ethernet =
        "    12.001858023          4,024,328      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
    13.002047284          4,024,287      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
    14.002224093          4,024,470      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
    15.002402111          4,024,376      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/
";
    let memory = "     2.000394365        121,713,206      arm_cmn/hnf_mc_reqs,nodeid=0x24/
     3.000644408        121,683,890      arm_cmn/hnf_mc_reqs,nodeid=0x24/
";
    let single = "2.000394365 121,713,206 arm_cmn/hnf_mc_reqs,nodeid=0x24/";
    for (text, rate) in [(ethernet, 4.02e6), (memory, 121.7e6), (single, 121.7e6)] {
        let observed = parse(text).unwrap();
        let (count, _) = observed.events[0].total_scaled().unwrap();
        let found = count / observed.total_seconds();
        assert!((found / rate - 1.0).abs() < 2e-3, "{found} for {rate}");
        let first =
            values(&observed, 0)[0].unwrap() / observed.seconds_of(&observed.events[0], 0).unwrap();
        assert!((first / rate - 1.0).abs() < 2e-3, "first interval: {first} for {rate}");
    }
    let tenth = parse_with(single, Some(Duration::from_millis(100))).unwrap();
    assert!((tenth.total_seconds() - 0.1).abs() < 1e-6);
}

#[test]
fn a_whole_output_begins_at_0_also_with_a_short_last_interval() {
    for text in [
        "0.100242541 76 page-faults\n0.151 4 page-faults\n",
        "0.100242541 76 page-faults\n0.2005 4 page-faults\n0.21 4 page-faults\n",
        "#           time             counts unit events\n 1.0001 1 a/b/\n 1.2501 1 a/b/\n",
    ] {
        let text = text.replace("0.151", "0.151917929").replace("0.2005", "0.200601695");
        let text = text.replace("0.21 ", "0.210000000 ").replace("1.0001", "1.000100000");
        let observed = parse(&text.replace("1.2501", "1.250100000")).unwrap();
        assert_eq!(observed.begin_ns, 0, "{text}");
    }
}

#[test]
fn the_summary_behind_intervals_is_no_interval() {
    let text = "     1.000089438                 79      page-faults\n     2.000231897                 21      page-faults\n\n Performance counter stats for 'system wide':\n\n               100      page-faults\n\n       2.000500000 seconds time elapsed\n";
    let csv = "     1.000089438;79;;page-faults;1000089438;100.00;;\n     2.000231897;21;;page-faults;1000142459;100.00;;\n         summary;100;;page-faults;2000231897;100.00;;\n";
    for text in [text, csv] {
        let observed = parse(text).unwrap();
        assert_eq!(values(&observed, 0), [Some(79.0), Some(21.0)], "{text}");
        assert_eq!(observed.events.len(), 1);
    }
}

#[test]
fn csv_is_read_whatever_separates_its_fields() {
    for separator in super::rows::SEPARATORS {
        let s = separator.to_string();
        let lines = [
            "1.000089438;79;;arm_cmn/x,nodeid=8/;1000089438;100.00;;",
            "1.000089438;<not counted>;;page-faults [software];0;0.00;;",
        ];
        let text = lines.map(|line| format!("{}\n", line.replace(';', &s))).concat();
        let observed = parse(&text).unwrap_or_else(|error| panic!("{separator:?}: {error}"));
        let names: Vec<&str> = observed.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["arm_cmn/x,nodeid=8/", "page-faults"], "{separator:?}");
        assert_eq!(observed.events[0].running_ns, [1_000_089_438], "{separator:?}");
        assert_eq!((values(&observed, 0), values(&observed, 1)), (vec![Some(79.0)], vec![None]));
    }
}

#[test]
fn repeated_runs_and_verbose_output_are_read() {
    let repeated = "48;;page-faults;0.69%;469852;100.00;102.505;K/sec\n0.47;msec;cpu-clock;13.90%;469852;100.00;0.374;CPUs utilized\n";
    let observed = parse(repeated).unwrap();
    assert_eq!(values(&observed, 0), [Some(48.0)]);
    assert_eq!(
        (observed.events[1].unit.as_str(), observed.events[1].running_ns[0]),
        ("msec", 469_852)
    );
    let verbose = "Using CPUID GenuineIntel-6-8F-8\nControl descriptor is not initialized\npage-faults: 76 765368 765368\narm_cmn/x,nodeid=8/: 5 100 100\n";
    for rows in [
        "76;;page-faults;765368;100.00;99.483;K/sec\n",
        "\n Performance counter stats for 'true':\n\n   76   page-faults\n",
    ] {
        let observed = parse(&format!("{verbose}{rows}")).unwrap();
        assert_eq!((observed.events.len(), values(&observed, 0)), (1, vec![Some(76.0)]));
    }
}

#[test]
fn rows_of_threads_keep_their_names() {
    for text in [
        "     1.000089438      sleep-12345                 79      page-faults\n     1.000089438      Web Content-7                 5      page-faults\n",
        "1.000089438;sleep-12345;79;;page-faults;765368;100.00;;\n1.000089438;Web Content-7;5;;page-faults;765368;100.00;;\n",
        "{\"interval\" : 1.000089438, \"thread\" : \"sleep-12345\", \"counter-value\" : \"79.000000\", \"unit\" : \"\", \"event\" : \"page-faults\", \"event-runtime\" : 5, \"pcnt-running\" : 100.00}\n{\"interval\" : 1.000089438, \"thread\" : \"Web Content-7\", \"counter-value\" : \"5.000000\", \"unit\" : \"\", \"event\" : \"page-faults\", \"event-runtime\" : 5, \"pcnt-running\" : 100.00}\n",
    ] {
        let observed = parse(text).unwrap();
        let names: Vec<&str> = observed.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["sleep-12345 page-faults", "Web Content-7 page-faults"], "{text}");
        assert_eq!(values(&observed, 0), [Some(79.0)]);
    }
}

#[test]
fn values_with_decimals_are_written_as_numbers() {
    let text = "1.000000000;0.76;msec;cpu-clock;765368;100.00;;\n";
    let json = emit_interval(&parse(text).unwrap(), 0, PerfFormat::Json);
    assert!(json.contains("\"counter-value\" : \"0.760000\""), "{json}");
}

#[test]
fn a_run_without_intervals_takes_the_elapsed_time() {
    let text = " Performance counter stats for 'system wide':\n\n       486857099      arm_cmn/hnf_mc_reqs/\n\n       1.000250043 seconds time elapsed\n";
    let observed = parse(text).unwrap();
    assert_eq!(
        (values(&observed, 0), observed.end_ns[0]),
        (vec![Some(486_857_099.0)], 1_000_250_043)
    );
}

#[test]
fn what_is_not_perfs_is_refused_with_its_line() {
    for (text, part) in [
        ("hello world\n", "line 1"),
        ("# x\n\n", "no counts"),
        ("", "no counts"),
        ("{\"a\": }\n", "line 1"),
        ("1.000000000 5 x/y/ (abc%)\n", "line 1"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn recorded_output_of_three_versions_is_read_with_its_three_states() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/perf");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let observed = parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        files += 1;
        let per_cpu = if name.contains("cpus") { 2 } else { 1 };
        assert_eq!(observed.events.len(), 4 * per_cpu, "{name}: {:?}", observed.events);
        let of = |event: &str| {
            let found = observed.events.iter().find(|found| found.name.ends_with(event));
            found.unwrap_or_else(|| panic!("{name}: no {event} in {:?}", observed.events))
        };
        assert!(matches!(of("cycles").status, EventStatus::NotSupported(_)), "{name}");
        assert_eq!(of("cpu-clock").unit, "msec", "{name}");
        let (faults, clock) = (of("page-faults"), of("cpu-clock"));
        assert!(
            faults.scaled(0).is_some_and(|count| count >= 1.0 && count.fract() == 0.0),
            "{name}: {faults:?}"
        );
        assert!(clock.scaled(0).is_some_and(|ms| ms > 0.0 && ms < 500.0), "{name}: {clock:?}");
        if name.contains("interval") {
            assert_eq!(observed.end_ns.len(), 3, "{name}");
            // The command sleeps in the second interval: never scheduled there.
            assert_eq!((faults.scaled(1), faults.scaled(2)), (None, Some(0.0)), "{name}");
        }
        if name.contains("cpus") {
            assert!(observed.events[0].name.starts_with("CPU0 "), "{name}");
        }
    }
    assert_eq!(files, 21);
}

fn observed() -> impl Strategy<Value = Observations> {
    let row = (0_u64..1 << 40, 1_u64..1_000_000_000, any::<bool>());
    proptest::collection::vec(proptest::collection::vec(row, 1..4), 1..4).prop_map(|events| {
        let intervals = events[0].len();
        let events = events.into_iter().enumerate().map(|(at, rows)| {
            let rows: Vec<_> = rows.into_iter().cycle().take(intervals).collect();
            ObservedEvent {
                name: format!("pmu/event,nodeid={at}/"),
                pmu: "pmu".into(),
                scale: 1.0,
                places: 1,
                count: rows.iter().map(|(count, ..)| *count).collect(),
                enabled_ns: rows.iter().map(|(_, ns, _)| *ns).collect(),
                running_ns: rows.iter().map(|(_, ns, ran)| if *ran { *ns } else { 0 }).collect(),
                ..ObservedEvent::default()
            }
        });
        let end_ns = (1..=intervals as u64).map(|at| at * 1_000_000_007).collect();
        Observations {
            what: "perf stat".into(),
            begin_ns: 0,
            end_ns,
            events: events.collect(),
            ..Observations::default()
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(observed in observed()) {
        for format in [PerfFormat::Text, PerfFormat::Csv(';'), PerfFormat::Csv(','), PerfFormat::Json] {
            let text: String = (0..observed.end_ns.len()).map(|at| emit_interval(&observed, at, format)).collect();
            let back = parse(&text).unwrap();
            prop_assert_eq!(&back.end_ns, &observed.end_ns);
            for (event, read) in observed.events.iter().zip(&back.events) {
                prop_assert_eq!(&event.name, &read.name);
                for at in 0..observed.end_ns.len() {
                    prop_assert_eq!(event.scaled(at), read.scaled(at), "{:?}", format);
                }
            }
        }
    }
}
