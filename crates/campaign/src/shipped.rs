//! The plans that ship in the binary: one file in `plans/`, one line here.

/// Name and text.
pub const SHIPPED: &[(&str, &str)] = &[
    ("memory", include_str!("../../../plans/memory.toml")),
    ("quick", include_str!("../../../plans/quick.toml")),
    ("conversion", include_str!("../../../plans/conversion.toml")),
    (
        "digitizer-2017",
        include_str!("../../../plans/digitizer-2017.toml"),
    ),
    ("etherbone-2018", include_str!("studies/gsi_2018/plan.toml")),
    ("felix-2019", include_str!("studies/nikhef/plan.toml")),
    ("copies", include_str!("../../../plans/copies.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, PlannedPoint};
    use daqmeter_harness::{Availability, StepPlan};
    use daqmeter_record::Workload;

    fn shipped(name: &str) -> Vec<PlannedPoint> {
        Plan::load(name).unwrap().points
    }

    #[test]
    fn every_shipped_plan_is_understood_and_its_points_open() {
        let engines = crate::engines(32 << 20);
        for (name, _) in SHIPPED {
            let plan = Plan::load(name).unwrap();
            assert!(!plan.points.is_empty() && !plan.about.is_empty(), "{name}");
            for point in plan.points {
                let engine = engines
                    .iter()
                    .find(|engine| engine.name() == point.engine)
                    .unwrap();
                if engine.probe_for(&point.workload) == Availability::Ready {
                    engine
                        .open(&point.workload)
                        .map(drop)
                        .unwrap_or_else(|fault| panic!("{name}: {fault}"));
                }
            }
        }
    }

    /// The plan holds what the reproduction runs: study, engine, workload and steps.
    fn is_the_study(name: &str, mut wanted: Vec<(String, &str, Workload, StepPlan)>) {
        let point = |point: PlannedPoint| {
            format!(
                "{} {} {} {:?}",
                point.study, point.engine, point.workload, point.steps
            )
        };
        let mut found: Vec<String> = shipped(name).into_iter().map(point).collect();
        let mut wanted: Vec<String> = wanted
            .drain(..)
            .map(|(study, engine, workload, steps)| {
                format!("{study} {engine} {workload} {steps:?}")
            })
            .collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_digitizer_plan_is_the_published_study() {
        use daqmeter_digitizer::reproduce::{Steps, plan};
        let steps = |steps| match steps {
            Steps::Reads(reads) => StepPlan::ByStage(reads),
            Steps::Passes(passes) => StepPlan::ByPass(passes),
            Steps::Timed => StepPlan::Timed(std::time::Duration::from_millis(300)),
        };
        let points = plan(&Default::default()).into_iter();
        is_the_study(
            "digitizer-2017",
            points
                .map(|point| {
                    (
                        point.study,
                        point.engine,
                        point.workload,
                        steps(point.steps),
                    )
                })
                .collect(),
        );
    }
}
