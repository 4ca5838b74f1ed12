//! Maps of what is missing in files of blocks, for the page.

use daqmeter_record::{LossMap, RunRecord};
use minijinja::{Value, context};

use crate::rate::on_host;
use crate::template::rendered;

/// E-links of a map, and parts of the run.
const MAX_ROWS: usize = 64;
const COLUMNS: u32 = 64;

/// Returns the map of every record of a host with missing events.
pub(crate) fn maps(host: &str, records: &[RunRecord]) -> Vec<Value> {
    let maps = records.iter().filter_map(|record| {
        let map = record.sections.missing.as_deref().filter(|map| !map.gaps.is_empty())?;
        let (left, said) = (map.rows(1).len().saturating_sub(MAX_ROWS), &record.warnings);
        let (target, command) = (on_host(host, &record.engine.target), &record.command);
        Some(context! { target, command, left, said, svg => svg(map) })
    });
    maps.collect()
}

/// Draws a map: a row for each E-link with gaps, over all events.
fn svg(map: &LossMap) -> String {
    let row = |(elink, line): (u16, String)| {
        let marks = line.chars().enumerate().filter(|(_, letter)| *letter != '.');
        let marks = marks.map(|(x, letter)| context! { x, is_sure => letter == '#' });
        context! { name => format!("{elink:#05x}"), marks => marks.collect::<Vec<_>>() }
    };
    let rows: Vec<Value> = map.rows(COLUMNS).take(MAX_ROWS).map(row).collect();
    let picture = include_str!("../../../assets/missing.svg");
    rendered(
        "missing.svg",
        picture,
        context! { count => rows.len(), rows, columns => COLUMNS, events => map.events },
    )
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Lost;

    use super::*;

    #[test]
    fn the_map_marks_the_part_of_the_run_that_is_missing() {
        let lost = |elink, from, least, most| Lost { elink, from, least, most };
        let gaps = vec![lost(8, 0, 100, 100), lost(12, 3200, 0, 200), lost(12, 6399, 1, 1)];
        let map = LossMap { events: 6400, gaps };
        let lines = [
            (8, format!("#{}", ".".repeat(63))),
            (12, format!("{}??{}#", ".".repeat(32), ".".repeat(29))),
        ];
        assert_eq!(map.rows(64).collect::<Vec<_>>(), lines);
        let picture = svg(&map);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        assert_eq!(
            [picture.matches("#c92a2a").count(), picture.matches("#f08c00").count()],
            [2, 2]
        );
        // Counts of a file of somebody else.
        let all = LossMap { events: u64::MAX, gaps: vec![lost(8, u64::MAX, u64::MAX, u64::MAX)] };
        assert!(svg(&all).contains("0x008") && svg(&LossMap::default()).contains("<svg"));
    }
}
