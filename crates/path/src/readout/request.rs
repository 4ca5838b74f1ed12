//! Request to the engine `readout`: a scenario, replaced parts of it, a duration and a place.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daqmeter_harness::CpuList;
use daqmeter_readout::Chosen;
use daqmeter_record::units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::definition::layout::Layout;

/// Number of receivers, and their place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
pub struct Receivers {
    /// Number of receivers [default: one per reader]
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receivers: Option<usize>,
    /// CPUs of the receivers, one each
    #[arg(long = "receiver-pin", value_name = "CPUS", help_heading = "Placement")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_cpu: Option<CpuList>,
    /// Threads: one for each reader and receiver (pipeline), or one for both (fused)
    #[arg(long, value_name = "LAYOUT", value_parser = layouts())]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

fn layouts() -> impl TypedValueParser<Value = Layout> {
    PossibleValuesParser::new(["auto", "pipeline", "fused"]).try_map(|text| text.parse::<Layout>())
}

impl Receivers {
    /// CPUs of the receivers; empty leaves them free.
    pub fn cpus(&self) -> &[u32] {
        self.peer_cpu.as_ref().map_or(&[], |cpus| &cpus.0)
    }
}

/// A whole chain: emulated card, readers, receivers. A lane is a reader of one DMA channel; its one
/// operation is the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
#[serde(deny_unknown_fields)]
pub struct ReadoutRequest {
    /// The scenario
    #[command(flatten)]
    #[serde(flatten)]
    pub chosen: Chosen,
    /// Time for which triggers come
    #[arg(long = "time", value_name = "TIME", value_parser = seconds, default_value = "2s")]
    pub seconds: f64,
    /// The receivers
    #[command(flatten)]
    #[serde(flatten)]
    pub receivers: Receivers,
    /// Set sched_migration_cost_ns for the run, then put it back (root)
    #[arg(
        id = "migration_cost_ns",
        long = "migration-cost",
        value_name = "TIME",
        value_parser = units::parse_ns,
        help_heading = "Placement"
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_cost_ns: Option<u64>,
    /// No limit is measured beside it
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probe: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    units::parse_duration(text).map(|time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use daqmeter_record::written::Nanos;
    use daqmeter_record::{Param, Workload};

    use daqmeter_harness::Request;

    use super::*;

    fn workload() -> Workload {
        Workload::new("readout").with("scenario", "gbt").with("seconds", 0.5)
    }

    fn error(name: &str, value: Param) -> String {
        match ReadoutRequest::of(&workload().with(name, value)) {
            Ok(request) => request.chosen.completed().unwrap_err(),
            Err(error) => error.0,
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, value, wanted) in [
            ("poll_us", Param::Float(2e6), "`poll_us` is 2000000; 0 to"),
            ("poll_us", Param::Float(-1.0), "`poll_us` is -1; 0 to"),
            ("completion", "polled".into(), "`completion` is wrong"),
            ("rate_hz", "1MHz".into(), "`rate_hz` is wrong: invalid type"),
            ("seconds", Param::Int(0), "`seconds` is 0; 0.0001 to"),
            (
                "migration_cost_ns",
                Param::Int(1_000_000_001),
                "`migration_cost_ns` is 1000000001; 0 to",
            ),
            ("receivers", Param::Int(0), "`receivers` is 0; 1 to 1"),
            ("receivers", Param::Int(100), "`receivers` is 100; 1 to 1"),
            ("speed", Param::Int(1), "unknown field `speed`"),
            ("peer_cpu", "a".into(), "is not a list of CPUs"),
            ("peer_cpu", "1022".into(), "no such CPU"),
        ] {
            let error = error(name, value);
            assert!(error.contains(wanted), "{name}: {error}");
        }
    }

    #[test]
    fn a_workload_keeps_what_it_did_not_say_unsaid() {
        let old = workload().with("channels", 2_u64).with("poll_us", 100_u64).with("peer_cpu", "");
        let request = ReadoutRequest::of(&old).unwrap();
        assert_eq!(request.chosen.completed().unwrap().reader.poll, Nanos(100_000));
        assert_eq!(
            request.workload().to_string(),
            "readout channels=2 peer_cpu='' poll_us=100 scenario=gbt seconds=0.5"
        );
    }

    #[test]
    fn the_parameters_of_a_flattened_request_are_listed() {
        let names: Vec<String> = daqmeter_harness::request::parameters::<ReadoutRequest>()
            .into_iter()
            .filter(|parameter| !parameter.about.is_empty())
            .map(|parameter| parameter.name)
            .collect();
        for name in ["scenario", "rate_hz", "completion", "peer_cpu", "seconds"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }
}
