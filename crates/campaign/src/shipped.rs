//! The plans that ship in the binary: one file in `plans/`, one line here.

/// Name and text.
pub const SHIPPED: &[(&str, &str)] = &[
    ("memory", include_str!("../../../plans/memory.toml")),
    ("quick", include_str!("../../../plans/quick.toml")),
    ("conversion", include_str!("../../../plans/conversion.toml")),
    ("digitizer-2017", include_str!("studies/ess_2017/plan.toml")),
    ("etherbone-2018", include_str!("studies/gsi_2018/plan.toml")),
    ("felix-2019", include_str!("studies/nikhef/plan.toml")),
    ("copies", include_str!("../../../plans/copies.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use daqmeter_harness::Availability;

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
}
