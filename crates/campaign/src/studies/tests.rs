use super::*;

#[test]
fn names_are_unique() {
    let all = studies();
    let mut names: Vec<&str> = all.iter().flat_map(|study| study.names()).copied().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_point_belongs_to_its_study_and_an_engine_opens_it() {
    for study in studies() {
        let cpus = [0, 1];
        let wanted = Wanted { cpus: &cpus, ..Wanted::default() };
        for point in study.points(&wanted) {
            let name = format!("{}: {}", study.name(), point.workload);
            let words: Vec<&str> = point.study.split('/').collect();
            assert!(words.contains(&"reproduce") && words.contains(&study.name()), "{name}");
            let job = crate::engine(&point.engine).and_then(|engine| {
                engine.parse(&point.workload).map_err(|fault| fault.to_string())
            });
            let job = job.unwrap_or_else(|why| panic!("{name}: {why}"));
            if job.availability == daqmeter_harness::Availability::Ready {
                let opened = job.open();
                assert!(opened.is_ok(), "{name}: {:?}", opened.err());
            }
        }
    }
}

#[test]
fn without_records_nothing_is_measured_and_no_finding_is_judged() {
    for study in studies() {
        for line in study.compare(&[]) {
            assert!(line.measured.is_none(), "{line:?}");
            assert!(line.published.is_some() || line.derived.is_some(), "{line:?}");
        }
        for finding in study.findings(&[]) {
            assert_eq!(finding.verdict.to_string(), "cannot tell", "{finding:?}");
            assert!(!finding.place.is_empty());
        }
    }
}

#[test]
fn every_option_of_a_study_changes_its_points() {
    let cpus = [0, 1];
    let usual = Wanted { cpus: &cpus, ..Wanted::default() };
    let chosen = Wanted { reps: Some(7), receiver_cpus: Some("1"), ..usual };
    for study in studies() {
        let is_changed = study.points(&usual) != study.points(&chosen);
        assert_eq!(is_changed, !study.options().is_empty(), "{}", study.name());
    }
}

/// Six of the 18 CPU figures of the digitizers: the model is of read-out alone, and the document contradicts itself (its notes).
const KNOWN: [(&str, usize); 1] = [("digitizer", 6)];

#[test]
fn models_meet_the_documents_but_for_what_is_known() {
    for study in studies() {
        let lines = study.compare(&[]);
        let grades = lines.iter().filter_map(|line| line.verdict().grade());
        let differ = grades.filter(|grade| grade.contradicts()).count();
        let known = KNOWN.iter().find(|(name, _)| *name == study.name());
        assert_eq!(differ, known.map_or(0, |(_, count)| *count), "{}", study.name());
    }
}

/// The plan of the hour at 1 MHz, for a moment and at a rate that a debug build carries: what it measures is what is judged.
#[test]
fn the_hour_in_short_is_run_and_judged() {
    let plan = Plan::load("felix-hour").unwrap();
    let [point] = plan.points.as_slice() else { panic!("one point: {:?}", plan.points) };
    let of = |name: &str| point.workload.float(name).unwrap();
    assert_eq!((of("seconds"), of("rate_hz")), (3600.0, 1e6));
    let workload = point.workload.clone().with("seconds", 0.05).with("rate_hz", 1000.0);
    let job = crate::engine(&point.engine).unwrap().parse(&workload).unwrap();
    let settings = daqmeter_harness::Settings::new(point.steps, &point.study);
    let facts = daqmeter_harness::Context::default();
    let record = daqmeter_harness::measure(&job, &settings, &facts, &[], &mut []);
    let mut record = record.unwrap();
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    assert!(record.host_cpu.processes.iter().any(|process| process.pid == std::process::id()));
    // The record looks like one at 1 MHz on a quiet host, since the verdict uses only the counts.
    record.workload = point.workload.clone().into();
    record.host_cpu = Default::default();
    for lane in &mut record.lanes {
        lane.reference_ns.clear();
    }
    let study = study("readout").unwrap();
    let hour = |record: &RunRecord| {
        let findings = study.findings(std::slice::from_ref(record));
        let mut of_hour = findings.into_iter().filter(|finding| finding.text.contains("1 hour"));
        of_hour.next().unwrap().verdict.to_string()
    };
    assert_eq!(hour(&record), "refuted (emulated)", "1 kHz is not 1 MHz");
    for counter in &mut record.counters {
        if counter.name == "trigger-rate" {
            counter.value = 1e6;
        }
    }
    assert_eq!(hour(&record), "in part (emulated)", "one reader of 16");
}
