//! Polling against interrupts: what waiting costs.

use daqmeter_record::RunRecord;

use super::{Figure, Series, bars, of_engine};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut points: Vec<(String, String, f64)> = Vec::new();
    let mut command = None;
    let mut emulated = false;
    for record in of_engine(records, "digitizer") {
        let (Ok(completion), Ok(samples)) = (
            record.workload.text("completion"),
            record.workload.int("samples"),
        ) else {
            continue;
        };
        let boards = record.lanes.len();
        let name = format!(
            "{boards} board{}, {:.1} MB",
            if boards == 1 { "" } else { "s" },
            samples as f64 * 2e-6
        );
        let percent = record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64 * 100.0;
        emulated |= record.engine.emulated;
        command.get_or_insert(record.command.clone());
        if !points
            .iter()
            .any(|(known, by, _)| *known == name && by == completion)
        {
            points.push((name, completion.to_owned(), percent));
        }
    }
    let mut categories: Vec<String> = points.iter().map(|(name, ..)| name.clone()).collect();
    categories.sort();
    categories.dedup();
    let value = |name: &String, by: &str| {
        points
            .iter()
            .find(|(n, b, _)| n == name && b == by)
            .map(|(.., percent)| *percent)
    };
    let series = |label: &str, by: &str| Series {
        label: label.to_owned(),
        ys: categories.iter().map(|name| value(name, by)).collect(),
        limit: false,
        band: Vec::new(),
    };
    let both = vec![series("polling", "poll"), series("interrupt", "interrupt")];
    (!categories.is_empty()).then(|| {
        let mut figure = bars(
            "completion",
            "Waiting for the DAQ: polling or interrupt",
            "CPU time of the whole program, in per cent of one core, one read per trigger. Polling pays for every look at the \
             status register; the interrupt leaves only the copy.",
            "% of a core",
            categories.clone(),
            both,
        );
        figure.command = command.unwrap_or_default();
        figure.emulated = emulated;
        figure
    })
}
