//! Reads any text as events, a mesh (description, driver's map, JSON), a group, perf's
//! output, a format. No panic and no hang; parsed values have sound sizes.
#![no_main]

use daqmeter_harness::TomlText;
use daqmeter_pmu::event::EventResolver;
use daqmeter_pmu::format::FormatField;
use daqmeter_pmu::mesh::from_text;
use daqmeter_pmu::plan::{Driver, plan};
use daqmeter_pmu::{CountedHost, MetricGroup, perf_format};
use daqmeter_sys::host::Files;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(mesh) = from_text(&text, "fuzz") {
        assert_eq!(mesh.crosspoints.len(), (mesh.width * mesh.height) as usize);
        assert!(mesh.nodes.iter().all(|node| mesh.crosspoint_of(node).is_some()));
    }
    let output = perf_format::parse(&text, None).unwrap_or_default();
    for observed in output.runs {
        let intervals = observed.end_ns.len();
        assert!(
            observed
                .events
                .iter()
                .all(|event| event.count.len() == intervals && event.enabled_ns.len() == intervals)
        );
    }
    let _ = MetricGroup::parse(&TomlText::new("fuzz", &text));
    if let Some(format) = FormatField::parse("x", &text) {
        let mut words = [0; 3];
        let most = u64::MAX >> (64 - format.bits());
        assert!(format.place(most, &mut words).is_ok());
        assert_eq!(format.value(&words), most);
    }
    let CountedHost { pmus, meshes, .. } = CountedHost::emulated("n1sdp").expect("it ships");
    let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
    if let Ok(set) = host.resolve(&[text.into_owned()])
        && set.events().count() <= 16
        && let Ok(plan) = plan(&meshes[0], Driver::Mainline, &set.groups)
    {
        assert!(plan.shares.iter().all(|share| (0.0..=1.0).contains(share)));
    }
});
